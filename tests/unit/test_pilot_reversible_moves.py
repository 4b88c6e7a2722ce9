"""Pilots of reversible Langevin moves, whose backward moves adapt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import KEY, C, controls
from regressions import D, exact_variances, found, run

import mhrun
from mhrun.kernels.acceptance import efficient_acceptance
from mhrun.models.function import FunctionModel
from mhrun.target import Target
from mhrun.types.scale import Scale

pytestmark = pytest.mark.long


def squared_jump(step_size, dim, rng, chains=1_000, steps=8):
    """Return the acceptance rate and the mean squared jump of reversible Langevin moves on N(0, I), in NumPy."""
    x, rate, jump = rng.standard_normal((chains, dim)), 0.0, 0.0

    def log_q(origin, to):
        forward, backward = (
            -((to - origin + drift * origin) ** 2).sum(1) / (4 * step_size)
            for drift in (step_size, -step_size)
        )
        return np.logaddexp(forward, backward)

    for _ in range(steps):
        drift = np.where(rng.random((chains, 1)) < 0.5, step_size, -step_size)
        to = x - drift * x + (2 * step_size) ** 0.5 * rng.standard_normal((chains, dim))
        log_ratio = ((x**2).sum(1) - (to**2).sum(1)) / 2 + log_q(to, x) - log_q(x, to)
        chance = np.exp(np.minimum(0, log_ratio))
        rate, jump = rate + chance.mean() / steps, jump + (chance * ((to - x) ** 2).sum(1)).mean() / steps
        x = np.where((rng.random(chains) < chance)[:, None], to, x)
    return rate, jump


def test_the_best_acceptance_of_reversible_moves():
    """On N(0, I): the largest squared jump is at the acceptance aimed at, within 10 % of a flat maximum."""
    moves = mhrun.MetropolisHastings(mhrun.ReversibleLangevinProposal(), mhrun.Full(), mhrun.Metropolis())
    for dim, largest in ((1, 4.0), (20, 1.5)):
        found = [squared_jump(e, dim, np.random.default_rng(0)) for e in np.geomspace(0.15, largest, 14)]
        best = efficient_acceptance(moves, dim).best
        rates, jumps = map(np.array, zip(*found, strict=True))
        assert np.interp(best, rates[::-1], jumps[::-1]) > 0.9 * jumps.max()
        assert abs(rates[jumps.argmax()] - best) < 0.1


def adaptive(pairing):
    """Return RSGLD with a beta that adapts."""
    return mhrun.AdaptiveBackward(
        mhrun.ReversibleLangevinProposal(), pairing, mhrun.Metropolis(), epoch=200, trials=10
    )


@pytest.mark.slow
def test_reversible_moves_get_a_step_size_and_a_scale():
    """Standard deviations against the curvature's; about 500 effective draws: a standard error of 3.5 %."""
    exact = np.sqrt(exact_variances())
    trace = run(adaptive(mhrun.Full()), chains=8, warmup=50)
    assert found(trace)["acceptance"] == pytest.approx(0.287 + 0.2 / D)
    assert found(trace)["settled"]
    assert 0.15 < float(trace["sample_stats"]["accepted"].mean()) < 0.45
    sd = trace["posterior"]["theta"].values.reshape(-1, D).std(0)
    assert sd == pytest.approx(exact, rel=0.18)


def test_trials_of_backward_moves_are_in_scaled_coordinates():
    """A trial that is always accepted lowers beta; in other coordinates than the moves its acceptance is another."""
    scale = Scale(torch.zeros(2), torch.tensor([0.01, 100.0]))
    kernel = adaptive(mhrun.Full()).with_scale(scale)
    assert kernel.forward_moves is kernel.proposal
    plain = adaptive(mhrun.Full())
    target = Target(
        FunctionModel(
            lambda t, _: -0.5 * (t / scale.factor.to(t)).square().sum(-1, True), [0.0, 0.0], batched=True
        ),
        mhrun.NoData().load(),
    )
    unit = Target(
        FunctionModel(lambda t, _: -0.5 * t.square().sum(-1, True), [0.0, 0.0], batched=True),
        mhrun.NoData().load(),
    )
    start = torch.ones(C, 2, dtype=torch.float64)
    betas = []
    for each, on, theta in ((kernel, target, start * scale.factor), (plain, unit, start)):
        draws = mhrun.random.Draws(mhrun.random.Streams(KEY, C), 0)
        state = each.start(on, theta, draws)
        state, _ = each.step(
            on, state, controls(0.05, 1.0), mhrun.random.Draws(mhrun.random.Streams(KEY, C), 1)
        )
        betas.append(state.aux["backward"].numpy())
    assert betas[0] == pytest.approx(betas[1])
    assert (betas[0] < 1000).all()
