"""Warnings after a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from mhrun.data.no_data import has_no_data
from mhrun.diagnostics.chains import ESS
from mhrun.diagnostics.ladders import exchange_rates
from mhrun.engine.diagnosis.outside import OUTSIDE
from mhrun.engine.diagnosis.visits import BEYOND, VISITS
from mhrun.engine.method import Method
from mhrun.engine.pilot.sentences import pilot_warnings
from mhrun.engine.warnings.flat_regions import flat_region_warnings
from mhrun.engine.warnings.noise import (
    decision_warnings,
    excess_warnings,
    exchange_noise_warnings,
    kinetic_warnings,
    mean_warnings,
    narrow_warnings,
    noise_warnings,
    selection_warnings,
    term_warnings,
)
from mhrun.errors import raised_in, reason_of
from mhrun.kernels.acceptance import efficient_acceptance
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.kernels.stationary import samples, varies_temperature
from mhrun.models.parameters import parameters_of
from mhrun.numbers import rounded
from mhrun.target import Target
from mhrun.target.function_space import is_network

_SHARE_ON_ALL_DATA = 0.1  # share of decisions on all data above which a run warns
# Difference of logit(acceptance) from the rate that tuning aimed at, above which it had not settled.
_SETTLED = 1.0
_CHANCE = 4.0  # standard errors of an acceptance rate, in the same unit, that are no sign of it
_NEARLY = 0.9  # of the largest step of a proposal
_GROUPS = 3  # in the smallest model of groups: a parameter for each
# Share of exchanges below which a run warns, the fewest proposed that show it, and the fewest of which none was made:
# one in ten would make none of 30 with probability 4 %.
_RARE, _JUDGED, _NONE_OF = 0.01, 100, 30


def warnings_of(method: Method, summary: Mapping[str, Any]) -> list[str]:
    """Return one line per warning, from the summary of a finished method and from its pilot.

    That of an improper posterior is first, because nothing settles there.
    """
    of_run = _surviving_warnings(method, run_warnings(method, summary))
    of_pilot = pilot_warnings(method, summary.get(VISITS), summary.get(BEYOND))
    is_cause = method.pilot is not None and "flat_along" in method.pilot
    return [*of_pilot, *of_run] if is_cause else [*of_run, *of_pilot]


def _surviving_warnings(method: Method, lines: Iterator[str]) -> list[str]:
    """Return lines, with one on the exception that ends them: no draws are lost for it."""
    found: list[str] = []
    try:
        found.extend(lines)  # those before the exception are kept
    except Exception as error:
        found.append(
            f"{method.name}: warnings may be missing ({reason_of(error)}; {raised_in(error)}); please report it."
        )
    return found


def run_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per warning, from the summary of a finished method."""
    yield from _full_batch_warnings(method, summary)
    stopped = stopped_count(method, summary)
    yield from _movement_warnings(method, summary, stopped)
    yield from _outside_warnings(method, summary)
    yield from _temperature_warnings(method, summary)
    if method.plan.lost_cycles:
        yield f"{method.name}: {method.plan.lost_cycles}."
    if not stopped:  # a chain that stopped exchanges no state
        yield from _exchange_warnings(method, summary)
    yield from flat_region_warnings(method, summary)
    yield from _trajectory_warnings(method, summary)
    yield from _nan_warnings(method, summary)
    yield from _tuning_warnings(method, summary)
    yield from noise_warnings(method, summary)
    yield from selection_warnings(method, summary)
    yield from narrow_warnings(method, summary)
    yield from excess_warnings(method, summary)
    yield from mean_warnings(method, summary)
    yield from kinetic_warnings(method, summary)
    yield from decision_warnings(method, summary)
    yield from term_warnings(method, summary)
    if not stopped:
        yield from _validity_warnings(method, summary)


def _full_batch_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if a sequential test decides on all data, at its first minibatch or in many steps."""
    shape = method.shape
    all_data = float(np.sum(summary["totals"]["sum_all_data"])) / (shape.chains * shape.steps)
    rule = method.kernel.of_a_chain.rule
    first = None if rule is None else rule.first_batch
    if method.kernel.is_sequential and first is not None and first >= method.target.n:
        yield (
            f"{method.name}: the first minibatch, m = {first:,}, is not smaller than n = {method.target.n:,}: each "
            "decision read all data. Lower m, or take more data."
        )
    elif method.kernel.is_sequential and all_data >= _SHARE_ON_ALL_DATA:
        yield (
            f"{method.name}: {all_data:.0%} of its decisions read all {method.target.n:,} data, so that "
            "its minibatches save little; a lower step size or a higher temperature needs fewer data."
        )


def _movement_warnings(method: Method, summary: Mapping[str, Any], stopped: int) -> Iterator[str]:
    """Yield a line if chains stopped, `stopped` of them, or never moved."""
    totals, shape = summary["totals"], method.shape
    # A non-finite log-ratio is a rejection in an acceptance test, and the end of a chain without one.
    diverging = np.asarray(totals["sum_diverging"])
    if stopped:
        dynamics = method.kernel.of_a_chain.dynamics
        slower = f", or {dynamics.stable_remedy}" if dynamics is not None and dynamics.stable_remedy else ""
        yield (
            f"{method.name}: {stopped} of {shape.chains} chains became non-finite and stopped where they "
            f"were; lower the step size{_in_other_units(method)}{slower}."
        )
    elif (
        method.kernel.decides
        and (diverging >= shape.steps).all()
        and np.sum(totals["sum_accepted"]) == 0
        and not method.kernel.of_a_chain.follows
    ):
        yield (
            f"{method.name}: no chain ever moved, because the log-likelihood is not finite at any candidate, or for "
            "some data where chains begin. Lower the step size, or evaluate the model there."
        )
    elif method.kernel.decides and (unmoved := int((np.asarray(totals["sum_accepted"]) == 0).sum())):
        yield (
            f"{method.name}: {unmoved} of {shape.chains} chains never moved after burn-in: no candidate was accepted. "
            "Lower the step size or choose other starting points."
        )


def _outside_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if draws of a dynamics are where the density is 0."""
    if (share := summary.get(OUTSIDE)) is not None:
        yield (
            f"{method.name}: {100 * share:.2g} % of draws are where the density is 0. Nothing keeps a dynamics inside "
            "of an edge of the posterior, whatever its step size. Declare the constraint of the parameter "
            "(parameters=), so that chains move in unconstrained coordinates, or take a method with an acceptance test "
            "(mcmc, smh2)."
        )


def _temperature_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if chains that should sample one distribution have different temperatures."""
    if varies_temperature(method.kernel, method.plan) and not method.kernel.optimises:
        last = rounded(samples(method.kernel, method.plan).temperature)
        yield (
            f"{method.name}: its temperature changes while draws are kept, and is {last} at the last step: draws are "
            "of no one target. Let it reach its last value in burn-in."
        )
    temperatures = summary["temperature"][:: method.kernel.rungs]
    low, high = min(temperatures), max(temperatures)
    if low < high:
        count = temperatures.count(low)
        yield (
            f"{method.name}: chains have different temperatures, {rounded(low)} to {rounded(high)}: a report "
            f"diagnoses the {f'{count} chains' if count > 1 else 'chain'} at T = {rounded(low)} only. Make each "
            "temperature a method to compare them."
        )


def _validity_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on the share of valid draws, and one if they are too few or a chain has none.

    Where all are valid though only some should be, the line says that chains were never hotter.
    """
    dynamics = method.kernel.of_a_chain.dynamics
    if (share := valid_share(method, summary)) == 1:
        if dynamics is not None and dynamics.marks_valid:
            yield (
                f"{method.name}: all of its draws follow the target: chains were never hotter, and cross between modes "
                f"no better than without tempering. {dynamics.valid_remedy}"
            )
        return
    yield (
        f"{method.name}: {share:.1%} of its draws follow the target; the trace marks them as valid "
        "(sample_stats)."
    )
    valid = method.shape.steps - np.asarray(summary["totals"]["sum_invalid"])
    count, none = int(valid.sum()), int((valid == 0).sum())
    if count < ESS or none:
        remedy = "Raise steps." if dynamics is None else dynamics.valid_remedy
        yield (
            f"{method.name}: only {count:,} draws follow the target"
            + f", and {none} of {method.shape.chains} chains have none" * bool(none)
            + f"; an ESS of {ESS:g} needs more. {remedy}"
        )


def _or_temper(method: Method) -> str:
    """Return the other remedy for a ladder whose hot chains leave the prior behind, if it has one."""
    target = method.target
    if target.temper != "posterior" or has_no_data(target.data):
        return ""
    theta = method.first_points(1)
    if torch.equal(target.model.log_prior(theta), target.model.log_prior(theta + 1)):  # a flat prior
        return ""
    return ", or temper the likelihood alone (temper=likelihood), so that the prior holds hot chains"


def _exchange_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if two rungs of a ladder hardly ever exchange, and if exchanges do not keep the rungs' densities."""
    if method.kernel.exchange_every is None:
        return
    pairing = method.kernel.of_a_chain.pairing
    if pairing is not None and (pairing.keeps_batch or pairing.hands_batch_on):
        yield (
            f"{method.name}: the points of its rungs keep their minibatches ({type(pairing).__name__}), which its "
            "exchanges do not know of: draws of a rung are of no known distribution. Take pairing shared or full."
        )
    yield from exchange_noise_warnings(method, summary)
    found = exchange_rates(summary["totals"], method.kernel.rungs)
    if found is None:
        return
    fewest = np.where(found.made == 0, _NONE_OF, _JUDGED)
    rare = (found.proposed >= fewest) & (found.made < _RARE * found.proposed)
    if not rare.any():
        return
    j = int(np.where(rare, found.rates, np.inf).argmin())
    low, high = (rounded(summary["temperature"][rung]) for rung in (j, j + 1))
    count = int(rare.sum()) - 1
    others = (
        f" {count} other pair{'s hardly exchange' if count > 1 else ' hardly exchanges'} either."
        if count
        else ""
    )
    yield (
        f"{method.name}: rungs {j} and {j + 1} (T = {low} and {high}) made {found.made[j]:,} of {found.proposed[j]:,} "
        f"exchanges: colder chains gain nothing from hotter ones. Put temperatures between them{_or_temper(method)}."
        f"{others}"
    )


def _trajectory_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if trajectories diverged: the density is narrow where the step size is too large for it."""
    kernel = method.kernel.of_a_chain
    count = int(np.sum(summary["totals"]["sum_diverging"]))
    if count and kernel.follows:
        groups = (
            " In a model of groups, where that does not help, write their effects the other way: standardised ones "
            "times their scale where groups have few data, the effects themselves where they have many."
        )
        yield (
            f"{method.name}: {count:,} of {method.shape.chains * method.shape.steps:,} trajectories diverged: the step "
            "size is too large where the density is narrow, or a log-likelihood is NaN or minus infinity where they "
            f"lead. Draws may lack that region{_or_enters_in_warnings(method)}. Aim at a higher acceptance rate; where "
            "the density ends at an edge, give the parameter a constraint, or take mcmc."
            f"{groups if _may_have_groups(method.target) else ''}"
        )


def _may_have_groups(target: Target) -> bool:
    """Return whether some parameters may be the effects of groups, and another their scale."""
    if is_network(target.model):
        return False
    if (parameters := parameters_of(target.model)) is None:
        return target.n > 1 and target.dim >= _GROUPS + 2
    sizes = [math.prod(shape) for shape in parameters.shapes.values()]
    return len(sizes) > 1 and max(sizes) >= _GROUPS


def _nan_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if a log-ratio is NaN, which rejects the candidate; of trajectories this is a divergence."""
    kernel, totals = method.kernel.of_a_chain, summary["totals"]
    count, decisions = int(np.sum(totals["sum_diverging"])), method.shape.chains * method.shape.steps
    accepted = int(np.sum(totals["sum_accepted"]))
    if not count or not accepted or kernel.proposal is None or kernel.follows:
        return
    if count + accepted > decisions:  # no rule of this package accepts with NaN
        yield (
            f"{method.name}: {type(kernel.rule).__name__} reports NaN as the log-ratio of {count:,} of {decisions:,} "
            "decisions, some of which accept. Return the log-ratio in the verdict: without it noise and skewness of "
            "decisions are unknown."
        )
    else:
        yield (
            f"{method.name}: {count:,} of {decisions:,} candidates were rejected because their log-ratio was not a "
            "number: a log-likelihood is NaN there, or infinite at both points. Draws may lack that region"
            f"{_or_enters_in_warnings(method)}."
        )


def _or_enters_in_warnings(method: Method) -> str:
    """Return that draws may be where the likelihood is 0, if decisions do not read all data and no bounds hold."""
    kernel = method.kernel.of_a_chain
    pairing, rule = kernel.pairing, kernel.rule
    if pairing is None or rule is None or rule.exact or (pairing.m is None and not rule.wants_terms):
        return ""
    return ", or lie in it: a minibatch may lack the data that are impossible there"


def acceptance_range(method: Method) -> tuple[float, float] | None:
    """Return the range of acceptance rates in which a method is efficient; None if it is unknown."""
    efficient = efficient_acceptance(method.kernel, method.target.dim)
    if efficient is None:
        return None
    return efficient.low, 1.0 if _has_largest_step(method) else efficient.high


def _has_largest_step(method: Method) -> bool:
    """Return whether a pilot ended at the largest step of a proposal, where all candidates may be accepted."""
    proposal = method.kernel.of_a_chain.proposal
    if proposal is None or method.pilot is None:
        return False
    return bool(method.pilot["step_size"] > _NEARLY * proposal.largest_step)


def _in_other_units(method: Method) -> str:
    """Return what else may be wrong with the step size of a dynamics: its scale, or that it has none."""
    dynamics = method.kernel.of_a_chain.dynamics
    if dynamics is None:
        return ""
    if isinstance(dynamics, PreconditionedDynamics):
        return ", or set precondition=none where the pilot's scale does not fit"
    return ", or set precondition=dense or diagonal if it is from a pilot's scaled coordinates"


def _tuning_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the step sizes of burn-in do not have the acceptance rate that they were tuned to."""
    if (aimed := method.plan.tuned_to) is None or method.kernel.rungs > 1:
        return
    rates = np.asarray(summary["totals"]["sum_accepted"]) / method.shape.steps
    if not rates.any():  # that they never moved is another warning
        return
    low, high = (_logit(np.asarray(rate)) for rate in aimed)
    odds = _logit(rates.clip(0.5 / method.shape.steps, 1 - 0.5 / method.shape.steps))
    below, above = (_SETTLED + _CHANCE / math.sqrt(method.shape.steps * rate * (1 - rate)) for rate in aimed)
    off = odds < low - below
    if not _has_largest_step(method):
        off |= odds > high + above
    if off.any():
        aim = f"{aimed[0]:.2f}" if aimed[0] == aimed[1] else f"{aimed[0]:.2f} to {aimed[1]:.2f}"
        yield (
            f"{method.name}: tuning had not settled in {int(off.sum())} of {method.shape.chains} chains: acceptance "
            f"{rates[off].mean():.3g} after burn-in, tuned to {aim}. Raise warmup, or start at a step size nearer "
            "to the final ones."
        )


def explained_acceptance(method: Method, summary: Mapping[str, Any]) -> str | None:
    """Return which other warning explains a method's acceptance rate: "unsettled" tuning, "noise", or None.

    Noise explains a high rate: a larger step would make it worse.
    """
    if any(_tuning_warnings(method, summary)):
        return "unsettled"
    return "noise" if any(noise_warnings(method, summary)) else None


def _logit(rate: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(rate) - np.log1p(-rate)


def stopped_count(method: Method, summary: Mapping[str, Any]) -> int:
    """Return how many chains without an acceptance test became non-finite and stopped."""
    return 0 if method.kernel.decides else int((np.asarray(summary["totals"]["sum_diverging"]) > 0).sum())


def valid_share(method: Method, summary: Mapping[str, Any]) -> float:
    """Return the share of the steps after burn-in that leave a valid draw."""
    invalid = float(np.sum(summary["totals"].get("sum_invalid", 0.0)))
    return 1 - invalid / (method.shape.chains * method.shape.steps)
