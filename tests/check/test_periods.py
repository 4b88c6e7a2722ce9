"""Steps that come rarely are judged by `mhrun check`, or it says that they are not.

A check fails for a right kernel with probability 1e-4 (`mhrun.check.results`); seeds are fixed.
"""

from __future__ import annotations

import pytest
from checked import INVARIANCE, failing, judged, subject

from mhrun.check.suite import run_suite
from mhrun.check.trajectories import steps_about
from mhrun.cli.check.output import show_table
from mhrun.kernels import MetropolisHastings
from mhrun.pairing.full import Full
from mhrun.proposals.random_walk import RandomWalk
from mhrun.rules.metropolis import Metropolis


class Rarely(MetropolisHastings):
    """In some steps, decides at a temperature `factor` times as high, with moves half as long."""

    period, last, factor = 50, False, 1.0

    def step(self, target, state, controls, draws):
        if draws.due(self.period, self.last):
            controls = controls._replace(
                temperature=self.factor * controls.temperature, step_size=controls.step_size / 2
            )
        return super().step(target, state, controls, draws)


def rarely(**attributes):
    kernel = type("Mine", (Rarely,), attributes)
    return lambda n, m: kernel(RandomWalk(), Full(), Metropolis())


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_a_step_in_fifty_that_is_wrong_fails_and_a_right_one_holds(last):
    apart = {f"{check}, period 50" for check in INVARIANCE}
    wrong = failing(rarely(last=last, factor=3.0), "invariance", "balance", chains=1500)
    assert wrong >= apart | {"detailed balance"}
    right = judged(rarely(last=last), "invariance", "balance", chains=1500)
    assert set(right) == INVARIANCE | apart | {"detailed balance"}
    assert {verdict.outcome for verdict in right.values()} == {"holds"}


def test_every_other_of_the_steps_about_a_period_is_due():
    assert steps_about(50, 5) == [50, 51, 100, 101, 150]
    assert steps_about(3, 4) == [3, 4, 6, 7]


def test_a_period_of_which_hardly_a_step_is_run_is_named(capsys):
    found = subject(rarely(period=1000, factor=3.0), chains=400)
    show_table(list(run_suite(found, ["minibatches"])), found, 1.0)
    out = capsys.readouterr().out
    assert "\nSteps with a period of 1,000 were run once in a run at most, so that they are not judged" in out
    often = subject(rarely(period=1000), chains=400)
    show_table(list(run_suite(often, ["minibatches", "invariance"])), often, 1.0)
    assert "Steps with a period" not in capsys.readouterr().out
