"""The section of a report with what a monitor found at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.report.declared import unknown_metrics
from mhrun.report.metrics import MetricTable
from mhrun.report.run import Run

# What every row has besides the monitor's metrics
_OF_STEPS = (
    "step",
    "wall_s",
    "n_lik",
    "n_lik_overhead",
    "n_grad",
    "accepted_rate",
    "diverging_rate",
    "step_size",
)
_CURVE = "_below_"  # in the names of points of a curve, of which there are many
_OF_GROUP = "_of_group"  # the ending of metrics of several chains together, the same for each of them


def has_monitor(run: Run) -> bool:
    """Return whether a method of a run has a monitor."""
    return any(_settings(run, method) for method in run.methods)


def monitor(run: Run) -> pd.DataFrame | str:
    """Metrics of the monitor after the last step.

    Means over chains and their standard errors, of the coldest rung of a ladder. `of_ensemble` is the ensemble of one
    chain's draws, `of_group` that of several chains, `of_mean` the mean of the parameters. NaN counts as missing.
    """
    rows: dict[str, dict[str, Estimate]] = {}
    for method in run.methods:
        for name, value in last_metrics(run, method).items():
            rows.setdefault(name, {})[run.label(method)] = value
    return pd.DataFrame.from_dict(rows, orient="index") if rows else "No monitor has metrics."


def last_metrics(run: Run, method: str) -> dict[str, Estimate]:
    """Return the metrics of a method's monitor after the last step, see `monitor`; empty without one."""
    found: dict[str, Estimate] = {}
    if not _settings(run, method):
        return found
    metrics = run.monitor(method)
    if not metrics.sizes.get("monitor_run"):
        return found
    for name, values in metrics.isel(monitor_run=-1).data_vars.items():
        if name in _OF_STEPS or _CURVE in str(name) or "chain" not in values.dims:
            continue
        group_size = int(_settings(run, method).get("group") or 1) if str(name).endswith(_OF_GROUP) else 1
        numbers = values.to_numpy()[:: run.rungs(method)][::group_size]
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers):
            se = numbers.std(ddof=1) / len(numbers) ** 0.5 if len(numbers) > 1 else np.nan
            found[str(name)] = Estimate(float(numbers.mean()), float(se))
    return found


def with_monitored(run: Run, metrics: MetricTable) -> MetricTable:
    """Return metrics of a report, and those of monitors that ``report.sweep`` names and that it does not have."""
    table = MetricTable(metrics)
    for method in run.methods:
        wanted = [
            name
            for name in (run.config.get("report") or {}).get("sweep") or []
            if f"{method}.{name}" not in table
        ]
        found = last_metrics(run, method) if wanted else {}
        table.add(method, {name: found[name] for name in wanted if name in found})
    return table


def unknown_in_run(run: Run, metrics: MetricTable, diagnoses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each number that ``report.sweep`` names and that no method of a run has."""
    known = {name.partition(".")[2] for name in metrics} | set(metrics)
    for method in run.methods:
        known |= {*last_metrics(run, method), *run.summary["methods"][method], *diagnoses.get(method, {})}
    return unknown_metrics(run.config, known, "no method of this run")


def _settings(run: Run, method: str) -> Mapping[str, Any]:
    return {**(run.config.get("monitor") or {}), **(run.config["methods"][method].get("monitor") or {})}
