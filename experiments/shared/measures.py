"""What a method read, and orders of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mhrun.report.metrics import Metrics, estimate, value
from mhrun.report.plots import panels
from mhrun.report.vocabulary import Figure, Run, method_styles


def of_sizes(run: Run, method: str) -> Metrics:
    """Return what a method read: of the data behind decisions, and of those read besides."""
    size = run.stat(method, "batch_size").astype(float)
    by_trial = size.mean(axis=1)
    summary = run.methods[method]
    numbers: Metrics = {
        "size": estimate(by_trial),
        "size_sd": float(by_trial.std(ddof=1)) if len(size) > 1 else float("nan"),
        "one_trial": float(by_trial[0]),
        "largest": float(size.max()),
        "tail": float(size.max() / size.mean()),
        "most": float(np.quantile(size, 0.999)),
        "first_share": float((size == size.min()).mean()),
        "last_share": float((size == size.max()).mean()),
        "full_share": float((size == run.target_of(method).n).mean()),
        "accept_rate": summary["accept_rate"],
        "overhead": summary["overhead_evals"]
        / 2
        / (summary["chains"] * (summary["warmup"] + summary["steps"])),
    }
    return numbers


def in_order(found: Metrics, names: Sequence[str]) -> float:
    """Return how many of the numbers are below the one after them; NaN if one is missing."""
    if any(name not in found for name in names):
        return float("nan")
    numbers = [value(found[name]) for name in names]
    return float(sum(a < b for a, b in pairwise(numbers)))


def size_histograms(run: Run, methods: Sequence[str], lowest: float, cells: int) -> Figure:
    """Draw how many data a decision of the first trial reads; both axes logarithmic, dashed the mean."""
    shown = [method for method in methods if method in run.methods]
    figure, axes = panels(len(shown), xscale="log", yscale="log", xlabel="data read")
    looks = method_styles(run.methods)
    # With fewer data than a minibatch each decision reads all of them.
    lowest = min(lowest, 0.9 * run.target.n)
    edges = np.geomspace(lowest, run.target.n * 1.05, cells + 1)
    for axis, method in zip(axes, shown, strict=False):
        size = run.stat(method, "batch_size")[0]
        axis.hist(size, bins=list(edges), color=looks[method]["color"])
        axis.axvline(size.mean(), color="black", linestyle="--", linewidth=1)
        axis.set_title(f"{run.label(method)}\nmean {size.mean():,.0f}", fontsize=9)
    axes[0].set_ylabel("decisions")
    return figure
