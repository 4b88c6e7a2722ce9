"""What the reports on replica exchange are computed from, against plain loops over a small run's trace."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
import yaml
from matplotlib import pyplot as plt

from mhrun.cli.configuration.compose import compose_config
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.paths import CONF, EXPERIMENTS, experiment_module
from mhrun.report.claims.judge import judge_all
from mhrun.report.declared import experiment_function
from mhrun.report.run import Run

modes, modes_figures, rates, gradients, networks, networks_figures = (
    experiment_module(f"renhd.{name}")
    for name in ("modes", "modes_figures", "rates", "gradients", "networks", "networks_figures")
)


class Trace(dict):
    """A trace that is open for as long as it is read."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


CENTRES = [(0, 0), (4, 4), (-4, 4), (-4, -4), (4, -4)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    words = [
        "experiment=five_modes",
        "scale=smoke",
        "scales.smoke.rounds=400",
        "~methods.flow",
        "executor=compiled",
        "runtime.threads=1",
        f"runtime.outputs={tmp_path_factory.mktemp('modes')}",
    ]
    return Run(run_experiment(compose_config(words), Silent()))


def closest(point):
    return min(range(5), key=lambda k: math.dist(point, CENTRES[k]))


@pytest.mark.slow
def test_modes_are_counted_as_by_a_plain_loop(run):
    found = modes.metrics(run)
    with run.trace("renhd") as trace:
        theta = trace["posterior"]["theta"].to_numpy()[::7]  # the coldest rung of two ladders
        exchange = trace["sample_stats"]["exchange"].to_numpy().reshape(2, 7, -1)
    assert theta.shape == (2, 400, 2)
    near = [[closest(point) for point in chain] for chain in theta]
    weights = np.mean([np.bincount(chain, minlength=5) / 400 for chain in near], axis=0)
    assert found["renhd.distance"] == pytest.approx(0.5 * sum(abs(w - 0.2) for w in weights))
    changes = [sum(a != b for a, b in itertools.pairwise(chain)) for chain in near]
    assert found["renhd.changes"].value == np.mean(changes)
    outside = [np.mean([min(math.dist(p, c) for c in CENTRES) > 1.5 for p in chain]) for chain in theta]
    assert found["renhd.outside"].value == pytest.approx(np.mean(outside))
    visited = [sum(np.bincount(chain, minlength=5) > 4) for chain in near]
    assert found["renhd.modes"].value == np.mean(visited)
    made = [(exchange[ladder][:, exchange[ladder].any(0)] == 2) for ladder in range(2)]
    shares = []
    for ladder in range(2):
        even = exchange[ladder, 0] > 0
        for low in range(6):
            at = even == (low % 2 == 0)
            shares.append((exchange[ladder, low, at] == 2).mean())
    assert found["renhd.swap_rate"].value == pytest.approx(np.mean(shares))
    assert made[0].shape[1] == 400
    assert found["renhd.gradients"] == pytest.approx(7 * 40)
    share, errors = modes.weights(run, "renhd")
    assert share == pytest.approx(weights)
    assert (errors >= np.sqrt(share * (1 - share) / 800) * 0.999).all()  # no draw is worth more than one
    assert found["renhd.livelier"] == np.mean(changes) / (1 + found["sgnht.changes"].value)


def test_a_claim_of_right_weights_can_fail(run, monkeypatch):
    monkeypatch.setattr(
        modes, "weights", lambda run, method: (np.array([0.3, 0.2, 0.2, 0.2, 0.1]), np.full(5, 0.01))
    )
    assert modes._metrics(run, "renhd")["right"] == 3


def test_tables_figures_and_notes_are_made(run):
    assert list(experiment_function("renhd.modes", "table")(run).index) == ["RENHD", "SGNHT"]
    assert modes.ladders(run).shape == (1, 8)
    for draw in (modes_figures.densities, modes_figures.trajectories, modes_figures.ladder):
        assert draw(run).axes
    assert any("RENHD" in line or "ESS" in line for line in experiment_function("renhd.modes", "notes")(run))


def test_exchanges_of_networks_and_what_they_read():
    exchange = np.array([[2, 0, 1], [2, 2, 1], [0, 2, 0]], np.int8)  # pair 0-1, pair 1-2, pair 0-1
    n_lik = np.array([[5, 5, 10], [5, 15, 20], [0, 10, 10]])
    stats = xr.Dataset(
        {
            "exchange": (("chain", "draw"), exchange),
            "n_lik": (("chain", "draw"), n_lik),
        }
    )

    run = SimpleNamespace(
        trace=lambda method: Trace(sample_stats=stats),
        target=SimpleNamespace(n=10),
        rungs=lambda method: 3,
    )
    assert np.array_equal(rates.exchanges(run, "x"), [[1, np.nan, 0], [np.nan, 1, np.nan]], equal_nan=True)
    assert sorted(rates.read(run, "x")) == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]


def test_rises_are_counted(rng):
    shares = {
        f"normal_{b}": (("chain", "monitor_run"), np.array([[0.1, s]]))
        for b, s in ((16, 0.5), (32, 0.4), (64, 0.9))
    }
    metrics = xr.Dataset(
        shares
        | {
            "error": (("chain", "monitor_run"), np.ones((1, 2))),
            "still_16": (("chain", "monitor_run"), np.ones((1, 2))),
        }
    )
    run = SimpleNamespace(
        methods={"sgd": {}, "residual": {}},
        config={"monitor": {"sizes": [16, 32, 64]}},
        monitor=lambda method: metrics,
        label=str,
    )
    found = gradients.metrics(run)
    assert (found["last.rises"], found["first.rises"]) == (1.0, 0.0)
    # A claim speaks of each
    assert (found["residual.last.rises"], found["residual.first.rises"]) == (1.0, 0.0)
    assert found["last.normal_64"].value == 0.9


@pytest.mark.parametrize("experiment", ["exchange_rates", "exchange_step_sizes", "gradient_noise"])
@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
def test_networks_at_smaller_scales_have_the_paper_s_posterior_for_each_datum(experiment, scale):
    """Precision of the prior and step size go with n: 120 and 5e-6 at 60,000 images."""
    config = compose_config([f"experiment={experiment}", f"scale={scale}"])
    n = config["data"]["n"]
    assert 1 / config["model"]["prior_variance"] == pytest.approx(120 * n / 60_000)
    step = (
        config["step_size"]
        if "step_size" in config
        else config["methods"]["sghmc"]["schedules"]["step_size"]["step_size"]
    )
    assert step * n == pytest.approx(5e-6 * 60_000)


def test_thermostats_are_compared_with_the_noise_that_they_have_to_remove(rng):
    s, v = rng.uniform(0.1, 0.2, (3, 6)), rng.uniform(1e3, 2e3, (3, 6))
    metrics = xr.Dataset(
        {
            name: (("chain", "monitor_run"), values)
            for name, values in {
                "thermostat": s,
                "variance_128": v,
                "step_size": np.full((3, 6), 2e-5),
                "error": np.full((3, 6), 30.0),
            }.items()
        }
    )
    exchange = np.tile(np.array([[2, 1], [2, 2], [0, 2]], np.int8), 3)
    stats = xr.Dataset(
        {
            "exchange": (("chain", "draw"), exchange),
            "n_lik": (("chain", "draw"), np.cumsum(np.full((3, 6), 7), axis=1)),
        }
    )

    run = SimpleNamespace(
        methods={"x": {}},
        config={"c": 0.1, "m": 128, "ratio": 1.5},
        monitor=lambda method: metrics,
        rungs=lambda method: 3,
        trace=lambda method: Trace(sample_stats=stats),
        target=SimpleNamespace(n=10, dim=100),
    )
    found = rates.metrics(run)
    expected, of_b = [], []
    for rung in range(3):
        for which in (4, 5):
            b = 2e-5 * v[rung, which] / 2
            of_b.append(b)
            expected.append(s[rung, which] / ((0.1 + b) / 1.5**rung))
    assert found["x.thermostat"] == pytest.approx(np.mean(expected))
    assert found["x.swing"] == pytest.approx(np.sqrt(np.mean((np.array(expected[4:]) - 1) ** 2)))
    assert found["x.c_over_b"] == pytest.approx(0.1 / np.mean(of_b))
    assert found["x.predicted"] == pytest.approx(0.0330, abs=2e-4)  # by Monte Carlo, 4e6 draws


def permuted_labels(rng, runs=3, rungs=4, rounds=6):
    """As much of a run of the eight methods as the functions read, with exchanges of two ladders and more."""
    summaries, metrics, exchange = {}, {}, {}
    for name, level in itertools.product(networks.METHODS, networks.LEVELS):
        method = f"{name}_{level}"
        chains = runs * (rungs if name in networks.LADDERS else 1)
        summaries[method] = {"chains": chains, "steps": 100, "wall_s": float(rng.uniform(1, 2))}
        values = {
            f"{score}{end}": (("chain", "monitor_run"), rng.uniform(5, 30, (chains, 2)))
            for score in ("error", "nll", "brier", "ece")
            for end in ("", "_of_ensemble")
        }
        metrics[method] = xr.Dataset({"step": (("monitor_run",), [50, 100])} | values)
        odd = rng.integers(0, 2, rounds)
        made = np.zeros((runs, rungs, rounds), np.int8)
        for ladder, t in np.ndindex(runs, rounds):
            for low in range(odd[t], rungs - 1, 2):
                made[ladder, low : low + 2, t] = rng.integers(1, 3)
        exchange[method] = made.reshape(-1, rounds)

    def stats(method):
        return xr.Dataset(
            {
                "exchange": (("chain", "draw"), exchange[method]),
                "n_lik": (("chain", "draw"), np.cumsum(10 * (exchange[method] > 0), axis=1)),
            }
        )

    run = SimpleNamespace(
        methods=summaries,
        label=str,
        monitor=metrics.__getitem__,
        rungs=lambda method: rungs if method.startswith(networks.LADDERS) else 1,
        trace=lambda method: Trace(sample_stats=stats(method)),
        target=SimpleNamespace(n=20, dim=500),
        config={
            "ratio": 1.2,
            "printed": "fashion-mnist",
            "scale": "paper",
            "m": 5,
            "rungs": rungs,
            "data": {"n": 20},
        },
    )
    run.cached = lambda function: function(run)
    return run, exchange


def test_exchanges_of_several_ladders_are_those_of_each(rng):
    run, exchange = permuted_labels(rng)
    found = networks.metrics(run)
    made, late = [], []
    coded = exchange["renhd_p20"].reshape(3, 4, 6)
    for ladder, low, t in np.ndindex(3, 3, 6):
        if (coded[ladder, 0, t] > 0) == (low % 2 == 0):  # the parity of this round
            made.append(coded[ladder, low, t] == 2)
            late += made[-1:] if t >= 4 else []
    assert found["renhd_p20.exchanged"].value == pytest.approx(np.mean(made))
    assert found["renhd_p20.exchanged_late"].value == pytest.approx(np.mean(late))
    assert found["renhd_p20.read"] == pytest.approx(0.5)


def test_table_1_compares_the_networks_that_the_paper_does(rng):
    """Optimisers by their last network, samplers by the average, ladders at T = 1; differences in their own errors."""
    run, _ = permuted_labels(rng)
    found, means = networks.metrics(run), {}
    for name, level in itertools.product(networks.METHODS, networks.LEVELS):
        method = f"{name}_{level}"
        source = "error" if name in ("adam", "sgd_momentum") else "error_of_ensemble"
        each = 100 - run.monitor(method)[source].to_numpy()[:, 1]
        each = each[::4] if name in ("reld", "renhd") else each
        assert found[f"{method}.accuracy"].value == pytest.approx(each.mean())
        means[name, level] = each.mean(), each.std(ddof=1) / math.sqrt(3)
    for other in networks.METHODS[:-1]:
        sigmas = [
            (means["renhd", level][0] - means[other, level][0])
            / math.hypot(means["renhd", level][1], means[other, level][1])
            for level in networks.LEVELS
        ]
        assert found[f"renhd.sigmas_over.{other}"] == pytest.approx(min(sigmas))
    levels = list(networks.LEVELS)
    assert found["reld.off_sgld"] == pytest.approx(
        max(abs(means["reld", level][0] - means["sgld", level][0]) for level in levels)
    )
    plain = ("adam", "sgd_momentum", "sgld", "sghmc", "sgnht")  # one temperature
    lead = [means["renhd", level][0] - max(means[name, level][0] for name in plain) for level in levels]
    assert [found[f"renhd_{level}.lead"] for level in levels] == pytest.approx(lead)
    assert found["renhd.lead_rises"] == sum(b > a for a, b in itertools.pairwise(lead))
    over = min(
        means[name, level][0] - max(means["adam", level][0], means["sgd_momentum", level][0])
        for name in networks.METHODS[2:]
        for level in levels
    )
    assert found["samplers.over_optimisers"] == pytest.approx(over)
    cost = {
        name: [
            run.methods[f"{name}_{level}"]["wall_s"] / run.methods[f"{name}_{level}"]["chains"]
            for level in levels
        ]
        for name in ("renhd", "tact_hmc")
    }
    cheaper = 1 - np.mean([a / b for a, b in zip(cost["renhd"], cost["tact_hmc"], strict=True)])
    assert found["renhd.cheaper"] == pytest.approx(cheaper)


def test_a_run_of_tact_hmc_without_a_draw_is_left_out(rng):
    """Where the tempering variable is away from 0 whenever networks are collected, a run has no ensemble."""
    run, _ = permuted_labels(rng)
    errors = run.monitor("tact_hmc_p0")["error_of_ensemble"]
    errors[1, 1] = np.nan
    found = networks.metrics(run)
    assert found["tact_hmc_p0.accuracy"].value == pytest.approx(100 - errors.to_numpy()[[0, 2], 1].mean())


@pytest.mark.parametrize("left", [("sgld",), ("renhd", "adam"), ("tact_hmc", "reld", "sgnht")])
def test_the_report_of_some_of_the_methods_has_what_they_have(left, rng):
    run, _ = permuted_labels(rng)
    for method in list(run.methods):
        if not method.startswith(left):
            del run.methods[method]
    found = networks.metrics(run)
    assert ("renhd.cheaper" in found) == ({"renhd", "tact_hmc"} <= set(left))
    assert ("samplers.over_optimisers" in found) == ("adam" in left)
    assert list(networks.accuracy_table(run).index) == [f"{m}_p0" for m in networks.METHODS if m in left]
    exchanges = experiment_function("renhd.networks", "exchange_table")
    assert len(exchanges(run)) == 3 * len({"renhd", "reld"} & set(left))


@pytest.mark.parametrize("experiment", ["fashion_lstm", "cifar_residual"])
def test_the_printed_accuracies_are_those_of_the_claims(experiment):
    settings = yaml.safe_load((CONF / "experiment" / f"{experiment}.yaml").read_text())
    printed = networks.PRINTED[settings["printed"]]
    book = yaml.safe_load((EXPERIMENTS / "renhd" / "claims.yaml").read_text())["experiments"]
    levels = {
        claim["metric"]: claim["rule"]["near"]
        for claim in book[experiment]["claims"]
        if claim["metric"].endswith(".accuracy")
    }
    assert len(levels) == 24
    for name, values in printed.items():
        assert [levels[f"{name}_{level}.accuracy"] for level in networks.LEVELS] == list(values)


@pytest.mark.parametrize("experiment", ["fashion_lstm", "cifar_residual"])
def test_every_claim_on_table_1_has_a_metric_and_every_table_its_numbers(experiment, rng):
    run, _ = permuted_labels(rng)
    found = networks.metrics(run)
    config = {"experiment": experiment, "report": {"paper": "renhd"}}
    assert {claim.why for claim in judge_all(config, found) if claim.holds is None} == set()
    for name in ("accuracy_table", "difference_table", "exchange_table", "cost_table"):
        assert not experiment_function("renhd.networks", name)(run).isna().any().any()
    shown = networks.accuracy_table(run).loc["tact_hmc_p0"]
    assert shown["paper, 30 %"] == "88.78"
    assert shown["30 % permuted"] == found["tact_hmc_p30.accuracy"]
    if experiment == "fashion_lstm":
        for draw in (
            networks_figures.accuracy_figure,
            networks_figures.training_figure,
            networks_figures.exchange_figure,
        ):
            assert draw(run).axes
        plt.close("all")
