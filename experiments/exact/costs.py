"""Data that exact methods read in a step and for an effective draw, and how that grows with the number of data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mhrun.diagnostics.chains import ess_of_chain
from mhrun.report.metrics import Metric, Metrics, MetricTable, estimate, value
from mhrun.report.plots import finished, panels, points
from mhrun.report.vocabulary import COLOURS, Estimate, Figure, Run, method_styles

from ..arena.growth import exponent
from ..shared.measures import in_order

THOUSAND = 1000


def metrics(run: Run) -> Metrics:
    """What each method reads and how well it mixes; then the comparisons that the experiment names.

    ``compare`` of the configuration: ``ratios: {name: [a, b]}`` is a / b of two metrics; ``orders: {name: [a, b]}`` is
    how many of the metrics are below the next; ``exponents: {name: {metric: data, methods: [...]}}`` is b of
    metric = a n^b over methods whose numbers of data differ. A comparison without its methods is left out.
    """
    table = MetricTable.by_method(run, of_costs)
    compare: Mapping[str, Any] = run.config.get("compare") or {}
    for name, (numerator, denominator) in (compare.get("ratios") or {}).items():
        if numerator in table and denominator in table:
            table[name] = ratio(table[numerator], table[denominator])
    for name, (metric, methods) in exponents(run).items():
        table[name] = exponent({run.target_of(m).n: table[f"{m}.{metric}"] for m in methods})
    for name, members in (compare.get("orders") or {}).items():
        table[name] = in_order(table, members)
    return table


def of_costs(run: Run, method: str) -> Metrics:
    """Return what a method reads in a step and for an effective draw.

    A datum whose log-likelihood a step needs counts once, however many points it is needed at. Effective draws are of
    each coordinate about the mean of its own chain; `worst` is of the coordinate with the fewest, and the rest are
    means over coordinates. Standard errors are from differences of chains.
    """
    size = run.stat(method, "batch_size").astype(float).mean(axis=1)
    draws, summary = run.draws(method), run.methods[method]
    sizes = np.stack([ess_of_chain(draws[:, :, d]) for d in range(draws.shape[2])], axis=1)  # (C, D)
    per_thousand = THOUSAND * sizes / draws.shape[1]
    worst = per_thousand[:, int(np.argmin(per_thousand.sum(axis=0)))]
    data = estimate(size)
    mixing, least = estimate(per_thousand.mean(axis=1)), estimate(worst)
    return {
        "n": float(run.target_of(method).n),
        "step": float(np.mean(summary["step_size_by_chain"])),
        "accept_rate": estimate(run.stat(method, "accepted").astype(float).mean(axis=1)),
        "data": data,
        "ess": mixing,
        "ess_worst": least,
        "per_draw": ratio(data, mixing, THOUSAND),
        "per_draw_worst": ratio(data, least, THOUSAND),
    }


def exponents(run: Run) -> dict[str, tuple[str, list[str]]]:
    """Return the exponents that the configuration names: name -> metric and those of its methods that there are."""
    named: Mapping[str, Any] = (run.config.get("compare") or {}).get("exponents") or {}
    return {
        name: (str(spec["metric"]), [method for method in spec["methods"] if method in run.methods])
        for name, spec in named.items()
    }


def ratio(a: Metric, b: Metric, factor: float = 1.0) -> Estimate:
    """Return factor a / b with its standard error."""
    quotient = factor * value(a) / value(b)
    relative = [x.se / x.value if isinstance(x, Estimate) else 0.0 for x in (a, b)]
    return Estimate(quotient, quotient * math.hypot(*relative))


def growth(run: Run) -> Figure:
    """Data read in a step, and for an effective draw, against the number of data."""
    figure, axes = panels(2, size=(4.0, 4.0), share="", xscale="log", yscale="log", xlabel="number of data n")
    table, tests = run.cached(metrics), dict(_tests(run))
    looks = method_styles(tests)
    for axis, metric, label in zip(
        axes, ("data", "per_draw"), ("data read in a step", "data read for an effective draw"), strict=True
    ):
        for name, methods in tests.items():
            numbers = [table[f"{method}.{metric}"] for method in methods]
            bars = [2 * x.se if isinstance(x, Estimate) and np.isfinite(x.se) else 0.0 for x in numbers]
            axis.errorbar(
                [run.target_of(method).n for method in methods],
                [value(x) for x in numbers],
                yerr=bars,
                capsize=2,
                label=run.label(methods[0]).rpartition(", n = ")[0],
                color=looks[name]["color"],
                marker=looks[name]["marker"],
                markersize=4,
                linewidth=1.2,
            )
        axis.set_ylabel(label)
    return finished(figure, legend="right", axes=[axes[0]], fontsize=8)


def _tests(run: Run) -> Iterator[tuple[str, list[str]]]:
    """Yield the methods ``<test>_n<k>`` of each test in the order of their numbers of data."""
    names = dict.fromkeys(method.rpartition("_n")[0] for method in run.methods)
    for name in names:
        members = [method for method in run.methods if method.rpartition("_n")[0] == name]
        yield name, sorted(members, key=lambda method: run.target_of(method).n or 0)


def costs(run: Run) -> Figure:
    """Data read for an effective draw, by method."""
    table, names = run.cached(metrics), list(run.methods)[::-1]
    figure, (axis,) = panels(
        1, size=(5.6, 0.3 * len(names) + 0.9), xscale="log", xlabel="data read for an effective draw"
    )
    labels, numbers = [run.label(method) for method in names], [table[f"{m}.per_draw"] for m in names]
    points(axis, labels, numbers, errors=2, upright=False, color=COLOURS[0], capsize=2)
    return figure
