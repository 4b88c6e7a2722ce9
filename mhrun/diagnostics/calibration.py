"""Scores of predicted class probabilities: Brier score, calibration error, false positives far from the data."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15


def brier(probability: Tensor, y: Tensor) -> Tensor:
    """Return mean over data of sum_k (p_k - [y = k])^2, (C,), from probabilities (C, n, K) and classes (n,).

    Brier 1950: 0 for certain and right predictions, 2 at most.
    """
    of_class = probability.gather(-1, y.long().expand(probability.shape[:2])[..., None])[..., 0]
    return (probability.square().sum(-1) - 2 * of_class + 1).mean(-1)


def calibration_error(probability: Tensor, y: Tensor, bins: int = BINS, equal_mass: bool = False) -> Tensor:
    """Return the expected calibration error sum_b n_b / n |accuracy_b - mean confidence_b|, (C,).

    The confidence of a datum is its largest class probability. A datum is in exactly one bin:

    - of equal width, ((b - 1) / B, b / B] (Guo et al. 2017);
    - of equal mass: data in the order of their confidence, cut into `bins` parts whose sizes differ by at most one.

    Args:
        probability: class probabilities (C, n, K).
        y: classes (n,).
        bins: B.
        equal_mass: which of the two.
    """
    confidence, predicted = probability.double().max(-1)
    right = (predicted == y).double()
    n = confidence.shape[1]
    if equal_mass:
        order = confidence.argsort(dim=-1, stable=True)
        place = torch.empty_like(order).scatter_(
            1, order, torch.arange(n, device=order.device).expand_as(order)
        )
        where = place * bins // n
    else:
        where = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(len(confidence), bins, dtype=torch.float64, device=confidence.device)
    return gap.scatter_add_(1, where, right - confidence).abs().sum(-1) / n


def false_positives(high: Tensor, low: Tensor, share: float = 0.95) -> Tensor:
    """Return the share (C,) of scores `high` (C, k) that are at most the `share` quantile of scores `low` (C, n).

    FPR95 for the entropies of data outside (`high`) and inside (`low`) of what was learnt: how many of those outside
    are taken for data inside by a threshold that takes 95 % of those inside.
    """
    n = low.shape[1]
    threshold = low.sort(-1).values[:, max(0, -int(-share * n // 1) - 1)]
    return (high <= threshold[:, None]).double().mean(-1)
