"""The constraint of increasing vectors and its transform, which torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints, transform_to


class Ordered(constraints.Constraint):
    """x_1 < x_2 < ... < x_K."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Return whether each vector (..., K) is increasing, as (...)."""
        return (value[..., 1:] > value[..., :-1]).all(-1)


class OrderedTransform(Transform):
    """x_1 = u_1, x_k = x_{k-1} + exp(u_k); log |Jacobian| = u_2 + ... + u_K."""

    domain = constraints.real_vector
    codomain = Ordered()
    bijective = True

    def __eq__(self, other: object) -> bool:
        """All are the same."""
        return isinstance(other, OrderedTransform)

    def __hash__(self) -> int:
        """All are the same."""
        return hash(OrderedTransform)

    def _call(self, x: Tensor) -> Tensor:
        return torch.cat((x[..., :1], x[..., 1:].exp()), -1).cumsum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.cat((y[..., :1], y.diff(dim=-1).log()), -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum (...) of u_2 to u_K."""
        return x[..., 1:].sum(-1)


ordered = Ordered()


for registry in (biject_to, transform_to):
    registry.register(Ordered, lambda constraint: OrderedTransform())
