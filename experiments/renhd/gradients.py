"""Appendix C of Luo et al. (2020): is the noise of minibatch gradients normal? By Shapiro & Wilk's test."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import finished, levels, panels
from mhrun.report.vocabulary import Figure, Run, Style, by_rows, method_styles, monitored, plt

FIRST = "sgd"  # the method of the claims


def sizes(run: Run) -> list[int]:
    """Return the minibatch sizes that are tested."""
    return [int(b) for b in run.config["monitor"]["sizes"]]


def metrics(run: Run) -> Metrics:
    """Return shares at the first and the last look of SGD, and the other numbers of the tables."""
    metric_table = MetricTable()
    for method in run.methods:
        for name, index in (("first", 0), ("last", -1)):
            shares = {
                f"normal_{b}": estimate(monitored(run, method, f"normal_{b}")[:, index]) for b in sizes(run)
            }
            metric_table.add(f"{method}.{name}", shares)
            if method == FIRST:
                metric_table.add(name, shares)
            for metric, text in (("error", "error"), ("still", f"still_{sizes(run)[0]}")):
                metric_table.add(
                    f"{method}.{name}", {metric: estimate(monitored(run, method, text)[:, index])}
                )
    for name in ("first", "last"):
        for method in run.methods:
            numbers = [metric_table.number(f"{method}.{name}.normal_{b}") for b in sizes(run)]
            rises: Metrics = {"rises": float((np.diff(numbers) > 0).sum())}
            metric_table.add(f"{method}.{name}", rises)
            if method == FIRST:
                metric_table.add(name, rises)
    return metric_table


def table(run: Run) -> pd.DataFrame:
    """Share of coordinates at which 50 gradients pass the test at 5 %, by minibatch size; 0.95 for normal noise."""
    numbers, names = run.cached(metrics), {"error": "error", "still": "still"}
    names |= {f"b = {b}": f"normal_{b}" for b in sizes(run)}
    return by_rows(
        {
            f"{run.label(m)}, {name} look": {
                head: numbers[f"{m}.{name}.{metric}"] for head, metric in names.items()
            }
            for m in run.methods
            for name in ("first", "last")
        }
    )


def figure(run: Run) -> Figure:
    """Share of coordinates that pass the test at 5 %, against the minibatch size, and along the training."""
    figure, (left, right) = panels(2, size=(4.2, 3.1))
    for method, look in method_styles(run.methods).items():
        colour = look["color"]
        for index, line in ((0, "--"), (-1, "-")):
            shares = [monitored(run, method, f"normal_{b}")[:, index].mean() for b in sizes(run)]
            style: Style = {"marker": "o", "markersize": 3, "label": run.label(method) if index else None}
            left.plot(sizes(run), shares, line, color=colour, **style)
    left.set(xscale="log", xlabel="minibatch size", ylabel="share that passes", ylim=(0, 1))
    left.xaxis.set_major_locator(FixedLocator(sizes(run)))
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.xaxis.set_minor_locator(NullLocator())
    left.tick_params(axis="x", labelsize=7)
    left.legend(loc="lower right")
    method = FIRST if FIRST in run.methods else next(iter(run.methods))
    shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.9, len(sizes(run))))
    text = run.monitor(method)
    for b, shade in zip(sizes(run), shades, strict=True):
        shares = monitored(run, method, f"normal_{b}")[0]
        multiples = np.arange(1, len(shares) + 1) * run.config["monitor"]["every"]
        steps = text["step"].to_numpy() if "step" in text.coords else multiples
        right.plot(steps, shares, color=shade, marker=".", label=f"b = {b:,}")
    right.set_xlabel(f"steps of {run.label(method)}")
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    for axis in (left, right):
        levels(axis, 0.95, line=":")
    return finished(figure)
