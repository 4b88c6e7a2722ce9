"""Section 3.2 of Wu, Wang & Wong (2020): RSGLD, SGD and SGLD on networks (Tables 1 and 2, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from mhrun.report import declared
from mhrun.report.metrics import Metrics, MetricTable, value
from mhrun.report.plots import finished, label_edges, levels, logarithmic, panels
from mhrun.report.vocabulary import (
    COLOURS,
    Array,
    Axes,
    Figure,
    Run,
    Style,
    by_rows,
    method_styles,
    monitored,
)


class Printed(NamedTuple):
    """Errors on the test images in per cent that the paper prints, by method, at each learning rate."""

    rates: Sequence[float]
    median: Mapping[str, Sequence[float]]
    sd: Mapping[str, Sequence[float]]  # empty: not printed
    lowest: Mapping[str, Sequence[float]]


TABLE_1, TABLE_2 = (Printed(**declared.printed("mhbt.networks")[name]) for name in ("table_1", "table_2"))
PAPER = TABLE_1.median  # the methods of the paper
GRIDS = ("rsgld", "sgd", "sgld", "sgd_lazy", "sgd_half", "rsgld_printed")  # methods with all learning rates
SINGLE = ("rmsprop", "adam")  # and with one
REVERSIBLE = ("rsgld", "rsgld_printed")
SHORT = "rsgld_printed"  # runs for a few epochs only
SMALL, LARGE, TALL = 0.1, 0.4, 0.3  # learning rates of the claims: up to, from, from
BY_RATE = ("median", "sd", "failed", "lowest", "last")  # metrics of each learning rate
FAILED, FAILED_CIFAR = 50.0, 85.0  # per cent: a training whose best epoch is no better has failed
BAND = (0.2, 0.4)  # that the width of backward moves is to keep acceptance in
LATE = 0.1  # share of the epochs that are the last ones


def printed(run: Run) -> Printed:
    """Return the table of the paper for this run's data."""
    return TABLE_2 if is_cifar(run) else TABLE_1


def is_cifar(run: Run) -> bool:
    """Return whether the run is of CIFAR-10."""
    return str(run.config["data"].get("name", "")).startswith("cifar10")


def rates(run: Run) -> list[float]:
    """Return the learning rates."""
    return [float(rate) for rate in run.config["rates"]]


def errors(run: Run, method: str) -> Array:
    """Return the errors on the test images in per cent, (R, trainings, L)."""
    curves, grid = monitored(run, method, "error"), 1 if method in SINGLE else len(rates(run))
    return curves.reshape(grid, -1, curves.shape[1])


def passes(run: Run, method: str) -> Array:
    """Return the passes through the data up to each run of the monitor (L,)."""
    return monitored(run, method, "step") * float(run.config["m"]) / float(run.config["data"]["n"])


def best(run: Run, method: str) -> Array:
    """Return the error of the best epoch of each training, (R, trainings): this selects on the test images."""
    return np.asarray(errors(run, method).min(axis=2))


def has_failed(run: Run, by_training: Array) -> Array:
    """Return which trainings have failed, given the errors of their best epochs."""
    return np.asarray(by_training > (FAILED_CIFAR if is_cifar(run) else FAILED))


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables; errors are those of the best epoch."""
    table = MetricTable()
    for method in run.methods:
        if method in GRIDS:
            table |= _of_grid(run, method)
        elif method in SINGLE:
            lowest, last = best(run, method)[0], errors(run, method)[0, :, -1]
            table.add(method, {"best_median": float(np.median(lowest)), "lowest": float(lowest.min())})
            table.add(method, {"last_of_best": float(np.median(last))})
    for method in REVERSIBLE:
        if method in run.methods:
            table.add(method, _of_backward(run, method) | _compared(run, method))
    if {"sgd", "sgld"} <= set(run.methods):
        small = [f"median_{rate:g}" for rate in rates(run) if rate <= SMALL]
        gaps = [abs(table.number(f"sgd.{name}") - table.number(f"sgld.{name}")) for name in small]
        table["sgld.off_sgd"] = max(gaps, default=float("nan"))
    return table


def _of_grid(run: Run, method: str) -> MetricTable:
    grid, by_training, metric_table = rates(run), best(run, method), MetricTable()
    median, last = np.median(by_training, axis=1), np.median(errors(run, method)[:, :, -1], axis=1)
    sd = by_training.std(axis=1, ddof=1) if by_training.shape[1] > 1 else np.full(len(grid), np.nan)
    failed, lowest = has_failed(run, by_training).sum(axis=1), by_training.min(axis=1)
    for rate, *numbers in zip(grid, median, sd, failed, lowest, last, strict=True):
        metric_table.add(method, dict(zip(BY_RATE, map(float, numbers), strict=True)), x=rate)
    table, name = printed(run), "rsgld" if method == SHORT else method
    for end, ours, theirs in (("", median, table.median), ("_lowest", lowest, table.lowest)):
        if name in theirs:
            at = dict(zip(table.rates, theirs[name], strict=True))
            gaps = [abs(m - at[r]) for r, m in zip(grid, ours, strict=True) if r <= SMALL and r in at]
            metric_table.add(method, {f"off_paper{end}": float(max(gaps, default=np.nan))})
    large = median[np.array(grid) >= LARGE]
    extremes: Metrics = {}
    if len(large):
        extremes = {"large_most": float(large.max()), "large_least": float(large.min())}
    extremes |= {
        "best_median": float(median.min()),
        "best_rate": grid[median.argmin()],
        "lowest": float(lowest.min()),
        "lowest_rate": grid[lowest.argmin()],
        "last_of_best": float(last[median.argmin()]),
        "sd_rises": _rank_correlation(np.array(grid), sd),
    }
    metric_table.add(method, extremes)
    return metric_table


def _rank_correlation(x: Array, y: Array) -> float:
    """Return Spearman's rank correlation; NaN where one of them does not vary."""
    if len(x) < 2 or not np.isfinite(y).all() or np.ptp(y) == 0:
        return float("nan")
    return float(stats.spearmanr(x, y).statistic)


def _of_backward(run: Run, method: str) -> Metrics:
    moves = monitored_moves(run, method)
    late = max(1, round(LATE * moves["beta"].shape[1]))
    beta, accepted = moves["beta"][:, -1], moves["accepted"][:, -late:].mean(axis=1)
    forward, backward = (float(np.nanmean(moves[name])) for name in ("forward", "backward"))
    return {
        "beta": float(np.median(beta)),
        "beta_most": float(beta.max()),
        "forward": forward,
        "backward": backward,
        "forward_lead": forward - backward,
        "accept_late": float(np.round(np.median(accepted), 6)),  # not 1e-116
        "accept_rate": run.methods[method]["accept_rate"],
    }


def monitored_moves(run: Run, method: str) -> dict[str, Array]:
    """Return beta and the mean acceptance probabilities of each epoch, all and by direction, each (C, L)."""
    names = ("backward", "accepted", "accepted_forward", "forward")
    totals = {name: monitored(run, method, name) for name in names}
    steps = float(run.config["epoch"])
    with np.errstate(invalid="ignore", divide="ignore"):  # an epoch may have had no move of one direction
        return {
            "beta": totals["backward"],
            "accepted": totals["accepted"] / steps,
            "forward": totals["accepted_forward"] / totals["forward"],
            "backward": (totals["accepted"] - totals["accepted_forward"]) / (steps - totals["forward"]),
        }


def _compared(run: Run, method: str) -> Metrics:
    """Compare a reading of RSGLD with SGD and SGLD."""
    grid, rival_names = rates(run), [name for name in ("sgd", "sgld") if name in run.methods]
    if not rival_names:
        return {}
    by_training = best(run, method)
    rival_errors = np.stack([best(run, name) for name in rival_names])
    median, rivals = np.median(by_training, axis=1), np.median(rival_errors, axis=2)
    lowest, least = by_training.min(axis=1), rival_errors.min(axis=(0, 2))
    slow = [i for i, rate in enumerate(grid) if rate <= 0.02]
    tall = [i for i, rate in enumerate(grid) if rate >= TALL]
    shown = [name for name in (method, *rival_names, *SINGLE) if name in run.methods]
    final = {name: float(np.median(errors(run, name)[best_rate(run, name), :, -1])) for name in shown}
    return {
        # By how much RSGLD is worse than SGD at the small rates, where it is at least so.
        "slower": min((float(median[i] - rivals[0][i]) for i in slow), default=float("nan")),
        "over_best": float(median.min() - rivals.min()),
        # Means over the rates: by how much RSGLD is below the better of SGD and SGLD.
        "under_median": float((rivals.min(axis=0) - median).mean()),
        "under_lowest": float((least - lowest).mean()),
        "margin_rises": float((np.diff(rivals[0] - median) > 0).sum()),
        "below_at_large": float(sum(lowest[i] < least[i] for i in tall)),
        "at_large": float(len(tall)),
        "final_over_best": final.pop(method) - min(final.values()),
    }


def best_rate(run: Run, method: str) -> int:
    """Return the place of the learning rate with the lowest median of best epochs."""
    return int(np.median(best(run, method), axis=1).argmin())


def by_rate(run: Run, metric: str) -> pd.DataFrame:
    """Return a metric of each method by learning rate, beside the paper's."""
    numbers, table = run.cached(metrics), printed(run)
    rows: dict[str, dict[str, float | str | None]] = {}
    paper: Mapping[str, Sequence[float]] = getattr(table, metric, {})
    for method in GRIDS:
        if method in run.methods:
            if method in paper:
                row = {rate: f"{number:g}" for rate, number in zip(table.rates, paper[method], strict=True)}
                rows[f"{run.label(method)}, paper"] = {f"{rate:g}": row.get(rate) for rate in rates(run)}
            ours = {f"{rate:g}": numbers.get(f"{method}.{metric}_{rate:g}") for rate in rates(run)}
            rows[run.label(method)] = {rate: value(number) for rate, number in ours.items()}
    return by_rows(rows)


def rates_figure(run: Run) -> Figure:
    """Errors against the learning rate (Tables 1 and 2, Figure 3a)."""
    titles = ("median error (%)", "share of failed trainings", "lowest error (%)")
    figure, axes = panels(3, size=(3.4, 3.1), share="", xlabel=r"learning rate $\epsilon$")
    looks = method_styles(run.methods)
    for method in GRIDS:
        if method not in run.methods or method == SHORT:
            continue
        x, by_training, line = rates(run), best(run, method), "-" if method in PAPER else "--"
        failed = has_failed(run, by_training).mean(axis=1)
        shown = (np.median(by_training, axis=1), failed, by_training.min(axis=1))
        style: Style = looks[method] | {"linestyle": line, "linewidth": 1.3, "markersize": 3}
        for axis, values in zip(axes, shown, strict=True):
            axis.plot(x, values, **style, label=run.label(method))
        if method in PAPER and (run.config["scale"] == "paper" or not is_cifar(run)):
            table = printed(run)
            for axis, paper in zip(axes[::2], (table.median, table.lowest), strict=True):
                if method in paper:
                    axis.plot(table.rates, paper[method], "x", color=style["color"], markersize=5, alpha=0.7)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    axes[1].set_ylim(-0.03, 1.03)
    for axis in axes[::2]:
        logarithmic(axis)
    return finished(figure, legend="right")


def trajectories(run: Run) -> Figure:
    """Errors of the first training of each method against passes through the data (Figure 3b)."""
    labels: Style = {"xlabel": "passes through the data", "ylabel": "error on test images (%)"}
    figure, (axis,) = panels(1, size=(5.4, 3.4), **labels)
    looks = method_styles(run.methods)
    for method in ("rsgld", "sgd", "sgld", *SINGLE):
        if method in run.methods:
            row = 0 if method in SINGLE else best_rate(run, method)
            name = run.label(method) if method in SINGLE else f"{run.label(method)}, {rates(run)[row]:g}"
            path = errors(run, method)[row, 0]
            axis.plot(passes(run, method), path, color=looks[method]["color"], linewidth=1.2, label=name)
    logarithmic(axis)
    return finished(figure, legend="right")


def backward(run: Run) -> Figure:
    """The width of backward moves and acceptance, epoch by epoch (section 3.2)."""
    shown = [method for method in REVERSIBLE if method in run.methods]
    figure, axes = panels(3 * len(shown), columns=3, size=(3.4, 2.5), share="")
    for place, method in enumerate(shown):
        moves, x = monitored_moves(run, method), passes(run, method)
        beta, all_moves, by_direction = axes[3 * place : 3 * place + 3]
        _paths(beta, run, x, moves["beta"], COLOURS[0])
        beta.set(ylabel=r"$\beta$", title=run.label(method))
        if moves["beta"].max() > 2 * moves["beta"].min():
            logarithmic(beta)
        _paths(all_moves, run, x, moves["accepted"], COLOURS[0])
        levels(all_moves, *BAND, linewidth=0.7, alpha=0.5)
        all_moves.set(title="acceptance", ylim=(-0.03, 1.03))
        _paths(by_direction, run, x, moves["forward"], COLOURS[1], "forward")
        _paths(by_direction, run, x, moves["backward"], COLOURS[2], "backward")
        by_direction.set(title="by direction", ylim=(-0.03, 1.03))
    label_edges(axes, 3, "passes through the data")
    return finished(figure, legend="right")


def _paths(axis: Axes, run: Run, x: Array, values: Array, colour: str, name: str | None = None) -> None:
    grid = rates(run)
    for i, by_training in enumerate(values.reshape(len(grid), -1, values.shape[1])):
        shade, last = 0.25 + 0.75 * (i + 1) / len(grid), i == len(grid) - 1
        middle = np.median(by_training, axis=0)
        axis.plot(x, middle, color=colour, alpha=shade, linewidth=1.2, label=name if last else None)


def sweep_metrics(runs: Sequence[Run]) -> Metrics:
    """By how much RSGLD's medians differ between values of c_n, at the learning rate where they differ most."""
    by_run = [run.cached(metrics) for run in runs]
    spread = [
        np.ptp([value(numbers[f"rsgld.median_{rate:g}"]) for numbers in by_run])
        for rate in rates(runs[0])
        if all(f"rsgld.median_{rate:g}" in numbers for numbers in by_run)
    ]
    return {"rsgld.spread": float(max(spread, default=np.nan))}
