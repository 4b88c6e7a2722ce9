"""The pieces of a compiled Metropolis-Hastings step that evaluate gradients, for each way to score points.

Points are scored on all data (FULL), each on another minibatch (STORED) or both on one (SHARED). A loop has only the
pieces that its way needs, as each takes a second or more to compile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mhrun.compiled.comparison import apart, comparison
from mhrun.native import FULL, SHARED, NativeModel, Piece, piece, piece_once
from mhrun.native.philox import MINIBATCH


def gradient_of(model: NativeModel, mode: int) -> Piece:
    """Return the piece that estimates the gradient of the log posterior of all n data on index[:m].

    It is ``(args, index, m, n, prior_weight, theta (D,), prior (D,), out (D,))``; `prior` is overwritten with the
    gradient of the log-prior.
    """
    gradient = model.gradient
    if mode == FULL and model.total_and_gradient is not None:
        gradient = piece_once(_without_total, model.total_and_gradient)
    return piece_once(_gradient, gradient, piece_once(of_posterior, model.prior_gradient))


def _gradient(gradient: Piece, complete: Piece) -> Piece:
    @piece
    def posterior_gradient(
        args: Any, index: Any, m: Any, n: Any, prior_weight: Any, theta: Any, prior: Any, out: Any
    ) -> None:
        gradient(args, index, m, theta, out)
        complete(args, m, n, prior_weight, theta, prior, out)

    return posterior_gradient


def of_posterior(prior_gradient: Piece) -> Piece:
    """Return the piece that makes the gradient of the log posterior of all data from a sum over m of them, in place."""

    @piece
    def complete(args: Any, m: Any, n: Any, prior_weight: Any, theta: Any, prior: Any, out: Any) -> None:
        prior_gradient(args, theta, prior)
        for d in range(len(theta)):
            out[d] = out[d] * (np.float64(n) / m) + prior_weight * prior[d]

    return complete


def _without_total(total_and_gradient: Piece) -> Piece:
    @piece
    def gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
        total_and_gradient(args, theta, out)  # the total is not used, and not computed in machine code

    return gradient


def beginning(model: NativeModel, mode: int, fill: Piece) -> Piece:
    """Return the piece that begins a step: it fills `here` with the gradient at the current point.

    It is ``(args, index, batch: PairedBatch, draw, work, weight, weight_kept, current, prior, here)``.
    """
    if mode == SHARED:
        return piece_once(_on_this_minibatch, fill, gradient_of(model, mode))
    return piece_once(_kept_gradient, model.prior_gradient)


def _on_this_minibatch(fill: Piece, gradient: Piece) -> Piece:
    @piece
    def begin(
        args: Any,
        index: Any,
        batch: Any,
        draw: Any,
        work: Any,
        weight: Any,
        weight_kept: Any,
        current: Any,
        prior: Any,
        here: Any,
    ) -> None:
        fill(index, batch.m, batch.n, draw, MINIBATCH, 0, work)
        gradient(args, index, batch.m, batch.n, weight, current, prior, here)

    return begin


def _kept_gradient(prior_gradient: Piece) -> Piece:
    @piece
    def begin(
        args: Any,
        index: Any,
        batch: Any,
        draw: Any,
        work: Any,
        weight: Any,
        weight_kept: Any,
        current: Any,
        prior: Any,
        here: Any,
    ) -> None:
        if weight_kept != weight:  # the temperature has changed
            prior_gradient(args, current, prior)
            for d in range(len(current)):
                here[d] += (weight - weight_kept) * prior[d]

    return begin


def score_of(model: NativeModel, mode: int) -> Piece:
    """Return the piece that fills out (D,) with the sum over index[:m] of the gradient of l_i.

    It is ``(args, index, m, theta, out)`` and returns the sums of l_i and of l_i^2, which `settle_of` takes: not those
    of squares of all data, and none where both points are on one minibatch.
    """
    if mode == SHARED:
        return piece_once(_gradient_alone, model.gradient)
    if mode != FULL:
        return piece_once(_moments_and_gradient, model.moments, model.gradient)
    if model.total_and_gradient is not None:
        return piece_once(_in_one_pass, model.total_and_gradient)
    return piece_once(_total_and_gradient, model.total, model.gradient)


def settle_of(model: NativeModel, mode: int) -> Piece:
    """Return the piece that compares two points from the sums of `score_of` at the candidate.

    It is ``(args, batch: PairedBatch, index, current, candidate, sums, mean_kept, var_kept)`` and returns what that of
    `comparison` does.
    """
    return piece_once(_on_one_minibatch, comparison(model, mode)) if mode == SHARED else _on_other_data


@piece
def _on_other_data(
    args: Any, batch: Any, index: Any, current: Any, candidate: Any, sums: Any, mean_kept: Any, var_kept: Any
) -> Any:
    return apart(batch, sums[0], sums[1], mean_kept, var_kept)


def _on_one_minibatch(compare: Piece) -> Piece:
    @piece
    def settle(
        args: Any,
        batch: Any,
        index: Any,
        current: Any,
        candidate: Any,
        sums: Any,
        mean_kept: Any,
        var_kept: Any,
    ) -> Any:
        return compare(args, batch, index, current, candidate, mean_kept, var_kept)

    return settle


# Each of these makes a piece of `score_of`.


def _gradient_alone(gradient: Piece) -> Piece:
    @piece
    def score(args: Any, index: Any, m: Any, theta: Any, out: Any) -> Any:
        gradient(args, index, m, theta, out)
        return 0.0, 0.0

    return score


def _in_one_pass(total_and_gradient: Piece) -> Piece:
    @piece
    def score(args: Any, index: Any, m: Any, theta: Any, out: Any) -> Any:
        return total_and_gradient(args, theta, out), 0.0

    return score


def _total_and_gradient(total: Piece, gradient: Piece) -> Piece:
    @piece
    def score(args: Any, index: Any, m: Any, theta: Any, out: Any) -> Any:
        gradient(args, index, m, theta, out)
        return total(args, theta), 0.0

    return score


def _moments_and_gradient(moments: Piece, gradient: Piece) -> Piece:
    @piece
    def score(args: Any, index: Any, m: Any, theta: Any, out: Any) -> Any:
        gradient(args, index, m, theta, out)
        return moments(args, index, m, theta)

    return score
