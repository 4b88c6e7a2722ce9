"""Appendix C of Luo et al. (2020): is the noise of minibatch gradients normal? By Shapiro & Wilk's test."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, estimate, value

Array = npt.NDArray[np.floating]

FIRST = "sgd"  # the method whose looks the claims speak of


def sizes(run: Run) -> list[int]:
    """Return the minibatch sizes that are tested."""
    return [int(b) for b in run.config["evaluation"]["sizes"]]


def looked(run: Run, method: str, name: str) -> Array:
    """Return what was told of each chain at each look (C, L)."""
    found: Array = run.evaluation(method)[name].to_numpy().astype(float)
    return found


def metrics(run: Run) -> Metrics:
    """Return shares at the first and the last look of SGD, and what else the tables speak of."""
    found: Metrics = {}
    for method in run.methods:
        for name, look in (("first", 0), ("last", -1)):
            for b in sizes(run):
                share = estimate(looked(run, method, f"normal_{b}")[:, look])
                found[f"{method}.{name}.normal_{b}"] = share
                if method == FIRST:
                    found[f"{name}.normal_{b}"] = share
            found[f"{method}.{name}.error"] = estimate(looked(run, method, "error")[:, look])
            found[f"{method}.{name}.still"] = estimate(looked(run, method, f"still_{sizes(run)[0]}")[:, look])
    if FIRST in run.methods:
        for name in ("first", "last"):
            shares = [value(found[f"{name}.normal_{b}"]) for b in sizes(run)]
            found[f"{name}.rises"] = float((np.diff(shares) > 0).sum())
    return found


def table(run: Run) -> pd.DataFrame:
    """Share of coordinates at which 50 gradients pass the test at 5 %, by minibatch size; 0.95 for normal noise.

    Means over trainings with standard errors. Coordinates whose gradient is the same in more than half of the
    minibatches are left out (their share: "still", at the smallest minibatch). Error: on the test images, per cent.
    """
    found, rows = run.once(metrics), {}
    for method in run.methods:
        for name in ("first", "last"):
            rows[f"{run.label(method)}, {name} look"] = {
                "error": found[f"{method}.{name}.error"],
                "still": found[f"{method}.{name}.still"],
            } | {f"b = {b}": found[f"{method}.{name}.normal_{b}"] for b in sizes(run)}
    return pd.DataFrame.from_dict(rows, orient="index")


def figure(run: Run) -> Figure:
    """Share of coordinates that pass the test at 5 %, against the minibatch size, and along the training.

    Left: full at the last look, dashed at the first. Right: SGD's first training, by minibatch size. Dotted: 0.95, what
    normal noise has.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.1), sharey=True, layout="constrained")
    for method, colour in zip(run.methods, COLOURS, strict=False):
        for look, style in ((0, "--"), (-1, "-")):
            shares = [looked(run, method, f"normal_{b}")[:, look].mean() for b in sizes(run)]
            label = run.label(method) if look else None
            left.plot(sizes(run), shares, style, marker="o", markersize=3, color=colour, label=label)
    left.set(xscale="log", xlabel="minibatch size", ylabel="share that passes", ylim=(0, 1))
    left.legend(loc="upper left", bbox_to_anchor=(0, 0.93))
    method = FIRST if FIRST in run.methods else next(iter(run.methods))
    shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.9, len(sizes(run))))
    steps = run.evaluation(method)["step"].to_numpy() if "step" in run.evaluation(method).coords else None
    for b, shade in zip(sizes(run), shades, strict=True):
        shares = looked(run, method, f"normal_{b}")[0]
        along = np.arange(1, len(shares) + 1) * run.config["evaluation"]["every"] if steps is None else steps
        right.plot(along, shares, color=shade, marker=".", label=f"b = {b:,}")
    right.set(xlabel=f"steps of {run.label(method)}")
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    for axis in (left, right):
        axis.axhline(0.95, color="black", linestyle=":", linewidth=0.9)
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    if FIRST not in run.methods:
        return []
    small, large = sizes(run)[0], sizes(run)[-1]
    return [
        "The paper's appendix has a residual network on CIFAR-10 and a recurrent one on Fashion-MNIST, and no "
        "numbers. Here: a perceptron with 200 hidden units on Fashion-MNIST, 50 gradients for each coordinate.",
        f"At the first look noise passes at {value(found[f'first.normal_{small}']):.0%} of the coordinates with "
        f"minibatches of {small} and at {value(found[f'first.normal_{large}']):.0%} with {large:,}; at the last "
        f"at {value(found[f'last.normal_{small}']):.0%} and {value(found[f'last.normal_{large}']):.0%}, where "
        "normal noise has 95%. The gradient of a weight is a sum over those images of a minibatch that light "
        "both its pixel and its unit: fewer than the minibatch has.",
    ]
