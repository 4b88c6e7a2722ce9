"""Table 1 of Zhang et al. (2020) in readings that its text leaves open, each with step sizes chosen anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, value
from . import step_grid
from .logistic import PAPER, SAMPLERS, SETS

FACTOR = 3.0  # to either side of the paper's numbers: the tolerance of their claims
RULES = {"chosen": "means within 0.1 sd", "most": "any step size"}


def by_reading(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the runs by their reading, in the order of the configuration."""
    there = {str(run.config["reading"]): run for run in runs}
    order = list(runs[0].config["readings"])
    return {name: there[name] for name in order if name in there}


def _cells() -> Iterator[tuple[str, str, int]]:
    """Yield sampler, data set and the paper's number of each entry of Table 1."""
    for sampler, sizes in PAPER.items():
        for data, paper in sizes.items():
            yield sampler, data, paper


def near(size: float, paper: float) -> bool:
    """Say whether an effective sample size is within a factor of 3 of the paper's."""
    return paper / FACTOR <= size <= paper * FACTOR


def sweep_metrics(runs: Sequence[Run]) -> Metrics:
    """Return for each reading how many of the 12 sizes are near the paper's, and how many of the 6 pairs in its order.

    ``near`` and ``ordered``: of the step sizes with posterior means within 0.1 sd; ``near_most`` and ``ordered_most``:
    of the step sizes with the largest effective sample size, whatever their bias.
    """
    found: Metrics = {}
    for name, run in by_reading(runs).items():
        metrics = run.once(step_grid.metrics)
        for rule, end in (("chosen", ""), ("most", "_most")):
            size = {
                (sampler, data): value(metrics.get(f"{sampler}_{data}.{rule}.ess"))
                for sampler, data, _ in _cells()
            }
            ahead = [size[f"c{s}", data] >= size[s, data] for s in ("sgld", "sghmc") for data in SETS]
            found[f"{name}.near{end}"] = float(sum(near(size[s, data], paper) for s, data, paper in _cells()))
            found[f"{name}.ordered{end}"] = float(sum(ahead))
    return found


def readings_table(runs: Sequence[Run]) -> pd.DataFrame:
    """How many of Table 1's 12 sizes and 6 orders each reading has.

    "Sizes": within a factor of 3 of the paper's. "Orders": pairs of sampler and data set in which the cyclical one's is
    not below the traditional one's, each at its own step size. Step sizes: the largest effective sample size with
    posterior means within 0.1 standard deviations, and the largest of all.
    """
    found, rows = sweep_metrics(runs), {}
    for name, run in by_reading(runs).items():
        rows[str(run.config["readings"][name]["label"])] = {
            f"{what}, {words}": found[f"{name}.{key}{end}"]
            for (words, end) in zip(RULES.values(), ("", "_most"), strict=True)
            for what, key in (("sizes of 12", "near"), ("orders of 6", "ordered"))
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _sizes(runs: Sequence[Run], rule: str) -> pd.DataFrame:
    rows: dict[str, dict[str, Any]] = {}
    for sampler, data, paper in _cells():
        row: dict[str, Any] = {"paper": paper}
        for name, run in by_reading(runs).items():
            point = {
                key: value(run.once(step_grid.metrics).get(f"{sampler}_{data}.{rule}.{key}"))
                for key in ("ess", "variance")
            }
            row[str(run.config["readings"][name]["label"])] = f"{point['ess']:,.0f} ({point['variance']:.2f})"
        rows[f"{SAMPLERS[sampler]}, {SETS[data]}"] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def sizes_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Median effective sample size out of 5000, and in brackets the variance of the draws over the posterior's.

    At the step size with the largest effective sample size whose posterior means are within 0.1 standard deviations.
    """
    return _sizes(runs, "chosen")


def unfiltered_table(runs: Sequence[Run]) -> pd.DataFrame:
    """The same at the step size with the largest effective sample size of all, whatever its bias."""
    return _sizes(runs, "most")


def readings_figure(runs: Sequence[Run]) -> Figure:
    """Effective sample sizes in each reading beside the paper's.

    Filled: step sizes with posterior means within 0.1 standard deviations; hollow: the largest of all step sizes. Grey
    bands: within a factor of 3 of the paper's number, the black line.
    """
    there = by_reading(runs)
    samplers = list(PAPER)
    figure, axes = plt.subplots(
        len(SETS), len(samplers), figsize=(9.6, 6.4), sharex=True, sharey=True, squeeze=False
    )
    labels = [str(run.config["readings"][name]["label"]) for name, run in there.items()]
    places = np.arange(len(there))[::-1]
    for row, data in zip(axes, SETS, strict=True):
        for axis, sampler in zip(row, samplers, strict=True):
            paper, colour = PAPER[sampler][data], COLOURS[list(SAMPLERS).index(sampler)]
            axis.axvspan(paper / FACTOR, paper * FACTOR, color="grey", alpha=0.2, linewidth=0)
            axis.axvline(paper, color="black", linewidth=0.9)
            for place, run in zip(places, there.values(), strict=True):
                metrics = run.once(step_grid.metrics)
                for rule, fill in (("most", "white"), ("chosen", colour)):
                    size = value(metrics.get(f"{sampler}_{data}.{rule}.ess"))
                    axis.plot(size, place, "o", color=colour, markerfacecolor=fill, markersize=5)
            axis.set(xscale="log", title=f"{SAMPLERS[sampler]}, {SETS[data]}")
        row[0].set_yticks(places, labels)
    for axis in axes[-1]:
        axis.set_xlabel("effective sample size")
    figure.tight_layout()
    return figure


def notes(runs: Sequence[Run]) -> list[str]:
    """What a reader should know beside the numbers."""
    found, there = sweep_metrics(runs), by_reading(runs)
    labels = {name: str(run.config["readings"][name]["label"]) for name, run in there.items()}
    closest = max(there, key=lambda name: value(found[f"{name}.near"]))
    return [
        "Each reading changes one thing of the first: gradients of all data, a sample at every step, friction 0.1, "
        "decay a_0 k^-0.55, five cycles, standardised covariates. Burn-in is 1000 samples' worth of steps.",
        f"Most of the paper's sizes: {labels[closest]}, {value(found[f'{closest}.near']):.0f} of 12 within a factor "
        f"of {FACTOR:g}.",
        "Friction 0.9 and momenta that are drawn anew concern SGHMC and cSGHMC alone. With 30 cycles 4,862 draws are "
        "left after burn-in, not 5,000.",
    ]
