"""Tunes the step size of a Metropolis-Hastings kernel to an acceptance rate, and its minibatch to the noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.engine.pilot.chains import MOST_LEAPFROG_STEPS, WINDOW, PilotChains
from mhrun.engine.pilot.kernels import measuring_kernel, scaled_kernel
from mhrun.engine.pilot.minibatch import NOISE, minibatch_size
from mhrun.kernels import MetropolisHastings
from mhrun.kernels.acceptance import efficient_acceptance, is_assumed, noise_widening
from mhrun.numbers import rounded
from mhrun.pairing.thinned import Thinned
from mhrun.schedules.tuned import Tuned
from mhrun.store.pilot_facts import PilotFacts
from mhrun.types.scale import Scale

LIMIT = 60  # windows, at most
LEAST = 6
_POOLED = 4  # windows whose acceptance rate must agree
_SETTLED = 0.35  # of logit(acceptance), from the rate that is aimed at
_GAIN = 2.0
# The largest change of log step: a window in which all moves are rejected does not say how far off it is. It makes a
# change of 5 where a rate of 0.8 is aimed at, and would make one of 20 where 0.95 is.
_FARTHEST = 5.1
_LONGER = 1.25  # largest factor of the tuned step size at which a whole number of steps makes a trajectory
_SPARED = 2.0  # steps that it saves, at most
_MOST_ACCEPTED = 0.95
_QUIET = 0.9  # of the noise above which a run warns, with an open minibatch size
_ROUNDS = 4  # minibatch sizes that are tried, at most
_NEARLY = (0.75, 1.05)  # of the noise that is wanted
# Data in a step of a test with bounds from which on its pilot names HMC: as a share of all, and at least
_MANY_READ, _LEAST_READ = 0.05, 1_000


class Tuning(NamedTuple):
    """What tuning found."""

    step_size: Tensor  # (C,)
    theta: Tensor  # (C, D), where the chains are
    acceptance: float  # the rate that the step size is to be tuned to from here on
    m: int | None  # the minibatch size, if it was open
    leapfrog_steps: int | None  # of a trajectory, if their number was open
    # (C, S, D), float64, of the last half of the steps, if the proposal follows trajectories
    draws: Tensor | None
    facts: PilotFacts


def tune(
    method: Method, scale: Scale | None, theta: Tensor, temperature: Tensor, key: int, length: float | None
) -> Tuning:
    """Move the chains, and tune a step size for all of them to the best acceptance rate of the kernel.

    log step += gain (rate - aim) after each window, with a gain that falls as k^-0.6 once the rate is between 5 % and
    95 %, until the rate of the last windows agrees with the aim, or for `LIMIT` windows. If minibatch noise of the
    log-ratio has a standard deviation above 1 in a test that does not correct for it, or above the `noise_limit` of one
    that does, the step is made smaller.

    Where the minibatch size is open it is made so large that a run does not warn of noise (or, where the test corrects
    for it, has a standard deviation of 1): a size is found with a large minibatch for both points, the step size is
    tuned again at it, or the noise measured again for trajectories and a given step, and the size is changed
    accordingly.

    Args:
        method: whose kernel it is.
        scale: of its proposal, or None.
        theta: where chains begin (C, D).
        temperature: temperature of each chain (C,).
        key: of the random numbers.
        length: of trajectories, step size times their steps, if their number of steps is open: it changes with the
            step size.
    """
    base = method.kernel
    assert isinstance(base, MetropolisHastings)
    kernel = scaled_kernel(measuring_kernel(base, method), scale)
    wanted_rate = next((s.wanted for s in method.plan.schedules.values() if isinstance(s, Tuned)), None)
    best = efficient_acceptance(kernel, method.target.dim)
    aim = wanted_rate if wanted_rate is not None else best.best if best is not None else 0.3
    chains = PilotChains(method, kernel, theta, temperature, key, length)
    facts: PilotFacts = {"aim": aim}
    measured = _first_found(chains, aim)
    count = None
    if length is not None:
        count, measured = _whole_steps(chains, length, measured, wanted_rate)
    m = None
    if base.pairing.m_is_open:
        base = base if count is None else base.with_leapfrog_steps(count)
        m, chains, measured, error = _open_size(chains, base, scale, measured)
        facts |= error
    else:
        measured = _against_noise(chains, measured, wanted_rate)
    facts |= {
        "acceptance_found": measured.rate,
        "noise_sd": math.sqrt(measured.noise),
        "settled": measured.settled,
    }
    facts |= {"windows": measured.windows, "n_lik": chains.n_lik, "n_grad": chains.n_grad}
    how = "settled" if measured.settled else "not settled"
    outcome = f"{how if method.plan.is_open else 'measured'} in {measured.windows * WINDOW} steps"
    why = measured.why
    if wanted_rate is None and is_assumed(base):
        like = "Langevin moves" if base.proposal.gradients else "a random walk"
        why += f", the best rate of {like}, as {type(base.proposal).__name__} declares no best_acceptance"
    facts["why"] = f"{why}; {outcome}.{_advice_on_reading(chains, measured.windows)}"
    end = chains.state.evaluation.theta
    return Tuning(measured.step, end, measured.aim, m, count, chains.last_half, facts)


def _advice_on_reading(chains: PilotChains, windows: int) -> str:
    """Return a sentence if a test that reads single data by bounds reads so many that all data would be as well."""
    if not isinstance(chains.kernel.pairing, Thinned):
        return ""
    steps = windows * WINDOW * len(chains.temperature)
    data = chains.n_lik / (steps * chains.target.differences.per_term)
    if data < max(_LEAST_READ, _MANY_READ * chains.target.n):
        return ""
    return (
        f" A step reads about {rounded(data)} of {chains.target.n:,} data, as the bounds are wide here: hmc, which "
        "reads all of them, may take less time."
    )


class Step(NamedTuple):
    """A step size, and what was measured at it."""

    step: Tensor  # (C,)
    rate: float  # of acceptance
    aim: float  # the rate that it is to have from here on
    noise: float  # variance of the noise of the log-ratio
    settled: bool
    windows: int
    why: str


def _first_found(chains: PilotChains, aim: float) -> Step:
    """Return the step size with the rate `aim`; if the scale or m alone are open, the largest of those that count."""
    method = chains.method
    if not method.plan.is_open:
        step_size = method.plan.collected_controls.step_size.amax(0)
        rate, noise = chains.window(step_size)
        return Step(step_size, rate, aim, noise, True, 1, f"acceptance {rate:.2f}; {aim:.2f} is efficient")
    first = chains.kernel.proposal.first_step_size(method.target.dim)
    size_by_chain = _size_by_chain(chains)
    return search_step_size(chains, math.log(first), size_by_chain, aim, _largest(chains, size_by_chain))


def _largest(chains: PilotChains, size_by_chain: Tensor) -> float:
    """Return the largest log step, at which no chain has a longer one than has an effect."""
    largest = chains.kernel.proposal.largest_step
    return math.inf if largest == math.inf else math.log(largest / float(size_by_chain.max()))


def _size_by_chain(chains: PilotChains) -> Tensor:
    """Return by what the step sizes of the chains (C,) differ: random walks take longer steps on a flatter target."""
    return (
        torch.ones_like(chains.temperature) if chains.kernel.proposal.gradients else chains.temperature.sqrt()
    )


def _whole_steps(
    chains: PilotChains, length: float, measured: Step, wanted_rate: float | None
) -> tuple[int, Step]:
    """Return a number of leapfrog steps that make a trajectory of this length, and the step size that they need."""
    exact = length / float(measured.step.mean())
    # Of many steps a last one more or less changes little, and none need be longer.
    longer = min(_LONGER, 1 + _SPARED / max(exact, 1.0))
    count = max(1, min(MOST_LEAPFROG_STEPS, math.ceil(exact / longer)))
    if not chains.method.plan.is_open or count == MOST_LEAPFROG_STEPS:
        return count, measured
    step, rate = _of_length(chains, length, count, measured.step)
    measured = measured._replace(step=step, rate=rate)
    if wanted_rate is None:
        reason = _rounded(rate, measured.aim, count)
        measured = measured._replace(aim=min(_MOST_ACCEPTED, rate), why=reason)
    return count, measured


def _open_size(
    chains: PilotChains, base: MetropolisHastings, scale: Scale | None, measured: Step
) -> tuple[int, PilotChains, Step, PilotFacts]:
    """Return the minibatch size, the chains and step size at it, and the error that the noise makes, if it is known."""
    method, rule, keeps_batch = chains.method, base.rule, base.pairing.keeps_batch
    widens = not (rule.corrects_noise or rule.wants_terms or rule.exact or keeps_batch)
    most = NOISE
    if widens or keeps_batch or rule.corrects_noise:  # a run warns of what is above
        most = min(NOISE, _QUIET * (NOISE if keeps_batch else rule.noise_limit_of(math.inf)))
    searches = method.plan.is_open and chains.length is None
    chains.length = None  # the kernel has the number of leapfrog steps
    noise = chains.noise_of_points() if keeps_batch else measured.noise
    m = minibatch_size(method, chains.kernel, noise, most)
    for left in reversed(range(_ROUNDS)):
        chains = chains.with_kernel(scaled_kernel(base.with_m(m), scale))
        measured = _searched_again(chains, measured) if searches else _measured_again(chains, measured)
        # Noise makes draws wider, and the step with the same acceptance rate longer: then there is more of it.
        low, high = ((share * most) ** 2 for share in _NEARLY)
        size = minibatch_size(method, chains.kernel, measured.noise, most)
        if low <= measured.noise <= high or size == m or not left:
            break
        m = size
    sd = math.sqrt(measured.noise)
    reason = f"{measured.why}, and noise of the log-ratio with sd {sd:.2g} at m = {m:,}"
    error: PilotFacts = {}
    if widens and sd:
        reason += _wider(chains, sd)
        error["variance_error"] = (1 + _widening(chains, sd)) ** 2 - 1
    return m, chains, measured._replace(why=reason), error


def _searched_again(chains: PilotChains, measured: Step) -> Step:
    """Return what the chains find from the step size on that was measured with another minibatch."""
    size_by_chain = _size_by_chain(chains)
    last = math.log(float((measured.step / size_by_chain)[0]))
    found = search_step_size(chains, last, size_by_chain, measured.aim, _largest(chains, size_by_chain))
    return found._replace(windows=measured.windows + found.windows)


def _measured_again(chains: PilotChains, measured: Step) -> Step:
    """Return what the chains have at the same step size."""
    windows = [chains.window(measured.step) for _ in range(_POOLED)]
    rate, noise = (sum(values) / _POOLED for values in zip(*windows, strict=True))
    return measured._replace(rate=rate, noise=noise, windows=measured.windows + _POOLED)


def _against_noise(chains: PilotChains, measured: Step, wanted_rate: float | None) -> Step:
    """Return a smaller step size, if minibatch noise would dominate at this one, or be more than the rule corrects."""
    rule, sd = chains.kernel.rule, math.sqrt(measured.noise)
    if rule.wants_terms:
        return measured
    if rule.corrects_noise:
        limit = rule.noise_limit_of(chains.kernel.pairing.m or chains.target.n)
        if sd <= limit or not chains.method.plan.is_open or wanted_rate is not None:
            return measured
        step, rate, sd = _quieter(chains, measured.step, sd, _QUIET * limit)
        reason = (
            f"minibatch noise of the log-ratio has sd {sd:.2g} at it, and would be above {limit:.3g}, up to "
            f"which {type(rule).__name__} corrects for it, at a larger one; acceptance {rate:.2f}"
        )
        return measured._replace(step=step, rate=rate, aim=min(_MOST_ACCEPTED, rate), noise=sd**2, why=reason)
    if sd <= NOISE:
        if (
            sd <= rule.noise_limit_of(chains.kernel.pairing.m or math.inf)
            or chains.kernel.pairing.keeps_batch
        ):
            return measured
        reason = f"minibatch noise of the log-ratio has sd {sd:.2g}{_wider(chains, sd)}"
        return measured._replace(why=f"{measured.why}; {reason}")
    if chains.kernel.pairing.keeps_batch:
        reason = f"{measured.why}; minibatch noise has sd {sd:.2g}, which no step size lowers"
        return measured._replace(why=reason)
    if not chains.method.plan.is_open:
        return measured
    step, rate, sd = _quieter(chains, measured.step, sd, NOISE)
    instead = "" if wanted_rate is None else f" in place of {wanted_rate:.2f}"
    reason = (
        f"minibatch noise of the log-ratio has sd {sd:.2g} at it{_wider(chains, sd)}, and would dominate at a "
        f"larger one; acceptance {rate:.2f}{instead}"
    )
    return measured._replace(step=step, rate=rate, aim=min(_MOST_ACCEPTED, rate), noise=sd**2, why=reason)


def _widening(chains: PilotChains, sd: float) -> float:
    return noise_widening(sd, barker=chains.kernel.rule.barker, dim=chains.method.target.dim)


def _wider(chains: PilotChains, sd: float) -> str:
    return f", which makes the posterior wider, its sd by at most {_widening(chains, sd):.0%}"


def _why(rate: float, aim: float) -> str:
    return f"acceptance {rate:.2f}, aimed at {aim:.2f}"


def _rounded(rate: float, aim: float, count: int) -> str:
    steps = f"{count} leapfrog step{'s' * (count > 1)}"
    return f"aimed at acceptance {aim:.2f}; {rate:.2f} after rounding the trajectory to {steps}"


def _of_length(chains: PilotChains, length: float, count: int, step: Tensor) -> tuple[Tensor, float]:
    """Return the step size at which so many leapfrog steps have this length, and its acceptance rate."""
    exact = step * (length / (count * float(step.mean())))
    return exact, sum(chains.window(exact)[0] for _ in range(_POOLED)) / _POOLED


def search_step_size(
    chains: PilotChains, log_step: float, size_by_chain: Tensor, aim: float, largest: float = math.inf
) -> Step:
    """Return the step size with the rate `aim`, and what was measured in the last windows.

    Args:
        chains: that move.
        log_step: the logarithm of the step size that the search begins with, times `size_by_chain`.
        size_by_chain: by what the step sizes of the chains (C,) differ.
        aim: the acceptance rate.
        largest: the logarithm of the largest one, where the search ends if more is accepted than is aimed at.
    """
    rates, logs, noises = list[float](), list[float](), list[float]()
    decaying, at_largest = 0, False
    log_step = min(log_step, largest)
    while len(rates) < LIMIT:
        rate, noise = chains.window(math.exp(log_step) * size_by_chain)
        rates.append(rate)
        logs.append(log_step)
        noises.append(noise)
        pooled = sum(rates[-_POOLED:]) / min(len(rates), _POOLED)
        if decaying >= LEAST and abs(_logit(pooled) - _logit(aim)) < _SETTLED:
            break
        at_largest = len(logs) >= _POOLED and min(logs[-_POOLED:]) >= largest and pooled > aim
        if at_largest:
            break
        decaying += decaying > 0 or 0.05 < rate < max(0.95, 0.5 * (1 + aim))
        change = _GAIN * max(1, decaying) ** -0.6 * (rate - aim) / (aim * (1 - aim)) * 0.5
        log_step = min(log_step + min(max(change, -_FARTHEST), _FARTHEST), largest)
    tail = slice(-_POOLED, None)
    pooled = sum(rates[tail]) / len(rates[tail])
    noise = sum(noises[tail]) / len(noises[tail])
    step = math.exp(sum(logs[tail]) / len(logs[tail])) * size_by_chain
    settled, why = abs(_logit(pooled) - _logit(aim)) < _SETTLED, _why(pooled, aim)
    if at_largest:
        settled, aim, why = True, min(_MOST_ACCEPTED, pooled), f"acceptance {pooled:.2f} at the largest step"
    return Step(step, pooled, aim, noise, settled, len(rates), why)


def _quieter(chains: PilotChains, step: Tensor, sd: float, limit: float) -> tuple[Tensor, float, float]:
    """Return a step size at which the noise has about a standard deviation, the acceptance rate and the noise."""
    rate = 0.0
    for _ in range(4):
        step = step / max(1.0, sd / limit)
        measurements = [chains.window(step) for _ in range(2)]
        rate = sum(rate for rate, _ in measurements) / 2
        sd = math.sqrt(sum(noise for _, noise in measurements) / 2)
        if sd < 1.1 * limit:
            break
    return step, rate, sd


def _logit(rate: float) -> float:
    rate = min(max(rate, 1e-3), 1 - 1e-3)
    return math.log(rate) - math.log1p(-rate)
