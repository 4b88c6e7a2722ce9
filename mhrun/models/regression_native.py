"""Regressions in compiled loops: log-likelihoods f_i(eta_i) of a linear predictor eta_i = x_i.theta, in float64.

A model has the pieces of its family, f and its derivatives; all others are made from them. Data travel as ``x`` (n, D)
and ``known`` (n, K), numbers of each datum that the family chooses, such as the outcome; ``settings`` (S,) are numbers
of the model.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mhrun.array_types import Array
from mhrun.models.linear_native import (
    add_rows,
    bound_slope,
    bound_width,
    difference_of,
    full_pass_stats_of,
    log_prior,
    norms,
    prior_gradient,
    product_pairs,
    products,
    reference_arrays,
    taylor_difference,
    total_bound,
    total_of,
)
from mhrun.models.tiles_native import tiles_of, total_and_gradient_of_tiles, total_of_tiles
from mhrun.native import NativeBounds, NativeLowerBound, NativeModel, Piece, piece, routine
from mhrun.native.compiler import piece_once
from mhrun.native.forms import GAP_ROUNDING

_TILE = 256  # rows at a time


@piece
def constant_bounds(widest: Any, a: Any, b: Any) -> Any:
    """Return 1: the derivatives are bounded by the same numbers everywhere."""
    return 1.0


class Family(NamedTuple):
    """The pieces of a family of regressions; ``i`` is a datum."""

    value: Piece  # (known, settings, i, eta) -> f_i
    derivatives: Piece  # (known, settings, i, eta) -> its first two derivatives
    size: Piece  # (known, settings, i, eta) -> sum of the absolute summands of f_i, which rounding is relative to
    # (widest, a, b) -> factor of the bounds between points at distances a and b from the reference; widest is the
    # largest |x_i.v| over |v|
    stretch: Piece = constant_bounds
    lower_bound: Piece | None = None  # (known, settings, tangent (n, K), i, eta) -> log B_i


class RegressionArrays(NamedTuple):
    """The data and settings of a regression, as compiled loops read them."""

    x: Array  # (n, D)
    known: Array  # (n, K) float64
    settings: Array  # (S,) float64
    precision: float  # of the prior


def native_model(family: Family, arrays: RegressionArrays, *, full: bool) -> NativeModel:
    """Return the pieces of the log-likelihood; with `full` also those of all data."""
    x, zero = np.ascontiguousarray(arrays.x), np.zeros(1)
    # Numbers, and not an array, which might share memory with what a loop writes to.
    settings = tuple(arrays.settings.tolist())
    args = (x, arrays.known, settings, zero, arrays.precision)
    terms, moments = piece_once(_terms, family.value), piece_once(_moments, family.value)
    model = NativeModel(
        args,
        log_prior=log_prior,
        difference=piece_once(difference_of, terms),
        moments=moments,
        total=piece_once(total_of, moments),
        gradient=piece_once(_gradient, family.derivatives),
        prior_gradient=prior_gradient,
        terms=terms,
        full_pass_stats=piece_once(full_pass_stats_of, terms),
    )
    tiles = tiles_of(x, zero.dtype) if full else None
    if tiles is None:
        return model
    return model._replace(
        args=(*args, tiles, zero, len(x), np.asfortranarray(arrays.known)),
        total=piece_once(total_of_tiles, _coefficients, piece_once(_sum, family.value)),
        total_and_gradient=piece_once(
            total_and_gradient_of_tiles, _coefficients, piece_once(_score, family.value, family.derivatives)
        ),
    )


def native_bounds(
    family: Family, arrays: RegressionArrays, order: int, widest: float, surrogate: Any, expansion: Array
) -> NativeBounds:
    """Return the pieces of terms with bounds.

    Args:
        family: of the regression.
        arrays: all data.
        order: of the surrogate; 0 for none.
        widest: by which bounds may stretch, see `Family`.
        surrogate: its `Sums`, or None.
        expansion: x_i.reference and the first two derivatives of f_i there (n, 3); of any length without a surrogate.
    """
    x = np.ascontiguousarray(arrays.x)
    anchor, inverse, gradient, hessian = reference_arrays(x.shape[1], surrogate)
    known, settings, zero = arrays.known, arrays.settings, np.zeros(1)
    # In the places that the pieces of `mhrun.models.linear_native` read.
    reference = (order, anchor, inverse, gradient, hessian, expansion)
    args = (x, known, settings, zero, arrays.precision, *reference, widest)
    moments = piece_once(_moments, family.value)
    remainders = (
        (piece_once(_slope, family.stretch), piece_once(_remainder, family.derivatives)) if order else ()
    )
    return NativeBounds(
        args,
        log_prior,
        piece_once(_width, family.stretch),
        piece_once(_remainder_terms, family.value),
        piece_once(total_of, moments),
        _size_of(family.size),
        taylor_difference,
        *remainders,
    )


def native_lower_bound(
    family: Family, arrays: RegressionArrays, tangent: Array, sums: Any
) -> NativeLowerBound:
    """Return the pieces of lower bounds.

    Args:
        family: of the regression, with `lower_bound`.
        arrays: all data.
        tangent: numbers of the bound of each datum (n, K).
        sums: the `Sums` of all bounds.
    """
    assert family.lower_bound is not None
    anchor, gradient, hessian = sums.reference.theta.numpy(), sums.gradient.numpy(), sums.hessian.numpy()
    x = np.ascontiguousarray(arrays.x)
    args = (x, arrays.known, tangent, arrays.settings, arrays.precision, anchor, gradient, hessian)
    return NativeLowerBound(args, log_prior, piece_once(_gap, family.value, family.lower_bound), total_bound)


@piece
def _gathered(known: Any, rows: Any, size: Any) -> Any:
    """Return known[rows[j]] for j < size, column by column: arithmetic on it is in vector lanes."""
    columns = np.empty((known.shape[1], size))
    for k in range(known.shape[1]):
        for j in range(size):
            columns[k, j] = known[rows[j], k]
    return columns.T


# Each of these makes a piece from pieces of a family.


def _terms(value: Piece) -> Piece:
    def terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
        x, known, settings, zero = args[0], args[1], args[2], args[3]
        before = np.empty(_TILE)
        for start in range(0, m, _TILE):
            size = min(_TILE, m - start)
            part, rows = out[start : start + size], index[start:]
            product_pairs(x, rows, size, origin, candidate, zero, before, part)
            here = _gathered(known, rows, size)
            for j in range(size):
                part[j] = value(here, settings, j, part[j]) - value(here, settings, j, before[j])

    return terms


def _moments(value: Piece) -> Piece:
    def moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
        x, known, settings, zero = args[0], args[1], args[2], args[3]
        eta = np.empty(_TILE)
        total, square = 0.0, 0.0
        for start in range(0, m, _TILE):
            size = min(_TILE, m - start)
            rows = index[start:]
            products(x, rows, size, theta, zero, eta)
            here = _gathered(known, rows, size)
            for j in range(size):
                log_lik = value(here, settings, j, eta[j])
                total += log_lik
                square += log_lik * log_lik
        return total, square

    return moments


def _gradient(derivatives: Piece) -> Piece:
    def gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
        x, known, settings, zero = args[0], args[1], args[2], args[3]
        eta = np.empty(_TILE)
        for d in range(len(out)):
            out[d] = 0.0
        for start in range(0, m, _TILE):
            size = min(_TILE, m - start)
            rows = index[start:]
            products(x, rows, size, theta, zero, eta)
            here = _gathered(known, rows, size)
            for j in range(size):
                eta[j], _ = derivatives(here, settings, j, eta[j])
            add_rows(x, rows, size, eta, out)

    return gradient


@piece
def _coefficients(args: Any, theta: Any) -> Any:
    return theta


def _sum(value: Piece) -> Piece:
    def sum_of(args: Any, start: Any, size: Any, eta: Any) -> Any:
        settings, known, total = args[2], args[8], 0.0
        for j in range(size):
            total += value(known, settings, start + j, eta[j])
        return total

    return sum_of


def _score(value: Piece, derivatives: Piece) -> Piece:
    def score(args: Any, start: Any, size: Any, eta: Any) -> Any:
        settings, known, total = args[2], args[8], 0.0
        for j in range(size):
            total += value(known, settings, start + j, eta[j])
        for j in range(size):  # in one loop, those of a robust regression are not in vector lanes
            eta[j], _ = derivatives(known, settings, start + j, eta[j])
        return total

    return score


@piece
def _predictor(x: Any, i: Any, theta: Any) -> Any:
    eta = 0.0
    for d in range(len(theta)):
        eta += np.float64(x[i, d]) * theta[d]
    return eta


def _remainder_terms(value: Piece) -> Piece:
    def terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
        x, known, settings, order, expansion = args[0], args[1], args[2], args[5], args[10]
        for j in range(m):
            i = index[j]
            one, two = _predictor(x, i, origin), _predictor(x, i, candidate)
            term = value(known, settings, i, two) - value(known, settings, i, one)
            if order > 0:
                at = expansion[i, 0]
                term -= expansion[i, 1] * (two - one)
                if order == 2:
                    term -= 0.5 * expansion[i, 2] * ((two - at) * (two - at) - (one - at) * (one - at))
            out[j] = term

    return terms


@cache
def _size_of(size: Piece) -> Piece:
    def summands(args: Any, i: Any, origin: Any, candidate: Any) -> Any:
        x, known, settings, order, expansion = args[0], args[1], args[2], args[5], args[10]
        total = 0.0
        for theta in (origin, candidate):
            eta = _predictor(x, i, theta)
            total += size(known, settings, i, eta)
            if order > 0:
                step = eta - expansion[i, 0]
                curve = 0.5 * expansion[i, 2] * step if order == 2 else 0.0
                total += abs((expansion[i, 1] + curve) * step)
        return total

    return routine(summands)


def _width(stretch: Piece) -> Piece:
    def stretched(args: Any, origin: Any, candidate: Any) -> Any:
        _, a, b = norms(args[7], args[6], origin, candidate)
        return bound_width(args, origin, candidate) * stretch(args[11], a, b)

    return stretched


def _slope(stretch: Piece) -> Piece:
    def stretched(args: Any, theta: Any) -> Any:
        _, a, _ = norms(args[7], args[6], theta, theta)
        return bound_slope(args, theta) * stretch(args[11], a, a)

    return stretched


def _remainder(derivatives: Piece) -> Piece:
    def remainder(args: Any, i: Any, theta: Any, remainder_grad: Any, grad: Any) -> None:
        x, known, settings, order, expansion = args[0], args[1], args[2], args[5], args[10]
        eta = _predictor(x, i, theta)
        first, _ = derivatives(known, settings, i, eta)
        rest = first - expansion[i, 1]
        if order == 2:
            rest -= expansion[i, 2] * (eta - expansion[i, 0])
        for d in range(len(theta)):
            value = np.float64(x[i, d])
            remainder_grad[d] = rest * value
            grad[d] = first * value

    return remainder


def _gap(value: Piece, lower_bound: Piece) -> Piece:
    def gap(args: Any, i: Any, theta: Any) -> Any:
        x, known, tangent, settings = args[0], args[1], args[2], args[3]
        eta = _predictor(x, i, theta)
        log_lik, bound = value(known, settings, i, eta), lower_bound(known, settings, tangent, i, eta)
        return log_lik - bound, GAP_ROUNDING * (1 + abs(log_lik) + abs(bound))

    return gap
