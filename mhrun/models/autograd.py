"""Gradients by automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mhrun.errors import UserError


def log_lik_and_grad(
    log_lik: Callable[[Tensor], Tensor], theta: Tensor, ignores_theta: Callable[[], bool] | None = None
) -> tuple[Tensor, Tensor]:
    """Return log-likelihoods (C, m) at theta (C, D) and the gradient (C, D) of their mean.

    Args:
        log_lik: the function of theta.
        theta: where it is evaluated.
        ignores_theta: returns whether the function depends on no parameter, so that its gradient is 0; called where
            torch has no gradient. None: it is unknown.

    Raises:
        UserError: the log-likelihood does not depend on theta in a way that can be differentiated.
    """
    with torch.enable_grad():
        point = theta.detach().requires_grad_()
        value = log_lik(point)
        if not value.requires_grad:
            if ignores_theta is not None and ignores_theta():
                return value, torch.zeros_like(theta)
            raise UserError(
                "log_lik has no gradient with respect to theta: use torch operations throughout, without detach, "
                "item, NumPy or conversion to integers."
            )
        (grad,) = torch.autograd.grad(value.mean(-1).sum(), point)
    return value.detach(), grad.contiguous()  # autograd may return one number for many parameters


def log_prior_grad(log_prior: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor | None:
    """Return the gradient (C, D) of a log-prior (C,) at theta (C, D), or None if it does not depend on theta."""
    with torch.enable_grad():
        point = theta.detach().requires_grad_()
        value = log_prior(point)
        if not value.requires_grad:
            return None
        (grad,) = torch.autograd.grad(value.sum(), point)
    gradient: Tensor = grad
    return gradient
