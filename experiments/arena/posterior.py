"""All methods on one posterior: the error of posterior means against evaluations and against seconds."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FixedLocator, NullLocator

from mhrun.report.metrics import Metrics, MetricTable
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import Array, Axes, Estimate, Figure, Run, Style, method_styles

from .errors import LEVELS, Cost, Course, cost, cost_of, course, effective, is_exact
from .truth import Truth, coordinates, truth

TICKS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)


def truth_of(run: Run) -> Truth:
    """Return the truth of a run."""
    return truth(run)


def costs(run: Run) -> dict[str, Cost]:
    """Return what the draws of each method cost."""
    return {method: cost(run, method) for method in run.methods}


def values(run: Run, method: str) -> Array:
    """Return the functions at a method's draws (C, S, F)."""
    return run.cached(truth_of).functions(coordinates(run, method))


def courses(run: Run) -> dict[str, Course]:
    """Return how the estimates of each method converge."""
    spent = run.cached(costs)
    return {m: course(spent[m], values(run, m), run.cached(truth_of)) for m in run.methods}


def metrics(run: Run) -> Metrics:
    """The truth, and of each method its settings, costs and errors; effective draws of exact methods alone."""
    exact = run.cached(truth_of)
    table = MetricTable({"truth.rmse": exact.error**0.5, "truth.effective_share": exact.effective})
    for method in run.methods:
        table.add(method, _of_method(run, method))
    return table


def _of_method(run: Run, method: str) -> Metrics:
    summary, path, spent = run.methods[method], run.cached(courses)[method], run.cached(costs)[method]
    steps = summary["steps"]
    numbers: Metrics = {
        "step": float(np.mean(summary["step_size_by_chain"])),
        "accept_rate": summary["accept_rate"] if summary["n_accept_tests"] else float("nan"),
        "data": summary["minibatch_size_mean"],
        "per_step": float(spent.evaluations[-1]) / steps,
        "setup": spent.setup,
        "rmse": Estimate(float(path.error[-1]), float(path.se[-1])),
        "spent": float(path.evaluations[-1]),
        "microseconds": 1e6 * float(path.seconds[-1]) / steps,
    }
    for level in LEVELS:
        number = cost_of(path, "evaluations", level)
        numbers[f"cost{level:g}"] = number
        numbers[f"total{level:g}"] = Estimate(number.value + spent.setup, number.se)
        numbers[f"seconds{level:g}"] = cost_of(path, "seconds", level)
    if is_exact(run, method):
        size = effective(values(run, method))
        evaluations = spent.evaluations[-1] * summary["chains"]
        numbers["ess"] = size
        numbers["per_draw"] = Estimate(
            evaluations / size.value, evaluations / size.value * size.se / size.value
        )
    return numbers


def error(run: Run) -> Figure:
    """Root mean square error of posterior means against evaluations and against seconds."""
    figure, (left, right) = panels(2, size=(4.0, 4.2), xscale="log", yscale="log")
    by_method = run.cached(courses)
    left.set(xlabel="evaluations of single data after the set-up, one chain", ylabel="RMSE / posterior sd")
    right.set(xlabel="seconds after the set-up, one chain")
    for method in run.methods:
        _draw(run, left, method, by_method[method].evaluations, by_method[method])
        _draw(run, right, method, by_method[method].seconds, by_method[method])
    return _finished(run, figure, [left, right])


def total(run: Run) -> Figure:
    """Root mean square error of posterior means against all evaluations, those of the set-up included."""
    figure, (axis,) = panels(1, size=(5.2, 4.2), xscale="log", yscale="log")
    axis.set(xlabel="evaluations of single data, one chain, with set-up", ylabel="RMSE / posterior sd")
    for method, path in run.cached(courses).items():
        _draw(run, axis, method, path.evaluations + run.cached(costs)[method].setup, path)
    return _finished(run, figure, [axis])


def _draw(run: Run, axis: Axes, method: str, x: Array, path: Course) -> None:
    look = method_styles(run.methods)[method]
    exact = is_exact(run, method)
    style: Style = {"color": look["color"], "marker": look["marker"], "linestyle": "-" if exact else "--"}
    style |= {"markerfacecolor": look["color"] if exact else "white", "label": run.label(method)}
    axis.plot(x, path.error, markersize=3.5, linewidth=1.2, **style)
    low = np.maximum(path.error - 2 * path.se, path.error / 2)
    axis.fill_between(x, low, path.error + 2 * path.se, color=look["color"], alpha=0.12, linewidth=0)


def _finished(run: Run, figure: Figure, axes: list[Axes]) -> Figure:
    """Add the noise floor of the truth, plain ticks and the legend."""
    floor = run.cached(truth_of).error ** 0.5
    lowest = min(float(path.error.min()) for path in run.cached(courses).values())
    for axis in axes:
        if floor > lowest / 3:
            axis.axhspan(lowest / 4, floor, color="grey", alpha=0.25, linewidth=0, label="error of the truth")
        axis.set_ylim(lowest / 1.4, None)
        axis.yaxis.set_major_locator(FixedLocator(TICKS))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter("{x:g}")
    return finished(
        figure, legend="below", fontsize=8, title="solid: exact; dashed: biased", title_fontsize=8
    )
