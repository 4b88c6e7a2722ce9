"""A rule that rejects by the variance of the minibatch itself selects minibatches: by how much log-ratios are off."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import mhrun
from mhrun.engine.diagnosis import diagnose, selection
from mhrun.engine.diagnosis.selection import selection_shift
from mhrun.target.differences import Differences

N, M = 1_000, 300


def log_lik(theta, x):
    """Of exponentially distributed data with the rate exp(theta)."""
    return theta[0] - theta[0].exp() * x


def normal(theta, x):
    """Of normal data."""
    return -0.5 * (x - theta[0]) ** 2


def sampled(function, x, kernel, monkeypatch, **settings):
    """Return the lines of a run on the selection of minibatches, and what was estimated."""
    found = []

    def spied(method, trace):
        found.append(selection_shift(method, trace))
        return found[-1]

    monkeypatch.setattr(diagnose, "selection_shift", spied)
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        given = {"step_size": 0.4 / N**0.5, "steps": 400, "warmup": 50, "chains": 20, "seed": 1}
        mhrun.sample(function, x, kernel, start=[0.0], progress=False, **given | settings)
    return [line for one in lines if "are rejected on minibatches" in (line := str(one.message))], found[0]


def walk(rule=None):
    return mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(M), rule or mhrun.Compensated())


def exponential():
    torch.manual_seed(3)
    return torch.distributions.Exponential(torch.tensor(1.0, dtype=torch.float64)).sample((N,))


def by_minibatches(x, step, variance):
    """Return the root mean square over moves of the mean error of the log-ratio, by drawing minibatches.

    Moves are from posterior draws, by steps N(0, step^2); each is weighted with its share of minibatches that are kept.
    """
    rng, x = np.random.default_rng(0), x.numpy()
    weights, squares = 0.0, 0.0
    for _ in range(60):
        origin = np.log(rng.gamma(N) / x.sum())
        candidate = origin + step * rng.normal()
        terms = candidate - origin - (np.exp(candidate) - np.exp(origin)) * x
        batches = np.array([rng.choice(terms, M, replace=False) for _ in range(3_000)])
        kept = N**2 * batches.var(1, ddof=1) * (1 / M - 1 / N) <= variance
        if kept.mean() < 1e-3:
            continue
        shift = N * (batches.mean(1)[kept].mean() - terms.mean())
        weights, squares = weights + kept.mean(), squares + kept.mean() * shift**2
    return (squares / weights) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("variance", [0.2, 1.0])
def test_the_shift_is_that_of_minibatches_that_are_kept(monkeypatch, variance):
    """By the formula, and by drawing minibatches; 100 and 60 moves of random size make it uncertain by a fifth."""
    x = exponential()
    (line,), shift = sampled(log_lik, x, walk(mhrun.Compensated(variance=variance)), monkeypatch)
    assert shift.moves == pytest.approx(by_minibatches(x, 0.4 / N**0.5, variance), rel=0.45)
    assert (
        f"candidates are rejected on minibatches whose estimated noise has a variance above {variance:g}"
        in line
    )
    assert line.endswith("Raise m, or take pairing growing with rule noise_corrected.")


@pytest.mark.slow
def test_symmetric_terms_and_rare_rejections_are_not_warned_of(monkeypatch):
    """With normal data, with short steps, and with a rule that selects nothing."""
    torch.manual_seed(3)
    lines, shift = sampled(normal, torch.randn(N, dtype=torch.float64), walk(), monkeypatch)
    assert not lines
    assert shift.moves < 0.05
    lines, shift = sampled(log_lik, exponential(), walk(), monkeypatch, step_size=0.15 / N**0.5)
    assert not lines
    assert shift.moves < 0.02
    assert sampled(log_lik, exponential(), walk(mhrun.Metropolis()), monkeypatch) == ([], None)


@pytest.mark.slow
def test_exchanges_are_judged_too(monkeypatch):
    """Of rungs that move on all data."""
    rung = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    ladder = mhrun.ReplicaExchange(rung, mhrun.Shared(20), mhrun.Compensated(), rungs=3)
    x, settings = exponential()[:50], {"temperature": [1.0, 4.0, 16.0], "step_size": 0.2, "chains": 30}
    (line,), shift = sampled(log_lik, x, ladder, monkeypatch, **settings)
    assert shift.exchanges > 0.3
    assert line.startswith("exchanges are rejected on minibatches")
    every = mhrun.ReplicaExchange(rung, mhrun.Full(), mhrun.Compensated(), rungs=3)
    assert sampled(log_lik, x, every, monkeypatch, **settings) == ([], None)


@pytest.mark.slow
def test_moves_of_the_coldest_rungs_are_judged_as_those_of_chains(monkeypatch):
    """Of a ladder whose exchanges are on all data."""
    x, settings = exponential(), {"executor": "torch"}
    _, alone = sampled(log_lik, x, walk(), monkeypatch, **settings)
    ladder = mhrun.ReplicaExchange(walk(), mhrun.Full(), mhrun.Metropolis(), rungs=2)
    (line,), found = sampled(log_lik, x, ladder, monkeypatch, temperature=[1.0, 4.0], **settings)
    assert line.startswith("candidates are rejected on minibatches")
    assert found.moves == pytest.approx(alone.moves, rel=0.45)
    assert found.exchanges is None


@pytest.mark.slow
def test_a_tuned_step_size_is_the_one_that_chains_had(monkeypatch):
    """Not that with which tuning began, at which nearly no candidate could be accepted."""
    settings = {"warmup": 2_000, "step_size": mhrun.Tuned(100 / N**0.5, 0.3), "executor": "torch"}
    sizes, sample = [], mhrun.RandomWalk.sample

    def spied(proposal, origin, controls, draws):
        sizes.append(float(controls.step_size.max()))
        return sample(proposal, origin, controls, draws)

    monkeypatch.setattr(mhrun.RandomWalk, "sample", spied)
    sampled(log_lik, exponential(), walk(), monkeypatch, **settings)
    assert sizes[-1] == sizes[-2] < 10 / N**0.5


def test_a_short_run_evaluates_few_data_in_parts(monkeypatch):
    """Of 100 moves the terms of 1,000 data, of which 100 are in memory at once."""
    differences, sizes = Differences.terms, []

    def spied(terms_of, origin, candidate, index):
        sizes.append((len(origin), index.shape[1]))
        return differences(terms_of, origin, candidate, index)

    def wide(theta, rows):
        return -0.5 * (rows.mean(-1) - theta[0]) ** 2

    monkeypatch.setattr(Differences, "terms", spied)
    monkeypatch.setattr(selection, "_AT_ONCE", 100 * 100 * 8)
    settings = {"steps": 50, "warmup": 0, "chains": 4, "step_size": 0.002, "executor": "torch"}
    sampled(wide, torch.randn(5_000, 8, dtype=torch.float64), walk(), monkeypatch, **settings)
    assert sizes == [(100, 100)] * 10
