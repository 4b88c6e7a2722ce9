"""Figure 3(c) of Zhang et al. (2020) on the networks of Figure 4: ensembles by cycles, and single networks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from mhrun.data import Dataset
from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.plots import finished, panels, points
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, Style, by_rows

from . import weights

BY_CYCLE = ("csgld", "csghmc", "csgld_t1", "csghmc_t1", "snapshot_sgd", "snapshot_sgd_momentum")
BY_TIME = ("sgld", "sghmc", "sgld_t1", "sghmc_t1")
RIVALS = {  # of each cyclical sampler: the Snapshot ensemble and the traditional sampler
    "csgld": ("snapshot_sgd", "sgld"),
    "csghmc": ("snapshot_sgd_momentum", "sghmc"),
    "csgld_t1": ("snapshot_sgd", "sgld_t1"),
    "csghmc_t1": ("snapshot_sgd_momentum", "sghmc_t1"),
}
_ROWS = 2000  # test images at once


class Errors(NamedTuple):
    """Test errors of one method in per cent, for C seeds."""

    single: Array  # (C, S), of each of S networks
    # (C, M), of the ensemble of the first 1 ... M cycles; (C, 1) of BY_TIME, of all networks
    by_cycles: Array


def errors(run: Run) -> dict[str, Errors]:
    """Return the test errors of single networks and of ensembles of each method that kept its networks."""
    test, by_method = weights.test_data(run), {}
    for method in (*BY_CYCLE, *BY_TIME):
        if method not in run.methods or not weights.keeps(run, method):
            continue
        draws = run.draws(method).astype(np.float32)
        cycles = int(run.config["cycles"]) if method in BY_CYCLE else 1
        of_seeds = [_of_seed(run, of_seed, test, cycles) for of_seed in draws]
        single, ensembles = zip(*of_seeds, strict=True)
        by_method[method] = Errors(np.stack(single), np.stack(ensembles))
    return by_method


def _of_seed(run: Run, networks: Array, test: Dataset, cycles: int) -> tuple[Array, Array]:
    """Return test errors in per cent of networks (S, D) alone (S,), and of the first 1 ... M of M cycles (M,)."""
    theta = torch.from_numpy(networks)
    single = torch.zeros(len(theta), dtype=torch.float64)
    ensemble = torch.zeros(cycles, dtype=torch.float64)
    per_cycle = len(theta) // cycles
    with torch.no_grad():
        for start in range(0, test.n, _ROWS):
            rows = test.part(start, min(start + _ROWS, test.n))
            p = run.target.model.predict(theta, rows).double().exp()  # type: ignore[attr-defined]
            y = rows["y"]
            single += (p.argmax(-1) != y).sum(-1)
            # Equal weights; the largest class needs no mean.
            sums = p.cumsum(0)[per_cycle - 1 :: per_cycle][:cycles]
            ensemble += (sums.argmax(-1) != y).sum(-1)
    return 100 / test.n * single.numpy(), 100 / test.n * ensemble.numpy()


def metrics(run: Run) -> Metrics:
    """Return the metrics of Figure 3(c)'s claims, on these networks; errors in per cent.

    ``falls``: of the steps from M to M + 1 cycles, those in which the mean error over seeds does not rise by more than
    a standard error of the differences. ``lower_at``: the numbers of cycles at which the mean error is below that of
    the Snapshot ensemble. ``single_over``, ``ensemble_under``: against the traditional sampler's networks.
    """
    table, by_method = MetricTable(), run.cached(errors)
    for method, scores in by_method.items():
        table.add(
            method,
            {"single": estimate(scores.single.mean(axis=1)), "ensemble": estimate(scores.by_cycles[:, -1])},
        )
        if method in BY_CYCLE:
            steps = [estimate(step) for step in np.diff(scores.by_cycles, axis=1).T]
            table.series(method, "error", {m: estimate(e) for m, e in enumerate(scores.by_cycles.T, 1)})
            falls = float(sum(s.value <= np.nan_to_num(s.se) for s in steps))
            table.add(
                method, {"falls": falls, "gain": estimate(scores.by_cycles[:, 0] - scores.by_cycles[:, -1])}
            )
    for method, (snapshot, traditional) in RIVALS.items():
        if {method, snapshot} <= set(by_method):
            one, two = (by_method[name].by_cycles.mean(axis=0) for name in (method, snapshot))
            table.add(method, {f"lower_at.{snapshot}": float((one < two).sum())})
        if {method, traditional} <= set(by_method):
            cyclical, rival = by_method[method], by_method[traditional]
            excess = cyclical.single.mean(axis=1) - rival.single.mean(axis=1)
            margin = rival.by_cycles[:, -1] - cyclical.by_cycles[:, -1]
            table.add(method, {f"single_over.{traditional}": estimate(excess)})
            table.add(method, {f"ensemble_under.{traditional}": estimate(margin)})
    return table


def single_table(run: Run) -> pd.DataFrame:
    """Test error of one network and of the ensemble of all, per cent (section 5.3, on these networks)."""
    numbers, rows = run.cached(metrics), {}
    for method in run.cached(errors):
        row: dict[str, Any] = {"one": numbers[f"{method}.single"], "ensemble": numbers[f"{method}.ensemble"]}
        if method in RIVALS:
            traditional = RIVALS[method][1]
            row["one, over"] = numbers.get(f"{method}.single_over.{traditional}")
            row["ensemble, under"] = numbers.get(f"{method}.ensemble_under.{traditional}")
        rows[run.label(method)] = row
    return by_rows(rows)


_LINES = {
    "csgld": (COLOURS[1], "-"),
    "csghmc": (COLOURS[1], "--"),
    "snapshot_sgd": (COLOURS[2], "-"),
    "snapshot_sgd_momentum": (COLOURS[2], "--"),
    "sgld": (COLOURS[0], "-"),
    "sghmc": (COLOURS[0], "--"),
}


def ensembles_figure(run: Run) -> Figure:
    """Test error of ensembles by the number of cycles, and of single networks (Figure 3c, on these networks)."""
    numbers, by_method = run.cached(metrics), run.cached(errors)
    figure, (left, right) = panels(2, size=(4.6, 3.4), share="")
    for place, (method, scores) in enumerate(by_method.items()):
        colour, line = _LINES[method.removesuffix("_t1")]
        style: Style = {"color": colour, "linestyle": line, "label": run.label(method)}
        if method in BY_CYCLE:
            cycles = np.arange(1, scores.by_cycles.shape[1] + 1)
            points(left, cycles, [estimate(e) for e in scores.by_cycles.T], **style)
            left.set_xticks(cycles)
        else:
            left.axhline(value(numbers[f"{method}.ensemble"]), **style)
        for name, fill in (("single", "white"), ("ensemble", colour)):
            style = {"color": colour, "markerfacecolor": fill, "markersize": 6}
            points(right, [-place], [numbers[f"{method}.{name}"]], upright=False, **style)
    left.set(xlabel="cycles M", ylabel="test error (%)")
    right.set(xlabel="test error (%)", yticks=-np.arange(len(by_method)))
    right.set_yticklabels([run.label(method) for method in by_method])
    return finished(figure, legend="right", axes=[left])
