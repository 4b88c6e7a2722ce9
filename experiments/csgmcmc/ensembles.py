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
    by_cycles: (
        Array  # (C, M), of the ensemble of the first 1 ... M cycles; (C, 1) of BY_TIME, of all networks
    )


def errors(run: Run) -> dict[str, Errors]:
    """Return the test errors of single networks and of ensembles of each method that kept its networks."""
    test, found = weights.test_data(run), {}
    for method in (*BY_CYCLE, *BY_TIME):
        if method not in run.methods or not weights.keeps(run, method):
            continue
        draws = run.draws(method).astype(np.float32)
        cycles = int(run.config["cycles"]) if method in BY_CYCLE else 1
        of_seeds = [_of_seed(run, of_seed, test, cycles) for of_seed in draws]
        single, ensembles = zip(*of_seeds, strict=True)
        found[method] = Errors(np.stack(single), np.stack(ensembles))
    return found


def _of_seed(run: Run, networks: Array, test: Dataset, cycles: int) -> tuple[Array, Array]:
    """Return test errors in per cent of networks (S, D) alone (S,), and of the first 1 ... M of M cycles (M,)."""
    theta = torch.from_numpy(networks)
    alone = torch.zeros(len(theta), dtype=torch.float64)
    ensemble = torch.zeros(cycles, dtype=torch.float64)
    each = len(theta) // cycles
    with torch.no_grad():
        for start in range(0, test.n, _ROWS):
            rows = test.part(start, min(start + _ROWS, test.n))
            p = run.target.model.predict(theta, rows).double().exp()  # type: ignore[attr-defined]
            y = rows["y"]
            alone += (p.argmax(-1) != y).sum(-1)
            sums = p.cumsum(0)[each - 1 :: each][:cycles]  # equal weights; the largest class needs no mean
            ensemble += (sums.argmax(-1) != y).sum(-1)
    return 100 / test.n * alone.numpy(), 100 / test.n * ensemble.numpy()


def metrics(run: Run) -> Metrics:
    """Return the metrics of Figure 3(c)'s claims, on these networks; errors in per cent.

    ``falls``: of the steps from M to M + 1 cycles, those in which the mean error over seeds does not rise by more than
    a standard error of the differences. ``lower_at``: the numbers of cycles at which the mean error is below that of
    the Snapshot ensemble. ``single_over``, ``ensemble_under``: against the traditional sampler's networks.
    """
    found, there = MetricTable(), run.cached(errors)
    for method, of in there.items():
        found.add(
            method, {"single": estimate(of.single.mean(axis=1)), "ensemble": estimate(of.by_cycles[:, -1])}
        )
        if method in BY_CYCLE:
            steps = [estimate(step) for step in np.diff(of.by_cycles, axis=1).T]
            found.series(method, "error", {m: estimate(e) for m, e in enumerate(of.by_cycles.T, 1)})
            falls = float(sum(s.value <= np.nan_to_num(s.se) for s in steps))
            found.add(method, {"falls": falls, "gain": estimate(of.by_cycles[:, 0] - of.by_cycles[:, -1])})
    for method, (snapshot, traditional) in RIVALS.items():
        if {method, snapshot} <= set(there):
            one, two = (there[name].by_cycles.mean(axis=0) for name in (method, snapshot))
            found.add(method, {f"lower_at.{snapshot}": float((one < two).sum())})
        if {method, traditional} <= set(there):
            mine, other = there[method], there[traditional]
            over = mine.single.mean(axis=1) - other.single.mean(axis=1)
            under = other.by_cycles[:, -1] - mine.by_cycles[:, -1]
            found.add(method, {f"single_over.{traditional}": estimate(over)})
            found.add(method, {f"ensemble_under.{traditional}": estimate(under)})
    return found


def single_table(run: Run) -> pd.DataFrame:
    """Test error of one network and of the ensemble of all, per cent (section 5.3, on these networks)."""
    found, rows = run.cached(metrics), {}
    for method in run.cached(errors):
        row: dict[str, Any] = {"one": found[f"{method}.single"], "ensemble": found[f"{method}.ensemble"]}
        if method in RIVALS:
            traditional = RIVALS[method][1]
            row["one, over"] = found.get(f"{method}.single_over.{traditional}")
            row["ensemble, under"] = found.get(f"{method}.ensemble_under.{traditional}")
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
    found, there = run.cached(metrics), run.cached(errors)
    figure, (left, right) = panels(2, size=(4.6, 3.4), share="")
    for place, (method, of) in enumerate(there.items()):
        colour, line = _LINES[method.removesuffix("_t1")]
        style: Style = {"color": colour, "linestyle": line, "label": run.label(method)}
        if method in BY_CYCLE:
            cycles = np.arange(1, of.by_cycles.shape[1] + 1)
            points(left, cycles, [estimate(e) for e in of.by_cycles.T], **style)
            left.set_xticks(cycles)
        else:
            left.axhline(value(found[f"{method}.ensemble"]), **style)
        for name, fill in (("single", "white"), ("ensemble", colour)):
            style = {"color": colour, "markerfacecolor": fill, "markersize": 6}
            points(right, [-place], [found[f"{method}.{name}"]], upright=False, **style)
    left.set(xlabel="cycles M", ylabel="test error (%)")
    right.set(xlabel="test error (%)", yticks=-np.arange(len(there)))
    right.set_yticklabels([run.label(method) for method in there])
    return finished(figure, legend="right", axes=[left])
