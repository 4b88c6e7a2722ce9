"""Results of checks, and the statistics behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from mhrun.array_types import FloatArray

HOLDS, FAILS, MEASURED, NONE = "holds", "fails", "measured", "does not apply"
NO_POWER = "no power"
NOT_PASSED = (FAILS, NO_POWER)

FALSE_ALARMS = 1e-4
"""The probability that any check of a suite fails for a correct kernel; divided by `COMPARISONS`, an upper bound."""
COMPARISONS = 50
ALPHA = FALSE_ALARMS / COMPARISONS / 2
"""A p up to which a check fails at once."""
DOUBTFUL = (FALSE_ALARMS / COMPARISONS / 2) ** 0.5
"""A p up to which a check is repeated, with new random numbers and more chains; up to it again, it fails."""
REPEATED = 5
"""How many times as many chains the repetition has."""
Z = float(stats.norm.isf(ALPHA / 2))  # standard errors


class CheckResult(NamedTuple):
    """The outcome of a check, a sentence that explains it, and its statistic."""

    check: str
    outcome: str  # HOLDS, FAILS, NO_POWER, MEASURED or NONE
    detail: str
    statistic: float | None = None  # in standard errors, or a distance: see `detail`
    p: float | None = None
    unseen: float | None = None  # the relative error of the variance up to which the check is likely to hold
    crashed: bool = False  # whether it fails because the check raised an error, which `detail` is


def unless_still(result: CheckResult, moved: float, least: float, when: str) -> CheckResult:
    """Return a result, or "no power" if the check holds only because the chains barely move.

    Args:
        result: of a check that compares where chains are before and after.
        moved: how far they move, in standard deviations of the target.
        least: the distance from which an error would show.
        when: the moves that were measured.
    """
    if result.outcome != HOLDS or moved >= least:
        return result
    detail = (
        f"chains move {moved:.2g} standard deviations {when}, an error shows from {least:g} on; set a larger step_size "
        f"({result.detail})"
        if moved
        else f"a coordinate never moves {when} ({result.detail})"
    )
    return result._replace(outcome=NO_POWER, detail=detail)


def distance(before: FloatArray, after: FloatArray, scale: FloatArray | float) -> float:
    """Return the root mean square of moves (C, D) in units of scale (C, 1), in the coordinate that moves least."""
    if not len(before):
        return 0.0
    moves: FloatArray = np.sqrt(np.mean(((after - before) / scale) ** 2, axis=0))
    return float(moves.min())


def by_uniforms(check_name: str, uniforms: FloatArray, what: str, alpha: float = ALPHA) -> CheckResult:
    """Judge whether each column of (C, k) is uniform: Kolmogorov-Smirnov distance, k comparisons in one."""
    if not uniforms.size:
        return CheckResult(check_name, FAILS, f"{what}: there are no draws to judge")
    if not np.isfinite(uniforms).all():
        return CheckResult(check_name, FAILS, f"{what}: draws are not finite")
    tests = [stats.kstest(column, "uniform") for column in uniforms.T]
    worst = min(tests, key=lambda test: test.pvalue)
    p = min(1.0, float(worst.pvalue) * len(tests))
    detail = f"{what}: KS distance {worst.statistic:.4f} in {len(uniforms):,} chains, p = {p:.2g}"
    return CheckResult(check_name, HOLDS if p > alpha else FAILS, detail, float(worst.statistic), p)


def by_paths(check_name: str, paths: Sequence[FloatArray], what: str) -> CheckResult:
    """Judge whether draws along paths are uniform: their ends by Kolmogorov-Smirnov, their normal scores by moments.

    The normal score of a uniform u is the z of which u is the probability below. Its mean and mean square over a path
    are averaged over chains, which sees a wrong variance of a few per cent where the test of the ends sees tens.

    Args:
        check_name: of the result.
        paths: groups of chains, each (S, C, k); all k columns of all groups are judged together.
        what: text before the statistics.
    """
    ends = np.column_stack([path[-1] for path in paths])
    of_ends = by_uniforms(check_name, ends, what)
    if of_ends.p is None:
        return of_ends
    judged, errors = [], []
    for path in paths:
        scores = special.ndtri(path.clip(1e-15, 1 - 1e-15))
        for k in range(path.shape[2]):
            for name, values, value in (("mean", scores, 0.0), ("variance", scores**2, 1.0)):
                average, error = mean_and_error(values[..., k].mean(axis=0))
                judged.append((abs(average - value) / max(error, 1e-300), name, average, error))
                if name == "variance":
                    errors.append(error)
    deviation, name, average, error = max(judged)
    by_moments = float(2 * stats.norm.sf(deviation)) * len(judged)
    p = min(1.0, 2 * min(of_ends.p, by_moments))  # of two tests
    detail = (
        f"{what}: KS distance {of_ends.statistic:.4f} in {ends.shape[0]:,} chains, {name} of scores {average:.3f} ± "
        f"{error:.3f}, p = {p:.2g}"
    )
    limit = float(stats.norm.isf(DOUBTFUL / (4 * len(judged))))  # standard errors from which it is repeated
    unseen = limit * min(errors)
    return CheckResult(check_name, HOLDS if p > ALPHA else FAILS, detail, of_ends.statistic, p, unseen)


def by_excess(
    check_name: str, detail: str, excess: float, statistics: int, error: float, tolerated: float
) -> CheckResult:
    """Judge how far the worst of some statistics is beyond what is tolerated, in standard errors.

    Args:
        check_name: of the result.
        detail: what was found.
        excess: of the statistic that is furthest off.
        statistics: how many there are.
        error: the standard error of the variance.
        tolerated: the error of the variance that is tolerated.
    """
    p = min(1.0, statistics * 2 * float(stats.norm.sf(excess)))
    unseen = tolerated + float(stats.norm.isf(DOUBTFUL / (2 * statistics))) * error
    return CheckResult(check_name, HOLDS if p > ALPHA else FAILS, detail, excess, p, unseen)


def after_repetition(first: CheckResult, again: CheckResult) -> CheckResult:
    """Return the result of a doubtful check and its repetition with more chains."""
    if again.p is None:
        return again
    detail = f"{first.detail}; repeated with {REPEATED} times as many chains: {again.detail}"
    fails = again.outcome == FAILS or again.p <= DOUBTFUL
    return again._replace(detail=detail, outcome=FAILS if fails else again.outcome)


def by_flows(
    check_name: str, before: npt.NDArray[np.intp], after: npt.NDArray[np.intp], bins: int, what: str
) -> CheckResult:
    """Judge whether as many chains move from a bin to another as back: chi-squared over the pairs of bins."""
    counts = np.bincount(before * bins + after, minlength=bins**2).reshape(bins, bins).astype(float)
    forward, backward = counts[np.triu_indices(bins, 1)], counts.T[np.triu_indices(bins, 1)]
    kept = forward + backward >= 10
    if not kept.any():
        return CheckResult(check_name, NO_POWER, f"{what}: no chain moves from one bin to another")
    square = float(((forward - backward)[kept] ** 2 / (forward + backward)[kept]).sum())
    p = float(stats.chi2.sf(square, kept.sum()))
    detail = (
        f"{what}: {int(kept.sum())} pairs of bins, {int((forward + backward).sum()):,} moves, p = {p:.2g}"
    )
    return CheckResult(check_name, HOLDS if p > ALPHA else FAILS, detail, square, p)


def mean_and_error(by_chain: FloatArray) -> tuple[float, float]:
    """Return the mean of independent chains (C,) and its standard error."""
    return float(by_chain.mean()), float(by_chain.std(ddof=1) / len(by_chain) ** 0.5)
