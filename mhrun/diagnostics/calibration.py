"""Scores of predicted class probabilities: Brier score, calibration error, separation of two data sets by entropy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.stats import rankdata
from torch import Tensor

BINS = 15
_MIN_LOG_P = -70.0  # a lower log-probability counts as this one
_MAX_LOG_TEMPERATURE = 5.0  # largest |log temperature|
_HALVINGS = 40


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
        rank = torch.empty_like(order).scatter_(
            1, order, torch.arange(n, device=order.device).expand_as(order)
        )
        where = rank * bins // n
    else:
        where = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(len(confidence), bins, dtype=torch.float64, device=confidence.device)
    return gap.scatter_add_(1, where, right - confidence).abs().sum(-1) / n


def auroc(high: Tensor, low: Tensor) -> Tensor:
    """Return P(one of high (C, n) > one of low (C, k)), (C,), ties counting half; NaN for a NaN.

    Of the entropies of data outside (`high`) and inside (`low`) of what was learnt, the area under the ROC curve of
    telling them apart.
    """
    ranks = rankdata(torch.cat([high, low], 1).cpu().numpy(), axis=1)
    n, k = high.shape[1], low.shape[1]
    return torch.from_numpy((ranks[:, :n].sum(1) - n * (n + 1) / 2) / (n * k)).to(high.device)


def false_positives(high: Tensor, low: Tensor, share: float = 0.95) -> Tensor:
    """Return the share (C,) of scores `high` (C, k) that are at most the `share` quantile of scores `low` (C, n).

    FPR95 for the entropies of data outside (`high`) and inside (`low`) of what was learnt: how many of those outside
    are taken for data inside by a threshold that takes 95 % of those inside.
    """
    n = low.shape[1]
    threshold = low.sort(-1).values[:, max(0, -int(-share * n // 1) - 1)]
    return (high <= threshold[:, None]).double().mean(-1)


class Scaled(NamedTuple):
    """Scores after temperature scaling, each (C,)."""

    temperature: Tensor  # mean of the two halves'
    nll: Tensor
    ece: Tensor


def best_temperature(log_p: Tensor, y: Tensor) -> Tensor:
    """Return tau (C,) whose softmax(log p / tau) has the least negative log-likelihood of the classes y (n,).

    In b = 1 / tau the function is convex, with the derivative mean(sum_k q_k log p_k - log p_y), q = softmax(b log p):
    its zero is found by bisection of log b, within [-5, 5] (Guo et al. 2017, section 4.2).
    """
    log_p = log_p.double().clamp_min(_MIN_LOG_P)
    of_class = log_p.gather(-1, y.long().expand(log_p.shape[:2])[..., None])[..., 0].mean(-1)
    low = torch.full_like(of_class, -_MAX_LOG_TEMPERATURE)
    high = -low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        q = (middle.exp()[:, None, None] * log_p).softmax(-1)
        too_sharp = (q * log_p).sum(-1).mean(-1) > of_class
        low, high = torch.where(too_sharp, low, middle), torch.where(too_sharp, middle, high)
    return (-(low + high) / 2).exp()


def temperature_scaled(log_p: Tensor, y: Tensor, bins: int = BINS) -> Scaled:
    """Return negative log-likelihood and calibration error of softmax(log p / tau), by test-time cross-validation.

    tau is fitted on the data of even number and scored on the others, then the other way round; scores are means of the
    two (Ashukha, Lyzhov, Molchanov & Vetrov 2020, section 3). So predictions are compared at their best temperature.

    Args:
        log_p: log-probabilities of the classes (C, n, K), n >= 2.
        y: classes (n,).
        bins: of the calibration error, of equal width.
    """
    folds = []
    for fitted in (0, 1):
        scored = 1 - fitted
        tau = best_temperature(log_p[:, fitted::2], y[fitted::2])
        held_out = log_p[:, scored::2].double().clamp_min(_MIN_LOG_P)
        log_q = (held_out / tau[:, None, None]).log_softmax(-1)
        labels = y[scored::2]
        nll = -log_q.gather(-1, labels.long().expand(log_q.shape[:2])[..., None])[..., 0].mean(-1)
        folds.append((tau, nll, calibration_error(log_q.exp(), labels, bins)))
    return Scaled(*((one + two) / 2 for one, two in zip(*folds, strict=True)))
