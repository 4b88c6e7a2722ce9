"""How the cost of an effective draw grows with the number of data, for exact methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mhrun.report.metrics import Metric, Metrics, MetricTable, value
from mhrun.report.plots import finished, panels, sizes_across
from mhrun.report.vocabulary import Estimate, Figure, Run, Style, method_styles

from .errors import cost, effective, is_exact
from .truth import functions


class Sizes(NamedTuple):
    """The methods of one test, by their number of data."""

    label: str
    methods: Mapping[int, str]


def tests(run: Run) -> dict[str, Sizes]:
    """Return the exact tests of a run and their methods ``<test>_n<k>``, in the order of their numbers of data."""
    by_name: dict[str, Sizes] = {}
    for method in run.methods:
        if is_exact(run, method):
            name, label = method.rpartition("_")[0], run.label(method).rpartition(", n = ")[0]
            by_name.setdefault(name, Sizes(label, {})).methods[run.target_of(method).n] = method  # type: ignore[index]
    return {name: Sizes(sizes.label, dict(sorted(sizes.methods.items()))) for name, sizes in by_name.items()}


def metrics(run: Run) -> Metrics:
    """Evaluations for one effective draw and for the set-up, at each n; their exponents; savings over Metropolis."""
    table = MetricTable()
    for sizes in tests(run).values():
        for method in sizes.methods.values():
            table.add(method, _of_method(run, method))
    for name, sizes in tests(run).items():
        table[f"{name}.exponent"] = exponent({n: table[f"{m}.per_draw"] for n, m in sizes.methods.items()})
        table[f"{name}.setup_exponent"] = exponent({n: table[f"{m}.setup"] for n, m in sizes.methods.items()})
        for n, method in sizes.methods.items():
            full = tests(run)["metropolis"].methods.get(n)
            if full is not None:
                table[f"{method}.saving"] = _ratio(table[f"{full}.per_draw"], table[f"{method}.per_draw"])
    return table


def _of_method(run: Run, method: str) -> Metrics:
    summary, spent = run.methods[method], cost(run, method)
    draws = run.draws(method)
    middle, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    size = effective(functions((draws - middle) / np.where(sd > 0, sd, 1.0), products=False))
    per_draw = float(spent.evaluations[-1]) * summary["chains"] / size.value
    return {
        "n": float(run.target_of(method).n),
        "step": float(np.mean(summary["step_size_by_chain"])),
        "accept_rate": summary["accept_rate"],
        "data": summary["minibatch_size_mean"],
        "ess": size,
        "per_draw": Estimate(per_draw, per_draw * size.se / size.value),
        "setup": spent.setup * summary["chains"],
        "microseconds_per_draw": 1e6 * float(spent.seconds[-1]) * summary["chains"] / size.value,
    }


def exponent(costs: Mapping[int, Estimate | float]) -> Estimate:
    """Return b of cost = a n^b, by least squares in logarithms, with its standard error from those of the costs.

    Points have equal weights, so that the scatter about the line counts too; the error has no part for it.
    """
    x = np.log(np.array(list(costs), dtype=float))
    if len(x) < 2:
        return Estimate(float("nan"), float("nan"))
    numbers = [c if isinstance(c, Estimate) else Estimate(float(c), 0.0) for c in costs.values()]
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    relative = np.array([number.se / number.value for number in numbers])
    logs = np.log([number.value for number in numbers])
    return Estimate(float(weights @ logs), float(np.sqrt(weights**2 @ relative**2)))


def _ratio(a: Estimate | float, b: Estimate | float) -> Estimate:
    """Return a / b with its standard error."""
    ratio = value(a) / value(b)
    parts = [number.se / number.value if isinstance(number, Estimate) else 0.0 for number in (a, b)]
    return Estimate(ratio, ratio * float(np.linalg.norm(parts)))


def by_test(run: Run) -> dict[str, dict[str, Metric | None]]:
    """Return a row for each test: its exponents, and its cost and saving at the largest n."""
    numbers, rows = run.cached(metrics), dict[str, dict[str, Metric | None]]()
    for name, sizes in tests(run).items():
        largest = sizes.methods[max(sizes.methods)]
        rows[sizes.label] = {
            "exponent": numbers[f"{name}.exponent"],
            "setup_exponent": numbers[f"{name}.setup_exponent"],
            "per_draw": numbers[f"{largest}.per_draw"],
            "saving": numbers.get(f"{largest}.saving"),
        }
    return rows


def growth(run: Run) -> Figure:
    """Evaluations of single data for one effective draw, and for the set-up of a run, against the number of data."""
    figure, (left, right) = panels(2, size=(4.0, 4.0), share="", yscale="log", xlabel="number of data n")
    numbers, looks = run.cached(metrics), method_styles(tests(run))
    for name, (label, methods) in tests(run).items():
        n, style = np.array(list(methods)), looks[name]
        costs = [numbers[f"{method}.per_draw"] for method in methods.values()]
        bars = [2 * c.se if isinstance(c, Estimate) and np.isfinite(c.se) else 0.0 for c in costs]
        look: Style = {"color": style["color"], "marker": style["marker"], "markersize": 4, "linewidth": 1.2}
        power = value(numbers[f"{name}.exponent"])
        left.errorbar(
            n, [value(c) for c in costs], yerr=bars, capsize=2, label=f"{label}: n^{power:.2f}", **look
        )
        right.plot(n, [value(numbers[f"{method}.setup"]) for method in methods.values()], **look)
    sizes = sorted({n for _, methods in tests(run).values() for n in methods})
    for axis in (left, right):
        sizes_across(axis, sizes)
    left.set(ylabel="evaluations per effective draw")
    right.set(ylabel="evaluations of the set-up, all chains")
    return finished(
        figure, legend="right", axes=[left], fontsize=8, title="growth per effective draw", title_fontsize=8
    )
