"""Noise of tests that grow their minibatches, on all data: by its minibatches a test may not know it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import xarray as xr

from mhrun.engine.diagnosis.moves import MIN_MOVES, moves
from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings
from mhrun.parts import SUPPLY

TERM_NOISE = "term_noise"  # in a summary
_MAX_DECISIONS = 100  # decisions that are looked at
_MAX_ROWS = 20_000_000  # data that these may read


class TermNoise(NamedTuple):
    """The standard deviation of the log-ratio over minibatches, where a test decides on a part of the data."""

    on_all_data: float
    by_minibatches: float  # as the test estimates it


@torch.no_grad()
def term_noise(method: Method, trace: xr.DataTree) -> TermNoise | None:
    """Return the noise of some decisions of a test, by the terms of all data and as the test estimates it.

    The terms d_i = log p(x_i | candidate) - log p(x_i | origin) have a variance S^2 over all data, and the log-ratio of
    a minibatch of b (n/T)^2 S^2 (1/b - 1/n). A test that chooses b by the variance of a minibatch has never seen rare
    data that are not in it, such as those of a rare category: it decides early, and neither its own estimate nor R-hat
    shows it.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        Root mean squares over the decisions at some draws that read a part of the data. None for other tests than those
        that grow their minibatches, for exact rules, for proposals with gradients, for networks, if few draws were
        kept, if nearly all decisions read all data, and of so many data that all cannot be evaluated at 20 draws.
    """
    kernel, target = method.kernel.of_a_chain, method.target
    if not isinstance(kernel, MetropolisHastings) or kernel.pairing.offers != SUPPLY or kernel.rule.exact:
        return None
    if (some := moves(method, trace, min(_MAX_DECISIONS, _MAX_ROWS // target.n))) is None:
        return None
    points, candidates = some.origin.theta, some.candidate
    _, contest = kernel.contest(target, some.origin, candidates, some.controls, some.draws)
    verdict = kernel.rule.decide(contest, some.draws)
    size = verdict.batch_size.double()
    on_part = (size < target.n) & verdict.log_ratio_var.isfinite()
    if int(on_part.sum()) < MIN_MOVES // 2:
        return None
    _, variance = target.differences.full_moments(points[on_part], candidates[on_part])
    exact = contest.scale[on_part].double() ** 2 * variance * (1 / size[on_part] - 1 / target.n)
    exact = exact[exact.isfinite()]
    if not len(exact):
        return None
    return TermNoise(float(exact.mean().sqrt()), float(verdict.log_ratio_var[on_part].double().mean().sqrt()))
