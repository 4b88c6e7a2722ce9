"""The quadratic part of a log density, from a Taylor surrogate and a normal prior, in whitened coordinates."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.target.reference import prior_derivatives
from mhrun.target.surrogate import Surrogate
from mhrun.types import Model

# Posterior standard deviations at which the prior is compared with its expansion, and the random directions at each
_DISTANCES, _DIRECTIONS = (0.3, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 30.0, 1000.0), 8
_TOLERANCE = 1e-6  # relative
_ROUNDING_ULPS = 64  # units in the last place that a log-prior may be off by rounding


class Quadratic(NamedTuple):
    """Gradients of minus the log density without the remainders r_i, at phi = root^-1 (theta - about):

    (slope + curvature phi) / T + prior_power (prior_slope + prior_curvature phi).
    """  # noqa: D415

    about: Tensor  # (D,)
    root: Tensor  # (D, D) lower triangular: the posterior has about unit variance in phi at T = 1
    slope: Tensor  # (D,)
    curvature: Tensor  # (D, D); 0 with an expansion of order 1
    prior_slope: Tensor  # (D,)
    prior_curvature: Tensor  # (D, D)

    def whitened(self, theta: Tensor) -> Tensor:
        """Return phi (C, D), float64, of theta (C, D)."""
        step = theta.double() - self.about
        return torch.linalg.solve_triangular(self.root, step.T, upper=False).T

    def theta(self, phi: Tensor) -> Tensor:
        """Return theta (C, D), float64, of phi (C, D)."""
        return self.about + phi @ self.root.T

    def gradient(self, phi: Tensor, temperature: Tensor, power: Tensor) -> Tensor:
        """Return the gradient (C, D) at phi (C, D), temperatures (C,) and powers of the prior (C,)."""
        return (self.slope + phi @ self.curvature) / temperature[:, None] + power[:, None] * (
            self.prior_slope + phi @ self.prior_curvature
        )

    def change(self, velocity: Tensor, temperature: Tensor, power: Tensor) -> Tensor:
        """Return the rate of change (C, D) of the gradient at this velocity (C, D) of phi."""
        return (velocity @ self.curvature) / temperature[:, None] + power[:, None] * (
            velocity @ self.prior_curvature
        )


def quadratic_part(model: Model, surrogate: Surrogate) -> Quadratic:
    """Return the known part.

    Raises:
        UserError: the log-prior is not quadratic.
    """
    (reference, root), gradient, hessian = surrogate.sums
    assert root is not None
    prior_gradient, prior_hessian = prior_derivatives(model, reference)
    _check_quadratic(model, reference, root, prior_gradient, prior_hessian)
    known_hessian = hessian if surrogate.order > 1 else torch.zeros_like(hessian)
    return Quadratic(
        reference,
        root,
        -gradient @ root,
        -root.T @ known_hessian @ root,
        -prior_gradient @ root,
        -root.T @ prior_hessian @ root,
    )


def _check_quadratic(
    model: Model, reference: Tensor, root: Tensor, gradient: Tensor, hessian: Tensor
) -> None:
    """Compare the log-prior with its expansion near and far from the reference."""
    generator = torch.Generator().manual_seed(0)
    for distance in _DISTANCES:
        direction = torch.randn(_DIRECTIONS, len(reference), generator=generator, dtype=torch.float64).to(
            reference.device
        )
        step = distance * direction @ root.T
        ends, begin = model.log_prior(reference + step), model.log_prior(reference[None])
        change = (ends - begin).double()
        linear, square = step @ gradient, 0.5 * ((step @ hessian) * step).sum(-1)
        size = linear.abs() + square.abs() + change.abs()
        # Log-priors have their constants, whose sum over many parameters may be far larger than the change
        rounding = _ROUNDING_ULPS * torch.finfo(ends.dtype).eps * (ends.abs() + begin.abs()).double()
        is_close = (change - linear - square).abs() <= _TOLERANCE * size + rounding + 1e-12
        if not bool((is_close & change.isfinite()).all()):
            raise UserError(
                "the zig-zag sampler needs a normal or a flat prior, whose gradient is linear, without an edge; choose "
                "another prior, or smh2, which takes any."
            )
