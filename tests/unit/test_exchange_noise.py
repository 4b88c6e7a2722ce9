"""Minibatch noise of the exchanges of a ladder: its size by the formula, and what a run says of it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import mhrun
from mhrun.rules.compensated import Compensated

N, T = 2_000, (1.0, 8.0, 40.0)
X = np.random.default_rng(0).normal(size=N)


def log_lik(theta, rows):
    return -0.5 * (rows.x - theta[0]) ** 2


def sampled(pairing, rule):
    """Return the draws of the rungs (R, K), and the warnings of exchanges, of a ladder on a normal posterior."""
    rung = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    ladder = mhrun.ReplicaExchange(rung, pairing, rule, rungs=len(T))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = mhrun.FunctionModel(log_lik, start=[0.0])
        settings = {"steps": 1_000, "warmup": 300, "chains": 12, "seed": 1, "progress": False}
        trace = mhrun.sample(model, X, ladder, step_size=0.03, temperature=list(T), **settings)
    draws = trace["posterior"].to_dataset().to_array().values[0].reshape(12, -1)
    lines = [line for one in found if "exchanges of rungs" in (line := str(one.message))]
    return np.stack([draws[j :: len(T)].ravel() for j in range(len(T))]), lines


def test_the_noise_is_that_of_the_formula():
    """With terms l(theta') - l(theta) = (theta' - theta)(x - ...) of rungs that are independent.

    Var = n^2 (1/T - 1/T')^2 E (theta' - theta)^2 var(x) (1/m - 1/n), with E (theta' - theta)^2 = (T + T') / n.
    """
    m = 50
    _, (line,) = sampled(mhrun.Shared(m=m), mhrun.Penalty())
    expected = (N * (1 / T[0] - 1 / T[1]) ** 2 * (T[0] + T[1]) * X.var() * (1 / m - 1 / N)) ** 0.5
    assert "rungs 0 and 1 (T = 1 and 8)" in line
    # 200 pairs of points, whose squared distance has a standard deviation of 1.4 times its mean; 4 sigma.
    assert float(line.split("of sd ")[1].split()[0]) == pytest.approx(expected, rel=4 * 1.4 / 2 / 200**0.5)
    assert "Penalty corrects for noise up to 2; above that" in line


def test_a_rule_that_does_not_correct_for_it_widens_the_coldest_rung():
    draws, (line,) = sampled(mhrun.Shared(m=50), mhrun.Metropolis())
    assert "Metropolis does not correct for it, and rungs mix with draws of one another" in line
    assert draws[0].std() > 1.5 * N**-0.5
    assert line.endswith("or take pairing growing with rule noise_corrected.")


@pytest.mark.parametrize(
    ("pairing", "rule"),
    [
        (mhrun.Full(), mhrun.Metropolis()),
        (mhrun.Shared(m=N), mhrun.Metropolis()),
        (mhrun.Shared(m=1_990), mhrun.Metropolis()),
        (mhrun.Shared(m=50), Compensated()),
    ],
)
def test_exchanges_without_noise_or_with_a_rule_for_it_have_no_warning(pairing, rule):
    assert sampled(pairing, rule)[1] == []
