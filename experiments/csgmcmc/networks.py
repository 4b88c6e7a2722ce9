"""Section 5.4 of Zhang et al. (2020): predictive entropies on letters of networks trained on digits (Figure 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import band, finished, panels, points
from mhrun.report.vocabulary import COLOURS, Array, Estimate, Figure, Run, Style, by_rows, monitored

from . import ensembles, weights

OPTIMISERS = ("sgd", "sgd_momentum")
SNAPSHOTS = ("snapshot_sgd", "snapshot_sgd_momentum")
TRADITIONAL = ("sgld", "sghmc")
CYCLICAL = ("csgld", "csghmc")
READINGS: Mapping[str, str] = {"": "T = 1/n", "_t1": "T = 1"}  # ending of the samplers' names -> their noise
LEVELS = (0.1, 0.5, 1.0)  # entropies at which curves are compared
METRICS = (
    "entropy_inside",
    "entropy_outside",
    "auroc",
    "confident_outside",
    "confident_errors",
    *(f"outside_below_{level:.1f}" for level in LEVELS),
)


def readings(run: Run) -> dict[str, str]:
    """Return the readings that have a sampler here: ending of the names -> noise."""
    return {
        end: reading
        for end, reading in READINGS.items()
        if {method + end for method in (*TRADITIONAL, *CYCLICAL)} & set(run.methods)
    }


def last(run: Run, method: str, name: str) -> Array:
    """Return a monitor's last metric of each chain (C,)."""
    return monitored(run, method, name)[:, -1]


def curve(run: Run, method: str) -> tuple[Array, Array]:
    """Return entropies (L,) and the shares of the letters that have no more (C, L), 0 and log 10 with them."""
    metrics = run.monitor(method)
    levels = sorted(
        float(m[1]) for name in metrics if (m := re.fullmatch(r"outside_below_([\d.]+)", str(name)))
    )
    shares = np.stack([metrics[f"outside_below_{x:.1f}"].to_numpy()[:, -1] for x in levels], axis=1)
    ends = np.zeros((len(shares), 1)), np.ones((len(shares), 1))
    return np.array([0.0, *levels, np.log(10)]), np.concatenate([ends[0], shares, ends[1]], axis=1)


def pairs(run: Run) -> list[tuple[str, str]]:
    """Return the pairs of methods of a run that Figure 4 orders, the one of higher entropies first."""
    ordered = []
    for i, end in product(range(2), READINGS):
        cyclical, traditional = CYCLICAL[i] + end, TRADITIONAL[i] + end
        ordered += [(cyclical, other) for other in (OPTIMISERS[i], SNAPSHOTS[i], traditional)]
        ordered.append((traditional, OPTIMISERS[i]))
        ordered.append((traditional, SNAPSHOTS[i]))  # of which the paper says nothing clearly
    return [pair for pair in ordered if set(pair) <= set(run.methods)]


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable.by_method(run, _of_method)
    entropy = {method: last(run, method, "entropy_outside") for method in run.methods}
    for one, two in pairs(run):
        # No two methods share random numbers: seeds are paired in no more than their number.
        names = [f"outside_below_{level:.1f}" for level in LEVELS]
        lower = sum(table.number(f"{one}.{name}") < table.number(f"{two}.{name}") for name in names)
        table.add(one, {f"seeds_over.{two}": float((entropy[one] > entropy[two]).mean())})
        table.add(one, {f"entropy_over.{two}": estimate(entropy[one] - entropy[two])})
        table.add(one, {f"lower_than.{two}": float(lower)})
    for end in READINGS:
        cyclical, usual = ([method + end for method in family] for family in (CYCLICAL, TRADITIONAL))
        rivals = [*OPTIMISERS, *SNAPSHOTS, *usual]
        if {*cyclical, *rivals} <= set(entropy):
            means = {method: entropy[method].mean() for method in (*cyclical, *rivals)}
            lead = min(means[method] for method in cyclical) - max(means[method] for method in rivals)
            table.add(f"cyclical{end}", {"entropy_lead": float(lead)})
        for early, late in ((f"{method}_early{end}", method + end) for method in TRADITIONAL):
            if {early, late} <= set(run.methods):
                with_noise, without = (last(run, name, "error_of_ensemble") for name in (early, late))
                table.add(early, {f"error_over.{late}": estimate(with_noise - without)})
    return table | run.cached(weights.metrics) | run.cached(ensembles.metrics)


def _of_method(run: Run, method: str) -> Metrics:
    names = {name: name for name in METRICS}
    names |= {"error": "error_of_ensemble", "nll": "nll_of_ensemble", "error_alone": "error"}
    return {name: estimate(last(run, method, text)) for name, text in names.items()}


def noise_table(run: Run) -> pd.DataFrame:
    """Errors of SGLD and SGHMC with noise from the first step on and after 75 % of the steps, per cent (section 5.3).

    Of ensembles of twenty networks from the last quarter. Means over seeds with standard errors.
    """
    numbers = run.cached(metrics)
    rows = {}
    for method, (end, reading) in product(TRADITIONAL, READINGS.items()):
        early, late = f"{method}_early{end}", method + end
        if {early, late} <= set(run.methods):
            rows[f"{method.upper()}, {reading}"] = {
                "from the first step": numbers[f"{early}.error"],
                "after 75 %": numbers[f"{late}.error"],
                "difference": numbers[f"{early}.error_over.{late}"],
            }
    return by_rows(rows)


# A colour for each family of methods; the line tells its two members apart.
_COLOUR = {
    OPTIMISERS: COLOURS[7],
    SNAPSHOTS: COLOURS[2],
    TRADITIONAL: COLOURS[0],
    CYCLICAL: COLOURS[1],
}


def noise_figure(run: Run) -> Figure:
    """Test errors of SGLD and SGHMC with noise from the first step on and after 75 % of the steps (section 5.3)."""
    numbers, by_end = run.cached(metrics), readings(run)
    figure, axes = panels(len(by_end), size=(3.8, 2.6), share="", xlabel="test error (%)", ylim=(-1.5, 0.5))
    for axis, (end, reading) in zip(axes, by_end.items(), strict=True):
        for place, method in enumerate(TRADITIONAL):
            early = (f"{method}_early{end}", "white", "from the first step", 0.12)
            for name, fill, words, overhead in (
                early,
                (method + end, _COLOUR[TRADITIONAL], "after 75 %", -0.12),
            ):
                if isinstance(number := numbers.get(f"{name}.error"), Estimate):
                    style: Style = {"color": _COLOUR[TRADITIONAL], "markerfacecolor": fill, "markersize": 6}
                    style["label"] = f"noise {words}"
                    points(axis, [overhead - place], [number], upright=False, **style)
        axis.set_title(f"noise at {reading}")
        axis.set_yticks([0, -1], [method.upper() for method in TRADITIONAL])
    return finished(figure, legend="right", axes=axes[:1])


def convergence_table(run: Run) -> pd.DataFrame:
    """Test error of the last network, per cent, after each quarter of the steps, and its mean training loss, nats."""
    numbers, rows = run.cached(metrics), {}
    for method in run.methods:
        curves = monitored(run, method, "error")
        row: dict[str, Estimate | float | None] = {
            f"{100 * (i + 1) // curves.shape[1]} %": estimate(errors) for i, errors in enumerate(curves.T)
        }
        if any(f"{other}.loss" in numbers for other in run.methods):
            row["training loss"] = numbers.get(f"{method}.loss")
        rows[run.label(method)] = row
    return by_rows(rows)


def entropy_figure(run: Run) -> Figure:
    """Empirical distribution of the predictive entropy on letters, of networks that have learnt digits (Figure 4)."""
    by_end = readings(run)
    panel_style: Style = {"xlabel": "entropy on letters (nats)", "xlim": (0, np.log(10)), "ylim": (0, 1)}
    figure, axes = panels(len(by_end), size=(4.6, 3.6), ylabel="share of the letters", **panel_style)
    for axis, (end, reading) in zip(axes, by_end.items(), strict=True):
        for family, colour in _COLOUR.items():
            for method, line in zip(family, ("-", "--"), strict=True):
                name = method + end if family in (TRADITIONAL, CYCLICAL) else method
                if name in run.methods:
                    label = run.label(name).partition(",")[0]  # the temperature is in the title
                    band(axis, *curve(run, name), linestyle=line, color=colour, linewidth=1.4, label=label)
        axis.set_title(f"noise at {reading}")
    return finished(figure, legend="right", axes=axes[:1])


def passes(run: Run) -> float:
    """Return the passes through the training data of a method."""
    config = run.config
    return int(config["steps"]) / (int(config["data"]["n"]) // int(config["m"]))
