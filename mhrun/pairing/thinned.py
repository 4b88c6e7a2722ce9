"""Poisson arrivals at single data whose terms are bounded."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.native import THINNED, NativePairing
from mhrun.native.forms import SLACK
from mhrun.numbers import whole_number
from mhrun.pairing.rescoring import Rescoring
from mhrun.parts import ARRIVALS
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Arrivals, Evaluation, Events

_GUESS = 100  # data of a step, for plans


class Thinned(Rescoring):
    """Single data at the arrivals of a Poisson process, datum i in proportion to the bound of its term.

    The rule thins the arrivals (TunaMH, PoissonMH, SMH, MH-SS). With such a rule the target is the stationary
    distribution whatever the number of data read, provided that the model's bounds hold: a violation is counted, and
    the run stops. Two evaluations per arrival; with a surrogate, three.

    A proposal that needs gradients gets them from a second minibatch, drawn independently of both points and of the
    arrivals; g(theta) and g(theta') are on the same data. Given that minibatch the step is a Metropolis-Hastings step,
    and the target stays invariant (Yuan & Wang 2024; with TunaMH, Tuna-SGLD). With a surrogate these gradients have it
    as a control variate.

    Args:
        gradient_m: size of that minibatch; None: a proposal with gradients is refused.

    Raises:
        Refusal: a size below 1.
    """

    offers = ARRIVALS
    stationary = "tempered"
    rounds = 4

    def __init__(self, gradient_m: int | None = None) -> None:
        self.gradient_m = None if gradient_m is None else whole_number("gradient_m", gradient_m, least=1)

    def refuses(self, target: Target) -> str | None:
        """Return why the target is incompatible, or None: its model must have bounds."""
        if target.transforms is not None:
            return "bounds hold for fixed data: leave out the transforms of the data."
        if self.gradient_m is not None and (reason := target.batches.refuses(self.gradient_m)):
            return reason
        return target.bounded.refuses()

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the stored evaluation, with a gradient on a fresh minibatch if one is needed."""
        if grad_temperature is None:
            return kept
        assert self.gradient_m is not None
        return _with_gradient(target, kept, target.batches.draw(draws, self.gradient_m), grad_temperature)

    def reads(self, target: Target) -> int:
        """Return a guess; the number of arrivals depends on the step size."""
        return 2 * min(target.n, _GUESS)

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Bounded]:
        """Return the candidate, with a gradient on the origin's minibatch if one is needed, and the arrivals."""
        candidate = target.prior(theta)
        if grad_temperature is not None:
            assert origin.batch is not None
            candidate = _with_gradient(target, candidate, origin.batch, grad_temperature)
        return candidate, Bounded(target, origin.theta, theta, draws)

    def native(self) -> NativePairing | None:
        """Return the form of this pairing in a compiled loop; None with gradients."""
        return NativePairing(THINNED, None) if self.gradient_m is None else None


def _with_gradient(target: Target, point: Evaluation, index: Tensor, temperature: Tensor) -> Evaluation:
    """Return the point with its gradient on the minibatch `index` (C, m)."""
    grad = target.gradients.reduced(point.theta, index, temperature)
    return point._replace(grad=grad, batch=index, n_grad=target.gradients.per_datum * index.shape[-1])


class Bounded(Arrivals):
    """See `mhrun.types.Arrivals`."""

    def __init__(self, target: Target, origin: Tensor, candidate: Tensor, draws: Draws) -> None:
        self.n = target.n
        self.known = target.differences.known(origin, candidate)
        self.violations = torch.zeros(len(origin), dtype=torch.int32, device=origin.device)
        self.n_lik_overhead = torch.zeros(len(origin), dtype=torch.int64, device=origin.device)
        self._read_all = torch.zeros(len(origin), dtype=torch.bool, device=origin.device)
        self._target = target
        self._origin, self._candidate, self._draws = origin, candidate, draws
        self._width = target.bounded.bounds.width(origin, candidate)
        self.total = self._width * target.bounded.table.total

    def arrive(self, rows: Tensor, since: Tensor, start: int, stop: int, until: Tensor) -> Events:
        """Return arrivals start..stop of chains `rows` (R,)."""
        if start == 0:  # drawn for all chains, and for some steps at once
            marks = [mark[rows] for mark in self._draws.arrivals(self.n, 0, stop)]
        else:
            marks = list(self._draws.arrivals(self.n, start, stop, rows))
        slot, coin, gap, uniform = marks
        time = torch.cat((since[:, None], gap), -1).cumsum(-1)[:, 1:]
        in_time = time <= until[:, None]
        longest = min(time.shape[1], int(in_time.sum(-1).max()) + 1)  # the others' arrivals come too late
        time, in_time, slot, coin, uniform = (v[:, :longest] for v in (time, in_time, slot, coin, uniform))
        cut, other, _ = self._target.bounded.table
        index = torch.where(coin < cut[slot], slot, other[slot])
        bound = self._target.bounded.bounds.weights[index] * self._width[rows, None]
        term, rounding = self._target.bounded.terms(self._origin[rows], self._candidate[rows], index)
        exceeds = in_time & (term.abs() > bound * (1 + SLACK) + rounding)
        self.violations[rows] += exceeds.sum(-1, dtype=torch.int32)
        term = torch.minimum(torch.maximum(term, -bound), bound)
        return Events(time, torch.where(in_time, term, 0.0), bound, uniform)

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean of the terms over all data (R,)."""
        self._read_all[rows] = True
        return self._target.differences.full_mean(self._origin[rows], self._candidate[rows])

    def evaluated(self, size: Tensor) -> Tensor:
        """Return how many log-likelihoods the decisions (C,) cost."""
        return torch.where(self._read_all, 2 * self.n, self._target.differences.per_term * size)
