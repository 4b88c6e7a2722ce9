"""Logistic regression without an intercept (Seita et al. 2017, section 6.2; Li & Wong 2017, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from mhrun.errors import Refusal, UserError, check_choice
from mhrun.models.jaakkola_jordan import SMALLEST_XI, UNTUNED_XI, curvature, touching_points
from mhrun.models.linear import NARROW, linear_bounds, predictor, weighted_sum
from mhrun.models.logistic_bounds import DERIVATIVE_BOUNDS, bound_pieces, lower_bound_pieces
from mhrun.models.logistic_native import pieces
from mhrun.models.logistic_sums import compiled_sums_pay, sums
from mhrun.models.naming import named
from mhrun.models.weights import Weights, checked_start_sd, precision_of
from mhrun.native import NativeBounds, NativeLowerBound, NativeModel
from mhrun.random import Draws, Purpose
from mhrun.types import BOUND_KINDS, Bounds, Field, Reference, Rows

_STARTS = ("normal", "uniform", "zeros")
# Rows converted at once: converted rows stay in the processor's cache, which halves the time of a pass.
_TILE = 256
_PART = 8192  # rows of one part of a full-data sum
# Points with one datum each, as for gradients of single data, up to which products are computed point by point.
_MAX_LOOPED_POINTS = 1024
_MAX_BATCHED_DATA = 64  # data of a chain up to which float64 products of all chains are one batched product


class Logistic(Weights):
    """P(y | x) = 1 / (1 + exp(-y theta.x)) with y = +1 or -1; theta ~ N(0, prior_variance I), or flat.

    Fields: ``x`` (n, D) and ``y`` (n,). Products theta.x have the precision of x, float32 for integers: the weights are
    rounded to it, and the log-likelihood is evaluated at the rounded weights. Bytes (uint8) are pixels: k stands for
    k/255.

    With a flat prior and linearly separable classes, such as the 1s and 7s of MNIST, the posterior at a fixed
    temperature is improper and chains drift to infinity. Both papers print the flat prior.

    Args:
        dim: D, the number of weights; null in a configuration: the number of columns of x.
        prior_variance: prior variance of each weight; flat if None.
        start: starting points: ``normal``, N(0, start_sd^2), as in the released code for MHMiniBatch; ``uniform``, on
            (0, 1), as in the released code for the other tests; or ``zeros``.
        start_sd: standard deviation of the normal start.
        names: of the weights, in traces and reports; None: theta[0], theta[1] and so on.

    Raises:
        Refusal: an invalid setting.
    """

    bound_kinds: Sequence[str] = BOUND_KINDS
    reads_pixels = True

    def __init__(
        self,
        dim: int = 784,
        prior_variance: float | None = None,
        start: Literal["normal", "uniform", "zeros"] = "normal",
        start_sd: float = 0.03,
        names: Sequence[str] | None = None,
    ) -> None:
        if dim < 1:
            raise Refusal(f"dim = {dim} is not a valid number of weights; choose dim >= 1.")
        check_choice("start", start, _STARTS)
        self.dim = dim
        self.names: Sequence[str] = named(names, dim)
        self.start = start
        self.start_sd = checked_start_sd(start_sd, self, or_zero=False)
        self.precision = precision_of(prior_variance, self)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, D) and ``y`` (n,), +1 or -1."""
        return {
            "x": Field((self.dim,), setting="model.dim"),
            "y": Field((), "signs", remedy="Of labels 0 and 1, give 2 * y - 1."),
        }

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        if self.start == "zeros":
            return torch.zeros(chains, self.dim, dtype=torch.float64, device=draws.device)
        normal = draws.normal(Purpose.INIT, self.dim)
        # The normal cdf maps normals to uniforms.
        return self.start_sd * normal if self.start == "normal" else torch.special.ndtr(normal)

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D), x (C or 1, m, D) and y (C or 1, m) -> (C, m), in the precision of the products.

        Raises:
            UserError: fields or labels that do not fit this model.
        """
        x, y = self._fields(rows)
        return logsigmoid(y * _products(theta, x))

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m), and the gradient (C, D) of their mean: that of sigmoid(-z_i) y_i x_i.

        z_i is y_i x_i.theta. Raises what `log_lik` does.
        """
        x, y = self._fields(rows)
        z = y * _products(theta, x)
        # The mean's factor comes first: a sum over all data would overflow in float16.
        grad = _weighted_sum(torch.sigmoid(-z) * y * (_scale(x) / x.shape[1]), x)
        return logsigmoid(z), grad.to(theta)

    def outcome_mean(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the probability of y = +1, (C, m)."""
        x = rows["x"]
        return torch.sigmoid(predictor(theta.double(), _scale(x) * x.double()))

    def simulate(self, theta: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return new labels ``y`` (n,), +1 or -1, for rows with ``x`` (n, D), at theta (D,)."""
        chance = self.outcome_mean(theta[None], {"x": rows["x"][None]})[0]
        return {"y": torch.where(torch.rand_like(chance) < chance, 1.0, -1.0)}

    def multiplies_chains(self, data: Rows) -> bool:
        """Return True: all data are multiplied with the weights of all chains, see `full_log_lik`."""
        return True

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return theta (C, D) -> the sum over all data (C,), float64; with float32 products, to a relative 1e-7.

        Large data on a CPU are read in one compiled pass for all chains (`mhrun.models.logistic_sums`).
        """

        def total(theta: Tensor) -> Tensor:
            if compiled_sums_pay(theta, data["x"]):
                return sums(theta, data["x"], data["y"], _scale(data["x"]))
            parts = [self.log_lik(theta, part).sum(-1, dtype=torch.float64) for part in _parts(data)]
            return torch.stack(parts).sum(0)

        return total

    def bound(self, data: Rows) -> Callable[[Tensor, Tensor], Tensor]:
        """Return ``(theta, to) -> max_i |log p(y_i | to) - log p(y_i | theta)|``, (C,), in one pass over all data."""

        def largest(theta: Tensor, to: Tensor) -> Tensor:
            points = torch.cat((theta, to))
            maxima = []
            for part in _parts(data):
                before, after = self.log_lik(points, part).chunk(2)
                maxima.append((after - before).abs().amax(-1))
            return torch.stack(maxima).amax(0).double()

        return largest

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `mhrun.types.Bounds`; they hold everywhere."""
        return linear_bounds(data["x"], DERIVATIVE_BOUNDS, kind, reference, _scale(data["x"]))

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds | None:
        """Return the pieces of the fused loop on bounded terms; None if it cannot read the data."""
        if data["x"].dtype in NARROW:
            return None
        x, y = self._fields({name: value[None] for name, value in data.items()})
        order = BOUND_KINDS.index(kind)
        return bound_pieces(x[0].numpy(), y[0].numpy(), _scale(x), self.precision, order, surrogate)

    def in_float64(self, rows: Rows) -> Rows:
        """Return the rows with x as float64 features, and the labels."""
        return {"x": rows["x"].double() * _scale(rows["x"]), "y": rows["y"]}

    def taylor(self, theta: Tensor, reference: Tensor, rows: Rows, order: int) -> Tensor:
        """Return the Taylor polynomial of log_lik about the reference, without its constant, (C, m), float64."""
        x, y = self.in_float64(rows).values()
        step, share = predictor(theta.double() - reference, x), torch.sigmoid(-y * (x @ reference))
        first = share * (y * step)
        return first if order == 1 else first - 0.5 * share * (1 - share) * step.square()

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        """Return log B <= log_lik (C, m), quadratic in theta (Jaakkola & Jordan 1997): with z = y x.theta,

            log B = log sigmoid(xi) + (z - xi) / 2 - tanh(xi / 2) (z^2 - xi^2) / (4 xi).

        It touches at |z| = xi: that of the anchor (D,), or 1.5 without one (Maclaurin & Adams 2015).
        """  # noqa: D415
        x, y = self.in_float64(rows).values()
        z = y * predictor(theta.double(), x)
        xi = touching_points(z, x, anchor)
        return logsigmoid(xi) + (z - xi) / 2 - curvature(xi) * (z - xi) * (z + xi)

    def native_lower_bound(self, data: Rows, sums: Any, *, tuned: bool) -> NativeLowerBound | None:
        """Return the pieces of the compiled loop of Firefly Monte Carlo; None if it cannot read the data."""
        if data["x"].dtype in NARROW:
            return None
        x, y = self._fields({name: value[None] for name, value in data.items()})
        xi = 0.0 if tuned else UNTUNED_XI
        return lower_bound_pieces(
            x[0].numpy(), y[0].numpy(), _scale(x), self.precision, sums, xi, SMALLEST_XI
        )

    def native(self, data: Rows, *, full: bool) -> NativeModel | None:
        """Return the pieces of the fused loop: products in the precision of the data, the rest float64.

        None if it cannot read the data.
        """
        if data["x"].dtype in NARROW:
            return None
        x, y = self._fields({name: value[None] for name, value in data.items()})
        return pieces(x[0].numpy(), y[0].numpy(), _scale(x), self.precision, full=full)

    def _fields(self, rows: Rows) -> tuple[Tensor, Tensor]:
        if not {"x", "y"} <= set(rows):
            raise UserError(f"Logistic needs the fields x and y; the data have {', '.join(rows)}.")
        x, y = rows["x"], rows["y"]
        if x.dim() != 3 or x.shape[-1] != self.dim:
            shape = tuple(x.shape[2:])
            raise UserError(
                f"Logistic has {self.dim} weights and a row of x the shape {shape}; set model.dim."
            )
        if not y.is_cuda and not bool((y.abs() == 1).all()):  # a GPU would have to be waited for
            raise UserError("Logistic needs labels y = +1 and -1; the data have others.")
        return x, y


def _products(theta: Tensor, x: Tensor) -> Tensor:
    """Return x.theta (C, m) of theta (C, D) and x (C or 1, m, D), in the precision of the products."""
    kind = _precision(x)
    weights = (theta * _scale(x)).to(kind)
    if len(x) == 1:
        if x.is_cuda or x.shape[1] <= _TILE:
            return weights @ x[0].to(kind).T
        return torch.cat([weights @ tile.to(kind).T for tile in x[0].split(_TILE)], dim=1)
    if kind == torch.float64 and x.shape[1] <= _MAX_BATCHED_DATA:
        return predictor(weights, x)
    if x.shape[1] == 1 and len(x) > _MAX_LOOPED_POINTS:
        return (x[:, 0].to(kind) * weights).sum(-1, keepdim=True)
    if x.is_cuda:
        return torch.bmm(x.to(kind), weights[:, :, None])[..., 0]
    # Chain by chain: bmm with a single column is four times slower.
    return torch.stack([tile.to(kind).mv(w) for tile, w in zip(x, weights, strict=True)])


def _weighted_sum(factors: Tensor, x: Tensor) -> Tensor:
    """Return the sum of factors_i x_i over the data (C, D) of factors (C, m), in the precision of the products."""
    kind = _precision(x)
    factors = factors.to(kind)
    if len(x) == 1:
        if x.is_cuda or x.shape[1] <= _TILE:
            return factors @ x[0].to(kind)
        tiles = zip(factors.split(_TILE, dim=1), x[0].split(_TILE), strict=True)
        return torch.stack([part @ tile.to(kind) for part, tile in tiles]).sum(0)
    if kind == torch.float64 and x.shape[1] <= _MAX_BATCHED_DATA:
        return weighted_sum(factors, x)
    if x.shape[1] == 1 and len(x) > _MAX_LOOPED_POINTS:
        return x[:, 0].to(kind) * factors
    if x.is_cuda:
        return torch.bmm(factors[:, None], x.to(kind))[:, 0]
    return torch.stack([f @ tile.to(kind) for f, tile in zip(factors, x, strict=True)])


def _precision(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float32


def _scale(x: Tensor) -> float:
    return 1 / 255 if x.dtype == torch.uint8 else 1.0


def _parts(data: Rows) -> list[Rows]:
    """Return all data in parts, each shared by all chains."""
    n = len(data["y"])
    return [{k: v[i : i + _PART][None] for k, v in data.items()} for i in range(0, n, _PART)]
