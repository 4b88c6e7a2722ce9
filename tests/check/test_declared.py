"""What a part declares is judged, and named where it is not so.

A check fails for a right kernel with probability 1e-4 (`mhrun.check.results`); seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch
from checked import judged, of_parts, subject

from mhrun.check.declared import denials
from mhrun.check.results import FAILS, HOLDS, CheckResult
from mhrun.kernels import MetropolisHastings
from mhrun.kernels.stationary import TARGET
from mhrun.pairing.full import Full
from mhrun.parts import Kernel
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Purpose
from mhrun.rules.metropolis import Metropolis
from mhrun.types import Info, State


class OnMinibatches(Kernel):
    """A random walk decided on a fresh minibatch of m data."""

    decides = True
    reversible = True
    stationary = TARGET

    def __init__(self, m):
        self.m = m

    def reads(self, target):
        return 2 * self.m

    def refuses(self, target):
        return None

    def start(self, target, theta, draws):
        return State(target.prior(theta), {})

    def step(self, target, state, controls, draws):
        t, theta = controls.temperature, state.evaluation.theta
        moved = theta + controls.step_size[:, None] * draws.normal(Purpose.PROPOSAL, target.dim)
        index = target.batches.draw(draws, self.m)
        f, f_moved = (
            target.value(at.log_lik_mean, at.log_prior, t)
            for at in (target.evaluate(theta, index), target.evaluate(moved, index))
        )
        log_ratio = (f_moved - f) / t
        accepted = draws.uniform(Purpose.ACCEPT).log() < log_ratio
        zero = torch.zeros_like(accepted, dtype=torch.int64)
        info = Info(
            accepted=accepted,
            log_ratio=log_ratio,
            log_ratio_var=torch.zeros_like(log_ratio),
            batch_size=(zero + self.m).int(),
            n_lik=zero + 2 * self.m,
            n_lik_overhead=zero,
            n_grad=zero,
            diverging=log_ratio.isnan(),
        )
        return State(target.prior(torch.where(accepted[:, None], moved, theta)), {}), info


class Undeclared(OnMinibatches):
    stationary = None


@pytest.mark.parametrize(("kernel", "outcome"), [(OnMinibatches, "fails"), (Undeclared, "measured")])
@pytest.mark.slow
def test_a_kernel_that_declares_the_target_is_judged_on_the_data_that_it_reads(kernel, outcome):
    def made(n, m):
        return kernel(m)

    found = judged(made, "minibatches", chains=1200, n=200, m=20)["with minibatches"]
    assert found.outcome == outcome
    assert ": biased (" in found.detail
    words = denials(subject(made), [found])
    assert [line.partition(" = ")[0] for line in words] == ["stationary"] * (outcome == "fails")


class Own(RandomWalk):
    pass


class OwnPairing(Full):
    pass


class OwnKernel(MetropolisHastings):
    pass


class Irreversible(MetropolisHastings):
    reversible = False


def test_what_is_not_so_is_named_of_the_only_part_that_is_the_users():
    failed = {
        name: CheckResult(name, FAILS, "") for name in ("invariance: one", "detailed balance", "goes there")
    }

    def named(make, *checks):
        lines = denials(subject(make), [failed[check] for check in checks])
        return [line.partition(" is ")[0] for line in lines]

    proposal, of_kernel = of_parts(Own), of_parts(kernel=OwnKernel)
    assert named(proposal, "invariance: one") == ["keeps_balance = True, the default,"]
    assert named(proposal, "goes there") == named(of_kernel, "goes there") == []
    assert denials(subject(proposal), [failed["invariance: one"]._replace(outcome=HOLDS)]) == []
    assert named(of_parts(), "invariance: one") == []  # all parts are mhrun's
    assert named(of_parts(Own, type("OwnRule", (Metropolis,), {})), "invariance: one") == []
    full = lambda n, m: OwnKernel(RandomWalk(), Full(), Metropolis())  # noqa: E731
    assert named(full, "invariance: one", "detailed balance") == [
        "stationary = {'distribution': 'tempered', 'm': None}"
    ]
    assert named(full, "detailed balance") == ["reversible = True"]
    assert named(of_parts(kernel=Irreversible), "detailed balance") == []
    pairing = lambda n, m: MetropolisHastings(RandomWalk(), OwnPairing(), Metropolis())  # noqa: E731
    assert named(pairing, "invariance: one") == ['stationary = "tempered"']
