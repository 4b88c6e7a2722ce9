"""The design of AustereMH's sequential test: minibatch size and threshold for a bound on the error.

The test adds m data at a time, without replacement. It stops when the standardised distance z of the mean from the
threshold leaves [-G, G], where G is the upper epsilon quantile of the standard normal distribution. If the means are
jointly normal, z is a Markov chain that depends on the data only through

    mu_std = (mu - mu0) sqrt(N - 1) / sigma,

where mu and sigma are the mean and the standard deviation (divisor N) of the difference of log-likelihoods over all N
data, and mu0 is the threshold for mu. The error is the probability of stopping on the wrong side.

Source: Korattikara, Chen & Welling 2014, section 5.2 and supplements A and D. The grid of designs and the choice before
every test follow Seita et al. 2017, section 6.2 and supplement B.2.1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from mhrun.array_cache import kept
from mhrun.array_types import Float64Array
from mhrun.errors import Refusal


class Design(NamedTuple):
    """A sequential test that reads `m` more data per stage until one tail probability is below `epsilon`."""

    m: int
    epsilon: float


EPSILONS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2)
SIZES = (50, 100, 150, 200, 250, 300, 350, 400, 450, 500)
DESIGNS = tuple(Design(m, epsilon) for m in SIZES for epsilon in EPSILONS)

_CELLS = 100
_GONE = 1e-14  # remaining mass below which a walk has ended
_MU_AT_ONCE = 25  # values of mu_std; larger products would be split over BLAS threads and run slower


class Profile(NamedTuple):
    """Error and cost of one design with N data, as functions of |mu_std|, each (K,)."""

    mu_std: Float64Array
    error: Float64Array  # probability that the decision differs from that of all data
    # expected number of data: m times the stages, so the last stage counts as a whole one
    usage: Float64Array
    stages: Float64Array  # expected number of stages


def profile(n_data: int, m: int, epsilon: float, mu_std: npt.ArrayLike, cells: int = _CELLS) -> Profile:
    """Return error and usage of one design, by dynamic programming over the stages.

    Args:
        n_data: the number of data N.
        m: data added per stage.
        epsilon: tail probability below which the test stops, in (0, 0.5).
        mu_std: values (K,); their signs are ignored.
        cells: number of cells of [-G, G]; 100 give the released tables of Seita et al. These are too few where a step
            of z, about 2 sqrt(m/N), is smaller than a cell: for N = 1e6, m = 50 and epsilon 0.005 the error at 0 is
            0.199 with 100, 0.215 with 400 and 0.214 with 800.

    Raises:
        Refusal: `m` is not positive or `epsilon` is out of range.
    """
    if m < 1 or not 0 < epsilon < 0.5:
        raise Refusal(f"The design m = {m}, epsilon = {epsilon:g} is invalid: m >= 1 and 0 < epsilon < 0.5.")
    mu = np.abs(np.atleast_1d(np.asarray(mu_std, np.float64)))
    error, stages = np.zeros_like(mu), np.ones_like(mu)
    for start in range(0, len(mu), _MU_AT_ONCE):
        part = slice(start, start + _MU_AT_ONCE)
        for wrong, undecided in _walk(n_data, m, epsilon, mu[part], cells):
            error[part] += wrong
            stages[part] += undecided
    return Profile(mu, error, m * stages, stages)


def _walk(
    n_data: int, m: int, epsilon: float, mu: Float64Array, cells: int
) -> Iterator[tuple[Float64Array, Float64Array]]:
    """Yield, for each stage except the last, the mass (K,) that stops on the wrong side and the mass that continues.

    Given the previous z, the next is normal with mean shrink z + pull var and variance `var` (Korattikara et al.,
    supplement A). Up to a constant its density at c is

        exp(-shrink (c - z)^2 / (2 var))
        exp(shrink ((1 - shrink) z^2 / (2 var) - pull z)) exp(pull c - (1 - shrink) c^2 / (2 var)),

    so that one matrix, which depends on distances only, serves all values of mu_std. The continuing mass is distributed
    over the cells in proportion to that density, and sums to the probability of not stopping.
    """
    bound = -ndtri(epsilon)
    width = 2 * bound / cells
    centres = width * (np.arange(cells) + 0.5) - bound
    distance = np.abs(np.subtract.outer(np.arange(cells), np.arange(cells)))
    alive = np.arange(len(mu))
    # All walks start at z = 0; the first stage has shrink = 0 and does not depend on it.
    mass = np.full((len(mu), cells), 1 / cells)
    for stage in range(1, -(-n_data // m)):
        before, now = (stage - 1) * m / n_data, stage * m / n_data
        shrink = math.sqrt(before / now * (1 - now) / (1 - before))
        var = (now - before) / (now * (1 - before))
        pull = mu[alive, None] * math.sqrt(now / (1 - now))
        mean = shrink * centres + pull * var
        low, high = ndtr((-bound - mean) / math.sqrt(var)), ndtr((mean - bound) / math.sqrt(var))
        wrong, undecided = np.zeros_like(mu), np.zeros_like(mu)
        wrong[alive] = np.sum(mass * low, axis=1)
        undecided[alive] = continuing = np.sum(mass * (1 - low - high), axis=1)
        yield wrong, undecided

        kept = continuing >= _GONE
        if not kept.any():
            return
        near = np.exp(-shrink / (2 * var) * (width * np.arange(cells)) ** 2)[distance]
        square = (1 - shrink) / (2 * var) * centres**2
        linear = pull[kept] * centres
        mass = ((mass[kept] * np.exp(shrink * (square - linear))) @ near) * np.exp(linear - square)
        mass *= (continuing[kept] / mass.sum(axis=1))[:, None]
        alive = alive[kept]


@lru_cache(maxsize=8)
def conservative(n_data: int, bound: float) -> Design:
    """Return the design with the least usage at mu_std = 0 among those whose error there is below `bound`.

    The error is largest at 0, so the bound holds for every test (Korattikara et al. 2014, eq. 8).

    Raises:
        Refusal: no design of the grid has an error below `bound`.
    """
    best, least = None, math.inf
    for design in DESIGNS:
        error, stages = 0.0, 1.0
        # Error and usage only increase: a design is dropped at the stage where it exceeds the best.
        for wrong, undecided in _walk(n_data, *design, np.zeros(1), _CELLS):
            error, stages = error + float(wrong[0]), stages + float(undecided[0])
            if error >= bound or design.m * stages >= least:
                break
        if error < bound and design.m * stages < least:
            best, least = design, design.m * stages
    if best is None:
        least_error = float(profile(n_data, max(SIZES), min(EPSILONS), 0.0).error[0])
        raise Refusal(
            f"No design of AustereMH keeps its error below {bound:g} with {n_data:,} data; "
            f"take a bound of {math.ceil(least_error * 1000 + 0.5) / 1000:g} or more."
        )
    return best


def average(n_data: int, bound: float, trials: npt.ArrayLike, points: int = 200) -> Design:
    """Return the design with the least mean usage among those with a mean error below `bound` over the given moves.

    Korattikara et al. 2014, eq. 7:

        argmin E[E_u usage(mu_std)]  subject to  E|E_u +-error(mu_std)| <= bound,  mu_std = (L - log u) / s,

    with means over moves theta -> theta' of a trial run and over u. The error of the acceptance probability is signed,
    because a wrong decision is a rejection where mu_std > 0 and an acceptance where mu_std < 0.

    Args:
        n_data: the number of data N.
        bound: bound on the mean absolute error of the acceptance probability.
        trials: (P, 2), for each move the log-ratio L from all data, prior and proposal included, and
            s = (N/T) sd / sqrt(N - 1), sd the standard deviation (divisor N) of the differences of log-likelihoods.
        points: number of values of u.

    Raises:
        Refusal: trials of another shape, or no design of the grid has an error below `bound` on them.
    """
    moves = np.asarray(trials, np.float64)
    if moves.ndim != 2 or moves.shape[1] != 2 or not len(moves) or not (moves[:, 1] > 0).all():
        raise Refusal(
            "trials must be pairs (log-ratio from all data, its standard error at N data > 0), (P, 2)."
        )
    log_u = np.log((np.arange(points) + 0.5) / points)
    mu_std = torch.from_numpy((moves[:, :1] - log_u) / moves[:, 1:])
    error, usage = Designs.of(n_data).at(mu_std)
    wrong = torch.where(mu_std > 0, -error, error).mean(-1).abs().mean(-1)
    needs = usage.mean((-1, -2))
    if not bool((wrong < bound).any()):
        raise Refusal(
            f"No design of AustereMH keeps its mean error on these moves below {bound:g} with {n_data:,} data; "
            f"take a bound of {math.ceil(float(wrong.min()) * 1000 + 0.5) / 1000:g} or more."
        )
    return DESIGNS[int(needs.masked_fill(wrong >= bound, math.inf).argmin())]


def acceptance_error(
    mu_std: Float64Array, error: Float64Array, noise: float, rate: float, moves: int = 101, points: int = 400
) -> float:
    """Return the mean |a(L) - min(1, e^L)| over moves, with a(L) the acceptance probability of the test.

    a(L) - min(1, e^L) = E_u[-error(x) if x > 0 else error(x)],  x = (L - log u) / noise

    as in `average`. The log-ratios L of moves are taken as N(-v/2, v), as those of a random walk in many dimensions
    (Roberts, Gelman & Gilks 1997), with v from the acceptance rate 2 Phi(-sqrt(v)/2).

    Args:
        mu_std: increasing values from 0 (K,).
        error: probability of a wrong decision at each (K,).
        noise: (N/T) sd / sqrt(N - 1).
        rate: acceptance rate, in (0, 1).
        moves: number of values of L.
        points: number of values of u.
    """
    v = (2 * ndtri(rate / 2)) ** 2
    log_ratio = math.sqrt(v) * ndtri((np.arange(moves) + 0.5) / moves) - v / 2
    log_u = np.log((np.arange(points) + 0.5) / points)
    x = (log_ratio[:, None] - log_u) / noise
    wrong = np.interp(np.abs(x), mu_std, error)
    return float(np.abs(np.where(x > 0, -wrong, wrong).mean(1)).mean())


class Designs:
    """Error and usage of all `DESIGNS` for N data, on a grid of |mu_std|, and the choice of a design.

    Both are interpolated between grid values and constant beyond `reach`.
    """

    def __init__(self, error: Float64Array, usage: Float64Array, reach: float) -> None:
        """Take the tables, each (designs, values of |mu_std| from 0 to `reach`)."""
        self.reach = reach
        self.tables = torch.from_numpy(np.stack([error, usage]))
        self.sizes = torch.tensor([design.m for design in DESIGNS])
        self.epsilons = torch.tensor([design.epsilon for design in DESIGNS], dtype=torch.float64)

    @classmethod
    def of(cls, n_data: int, reach: float = 10.0, count: int = 101) -> Designs:
        """Return the tables for N data, from the cache folder if they exist there.

        Args:
            n_data: the number of data N.
            reach: the largest |mu_std| of the grid; Seita et al. use 10.
            count: number of grid values.

        Raises:
            Refusal: a grid of fewer than two values.
        """
        if count < 2 or not 0 < reach < math.inf:
            raise Refusal(
                f"A grid of {count} values up to {reach:g} is invalid; AustereMH uses 101 up to 10."
            )
        # The cache key contains a hash of this file, so that tables of another version are never read.
        state = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=8).hexdigest()
        grid = np.linspace(0, reach, count)

        def make() -> dict[str, Float64Array]:
            profiles = [profile(n_data, *design, grid) for design in DESIGNS]
            return {name: np.stack([getattr(p, name) for p in profiles]) for name in ("error", "usage")}

        tables = kept("austere", f"{n_data}-{reach}-{count}", state, make)
        return cls(tables["error"], tables["usage"], reach)

    def at(self, mu_std: Tensor) -> tuple[Tensor, Tensor]:
        """Return error and usage of every design, each (designs, ...), at mu_std (...)."""
        # The tables stay on the device of their last use.
        on_device = (table.to(mu_std.device) for table in (self.tables, self.sizes, self.epsilons))
        self.tables, self.sizes, self.epsilons = on_device
        last = self.tables.shape[-1] - 1
        # NaN gives no information about the test: assume the worst case, 0.
        place = mu_std.double().abs().nan_to_num(0.0, math.inf).clamp(max=self.reach) * (last / self.reach)
        low = place.long().clamp(max=last - 1)
        error, usage = torch.lerp(self.tables[..., low], self.tables[..., low + 1], place - low)
        return error, usage

    def error(self, mu_std: Tensor, bound: float) -> Tensor:
        """Return the error (K,) of the design that is chosen at each mu_std (K,)."""
        error, usage = self.at(mu_std)
        return error.gather(0, _best(error, usage, bound)[None])[0]

    def choose(self, mu_std: Tensor, bound: float) -> tuple[Tensor, Tensor]:
        """Return m (C,) int64 and epsilon (C,) float64 for the mu_std (C,) of each chain's test.

        The design has the least usage among those with an error below `bound` (Seita et al. 2017, AustereMH(NC)), or
        the least error if there is none.
        """
        best = _best(*self.at(mu_std), bound)
        return self.sizes[best], self.epsilons[best]


def _best(error: Tensor, usage: Tensor, bound: float) -> Tensor:
    """Return the index (C,) of the design to use, from error and usage (designs, C)."""
    meets_bound = error < bound
    loss = torch.where(meets_bound.any(0), usage.masked_fill(~meets_bound, math.inf), error)
    # Designs may tie, for example when one stage always suffices: take the first, on every device.
    return (loss == loss.amin(0)).cumsum(0).eq(0).sum(0)
