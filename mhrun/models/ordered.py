"""The constraint of increasing vectors and its transform, which torch does not have."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform, biject_to, constraints, transform_to
from torch.nn.functional import logsigmoid

_UNIT = 1 / 16  # of differences, in standard deviations of the prior


class Ordered(constraints.Constraint):
    """x_1 < x_2 < ... < x_K."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Return whether each vector (..., K) is increasing, as (...)."""
        return (value[..., 1:] > value[..., :-1]).all(-1)


class OrderedTransform(Transform):
    r"""x_1 = u_1, x_k = x_{k-1} + c log(1 + exp(u_k)) with a unit c; log |Jacobian| = sum_k log c sigma(u_k), k > 1.

    Differences well above the unit are linear in u, and those well below it exponential. Where one component of a
    mixture is far from another, x_1 is free and x_2 = x_1 + (x_2 - x_1) known to a small error, a ridge of constant
    width in u; with exponentials alone it becomes narrower as it goes on, and Hamiltonian Monte Carlo does not enter
    it. A unit far below the width of the posterior would make an edge of x_1 = x_2.

    Args:
        unit: c; None: x_k = x_{k-1} + exp(u_k), for differences of which nothing is known.
    """

    domain = constraints.real_vector
    codomain = Ordered()
    bijective = True

    def __init__(self, unit: float | None = None) -> None:
        super().__init__()
        self.unit = unit

    @classmethod
    def for_prior(cls, prior: Distribution | None) -> OrderedTransform:
        """Return the transform with a sixteenth of the prior's least standard deviation as its unit, if it has one."""
        try:
            least = math.nan if prior is None else float(prior.stddev.min())
        except NotImplementedError:
            least = math.nan
        return cls(_UNIT * least if 0 < least < math.inf else None)

    def __eq__(self, other: object) -> bool:
        """Those with the same unit are the same."""
        return isinstance(other, OrderedTransform) and other.unit == self.unit

    def __hash__(self) -> int:
        """Those with the same unit are the same."""
        return hash((OrderedTransform, self.unit))

    def _call(self, x: Tensor) -> Tensor:
        first, rest = x[..., :1], x[..., 1:]
        differences = rest.exp() if self.unit is None else -self.unit * logsigmoid(-rest)
        return torch.cat((first, differences), -1).cumsum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        differences = y.diff(dim=-1)
        if self.unit is None:
            return torch.cat((y[..., :1], differences.log()), -1)
        scaled = differences / self.unit
        return torch.cat((y[..., :1], scaled + torch.log(-torch.expm1(-scaled))), -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the log-determinant (...), of the differences alone."""
        rest = x[..., 1:]
        return (rest if self.unit is None else logsigmoid(rest) + math.log(self.unit)).sum(-1)


ordered = Ordered()


for registry in (biject_to, transform_to):
    registry.register(Ordered, lambda constraint: OrderedTransform())
