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
    """Yield the results of all checks, or of the chosen ones; a check that raises an error fails.

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
    """Yield the results of a check; it is repeated with more chains if any of them holds with a small p."""
    results = list(check(subject))
    if any(_doubtful(result) for result in results):
        larger = replace(subject, chains=REPEATED * subject.chains, seed=derive_key(subject.seed, "again"))
        repetitions = {result.check: result for result in check(larger)}
        results = [
            after_repetition(result, repetitions[result.check]) if _doubtful(result) else result
            for result in results
        ]
    yield from results


def _doubtful(result: CheckResult) -> bool:
    return result.outcome == HOLDS and result.p is not None and result.p <= DOUBTFUL
