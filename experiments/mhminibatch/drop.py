"""Figure 3, right, of Seita et al. (2017): the temperature drops once the digits are told apart."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.classify import accuracy
from ..shared.measures import Metrics, estimate, value


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {}
    drop = int(run.config["drop"])
    for method in run.methods:
        steps, right = run.draw_steps(method), accuracy(run, run.draws(method))
        run.every_step(method)
        size = run.stat(method, "batch_size").astype(float)
        accepted = run.stat(method, "accepted")
        before, after = steps <= drop, steps > drop
        slopes = [_slope(steps[part], right.mean(axis=0)[part]) for part in (before, after)]
        more: Metrics = {
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
        found |= {f"{method}.{name}": number for name, number in more.items()}
    return found


def _slope(steps: np.ndarray, right: np.ndarray) -> float:
    """Return how much accuracy grows as the steps grow tenfold, by least squares on even spacing in their log."""
    if len(steps) < 2:
        return float("nan")
    at = np.geomspace(steps[0], steps[-1], 50)
    return float(np.polyfit(np.log10(at), np.interp(at, steps, right), 1)[0])


def stages(run: Run) -> pd.DataFrame:
    """Before and after the drop of the temperature.

    Accuracy of the draws at the drop and at the end; how much it grows per tenfold of the steps; data behind a
    decision; the share of decisions that read all data; acceptance.
    """
    names = {
        "accuracy at the drop": "at_drop",
        "at the end": "final",
        "per tenfold steps, before": "slope_before",
        "per tenfold steps, after": "slope_after",
        "minibatch, before": "size_before",
        "minibatch, after": "size_after",
        "all data, after": "full_after",
        "acceptance, before": "accept_before",
        "acceptance, after": "accept_after",
    }
    return run.by_method(run.once(metrics), names)


def drop(run: Run) -> Figure:
    """Accuracy on the test images against steps (Figure 3, right).

    Mean over trials; the band is one standard deviation; dashed: where the temperature drops.
    """
    figure, axis = plt.subplots(figsize=(5.0, 3.4))
    for method, colour in zip(run.methods, COLOURS, strict=False):
        steps, right = run.draw_steps(method), accuracy(run, run.draws(method))
        mean, sd = right.mean(axis=0), right.std(axis=0)
        axis.plot(steps, mean, color=colour, linewidth=1.2, label=run.label(method))
        axis.fill_between(steps, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)
    axis.axvline(run.config["drop"], color="black", linestyle="--", linewidth=1)
    axis.set(xscale="log", xlabel="step", ylabel="accuracy", ylim=(0.6, 1.0))
    axis.legend(loc="lower right")
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    before, after = run.config["temperatures"]
    lines = [
        f"The temperature falls from {before:g} to {after:g} and the step size from {run.config['step_sizes'][0]:g} to "
        f"{run.config['step_sizes'][1]:g}, which is not printed but in the authors' scripts. With n/K = "
        f"{run.target.n / after:,.0f} the variance of a term grows {(before / after) ** 2:,.0f}-fold, and the step "
        f"gives back only {(run.config['step_sizes'][0] / run.config['step_sizes'][1]) ** 2:,.0f}-fold.",
    ]
    for method in run.methods:
        full, size = found[f"{method}.full_after"], found[f"{method}.size_after"]
        lines.append(
            f"{run.label(method)}: {value(size):,.0f} data a decision after the drop, all {run.target.n:,} in "
            f"{100 * value(full):.1f} % of them."
        )
    return lines
