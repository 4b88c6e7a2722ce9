"""Section 4.3 and appendix C of Li & Wong (2017): MINT and CMINT on a network, MNIST (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.plots import band, finished, levels, logarithmic, panels
from mhrun.report.vocabulary import COLOURS, Array, Axes, Figure, Run, Style, by_rows, monitored

# What predicts: the current parameters, the mean of all so far, or the mean of the probabilities. It is the paper's for
# MINT, CMINT and the optimisers; of SGLD and SGHMC it says nothing, and theirs is that of Chen et al. (2014).
CURRENT, MEAN, ENSEMBLE = "", "_of_mean", "_of_ensemble"
ESTIMATES: Mapping[str, str] = {
    "sgd": CURRENT,
    "sgd_momentum": CURRENT,
    "sgld": ENSEMBLE,
    "sghmc": ENSEMBLE,
    "mint": MEAN,
    "cmint": ENSEMBLE,
    "mint_noq": MEAN,
    "cmint_noq": ENSEMBLE,
    "mint_moving": MEAN,
    "cmint_moving": ENSEMBLE,
    "rmsprop": CURRENT,
    "adam": CURRENT,
    "adagrad": CURRENT,
}
RIVALS = ("sgd", "sgd_momentum", "sgld", "sghmc")
READINGS: Mapping[str, tuple[str, str]] = {  # MINT and CMINT, by what is read into the paper's one sentence
    "densities in the test": ("mint", "cmint"),
    "no densities": ("mint_noq", "cmint_noq"),
    "no densities, fresh minibatches": ("mint_moving", "cmint_moving"),
}


def readings(run: Run) -> dict[str, tuple[str, str]]:
    """Return the readings of which this run has MINT or CMINT; one without methods if it has none of any."""
    present = {name: pair for name, pair in READINGS.items() if set(pair) & set(run.methods)}
    return present or {"without MINT": ("", "")}


def epochs(run: Run, method: str) -> Array:
    """Return the passes through the data up to each run of the monitor (L,)."""
    steps = monitored(run, method, "step")
    return (steps if steps.ndim == 1 else steps[0]) / float(run.config["epoch"])


def errors(run: Run, method: str) -> Array:
    """Return the errors on the test images in per cent, by the method's own estimate: (C, L)."""
    return monitored(run, method, f"error{ESTIMATES[method]}")


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    methods = [method for method in ESTIMATES if method in run.methods]
    final = {method: errors(run, method)[:, -1] for method in methods}
    table = MetricTable.by_method(run, _of_method, methods)
    if {"sghmc", "sgd_momentum"} <= set(methods):
        table["sghmc.over.sgd_momentum"] = estimate(final["sghmc"] - final["sgd_momentum"])
    for mint, cmint in READINGS.values():
        # No two methods share random numbers: chains are paired in no more than their number.
        pairs = [(m, o) for m in (mint, cmint) for o in (*RIVALS, mint) if m != o and {m, o} <= set(methods)]
        table |= {f"{one}.over.{other}": estimate(final[one] - final[other]) for one, other in pairs}
        if cmint in methods:
            ends = round_ends(run, cmint)
            table.add(cmint, {"end_least": float(ends.mean(axis=0).min()), "end_last": estimate(ends[:, -1])})
        leads = [table[f"{cmint}.over.{other}"] for one, other in pairs if one == cmint]
        if len(leads) == len(RIVALS) + 1:
            table.add(cmint, {"over_best": max(leads, key=value)})
    return table


def _of_method(run: Run, method: str) -> Metrics:
    numbers: Metrics = {"final": estimate(errors(run, method)[:, -1])}
    for name in (number + kind for number in ("error", "nll") for kind in (CURRENT, MEAN, ENSEMBLE)):
        if name in run.monitor(method):
            numbers[name] = estimate(monitored(run, method, name)[:, -1])
    if run.methods[method]["n_accept_tests"]:
        numbers["accept_rate"] = run.methods[method]["accept_rate"]
    return numbers


def round_ends(run: Run, method: str) -> Array:
    """Return the acceptance in the last epoch of each round of CMINT, (C, rounds)."""
    length = round(run.config["cycle"] / run.config["epoch"])
    return monitored(run, method, "accepted_rate")[:, length - 1 :: length]


def differences(run: Run) -> pd.DataFrame:
    """By how many percentage points MINT and CMINT are off the others (Figure 3); below zero they are better."""
    numbers = run.cached(metrics)
    compared = [method for pair in READINGS.values() for method in pair if method in run.methods]
    rows = {
        run.label(rival): {run.label(method): numbers.get(f"{method}.over.{rival}") for method in compared}
        for rival in (*RIVALS, *(mint for mint, _ in READINGS.values()))
        if any(f"{method}.over.{rival}" in numbers for method in compared)
    }
    return by_rows(rows)


def rounds(run: Run) -> pd.DataFrame:
    """Acceptance in the last epoch of each round of CMINT (section 4.3)."""
    methods = [method for _, method in READINGS.values() if method in run.methods]
    ends = {run.label(method): round_ends(run, method).T for method in methods}
    return by_rows(
        {name: {f"round {i}": estimate(e) for i, e in enumerate(rates, 1)} for name, rates in ends.items()}
    )


def error_figure(run: Run) -> Figure:
    """Errors on the test images against passes through the data (Figure 3)."""
    by_reading = readings(run)
    labels: Style = {"xlabel": "passes through the data", "ylabel": "error on test images (%)"}
    figure, axes = panels(len(by_reading), size=(3.9 + 0.8 / len(by_reading), 3.4), **labels)
    for axis, (reading, (mint, cmint)) in zip(axes, by_reading.items(), strict=True):
        for method, colour in zip((*RIVALS, mint), COLOURS, strict=False):
            if method in run.methods:
                curve(axis, run, method, color=colour, label="MINT" if method == mint else run.label(method))
        if cmint in run.methods:
            level = float(errors(run, cmint)[:, -1].mean())
            levels(axis, level, color=COLOURS[5], linewidth=1.2, label="CMINT")
        axis.set_title(reading)
        logarithmic(axis)
    return finished(figure, legend="right")


def curve(axis: Axes, run: Run, method: str, **style: Any) -> None:
    """Draw a method's mean error over trainings against passes through the data, with one standard error."""
    by_chain, x = errors(run, method), epochs(run, method)
    finite = np.isfinite(by_chain).all(axis=0)  # an ensemble has no member for a while
    band(axis, x[finite], by_chain[:, finite], **style)


def rounds_figure(run: Run) -> Figure:
    """Acceptance and step size over the rounds of CMINT, and errors of its parameters and of its ensemble."""
    by_reading, length = readings(run), round(run.config["cycle"] / run.config["epoch"])
    columns = len(by_reading)
    size = (4.4 + 0.8 / columns, 1.87)
    figure, axes = panels(
        3 * columns, columns=columns, size=size, share="x row", xlabel="passes through the data"
    )
    names = (("accepted_rate",), ("step_size",), ("error", "error_of_ensemble"))
    for column, (reading, (_, method)) in enumerate(by_reading.items()):
        if method not in run.methods:
            continue
        x, column_axes = epochs(run, method), axes[column::columns]
        for axis, shown in zip(column_axes, names, strict=True):
            for name, colour in zip(shown, COLOURS, strict=False):
                scale = run.config["data"]["n"] if name == "step_size" else 1
                mean = monitored(run, method, name).mean(axis=0) * scale
                label = {"error": "current", "error_of_ensemble": "ensemble"}.get(name)
                axis.plot(x, mean, color=colour, linewidth=1.2, label=label)
            for end in range(length, round(x[-1]), length):
                axis.axvline(end, color="grey", linestyle=":", linewidth=0.8)
        column_axes[0].set(title=f"CMINT, {reading}", ylim=(-0.03, 1.03))
        logarithmic(column_axes[1], (1, 3))
        for axis in column_axes[2:]:
            logarithmic(axis)
    for axis, name in zip(axes[::columns], ("acceptance", "learning rate", "test error (%)"), strict=True):
        axis.set_ylabel(name)
    if axes[-1].get_legend_handles_labels()[0]:
        axes[-1].legend()
    return figure
