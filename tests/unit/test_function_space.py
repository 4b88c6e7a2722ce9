"""Networks are judged by their predictions: hidden units can be exchanged without a change of them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import mhrun
from mhrun.cli.compose import compose_config
from mhrun.diagnostics.chains import worth, worth_of_predictions
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import UserError
from mhrun.models.perceptron import Perceptron
from mhrun.report.compare import compare
from mhrun.report.compared_rows import Row
from mhrun.report.efficiency import diagnosed
from mhrun.report.run import Run
from mhrun.target.function_space import DATA, is_network, predictions, that_vary

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
    found, names = predictions(target, chains)
    assert found.shape == (2, 400, DATA)
    assert worth(found)["rhat"] < 1.02
    again, _ = predictions(target, exchanged(chains, [2, 0, 1, 4, 3]))
    assert again == pytest.approx(found)
    assert names[0] == "output at datum 0"
    assert names[-1] == f"output at datum {N - 1}"


def test_predictions_are_those_of_numpy(rng):
    fields = data(rng)
    target = mhrun.Target(regression(), mhrun.Dataset.of(fields))
    theta = rng.normal(size=(2, 3, 4 * HIDDEN + 1))
    found, names = predictions(target, theta)
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
    found, names = predictions(target, theta)
    places = [int(name.rpartition(" ")[2]) for name in names]
    wanted = model.outputs(torch.from_numpy(theta.reshape(20, -1)), target.data.part(0, N))[:, places, 0]
    assert found.reshape(20, -1) == pytest.approx(wanted.numpy())


def test_of_classes_probabilities_are_judged(rng):
    x, y = rng.normal(size=(20, 4)), rng.integers(0, 3, 20)
    target = mhrun.Target(Perceptron([4, 5, 3]), mhrun.Dataset.of({"x": x, "y": y}))
    theta = rng.normal(size=(1, 2, target.dim))
    found, names = predictions(target, theta)
    whole = target.model.predict(torch.from_numpy(theta[0]), target.data.part(0, 20)).exp().numpy()
    assert found.shape == (1, 2, 60)
    assert found[0] == pytest.approx(whole.reshape(2, -1))
    assert names[4] == "probability[1] at datum 1"


def test_of_a_costly_network_some_draws_are_evaluated_or_none(rng, monkeypatch):
    target = mhrun.Target(regression(), mhrun.Dataset.of(data(rng)))
    theta = rng.normal(size=(2, 1200, 4 * HIDDEN + 1))
    whole, _ = predictions(target, theta)
    values = target.model.values_per_datum(target.data.part(0, DATA))
    each = DATA * (target.dim + 100 * values)
    monkeypatch.setattr("mhrun.target.function_space._WORK", 1200.5 * each)
    assert predictions(target, theta)[0] == pytest.approx(whole[:, ::2])
    monkeypatch.setattr("mhrun.target.function_space._WORK", 999.5 * each)
    with pytest.raises(UserError, match="at 1,000 draws take too long"):
        predictions(target, theta)
    assert predictions(target, theta[:, :400])[0].shape[:2] == (2, 400)  # all of few


class Single(torch.nn.Module):
    """A network in float32, whatever the type of its parameters should be."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.float())))


def test_draws_are_not_lost_where_a_network_cannot_be_evaluated(rng):
    model = mhrun.ModuleModel(Single(), lambda outputs, rows: -0.5 * (rows["y"] - outputs[:, 0]) ** 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            model, data(rng), mhrun.Unadjusted(mhrun.SGHMC(), m=20), step_size=1e-5, steps=30, warmup=0,
            chains=2, dtype=torch.float32, progress=False,
        )  # fmt: skip
    assert trace["posterior"]["theta"].shape == (2, 30, 13)
    lines = [str(one.message) for one in caught]
    assert sum(line.startswith("R-hat and ESS are those of weights") for line in lines) == 1


def test_what_nobody_sees_is_left_out():
    """A probability that is 1 to within rounding says nothing of the chains, unless all are."""
    flat = np.random.default_rng(0).normal(size=(2, 30, 3)) * [1.0, 1e-9, 0.0]
    assert that_vary(flat).tolist() == [0]
    assert that_vary(flat[..., 1:]).tolist() == [0]
    assert that_vary(flat[..., 1:], flat[..., :2]).tolist() == [0]
    assert that_vary(flat[..., 2:]).tolist() == [0]


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
    values = [predictions(run.target, run.draws(name))[0] for name in ("sgld", "sghmc")]
    for row, own, record in zip(rows, values, diagnosed(run).values(), strict=True):
        assert record["judged"] == "predictions", row.name
        assert record["rhat"] == pytest.approx(worth(own[..., that_vary(own)])["rhat"])
        assert record["draws"] == own.shape[1]

    found = compare(rows, rows[0])
    assert any(line.startswith("Networks are compared by what they predict") for line in found.notes)
    seen = [own[..., that_vary(*values)] for own in values]
    assert found.rows["sghmc"]["rhat"] == pytest.approx(worth(seen[1])["rhat"], nan_ok=True)
    gap = np.abs(seen[1].mean((0, 1)) - seen[0].mean((0, 1))) / seen[0].std((0, 1))
    assert abs(found.rows["sghmc"]["mean"].value) == pytest.approx(gap.max(), rel=0.05)

    def unavailable(method):
        raise UserError("there are no data.")

    monkeypatch.setattr(run, "target_of", unavailable)
    assert {record["judged"] for record in diagnosed(run).values()} == {"weights"}
    (line,) = [line for line in compare(rows, rows[0]).notes if "Weights of networks are compared" in line]
    assert line.endswith("there are no data.")
