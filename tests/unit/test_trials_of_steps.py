"""Trials that shorten the step size of a dynamics where the posterior is far from normal."""

from __future__ import annotations

import json
import math

import pytest
import torch

import mhrun
from mhrun.engine.assemble import assembled
from mhrun.engine.pilot.trial import tried
from mhrun.models.function import FunctionModel
from mhrun.target import Target
from mhrun.types.scale import Scale


def of_a_rate(x):
    """The log of a rate with one event: minus the curvature at the mode, 0, is 1, and the standard deviation 1.28."""
    return x - x.exp()


def without_events(x):
    """The log of a rate without an event, and a wide prior."""
    return -(x**2) / 50 - x.exp()


def of_student(x):
    """Three degrees of freedom: minus the curvature at the mode is 4 / 3, and the standard deviation 1.7."""
    return -2 * (1 + x**2 / 3).log()


def of_a_wall(x):
    return -0.5 * x**2 - x**6


def trials(log_density, step_size, temperature=1.0):
    kernel = mhrun.Unadjusted(mhrun.SGLD(), m=1)
    start = torch.zeros(1, dtype=torch.float64)
    model = FunctionModel(lambda theta, batch: log_density(theta[0]) + 0 * batch["x"][:, 0], start)
    target = Target(model, mhrun.NoData().load())
    schedules = {"step_size": mhrun.Fixed(step_size=step_size, temperature=temperature)}
    counts = {"chains": 4, "steps": 7_500, "warmup": 500, "thin": 1, "thin_stats": None, "seed": 1}
    method = assembled("a", kernel, target, schedules, counts, dtype=torch.float64, starts=None, monitor=None)
    one = torch.ones(1, dtype=torch.float64)
    hot = torch.full((4,), temperature, dtype=torch.float64)
    return tried(method, kernel, Scale(0 * one, one), step_size, 0 * hot[:, None], hot)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_a_step_that_throws_chains_far_is_shortened(temperature):
    found = trials(of_a_rate, 1.5, temperature)
    assert found.step_size in [1.5 / 2**k for k in (1, 2, 3, 4)]
    assert found.wider > 5
    trial_steps = 2_000 * 4
    # Each size down to half of the one that is taken has a trial.
    assert found.n_grad == trial_steps * (2 + round(math.log2(1.5 / found.step_size)))


@pytest.mark.slow
def test_a_step_at_which_chains_diverge_is_shortened():
    found = trials(of_a_wall, 1.5)
    assert found.wider == math.inf
    assert found.step_size < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("log_density", [of_a_rate, of_student, lambda x: -0.5 * x**2])
def test_a_wide_posterior_shortens_no_step(log_density):
    found = trials(log_density, 0.2)
    assert found.step_size == 0.2
    assert found.wider == 1.0


@pytest.mark.parametrize(("is_normal", "trials"), [(True, 0), (False, 1)])
def test_a_nearly_normal_posterior_has_no_trials(is_normal, trials, monkeypatch):
    calls = []

    def recorded(*args):
        calls.append(args)
        return tried(*args)

    monkeypatch.setattr("mhrun.engine.pilot.dynamics.tried", recorded)
    trace = mhrun.sample(
        lambda theta: -0.5 * theta[0] ** 2 if is_normal else without_events(theta[0]),
        None,
        mhrun.Unadjusted(mhrun.SGLD(), m=1),
        start=[0.0],
        precondition="dense",
        steps=200,
        warmup=200,
        seed=1,
    )
    assert len(calls) == trials
    about = json.loads(trace.attrs["pilot"])
    assert ("In trials" in about["why"]) == (about["step_size"] < 0.199)
