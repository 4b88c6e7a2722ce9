"""Section 5.3 of Zhang et al. (2020): networks on CIFAR-10 and CIFAR-100 (Tables 2 and 3, Figure 3c)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.plots import finished, panels, points
from mhrun.report.vocabulary import COLOURS, Figure, Run, Style, by_rows, monitored

from .networks import CYCLICAL, OPTIMISERS, SNAPSHOTS, TRADITIONAL, last, passes

__all__ = ["passes"]  # for the notes

SCORES: Mapping[str, str] = {
    "error": "error_of_ensemble",
    "nll": "nll_of_ensemble",
    "brier": "brier_of_ensemble",
    "ece": "ece_of_ensemble",
    "information": "mutual_information",
    "error_alone": "error",
    "nll_alone": "nll",
    "ece_alone": "ece",
}
HALF = ("sgld_half", "sghmc_half")


def pairs(run: Run) -> list[tuple[str, str]]:
    """Return the pairs of methods of a run that Table 2 orders, the one with the lower error first."""
    ordered = []
    for i in range(2):
        ordered += [(CYCLICAL[i], TRADITIONAL[i]), (CYCLICAL[i], SNAPSHOTS[i])]
        ordered += [(SNAPSHOTS[i], TRADITIONAL[i]), (TRADITIONAL[i], OPTIMISERS[i])]
    return [pair for pair in ordered if set(pair) <= set(run.methods)]


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables; errors in per cent.

    ``under.OTHER``: the error of OTHER's ensemble less that of the method's, mean over seeds; ``sigmas_under.OTHER``:
    it in standard errors. ``error_group``: of all chains together. ``falls``: of the steps from M to M + 1 cycles,
    those in which the mean error does not rise by more than a standard error; ``lower_at``: the numbers of cycles at
    which it is below that of the Snapshot ensemble.
    """
    table = MetricTable.by_method(run, _of_method)
    errors = {method: last(run, method, "error_of_ensemble") for method in run.methods}
    for one, two in pairs(run):
        gap = estimate(errors[two] - errors[one])
        sigmas = gap.value / gap.se if gap.se and np.isfinite(gap.se) else float("nan")
        table.add(one, {f"under.{two}": gap, f"sigmas_under.{two}": float(sigmas)})
        table.add(one, {f"seeds_under.{two}": float((errors[one] < errors[two]).mean())})
    for i, method in enumerate(CYCLICAL):
        if {method, TRADITIONAL[i], HALF[i]} <= set(run.methods):
            groups = {m: table.number(f"{m}.error_group") for m in (method, TRADITIONAL[i], HALF[i])}
            table.add(method, {"group_under": groups[TRADITIONAL[i]] - groups[method]})
            single = table.number(f"{method}.error")
            table.add(method, {"single_under_half": groups[HALF[i]] - single})
    for method in (*CYCLICAL, *SNAPSHOTS):
        if method not in run.methods:
            continue
        curve = monitored(run, method, "error_of_ensemble")
        table.series(method, "error", {m: estimate(e) for m, e in enumerate(curve.T, 1)})
        steps = [estimate(step) for step in np.diff(curve, axis=1).T]
        table.add(method, {"falls": float(sum(s.value <= np.nan_to_num(s.se) for s in steps))})
        table.add(method, {"gain": estimate(curve[:, 0] - curve[:, -1])})
    for i, method in enumerate(CYCLICAL):
        if {method, SNAPSHOTS[i]} <= set(run.methods):
            one, two = (monitored(run, m, "error_of_ensemble").mean(axis=0) for m in (method, SNAPSHOTS[i]))
            table.add(method, {f"lower_at.{SNAPSHOTS[i]}": float((one < two).sum())})
        if {method, TRADITIONAL[i]} <= set(run.methods):
            excess = last(run, method, "error") - last(run, TRADITIONAL[i], "error")
            table.add(method, {"single_over": estimate(excess)})
    return table


def _of_method(run: Run, method: str) -> Metrics:
    numbers: Metrics = {name: estimate(last(run, method, source)) for name, source in SCORES.items()}
    # One ensemble of all chains: no standard error.
    numbers |= {
        f"{name}_group": float(last(run, method, f"{name}_of_group")[0]) for name in ("error", "nll", "ece")
    }
    gain = last(run, method, "error") - last(run, method, "error_of_ensemble")
    return numbers | {"ensemble_gain": estimate(gain)}


def parallel_table(run: Run) -> pd.DataFrame:
    """Test error of parallel chains, per cent (Table 3)."""
    numbers, rows = run.cached(metrics), {}
    chains = int(run.config["chains"])
    for i, family in enumerate(("SGLD", "SGHMC")):
        names = {
            f"cyclical, {chains} chains": (CYCLICAL[i], "error_group"),
            f"decreasing, {chains} chains": (TRADITIONAL[i], "error_group"),
            f"decreasing, {chains} chains of half the steps": (HALF[i], "error_group"),
            "cyclical, one chain": (CYCLICAL[i], "error"),
        }
        rows[family] = {head: numbers.get(f"{method}.{name}") for head, (method, name) in names.items()}
    return by_rows(rows)


def cycles_figure(run: Run) -> Figure:
    """Test error of ensembles by the number of cycles, and of one network against all (Figure 3c)."""
    numbers = run.cached(metrics)
    figure, (left, right) = panels(2, size=(4.6, 3.4), share="")
    looks = {CYCLICAL: (COLOURS[1], ("-", "--")), SNAPSHOTS: (COLOURS[2], ("-", "--"))}
    for family, (colour, lines) in looks.items():
        for method, line in zip(family, lines, strict=True):
            if method in run.methods:
                curve = monitored(run, method, "error_of_ensemble")
                cycles = np.arange(1, curve.shape[1] + 1)
                style: Style = {"color": colour, "linestyle": line, "label": run.label(method)}
                points(left, cycles, [estimate(e) for e in curve.T], **style)
                left.set_xticks(cycles)
    shown = [m for m in (*OPTIMISERS, *SNAPSHOTS, *TRADITIONAL, *CYCLICAL) if m in run.methods]
    for place, method in enumerate(shown):
        for name, fill in (("error_alone", "white"), ("error", COLOURS[0])):
            style = {"color": COLOURS[0], "markerfacecolor": fill, "markersize": 6}
            points(right, [-place], [numbers[f"{method}.{name}"]], upright=False, **style)
    left.set(xlabel="cycles M", ylabel="test error (%)")
    right.set(xlabel="test error (%)", yticks=-np.arange(len(shown)))
    right.set_yticklabels([run.label(method) for method in shown])
    return finished(figure, legend="right", axes=[left])


def lead(run: Run) -> float:
    """Return the least by which an ensemble of a cyclical method is better than its last network, in points."""
    numbers = run.cached(metrics)
    return min(value(numbers.get(f"{method}.ensemble_gain")) for method in CYCLICAL)
