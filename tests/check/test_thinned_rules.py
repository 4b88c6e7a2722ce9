"""`mhrun check` of rules that thin arrivals judges them where they thin: of few data they read all in most steps."""

from __future__ import annotations

import pytest
from checked import judged

from mhrun.kernels import MetropolisHastings
from mhrun.pairing.thinned import Thinned
from mhrun.proposals.random_walk import RandomWalk
from mhrun.rules.poisson_mh import PoissonMH
from mhrun.rules.smh import SMH
from mhrun.rules.tunamh import TunaMH

HOT = "invariance at T = 100: Gaussian mean, n = 2,000"


class WeighsLess(PoissonMH):
    """Weighs what its arrivals say by 0.85: right where all data are read."""

    def _steps(self, events, in_time, beta, a):
        return 0.85 * super()._steps(events, in_time, beta, a)


class LosesArrivals(TunaMH):
    """Keeps three quarters of the arrivals that it should."""

    def _steps(self, events, in_time, beta, a):
        return super()._steps(events._replace(uniform=events.uniform / 0.75), in_time, beta, a)


def thinned(rule):
    return lambda n, m: MetropolisHastings(RandomWalk(), Thinned(), rule())


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [SMH, *(pytest.param(r, marks=pytest.mark.slow) for r in (PoissonMH, TunaMH))]
)
def test_a_right_rule_holds_where_it_thins(rule):
    found = judged(thinned(rule), "tempered")
    assert {verdict.outcome for verdict in found.values()} == {"holds"}
    assert ", 0% of the decisions on all data" in found[HOT].detail


@pytest.mark.parametrize("rule", [WeighsLess, LosesArrivals])
@pytest.mark.slow
def test_a_wrong_rule_fails_there(rule):
    assert judged(thinned(rule), "tempered")[HOT].outcome == "fails"


@pytest.mark.slow
def test_without_that_target_a_wrong_weight_would_pass():
    """PoissonMH reads 100 data and more in a step: all that other targets have."""
    found = judged(thinned(WeighsLess), "invariance", "tempered")
    assert {name for name, verdict in found.items() if verdict.outcome == "fails"} == {HOT}
    others = [verdict for name, verdict in found.items() if name != HOT]
    assert all("100% of the decisions on all data" in verdict.detail for verdict in others)
    assert len(others) == 6
