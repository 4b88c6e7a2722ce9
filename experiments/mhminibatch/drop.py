"""Figure 3, right, of Seita et al. (2017): the temperature drops once the digits are separated."""

from __future__ import annotations

import numpy as np

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import band, panels
from mhrun.report.vocabulary import Array, Figure, Run, Style, method_styles

from ..shared.classify import accuracy


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    return MetricTable.by_method(run, _of_method)


def _of_method(run: Run, method: str) -> Metrics:
    drop, steps, right = int(run.config["drop"]), run.draw_steps(method), accuracy(run, run.draws(method))
    run.every_step(method)
    size, accepted = run.stat(method, "batch_size").astype(float), run.stat(method, "accepted")
    before, after = steps <= drop, steps > drop
    slopes = [_slope(steps[part], right.mean(axis=0)[part]) for part in (before, after)]
    return {
        "at_drop": estimate(right[:, before][:, -1]),
        "final": estimate(right[:, -1]),
        "slope_before": slopes[0],
        "slope_after": slopes[1],
        "slope_ratio": slopes[1] / slopes[0],
        "size_before": estimate(size[:, :drop].mean(axis=1)),
        "size_after": estimate(size[:, drop:].mean(axis=1)),
        "full_after": float((size[:, drop:] == run.target.n).mean()),
        "accept_before": float(accepted[:, :drop].mean()),
        "accept_after": float(accepted[:, drop:].mean()),
    }


def _slope(steps: Array, right: Array) -> float:
    """Return how much accuracy grows as the steps grow tenfold, by least squares on even spacing in their log."""
    if len(steps) < 2:
        return float("nan")
    at = np.geomspace(steps[0], steps[-1], 50)
    return float(np.polyfit(np.log10(at), np.interp(at, steps, right), 1)[0])


def drop(run: Run) -> Figure:
    """Accuracy on the test images against steps (Figure 3, right)."""
    panel_style: Style = {"xscale": "log", "xlabel": "step", "ylabel": "accuracy", "ylim": (0.6, 1.0)}
    figure, (axis,) = panels(1, size=(5.0, 3.4), **panel_style)
    for method, style in method_styles(run.methods).items():
        right = accuracy(run, run.draws(method))
        band(
            axis,
            run.draw_steps(method),
            right,
            spread="sd",
            label=run.label(method),
            **style | {"marker": None},
        )
    axis.axvline(run.config["drop"], color="black", linestyle="--", linewidth=1)
    axis.legend(loc="lower right")
    return figure
