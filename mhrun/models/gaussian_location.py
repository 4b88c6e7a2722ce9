"""The mean of a Gaussian of unit variance in several dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError
from mhrun.random import Draws
from mhrun.types import Rows


class GaussianLocation:
    """x ~ N(theta, I_D); theta ~ N(0, prior_variance I), or flat (Wu, Wang & Wong 2020, sections 4.1 and 5.1).

    Field: ``x`` (n, D). A log-likelihood is that of one row, without its constant.

    Args:
        dim: D.
        prior_variance: of each mean; flat if None.
        start: where each coordinate begins.

    Raises:
        Refusal: a setting that has no meaning.
    """

    def __init__(self, dim: int, prior_variance: float | None = None, start: float = 0.0) -> None:
        if dim < 1 or (prior_variance is not None and prior_variance <= 0):
            raise Refusal("GaussianLocation needs dim >= 1 and a positive prior_variance, or null.")
        self.dim = dim
        self.names: Sequence[str] = tuple(f"theta[{d}]" for d in range(dim))
        self.precision = 0.0 if prior_variance is None else 1.0 / prior_variance
        self.first = float(start)

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return the starting points (C, D)."""
        return torch.full((chains, self.dim), self.first, dtype=torch.float64, device=draws.device)

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,)."""
        return -0.5 * self.precision * theta.square().sum(-1)

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and x (C or 1, m, D) -> (C, m), in the precision of x.

        Raises:
            UserError: rows of another width.
        """
        x = rows["x"]
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise UserError(
                f"GaussianLocation has dim = {self.dim} and a row of x the shape {tuple(x.shape[2:])}."
            )
        here = theta.to(x.dtype)
        # |x - theta|^2 by its parts: the differences themselves would be a tensor of all rows for every chain.
        product = (
            torch.einsum("...md,cd->cm", x[0], here)
            if len(x) == 1
            else torch.bmm(x, here[:, :, None])[..., 0]
        )
        return product - 0.5 * x.square().sum(-1) - 0.5 * here.square().sum(-1, keepdim=True)

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return the exact sum over all data, from their number, mean and squares."""
        x = data["x"].double()
        n, mean, square = len(x), x.mean(0), float(x.square().sum())
        return lambda theta: n * (theta @ mean - 0.5 * theta.square().sum(-1)) - 0.5 * square
