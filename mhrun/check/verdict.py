"""Verdicts of checks, and the statistics behind them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.floating]

HOLDS, FAILS, MEASURED, NONE = "holds", "fails", "measured", "does not apply"
NO_POWER = "no power"
NOT_PASSED = (FAILS, NO_POWER)

FALSE_ALARMS = 1e-4
"""The probability that any check of a suite fails for a correct kernel; divided by `COMPARISONS`, an upper bound."""
COMPARISONS = 50
ALPHA = FALSE_ALARMS / COMPARISONS
Z = float(stats.norm.isf(ALPHA / 2))  # standard errors


class Verdict(NamedTuple):
    """The outcome of a check, a sentence that explains it, and its statistic."""

    check: str
    outcome: str  # HOLDS, FAILS, NO_POWER, MEASURED or NONE
    detail: str
    statistic: float | None = None  # in standard errors, or a distance: see `detail`
    p: float | None = None


def unless_still(verdict: Verdict, moved: float, least: float, when: str) -> Verdict:
    """Return a verdict, or "no power" where it holds only because chains hardly move.

    Args:
        verdict: of a check that compares where chains are before and after.
        moved: how far they move, in standard deviations of the target.
        least: the distance from which an error would show.
        when: the moves that were measured.
    """
    if verdict.outcome != HOLDS or moved >= least:
        return verdict
    detail = (
        f"no power: chains move {moved:.2g} standard deviations {when}, an error shows from {least:g} on; "
        f"set a larger step_size ({verdict.detail})"
    )
    return verdict._replace(outcome=NO_POWER, detail=detail)


def distance(before: Array, after: Array, scale: Array | float) -> float:
    """Return the root mean square of moves (C, D) in units of scale (C, 1), in the coordinate that moves least."""
    if not len(before):
        return 0.0
    found: Array = np.sqrt(np.mean(((after - before) / scale) ** 2, axis=0))
    return float(found.min())


def by_uniforms(check_name: str, uniforms: Array, what: str, alpha: float = ALPHA) -> Verdict:
    """Judge whether each column of (C, k) is uniform: Kolmogorov-Smirnov distance, k comparisons in one."""
    if not uniforms.size:
        return Verdict(check_name, FAILS, f"{what}: there are no draws to judge")
    if not np.isfinite(uniforms).all():
        return Verdict(check_name, FAILS, f"{what}: draws are not finite")
    tests = [stats.kstest(column, "uniform") for column in uniforms.T]
    worst = min(tests, key=lambda test: test.pvalue)
    p = min(1.0, float(worst.pvalue) * len(tests))
    detail = f"{what}: KS distance {worst.statistic:.4f} in {len(uniforms):,} chains, p = {p:.2g}"
    return Verdict(check_name, HOLDS if p > alpha else FAILS, detail, float(worst.statistic), p)


def by_flows(
    check_name: str, before: npt.NDArray[np.intp], after: npt.NDArray[np.intp], bins: int, what: str
) -> Verdict:
    """Judge whether as many chains move from a bin to another as back: chi-squared over the pairs of bins."""
    counts = np.bincount(before * bins + after, minlength=bins**2).reshape(bins, bins).astype(float)
    there, back = counts[np.triu_indices(bins, 1)], counts.T[np.triu_indices(bins, 1)]
    kept = there + back >= 10
    if not kept.any():
        return Verdict(check_name, FAILS, f"{what}: no chain moves from one bin to another")
    square = float(((there - back)[kept] ** 2 / (there + back)[kept]).sum())
    p = float(stats.chi2.sf(square, kept.sum()))
    detail = f"{what}: {int(kept.sum())} pairs of bins, {int((there + back).sum()):,} moves, p = {p:.2g}"
    return Verdict(check_name, HOLDS if p > ALPHA else FAILS, detail, square, p)


def mean_and_error(by_chain: Array) -> tuple[float, float]:
    """Return the mean of independent chains (C,) and its standard error."""
    return float(by_chain.mean()), float(by_chain.std(ddof=1) / len(by_chain) ** 0.5)
