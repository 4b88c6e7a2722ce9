"""All laws, one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from mhrun.build import blame
from mhrun.check import contracts, laws, measures
from mhrun.check.subject import Law, Subject
from mhrun.check.verdict import FAILS, Verdict
from mhrun.errors import Refusal, UserError, nearest

LAWS: dict[str, Law] = {
    "invariance": laws.invariance,
    "coming": laws.coming,
    "balance": laws.balance,
    "geweke": laws.geweke,
    "nearing": measures.nearing,
    "minibatches": measures.minibatches,
    "costs": contracts.costs,
    "repeatable": contracts.repeatable,
    "resuming": contracts.resuming,
    "compiled": contracts.compiled,
    "absurd": contracts.absurd,
}


def battery(subject: Subject, chosen: Sequence[str] | None = None) -> Iterator[Verdict]:
    """Yield the verdicts of all laws, or of the chosen ones; a law whose code fails is a law that fails.

    Raises:
        UserError: a law that there is none of, or parts that do not go together.
    """
    for name in chosen or ():
        if name not in LAWS:
            raise UserError(f"There is no law '{name}'.{nearest(name, LAWS)} There are: {', '.join(LAWS)}.")
    for name in chosen or LAWS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield from LAWS[name](subject)
        except Refusal:
            raise
        except Exception as error:
            yield Verdict(name, FAILS, str(error) if isinstance(error, UserError) else blame(error))
