"""Correct parts pass `mhrun check`.

A check fails for a right kernel with probability 1e-4 (`mhrun.check.results`); seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch
from checked import EXACT, failing, judged, of_parts

from mhrun.check.results import CheckResult
from mhrun.check.suite import CHECKS
from mhrun.check.targets import correlated, free_mean, gaussian_mean, mixture, tossed
from mhrun.kernels import MetropolisHastings
from mhrun.kernels.firefly import Firefly
from mhrun.pairing.growing import Growing
from mhrun.pairing.shared import Shared
from mhrun.proposals.langevin import LangevinProposal as LangevinMove
from mhrun.proposals.random_walk import RandomWalk
from mhrun.rules.barker import Barker
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch


@pytest.mark.parametrize("rule", [Metropolis, Barker])
def test_exact_rules_hold(rule):
    found = judged(of_parts(rule=rule), chains=3000)
    assert {check for check, verdict in found.items() if verdict.outcome == "holds"} >= EXACT
    assert not [verdict for verdict in found.values() if verdict.outcome == "fails"]


@pytest.mark.slow
def test_moves_along_gradients_and_tests_that_grow_hold():
    assert failing(of_parts(LangevinMove), "invariance", "costs", "absurd", chains=1000) == set()

    def growing(n, m):
        return MetropolisHastings(RandomWalk(), Growing(), MHMinibatch(m, density="series", variance=0.2))

    found = judged(growing, "balance", "costs", "resuming", chains=300)
    assert {verdict.outcome for verdict in found.values()} == {"holds"}


@pytest.mark.slow
def test_firefly_monte_carlo_holds_on_targets_with_lower_bounds():
    checks = ("invariance", "tempered", "balance", "geweke", "costs", "resuming")
    found = judged(lambda n, m: Firefly(RandomWalk(), 0.2), *checks, chains=400, surrogate="lower_bound")
    assert {verdict.outcome for verdict in found.values()} == {"holds"}
    assert set(found) >= EXACT


@pytest.mark.slow
def test_firefly_without_the_odds_of_bright_data_fails(monkeypatch):
    monkeypatch.setattr("mhrun.kernels.firefly._log_odds", lambda gaps, temperature: 0.9 * gaps)
    found = failing(
        lambda n, m: Firefly(RandomWalk(), 0.2), "invariance", surrogate="lower_bound", chains=1500
    )
    assert "invariance: mixture with two modes" in found


def test_lower_bounds_of_the_targets_are_quadratic_and_below():
    theta = torch.linspace(-3, 3, 7, dtype=torch.float64)
    one = [known.target() for known in (gaussian_mean(30), free_mean(30), mixture())] + [tossed(4)]
    for target, at in [(target, theta[:, None]) for target in one] + [
        (correlated().target(), torch.stack([theta, theta.flip(0) / 2, *[0.3 * theta] * 4], 1))
    ]:
        for anchor in (None, at[5]):
            rows = target.data.part(0, target.n)
            bound = target.model.lower_bound(at, rows, anchor)
            assert (bound <= target.model.log_lik(at, rows) + 1e-12).all()
            third = bound[3:] - 3 * bound[2:-1] + 3 * bound[1:-2] - bound[:-3]  # theta is evenly spaced
            assert third.abs().max() < 1e-10


@pytest.mark.slow
def test_minibatches_are_measured_and_their_bias_is_reported():
    small = judged(of_parts(), "minibatches", chains=1200, n=200, m=20)["with minibatches"]
    assert small.outcome == "measured"
    assert "biased" in small.detail
    assert float(small.detail.split()[1]) > 1.05
    exact = judged(
        lambda n, m: MetropolisHastings(RandomWalk(), Shared(n), Metropolis()), "minibatches", chains=2000
    )
    assert "no bias seen" in exact["with minibatches"].detail


class ExactInName(Metropolis):
    """Metropolis's rule that declares to be exact at any minibatch size."""

    exact = True


@pytest.mark.slow
def test_a_rule_that_declares_to_be_exact_is_judged_with_minibatches():
    def made(n, m):
        return MetropolisHastings(RandomWalk(), Shared(m), ExactInName())

    small = judged(made, "minibatches", chains=1200, n=200, m=20)["with minibatches"]
    assert small.outcome == "fails"
    assert "biased" in small.detail


class Uncorrected(Metropolis):
    """Metropolis's rule that declares to correct for minibatch noise."""

    corrects_noise = True


@pytest.mark.slow
def test_a_rule_that_declares_to_correct_for_noise_is_judged_with_minibatches():
    def made(n, m):
        return MetropolisHastings(RandomWalk(), Shared(m), Uncorrected())

    assert failing(made, "minibatches", chains=8000, n=2000, m=100, effective=20.0) == {
        "with minibatches",
        "with minibatches, shorter steps",
    }
    right = judged(
        lambda n, m: MetropolisHastings(RandomWalk(), Growing(), MHMinibatch(m)), "minibatches", chains=8000
    )
    assert right["with minibatches"].outcome == "holds"


@pytest.mark.parametrize(("second", "outcome"), [(0.3, "holds"), (5e-4, "fails"), (1e-9, "fails")])
def test_a_doubtful_check_is_repeated_with_more_chains(monkeypatch, second, outcome):
    requested = []

    def doubtful(subject):
        requested.append((subject.seed, subject.chains))
        p = 5e-4 if len(requested) == 1 else second
        yield CheckResult("mine", "holds" if p > 1e-6 else "fails", f"p = {p:g}", p=p)
        yield CheckResult("other", "holds", "at ease", p=0.5)

    monkeypatch.setitem(CHECKS, "mine", doubtful)
    found = judged(of_parts(), "mine")
    assert found["mine"].outcome == outcome
    assert found["mine"].detail == f"p = 0.0005; repeated with 5 times as many chains: p = {second:g}"
    assert found["other"] == CheckResult("other", "holds", "at ease", p=0.5)
    assert [chains for _, chains in requested] == [4000, 20_000]
    assert requested[0][0] != requested[1][0]


class Own(LangevinMove):
    """Without a compiled form: it overrides a method of the class that has one."""

    def sample(self, origin, controls, draws):
        return super().sample(origin, controls, draws)


@pytest.mark.slow
def test_the_compiled_loop_is_checked():
    assert judged(of_parts(), "compiled")["compiled equals plain"].outcome == "holds"
    assert judged(of_parts(LangevinMove), "compiled")["compiled equals plain"].outcome == "holds"
    assert judged(of_parts(Own), "compiled")["compiled equals plain"].outcome == "does not apply"
