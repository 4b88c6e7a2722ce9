"""A step evaluates as many log-likelihoods as it counts: calls of the model are counted, in plain torch."""

from __future__ import annotations

import pytest
import torch
from kit import begin, controls, ladder_controls

import mhrun
from mhrun.data import Dataset
from mhrun.kernels import EquiEnergy, MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.pairing.blocks import Blocks
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.moving import Moving
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.report.efficiency import passes
from mhrun.rules.austere import Austere
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.pseudo_marginal import PseudoMarginal
from mhrun.rules.subsampling import MHSubLhd
from mhrun.target import Target

N, M, C, STEPS = 201, 9, 4, 12


class Counting(mhrun.FunctionModel):
    """The mean of a normal sample; counts the log-likelihoods that it returns."""

    def __init__(self) -> None:
        super().__init__(
            self._each, [0.0], single=True, batched=True, log_prior=lambda t: -0.5 * t[:, 0] ** 2
        )
        self.evaluated = 0

    def _each(self, theta, x):
        found = -0.5 * (x - theta) ** 2
        self.evaluated += found.numel()
        return found


def counted(kernel, control, **settings):
    """Return the log-likelihoods evaluated and counted in some steps, (STEPS,) each, and the infos.

    The first step may prepare what all use, and is left out.
    """
    model = Counting()
    data = Dataset.of(torch.linspace(-2.0, 3.0, N, dtype=torch.float64))
    target = Target(model, data, **settings)
    state, draws = begin(kernel, target, len(control.temperature))
    by_model, by_kernel, infos = [], [], []
    with torch.no_grad():
        draws.step = 1
        state, _ = kernel.step(target, state, control, draws)
        for step in range(2, STEPS + 2):
            draws.step, before = step, model.evaluated
            state, info = kernel.step(target, state, control, draws)
            by_model.append(model.evaluated - before)
            by_kernel.append(int(info.n_lik.sum()))
            infos.append(info)
    return by_model, by_kernel, infos


PAIRINGS = {
    "full": Full,
    "shared": lambda: Shared(M),
    "shared, one datum": lambda: Shared(1),
    "stored": lambda: Stored(M),
    "moving": lambda: Moving(M),
}


@pytest.mark.parametrize("name", PAIRINGS)
@pytest.mark.parametrize("proposal", [RandomWalk, LangevinProposal])
def test_metropolis_hastings(name, proposal):
    kernel = MetropolisHastings(proposal(), PAIRINGS[name](), Metropolis())
    by_model, by_kernel, infos = counted(kernel, controls(0.05, chains=C))
    if proposal is RandomWalk or name != "full":
        assert by_model == by_kernel
    else:  # a gradient of all data may take a separate pass
        assert all(a <= b + int(i.n_grad.sum()) for a, b, i in zip(by_model, by_kernel, infos, strict=True))
    assert min(by_kernel) > 0


def test_blocks_count_the_candidates_minibatch():
    kernel = MetropolisHastings(RandomWalk(), Blocks(60, 7), PseudoMarginal())
    by_model, by_kernel, _ = counted(kernel, controls(0.05, chains=C), replacement=True)
    assert by_model == by_kernel == [60 * C] * STEPS


GROWING = {
    "MHminibatch": lambda: MHMinibatch(M),
    "AustereMH, given": lambda: Austere(M, 0.05),
    "AustereMH(C)": lambda: Austere(design="conservative", bound=0.05),
    "AustereMH(NC)": lambda: Austere(design="per_step", bound=0.05),
    "MHSubLhd": lambda: MHSubLhd(M),
    "MHSubLhd, released": lambda: MHSubLhd(M, released=True),
}


@pytest.mark.parametrize("name", GROWING)
def test_growing_minibatches_count_two_for_each_datum_and_one_pass(name):
    """Data that are read ahead of a decision, or a second pass for another statistic, are not the algorithm's."""
    kernel = MetropolisHastings(RandomWalk(), Growing(), GROWING[name]())
    by_model, by_kernel, infos = counted(kernel, controls(0.05, chains=C))
    for made, count, info in zip(by_model, by_kernel, infos, strict=True):
        passes = {0, 2 * N * C} if "MHS" in name or "NC" in name else {0}
        assert int(info.n_lik_overhead.sum()) in passes
        assert count == int((2 * info.batch_size + info.n_lik_overhead).sum())
        assert made >= count
    if "SubLhd" in name:
        assert all(int(i.n_lik_overhead.min()) == 2 * N for i in infos)


@pytest.mark.parametrize("exchanged", ["full", "shared", "shared, one datum"])
@pytest.mark.parametrize("every", [1, 3])
def test_replica_exchange(exchanged, every):
    inner = MetropolisHastings(RandomWalk(), Shared(M), Metropolis())
    kernel = ReplicaExchange(inner, PAIRINGS[exchanged](), Metropolis(), rungs=4, every=every)
    by_model, by_kernel, _ = counted(kernel, ladder_controls([1.0, 2.0, 4.0, 8.0], 2, 0.05))
    assert by_model == by_kernel
    assert len(set(by_kernel)) > 1  # steps with and without an exchange, or of more and of fewer pairs


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("sizes", [(N, N, 40), (N, 80, 40), (80, 40, 40)])
def test_equi_energy_jumps(sizes, differences):
    kernel = EquiEnergy(RandomWalk(), Metropolis(), 3, sizes, [0.5], 0.5, 0.6, 50, differences=differences)
    control = ladder_controls([1.0, 2.0, 4.0], 2, 0.05)
    by_model, by_kernel, infos = counted(kernel, control)
    assert by_model == by_kernel
    assert sum(int((info.exchange > 0).sum()) for info in infos) > 5


LADDER = ladder_controls([1.0, 2.0], 2, 0.01)
GRADIENTS = {
    "Langevin, shared": lambda: MetropolisHastings(LangevinProposal(), Shared(M), Metropolis()),
    "Langevin, stored": lambda: MetropolisHastings(LangevinProposal(), Stored(M), Metropolis()),
    "Langevin, moving": lambda: MetropolisHastings(LangevinProposal(), Moving(M), Metropolis()),
    "Hamiltonian, shared": lambda: MetropolisHastings(mhrun.HamiltonianProposal(4), Shared(M), Metropolis()),
    "SGLD": lambda: Unadjusted(mhrun.SGLD(), m=M),
    "TACT-HMC": lambda: Unadjusted(mhrun.TACTHMC(), m=M),
    "a ladder of SGLD": lambda: ReplicaExchange(
        Unadjusted(mhrun.SGLD(), m=M), Shared(20), Metropolis(), rungs=2, every=1
    ),
    "a ladder of Langevin moves": lambda: ReplicaExchange(
        MetropolisHastings(LangevinProposal(), Shared(M), Metropolis()),
        Shared(20),
        Metropolis(),
        rungs=2,
        every=1,
    ),
    "a ladder of TACT-HMC": lambda: ReplicaExchange(
        Unadjusted(mhrun.TACTHMC(), m=M), Shared(20), Metropolis(), rungs=2, every=1
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_report_counts_each_pass_once(name):
    """A datum's log-likelihood and gradient from one pass are one evaluation; those of two passes are two."""
    kernel = GRADIENTS[name]()
    by_model, _, infos = counted(kernel, LADDER if kernel.rungs > 1 else controls(0.01, chains=C))
    each = [passes(int(i.n_lik.sum()), int(i.n_grad.sum()), kernel.separate_gradients()) for i in infos]
    assert by_model == pytest.approx(each)
    assert min(each) > 0


def test_gradients_on_a_separate_minibatch_are_counted_in_addition_to_likelihoods():
    kernel = MetropolisHastings(LangevinProposal(), mhrun.Thinned(gradient_m=20), mhrun.TunaMH(0.1))
    assert passes(300, 40, kernel.separate_gradients()) == 340
