"""`mhrun.compare`: draws of this library and of others against a reference."""

import json
import re

import numpy as np
import pytest
import torch
import xarray as xr
from kit import short_run

import mhrun
from mhrun import UserError
from mhrun.cli.main import run

ROWS = 3 + torch.from_numpy(np.random.default_rng(0).normal(size=400))
MEAN, SD = float(ROWS.mean()), 1 / 20
"""Of the posterior of the mean of a normal with variance 1, with a flat prior."""


def log_lik(theta, batch):
    return -0.5 * (batch - theta[0]) ** 2


def trace_of(kernel, **settings):
    return mhrun.sample(log_lik, ROWS, kernel, start=[MEAN], seed=1, progress=False, **settings)


def metropolis(pairing=None):
    return mhrun.MetropolisHastings(mhrun.RandomWalk(), pairing or mhrun.Full(), mhrun.Metropolis())


def normal(chains=4, draws=2_000, dim=1, mean=0.0, sd=1.0, seed=0):
    return mean + sd * np.random.default_rng(seed).normal(size=(chains, draws, dim))


def exact():
    return {"theta": normal(mean=MEAN, sd=SD)}


def tree(**variables):
    """A trace as other libraries write it."""
    return xr.DataTree.from_dict(
        {"posterior": xr.Dataset(variables), "sample_stats": xr.Dataset({"lp": 0.0})}
    )


@pytest.mark.slow
def test_draws_of_the_posterior_agree_and_shifted_or_wider_ones_differ():
    trace = trace_of(metropolis(), step_size=0.12, steps=8_000, warmup=500)
    found = mhrun.compare({"walk": trace}, exact())
    assert list(found.index) == ["walk", "reference"]
    assert dict(found["verdict"]) == {"walk": "agrees", "reference": "reference"}
    assert found.loc["walk", "target"] == "exact"
    assert found.loc["walk", "evaluations"] == 4 * 8_000 * 400
    assert found.loc["walk", "ess_per_million"] == pytest.approx(found.loc["walk", "ess"] / 12.8)
    assert "differs: at least one is more than 2.8 Monte Carlo errors off" in found.attrs["rule"]
    for wrong, why in (
        (normal(mean=MEAN + 0.3 * SD, sd=SD, seed=1), "the mean of theta[0] is off by 0."),
        (normal(mean=MEAN, sd=1.2 * SD, seed=1), "the sd of theta[0] is 1."),
    ):
        found = mhrun.compare({"wrong": {"theta": wrong}}, exact())
        assert found.loc["wrong", "verdict"] == "differs"
        assert why in found.loc["wrong", "why"]


def test_the_numbers_are_those_of_their_definitions():
    mine, reference = normal(dim=2, seed=1), normal(dim=2, mean=0.1, sd=2.0, seed=2)
    found = mhrun.compare({"mine": {"beta": mine}, "nuts": {"beta": reference}}, "nuts").loc["mine"]
    sd = reference.std(axis=(0, 1), ddof=1)
    off = (mine.mean(axis=(0, 1)) - reference.mean(axis=(0, 1))) / sd
    assert found["mean_off"] == pytest.approx(off[np.abs(off).argmax()])
    assert found["mean_off_se"] == pytest.approx(np.sqrt((0.25 + 1) / 8_000), rel=0.15)  # independent draws
    ratios = mine.std(axis=(0, 1), ddof=1) / sd
    assert found["sd_ratio"] == pytest.approx(ratios[np.abs(np.log(ratios)).argmax()])
    assert found["ess"] == pytest.approx(8_000, rel=0.15)


def test_a_tolerance_decides_instead_of_significance():
    wrong = {"theta": normal(draws=50_000, mean=MEAN + 0.05 * SD, sd=SD, seed=1)}
    truth = {"theta": normal(draws=50_000, mean=MEAN, sd=SD)}
    assert mhrun.compare({"wrong": wrong}, truth).loc["wrong", "verdict"] == "differs"
    assert mhrun.compare({"wrong": wrong}, truth, tolerance=0.1).loc["wrong", "verdict"] == "agrees"
    with pytest.raises(UserError, match=re.escape("tolerance = -1 must be a positive number")):
        mhrun.compare({"wrong": wrong}, truth, tolerance=-1)


@pytest.mark.slow
@short_run
def test_another_temperature_number_of_data_or_prior_is_another_distribution():
    settings = {"step_size": 0.12, "steps": 3_000, "warmup": 200}
    traces = {
        "at 1": trace_of(metropolis(), **settings),
        "at 4": trace_of(metropolis(), temperature=4.0, **settings),
    }
    half = mhrun.sample(log_lik, ROWS[:200], metropolis(), start=[MEAN], seed=1, progress=False, **settings)
    prior = trace_of(metropolis(), log_prior=lambda theta: -(theta[0] ** 2), **settings)
    found = mhrun.compare({**traces, "half": half, "prior": prior}, "at 1")
    assert list(found["verdict"]) == ["reference", *["another distribution"] * 3]
    assert found.loc["at 4", "why"] == "T = 4 (reference: 1)"
    assert found.loc["half", "why"] == "200 data (reference: 400)"
    assert "another prior" in found.loc["prior", "why"]
    assert mhrun.compare(traces["at 4"], exact()).loc["draws", "why"] == "T = 4 (reference: 1)"


@pytest.mark.slow
@short_run
def test_what_the_temperature_acts_on_is_part_of_the_distribution():
    settings = {"step_size": 0.12, "steps": 300, "warmup": 20, "log_prior": lambda theta: -(theta[0] ** 2)}
    for temperature, verdict in ((4.0, "another distribution"), (1.0, None)):
        traces = {
            temper: trace_of(metropolis(), temperature=temperature, temper=temper, **settings)
            for temper in ("posterior", "likelihood")
        }
        found = mhrun.compare(traces, "posterior").loc["likelihood"]
        if verdict is None:  # at T = 1 both are the posterior
            assert found["verdict"] != "another distribution"
        else:
            assert found["verdict"] == verdict
            assert found["why"] == "T acts on the likelihood (reference: on the posterior)"


@pytest.mark.slow
@short_run
def test_a_ladder_is_compared_by_its_coldest_rung_at_the_cost_of_all():
    kernel = mhrun.ReplicaExchange(metropolis(), mhrun.Full(), mhrun.Metropolis(), rungs=2)
    trace = trace_of(kernel, temperature=[1.0, 9.0], step_size=0.12, steps=8_000, warmup=200)
    found = mhrun.compare({"ladder": trace}, exact()).loc["ladder"]
    assert found["chains"] == 4
    assert found["verdict"] == "agrees"
    assert 0.9 < found["sd_ratio"] < 1.1
    assert found["evaluations"] >= 8 * 8_000 * 400


@pytest.mark.slow
@short_run
def test_draws_that_are_not_valid_are_left_out():
    kernel = mhrun.Unadjusted(mhrun.TACTHMC(), m=100)
    trace = trace_of(kernel, step_size=1e-3, steps=4_000, warmup=0)
    valid = trace["sample_stats"]["valid"].to_numpy()
    assert not valid.all()
    assert mhrun.compare(trace).loc["draws", "draws"] == valid.sum(axis=1).min()


def test_labels_are_matched_whatever_their_order():
    draws = normal(dim=2, seed=1) * [1.0, 5.0] + [0.0, 40.0]
    mine = xr.DataArray(draws, dims=["chain", "draw", "feature"], coords={"feature": ["age", "dose"]})
    other = normal(dim=2, seed=2) * [1.0, 5.0] + [0.0, 40.0]
    swapped = xr.DataArray(
        other[..., ::-1], dims=["chain", "draw", "feature"], coords={"feature": ["dose", "age"]}
    )
    unnamed = xr.DataArray(other.transpose(2, 0, 1), dims=["beta_dim_0", "chain", "draw"])
    for reference in (tree(beta=swapped), tree(beta=unnamed), {"beta": other}):
        assert mhrun.compare({"mine": tree(beta=mine)}, reference).loc["mine", "verdict"] == "agrees"


def test_dimensions_are_matched_whatever_their_order():
    """The same array with its dimensions swapped was compared transposed."""
    scales = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mine, other = (
        xr.DataArray(normal(dim=6, seed=s).reshape(4, 2_000, 2, 3) * scales, dims=["chain", "draw", "i", "j"])
        for s in (1, 2)
    )
    swapped = other.transpose("j", "draw", "chain", "i")
    for reference in (
        tree(b=swapped),
        {"b": swapped},
        xr.Dataset({"b": swapped, "name": ("chain", list("abcd"))}),
    ):
        assert mhrun.compare({"mine": tree(b=mine)}, reference).loc["mine", "verdict"] == "agrees"
    with pytest.raises(UserError, match=re.escape("b is (2, 3) in mine and (6,) in reference")):
        mhrun.compare({"mine": tree(b=mine)}, {"b": normal(dim=6)})


def test_a_number_is_a_vector_of_one():
    numbers = normal(seed=1)[..., 0]
    assert mhrun.compare({"mine": {"a": numbers}}, {"a": normal()}).loc["mine", "verdict"] == "agrees"


def test_a_single_chain_is_compared_by_its_halves_and_warned_of():
    right, wide = normal(dim=1, seed=1), 1.5 * normal(dim=1, seed=2)
    with pytest.warns(UserWarning, match=r"One chain: reference\. R-hat compares its halves"):
        found = mhrun.compare({"right": {"a": right}, "wide": {"a": wide}}, {"a": normal(1, 8_000)})
    assert found["verdict"].tolist() == ["agrees", "differs", "reference"]
    drifting = normal(1, 8_000, seed=3) + np.linspace(0, 1, 8_000)[:, None]
    with pytest.warns(UserWarning, match="One chain: draws"):
        found = mhrun.compare({"draws": {"a": drifting}}, {"a": right})
    assert found.loc["draws", "verdict"] == "cannot tell"


@short_run
def test_evaluations_are_those_of_the_draws_or_unknown():
    settings = {"step_size": 0.12, "steps": 1_000, "warmup": 100}
    trace = trace_of(metropolis(), **settings)
    halves = {"first": trace.isel(draw=slice(0, 500)), "second": trace.isel(draw=slice(500, None))}
    found = mhrun.compare({"all": trace, **halves})["evaluations"]
    assert found["all"] == 4 * 1_000 * 400
    assert np.isnan(found["second"])  # the counts of the end of burn-in went with the first draws
    coarse = trace_of(metropolis(), **settings | {"warmup": 150, "thin": 100})
    assert np.isnan(mhrun.compare(coarse).loc["draws", "evaluations"])


@pytest.mark.slow
@short_run
def test_hot_rungs_and_hot_references_are_other_distributions():
    kernel = mhrun.ReplicaExchange(metropolis(), mhrun.Full(), mhrun.Metropolis(), rungs=2)
    ladder = trace_of(kernel, temperature=[1.0, 9.0], step_size=0.12, steps=2_000, warmup=200)
    hot_rung = mhrun.compare(
        {"cold": mhrun.rung(ladder, 0), "hot": mhrun.rung(ladder, 1), "all": ladder}, "cold"
    )
    assert hot_rung.loc["hot", "why"] == "T = 9 (reference: 1)"
    assert hot_rung["evaluations"].nunique() == 1  # of the whole ladder
    hot = trace_of(metropolis(), temperature=4.0, step_size=0.12, steps=3_000, warmup=200)
    found = mhrun.compare({"mine": exact()}, hot)
    assert found.loc["mine", "why"] == "T = 1 (reference: 4)"


def test_variables_that_are_not_everywhere_are_named_and_left_out():
    mine = {"beta": normal(dim=2), "scale": normal(seed=3)[..., 0]}
    reference = {"scale": normal(seed=4)[..., 0], "beta": normal(dim=2, seed=5), "lp": normal(seed=6)[..., 0]}
    with pytest.warns(UserWarning, match="Not in all traces, and not compared: lp of reference"):
        found = mhrun.compare({"mine": mine}, reference)
    assert found.loc["mine", "verdict"] == "agrees"
    with pytest.raises(UserError, match="no variable in common: mine has beta, scale; reference has alpha"):
        mhrun.compare({"mine": mine}, {"alpha": normal()})
    with pytest.raises(UserError, match=re.escape("beta is (2,) in mine and (3,) in reference")):
        mhrun.compare({"mine": mine}, {"beta": normal(dim=3)})


def labelled(seed, means, labels):
    draws = normal(seed=seed, dim=len(means)) + np.array(means)
    coords = {} if labels is None else {"feature": labels}
    return {"beta": xr.DataArray(draws, dims=("chain", "draw", "feature"), coords=coords)}


def test_labels_that_are_not_everywhere_are_named_and_left_out():
    mine = labelled(1, [0, 5, 9], ["age", "dose", "weight"])
    left_out = "Labels of beta along feature that are not in all traces are not compared: dose of mine; height of ref"
    with pytest.warns(UserWarning, match=left_out):
        found = mhrun.compare({"mine": mine}, labelled(2, [9, 0, 7], ["weight", "age", "height"]))
    assert found.loc["mine", "verdict"] == "agrees"
    with pytest.warns(UserWarning, match="not compared: dose of mine"):
        found = mhrun.compare({"mine": mine}, labelled(2, [9, 1], ["weight", "age"]))
    assert "beta[age] is off" in found.loc["mine", "why"]


def test_the_name_of_a_file_is_no_reference(tmp_path):
    (tmp_path / "ref.nc").write_bytes(b"")
    with pytest.raises(UserError, match="is a file; open it first"):
        mhrun.compare({"mine": {"beta": normal()}}, reference=str(tmp_path / "ref.nc"))


def test_labels_that_are_nowhere_the_same_are_compared_by_position():
    mine = labelled(1, [0, 5, 9], ["age", "dose", "weight"])
    with pytest.warns(
        UserWarning, match="differ, and it is compared by position: mine has age, dose, weight; ref"
    ):
        found = mhrun.compare({"mine": mine}, labelled(2, [0, 5, 9], ["x", "y", "z"]))
    assert found.loc["mine", "verdict"] == "agrees"
    for labels in (None, [0, 1, 2], [1, 2, 3]):  # no names
        found = mhrun.compare({"mine": mine}, labelled(2, [0, 5, 9], labels))
        assert found.loc["mine", "verdict"] == "agrees"


DAYS = np.array(["2020-01-01", "2020-02-01", "2020-03-01"], dtype="datetime64[s]")


@pytest.mark.parametrize(
    ("labels", "others"),
    [
        ([0, 1, 2], [2, 1, 0]),
        ([2, 1, 0], [0, 1, 2]),
        ([1.0, 2.0, 0.0], [0, 2, 1]),
        (["a", None, "b"], ["b", None, "a"]),
        (DAYS, DAYS[::-1].astype("datetime64[ns]")),
    ],
)
def test_labels_of_any_kind_are_matched(labels, others):
    places = [list(labels).index(label) for label in others]
    mine, other = (
        labelled(s, means, them)
        for s, means, them in ((1, [0, 5, 9], labels), (2, np.array([0, 5, 9])[places], others))
    )
    assert mhrun.compare({"mine": mine}, other).loc["mine", "verdict"] == "agrees"


def test_numbers_in_order_are_labels_where_another_trace_has_some_of_them():
    with pytest.warns(UserWarning, match="not compared: 0, 2 of mine"):
        found = mhrun.compare({"mine": labelled(1, [0, 5, 9, 3], [0, 1, 2, 3])}, labelled(2, [5, 3], [1, 3]))
    assert found.loc["mine", "verdict"] == "agrees"
    truths = labelled(1, [0, 5], [False, True]), labelled(2, [5, 0], [True, False])
    assert mhrun.compare({"mine": truths[0]}, truths[1]).loc["mine", "verdict"] == "agrees"


def test_a_trace_with_other_labels_leaves_those_of_the_others():
    given = {"a": labelled(1, [0, 5], ["x", "y"]), "b": labelled(2, [5, 0], ["y", "x"])}
    with pytest.warns(UserWarning, match="compared by position: a has x, y; b has y, x; c has u, v"):
        found = mhrun.compare({**given, "c": labelled(3, [0, 5], ["u", "v"])}, "a")
    assert found.loc["b", "verdict"] == found.loc["c", "verdict"] == "agrees"


@pytest.mark.parametrize("labels", [None, ["u", "v"]])
@pytest.mark.filterwarnings("ignore:The labels of beta")
def test_a_trace_without_the_labels_in_which_others_differ_is_refused(labels):
    given = {"a": labelled(1, [0, 5], ["x", "y"]), "b": labelled(2, [5, 3], ["y", "z"])}
    with pytest.raises(UserError, match=r"not in all traces \(x of a; z of b\), and c none of these labels"):
        mhrun.compare({**given, "c": labelled(3, [0, 5], labels)}, "a")


def test_constant_coordinates_have_no_part_in_the_verdict():
    mine, reference = ({"L": np.concatenate([np.ones((4, 2_000, 1)), normal(seed=s)], -1)} for s in (1, 2))
    assert mhrun.compare({"mine": mine}, reference).loc["mine", "verdict"] == "agrees"
    stuck = {"L": np.concatenate([normal(seed=3), normal(seed=4)], -1)}
    assert mhrun.compare({"mine": stuck}, reference).loc["mine", "verdict"] == "cannot tell"
    reference["L"][..., 0] += 1e-12 * normal(seed=7)[..., 0]  # rounding
    assert mhrun.compare({"mine": mine}, reference).loc["mine", "verdict"] == "agrees"


def test_draws_that_are_few_or_not_finite_have_no_verdict():
    broken = normal()
    broken[0, 5] = np.nan
    found = mhrun.compare({"broken": {"x": broken}, "few": {"x": normal(draws=5)}}, {"x": normal(seed=1)})
    assert list(found["verdict"]) == ["cannot tell", "cannot tell", "reference"]
    assert found.loc["broken", "why"] == "some of its draws are no finite numbers."
    assert found.loc["few", "why"] == "it has 5 valid draws of one chain, and 10 of each are needed."
    with pytest.raises(UserError, match="The reference cannot be used: it has 5 valid draws"):
        mhrun.compare({"mine": {"x": normal()}}, {"x": normal(draws=5)})
    apart = normal() + np.arange(4)[:, None, None]
    found = mhrun.compare({"mine": {"x": apart}}, {"x": normal(seed=1)})
    assert found.loc["mine", "verdict"] == "cannot tell"
    assert found.loc["mine", "why"].startswith("R-hat")


def test_arrays_with_more_chains_than_draws_are_refused_unless_their_dimensions_are_named():
    """As emcee returns them, (step, walker, dim), their effective sample size was 40 to 100 times too large."""
    turned = normal(chains=100, draws=200).swapaxes(0, 1)
    words = r"mine: x of shape \(200, 100, 1\) is, as \(chain, draw, ...\), 200 chains of 100 draws. Swap the first"
    with pytest.raises(UserError, match=words):
        mhrun.compare({"mine": {"x": turned}}, {"x": normal()})
    named = xr.DataArray(turned, dims=("draw", "chain", "dim"))
    assert mhrun.compare({"mine": {"x": named}}).loc["mine", "chains"] == 100


def test_a_coordinate_that_one_trace_rounds_away_is_named():
    """Without a line, draws that were off by a standard deviation agreed by their other coordinate."""
    good = {key: normal(seed=s) for s, key in enumerate(("mine", "reference"))}
    mine = {"x": normal(mean=10_000, sd=1e-3, seed=2).astype(np.float32), "y": good["mine"]}
    reference = {"x": normal(mean=10_000.001, sd=1e-3, seed=3), "y": good["reference"]}
    with pytest.warns(
        UserWarning, match=r"^x\[0\] of reference differ by less than the float32 numbers of another"
    ):
        mhrun.compare({"mine": mine}, reference)
    with pytest.raises(UserError, match="equal, but for rounding"):
        mhrun.compare({"mine": {"x": mine["x"]}}, {"x": reference["x"]})


@pytest.mark.parametrize("offset", [0.0, 1e6, 1.7e9])  # of a time stamp
def test_a_verdict_does_not_depend_on_the_origin(offset):
    """A parameter far from 0, of small standard deviation, is none that is constant but for rounding."""
    reference = {"when": normal(mean=offset, sd=0.05), "other": normal(seed=1)}
    apart = {"when": normal(mean=offset + 0.35, sd=0.05, seed=2), "other": normal(seed=3)}
    found = mhrun.compare({"apart": apart}, reference).loc["apart"]
    assert found["verdict"] == "differs"
    assert found["mean_off"] == pytest.approx(7.0, abs=0.2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_is_left_out_though_it_is_rounded(dtype):
    rounded = (1 + 2 * np.finfo(dtype).eps * np.sign(normal())).astype(dtype)
    reference = {"diagonal": rounded, "other": normal(seed=1).astype(dtype)}
    found = mhrun.compare({"mine": {"diagonal": rounded[::-1], "other": normal(seed=2)}}, reference)
    assert found.loc["mine", "verdict"] == "agrees"
    with pytest.raises(UserError, match="All draws of all traces are equal"):
        mhrun.compare({"mine": {"diagonal": rounded}}, {"diagonal": rounded})


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_draw_that_is_not_finite_leaves_no_parameter_out(value):
    broken = normal(mean=5.0, seed=2)
    broken[0, 0] = value
    found = mhrun.compare(
        {"mine": {"x": broken, "other": normal(seed=3)}}, {"x": normal(), "other": normal(seed=1)}
    )
    assert found.loc["mine", "verdict"] == "cannot tell"
    assert found.loc["mine", "why"] == "some of its draws are no finite numbers."


def test_networks_are_compared_by_predictions():
    mine, reference = (xr.DataArray(normal(dim=3, seed=s), dims=["chain", "draw", "datum"]) for s in (1, 2))
    mine[:, ::2] = np.nan  # not valid
    found = mhrun.compare({"sghmc": mine}, reference).loc["sghmc"]
    assert (found["verdict"], found["draws"]) == ("agrees", 1_000)
    weights = tree(theta=(["chain", "draw", "parameter"], normal()))
    weights.attrs["layers"] = "Linear(1, 1)"
    with pytest.warns(UserWarning, match="weights of a network differ by symmetries"):
        mhrun.compare({"net": weights}, {"theta": normal(seed=1)})


@pytest.mark.parametrize(
    ("traces", "reference", "message"),
    [
        ({}, None, "compare needs traces"),
        ({"beta": normal()}, None, "compare takes traces by name, and arrays as a mapping for each"),
        ({"mine": exact()}, "hmc", "reference = 'hmc' is not one of the traces, mine"),
        (
            {"mine": {"x": np.zeros(3)}},
            None,
            "mine: x is float64 of shape (3,); draws are numbers (chain, draw, ...)",
        ),
        (
            {"mine": {"x": np.zeros((4, 0, 2))}},
            None,
            "mine: x of shape (4, 0, 2), (chain, draw, ...), has no draws",
        ),
        (
            {"mine": {"x": np.zeros((0, 4, 2))}},
            None,
            "mine: x of shape (0, 4, 2), (chain, draw, ...), has no draws",
        ),
        (
            {"mine": {"x": normal(), "y": normal(draws=3)}},
            None,
            "mine: its variables have different chains and draws",
        ),
        ({"mine": xr.DataTree()}, None, "mine is a trace without draws"),
        ({"mine": 3.0}, None, "mine is a float; compare takes traces"),
        ({"mine": {"x": np.ones((4, 20))}}, {"x": np.ones((4, 20))}, "All draws of all traces are equal"),
        ({"reference": exact()}, exact(), "A trace is named 'reference'"),
    ],
)
def test_what_is_no_trace_is_refused(traces, reference, message):
    with pytest.raises(UserError, match=re.escape(message)):
        mhrun.compare(traces, reference)


@pytest.mark.slow
@short_run
def test_python_and_the_command_line_compare_alike(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["experiment=tunamh_mixture", "scale=smoke", "steps=600", "runtime.report=false"]
    assert run(words) == 0
    loaded = mhrun.load(next(tmp_path.glob("outputs/tunamh_mixture/*/config.yaml")).parent)
    first, second = loaded.methods[:2]
    capsys.readouterr()
    assert run(["compare", f"{loaded.path}:{first}", "--reference", f"{loaded.path}:{second}", "--json"]) == 0

    printed = json.loads(capsys.readouterr().out)["methods"][first]
    traces = {name: loaded.trace(name) for name in (first, second)}
    found = mhrun.compare(traces, second).loc[first]
    for key in ("verdict", "target", "rhat", "ess", "ess_tail", "evaluations", "draws", "chains"):
        assert found[key] == printed[key], key
    for key in ("mean_off", "sd_ratio", "energy_distance"):
        assert found[key] == pytest.approx(printed[key]["value"])
        se = printed[key]["se"]
        assert found[f"{key}_se"] == pytest.approx(np.nan if se is None else se, nan_ok=True)


def test_chains_that_stopped_have_no_part_in_means():
    """One begins where the gradient throws it out; what it had before is of any size."""
    with pytest.warns(UserWarning, match="chains became non-finite"):
        trace = mhrun.sample(
            lambda theta: -0.25 * theta[0] ** 4,
            None,
            mhrun.Unadjusted(mhrun.SGLD(), 1),
            start=[[0.0], [1.0], [40.0]],
            chains=3,
            step_size=0.01,
            steps=2_000,
            warmup=0,
            progress=False,
        )
    with pytest.warns(
        UserWarning, match="1 of 3 chains of mine stopped at a value that was not finite, and are left"
    ):
        found = mhrun.compare({"mine": trace}, {"theta": normal(dim=1)})
    assert abs(found.loc["mine", "mean_off"]) < 1
    with pytest.warns(
        UserWarning, match="1 of 3 chains stopped at a value that was not finite, and are left out"
    ):
        mean = mhrun.predict(trace, lambda theta, rows: theta[0] + 0 * rows[:, 0], np.zeros((1, 1)))
    assert abs(float(mean[0])) < 1
    with pytest.raises(UserError, match="All chains of mine stopped"):
        mhrun.compare({"mine": trace.isel(chain=[2])}, {"theta": normal(dim=1)})
    with pytest.raises(UserError, match="no draw of the trace is valid; its chains stopped"):
        mhrun.predict(trace.isel(chain=[2]), lambda theta, rows: theta[0] + 0 * rows[:, 0], np.zeros((1, 1)))
