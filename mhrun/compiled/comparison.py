"""What the compiled loops of Metropolis-Hastings share: the data of a decision, its record, and its log-ratio."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mhrun.native import FULL, STORED, NativeModel, Piece, piece, piece_once
from mhrun.native.indices import filler, only
from mhrun.target import Target


class PairedBatch(NamedTuple):
    """The data that a decision is made on."""

    mode: Any  # of the pairing: SHARED, STORED or FULL
    m: Any
    n: Any  # uint64
    error_share: Any  # factor of S^2 / m in the variance of a minibatch mean; 0 for all data


class DecisionRecord(NamedTuple):
    """The record of each step, (C, K, ...)."""

    theta: Any
    accepted: Any
    log_ratio: Any
    log_ratio_var: Any
    diverging: Any


def comparison(model: NativeModel, mode: int) -> Piece:
    """Return the piece that compares the log-likelihoods of two points.

    It is ``(args, batch: PairedBatch, index, current, candidate, mean_kept, var_kept) -> gain, spread, mean, var``: the
    mean difference, its variance over data, and the mean and variance of the candidate, which pairings other than the
    shared one keep.

    Sums over all data and over minibatches are in separate pieces, as most loops need one of them, and compiling both
    takes nearly twice as long. Shared and stored minibatches are in one, as experiments often have both.
    """
    if mode == FULL:
        return piece_once(_of_all_data, model.total)
    return piece_once(_of_minibatches, model.difference, model.moments)


def index_filler(target: Target, mode: int) -> Piece:
    """Return the piece that draws minibatches; all data have none, so that theirs is quick to compile."""
    return only if mode == FULL else filler(target.n, replacement=target.replacement)


@piece
def apart(batch: Any, sum_1: Any, sum_2: Any, mean_kept: Any, var_kept: Any) -> Any:
    """Return the comparison of a candidate with what is kept of the current point, which has other data or all.

    `sum_1` and `sum_2` are those of the candidate's log-likelihoods and of their squares.
    """
    m = batch.m
    mean, var = sum_1 / m, 0.0
    if batch.mode == STORED:
        var = max(sum_2 - sum_1 * mean, 0.0) / (m - 1) if m > 1 else np.nan
    return mean - mean_kept, var + var_kept, mean, var


def _of_all_data(total: Piece) -> Piece:
    @piece
    def compare(
        args: Any, batch: Any, index: Any, current: Any, candidate: Any, mean_kept: Any, var_kept: Any
    ) -> Any:
        return apart(batch, total(args, candidate), 0.0, mean_kept, 0.0)

    return compare


def _of_minibatches(difference: Piece, moments: Piece) -> Piece:
    @piece
    def compare(
        args: Any, batch: Any, index: Any, current: Any, candidate: Any, mean_kept: Any, var_kept: Any
    ) -> Any:
        if batch.mode == STORED:  # each point has its own minibatch
            sum_1, sum_2 = moments(args, index, batch.m, candidate)
            return apart(batch, sum_1, sum_2, mean_kept, var_kept)
        sum_1, sum_2 = difference(args, index, batch.m, current, candidate)
        gain = sum_1 / batch.m
        return gain, max(sum_2 - sum_1 * gain, 0.0) / max(batch.m - 1, 1), 0.0, 0.0

    return compare


@piece
def noise_of(spread: Any, batch: Any, scale: Any) -> Any:
    """Return the variance of a log-ratio over minibatches; `scale` is n / T."""
    # All data have no error; a minibatch of one datum has no variance estimate.
    if batch.error_share <= 0:
        return 0.0
    return scale * scale * (spread / batch.m * batch.error_share) if batch.m > 1 else np.nan
