"""The suite of all checks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from mhrun.build import blame
from mhrun.check import contracts, measures, stationarity
from mhrun.check.subject import Check, Subject
from mhrun.check.verdict import FAILS, Verdict
from mhrun.errors import Refusal, UserError, nearest

CHECKS: dict[str, Check] = {
    "invariance": stationarity.invariance,
    "coming": stationarity.coming,
    "balance": stationarity.balance,
    "geweke": stationarity.geweke,
    "nearing": measures.nearing,
    "minibatches": measures.minibatches,
    "costs": contracts.costs,
    "repeatable": contracts.repeatable,
    "resuming": contracts.resuming,
    "compiled": contracts.compiled,
    "absurd": contracts.absurd,
}


def run_suite(subject: Subject, chosen: Sequence[str] | None = None) -> Iterator[Verdict]:
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
                yield from CHECKS[name](subject)
        except Refusal:
            raise
        except Exception as error:
            yield Verdict(name, FAILS, str(error) if isinstance(error, UserError) else blame(error))
