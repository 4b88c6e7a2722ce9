"""Tests that grow their minibatches are judged by the terms of all data at some of their decisions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import mhrun
from mhrun.engine.diagnosis import diagnose
from mhrun.engine.diagnosis.term_noise import term_noise
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.target.differences import Differences


@pytest.fixture
def found(monkeypatch):
    """What was found, with what the last decisions were about."""
    seen = {}
    decide, moments = MHMinibatch.decide, Differences.full_moments

    def spied(method, trace):
        seen["noise"] = term_noise(method, trace)
        return seen["noise"]

    def decided(rule, contest, draws):
        seen["verdict"] = decide(rule, contest, draws)
        return seen["verdict"]

    def evaluated(differences, *pairs):
        seen["pairs"] = pairs
        return moments(differences, *pairs)

    monkeypatch.setattr(diagnose, "term_noise", spied)
    monkeypatch.setattr(MHMinibatch, "decide", decided)
    monkeypatch.setattr(Differences, "full_moments", evaluated)
    return seen


def data(n, rare):
    """A logistic regression on a category that some rows have, or on a normal feature."""
    rng = np.random.default_rng(1)
    x = (np.arange(n) < rare) * 1.0 if rare else rng.normal(size=n)
    return {"x": x[:, None], "y": np.where(rng.random(n) < 0.3, 1, -1)}


def lines(rows, **settings):
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Growing(), mhrun.MHMinibatch(m=100))
    call = {"step_size": 0.05, "steps": 300, "warmup": 300, "seed": 1, "executor": "torch", "progress": False}
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        mhrun.sample(mhrun.Logistic(1, prior_variance=25.0), rows, kernel, **(call | settings))
    return [str(one.message) for one in raised if "than their minibatches show" in str(one.message)]


@pytest.mark.slow
def test_the_noise_is_that_of_the_terms_of_all_data(found):
    rows = data(4_000, rare=0)
    assert lines(rows) == []
    origin, candidate = (point.numpy() for point in found["pairs"])
    verdict = found["verdict"]
    size = verdict.batch_size.numpy()
    on_part = size < 4_000
    log_lik = [-np.logaddexp(0, -rows["y"] * (theta @ rows["x"].T)) for theta in (origin, candidate)]
    exact = 4_000**2 * (log_lik[1] - log_lik[0]).var(axis=1) * (1 / size[on_part] - 1 / 4_000)
    assert found["noise"].on_all_data == pytest.approx(np.sqrt(exact.mean()))
    shown = verdict.log_ratio_var.numpy()[on_part]
    assert found["noise"].by_minibatches == pytest.approx(np.sqrt(shown.mean()))
    assert 0.7 < found["noise"].on_all_data / found["noise"].by_minibatches < 1.3


@pytest.mark.slow
def test_rare_data_that_no_minibatch_shows_are_warned_of(found):
    """40 of 10,000 rows have a category, and two in three minibatches of 100 rows none of them."""
    (line,) = lines(data(10_000, rare=40), step_size=0.7)
    assert "as those of a rare category" in line
    assert "choose an exact method (tunamh, smh2, mh_ss)" in line
    assert found["noise"].on_all_data > 1.5 * found["noise"].by_minibatches


class DeclaredExact(mhrun.MHMinibatch):
    """A rule that says that noise does not matter, as delayed acceptance may."""

    exact = True


@pytest.mark.parametrize(
    "kernel",
    [
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(100), mhrun.Metropolis()),
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Growing(), DeclaredExact(m=20)),
    ],
    ids=["all data", "one size", "an exact rule"],
)
def test_other_tests_have_no_such_noise(found, kernel):
    mhrun.sample(
        mhrun.Logistic(1, prior_variance=25.0),
        data(500, 0),
        kernel,
        step_size=0.05,
        steps=60,
        warmup=0,
        progress=False,
    )
    assert found["noise"] is None
