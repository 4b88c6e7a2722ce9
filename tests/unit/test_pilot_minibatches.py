"""Pilots of minibatch sizes, and of step sizes that minibatch noise limits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from regressions import D, N, found, full, run

import mhrun
from mhrun.errors import UserError
from mhrun.rules.penalty import Penalty

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_the_minibatch_size_follows_from_the_noise():
    trace = run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()))
    m = found(trace)["m"]
    # At T = 1 and the best step, m/n = a^2 D / (a^2 D + s^2), s the noise; a^2 D = 5.7 and s = 0.63 (docs/choosing.md).
    assert 0.85 < m / N < 0.99
    sd = float(np.sqrt(trace["sample_stats"]["log_ratio_var"].mean()))
    assert 0.35 < sd < 0.7
    # At this m, not at the one of the measurements
    assert found(trace)["noise_sd"] == pytest.approx(sd, rel=0.5)
    hot = run(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
        temperature=50.0,
    )
    assert found(hot)["m"] < 0.5 * N


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_few_rows_that_a_control_variate_serves_badly_decide_on_its_minibatch(seed, capsys):
    """15 of 60,000 rows have a level; m is as large as makes the error by noise that of the steps.

    Each of the rows is evaluated at 8 of 64 points, for a standard error of a quarter.
    """
    n, rare = 60_000, 15
    rng = np.random.default_rng(5)
    x = np.ones((n, 2))
    x[:, 1] = 0.0
    x[rng.choice(n, rare, replace=False), 1] = 1.0
    y = rng.random(n) < 1 / (1 + np.exp(1 - 1.5 * x[:, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            mhrun.Logistic(2), {"x": x, "y": 2.0 * y - 1}, "sgld_cv", steps=20, seed=seed, progress=False
        )
    theta = np.zeros(2)
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ theta))
        precision = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(2)
        theta = theta + np.linalg.solve(precision, x.T @ (y - p) - theta)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    near = (theta + rng.normal(size=(100_000, 2)) @ root.T).sum(1)
    change = 1 / (1 + np.exp(-near)) - 1 / (1 + np.exp(-theta.sum()))
    row = root.sum(0)
    noise = rare / n * (change**2).mean() * row @ row
    assert found(trace)["m"] == pytest.approx(n**2 * noise, rel=0.75)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_minibatch_that_a_pilot_chooses_is_no_cause_of_a_warning(seed):
    """Noise makes the draws wider and the tuned step longer, which makes more noise: the pilot looks again at its m."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    data = {"x": x, "y": x @ [1.0, -1.0, 0.5] + rng.normal(size=N)}

    def log_lik(theta, batch):
        return torch.distributions.Normal(batch.x @ theta, 1.0).log_prob(batch.y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            log_lik, data, mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
            start=[0.0] * 3, temperature=20.0, steps=3000, seed=seed, progress=False,
        )  # fmt: skip
    assert not any("minibatch noise" in str(one.message) for one in caught)
    assert found(trace)["m"] < 0.8 * N
    ratio = trace["posterior"]["theta"].std(("chain", "draw")).to_numpy() / np.sqrt(
        20.0 * np.diag(np.linalg.inv(x.T @ x))
    )
    assert (ratio < 1.14).all()  # 1.21 where the noise has a standard deviation of 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("proposal", "pairing"),
    [
        pytest.param(
            mhrun.HamiltonianProposal(), mhrun.Shared("auto"), id="trajectories", marks=pytest.mark.slow
        ),
        pytest.param(mhrun.RandomWalk(), mhrun.Stored("auto"), id="stored"),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_noise_is_measured_at_the_minibatch_that_a_pilot_chooses(proposal, pairing, seed):
    trace = run(
        mhrun.MetropolisHastings(proposal, pairing, mhrun.Metropolis()),
        temperature=100.0,
        seed=seed,
        steps=1000,
    )
    sd = float(np.sqrt(trace["sample_stats"]["log_ratio_var"].mean()))
    limit = 0.7 if pairing.__class__ is mhrun.Shared else 1.0
    assert 0.3 * limit < sd < 1.15 * limit
    assert found(trace)["noise_sd"] == pytest.approx(sd, rel=0.3)


@pytest.mark.slow
def test_a_rule_without_a_limit_has_a_noise_of_1():
    class Unlimited(mhrun.Metropolis):
        noise_limit = float("inf")

    trace = run(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), Unlimited()), temperature=50.0
    )
    assert 0.6 < found(trace)["noise_sd"] < 1.2


@pytest.mark.parametrize(("limit", "is_shorter"), [(0.5, True), (2.0, True), (100.0, False)])
@pytest.mark.slow
def test_noise_stays_below_what_a_rule_corrects(monkeypatch, limit, is_shorter):
    monkeypatch.setattr(Penalty, "noise_limit_of", lambda self, m: limit)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(20), Penalty())
    facts = found(run(kernel))
    assert ("Penalty corrects for it, at a larger one" in facts["why"]) is is_shorter
    assert facts["noise_sd"] < limit
    assert "Penalty corrects" not in found(run(kernel, acceptance=0.1))["why"]  # which is kept
    assert is_shorter or facts["noise_sd"] > 2
    trace = run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), Penalty()))
    assert found(trace)["noise_sd"] < 1.05 * min(limit, 1.0)


@pytest.mark.slow
def test_a_minibatch_that_is_not_enlarged_ends_the_search(monkeypatch):
    """The last size is one that was tried."""
    tried = []

    def noisy(chains, measured):
        tried.append(chains.kernel.pairing.m)
        return measured._replace(noise=4.0)

    monkeypatch.setattr("mhrun.engine.pilot.acceptance._searched_again", noisy)
    trace = run(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
        temperature=50.0,
    )
    assert found(trace)["m"] == tried[-1]
    assert len(tried) == 4


@pytest.mark.slow
def test_a_given_minibatch_limits_the_step():
    trace = run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(100), mhrun.Metropolis()))
    about = found(trace)
    assert about["m"] is None
    assert about["step_size"] < 0.5 * 2.38 / D**0.5
    assert "minibatch noise of the log-ratio" in about["why"]
    assert float(np.sqrt(trace["sample_stats"]["log_ratio_var"].mean())) < 1.6


@pytest.mark.slow
def test_points_that_keep_minibatches_are_tuned_where_they_move():
    """The noise of two points on m data each has a standard deviation of 1 at the m found, which is n at T = 1."""
    for temperature, most in ((100.0, 0.5), (1.0, 1.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = run(
                full().__class__(mhrun.LangevinProposal(), mhrun.Stored("auto"), mhrun.Metropolis()),
                step_size=mhrun.Fixed(step_size="auto"),
                temperature=temperature,
            )
        about = found(trace)
        assert about["settled"]
        assert about["m"] <= most * N
        assert abs(about["acceptance_found"] - 0.574) < 0.12
        assert 0.35 < float(trace["sample_stats"]["accepted"].mean()) < 0.8
        assert float(trace["sample_stats"]["log_ratio_var"].mean()) < 1.6


@pytest.mark.parametrize("m", [20, "auto"])
def test_a_limit_of_noise_is_positive(monkeypatch, m):
    monkeypatch.setattr(Penalty, "noise_limit", 0)
    with pytest.raises(UserError, match=r"Penalty.noise_limit = 0 must be positive\."):
        run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(m), Penalty()))


@pytest.mark.slow
def test_a_rising_schedule_is_judged_by_its_largest_step_that_counts():
    """Steps of a cycle begin twice as long as those of the last: its first step says nothing of the draws."""
    rising = mhrun.Stairs(1e-4, every=100, cycle=100, decay=1.0, rise=2.0)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis())
    trace = run(kernel, step_size=rising, warmup=400, steps=300, temperature=50.0)
    assert found(trace)["step_size"] == pytest.approx(1e-4 * 2**6)
    sd = float(np.sqrt(trace["sample_stats"]["log_ratio_var"].max()))
    assert found(trace)["noise_sd"] == pytest.approx(sd, rel=1.0)


def test_a_rate_that_noise_makes_impossible_is_named_beside_the_one_in_its_place(capsys):
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(20), mhrun.Metropolis())
    x = np.random.default_rng(2).normal(size=2_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mhrun.sample(
            mhrun.GaussianMean(),
            x,
            kernel,
            temperature=10.0,
            acceptance=0.2,
            warmup=100,
            steps=20,
            executor="torch",
        )
    line = capsys.readouterr().err
    assert "would dominate at a larger one; acceptance 0." in line
    assert " in place of 0.20" in line
