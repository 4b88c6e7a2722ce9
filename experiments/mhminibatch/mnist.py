"""Section 6.2 of Seita et al. (2017): acceptance tests on logistic regression, two digits of MNIST."""

from __future__ import annotations

import pandas as pd

from mhrun.errors import Refusal
from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.plots import band, legend_below, levels, panels
from mhrun.report.vocabulary import Array, Figure, Run, Style, by_rows, method_styles
from mhrun.rules.austere_design import Design, conservative, profile

from ..shared.classify import accuracy
from ..shared.crossings import first_crossing
from ..shared.measures import in_order, of_sizes

TESTS = ("mhminibatch_released", "austere_nc_released", "austere_c", "mhsublhd")  # as the authors ran them
LEVEL = 0.9  # of the accuracy that methods are compared at
CELL_OF_NC = (370, 720)  # of Figure 4, where most decisions of AustereMH (NC) are


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable.by_method(run, _of_method)
    for name in ("x90", "size"):
        table.add("order", {name: in_order(table, [f"{test}.{name}" for test in TESTS])})
    for test in (*TESTS[1:], "austere_nc"):
        for name in ("x90", "size"):
            if f"{test}.{name}" in table and f"{TESTS[0]}.{name}" in table:
                quotient = table.number(f"{test}.{name}") / table.number(f"{TESTS[0]}.{name}")
                table.add(test, {f"{name}_ratio": quotient})
    return table | design(run, "bound_c")


def _of_method(run: Run, method: str) -> Metrics:
    numbers, size = of_sizes(run, method), run.stat(method, "batch_size")
    steps, right = curve(run, method)
    spent, mean = data_spent(run, method).mean(axis=0), right.mean(axis=0)
    return numbers | {
        "x90": reached(spent, mean),
        "x90_all": reached(spent + value(numbers["overhead"]) * steps, mean),
        "steps90": reached(steps, mean),
        "first": float(right[:, 0].mean()),
        "final": estimate(right[:, -1]),
        "of_mean": estimate(accuracy(run, run.draws(method).mean(axis=1))),
        "nc_cell": float(((size >= CELL_OF_NC[0]) & (size < CELL_OF_NC[1])).mean()),
    }


def design(run: Run, bound: str) -> Metrics:
    """Return m and epsilon of AustereMH (C) by the bound of this name; none where no design has so small an error."""
    design_of = run.config["design"]
    try:
        chosen = conservative(design_of["n"], design_of[bound])
    except Refusal:  # the table of designs says so
        return {}
    return {"design.m": float(chosen.m), "design.epsilon": chosen.epsilon}


def curve(run: Run, method: str) -> tuple[Array, Array]:
    """Return the steps (S,) and the accuracy of the draws after them on the test images (C, S)."""
    return run.draw_steps(method), accuracy(run, run.draws(method))


def data_spent(run: Run, method: str) -> Array:
    """Return the data behind all decisions up to each kept draw (C, S), as the paper counts them."""
    return run.at_draws(method, "batch_size")


def reached(spent: Array, right: Array) -> float:
    """Return what was spent when the accuracy first came to `LEVEL`, linear between draws; NaN if it never did."""
    return first_crossing(spent, right, LEVEL)


def settings(run: Run) -> pd.DataFrame:
    """The design of AustereMH (C) (Table 5): the one printed, and the one that the bound gives."""
    design_of = run.config["design"]
    bound = "least data with the error below its bound"
    designs = {
        "printed": Design(design_of["m"], design_of["epsilon"]),
        bound: conservative(design_of["n"], design_of["bound_c"]),
    }
    rows = {}
    for name, chosen in designs.items():
        performance = profile(design_of["n"], *chosen, [0.0])
        rows[name] = {
            "n": design_of["n"],
            "bound": design_of["bound_c"],
            "m": chosen.m,
            "epsilon": chosen.epsilon,
        }
        rows[name] |= {"error": performance.error[0], "data": performance.usage[0]}
    return by_rows(rows)


def accuracy_figure(run: Run) -> Figure:
    """Accuracy on the test images against data read (Figure 3)."""
    panel_style: Style = {
        "xscale": "log",
        "xlabel": "data read, as the paper counts",
        "ylabel": "accuracy",
        "ylim": (0.5, 1.0),
    }
    figure, axes = panels(2, size=(4.8, 3.4), **panel_style)
    looks = method_styles((*TESTS, "barker", "metropolis"))
    shades = {test: look["color"] for test, look in looks.items()}
    shades["austere_nc"] = shades["austere_nc_released"]
    same_start = (f"{test}_same" for test in ("austere_nc", "austere_c", "mhsublhd"))
    shown = {"the authors' starts": TESTS, "one start": (TESTS[0], *same_start, "barker", "metropolis")}
    for axis, (title, methods) in zip(axes, shown.items(), strict=True):
        for method in (method for method in methods if method in run.methods):
            colour, spent = shades[method.removesuffix("_same")], data_spent(run, method).mean(axis=0)
            band(axis, spent, curve(run, method)[1], spread="sd", color=colour, label=run.label(method))
        levels(axis, LEVEL, line=":", color="grey")
        axis.set_title(title)
        legend_below(axis)
    return figure
