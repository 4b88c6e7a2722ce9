"""What the reports of the network experiments are computed from."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
import yaml

from mhrun.data import Dataset
from mhrun.kernels import AdaptiveBackward
from mhrun.models.perceptron import Perceptron
from mhrun.pairing.moving import Moving
from mhrun.paths import EXPERIMENTS, experiment_module
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Controls

network, rates, networks = (
    experiment_module(name) for name in ("mint.network", "mint.rates", "mhbt.networks")
)
KEY = derive_key(3, "networks")


def monitored(runs, **numbers):
    """Metrics of the chains at `runs` observations."""
    values = {
        name: (("chain", "monitor_run"), np.asarray(each, dtype=float)) for name, each in numbers.items()
    }
    return xr.Dataset({"step": (("monitor_run",), 10 * np.arange(1, runs + 1)), **values})


def run_of(evaluations, config):
    """As much of a run as the functions read."""
    summaries = {name: {"n_accept_tests": 0, "accept_rate": 0.5} for name in evaluations}
    run = SimpleNamespace(methods=summaries, monitor=evaluations.__getitem__, label=str, config=config)
    run.cached = lambda function: function(run)
    return run


# --- Li & Wong (2017) ---------------------------------------------------------------------------------------


@pytest.fixture
def figure3(rng):
    def method(level, *kinds):
        return monitored(6, **{f"error{kind}": level + rng.normal(size=(3, 6)) for kind in kinds})

    evaluations = {
        "sgd": method(5, ""),
        "sgd_momentum": method(6, ""),
        "sgld": method(7, "", "_of_ensemble"),
        "sghmc": method(4, "", "_of_ensemble"),
        "mint": method(9, "", "_of_mean", "_of_ensemble"),
        "cmint": method(3, "", "_of_mean", "_of_ensemble").assign(
            accepted_rate=(("chain", "monitor_run"), np.arange(18.0).reshape(3, 6) / 18)
        ),
    }
    return run_of(evaluations, {"cycle": 30.0, "epoch": 10.0})


def test_each_method_is_judged_by_the_estimate_that_the_paper_uses(figure3):
    found = network.metrics(figure3)
    for method, kind in (
        ("sgd", ""),
        ("sghmc", "_of_ensemble"),
        ("mint", "_of_mean"),
        ("cmint", "_of_ensemble"),
    ):
        last = figure3.monitor(method)[f"error{kind}"].to_numpy()[:, -1]
        assert found[f"{method}.final"].value == pytest.approx(last.mean())
        assert found[f"{method}.final"].se == pytest.approx(last.std(ddof=1) / math.sqrt(3))
    others = ("sgd", "sgd_momentum", "sgld", "sghmc", "mint")
    lowest = min(found[f"{method}.final"].value for method in others)
    assert found["cmint.over_best"].value == pytest.approx(found["cmint.final"].value - lowest)


def test_rounds_end_with_their_last_epoch(figure3):
    accepted = figure3.monitor("cmint")["accepted_rate"].to_numpy()
    assert (network.round_ends(figure3, "cmint") == accepted[:, [2, 5]]).all()
    found = network.metrics(figure3)
    assert found["cmint.end_least"] == pytest.approx(accepted[:, 2].mean())
    assert found["cmint.end_last"].value == pytest.approx(accepted[:, 5].mean())


def test_rates_that_do_not_differ_significantly_from_the_best():
    errors = rates.Errors(np.array([0.1, 0.2, 0.3]), np.array([[3.0, 3.2], [1.9, 2.0], [2.1, 1.95]]))
    assert errors.best == 0.2
    assert errors.as_good == [0.2, 0.3]
    assert (errors.at(0.28) == [2.1, 1.95]).all()
    alone = rates.Errors(np.array([0.1, 0.2]), np.array([[3.0], [2.0]]))
    assert alone.as_good == [0.1, 0.2]


def test_weights_are_compared_at_the_printed_rate():
    """The error at the printed weight is that of the method with all learning rates, at the printed one."""
    last = {"sgd": [2.0, 2.2, 3.0, 3.2], "sgd_1": [3.0, 3.2], "sgd_3": [5.0, 5.2], "sgd_momentum": [1.0, 1.1]}
    evaluations = {name: monitored(2, error=[[9.0, error] for error in each]) for name, each in last.items()}
    decays = {"sgd": 2e-5, "sgd_1": 1e-5, "sgd_3": 3e-5, "sgd_momentum": 3e-5}
    methods = {name: {"kernel": {"prior": {"decay": decay}}} for name, decay in decays.items()}
    run = run_of(evaluations, {"rates": [0.09, 0.1], "slow": [0.012], "trainings": 2, "methods": methods})
    sgd = rates.searches(run)["sgd"]
    assert (sgd.weights.settings == [1e-5, 2e-5, 3e-5]).all()
    assert sgd.weights.errors == pytest.approx(np.array([[3.0, 3.2], [2.0, 2.2], [5.0, 5.2]]))
    found = rates.metrics(run)
    assert (found["sgd.best_rate"], found["sgd.best_decay"]) == (0.09, 2e-5)
    assert found["sgd_momentum.best_decay"] == 3e-5


# --- Wu, Wang & Wong (2020) ---------------------------------------------------------------------------------


@pytest.fixture
def table1():
    # Two learning rates, three trainings of each, two looks.
    sgd = [[4, 3], [3, 5], [5, 4], [90, 90], [2, 2.5], [90, 91]]
    rsgld = [[6, 5], [5, 4], [6, 6], [3, 1], [2, 2], [1, 3]]
    moves = {
        "backward": np.full((6, 2), 2.0),
        "forward": np.full((6, 2), 4.0),
        "accepted": np.full((6, 2), 3.0),
        "accepted_forward": np.full((6, 2), 2.0),
    }
    evaluations = {
        "sgd": monitored(2, error=sgd),
        "sgld": monitored(2, error=sgd),
        "rsgld": monitored(2, error=rsgld, **moves),
    }
    return run_of(evaluations, {"rates": [0.01, 0.4], "epoch": 10.0, "m": 5, "data": {"n": 50}})


def test_a_learning_rate_has_its_trainings_side_by_side(table1):
    found = networks.metrics(table1)
    assert networks.best(table1, "sgd").tolist() == [[3, 3, 4], [90, 2, 90]]
    assert (found["sgd.median_0.01"], found["sgd.median_0.4"], found["sgd.last_0.01"]) == (3, 90, 4)
    assert (found["sgd.failed_0.01"], found["sgd.failed_0.4"], found["sgd.lowest_0.4"]) == (0, 2, 2)
    assert (found["sgd.large_least"], found["rsgld.large_most"], found["sgld.off_sgd"]) == (90, 1, 0)
    assert (found["rsgld.best_rate"], found["rsgld.slower"], found["rsgld.over_best"]) == (0.4, 2, -2)
    assert (found["rsgld.below_at_large"], found["rsgld.off_paper"]) == (1, pytest.approx(5 - 2.01))
    assert found["rsgld.final_over_best"] == 2 - 4


def test_table_2_is_compared_rate_by_rate(rng):
    """Of two trainings at each of its four rates; errors of the best of two epochs."""
    errors = {name: rng.uniform(20, 40, (8, 2)) for name in ("rsgld", "sgd", "sgld")}
    moves = dict.fromkeys(("backward", "forward", "accepted", "accepted_forward"), np.ones((8, 2)))
    evaluations = {name: monitored(2, error=error) for name, error in errors.items()}
    evaluations["rsgld"] = monitored(2, error=errors["rsgld"], **moves)
    rates = [0.005, 0.008, 0.02, 0.04]
    data = {"n": 50, "name": "cifar10-jpeg"}
    run = run_of(evaluations, {"rates": rates, "epoch": 10.0, "m": 5, "data": data})
    found = networks.metrics(run)
    best = {name: error.min(axis=1).reshape(4, 2) for name, error in errors.items()}
    median = {name: [sum(pair) / 2 for pair in each] for name, each in best.items()}
    under = [min(median["sgd"][i], median["sgld"][i]) - median["rsgld"][i] for i in range(4)]
    assert found["rsgld.under_median"] == pytest.approx(np.mean(under))
    least = [min(*best["sgd"][i], *best["sgld"][i]) - min(best["rsgld"][i]) for i in range(4)]
    assert found["rsgld.under_lowest"] == pytest.approx(np.mean(least))
    margin = [a - b for a, b in zip(median["sgd"], median["rsgld"], strict=True)]
    assert found["rsgld.margin_rises"] == sum(margin[i] < margin[i + 1] for i in range(3))
    printed = networks.TABLE_2
    assert found["sgld.off_paper_lowest"] == pytest.approx(
        max(abs(min(best["sgld"][i]) - printed.lowest["sgld"][i]) for i in range(4))
    )
    assert "rsgld.large_most" not in found  # no rate is large
    table = networks.by_rate(run, "lowest")
    assert table.loc["sgd", "0.02"] == min(best["sgd"][2])
    assert table.loc["sgd, paper", "0.02"] == "26.85"
    book = yaml.safe_load((EXPERIMENTS / "mhbt" / "claims.yaml").read_text())["experiments"]["cifar_rsgld"]
    levels = {c["metric"]: c["rule"]["near"] for c in book["claims"] if "near" in c["rule"]}
    for kind, table in (("median", printed.median), ("lowest", printed.lowest)):
        for name, values in table.items():
            assert [levels.pop(f"{name}.{kind}_{rate:g}") for rate in printed.rates] == list(values)
    assert levels == {}


def test_acceptance_by_direction(table1):
    moves = networks.monitored_moves(table1, "rsgld")
    assert moves["accepted"] == pytest.approx(0.3)
    assert moves["forward"] == pytest.approx(0.5)
    assert moves["backward"] == pytest.approx(1 / 6)
    assert networks.metrics(table1)["rsgld.forward_lead"] == pytest.approx(1 / 3)
    assert networks.passes(table1, "rsgld").tolist() == [1, 2]


def test_the_adaptive_kernel_keeps_count_of_forward_moves(rng):
    chains, epoch, n = 3, 6, 40
    x, y = rng.normal(size=(n, 5)).astype(np.float32), rng.integers(0, 3, n)
    target = Target(Perceptron([5, 4, 3], weight_sd=0.3), Dataset.of({"x": x, "y": y}))
    kernel = AdaptiveBackward(
        ReversibleLangevinProposal(density="unnormalised"), Moving(10), Metropolis(), epoch=epoch, trials=2
    )
    draws = Draws(Streams(KEY, chains), 0)
    state = kernel.start(target, target.model.init(chains, draws), draws)
    full = torch.ones(chains)
    controls = Controls(0.01 * full, 2.0 * full, 0.5 * full)
    expected = torch.zeros(3, chains, dtype=torch.float64)
    for step in range(1, 2 * epoch + 3):
        draws.step = step
        state, info = kernel.step(target, state, controls, draws)
        if (step - 1) % epoch == 0:
            expected.zero_()
        chance = info.log_ratio.exp().clamp_max(1.0)
        forward = (Draws(draws.streams, step).uniform(Purpose.PROPOSAL, use=1) < 0.5).double()
        expected += torch.stack([chance, forward * chance, forward])
        for name, value in zip(("accepted", "accepted_forward", "forward"), expected, strict=True):
            assert torch.allclose(state.aux[name], value)
    assert 0 < expected[2].sum() < 2 * chains
