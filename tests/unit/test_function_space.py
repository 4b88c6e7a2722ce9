"""Networks are judged by their predictions: hidden units can be exchanged without a change of them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import mhrun
from mhrun.cli.configuration.compose import compose_config
from mhrun.diagnostics.chains import worth, worth_of_predictions
from mhrun.dynamics.adam import Adam
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import UserError
from mhrun.models.perceptron import Perceptron
from mhrun.report.comparison.compare import compare
from mhrun.report.comparison.rows import Row
from mhrun.report.efficiency import diagnosed
from mhrun.report.run import Run
from mhrun.target.function_space import DATA, Predictions, is_network, predictions, that_vary

HIDDEN, N = 5, 70


def regression():
    net = torch.nn.Sequential(torch.nn.Linear(2, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    return mhrun.ModuleModel(
        net, lambda outputs, rows: -0.5 * (rows["y"] - outputs[:, 0]) ** 2, prior_variance=1.0
    )


def data(rng):
    x = rng.normal(size=(N, 2))
    return {"x": x, "y": np.sin(x[:, 0])}


def exchanged(theta, order):
    """Draws (..., 21) with the hidden units in another order."""
    first, bias, second, last = np.split(theta, [2 * HIDDEN, 3 * HIDDEN, 4 * HIDDEN], axis=-1)
    first = first.reshape(*theta.shape[:-1], HIDDEN, 2)[..., order, :].reshape(first.shape)
    return np.concatenate([first, bias[..., order], second[..., order], last], -1)


def test_chains_that_differ_by_the_order_of_hidden_units_agree(rng):
    target = mhrun.Target(regression(), mhrun.Dataset.of(data(rng)))
    one = rng.normal(size=(1, 400, 4 * HIDDEN + 1)) * 0.1 + np.arange(4 * HIDDEN + 1)
    two = rng.normal(size=(1, 400, 4 * HIDDEN + 1)) * 0.1 + np.arange(4 * HIDDEN + 1)
    chains = np.concatenate([one, exchanged(two, np.arange(HIDDEN)[::-1])])
    assert worth(chains)["rhat"] > 1.5
    found, names, _ = predictions(target.model, target.data, chains)
    assert found.shape == (2, 400, DATA)
    assert worth(found)["rhat"] < 1.02
    again = predictions(target.model, target.data, exchanged(chains, [2, 0, 1, 4, 3]))
    assert again.values == pytest.approx(found)
    assert names[0] == "output at datum 0"
    assert names[-1] == f"output at datum {N - 1}"


def test_predictions_are_those_of_numpy(rng):
    fields = data(rng)
    target = mhrun.Target(regression(), mhrun.Dataset.of(fields))
    theta = rng.normal(size=(2, 3, 4 * HIDDEN + 1))
    found, names, _ = predictions(target.model, target.data, theta)
    for c, s in np.ndindex(2, 3):
        first, bias, second, last = np.split(theta[c, s], [2 * HIDDEN, 3 * HIDDEN, 4 * HIDDEN])
        outputs = np.tanh(fields["x"] @ first.reshape(HIDDEN, 2).T + bias) @ second + last
        places = [int(name.rpartition(" ")[2]) for name in names]
        assert found[c, s] == pytest.approx(outputs[places])


class Branches(torch.nn.Module):
    """A network whose path depends on its weights, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(torch.tanh(hidden) if self.first.weight.sum() > 0 else hidden)


def test_a_network_that_vmap_cannot_evaluate_is_evaluated_draw_by_draw(rng):
    model = mhrun.ModuleModel(Branches(), lambda outputs, rows: -(outputs[:, 0] ** 2))
    target = mhrun.Target(model, mhrun.Dataset.of(data(rng)))
    theta = rng.normal(size=(2, 10, target.dim))
    found, names, _ = predictions(target.model, target.data, theta)
    places = [int(name.rpartition(" ")[2]) for name in names]
    wanted = model.outputs(torch.from_numpy(theta.reshape(20, -1)), target.data.part(0, N))[:, places, 0]
    assert found.reshape(20, -1) == pytest.approx(wanted.numpy())


def test_of_classes_probabilities_are_judged(rng):
    x, y = rng.normal(size=(20, 4)), rng.integers(0, 3, 20)
    target = mhrun.Target(Perceptron([4, 5, 3]), mhrun.Dataset.of({"x": x, "y": y}))
    theta = rng.normal(size=(1, 2, target.dim))
    found, names, _ = predictions(target.model, target.data, theta)
    whole = target.model.predict(torch.from_numpy(theta[0]), target.data.part(0, 20)).exp().numpy()
    assert found.shape == (1, 2, 60)
    assert found[0] == pytest.approx(whole.reshape(2, -1))
    assert names[4] == "probability[1] at datum 1"


def test_of_a_costly_network_some_draws_are_evaluated_or_none(rng, monkeypatch):
    target = mhrun.Target(regression(), mhrun.Dataset.of(data(rng)))
    theta = rng.normal(size=(2, 1200, 4 * HIDDEN + 1))
    whole = predictions(target.model, target.data, theta).values
    values = target.model.values_per_datum(target.data.part(0, DATA))
    each = DATA * (3 * HIDDEN + 10 * values)  # two inputs and an output
    monkeypatch.setattr("mhrun.target.function_space._WORK", 1200.5 * each)
    assert predictions(target.model, target.data, theta).values == pytest.approx(whole[:, ::2])
    monkeypatch.setattr("mhrun.target.function_space._WORK", 999.5 * each)
    with pytest.raises(UserError, match="at 1,000 draws take too long"):
        predictions(target.model, target.data, theta)
    few = predictions(target.model, target.data, theta[:, :400])
    assert few.values.shape[:2] == (2, 400)  # all of few


class Single(torch.nn.Module):
    """A network in float32, whatever the type of its parameters should be."""

    def __init__(self, fails=False):
        super().__init__()
        self.first, self.last, self.fails = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1), fails

    def forward(self, x):
        assert not (self.fails and len(x) == DATA)
        return self.last(torch.relu(self.first(x.float())))


@pytest.mark.parametrize("fails", [False, True])
def test_draws_are_judged_in_float32_or_by_weights_and_never_lost(rng, fails):
    model = mhrun.ModuleModel(Single(fails), lambda outputs, rows: -0.5 * (rows["y"] - outputs[:, 0]) ** 2)
    fields = data(rng)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            model, fields, mhrun.Unadjusted(mhrun.SGHMC(), m=20), step_size=1e-5, steps=30, warmup=0,
            chains=2, dtype=torch.float32, progress=False,
        )  # fmt: skip
    theta = trace["posterior"]["theta"].to_numpy()
    assert theta.shape == (2, 30, 13)
    lines = [str(one.message) for one in caught]
    assert sum(line.startswith("R-hat and ESS are those of weights") for line in lines) == fails
    if not fails:
        found = predictions(model, mhrun.Dataset.of(fields), theta)
        places = np.linspace(0, N - 1, DATA).astype(int)
        rows = {"x": torch.from_numpy(fields["x"][places])[None]}
        wanted = model.outputs(torch.from_numpy(theta[:, -1]).float(), rows)[..., 0]
        assert found.values[:, -1] == pytest.approx(wanted.numpy(), rel=1e-5)


def test_draws_of_an_optimiser_or_a_few_have_no_warning_of_predictions(rng):
    model = mhrun.ModuleModel(Single(fails=True), lambda outputs, rows: -(outputs[:, 0] ** 2))
    for dynamics, steps in ((Adam(N), 30), (mhrun.SGHMC(), 5)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mhrun.sample(
                model, data(rng), mhrun.Unadjusted(dynamics, m=20), step_size=1e-5, steps=steps, warmup=0,
                chains=2, dtype=torch.float32, progress=False,
            )  # fmt: skip
        assert not any("those of weights" in str(one.message) for one in caught)


def test_what_nobody_sees_is_left_out():
    """A probability that is 1 to within rounding says nothing of the chains, unless all are; an output is constant."""
    flat = np.random.default_rng(0).normal(size=(2, 30, 3)) * [1.0, 1e-7, 0.0] + 1.0

    def places(of_classes, *samples):
        names = [str(i) for i in range(samples[0].shape[-1])]
        return that_vary(*(Predictions(values, names, of_classes) for values in samples)).tolist()

    assert places(True, flat) == [0]
    assert places(True, flat[..., 1:]) == [0]
    assert places(True, flat[..., 1:], flat[..., :2]) == [0]
    assert places(True, flat[..., 2:]) == [0]
    assert places(False, flat) == [0, 1]
    assert places(False, flat * [1e9, 1.0, 1e9]) == [0, 1]  # each has its own unit


def test_predictions_that_are_not_finite_are_left_out():
    flat = np.random.default_rng(0).normal(size=(2, 30, 3))
    flat[0, 3, 0], flat[1, 4, 1] = np.inf, np.nan
    found = Predictions(flat, ["a", "b", "c"], False)
    assert that_vary(found).tolist() == [2]
    with pytest.raises(UserError, match="no prediction is finite"):
        that_vary(Predictions(flat[..., :2], ["a", "b"], False))
    with pytest.raises(UserError, match="different things"):
        that_vary(found, Predictions(flat, ["a", "b", "other"], False))


class Masked(torch.nn.Module):
    """A network with an output that is minus infinity for some data, as masked classes have it."""

    def __init__(self, share):
        super().__init__()
        self.first, self.last, self.share = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1), share

    def forward(self, x):
        outputs = self.last(torch.relu(self.first(x)))
        return outputs.masked_fill(x[:, :1] < self.share, -torch.inf)


@pytest.mark.parametrize("share", [0.0, np.inf])
def test_outputs_that_are_infinite_lose_no_draws(rng, share):
    def log_lik(outputs, rows):
        return -0.5 * (rows["y"] - outputs[:, 0].clamp_min(-1.0)) ** 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            mhrun.ModuleModel(Masked(share), log_lik, prior_variance=1.0), data(rng),
            mhrun.Unadjusted(mhrun.SGHMC(), m=20), step_size=1e-4, steps=30, warmup=0, chains=2, progress=False,
        )  # fmt: skip
    assert trace["posterior"]["theta"].shape == (2, 30, 13)
    lines = [str(one.message) for one in caught]
    assert any("no prediction is finite" in line for line in lines) == (share == np.inf)


def test_a_single_layer_is_judged_by_its_weights():
    assert not is_network(mhrun.ModuleModel(torch.nn.Linear(2, 2)))
    assert not is_network(mhrun.Logistic(3))
    assert is_network(regression())


def test_a_sampled_network_is_judged_by_what_it_predicts(rng):
    fields = data(rng)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            regression(), fields, mhrun.Unadjusted(mhrun.SGHMC(), m=20), step_size=1e-4, steps=60, warmup=0,
            chains=2, progress=False,
        )  # fmt: skip
    lines = [str(one.message) for one in caught if "R-hat is" in str(one.message)]
    assert len(lines) == 1
    each = mhrun.predict(trace, regression(), {"x": fields["x"]}, each=True).to_numpy()
    wanted = worth_of_predictions(each[:, :, np.linspace(0, N - 1, DATA).astype(int)])
    assert f"R-hat is {wanted['rhat']:.4g} (output at datum" in lines[0]


@pytest.mark.usefixtures("few_images")
def test_reports_and_comparisons_judge_networks_by_predictions(tmp_path, monkeypatch):
    dropped = [
        f"~methods.{name}" for name in ("sgd", "sgd_momentum", "cmint", "mint", "mint_noq", "cmint_noq")
    ]
    small = ["m=6", "data.n=60", "monitor.data.n=50", "scales.smoke.hidden=4", "thin=1", "chains=2", *dropped]
    quiet = ["runtime.threads=1", "runtime.report=false", f"runtime.outputs={tmp_path}"]
    run = Run(
        run_experiment(compose_config(["experiment=mint_network", "scale=smoke", *small, *quiet]), Silent())
    )
    rows = [Row(run, name, name) for name in ("sgld", "sghmc")]
    samples = [predictions(run.target.model, run.target.data, run.draws(name)) for name in ("sgld", "sghmc")]
    for row, own, record in zip(rows, samples, diagnosed(run).values(), strict=True):
        assert record["judged"] == "predictions", row.name
        assert record["rhat"] == pytest.approx(worth(own.values[..., that_vary(own)])["rhat"])
        assert record["draws"] == own.values.shape[1]

    found = compare(rows, rows[0])
    assert any(line.startswith("Networks are compared by what they predict") for line in found.notes)
    seen = [own.values[..., that_vary(*samples)] for own in samples]
    assert found.rows["sghmc"]["rhat"] == pytest.approx(worth(seen[1])["rhat"], nan_ok=True)
    gap = np.abs(seen[1].mean((0, 1)) - seen[0].mean((0, 1))) / seen[0].std((0, 1))
    assert abs(found.rows["sghmc"]["mean_off"].value) == pytest.approx(gap.max(), rel=0.05)

    of_each(monkeypatch, run, rows)
    thinned(monkeypatch, rows)
    monkeypatch.setattr(run, "changed_files", ["net.py"])
    assert {record["judged"] for record in diagnosed(run).values()} == {"weights"}
    (line,) = [line for line in compare(rows, rows[0]).notes if "Weights of networks are compared" in line]
    assert line.endswith("'net.py' is not as it was when the run was made.")


def of_each(monkeypatch, run, rows):
    """Each method is evaluated with its own network, at the data of the first."""
    one, flip = run.target, Perceptron(run.target.model.units)
    monkeypatch.setattr(flip, "predict", lambda theta, rows: one.model.predict(-theta, rows))
    other = mhrun.Target(
        flip, mhrun.Dataset.of({name: field[:20] for name, field in one.data.fields.items()})
    )
    with monkeypatch.context() as patch:
        patch.setattr(run, "target_of", lambda method: other if method == "sghmc" else one)
        found = compare(rows, rows[0])
    weights = run.draws("sgld"), -run.draws("sghmc")
    both = [predictions(one.model, one.data, theta) for theta in weights]
    seen = both[1].values[..., that_vary(*both)]
    assert found.rows["sghmc"]["rhat"] == pytest.approx(worth(seen)["rhat"], nan_ok=True)


def thinned(monkeypatch, rows):
    """Of some of the draws there is no rate, which would be too low."""
    assert compare(rows, rows[0]).rows["sghmc"]["ess_per_million"] is not None
    with monkeypatch.context() as patch:
        patch.setattr("mhrun.target.function_space._DRAWS_TO_JUDGE", 2)
        model, draws = rows[0].run.target.model, rows[0].run.draws("sghmc")
        products = sum(block.stop - block.start for block in model.blocks if block.weights)
        half = draws.shape[0] * draws.shape[1] // 2
        patch.setattr("mhrun.target.function_space._WORK", (half + 0.5) * DATA * (products + 640))
        records = {
            "compared": compare(rows, rows[0]).rows["sghmc"],
            "report": diagnosed(rows[0].run)["sghmc"],
        }
        for record in records.values():
            assert record["ess_per_million"] is None
            assert record["draws"] == draws.shape[1]
