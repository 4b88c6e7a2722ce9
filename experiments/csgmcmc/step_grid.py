"""The grid of step sizes behind Table 1 of Zhang et al. (2020): effective sample size against bias."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mhrun.report.metrics import Metrics, value
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import Figure, Run, Style, by_rows, styles_of

from .logistic import PAPER, SAMPLERS, SETS, methods, of_draws, truths

SHOWN = (0.15, 300.0)  # variances in the figure, over the posterior's

Point = dict[str, float]
"""What one step size came to: `step_size`, and the numbers of `of_draws`."""


def grids(run: Run) -> dict[str, list[Point]]:
    """Return for each method what each step size of the grid came to."""
    by_method = {}
    for method, _, data in methods(run):
        with run.trace(method) as trace:  # a method at a time: all together are gigabytes
            draws = trace["posterior"]["theta"].to_numpy()
        grid = grid_of(run.config["methods"][method])
        by_method[method] = [
            {"step_size": step} | {name: value(number) for name, number in of_draws(part, truth)[0].items()}
            for truth in [run.cached(truths)[data]]
            for step, part in zip(grid, np.split(draws, len(grid)), strict=True)
        ]
    return by_method


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
    numbers: Metrics = {}
    for method, points in run.cached(grids).items():
        nothing = dict.fromkeys(points[0], float("nan"))
        choices = {
            "chosen": choice(run, points),
            "within": best(faithful(run, points)) or nothing,
            "most": best(finite(points)) or nothing,
        }
        for name, point in choices.items():
            numbers |= {f"{method}.{name}.{key}": number for key, number in point.items()}
    return numbers


def table(run: Run, which: str) -> pd.DataFrame:
    """Return what the step sizes of a choice came to: `chosen`, `within` or `most` (see `metrics`)."""
    columns = {
        "step size": "step_size",
        "ESS": "ess",
        "error of means": "mean_error_rms",
        "worst mean": "mean_error",
        "variance": "variance",
        "worst variance": "variance_worst",
    }
    numbers = run.cached(metrics)
    rows: dict[str, dict[str, Any]] = {}
    for method, sampler, data in methods(run):
        row: dict[str, Any] = {head: numbers[f"{method}.{which}.{name}"] for head, name in columns.items()}
        step = row["step size"]
        row["step size"] = f"{step:g}" if np.isfinite(step) else "none"  # as it is to be written down
        rows[run.label(method)] = row | {"paper's ESS": PAPER.get(sampler, {}).get(data)}
    return by_rows(rows)


def grid(run: Run) -> pd.DataFrame:
    """Effective sample size, error of the means and variance at each step size."""
    rows = {
        f"{run.label(method)}, {words}": {f"{p['step_size']:g}": p[name] for p in points}
        for method, points in run.cached(grids).items()
        for name, words in (("ess", "ESS"), ("mean_error_rms", "error of means"), ("variance", "variance"))
    }
    return by_rows(rows)


def trade(run: Run) -> Figure:
    """Effective sample size against the variance of the draws, along the grid of step sizes."""
    by_method, looks = run.cached(grids), styles_of(run)
    sets = [data for data in SETS if any(method.endswith(data) for method in by_method)]
    share, columns = float(run.config["within"]["variance"]), len(sets)
    panel_style: Style = {"xscale": "log", "yscale": "log", "xlim": SHOWN}
    labels = {"xlabel": "variance of draws / posterior", "ylabel": "effective sample size"}
    figure, axes = panels(2 * columns, columns=columns, size=(3.4, 3.0), share="xy", **panel_style, **labels)
    for axis, (kind, data) in zip(axes, itertools.product(("sgld", "sghmc"), sets), strict=True):
        axis.axvspan(max(0.01, 1 - share), 1 + share, color="grey", alpha=0.25, linewidth=0)
        shown = [s for s in SAMPLERS if s.endswith(kind) and f"{s}_{data}" in by_method]
        for sampler in shown:
            colour = looks[f"{sampler}_{data}"]["color"]
            points = by_method[f"{sampler}_{data}"]
            x, y = ([p[name] for p in points] for name in ("variance", "ess"))
            axis.plot(x, y, "-", color=colour, linewidth=1.0, label=SAMPLERS[sampler])
            near, top = unbiased(run, points), choice(run, points)
            for point in points:
                fill = colour if point in near else "white"
                axis.plot(
                    point["variance"], point["ess"], "o", color=colour, markersize=4, markerfacecolor=fill
                )
            axis.plot(top["variance"], top["ess"], "o", color=colour, markersize=10, fillstyle="none")
            if paper := PAPER.get(sampler, {}).get(data):
                border = axis.get_yaxis_transform()
                axis.plot(0, paper, "x", color=colour, clip_on=False, transform=border)
    for axis in axes[columns - 1 :: columns]:
        axis.legend(loc="center left", bbox_to_anchor=(1.03, 0.5))
    for axis, data in zip(axes, sets, strict=False):
        axis.set_title(SETS[data])
    return finished(figure)


def no_choice(run: Run) -> list[str]:
    """Return the labels of methods that no step size keeps unbiased."""
    return [run.label(method) for method, points in run.cached(grids).items() if not unbiased(run, points)]


def honest_sizes(run: Run) -> list[float]:
    """Return the largest effective sample size of each method with means and variances near the posterior's."""
    chosen = [best(faithful(run, points)) for points in run.cached(grids).values()]
    return [point["ess"] for point in chosen if point]


def out_of_reach(run: Run) -> list[tuple[str, float, int]]:
    """Return methods whose effective sample size in the paper no step size has: name, largest here, paper's."""
    missed = []
    for method, sampler, data in methods(run):
        largest = max(point["ess"] for point in run.cached(grids)[method])
        paper = PAPER.get(sampler, {}).get(data)
        if paper and paper > largest:
            missed.append((method, largest, paper))
    return missed
