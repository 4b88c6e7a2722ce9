"""The sections of every report: the posterior by coordinate, chains, marginals, pairs, work."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from arviz_stats.base.array import array_stats
from kit import FEW, compute
from matplotlib import pyplot as plt

from mhrun.report import coordinates, efficiency, sections
from mhrun.report.coordinates import SHOWN, coordinates_of, small_parameters
from mhrun.report.densities import axis_ends, axis_height, smoothed_density
from mhrun.report.history import acceptance_history, batch_sizes, step_size_history
from mhrun.report.monitored import has_monitor, monitor
from mhrun.report.run import Run
from mhrun.report.sections import FIGURES, marginals, pairs, posterior, rank_shares, work
from mhrun.report.style import method_styles, style

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    words = (*FEW, "steps=200", "warmup=150", "+method@methods.mhminibatch=mhminibatch")
    return Run(compute(tmp_path_factory.mktemp("sections"), *words))


@pytest.mark.slow
def test_the_posterior_has_each_coordinate_of_each_method(run):
    table = posterior(run)
    assert list(table.index) == [(run.label(m), f"theta{d}") for m in run.methods for d in (1, 2)]
    draws = run.draws("mint")[..., 1]
    row = table.loc[("MINT", "theta2")]
    assert row["mean"] == pytest.approx(draws.mean())
    assert row["sd"] == pytest.approx(draws.std(ddof=1))
    assert row["95 %"] == pytest.approx(np.quantile(draws, 0.95))
    assert row["MCSE"] == pytest.approx(float(array_stats.mcse(draws, method="mean")))
    assert row["ESS"] == pytest.approx(float(array_stats.ess(draws, method="bulk")))
    assert row["R-hat"] == pytest.approx(float(array_stats.rhat(draws)))


def test_all_coordinates_are_compared(run):
    """A limit on numbers that is infinite left one coordinate."""
    assert efficiency.valid_draws(run, "mint").shape[-1] == 2
    assert efficiency.valid_draws(run, "mint", 800).shape[-1] == 1


def test_figures_are_drawn(run):
    for make in FIGURES.values():
        figure = make(run)
        assert figure.axes
        plt.close(figure)
    labels = {line.get_label() for line in marginals(run).axes[0].lines}
    assert labels == {run.label(m) for m in run.methods}
    plt.close("all")


def test_the_history_of_step_sizes_is_that_of_the_run(run):
    steps, sizes = step_size_history(run, "mint")
    assert steps[0] == -150
    assert sizes[0] == pytest.approx(run.config["methods"]["mint"]["schedules"]["step_size"]["start"])
    # The last change is at the end of burn-in: before it, the sizes are those of the windows.
    assert len(sizes) == 3
    plan, memory = run.plan("mint"), run.plan("mint").start()
    with run.trace("mint") as trace:
        accepted = trace["warmup_sample_stats"]["accepted"].to_numpy().T.astype(bool)
    import torch

    for k in range(3):
        memory = plan.learn(memory, 50 * k + 1, torch.from_numpy(accepted[50 * k : 50 * (k + 1)].copy()))
    final = plan.controls(memory, 151, 1).step_size[0].tolist()
    assert final == pytest.approx(run.methods["mint"]["step_size_by_chain"])
    assert step_size_history(run, "sghmc") is None
    places, rates = acceptance_history(run, "mint")
    assert places[0] < 0 < places[-1]
    assert rates[places > 5].mean() == pytest.approx(run.methods["mint"]["accept_rate"], abs=0.03)
    edges, shares = batch_sizes(run, "mhminibatch")
    assert shares.sum() == pytest.approx(1.0)
    assert edges[-1] > run.methods["mhminibatch"]["minibatch_size_mean"]
    assert batch_sizes(run, "mint") is None


def test_steps_that_read_no_data_are_in_the_histogram_of_sizes(monkeypatch):
    """SMH-2 reads 0.4 data a step; on a logarithmic axis from 1 on, half of its steps were missing."""
    sizes = np.array([[0, 0, 0, 1, 40, 90]])
    run = SimpleNamespace(
        methods={name: {"minibatch_size_sd": 30.0} for name in ("smh2", *"bcdefghi")},
        stat=lambda *_: sizes,
        label=str.upper,
        config={},
    )
    edges, shares = batch_sizes(run, "smh2")
    assert edges[:2].tolist() == [0.0, 1.0]
    assert shares[0] == 0.5
    assert shares.sum() == pytest.approx(1.0)
    for name in ("acceptance_history", "step_size_history"):
        monkeypatch.setattr(sections, name, lambda *_: None)
    figure = work(run)
    assert figure.get_suptitle() == "not drawn: I (a figure has 8 methods at most)"
    (axis,) = figure.axes
    assert axis.get_xlim()[0] == 0
    assert axis.transData.transform((0.5, 0))[0] > axis.transData.transform((0, 0))[0]  # it has room
    plt.close("all")


class Wide:
    """A run of one method whose draws are given."""

    def __init__(self, draws):
        self.draws_of, self.methods = draws, {"a": {"thin": 1, "n_accept_tests": 0, "minibatch_size_sd": 0.0}}
        names = [f"w[{d}]" for d in range(draws.shape[-1])]
        self.config = {"methods": {"a": {}}}
        self.target_of = lambda method: SimpleNamespace(model=SimpleNamespace(names=names))

    def draws(self, method, marked):
        return self.draws_of

    def is_coldest(self, method):
        return np.ones(len(self.draws_of), bool)

    def cached(self, function):
        return function(self)

    def label(self, method):
        return method


def test_of_many_coordinates_the_worst_are_shown():
    draws = np.random.default_rng(0).standard_normal((4, 500, 64))
    draws[0, :, 41] += 3.0
    found = coordinates_of(Wide(draws))["a"]
    assert len(found.coordinates) == SHOWN
    assert found.of == 64
    assert found.coordinates[found.worst].name == "w[41]"


def test_valid_draws_are_those_of_each_chain():
    """One chain is valid at even steps, the other at odd ones and for a shorter time."""
    draws, valid = np.random.default_rng(0).standard_normal((2, 60, 3)), np.zeros((2, 60), bool)
    valid[0, ::2] = valid[1, 1:41:2] = True
    run = Wide(draws)
    run.methods["a"]["valid_share"], run.valid = valid.mean(), lambda method: valid
    assert np.array_equal(efficiency.valid_draws(run, "a"), np.stack([draws[0, :40:2], draws[1, 1:41:2]]))
    valid[1, 3:] = False
    assert efficiency.valid_draws(run, "a") == "1 valid draw of one chain; 10 of each are needed."


def test_draws_of_chains_that_stopped_have_no_effective_sample_size():
    """A dynamics stays where it became non-finite; a method with a test rejects the step and goes on."""
    draws = np.random.default_rng(1).standard_normal((4, 50, 2))
    about = {"thin": 1, "diverging": 70, "n_accept_tests": 0}
    run = SimpleNamespace(
        methods={"m": about}, draws=lambda *_, **__: draws, is_coldest=lambda _: np.ones(4, bool)
    )
    assert efficiency.valid_draws(run, "m") == "chains became non-finite and stopped."
    about["n_accept_tests"] = 200
    assert efficiency.valid_draws(run, "m") is draws
    about |= {"n_accept_tests": 0, "diverging": 0}
    assert efficiency.valid_draws(run, "m") is draws


def test_a_run_without_draws_has_a_line_in_their_place():
    run = Wide(np.zeros((4, 10, 2)))
    run.methods["a"]["thin"] = None
    assert posterior(run) == "No method has draws to show: no draws were kept (thin=null)."
    assert marginals(run).startswith("No method has draws to show")
    assert work(run).startswith("No method has an acceptance test")


def test_densities_and_ranks():
    rng = np.random.default_rng(1)
    x, y = smoothed_density(rng.standard_normal(40_000))
    assert y.sum() * (x[1] - x[0]) == pytest.approx(1.0, abs=0.01)
    assert y.max() == pytest.approx((2 * np.pi) ** -0.5, rel=0.05)
    draws = rng.standard_normal((4, 4_000))
    every = np.arange(4)
    assert rank_shares(draws, every) == pytest.approx(1.0, abs=0.35)  # 200 ranks a bin: five standard errors
    draws[0] += 10
    assert rank_shares(draws, every)[0, -1] == pytest.approx(4.0)
    assert rank_shares(draws, every[2:]).tolist() == rank_shares(draws, every)[2:].tolist()


def peaks(y):
    rising = np.diff(y) > 1e-3 * y.max()
    return np.diff(rising.astype(int)).clip(0).sum()


def test_modes_are_not_smoothed_to_the_width_of_all_draws():
    """Two narrow modes far apart; and draws that are repeated, as those of rejections, have no peak each."""
    rng = np.random.default_rng(1)
    modes = np.concatenate([rng.normal(0, 0.02, 4000), rng.normal(1, 0.02, 4000)])
    for ess in (np.nan, 500.0, 2.0):
        x, y = smoothed_density(modes, ess)
        assert y.sum() * (x[1] - x[0]) == pytest.approx(1.0, abs=0.01)
        assert y.max() == pytest.approx(0.5 / 0.02 / (2 * np.pi) ** 0.5, rel=0.25)
    for scale in (1e-300, 1e200, 1e300):
        x, y = smoothed_density(scale * modes)
        assert np.isfinite(y).all()
    x, y = smoothed_density(np.full(400, 1e12))
    assert np.all(np.diff(x) > 0)
    once = rng.normal(size=400)
    x, y = smoothed_density(np.repeat(once, 20), 400.0)
    assert y.max() < 0.55
    assert peaks(y) < 6
    # Trajectories that end on the other side have as many effective draws as draws, though some are repeated.
    repeated = np.repeat(rng.normal(size=2400), rng.geometric(0.6, 2400))
    assert peaks(smoothed_density(repeated, float(len(repeated)))[1]) < 6


def test_some_of_many_chains_are_drawn(monkeypatch):
    """A line for each of 100,000 chains would take ten minutes."""
    draws = np.random.default_rng(1).standard_normal((300, 40, 1))
    about = SimpleNamespace(worst=0, coordinates=[SimpleNamespace(name="theta")])
    monkeypatch.setattr(sections, "_with_draws", lambda run: {"a": about})
    monkeypatch.setattr(sections, "draws_of", lambda run, method, about: draws)
    lost = SimpleNamespace(why="no draws were kept (thin=null).")
    figure = sections.chains(
        SimpleNamespace(label=str.upper, cached=lambda function: {"a": about, "b": lost})
    )
    assert figure.get_suptitle() == "not drawn: B (no draws were kept (thin=null))"
    trace, _ = figure.axes
    assert len(trace.lines) == 16
    assert np.array_equal(trace.lines[0].get_ydata(), draws[0, :, 0])
    assert np.array_equal(trace.lines[-1].get_ydata(), draws[-1, :, 0])
    assert trace.get_title("left") == "A: theta, 16 of 300 chains"


def test_the_marginals_are_of_all_parameters(monkeypatch):
    """The title counts the model's parameters, not those of the table, which has twelve at most."""
    run = parameters(*(f"x{d}" for d in range(12)))
    run.cached(None)["a"].of = 16
    monkeypatch.setattr(
        sections, "draws_of", lambda *_: np.random.default_rng(1).standard_normal((2, 50, 12))
    )
    figure = marginals(run)
    assert figure.get_suptitle() == "9 of 16 parameters: those with the largest R-hat"
    plt.close(figure)


def parameters(*names, methods=("a",), **data):
    """What a run of methods with these parameters, some of them on other data, is for a figure."""
    coordinates = [SimpleNamespace(name=name, rhat=1.0) for name in names]
    about = SimpleNamespace(coordinates=coordinates, of=len(names), why="")
    found = dict.fromkeys(methods, about)
    config = {"methods": {method: {"data": data.get(method)} for method in methods}}
    return SimpleNamespace(label=str.upper, methods=found, cached=lambda _: found, config=config)


def test_one_method_far_from_the_others_does_not_set_the_axes_of_marginals():
    rng = np.random.default_rng(0)
    usual = [smoothed_density(rng.normal(mean, sd, 4000)) for mean, sd in ((0, 1), (3, 1), (0, 4))]
    diverged, stuck, lost = (
        smoothed_density(rng.normal(mean, sd, 4000)) for mean, sd in ((0, 1e19), (0.5, 1e-6), (1e6, 1))
    )
    low, high = axis_ends([x for x, _ in (*usual, diverged, stuck, lost)])
    assert -20 < low < -10 < 10 < high < 20
    assert usual[0][1].max() < axis_height([*usual, diverged, stuck, lost]) < 6
    # Of curves that are alike, all are within the axes.
    low, high = axis_ends([x for x, _ in usual])
    assert low < min(x[0] for x, _ in usual) < max(x[-1] for x, _ in usual) < high
    assert axis_height(usual) > max(y.max() for _, y in usual)
    ends = axis_ends([rng.normal(mean, sd, 4000) for mean, sd in ((0, 0.1), (1000, 0.1), (50, 100))])
    assert ends[0] < 0 < 1000 < ends[1]  # none is near the others
    low, high = axis_ends([np.full(10, 3.0), np.full(10, 3.0)])  # nothing moves
    assert low < 3 < high


@pytest.mark.parametrize("make", [marginals, pairs])
def test_labels_of_ticks_do_not_overlap(monkeypatch, make):
    """In narrow panels, of parameters whose numbers have many digits."""
    places = np.array([0.0975, -2.0, 1e-5, 12_345.0])
    draws = places + np.abs(places) * 1e-3 * np.random.default_rng(1).standard_normal((2, 200, 4))
    monkeypatch.setattr(sections, "draws_of", lambda *_: draws)
    with style():
        figure = make(parameters("rate", "intercept", "tiny", "large"))
        figure.canvas.draw()
        boxes = [
            label.get_window_extent().padded(3)
            for panel in figure.axes
            for axis in (panel.xaxis, panel.yaxis)
            for place, label in zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            if axis.get_view_interval()[0] <= place <= axis.get_view_interval()[1] and label.get_text()
        ]
    assert len(boxes) > 6
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
    plt.close(figure)


def test_parameters_of_different_data_are_not_overlaid(monkeypatch):
    """Each data set has a row and a legend, colours are those of the run, and figures say what they leave out."""
    monkeypatch.setattr(sections, "draws_of", lambda *_: np.random.default_rng(1).standard_normal((2, 50, 2)))
    names = [f"m{i}" for i in range(11)]
    run = parameters("x", "y", methods=(*names, "other"), other={"rows": 5})
    styles = method_styles(run.methods)
    figure = marginals(run)
    first, _, second, last = figure.axes
    assert [line.get_label() for line in first.lines] == [name.upper() for name in names[:8]]
    assert [line.get_label() for line in second.lines] == ["OTHER"]
    assert second.lines[0].get_color() == styles["other"]["color"]
    assert [text.get_text() for text in last.get_legend().get_texts()] == ["OTHER"]
    assert " ".join(figure.get_suptitle().split()) == (
        "not drawn: M8, M9, M10 (a figure has 3 data sets or models, with 8 methods each, at most)"
    )
    assert [axis.get_ylabel() for axis in figure.axes] == ["density", "", "density", ""]
    plt.close(figure)
    figure = pairs(run)
    assert [line.get_label() for line in figure.axes[0].lines] == ["M0", "M1", "M2", "M3"]
    headline = " ".join(figure.get_suptitle().split())
    assert headline.endswith("M10, OTHER (4 methods of one target at most)")
    plt.close(figure)


def test_methods_have_their_own_marks_in_pairs(monkeypatch):
    """And as many points: MINT and SGLD are both blue."""
    draws = np.random.default_rng(1).standard_normal((2, 300, 2))
    monkeypatch.setattr(sections, "draws_of", lambda *_: draws)
    figure = pairs(parameters("x", "y", methods=("mint", "sgld")))
    mint, sgld = figure.axes[0].lines
    assert len(mint.get_xdata()) == len(sgld.get_xdata()) == 200
    assert mint.get_marker() != sgld.get_marker()
    plt.close(figure)


def test_methods_of_one_model_show_the_same_coordinates_and_the_worst_of_each(monkeypatch):
    """Of 40 coordinates, with one method off in the first two and the other in the last."""
    draws = np.random.default_rng(1).standard_normal((2, 4, 200, 40))
    draws[0, 0, :, :2] += 5
    draws[1, 0, :, 39] += 9
    model = SimpleNamespace(names=[f"x{d}" for d in range(40)])
    run = SimpleNamespace(
        methods={"one": {}, "two": {}}, target_of=lambda method: SimpleNamespace(model=model)
    )
    monkeypatch.setattr(
        coordinates, "valid_draws", lambda run, method: draws[list(run.methods).index(method)]
    )
    found = coordinates.coordinates_of(run)
    shown = [[c.name for c in found[method].coordinates] for method in run.methods]
    assert shown[0] == shown[1]
    assert len(shown[0]) == coordinates.SHOWN
    assert {"x0", "x1", "x39"} <= set(shown[0])
    assert found["two"].coordinates[found["two"].worst].name == "x39"
    of_two = coordinates.draws_of(run, "two", found["two"])
    assert np.array_equal(of_two[..., -1], draws[1, ..., 39])


def test_what_a_monitor_found_last_is_a_table():
    """Means over chains with their errors; an ensemble of several chains counts once, a rung above the coldest not."""
    ends = {
        "nll": [[9.0, 0.5], [9.0, 0.7], [9.0, np.nan], [9.0, 0.9]],
        "error_of_group": [[9.0, 4.0]] * 2 + [[9.0, 6.0]] * 2,
    }
    rows = {name: (("chain", "monitor_run"), np.array(values)) for name, values in ends.items()}
    metrics = xr.Dataset(
        rows | {"step": ("monitor_run", [5, 10]), "step_size": (("chain", "monitor_run"), np.ones((4, 2)))}
    )
    run = SimpleNamespace(
        config={
            "monitor": {"group": 2},
            "methods": {"one": {}, "ladder": {"monitor": {"group": None}}, "none": {}},
        },
        methods={"one": {}, "ladder": {}, "none": {}},
        monitor=lambda method: xr.Dataset() if method == "none" else metrics,
        rungs=lambda method: 2 if method == "ladder" else 1,
        label=str.upper,
    )
    table = monitor(run)
    assert table.columns.tolist() == ["ONE", "LADDER"]
    assert table.index.tolist() == ["nll", "error_of_group"]
    assert table.loc["nll", "ONE"] == pytest.approx((0.7, 0.2 / 3**0.5))
    assert table.loc["error_of_group", "ONE"] == pytest.approx((5.0, 1.0))
    assert table.loc["nll", "LADDER"].value == 0.5
    assert np.isnan(table.loc["nll", "LADDER"].se)
    assert has_monitor(run)
    run.config = {"methods": {"one": {}, "ladder": {}, "none": {}}}
    assert not has_monitor(run)


def test_small_parameters_are_those_outside_large_arrays():
    effects = [f"effects[{k}]" for k in range(20)]
    names = ["intercept", "weights[a]", "weights[b]", "spread", *effects]
    assert small_parameters(names) == [0, 1, 2, 3]
    weights = [f"weights[{k}]" for k in range(6)]
    assert small_parameters(["intercept", *effects, *weights, "spread"]) == [0, *range(21, 28)]
    many = [f"weights[{k}]" for k in range(9)]
    assert small_parameters(["intercept", *effects, *many, "spread"]) == [0, 30]
    assert small_parameters(effects) == []
    assert small_parameters([f"x{k}" for k in range(30)]) == []  # a weight for each column
    assert small_parameters(["a", "b"]) == []
