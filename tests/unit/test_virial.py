"""Draws of a dynamics that are too wide are known by the gradients at them."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

import mhrun
from mhrun.engine.diagnosis.sampled_gradients import SampledGradients
from mhrun.engine.diagnosis.virial import least_variance_ratio, variance_ratio

COVARIANCES = {
    "one": np.array([[4.0]]),
    "units": np.diag([1e-8, 1.0, 1e6]),
    "correlated": np.array([[1.0, 0.999], [0.999, 1.0]]),
}


def sampled(rng, covariance, widths, temperature=1.0, chains=4, draws=100):
    """Draws of a normal posterior, too wide by the factors `widths` of the variances in its principal directions."""
    values, vectors = np.linalg.eigh(covariance)
    z = rng.normal(size=(chains, draws, len(values))) * np.sqrt(temperature * values * widths)
    theta = z @ vectors.T + 3.0
    grad = -(theta - 3.0) @ np.linalg.inv(covariance)
    flat = torch.from_numpy(grad.reshape(-1, len(values)))
    return SampledGradients(torch.from_numpy(theta), torch.zeros(len(flat)), flat, temperature, 0.1)


@pytest.mark.parametrize("temperature", [1.0, 20.0])
@pytest.mark.parametrize("name", COVARIANCES)
def test_the_ratio_is_that_of_the_variances(rng, name, temperature):
    covariance = COVARIANCES[name]
    widths = np.ones(len(covariance))
    widths[0] = 3.0  # of the narrowest direction
    ratio = variance_ratio(sampled(rng, covariance, widths, temperature))
    assert ratio == pytest.approx(3.0, abs=1.3)  # 400 draws: a standard error of 0.21


@pytest.mark.parametrize("name", COVARIANCES)
def test_draws_of_the_posterior_are_not_too_wide(name):
    """Nor are those that a pilot's step makes a tenth too wide. 600 cases: fewer than one in 10^4 would be a normal
    deviate beyond 3.7 above 1.1 and 3 errors; products are skewed to the right, and so are their errors."""
    covariance = COVARIANCES[name]
    for seed in range(100):
        rng = np.random.default_rng(seed)
        for width in (1.0, 1.1):
            assert variance_ratio(sampled(rng, covariance, np.full(len(covariance), width))) is None


@pytest.mark.parametrize("temperature", [1.0, 20.0])
@pytest.mark.parametrize("name", COVARIANCES)
def test_the_least_ratio_is_that_of_the_variances(rng, name, temperature):
    covariance = COVARIANCES[name]
    widths = np.ones(len(covariance))
    widths[-1] = 0.3  # of the widest direction
    ratio = least_variance_ratio(sampled(rng, covariance, widths, temperature))
    assert ratio == pytest.approx(0.3, abs=0.15)  # 400 draws: a standard error of 0.04


@pytest.mark.parametrize("name", COVARIANCES)
def test_draws_of_the_posterior_are_not_too_narrow(name):
    """Nor are those that a thermostat makes a sixth too narrow: of 600 cases one in 10^4 would be a normal deviate
    beyond 4.5 below 0.82, where 0.7 and three errors are 4.5 errors away; products are skewed to the other side."""
    covariance = COVARIANCES[name]
    for seed in range(100):
        rng = np.random.default_rng(seed)
        for width in (1.0, 0.82):
            found = sampled(rng, covariance, np.full(len(covariance), width))
            assert least_variance_ratio(found) is None


def test_chains_that_are_apart_are_not_too_narrow(rng):
    """Each has been at one place only."""
    theta = torch.from_numpy(
        rng.normal(size=(4, 100, 1)) * 0.1 + np.array([-1.0, -0.5, 0.5, 1.0])[:, None, None]
    )
    found = SampledGradients(theta, torch.zeros(400), -theta.reshape(-1, 1), 1.0, 0.1)
    assert least_variance_ratio(found) is None


@pytest.mark.slow
def test_cycles_that_begin_at_a_mode_and_are_short_are_warned_of(rng):
    """The eight steps of a sampling stage are a third of the time in which a chain forgets the mode."""
    x = rng.normal(size=(500, 2))
    data = {"x": x, "y": np.where(rng.random(500) < 1 / (1 + np.exp(-x @ [1.0, -0.5])), 1, -1)}
    settings = {"warmup": 0, "steps": 20_000, "seed": 1, "progress": False}

    def lines(cycles):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            mhrun.sample(
                mhrun.Logistic(2, prior_variance=25.0),
                data,
                mhrun.Unadjusted(mhrun.SGLD(), m=500),
                step_size=mhrun.Cosine(0.012, cycles=cycles),
                **settings,
            )
        return [str(one.message) for one in found if "too narrow" in str(one.message)]

    assert ["make cycles longer" in line for line in lines(500)] == [True]
    assert lines(10) == []


@pytest.mark.slow
@pytest.mark.parametrize("dim", [3, 10, 20, 40])
def test_one_coordinate_among_many_is_found(rng, dim):
    """Not an average of it and others; and no direction is too wide because it was chosen for its width."""
    widths = np.ones(dim)
    right = [variance_ratio(sampled(rng, np.eye(dim), widths)) for _ in range(50)]
    assert right == 50 * [None]
    widths[0] = 4.0
    assert variance_ratio(sampled(rng, np.eye(dim), widths)) == pytest.approx(4.0, abs=1.5)


def test_chains_that_diverge_are_too_wide_though_one_draw_dominates():
    theta = torch.full((4, 100, 1), 1.0, dtype=torch.float64).cumsum(1)
    theta = 1.5**theta * torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)[:, None, None]
    found = SampledGradients(theta, torch.zeros(400), -theta.reshape(-1, 1), 1.0, 0.1)
    assert variance_ratio(found) == 1e6


def test_many_short_chains_that_have_settled_are_judged(rng):
    """By the mean of all: that of each chain follows its 20 correlated draws."""
    z = rng.normal(size=(20, 2000, 1))
    for step in range(1, 2000):
        z[:, step] = 0.8 * z[:, step - 1] + 0.6 * z[:, step]
    theta = 2.0 * z[:, -20:]
    found = SampledGradients(
        torch.from_numpy(theta), torch.zeros(400), -torch.from_numpy(theta.reshape(-1, 1)), 1.0, 0.1
    )
    assert variance_ratio(found) == pytest.approx(4.0, abs=1.5)


def test_heavy_tails_are_no_reason(rng):
    """Of Student's t with 3 degrees of freedom."""
    for seed in range(100):
        theta = np.random.default_rng(seed).standard_t(3, size=(4, 100, 1))
        grad = torch.from_numpy((-4 * theta / (3 + theta**2)).reshape(-1, 1))
        found = SampledGradients(torch.from_numpy(theta), torch.zeros(400), grad, 1.0, 0.1)
        assert variance_ratio(found) is None
        assert least_variance_ratio(found) is None


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [1, 9])
@pytest.mark.parametrize("draws", [26, 100])
def test_a_funnel_is_no_reason(leaves, draws):
    """Of v ~ N(0, 9) and x ~ N(0, e^v), whose products have the largest spread of the usual posteriors."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        v = 3 * rng.normal(size=(4, draws, 1))
        x = np.exp(v / 2) * rng.normal(size=(4, draws, leaves))
        square = (x**2 * np.exp(-v)).sum(-1, keepdims=True)
        grad = np.concatenate([-v / 9 - leaves / 2 + square / 2, -x * np.exp(-v)], -1)
        theta = torch.from_numpy(np.concatenate([v, x], -1))
        flat = torch.from_numpy(grad.reshape(-1, leaves + 1))
        found = SampledGradients(theta, torch.zeros(len(flat)), flat, 1.0, 0.1)
        assert variance_ratio(found) is None
        assert least_variance_ratio(found) is None


def test_what_has_no_ratio_has_none():
    constant = SampledGradients(torch.zeros(4, 100, 1), torch.zeros(400), torch.ones(400, 1), 1.0, 0.1)
    assert variance_ratio(constant) is None
    diverged = SampledGradients(
        torch.full((4, 100, 1), torch.inf), torch.zeros(400), torch.ones(400, 1), 1.0, 0.1
    )
    assert variance_ratio(diverged) is None


def of_sgld(step_size, kernel=None, **settings):
    x = 1 + torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    call = {"start": [1.0], "step_size": step_size, "steps": 3000, "warmup": 200, "seed": 1} | settings
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            lambda theta, rows: -0.5 * (rows - theta[0]) ** 2,
            x,
            kernel or mhrun.Unadjusted(mhrun.SGLD(), m=1000),
            **call,
        )
    return [str(one.message) for one in found]


@pytest.mark.slow
def test_steps_that_are_too_long_are_warned_of():
    """At half of the bound of stability, 2 / 1,000, variances are doubled; no R-hat shows it."""
    (line,) = of_sgld(1e-3)
    assert line.startswith(
        "draws are too wide: by the gradients of the log posterior at them, their variance is about"
    )
    assert 1.6 < float(line.partition("is about ")[2].split()[0]) < 2.6
    assert not any("too wide" in line for line in of_sgld(1e-4))


@pytest.mark.slow
def test_the_coldest_rung_of_a_ladder_is_judged():
    moves = mhrun.Unadjusted(mhrun.SGLD(), m=1000)
    ladder = mhrun.ReplicaExchange(moves, mhrun.Full(), mhrun.Metropolis(), rungs=2, every=50)
    lines = {step: of_sgld(step, ladder, temperature=[1.0, 4.0], steps=6000) for step in (1e-3, 1e-4)}
    (line,) = [line for line in lines[1e-3] if "draws are too wide" in line]
    assert 1.6 < float(line.partition("is about ")[2].split()[0]) < 2.6
    assert not any("too wide" in line or "too narrow" in line for line in lines[1e-4])


def test_a_few_data_that_decide_are_seen_by_the_pilot():
    """One of 700 data has 200 times the influence of the others: the step is as short as these make it."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + torch.randn(10_000, generator=generator, dtype=torch.float64)
    x[torch.randperm(10_000, generator=generator)[:14]] = 200.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            lambda theta, rows: -0.5 * (rows - theta[0]) ** 2,
            x,
            mhrun.Unadjusted(mhrun.SGLD(), m=200),
            start=[1.0],
            steps=10,
            warmup=0,
        )
    noise = 10_000 / 200 * float(x.var(correction=0)) * (1 - 200 / 10_000)  # in units of the curvature, n
    expected = 0.2 / (1 + noise)  # e (b H + c V / T) / 2 = 0.1 with b = c = H = 1
    assert json.loads(trace.attrs["pilot"])["step_size"] == pytest.approx(expected, rel=0.01)
