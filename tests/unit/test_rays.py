"""Mass far from a narrow mode, and plateaus, are named: chains at the mode agree with each other."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.engine.landscape.modes import find_curved_modes
from mhrun.engine.landscape.rays import along_rays
from mhrun.engine.landscape.surface import Surface
from mhrun.models.function import FunctionModel
from mhrun.target import Target


def normal(theta):
    return -0.5 * theta.square().sum()


def spike(dim, share, width=0.01):
    """Return a narrow normal density with this share in the middle of a standard normal one."""

    def log_density(theta):
        squared = theta.square().sum()
        narrow = math.log(share) - dim * math.log(width) - squared / (2 * width**2)
        return torch.logaddexp(narrow, math.log(1 - share) - squared / 2)

    return log_density


def student(dim, df):
    return lambda theta: -0.5 * (df + dim) * torch.log1p(theta.square().sum() / df)


def found(log_density, dim, temperature=1.0, key=1):
    model = FunctionModel(lambda theta, b: log_density(theta) + 0 * b["x"], torch.zeros(dim))
    surface = Surface(Target(model, Dataset.of({"x": np.zeros(1)})), temperature, 0)
    modes, curvature, proper = find_curved_modes(surface, torch.full((1, dim), 0.05, dtype=torch.float64))
    assert proper
    return along_rays(surface, modes.theta[0], modes.height, curvature, key)


@pytest.mark.parametrize("dim", [1, 2, 5, 20])
@pytest.mark.parametrize("temperature", [1.0, 7.0])
def test_nothing_is_far_from_a_normal_mode(dim, temperature):
    assert found(normal, dim, temperature) == (None, None, False)


@pytest.mark.parametrize("dim", [1, 2, 5, 20])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_the_mass_beside_a_narrow_peak(dim, share):
    """By the exact distribution; the grid has an error."""
    beyond = found(spike(dim, share), dim).beyond
    assert beyond.radius == pytest.approx(math.sqrt(dim) + 6)
    curvature = share / 0.01 ** (dim + 2) / (share / 0.01**dim + 1 - share)
    radius = beyond.radius * curvature**-0.5  # of the wide density
    exact = (1 - share) * scipy.stats.chi2.sf(radius**2, dim) + share * scipy.stats.chi2.sf(
        (radius / 0.01) ** 2, dim
    )
    assert beyond.share == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("dim", [2, 5])
def test_the_mass_of_tails(dim):
    """Of Student's t, by its exact distribution."""
    rays = found(student(dim, 3), dim)
    curvature = (3 + dim) / 3  # at the mode
    exact = scipy.stats.f.sf(rays.beyond.radius**2 / curvature / dim, dim, 3)
    assert rays.beyond.share == pytest.approx(exact, rel=0.05)


def test_a_plateau_has_a_direction():
    rays = found(lambda theta: 3 * torch.cos(theta[0]) - 0.5 * theta[1] ** 2, 2)
    assert rays.plateau is None  # random rays fall off with theta[1]
    rays = found(lambda theta: 3 * torch.cos(theta).sum(), 2)
    assert float(rays.plateau.norm()) == pytest.approx(1)
    assert not rays.is_density


def test_a_density_whose_logarithm_was_not_taken_is_recognised():
    rays = found(lambda theta: torch.exp(normal(theta)), 2)
    assert rays.plateau is not None
    assert rays.is_density


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_density_that_is_not_defined_far_out_has_nothing_there(bad):
    rays = found(lambda theta: torch.where(theta.square().sum() > 49, torch.tensor(bad), normal(theta)), 2)
    assert rays == (None, None, False)


@pytest.mark.parametrize("key", range(5))
def test_rounding_errors_of_large_terms_are_no_mass(key):
    """Terms of 1e20 that cancel leave errors of thousands of nats, which differ from ray to ray."""

    def log_density(theta):
        errors = 1e4 * torch.sin(1e5 * theta.sum())
        return normal(theta) + torch.where(theta.norm() > 50, errors, torch.zeros_like(errors))

    assert found(log_density, 5, key=key).beyond is None


def test_an_overflow_is_no_mass():
    """The prior of rates, Gamma(a, b) with unknown a and b, where exp(theta) overflows; draws are right."""
    rng = np.random.default_rng(2)
    exposure = rng.uniform(5, 100, 10)
    counts = rng.poisson(rng.gamma(0.8, 1 / 1.2, 10) * exposure).astype(float)
    rates = {"shape": 10, "constraint": "positive"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mhrun.sample(
            lambda p, row: torch.distributions.Poisson(p.rate[row.g] * row.t).log_prob(row.y),
            {"y": counts, "t": exposure, "g": np.arange(10)},
            parameters={"a": "Exponential(1)", "b": "Gamma(0.1, 1)", "rate": rates},
            log_prior=lambda p: torch.distributions.Gamma(p.a, p.b).log_prob(p.rate).sum(),
            seed=2,
            steps=400,
            progress=False,
        )
    assert not any("narrow peak" in str(one.message) for one in caught)


def test_many_parameters_are_not_judged():
    assert found(spike(21, 0.5), 21) == (None, None, False)


def lines_of(log_density, method, start, **settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mhrun.sample(log_density, None, method, start=start, seed=7, progress=False, **settings)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("method", [None, "mcmc"])
def test_chains_that_stay_on_a_narrow_peak_have_a_line(method):
    """Without it, there is none: R-hat is 1.00."""
    start = 3 * np.random.default_rng(7).normal(size=(4, 4))
    lines = lines_of(spike(4, 0.5), method, start)
    assert any("About 50% of the posterior is more than 8 standard deviations" in line for line in lines)
    assert not any("R-hat is" in line for line in lines)


@pytest.mark.parametrize("method", [None, "mcmc"])
def test_draws_in_the_tails_have_no_line(method):
    """11 % of the posterior is beyond the radius, and of the draws."""
    assert not any("more than" in line for line in lines_of(student(5, 3), method, [0.1] * 5))


def test_a_density_is_called_one():
    lines = lines_of(lambda theta: torch.exp(normal(theta)), None, [0.1, 0.2])
    assert "levels off at 0 far from its mode, as a density does: return its logarithm" in lines[0]
