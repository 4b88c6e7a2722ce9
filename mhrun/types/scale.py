"""Scaled coordinates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mhrun.errors import Refusal


class Scale:
    """theta = center + S phi: the linear map from scaled coordinates phi to parameters theta.

    With S S^T the covariance of the posterior, phi has unit variance in every direction.

    Args:
        center: (D,).
        factor: S, its diagonal (D,) or a lower triangular matrix (D, D).

    Raises:
        Refusal: a factor that is not finite, or not invertible.
    """

    def __init__(self, center: Tensor, factor: Tensor) -> None:
        self.center = center.double()
        self.factor = factor.double()
        self.dense = factor.dim() == 2
        diagonal = self.factor.diagonal() if self.dense else self.factor
        if not bool(self.factor.isfinite().all()) or not bool((diagonal > 0).all()):
            raise Refusal("the scale of a preconditioner must be finite, with a positive diagonal.")
        self.inverse = (
            torch.linalg.solve_triangular(
                self.factor, torch.eye(len(self.factor), dtype=torch.float64), upper=False
            )
            if self.dense
            else 1 / self.factor
        )

    @property
    def metric(self) -> Tensor:
        """S^T S (D, D): the covariance in scaled coordinates of gradient noise with the identity as its covariance."""
        return self.factor.T @ self.factor if self.dense else torch.diag(self.factor**2)

    @property
    def condition(self) -> float:
        """The largest over the smallest eigenvalue of S S^T."""
        singular_values = (
            torch.linalg.svdvals(self.factor) if self.dense else self.factor.sort(descending=True).values
        )
        return float((singular_values[0] / singular_values[-1]) ** 2)

    def to_phi(self, theta: Tensor) -> Tensor:
        """Return phi (C, D) of theta (C, D)."""
        offset = theta - self.center.to(theta)
        return offset @ self.inverse.to(theta).T if self.dense else offset * self.inverse.to(theta)

    def to_theta(self, phi: Tensor) -> Tensor:
        """Return theta (C, D) of phi (C, D)."""
        factor = self.factor.to(phi)
        return self.center.to(phi) + (phi @ factor.T if self.dense else phi * factor)

    def pull(self, grad: Tensor) -> Tensor:
        """Return the gradient with respect to phi (C, D) of one with respect to theta (C, D): S^T grad."""
        factor = self.factor.to(grad)
        return grad @ factor if self.dense else grad * factor

    def native(self, own: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a compiled piece that wraps one with the arguments `own`."""
        arrays = (self.center.numpy(), self.factor.contiguous().numpy(), self.inverse.contiguous().numpy())
        return (*arrays, own)
