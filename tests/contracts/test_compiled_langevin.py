"""Langevin proposals in the compiled loop: which parts have one, and gradients that outlast their temperature.

`test_parity.py` compares all methods with the step in torch, field by field.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mhrun
from mhrun.compiled import compile_loop
from mhrun.compiled.langevin import LangevinLoop
from mhrun.data import Dataset
from mhrun.engine.execution.executors import choose_executor
from mhrun.engine.method import Method
from mhrun.native.forms import Draw, StepControls
from mhrun.native.philox import split_key
from mhrun.proposals import langevin, reversible_langevin
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target
from mhrun.types import Controls

N, STEPS = 30, 12


def target(temper="posterior", surrogate="none"):
    rng = np.random.default_rng(5)
    fields = {
        "x": torch.from_numpy(rng.normal(size=(N, 2))),
        "y": torch.from_numpy(rng.choice([-1.0, 1.0], N)),
    }
    return Target(mhrun.Logistic(2, 0.5), Dataset(fields), temper=temper, surrogate=surrogate)


def kernel(proposal=None, pairing=None):
    return mhrun.MetropolisHastings(
        proposal or mhrun.LangevinProposal(), pairing or mhrun.Full(), mhrun.Metropolis()
    )


class OtherRatio(mhrun.LangevinProposal):
    def log_density_ratio(self, origin, candidate, controls):
        return 0 * super().log_density_ratio(origin, candidate, controls)


class OtherMove(mhrun.ReversibleLangevinProposal):
    def sample(self, origin, controls, draws):
        return super().sample(origin, controls, draws) + 1


@pytest.mark.parametrize(
    ("proposal", "is_compiled"),
    [
        (mhrun.LangevinProposal(), True),
        (mhrun.ReversibleLangevinProposal(beta=2.0), True),
        (mhrun.LangevinProposal(ratio=False), False),
        (OtherRatio(), False),
        (OtherMove(), False),
    ],
)
def test_a_subclass_that_changes_a_method_runs_in_torch(proposal, is_compiled):
    assert (compile_loop(kernel(proposal), target(), 1, 1) is not None) == is_compiled


def test_a_minibatch_with_a_surrogate_runs_in_torch():
    shared = kernel(pairing=mhrun.Shared(5))
    assert isinstance(compile_loop(shared, target(), 1, 1), LangevinLoop)
    assert compile_loop(shared, target(surrogate="taylor1"), 1, 1) is None


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("pairing", [mhrun.Stored(7), mhrun.Full(), mhrun.Shared(7)])
@pytest.mark.parametrize("proposal", [mhrun.LangevinProposal(), mhrun.ReversibleLangevinProposal(beta=1.5)])
def test_a_kept_gradient_follows_the_temperature(temper, pairing, proposal, interpreted):
    """With a prior that matters, temperatures that change in each step, and noise at another one."""
    chains = 3
    shape = Shape(chains, target().model.names, 0, STEPS, 1, 1)
    fixed = mhrun.Fixed(step_size=0.02, temperature=1.0)
    plan = Plan({"all": fixed}, chains, 0, STEPS)
    method = Method("one", kernel(proposal, pairing), target(temper), plan, shape, 3, torch.float64)
    temperature = 1 + torch.rand(STEPS, chains, generator=torch.Generator().manual_seed(1)).double()
    controls = Controls(torch.full_like(temperature, 0.02), temperature, 0.7 * temperature)
    records = [
        choose_executor(method, wish, None, 1).advance(method.first_state(), 1, controls)[1]
        for wish in ("torch", "compiled")
    ]
    for field in ("theta", "log_ratio", "accepted", "n_grad", "n_lik"):
        plain, fast = (np.asarray(record[field]) for record in records)
        assert np.allclose(plain, fast, rtol=1e-6, atol=1e-9), field
    assert 0 < np.mean(records[0]["accepted"]) < 1


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("pairing", [mhrun.Stored(7), mhrun.Full(), mhrun.Shared(7)])
def test_where_blocks_end_changes_no_bit_at_a_temperature_whose_inverse_is_rounded(
    temper, pairing, interpreted
):
    chains, temperature = 3, 49.0
    assert temperature * (1 / temperature) != 1
    shape = Shape(chains, target().model.names, 0, STEPS, 1, 1)
    plan = Plan({"all": mhrun.Fixed(step_size=0.5, temperature=temperature)}, chains, 0, STEPS)
    method = Method("one", kernel(pairing=pairing), target(temper), plan, shape, 3, torch.float64)
    executor, found = choose_executor(method, "compiled", None, 1), []
    for blocks in ((STEPS,), (5, 1, STEPS - 6)):
        state, done, parts = method.first_state(), 0, []
        for count in blocks:
            controls = method.plan.controls(method.plan.start(), done + 1, count)
            state, record = executor.advance(state, done + 1, controls)
            parts.append(np.array(record["theta"]))
            done += count
        found.append(np.concatenate(parts, 1))
    assert np.array_equal(*found)


def test_the_ratio_of_langevin_moves_is_that_of_their_normal_densities():
    """log N(x; y + e g(y), 2 e tau) - log N(y; x + e g(x), 2 e tau)."""
    rng = np.random.default_rng(0)
    x, y, here, there = rng.normal(size=(4, 3))
    e, tau = 0.3, 1.7

    def log_density(to, origin, grad):
        return -np.sum((to - origin - e * grad) ** 2) / (4 * e * tau)

    found = langevin._log_ratio((), x, y, here, there, StepControls(e, tau))
    assert found == pytest.approx(log_density(x, y, there) - log_density(y, x, here), rel=1e-12)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_ratio_of_reversible_moves_is_that_of_mixtures_of_two_normal_densities(normalised):
    """Wu, Wang & Wong (2020), equation 7, and without the factor beta^-D."""
    rng = np.random.default_rng(1)
    x, y, here, there = rng.normal(size=(4, 3))
    e, tau, beta = 0.3, 1.7, 1.4

    def log_density(to, origin, grad):
        forward = math.exp(-np.sum((to - origin - e * grad) ** 2) / (4 * e * tau))
        backward = math.exp(-np.sum((to - origin + e * grad) ** 2) / (4 * e * tau * beta**2))
        return math.log(0.5 * forward + 0.5 * backward * (beta**-3 if normalised else 1))

    args = (beta, normalised)
    found = reversible_langevin._log_ratio(args, x, y, here, there, StepControls(e, tau))
    assert found == pytest.approx(log_density(x, y, there) - log_density(y, x, here), rel=1e-12)


def test_a_reversible_move_is_forward_or_backward_with_half_of_the_probability_each():
    """With little noise: all moves are along the gradient, up or down. False alarms: 1e-9."""
    origin, grad, out = np.zeros(2), np.array([1.0, 2.0]), np.empty(2)
    ups, draws = 0, 2000
    for step in range(draws):
        draw = Draw(split_key(11), np.uint64(step), np.uint64(0))
        reversible_langevin._propose((3.0, True), origin, grad, StepControls(0.1, 1e-12), draw, out)
        assert np.allclose(abs(out), 0.1 * grad, atol=1e-4)
        ups += out[0] > 0
    assert abs(ups - draws / 2) < 6.2 * math.sqrt(draws / 4)
