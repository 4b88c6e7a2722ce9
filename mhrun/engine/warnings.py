"""Warnings after a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.diagnostics.chains import ESS, LEAST_DRAWS, RHAT, diagnoses, is_apart
from mhrun.diagnostics.ladders import exchange_rates
from mhrun.engine.batch_sizes import batch_sizes
from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.kernels.acceptance import efficient_acceptance, noise_widening
from mhrun.kernels.stationary import samples
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.store.blocks import SKEW_EDGES
from mhrun.types import Model, blocks_of

_MOST_SHOWN = 1000  # per cent that a standard deviation is too large, above which the number says nothing
_OF_KEPT = 1.0  # noise of a log-ratio of points that keep their minibatches above which a run warns
_MUCH = 0.1  # share of decisions on all data above which a run warns
# Difference of logit(acceptance) from the rate that tuning aimed at, above which it had not settled.
_SETTLED = 1.0
_EXCESS = 0.25  # relative excess of a variance by gradient noise above which a run warns
_RARE, _JUDGED = 0.01, 100  # share of exchanges below which a run warns, and the fewest proposed that show it
_ERROR = 0.01  # mean error of the acceptance probability above which a run warns


def warnings_of(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line per warning, from the summary of a finished method."""
    totals, shape = summary["totals"], method.shape
    all_data = float(np.sum(totals["sum_all_data"])) / (shape.chains * shape.steps)
    if method.kernel.is_sequential and all_data >= _MUCH:
        yield (
            f"{method.name}: {all_data:.0%} of its decisions read all {method.target.n:,} data, so that "
            "its minibatches save little; a lower step size or a higher temperature needs fewer data."
        )
    stopped = int((np.asarray(totals["sum_diverging"]) > 0).sum())
    if stopped and not method.kernel.decides:
        yield (
            f"{method.name}: {stopped} of {shape.chains} chains became non-finite and stopped where they "
            "were; lower the step size."
        )
    elif stopped == shape.chains and np.sum(totals["sum_accepted"]) == 0:
        yield f"{method.name}: no chain ever moved, because log-likelihoods are not finite at its starting point."
    elif method.kernel.decides and (unmoved := int((np.asarray(totals["sum_accepted"]) == 0).sum())):
        yield (
            f"{method.name}: {unmoved} of {shape.chains} chains never moved after burn-in: no candidate was accepted. "
            "Lower the step size or choose other starting points."
        )
    yield from _temperature_warnings(method, summary)
    if method.plan.lost_cycles:
        yield f"{method.name}: {method.plan.lost_cycles}."
    yield from _exchange_warnings(method, summary)
    yield from _trajectory_warnings(method, summary)
    yield from _nan_warnings(method, summary)
    yield from _tuning_warnings(method, summary)
    yield from _noise_warnings(method, summary)
    yield from _excess_warnings(method, summary)
    yield from _decision_warnings(method, summary)
    if not stopped:
        yield from _validity_warnings(method, summary)


def _temperature_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if chains that should sample one distribution have different temperatures."""
    temperatures = summary["temperature"][:: method.kernel.rungs]
    low, high = min(temperatures), max(temperatures)
    if low < high:
        count = temperatures.count(low)
        yield (
            f"{method.name}: chains have different temperatures, {_number(low)} to {_number(high)}: a report "
            f"diagnoses the {f'{count} chains' if count > 1 else 'chain'} at T = {_number(low)} only. Make each "
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
        kernel = method.kernel.of_a_chain
        remedy = kernel.dynamics.valid_remedy if isinstance(kernel, Unadjusted) else "Raise steps."
        yield (
            f"{method.name}: only {count:,} draws follow the target"
            + f", and {none} of {method.shape.chains} chains have none" * bool(none)
            + f"; an ESS of {ESS:g} needs more. {remedy}"
        )


def _exchange_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if two rungs of a ladder hardly ever exchange their states."""
    if not isinstance(method.kernel, ReplicaExchange):
        return
    found = exchange_rates(summary["totals"], method.kernel.rungs)
    if (
        found is None
        or not (rare := (found.proposed >= _JUDGED) & (found.made < _RARE * found.proposed)).any()
    ):
        return
    j = int(np.where(rare, found.rates, np.inf).argmin())
    low, high = (_number(summary["temperature"][rung]) for rung in (j, j + 1))
    count = int(rare.sum()) - 1
    others = (
        f" {count} other pair{'s hardly exchange' if count > 1 else ' hardly exchanges'} either."
        if count
        else ""
    )
    yield (
        f"{method.name}: rungs {j} and {j + 1} (T = {low} and {high}) made {found.made[j]:,} of {found.proposed[j]:,} "
        f"exchanges: colder chains gain nothing from hotter ones. Put temperatures between them.{others}"
    )


def _trajectory_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if trajectories diverged: the density is narrow where the step size is too large for it."""
    kernel = method.kernel.of_a_chain
    count = int(np.sum(summary["totals"]["sum_diverging"]))
    if count and isinstance(kernel, MetropolisHastings) and kernel.proposal.follows:
        groups = (
            " In a model of groups, write their effects the other way: standardised ones times their scale where "
            "groups have few data, the effects themselves where they have many."
        )
        yield (
            f"{method.name}: {count:,} of {method.shape.chains * method.shape.steps:,} trajectories diverged: the step "
            "size is too large where the density is narrow, and draws may lack that region. Aim at a higher acceptance "
            f"rate.{'' if is_network(method.target.model) else groups}"
        )


def _nan_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if candidates were rejected because their log-ratio is NaN; of trajectories this is a divergence."""
    kernel, totals = method.kernel.of_a_chain, summary["totals"]
    count, decisions = int(np.sum(totals["sum_diverging"])), method.shape.chains * method.shape.steps
    moved = np.sum(totals["sum_accepted"]) > 0
    if count and moved and isinstance(kernel, MetropolisHastings) and not kernel.proposal.follows:
        yield (
            f"{method.name}: {count:,} of {decisions:,} candidates were rejected because their log-ratio was not a "
            "number: a log-likelihood is NaN there, or infinite at both points. Draws may lack that region."
        )


def is_network(model: Model) -> bool:
    """Return whether the parameters are the weights of a network with hidden units, which symmetries exchange."""
    return (
        isinstance(model, ModuleModel | Perceptron) and sum(block.weights for block in blocks_of(model)) > 1
    )


def acceptance_range(method: Method) -> tuple[float, float] | None:
    """Return the range of acceptance rates in which a method is efficient; None if it is unknown."""
    efficient = efficient_acceptance(method.kernel, method.target.dim)
    return None if efficient is None else (efficient.low, efficient.high)


def _tuning_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the step sizes of burn-in do not have the acceptance rate that they were tuned to."""
    if (aimed := method.plan.tuned_to) is None or method.kernel.rungs > 1:
        return
    rates = np.asarray(summary["totals"]["sum_accepted"]) / method.shape.steps
    if not rates.any():  # that they never moved is another warning
        return
    low, high = (_logit(np.asarray(rate)) for rate in aimed)
    odds = _logit(rates.clip(0.5 / method.shape.steps, 1 - 0.5 / method.shape.steps))
    off = (odds < low - _SETTLED) | (odds > high + _SETTLED)
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
    return "noise" if any(_noise_warnings(method, summary)) else None


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
        draws: after burn-in (C, S, D).
        names: of the coordinates, D.
    """
    name, shape = method.name, method.shape
    if draws.shape[1] >= LEAST_DRAWS and np.isfinite(draws).all() and not method.kernel.optimises:
        lines = list(_precision_warnings(name, draws, names))
        yield from lines
        if lines and is_network(method.target.model):
            yield (
                f"{name}: hidden units of a network can be exchanged without a change of its predictions, so that "
                "R-hat and ESS of weights say little. Judge predictions: mhrun.diagnostics.chains.worth_of_predictions("
                "mhrun.predict(trace, model, x, each=True).values)."
            )
    rate = float(np.sum(summary["totals"]["sum_accepted"])) / (shape.chains * shape.steps)
    limits = acceptance_range(method)
    outside = limits is not None and rate > 0 and not limits[0] <= rate <= limits[1]
    reason = explained_acceptance(method, summary) if outside else None
    if limits is not None and outside and not (reason == "unsettled" or (reason and rate > limits[1])):
        yield (
            f"{name}: acceptance {rate:.3g} is outside {limits[0]:.2f} to {limits[1]:.2f}, where it is efficient. "
            f"{'Lower' if rate < limits[0] else 'Raise'} the step size."
        )
    distribution = samples(method.kernel, method.plan)
    if distribution.tempered:
        yield f"{name}: {tempered(distribution.temperature)}"
    if distribution.is_cold:
        yield (
            f"{name}: the target is at T = {_number(distribution.temperature)}, narrower than the posterior: its "
            "standard deviations are down to sqrt(T) times as large. Use T = 1 for the posterior."
        )


def _precision_warnings(method: str, draws: npt.NDArray[np.float64], names: Sequence[str]) -> Iterator[str]:
    """Yield a line on the largest R-hat and one on the least effective sample size, with the names of coordinates."""
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
    elif np.nanmin(tails) < ESS:
        worst = int(np.nanargmin(tails))
        low = min(tails[worst], ESS - 1)
        yield (
            f"{method}: tail ESS is {low:.3g}{of(worst)}, below {ESS:g}: standard deviations and the 5 % and "
            "95 % quantiles are imprecise. Raise steps."
        )


def tempered(temperature: float) -> str:
    """Return what a temperature above 1 means for draws, as a sentence."""
    return (
        f"the target is at T = {_number(temperature)}, not the posterior: its standard deviations are up to sqrt(T) = "
        f"{_number(temperature**0.5)} times as large. Use T = 1 for the posterior."
    )


def _number(value: float) -> str:
    """Return a number with three figures, or as a whole one: 0.301, 31,623."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def log_ratio_noise(summary: Mapping[str, Any]) -> float:
    """Return the standard deviation of the log-ratio over minibatches, as a root mean square over steps after burn-in.

    NaN if no step has one.
    """
    totals = summary["totals"]
    count = np.asarray(totals["count_log_ratio_var"], dtype=float).sum()
    return (
        float(np.sqrt(np.asarray(totals["sum_log_ratio_var"], dtype=float).sum() / count))
        if count
        else np.nan
    )


def log_ratio_skew(summary: Mapping[str, Any]) -> tuple[float, float]:
    """Return the skewness of terms / sqrt(b) over decisions: root mean square, and 95 % quantile of the absolute value.

    The mean square is corrected for its expectation under normal terms, 6 / b^2. The quantile is not corrected; it is
    the upper edge of a histogram bin. NaN if no decision has a skewness.
    """
    totals = summary["totals"]
    bins = np.asarray(totals.get("count_log_ratio_skew", [0.0]), dtype=float)
    if not bins.sum():
        return np.nan, np.nan
    square = (np.sum(totals["sum_skew_squared"]) - np.sum(totals["sum_skew_noise"])) / bins.sum()
    at = int(np.searchsorted(bins.cumsum(), 0.95 * bins.sum()))
    return float(max(0.0, square) ** 0.5), float(np.append(SKEW_EDGES, np.inf)[at])


def _noise_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if minibatch noise dominates the test, or if a design's log-ratio is too skewed for it."""
    kernel = method.kernel.of_a_chain  # the statistics of a ladder are those of the rungs' own moves
    if (rule := kernel.rule) is None:
        return
    pairing = kernel.pairing
    if pairing is not None and pairing.m == 1 and method.target.batches.error_share(1) > 0:
        yield (
            f"{method.name}: the noise of the log-ratio cannot be estimated from minibatches of m = 1. Choose m >= 2 "
            "to see whether it dominates."
        )
    noise = log_ratio_noise(summary)
    keeps_batch = kernel.pairing is not None and kernel.pairing.keeps_batch
    limit = max(rule.noise_limit, _OF_KEPT) if keeps_batch else rule.noise_limit
    if noise > limit and not rule.wants_terms:
        steps = method.shape.chains * method.shape.steps
        m = float(np.sum(summary["totals"]["sum_batch_size"])) / steps
        weights = [
            _number(method.target.n / t) for t in (max(summary["temperature"]), min(summary["temperature"]))
        ]
        weight = " to ".join(dict.fromkeys(weights))
        if rule.corrects_noise:
            effect = "noise that large costs acceptance, and the correction is least reliable for it"
        elif keeps_batch:
            effect = "each point keeps its minibatch, and chains stay where it overestimates the density"
        else:
            most = 100 * noise_widening(noise)
            share = f"up to {most:.0f} %" if most < _MOST_SHOWN else f"more than {_MOST_SHOWN} %"
            effect = f"draws are too wide, standard deviations by {share}"
        yield (
            f"{method.name}: the log-ratio's minibatch noise has sd {noise:.3g} (n/T = {weight}, m = {_number(m)}): "
            f"{effect}. Raise T or m, or lower the step size."
        )
    skew, most = log_ratio_skew(summary)
    limit = rule.skew_limit
    if skew > limit:
        yield (
            f"{method.name}: the mean of a minibatch has skewness {skew:.2g} (95 % of decisions: below {most:.2g}): "
            f"above {limit:g} the acceptance probability may be off by 0.01. {rule.skew_remedy}"
        )


def _excess_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if minibatch noise of its gradients makes the draws of a dynamics much too wide."""
    excess = summary.get("excess_variance")
    if excess is None or not excess > _EXCESS:
        return
    m = _number(float(getattr(method.kernel, "m", None) or method.target.n))
    remedy = "Lower the step size, raise m, or take control variates (sgld_cv)."
    if method.target.gradient_noise:
        remedy = (
            f"Lower the step size. {method.target.gradient_noise:g} of its variance is target.gradient_noise."
        )
    size = f"by about {excess:.0%}" if excess < 2 else f"about {_number(1 + excess)} times"
    yield (
        f"{method.name}: minibatch noise of its gradients makes draws too wide, variances {size} in the direction "
        f"where it is largest (m = {m}). {remedy}"
    )


def _decision_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if wrong decisions of a sequential test change the acceptance probability."""
    rule, totals = method.kernel.of_a_chain.rule, summary["totals"]
    decisions = method.shape.chains * method.shape.steps
    rate = float(np.sum(totals["sum_accepted"])) / decisions
    noise = full_noise(summary, method.target.n, decisions)
    if rule is None or not 0 < rate < 1 or not noise > 0:
        return
    error = rule.acceptance_error(method.target.n, noise, rate)
    if error > _ERROR:
        yield (
            f"{method.name}: wrong decisions change the acceptance probability by {error:.2g} on average (limit "
            f"{_ERROR:g}): draws are biased, usually with too large standard deviations. Lower the test's error "
            "(epsilon or bound), raise T, or choose an exact method (tunamh, smh2, mh_ss)."
        )


def full_noise(summary: Mapping[str, Any], n: int, decisions: int) -> float:
    """Return (n/T) sd / sqrt(n), sd that of the terms of the log-ratio, estimated from the steps after burn-in.

    The variance of the log-ratio at b data is (n sd/T)^2 (1/b - 1/n). Its mean over the decisions on fewer than n data
    is divided by the mean of 1/b - 1/n over them. NaN if no decision is on fewer data.
    """
    sizes = batch_sizes(summary, n, decisions)
    if not sizes.mean > 0:
        return np.nan
    log_ratio_var = np.asarray(summary["totals"]["sum_log_ratio_var"], dtype=float).sum()
    variance = float(log_ratio_var) / (decisions - sizes.on_all)
    return float(np.sqrt(variance / max(sizes.mean_inverse * n - 1, 1e-12)))


def valid_share(method: Method, summary: Mapping[str, Any]) -> float:
    """Return the share of the steps after burn-in that leave a valid draw."""
    invalid = float(np.sum(summary["totals"].get("sum_invalid", 0.0)))
    return 1 - invalid / (method.shape.chains * method.shape.steps)
