"""Numbers with errors, and what a method read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

Array = npt.NDArray[np.floating]
Metrics = dict[str, Estimate | float]


def estimate(by_chain: Array) -> Estimate:
    """Return the mean over trials with its standard error; NaN from a single trial."""
    error = float(by_chain.std(ddof=1) / np.sqrt(len(by_chain))) if len(by_chain) > 1 else float("nan")
    return Estimate(float(by_chain.mean()), error)


def value(found: Estimate | float | None) -> float:
    """Return the number alone; NaN for none."""
    if found is None:
        return float("nan")
    return found.value if isinstance(found, Estimate) else float(found)


def of_sizes(run: Run, method: str) -> Metrics:
    """Return what a method read: of the data behind decisions, and of those read besides."""
    size = run.stat(method, "batch_size").astype(float)
    by_trial = size.mean(axis=1)
    noted = run.methods[method]
    found: Metrics = {
        "size": estimate(by_trial),
        "size_sd": float(by_trial.std(ddof=1)) if len(size) > 1 else float("nan"),
        "one_trial": float(by_trial[0]),
        "largest": float(size.max()),
        "tail": float(size.max() / size.mean()),
        "most": float(np.quantile(size, 0.999)),
        "first_share": float((size == size.min()).mean()),
        "last_share": float((size == size.max()).mean()),
        "full_share": float((size == run.target_of(method).n).mean()),
        "accept_rate": noted["accept_rate"],
        "aside": noted["aside_evals"] / 2 / (noted["chains"] * (noted["warmup"] + noted["steps"])),
    }
    return {f"{method}.{name}": number for name, number in found.items()}


SIZE_COLUMNS: Mapping[str, str] = {
    "minibatch": "size",
    "sd over trials": "size_sd",
    "largest": "largest",
    "all data read": "full_share",
    "besides, per decision": "aside",
    "acceptance": "accept_rate",
}


def in_order(found: Metrics, names: Sequence[str]) -> float:
    """Return how many of the numbers are below the one after them; NaN if one is missing."""
    if any(name not in found for name in names):
        return float("nan")
    numbers = [value(found[name]) for name in names]
    return float(sum(a < b for a, b in pairwise(numbers)))


def size_histograms(run: Run, methods: Sequence[str], lowest: float, cells: int) -> Figure:
    """Draw how many data a decision of the first trial reads; both axes logarithmic, dashed the mean."""
    shown = [method for method in methods if method in run.methods]
    count = max(1, len(shown))
    figure, axes = plt.subplots(1, count, figsize=(3.0 * count, 2.8), sharey=True, squeeze=False)
    edges = np.geomspace(lowest, run.target.n * 1.05, cells + 1)
    for axis, method, colour in zip(axes[0], shown, COLOURS, strict=False):
        size = run.stat(method, "batch_size")[0]
        axis.hist(size, bins=edges, color=colour)
        axis.axvline(size.mean(), color="black", linestyle="--", linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel="data read")
        axis.set_title(f"{run.label(method)}: mean {size.mean():,.0f}", fontsize=9)
    axes[0][0].set_ylabel("decisions")
    return figure
