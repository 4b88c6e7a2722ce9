"""The bias of means by the steps of a dynamics, beside stationary distributions of transition matrices and draws."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from regressions import found
from scipy.stats import norm
from torch.distributions import Normal

import mhrun
from mhrun.dynamics.sgnht import stationary_thermostat
from mhrun.engine.diagnosis.mean_bias import Gains, biases_of_means, largest_bias

GRID = np.linspace(-4.5, 4.5, 900)
GRAD = 3.0 - np.exp(GRID)  # of the log density 3 x - e^x, which is skewed


def stationary(step_size, temperature, noise=0.0):
    """Return the probabilities that steps of SGLD on the grid converge to, from its transition matrix."""
    sd = np.sqrt(2 * step_size * temperature + step_size**2 * noise)
    matrix = norm.pdf(GRID[None], (GRID + step_size * GRAD)[:, None], sd)
    for _ in range(17):
        matrix /= matrix.sum(1, keepdims=True)
        matrix = matrix @ matrix
    return matrix[0] / matrix[0].sum()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("noise", [0.0, 40.0])
def test_the_bias_of_sgld_is_that_of_its_transition_matrix(temperature, noise):
    """To first order in the step size: at 0.005 the second order is 1 %, and 5 % of noise that adds a tenth."""
    step_size = 0.005
    height = 3 * GRID - np.exp(GRID)
    exact = np.exp(height / temperature)
    exact /= exact.sum()
    sd = np.sqrt(exact @ (GRID - exact @ GRID) ** 2)
    bias = (stationary(step_size, temperature, noise) - exact) @ GRID / sd
    # Draws at 200,000 quantiles of the density.
    places = np.interp((np.arange(200_000) + 0.5) / 200_000, exact.cumsum() - exact / 2, GRID)
    draws = torch.from_numpy(places)[:, None]
    gains = Gains(step_size, step_size * noise / (2 * temperature))
    expected = biases_of_means(
        draws, 3 * draws[:, 0] - draws[:, 0].exp(), 3 - draws.exp(), gains, temperature
    )
    assert float(expected) == pytest.approx(bias, rel=0.02 if not noise else 0.1)


def normal_draws(dim, temperature=1.0):
    """Return independent draws from N(0, T I) as four chains, the log density at T = 1 and its gradient."""
    z = temperature**0.5 * torch.randn(
        1000, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return z.reshape(4, 250, dim), -0.5 * z.square().sum(1), -z


@pytest.mark.slow
def test_a_thermostat_shifts_means_by_the_temperature_at_which_it_settles():
    """Of 50 independent coordinates with the skewed density of the grid; 5 standard errors are 0.008."""
    exact = np.exp(3 * GRID - np.exp(GRID))
    exact /= exact.sum()
    mean = exact @ GRID
    sd = np.sqrt(exact @ (GRID - mean) ** 2)
    friction, step_size = 0.3, 0.05
    trace = mhrun.sample(
        lambda theta: (3 * theta - theta.exp()).sum(),
        None,
        mhrun.Unadjusted(mhrun.SGNHT(friction), 1),
        start=[1.0] * 50,
        chains=8,
        steps=6_000,
        warmup=500,
        step_size=step_size,
        seed=3,
        progress=False,
    )
    drawn = (trace["posterior"]["theta"].values.mean() - mean) / sd
    places = np.interp((np.arange(200_000) + 0.5) / 200_000, exact.cumsum() - exact / 2, GRID)
    draws = torch.from_numpy(places)[:, None]
    s = stationary_thermostat(friction)
    gains = Gains(step_size / (2 - s), -s / 2, thermostat=True)
    expected = biases_of_means(draws, 3 * draws[:, 0] - draws[:, 0].exp(), 3 - draws.exp(), gains, 1.0)
    assert float(expected) == pytest.approx(drawn, abs=0.008)
    assert drawn > 0.04


@pytest.mark.parametrize("dim", [1, 2, 300])
def test_a_normal_posterior_has_none(dim):
    """Covariances of 300 coordinates are compared with their errors: 4.5 of them is a chance of 0.002."""
    draws, height, grad = normal_draws(dim)
    for gains in (Gains(0.1, 0.1), Gains(0.1, -0.02, thermostat=True)):
        biases = biases_of_means(draws.reshape(-1, dim), height, grad, gains, 1.0)
        assert float(biases.abs().max()) < 0.25
        assert largest_bias(draws, height, grad, gains, 1.0) is None


def test_what_is_not_finite_has_none():
    draws, height, grad = normal_draws(2)
    for each in (draws, height, grad):
        each.view(-1)[3] = torch.nan
        assert largest_bias(draws, height, grad, Gains(0.1, 0.1), 1.0) is None
        each.view(-1)[3] = 1.0


def test_draws_on_their_way_have_none():
    """From ten standard deviations off, without a burn-in: gradients of the first draws alone are large."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mhrun.sample(
            lambda theta: -0.5 * theta.square().sum(),
            None,
            mhrun.Unadjusted(mhrun.SGLD(), 1),
            start=torch.full((20,), 10.0),
            step_size=0.05,
            steps=300,
            warmup=0,
            progress=False,
        )
    assert not [one for one in caught if "the mean of" in str(one.message)]


J = 200
GROUP = np.arange(J)
Y = np.random.default_rng(4).normal(np.random.default_rng(5).normal(0, 1.0, J), 1.0)
UNIT = 0.15  # of log tau, so that the spread has about the scale of the effects


def groups(dynamics, m=None, **settings):
    """Sample the log spread of effects, each with one value, and return the trace and the lines on its mean."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            lambda theta, row: -0.5 * (row.y - theta[1 + row.group.long()]) ** 2,
            {"y": Y, "group": GROUP},
            mhrun.Unadjusted(dynamics, m),
            log_prior=lambda theta: (
                Normal(0.0, torch.exp(UNIT * theta[0])).log_prob(theta[1:]).sum()
                - 0.5 * (UNIT * theta[0]) ** 2
            ),
            start=[0.0] * (J + 1),
            chains=8,
            seed=1,
            progress=False,
            **settings,
        )
    return trace, [str(one.message) for one in caught if "the mean of" in str(one.message)]


def bias_of_spread(trace):
    """Return by how many standard deviations its mean is off; the effects are integrated out of the exact one."""
    spread = np.linspace(-20, 10, 3000)
    variance = 1 + np.exp(2 * UNIT * spread)
    height = -0.5 * (Y[:, None] ** 2 / variance + np.log(variance)).sum(0) - 0.5 * (UNIT * spread) ** 2
    weights = np.exp(height - height.max())
    weights /= weights.sum()
    mean = weights @ spread
    return (trace["posterior"]["theta"].values[..., 0].mean() - mean) / np.sqrt(
        weights @ (spread - mean) ** 2
    )


@pytest.mark.slow
@pytest.mark.long
def test_a_run_warns_where_a_parameter_governs_many():
    _, lines = groups(mhrun.SGLD(), steps=1_500, warmup=300, step_size=0.06)
    (line,) = lines
    assert line.startswith("the mean of theta[0] is too large, by up to about ")
    assert line.endswith("Lower the step size, or sample with hmc.")
    _, lines = groups(mhrun.SGLD(), steps=1_500, warmup=300, step_size=0.01)
    assert not lines


@pytest.mark.slow
@pytest.mark.parametrize(("m", "step_size"), [(None, 0.03), (100, 0.02)])
def test_the_warning_has_the_size_that_draws_have(m, step_size):
    trace, (line,) = groups(mhrun.SGLD(), m, steps=20_000, warmup=2_000, step_size=step_size)
    size = float(line.split("by up to about ")[1].split(" ")[0])
    assert size == pytest.approx(bias_of_spread(trace), rel=0.3)


@pytest.mark.slow
def test_the_warning_has_the_size_that_draws_of_a_thermostat_have():
    dynamics = mhrun.SGNHT(inertia=100.0)
    trace, (line,) = groups(dynamics, steps=40_000, warmup=2_000, step_size=0.005)
    assert "is too small" in line
    assert line.endswith("Lower the friction and the step size, or sample with hmc.")
    size = float(line.split("by up to about ")[1].split(" ")[0])
    assert -size == pytest.approx(bias_of_spread(trace), rel=0.3)


@pytest.mark.slow
def test_a_pilot_names_what_a_friction_shifts_at_any_step_size():
    facts = found(groups(mhrun.SGNHT(), steps=100, warmup=0)[0])
    assert facts["mean_error"] == pytest.approx(0.75, abs=0.2)
    assert facts["mean_error_of"] == "theta[0]"
    assert "at shorter steps too: a smaller friction lowers it" in facts["why"]
    assert (
        "a smaller friction"
        not in found(groups(mhrun.SGNHT(0.02, inertia=100.0), steps=100, warmup=0)[0])["why"]
    )


@pytest.mark.slow
def test_a_pilot_takes_a_step_that_is_short_enough():
    trace, lines = groups(mhrun.SGLD(), steps=20_000, warmup=2_000)
    facts = found(trace)
    assert facts["mean_error"] == pytest.approx(0.15)
    assert facts["mean_error_of"] == "theta[0]"
    assert facts["variance_error"] < 0.08  # 0.1 without
    assert not lines
    assert bias_of_spread(trace) == pytest.approx(0.15, abs=0.15)
