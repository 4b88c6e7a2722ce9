"""The acceptance rates at which a Metropolis-Hastings kernel is efficient."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, expit

from mhrun.kernels.metropolis_hastings import MetropolisHastings
from mhrun.parts import Kernel

# 0.234 + 0.207 / D: 0.441 at D = 1 (Gelman, Roberts & Gilks 1996, Table 1, to within 0.015).
_ONE_DIMENSION = 0.207
_RANDOM_WALK, _LANGEVIN = 0.234, 0.574  # for large D, which proposals that declare none are assumed to have
_BARKER = 0.158 / 0.234  # Agrawal et al. (2023): most efficient random walk with Barker's rule
_FACTOR = 3.0
_TRAJECTORIES = 0.99


class Acceptance(NamedTuple):
    """Acceptance rates of a kernel."""

    best: float  # the most efficient one
    low: float  # below it, and above `high`, a run warns
    high: float


def efficient_acceptance(kernel: Kernel, dim: int) -> Acceptance | None:
    """Return the most efficient acceptance rate of a kernel and the range around it; None if there is none.

    - Random walk: 0.234 + 0.207 / D (Roberts, Gelman & Gilks 1997; Gelman, Roberts & Gilks 1996).
    - Langevin: 0.574 + 0.126 / D (Roberts & Rosenthal 1998 for large D; the second term is fitted, see
      `LangevinProposal`).
    - Reversible Langevin: 0.287 + 0.2 / D (fitted, see `ReversibleLangevinProposal`).
    - Hamiltonian: 0.8; 0.6 to 0.9 cost about the same (Betancourt, Byrne & Girolami 2014).
    - A proposal that declares none: as a random walk, and with gradients 0.574, see `is_assumed`.
    - With Barker's probability, as tests that correct for minibatch noise have it: 0.675 times as much (Agrawal, Vats,
      Latuszynski & Roberts 2023: 0.158 for a random walk).

    Efficiency depends little on the rate near its best value: the range reaches from a third of it to where a third as
    many candidates are rejected. That of trajectories ends at 0.99: their length, not only their step size, makes them
    efficient.

    Args:
        kernel: any kernel; one without an acceptance test, or that is a ladder, has no such rate.
        dim: number of parameters D.
    """
    if not isinstance(kernel, MetropolisHastings) or kernel.adapts or kernel.rungs > 1:
        return None
    if not kernel.proposal.ratio:
        return None
    best = kernel.proposal.best_acceptance
    if best is None:
        best = _LANGEVIN if kernel.proposal.gradients else _RANDOM_WALK
    excess = kernel.proposal.excess_acceptance
    if excess is None:
        excess = 0.0 if kernel.proposal.gradients else _ONE_DIMENSION
    best += excess / dim
    if kernel.rule.barker:
        best *= _BARKER
    high = _TRAJECTORIES if kernel.proposal.follows else 1 - (1 - best) / _FACTOR
    return Acceptance(best, best / _FACTOR, high)


def is_assumed(kernel: Kernel) -> bool:
    """Return whether the most efficient rate is assumed, because the kernel's proposal declares none."""
    return kernel.proposal is not None and kernel.proposal.best_acceptance is None


def noise_widening(noise: float, *, barker: bool = False, dim: float = math.inf) -> float:
    """Return by how much minibatch noise of a log-ratio widens the draws of a test that ignores it.

    With noise N(0, s^2) a log-ratio of r is accepted with probability a(r), the mean of that without noise over
    r + s z, and log a(r) - log a(-r) is r / T for small r, where T = a(0) / (2 a'(0)):

        (1/2 + g) / (2 g),  g = exp(s^2 / 2) Phi(-s)        Metropolis: a(r) = E min(1, exp(r + s z)),
        1 / (4 E[p (1 - p)]),  p = 1 / (1 + exp(-s z))       Barker: a(r) = E[1 / (1 + exp(-r - s z))],

    so that small moves sample at a temperature T times as high. Larger moves are less affected.

    The noise of small moves has a variance in proportion to their squared length L^2, where it is alike in all
    directions, and each move counts for its L^2. As T is concave in s^2, the mean of T is at most that at the mean of
    s^2 with these weights, which is E[L^4] / E[L^2]^2 = 1 + 2 / D times the mean of s^2 for normal moves in D
    dimensions.

    Args:
        noise: s, the standard deviation of the log-ratio over minibatches, of all moves.
        barker: whether the test has Barker's probability.
        dim: D; infinity for moves of one length.

    Returns:
        sqrt(T) - 1, the share by which standard deviations are too large.
    """
    noise *= math.sqrt(1 + 2 / dim)
    if barker:
        return math.sqrt(1 / (4 * _logistic_density(noise))) - 1
    g = 0.5 * float(erfcx(noise / math.sqrt(2)))  # erfcx(x) = exp(x^2) erfc(x)
    return math.sqrt((0.5 + g) / (2 * g)) - 1


def _logistic_density(noise: float) -> float:
    """Return E[p (1 - p)] with p = 1 / (1 + exp(-s z)) and s = `noise`, by the trapezoidal rule, exact to rounding."""
    if noise == 0:
        return 0.25
    widest = min(10 * noise, 40.0)  # beyond, the normal or the logistic density is 0 to rounding
    x, step = np.linspace(-widest, widest, 401, retstep=True)
    p = expit(x)
    normal = np.exp(-0.5 * (x / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
    return float((p * (1 - p) * normal).sum() * step)
