"""Measurements: the bias with minibatches, judged of rules that declare none, and of a dynamics as steps shrink."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy import stats

from mhrun.check.subject import Subject, of_the_target
from mhrun.check.targets import Known, gaussian_mean
from mhrun.check.verdict import (
    ALPHA,
    DOUBTFUL,
    FAILS,
    HOLDS,
    MEASURED,
    NO_POWER,
    NONE,
    Verdict,
    Z,
    mean_and_error,
)
from mhrun.compiled import compile_loop
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.parts import Kernel
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.types import Controls

_LEVELS = (4, 8, 16)  # a dynamics' step sizes, as shares of the largest at which it is stable
# Tolerance for the variance extrapolated to a step size of 0, which has a third-order error, and for the variance and
# the mean with a rule that corrects for noise as if it were normal.
_TOLERATED = 0.02
_DOUBTFUL = 3.0  # standard errors
_SHARE = 0.25  # share of the steps in which chains reach their stationary distribution


@of_the_target("with minibatches")
def minibatches(subject: Subject, check_name: str) -> Iterator[Verdict]:
    """Variance and mean of the draws with minibatches, relative to the target's.

    It is judged if the rule is `exact`, and to 2 % if it `corrects_noise`; else it is measured.
    """
    known = gaussian_mean(subject.n)
    target = subject.target(known)
    kernel = subject.made(subject.n, subject.m, target)
    base = subject.n / subject.effective if kernel.decides else 1.0
    step = subject.step_for(kernel, known, target, base) / (1 if kernel.decides else _LEVELS[1])
    if not kernel.decides and _still(subject, kernel, target, known, step):
        yield Verdict(check_name, NONE, "it adds no noise: an optimiser")
        return
    chains = subject.whole(subject.chains // (20 if kernel.is_sequential else 8))
    draws, sizes = _draws(subject, kernel, target, known, chains, 300, step, base)
    if (draws == draws[:, :1]).all():
        yield Verdict(check_name, NO_POWER, f"no chain moves in {draws.shape[1]} steps of size {step:.2g}")
        return
    cold = subject.temperatures(chains) == 1
    scaled = (draws[cold] - known.centre[0]) / (known.scale * base**0.5)
    scaled = scaled[np.isfinite(scaled).any(1)]
    if len(scaled) < 2:
        yield Verdict(check_name, NONE, f"no chain had draws of its target at step {step:.2g}")
        return
    mean, mean_error = mean_and_error(np.nanmean(scaled, axis=1))
    ratio, error = mean_and_error(np.nanmean(scaled**2, axis=1))
    deviation = max(abs(ratio - 1) / error, abs(mean) / mean_error)
    finding = "biased" if deviation > Z else "perhaps biased" if deviation > _DOUBTFUL else "no bias seen"
    where = f"c = n/T = {subject.n / base:g} data" if base != 1 else "T = 1"
    tolerant = kernel.rule is not None and kernel.rule.corrects_noise and not kernel.rule.exact
    excess = max((abs(ratio - 1) - _TOLERATED) / error, (abs(mean) - _TOLERATED) / mean_error)
    if tolerant and deviation > Z >= excess:
        finding = f"biased by no more than the {_TOLERATED:.0%} allowed"
    detail = (
        f"variance {ratio:.3f} ± {error:.3f} of the target's, mean {mean:+.3f} ± {mean_error:.3f} of its sd: "
        f"{finding} (n = {subject.n:,}, {sizes:.3g} data a step, {where}, step {step:.2g})"
    )
    if subject.kind == "proposal":
        detail += "; with a correct proposal too, as Metropolis's rule reads minibatches here"
    is_exact = kernel.rule is not None and kernel.rule.exact  # which it declares for every minibatch size
    if not (is_exact or tolerant):
        yield Verdict(check_name, MEASURED, detail, (ratio - 1) / error)
        return
    yield _by_excess(
        check_name, detail, deviation if is_exact else excess, 2, error, 0.0 if is_exact else _TOLERATED
    )


@of_the_target("the target as steps shrink")
def nearing(subject: Subject, check_name: str) -> Iterator[Verdict]:
    """A dynamics on all data has the target as its stationary distribution in the limit of small steps.

    Its variance may be off by up to the `small_step_bias` that the dynamics declares, and by 2 % beyond.
    """
    known = gaussian_mean(30)
    kernel, target = subject.exact(known), subject.target(known)
    if kernel.decides:
        yield Verdict(check_name, NONE, "its kernel has an acceptance test")
        return
    step = subject.step_for(kernel, known, target)
    if _still(subject, kernel, target, known, step):
        yield Verdict(check_name, NONE, "it adds no noise: an optimiser")
        return
    chains = subject.whole(subject.chains // 4)
    cold = subject.temperatures(chains) == 1
    bias, errors = [], []
    for level in _LEVELS:
        draws, _ = _draws(subject, kernel, target, known, chains, 30 * level, step / level, 1.0)
        square = np.nanmean(((draws[cold] - known.centre[0]) / known.scale) ** 2, axis=1)
        ratio, error = mean_and_error(square[np.isfinite(square)])
        bias.append(ratio - 1)
        errors.append(error)
    weights = np.array([1.0, -6.0, 8.0]) / 3  # terms of first and second order in the step cancel
    limit, error = float(weights @ bias), float(np.sqrt(weights**2 @ np.square(errors)))
    detail = ", ".join(
        f"{b:+.3f} ± {e:.3f} at {step / level:.2g}" for b, e, level in zip(bias, errors, _LEVELS, strict=True)
    )
    detail = f"variance off by {detail}; by {limit:+.3f} ± {error:.3f} in the limit"
    # If the error is as large as the variance itself, the dynamics is unstable and nothing can be concluded.
    chain_kernel = kernel.of_a_chain
    declared_bias = chain_kernel.dynamics.small_step_bias if isinstance(chain_kernel, Unadjusted) else 0.0
    if declared_bias:
        detail += f", where up to {declared_bias:+.3g} is declared"
    beyond = abs(limit - float(np.clip(limit, min(0.0, declared_bias), max(0.0, declared_bias))))
    if Z * error >= 1:
        yield Verdict(check_name, FAILS, detail, limit / error)
        return
    yield _by_excess(check_name, detail, (beyond - _TOLERATED) / error, 1, error, _TOLERATED)


def _by_excess(
    check_name: str, detail: str, excess: float, statistics: int, error: float, tolerated: float
) -> Verdict:
    """Judge how far the worst of some statistics is beyond what is tolerated, in standard errors.

    Args:
        check_name: of the verdict.
        detail: what was found.
        excess: of the statistic that is furthest off.
        statistics: how many there are.
        error: the standard error of the variance.
        tolerated: the error of the variance that is tolerated.
    """
    p = min(1.0, statistics * 2 * float(stats.norm.sf(excess)))
    unseen = tolerated + float(stats.norm.isf(DOUBTFUL / (2 * statistics))) * error
    return Verdict(check_name, HOLDS if p > ALPHA else FAILS, detail, excess, p, unseen)


def _still(subject: Subject, kernel: Kernel, target: Target, known: Known, step: float) -> bool:
    """Return whether chains with a common start stay together on all data, as without noise."""
    exact = subject.make(known.n, known.n) if isinstance(kernel, MetropolisHastings) else subject.exact(known)
    chains = subject.whole(4)
    theta = np.tile(known.centre + known.scale, (chains, 1))
    trajectory = subject.follow(exact, subject.target(known), theta, 5, step, subject.temperatures(chains))
    return bool((trajectory.theta == trajectory.theta[:, :1]).all())


def _draws(
    subject: Subject,
    kernel: Kernel,
    target: Target,
    known: Known,
    chains: int,
    steps: int,
    step: float,
    base: float,
) -> tuple[np.ndarray, float]:
    """Return draws (C, S), with NaN for steps that are not draws, and the mean number of data per step."""
    temperature = subject.temperatures(chains, base)
    theta = known.draw(np.random.default_rng(derive_key(subject.seed, "measure")), temperature)
    first = int(_SHARE * steps)
    key = derive_key(subject.seed, "check")
    loop = compile_loop(kernel, target, key, 1) if subject.rungs() == 1 and kernel.decides else None
    if loop is not None:
        t = torch.from_numpy(temperature).expand(steps, -1).contiguous()
        with torch.no_grad():
            start = kernel.start(target, torch.from_numpy(theta), Draws(Streams(key, chains), 0))
            _, record = loop.advance(start, 1, Controls(torch.full_like(t, step), t, t))
        return record["theta"][:, first:, 0], float(record["batch_size"].mean())
    trajectory = subject.follow(kernel, target, theta, steps, step, temperature)
    draws = trajectory.theta[first:, :, 0].T.numpy()
    if trajectory.infos[0].valid is not None:
        draws = np.where(trajectory.stat("valid")[first:].T.numpy(), draws, np.nan)
    return draws, float(trajectory.stat("batch_size").double().mean())
