"""Appendix C of Li & Wong (2017): learning rates and L2 weights, by the error on images held out (Table 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import COLOURS, Array, Estimate, Figure, Run, Style, by_rows, cached, monitored

from .network import CURRENT, ENSEMBLE


class Printed(NamedTuple):
    """A row of Table 2."""

    label: str
    estimate: str  # whose error decides
    rate: float
    decay: float | None


PRINTED: Mapping[str, Printed] = {
    "sgd": Printed("SGD", CURRENT, 0.09, 2e-5),
    "sgd_momentum": Printed("SGD-M", CURRENT, 0.012, 3e-5),
    "sgld": Printed("SGLD", ENSEMBLE, 0.03, None),
    "sghmc": Printed("SGHMC", ENSEMBLE, 0.012, None),
}


class Grid(NamedTuple):
    """Errors of one optimiser or sampler on the images held out, in per cent."""

    rates: Array  # (R,)
    decays: list[float | None]  # (L,)
    errors: Array  # (L, R, trainings)

    @property
    def place(self) -> tuple[int, int]:
        """Where the lowest mean over trainings is: (L2 weight, rate)."""
        mean = self.errors.mean(axis=2)
        decay, rate = np.unravel_index(int(np.nanargmin(mean)), mean.shape)
        return int(decay), int(rate)

    @property
    def as_good(self) -> list[float]:
        """The rates with which a mean is at most two standard errors of the difference above the lowest."""
        best = self.errors[self.place]
        good_rates = []
        for rate, by_decay in zip(self.rates, self.errors.swapaxes(0, 1), strict=True):
            gaps = [estimate(errors - best) for errors in by_decay]
            if any(not gap.value > 2 * gap.se for gap in gaps):  # a gap of a single training is never clear
                good_rates.append(float(rate))
        return good_rates


@cached
def grids(run: Run) -> dict[str, Grid]:
    """Return the errors of each row of Table 2."""
    by_row = {}
    for name, printed in PRINTED.items():
        methods = [method for method in run.methods if method.rpartition("_")[0] == name or method == name]
        if not methods:
            continue
        rates = np.asarray(run.config["slow" if name in ("sgd_momentum", "sghmc") else "rates"], dtype=float)
        last = [monitored(run, method, f"error{printed.estimate}")[:, -1] for method in methods]
        errors = [final.reshape(len(rates), -1) for final in last]
        decays = [run.config["methods"][method]["kernel"]["prior"].get("decay") for method in methods]
        by_row[name] = Grid(rates, decays, np.stack(errors))
    return by_row


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable()
    for name, grid in grids(run).items():
        decay, rate = grid.place
        table.add(name, {"best_rate": float(grid.rates[rate]), "lowest": _mean(grid.errors[decay, rate])})
        if (printed := grid.decays[decay]) is not None:
            table.add(name, {"best_decay": printed})
        nearest = int(np.abs(grid.rates - PRINTED[name].rate).argmin())
        row = grid.decays.index(PRINTED[name].decay) if PRINTED[name].decay in grid.decays else decay
        table.add(name, {"of_printed": _mean(grid.errors[row, nearest])})
    return table


def _mean(errors: Array) -> Estimate | float:
    return estimate(errors) if len(errors) > 1 else float(errors.mean())


def best(run: Run) -> pd.DataFrame:
    """The rates and L2 weights with the lowest error on the images held out (Table 2)."""
    numbers = run.cached(metrics)
    rows = {}
    for name, grid in grids(run).items():
        printed, good_rates = PRINTED[name], grid.as_good
        rows[printed.label] = {
            "rate, paper": printed.rate,
            "rate": numbers[f"{name}.best_rate"],
            "as good": f"{min(good_rates):g} to {max(good_rates):g}",
            "L2, paper": printed.decay,
            "L2": numbers.get(f"{name}.best_decay"),
            "error": numbers[f"{name}.lowest"],
            "error, as printed": numbers[f"{name}.of_printed"],
        }
    return by_rows(rows)


def by_rate(run: Run, names: Iterable[str]) -> pd.DataFrame:
    """Return errors on the images held out by L2 weight and learning rate."""
    rows: dict[str, dict[str, Estimate | float]] = {}
    for name in names:
        if (grid := grids(run).get(name)) is None:
            continue
        for decay, errors in zip(grid.decays, grid.errors, strict=True):
            label = PRINTED[name].label + (f", L2 {decay:g}" if decay is not None else "")
            rows[label] = {
                f"{rate:g}": _mean(of_rate) for rate, of_rate in zip(grid.rates, errors, strict=True)
            }
    return by_rows(rows)


def rates_figure(run: Run) -> Figure:
    """Errors on the images held out against the learning rate (Table 2)."""
    by_row = grids(run)
    figure, axes = panels(len(by_row), size=(2.9, 2.9), share="", xlabel="learning rate")
    for axis, colour, (name, grid) in zip(axes, COLOURS, by_row.items(), strict=False):
        for i, (decay, errors) in enumerate(zip(grid.decays, grid.errors, strict=True)):
            spread = errors.std(axis=1) / np.sqrt(max(1, errors.shape[1] - 1))
            style: Style = {"alpha": 0.3 + 0.7 * (i + 1) / len(grid.decays), "linewidth": 1.2}
            style["label"] = None if decay is None else f"{decay:g}"
            axis.errorbar(grid.rates, errors.mean(axis=1), spread, color=colour, **style)
        axis.axvline(PRINTED[name].rate, color="black", linestyle="--", linewidth=0.8)
        axis.set_title(PRINTED[name].label)
        if len(grid.decays) > 1:
            axis.legend(title="L2 weight", title_fontsize=8, fontsize=7)
    axes[0].set_ylabel("validation error (%)")
    return finished(figure)


def spread(run: Run) -> float:
    """Return the largest difference of mean errors between L2 weights at one rate."""
    return max(float(np.ptp(grid.errors.mean(axis=2), axis=0).max()) for grid in grids(run).values())


def noise(run: Run) -> float:
    """Return the standard deviation of errors over trainings, pooled over all settings; NaN of single trainings."""
    if run.config["trainings"] < 2:
        return float("nan")
    parts = [grid.errors.var(axis=2, ddof=1).ravel() for grid in grids(run).values()]
    return float(np.sqrt(np.concatenate(parts).mean()))
