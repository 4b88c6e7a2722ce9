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
    return piece_once(_gradient, gradient, piece_once(_of_posterior, model.prior_gradient))


def _gradient(gradient: Piece, of_posterior: Piece) -> Piece:
    @piece
    def posterior_gradient(
        args: Any, index: Any, m: Any, n: Any, prior_weight: Any, theta: Any, prior: Any, out: Any
    ) -> None:
        gradient(args, index, m, theta, out)
        of_posterior(args, m, n, prior_weight, theta, prior, out)

    return posterior_gradient


def _of_posterior(prior_gradient: Piece) -> Piece:
    """Return the piece that makes the gradient of the log posterior of all data from a sum over m of them, in place."""

    @piece
    def of_posterior(args: Any, m: Any, n: Any, prior_weight: Any, theta: Any, prior: Any, out: Any) -> None:
        prior_gradient(args, theta, prior)
        for d in range(len(theta)):
            out[d] = out[d] * (np.float64(n) / m) + prior_weight * prior[d]

    return of_posterior


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


def contest(model: NativeModel, mode: int) -> Piece:
    """Return the piece that compares two points, and fills `there` with the gradient at the candidate.

    It is ``(args, index, batch: PairedBatch, weight, current, candidate, mean_kept, var_kept, prior, there)`` and
    returns what that of `comparison` does.
    """
    if mode == SHARED:
        return piece_once(_on_both_points, comparison(model, mode), gradient_of(model, mode))
    score = model.total_and_gradient if mode == FULL else None
    if score is not None:
        score = piece_once(_in_one_pass, score)
    elif mode == FULL:
        score = piece_once(_total_and_gradient, model.total, model.gradient)
    else:
        score = piece_once(_moments_and_gradient, model.moments, model.gradient)
    return piece_once(_on_its_own_data, score, piece_once(_of_posterior, model.prior_gradient))


# Each of these makes a piece ``(args, index, m, theta, out)`` that returns the sums of log-likelihoods and of their
# squares, which are not needed of all data, and fills out (D,) with the gradient.


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


def _on_both_points(compare: Piece, gradient: Piece) -> Piece:
    @piece
    def contest(
        args: Any,
        index: Any,
        batch: Any,
        weight: Any,
        current: Any,
        candidate: Any,
        mean_kept: Any,
        var_kept: Any,
        prior: Any,
        there: Any,
    ) -> Any:
        gradient(args, index, batch.m, batch.n, weight, candidate, prior, there)
        return compare(args, batch, index, current, candidate, mean_kept, var_kept)

    return contest


def _on_its_own_data(score: Piece, of_posterior: Piece) -> Piece:
    @piece
    def contest(
        args: Any,
        index: Any,
        batch: Any,
        weight: Any,
        current: Any,
        candidate: Any,
        mean_kept: Any,
        var_kept: Any,
        prior: Any,
        there: Any,
    ) -> Any:
        sum_1, sum_2 = score(args, index, batch.m, candidate, there)
        of_posterior(args, batch.m, batch.n, weight, candidate, prior, there)
        return apart(batch, sum_1, sum_2, mean_kept, var_kept)

    return contest
