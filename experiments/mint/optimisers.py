"""Section 4.3 of Li & Wong (2017): RMSProp, Adam and Adagrad beside SGD, on the network of Figure 3."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, estimate
from .network import curve, errors, logarithmic

BASE = "sgd"


def metrics(run: Run) -> Metrics:
    """Return final errors on the test images, in per cent, and by how many percentage points each is above SGD's."""
    final = {method: errors(run, method)[:, -1] for method in run.methods}
    found: Metrics = {f"{method}.final": estimate(each) for method, each in final.items()}
    for method, each in final.items():
        if method != BASE and BASE in final:
            found[f"{method}.over.{BASE}"] = estimate(each - final[BASE])
    return found


def error_table(run: Run) -> pd.DataFrame:
    """Errors on the test images at the end, in per cent, and less SGD's, in percentage points.

    Of the last parameters. Means over trainings with standard errors.
    """
    found = run.once(metrics)
    rows = {
        run.label(method): {
            "test error": found[f"{method}.final"],
            "less SGD's": found.get(f"{method}.over.{BASE}"),
        }
        for method in run.methods
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def error_figure(run: Run) -> Figure:
    """Errors on the test images against passes through the data; means over trainings with one standard error."""
    figure, axis = plt.subplots(figsize=(5.2, 3.4))
    for method, colour in zip(run.methods, COLOURS, strict=False):
        curve(axis, run, method, colour)
    axis.set(xlabel="passes through the data", ylabel="error on test images (%)")
    logarithmic(axis)
    axis.legend(axis.get_lines(), [run.label(method) for method in run.methods])
    figure.tight_layout()
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    rates = ", ".join(f"{run.label(method)} {run.config['rates'][method]:g}" for method in run.methods)
    return [
        "The paper gives neither numbers nor learning rates of the three optimisers. Learning rates here: "
        f"{rates}; SGD's is the one of Table 2, the others are the defaults of Keras. The L2 weight of SGD, "
        f"{run.config['decay']:g}, is that of all.",
    ]
