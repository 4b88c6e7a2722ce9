"""Pyro models: log-densities are Pyro's own, and what does not fit is refused."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from kit import short_run

import mhrun
from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.models.pyro_model import PyroModel
from mhrun.paths import PACKAGE
from mhrun.random import Draws, Streams
from mhrun.target import Target

pyro = pytest.importorskip("pyro")
dist = pytest.importorskip("pyro.distributions")
poutine = pytest.importorskip("pyro.poutine")

N, G = 24, 3
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, 2, generator=GENERATOR)
Y = torch.randn(N, generator=GENERATOR)
GROUP = torch.arange(N) % G


def regression(x, y):
    intercept = pyro.sample("intercept", dist.Normal(0.0, 2.0))
    slopes = pyro.sample("slopes", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(intercept + x @ slopes, sigma), obs=y)


def hierarchical(x, y, group):
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    spread = pyro.sample("spread", dist.LogNormal(0.0, 0.5))
    with pyro.plate("groups", G):
        effects = pyro.sample("effects", dist.Normal(centre, spread))
    slope = pyro.sample("slope", dist.Laplace(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(effects[group] + slope * x[:, 0], 1.0), obs=y)


def mixture(y):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        means = pyro.sample("means", dist.Normal(0.0, 3.0))
    scale = pyro.sample("scale", dist.Uniform(0.2, 2.0))
    with pyro.plate("data", len(y)):
        each = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, scale))
        pyro.sample("y", each, obs=y)


def masked(x, y):
    """Outcomes that are missing where x_1 is negative, a prior that counts twice, and one that does not count."""
    with poutine.scale(scale=2.0):
        intercept = pyro.sample("intercept", dist.Normal(0.0, 2.0))
    with poutine.mask(mask=False):
        effect = pyro.sample("effect", dist.Normal(0.0, 0.1))
    with pyro.plate("data", len(x)), poutine.mask(mask=x[:, 1] > 0):
        pyro.sample("y", dist.Normal(intercept + effect * x[:, 0], 1.0), obs=y)


MODELS = {
    "masked": (masked, {"x": X, "y": Y}),
    "regression": (regression, {"x": X, "y": Y}),
    "hierarchical": (hierarchical, {"x": X, "y": Y, "group": GROUP}),
    "mixture": (mixture, {"y": Y}),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_density_is_pyros_own(name):
    """Against Pyro's potential energy, in its unconstrained coordinates: those of biject_to too."""
    from pyro.infer.mcmc.util import initialize_model

    function, data = MODELS[name]
    model = PyroModel(function, data)
    data = {key: value.double() if value.is_floating_point() else value for key, value in data.items()}
    torch.set_default_dtype(torch.float64)
    try:
        _, potential, _, _ = initialize_model(function, model_kwargs=data)
    finally:
        torch.set_default_dtype(torch.float32)
    target = Target(model, Dataset.of(data))
    theta = torch.randn(5, model.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sizes = [math.prod(p.free) for p in model.parameters.all]
    wanted = []
    for one in theta:
        parts = zip(model.parameters.all, one.split(sizes), strict=True)
        wanted.append(-float(potential({p.name: part.reshape(p.free) for p, part in parts})))
    assert target.log_density(theta).tolist() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", list(MODELS))
def test_log_likelihoods_are_those_of_single_data(name):
    function, data = MODELS[name]
    model, rows = PyroModel(function, data), Dataset.of(data)
    theta = torch.randn(3, model.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    whole = model.log_lik(theta, rows.part(0, N))
    index = torch.tensor([[4, 20, 3], [0, 1, 2], [23, 5, 5]])
    found = model.log_lik(theta, rows.rows(index))
    assert torch.allclose(found, whole.gather(1, index))
    alone = torch.cat([model.log_lik(theta, rows.part(i, i + 1)) for i in (0, 7)], 1)
    assert torch.allclose(alone, whole[:, [0, 7]])


def test_shapes_of_rows_are_enough():
    theta = torch.randn(2, 4, dtype=torch.float64)
    rows = Dataset.of({"x": X, "y": Y}).part(0, N)
    by_shape = PyroModel(regression, {"x": 2, "y": 1})
    assert list(by_shape.names) == ["intercept", "slopes[0]", "slopes[1]", "sigma"]
    assert torch.equal(
        by_shape.log_lik(theta, rows), PyroModel(regression, {"x": X, "y": Y}).log_lik(theta, rows)
    )


@pytest.mark.slow
@short_run
def test_chains_start_at_draws_from_the_prior_and_run():
    model = PyroModel(hierarchical, MODELS["hierarchical"][1])
    values = model.parameters.values(model.init(300, Draws(Streams(3, 300), 0)))
    standard = (values["effects"] - values["centre"][:, None]) / values["spread"][:, None]
    assert float(standard.mean()) == pytest.approx(0, abs=5 / 900**0.5)
    assert float(standard.var()) == pytest.approx(1, abs=5 * (2 / 900) ** 0.5)
    assert torch.equal(model.init(2, Draws(Streams(3, 2), 0)), model.init(300, Draws(Streams(3, 300), 0))[:2])
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(8), mhrun.Metropolis())
    trace = mhrun.sample(
        model, MODELS["hierarchical"][1], kernel, step_size=0.05, steps=20, warmup=5, temperature=9
    )
    assert trace["posterior"]["effects"].dims == ("chain", "draw", "groups")
    assert (trace["posterior"]["spread"] > 0).all()
    assert "hierarchical" in trace.attrs["prior"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_posterior_of_a_conjugate_model(rng):
    """Mean of normal data with known variance. A fixed seed; 5 standard errors."""
    y = torch.from_numpy(rng.normal(1.0, 1.0, 10))

    def normal(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    settings = {"step_size": 0.6, "steps": 100, "warmup": 50, "chains": 200}
    draws = mhrun.sample(PyroModel(normal, {"y": y}), {"y": y}, kernel, **settings)["posterior"][
        "mu"
    ].to_numpy()
    means = draws.mean(1)
    assert abs(means.mean() - float(y.sum()) / 11) < 5 * means.std() / 200**0.5
    squares = ((draws - float(y.sum()) / 11) ** 2).mean(1)
    assert abs(squares.mean() - 1 / 11) < 5 * squares.std() / 200**0.5


@short_run
def test_the_example_of_the_documentation_runs(capsys):
    text = (PACKAGE.parent / "docs" / "python.md").read_text()
    (example,) = (
        block for block in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "import pyro" in block
    )
    torch.manual_seed(0)
    names = {}
    exec(example.replace("steps=1000", "steps=20").replace("warmup=1000", "warmup=100"), names)
    assert names["trace"]["posterior"]["effects"].shape == (4, 20, 4)


def test_data_are_drawn_from_the_model():
    from mhrun.check.calibration import simulated

    model = PyroModel(regression, {"x": X, "y": Y})
    found = simulated(model, Dataset.of({"x": X, "y": Y}), 200, 1, 0)
    intercept, slopes, sigma = found.truth[:, :1], found.truth[:, 1:3], found.truth[:, 3:]
    noise = (found.data.drawn["y"].numpy() - intercept - slopes @ X.numpy().T) / sigma
    assert abs(noise.mean()) < 5 / noise.size**0.5
    assert noise.var() == pytest.approx(1, abs=5 * (2 / noise.size) ** 0.5)
    assert np.array_equal(found.data.fields["x"], X)


# --- What does not fit ------------------------------------------------------------------------------------


def unobserved(y):
    pyro.sample("a", dist.Normal(0.0, 1.0))


def outside(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(a, 1.0).expand([len(y)]).to_event(1), obs=y)


def two_plates(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    for k in range(2):
        with pyro.plate(f"data{k}", len(y)):
            pyro.sample(f"y{k}", dist.Normal(a, 1.0), obs=y)


def nested(x):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("columns", 2), pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(a, 1.0), obs=x.T)


def local(y):
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def discrete(y):
    k = pyro.sample("k", dist.Bernoulli(0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(k, 1.0), obs=y)


def subsampled(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 100, subsample_size=len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def fixed_size(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 5):
        pyro.sample("y", dist.Normal(a, 1.0).expand([5]), obs=torch.zeros(5))


def moving_support(y):
    a = pyro.sample("a", dist.HalfNormal(1.0))
    b = pyro.sample("b", dist.Uniform(0.0, a))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def optimised(y):
    a = pyro.param("a", torch.tensor(0.0))
    b = pyro.sample("b", dist.Normal(a, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def loop(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    for i in pyro.plate("data", len(y)):
        pyro.sample(f"y{i}", dist.Normal(a, 1.0), obs=y[i])


def failing(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a @ y, 1.0), obs=y)


def scaled_prior(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(a, y.std()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def unit_information(y):
    b = pyro.sample("b", dist.Normal(0.0, len(y) ** 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


@pytest.mark.parametrize(
    ("function", "data"),
    [(scaled_prior, {"y": Y}), (unit_information, {"y": Y}), (unit_information, {"y": 1})],
)
def test_a_prior_that_depends_on_the_data_is_refused(function, data):
    """It would be evaluated on two rows: on the prototype of the model, not on all data."""
    with pytest.raises(UserError, match="the prior of 'b' depends on the data"):
        PyroModel(function, data)


def test_deterministic_values_are_no_sites():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        twice = pyro.deterministic("twice", 2 * a)
        with pyro.plate("data", len(y)):
            each = pyro.deterministic("each", twice + 0 * y)
            pyro.sample("y", dist.Normal(each, 1.0), obs=y)

    found = PyroModel(model, {"y": Y})
    assert found.dim == 1
    rows = {"y": Y.double()[None]}
    theta = torch.tensor([[0.3]], dtype=torch.float64)
    expected = torch.distributions.Normal(0.6, 1.0).log_prob(rows["y"])
    assert torch.allclose(found.log_lik(theta, rows), expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unobserved, "no observed site; pass the data as obs="),
        (outside, "'y' is in no plate; put it in with pyro.plate"),
        (two_plates, "has data0, data1; keep one"),
        (nested, "'x' is in the plates .*; the data have one plate"),
        (local, "'z' is in the data plate, one for each datum; sum it out"),
        (discrete, "'k' is discrete, and parameters are continuous; sum it out"),
        (subsampled, "has 100 rows when the model is given 2|is scaled"),
        (fixed_size, "the plate 'data' has 5 rows when the model is given 2"),
        (moving_support, "the support of 'b' depends on other parameters"),
        (optimised, "pyro.param 'a' is optimised, not sampled"),
        (loop, "the plate 'data' is a loop|in the plates"),
        (failing, "the Pyro model failed: .*RuntimeError"),
        (lambda z: None, "the Pyro model failed: TypeError.*'y'"),
    ],
)
def test_models_that_do_not_fit_are_refused_in_one_line(function, message):
    data = {"x": X} if function is nested else {"y": Y}
    with pytest.raises(UserError, match=message) as caught:
        PyroModel(function, data)
    assert "\n" not in str(caught.value)


def test_pyro_is_optional(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyro", None)
    with pytest.raises(UserError, match=r"pip install 'mhrun\[pyro\]'"):
        PyroModel(regression, {"x": 2, "y": 1})
