"""Minibatches that a test selects by the variance of their own terms: their log-ratio is biased if terms are skewed."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mhrun.diagnostics.chains import some_coordinates
from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.diagnosis.moves import MIN_MOVES, moves
from mhrun.engine.method import Method
from mhrun.kernels import ReplicaExchange
from mhrun.parts import Rule
from mhrun.random import derive_key
from mhrun.target.function_space import is_network

SELECTION = "selection_shifts"  # in a summary; "selection_shift" was one number, of earlier runs
_MAX_DECISIONS = 100  # decisions that are looked at
_MAX_TERMS, _MIN_TERMS = 10_000, 1_000  # data whose terms give the moments
_SHARE = 0.1  # of a run's evaluations that these may take, beyond the fewest terms
_AT_ONCE = 1 << 22  # numbers of the data that are evaluated at once, those of each pair counted


class Pairs(NamedTuple):
    """Points between which a rule decides, and the factor n/T of the mean of their terms."""

    origin: Tensor  # (R, D)
    candidate: Tensor  # (R, D)
    scale: Tensor  # (R,)
    rule: Rule
    m: int


class Selection(NamedTuple):
    """By how much log-ratios are off, as minibatches are selected; None if they are not, or if it is unknown."""

    moves: float | None  # of a chain, or of the coldest rungs
    exchanges: float | None


@torch.no_grad()
def selection_shift(method: Method, trace: xr.DataTree) -> Selection | None:
    """Return by how much the log-ratio of moves that may be accepted is off, as minibatches are selected.

    A rule that rejects where it estimates a noise variance s^2 above v, from the minibatch of the log-ratio itself,
    keeps minibatches with a small s^2. Sample mean and sample variance have the correlation g / sqrt(k - 1), with
    skewness g and kurtosis k of the terms. With both normal, and E s^2 = S^2, the mean of the log-ratio given s^2 <= v
    is off by

        g / sqrt(k - 1) S phi(a) / Phi(a),    a = (v / S^2 - 1) / sqrt((k - 1) (1/m - 1/n)),

    without 1/n for minibatches with replacement. It changes sign with the direction of the move, as g does, so that the
    log density is tilted by about as much over the length of a move. Where moves are a tenth of a standard deviation
    long, a mean is off by up to ten times as many standard deviations.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        The root mean square over moves at some draws, and over exchanges of neighbouring rungs, weighted with Phi(a).
        None for rules that select no minibatches, for networks, moves with gradients, and if few draws were kept.
    """
    found = Selection(_shift(method, _moves(method, trace)), _shift(method, _exchanges(method, trace)))
    return None if found == (None, None) else found


def _shift(method: Method, pairs: Pairs | None) -> float | None:
    if pairs is None or pairs.rule.rejects_above is None:
        return None
    target = method.target
    if not (share := target.batches.error_share(pairs.m)):
        return None
    terms = _terms(method, pairs)
    terms = terms - terms.mean(1, keepdim=True)
    variance = terms.square().mean(1)
    by_chance = 6 * (1 / terms.shape[1] - 1 / target.n)  # of the square of the skewness, as of normal terms
    squared_skewness = (terms**3).mean(1).square() / variance**3 - by_chance
    kurtosis = (terms**4).mean(1) / variance**2
    noise = pairs.scale.double() ** 2 * variance * share / pairs.m
    a = (pairs.rule.rejects_above / noise - 1) / ((kurtosis - 1) * share / pairs.m).sqrt()
    log_kept = torch.special.log_ndtr(a)
    mills = (-a.square() / 2 - 0.5 * math.log(2 * math.pi) - log_kept).exp()
    squared = squared_skewness / (kurtosis - 1) * noise * mills.square()
    known = squared.isfinite() & log_kept.isfinite()
    kept = log_kept[known].exp()
    if int(known.sum()) < MIN_MOVES // 2 or not float(kept.sum()) > 0:
        return None
    return float(((kept * squared[known]).sum() / kept.sum()).clamp_min(0.0).sqrt())


def _terms(method: Method, pairs: Pairs) -> Tensor:
    """Return the terms of some data at each pair (R, k), float64, in parts that fit into memory."""
    target = method.target
    affordable = int(_SHARE * method.reads) // (target.differences.per_term * len(pairs.origin))
    count = min(target.n, _MAX_TERMS, max(_MIN_TERMS, affordable))
    rng = np.random.default_rng(derive_key(method.seed, "selection"))
    some = torch.from_numpy(np.sort(rng.choice(target.n, count, replace=False)))
    width = max(1, *(field[0].numel() for field in target.data.fields.values()))
    parts = [
        target.differences.terms(pairs.origin, pairs.candidate, part[None].to(target.device)).double()
        for part in some.split(max(1, _AT_ONCE // (width * len(pairs.origin))))
    ]
    return torch.cat(parts, 1)


def _moves(method: Method, trace: xr.DataTree) -> Pairs | None:
    kernel = method.kernel.of_a_chain
    rule, pairing = kernel.rule, kernel.pairing
    if rule is None or rule.rejects_above is None or pairing is None or pairing.m is None:
        return None
    if (some := moves(method, trace, _MAX_DECISIONS)) is None:
        return None
    scale = method.target.n / some.controls.temperature
    return Pairs(some.origin.theta, some.candidate, scale, rule, pairing.m)


def _exchanges(method: Method, trace: xr.DataTree) -> Pairs | None:
    """Return neighbouring rungs at some draws; None without a ladder."""
    kernel, target = method.kernel, method.target
    if not isinstance(kernel, ReplicaExchange):
        return None
    rule, m, chains = kernel.rule, kernel.pairing.m, method.shape.chains
    if rule.rejects_above is None or m is None or kernel.optimises or method.shape.thin is None:
        return None
    if is_network(target.model) or target.has_buffers or target.data.differs_by_chain:
        return None
    draws = some_draws(method, trace, np.arange(chains), _MAX_DECISIONS * kernel.rungs, fewest=chains)
    if draws is None:
        return None
    points = draws.to(device=target.device, dtype=method.dtype).unflatten(0, (-1, kernel.rungs))
    weight = target.n / torch.as_tensor(method.plan.collected_controls.temperature, device=target.device)
    weight = weight.view(-1, kernel.rungs, 1).expand(points.shape[:3])
    low, high = points[:, :-1].flatten(0, 2), points[:, 1:].flatten(0, 2)
    scale = (weight[:, :-1] - weight[:, 1:]).flatten()
    some = torch.from_numpy(some_coordinates(len(low), _MAX_DECISIONS)).to(target.device)
    return Pairs(low[some], high[some], scale[some], rule, m)
