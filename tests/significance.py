"""Tools for tests that claim a distribution, with a stated false-alarm rate.

`SUITE` is the rate for one run of the whole suite. It is divided by the number of comparisons that all
the suite makes (`COMPARISONS`, an upper bound), so that each test's own threshold needs no care.
Seeds are fixed: a test that passes once passes always on the same code, and the rate is about the code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

SUITE = 1e-4
COMPARISONS = 2000
ALPHA = SUITE / COMPARISONS
Z = float(stats.norm.isf(ALPHA / 2))  # 5.45 standard errors

Array = npt.NDArray[np.floating]


def assert_mean(by_chain: Array, expected: float, what: str = "") -> None:
    """The mean over independent chains (C,) is `expected`: a t-test."""
    c = len(by_chain)
    se = by_chain.std(ddof=1) / np.sqrt(c)
    t = (by_chain.mean() - expected) / se
    limit = stats.t.isf(ALPHA / 2, c - 1)
    assert abs(t) < limit, f"{what}: {by_chain.mean():.6g} +- {se:.2g}, expected {expected:.6g} (t = {t:.1f})"


def differs_in_mean(by_chain: Array, expected: float) -> bool:
    """Whether `assert_mean` would fail: for negative controls."""
    try:
        assert_mean(by_chain, expected)
    except AssertionError:
        return True
    return False


def assert_counts(observed: Array, probability: Array, what: str = "") -> None:
    """Counts of independent draws against probabilities: Pearson's chi-squared."""
    expected = probability * observed.sum()
    p = stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue
    assert p > ALPHA, f"{what}: p = {p:.2g}"


def assert_cells(shares: Array, probability: Array, what: str = "") -> None:
    """The chains' mean shares (C, cells) are the cell probabilities: Hotelling-free, cell by cell.

    Each cell is a t-test over independent chains with Bonferroni's correction.
    """
    kept = probability > 1e-3
    c = len(shares)
    error = shares[:, kept].std(axis=0, ddof=1) / np.sqrt(c)
    t = np.abs(shares[:, kept].mean(axis=0) - probability[kept]) / np.maximum(error, 1e-12)
    limit = stats.t.isf(ALPHA / 2 / kept.sum(), c - 1)
    assert t.max() < limit, f"{what}: largest |t| = {t.max():.1f} in {kept.sum()} cells, limit {limit:.1f}"
