"""Checks of the stationary distribution of a kernel that reads all data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import special, stats

from mhrun.check.case import Case
from mhrun.check.results import (
    FAILS,
    HOLDS,
    NO_POWER,
    NONE,
    CheckResult,
    by_flows,
    by_paths,
    by_uniforms,
    distance,
    unless_still,
)
from mhrun.check.subject import Subject, of_the_target
from mhrun.check.targets import (
    N_TOSSED,
    Known,
    correlated,
    gaussian_mean,
    mixture,
    positive,
    tempered_likelihood,
    tossed,
)
from mhrun.check.trajectories import steps_about
from mhrun.kernels.stationary import is_declared_exact
from mhrun.parts import ARRIVALS, ESTIMATES
from mhrun.random import derive_key

# Numbers of steps and rounds are for kernels that accept about half of the shortest moves; lazy ones take more.
_STEPS = 15
_PLACES = 8  # along a path, in its second half, that are judged
_TOSSED = 4  # the same in a round of Geweke's test
_START_SDS = 4.0  # distance of the starting points from the mean, in standard deviations of each direction
_COMING = 200  # number of steps for that
_NEARER = 0.9  # share of the distance below which chains are on their way
_MORE = (1, 8)  # times as many steps, where they are too few
# Standard deviations of the target that the ends of chains from one point spread over, at least
_REACHED = 0.3
_ACROSS = 0.5  # standard deviations that chains must move in these steps: less shows no error
_MOVE = 0.2  # the same of a single move
_BINS = 8
_HOT = 4.0  # a temperature that is judged besides 1
_THINNED_DATA, _THINNED_T = 2_000, 100.0  # at which thinned rules read few of the data
# Factor of the step size of every other chain: at a single step size a wrong move can look right.
_SHORTER = 0.4
_ROUNDS = 8
_REFUSED = "every candidate is refused here; is the proposal for positive parameters only?"
_ACCEPTED_NOTHING = "this rule accepted nothing"
_NOT_EXACT = "its kernel has no acceptance test: see the target as steps shrink"


def reads_all(subject: Subject, known: Known) -> str | None:
    """Return why the kernel cannot be made exact, or None: with m = n every decision must use all n data."""
    case = subject.exact_case(known)
    kernel = case.kernel
    if not kernel.decides:
        return _NOT_EXACT
    if kernel.adapts:
        return "it never stops adapting and has no stationary distribution"
    if is_declared_exact(kernel):
        return None
    if kernel.rule is not None and kernel.rule.wants == ESTIMATES:
        return "it keeps estimates from data drawn with replacement, whose noise perturbs its target at any m"
    chains = subject.whole(20)
    temperature = subject.temperatures(chains)
    theta = known.draw(np.random.default_rng(subject.seed), temperature)
    step = subject.step_for(case)
    size = subject.follow(kernel, case.target, theta, 5, step, temperature).stat("batch_size")
    if bool((size == known.n).all()):
        return None
    return f"with m = n it still decides on {float(size.double().mean()):.3g} of {known.n} data: see with minibatches"


@of_the_target("invariance")
def invariance(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """Chains that start as draws of the target are draws of it after some steps: closed forms and quadrature."""
    yield from _all_stay(subject, check_name, [gaussian_mean(30), mixture(), correlated()], 1.0)


@of_the_target("invariance at T = 4")
def tempered(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """The same checks at temperature 4, of the whole posterior and of the likelihood only."""
    if subject.rungs > 1:
        yield CheckResult(check_name, NONE, "the rungs of a ladder have several temperatures: see invariance")
        return
    yield from _all_stay(subject, check_name, [gaussian_mean(30), correlated(), tempered_likelihood(4)], _HOT)
    rule = subject.exact(gaussian_mean(_THINNED_DATA)).rule
    if rule is not None and rule.wants == ARRIVALS:  # of few data they read all in most steps, and thin none
        yield from _all_stay(
            subject, f"invariance at T = {_THINNED_T:g}", [gaussian_mean(_THINNED_DATA)], _THINNED_T
        )


def _all_stay(subject: Subject, check_name: str, waiting: list[Known], base: float) -> Iterator[CheckResult]:
    """Judge targets; where every candidate of one is refused, take the one with positive parameters."""
    is_last = False
    while waiting:
        known = waiting.pop(0)
        title = f"{check_name}: {known.name}"
        if known.temper == "likelihood" and (reason := subject.refusal(known)):
            yield CheckResult(title, NONE, reason)
            continue
        result = _stays(subject, title, known, base)
        if result is not None:
            yield result
            if result.outcome != NONE:
                for period in subject.periods:  # which the trajectory has shown
                    yield _stays(subject, title, known, base, period) or result
            continue
        alternative = positive()
        uses_alternative = not is_last and not subject.refuses_all(subject.exact_case(alternative))
        if uses_alternative:
            yield CheckResult(title, NONE, f"{_REFUSED} See {alternative.name}.")
            waiting, is_last = [*waiting, alternative], True
        else:
            yield CheckResult(title, NO_POWER, _ACCEPTED_NOTHING if subject.kind == "rule" else _REFUSED)


def _stays(
    subject: Subject, title: str, known: Known, base: float, period: int | None = None
) -> CheckResult | None:
    """Judge whether draws of a target at a temperature remain draws of it; None if every candidate is refused.

    With a period, every other step is one of those with that period, which come too rarely in the usual steps.
    """
    if reason := reads_all(subject, known):
        return CheckResult(title, NONE, reason)
    case = subject.exact_case(known, base)
    kernel = case.kernel
    chains = subject.whole(subject.chains)
    temperature = subject.temperatures(chains, base)
    name = known.name if base == 1 else f"{known.name} at {base:g}"
    theta = known.draw(np.random.default_rng(derive_key(subject.seed, name)), temperature)
    step = subject.step_for(case)
    steps = _STEPS * (1 if known.model.dim == 1 else 2) * subject.times(case)
    short = subject.shorter(chains)
    sizes = step * np.where(short, _SHORTER, 1.0)
    numbers = steps if period is None else steps_about(period, steps)
    trajectory = subject.follow(kernel, case.target, theta, numbers, sizes, temperature, name=name)
    subject.count_periods(trajectory)
    ends = trajectory.theta[-1].numpy()
    if not trajectory.stat("accepted").any() and subject.refuses_all(case):
        return None
    share = float(trajectory.stat("accepted").double().mean())
    places = np.unique(np.linspace(steps // 2, steps - 1, _PLACES).round().astype(int))
    path = np.stack([known.uniforms(trajectory.theta[s].numpy(), temperature) for s in places])
    half = min((~short).sum(), short.sum())
    detail = f"{steps} steps of size {step:.2g} and {_SHORTER * step:.2g}, acceptance {share:.2f}"
    if kernel.rule is not None and kernel.rule.wants == ARRIVALS:
        everything = float((trajectory.stat("batch_size") == known.n).double().mean())
        detail += f", {everything:.0%} of the decisions on all data"
    if period is not None:
        title, detail = f"{title}, period {period}", f"every other step one with period {period:,}, {detail}"
    result = by_paths(title, [path[:, ~short][:, :half], path[:, short][:, :half]], detail)
    cold = ~short & (temperature == base)
    scale = known.scale * base**0.5
    return unless_still(result, distance(theta[cold], ends[cold], scale), _ACROSS, f"in {steps} steps")


@of_the_target("goes there")
def coming(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """Chains that start far out approach the mean and spread in all directions.

    Otherwise a kernel that never moves would pass all checks, and so would one that moves along a line.
    """
    case = subject.exact_case(correlated())
    if case.kernel.decides and subject.refuses_all(case):
        case = subject.exact_case(positive())
    kernel, known = case.kernel, case.known
    assert known.covariance is not None
    values, vectors = np.linalg.eigh(known.covariance)
    chains = subject.whole(400)
    temperature = subject.temperatures(chains)
    step = subject.step_for(case) / (1 if kernel.decides else 8)
    begin = np.tile(known.centre + _START_SDS * (values**0.5) @ vectors.T, (chains, 1))
    steps = _COMING * subject.times(case)
    cold = np.arange(chains) % subject.rungs == 0
    for more in _MORE:  # a kernel that moves one coordinate at a time takes longer
        trajectory = subject.follow(kernel, case.target, begin, more * steps, step, temperature)
        ends = ((trajectory.theta[-1, cold].numpy() - known.centre) @ vectors) / values**0.5
        end_distance, spread = float(np.abs(ends.mean(0)).max()), float(ends.std(0).min())
        if end_distance < _START_SDS / 2 and spread >= _REACHED:
            break
    steps *= more
    detail = (
        f"from {_START_SDS:g} standard deviations off in each of {known.model.dim} directions to "
        f"{end_distance:.3g} of them or less in {steps} steps of size {step:.2g}"
    )
    is_still = not kernel.decides and subject.adds_no_noise(case, step)
    reaches = spread >= _REACHED or is_still
    if not reaches:
        detail += f"; in one direction they end as they began, together ({spread:.2g}): moves do not reach it"
    outcome = HOLDS if end_distance < _START_SDS / 2 and reaches else FAILS
    if outcome == FAILS and end_distance < _NEARER * _START_SDS:
        outcome = NO_POWER
        detail += "; it is on its way, slowly in one direction: set a larger step_size"
    yield CheckResult(check_name, outcome, detail, end_distance)


@of_the_target("detailed balance")
def balance(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """Under the target as many chains move from one bin to another as back."""
    known = gaussian_mean(30)
    case = subject.exact_case(known)
    kernel = case.kernel
    if reason := reads_all(subject, known):
        yield CheckResult(check_name, NONE, reason)
        return
    if not kernel.reversible:
        yield CheckResult(
            check_name,
            NONE,
            f"{type(kernel).__name__} need not be reversible; with reversible = True it is checked",
        )
        return
    rng = np.random.default_rng(derive_key(subject.seed, check_name))
    temperature, step = subject.temperatures(subject.chains), subject.step_for(case)
    sizes = step * np.where(subject.shorter(len(temperature)), _SHORTER, 1.0)
    flows, moves, numbers = [], [], [1]
    long = ~subject.shorter(len(temperature)) & (temperature == 1)
    for round_ in range(_ROUNDS * subject.times(case)):
        theta, number = known.draw(rng, temperature), numbers[round_ % len(numbers)]
        trajectory = subject.follow(
            kernel,
            case.target,
            theta,
            range(number, number + 1),
            sizes,
            temperature,
            name=f"balance {round_}",
        )
        subject.count_periods(trajectory)
        numbers = [1, *(number for period in subject.periods for number in steps_about(period, 2))]
        ends = trajectory.theta[0].numpy()
        flows.append([_bins(known, place, temperature) for place in (theta, ends)])
        moves.append(np.stack([theta, ends])[:, long & (theta != ends).any(1)])
    before, after = np.concatenate(flows, axis=1)
    description = f"steps of size {step:.2g} and {_SHORTER * step:.2g}"
    result = by_flows(check_name, before, after, _BINS, description)
    origins, reached = np.concatenate(moves, axis=1)
    yield unless_still(result, distance(origins, reached, known.scale), _MOVE, "in an accepted move")


def _bins(known: Known, theta: np.ndarray, temperature: np.ndarray) -> np.ndarray:
    uniform = known.uniforms(theta, temperature)[:, 0]
    return np.nan_to_num(uniform * _BINS).astype(np.intp).clip(0, _BINS - 1)


@of_the_target("Geweke's joint test")
def geweke(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """Theta from its prior, data from theta, steps on the data, new data from theta, ... keep the joint distribution.

    Geweke (2004). Ten tosses are determined by the number of heads, so chains with equal data move together.
    """
    known = gaussian_mean(N_TOSSED)
    if subject.rungs > 1:
        yield CheckResult(check_name, NONE, "the chains of a ladder have different temperatures")
        return
    if reason := reads_all(subject, known):
        yield CheckResult(check_name, NONE, reason)
        return
    rng = np.random.default_rng(derive_key(subject.seed, check_name))
    theta = rng.logistic(size=subject.chains)
    kernels = [subject.made(N_TOSSED, N_TOSSED, tossed(0, subject.surrogate)) for _ in range(N_TOSSED + 1)]
    case = Case(kernels[0], known, subject.target(known))
    step = subject.step_for(case)
    steps = _TOSSED * subject.times(case)
    for round_ in range(4):
        begin = theta.copy()
        heads = rng.binomial(N_TOSSED, special.expit(theta))
        for s in range(N_TOSSED + 1):
            at = np.flatnonzero(heads == s)
            if len(at):
                trajectory = subject.follow(
                    kernels[s],
                    tossed(s, subject.surrogate),
                    theta[at, None],
                    steps,
                    step,
                    np.ones(len(at)),
                    name=f"geweke {round_} {s}",
                )
                theta[at] = trajectory.theta[-1, :, 0].numpy()
    p = special.expit(theta)
    joint = stats.beta.cdf(p, heads + 1, N_TOSSED - heads + 1)
    description = f"4 rounds of {steps} steps of size {step:.2g}, prior and theta given data"
    result = by_uniforms(check_name, np.column_stack([p, joint]), description)
    scale = float(2 * special.polygamma(1, N_TOSSED / 2 + 1)) ** 0.5  # of theta given as many heads as tails
    move = distance(begin[:, None], theta[:, None], scale)
    yield unless_still(result, move, _MOVE, f"in {steps} steps")
