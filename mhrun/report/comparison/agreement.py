"""Verdicts on whether the draws of a method agree with those of a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from mhrun.diagnostics.distances import Shifts
from mhrun.diagnostics.tails import HEAVY
from mhrun.report.efficiency import ESS, RHAT, is_apart
from mhrun.report.tables import shown

AGREES, DIFFERS, UNKNOWN, ANOTHER = "agrees", "differs", "cannot tell", "another distribution"
DIFFERS_SHORT = "differs (short run)"
REFERENCE = "reference"

# Probability that any method of a comparison differs, if all have the same distribution and Monte Carlo errors are
# normal. Of 1,200 pairs of 4 x 250 draws of three Gamma(0.1) coordinates, 2.2 % differed; of exponential ones 0.8 %.
FALSE_ALARM = 0.01
# Difference that must not go unseen: of a mean, in sd of the reference; of an sd, as log ratio.
RELEVANT = 0.25

# A run whose R-hat or ESS is past the usual limits still shows a difference of this many Monte Carlo errors, or 1.5
# times the limit if that is more, as long as R-hat and ESS of both sides are within wider limits. Of pairs of short
# runs with one distribution (two or four chains; AR(1), two modes with rare jumps, lognormal, a funnel), 3,663
# coordinates were within them and past the usual limits: two were off by five errors, none by six.
SHORT_LIMIT, SHORT_RHAT, SHORT_ESS = 6.0, 1.1, 100.0


class Agreement(NamedTuple):
    """The verdict on one method."""

    label: str  # AGREES, DIFFERS, DIFFERS_SHORT, UNKNOWN or ANOTHER
    why: str  # empty if it agrees


def critical_value(quantities: int) -> float:
    """Return z with P(max_k |Z_k| > z) <= `FALSE_ALARM` for so many standard normal Z_k (Bonferroni)."""
    return float(norm.isf(FALSE_ALARM / (2 * max(1, quantities))))


def short_limit_of(quantities: int) -> float:
    """Return the |z| of so many quantities beyond which short runs differ, see `SHORT_LIMIT`."""
    return max(SHORT_LIMIT, 1.5 * critical_value(quantities))


def agreement(
    found: Shifts,
    names: Sequence[str],
    limit: float,
    problems: Sequence[str],
    another: Sequence[str],
    *,
    short_limit: float = math.inf,
    tolerance: float | None = None,
) -> Agreement:
    """Return the verdict on one method.

    Each mean is off by z = shift / error, each standard deviation by z = log ratio / its error. The method differs if
    any |z| is above the limit, and agrees if none is and a difference of `RELEVANT` would be: limit * error <= it.
    Coordinates whose tails are too heavy for such errors (`mhrun.diagnostics.tails.HEAVY`) are not judged: the
    method differs by others, or there is no verdict.

    With a tolerance, the method agrees if every difference is within it, Monte Carlo error included: |shift| + limit *
    error <= tolerance. A difference that is significant and within the tolerance is then no reason to differ.

    Args:
        found: differences of means and ratios of standard deviations (D,), in units of the reference.
        names: of the D coordinates.
        limit: as `critical_value` returns it.
        problems: why the errors cannot be trusted, such as "R-hat 1.05"; then there is no verdict but for a difference
            beyond `short_limit`.
        another: what else than the method differs from the reference, such as "T = 5".
        short_limit: |z| of a difference that is seen in spite of problems.
        tolerance: difference that does not matter, as `RELEVANT`; None: any matters that is seen.
    """
    if another:
        return Agreement(ANOTHER, ", ".join(another))
    with np.errstate(invalid="ignore", divide="ignore"):
        offsets = np.concatenate([found.mean, np.log(found.spread)])
        errors = np.concatenate([found.mean_se, found.spread_se / found.spread])
        scores = np.abs(offsets) / errors
    heavy = np.tile(found.heavy, 2)
    scores[heavy] = 0.0
    if problems:
        worst = int(np.argmax(np.where(np.isfinite(scores), scores, 0.0)))
        if np.isfinite(scores[worst]) and scores[worst] > short_limit:
            difference = _difference(worst, found, names, float(scores[worst]))
            return Agreement(DIFFERS_SHORT, f"{difference}, in spite of {', '.join(problems)}")
        return Agreement(UNKNOWN, ", ".join(problems))
    if not np.isfinite(scores).all():
        worst = int(np.argmin(np.isfinite(scores)))
        return Agreement(UNKNOWN, f"{_quantity(worst, names)} has no Monte Carlo error")
    reach = limit * errors + (0.0 if tolerance is None else np.abs(offsets))
    reach[heavy] = 0.0
    widest = int(np.argmax(reach))
    is_near = reach[widest] <= (RELEVANT if tolerance is None else tolerance)
    worst = int(np.argmax(scores))
    if scores[worst] > limit and not (is_near and tolerance is not None):
        return Agreement(DIFFERS, _difference(worst, found, names, float(scores[worst])))
    if heavy.any():
        name = names[int(np.argmax(heavy))]
        return Agreement(
            UNKNOWN, f"the tails of {name} are too heavy for Monte Carlo errors of its mean and sd"
        )
    if not is_near:
        unseen = f"too few draws: {_quantity(widest, names)} could be off by {reach[widest]:.2f} sd unseen"
        return Agreement(UNKNOWN, unseen)
    return Agreement(AGREES, "")


def _quantity(index: int, names: Sequence[str]) -> str:
    return f"the {'mean' if index < len(names) else 'sd'} of {names[index % len(names)]}"


def _difference(index: int, shift: Shifts, names: Sequence[str], score: float) -> str:
    d = index % len(names)
    size = f"off by {shift.mean[d]:.2f} sd" if index < len(names) else f"{shift.spread[d]:.2f} times as large"
    return f"{_quantity(index, names)} is {size}, {score:.1f} Monte Carlo errors"


def problems_of(worth: Mapping[str, Any], whose: str = "") -> list[str]:
    """Return why the Monte Carlo errors of draws cannot be trusted, a few words each.

    Args:
        worth: R-hat and effective sample size of the draws: keys ``rhat`` and ``ess``.
        whose: prefix of each, such as "reference: ".
    """
    problems = []
    rhat, size = (math.nan if worth.get(key) is None else float(worth[key]) for key in ("rhat", "ess"))
    if math.isnan(rhat) or math.isnan(size):
        problems.append(f"{whose}R-hat is undefined")
    elif is_apart(rhat):
        problems.append(f"{whose}R-hat {shown(rhat)}")
    if size < ESS:
        problems.append(f"{whose}ESS {shown(size)}")
    return problems


def is_usable(worth: Mapping[str, Any]) -> bool:
    """Return whether Monte Carlo errors can be trusted for a very large difference: R-hat and ESS are not far off."""
    rhat, size = (math.nan if worth.get(key) is None else float(worth[key]) for key in ("rhat", "ess"))
    return rhat <= SHORT_RHAT and size >= SHORT_ESS


def rule_of(
    methods: int,
    coordinates: int,
    limit: float,
    of: str,
    short_limit: float = SHORT_LIMIT,
    tolerance: float | None = None,
) -> str:
    """Return the rule of the verdicts as text.

    Args:
        methods: that are judged; the rest cannot be, or have another distribution.
        coordinates: of each.
        limit: in Monte Carlo errors.
        of: the reference.
        short_limit: as `short_limit_of` returns it.
        tolerance: see `agreement`.
    """
    if tolerance is None:
        agrees, beyond = f"none is, and a difference of {RELEVANT:g} sd would have been seen", ""
    else:
        agrees = f"every difference is below {tolerance:g} sd, {limit:.1f} Monte Carlo errors included"
        beyond = ", and may be more than the tolerance"
    count = f" of {methods:,} method{'s' * (methods != 1)}" if methods else ""
    return (
        f"Means and standard deviations of {coordinates:,} coordinate{'s' * (coordinates != 1)}{count} against {of}. "
        f"differs: at least one is more than {limit:.1f} Monte Carlo errors off{beyond}; if all methods "
        f"sample the same distribution, the probability of any such verdict is at most {FALSE_ALARM:g}, or "
        f"about {2 * FALSE_ALARM:g} with a few hundred draws of a very skewed posterior. "
        f"agrees: {agrees}. cannot tell: R-hat above {RHAT:g} or ESS below {ESS:g} on either side, "
        "errors too large to see such a difference, or tails too heavy for errors "
        f"(tail index above {HEAVY:g}). differs (short run): so, but a difference is more than {short_limit:.1f} "
        "Monte Carlo errors, and R-hat is at most "
        f"{SHORT_RHAT:g} and ESS at least {SHORT_ESS:g} on both sides. another distribution: the temperature, the "
        "model or the data are not the reference's"
    )


class Verdicts(NamedTuple):
    """The verdicts of a comparison, and how they were found."""

    by_method: dict[str, Agreement]
    rule: str  # in words
    limit: float  # in Monte Carlo errors
    judged: int  # methods that share the false-alarm probability


def judge(
    found: Mapping[str, Shifts],
    names: Sequence[str],
    worths: Mapping[str, Mapping[str, Any]],
    reference: str,
    of_reference: Mapping[str, Any],
    another: Mapping[str, Sequence[str]],
    tolerance: float | None = None,
) -> Verdicts:
    """Return the verdict of each method against the reference.

    The false-alarm probability is shared by all quantities of the methods that can be judged.

    Args:
        found: method -> differences from the reference.
        names: of the coordinates.
        worths: method -> R-hat and effective sample size of its draws, see `problems_of`.
        reference: its name.
        of_reference: R-hat and effective sample size of its draws.
        another: method -> what else than the method differs from the reference.
        tolerance: see `agreement`.
    """
    reference_problems = problems_of(of_reference, "reference: ")
    problems = {name: [*problems_of(worths[name]), *reference_problems] for name in found}
    judged = [name for name in found if not problems[name] and not another.get(name)]
    limit = critical_value(2 * len(names) * max(1, len(judged)))
    short_limit = short_limit_of(2 * len(names) * max(1, len(found)))
    verdicts = {
        name: agreement(
            shift,
            names,
            limit,
            problems[name],
            another.get(name, ()),
            short_limit=short_limit if is_usable(worths[name]) and is_usable(of_reference) else math.inf,
            tolerance=tolerance,
        )
        for name, shift in found.items()
    }
    rule = rule_of(len(judged), len(names), limit, reference, short_limit, tolerance)
    return Verdicts(verdicts, rule, limit, len(judged))
