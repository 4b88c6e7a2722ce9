"""Posteriors that do not fall off in some direction are named as such by pilots; proper ones are not."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.engine.landscape.impropriety import direction_in_words, flat_direction
from mhrun.engine.landscape.modes import find_curved_modes
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.warnings.run import warnings_of
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_location import GaussianLocation
from mhrun.random import Draws, Streams
from mhrun.target import Target

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 2))
MEAN = torch.from_numpy(X.mean(0))
DATA = {"x": X, "y": (X[:, 0] > 0).astype(float), "z": X[:, 1]}


def separable(theta, b):
    log_odds = b["x"] @ theta
    return b["y"] * log_odds - torch.nn.functional.softplus(log_odds)


def only_the_sum(theta, b):
    return -0.5 * (b["z"] - theta[0] - theta[1]).square()


def unused(theta, b):
    return -0.5 * (b["z"] - theta[0]).square()


def normal(sd):
    return lambda theta: -0.5 * (theta / sd).square().sum()


def cauchy(theta):
    return -torch.log1p(theta.square()).sum()


def funnel(theta):
    return -0.5 * (theta[0] / 3) ** 2 - 0.5 * theta[1].square() * torch.exp(-theta[0]) - 0.5 * theta[0]


def found(log_lik, log_prior=None):
    """Return the direction that is found for two parameters."""
    model = FunctionModel(log_lik, [0.1, 0.1], log_prior)
    surface = Surface(Target(model, Dataset.of(DATA)), 1.0, 0)
    modes, curvature, proper = find_curved_modes(surface, model.init(2, Draws(Streams(1, 2), 0)))
    return flat_direction(surface, modes.theta[modes.best], curvature, proper=proper)


@pytest.mark.parametrize(
    ("log_lik", "direction"), [(separable, (1, 0)), (only_the_sum, (0.5**0.5, -(0.5**0.5))), (unused, (0, 1))]
)
def test_a_flat_prior_is_named_where_the_data_do_not_bound_the_posterior(log_lik, direction):
    along = found(log_lik).numpy()
    assert abs(along @ np.array(direction)) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("log_lik", [separable, only_the_sum, unused])
@pytest.mark.parametrize("log_prior", [normal(1.0), normal(100.0), normal(1e4), cauchy])
def test_a_wide_prior_is_proper(log_lik, log_prior):
    assert found(log_lik, log_prior) is None


def test_posteriors_that_the_data_bound_are_proper_and_so_is_a_funnel():
    assert found(lambda theta, b: -0.5 * (b["x"] - theta).square().sum(-1)) is None
    assert found(lambda theta, b: 0.0 * (b["z"] + theta[0]), funnel) is None


def test_parameters_in_large_units_are_proper():
    """Their standard deviations are about 10^5, and the mode may be near 0."""

    def centred(theta, b):
        return -0.5 * ((1e6 * (b["x"] - MEAN) - theta) / 1e6).square().sum(-1)

    assert found(centred) is None
    assert found(centred, normal(1e6)) is None


@pytest.mark.parametrize("why", ["cholesky", "nan"])
def test_a_model_that_fails_far_out_is_proper(why):
    def log_lik(theta, b):
        if why == "nan":
            theta = torch.where(theta.abs() > 1e3, torch.nan, theta)
        root = (
            torch.linalg.cholesky(torch.diag(theta.exp()))
            if why == "cholesky"
            else torch.diag((theta / 2).exp())
        )
        return torch.distributions.MultivariateNormal(
            torch.zeros(2, dtype=theta.dtype), scale_tril=root
        ).log_prob(b["x"])

    model = FunctionModel(log_lik, [0.1, 0.1], normal(3.0), batched=False)
    surface = Surface(Target(model, Dataset.of({"x": X})), 1.0, 0)
    modes, curvature, proper = find_curved_modes(surface, model.init(2, Draws(Streams(1, 2), 0)))
    assert flat_direction(surface, modes.theta[modes.best], curvature, proper=proper) is None


@pytest.mark.parametrize("error", [AssertionError, IndexError, KeyError])
def test_a_user_s_class_may_raise_any_exception_far_out(error):
    """Errors of a class reach the pilot as they are, those of a function as `UserError`."""

    class Own(GaussianLocation):
        def log_lik(self, theta, rows):
            if theta.abs().max() > 1e3:
                raise error("far out")
            return super().log_lik(theta, rows)

    surface = Surface(Target(Own(2), Dataset.of({"x": X})), 1.0, 0)
    mode, curvature = MEAN, torch.eye(2, dtype=torch.float64)
    assert flat_direction(surface, mode, curvature, proper=False) is None


@pytest.mark.parametrize(
    ("log_lik", "start"),
    [
        (lambda theta, b: theta[0] * b["y"], 0.5),  # rises without end
        (lambda theta, b: 0.0 * theta[0] + b["z"], 0.0),  # has no effect, and begins at 0
    ],
)
def test_posteriors_that_rise_or_are_flat_everywhere_are_improper(log_lik, start):
    model = FunctionModel(log_lik, [start])
    surface = Surface(Target(model, Dataset.of(DATA)), 1.0, 0)
    modes, curvature, proper = find_curved_modes(surface, model.init(2, Draws(Streams(1, 2), 0)))
    assert flat_direction(surface, modes.theta[modes.best], curvature, proper=proper) is not None


def test_a_direction_is_written_as_a_sum():
    assert direction_in_words(torch.tensor([-0.71, 0.0, 0.71]), "abc") == "-0.71 a + 0.71 c"
    assert direction_in_words(torch.tensor([0.0, -1.0]), "ab") == "b"
    assert (
        direction_in_words(torch.tensor([0.7, 0.5, -0.4, 0.3]), "abcd")
        == "0.7 a + 0.5 b - 0.4 c and 1 smaller one"
    )


def test_it_is_named_before_what_it_brings_about(monkeypatch):
    """Nothing settles where chains wander without end."""
    monkeypatch.setattr(
        "mhrun.engine.warnings.run.run_warnings", lambda method, summary: iter(["m: not settled"])
    )
    facts = {"settled": False, "acceptance_found": 0.1, "aim": 0.8}
    improper, settled = warnings_of(SimpleNamespace(name="m", pilot=facts | {"flat_along": "a - b"}), {})
    assert "does not fall off along a - b" in improper
    assert settled == "m: not settled"
    settled, pilot = warnings_of(SimpleNamespace(name="m", pilot=facts), {})
    assert settled == "m: not settled"
    assert "step size did not settle" in pilot


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(None, id="default"),
        pytest.param(mhrun.Unadjusted(mhrun.SGLD(), m=50), id="sgld", marks=pytest.mark.slow),
    ],
)
def test_the_line_of_the_pilot_names_it(kernel, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            only_the_sum, DATA, *([kernel] if kernel else []), start=[0.0, 0.0], steps=20, warmup=1_000
        )
    assert "does not fall off along" in capsys.readouterr().err
    assert '"flat_along"' in trace.attrs["pilot"]
