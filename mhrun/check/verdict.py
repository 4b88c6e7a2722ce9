"""Verdicts of checks, and the statistics behind them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.floating]

HOLDS, FAILS, MEASURED, NONE = "holds", "fails", "measured", "does not apply"

FALSE_ALARMS = 1e-4
"""The probability that any check of a suite fails for a correct kernel; divided by `COMPARISONS`, an upper bound."""
COMPARISONS = 50
ALPHA = FALSE_ALARMS / COMPARISONS
Z = float(stats.norm.isf(ALPHA / 2))  # standard errors


class Verdict(NamedTuple):
    """The outcome of a check, a sentence that explains it, and its statistic."""

    check: str
    outcome: str  # HOLDS, FAILS, MEASURED or NONE
    detail: str
    statistic: float | None = None  # in standard errors, or a distance: see `detail`
    p: float | None = None


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
