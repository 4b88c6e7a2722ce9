"""The default method of a call, by sizes, bounds and gradients, and what its draws are."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from regressions import MODELS

import mhrun
from mhrun.data.dataset import Dataset
from mhrun.engine.bounded_reading import data_of_a_step
from mhrun.engine.defaults import default_method, default_of
from mhrun.models.module import ModuleModel
from mhrun.target import Target

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("n", "columns", "dim", "gradients", "network", "name"),
    [
        (200_000, 200, 200, True, False, "hmc"),
        (200_001, 200, 200, True, False, "sgld_cv"),
        (200_001, 49, 49, True, False, "sgld_cv"),  # without bounds
        (200_001, 200, 201, True, False, "sghmc"),
        (5_000, 1_000, 1_000, True, False, "hmc"),
        (5_001, 1_000, 1_000, True, False, "sghmc"),
        (20_000, 2, 1_000, True, False, "hmc"),  # effects of groups
        (20_001, 2, 1_000, True, False, "sghmc"),
        (200_001, 2, 1_000, True, False, "sghmc"),
        (5, 1, 1_001, True, False, "hmc"),
        (4_000, 1, 5_000, True, False, "hmc"),
        (4_001, 1, 5_000, True, False, "sghmc"),
        (5, 1, 5_001, True, False, "sghmc"),
        (100, 2, 200, True, True, "hmc"),
        (100, 2, 201, True, True, "sghmc"),
        (100, 1, 2, False, False, "mcmc"),
        (200_001, 1, 2, False, False, "mcmc"),
    ],
)
def test_the_default_method_follows_from_the_sizes(n, columns, dim, gradients, network, name):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    model = ModuleModel(module) if network else MODELS["logistic"]
    data = SimpleNamespace(fields={"x": torch.empty(n, columns, device="meta")})
    target = SimpleNamespace(n=n, dim=dim, model=model, data=data)
    assert default_method(target, gradients)[0] == name


@pytest.mark.parametrize(
    ("n", "dim", "read", "name"),
    [
        (300_000, 3, 3_000, "mh_ss"),
        (300_000, 3, 3_001, "hmc"),  # above 1 % of the data
        (300_000, 134, np.inf, "sgld_cv"),  # and 40 million numbers
        (10**7, 100, 2_000, "mh_ss"),
        (10**7, 100, 2_001, "sgld_cv"),  # above 2e8 data in all
        (10**7, 4, 20_001, "hmc"),
    ],
)
def test_the_default_of_many_data_with_bounds_follows_from_what_a_step_reads(n, dim, read, name):
    data = SimpleNamespace(fields={"x": torch.empty(n, dim, device="meta")})
    target = SimpleNamespace(n=n, dim=dim, model=MODELS["logistic"], data=data)
    assert default_method(target, True, read=read)[0] == name


@pytest.mark.parametrize(("columns", "name"), [(1, "sgld_cv"), (100, "mh_ss"), (101, "sgld_cv")])
def test_bounds_are_looked_at_up_to_a_number_of_parameters(columns, name, monkeypatch):
    monkeypatch.setattr("mhrun.engine.defaults.available", lambda: columns > 1)  # a compiled loop
    monkeypatch.setattr("mhrun.engine.defaults.data_of_a_step", lambda target: 1.0)
    x = np.zeros((200_001, columns), np.float32)
    target = Target(mhrun.Logistic(columns), Dataset.of({"x": x, "y": np.ones(len(x))}))
    assert default_of(target).name == name


def _poisson_with_a_level_without_events(rare):
    rng = np.random.default_rng(1)
    x = np.ones((200_500, 3))
    x[:, 1], x[:, 2] = rng.random(len(x)) < 0.5, 0.0
    x[:rare, 2] = 1.0
    y = rng.poisson(np.exp(0.5 + 0.3 * x[:, 1]))
    y[:rare] = 0
    return Target(mhrun.PoissonRegression(3, prior_variance=100.0), Dataset.of({"x": x, "y": y}))


def test_the_default_is_hmc_where_bounds_are_wide():
    """MH-SS would read half of the data a step there."""
    chosen = default_of(_poisson_with_a_level_without_events(200))
    assert chosen.name == "hmc"
    assert "MH-SS would read too many" in chosen.reason
    assert chosen.target.surrogate is None
    chosen = default_of(_poisson_with_a_level_without_events(0))
    assert chosen.name == "mh_ss"
    assert chosen.target.surrogate is not None


@pytest.mark.filterwarnings("ignore:R-hat", "ignore:ESS")
@pytest.mark.parametrize("columns", [5, 20])
def test_what_a_step_of_mh_ss_is_expected_to_read_is_what_it_reads(columns):
    """The mean over a run, at the step size of the pilot, within a third."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((50_000, columns))
    y = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-x.mean(1))), 1.0, -1.0)
    target = Target(mhrun.Logistic(columns), Dataset.of({"x": x, "y": y}), surrogate="taylor2")
    expected = data_of_a_step(target)
    trace = mhrun.sample(
        mhrun.Logistic(columns), {"x": x, "y": y}, "mh_ss", steps=2_000, warmup=500, progress=False
    )
    read = float(trace["sample_stats"].dataset["batch_size"].mean())
    assert read / 1.35 < expected < read * 1.35


@pytest.mark.parametrize(
    ("surrogate", "name"),
    [(None, "mh_ss"), ("taylor2", "mh_ss"), ("taylor1", "sgld_cv"), ("none", "sgld_cv")],
)
def test_the_default_takes_the_surrogate_that_is_given(surrogate, name):
    """Without the right surrogate MH-SS reads all data."""
    x = np.random.default_rng(0).standard_normal((200_001, 1))
    target = Target(mhrun.Logistic(1), Dataset.of({"x": x, "y": np.where(x[:, 0] > 0.5, 1.0, -1.0)}))
    assert default_of(target, surrogate)[0] == name


def test_a_prior_beside_that_of_a_regression_has_no_bounds():
    x = np.zeros((200_001, 1))
    data = {"x": x, "y": np.ones(len(x))}

    class Own(mhrun.Logistic):
        def log_prior(self, theta):
            return -theta.abs().sum(-1)

    assert default_of(Target(Own(1), Dataset.of(data)))[0] == "sgld_cv"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("method", [None, "smh2_pcn"])
def test_the_default_on_many_data_of_a_regression_is_the_posterior(method, capsys):
    """Also where few rows decide: 40 with a level have no event. Quadrature; 12 numbers in 4.9 standard errors."""
    n, rare = 200_500, 40
    rng = np.random.default_rng(7)
    x = np.ones((n, 3))
    x[:, 1], x[:, 2] = rng.random(n) < 0.5, 0.0
    x[rng.choice(n, rare, replace=False), 2] = 1.0
    y = rng.random(n) < 1 / (1 + np.exp(2 - 0.5 * x[:, 1]))
    y &= x[:, 2] == 0
    trace = mhrun.sample(
        mhrun.Logistic(3, prior_variance=1.0),
        {"x": x, "y": 2.0 * y - 1},
        method,
        steps=40_000,
        progress=False,
    )
    said = capsys.readouterr().err
    assert "MH-SS" in said if method is None else "at the largest step; settled" in said

    kinds, place = np.unique(x, axis=0, return_inverse=True)
    counts, events = np.bincount(place.ravel()), np.bincount(place.ravel(), y)

    def log_posterior(theta):
        eta = theta @ kinds.T
        return (eta * events - counts * np.logaddexp(0, eta)).sum(-1) - 0.5 * (theta**2).sum(-1)

    mode = np.zeros(3)
    for _ in range(30):
        p = 1 / (1 + np.exp(-kinds @ mode))
        precision = kinds.T @ (kinds * (counts * p * (1 - p))[:, None]) + np.eye(3)
        mode = mode + np.linalg.solve(precision, kinds.T @ (events - counts * p) - mode)
    side = np.linspace(-7, 7, 57)
    grid = np.stack(np.meshgrid(side, side, side), -1).reshape(-1, 3)
    theta = mode + grid @ np.linalg.cholesky(np.linalg.inv(precision)).T
    weights = np.exp(log_posterior(theta) - log_posterior(mode))
    weights /= weights.sum()
    mean = weights @ theta
    sd = np.sqrt(weights @ (theta - mean) ** 2)
    cube = weights @ ((theta - mean) / sd) ** 3
    z = (trace["posterior"]["theta"].to_numpy() - mean) / sd
    for power, wanted in ((1, 0.0), (2, 1.0), (3, cube), (4, weights @ ((theta - mean) / sd) ** 4)):
        means = (z**power).reshape(4, 20, -1, 3).mean(2).reshape(-1, 3)  # of 80 blocks of 2,000 steps
        error = means.std(0, ddof=1) / np.sqrt(len(means))
        assert (np.abs(means.mean(0) - wanted) < 4.9 * error).all(), power


@pytest.mark.slow
@pytest.mark.long
def test_the_default_on_many_data_is_nearly_the_posterior(capsys):
    """Means within five standard errors; sds up to 5 % too wide by the pilot's aim, and five standard errors."""
    n = 200_500
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    y = x @ [0.5, -1.0] + rng.normal(size=n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            lambda theta, row: -0.5 * (row.y - row.x @ theta) ** 2,
            {"x": x, "y": y},
            start=[0.0, 0.0],
            steps=3_000,
            warmup=200,
            progress=False,
        )
    assert "SGLD-CV" in capsys.readouterr().err
    draws = trace["posterior"]["theta"].to_numpy()
    exact = np.linalg.inv(x.T @ x)
    sd = np.sqrt(np.diag(exact))
    ess = 3_000 * 4 * 0.186 / 2  # of the linear recursion, with the step size in posterior variances
    off = (draws.mean((0, 1)) - exact @ x.T @ y) / sd
    assert np.abs(off).max() < 5 / np.sqrt(ess)
    assert np.abs(draws.std((0, 1)) / sd - 1.025).max() < 0.025 + 5 / np.sqrt(2 * ess)
