"""What users of Python meet: exported parts, predictions of a trace, data frames, priors of networks."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.distributions import HalfNormal, Normal

import mhrun
from mhrun.data import Dataset
from mhrun.errors import Refusal, UserError
from mhrun.paths import PACKAGE
from mhrun.types import Contest, Difference

METROPOLIS = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_every_part_that_configurations_name_is_exported():
    texts = [path.read_text() for path in (PACKAGE.parent / "conf").rglob("*.yaml")]
    targets = {name for text in texts for name in re.findall(r"_target_:\s*(mhrun\.[\w.]+)", text)}
    assert len(targets) > 50
    missing = [name for name in targets if not hasattr(mhrun, name.rpartition(".")[2])]
    assert not missing
    for name in mhrun.__all__:
        assert getattr(mhrun, name) is not None, name
    with pytest.raises(AttributeError, match=r"no attribute 'MHMinibach'. Did you mean 'MHMinibatch'\?"):
        _ = mhrun.MHMinibach


def test_a_contest_has_the_variance_of_its_log_ratio():
    one = torch.tensor([2.0])
    difference = Difference(mean=0.1 * one, var=one, size=one.int(), error=0.05 * one)
    contest = Contest(difference, scale=10 * one, offset=one)
    assert contest.log_ratio_var.tolist() == pytest.approx([20.0**2 * 0.1])
    assert torch.equal(contest.to_verdict(one > 0).log_ratio_var, contest.log_ratio_var)


@pytest.mark.parametrize(
    ("accepted", "given"),
    [
        (torch.full((3,), 0.5), r"\(3,\), float32"),
        (torch.ones(3, 1, dtype=torch.bool), r"\(3, 1\), bool"),
        (True, "a bool"),
    ],
)
def test_a_contest_takes_a_mask_of_the_chains_only(accepted, given):
    one = torch.ones(3)
    contest = Contest(Difference(mean=one, var=one, size=one.int(), error=one), scale=one, offset=one)
    words = rf"shape \(C,\) = \(3,\) and type bool, and was given {given}; compare with a uniform: u < probability"
    with pytest.raises(UserError, match=words):
        contest.to_verdict(accepted)


# --- Predictions ------------------------------------------------------------------------------------------


def regression(theta, batch):
    return Normal(theta.a + batch.x @ theta.b, theta.s).log_prob(batch.y)


@pytest.fixture(scope="module")
def fitted():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = 1 + x @ torch.tensor([1.0, -1.0], dtype=torch.float64)
    parameters = {"a": Normal(0.0, 1.0), "b": "Normal([0, 0], 1)", "s": HalfNormal(1.0)}
    trace = mhrun.sample(
        regression,
        {"x": x, "y": y},
        METROPOLIS,
        parameters=parameters,
        step_size=0.05,
        steps=30,
        warmup=5,
        chains=3,
    )
    return trace, x


def test_a_function_is_averaged_over_the_draws(fitted):
    trace, x = fitted
    posterior = trace["posterior"]
    a, b = posterior["a"].to_numpy(), posterior["b"].to_numpy()
    exact = a[..., None] + np.einsum("csk,nk->csn", b, x.numpy())
    mean = mhrun.predict(trace, lambda theta, batch: theta.a + batch.x @ theta.b, {"x": x})
    assert mean.dims == ("datum",)
    assert np.allclose(mean, exact.mean((0, 1)))
    each = mhrun.predict(trace, lambda theta, batch: theta.a + batch @ theta.b, x, each=True, every=3)
    assert each.coords["draw"].equals(trace["posterior"].coords["draw"][::3])
    assert each.dims == ("chain", "draw", "datum")
    assert np.allclose(each, exact[:, ::3])


def test_a_function_may_sample_new_data(fitted):
    """Sd of 90 draws x 40 data within 4 of its standard errors: false alarm once in 16,000, and the seed is fixed."""
    trace, x = fitted

    def new(theta, batch):
        return torch.distributions.StudentT(9.0, 0.0 * batch[:, 0], theta.s).sample()

    state = torch.get_rng_state()
    one = mhrun.predict(trace, new, x, each=True).to_numpy()
    two = mhrun.predict(trace, new, x, each=True).to_numpy()
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(one, two)
    assert not np.isin(mhrun.predict(trace, new, x, each=True, seed=1), one).any()
    assert len(np.unique(one)) == one.size
    scaled = one / trace["posterior"]["s"].to_numpy()[..., None]
    error = np.sqrt((np.mean(scaled**4) / (9 / 7) ** 2 - 1) / scaled.size)
    assert abs(np.mean(scaled**2) / (9 / 7) - 1) < 4 * error
    with pytest.raises(mhrun.UserError, match="seed = -1 must be"):
        mhrun.predict(trace, new, x, seed=-1)


def test_random_numbers_of_numpy_are_not_shared_by_draws(fitted):
    """vmap calls a function once for many draws; 90 x 40 numbers, all of them different."""
    trace, x = fitted
    rng = np.random.default_rng(1)

    def new(theta, batch):
        return 0 * theta.a + torch.as_tensor(rng.standard_normal(len(batch)))

    found = mhrun.predict(trace, new, x, each=True).to_numpy()
    assert len(np.unique(found)) == found.size


def test_a_function_may_change_what_it_is_given_in_place(fitted):
    trace, x = fitted
    before, rows = trace["posterior"]["b"].copy(deep=True), x.clone()

    def doubled(theta, batch):
        batch *= 2
        theta.b.mul_(2)
        return batch @ theta.b

    found = mhrun.predict(trace, doubled, x, each=True)
    assert np.allclose(found, 4 * np.einsum("csk,nk->csn", before.to_numpy(), x.numpy()))
    assert trace["posterior"]["b"].equals(before)
    assert torch.equal(x, rows)


def test_draws_that_are_not_valid_are_left_out(fitted):
    trace, x = fitted
    marked = trace.copy(deep=True)
    marked["sample_stats"]["valid"][:] = False
    marked["sample_stats"]["valid"][1, 4] = True
    found = mhrun.predict(marked, lambda theta, batch: theta.a + 0 * batch[:, 0], x)
    assert np.allclose(found, float(trace["posterior"]["a"][1, 4]))
    each = mhrun.predict(marked, lambda theta, batch: theta.a + 0 * batch[:, 0], x, each=True)
    assert int(np.isfinite(each).sum()) == len(x)


def test_draws_are_found_among_statistics_of_other_steps(fitted):
    """As many draws as statistics, of steps 6, 7, ..., and of steps 6, 9, ..., after 5 of burn-in."""
    trace, x = fitted
    marked = trace.copy(deep=True)
    rows = len(marked["posterior"]["draw"])
    marked["sample_stats"]["valid"][:] = False
    marked["sample_stats"]["valid"][:, 1] = True

    def level(theta, batch):
        return theta.a + 0 * batch[:, 0]

    assert [marked.attrs[name] for name in ("warmup", "thin", "thin_stats")] == [5, 1, 1]
    marked.attrs["thin_stats"] = 3
    marked["posterior"].coords["step"] = ("draw", 6 + 3 * np.arange(rows))
    assert np.allclose(mhrun.predict(marked, level, x), float(trace["posterior"]["a"][:, 1].mean()))
    marked["posterior"].coords["step"] = ("draw", 6 + np.arange(rows))
    with pytest.raises(mhrun.UserError, match="lacks the statistics of some draws"):
        mhrun.predict(marked, level, x)


def test_predictions_of_a_ladder_are_of_its_coldest_rung(capsys):
    ladder = mhrun.ReplicaExchange(METROPOLIS, mhrun.Full(), mhrun.Metropolis(), rungs=3)
    data = torch.randn(50, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    trace = mhrun.sample(
        lambda theta, x: -0.5 * (x[:, 0] - theta[0]) ** 2,
        data,
        ladder,
        start=[0.0],
        temperature=[1.0, 3.0, 9.0],
        step_size=0.05,
        steps=20,
        warmup=5,
    )
    theta = trace["posterior"]["theta"].to_numpy()
    assert theta.shape == (12, 20, 1)  # four ladders
    assert "the trace has the chains of all 3 rungs; mhrun.rung(trace) returns" in capsys.readouterr().err
    for number in range(3):
        part = mhrun.rung(trace, number)
        assert np.array_equal(part["posterior"]["theta"], theta[number::3])
        assert part["sample_stats"]["accepted"].shape == (4, 20)
        assert np.array_equal(part["posterior"]["chain"], range(4))
        assert part.attrs["temperature"] == 3.0**number
        counts = trace["sample_stats"]["n_lik"].to_numpy()
        assert np.array_equal(part["sample_stats"]["n_lik"], counts[::3] + counts[1::3] + counts[2::3])
        assert part["sample_stats"]["n_lik"].dtype == counts.dtype
    with pytest.raises(UserError, match="rung = 3 is not one of the 3 rungs"):
        mhrun.rung(trace, 3)
    found = mhrun.predict(trace, lambda theta, batch: theta[0] + 0 * batch[:, 0], data)
    assert np.allclose(found, theta[::3].mean())
    with pytest.raises(UserError, match="2 chains are not a whole number of ladders of 3 rungs"):
        mhrun.rung(trace.isel(chain=slice(0, 2)))
    with pytest.raises(UserError, match=r"rung = 1\.5 must be a whole number"):
        mhrun.rung(trace, 1.5)
    cold = mhrun.rung(trace)
    assert mhrun.rung(cold) is cold  # one rung is left


def test_modules_predict_classes_or_their_outputs():
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
    net = nn.Linear(2, 3)
    trace = mhrun.sample(
        net, {"x": x, "y": torch.arange(30) % 3}, METROPOLIS, step_size=0.1, steps=10, warmup=0, chains=2
    )
    theta = torch.from_numpy(trace["posterior"]["theta"].to_numpy())
    weight, bias = theta[..., :6].reshape(2, 10, 3, 2), theta[..., 6:]
    outputs = torch.einsum("cskd,nd->csnk", weight, x.double()) + bias[:, :, None]
    found = mhrun.predict(trace, net, x)
    assert found.dims == ("datum", "class")
    assert np.allclose(found, torch.softmax(outputs, -1).mean((0, 1)))
    own = mhrun.ModuleModel(net, likelihood=lambda outputs, rows: outputs[:, 0])
    assert np.allclose(mhrun.predict(trace, own, x, each=True), outputs)


def test_predictions_that_cannot_be_are_refused(fitted):
    trace, x = fitted
    model = mhrun.FunctionModel(regression, parameters={"a": 1, "b": 2, "s": 1})
    for call, message in (
        (lambda: mhrun.predict(trace, model, x), "give a function of parameters and rows, such as lambda"),
        (lambda: mhrun.predict(trace, nn.Linear(2, 9), x), "has 27 parameters and a draw of the trace has 4"),
        (lambda: mhrun.predict(trace, lambda t, b: t.c, x), "there is no 'c' here, but a, b, s"),
        (lambda: mhrun.predict(trace, lambda t, b: t.a, x), r"one row per datum, a tensor \(40, ...\)"),
        (lambda: mhrun.predict(None, model, x), "needs a trace with draws"),
        (lambda: mhrun.predict(trace, 3, x), "must be a Model, a torch module or a function"),
        (lambda: mhrun.predict(trace, model, x, every=0), "every = 0 must be"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


# --- Data frames ------------------------------------------------------------------------------------------


def test_columns_of_a_data_frame_are_fields():
    frame = pd.DataFrame({"age": [1, 2, 3], "bmi": [0.5, 1.5, 2.5], "ill": [True, False, True]})
    data = Dataset.of(frame)
    assert {name: field.dtype for name, field in data.fields.items()} == {
        "age": torch.int64,
        "bmi": torch.float64,
        "ill": torch.bool,
    }
    nested = Dataset.of({"x": frame[["age", "bmi"]], "y": frame["bmi"], "k": frame["age"].astype("Int64")})
    assert nested.fields["x"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert nested.fields["k"].dtype == torch.int64
    trace = mhrun.sample(
        lambda theta, batch: Normal(theta.slope * batch.age, 1.0).log_prob(batch.bmi),
        frame,
        METROPOLIS,
        parameters={"slope": Normal(0.0, 1.0)},
        step_size=0.2,
        steps=20,
        warmup=0,
    )
    assert trace["posterior"]["slope"].shape == (4, 20)
    assert mhrun.predict(trace, lambda theta, batch: theta.slope * batch.age, frame).shape == (3,)


def test_rows_of_other_labels_are_not_paired():
    """They would be paired by their places: an outcome in another order has nothing to do with its features."""
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [2.0, 4.0, 6.0]})
    shuffled = table.iloc[[2, 0, 1]]
    with pytest.raises(UserError, match=r"'x' and 'y' have different indices.* y.loc\[x.index\]"):
        mhrun.Dataset.of({"x": table["x"], "y": shuffled["y"]})
    for fields in (
        {"x": shuffled["x"], "y": shuffled[["y"]]},
        {"x": shuffled["x"], "y": table["y"].to_numpy()},
        {"x": table["x"], "y": shuffled["y"].reset_index(drop=True)},
    ):
        assert mhrun.Dataset.of(fields).n == 3


def test_data_frames_that_are_no_numbers_are_refused():
    for frame, message in (
        (
            pd.DataFrame({"sex": ["f", "m"]}),
            r"column 'sex' holds .* values; .*get_dummies\(table, columns=\['sex'\]",
        ),
        (
            pd.DataFrame({"age": [1.0, np.nan]}),
            r"column 'age' lacks 1 of 2 values; leave their rows out with dropna",
        ),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns 'a'; rename one"),
        (pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}), "column 'when' holds datetime64"),
        ({"x": pd.DataFrame({"sex": ["f"]})}, "column 'sex' holds"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            Dataset.of(frame)
        assert "\n" not in str(caught.value)


# --- Priors of networks, and what runs keep of them -------------------------------------------------------


def test_blocks_of_a_network_have_priors_of_their_own():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    model = mhrun.ModuleModel(net, prior_variance={"*.bias": None, "0.*": 4.0, "*": 0.5})
    theta = torch.randn(5, model.dim, dtype=torch.float64)
    wanted = sum(
        -0.5 * theta[:, b.start : b.stop].square().sum(-1) / variance
        for b in model.blocks
        if (variance := {"0.weight": 4.0, "2.weight": 0.5}.get(b.name))
    )
    assert torch.allclose(model.log_prior(theta), wanted)
    point = theta.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model.log_prior(point).sum(), point)
    assert torch.allclose(model.log_prior_grad(theta), grad)
    assert model.prior_summary == "0.weight: N(0, 4); 0.bias: flat; 2.weight: N(0, 0.5); 2.bias: flat"
    same = mhrun.ModuleModel(net, prior_variance={"*": 0.5})
    assert torch.equal(same.log_prior(theta), mhrun.ModuleModel(net, prior_variance=0.5).log_prior(theta))
    for setting, message in (
        ({"*.weight": 1.0}, "has none for 0.bias; add '\\*' with one"),
        ({"1.weight": 1.0, "*": 1.0}, "no parameter is called '1.weight'; there are: 0.weight"),
        ({"*": -1.0}, "positive prior_variance"),
        ("wide", "positive prior_variance"),
        (True, "positive prior_variance"),
    ):
        with pytest.raises(Refusal, match=message):
            mhrun.ModuleModel(net, prior_variance=setting)


def test_traces_name_the_prior(fitted):
    assert (
        fitted[0].attrs["prior"] == "a: Normal(loc=0, scale=1); b: Normal([0, 0], 1); s: HalfNormal(scale=1)"
    )
    data = {"x": torch.randn(6, 2), "y": torch.arange(6) % 2}
    for model, prior in (
        (nn.Linear(2, 2), "flat for every parameter"),
        (mhrun.ModuleModel(nn.Linear(2, 2), prior_variance=2.0), "N(0, 2) for every parameter"),
    ):
        trace = mhrun.sample(model, data, METROPOLIS, step_size=0.1, steps=2, warmup=0)
        assert trace.attrs["prior"] == prior


def test_a_prior_of_a_module_is_given_to_the_module():
    data = {"x": torch.randn(6, 2), "y": torch.arange(6) % 2}
    for name in ("log_prior", "parameters"):
        with pytest.raises(
            UserError, match=r"requires a function as the model; .*ModuleModel\(module, prior_variance=1.0\)"
        ):
            mhrun.sample(nn.Linear(2, 2), data, METROPOLIS, step_size=0.1, **{name: {}})
