"""Any torch module as a model."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from nets import KEY, LAYERS, C, M, conv, drawn, sequential
from scipy import stats
from significance import ALPHA
from torch import nn

import mhrun
from mhrun.data import Dataset
from mhrun.errors import Refusal, UserError
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.predictive import Predictive
from mhrun.random import Draws, Streams
from mhrun.target import Target


@pytest.fixture
def problem(rng):
    return drawn(rng)


# ---------------------------------------------------------------- any torch module


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_convolution_agrees_with_torch_chain_by_chain(rng, dtype):
    net = conv()
    net[2].eval()  # a BatchNorm layer with constant statistics
    with pytest.warns(UserWarning, match="dropout is off"):
        model = ModuleModel(net)
    assert model.width == model.dim
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
        gradient = torch.cat([p.grad.flatten() for p in plain.parameters()])
        assert torch.allclose(found[c], own, atol=1e-5)
        assert torch.allclose(grad[c], gradient, atol=1e-5)
        assert torch.allclose(predicted[c], outputs, atol=1e-5)
    assert net.training  # the user's own module is left as it is
    assert torch.equal(net[2].running_mean, torch.tensor([0.3, -0.2]))


def test_a_module_begins_as_its_parts_do(rng):
    net = conv()
    with pytest.warns(UserWarning, match="dropout is off"):
        model = ModuleModel(net)
    state = torch.get_rng_state()
    theta = model.init(3, Draws(Streams(KEY, 3), 0))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(theta, model.init(3, Draws(Streams(KEY, 3), 0)))
    assert torch.equal(theta[:2], model.init(2, Draws(Streams(KEY, 2), 0)))
    assert not torch.equal(theta, model.init(3, Draws(Streams(KEY + 1, 3), 0)))
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
        gradient = torch.cat([(4 * gap[:, None] * rows["x"][c]).mean(0), 4 * gap.mean()[None]])
        assert torch.allclose(grad[c], gradient)
    with pytest.raises(UserError, match="predicts no classes"):
        model.predict(theta, rows)
    test = Dataset({name: field[0] for name, field in rows.items()})
    refused = Predictive(test, 5).refuses(Target(model, test))
    assert "needs a model that predicts classes" in refused


@pytest.mark.parametrize("reduce", [lambda v: v.sum(), lambda v: v[:, None], lambda v: v[:2]])
def test_a_likelihood_that_is_not_of_each_datum_is_reported(rng, reduce):
    """A sum would be taken for a mean: gradients m times too long."""
    model = ModuleModel(nn.Linear(5, 3), lambda outputs, rows: reduce(torch.log_softmax(outputs, -1)[:, 0]))
    theta = torch.from_numpy(rng.normal(size=(C, model.dim)))
    rows = {"x": torch.from_numpy(rng.normal(size=(C, M, 5)))}
    for function in (model.log_lik, model.log_lik_and_grad):
        with pytest.raises(UserError, match="one value per datum"):
            function(theta, rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.ReLU(),), "no parameters"),
        (
            (nn.Bilinear(2, 3, 2),),
            "forward of Bilinear takes input1, input2, and a module gets the field x alone",
        ),
        (
            (nn.Embedding(4, 2, padding_idx=0),),
            "layer of the module has padding_idx: .* mask the padding in forward",
        ),
        ((nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)),), "layer 0 has max_norm: .* leave it out"),
        (
            (nn.Sequential(nn.EmbeddingBag(4, 2, sparse=True)),),
            "layer 0 has sparse: gradients are dense here",
        ),
        ((nn.Linear(2, 2), "categorial"), "give categorical, bernoulli or a function"),
        ((nn.Linear(2, 2), "categorical", -1.0), "positive prior_variance"),
    ],
)
def test_modules_that_are_no_models_are_refused(arguments, message):
    """Each with what to do."""
    with pytest.raises(Refusal, match=message):
        ModuleModel(*arguments)


@pytest.mark.filterwarnings("ignore")  # torch deprecates both
def test_modules_that_cannot_be_copied_are_refused():
    with pytest.raises(Refusal, match=r"scripted or traced module .* give the original"):
        ModuleModel(torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3)))
    old = nn.utils.weight_norm(nn.Linear(3, 2))
    old(torch.zeros(1, 3))
    with pytest.raises(Refusal, match=r"cannot be copied: Only Tensors .* take nn\.utils\.parametrizations"):
        ModuleModel(old)


class Swapped(nn.Module):
    """The same layers under other names, in another order."""

    def __init__(self):
        super().__init__()
        self.out, self.inner = nn.Linear(6, 2), nn.Linear(4, 6)

    def forward(self, x):
        return self.out(torch.relu(self.inner(x)))


def test_new_data_with_nan_have_no_prediction():
    model = mhrun.ModuleModel(nn.Sequential(nn.Linear(2, 3)), prior_variance=1.0)
    data = {"x": torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), "y": torch.arange(6) % 3}
    trace = mhrun.sample(
        model, data, mhrun.Unadjusted(mhrun.SGLD(), 3), step_size=1e-3, steps=5, warmup=0, progress=False
    )
    new = torch.tensor([[0.0, 1.0], [math.nan, 1.0]])
    with pytest.raises(UserError, match=r"row 1 of the new data \(counted from 0\) has NaN or an infinity"):
        mhrun.predict(trace, model, {"x": new})
    with pytest.raises(UserError, match="row 1 of the new data"):
        mhrun.predict(trace, model, {"x": new}, each=True)


def test_predictions_of_another_module_with_as_many_weights_are_refused():
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    data = {"x": x, "y": (x[:, 0] > 0).long()}

    def layers(activation):
        return nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 2))

    kernel = mhrun.Unadjusted(mhrun.SGHMC(0.1), m=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            layers(nn.ReLU()), data, kernel, step_size=1e-3, steps=20, warmup=5, progress=False
        )
    assert mhrun.predict(trace, layers(nn.ReLU()), x).shape == (30, 2)
    assert mhrun.predict(trace, mhrun.ModuleModel(layers(nn.ReLU())), x).shape == (30, 2)
    with pytest.raises(UserError, match=r"has \(1\): ReLU\(\) where this one has \(1\): Tanh\(\)"):
        mhrun.predict(trace, layers(nn.Tanh()), x)
    with pytest.raises(UserError, match=r"the module that was sampled has Sequential\("):
        mhrun.predict(trace, Swapped(), x)
    del trace.attrs["layers"]  # as of a trace that an earlier version wrote
    with pytest.raises(
        UserError, match=r"has the parameter 0\.weight\[0\] where this one has out\.weight\[0\]"
    ):
        mhrun.predict(trace, Swapped(), x)


@pytest.mark.parametrize("kind", [tuple, list, lambda outputs: {"mean": outputs[0]}])
def test_a_module_that_returns_no_tensor_is_refused(kind):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return kind((self.layer(x), self.layer(x)))

    data = {"x": torch.zeros(8, 3), "y": torch.zeros(8, dtype=torch.long)}
    with pytest.raises(
        UserError, match=r"the module returns a (tuple|list|dict), and must return one tensor"
    ):
        mhrun.sample(Two(), data, mhrun.Unadjusted(mhrun.SGLD(), m=4), step_size=1e-4, steps=2, warmup=0)


@pytest.mark.parametrize("evaluation", ["bound", "vmapped"])
def test_a_scale_that_underflows_stops_a_chain_and_not_the_run(evaluation):
    """`torch.distributions` refuses a scale of 0 by an error; a chain whose step is too large gets there."""

    def log_density(outputs, rows):
        return torch.distributions.Normal(outputs[:, 0], outputs[:, 1].exp()).log_prob(rows["y"])

    net = nn.Linear(1, 2)
    x = torch.linspace(-1, 1, 50)[:, None]
    model = mhrun.ModuleModel(net, likelihood=log_density, prior_variance=1.0, evaluation=evaluation)
    with pytest.warns(UserWarning, match="4 of 4 chains became non-finite and stopped"):
        mhrun.sample(
            model,
            {"x": x, "y": x[:, 0]},
            mhrun.Unadjusted(mhrun.SGLD(), m=10),
            step_size=1e3,
            steps=50,
            warmup=0,
            dtype=torch.float32,
        )


def heteroscedastic(outputs, rows):
    return torch.distributions.Normal(outputs[:, 0], outputs[:, 1].exp()).log_prob(rows["y"])


def test_a_likelihood_of_the_users_may_be_named_and_has_no_classes(monkeypatch):
    """As in a configuration file: outcomes are real numbers, and the module has as many outputs as it likes."""
    monkeypatch.setattr("mhrun.models.module_classes.trusted_object", lambda name, setting: heteroscedastic)
    x = torch.linspace(-1, 1, 50)[:, None]
    data = {"x": x, "y": 0.3 * x[:, 0]}
    found = []
    for likelihood in ("mine.net.heteroscedastic", heteroscedastic):
        model = mhrun.ModuleModel(lambda: nn.Linear(1, 2), likelihood=likelihood)
        trace = mhrun.sample(
            model, data, mhrun.Unadjusted(mhrun.SGLD(), m=10), step_size=1e-4, steps=5, dtype=torch.float32
        )
        found.append(trace["posterior"])
    assert found[0].equals(found[1])
