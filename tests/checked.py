"""What tests of `mhrun check` share: a subject of small targets, and the outcomes of its checks by name."""

from __future__ import annotations

from mhrun.check.subject import Subject
from mhrun.check.suite import CHECKS, run_suite
from mhrun.kernels import MetropolisHastings
from mhrun.pairing.full import Full
from mhrun.pairing.shared import Shared
from mhrun.proposals.random_walk import RandomWalk
from mhrun.rules.metropolis import Metropolis

INVARIANCE = {"invariance: Gaussian mean, n = 30", "invariance: mixture with two modes",
              "invariance: correlated Gaussian, D = 6"}  # fmt: skip


TEMPERED = {
    "invariance at T = 4: Gaussian mean, n = 30",
    "invariance at T = 4: correlated Gaussian, D = 6",
    "invariance at T = 4: Gaussian mean, n = 4, temper = likelihood",
}
EXACT = INVARIANCE | TEMPERED | {"detailed balance", "Geweke's joint test"}


def subject(make, **settings):
    return Subject("mine", make, **{"chains": 4000, "n": 400, "m": 40, "effective": 10.0} | settings)


def of_parts(proposal=RandomWalk, rule=Metropolis, kernel=MetropolisHastings):
    return lambda n, m: kernel(proposal(), Full() if n == m else Shared(m), rule())


def judged(make, *checks, **settings):
    """Return the outcomes of some checks, or of all but the slow ones."""
    chosen = checks or [name for name in CHECKS if name not in ("compiled", "minibatches")]
    return {verdict.check: verdict for verdict in run_suite(subject(make, **settings), chosen)}


def failing(make, *checks, **settings):
    return {
        check for check, verdict in judged(make, *checks, **settings).items() if verdict.outcome == "fails"
    }
