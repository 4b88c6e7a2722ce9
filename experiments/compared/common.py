"""What a test costs, how wrong its decisions are, and how wrong what is estimated with it, on any posterior."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import NullFormatter

from mhrun.diagnostics.chains import ess_of_chain
from mhrun.report.metrics import Metrics, MetricTable, value
from mhrun.report.plots import legend_right, panels, points
from mhrun.report.vocabulary import Array, Estimate, Figure, Run, Style, method_styles

LEVELS = (0.1, 0.01)  # of the mean square error, in units of the posterior variance
LOOKS = 14  # numbers of draws that errors are computed at


class Course(NamedTuple):
    """How the estimates of a method come closer to the truth."""

    spent: Array  # (K,) log-likelihoods of single data evaluated by one chain, on average
    error: Array  # (K,) mean square error of the estimates of one chain
    se: Array  # (K,) its standard error over chains


def course(run: Run, method: str, draws: Array, truth: Array, spread: Array) -> Course:
    """Return the mean square error of running means of functions (C, S, F) against evaluations.

    Args:
        run: whose.
        method: of the run.
        draws: values of the functions at the kept draws.
        truth: their exact means (F,).
        spread: standard deviations (F,) that errors are divided by.
    """
    at = checkpoints(draws.shape[1])
    sums = np.cumsum(draws, axis=1)[:, at - 1] / at[:, None]
    square = (((sums - truth) / spread) ** 2).mean(axis=2)
    spent = run.at_draws(method, "n_lik").astype(float).mean(axis=0)[at - 1]
    return Course(spent, square.mean(axis=0), square.std(axis=0, ddof=1) / np.sqrt(len(square)))


def checkpoints(draws: int) -> Array:
    """Return numbers of draws, evenly spaced in their logarithm."""
    return np.unique(np.geomspace(min(20, draws), draws, LOOKS).astype(int))


def cost_of(found: Course, level: float) -> Estimate:
    """Return the evaluations at which the error first comes to a level; NaN if it never does.

    Between the looks by straight lines in logarithms. The standard error is that of an error that falls as one over
    cost.
    """
    below = np.flatnonzero(found.error <= level)
    if not len(below):
        return Estimate(float("nan"), float("nan"))
    i = int(below[0])
    noise = float(found.se[i] / found.error[i])
    if i == 0:
        return Estimate(float(found.spent[0]), float(found.spent[0]) * noise)
    x, y = np.log(found.spent[i - 1 : i + 1]), np.log(found.error[i - 1 : i + 1])
    cost = float(np.exp(x[1] + (np.log(level) - y[1]) * (x[1] - x[0]) / (y[1] - y[0])))
    return Estimate(cost, cost * noise)


def effective(draws: Array) -> Estimate:
    """Return the effective sample size of all chains for the worst of some functions (C, S, F).

    The sum over chains of what each has about its own mean; its standard error is from the differences between chains.
    """
    sizes = np.stack([ess_of_chain(draws[:, :, f]) for f in range(draws.shape[2])], axis=1)
    worst = sizes[:, int(np.argmin(sizes.sum(axis=0)))]
    count = len(worst)
    error = float(worst.std(ddof=1) * np.sqrt(count)) if count > 1 else float("nan")
    return Estimate(float(worst.sum()), error)


def tests(run: Run) -> Mapping[str, list[str]]:
    """Return the methods of each test, which differ in their step size: ``<test>_s<k>``."""
    found: dict[str, list[str]] = {}
    for method in run.methods:
        found.setdefault(re.sub(r"_s\d+$", "", method), []).append(method)
    return found


def step_of(run: Run, method: str) -> float:
    """Return the step size of a method."""
    return float(run.config["methods"][method]["schedules"]["step_size"]["step_size"])


def name_of(run: Run, method: str) -> str:
    """Return the name of a method's test for people."""
    return run.label(method).rpartition(", step ")[0] or run.label(method)


def best(run: Run, found: Metrics) -> list[str]:
    """Return the method of each test whose step size gives it most effective draws per evaluation."""

    def worth(method: str) -> float:
        number = value(found[f"{method}.ess_per_million"])
        return number if np.isfinite(number) else -np.inf

    return [max(methods, key=worth) for methods in tests(run).values()]


def of_method(run: Run, method: str, draws: Array) -> Metrics:
    """Return what is known of a method without deciding again; draws are of functions (C, S, F)."""
    summary = run.methods[method]
    decisions = summary["chains"] * (summary["warmup"] + summary["steps"])
    after = summary["likelihood_evals"] * summary["steps"] / (summary["warmup"] + summary["steps"])
    size = effective(draws)
    return {
        "step": step_of(run, method),
        "size": summary["minibatch_size_mean"],
        "overhead": summary["overhead_evals"] / 2 / decisions,
        "per_decision": summary["likelihood_evals"] / decisions,
        "accept_rate": summary["accept_rate"],
        "ess": size,
        "ess_per_million": Estimate(size.value / after * 1e6, size.se / after * 1e6),
        "seconds": summary["wall_s"],
        "seconds_each": summary["wall_s"] / size.value if size.value > 0 else float("nan"),
    }


def of_errors(run: Run, courses: Mapping[str, Course], chosen: list[str]) -> Metrics:
    """Return what each chosen method spends until its error is at `LEVELS`, its last error and what it spent in all."""
    found = MetricTable()
    for method in chosen:
        each = courses[method]
        found.add(method, {f"cost{level:g}": cost_of(each, level) for level in LEVELS})
        last = Estimate(float(each.error[-1]), float(each.se[-1]))
        found.add(method, {"last": last, "spent": float(each.spent[-1])})
    return found


def error_figure(
    run: Run, courses: Mapping[str, Course], chosen: list[str], label: str, floor: float = 0.0
) -> Figure:
    """Draw each chosen method's mean square error against its evaluations; a floor is drawn where the truth has one."""
    of_all: Style = {
        "xscale": "log",
        "yscale": "log",
        "xlabel": "log-likelihoods of single data evaluated, a chain",
    }
    figure, (axis,) = panels(1, size=(6.4, 4.2), ylabel=label, **of_all)
    for method in chosen:
        colour, marker, line = _style_of(run, method)
        found, name = courses[method], f"{name_of(run, method)} ({step_of(run, method):g})"
        style: Style = {"marker": marker, "linestyle": line, "markersize": 3, "linewidth": 1.2, "label": name}
        axis.plot(found.spent, found.error, color=colour, **style)
        low = np.maximum(found.error - 2 * found.se, found.error / 4)
        axis.fill_between(found.spent, low, found.error + 2 * found.se, color=colour, alpha=0.12, linewidth=0)
    if floor > 0:
        axis.axhline(floor, color="grey", linewidth=3, alpha=0.4)
    axis.xaxis.set_minor_formatter(NullFormatter())
    legend_right(axis, fontsize=7, title="test (step size)", title_fontsize=7)
    return figure


def decisions_figure(run: Run, found: Metrics, methods: list[str]) -> Figure:
    """Draw each test's wrong decisions against its evaluations per decision."""
    of_all: Style = {"xscale": "log", "yscale": "log", "xlabel": "log-likelihoods evaluated per decision"}
    figure, (axis,) = panels(1, size=(6.4, 4.2), ylabel="error of the acceptance probability", **of_all)
    for method in methods:
        colour, marker, _line = _style_of(run, method)
        wrong = found[f"{method}.wrong"]
        assert isinstance(wrong, Estimate)
        if np.isnan(wrong.value):
            continue
        y, all_of_it = max(wrong.value, _FLOOR), value(found[f"{method}.per_decision"])
        counted = min(2 * value(found[f"{method}.size"]), all_of_it)
        axis.plot([counted, all_of_it], [y, y], color=colour, linewidth=0.8)
        ends = [max(_FLOOR, wrong.value - 2 * wrong.se), max(y, wrong.value + 2 * wrong.se)]
        axis.plot([all_of_it] * 2, ends, color=colour, linewidth=0.8)
        axis.plot(counted, y, marker, color=colour, markerfacecolor="none", markersize=6)
        axis.plot(all_of_it, y, marker, color=colour, markersize=6, label=name_of(run, method), linestyle="")
    legend_right(axis, fontsize=7)
    return figure


_FLOOR = 1e-3  # below this an error is not told from chance


def efficiency_figure(run: Run, found: Metrics) -> Figure:
    """Draw each test's effective sample size per million evaluations against its step size."""
    label = "effective draws per million\nlog-likelihoods evaluated"
    of_all: Style = {"xscale": "log", "yscale": "log", "xlabel": "step size", "ylabel": label}
    figure, (axis,) = panels(1, size=(6.4, 4.2), **of_all)
    for methods in tests(run).values():
        if f"{methods[0]}.ess_per_million" not in found:
            continue
        colour, marker, line = _style_of(run, methods[0])
        numbers = [found[f"{method}.ess_per_million"] for method in methods]
        style: Style = {"color": colour, "fmt": marker, "linestyle": line, "linewidth": 1.2, "capsize": 0}
        at = [step_of(run, method) for method in methods]
        points(axis, at, numbers, errors=2, label=name_of(run, methods[0]), **style)
    at = sorted({step_of(run, method) for methods in tests(run).values() for method in methods})
    axis.set_xticks(at, [f"{step:g}" for step in at])
    axis.xaxis.set_minor_formatter(NullFormatter())
    legend_right(axis, fontsize=7)
    return figure


def _style_of(run: Run, method: str) -> tuple[str, str, str]:
    """Return colour, marker and line of a method: one colour for each of eight tests, then other markers and lines."""
    style = method_styles(tests(run))[re.sub(r"_s\d+$", "", method)]
    return style["color"], style["marker"], style["linestyle"]
