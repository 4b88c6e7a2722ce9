"""Appendix C of Li & Wong (2017): learning rates and L2 weights, by the error on images held out (Table 2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import COLOURS, Array, Estimate, Figure, Run, by_rows, cached, monitored

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


class Errors(NamedTuple):
    """Errors of one setting after another on the images held out, in per cent."""

    settings: Array  # (R,) learning rates or L2 weights
    errors: Array  # (R, trainings)

    @property
    def means(self) -> Array:
        """The mean error of each setting (R,)."""
        return self.errors.mean(axis=1)

    @property
    def place(self) -> int:
        """Where the lowest mean over trainings is."""
        return int(np.nanargmin(self.means))

    @property
    def best(self) -> float:
        """The setting with the lowest mean."""
        return float(self.settings[self.place])

    @property
    def as_good(self) -> list[float]:
        """The settings whose mean is at most two standard errors of the difference above the lowest."""
        gaps = [estimate(errors - self.errors[self.place]) for errors in self.errors]
        # A gap of a single training has no standard error, and is never clear.
        return [
            float(setting)
            for setting, gap in zip(self.settings, gaps, strict=True)
            if not gap.value > 2 * gap.se
        ]

    def at(self, setting: float) -> Array:
        """The errors of the setting nearest to a value (trainings,)."""
        return self.errors[int(np.abs(self.settings - setting).argmin())]


class Search(NamedTuple):
    """What was tried for one row of Table 2."""

    rates: Errors  # at the printed L2 weight
    weights: Errors | None  # at the printed rate, None of samplers


@cached
def searches(run: Run) -> dict[str, Search]:
    """Return the errors of each row of Table 2."""
    by_row = {}
    for name, printed in PRINTED.items():
        if name not in run.methods:
            continue
        grid = run.config["slow" if name in ("sgd_momentum", "sghmc") else "rates"]
        rates = _errors(grid, _last(run, name, printed).reshape(len(grid), -1))
        weights = None
        if printed.decay is not None:
            by_weight = {printed.decay: rates.at(printed.rate)} | {
                float(run.config["methods"][method]["kernel"]["prior"]["decay"]): _last(run, method, printed)
                for method in run.methods
                if re.fullmatch(rf"{name}_\d", method)
            }
            weights = _errors(sorted(by_weight), [by_weight[weight] for weight in sorted(by_weight)])
        by_row[name] = Search(rates, weights)
    return by_row


def _errors(settings: npt.ArrayLike, errors: npt.ArrayLike) -> Errors:
    return Errors(np.asarray(settings, dtype=float), np.asarray(errors, dtype=float))


def _last(run: Run, method: str, printed: Printed) -> Array:
    return monitored(run, method, f"error{printed.estimate}")[:, -1]


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable()
    for name, (rates, weights) in searches(run).items():
        table.add(name, {"best_rate": rates.best, "lowest": _mean(rates.errors[rates.place])})
        table.add(name, {"of_printed": _mean(rates.at(PRINTED[name].rate))})
        if weights is not None:
            table.add(name, {"best_decay": weights.best})
    return table


def _mean(errors: Array) -> Estimate | float:
    return estimate(errors) if len(errors) > 1 else float(errors.mean())


def best(run: Run) -> pd.DataFrame:
    """The rates and L2 weights with the lowest error on the images held out (Table 2)."""
    numbers = run.cached(metrics)
    rows = {}
    for name, (rates, _) in searches(run).items():
        printed = PRINTED[name]
        rows[printed.label] = {
            "rate, paper": printed.rate,
            "rate": numbers[f"{name}.best_rate"],
            "as good": _range(rates),
            "L2, paper": printed.decay,
            "L2": numbers.get(f"{name}.best_decay"),
            "error": numbers[f"{name}.lowest"],
            "error, as printed": numbers[f"{name}.of_printed"],
        }
    return by_rows(rows)


def _range(errors: Errors) -> str | None:
    if errors.errors.shape[1] < 2:
        return None
    return f"{min(errors.as_good):g} to {max(errors.as_good):g}"


def by_rate(run: Run, names: Iterable[str]) -> pd.DataFrame:
    """Return errors on the images held out by learning rate."""
    return by_rows(
        {PRINTED[name].label: _row(searches(run)[name].rates) for name in names if name in searches(run)}
    )


def weight_table(run: Run) -> pd.DataFrame:
    """Errors on the images held out by L2 weight, at the printed learning rates, in per cent.

    Means over trainings.
    """
    weights = {PRINTED[name].label: search.weights for name, search in searches(run).items()}
    return by_rows({label: _row(errors) for label, errors in weights.items() if errors is not None})


def _row(errors: Errors) -> dict[str, Estimate | float]:
    return {
        f"{setting:g}": _mean(of_one) for setting, of_one in zip(errors.settings, errors.errors, strict=True)
    }


def rates_figure(run: Run) -> Figure:
    """Errors on the images held out against the learning rate and the L2 weight (Table 2)."""
    by_row = searches(run)
    shown = [(name, "learning rate", search.rates, PRINTED[name].rate) for name, search in by_row.items()] + [
        (name, "L2 weight", search.weights, decay)
        for name, search in by_row.items()
        if search.weights is not None and (decay := PRINTED[name].decay) is not None
    ]
    colours = dict(zip(PRINTED, COLOURS, strict=False))
    figure, axes = panels(len(shown), columns=min(4, max(2, len(by_row))), size=(2.9, 2.9), share="")
    for axis, (name, setting, errors, printed) in zip(axes, shown, strict=False):
        spread = errors.errors.std(axis=1) / np.sqrt(max(1, errors.errors.shape[1] - 1))
        axis.errorbar(
            errors.settings,
            errors.means,
            spread,
            color=colours[name],
            marker="o",
            markersize=4,
            linewidth=1.2,
        )
        axis.axvline(printed, color="black", linestyle="--", linewidth=0.8)
        axis.set(title=PRINTED[name].label, xlabel=setting)
    for axis in axes[:: max(2, len(by_row))]:
        axis.set_ylabel("validation error (%)")
    return finished(figure)


def spread(run: Run) -> float:
    """Return the largest difference of mean errors between L2 weights."""
    return max(
        float(np.ptp(search.weights.means)) for search in searches(run).values() if search.weights is not None
    )


def noise(run: Run) -> float:
    """Return the standard deviation of errors over trainings, pooled over all settings; NaN of single trainings."""
    if run.config["trainings"] < 2:
        return float("nan")
    parts = [search.rates.errors.var(axis=1, ddof=1) for search in searches(run).values()]
    return float(np.sqrt(np.concatenate(parts).mean()))
