"""Overdispersion of counts, by Pearson's statistic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

ROWS = 100_000
"""Rows, evenly spaced, from which the statistic of a large table is computed."""
DRAWS = 200
"""Draws, evenly spaced, by which the fit of a model is judged."""

_DISPERSION = (
    1.5  # variance over mean from which counts are named; intervals are then a fifth too narrow or more
)


def posterior_dispersion_warnings(y: Tensor, means: Iterable[Tensor]) -> Iterator[str]:
    """Yield a line on counts whose variance is clearly above the posterior mean of their mean.

    The effective number of parameters is the sum of the posterior variances of the means, each over its mean: the
    trace of the hat matrix. Effects of groups that the prior shrinks count by what the data determine of them.

    Args:
        y: counts (n,).
        means: of the counts (n,) at two draws of the posterior or more.
    """
    count = 0
    total = squares = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    for mean in means:
        count, total, squares = count + 1, total + mean.double(), squares + mean.double() ** 2
    mean = total / count
    variance = (squares - count * mean**2) / (count - 1)
    some = mean > 0  # a count whose mean is 0 in all draws, as a structural zero, has no share
    y, mean, variance = y.double()[some], mean[some], variance[some]
    yield from dispersion_warnings(y, mean, float((variance / mean).sum()))


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
