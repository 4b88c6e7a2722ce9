"""What a call from Python cannot do is refused, with a line that says what to do; what it depends on is noticed."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
import pytest
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.data.table import Table
from mhrun.data.table_facts import weight_names
from mhrun.data.transforms import Transforms
from mhrun.dynamics.momentum import Momentum
from mhrun.dynamics.sgbd import SGBD
from mhrun.errors import Refusal, UserError
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.models.perceptron import Perceptron
from mhrun.pairing.blocks import Blocks
from mhrun.pairing.moving import Moving
from mhrun.pairing.stored import Stored
from mhrun.priors.decay import Decay
from mhrun.priors.gamma import GammaPrecision
from mhrun.rules.austere import Austere
from mhrun.schedules.banded import Banded
from mhrun.target import Target
from mhrun.types.scale import Scale
from mhrun.units import mint_temperature, step_from_learning_rate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of runs that are far too short

X = torch.linspace(-1, 1, 50, dtype=torch.float64)


def log_lik(theta, batch):
    return -0.5 * (batch - theta[0]) ** 2


def short(kernel, model=log_lik, data=X, **settings):
    settings = {"start": [0.0], "step_size": 0.1, "steps": 20, "warmup": 0} | settings
    return mhrun.sample(model, data, kernel, **settings)


@pytest.mark.parametrize("kernel", [mhrun.RandomWalk(), 3])
def test_what_is_not_a_kernel(kernel):
    with pytest.raises(UserError, match=r"kernel: .*is not a kernel"):
        short(kernel)


@pytest.mark.parametrize("m", ["a", 2.5, True, float("nan")])
@pytest.mark.parametrize("part", [mhrun.Shared, Stored, Moving, lambda m: mhrun.Unadjusted(mhrun.SGLD(), m)])
def test_minibatch_sizes(part, m):
    other = r"\." if part is Moving else ", or auto"
    with pytest.raises(Refusal, match=rf"m = .* must be a whole number{other}"):
        part(m)


def test_a_single_datum():
    """An estimate from all data is exact, and no pilot chooses a minibatch."""
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), Blocks(1), mhrun.PseudoMarginal())
    assert short(kernel, data=X[:1], step_size=1.0)["posterior"]["theta"].std() > 0
    for open_size in (
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
        mhrun.MetropolisHastings(mhrun.RandomWalk(), Stored("auto"), mhrun.Metropolis()),
        mhrun.Unadjusted(mhrun.SGLD(), "auto"),
    ):
        with pytest.raises(Refusal, match="m = auto needs n >= 2 data"):
            short(open_size, data=X[:1])


@pytest.mark.parametrize("number", [torch.tensor, np.array, np.float32])
def test_numbers_of_torch_and_numpy(number):
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    expected = short(kernel, step_size=0.5, temperature=2.0)["posterior"]["theta"].values
    found = short(kernel, step_size=number(0.5), temperature=number(2.0))["posterior"]["theta"].values
    assert (found == expected).all()


def test_settings_that_contradict_each_other():
    with pytest.raises(Refusal, match="chooses m and epsilon from bound"):
        Austere(m=50, epsilon=0.4, design="conservative", bound=0.02)
    with pytest.raises(Refusal, match="at least one window of 100 steps"):
        Banded(1.0, 0.2, 0.4, window=100, length=50).bind(5_000, 100)
    with pytest.raises(Refusal, match="m = 0 must be at least 1"):
        mint_temperature(100, 0.3, 0)
    with pytest.raises(Refusal, match="n = 0 must be at least 1"):
        step_from_learning_rate(0.1, 0)
    with pytest.raises(UserError, match="'x' is a single number"):
        Dataset({"x": torch.tensor(1.0)})


def test_a_scale_for_too_many_parameters():
    def wide(theta, batch):
        return -0.5 * (batch - theta.mean()) ** 2

    with pytest.raises(
        UserError, match="up to 1,000 parameters, not 1,001; leave out precondition = diagonal"
    ):
        short(
            mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
            wide,
            start=[0.0] * 1_001,
            precondition="diagonal",
        )


def test_a_scaled_dynamics_is_what_it_was():
    scale = Scale(torch.zeros(2), torch.ones(2))
    for dynamics in (Momentum(), SGBD(), mhrun.SGLD()):
        scaled = PreconditionedDynamics(dynamics, scale)
        assert (scaled.optimises, scaled.needs_noise) == (dynamics.optimises, dynamics.needs_noise)
    assert Momentum().optimises
    assert SGBD().needs_noise


def network(temper="posterior"):
    rng = np.random.default_rng(0)
    data = Dataset.of({"x": rng.standard_normal((40, 3)), "y": rng.integers(0, 2, 40)})
    return Target(Perceptron([3, 4, 2]), data, temper=temper)


@pytest.mark.parametrize("prior", [Decay(0.01), GammaPrecision()])
def test_a_prior_of_the_method_is_tempered_with_the_posterior_alone(prior):
    kernel = mhrun.Unadjusted(mhrun.SGLD(), 10, prior=prior)
    assert kernel.refuses(network()) is None
    assert "temper=likelihood" in kernel.refuses(network("likelihood"))


def test_sgbd_goes_with_precisions_that_are_resampled():
    """Both draw noise in the step in which the precisions are drawn."""
    target = network()
    kernel = mhrun.Unadjusted(SGBD(), 10, prior=GammaPrecision(every=2))
    trace = short(kernel, target.model, target.data, start=None, step_size=1e-3)
    assert np.isfinite(trace["posterior"]["theta"].to_numpy()).all()


def test_one_datum_is_predicted_as_a_row():
    net, x = torch.nn.Linear(4, 2), torch.randn(30, 4)
    data = {"x": x, "y": torch.arange(30) % 2}
    kernel = mhrun.Unadjusted(mhrun.SGLD(), m=5)
    trace = mhrun.sample(net, data, kernel, chains=1, steps=5, warmup=1, step_size=1e-3, seed=1)
    assert mhrun.predict(trace, net, x[:1]).shape == (1, 2)
    with pytest.raises(UserError, match=r"for 4 data; give one row per datum, x\[None\]"):
        mhrun.predict(trace, net, x[0])


def test_predictions_need_a_valid_draw():
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    trace = short(kernel)

    def eight(theta, rows):
        return 0 * rows + 8

    assert float(mhrun.predict(trace, eight, X[:1])[0]) == 8
    trace["sample_stats"]["valid"][:] = False
    with pytest.raises(UserError, match="no draw of the trace is valid"):
        mhrun.predict(trace, eight, X[:1])


def test_a_column_called_1_is_a_column(tmp_path):
    (tmp_path / "rows.csv").write_text("0,1,2,y\n1.5,2,0.3,1\n0.2,1,0.7,-1\n0.9,3,0.2,1\n")
    for intercept, names in ((False, ["0", "1", "2"]), (True, ["intercept", "0", "1", "2"])):
        table = Table(str(tmp_path / "rows.csv"), target="y", intercept=intercept)
        assert weight_names(table.load().facts) == names
        assert table.prepared({"0": 1.0, "1": 2.0, "2": 0.5}).fields["x"].shape == (1, 3 + intercept)
    (tmp_path / "rows.csv").write_text("1,intercept,y\n1.5,2,1\n0.2,1,-1\n0.9,3,1\n")
    table = Table(str(tmp_path / "rows.csv"), target="y", intercept=True)
    assert weight_names(table.load().facts) == ["intercept_1", "1", "intercept"]


def test_a_folder_is_of_one_call(tmp_path, monkeypatch):
    """Also where a module that the log-likelihood uses has changed, the data are transformed, or the note is empty."""
    monkeypatch.syspath_prepend(tmp_path)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(10), mhrun.Metropolis())
    deeper, helper = tmp_path / "ours_deeper.py", tmp_path / "ours_helper.py"
    helper.write_text(
        "import ours_deeper\n\n\ndef term(theta, batch):\n    return ours_deeper.term(theta, batch)\n"
    )
    deeper.write_text("def term(theta, batch):\n    return -0.5 * (batch - theta[0]) ** 2\n")
    importlib.invalidate_caches()
    module = importlib.import_module("ours_helper")

    def through(theta, batch):
        return module.term(theta, batch)

    folder = tmp_path / "kept"
    first = short(kernel, through, folder=folder)
    assert short(kernel, through, folder=folder).equals(first)
    deeper.write_text("def term(theta, batch):\n    return -0.5 * (batch - theta[0] - 5) ** 2\n")
    with pytest.raises(UserError, match="another call"):
        short(kernel, through, folder=folder)
    for name in ("ours_helper", "ours_deeper"):
        del sys.modules[name]

    target, other = network(), tmp_path / "other"
    changed = Dataset(target.data.fields, transforms=Transforms(target.n, permuted=0.5))

    def on(data):
        return short(
            mhrun.Unadjusted(mhrun.SGLD(), 10), target.model, data, start=None, step_size=1e-3, folder=other
        )

    on(target.data)
    with pytest.raises(UserError, match="another call"):
        on(changed)
    (other / "call.json").write_text(json.dumps({}))
    with pytest.raises(UserError, match="another call"):
        on(target.data)


@pytest.mark.parametrize(
    ("m", "blocks"), [(1, 50), (50, 50), (51, 50), (60, 50), (100, 30), (120, 50), (1000, 50)]
)
def test_blocks_are_drawn_anew_equally_often(m, blocks):
    """Each place of the minibatch is redrawn once, or twice where the last block overlaps, in a round of all blocks."""
    pairing = Blocks(m, blocks)
    first = np.minimum(np.arange(pairing.blocks) * pairing.size, m - pairing.size)
    times = np.bincount((first[:, None] + np.arange(pairing.size)).ravel(), minlength=m)
    assert pairing.size == -(-m // min(blocks, m))
    assert len(set(first)) == pairing.blocks <= blocks
    assert times.min() == 1
    assert times.max() <= 2


def test_the_minibatch_of_exchanges_needs_a_size():
    rung = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    kernel = mhrun.ReplicaExchange(rung, mhrun.Shared("auto"), mhrun.Metropolis(), 2)
    with pytest.raises(Refusal, match=r"give the minibatch of the exchanges a size: Shared\(m\)"):
        short(kernel, step_size=0.5, temperature=[1.0, 2.0])


@pytest.mark.parametrize(
    ("log_density", "reason"),
    [
        (lambda theta: -0.5 * theta**2, r"must return one number, and returned a tensor of shape \(2,\)"),
        (lambda theta: -0.5 * theta.mul_(2).square().sum(), r"write theta = 2 \* theta, not theta.mul_"),
    ],
)
def test_mistakes_of_a_log_density(log_density, reason):
    with pytest.raises(UserError, match=reason):
        mhrun.sample(log_density, None, start=[0.0, 0.0], steps=10)


def test_predictions_need_data():
    trace = short(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()), step_size=1.0
    )
    with pytest.raises(UserError, match="predict needs data, and x is None"):
        mhrun.predict(trace, lambda theta, batch: theta[0], None)
