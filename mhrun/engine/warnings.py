"""Warnings after a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mhrun.data.no_data import has_no_data
from mhrun.diagnostics.chains import ESS, LEAST_DRAWS, RHAT, diagnoses, few_points, is_apart
from mhrun.diagnostics.ladders import exchange_rates
from mhrun.diagnostics.tails import heaviest
from mhrun.engine.method import Method
from mhrun.engine.noise_warnings import (
    decision_warnings,
    excess_warnings,
    kinetic_warnings,
    mean_warnings,
    noise_warnings,
)
from mhrun.engine.pilot.result import pilot_warnings
from mhrun.kernels.acceptance import efficient_acceptance
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.kernels.stationary import samples
from mhrun.models.parameters import parameters_of
from mhrun.numbers import rounded
from mhrun.target import Target
from mhrun.target.function_space import is_network

_MUCH = 0.1  # share of decisions on all data above which a run warns
# Difference of logit(acceptance) from the rate that tuning aimed at, above which it had not settled.
_SETTLED = 1.0
_CHANCE = 4.0  # standard errors of an acceptance rate, in the same unit, that are no sign of it
_GROUPS = 3  # in the smallest model of groups: a parameter for each
_RESOLVED = 30.0  # numbers of float32 within a standard deviation of draws, below which rounding is seen
_RARE, _JUDGED = 0.01, 100  # share of exchanges below which a run warns, and the fewest proposed that show it


def warnings_of(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per warning, from the summary of a finished method."""
    totals, shape = summary["totals"], method.shape
    all_data = float(np.sum(totals["sum_all_data"])) / (shape.chains * shape.steps)
    rule = method.kernel.of_a_chain.rule
    first = None if rule is None else rule.first_batch
    if method.kernel.is_sequential and first is not None and first >= method.target.n:
        yield (
            f"{method.name}: the first minibatch, m = {first:,}, is not smaller than n = {method.target.n:,}: each "
            "decision read all data. Lower m, or take more data."
        )
    elif method.kernel.is_sequential and all_data >= _MUCH:
        yield (
            f"{method.name}: {all_data:.0%} of its decisions read all {method.target.n:,} data, so that "
            "its minibatches save little; a lower step size or a higher temperature needs fewer data."
        )
    # A non-finite log-ratio is a rejection in an acceptance test, and the end of a chain without one.
    diverging = np.asarray(totals["sum_diverging"])
    stopped = 0 if method.kernel.decides else int((diverging > 0).sum())
    if stopped:
        dynamics = method.kernel.of_a_chain.dynamics
        slower = (
            ", or give its thermostat more inertia"
            if dynamics is not None and dynamics.bias.thermostat
            else ""
        )
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
    yield from _temperature_warnings(method, summary)
    if method.plan.lost_cycles:
        yield f"{method.name}: {method.plan.lost_cycles}."
    if not stopped:  # a chain that stopped exchanges no state
        yield from _exchange_warnings(method, summary)
    yield from _trajectory_warnings(method, summary)
    yield from _nan_warnings(method, summary)
    yield from _tuning_warnings(method, summary)
    yield from noise_warnings(method, summary)
    yield from excess_warnings(method, summary)
    yield from mean_warnings(method, summary)
    yield from kinetic_warnings(method, summary)
    yield from decision_warnings(method, summary)
    if not stopped:
        yield from _validity_warnings(method, summary)


def warnings_with_pilot(
    method: Method, summary: Mapping[str, Any], pilot: Mapping[str, Any] | None
) -> list[str]:
    """Return the warnings of a method and of its pilot; first that of an improper posterior, where nothing settles."""
    of_run, of_pilot = warnings_of(method, summary), pilot_warnings(method.name, pilot)
    is_cause = pilot is not None and "flat_along" in pilot
    return [*of_pilot, *of_run] if is_cause else [*of_run, *of_pilot]


def _temperature_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if chains that should sample one distribution have different temperatures."""
    if method.plan.varies_temperature and not method.kernel.optimises:
        yield (
            f"{method.name}: its temperature changes while draws are kept, and is "
            f"{rounded(min(summary['temperature']))} at the last step: draws are of no one target. Let it reach its "
            "last value in burn-in."
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
    """Yield a line on the share of valid draws if it is below 1, and one if they are too few or a chain has none."""
    if (share := valid_share(method, summary)) == 1:
        return
    yield (
        f"{method.name}: {share:.1%} of its draws follow the target; the trace marks them as valid "
        "(sample_stats)."
    )
    valid = method.shape.steps - np.asarray(summary["totals"]["sum_invalid"])
    count, none = int(valid.sum()), int((valid == 0).sum())
    if count < ESS or none:
        dynamics = method.kernel.of_a_chain.dynamics
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
    """Yield a line if two rungs of a ladder hardly ever exchange their states."""
    if method.kernel.exchange_every is None:
        return
    found = exchange_rates(summary["totals"], method.kernel.rungs)
    if (
        found is None
        or not (rare := (found.proposed >= _JUDGED) & (found.made < _RARE * found.proposed)).any()
    ):
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
            " In a model of groups, write their effects the other way: standardised ones times their scale where "
            "groups have few data, the effects themselves where they have many."
        )
        yield (
            f"{method.name}: {count:,} of {method.shape.chains * method.shape.steps:,} trajectories diverged: the step "
            "size is too large where the density is narrow, or a log-likelihood is NaN or minus infinity where they "
            f"lead. Draws may lack that region{_or_enters_in_warnings(method)}. Aim at a higher acceptance rate."
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
    """Yield a line if candidates were rejected because their log-ratio is NaN; of trajectories this is a divergence."""
    kernel, totals = method.kernel.of_a_chain, summary["totals"]
    count, decisions = int(np.sum(totals["sum_diverging"])), method.shape.chains * method.shape.steps
    moved = np.sum(totals["sum_accepted"]) > 0
    if count and moved and kernel.proposal is not None and not kernel.follows:
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
    return None if efficient is None else (efficient.low, efficient.high)


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
    off = (odds < low - below) | (odds > high + above)
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


def draws_warnings(
    method: Method, summary: Mapping[str, Any], draws: npt.NDArray[np.float64], names: Sequence[str]
) -> Iterator[str]:
    """Yield the warnings of a single method that a report has aggregated over methods: R-hat, ESS, acceptance, T.

    Args:
        method: the method.
        summary: of its run.
        draws: after burn-in (C, S, D), or of a network its predictions.
        names: of the coordinates, D.
    """
    name, shape = method.name, method.shape
    if draws.shape[1] >= LEAST_DRAWS and np.isfinite(draws).all() and not method.kernel.optimises:
        yield from precision_warnings(
            name,
            draws,
            names,
            predictions=is_network(method.target.model),
            is_tested=method.kernel.of_a_chain.dynamics is None,
        )
        if len(draws) == 1:
            yield (
                f"{name}: R-hat compares the two halves of a single chain, which cannot show a mode that it never "
                "visited. Run several, such as chains=4."
            )
    if np.sum(summary["totals"]["sum_accepted"]) > 0:
        yield from _rounding_warnings(method, draws, names)
    rate = float(np.sum(summary["totals"]["sum_accepted"])) / (shape.chains * shape.steps)
    limits = acceptance_range(method)
    outside = limits is not None and rate > 0 and not limits[0] <= rate <= limits[1]
    reason = explained_acceptance(method, summary) if outside else None
    if limits is not None and outside and not (reason == "unsettled" or (reason and rate > limits[1])):
        remedy = "Lower the step size."
        if rate > limits[1]:
            fewer = ", and take fewer leapfrog steps, so that trajectories stay as long"
            proposal = method.kernel.of_a_chain.proposal
            follows = proposal is not None and proposal.leapfrog_steps > 1
            remedy = f"Raise the step size{fewer * follows}."
        yield (
            f"{name}: acceptance {rate:.3g} is outside {limits[0]:.2f} to {limits[1]:.2f}, where it is efficient. "
            f"{remedy}"
        )
    distribution = samples(method.kernel, method.plan)
    if distribution.tempered:
        yield f"{name}: {tempered(distribution.temperature)}"
    if distribution.is_cold:
        yield (
            f"{name}: the target is at T = {rounded(distribution.temperature)}, narrower than the posterior: its "
            "standard deviations are down to sqrt(T) times as large. Use T = 1 for the posterior."
        )


def _rounding_warnings(method: Method, draws: npt.NDArray[np.float64], names: Sequence[str]) -> Iterator[str]:
    """Yield a line if float32 has hardly any numbers where a coordinate has its posterior."""
    if method.dtype != torch.float32 or is_network(method.target.model) or not np.isfinite(draws).all():
        return
    sd = draws.std((0, 1))
    spacing = np.spacing(np.abs(draws).max((0, 1), initial=0.0).astype(np.float32)).astype(np.float64)
    share = np.where(spacing > 0, sd / np.where(spacing > 0, spacing, 1.0), np.inf)
    if len(share) and share.min() < _RESOLVED:
        worst = int(share.argmin())
        yield (
            f"{method.name}: float32 is too coarse for {names[worst]}: its numbers are {rounded(spacing[worst])} apart "
            f"at {rounded(float(draws[..., worst].mean()))}, and the draws have a standard deviation of "
            f"{rounded(float(sd[worst]))}. Take dtype=torch.float64, or subtract a constant from the parameter."
        )


def precision_warnings(
    method: str,
    draws: npt.NDArray[np.float64],
    names: Sequence[str],
    *,
    predictions: bool = False,
    is_tested: bool = True,
) -> Iterator[str]:
    """Yield a line on the largest R-hat and one on the least effective sample size, with the names of coordinates.

    Args:
        method: its name.
        draws: (C, S, D).
        names: of the coordinates, D.
        predictions: whether draws are predictions of a network. Their tails are not judged: probabilities have all
            moments, though those that are nearly 0 but for a few draws look like a heavy tail.
        is_tested: whether moves are accepted or rejected; draws of a dynamics may have tails that the posterior has
            not.
    """
    by_coordinate = diagnoses(draws)

    def of(place: int) -> str:
        return f" ({names[place]})" if len(names) > 1 else ""

    rhats, sizes, tails = (
        np.array([getattr(diagnosis, key) for diagnosis in by_coordinate])
        for key in ("rhat", "ess", "ess_tail")
    )
    if (stuck := np.isnan(sizes)).any():
        yield f"{method}: ESS and R-hat are undefined: a coordinate never moves{of(int(stuck.argmax()))}."
    if stuck.all():
        return
    if is_apart(float(np.nan_to_num(rhats).max())):
        worst = int(np.nan_to_num(rhats).argmax())
        yield f"{method}: R-hat is {rhats[worst]:.4g}{of(worst)}, above {RHAT:g}: the chains have not converged."
    if np.nanmin(sizes) < ESS:
        worst = int(np.nanargmin(sizes))
        low = min(sizes[worst], ESS - 1)  # 399.7 would be shown as 400
        yield f"{method}: ESS is {low:.3g}{of(worst)}, below {ESS:g}: means and quantiles are imprecise."
        return
    is_judged = not predictions and not is_apart(float(np.nan_to_num(rhats).max()))
    if is_judged and (heavy := heaviest(draws)) is not None:
        yield (
            f"{method}: the tail of {names[heavy[0]]} is heavy (index {heavy[1]:.2g}; from 0.5 on there is no "
            "variance, and from 1 on no mean): means and standard deviations of draws say little of the posterior. "
            + (
                "Report quantiles, or choose a prior with a lighter tail."
                if is_tested
                else "The posterior may have it, or steps too long for the noise of gradients: lower the step size, "
                "and see whether it stays."
            )
        )
    if (points := few_points(draws, float(np.nanmin(sizes)))) is not None:
        yield (
            f"{method}: only {points:,} of the draws are distinct, and their ESS says little: chains come back to the "
            "same points, as by jumps between which no other move is accepted. Lower the step size."
        )
    if np.nanmin(tails) < ESS:
        worst = int(np.nanargmin(tails))
        low = min(tails[worst], ESS - 1)
        yield (
            f"{method}: tail ESS is {low:.3g}{of(worst)}, below {ESS:g}: standard deviations and the 5 % and "
            "95 % quantiles are imprecise. Raise steps."
        )


def tempered(temperature: float) -> str:
    """Return a sentence on what a temperature above 1 means for draws."""
    return (
        f"the target is at T = {rounded(temperature)}, not the posterior: its standard deviations are up to sqrt(T) = "
        f"{rounded(temperature**0.5)} times as large. Use T = 1 for the posterior."
    )


def valid_share(method: Method, summary: Mapping[str, Any]) -> float:
    """Return the share of the steps after burn-in that leave a valid draw."""
    invalid = float(np.sum(summary["totals"].get("sum_invalid", 0.0)))
    return 1 - invalid / (method.shape.chains * method.shape.steps)
