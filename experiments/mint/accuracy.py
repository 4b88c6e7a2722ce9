"""Section 4.2 of Li & Wong (2017): accuracy of MINT on two digits of MNIST, with the unsaid settings varied."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.classify import accuracy, running_mean
from ..shared.measures import Metrics, estimate

Array = npt.NDArray[Any]

LATE = 0.1  # share of the steps, from the end, over which acceptance is measured


def metrics(run: Run) -> Metrics:
    """Return accuracies of the last draw and of the mean of the draws, acceptance at the end and the weights' size."""
    found: Metrics = {}
    for method in run.methods:
        single, of_mean = run.once(_accuracies)[method]
        accepted = run.stat(method, "accepted")
        last = run.draws(method)[:, -1]
        found |= {
            f"{method}.final": estimate(single[:, -1]),
            f"{method}.of_mean": estimate(of_mean[:, -1]),
            f"{method}.best": float(single.mean(axis=0).max()),
            f"{method}.accept_late": float(accepted[:, -max(1, round(LATE * accepted.shape[1])) :].mean()),
            f"{method}.accept_rate": run.methods[method]["accept_rate"],
            f"{method}.norm": estimate(np.linalg.norm(last, axis=1)),
        }
    return found


def _accuracies(run: Run) -> dict[str, tuple[Array, Array]]:
    """Return for each method the accuracies (C, S) of single draws and of the mean of the draws so far."""
    found = {}
    for method in run.methods:
        draws = run.draws(method)
        found[method] = accuracy(run, draws, method), accuracy(run, running_mean(draws), method)
    return found


def accuracies(run: Run) -> pd.DataFrame:
    """Accuracy on the test images (section 4.2: above 0.99), with standard errors over runs.

    "Last draw": of the last single draw; "mean of draws": of the mean of the draws after tuning; "best": the highest
    mean over runs along the chain. Acceptance over all steps after tuning and over their last tenth; |theta| of the
    last draw, which grows as long as the chain runs, as the classes can be separated.
    """
    names = {
        "last draw": "final",
        "mean of draws": "of_mean",
        "best": "best",
        "acceptance": "accept_rate",
        "acceptance, last tenth": "accept_late",
        "|theta| at the end": "norm",
    }
    return run.by_method(run.once(metrics), names)


def curves(run: Run) -> Figure:
    """Accuracy on the test images against passes through the data, with one standard error over runs.

    Left: single draws; right: the mean of the draws so far, which begins where tuning ends. Dotted: 0.99.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.4), sharey=True)
    m, n = int(run.config["m"]), run.target.n
    for method, colour in zip(run.methods, COLOURS, strict=False):
        x = (run.methods[method]["warmup"] + run.draw_steps(method)) * m / n
        for axis, values in zip(axes, run.once(_accuracies)[method], strict=True):
            mean, error = values.mean(axis=0), values.std(axis=0) / np.sqrt(max(1, len(values) - 1))
            axis.plot(x, mean, color=colour, linewidth=1.2, label=run.label(method))
            axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
    for axis, title in zip(axes, ("single draws", "mean of the draws so far"), strict=True):
        axis.axhline(0.99, color="grey", linestyle=":", linewidth=1)
        axis.set(xscale="log", xlabel="passes through the data", ylim=(0.9, 1.0), title=title)
    axes[0].set_ylabel("accuracy on test images")
    axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def notes(run: Run) -> list[str]:
    """Return what a reader should know beside the numbers."""
    return [
        "The prior is flat and a plane separates the classes, so no posterior exists: the weights grow as long as the "
        "chain runs. A step size that is tuned to accept 0.30 is right only until it is frozen; acceptance rises "
        "after.",
        "The paper gives neither the preprocessing nor the number of steps. The 50 principal components are those of "
        "the training images, centred, not whitened; earlier work on pairs of MNIST's digits used 50.",
        "The paper says 'above 99 %' of all methods of its Table 1 and does not say whether of single draws or of "
        "their mean: both are judged.",
    ]
