"""Bounds on the terms of a log-ratio, from bounds on the derivatives of a log-likelihood.

Let |d^j l_i| <= L_ij be the operator norm of the j-th derivative of the log-likelihood l_i everywhere, and r_i the
remainder of l_i after its Taylor polynomial of order k about a reference point; k = 0: r_i = l_i. With a and b the
distances of theta and theta' from the reference and s their distance from each other,

    |r_i(theta') - r_i(theta)| <= L_i,k+1 min(a^(k+1) + b^(k+1), s (a^k + a^(k-1) b + ... + b^k)) / (k+1)!

The first form bounds both remainders (Cornish et al. 2019). The second integrates a bound on the gradient of r_i,
L_i,k+1 a^k / k!, along the segment from theta to theta' and is smaller for short steps. Distances may be taken in any
metric |v| = |root^-1 v|_2, if the derivatives are bounded in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError
from mhrun.models.explained import explained
from mhrun.models.named_tensors import Named
from mhrun.numbers import is_number
from mhrun.types import BOUND_KINDS, Bounds, Reference, Rows

_PART = 1 << 16  # rows whose weights are computed at once


def order_of(kind: str) -> int:
    """Return the order k of the Taylor polynomial: 0, 1 or 2."""
    return BOUND_KINDS.index(kind)


class Distances:
    """Distances (C,) of two points from each other and from the reference, in the reference's metric."""

    def __init__(self, reference: Reference | None) -> None:
        self._centre: Tensor | float = 0.0 if reference is None else reference.theta
        root = None if reference is None else reference.root
        self._inverse = None if root is None else torch.linalg.inv(root).T.contiguous()

    def __call__(self, theta: Tensor, to: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return |theta' - theta|, |theta - reference| and |theta' - reference|."""
        start, end = theta.double() - self._centre, to.double() - self._centre
        return tuple(self._norm(v) for v in (end - start, start, end))  # type: ignore[return-value]

    def _norm(self, vectors: Tensor) -> Tensor:
        return (vectors if self._inverse is None else vectors @ self._inverse).norm(dim=-1)


def remainder_width(order: int, distances: Distances) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the width (theta, theta') -> (C,), to be multiplied by bounds on the derivative of order k + 1."""

    def width(theta: Tensor, to: Tensor) -> Tensor:
        step, a, b = distances(theta, to)
        if order == 0:
            return step
        if order == 1:
            return torch.minimum(a * a + b * b, step * (a + b)) / 2
        return torch.minimum(a**3 + b**3, step * (a * a + b * b + a * b)) / 6

    return width


def remainder_slope(
    order: int, distances: Distances, factor: float = 1.0
) -> Callable[[Tensor], Tensor] | None:
    """Return the slope theta -> (C,), see `Bounds`: factor a^k / k! with the distance a; None without a remainder."""
    if order == 0:
        return None

    def slope(theta: Tensor) -> Tensor:
        _, a, _ = distances(theta, theta)
        return factor * a**order / math.factorial(order)

    return slope


def row_norms(x: Tensor, reference: Reference | None, scale: float = 1.0) -> Tensor:
    """Return |root^T x_i| (n,), float64: how fast the linear predictor x_i.theta changes in the reference's metric."""
    root = None if reference is None else reference.root
    norms = torch.empty(len(x), dtype=torch.float64, device=x.device)
    for start in range(0, len(x), _PART):
        part = x[start : start + _PART].double() * scale
        norms[start : start + _PART] = (part if root is None else part @ root).norm(dim=-1)
    return norms


def over_parts(function: Callable[[Rows], Tensor], data: Rows) -> Tensor:
    """Return ``function`` of all rows (n,), float64, evaluated on parts of the data."""
    n = len(next(iter(data.values())))
    parts = ({k: v[i : i + _PART] for k, v in data.items()} for i in range(0, n, _PART))
    return torch.cat([function(part).double() for part in parts])


def centred_norms(x: Tensor) -> tuple[float, float, Tensor]:
    """Return the mean c of the data (n,), half their standard deviation a, and 1 + |x_i - c| / a (n,), float64."""
    n = len(x)
    centre = float(sum(part.double().sum() for part in x.split(_PART))) / n
    square = float(sum((part.double() - centre).square().sum() for part in x.split(_PART))) / n
    half = 0.5 * square**0.5 or 1.0
    return centre, half, torch.cat([1 + (part.double() - centre).abs() / half for part in x.split(_PART)])


def bounds_in_means(x: Tensor, variance: float, means: Callable[[Tensor], Tensor]) -> Bounds:
    """Return bounds on the terms of a mixture of normals with a common variance, of kind ``difference``.

    The gradient of l_i in the means has the components p_k (x_i - mu_k) / v, with probabilities p_k of the components,
    so that for any centre c and any a > 0

        |l_i(theta') - l_i(theta)| <= max_k |mu'_k - mu_k| (|x_i - c| + R) / v
                                   <= (1 + |x_i - c| / a) max(a, R) max_k |mu'_k - mu_k| / v,

    where R is the largest |mu_k - c| of both points. Here c is the mean of the data and a half their standard
    deviation.

    Args:
        x: the data (n,).
        variance: v.
        means: theta (C, D) -> the means mu of the components (C, K).
    """
    centre, half, weights = centred_norms(x)

    def width(theta: Tensor, to: Tensor) -> Tensor:
        start, end = means(theta).double(), means(to).double()
        reach = torch.maximum((start - centre).abs().amax(-1), (end - centre).abs().amax(-1))
        return (end - start).abs().amax(-1) * reach.clamp_min(half) / variance

    return Bounds(weights, width)


Constant = float | Callable[[Rows], Tensor]
"""A bound on a derivative of the log-likelihood: one number, or a function of the rows (n, ...) that returns (n,)."""


BoundsFunction = Callable[[Rows, str, Reference | None], Bounds]


def bounds_from(constants: Mapping[str, Constant | None]) -> tuple[BoundsFunction | None, list[str]]:
    """Return bounds from those on derivatives, and the kinds that they cover; None without any.

    Args:
        constants: name -> that of the first, the second and the third derivative; None: unknown.

    Raises:
        Refusal: a constant that is neither a number, at least 0, nor a function.
    """
    for name, value in constants.items():
        if value is not None and not callable(value) and not is_number(value):
            raise Refusal(f"{name} = {value!r} must be a number, or a function of the rows.")
        if is_number(value) and not 0 <= value < math.inf:
            raise Refusal(f"{name} = {value:g} bounds a norm; it must be a finite number, at least 0.")
    by_order = list(constants.values())
    kinds = [kind for kind, constant in zip(BOUND_KINDS, by_order, strict=True) if constant is not None]

    def bounds(data: Rows, kind: str, reference: Reference | None) -> Bounds:
        return constant_bounds(by_order, Named(data), kind, reference)

    return (bounds if kinds else None), kinds


def constant_bounds(
    constants: Sequence[Constant | None], data: Rows, kind: str, reference: Reference | None
) -> Bounds:
    """Return the bounds that follow from bounds on the norms of the first three derivatives in theta.

    Args:
        constants: of the first, the second and the third derivative; None: unknown.
        data: all rows.
        kind: one of `BOUND_KINDS`; order k needs the constant of derivative k + 1.
        reference: the expansion point.

    Raises:
        UserError: a function that does not return one finite number for each datum, at least 0.
    """
    order = order_of(kind)
    constant = constants[order]
    assert constant is not None
    field = next(iter(data.values()))
    n = len(field)
    which = ("first", "second", "third")[order]
    if callable(constant):
        with explained(f"the bound on the {which} derivative", data):
            weights = torch.as_tensor(constant(data), dtype=torch.float64)
        if weights.shape != (n,):
            raise UserError(
                f"a bound must return one number for each of the {n:,} data, not {tuple(weights.shape)}."
            )
    else:
        weights = torch.full((n,), float(constant), dtype=torch.float64, device=field.device)
    if bool((wrong := ~((weights >= 0) & weights.isfinite())).any()):
        i = int(wrong.nonzero()[0])
        raise UserError(
            f"the bound on the {which} derivative is {float(weights[i]):g} for datum {i}; it must be a finite number, "
            "at least 0, for every datum."
        )
    stretch = 1.0  # of a vector by the metric's root
    if reference is not None:
        if reference.root is not None:
            stretch = float(torch.linalg.matrix_norm(reference.root, 2))
        reference = Reference(reference.theta)  # the constants are for the Euclidean norm
    distances = Distances(reference)
    return Bounds(weights, remainder_width(order, distances), remainder_slope(order, distances, stretch))
