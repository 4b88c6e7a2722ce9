"""Does a dynamics sample its target as steps shrink, at any noise temperature and with gradient noise?

Covariances are extrapolated to a step size of 0. The effect of gradient noise is compared with the `bias.noise` that
the dynamics declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import stats

from mhrun.check.case import Case
from mhrun.check.draws import CaseDraws, draw
from mhrun.check.results import (
    DOUBTFUL,
    FAILS,
    NO_POWER,
    NONE,
    CheckResult,
    Z,
    by_excess,
    distance,
    mean_and_error,
    unless_still,
)
from mhrun.check.subject import Subject, of_the_target
from mhrun.check.targets import DIM, Known, correlated, gaussian_mean
from mhrun.kernels import Unadjusted
from mhrun.target import Target

_LEVELS = (4, 8, 16)  # how many times as short steps as the largest at which a dynamics is stable
_TOLERATED = 0.02  # error of the variance extrapolated to a step size of 0, which has a third-order error
_COLD = 0.25  # the noise temperature that is judged besides 1
# Errors at the shortest steps from which on terms beyond the second order may matter to their limit, and how many times
# as short steps are then.
_EXTRAPOLATED, _SHORTER = 0.25, (4, 16)
# How many times as short steps as at 1, at most, for a dynamics that is stable at shorter ones only.
_SHORTEST_OF_COLD = 8
_INDEPENDENT = 1.0  # standard deviations that chains must move in a run; 1.4 if they forget where they began
_ADDED = 0.2  # of the temperature: what gradient noise is to add by the declared gain
_OF_GAIN = 0.25  # of it: how much more is tolerated


@of_the_target("the target as steps shrink")
def nearing(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """A dynamics on all data has the target as its stationary distribution in the limit of small steps.

    The target is a correlated normal distribution in six dimensions, and means, variances and covariances are judged. A
    variance may be off by up to the `bias.in_small_steps` that the dynamics declares, and all of them by 2 % beyond, or
    2 % of a standard deviation.
    The error at the shortest steps must also be less than half of that at the longest, which are four times as long:
    an error that steps do not change is seen with less noise than in the limit.
    """
    yield _small_steps(subject, check_name, 1.0)


@of_the_target("noise temperature")
def temperature(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """At a noise temperature of 1/4 the variance of a normal target is 1/4 of that at 1, as steps shrink.

    The temperature of the target stays 1, but on a ladder, whose exchanges it enters.
    """
    yield _small_steps(subject, check_name, _COLD)


def _small_steps(subject: Subject, check_name: str, temperature: float) -> CheckResult:
    """Judge mean and covariance of a dynamics in the limit of small steps, at a noise temperature."""
    case = subject.exact_case(correlated())
    if reason := _no_dynamics(subject, case):
        return CheckResult(check_name, NONE, reason)
    if subject.rungs > 1:
        case = case.at(temperature)
    name = "check" if temperature == 1 else check_name
    levels = _at_levels(subject, case, temperature, name)
    for shorter in _SHORTER if subject.step_size is None else ():
        if not levels.are_far:
            break
        levels = _at_levels(subject, case, temperature, name, shorter)
    dynamics = case.kernel.of_a_chain.dynamics
    declared_bias = 0.0 if dynamics is None else dynamics.bias.in_small_steps
    limit = _limit(levels, declared_bias)
    worst = int(np.fmax(limit.excess, limit.excess_of_shortest).argmax())
    excess = float(np.fmax(limit.excess, limit.excess_of_shortest)[worst])
    count = len(limit.off)
    shown = worst if 2 * count * 2 * stats.norm.sf(excess) <= DOUBTFUL else 0
    detail = _describe_levels(levels, limit, shown)
    if temperature != 1:
        detail = f"at temperature {temperature:g} {detail}"
    if declared_bias:
        detail += f", where up to {declared_bias:+.3g} is declared"
    if not np.isfinite(limit.off).all():
        return CheckResult(check_name, FAILS, detail, float(limit.off[0] / limit.error[0]))
    if Z * limit.error[0] >= 1 and excess < Z:
        return CheckResult(
            check_name,
            NO_POWER,
            "chains differ so much that an error as large as the variance would not show: the dynamics is hardly "
            "stable at these steps (set a smaller step_size), or forgets its start too slowly (a larger one), or there "
            f"are too few chains ({detail})",
            float(limit.off[0] / limit.error[0]),
        )
    verdict = by_excess(check_name, detail, excess, 2 * count, float(limit.error[0]), _TOLERATED)
    if verdict.p is not None and verdict.p <= DOUBTFUL:  # it fails or is repeated, however little chains move
        stays = limit.excess_of_shortest[worst] > limit.excess[worst]
        return verdict._replace(detail=detail + "; it does not fall with the step" * bool(stays))
    return unless_still(verdict, levels.moved, _INDEPENDENT, "in a run")


class _Levels(NamedTuple):
    """By how much moments are off, see `_moments`, at the step sizes of `_LEVELS`."""

    steps: list[float]
    off: np.ndarray  # (K, levels)
    errors: np.ndarray  # (K, levels)
    moved: float  # how far chains move in a run, at the level where they move least

    @property
    def are_far(self) -> bool:
        """Whether an error falls with the step and is large at the shortest: too far from 0 to extrapolate."""
        far = np.abs(self.off[:, -1]) > _EXTRAPOLATED
        return bool((far & (np.abs(self.off[:, 0]) > 2 * np.abs(self.off[:, -1]))).any())


def _at_levels(subject: Subject, case: Case, temperature: float, name: str, shorter: int = 1) -> _Levels:
    """Run chains at each level, with random numbers of this name.

    `shorter`: by what steps are shorter and runs have more of them.
    """
    known = case.known
    step = subject.step_for(case.at(1.0))
    if temperature != 1 and subject.step_size is None:
        # Stable at this temperature too. One that ignores it has the right variance at no step but almost 0.
        colder = subject.step_for(case.at(temperature))
        step = max(colder, step / _SHORTEST_OF_COLD)
    chains = subject.whole(subject.chains // 2)
    is_cold = subject.temperatures(chains) == 1
    at_levels, moves = [], []
    levels = [shorter * level for level in _LEVELS]
    for level in levels:
        draws = draw(subject, case, chains, 30 * level, step / level, temperature / case.base, name)
        moments = _moments(draws, is_cold, known, temperature)
        at_levels.append([mean_and_error(column) for column in moments.T])
        moves.append(_moved(draws, is_cold, known, temperature))
    off, errors = np.array(at_levels).transpose(2, 1, 0)
    return _Levels([step / level for level in levels], off, errors, min(moves))


class _Limit(NamedTuple):
    """By how much moments are off in the limit of small steps, each (K,)."""

    off: np.ndarray
    error: np.ndarray
    excess: np.ndarray  # beyond what is declared and tolerated, in standard errors
    excess_of_shortest: np.ndarray  # the same of what would remain if errors did not fall with the step


def _limit(levels: _Levels, declared_bias: float) -> _Limit:
    weights = np.array([1.0, -6.0, 8.0]) / 3  # terms of first and second order in the step cancel
    limit, error = levels.off @ weights, np.sqrt(levels.errors**2 @ weights**2)
    declared = _PER_VARIANCE * declared_bias
    low, high = np.minimum(declared, 0.0), np.maximum(declared, 0.0)

    def beyond(value: np.ndarray) -> np.ndarray:
        return np.abs(value - value.clip(low, high))

    # To first order in the step the error at the shortest steps is a quarter of that at the longest.
    remains = beyond(levels.off[:, -1]) - beyond(levels.off[:, 0]) / 2 - _TOLERATED
    error_of_shortest = np.hypot(levels.errors[:, -1], levels.errors[:, 0] / 2)
    return _Limit(limit, error, (beyond(limit) - _TOLERATED) / error, remains / error_of_shortest)


def _describe_levels(levels: _Levels, limit: _Limit, moment: int) -> str:
    at_levels = ", ".join(
        f"{off:+.3f} ± {error:.3f} at {step:.2g}"
        for off, error, step in zip(levels.off[moment], levels.errors[moment], levels.steps, strict=True)
    )
    in_limit = f"{limit.off[moment]:+.3f} ± {limit.error[moment]:.3f}"
    return f"{_MOMENTS[moment]} off by {at_levels}; by {in_limit} in the limit"


_PAIRS = np.triu_indices(DIM, 1)
_MOMENTS = (
    "variance",
    *(f"variance in direction {d + 1} of {DIM}" for d in range(DIM)),
    *(f"covariance of directions {i + 1} and {j + 1} of {DIM}" for i, j in zip(*_PAIRS, strict=True)),
    *(f"mean in direction {d + 1} of {DIM}" for d in range(DIM)),
)
# By how much of its `bias.in_small_steps` a dynamics may be off in each: in a direction between two principal axes, the
# covariance is half of what their variances differ by.
_PER_VARIANCE = np.repeat([1.0, 0.0], [1 + DIM, len(_PAIRS[0]) + DIM])


def _moments(draws: CaseDraws, is_cold: np.ndarray, known: Known, temperature: float) -> np.ndarray:
    """Return for each cold chain by how much moments are off, (C, K), in standard deviations of the target and squares.

    Those along the principal axes of the target: the mean variance, the variances, the covariances and the means, as in
    `_MOMENTS`. Second moments are about the target's mean, and hardly see that of the chain.
    """
    assert known.covariance is not None
    values, vectors = np.linalg.eigh(known.covariance * temperature)
    z = ((draws.theta[is_cold] - known.centre) @ vectors) / values**0.5
    is_valid = np.isfinite(z).all(-1, keepdims=True)
    z = np.where(is_valid, z, 0.0)
    count = is_valid.sum(1)  # (C, 1)
    with np.errstate(invalid="ignore"):  # NaN without a valid draw
        products = z.swapaxes(1, 2) @ z / count[..., None]  # (C, D, D)
        means = z.sum(1) / count
    variances = np.einsum("cdd->cd", products) - 1
    covariances = products[:, *_PAIRS]
    moments = np.column_stack([variances.mean(1), variances, covariances, means])
    return moments[np.isfinite(moments).all(1)]


@of_the_target("gradient noise")
def gain(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """Gradient noise of variance V adds at most c e V / 2 to the temperature of a dynamics that declares the gain c.

    V is such that c e V / 2 is a fifth of the temperature. The variances with and without the noise are compared chain
    by chain, with the same random numbers. A quarter more is tolerated, as the formula is of first order.
    """
    case = subject.exact_case(gaussian_mean(30))
    if reason := _no_dynamics(subject, case):
        yield CheckResult(check_name, NONE, reason)
        return
    kernel, known = case.kernel, case.known
    if not isinstance(kernel, Unadjusted):
        yield CheckResult(check_name, NONE, "it is measured of a dynamics alone, not on a ladder")
        return
    declared = kernel.dynamics.bias.noise
    if not declared or not 0 < declared < np.inf:
        yield CheckResult(check_name, NONE, "it declares no positive bias.noise")
        return
    step = subject.step_for(case) / _LEVELS[-1]
    noise = 2 * _ADDED / (declared * step)
    noisy = Target(known.model, known.data, surrogate=subject.surrogate, gradient_noise=noise)
    chains = subject.whole(subject.chains // 8)
    is_cold = np.ones(chains, dtype=bool)
    both = [
        draw(subject, each, chains, 30 * _LEVELS[-1], step) for each in (case, case._replace(target=noisy))
    ]
    plain, raised = (_mean_squares(draws.theta[is_cold], known) for draws in both)
    change = raised - plain
    added, error = mean_and_error(change[np.isfinite(change)])
    detail = (
        f"noise of variance {noise:.3g} adds {added:.3f} ± {error:.3f} to the temperature at step {step:.2g}; "
        f"bias.noise = {declared:.3g} declares {_ADDED:g}"
    )
    excess = (added - (1 + _OF_GAIN) * _ADDED) / max(error, 1e-300)
    verdict = by_excess(check_name, detail, excess, 1, error, 0.0)._replace(unseen=None)
    if verdict.p is not None and verdict.p <= DOUBTFUL:
        yield verdict._replace(detail=f"{detail}: it is about {declared * added / _ADDED:.2g}")
        return
    moved = min(_moved(draws, is_cold, known, 1.0) for draws in both)
    yield unless_still(verdict, moved, _INDEPENDENT, "in a run")


def _no_dynamics(subject: Subject, case: Case) -> str | None:
    """Return why a check of a dynamics does not apply to a kernel, or None."""
    if case.kernel.decides:
        return "its kernel has an acceptance test"
    if subject.adds_no_noise(case, subject.step_for(case)):
        return "it adds no noise: an optimiser"
    return None


def _mean_squares(theta: np.ndarray, known: Known) -> np.ndarray:
    """Return the mean square distance of draws (C, S, D) from the mean, relative to the target's variance, (C,)."""
    scaled = (theta[..., 0] - known.centre[0]) / known.scale
    mean: np.ndarray = np.nanmean(scaled**2, axis=1)
    return mean


def _moved(draws: CaseDraws, is_cold: np.ndarray, known: Known, temperature: float) -> float:
    """Return how far cold chains are from their start at the end, in standard deviations at a temperature."""
    begin, end = draws.ends[:, is_cold]
    return distance(begin, end, known.scale * temperature**0.5)
