"""Weights that combine the samples of several cycles, and how reliable they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from mhrun.array_types import FloatArray
from mhrun.diagnostics.chains import ess_of_chain

ERROR = 0.2  # relative standard error of an estimate above which its weight is in doubt
SHARE = 0.1  # share of an estimate due to one sample, above which it is in doubt
TAIL = 0.7  # index of the tail of 1/p, above which it is in doubt (Vehtari et al. 2024); above 0.5 it has no variance
ALONE = 0.9  # weight of one cycle above which the others hardly count


class CycleWeights(NamedTuple):
    """Harmonic-mean weights of M cycles, and what their reliability depends on.

    ``log_estimate`` estimates log(Z_i / prior(Theta_i)), Z_i being what cycle i's region Theta_i adds to the
    evidence: *not* log Z_i. The weights are right only between regions that the prior holds alike.
    """

    weights: FloatArray  # (M,), they sum to 1
    log_estimate: FloatArray  # (M,)
    relative_error: FloatArray  # (M,), standard error over estimate; too small wherever `tail` is above 0.5
    largest_share: FloatArray  # (M,), share of the estimate due to its largest sample
    tail: FloatArray  # (M,), Pareto's k of 1/p; NaN with too few samples

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons not to trust the weights, one line each; empty if there is none."""
        reasons = []
        if not np.isfinite(self.log_estimate).all():
            reasons.append("a log-likelihood is not finite")
        if (self.relative_error > ERROR).any():
            reasons.append(
                f"relative error up to {np.nanmax(self.relative_error):.2g}: the likelihoods differ too much"
            )
        if (self.largest_share > SHARE).any():
            reasons.append(f"one sample makes up {np.nanmax(self.largest_share):.0%} of a cycle's estimate")
        if (self.tail > TAIL).any():
            reasons.append(
                f"1/p(D | theta) has a tail of index {np.nanmax(self.tail):.2f}: no variance, or no mean"
            )
        if len(self.weights) > 1 and self.weights.max() > ALONE:
            reasons.append(f"one cycle has {self.weights.max():.0%} of the weight")
        return tuple(reasons)


def equal(cycles: int) -> FloatArray:
    """Return equal weights (M,), as Zhang et al. (2020) use for networks."""
    return np.full(cycles, 1 / cycles)


def harmonic(log_likelihoods: Sequence[FloatArray]) -> CycleWeights:
    """Return weights by the harmonic mean of the likelihood (Zhang et al. 2020, eq. 4), all in logarithms.

    w_i is proportional to 1 / mean_j 1/p(D | theta_ij). The mean of 1/p under the posterior of a region Theta_i is
    prior(Theta_i) / Z_i, if it has one: for a prior much wider than the likelihood its variance is infinite, and the
    estimate is that of the few worst samples (Newton & Raftery 1994). Nothing can overflow.

    Args:
        log_likelihoods: for each cycle log p(D | theta) of its samples (n_i,), in time order.

    Raises:
        ValueError: no cycle, or a cycle without samples.
    """
    if not log_likelihoods or min(map(len, log_likelihoods)) == 0:
        raise ValueError("harmonic means need at least one cycle, and at least one sample of each.")
    per_cycle = [_one(np.asarray(values, dtype=np.float64)) for values in log_likelihoods]
    log_estimate, error, share, tail = (np.array(column) for column in zip(*per_cycle, strict=True))
    return CycleWeights(np.exp(log_estimate - logsumexp(log_estimate)), log_estimate, error, share, tail)


def combined(values: Sequence[FloatArray], weights: FloatArray) -> FloatArray:
    """Return sum_i w_i mean_j f(theta_ij), for f (n_i, ...) of each cycle: (...)."""
    return np.einsum("i,i...->...", weights, np.stack([np.mean(of_cycle, axis=0) for of_cycle in values]))


def _one(log_lik: FloatArray) -> tuple[float, float, float, float]:
    """Return log estimate, relative error, largest share and tail of one cycle."""
    total = logsumexp(-log_lik)
    with np.errstate(invalid="ignore"):
        inverse = np.exp(-log_lik - total)  # shares of the sum
    n = len(inverse)
    if not np.isfinite(log_lik).all():
        return float(np.log(n) - total), float("nan"), float("nan"), float("nan")
    spread = float(np.sqrt(np.mean((n * inverse - 1) ** 2)))
    effective = float(ess_of_chain(inverse)) if np.ptp(inverse) > 0 else float(n)
    error = spread / np.sqrt(effective) if n > 1 else float("nan")
    return float(np.log(n) - total), float(error), float(inverse.max()), _tail(log_lik)


def _tail(log_lik: FloatArray) -> float:
    """Return Pareto's k of the largest values of 1/p, fitted as for importance weights; NaN if there is no tail."""
    from arviz_stats.base.array import array_stats

    if len(log_lik) < 25 or not np.isfinite(log_lik).all():
        return float("nan")
    try:
        return float(array_stats.psislw(log_lik)[1])  # of the ratios exp(-log_lik)
    except ValueError:  # the largest are all equal
        return float("nan")
