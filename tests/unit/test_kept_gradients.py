"""The gradient that is kept with the current point is that of the present temperature."""

from __future__ import annotations

import pytest
import torch
from kit import KEY

import mhrun
from mhrun.data import Dataset
from mhrun.exchanges import MADE
from mhrun.random import Draws, Streams
from mhrun.target import Target
from mhrun.types import Controls

C, N, DROP, STEPS = 4, 60, 5, 25
PROPOSALS = {
    "Langevin": (mhrun.LangevinProposal(), 0.02),
    "Hamiltonian": (mhrun.HamiltonianProposal(leapfrog_steps=3), 0.2),
}


@pytest.fixture
def data(rng):
    x = torch.from_numpy(rng.normal(size=(N, 2)))
    return Dataset.of(
        {"x": x, "y": torch.where(x[:, 0] + 0.5 * torch.from_numpy(rng.normal(size=N)) > 0, 1.0, -1.0)}
    )


def controls(temperature, step_size):
    temperature = torch.full((C,), temperature, dtype=torch.float64)
    return Controls(torch.full_like(temperature, step_size), temperature, temperature)


def moved(kernel, target, step_size, *, forget):
    """Points of a chain whose temperature drops from 100 to 1; `forget`: each gradient is computed anew."""
    streams, points = Streams(KEY, C), []
    start = torch.full((C, 2), 0.5, dtype=torch.float64)
    state = kernel.start(target, start, Draws(streams, 0))
    for step in range(1, STEPS):
        if forget:
            state = state._replace(evaluation=state.evaluation._replace(grad=None))
        now = controls(100.0 if step < DROP else 1.0, step_size)
        state, _ = kernel.step(target, state, now, Draws(streams, step))
        points.append(state.evaluation.theta)
    return torch.stack(points)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_a_chain_whose_temperature_drops_moves_as_one_without_kept_gradients(data, proposal, temper):
    target = Target(mhrun.Logistic(2, prior_variance=0.1), data, temper=temper)
    moves, step_size = PROPOSALS[proposal]
    kernel = mhrun.MetropolisHastings(moves, mhrun.Full(), mhrun.Metropolis())
    kept, anew = (moved(kernel, target, step_size, forget=forget) for forget in (False, True))
    assert (kept[DROP:] != kept[DROP]).any()  # chains move after the drop
    assert kept.numpy() == pytest.approx(anew.numpy(), abs=1e-10)


def test_a_point_that_keeps_its_minibatch_has_the_gradient_of_the_present_temperature(data):
    target = Target(mhrun.Logistic(2, prior_variance=0.1), data, temper="likelihood")
    pairing, draws = mhrun.Stored(20), Draws(Streams(KEY, C), 0)
    theta, hot, cold = torch.full((C, 2), 0.3, dtype=torch.float64), controls(100.0, 0.1), controls(1.0, 0.1)
    point = pairing.current(target, pairing.start(target, theta, draws), draws, hot.temperature)
    now = pairing.current(target, point, draws, cold.temperature)
    exact = target.gradients.minibatch(theta, point.batch, cold.temperature)
    assert now.grad.numpy() == pytest.approx(exact.numpy())


def test_at_one_temperature_a_kept_gradient_is_kept_to_the_bit(data):
    target = Target(mhrun.Logistic(2, prior_variance=0.1), data, temper="likelihood")
    now = controls(3.0, 0.1).temperature
    point = target.evaluate_full(torch.full((C, 2), 0.3, dtype=torch.float64), now)
    before = point.grad.clone()
    assert torch.equal(target.gradients.retempered(point, now.clone()).grad, before)
    hot = target.gradients.retempered(point, 2 * now)
    assert torch.equal(point.grad, before)  # a step leaves the state that it begins with
    assert hot.grad.numpy() == pytest.approx(target.gradients.full(point.theta, 2 * now).numpy())


def test_an_exchange_gives_each_gradient_the_temperature_of_its_new_rung(data):
    """The prior is not tempered; chains begin apart, so that the gradients of rungs differ."""
    target = Target(mhrun.Logistic(2, prior_variance=0.1), data, temper="likelihood")
    ladder = mhrun.ReplicaExchange(
        mhrun.MetropolisHastings(PROPOSALS["Langevin"][0], mhrun.Full(), mhrun.Metropolis()),
        mhrun.Full(),
        mhrun.Metropolis(),
        rungs=2,
    )
    streams = Streams(KEY, C)
    start = torch.tensor([[0.5, 0.0], [-0.5, 0.2]] * 2, dtype=torch.float64)
    temperature = torch.tensor([1.0, 2.0] * 2, dtype=torch.float64)
    state, exchanged = ladder.start(target, start, Draws(streams, 0)), 0
    for step in range(1, 30):
        state, info = ladder.step(
            target,
            state,
            Controls(torch.full_like(temperature, 0.01), temperature, temperature),
            Draws(streams, step),
        )
        exchanged += int((info.exchange == MADE).sum()) if info.exchange is not None else 0
        exact = target.gradients.full(state.evaluation.theta, temperature)
        assert state.evaluation.grad.numpy() == pytest.approx(exact.numpy(), abs=1e-9)
    assert exchanged > 0
