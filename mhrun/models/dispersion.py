"""Overdispersion of counts, by Pearson's statistic."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

ROWS = 100_000
"""Rows, evenly spaced, from which the statistic of a large table is computed."""

_DISPERSION = (
    1.5  # variance over mean from which counts are named; intervals are then a fifth too narrow or more
)


def dispersion_warnings(y: Tensor, mean: Tensor, parameters: float) -> Iterator[str]:
    """Yield a line on counts whose variance is clearly above the mean, by Pearson's statistic.

    chi^2 / (n - D) has mean 1 for Poisson counts, and variance (2 + mean of 1 / mean_i) / (n - D).

    Args:
        y: counts (n,).
        mean: fitted means (n,).
        parameters: D, the number of fitted ones; with a prior, the effective number.
    """
    free = len(y) - parameters
    if free < 1:
        return
    dispersion = float(((y - mean) ** 2 / mean).sum() / free)
    spread = float(((2 + 1 / mean).mean() / free) ** 0.5)
    if dispersion > max(_DISPERSION, 1 + 5 * spread):
        yield (
            f"the counts' variance is about {dispersion:.2g} times their mean: intervals of a Poisson regression are "
            f"about {dispersion**0.5:.2g} times too narrow; a negative binomial is in docs/questions.md"
        )
