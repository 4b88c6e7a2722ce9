"""Posteriors without a variance are named by pilots, since draws that never reach their tails do not show them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Cauchy, HalfCauchy, Normal, StudentT

import mhrun
from mhrun.data import Dataset
from mhrun.engine.landscape.heavy_tails import heavy_tail
from mhrun.engine.landscape.modes import find_curved_modes
from mhrun.engine.landscape.surface import Surface
from mhrun.models.function import FunctionModel
from mhrun.random import Draws, Streams
from mhrun.target import Target

X = np.random.default_rng(0).normal(size=40)


def found(log_lik, log_prior=None, x=X[:1], temperature=1.0):
    """Return the tail that is found for two parameters."""
    model = FunctionModel(log_lik, [0.1, 0.1], log_prior)
    surface = Surface(Target(model, Dataset.of({"x": x, "y": (x > 0).astype(float)})), temperature, 0)
    modes, curvature, proper = find_curved_modes(surface, model.init(2, Draws(Streams(1, 2), 0)))
    assert proper
    return heavy_tail(surface, modes.theta[modes.best], curvature)


def density(second):
    """Return the density of a normal coordinate and of one that is distributed as given, without data."""
    return lambda theta, b: Normal(0.0, 3.0).log_prob(theta[0]) + second(theta[1]) + 0 * b["x"]


def separated(theta, b):
    log_odds = (b["x"] - theta[0]) * theta[1]
    return b["y"] * log_odds - torch.nn.functional.softplus(log_odds)


def noisy(theta, b):
    log_odds = theta[0] + b["x"].sin() * theta[1]
    return b["y"] * log_odds - torch.nn.functional.softplus(log_odds)


def prior(theta):
    return Normal(0.0, 1.0).log_prob(theta[0]) + Cauchy(0.0, 2.5).log_prob(theta[1])


@pytest.mark.parametrize(
    ("second", "power"),
    [
        (Cauchy(5.0, 2.0).log_prob, 2.0),
        (StudentT(1.5).log_prob, 2.5),
        (StudentT(2.0).log_prob, 3.0),
        (lambda t: torch.where(t > 0, Cauchy(0.0, 1.0).log_prob(t), Normal(0.0, 1.0).log_prob(t)), 2.0),
    ],
)
def test_a_tail_without_a_variance_is_found(second, power):
    tail = found(density(second))
    assert tail.direction.abs().tolist() == [0.0, 1.0]
    assert tail.power == pytest.approx(power, abs=0.01)


@pytest.mark.parametrize(
    "second",
    [
        Normal(0.0, 1.0).log_prob,
        StudentT(3.0).log_prob,
        lambda t: -(1 + t**2).sqrt(),  # exponential
        lambda t: HalfCauchy(1.0).log_prob(t.exp()) + t,  # the logarithm of a scale
        # A tail with a mass of e^-60 is none that draws miss
        lambda t: torch.logaddexp(Normal(0.0, 1.0).log_prob(t), -60 + Cauchy(0.0, 1.0).log_prob(t)),
    ],
)
def test_other_tails_are_not(second):
    assert found(density(second)) is None


def test_a_cauchy_prior_matters_where_the_data_do_not_bound_a_parameter():
    assert found(separated, prior, np.array([-1.0, -0.5, 0.4, 1.2])).power == pytest.approx(2.0, abs=0.05)
    assert found(noisy, prior, 30 * X) is None


def test_a_high_temperature_makes_tails_heavier():
    second = StudentT(3.0).log_prob  # its density falls as distance^-4
    assert found(density(second)) is None
    assert found(density(second), temperature=2.0).power == pytest.approx(2.0, abs=0.01)


def test_a_model_that_fails_far_out_has_no_tail():
    def near(theta):
        if bool((theta.abs() > 50).any()):
            raise ValueError
        return Cauchy(0.0, 1.0).log_prob(theta[0])

    model = FunctionModel(lambda theta, b: near(theta[:1]) + 0 * b["x"], [0.1], single=True)
    surface = Surface(Target(model, Dataset.of({"x": X[:1]})), 1.0, 0)
    assert heavy_tail(surface, torch.zeros(1), torch.eye(1)) is None


@pytest.mark.slow
def test_a_run_warns_of_it():
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        mhrun.sample(
            lambda theta: Cauchy(0.0, 1.0).log_prob(theta).sum(), None, start=[0.3], steps=200, warmup=200
        )
    assert any(
        "along theta[0] the posterior falls off only as the power -2 of" in str(line.message)
        for line in lines
    ), lines


@pytest.mark.parametrize("dim", [2, 6])
@pytest.mark.parametrize(("nu", "is_heavy"), [(1.0, True), (2.0, True), (4.0, False)])
def test_of_a_multivariate_t_the_power_is_that_of_a_coordinate(dim, nu, is_heavy):
    """Its density falls as distance^-(nu + D), and that of one coordinate as distance^-(nu + 1)."""
    model = FunctionModel(
        lambda theta, b: -(nu + dim) / 2 * torch.log1p(theta.square().sum() / nu) + 0 * b["x"], [0.1] * dim
    )
    surface = Surface(Target(model, Dataset.of({"x": X[:1]})), 1.0, 0)
    modes, curvature, _ = find_curved_modes(surface, model.init(2, Draws(Streams(1, 2), 0)))
    tail = heavy_tail(surface, modes.theta[modes.best], curvature)
    assert (tail is not None) == is_heavy
    if is_heavy:
        assert tail.power == pytest.approx(nu + 1, abs=0.02)


def test_a_density_that_is_heavy_only_with_the_others_held_fixed_is_not():
    """y_i ~ N(w z_i, 1), z_i ~ N(0, 1), w Cauchy: of z = 0 the prior of w is left, and of six z it falls as w^-8."""
    y = 0.1 * torch.from_numpy(X[:6])

    def log_lik(theta, b):
        w, z = theta[0], theta[1:]
        prior = Cauchy(0.0, 1.0).log_prob(w) + Normal(0.0, 1.0).log_prob(z).sum()
        return prior + Normal(0.0, 1.0).log_prob(y - w * z).sum() + 0 * b["x"]

    model = FunctionModel(log_lik, [0.0] * 7)
    surface = Surface(Target(model, Dataset.of({"x": X[:1]})), 1.0, 0)
    modes, curvature, proper = find_curved_modes(surface, torch.zeros(2, 7, dtype=torch.float64))
    assert proper
    assert heavy_tail(surface, modes.theta[modes.best], curvature) is None


def test_a_tempered_prior_is_judged_at_its_temperature():
    tail = found(lambda theta, b: 0 * theta[0] * b["x"] + Normal(0.0, 1.0).log_prob(theta[0]),
                 lambda theta: StudentT(3.0).log_prob(theta[1]), temperature=2.0)  # fmt: skip
    assert tail.power == pytest.approx(2.0, abs=0.02)
