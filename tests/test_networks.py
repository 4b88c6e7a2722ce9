"""Networks, and kernels that follow their gradients: against NumPy loops written from the papers."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from laws import ALPHA
from scipy import special, stats
from torch import nn

from mhrun.data import Dataset
from mhrun.errors import Refusal, UserError
from mhrun.evaluation.predictive import Predictive
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models import products
from mhrun.models.logistic import Logistic
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.native import vectors
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.moving import Moving
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.langevin import Langevin
from mhrun.proposals.random_walk import RandomWalk
from mhrun.proposals.reversible_langevin import ReversibleLangevin
from mhrun.random import Purpose, Streams, derive_key
from mhrun.rules.austere import Austere
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.subsampling import MHSubLhd
from mhrun.target import Target
from mhrun.types import Controls, Evaluation

KEY = derive_key(4, "networks")
LAYERS = [5, 4, 6, 3]
C, M, N = 3, 7, 40
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


# ---------------------------------------------------------------- the network in plain loops


def matrices(theta, layers=LAYERS):
    """Cut a flat theta (D,) into W1 (h, k), b1 (h,), W2, ..."""
    parts, at = [], 0
    for k, h in pairwise(layers):
        weight = theta[at : at + h * k].reshape(h, k)
        bias = theta[at + h * k : at + h * k + h]
        parts.append((weight, bias))
        at += h * k + h
    assert at == len(theta)
    return parts


def outputs_of(theta, x, layers=LAYERS):
    """What goes into each layer, and the outputs, for one datum."""
    values = [np.asarray(x, float)]
    for i, (weight, bias) in enumerate(matrices(theta, layers)):
        out = np.zeros(len(bias))
        for j in range(len(bias)):
            out[j] = bias[j] + sum(weight[j, k] * values[-1][k] for k in range(weight.shape[1]))
        values.append(np.maximum(out, 0) if i < len(layers) - 2 else out)
    return values


def categorical(z, y):
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    return z[y] - z.max() - math.log(np.exp(z - z.max()).sum()), np.eye(len(z))[y] - p


def clipped_binary(z, y):
    """The loss of the authors' code of Wu et al.: TensorFlow's clip_by_value lets no slope through outside."""
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    value, slope = 0.0, np.zeros(len(z))
    for k in range(len(z)):
        c = min(max(p[k], 1e-10), 0.9999999)
        value += math.log(c) if k == y else math.log(1 - c)
        if 1e-10 <= p[k] <= 0.9999999:
            d_p = 1 / c if k == y else -1 / (1 - c)
            for j in range(len(z)):
                slope[j] += d_p * p[k] * ((j == k) - p[j])
    return value, slope


LOSSES = {"categorical": categorical, "clipped_binary": clipped_binary}


def by_hand(theta, x, y, loss, layers=LAYERS):
    """Log-likelihood of one datum and its gradient (D,), by the chain rule from the last layer back."""
    values = outputs_of(theta, x, layers)
    value, back = loss(values[-1], y)
    pieces = []
    for i, (weight, _) in reversed(list(enumerate(matrices(theta, layers)))):
        pieces.append(np.concatenate([np.outer(back, values[i]).ravel(), back]))
        back = np.array([back @ weight[:, k] * (values[i][k] > 0) for k in range(weight.shape[1])])
    return value, np.concatenate(pieces[::-1])


@pytest.fixture
def problem(rng):
    """Parameters of three chains and a minibatch for each."""
    theta = torch.from_numpy(rng.normal(0, 1.0, (C, Perceptron(LAYERS).dim)))
    x = torch.from_numpy(rng.normal(0, 1.0, (C, M, LAYERS[0])))
    return theta, {"x": x, "y": torch.from_numpy(rng.integers(0, LAYERS[-1], (C, M)))}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1.0, 3.0])  # at 3 many probabilities are clipped
def test_a_perceptron_is_its_loops(problem, loss, scale):
    theta, rows = problem
    theta = scale * theta
    values, grads, outside = np.zeros((C, M)), np.zeros((C, M, theta.shape[1])), 0
    for c in range(C):
        for i in range(M):
            x, y = rows["x"][c, i].numpy(), int(rows["y"][c, i])
            values[c, i], grads[c, i] = by_hand(theta[c].numpy(), x, y, LOSSES[loss])
            p = special.softmax(outputs_of(theta[c].numpy(), x)[-1])
            outside += ((p < 1e-10) | (p > 0.9999999)).sum()
    assert (outside >= 5) == (scale > 1)
    model = Perceptron(LAYERS, likelihood=loss)
    found, grad = model.log_lik_and_grad(theta, rows)
    assert found.numpy() == pytest.approx(values, rel=1e-9)
    assert model.log_lik(theta, rows).numpy() == pytest.approx(values, rel=1e-9)
    assert grad.numpy() == pytest.approx(grads.mean(1), rel=1e-8, abs=1e-10)

    point = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.log_lik(point, rows).mean(-1).sum(), point)
    assert torch.allclose(grad, slope, rtol=1e-8, atol=1e-10)

    step = 1e-6
    for d in range(0, theta.shape[1], 7):
        up, down = theta.clone(), theta.clone()
        up[:, d] += step
        down[:, d] -= step
        numeric = (model.log_lik(up, rows) - model.log_lik(down, rows)).mean(-1) / (2 * step)
        assert grad[:, d].numpy() == pytest.approx(numeric.numpy(), rel=1e-4, abs=2e-5)


def test_predictions_are_the_log_probabilities(problem):
    theta, rows = problem
    found = Perceptron(LAYERS).predict(theta, rows).numpy()
    for c in range(C):
        for i in range(M):
            wanted = special.log_softmax(outputs_of(theta[c].numpy(), rows["x"][c, i].numpy())[-1])
            assert found[c, i] == pytest.approx(wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_shared_by_all_chains_are_rows_of_each(problem, dtype, loss):
    theta, rows = problem
    model = Perceptron(LAYERS, likelihood=loss)
    shared = {name: field[:1] for name, field in rows.items()}
    own = {name: field[:1].expand(C, *field.shape[1:]) for name, field in rows.items()}
    one, two = (model.log_lik_and_grad(theta.to(dtype), r) for r in (shared, own))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for a, b in zip((*one, model.predict(theta, shared)), (*two, model.predict(theta, own)), strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def test_bytes_are_pixels(problem, rng):
    theta, rows = problem
    pixels = torch.from_numpy(rng.integers(0, 256, (C, M, LAYERS[0])).astype(np.uint8))
    before = pixels.clone()
    model = Perceptron(LAYERS)
    found = model.log_lik(theta, rows | {"x": pixels})
    assert torch.allclose(found, model.log_lik(theta, rows | {"x": pixels.double() / 255}), rtol=1e-12)
    assert torch.equal(pixels, before)


def fast_products():
    """The two products, where torch has both."""
    found = {"torch": nn.functional.linear}
    try:
        products._onednn(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
    except Exception:
        return found
    return found | {"onednn": products._onednn}


@pytest.mark.parametrize("name", fast_products())
def test_products_of_single_precision_are_exact_to_its_rounding(monkeypatch, rng, name):
    monkeypatch.setattr(products, "_product", lambda: fast_products()[name])
    theta = torch.from_numpy(rng.normal(0, 0.5, (C, Perceptron([20, 30, 5]).dim)))
    x, y = torch.from_numpy(rng.normal(size=(C, 17, 20))), torch.from_numpy(rng.integers(0, 5, (C, 17)))
    model = Perceptron([20, 30, 5])
    for field in (x, x[:1]):
        rows = {"x": field, "y": y[: len(field)]}
        wanted, slope = model.log_lik_and_grad(theta, rows)
        found, grad = model.log_lik_and_grad(theta.float(), rows)
        assert found.dtype == grad.dtype == torch.float32
        assert found.numpy() == pytest.approx(wanted.numpy(), rel=1e-4, abs=1e-5)
        assert grad.numpy() == pytest.approx(slope.numpy(), rel=1e-3, abs=1e-5)
    left, right = torch.randn(C, 9, 6), torch.randn(C, 9, 8)
    for factor in (right, right[:1]):
        out = torch.full((C, 6, 8), torch.nan)
        products.outer(left, factor, out)
        assert torch.allclose(out, left.transpose(1, 2) @ factor, atol=1e-5)
    bias = torch.randn(C, 4)
    for factor in (right, right[:1]):
        weight = torch.randn(C, 4, 8)
        found = products.linear(factor, weight, bias)
        assert torch.allclose(found, factor @ weight.transpose(1, 2) + bias[:, None], atol=1e-5)


@pytest.fixture
def _untried(monkeypatch):
    monkeypatch.setattr(products, "_settled", None)
    monkeypatch.setattr(products, "_amd", lambda: True)
    products._product.cache_clear()
    yield
    products._product.cache_clear()


@pytest.mark.usefixtures("_untried")
@pytest.mark.parametrize("fault", ["gone", "wrong", "raises", "elsewhere"])
def test_a_private_product_that_is_gone_or_wrong_is_not_used(monkeypatch, fault):
    if fault == "gone":
        monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(), raising=False)
    elif fault == "wrong":
        monkeypatch.setattr(products, "_onednn", lambda x, w, b: 1.001 * (x @ w.t()))
    elif fault == "raises":
        monkeypatch.setattr(products, "_onednn", lambda *_: (_ for _ in ()).throw(TypeError("arguments")))
    else:
        monkeypatch.setattr(products, "_amd", lambda: False)
    assert products._product() is nn.functional.linear
    if fault != "elsewhere":
        with pytest.raises(UserError, match="a matrix product that torch does not have here"):
            products.settle("onednn")


@pytest.mark.usefixtures("_untried")
@pytest.mark.skipif("onednn" not in fast_products(), reason="torch has no such product here")
def test_a_run_goes_on_with_the_product_that_it_began_with(monkeypatch):
    assert products.settle("torch") == "torch"
    assert products._product() is nn.functional.linear
    monkeypatch.setattr(products, "_amd", lambda: False)
    assert products.settle("onednn") == "onednn"
    assert products.settle(None) == "torch"


def test_autograd_goes_through_single_precision(problem):
    theta, rows = problem
    model = Perceptron(LAYERS)
    point = theta.float().requires_grad_()
    (slope,) = torch.autograd.grad(model.log_lik(point, rows).mean(-1).sum(), point)
    with torch.no_grad():
        assert torch.allclose(model.log_lik_and_grad(point, rows)[1], slope, atol=1e-5)


# ---------------------------------------------------------------- what a network is


@pytest.mark.parametrize(("weight_sd", "bias_sd"), [(None, 0.0), (0.03, 1.0)])
def test_first_weights_have_their_spread(weight_sd, bias_sd):
    model = Perceptron([300, 40, 10], weight_sd=weight_sd, bias_sd=bias_sd)
    theta = model.init(6, Streams(KEY, 6).at(0))
    assert theta.dtype == torch.float32
    assert theta.shape == (6, model.dim)
    for block, inputs in zip(model.blocks, (300, 300, 40, 40), strict=True):
        values = theta[:, block.start : block.stop].double().numpy().ravel()
        sd = (math.sqrt(2 / inputs) if weight_sd is None else weight_sd) if block.weights else bias_sd
        if sd == 0:
            assert (values == 0).all()
            continue
        assert stats.kstest(values / sd, "norm").pvalue > ALPHA
        chance = stats.chi2.cdf((values**2).sum() / sd**2, len(values))
        assert ALPHA < chance < 1 - ALPHA
    assert not torch.equal(theta[0], theta[1])
    alone = model.init(1, Streams(KEY, 1, first_chain=4).at(0))
    assert torch.equal(alone[0], theta[4])


def test_blocks_cover_theta_and_names_say_where():
    model = Perceptron(LAYERS)
    assert model.dim == 5 * 4 + 4 + 4 * 6 + 6 + 6 * 3 + 3 == len(model.names) == len(set(model.names))
    assert [b.start for b in model.blocks] == [0, *(b.stop for b in model.blocks[:-1])]
    assert model.blocks[-1].stop == model.dim
    assert [(b.name, b.weights) for b in model.blocks] == [
        (f"{kind}{i}", kind == "W") for i in (1, 2, 3) for kind in "Wb"
    ]
    assert model.names[0] == "W1[0]"
    assert model.names[23] == "b1[3]"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"layers": [5]}, "two counts of units"),
        ({"layers": [5, 0, 2]}, "two counts of units"),
        ({"layers": LAYERS, "likelihood": "categorial"}, "Did you mean 'categorical'"),
        ({"layers": LAYERS, "prior_variance": 0.0}, "positive prior_variance"),
        ({"layers": LAYERS, "weight_sd": -1.0}, "no negative sd"),
        ({"layers": LAYERS, "bias_sd": -1.0}, "no negative sd"),
    ],
)
def test_networks_that_are_none_are_refused(settings, told):
    with pytest.raises(Refusal, match=told):
        Perceptron(**settings)


def test_data_of_another_width_are_told(problem):
    theta, rows = problem
    with pytest.raises(UserError, match=r"5 inputs and a row of x the shape \(4,\)"):
        Perceptron(LAYERS).log_lik(theta, rows | {"x": rows["x"][..., :4]})
    with pytest.raises(UserError, match="5 inputs"):
        Perceptron(LAYERS).log_lik(theta, rows | {"x": rows["x"][..., None]})


def test_the_prior_is_a_gaussian_or_flat(problem):
    theta, _ = problem
    wanted = [-0.5 * sum(t * t for t in row) / 0.3 for row in theta.tolist()]
    for make in (Perceptron, lambda layers, prior_variance=None: ModuleModel(
        nn.Linear(theta.shape[1] - 1, 1), prior_variance=prior_variance)):  # fmt: skip
        assert make(LAYERS, prior_variance=0.3).log_prior(theta).tolist() == pytest.approx(wanted)
        assert make(LAYERS).log_prior(theta).tolist() == [0.0] * C


# ---------------------------------------------------------------- any torch module


def sequential(layers=LAYERS):
    parts = []
    for k, h in pairwise(layers):
        parts += [nn.Linear(k, h), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bytes_", [False, True])
def test_a_module_of_the_same_layers_is_the_perceptron(problem, rng, shared, bytes_):
    theta, rows = problem
    if bytes_:
        pixels = rng.integers(0, 256, (C, M, LAYERS[0])).astype(np.uint8)
        rows = rows | {"x": torch.from_numpy(pixels)}
    rows = {name: field[:1] if shared else field for name, field in rows.items()}
    ours, theirs = Perceptron(LAYERS, 0.5), ModuleModel(sequential(), prior_variance=0.5)
    assert theirs.dim == ours.dim == len(theirs.names) == len(set(theirs.names))
    assert [tuple(b)[1:] for b in theirs.blocks] == [tuple(b)[1:] for b in ours.blocks]
    for name in ("log_lik", "predict"):
        assert torch.allclose(getattr(ours, name)(theta, rows), getattr(theirs, name)(theta, rows))
    for a, b in zip(ours.log_lik_and_grad(theta, rows), theirs.log_lik_and_grad(theta, rows), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    one = ({name: field[:1] for name, field in rows.items()}, theta[:1])  # a single chain
    assert torch.allclose(ours.log_lik(*one[::-1]), theirs.log_lik(*one[::-1]))


def conv():
    net = nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32, 3),
    )
    net[2].running_mean += torch.tensor([0.3, -0.2])
    net[2].running_var *= 2.0
    return net


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_convolution_is_torch_s_own_chain_by_chain(rng, dtype):
    net = conv()
    model = ModuleModel(net)
    theta = torch.from_numpy(rng.normal(0, 0.5, (C, model.dim))).to(dtype)
    rows = {
        "x": torch.from_numpy(rng.normal(size=(C, M, 36))),
        "y": torch.from_numpy(rng.integers(0, 3, (C, M))),
    }
    found, grad = model.log_lik_and_grad(theta, rows)
    predicted = model.predict(theta, rows)
    plain = copy.deepcopy(net).eval().to(dtype)
    for c in range(C):
        nn.utils.vector_to_parameters(theta[c], plain.parameters())
        plain.zero_grad()
        outputs = torch.log_softmax(plain(rows["x"][c].to(dtype)), -1)
        own = -nn.functional.nll_loss(outputs, rows["y"][c], reduction="none")
        own.mean().backward()
        slope = torch.cat([p.grad.flatten() for p in plain.parameters()])
        assert torch.allclose(found[c], own, atol=1e-5)
        assert torch.allclose(grad[c], slope, atol=1e-5)
        assert torch.allclose(predicted[c], outputs, atol=1e-5)
    assert net.training  # the user's own module is left as it is
    assert torch.equal(net[2].running_mean, torch.tensor([0.3, -0.2]))


def test_a_module_begins_as_its_parts_do(rng):
    net = conv()
    model = ModuleModel(net)
    state = torch.get_rng_state()
    theta = model.init(3, Streams(KEY, 3).at(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(theta, model.init(3, Streams(KEY, 3).at(0)))
    assert torch.equal(theta[:2], model.init(2, Streams(KEY, 2).at(0)))
    assert not torch.equal(theta, model.init(3, Streams(KEY + 1, 3).at(0)))
    place = {b.name: slice(b.start, b.stop) for b in model.blocks}
    bound = 1 / math.sqrt(32)  # nn.Linear: uniform within 1 / sqrt(inputs)
    weights = theta[:, place["6.weight"]]
    assert float(weights.abs().max()) <= bound
    assert stats.kstest(weights.numpy().ravel(), stats.uniform(-bound, 2 * bound).cdf).pvalue > ALPHA
    assert torch.equal(theta[:, place["2.weight"]], torch.ones(3, 2))
    assert not torch.equal(weights[0], weights[1])


def test_a_likelihood_of_one_s_own(rng):
    """A regression: normal errors of sd 0.5."""

    def normal(outputs, rows):
        return -2 * (rows["y"] - outputs[:, 0]) ** 2

    model = ModuleModel(nn.Linear(5, 1), normal)
    theta = torch.from_numpy(rng.normal(size=(C, 6)))
    rows = {"x": torch.from_numpy(rng.normal(size=(C, M, 5))), "y": torch.from_numpy(rng.normal(size=(C, M)))}
    found, grad = model.log_lik_and_grad(theta, rows)
    for c in range(C):
        gap = rows["y"][c] - rows["x"][c] @ theta[c, :5] - theta[c, 5]
        assert torch.allclose(found[c], -2 * gap**2)
        slope = torch.cat([(4 * gap[:, None] * rows["x"][c]).mean(0), 4 * gap.mean()[None]])
        assert torch.allclose(grad[c], slope)
    with pytest.raises(UserError, match="predicts no classes"):
        model.predict(theta, rows)
    test = Dataset({name: field[0] for name, field in rows.items()})
    refused = Predictive(test, 5).refuses(Target(model, test))
    assert "needs a model that predicts classes" in refused


@pytest.mark.parametrize("reduce", [lambda v: v.sum(), lambda v: v[:, None], lambda v: v[:2]])
def test_a_likelihood_that_is_not_of_each_datum_is_told(rng, reduce):
    """A sum would be taken for a mean: gradients m times too long."""
    model = ModuleModel(nn.Linear(5, 3), lambda outputs, rows: reduce(torch.log_softmax(outputs, -1)[:, 0]))
    theta = torch.from_numpy(rng.normal(size=(C, model.dim)))
    rows = {"x": torch.from_numpy(rng.normal(size=(C, M, 5)))}
    for function in (model.log_lik, model.log_lik_and_grad):
        with pytest.raises(UserError, match="one value per datum"):
            function(theta, rows)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((nn.ReLU(),), "no parameters"),
        ((nn.Linear(2, 2), "categorial"), "give categorical or a function"),
        ((nn.Linear(2, 2), "categorical", -1.0), "positive prior_variance"),
    ],
)
def test_modules_that_are_no_models_are_refused(arguments, told):
    with pytest.raises(Refusal, match=told):
        ModuleModel(*arguments)


# ---------------------------------------------------------------- log-likelihood and gradient in one pass


class Plain:
    """Logistic regression with no form of its own: gradients by autograd."""

    def __init__(self, model):
        self.model, self.dim, self.names = model, model.dim, model.names
        self.init, self.log_prior, self.log_lik = model.init, model.log_prior, model.log_lik


def targets(rng, **settings):
    x = torch.from_numpy(rng.normal(size=(N, LAYERS[0])))
    classes = Dataset({"x": x, "y": torch.from_numpy(rng.integers(0, LAYERS[-1], N))})
    signs = Dataset({"x": x, "y": torch.from_numpy(rng.choice([-1.0, 1.0], N))})
    for variance in (0.7, None):
        yield Target(Perceptron(LAYERS, variance), classes, **settings)
        yield Target(ModuleModel(sequential(), prior_variance=variance), classes, **settings)
    yield Target(Plain(Logistic(LAYERS[0], prior_variance=0.7)), signs, **settings)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_one_pass_is_an_evaluation_and_a_gradient(rng, temper):
    warm = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    for target in targets(rng, temper=temper):
        theta = torch.from_numpy(rng.normal(0, 0.5, (C, target.dim)))
        for index in (target.batch(Streams(KEY, C).at(2), M), torch.arange(M)[None]):
            scored, grad = target.evaluate(theta, index), target.gradient(theta, index, warm)
            assert target.spent() == (M, M)
            both = target.evaluate(theta, index, warm)
            assert target.spent() == (M, M)
            assert scored.grad is None
            assert torch.allclose(both.grad, grad, rtol=1e-12)
            for name in ("theta", "log_prior", "log_lik_mean", "log_lik_var", "log_lik", "batch"):
                assert torch.allclose(getattr(both, name), getattr(scored, name), rtol=1e-12), name
        # n times the mean gradient, and the prior's once or T times, against autograd of sums over the data
        rows = target.data.rows(index.expand(C, M))
        point = theta.clone().requires_grad_()
        lik = target.n * target.model.log_lik(point, rows).mean(-1)
        power = 1.0 if temper == "posterior" else warm
        (wanted,) = torch.autograd.grad((lik + power * target.model.log_prior(point)).sum(), point)
        assert torch.allclose(both.grad, wanted, rtol=1e-9, atol=1e-9)
        full = target.evaluate_full(theta, warm)
        assert target.spent() == (N, N)
        assert torch.allclose(full.grad, target.gradient_full(theta, warm))
        assert target.spent() == (0, N)


def test_a_gradient_of_equal_parts_is_taken_as_it_comes():
    """Autograd returns one number for all three parameters, which cannot be changed in place."""

    class Sum:
        dim, names = 3, ("a", "b", "c")

        def log_prior(self, theta):
            return theta.new_zeros(len(theta))

        def log_lik(self, theta, rows):
            return theta.sum(-1, keepdim=True) + rows["x"]

    target = Target(Sum(), Dataset.of(np.arange(4.0)))
    theta = torch.zeros(2, 3, dtype=torch.float64)
    assert (
        target.gradient(theta, torch.zeros(2, 2, dtype=torch.int64), torch.ones(2)).tolist()
        == [[4.0] * 3] * 2
    )


@pytest.mark.parametrize("replacement", [False, True])
def test_the_shared_pairing_with_gradients_has_the_same_difference(rng, replacement):
    for target in targets(rng, replacement=replacement):
        theta, to = torch.from_numpy(rng.normal(0, 0.5, (2, C, target.dim)))
        warm, draws = torch.full((C,), 2.0, dtype=torch.float64), Streams(KEY, C).at(3)
        pairing = Shared(M)
        origin = pairing.current(target, target.prior(theta), draws, warm)
        candidate, found = pairing.compare(target, origin, to, draws, warm)
        assert target.spent() == (2 * M, 2 * M)
        wanted = target.difference(theta, to, target.batch(Streams(KEY, C).at(3), M))
        target.spent()
        for name in wanted._fields:
            assert torch.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-10), name
        assert torch.allclose(candidate.grad, target.gradient(to, origin.batch, warm))
        assert torch.allclose(origin.grad, target.gradient(theta, origin.batch, warm))


def test_rows_are_kept_only_for_their_own_index(rng):
    """Equal shapes, other indices: the second evaluation must not read the first one's rows."""
    target = next(targets(rng))
    theta = torch.from_numpy(rng.normal(0, 0.5, (C, target.dim)))
    for index in (torch.arange(M)[None], torch.arange(M, 2 * M)[None], torch.arange(M)[None]):
        again = Target(target.model, target.data)
        assert torch.equal(target.evaluate(theta, index).log_lik, again.evaluate(theta, index).log_lik)


# ---------------------------------------------------------------- MINT with SGLD's proposal, from the paper


def lik(theta, x, y):
    return -math.log1p(math.exp(-y * sum(t * v for t, v in zip(theta, x, strict=True))))


def slope(theta, x, y):
    z = y * sum(t * v for t, v in zip(theta, x, strict=True))
    return [y * v / (1 + math.exp(z)) for v in x]


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("ratio", [True, False])
@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_mint_with_the_proposal_of_sgld_is_the_papers(rng, common, ratio, temper):
    """log r = c [muhat(th') - muhat(th)] + (|z|^2 - |z'|^2) / 2, z' = (th - th' - eta ghat(th')) / s, the same I."""
    chains, steps, n, m, dim, variance = 3, 30, 30, 6, 2, 0.8
    x, y = rng.normal(0, 1.5, (n, dim)), rng.choice([-1.0, 1.0], n)
    data = Dataset.of({"x": x, "y": y})
    target = Target(Logistic(dim, prior_variance=variance), data, temper=temper, common_batch=common)
    kernel = MetropolisHastings(Langevin(ratio=ratio), Shared(m), Metropolis())
    warm = 2.5
    rates = [0.02, 0.05, 0.1]  # per chain, on the full-data gradient
    one = torch.ones(chains, dtype=torch.float64)
    controls = Controls(torch.tensor(rates, dtype=torch.float64), warm * one, 1.7 * one)
    draws = Streams(KEY, chains).at(0)
    state = kernel.start(target, torch.from_numpy(rng.normal(0, 0.5, (chains, dim))), draws)
    target.spent()
    position = state.evaluation.theta.tolist()
    running, power = Streams(KEY, chains).at(0), 1 / warm if temper == "posterior" else 1.0
    accepted = rejected = 0
    for k in range(1, steps + 1):
        draws.step = running.step = k
        state, info = kernel.step(target, state, controls, draws)
        index = running.index(n, m, replacement=False).tolist()
        z, u = running.normal(Purpose.PROPOSAL, dim).tolist(), running.uniform(Purpose.ACCEPT).tolist()
        for c in range(chains):
            batch = index[0] if common else index[c]
            eta, s = rates[c], math.sqrt(2 * rates[c] * 1.7)

            def mean(theta, batch=batch):
                return sum(lik(theta, x[i], y[i]) for i in batch) / m

            def gradient(theta, batch=batch):
                total = [sum(slope(theta, x[i], y[i])[d] for i in batch) / m for d in range(dim)]
                prior = [-t / variance * power * warm for t in theta]
                return [n * g + p for g, p in zip(total, prior, strict=True)]

            here = position[c]
            there = [t + eta * g + s * e for t, g, e in zip(here, gradient(here), z[c], strict=True)]
            log_r = n / warm * (mean(there) - mean(here))
            log_r -= power * (sum(t * t for t in there) - sum(t * t for t in here)) / (2 * variance)
            if ratio:
                back = [(a - b - eta * g) / s for a, b, g in zip(here, there, gradient(there), strict=True)]
                log_r += (sum(e * e for e in z[c]) - sum(e * e for e in back)) / 2
            assert float(info.log_ratio[c]) == pytest.approx(log_r, abs=1e-9)
            if math.log(u[c]) < log_r:
                position[c], accepted = there, accepted + 1
            else:
                rejected += 1
            assert state.evaluation.theta[c].tolist() == pytest.approx(position[c], abs=1e-9)
        assert info.n_lik.tolist() == info.n_grad.tolist() == [2 * m] * chains
        assert info.batch_size.tolist() == [m] * chains
    assert min(accepted, rejected) >= 5


@pytest.mark.parametrize("pairing", [Shared(6), Stored(6), Moving(6)])
@pytest.mark.parametrize("proposal", [RandomWalk(), Langevin(), ReversibleLangevin(1.5)])
def test_each_chain_reads_the_common_minibatch_and_its_first_chain_goes_as_alone(rng, pairing, proposal):
    data = Dataset.of({"x": rng.normal(0, 1.5, (30, 2)), "y": rng.choice([-1.0, 1.0], 30)})
    start = torch.from_numpy(rng.normal(0, 0.5, (4, 2)))
    kernel, found = MetropolisHastings(proposal, pairing, Metropolis()), []
    for common, chains in ((True, 4), (False, 1)):
        target = Target(Logistic(2, prior_variance=0.8), data, common_batch=common)
        one, shapes = torch.ones(chains, dtype=torch.float64), set()
        asked = target.data.rows
        object.__setattr__(
            target.data, "rows", lambda index, a=asked, s=shapes: s.add(index.shape) or a(index)
        )
        draws = Streams(KEY, chains).at(0)
        state, kept = kernel.start(target, start[:chains], draws), []
        for k in range(1, 25):
            draws.step = k
            state, info = kernel.step(target, state, Controls(0.1 * one, 2 * one, one), draws)
            kept.append(torch.cat([state.evaluation.theta[0], info.log_ratio[:1]]))
        assert shapes == {(1, 6)}
        object.__delattr__(target.data, "rows")
        found.append(torch.stack(kept))
    assert torch.allclose(*found, atol=1e-10)


def test_what_cannot_have_a_common_minibatch_is_refused(rng):
    data = Dataset.of({"x": rng.normal(size=(30, 2)), "y": rng.choice([-1.0, 1.0], 30)})
    target = Target(Logistic(2), data, common_batch=True)
    growing = MetropolisHastings(RandomWalk(), Growing(), MHMinibatch(2))
    assert "common_batch=false" in growing.refuses(target)
    assert MetropolisHastings(RandomWalk(), Shared(2), Metropolis()).refuses(target) is None
    assert MetropolisHastings(RandomWalk(), Shared(2), Metropolis()).fused(target, KEY, 1) is None
    assert Unadjusted(None, 2).refuses(target) is None
    assert "chain's own" in Unadjusted(None, 2, passes=True).refuses(target)


# ---------------------------------------------------------------- long vectors


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [3, 4096, 5003])
def test_moves_of_many_parameters_are_those_of_few(rng, monkeypatch, dim, dtype, compiled):
    """Langevin's move and density by NumPy in double precision, whichever way they are computed."""
    if not compiled:
        monkeypatch.setattr(vectors, "available", lambda: False)
    theta, grad, to = torch.from_numpy(rng.normal(size=(3, C, dim))).to(dtype)
    step, noise = np.array([1e-3, 2e-2, 0.3]), np.array([1.0, 5.0, 0.1])
    controls = Controls(*(torch.from_numpy(v).to(dtype) for v in (step, np.ones(3), noise)))
    origin = Evaluation(theta, None, grad=grad)
    z = Streams(KEY, C).at(4).normal(Purpose.PROPOSAL, dim, dtype=dtype).double().numpy()
    a, g, b = (v.double().numpy() for v in (theta, grad, to))
    tolerance = {"rel": 1e-6, "abs": 1e-5} if dtype == torch.float32 else {"rel": 1e-12, "abs": 1e-12}
    found = Langevin().sample(origin, controls, Streams(KEY, C).at(4))
    assert found.dtype == dtype
    wanted = a + step[:, None] * g + np.sqrt(2 * step * noise)[:, None] * z
    assert found.double().numpy() == pytest.approx(wanted, **tolerance)
    forward = -((b - a - step[:, None] * g) ** 2).sum(1) / (4 * step * noise)
    density = Langevin().log_density(origin, to, controls)
    assert density.dtype == torch.float64
    tight = 1e-6 if dtype == torch.float32 else 1e-12
    assert density.numpy() == pytest.approx(forward, rel=tight)
    backward = -((b - a + step[:, None] * g) ** 2).sum(1) / (4 * step * noise * 4)
    mixed = np.logaddexp(forward, backward - dim * math.log(2)) - math.log(2)
    found = ReversibleLangevin(2.0).log_density(origin, to, controls)
    assert found.numpy() == pytest.approx(mixed, rel=tight)
    ahead = torch.tensor([True, False, True])
    found = ReversibleLangevin(2.0).moved(origin, ahead, controls, Streams(KEY, C).at(4))
    sign, wide = np.where(ahead, 1.0, -1.0), np.where(ahead, 1.0, 2.0)
    wanted = a + (sign * step)[:, None] * g + (wide * np.sqrt(2 * step * noise))[:, None] * z
    assert found.double().numpy() == pytest.approx(wanted, **tolerance)


# ---------------------------------------------------------------- numbers that are none


class Broken:
    """A Gaussian, but to the right of 0.6 its log-likelihood or its gradient is no number."""

    dim, names = 2, ("a", "b")

    def __init__(self, what, value, some=False):
        self.what, self.value, self.some = what, value, some

    def init(self, chains, draws):
        return torch.zeros(chains, 2, dtype=torch.float64)

    def log_prior(self, theta):
        return theta.new_zeros(len(theta))

    def log_lik(self, theta, rows):
        value = -0.5 * (rows["x"] - theta[:, :1]) ** 2 - 0.5 * theta[:, 1:] ** 2
        bad = theta[:, :1] > 0.6
        if self.some:
            bad = bad & (rows["x"] > 0)  # of some data only
        return torch.where(bad, self.value, value) if self.what == "lik" else value

    def log_lik_and_grad(self, theta, rows):
        right = (theta[:, 0] > 0.6)[:, None]
        grad = torch.stack([(rows["x"] - theta[:, :1]).mean(-1), -theta[:, 1]], 1)
        return self.log_lik(theta, rows), torch.where(
            right, self.value, grad
        ) if self.what == "grad" else grad


@pytest.mark.parametrize("proposal", [RandomWalk(), Langevin(), ReversibleLangevin(1.5)])
@pytest.mark.parametrize("pairing", [Shared(5), Stored(5), Moving(5), Full()])
@pytest.mark.parametrize(
    ("what", "value", "some"),
    [
        ("lik", torch.nan, False),
        ("lik", torch.inf, False),
        ("lik", torch.inf, True),
        ("grad", torch.nan, False),
        ("grad", torch.inf, False),
    ],
)
def test_no_chain_goes_where_there_are_no_numbers(rng, proposal, pairing, what, value, some):
    if what == "grad" and not proposal.gradients:
        return
    target = Target(Broken(what, value, some), Dataset.of(rng.normal(0.4, 1.0, 20)))
    kernel = MetropolisHastings(proposal, pairing, Metropolis())
    assert kernel.refuses(target) is None
    one = torch.ones(8, dtype=torch.float64)
    size = 0.05 if proposal.gradients else 0.8
    draws = Streams(KEY, 8).at(0)
    state, counted, tried = kernel.start(target, target.model.init(8, draws), draws), 0, 0
    for k in range(1, 60):
        draws.step = k
        before = state.evaluation.theta
        state, info = kernel.step(target, state, Controls(size * one, 4 * one, 4 * one), draws)
        assert not (info.diverging & info.accepted).any()
        moved = (state.evaluation.theta != before).any(-1)
        assert torch.equal(moved, info.accepted)
        if what == "lik" and some and not isinstance(pairing, Full):
            # A minibatch without such a datum knows nothing of it: what it has seen must be numbers.
            assert info.log_ratio[info.accepted].isfinite().all()
        else:
            assert float(state.evaluation.theta[:, 0].max()) <= 0.6
        counted += int(info.diverging.sum())
        tried += int(info.accepted.sum())
    assert tried > 20
    if what == "lik" or value is torch.nan:  # infinitely long gradients make an honest zero density
        assert counted > 5


@pytest.mark.parametrize("rule", [Austere(m=10, epsilon=0.05), MHMinibatch(10), MHSubLhd(20)])
def test_a_rare_infinite_likelihood_is_no_reason_to_accept(rng, rule):
    """Even where a growing minibatch meets it late."""

    class Rare(Broken):
        def log_lik(self, theta, rows):
            value = -0.5 * (rows["x"] - theta[:, :1]) ** 2
            return torch.where((theta[:, :1] > 0.6) & (rows["x"] > 2.5), torch.inf, value)

    target = Target(Rare("lik", torch.inf), Dataset.of(rng.normal(size=1500)))
    kernel = MetropolisHastings(RandomWalk(), Growing(), rule)
    one = torch.ones(4, dtype=torch.float64)
    draws = Streams(KEY, 4).at(0)
    state, counted = kernel.start(target, target.model.init(4, draws), draws), 0
    for k in range(1, 100):
        draws.step = k
        state, info = kernel.step(target, state, Controls(3 * one, 1000 * one, one), draws)
        assert not (info.accepted & ~info.log_ratio.isfinite()).any()
        counted += int(info.diverging.sum())
    assert counted > 0


# ---------------------------------------------------------------- on a GPU


@cuda
@pytest.mark.parametrize("pairing", [Shared(50), Stored(50), Moving(50)])
def test_a_step_on_the_gpu_is_that_of_the_cpu(rng, pairing):
    """Given the same point and the same minibatch; the device draws normals of its own."""
    x = torch.from_numpy(rng.integers(0, 256, (500, 30)).astype(np.uint8))
    data = Dataset({"x": x, "y": torch.from_numpy(rng.integers(0, 4, 500))})
    model = Perceptron([30, 20, 4], 1.0)
    theta = model.init(C, Streams(KEY, C).at(0))
    index = Streams(KEY, C).at(1).index(500, 50, replacement=False)
    found = {}
    for device in ("cpu", "cuda"):
        target = Target(model, data, device=device)
        warm = torch.full((C,), 2.0, device=device)
        point = target.evaluate(theta.to(device), index.to(device), warm)
        found[device] = [v.cpu().double() for v in (point.log_lik, point.grad, point.log_lik_mean)]
        kernel = MetropolisHastings(Langevin(), pairing, Metropolis())
        draws = Streams(KEY, C, device).at(0)
        state = kernel.start(target, theta.to(device), draws)
        draws.step = 1
        one = torch.ones(C, device=device)
        state, info = kernel.step(target, state, Controls(1e-5 * one, warm, warm), draws)
        assert state.evaluation.theta.device.type == device
        assert info.log_ratio.isfinite().all()
    for one, two in zip(found["cpu"], found["cuda"], strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({"x": torch.zeros(1, 4, 3), "y": torch.zeros(1, 4)}, r"a datum is x \(3,\), y \(\)"),
        ({"x": torch.zeros(1, 4, 2), "y": torch.full((1, 4), 5)}, "out of bounds"),
        ({"x": torch.zeros(1, 4, 2)}, "KeyError: 'y'"),
    ],
)
def test_data_that_do_not_go_through_a_module_are_told_in_a_line(rows, told):
    model = ModuleModel(torch.nn.Linear(2, 3))
    for method in (model.log_lik, model.log_lik_and_grad):
        with pytest.raises(UserError, match=told) as raised:
            method(torch.zeros(2, model.dim), rows)
        assert "\n" not in str(raised.value)


@cuda
def test_a_module_goes_to_the_gpu(rng):
    net = conv()
    rows = {
        "x": torch.from_numpy(rng.normal(size=(C, M, 36))),
        "y": torch.from_numpy(rng.integers(0, 3, (C, M))),
    }
    model = ModuleModel(net)
    theta = model.init(C, Streams(KEY, C).at(0))
    there = {name: field.cuda() for name, field in rows.items()}
    for one, two in zip(
        model.log_lik_and_grad(theta, rows), model.log_lik_and_grad(theta.cuda(), there), strict=True
    ):
        assert torch.allclose(one, two.cpu(), atol=1e-4)
