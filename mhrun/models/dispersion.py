"""Overdispersion of counts and of successes in trials, by Pearson's statistic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from mhrun.types import Rows

ROWS = 100_000
"""Rows, evenly spaced, from which the statistic of a large table is computed."""
DRAWS = 200
"""Draws, evenly spaced, by which the fit of a model is judged."""

# Times the model's variance from which a line is yielded; intervals are a fifth too narrow or more
_DISPERSION = 1.5


def regression_dispersion_warnings(
    outcome_mean: Callable[[Tensor, Rows], Tensor], draws: Tensor, data: Rows, *, trials: str | None = None
) -> list[str]:
    """Return a line if the variance of counts ``y`` is clearly above that of a regression at the mean of draws (K, D).

    `outcome_mean` is that of the regression; `trials` is the field of the trials, None for Poisson counts.
    """
    stride = -(-len(data["y"]) // ROWS)
    rows = {name: field[::stride][None] for name, field in data.items()}
    mean = outcome_mean(draws.mean(0, keepdim=True), rows)[0]
    of_trials = None if trials is None else rows[trials][0]
    return list(dispersion_warnings(rows["y"][0], mean, draws.shape[1], of_trials))


def posterior_dispersion_warnings(
    y: Tensor, means: Iterable[Tensor], trials: Tensor | None = None
) -> Iterator[str]:
    """Yield a line on counts whose variance is clearly above that of the model, at the posterior mean of their mean.

    The effective number of parameters is the sum of the posterior variances of the means, each over the variance of
    its count: the trace of the hat matrix. Effects of groups that the prior shrinks count by what the data determine
    of them.

    Args:
        y: counts (n,).
        means: of the counts (n,) at two draws of the posterior or more.
        trials: of which the counts are the successes (n,); None for Poisson counts.
    """
    count = 0
    total = squares = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    for mean in means:
        count, total, squares = count + 1, total + mean.double(), squares + mean.double() ** 2
    mean = total / count
    of_mean, of_count = (squares - count * mean**2) / (count - 1), _variance(mean, trials)
    some = of_count > 0
    yield from dispersion_warnings(y, mean, float((of_mean[some] / of_count[some]).sum()), trials)


def dispersion_warnings(
    y: Tensor, mean: Tensor, parameters: float, trials: Tensor | None = None
) -> Iterator[str]:
    """Yield a line on counts whose variance is clearly above that of the model, by Pearson's statistic.

    With v_i = mean_i for Poisson counts and mean_i (1 - p_i), p_i = mean_i / trials_i, for successes, chi^2 / (n - D)
    = sum (y_i - mean_i)^2 / v_i / (n - D) has mean 1 if the model is right, and its variance is the mean of
    2 + (1 - 6 p_i (1 - p_i)) / v_i, over n - D; p_i = 0 for Poisson counts.

    Args:
        y: counts (n,).
        mean: fitted means (n,).
        parameters: D, the number of fitted ones; with a prior, the effective number.
        trials: of which the counts are the successes (n,); None for Poisson counts.
    """
    y, mean, variance = y.double(), mean.double(), _variance(mean.double(), trials)
    chance = torch.zeros_like(mean) if trials is None else mean / trials.double()
    some = variance > 0  # a count whose mean is 0 at all draws, as a structural zero, has no share
    y, mean, variance, chance = y[some], mean[some], variance[some], chance[some]
    free = len(y) - parameters
    if free < 1:
        return
    dispersion = float(((y - mean) ** 2 / variance).sum() / free)
    spread = float(((2 + (1 - 6 * chance * (1 - chance)) / variance).mean() / free) ** 0.5)
    if dispersion <= max(_DISPERSION, 1 + 5 * spread):
        return
    if trials is None:
        yield (
            f"the counts' variance is about {dispersion:.2g} times their mean: intervals of a Poisson regression are "
            f"about {dispersion**0.5:.2g} times too narrow; a negative binomial is in docs/questions.md"
        )
    else:
        yield (
            f"the variance of the successes is about {dispersion:.2g} times that of a binomial distribution: intervals "
            f"of a binomial regression are about {dispersion**0.5:.2g} times too narrow; a beta-binomial is in "
            "docs/questions.md"
        )


def _variance(mean: Tensor, trials: Tensor | None) -> Tensor:
    """Return the variance of counts with these means (n,)."""
    return mean if trials is None else mean * (1 - mean / trials.double())
