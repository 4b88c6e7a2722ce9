"""Warnings of minibatch noise: of log-ratios, of gradients, and in the decisions of sequential tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import special

from mhrun.diagnostics.chains import EXCESS, FIRST_ORDER, SHIFT
from mhrun.engine.diagnosis.batch_sizes import batch_sizes
from mhrun.engine.diagnosis.exchange_noise import EXCHANGE_NOISE, has_minibatches, is_noisy
from mhrun.engine.diagnosis.mixing import UNSETTLED
from mhrun.engine.diagnosis.selection import SELECTION
from mhrun.engine.diagnosis.term_noise import TERM_NOISE
from mhrun.engine.diagnosis.width import WIDE, WIDTH
from mhrun.engine.method import Method
from mhrun.kernels import ReplicaExchange, Unadjusted
from mhrun.kernels.acceptance import noise_widening
from mhrun.kernels.preconditioned import class_name
from mhrun.numbers import rounded
from mhrun.store.netcdf import KINETIC
from mhrun.store.totals import SKEW_EDGES
from mhrun.target import Target
from mhrun.target.function_space import is_network
from mhrun.types.capabilities import bound_kinds_of

_MOST_SHOWN = 1000  # per cent that a standard deviation is too large, above which the number says nothing
_OF_KEPT = 1.0  # noise of a log-ratio of points that keep their minibatches above which a run warns
_DIVERGED = 1000  # times the variance of the posterior, above which a number says nothing
# The sd of noise on all data above which a run warns, if it is by so many times more than minibatches show.
_HIDDEN, _TIMES_HIDDEN = 0.5, 1.5
_CHANCE = 3e-5  # probability that normal momenta have that kinetic temperature, a chi-squared variable
# Errors of the log-ratio on selected minibatches above which a run warns: of moves, and of exchanges, between which the
# rungs move.
_SHIFTED, _SHIFTED_EXCHANGES = 0.05, 0.3
_ERROR = 0.01  # mean error of the acceptance probability above which a run warns


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
    bins = np.asarray(totals["count_log_ratio_skew"], dtype=float)
    if not bins.sum():
        return np.nan, np.nan
    square = (np.sum(totals["sum_skew_squared"]) - np.sum(totals["sum_skew_noise"])) / bins.sum()
    at = int(np.searchsorted(bins.cumsum(), 0.95 * bins.sum()))
    return float(max(0.0, square) ** 0.5), float(np.append(SKEW_EDGES, np.inf)[at])


def noise_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if minibatch noise dominates the test, or if a design's log-ratio is too skewed for it."""
    kernel = method.kernel.of_a_chain  # the statistics of a ladder are those of the rungs' own moves
    if (rule := kernel.rule) is None:
        return
    pairing = kernel.pairing
    if pairing is not None and pairing.m == 1 and method.target.batches.error_share(1) > 0:
        yield (
            f"{method.name}: the noise of the log-ratio cannot be estimated from minibatches of m = 1. It makes draws "
            "wrong unless n/T is small; choose m >= 2 to see how large it is."
        )
    noise = log_ratio_noise(summary)
    keeps_batch = kernel.pairing is not None and kernel.pairing.keeps_batch
    m = float(np.sum(summary["totals"]["sum_batch_size"])) / (method.shape.chains * method.shape.steps)
    limit = rule.noise_limit_of(m)
    limit = max(limit, _OF_KEPT) if keeps_batch else limit
    if noise > limit and not rule.wants_terms:
        weights = [
            rounded(method.target.n / t) for t in (max(summary["temperature"]), min(summary["temperature"]))
        ]
        weight = " to ".join(dict.fromkeys(weights))
        if rule.corrects_noise:
            effect = (
                f"{type(rule).__name__} corrects for noise up to {limit:.3g}; above that draws may be of another "
                "distribution, and noise costs acceptance"
            )
        elif keeps_batch:
            effect = "each point keeps its minibatch, and chains stay where it overestimates the density"
        else:
            most = 100 * noise_widening(noise, barker=rule.barker, dim=method.target.dim)
            share = f"up to {most:.0f} %" if most < _MOST_SHOWN else f"more than {_MOST_SHOWN} %"
            effect = f"draws are too wide, standard deviations by {share}"
        yield (
            f"{method.name}: the log-ratio's minibatch noise has sd {noise:.3g} (n/T = {weight}, m = {rounded(m)}): "
            f"{effect}. Raise T or m, or lower the step size."
        )
    skew, most = log_ratio_skew(summary)
    limit = rule.skew_limit
    if skew > limit:
        yield (
            f"{method.name}: the mean of a minibatch has skewness {skew:.2g} (95 % of decisions: below {most:.2g}): "
            f"above {limit:g} the acceptance probability may be off by 0.01. {rule.skew_remedy}"
        )


def selection_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if a rule selects minibatches by their variance, and their log-ratio is biased by it."""
    found = summary.get(SELECTION)
    if found is None:
        return
    kernel = method.kernel
    for decisions, rule, shift, limit, setting in (
        ("candidates", kernel.of_a_chain.rule, found["moves"], _SHIFTED, "m"),
        ("exchanges", kernel.rule, found["exchanges"], _SHIFTED_EXCHANGES, "the m of their pairing"),
    ):
        if rule is not None and shift is not None and shift > limit:
            yield (
                f"{method.name}: {decisions} are rejected on minibatches whose estimated noise has a variance above "
                f"{rule.rejects_above:.3g}, and terms are skewed: on the others the log-ratio is off by {shift:.2g}, "
                f"and draws are shifted. Raise {setting}, or take pairing growing with rule noise_corrected."
            )


def exchange_noise_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the log-ratio of exchanges has more noise than their rule allows for, or an unknown one."""
    kernel, target = method.kernel, method.target
    if not isinstance(kernel, ReplicaExchange) or not is_noisy(kernel, target):
        return
    rule, m, reads_part = kernel.rule, kernel.pairing.m or target.n, has_minibatches(kernel, target)
    if reads_part and m == 1:
        yield (
            f"{method.name}: the noise of exchanges cannot be estimated from minibatches of m = 1. Choose m >= 2 in "
            "their pairing to see whether it dominates."
        )
    noise = [np.nan if value is None else value for value in summary.get(EXCHANGE_NOISE) or []]
    limit = rule.noise_limit_of(float(m))
    if not noise or not np.nanmax([0.0, *noise]) > limit:
        return
    j = int(np.nanargmax(noise))
    name = type(rule).__name__
    effect = (
        f"{name} corrects for noise up to {limit:.3g}; above that draws of the rungs may be of other distributions, "
        "and noise costs exchanges"
        if rule.corrects_noise
        else f"{name} does not correct for it, and rungs mix with draws of one another"
    )
    remedy = "Put temperatures between them"
    if reads_part:
        remedy = "Raise the m of their pairing, put temperatures between them"
    if not target.energy_noise:
        remedy += ", or take pairing growing with rule noise_corrected"
    source = (
        f"minibatch noise of sd {noise[j]:.3g} (m = {rounded(m)})"
        if reads_part
        else f"noise of sd {noise[j]:.3g}"
    )
    low, high = (rounded(summary["temperature"][rung]) for rung in (j, j + 1))
    yield (
        f"{method.name}: exchanges of rungs {j} and {j + 1} (T = {low} and {high}) have a log-ratio with {source}: "
        f"{effect}. {remedy}."
    )


def excess_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if minibatch noise of its gradients makes the draws of a dynamics much too wide, or if it may."""
    kernel, target = method.kernel.of_a_chain, method.target
    if not isinstance(kernel, Unadjusted):
        return
    m = rounded(float(kernel.m or target.n))
    if _is_undeclared(kernel, target):
        yield (
            f"{method.name}: {class_name(kernel.dynamics)} declares no bias.noise, so that the excess variance by "
            f"minibatch noise of its gradients is not estimated (m = {m}); R-hat and ESS do not show it. Declare "
            "bias = mhrun.Bias(noise=...), or compare the draws with those of hmc."
        )
    if summary.get("variance_ratio") is None:
        yield from _scale_warnings(method, summary)
    excess = summary.get("excess_variance")
    if excess is None or not excess > EXCESS:
        yield from _width_warnings(method, summary)
        return
    remedy = "Lower the step size, or raise m."
    if target.surrogate is None:
        remedy = "Lower the step size, raise m, or take control variates (sgld_cv)."
    if method.target.gradient_noise:
        remedy = (
            f"Lower the step size. {method.target.gradient_noise:g} of its variance is target.gradient_noise."
        )
    size = f"by up to {excess:.0%}" if excess < 2 else f"{_times(1 + excess, 'up to ')} times as large"
    where = f"variances {size} in the direction where it is largest (m = {m})"
    if (rhat := summary.get(UNSETTLED)) is not None:
        yield (
            f"{method.name}: once chains have settled, minibatch noise of its gradients makes draws too wide, {where}; "
            f"they have not yet: R-hat is {rounded(rhat)}. {remedy} Then run longer."
        )
        return
    yield f"{method.name}: minibatch noise of its gradients makes draws too wide, {where}. {remedy}"


def _width_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if gradients at the draws of a dynamics show that they are too wide."""
    ratio = summary.get("variance_ratio")
    if ratio is not None:
        yield (
            f"{method.name}: draws are too wide: by the gradients of the log posterior at them, their variance is "
            f"{_times(ratio, 'about ')} times that of the posterior in the direction where it is largest. Lower the "
            "step size, or raise m if minibatch noise is the cause."
        )


def narrow_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if gradients at the draws of a dynamics show that they are too narrow."""
    ratio = summary.get("narrow_ratio")
    if ratio is None:
        return
    remedy = "Run longer."
    if method.plan.collected is not None:
        remedy = (
            "Cycles begin at a mode, and draws are taken before chains have left it: make cycles longer (fewer cycles, "
            "or more steps), or give exploration less of them (explore) or noise (exploring=1)."
        )
    yield (
        f"{method.name}: draws are too narrow: by the gradients of the log posterior at them, their variance is about "
        f"{rounded(max(ratio, 0.0))} times that of the posterior in the direction where it is least. {remedy}"
    )


def _scale_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the draws of a dynamics are far wider than the scale that its pilot found."""
    width = summary.get(WIDTH)
    if width is not None and width > WIDE:
        yield (
            f"{method.name}: draws are up to {_times(width)} times as wide as the scale of its steps: the posterior is "
            "far from normal there, or the steps are too long for its steep side. Lower the step size, and see "
            "whether it stays, or sample with hmc."
        )


def _times(factor: float, before: str = "") -> str:
    """Return a readable factor after `before`; of draws that have diverged it has hundreds of digits."""
    return f"{before}{rounded(factor)}" if factor < _DIVERGED else f"more than {_DIVERGED:,}"


def mean_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the steps of a dynamics, or the noise of its gradients, shift the mean of a coordinate."""
    bias = summary.get("mean_bias")
    if bias is None or not abs(bias["size"]) > SHIFT:
        return
    if abs(bias["size"]) > FIRST_ORDER:
        if summary.get("variance_ratio") is None:  # otherwise the warning on the variance ratio covers it
            yield (
                f"{method.name}: the mean of {bias['name']} is off by more than {FIRST_ORDER:g} posterior standard "
                "deviations: the steps are too long for this posterior. Lower the step size, or sample with hmc."
            )
        return
    direction = "large" if bias["size"] > 0 else "small"
    kernel = method.kernel
    friction = (
        "friction and the " if kernel.dynamics is not None and kernel.dynamics.bias.in_small_steps < 0 else ""
    )
    yield (
        f"{method.name}: the mean of {bias['name']} is too {direction}, by up to about {rounded(abs(bias['size']))} "
        "posterior standard deviations: errors of its steps that are small in each parameter add up where one governs "
        f"many. Lower the {friction}step size, or sample with hmc."
    )


def _is_undeclared(kernel: Unadjusted, target: Target) -> bool:
    """Return whether gradients are noisy and the dynamics does not declare the effect on its draws."""
    dynamics, m = kernel.dynamics, kernel.m or target.n
    is_noisy = target.gradient_noise > 0 or (target.n > 1 and target.batches.error_share(m) > 0)
    is_declared = dynamics.bias.noise is not None or dynamics.optimises or dynamics.corrects_noise
    return is_noisy and not is_declared and not kernel.passes and not is_network(target.model)


def kinetic_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the momenta of a network have a higher temperature than the noise gives them."""
    kinetic, momenta = summary.get(KINETIC), method.shape.chains * method.target.dim
    if kinetic is not None and kinetic > max(1 + EXCESS, special.chdtri(momenta, _CHANCE) / momenta):
        yield (
            f"{method.name}: the kinetic temperature of its momenta is {rounded(kinetic)} times that of the noise it "
            "adds, by minibatch noise of the gradients or by too large a step, and draws are of a higher temperature. "
            "Lower the step size, or raise m."
        )


def term_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if a test decides with more noise than its minibatches show."""
    found = summary.get(TERM_NOISE)
    if found is None:
        return
    on_all, shown = found["on_all_data"], found["by_minibatches"]
    if on_all > _HIDDEN and on_all > _TIMES_HIDDEN * shown:
        exact = ", ".join(_exact_methods(method.target))
        yield (
            f"{method.name}: decisions have more noise than their minibatches show: the noise has sd {rounded(on_all)} "
            f"by all data and {rounded(shown)} by the minibatches, which rarely have the few data that matter, such "
            "as those of a rare category. Draws follow another distribution; raise m, or choose an exact method "
            f"({exact})."
        )


def decision_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
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
            f"(epsilon or bound), raise T, or choose an exact method ({', '.join(_exact_methods(method.target))})."
        )


def _exact_methods(target: Target) -> list[str]:
    """Return exact methods for a model: with minibatches where it has bounds on its terms, else on all data."""
    kinds = bound_kinds_of(target.model)
    found = [
        *(["tunamh"] if "difference" in kinds else []),
        *(["smh2", "mh_ss"] if "taylor2" in kinds else []),
    ]
    return found or ["hmc on all data"]


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
