"""Section 4.3 of Li & Wong (2017): RMSProp, Adam and Adagrad beside SGD, on the network of Figure 3."""

from __future__ import annotations

from mhrun.report.metrics import MetricTable, estimate
from mhrun.report.plots import finished, logarithmic, panels
from mhrun.report.vocabulary import COLOURS, Figure, Run, Style

from .network import curve, errors

BASE = "sgd"


def metrics(run: Run) -> MetricTable:
    """Return final errors on the test images, in per cent, and by how many percentage points each is above SGD's."""
    final = {method: errors(run, method)[:, -1] for method in run.methods}
    table = MetricTable({f"{method}.final": estimate(last) for method, last in final.items()})
    for method, last in final.items():
        if method != BASE and BASE in final:
            table.add(method, {f"over.{BASE}": estimate(last - final[BASE])})
    return table


def error_figure(run: Run) -> Figure:
    """Errors on the test images against passes through the data; means over trainings with one standard error."""
    labels: Style = {"xlabel": "passes through the data", "ylabel": "error on test images (%)"}
    figure, (axis,) = panels(1, size=(5.2, 3.4), **labels)
    for method, colour in zip(run.methods, COLOURS, strict=False):
        curve(axis, run, method, color=colour, label=run.label(method))
    logarithmic(axis)
    axis.legend()
    return finished(figure)
