"""Likelihoods of a class given the outputs of a network, with their gradients.

Each is a function ``(logits (C, m, K), y (C or 1, m)) -> (log-likelihood (C, m), gradient by the logits (C, m, K))``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

LogLikelihood = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

LOWEST, HIGHEST = 1e-10, 0.9999999  # as the RSGLD code clips probabilities


def categorical(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y with p the softmax of the outputs."""
    log_p = torch.log_softmax(logits, -1)
    at = y.long().expand(logits.shape[:2])[..., None]
    grad = log_p.exp().neg_()
    grad.scatter_add_(-1, at, torch.ones_like(at, dtype=grad.dtype))
    return log_p.gather(-1, at)[..., 0], grad


def clipped_binary(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y + sum over the other classes of log(1 - p), probabilities clipped to [1e-10, 0.9999999].

    This is the loss of the RSGLD code and not a likelihood of the class. Near p = 1 the derivative of log(1 - p)
    exceeds the resolution of float32, which explains why their large learning rates fail.
    """
    p = torch.softmax(logits, -1)
    inside = (p >= LOWEST) & (p <= HIGHEST)
    clipped = p.clamp(LOWEST, HIGHEST)
    right = torch.zeros_like(p).scatter_(-1, y.long().expand(logits.shape[:2])[..., None], 1.0)
    value = (right * clipped.log() + (1 - right) * (1 - clipped).log()).sum(-1)
    grad = torch.where(inside, right / clipped - (1 - right) / (1 - clipped), 0.0)
    return value, p * (grad - (p * grad).sum(-1, keepdim=True))


LIKELIHOODS: Mapping[str, LogLikelihood] = {"categorical": categorical, "clipped_binary": clipped_binary}
