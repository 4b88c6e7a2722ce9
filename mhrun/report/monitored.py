"""The section of a report with what a monitor found at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mhrun.diagnostics.grid import Estimate
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
    rows: dict[str, dict[str, Any]] = {}
    for method in run.methods:
        metrics = run.monitor(method)
        if not metrics.sizes.get("monitor_run"):
            continue
        last = metrics.isel(monitor_run=-1)
        for name, values in last.data_vars.items():
            if name in _OF_STEPS or _CURVE in str(name) or "chain" not in values.dims:
                continue
            group_size = int(_settings(run, method).get("group") or 1) if str(name).endswith(_OF_GROUP) else 1
            numbers = values.to_numpy()[:: run.rungs(method)][::group_size]
            numbers = numbers[np.isfinite(numbers)]
            if len(numbers):
                se = numbers.std(ddof=1) / len(numbers) ** 0.5 if len(numbers) > 1 else np.nan
                rows.setdefault(str(name), {})[run.label(method)] = Estimate(float(numbers.mean()), float(se))
    return pd.DataFrame.from_dict(rows, orient="index") if rows else "No monitor has metrics."


def _settings(run: Run, method: str) -> Mapping[str, Any]:
    return {**(run.config.get("monitor") or {}), **(run.config["methods"][method].get("monitor") or {})}
