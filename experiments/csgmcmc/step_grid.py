"""The grid of step sizes behind Table 1 of Zhang et al. (2020): effective sample size against bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, value
from .logistic import PAPER, SAMPLERS, SETS, methods, of_draws, truths

SHOWN = (0.15, 300.0)  # variances in the figure, over the posterior's

Point = dict[str, float]
"""What one step size came to: `step_size`, and the numbers of `of_draws`."""


def grids(run: Run) -> dict[str, list[Point]]:
    """Return for each method what each step size of the grid came to."""
    found = {}
    for method, _, data in methods(run):
        with run.trace(method) as trace:  # a method at a time: all together are gigabytes
            draws = trace["posterior"]["theta"].to_numpy()
        grid = grid_of(run.config["methods"][method])
        found[method] = [
            {"step_size": step} | {name: value(number) for name, number in of_draws(part, truth)[0].items()}
            for truth in [run.once(truths)[data]]
            for step, part in zip(grid, np.split(draws, len(grid)), strict=True)
        ]
    return found


def grid_of(node: Mapping[str, Any]) -> list[float]:
    """Return the step sizes a_0 of a method whose chains each have one: as many chains in a row for each."""
    schedule = node["schedules"]["step_size"]
    steps = schedule["start"] if "start" in schedule else schedule["step_size"]
    return list(dict.fromkeys(map(float, steps)))


def unbiased(run: Run, points: list[Point]) -> list[Point]:
    """Return the points whose posterior means are near enough: what step sizes are chosen within."""
    return [point for point in points if point["mean_error_rms"] < float(run.config["within"]["mean"])]


def faithful(run: Run, points: list[Point]) -> list[Point]:
    """Return the points whose variances are near enough, too."""
    share = float(run.config["within"]["variance"])
    return [point for point in unbiased(run, points) if abs(point["variance"] - 1) < share]


def finite(points: list[Point]) -> list[Point]:
    """Return the points whose chains did not diverge."""
    return [point for point in points if np.isfinite([*point.values()]).all()]


def best(points: list[Point]) -> Point | None:
    """Return the point with the largest effective sample size; None of none."""
    return max(points, key=lambda point: point["ess"], default=None)


def choice(run: Run, points: list[Point]) -> Point:
    """Return what logistic_ess takes: the best of the unbiased, or where there is none that with the least error."""
    return best(unbiased(run, points)) or min(points, key=lambda point: point["mean_error_rms"])


def metrics(run: Run) -> Metrics:
    """Return the step sizes of the three tables and what they come to; NaN where no step size will do."""
    found: Metrics = {}
    for method, points in run.once(grids).items():
        nothing = dict.fromkeys(points[0], float("nan"))
        taken = {
            "chosen": choice(run, points),
            "within": best(faithful(run, points)) or nothing,
            "most": best(finite(points)) or nothing,
        }
        for name, point in taken.items():
            found |= {f"{method}.{name}.{key}": number for key, number in point.items()}
    return found


def _table(run: Run, which: str) -> pd.DataFrame:
    columns = {
        "step size": "step_size",
        "ESS": "ess",
        "error of means": "mean_error_rms",
        "worst mean": "mean_error",
        "variance": "variance",
        "worst variance": "variance_worst",
    }
    found = run.once(metrics)
    rows: dict[str, dict[str, Any]] = {}
    for method, sampler, data in methods(run):
        row: dict[str, Any] = {head: found[f"{method}.{which}.{name}"] for head, name in columns.items()}
        step = row["step size"]
        row["step size"] = f"{step:g}" if np.isfinite(step) else "none"  # as it is to be written down
        rows[run.label(method)] = row | {"paper's ESS": PAPER.get(sampler, {}).get(data)}
    return pd.DataFrame.from_dict(rows, orient="index")


def chosen(run: Run) -> pd.DataFrame:
    """The step sizes of logistic_ess: the largest effective sample size with posterior means within 0.1 sd.

    Where no step size has its means there, the one with the least error. Effective sample size of 5000 draws, median
    over coordinates, mean over chains. Error of the means over all chains of a step size, in posterior standard
    deviations, root mean square and worst coordinate; variance over that of the posterior, mean and worst coordinate.
    """
    return _table(run, "chosen")


def within(run: Run) -> pd.DataFrame:
    """The same with variances within 10 per cent, too (mean over coordinates).

    What an effective sample size would be that is one of the posterior. Nothing where no step size of the grid will do.
    """
    return _table(run, "within")


def unfiltered(run: Run) -> pd.DataFrame:
    """The largest effective sample size of all step sizes, whatever the bias.

    What a choice by effective sample size alone would take.
    """
    return _table(run, "most")


def grid(run: Run) -> pd.DataFrame:
    """Effective sample size, error of the means and variance at each step size."""
    rows = {
        f"{run.label(method)}, {what}": {f"{p['step_size']:g}": p[name] for p in points}
        for method, points in run.once(grids).items()
        for name, what in (("ess", "ESS"), ("mean_error_rms", "error of means"), ("variance", "variance"))
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def trade(run: Run) -> Figure:
    """Effective sample size against the variance of the draws, along the grid of step sizes.

    Each line is a sampler, from small steps to large ones: left to right, but for the smallest, which have not yet come
    to the posterior. Filled: posterior means within 0.1 standard deviations, hollow: not; circled: the chosen step
    size. Grey: variances within 10 per cent of the posterior's. Crosses on the left border: the paper's effective
    sample sizes, of which no variance is known. Variances above 300 times the posterior's are not shown.
    """
    found = run.once(grids)
    there = [data for data in SETS if any(method.endswith(data) for method in found)]
    figure, axes = plt.subplots(
        2, len(there), figsize=(3.4 * len(there) + 1.2, 6.0), sharex=True, sharey=True, squeeze=False
    )
    for row, kind in zip(axes, ("sgld", "sghmc"), strict=True):
        for axis, data in zip(row, there, strict=True):
            share = float(run.config["within"]["variance"])
            axis.axvspan(max(0.01, 1 - share), 1 + share, color="grey", alpha=0.25, linewidth=0)
            shown = [s for s in SAMPLERS if s.endswith(kind) and f"{s}_{data}" in found]
            for sampler, colour in zip(shown, COLOURS, strict=False):
                points = found[f"{sampler}_{data}"]
                x, y = ([p[name] for p in points] for name in ("variance", "ess"))
                axis.plot(x, y, "-", color=colour, linewidth=1.0, label=SAMPLERS[sampler])
                near, top = unbiased(run, points), choice(run, points)
                for point in points:
                    axis.plot(
                        point["variance"],
                        point["ess"],
                        "o",
                        color=colour,
                        markersize=4,
                        markerfacecolor=colour if point in near else "white",
                    )
                axis.plot(top["variance"], top["ess"], "o", color=colour, markersize=10, fillstyle="none")
                if paper := PAPER.get(sampler, {}).get(data):
                    axis.plot(
                        0, paper, "x", color=colour, clip_on=False, transform=axis.get_yaxis_transform()
                    )
            axis.set(xscale="log", yscale="log", xlim=SHOWN)
        row[0].set_ylabel("effective sample size")
        row[-1].legend(loc="center left", bbox_to_anchor=(1.03, 0.5))
    for axis, data in zip(axes[0], there, strict=True):
        axis.set_title(SETS[data])
    for axis in axes[-1]:
        axis.set_xlabel("variance of draws / posterior")
    figure.tight_layout()
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    there = run.once(grids)
    none = [run.label(method) for method, points in there.items() if not unbiased(run, points)]
    honest = [best(faithful(run, points)) for points in there.values()]
    sizes = [point["ess"] for point in honest if point]
    lines = [
        "Chosen is the largest effective sample size with posterior means within "
        f"{run.config['within']['mean']:g} standard deviations, root mean square over coordinates, of the mean over "
        "all chains of a step size. (Of the worst coordinate this would be a rule that chance fails: means of so few "
        "effective draws are hardly known better.)"
        + (
            f" No step size will do for {', '.join(none)}: there it is the one with the least error."
            if none
            else ""
        ),
        "Too large a step widens the law before it moves its mean: means alone do not keep a sampler from winning by "
        "bias. "
        + (
            f"With variances within {100 * float(run.config['within']['variance']):.0f} % too, effective sizes are "
            f"{min(sizes):.0f} to {max(sizes):.0f} of 5000."
            if sizes
            else "No step size has its variances there, too."
        ),
    ]
    beyond = [
        f"{run.label(method)} {max(point['ess'] for point in points):,.0f} (paper {PAPER[sampler][data]:,})"
        for method, sampler, data in methods(run)
        for points in [there[method]]
        if (paper := PAPER.get(sampler, {}).get(data)) and paper > max(point["ess"] for point in points)
    ]
    if beyond:
        lines.append(
            f"At these minibatches no step size of the grid comes to the paper's effective size, biased or not, for "
            f"{len(beyond)} of its entries; the largest here: {', '.join(beyond)}."
        )
    return lines
