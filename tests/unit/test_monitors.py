"""Monitors: their metrics against NumPy on every draw, and through interruptions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kit import StopAfter, assert_same_bits, contents
from monitored import (
    LAYERS,
    STEPS,
    WARMUP,
    C,
    log_probabilities,
    method_of,
    run,
    train_and_test,
    whole,
)
from scipy import stats

import mhrun
import mhrun.data.images as images
from mhrun.cli.configuration.compose import compose_config
from mhrun.data import Dataset
from mhrun.data.square_images import SquareImages
from mhrun.diagnostics.calibration import auroc
from mhrun.dynamics.momentum import Momentum
from mhrun.engine.experiment import run_experiment
from mhrun.engine.monitoring import Monitoring
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, Refusal
from mhrun.kernels import Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.calibration import Calibration
from mhrun.monitors.gradient_noise import GradientNoise
from mhrun.monitors.predictive import Predictive
from mhrun.random import Draws, Streams, derive_key
from mhrun.report.run import Run
from mhrun.schedules.fixed import Fixed
from mhrun.store.netcdf import open_trace
from mhrun.target import Target


@pytest.fixture
def data(rng):
    return train_and_test(rng)


def missed(log_p, y):
    return 100 * np.mean(log_p.argmax(1) != y), -log_p[np.arange(len(y)), y].mean()


def expected(thetas, test, every, average, collect, after):
    """The columns from all draws (C, steps, D): a dictionary of (C, observations)."""
    x, y = (test.fields[name].numpy() for name in "xy")
    columns = {}
    steps = np.arange(1, thetas.shape[1] + 1)
    for c in range(len(thetas)):
        for step in steps[steps % every == 0]:
            row = {"": log_probabilities(thetas[c, step - 1], x)}
            for name, period in (("_of_mean", average), ("_of_ensemble", collect)):
                if period is None:
                    continue
                taken = [t - 1 for t in steps if after < t <= step and t % period == 0]
                if not taken:
                    row[name] = None
                elif name == "_of_mean":
                    row[name] = log_probabilities(thetas[c, taken].mean(0), x)
                else:
                    row[name] = np.log(
                        np.mean([np.exp(log_probabilities(thetas[c, t], x)) for t in taken], 0)
                    )
            for name, log_p in row.items():
                found = (np.nan, np.nan) if log_p is None else missed(log_p, y)
                for kind, value in zip(("error", "nll"), found, strict=True):
                    columns.setdefault(f"{kind}{name}", []).append(value)
    return {name: np.array(values).reshape(len(thetas), -1) for name, values in columns.items()}


SETTINGS = [
    (5, None, None, 0),
    (7, 1, 7, 0),
    (5, 3, 10, 0),
    (10, 4, 3, 17),
    (9, 6, 9, 18),  # `after` on a step that would be taken: it is not
    (70, 1, 70, 69),
    (3, 2, 64, 66),  # averaged from 68 on, and collected never
]


@pytest.mark.long
@pytest.mark.parametrize(("every", "average", "collect", "after"), SETTINGS)
@pytest.mark.parametrize("block_seconds", [0.0, 100.0])
def test_every_metric_is_that_of_the_draws(data, tmp_path, every, average, collect, after, block_seconds):
    train, test = data
    monitor = Predictive(test, every, average, collect, after)
    trace = run(method_of(train, monitor), tmp_path, block_seconds)
    thetas = whole(trace, "posterior", "theta")
    wanted = expected(thetas, test, every, average, collect, after)
    metrics = trace["monitor"]
    steps = np.arange(every, WARMUP + STEPS + 1, every)
    assert metrics["step"].to_numpy().tolist() == steps.tolist()
    for name, values in wanted.items():
        assert metrics[name].dims == ("chain", "monitor_run")
        assert metrics[name].to_numpy() == pytest.approx(values, rel=2e-5, abs=1e-9, nan_ok=True), name
    accepted = whole(trace, "sample_stats", "accepted")
    rates = np.stack([accepted[:, s - every : s].mean(1) for s in steps], 1)
    assert metrics["accepted_rate"].to_numpy() == pytest.approx(rates)
    assert (metrics["diverging_rate"].to_numpy() == 0).all()
    for name in ("n_lik", "n_grad", "n_lik_overhead"):
        assert np.array_equal(metrics[name], whole(trace, "sample_stats", name)[:, steps - 1])
    sizes = np.array([[2e-3], [2e-2], [5e-2]]) * 0.9 ** ((steps - 1) // 8) * 2.0 ** ((steps - 1) // 24)
    assert metrics["step_size"].to_numpy() == pytest.approx(sizes)
    assert (np.diff(metrics["wall_s"].to_numpy()) >= 0).all()
    assert set(metrics.data_vars) == {
        *wanted, "step", "wall_s", "n_lik", "n_grad", "n_lik_overhead", "accepted_rate", "diverging_rate", "step_size"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_monitoring_changes_no_draw(data, tmp_path):
    train, test = data
    for executor in ("torch", "auto"):
        found = []
        for monitor in (None, Predictive(test, 4, 1, 3)):
            folder = tmp_path / f"{executor}{monitor is None}"
            settings = Settings(executor=executor, block_seconds=0.0)
            run_method(method_of(train, monitor), folder, settings, Silent(), lambda: False, {})
            with open_trace(folder) as trace:
                found.append(whole(trace, "posterior", "theta"))
                assert ("monitor" in trace.children) == (monitor is not None)
        assert np.array_equal(*found)


def test_a_chain_that_stopped_is_reported(data, tmp_path):
    train, test = data
    schedules = {"step_size": Fixed(step_size=[1e-3, 1e200, 1e-3])}
    method = method_of(train, Predictive(test, 10), Unadjusted(Momentum(), 5), schedules=schedules)
    metrics = run(method, tmp_path)["monitor"]
    rates = metrics["diverging_rate"].to_numpy()
    assert (rates[[0, 2]] == 0).all()
    assert 0 < rates[1, 0] <= 1
    assert (rates[1, 1:] == 1).all()
    assert metrics["accepted_rate"].to_numpy() == pytest.approx(1 - rates)


@pytest.mark.slow
def test_a_chain_that_stopped_enters_no_ensemble(data, tmp_path):
    """Its parameters stay where they are: the ensemble is that of the draws before."""
    train, test = data
    schedules = {"step_size": Fixed(step_size=[1e-3, 1e200, 1e-3])}
    method = method_of(train, Predictive(test, 1, 1, 1), Unadjusted(Momentum(), 5), schedules=schedules)
    metrics = run(method, tmp_path)["monitor"]
    assert np.isnan(metrics["nll_of_ensemble"][1]).all()  # it stopped in its first step
    assert np.isfinite(metrics["nll_of_ensemble"][[0, 2]]).all()


@pytest.mark.slow
def test_burn_in_enters_no_ensemble_and_the_last_step_has_a_row(data, tmp_path):
    train, test = data
    total = WARMUP + STEPS
    for monitor, first in ((Predictive(test, 9, 1, 1), WARMUP + 1), (Predictive(test, 9, 1, 1, 20), 21)):
        method = method_of(train, monitor.bind(None, WARMUP, total))
        trace = run(method, tmp_path / str(first))
        thetas, metrics = whole(trace, "posterior", "theta"), trace["monitor"]
        assert metrics["step"].to_numpy().tolist() == [*range(9, total, 9), total]
        wanted = expected(thetas[:, first - 1 :], test, 1, 1, 1, 0)
        for name in ("nll_of_ensemble", "nll_of_mean"):
            assert metrics[name].to_numpy()[:, -1] == pytest.approx(wanted[name][:, -1], rel=1e-4)


def test_monitors_run_when_due_and_no_sooner(data):
    for every, average, collect, after in [*SETTINGS, (4, None, 6, 5), (6, 4, None, 5)]:
        monitor, step, total, seen = Predictive(data[1], every, average, collect, after), 0, 300, set()
        while step < total:
            wait = monitor.steps_until_due(step + 1)
            assert wait >= 1
            for part in range(1, wait):  # a chunk that ends sooner changes nothing
                assert monitor.steps_until_due(step + 1 + part) == wait - part
            step += wait
            seen.add(step)
        needed = {
            s
            for s in range(1, total + 1)
            if s % every == 0 or (s > after and any(p and s % p == 0 for p in (average, collect)))
        }
        assert needed == {s for s in seen if s <= total}
        assert all(monitor.emits(s) == (s % every == 0) for s in range(1, 100))


def test_large_test_data_are_scored_in_parts(data, monkeypatch):
    train, test = data
    target = Target(Perceptron(LAYERS), train)
    theta = target.model.init(C, Draws(Streams(3, C), 0))
    monitor = Predictive(test, 1, 1, 1)
    memory = monitor.start(target, C)
    _, wanted = monitor.observe(target, memory, 1, theta)
    monkeypatch.setattr("mhrun.monitors.periodic._HELD", 60)
    again = monitor.start(target, C)
    _, found = monitor.observe(target, again, 1, theta)
    assert wanted.keys() == found.keys()
    for name in wanted:
        assert torch.allclose(wanted[name], found[name], rtol=1e-6), name
    # With one snapshot the mean and the ensemble are the point itself.
    for kind in ("error", "nll"):
        for of in ("mean", "ensemble"):
            assert torch.allclose(wanted[f"{kind}_of_{of}"].float(), wanted[kind], rtol=1e-5)


def test_a_draw_that_is_none_spoils_no_ensemble(data):
    """Parameters that predict no number where the chain is at no draw; and what was remembered is not written to."""
    target, monitor = Target(Perceptron(LAYERS), data[0]), Predictive(data[1], 1, 1, 1)
    theta = target.model.init(2, Draws(Streams(3, 2), 0))
    memory, first = monitor.observe(target, monitor.start(target, 2), 1, theta)
    kept = {name: value.clone() for name, value in memory.items()}
    wild = theta.clone()
    wild[1] = torch.nan
    later, metrics = monitor.observe(target, memory, 2, wild, torch.tensor([True, False]))
    assert all(torch.equal(memory[name], kept[name]) for name in kept)
    assert metrics["nll_of_ensemble"][1] == first["nll_of_ensemble"][1]
    assert later["collected"].tolist() == [2, 1]
    assert later["averaged"].tolist() == [2, 1]
    assert metrics["nll_of_mean"].isfinite().all()


def test_data_on_a_device_are_those_that_were_given(data):
    """Also where earlier ones are gone, so that a new data set may be at their address."""
    monitor = Predictive(data[1], 1)
    for n in range(1, 20):
        assert monitor.on(torch.device("meta"), Dataset.of(np.zeros(n))).n == n


def test_ties_count_as_the_lower_class(data):
    target = Target(Perceptron(LAYERS), data[0])
    monitor = Predictive(data[1], 1)
    _, metrics = monitor.observe(target, {}, 1, torch.zeros(C, target.dim))
    wrong = 100 * float((data[1].fields["y"] != 0).double().mean())
    assert metrics["error"].tolist() == pytest.approx([wrong] * C)
    assert metrics["nll"].tolist() == pytest.approx([np.log(3)] * C)


def test_an_ensemble_knows_the_classes_of_any_module(data):
    """The last layer may be named first."""

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(5, 3)
            self.body = torch.nn.Linear(4, 5)

        def forward(self, x):
            return self.head(torch.relu(self.body(x)))

    train, test = data
    target, monitor = Target(ModuleModel(Odd()), train), Predictive(test, 1, None, 1)
    theta = target.model.init(C, Draws(Streams(3, C), 0))
    _, metrics = monitor.observe(target, monitor.start(target, C), 1, theta)
    assert torch.allclose(metrics["nll_of_ensemble"].float(), metrics["nll"], rtol=1e-5)


def test_what_is_remembered_is_packed_whole(data):
    target = Target(Perceptron(LAYERS), data[0])
    one, two = (Monitoring(Predictive(data[1], 5, 2, 3), target, C) for _ in range(2))
    one._memory = {name: torch.rand_like(value) for name, value in one._memory.items()}
    one._tally = {name: torch.rand_like(value) for name, value in one._tally.items()}
    one._since = 4
    packed = {name: np.array(value) for name, value in one.pack().items()}
    two.unpack(packed | {"evaluation/theta": np.zeros(2)})
    again = two.pack()
    assert packed.keys() == again.keys()
    assert {"monitor/mean", "monitor/probability", "monitor/since", "monitor/tally/accepted"} <= packed.keys()
    assert all(np.array_equal(packed[name], again[name]) for name in packed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every = 0"),
        ({"every": 2.5}, "every = 2.5"),
        ({"every": 1, "average": 0}, "average = 0"),
        ({"every": 1, "collect": -1}, "collect = -1"),
        ({"every": 1, "after": -1}, "after = -1"),
    ],
)
def test_meaningless_counts_are_refused(data, settings, message):
    with pytest.raises(Refusal, match=message):
        Predictive(data[1], **settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: {"x": x}, "have no field 'y'; they have x"),
        (lambda x, y: {"x": x[:, :-1], "y": y}, "has the shape"),
        (lambda x, y: {"x": x, "y": y + 1}, "must be classes, whole numbers from 0 to"),
        (lambda x, y: {"x": x, "y": y - 0.5}, "must be classes"),
        (lambda x, y: {"x": x, "y": y[:, None]}, "must be classes"),
    ],
)
def test_test_data_that_are_none_of_the_models_are_refused(data, change, message):
    test = data[1].fields
    with pytest.raises(Refusal, match=message):
        Predictive(Dataset(change(test["x"], test["y"])), 1).start(
            method_of(data[0], Predictive(data[1], 1)).target, 2
        )


def test_a_model_that_predicts_nothing_is_refused(data):
    plain = Target(GaussianMean(), Dataset.of(np.zeros(5)))
    assert "GaussianMean does not" in Predictive(data[1], 1).refuses(plain)
    method = replace(method_of(data[0], Predictive(data[1], 1)), target=plain,
                     kernel=Unadjusted(Momentum(), 2))  # fmt: skip
    with pytest.raises(Refusal, match="monitor: it needs a model that predicts classes"):
        method.check()


# ---------------------------------------------------------------- a whole experiment, stopped and resumed

KEPT = ("sgld", "cmint")
DROPPED = tuple(
    f"~methods.{name}" for name in ("sgd", "sgd_momentum", "sghmc", "mint", "mint_noq", "cmint_noq")
)


@pytest.mark.slow
@pytest.mark.usefixtures("few_images")
def test_an_interrupted_network_resumes_with_the_same_monitor(tmp_path):
    """With a Ctrl-C every few chunks each metric has the bits of an uninterrupted run."""
    small = ["m=6", "data.n=60", "monitor.data.n=50", "scales.smoke.hidden=4", "thin_stats=1", *DROPPED]
    quiet = ["runtime.threads=1", "runtime.report=false", "runtime.block_seconds=0"]
    config = compose_config(["experiment=mint_network", "scale=smoke", *small, *quiet])
    found = []
    for chunks in (None, 13):
        config = config | {"runtime": config["runtime"] | {"outputs": str(tmp_path / str(chunks))}}
        stopped, wanted = 0, len(found) + 1
        while len(found) < wanted:
            try:
                found.append(run_experiment(config, StopAfter(chunks) if chunks else Silent()))
            except Interrupted:
                stopped += 1
        assert (stopped >= 4) == (chunks is not None)
    for name in KEPT:
        one, two = (contents(folder, name) for folder in found)
        assert_same_bits(one, two)
        metrics = {key for key in one if key.startswith("/monitor/")}
        assert {"/monitor/error", "/monitor/accepted_rate", "/monitor/n_grad"} <= metrics
        assert ("/monitor/nll_of_mean" in metrics) == (name == "cmint")
        assert "/monitor/nll_of_ensemble" in metrics
    sgld = contents(found[0], "sgld")["/monitor/nll_of_ensemble"]
    assert np.isnan(sgld[:, :2]).all()  # before the end of its burn-in of two epochs
    assert np.isfinite(sgld[:, 2:]).all()
    seen = Run(found[0])
    assert seen.monitor("cmint")["error"].shape == (2, 6)
    assert seen.draw_steps("cmint").tolist() == []


@pytest.mark.usefixtures("few_images")
def test_images_are_cut_and_shuffled_as_they_say():
    whole = images.Images("mnist", "train").load()
    assert whole.n == 123
    assert whole.fields["x"].dtype == torch.uint8
    assert whole.fields["x"].shape == (123, 784)
    assert whole.fields["y"].dtype == torch.int64
    part = images.Images("mnist", "train", n=20, skip=10).load()
    assert torch.equal(part.fields["x"], whole.fields["x"][10:30])
    mixed = [images.Images("mnist", "train", n=n, skip=s, shuffle=4).load() for n, s in ((70, 0), (53, 70))]
    for name in ("x", "y"):
        together = torch.cat([m.fields[name] for m in mixed])
        assert not torch.equal(together, whole.fields[name])
    rows = sorted(tuple(row.tolist()) for m in mixed for row in m.fields["x"])
    assert rows == sorted(tuple(row.tolist()) for row in whole.fields["x"])
    place = {tuple(row.tolist()): int(y) for row, y in zip(*whole.fields.values(), strict=True)}
    assert all(place[tuple(r.tolist())] == int(y) for r, y in zip(*mixed[0].fields.values(), strict=True))
    assert images.Images("mnist", "test", skip=3).load().n == 50


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("side", [28, 14, 7])
def test_square_images_are_means_over_squares_of_pixels(side):
    whole = images.Images("mnist", "train", n=5, shuffle=1).load()
    found = SquareImages("mnist", "train", n=5, shuffle=1, side=side).load()
    assert torch.equal(found.fields["y"], whole.fields["y"])
    assert found.fields["x"].shape == (5, 1, side, side)
    by = 28 // side
    for image, flat in zip(found.fields["x"], whole.fields["x"], strict=True):
        for row in range(side):
            for column in range(side):
                rows = [28 * (by * row + i) + by * column for i in range(by)]
                square = torch.cat([flat[start : start + by] for start in rows]).double()
                assert int(image[0, row, column]) == int(square.mean() + 0.5)
    assert f"{side} x {side}" in found.description or side == 28
    with pytest.raises(Refusal, match="28, 14 or 7"):
        SquareImages(side=16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "mnst"}, "Did you mean 'mnist'"),
        ({"split": "validation"}, "choose train or test"),
        ({"n": 60_001}, "more than the 60,000"),
        ({"split": "test", "n": 5_000, "skip": 5_001}, "more than the 10,000"),
        ({"skip": 60_000}, "n = 0"),
        ({"skip": -1}, "skip = -1"),
        ({"n": 0}, "n = 0"),
    ],
)
def test_images_that_are_not_there_are_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        images.Images(**settings)


def test_the_noise_of_gradients_is_tested_coordinate_by_coordinate(rng):
    """One datum's gradient is far from normal, 400 are not; a constant coordinate is left out; no cost is counted."""
    x = torch.from_numpy(rng.exponential(1, (4000, 6)))
    x[:, :2] = 0.0  # never lit: of the weights 6 x 3 and biases 3, those of two inputs stand still
    data = Dataset.of({"x": x, "y": torch.from_numpy(rng.integers(0, 3, 4000))})
    target = Target(Perceptron([6, 3]), data)
    monitor = GradientNoise(data, 5, sizes=[1, 20, 400], repeats=100, coordinates=21)
    theta = 0.1 * torch.from_numpy(rng.normal(size=(3, 21)))
    memory, nothing = monitor.observe(target, monitor.start(target, 3), 4, theta)
    assert nothing == {}
    _, metrics = monitor.observe(target, memory, 5, theta)
    assert (metrics["still_400"] == 6 / 21).all()
    assert (metrics["normal_1"] < 0.2).all()
    assert (metrics["normal_400"] > 0.6).all()
    assert (metrics["w_400"] > metrics["w_1"]).all()
    # The first chain's, in plain numbers.
    index = [
        Draws(Streams(derive_key(0, "gradient noise 5 20"), 3), r).index(4000, 20, replacement=False)[:1]
        for r in range(100)
    ]
    one = torch.ones(1, dtype=torch.float64)
    rows = np.stack([target.gradients.minibatch(theta[:1], i, one)[0].numpy() for i in index])
    moving = [k for k in range(21) if len(set(rows[:, k])) > 50]
    assert metrics["normal_20"][0] == np.mean([stats.shapiro(rows[:, k]).pvalue >= 0.05 for k in moving])
    assert metrics["variance_20"][0] == pytest.approx(rows.var(axis=0, ddof=1).mean(), rel=1e-6)
    few = GradientNoise(data, 5, sizes=[20], repeats=100, coordinates=2)  # the variance is of all coordinates
    _, of_few = few.observe(target, few.start(target, 3), 5, theta)
    assert torch.equal(of_few["variance_20"], metrics["variance_20"])
    assert "more than the n" in GradientNoise(data, 5, sizes=[4001]).refuses(target)
    with pytest.raises(Refusal, match="GradientNoise needs"):
        GradientNoise(data, 5, repeats=2)


def test_the_chance_to_rank_right_counts_ties_half(rng):
    high, low = rng.integers(0, 6, (3, 14)) / 2, rng.integers(0, 5, (3, 9)) / 2
    found = auroc(torch.from_numpy(high), torch.from_numpy(low))
    wanted = [np.mean([(b > a) + 0.5 * (b == a) for a in low[c] for b in high[c]]) for c in range(3)]
    assert found.tolist() == pytest.approx(wanted)
    assert auroc(torch.ones(1, 3), torch.zeros(1, 4)).tolist() == [1.0]
    assert auroc(torch.full((1, 3), torch.nan), torch.zeros(1, 4)).isnan().all()


def test_an_ensemble_without_a_snapshot_is_refused(rng):
    monitor = mhrun.Predictive(
        {"x": rng.normal(size=(9, 2)), "y": rng.integers(0, 2, 9)}, every=5, collect=50
    )
    assert monitor.bind(None, 40, 60).collect == 50
    for warmup, total in ((0, 49), (50, 99)):
        with pytest.raises(Refusal, match="collect = 50 takes no snapshot between step"):
            monitor.bind(None, warmup, total)


@pytest.mark.long
def test_groups_have_snapshots_in_any_case(data, tmp_path):
    """Where nothing chooses them they are taken with the metrics after burn-in, whatever the number of steps."""
    train, test = data
    few = Calibration(test, 10, group=C).bind(None, WARMUP, 8)  # none yet: more steps go on from there
    monitor, wanted = few.bind(None, WARMUP, WARMUP + STEPS), range(10, 71, 10)
    trace = run(method_of(train, monitor), tmp_path)
    theta = whole(trace, "posterior", "theta")
    p = np.mean(
        [
            np.exp(log_probabilities(theta[c, t - 1], test.fields["x"].numpy()))
            for c in range(C)
            for t in wanted
        ],
        0,
    )
    error, nll = missed(np.log(p), test.fields["y"].numpy())
    assert trace["monitor"]["error_of_group"].to_numpy()[:, -1] == pytest.approx(error)
    assert trace["monitor"]["nll_of_group"].to_numpy()[:, -1] == pytest.approx(nll, rel=2e-5)
