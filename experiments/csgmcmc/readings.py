"""Table 1 of Zhang et al. (2020) in readings that its text leaves open, each with step sizes chosen anew."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mhrun.report.metrics import Metrics, value
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import COLOURS, Figure, Run, Style, by_rows

from . import step_grid
from .logistic import PAPER, SAMPLERS, SETS

FACTOR = 3.0  # to either side of the paper's numbers: the tolerance of their claims
RULES = {"chosen": "means within 0.1 sd", "most": "any step size"}


def by_reading(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the runs by their reading, in the order of the configuration."""
    by_name = {str(run.config["reading"]): run for run in runs}
    order = list(runs[0].config["readings"])
    return {name: by_name[name] for name in order if name in by_name}


def _cells() -> Iterator[tuple[str, str, int]]:
    """Yield sampler, data set and the paper's number of each entry of Table 1."""
    for sampler, sizes in PAPER.items():
        for data, paper in sizes.items():
            yield sampler, data, paper


def near(size: float, paper: float) -> bool:
    """Return whether an effective sample size is within a factor of 3 of the paper's."""
    return paper / FACTOR <= size <= paper * FACTOR


def sweep_metrics(runs: Sequence[Run]) -> Metrics:
    """Return for each reading how many of the 12 sizes are near the paper's, and how many of the 6 pairs in its order.

    ``near`` and ``ordered``: of the step sizes with posterior means within 0.1 sd; ``near_most`` and ``ordered_most``:
    of the step sizes with the largest effective sample size, whatever their bias.
    """
    numbers: Metrics = {}
    for name, run in by_reading(runs).items():
        metrics = run.cached(step_grid.metrics)
        for rule, end in (("chosen", ""), ("most", "_most")):
            size = {
                (sampler, data): value(metrics.get(f"{sampler}_{data}.{rule}.ess"))
                for sampler, data, _ in _cells()
            }
            ordered = [size[f"c{s}", data] >= size[s, data] for s in ("sgld", "sghmc") for data in SETS]
            numbers[f"{name}.near{end}"] = float(
                sum(near(size[s, data], paper) for s, data, paper in _cells())
            )
            numbers[f"{name}.ordered{end}"] = float(sum(ordered))
    return numbers


def readings_table(runs: Sequence[Run]) -> pd.DataFrame:
    """How many of Table 1's 12 sizes and 6 orders each reading has."""
    numbers, rows = sweep_metrics(runs), {}
    for name, run in by_reading(runs).items():
        rows[str(run.config["readings"][name]["label"])] = {
            f"{quantity}, {words}": numbers[f"{name}.{key}{end}"]
            for (words, end) in zip(RULES.values(), ("", "_most"), strict=True)
            for quantity, key in (("sizes of 12", "near"), ("orders of 6", "ordered"))
        }
    return by_rows(rows)


def sizes(runs: Sequence[Run], rule: str) -> pd.DataFrame:
    """Return sizes and variances of each entry of Table 1 in each reading, by a rule to choose step sizes."""
    rows: dict[str, dict[str, Any]] = {}
    for sampler, data, paper in _cells():
        row: dict[str, Any] = {"paper": paper}
        for name, run in by_reading(runs).items():
            point = {
                key: value(run.cached(step_grid.metrics).get(f"{sampler}_{data}.{rule}.{key}"))
                for key in ("ess", "variance")
            }
            row[str(run.config["readings"][name]["label"])] = f"{point['ess']:,.0f} ({point['variance']:.2f})"
        rows[f"{SAMPLERS[sampler]}, {SETS[data]}"] = row
    return by_rows(rows)


def readings_figure(runs: Sequence[Run]) -> Figure:
    """Effective sample sizes in each reading beside the paper's."""
    by_name, samplers = by_reading(runs), list(PAPER)
    panel_style: Style = {"xscale": "log", "xlabel": "effective sample size"}
    figure, axes = panels(
        len(SETS) * len(samplers), columns=len(samplers), size=(2.4, 2.1), share="xy", **panel_style
    )
    labels = [str(run.config["readings"][name]["label"]) for name, run in by_name.items()]
    places = np.arange(len(by_name))[::-1]
    for axis, (data, sampler) in zip(axes, itertools.product(SETS, samplers), strict=True):
        paper, colour = PAPER[sampler][data], COLOURS[list(SAMPLERS).index(sampler)]
        axis.axvspan(paper / FACTOR, paper * FACTOR, color="grey", alpha=0.2, linewidth=0)
        axis.axvline(paper, color="black", linewidth=0.9)
        for place, run in zip(places, by_name.values(), strict=True):
            for rule, fill in (("most", "white"), ("chosen", colour)):
                size = value(run.cached(step_grid.metrics).get(f"{sampler}_{data}.{rule}.ess"))
                axis.plot(size, place, "o", color=colour, markerfacecolor=fill, markersize=5)
        axis.set_title(f"{SAMPLERS[sampler]}, {SETS[data]}")
    axes[0].set_yticks(places, labels)
    return finished(figure)


def most(found: Metrics, there: Mapping[str, Run]) -> str:
    """Return the reading that has most sizes near the paper's."""
    return max(there, key=lambda name: value(found[f"{name}.near"]))
