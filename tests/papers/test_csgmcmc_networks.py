"""Zhang et al. (2020) on networks: how sure ensembles are, against NumPy, and what their reports are computed from."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from kit import StopAfter, assert_same_bits, contents
from monitored import (
    LAYERS,
    STEPS,
    TEST,
    WARMUP,
    C,
    log_probabilities,
    method_of,
    run,
    train_and_test,
    whole,
)
from scipy.spatial.distance import pdist, squareform

from mhrun.build import build
from mhrun.cli.configuration.compose import compose_config
from mhrun.data import Dataset
from mhrun.dynamics.momentum import Momentum
from mhrun.engine.choices import Choices
from mhrun.engine.estimate import _pace
from mhrun.engine.experiment import run_experiment
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, Refusal
from mhrun.kernels import Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.uncertainty import Uncertainty
from mhrun.native import native_form
from mhrun.paths import experiment_module
from mhrun.random import Draws, Streams, derive_key
from mhrun.schedules import Plan
from mhrun.schedules.cosine import Cosine
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.switched import Switched
from mhrun.target import Target
from mhrun.types import Controls

networks, weights, ensembles = (
    experiment_module(f"csgmcmc.{name}") for name in ("networks", "weights", "ensembles")
)
OTHERS = 31


@pytest.fixture
def data(rng):
    return train_and_test(rng)


# --- The evaluation -----------------------------------------------------------------------------------------


@pytest.fixture
def outside(rng):
    return Dataset.of({"x": 2 * rng.normal(size=(OTHERS, 4)), "y": rng.integers(0, 3, OTHERS)})


def ensemble(thetas, x):
    return np.mean([np.exp(log_probabilities(theta, x)) for theta in thetas], axis=0)


def sureness(thetas, test, outside, sure):
    """The metrics of one chain's ensemble, written out."""
    near, far = (ensemble(thetas, some.fields["x"].numpy()) for some in (test, outside))
    entropies = [-np.sum(p * np.log(p), axis=1) for p in (near, far)]
    above = [1.0 if b > a else 0.5 if b == a else 0.0 for a in entropies[0] for b in entropies[1]]
    wrong = near.argmax(1) != test.fields["y"].numpy()
    found = {
        "entropy_inside": entropies[0].mean(),
        "entropy_outside": entropies[1].mean(),
        "auroc": np.mean(above),
        "confident_outside": 100 * np.mean(far.max(1) > sure),
        "confident_errors": 100 * np.mean(wrong & (near.max(1) > sure)),
        "error_of_ensemble": 100 * np.mean(wrong),
    }
    return found | {f"outside_below_{k / 10:.1f}": np.mean(entropies[1] <= k / 10) for k in range(1, 11)}


SCHEDULES = {
    "cosine": ({"step_size": Cosine(2e-2, 3, 0.5, samples=2, apart=3)}, None, [21, 24, 45, 48, 67, 70]),
    "switched": (
        {"step_size": Fixed(step_size=2e-2), "noise": Switched([50], noise_temperature=[0, 1], samples=4)},
        None,
        [55, 60, 65, 70],
    ),
    "none": ({"step_size": Fixed(step_size=2e-2)}, 9, [27, 36, 45, 54, 63]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("sure", [0.9, 0.6])
def test_ensembles_are_as_sure_as_their_members_make_them(data, outside, tmp_path, name, sure):
    schedules, collect, collected = SCHEDULES[name]
    train, test = data
    every = 7
    monitor = Uncertainty(test, outside, every, collect=collect, after=18, sure=sure)
    method = method_of(train, monitor, Unadjusted(Momentum(0.5), 5, passes=True), schedules=schedules)
    trace = run(replace(method, monitor=monitor.bind(method.plan.collected)), tmp_path)
    thetas, metrics = whole(trace, "posterior", "theta"), trace["monitor"]
    monitored_steps = list(range(every, WARMUP + STEPS + 1, every))
    if collect is None:
        assert method.plan.collected.tolist() == collected
    for run_index, step in enumerate(monitored_steps):
        taken = [t for t in collected if t <= step]
        for c, chain in enumerate(thetas):
            if not taken:
                assert np.isnan(metrics["entropy_outside"][c, run_index])
                assert np.isnan(metrics["outside_below_0.5"][c, run_index])
                continue
            for key, number in sureness(chain[[t - 1 for t in taken]], test, outside, sure).items():
                assert float(metrics[key][c, run_index]) == pytest.approx(number, rel=1e-4, abs=1e-6), key
    assert {key for key in metrics if str(key).startswith("outside_below")} == {
        f"outside_below_{k / 10:.1f}"
        for k in range(1, 11)  # log 3 is 1.0986
    }


def test_what_has_no_ensemble_or_no_classes_is_refused(data, outside):
    target = Target(Perceptron(LAYERS), data[0])
    assert "set collect=" in Uncertainty(data[1], outside, 1).refuses(target)
    assert Uncertainty(data[1], outside, 1, collect=2).refuses(target) is None
    assert Uncertainty(data[1], outside, 1).bind(np.array([3])).refuses(target) is None
    plain = Target(GaussianMean(), Dataset.of(np.zeros(5)))
    assert "GaussianMean does not" in Uncertainty(data[1], outside, 1, collect=1).refuses(plain)
    for sure in (0.0, 1.0, float("nan")):
        with pytest.raises(Refusal, match="between 0 and 1"):
            Uncertainty(data[1], outside, 1, sure=sure)


KEPT = ("sgd", "sgld", "csghmc")
SMALL = [
    "experiment=out_of_distribution",
    "scale=smoke",
    "m=6",
    "data.n=60",
    "scales.smoke.hidden=4",
    "scales.smoke.part=4",
    "scales.smoke.apart=1",
    "scales.smoke.test=50",
    "monitor.outside.name=mnist",
    "runtime.threads=1",
    "runtime.report=false",
    "runtime.block_seconds=0",
]


@pytest.mark.slow
@pytest.mark.usefixtures("few_images")
def test_an_interrupted_run_resumes_with_the_same_results(tmp_path):
    """With a Ctrl-C every few chunks, metrics and collected networks have the same bits."""
    config = compose_config(SMALL)
    config["methods"] = {name: config["methods"][name] for name in KEPT}
    found = []
    for chunks in (None, 7):
        config = config | {"runtime": config["runtime"] | {"outputs": str(tmp_path / str(chunks))}}
        stopped, wanted = 0, len(found) + 1
        while len(found) < wanted:
            try:
                found.append(run_experiment(config, StopAfter(chunks) if chunks else Silent()))
            except Interrupted:
                stopped += 1
        assert (stopped >= 3) == (chunks is not None)
    for name in KEPT:
        one, two = (contents(folder, name) for folder in found)
        assert_same_bits(one, two)
        metrics = one["/monitor/entropy_outside"]
        first = {"sgd": 3, "sgld": 3, "csghmc": 0}[name]  # looks before the first network
        assert np.isnan(metrics[:, :first]).all()
        assert np.isfinite(metrics[:, first:]).all()
    steps = contents(found[0], "csghmc")["/posterior/step"]
    assert steps.tolist() == [18, 19, 20, 38, 39, 40, 58, 59, 60, 78, 79, 80]


@pytest.mark.parametrize(("name", "alpha", "temperature"), [("csgld", 1.0, 1 / 60), ("csghmc_t1", 0.9, 1.0)])
def test_a_step_is_that_of_the_authors_code(data, name, alpha, temperature):
    """Gradients of the mean loss with weight decay, moves by lr, noise of variance 2 lr alpha T / n."""
    words = [*SMALL, "decay=0.01"]
    if name.endswith("_t1"):
        words[0] += "_t1"
    config = compose_config(words, compare=False)
    node, n, lr = config["methods"][name], config["data"]["n"], 0.5
    assert config["model"]["prior_variance"] == pytest.approx(1 / (0.01 * n))
    rows = {"x": data[0].fields["x"].repeat(2, 1)[:n], "y": data[0].fields["y"].repeat(2)[:n]}
    target = Target(Perceptron(LAYERS, config["model"]["prior_variance"]), Dataset.of(rows))
    kernel = build(node["kernel"], "kernel")
    kernel.m, kernel.passes = None, False  # all data: no other noise
    controls = Plan(build(node["schedules"], "schedules"), C, 0, config["steps"]).controls({}, 20, 1)
    assert float(controls.noise_temperature[0, 0]) == pytest.approx(temperature)
    first = Plan(build(node["schedules"], "schedules"), C, 0, config["steps"]).controls({}, 1, 1)
    assert first.step_size[0].tolist() == pytest.approx([lr / n] * C)
    streams = Streams(derive_key(1, "code"), C)
    theta = target.model.init(C, Draws(streams, 0)).double()
    buf = torch.zeros_like(theta) if name == "csgld" else torch.randn(theta.shape, dtype=torch.float64)
    state = kernel.start(target, theta, Draws(streams, 0))
    if name != "csgld":
        state.aux["momentum"] = buf
    full = torch.full((C,), lr / n, dtype=torch.float64)
    moved = {}
    for noise in (0.0, temperature):
        step = Controls(full, torch.ones_like(full), torch.full_like(full, noise))
        moved[noise] = kernel.step(target, state, step, Draws(streams, 1))[0].evaluation.theta
    point = theta.clone().requires_grad_()
    loss = -target.model.log_lik(point, target.data.part(0, n)).mean(-1).sum() + 0.005 * point.square().sum()
    (gbar,) = torch.autograd.grad(loss, point)
    assert torch.allclose(moved[0.0], theta + (1 - alpha) * buf - lr * gbar, atol=1e-9)
    noise = (moved[temperature] - moved[0.0]) / math.sqrt(2 * lr * alpha * temperature / n)
    assert float(noise.square().mean()) == pytest.approx(1, abs=0.45)  # of 129 numbers: 3.6 standard errors


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("variance", [None, 0.3])
def test_a_prior_whose_gradient_is_known_needs_no_other(data, variance, temper):
    """A subclass with a prior of its own is differentiated, whatever its parent knows."""

    class Other(Perceptron):
        def log_prior(self, theta):
            return super().log_prior(theta)

    temperature = torch.tensor([1.0, 2.0, 7.0], dtype=torch.float64)
    theta = Perceptron(LAYERS).init(C, Draws(Streams(derive_key(2, "prior"), C), 0)).double()
    one, two = (Target(model(LAYERS, variance), data[0], temper=temper) for model in (Perceptron, Other))
    assert native_form(two.model, "log_prior_grad", "log_prior") is None
    assert torch.allclose(one.gradients.full(theta, temperature), two.gradients.full(theta, temperature))
    assert (variance is None) == torch.equal(
        one.gradients.full(theta, temperature),
        Target(Perceptron(LAYERS), data[0]).gradients.full(theta, temperature),
    )


# --- The report ---------------------------------------------------------------------------------------------


def test_samples_are_chosen_evenly_with_the_last():
    assert weights.chosen(12, 12).tolist() == list(range(12))
    assert weights.chosen(12, 4).tolist() == [2, 5, 8, 11]  # the last of each cycle of three
    assert weights.chosen(20, 4).tolist() == [4, 9, 14, 19]
    assert weights.chosen(3, 12).tolist() == [0, 1, 2]
    twelve = weights.chosen(20, 12)
    assert len(set(twelve.tolist())) == 12
    assert twelve[-1] == 19


def test_clusters_and_splits(rng):
    groups = np.repeat(np.arange(4), 3)
    points = 10 * rng.normal(size=(4, 30))[groups] + 0.1 * rng.normal(size=(12, 30))
    between, within, ratio = weights.cluster_ratio(pdist(points), groups)
    square = squareform(pdist(points))
    pairs = [(i, j) for i in range(12) for j in range(i)]
    assert between == pytest.approx(min(square[i, j] for i, j in pairs if i // 3 != j // 3))
    assert within == pytest.approx(max(square[i, j] for i, j in pairs if i // 3 == j // 3))
    assert ratio == pytest.approx(between / within)
    two = np.r_[rng.normal(size=(7, 4)), 30 + rng.normal(size=(5, 4))]
    order = rng.permutation(12)
    best = weights.cluster_ratio(pdist(two), np.arange(12) >= 7)[2]
    assert weights.split_ratio(pdist(two[order])) == pytest.approx(best)
    assert best > 1.5 > 1 > weights.split_ratio(pdist(rng.normal(size=(12, 1)).cumsum(0)))


def test_scaling_keeps_distances_that_fit_in_the_plane(rng):
    points = rng.normal(size=(9, 2)) @ np.linalg.qr(rng.normal(size=(7, 7)))[0][:2]
    placed, share = weights.scaled(pdist(points))
    assert pdist(placed) == pytest.approx(pdist(points))
    assert share == pytest.approx(1)
    wide = rng.normal(size=(9, 7))
    placed, share = weights.scaled(pdist(wide))
    spread = np.linalg.svd(wide - wide.mean(0), compute_uv=False) ** 2
    assert share == pytest.approx(spread[:2].sum() / spread.sum())
    assert np.square(placed - placed.mean(0)).sum() == pytest.approx(spread[:2].sum())


@pytest.fixture
def networks_run(data):
    target = Target(Perceptron(LAYERS), data[0])
    return SimpleNamespace(target=target)


def test_lines_and_losses_are_those_of_the_networks(data, networks_run, rng):
    train, test = data
    ends = rng.normal(size=(3, networks_run.target.dim)).astype(np.float32)
    single = Dataset({"x": test.fields["x"].float(), "y": test.fields["y"]})
    found = weights.lines(networks_run, ends, single)
    x, y = (test.fields[name].numpy() for name in "xy")
    for pair in range(2):
        for k in range(21):
            theta = (1 - k / 20) * ends[pair].astype(float) + k / 20 * ends[pair + 1]
            wrong = 100 * np.mean(log_probabilities(theta, x).argmax(1) != y)
            assert abs(found[pair, k] - wrong) < 1.5 * 100 / TEST  # single precision may turn one over
    assert weights.lines(networks_run, ends[:1], single).shape == (0, 21)  # one seed has no other
    assert weights.rise(np.array([[1.0, 7, 3], [4, 2, 1]])).tolist() == [4, 0]
    draws = rng.normal(size=(2, 5, networks_run.target.dim)).astype(np.float32)
    losses = weights._losses(networks_run, draws)
    for c, s in np.ndindex(2, 5):
        log_p = log_probabilities(draws[c, s].astype(float), train.fields["x"].numpy())
        wanted = -log_p[np.arange(len(log_p)), train.fields["y"].numpy()].mean()
        assert losses[c, s] == pytest.approx(wanted, rel=1e-5)


def test_ensembles_by_cycles_against_a_plain_loop(data, networks_run, rng):
    """Class probabilities of the first M cycles are averaged, three networks a cycle."""
    test = data[1]
    draws = 2 * rng.normal(size=(12, networks_run.target.dim)).astype(np.float32)
    single = Dataset({"x": test.fields["x"].float(), "y": test.fields["y"]})
    alone, by_cycles = ensembles._of_seed(networks_run, draws, single, 4)
    x, y = (test.fields[name].numpy() for name in "xy")
    p = np.stack([np.exp(log_probabilities(theta.astype(float), x)) for theta in draws])
    wrong = [100 * np.mean(each.argmax(1) != y) for each in p]
    assert np.abs(alone - wrong).max() < 1.5 * 100 / TEST  # single precision may turn one over
    for m in range(1, 5):
        error = 100 * np.mean(p[: 3 * m].mean(axis=0).argmax(1) != y)
        assert abs(by_cycles[m - 1] - error) < 1.5 * 100 / TEST


def test_what_figure_3c_is_judged_by():
    def of(by_cycles, single):
        return ensembles.Errors(np.array(single, float), np.array(by_cycles, float))

    there = {
        "csgld": of([[4, 3, 3, 2], [5, 4, 4.2, 3], [6, 5, 5.1, 4]], [[5, 7], [6, 8], [7, 9]]),
        "snapshot_sgd": of([[4, 3, 3, 3], [5, 4, 4.2, 4], [7, 5, 5, 5]], [[5, 5]] * 3),
        "sgld": of([[3], [3], [4]], [[3, 5], [4, 6], [5, 7]]),
        "csghmc": of([[4, 5, 6, 3]] * 3, [[4, 4]] * 3),
    }
    run = SimpleNamespace(cached=lambda function: there)
    found = ensembles.metrics(run)
    assert found["csgld.error_2"].value == 4
    assert found["csgld.falls"] == 2  # from M = 2 to 3 the error rises by 0.1 +- 0.06
    assert found["csghmc.falls"] == 1
    assert found["csgld.gain"].value == 2
    assert found["csgld.lower_at.snapshot_sgd"] == 2  # M = 1 and 4
    assert found["csgld.single"].value == 7
    assert found["csgld.single_over.sgld"].value == 2
    assert found["csgld.ensemble_under.sgld"].value == pytest.approx(1 / 3)
    assert "csghmc.single_over.sghmc" not in found


def test_the_order_of_figure_4(rng):
    def dataset(entropy):
        """Three seeds, two observations, of which the last counts."""
        values = {
            name: rng.random((3, 2))
            for name in (*networks.METRICS, "error_of_ensemble", "error", "nll_of_ensemble")
        }
        values["entropy_outside"][:, 1] = entropy
        for k in range(1, 24):
            values[f"outside_below_{k / 10:.1f}"] = np.full((3, 2), k / 24) ** (1 + np.mean(entropy))
        return xr.Dataset({name: (("chain", "monitor_run"), value) for name, value in values.items()})

    levels = {
        "sgd": [0.3, 0.3, 0.3],
        "sgd_momentum": [0.1, 0.1, 0.1],
        "snapshot_sgd": [0.4, 0.4, 0.4],
        "snapshot_sgd_momentum": [0.1, 0.2, 0.3],
        "sgld": [0.2, 0.5, 0.5],
        "sghmc": [0.2, 0.2, 0.2],
        "csgld": [0.6, 0.1, 0.9],
        "csghmc": [0.7, 0.7, 0.7],
        "sgld_early": [0.1, 0.1, 0.1],
    }
    there = {name: dataset(level) for name, level in levels.items()}
    run = SimpleNamespace(methods=there, monitor=there.__getitem__, cached=lambda function: {}, label=str)
    found = networks.metrics(run)
    assert found["csgld.seeds_over.sgd"] == pytest.approx(2 / 3)
    assert found["csghmc.seeds_over.sgd_momentum"] == 1
    assert found["csgld.entropy_over.snapshot_sgd"].value == pytest.approx(1.6 / 3 - 0.4)
    assert found["csgld.entropy_over.sgld"].se == pytest.approx(np.std([0.4, -0.4, 0.4], ddof=1) / np.sqrt(3))
    assert found["csgld.lower_than.sgd"] == 3
    assert found["sghmc.lower_than.snapshot_sgd_momentum"] == 0  # the same mean
    assert found["cyclical.entropy_lead"] == pytest.approx(1.6 / 3 - 0.4)
    errors = [there[name]["error_of_ensemble"].to_numpy()[:, 1] for name in ("sgld_early", "sgld")]
    assert found["sgld_early.error_over.sgld"].value == pytest.approx((errors[0] - errors[1]).mean())
    assert not any("_t1" in name for name in found)
    levels, shares = networks.curve(run, "sgd")
    assert levels.tolist() == pytest.approx([0, *(k / 10 for k in range(1, 24)), np.log(10)])
    assert shares.shape == (3, 25)
    assert (shares[:, [0, -1]] == [0, 1]).all()
    assert shares[:, 5].tolist() == pytest.approx([(5 / 24) ** 1.3] * 3)


def test_what_a_compiler_takes_is_no_part_of_an_estimate(monkeypatch, data):
    """The first step of all waits five seconds, each after it takes a tenth."""

    class Executor:
        name = "torch"
        now, calls = 0.0, 0

        def prepare(self, state):
            pass

        def advance(self, state, first, controls):
            self.now += 5.0 if self.calls == 0 else 0.1 * len(controls.step_size)
            self.calls += 1
            spent = np.ones((1, len(controls.step_size)))
            return state, {"n_lik": spent, "n_grad": spent}

    executor = Executor()
    monkeypatch.setattr("mhrun.engine.estimate.choose_executor", lambda *_: executor)
    monkeypatch.setattr("mhrun.engine.estimate.time", SimpleNamespace(perf_counter=lambda: executor.now))
    method = method_of(
        data[0], None, Unadjusted(Momentum(), 5), schedules={"step_size": Fixed(step_size=1.0)}
    )
    assert _pace(method, Settings(), Choices(), trial_seconds=1.0, stage=0).seconds == pytest.approx(0.1)
