"""Which methods are exact: every ready-made method, as its parts declare it, and as tables and pages say."""

from __future__ import annotations

import importlib

import pytest
import torch

from mhrun.build import build
from mhrun.dynamics.adam import Adam
from mhrun.dynamics.sgld import SGLD
from mhrun.kernels import MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.kernels.adaptive_backward import AdaptiveBackward
from mhrun.kernels.stationary import (
    APPROXIMATE,
    EXACT,
    OPTIMISER,
    Samples,
    samples,
    user_parts,
    varies_temperature,
)
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.paths import CONF, ROOT
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.rules.austere import Austere
from mhrun.rules.metropolis import Metropolis
from mhrun.schedules import Plan
from mhrun.schedules.cosine import Cosine
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.switched import Switched
from mhrun.types.scale import Scale

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
EXACT_METHODS = {
    *("mcmc", "tempered_mcmc", "hmc", "mala", "parallel_tempering", "parallel_tempering_langevin"),
    *("tunamh", "poisson_mh", "smh1", "smh2", "smh2_pcn", "mh_ss", "zig_zag", "flymc", "flymc_untuned"),
    "tuna_sgld",
}
OPTIMISERS = {"sgd", "sgd_momentum", "snapshot_sgd", "snapshot_sgd_momentum", "adam", "adagrad", "rmsprop"}


@pytest.fixture(scope="module")
def methods():
    """The configurations of all methods, as the documentation composes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "_made")
        return importlib.import_module("parts").every_method()


def kind_of(kernel):
    known = kernel.stationary or {"distribution": None, "m": None}
    return Samples(known["distribution"], known["m"], 1.0, False, kernel.optimises).kind


@pytest.mark.parametrize("name", METHODS)
def test_a_method_declares_its_target_stationary_if_it_is_exact(methods, name):
    kernel = build(methods[name]["kernel"], "kernel")
    wanted = EXACT if name in EXACT_METHODS else OPTIMISER if name in OPTIMISERS else APPROXIMATE
    assert kind_of(kernel) == wanted


class Delayed(Austere):
    """A rule that declares itself exact on a minibatch that grows, as delayed acceptance is."""

    exact = True


def test_a_rule_may_be_exact_where_its_pairing_knows_no_distribution():
    def kind(rule):
        return kind_of(MetropolisHastings(RandomWalk(), Growing(), rule))

    assert kind(Austere(50, 0.05)) == APPROXIMATE
    assert kind(Delayed(50, 0.05)) == EXACT


@pytest.mark.parametrize(
    ("proposal", "kind"),
    [
        (LangevinProposal(), EXACT),
        (LangevinProposal(ratio=False), APPROXIMATE),
        (ReversibleLangevinProposal(beta=2.0), EXACT),
        (ReversibleLangevinProposal(beta=2.0, density="unnormalised"), APPROXIMATE),
        (ReversibleLangevinProposal(density="unnormalised"), EXACT),  # the factor is 1
    ],
)
def test_a_test_without_the_densities_of_its_moves_is_approximate(proposal, kind):
    kernel = MetropolisHastings(proposal, Full(), Metropolis())
    ladder = ReplicaExchange(kernel, Full(), Metropolis(), rungs=2)
    scaled = kernel.with_scale(Scale(torch.zeros(3), torch.ones(3)))
    assert [kind_of(one) for one in (kernel, ladder, scaled)] == [kind] * 3


def test_a_kernel_that_never_stops_adapting_is_approximate():
    assert (
        kind_of(AdaptiveBackward(ReversibleLangevinProposal(), Full(), Metropolis(), epoch=10)) == APPROXIMATE
    )


def test_draws_at_several_temperatures_are_of_no_one_target():
    """The last step alone said T = 1 of draws that nearly all had T = 4."""
    kernel = MetropolisHastings(RandomWalk(), Full(), Metropolis())
    for at, temperatures, samples_of_last, kind in (
        ([1900], [4.0, 1.0], None, APPROXIMATE),
        ([5000, 5001], [1.0, 4.0, 1.0], None, APPROXIMATE),  # at one step
        ([4500], [4.0, 1.0], 100, EXACT),  # after the change only
        ([100], [4.0, 1.0], None, EXACT),  # in burn-in
        ([1900], [4.0, 4.0], None, EXACT),
    ):
        temperature = Switched(at, temperature=temperatures, samples=samples_of_last)
        plan = Plan({"step_size": Fixed(step_size=0.1), "temperature": temperature}, 2, 300, 9000)
        assert samples(kernel, plan).kind == kind


def test_draws_of_a_dynamics_are_at_the_temperature_of_its_noise():
    """With a test they are at that of the target, whatever the noise of the proposal."""
    for schedules, temperature, kind in (
        ({"step_size": Cosine(0.1, 2, sampling=0.25)}, 0.25, APPROXIMATE),
        ({"step_size": Cosine(0.1, 2, sampling=0.0)}, 0.0, OPTIMISER),
        ({"step_size": Cosine(0.1, 2), "t": Fixed(temperature=3.0)}, 3.0, APPROXIMATE),
        ({"step_size": Fixed(step_size=0.1), "noise": Fixed(noise_temperature=0.5)}, 0.5, APPROXIMATE),
    ):
        found = samples(Unadjusted(SGLD(), 10), Plan(schedules, 2, 0, 1000))
        assert (found.temperature, found.kind) == (temperature, kind)
    for at, changes in (([500], True), ([200], False)):  # while draws are kept, and in burn-in
        switched = {"step_size": Fixed(step_size=0.1), "noise": Switched(at, noise_temperature=[0.0, 1.0])}
        assert varies_temperature(Unadjusted(SGLD(), 10), Plan(switched, 2, 200, 800)) == changes
    cycles = {"step_size": Cosine(0.1, 2)}  # none while draws are collected
    assert not varies_temperature(Unadjusted(SGLD(), 10), Plan(cycles, 2, 0, 1000))
    noise = {"step_size": Fixed(step_size=0.1), "noise": Fixed(noise_temperature=0.5)}
    tested = samples(MetropolisHastings(LangevinProposal(), Full(), Metropolis()), Plan(noise, 2, 0, 1000))
    assert (tested.temperature, tested.kind) == (1.0, EXACT)


def test_a_ladder_is_of_the_kind_of_its_rungs():
    adaptive = AdaptiveBackward(ReversibleLangevinProposal(), Full(), Metropolis(), epoch=10)
    rungs = (adaptive, Unadjusted(Adam(1000), 10), Unadjusted(SGLD(), 10))
    ladders = [ReplicaExchange(kernel, Full(), Metropolis(), rungs=2) for kernel in rungs]
    assert [kind_of(ladder) for ladder in ladders] == [APPROXIMATE, OPTIMISER, APPROXIMATE]
    for ladder, kernel in zip(ladders, rungs, strict=True):
        for declared in ("adapts", "optimises", "decides", "needs_noise", "keeps_buffers", "is_sequential"):
            assert getattr(ladder, declared) == getattr(kernel, declared), declared
        assert ladder.extra(50) == kernel.extra(50)
        assert ladder.steps_until_extra(7) == kernel.steps_until_extra(7)


def test_an_optimiser_is_known_by_its_temperature():
    assert Samples(None, None, 0.0, False).kind == OPTIMISER
    assert Samples("tempered", None, 31.0, True).kind == EXACT
    assert Samples("tempered", 100, 1.0, False).kind == APPROXIMATE
    assert Samples("stored", 100, 1.0, False).kind == APPROXIMATE


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        ({"sign": "printed"}, False),
        # It keeps the ratio, as Metropolis's rule does.
        ({"rule": {"_target_": "mhrun.rules.barker.Barker"}}, True),
        ({"pairing": {"_target_": "mhrun.pairing.shared.Shared", "m": 10}}, False),
        ({"kernel": "mint"}, False),
    ],
)
def test_a_ladder_is_exact_if_its_rungs_and_its_exchanges_are(methods, change, exact):
    node = methods["parallel_tempering"]["kernel"]
    if "kernel" in change:
        change = {"kernel": methods[change["kernel"]]["kernel"]}
    assert kind_of(build(node | change, "kernel")) == (EXACT if exact else APPROXIMATE)


class OwnRule(Metropolis):
    """A rule that is not of this package."""


class OwnProposal(RandomWalk):
    """A proposal that is not of this package."""


def test_user_parts_are_found_in_a_kernel_and_in_the_rungs_of_a_ladder():
    shipped = MetropolisHastings(RandomWalk(), Full(), Metropolis())
    assert list(user_parts(shipped)) == []
    for parts in ((RandomWalk(), Full(), OwnRule()), (OwnProposal(), Full(), Metropolis())):
        kernel = MetropolisHastings(*parts)
        ladder = ReplicaExchange(kernel, Full(), Metropolis(), rungs=2)
        (own,) = (part for part in parts if type(part) in (OwnRule, OwnProposal))
        assert list(user_parts(kernel)) == list(user_parts(ladder)) == [own]


def test_the_kinds_of_ready_made_methods_rest_on_no_part_of_the_users_own(methods):
    for name in METHODS:
        assert not list(user_parts(build(methods[name]["kernel"], name)))
