"""Minibatch noise of the exchanges of a ladder: its size by the formula, and the warning of a run."""

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


def sampled(pairing, rule, rung=None, **changed):
    """Return the draws of the rungs (R, K), and the warnings of exchanges, of a ladder on a normal posterior."""
    rung = rung or mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    ladder = mhrun.ReplicaExchange(rung, pairing, rule, rungs=len(T))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = mhrun.FunctionModel(log_lik, start=[0.0])
        settings = {
            "steps": 1_000,
            "warmup": 300,
            "chains": 12,
            "seed": 1,
            "progress": False,
            "step_size": 0.03,
        }
        trace = mhrun.sample(model, X, ladder, temperature=list(T), **settings | changed)
    draws = trace["posterior"].to_dataset().to_array().values[0].reshape(12, -1)
    lines = [line for one in found if "exchanges" in (line := str(one.message))]
    return np.stack([draws[j :: len(T)].ravel() for j in range(len(T))]), lines


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_rule_that_does_not_correct_for_it_widens_the_coldest_rung():
    draws, (line,) = sampled(mhrun.Shared(m=50), mhrun.Metropolis())
    assert "Metropolis does not correct for it, and rungs mix with draws of one another" in line
    assert draws[0].std() > 1.5 * N**-0.5
    assert line.endswith("or take pairing growing with rule noise_corrected.")


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_noise_is_that_at_the_temperatures_of_the_rungs_not_of_the_injected_noise():
    """With one noise temperature for all rungs these are apart all the same."""
    rung = mhrun.Unadjusted(mhrun.SGLD(), None)
    lines = [
        line
        for noise_temperature in (1.0, [1.0, 8.0, 40.0] * 4)
        for line in sampled(
            mhrun.Shared(m=50),
            mhrun.Metropolis(),
            rung,
            step_size=mhrun.Fixed(step_size=1e-4, noise_temperature=noise_temperature),
        )[1]
    ]
    assert [
        "rungs 0 and 1 (T = 1 and 8) have a log-ratio with minibatch noise" in line for line in lines
    ] == [
        True,
        True,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairing", "changed", "expected"),
    [
        (mhrun.Shared(m=1), {}, ["the noise of exchanges cannot be estimated from minibatches of m = 1"]),
        (mhrun.Shared(m=50), {"rung": mhrun.Unadjusted(mhrun.SGLD(), None), "step_size": 1.0}, []),
    ],
)
def test_noise_that_is_not_finite_loses_no_draws(pairing, changed, expected):
    """Of one datum there is no variance, and none of a chain that became infinite."""
    _, lines = sampled(pairing, mhrun.Metropolis(), **changed)
    assert len(lines) == len(expected)
    assert all(start in line for start, line in zip(expected, lines, strict=True))


def test_a_warning_that_fails_loses_no_run(monkeypatch):
    def failing(method, summary):
        raise KeyError("of a warning")
        yield

    monkeypatch.setattr("mhrun.engine.warnings.run.exchange_noise_warnings", failing)
    with pytest.warns(
        UserWarning, match="warnings may be missing \\(KeyError: 'of a warning'; test_exchange_noise.py"
    ):
        mhrun.sample(
            log_lik,
            {"x": X},
            mhrun.ReplicaExchange(
                mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
                mhrun.Full(),
                mhrun.Metropolis(),
                rungs=2,
            ),
            start=[0.0],
            steps=50,
            warmup=0,
            step_size=0.03,
            temperature=[1.0, 2.0],
            chains=2,
            progress=False,
        )
