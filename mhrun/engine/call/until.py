"""More steps until the draws of a call have an effective sample size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mhrun.diagnostics.chains import RHAT, diagnoses, is_apart
from mhrun.engine.diagnosis.judged_draws import JudgedDraws, judged_draws
from mhrun.engine.longer import reason_to_begin_anew
from mhrun.engine.method import Method
from mhrun.engine.warnings.run import stopped_count
from mhrun.errors import UserError
from mhrun.numbers import is_number, rounded, whole_number
from mhrun.store.longer import can_go_on
from mhrun.store.netcdf import open_trace

_MAX_STEPS_FACTOR = 32  # as many steps as at first, at most, where nothing else is given
_MIN_GROWTH, _MAX_GROWTH = 1.5, 4.0  # as many steps as before, in one turn
_SPARE = 1.2  # times the steps that would do if ESS were proportional to them, because it varies
_GROWTH = 2.0  # as many, where chains have not converged


class Until(NamedTuple):
    """When a call has enough steps."""

    ess: float  # of each coordinate, bulk and tail
    most: int  # steps after burn-in

    def more(self, method: Method, summary: Mapping[str, Any], folder: Path) -> More | None:
        """Return how the call in a folder goes on; None if its steps do, or no others are allowed or would help."""
        if stopped_count(method, summary) or not can_go_on(folder):
            return None
        with open_trace(folder) as trace:
            found = precision_of(judged_draws(method, trace))
        steps = self.next_steps(method.shape.steps, found)
        return None if steps is None else More(found, method.shape.steps, steps)

    def next_steps(self, steps: int, found: Precision) -> int | None:
        """Return how many steps to do in all after so many, or None if these do or are the most."""
        if steps >= self.most or found.has(self.ess):
            return None
        is_known = found.ess > 0 and not is_apart(found.rhat)
        factor = min(max(_SPARE * self.ess / found.ess, _MIN_GROWTH), _MAX_GROWTH) if is_known else _GROWTH
        return min(self.most, math.ceil(factor * steps))

    def ess_warnings(self, method: Method, judged: JudgedDraws | None) -> Iterator[str]:
        """Yield a line if a call ends without the effective sample size."""
        found = precision_of(judged)
        if not found.has(self.ess):
            yield (
                f"ess = {rounded(self.ess)} with R-hat below {RHAT:g} is not reached in {method.shape.steps:,} steps: "
                f"{found.in_words()}. "
                f"Raise {'max_steps' if method.shape.steps == self.most else 'steps'}, or choose another method or "
                "step size where chains do not converge."
            )


class Precision(NamedTuple):
    """The smallest effective sample size of any coordinate, bulk or tail, and the largest R-hat."""

    ess: float  # 0 if a coordinate never moves, or draws are too few
    rhat: float

    def has(self, ess: float) -> bool:
        """Return whether chains agree and every coordinate has this effective sample size."""
        return self.ess >= ess and not is_apart(self.rhat)

    def in_words(self) -> str:
        """Return both as words."""
        return f"ESS is {self.ess:.3g}" + (f", R-hat {self.rhat:.4g}" if self.rhat > RHAT else "")


class More(NamedTuple):
    """How a call goes on."""

    found: Precision
    before: int  # steps that were done
    steps: int  # in all

    def in_words(self) -> str:
        """Return it as a line."""
        return f"{self.found.in_words()} after {self.before:,} steps; going on to {self.steps:,}."


def precision_of(judged: JudgedDraws | None) -> Precision:
    """Return the precision of draws."""
    if judged is None or not judged.can_be_judged:
        return Precision(0.0, math.nan)
    by_coordinate = diagnoses(judged.values)
    sizes = np.nan_to_num([[one.ess, one.ess_tail] for one in by_coordinate])
    rhats = np.nan_to_num([one.rhat for one in by_coordinate])
    return Precision(float(sizes.min()), float(rhats.max()))


def until_of(ess: float | None, max_steps: int | None, steps: int, thin: int | None) -> Until | None:
    """Return when a call has enough steps, from its settings; None if it ends after `steps`.

    Raises:
        UserError: a setting is invalid.
    """
    if ess is None:
        if max_steps is not None:
            raise UserError(f"max_steps = {max_steps} limits a call with ess=; without it, give steps.")
        return None
    if not is_number(ess) or not 0 < ess < math.inf:
        raise UserError(f"ess = {ess!r} must be a positive number, such as 400, or None.")
    if thin is None:
        raise UserError("ess= judges draws, and thin=None keeps none; give thin a number.")
    most = _MAX_STEPS_FACTOR * steps if max_steps is None else whole_number("max_steps", max_steps, steps)
    return Until(float(ess), most)


def check_goes_on(method: Method, steps: int) -> None:
    """Refuse a method whose first steps depend on their number.

    Args:
        method: with the largest number of steps.
        steps: the number that it begins with.

    Raises:
        UserError: they do, or it has no draws.
    """
    if method.kernel.optimises:
        raise UserError("ess= judges draws, and an optimiser has none; give steps.")
    if (reason := reason_to_begin_anew(method, steps)) is not None:
        raise UserError(
            f"ess= raises the number of steps as a run goes on, and {reason}; give steps instead."
        )
