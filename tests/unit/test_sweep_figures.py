"""The figure of a sweep: its lines, marks and legend."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from mhrun.diagnostics.grid import Estimate
from mhrun.report.sweep.figure import NOTHING, sweep_figure
from mhrun.report.sweep.seeds import seeds_figure
from mhrun.report.sweep.text import SHORT, short_names


@pytest.mark.parametrize("first", [[50, "null", 20], ["b", "a", "b"], [3, 1, 2]])
def test_the_figure_of_a_sweep_over_words_and_numbers(first):
    frame = pd.DataFrame({"m": first, "method": "MINT", "accept_rate": [0.1, 0.2, 0.3], "run": "x"})
    figure = sweep_figure(frame, ["m"])
    line = figure.axes[0].lines[0]
    assert list(line.get_ydata()) == ([0.2, 0.3, 0.1] if first == [3, 1, 2] else [0.1, 0.2, 0.3])
    plt.close(figure)


def test_a_method_that_a_setting_does_not_touch_has_one_line():
    """And settings have their last names, as many parts as tell them apart."""
    keys = ["methods.a.m", "methods.a.rule.most"]
    rows = [
        {keys[0]: m, keys[1]: most, "method": method, "ess": m * most if method == "A" else 5.0, "rhat": 1.0}
        for m in (10, 20)
        for most in (1, 2)
        for method in ("A", "B")
    ]
    figure = sweep_figure(pd.DataFrame(rows), keys)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "A (most = 1)",
        "A (most = 2)",
        "B",
    ]
    assert figure.axes[0].get_xlabel() == "m"
    plt.close(figure)
    start = "methods.a.schedules.step_size.start"
    assert short_names([start, "lam"]) == {start: "step_size.start", "lam": "lam"}
    assert short_names(["methods.a.m", "methods.b.m", "m", "lam"]) == {
        "methods.a.m": "a.m",
        "methods.b.m": "b.m",
        "m": "m",
        "lam": "lam",
    }


def test_a_method_with_the_same_numbers_at_each_value_has_no_marks():
    """Its value at each place is the same number, of one run: it is no measurement at T = 4."""
    rows = [
        {"T": t, "method": name, "ess": e} for t in (1, 4) for name, e in (("mcmc", 9.0), ("mint", 5.0 * t))
    ]
    figure = sweep_figure(pd.DataFrame(rows), ["T"])
    lines = [line for line in figure.axes[0].get_lines() if line.get_linestyle() != "--"]
    assert {line.get_marker() for line in lines if len(line.get_xdata()) == 2} == {"", "o"}
    assert [text.get_text() for text in figure.texts] == [
        "Grey dashes: ESS 400; lines without marks: the same at each T"
    ]
    plt.close(figure)


def test_small_differences_do_not_fill_the_axes():
    """R-hat from 1 to its limit at least, ESS and acceptance from 0."""
    columns = {"accept_rate": (0.3, 0.31), "ess": (2000.0, 2100.0), "rhat": (1.0009, 1.0011)}
    rows = [
        {"T": t, "method": "mint", **{key: values[k] for key, values in columns.items()}}
        for k, t in enumerate((1, 4))
    ]
    figure = sweep_figure(pd.DataFrame(rows), ["T"])
    acceptance, ess, rhat = (axis.get_ylim() for axis in figure.axes)
    assert acceptance[0] == ess[0] == 0
    assert rhat[0] == 1
    assert rhat[1] > 1.01
    assert figure.texts[0].get_text() == "Grey dashes: ESS 400; grey dashes: R-hat 1.01"
    plt.close(figure)


def test_a_job_that_is_missing_splits_no_line():
    """The settings that do not touch a method have the same numbers where both have a job."""
    rows = [
        {"lam": lam, "tau": tau, "method": method, "ess": lam * (tau if method == "A" else 1.0)}
        for lam, tau in ((0.1, 0.5), (0.1, 0.6), (0.2, 0.5), (0.2, 0.6), (0.5, 0.6))
        for method in ("A", "B")
    ]
    figure = sweep_figure(pd.DataFrame(rows), ["lam", "tau"])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["A (tau = 0.5)", "A (tau = 0.6)", "B"]
    plt.close(figure)
    apart = pd.DataFrame([row for row in rows if (row["lam"] == 0.1) == (row["tau"] == 0.5)])
    figure = sweep_figure(apart, ["lam", "tau"])  # nothing in common shows that B is untouched
    assert [text.get_text() for text in figure.legends[0].get_texts()][2:] == [
        "B (tau = 0.5)",
        "B (tau = 0.6)",
    ]
    plt.close(figure)


def test_the_figure_of_a_sweep_explains_what_it_draws():
    """Bars, open markers and noise floors; a bar through the bottom of a logarithmic axis ends in an arrow."""
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2, 0.3],
            "method": "A",
            "tv": [Estimate(0.01, 0.02), Estimate(0.1, 0.01), 2.0],
            "floor": 0.02,
            SHORT: [True, False, False],
        }
    )
    figure = sweep_figure(frame, ["lam"], None, None, {"tv": "floor"}, "standard deviation over seeds")
    (axis,) = figure.axes
    assert axis.get_ylim() == (0.005, pytest.approx(2.6, rel=0.2))
    (arrow,) = [line for line in axis.lines if line.get_marker() == "v"]
    assert list(arrow.get_xdata()) == [0.1]
    assert any(list(line.get_ydata()) == [0.02] * 3 for line in axis.lines)
    assert [text.get_text() for text in figure.texts] == [
        "Arrows: bars that go on below the axis; bars: standard deviation over seeds; fine dots: noise floor; "
        "open markers: too short to judge"
    ]
    plt.close(figure)
    figure = sweep_figure(frame[["lam", "method"]].assign(tv=[1.0, 2.0, 3.0]), ["lam"])
    assert [text.get_text() for text in figure.texts] == []
    plt.close(figure)


@pytest.mark.parametrize(
    ("methods", "values", "entries"),
    [
        (2, 2, ["M0 (tau = 0)", "M0 (tau = 1)", "M1 (tau = 0)", "M1 (tau = 1)"]),
        (6, 2, [*(f"M{i}" for i in range(6)), "tau = 0", "tau = 1"]),
        (8, 1, [f"M{i}" for i in range(8)]),
        (12, 1, [f"M{i}" for i in range(12)]),
        (33, 1, None),
        (2, 6, None),
    ],
)
def test_the_legend_of_a_sweep_has_an_entry_for_each_look(methods, values, entries):
    """One for each method, with values of another key one for each line, or for both apart; else lines have labels."""
    rows = [
        {"m": m, "tau": tau, "method": f"M{i}", "accept_rate": 0.1 * i + 0.01 * tau + 0.001 * m}
        for i in range(methods)
        for tau in range(values)
        for m in (10, 20)
    ]
    frame = pd.DataFrame(rows)
    if values == 1:
        frame = frame.drop(columns="tau")
    figure = sweep_figure(frame, ["m", "tau"] if values > 1 else ["m"])
    labels = [text.get_text() for text in figure.axes[0].texts]
    if entries is not None:
        assert [text.get_text() for text in figure.legends[0].get_texts()] == entries
        assert labels == []
        looks = {
            (line.get_color(), line.get_linestyle(), line.get_marker())
            for line in figure.axes[0].lines
            if len(line.get_xdata()) == 2 and line.get_linestyle() != "None"
        }
        assert len(looks) == methods * values
    else:
        assert not figure.legends
        assert len(set(labels)) == methods * values
        heights = np.sort([text.xyann[1] for text in figure.axes[0].texts])
        assert heights.min() > -0.05
        assert heights.max() < 1.05
        assert np.diff(heights).min() > 0.9 / (methods * values)
    plt.close(figure)


def test_seeds_are_markers_by_method_and_a_mean_with_its_standard_error():
    """Nothing joins seeds, and no axis is theirs; methods are named on the y axis, the first at the top."""
    rows = [
        {"seed": seed, "method": f"M{i}", "ess": 10.0 * i + seed, "tv": 0.5, "floor": 0.1, SHORT: i == 0}
        for seed in (0, 1, 2)
        for i in range(12)
    ]
    figure = seeds_figure(pd.DataFrame(rows), None, {"ess": "ESS"}, {"tv": "floor"})
    of_ess, of_distance = figure.axes
    assert (of_ess.get_xlabel(), of_distance.get_xlabel()) == ("ESS", "tv")
    assert [label.get_text() for label in of_ess.get_yticklabels()] == [f"M{i}" for i in range(12)]
    assert of_ess.get_ylim()[0] > of_ess.get_ylim()[1]
    seeds = [line for line in of_ess.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in seeds[:2]] == [[0, 1, 2], [10, 11, 12]]
    assert {line.get_linestyle() for line in seeds} == {"None"}
    assert [line.get_markerfacecolor() == "none" for line in seeds] == [True, *[False] * 11]
    bar = of_ess.containers[1]
    assert list(bar[0].get_xdata()) == [11]
    assert bar[2][0].get_segments()[0][:, 0] == pytest.approx([11 - 3**-0.5, 11 + 3**-0.5])
    assert [text.get_text() for text in figure.texts] == [
        "Small markers: one seed each; bars: mean over seeds and one standard error; "
        "grey ticks: noise floor, mean over seeds; open markers: too short to judge"
    ]
    plt.close(figure)
    assert seeds_figure(pd.DataFrame({"seed": [0, 1], "method": "A", "ess": np.nan})) == NOTHING
