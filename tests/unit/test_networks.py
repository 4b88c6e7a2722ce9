"""Networks: values, gradients and predictions against NumPy loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from nets import KEY, LAYERS, LOSSES, C, M, N, by_hand, drawn, outputs_of, sequential
from scipy import special, stats
from significance import ALPHA
from torch import nn

from mhrun.data import Dataset
from mhrun.errors import Refusal, UserError
from mhrun.models.logistic import Logistic
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.pairing.shared import Shared
from mhrun.random import Draws, Streams
from mhrun.target import Target


@pytest.fixture
def problem(rng):
    return drawn(rng)


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
    (gradient,) = torch.autograd.grad(model.log_lik(point, rows).mean(-1).sum(), point)
    assert torch.allclose(grad, gradient, rtol=1e-8, atol=1e-10)

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


def test_autograd_goes_through_single_precision(problem):
    theta, rows = problem
    model = Perceptron(LAYERS)
    point = theta.float().requires_grad_()
    (grad,) = torch.autograd.grad(model.log_lik(point, rows).mean(-1).sum(), point)
    with torch.no_grad():
        assert torch.allclose(model.log_lik_and_grad(point, rows)[1], grad, atol=1e-5)


# ---------------------------------------------------------------- what a network is


@pytest.mark.parametrize(("weight_sd", "bias_sd"), [(None, 0.0), (0.03, 1.0)])
def test_first_weights_have_their_spread(weight_sd, bias_sd):
    model = Perceptron([300, 40, 10], weight_sd=weight_sd, bias_sd=bias_sd)
    theta = model.init(6, Draws(Streams(KEY, 6), 0))
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
    alone = model.init(1, Draws(Streams(KEY, 1, first_chain=4), 0))
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
    ("settings", "message"),
    [
        ({"layers": [5]}, "two counts of units"),
        ({"layers": [5, 0, 2]}, "two counts of units"),
        ({"layers": LAYERS, "likelihood": "categorial"}, "Did you mean 'categorical'"),
        ({"layers": LAYERS, "prior_variance": 0.0}, "positive prior_variance"),
        ({"layers": LAYERS, "weight_sd": -1.0}, "needs weight_sd >= 0, or null, and bias_sd >= 0"),
        ({"layers": LAYERS, "bias_sd": -1.0}, "needs weight_sd >= 0, or null, and bias_sd >= 0"),
    ],
)
def test_networks_that_are_none_are_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        Perceptron(**settings)


def test_data_of_another_width_are_reported(problem):
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
        for index in (target.batches.draw(Draws(Streams(KEY, C), 2), M), torch.arange(M)[None]):
            scored, grad = target.evaluate(theta, index), target.gradients.minibatch(theta, index, warm)
            assert (scored.n_lik, scored.n_grad) == (M, 0)
            both = target.evaluate(theta, index, warm)
            assert (both.n_lik, both.n_grad) == (M, M)
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
        assert (full.n_lik, full.n_grad) == (N, N)
        assert torch.allclose(full.grad, target.gradients.full(theta, warm))


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
        target.gradients.minibatch(theta, torch.zeros(2, 2, dtype=torch.int64), torch.ones(2)).tolist()
        == [[4.0] * 3] * 2
    )


@pytest.mark.parametrize("replacement", [False, True])
def test_the_shared_pairing_with_gradients_has_the_same_difference(rng, replacement):
    for target in targets(rng, replacement=replacement):
        theta, to = torch.from_numpy(rng.normal(0, 0.5, (2, C, target.dim)))
        warm, draws = torch.full((C,), 2.0, dtype=torch.float64), Draws(Streams(KEY, C), 3)
        pairing = Shared(M)
        origin = pairing.current(target, target.prior(theta), draws, warm)
        candidate, found = pairing.compare(target, origin, to, draws, warm)
        assert [(point.n_lik, point.n_grad) for point in (origin, candidate)] == [(M, M)] * 2
        assert found.n_lik == 0
        wanted = target.differences.between(theta, to, target.batches.draw(Draws(Streams(KEY, C), 3), M))
        for name in ("mean", "var", "size", "error"):
            assert torch.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-10), name
        assert torch.allclose(candidate.grad, target.gradients.minibatch(to, origin.batch, warm))
        assert torch.allclose(origin.grad, target.gradients.minibatch(theta, origin.batch, warm))


def test_rows_are_kept_only_for_their_own_index(rng):
    """Equal shapes, other indices: the second evaluation must not read the first one's rows."""
    target = next(targets(rng))
    theta = torch.from_numpy(rng.normal(0, 0.5, (C, target.dim)))
    for index in (torch.arange(M)[None], torch.arange(M, 2 * M)[None], torch.arange(M)[None]):
        again = Target(target.model, target.data)
        assert torch.equal(target.evaluate(theta, index).log_lik, again.evaluate(theta, index).log_lik)
