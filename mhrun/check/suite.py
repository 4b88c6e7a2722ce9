"""The suite of all checks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mhrun.check import contracts, minibatch_bias, small_steps, stationarity
from mhrun.check.results import DOUBTFUL, FAILS, HOLDS, REPEATED, CheckResult, after_repetition
from mhrun.check.subject import Check, Subject
from mhrun.errors import Refusal, UserError, nearest
from mhrun.ownership import blame
from mhrun.random import derive_key

CHECKS: dict[str, Check] = {
    "invariance": stationarity.invariance,
    "tempered": stationarity.tempered,
    "coming": stationarity.coming,
    "balance": stationarity.balance,
    "geweke": stationarity.geweke,
    "nearing": small_steps.nearing,
    "temperature": small_steps.temperature,
    "gain": small_steps.gain,
    "minibatches": minibatch_bias.minibatches,
    "costs": contracts.costs,
    "repeatable": contracts.repeatable,
    "resuming": contracts.resuming,
    "compiled": contracts.compiled,
    "absurd": contracts.absurd,
}


def run_suite(subject: Subject, chosen: Sequence[str] | None) -> Iterator[CheckResult]:
    """Yield the verdicts of all checks, or of the chosen ones; a check that raises an error fails.

    Raises:
        UserError: an unknown check, or incompatible parts.
    """
    for name in chosen or ():
        if name not in CHECKS:
            raise UserError(
                f"There is no check '{name}'.{nearest(name, CHECKS)} There are: {', '.join(CHECKS)}."
            )
    for name in chosen or CHECKS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield from _judged(CHECKS[name], subject)
        except Refusal:
            raise
        except Exception as error:
            detail = str(error) if isinstance(error, UserError) else blame(error)
            yield CheckResult(name, FAILS, detail, crashed=True)


def _judged(check: Check, subject: Subject) -> Iterator[CheckResult]:
    """Yield the verdicts of a check; those that hold with a small p are made again, with more chains."""
    verdicts = list(check(subject))
    if any(_doubtful(verdict) for verdict in verdicts):
        larger = replace(subject, chains=REPEATED * subject.chains, seed=derive_key(subject.seed, "again"))
        repetitions = {verdict.check: verdict for verdict in check(larger)}
        verdicts = [
            after_repetition(verdict, repetitions[verdict.check]) if _doubtful(verdict) else verdict
            for verdict in verdicts
        ]
    yield from verdicts


def _doubtful(verdict: CheckResult) -> bool:
    return verdict.outcome == HOLDS and verdict.p is not None and verdict.p <= DOUBTFUL
