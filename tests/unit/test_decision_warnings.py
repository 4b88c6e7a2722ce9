"""Warnings of sequential tests whose wrong decisions bias the draws."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

import mhrun
from mhrun.engine.call import sample as engine
from mhrun.engine.warnings.noise import full_noise
from mhrun.models.logistic import Logistic
from mhrun.pairing.growing import Growing
from mhrun.rules.austere import Austere
from mhrun.rules.austere_design import acceptance_error

N, D, STEP = 2000, 4, 0.06
TRUTH = torch.tensor([1.0, -1.0, 0.5, 0.0])


def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=g)
    return {"x": x, "y": 2 * (torch.rand(N, generator=g) < torch.sigmoid(x @ TRUTH)).double() - 1}


def ran(monkeypatch, rule, temperature=1.0, steps=120):
    """Return the warnings on wrong decisions, and (n/T) sd / sqrt(n) as the run estimates it."""
    noises = []

    def watched(method, summary, trace, until):
        noises.append(full_noise(summary, N, method.shape.chains * method.shape.steps))
        return kept(method, summary, trace, until)

    kept = engine.warn_of_trace
    monkeypatch.setattr(engine, "warn_of_trace", watched)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            Logistic(D, prior_variance=10.0),
            data(),
            mhrun.MetropolisHastings(mhrun.RandomWalk(), Growing(), rule),
            step_size=STEP * temperature**0.5,
            temperature=temperature,
            start=TRUTH.tolist(),
            steps=steps,
            warmup=20,
            executor="torch",
        )
    return [str(one.message) for one in found if "wrong decisions" in str(one.message)], noises[0]


@pytest.mark.slow
def test_a_bound_that_biases_is_warned_of(monkeypatch):
    """With a bound of 0.2 standard deviations are 12 % too large (100,000 draws); reading all data has no error."""
    (line,), noise = ran(monkeypatch, Austere(design="conservative", bound=0.2))
    assert "wrong decisions change the acceptance probability by 0.0" in line
    assert "Lower the test's error (epsilon or bound), raise T, or choose an exact method" in line
    # The noise of random walks from the true parameters, by a million terms.
    rows = data()
    z = STEP * torch.randn(500, D, generator=torch.Generator().manual_seed(1))
    score = rows["y"][:, None] * (
        rows["x"].double() @ torch.stack([TRUTH + z, TRUTH.expand(500, D)]).double().mT
    )
    terms = torch.nn.functional.logsigmoid(score)
    exact = float(N**0.5 * (terms[0] - terms[1]).var(0).mean().sqrt())
    assert noise == pytest.approx(exact, rel=0.25)
    assert ran(monkeypatch, Austere(m=N, epsilon=0.05), steps=50)[0] == []


@pytest.mark.slow
def test_a_small_error_is_not_warned_of(monkeypatch):
    assert ran(monkeypatch, Austere(m=100, epsilon=0.001))[0] == []
    assert ran(monkeypatch, Austere(design="conservative", bound=0.2), temperature=1000.0)[0] == []


def test_the_error_of_the_acceptance_probability():
    """By simulation: 400,000 moves and decisions."""
    grid, wrong = np.linspace(0, 10, 21), 0.2 * np.exp(-np.linspace(0, 10, 21))
    rng = np.random.default_rng(0)
    noise, v = 1.5, 1.2
    rate = float(2 * torch.special.ndtr(torch.tensor(-(v**0.5) / 2, dtype=torch.float64)))
    log_ratio = (v**0.5 * rng.normal(size=400) - v / 2)[:, None]
    x = (log_ratio - np.log(rng.random((400, 4000)))) / noise
    errs = rng.random(x.shape) < np.interp(np.abs(x), grid, wrong)
    accepted = (x > 0) ^ errs
    by_chance = np.abs((accepted.astype(float) - (x > 0)).mean(1)).mean()
    assert acceptance_error(grid, wrong, noise, rate) == pytest.approx(by_chance, rel=0.15)
    assert acceptance_error(grid, 0 * wrong, noise, rate) == 0
    assert acceptance_error(grid, wrong, 1e-3, rate) < 1e-3


def test_decisions_on_all_data_say_nothing_of_the_noise():
    """One of two is on 50 of 100 data, with variance 9 = (n sd/T)^2 (1/50 - 1/100) = ((n/T) sd / sqrt(n))^2."""
    totals = {"sum_all_data": [1.0], "first_batch_size": [50.0], "sum_size_change": [0.0]}
    totals |= {"sum_size_change_squared": [0.0], "sum_log_ratio_var": [9.0]}
    assert full_noise({"totals": totals}, 100, 2) == pytest.approx(3.0)


@pytest.mark.parametrize("rate", [0.234, 0.9])
def test_the_error_is_averaged_over_log_ratios_that_have_the_acceptance_rate(rate):
    """With errors of 0.1 everywhere, a move of probability p is accepted with 0.9 p + 0.1 (1 - p)."""

    def mean(function, v):
        def integrand(x):
            return function(min(1.0, math.exp(x))) * stats.norm.pdf(x, -v / 2, v**0.5)

        return sum(integrate.quad(integrand, *ends)[0] for ends in ((-40, -4), (-4, 0), (0, 40)))

    v = optimize.brentq(lambda v: mean(lambda p: p, v) - rate, 0.01, 20)
    expected = mean(lambda p: 0.1 * abs(1 - 2 * p), v)
    found = acceptance_error(np.array([0.0, 10.0]), np.array([0.1, 0.1]), 1.0, rate)
    assert found == pytest.approx(expected, rel=0.01)
