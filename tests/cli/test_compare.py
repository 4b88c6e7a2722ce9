"""Runs side by side: numbers of the traces, distances that are what they claim, words that are refused."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import shutil
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from arviz_stats.base.array import array_stats
from kit import FEW, compute, contents, short_run
from scipy.stats import norm

import mhrun
from mhrun.cli.comparing import _by_method
from mhrun.cli.main import run
from mhrun.diagnostics.distances import energy_distance, shifts
from mhrun.diagnostics.grid import Estimate
from mhrun.kernels import MetropolisHastings
from mhrun.models.function import FunctionModel
from mhrun.pairing.full import Full
from mhrun.proposals.random_walk import RandomWalk
from mhrun.report.compare import Comparison, compare
from mhrun.report.compared_rows import Row, rows_of, run_names, unlike
from mhrun.report.comparison_figures import figure
from mhrun.report.comparison_notes import better, doubts, mentioned, small_errors
from mhrun.report.comparison_page import finding, table
from mhrun.report.convergence import convergence_warnings
from mhrun.rules.metropolis import Metropolis
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import parameter_names


def autoregressive(rng, chains, steps, rho, dim=1):
    """Draws of stationary AR(1) chains with variance 1: (chains, steps, dim)."""
    draws = rng.normal(size=(chains, steps, dim))
    for t in range(1, steps):
        draws[:, t] = rho * draws[:, t - 1] + np.sqrt(1 - rho**2) * draws[:, t]
    return draws


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({}, ""),
        ({"a": (1.3, 5.0), "b": (1.2, 4.0)}, "No method has converged: R-hat is 1.200 at least."),
        ({"a": (1.0, 5.0)}, "a has 5 effective draws per million evaluations."),
        (
            {"a": (1.0, 5.0), "b": (1.2, 9.0)},
            "a has 5 effective draws per million evaluations, and no other method has converged; not converged, "
            "but with more: b has 9 (R-hat 1.200).",
        ),
        (
            {"a": (1.0, 5.0), "b": (1.0, 9.0), "c": (1.0, 3.0)},
            "b has 9 effective draws per million evaluations, 1.800 times as many as the next of 3 "
            "that have converged.",
        ),
    ],
)
def test_the_finding_names_the_most_efficient_method_that_converged(rows, sentence):
    rows = {name: {"rhat": rhat, "per_million": rate} for name, (rhat, rate) in rows.items()}
    assert finding(Comparison(rows, {}, [], None)) == sentence


# --- Distances ----------------------------------------------------------------------------------------------


def exact_energy(shift):
    """The energy distance of N(0, 1) and N(shift, 1), from the mean of a folded normal variable."""
    s = np.sqrt(2)
    folded = s * np.sqrt(2 / np.pi) * np.exp(-(shift**2) / 4) + shift * (1 - 2 * norm.cdf(-shift / s))
    return 2 * folded - 4 / np.sqrt(np.pi)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_energy_distance_has_no_bias_though_chains_are_correlated(rng, shift):
    """Mean over 200 pairs of sets within four standard errors: false alarm once in 16,000."""
    found = [
        energy_distance(autoregressive(rng, 5, 60, 0.8) + shift, rng.normal(size=(6, 400, 1)) / 1.0)
        for _ in range(200)
    ]
    values = np.array([f.value for f in found])
    # The scale is that of the reference, which is itself estimated, to 2 % at most.
    assert abs(values.mean() - exact_energy(shift)) < 4 * values.std() / np.sqrt(200) + 0.01 * exact_energy(
        shift
    )
    errors = np.array([f.se for f in found])
    assert 0.7 < np.sqrt(np.mean(errors**2)) / values.std() < 2.0


def test_the_energy_distance_of_few_chains(rng):
    draws = rng.normal(size=(3, 50, 2))
    assert np.isnan(energy_distance(draws[:1], draws).value)
    assert np.isnan(energy_distance(draws[:2], draws).se)
    assert np.isfinite(energy_distance(draws[:2], draws).value)
    assert np.isnan(energy_distance(draws, np.zeros((3, 50, 2))).value)
    # The order of the chains, and the unit of a coordinate, are nothing to it.
    one = energy_distance(draws, draws[:, ::-1] * 2)
    two = energy_distance(draws[::-1] * [1, 1000], draws[:, ::-1] * [2, 2000])
    assert one.value == pytest.approx(two.value)
    assert one.se == pytest.approx(two.se)


def test_shifts_are_within_their_errors(rng):
    """Coordinates of variance 4 about 3 beside those of variance 1 about 0; 300 of them, each within its errors."""
    draws = 3 + 2 * autoregressive(rng, 4, 400, 0.7, 150)
    reference = autoregressive(rng, 4, 400, 0.3, 150)
    found = shifts(draws, reference)
    mean = (found.mean - 3) / found.mean_se
    spread = (found.spread - 2) / found.spread_se
    for z in (mean, spread):
        assert 0.8 < np.sqrt(np.mean(z**2)) < 1.25
    worst, wide = found.worst()
    assert worst.value == pytest.approx(np.abs(found.mean).max())
    assert wide.value == found.spread.max()
    assert np.isnan(shifts(np.zeros((2, 9, 1)), np.zeros((2, 9, 1))).worst()[0].value)


# --- The command --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two runs that differ in their seed, one of another target, one of another model."""
    outputs = tmp_path_factory.mktemp("kept") / "outputs"
    short = (*FEW, "steps=300", "warmup=100")
    return outputs, [
        compute(outputs, *short),
        compute(outputs, *short, "seed=1", "thin=2"),
        compute(outputs, *short, "lam=0.2"),
    ]


@pytest.fixture(autouse=True)
def _rendered_once(request):
    if request.node.name != "test_the_page_has_a_table_a_figure_and_what_to_know":
        request.getfixturevalue("unrendered")


@pytest.fixture
def there(kept, tmp_path, monkeypatch):
    outputs, folders = kept
    shutil.rmtree(outputs / "compare", ignore_errors=True)
    monkeypatch.chdir(outputs.parent)
    return folders


def test_runs_are_compared_by_what_their_traces_say(there, capsys):
    one, two, _ = there
    assert run(["compare", str(one.path), two.digest[:6], "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    names = [f"gmm_tied_means/{folder.digest[:6]}: {m}" for folder in (one, two) for m in ("mint", "sghmc")]
    assert list(found["methods"]) == names
    theta = contents(one, "mint")["/posterior/theta"]
    mint = found["methods"][names[0]]
    sizes = [float(array_stats.ess(theta[..., d], method="bulk")) for d in range(2)]
    assert mint["ess"] == pytest.approx(min(sizes))
    assert mint["rhat"] == pytest.approx(max(float(array_stats.rhat(theta[..., d])) for d in range(2)))
    assert mint["evaluations"] == 4 * 300 * 200  # after burn-in, two points on 100 data
    assert mint["per_million"] == pytest.approx(min(sizes) / 0.24)
    assert mint["per_second"] == pytest.approx(min(sizes) / mint["seconds"])
    assert mint["acceptance"] == one.summary()["methods"]["mint"]["accept_rate"]
    sghmc = found["methods"][names[1]]
    assert sghmc["acceptance"] is None
    assert sghmc["evaluations"] == 4 * 300 * 100  # gradients
    assert found["methods"][names[2]]["draws"] == 150
    assert found["runs"][names[2].split(":")[0]]["unlike the first"] == "thin = 2 (first: 1); seed = 1"
    assert "mean" not in mint
    assert "page    outputs/compare/" in captured.err


def test_the_page_has_a_table_a_figure_and_what_to_know(there, capsys):
    one, two, other = there
    words = ["compare", *(f.digest for f in there), "--reference", f"{one.digest}:mint"]
    assert run(words) == 0
    captured = capsys.readouterr()
    page = there[0].path.parents[1] / "compare"
    (place,) = page.iterdir()
    text = (place / "index.html").read_text()
    assert text.count("<figure>") == 2  # marks of all methods, and errors against cost
    sentences = re.search(r'class="finding">([^<]*)<', text)[1]
    assert sentences.startswith("No verdict on 1 method (gmm_tied_means/")  # these chains are short
    assert re.search(r'class="soft">Verdicts: Means and standard deviations of 2 coordinates', text)
    assert "No method has converged" in sentences
    assert '<th title="Mean of the coordinate that is furthest off' in text
    assert "another temperature than" in text
    assert matplotlib.image.imread(place / "compare.png").shape[0] > 200
    table = pd.read_csv(place / "compare.csv", index_col=0)
    assert len(table) == 6
    assert np.isnan(table["energy distance"].iloc[0])
    assert table["energy distance (se)"].iloc[1:].notna().all()
    # Another seed has the same distribution: within five of its errors. Another temperature has not.
    rows = table.loc[[i for i in table.index if i.endswith(": mint")]]
    assert abs(rows["mean off by (sd)"].iloc[1]) < 5 * rows["mean off by (sd) (se)"].iloc[1]
    assert re.search(
        rf"gmm_tied_means/{other.digest[:6]}: mint.*: another temperature than .*what they sample differs",
        captured.err,
    )
    assert "  mint" in captured.out
    assert "Mean of the coordinate" not in captured.out
    assert "columns explained by --explain" in captured.out
    assert "Tempered: gmm_tied_means" in captured.err
    assert "Distances between different T measure the temperature too." in captured.err
    assert re.search(r"The reference \S+ mint has R-hat [\d.]+", captured.err)
    # One word for each method, its reason in a line, the rule under the table.
    expected = [
        "reference",
        "another distribution",
        "cannot tell",
        "another distribution",
    ]  # of sghmc T is another
    assert list(table["verdict"].iloc[:4]) == expected
    assert table["verdict"].iloc[4] == "another distribution"
    assert f"{two.digest[:6]}: mint: cannot tell: R-hat" in captured.err
    assert f"{other.digest[:6]}: mint: another distribution than that of the reference: T = " in captured.err
    assert re.search(r"(?m)^verdict +Means and standard deviations of 2 coordinates", captured.out)
    assert re.search(r"<td[^>]*>\s*cannot tell", text)
    before = {p: p.stat().st_mtime_ns for p in place.iterdir()}
    assert run([*words, "--csv"]) == 0
    assert pd.read_csv(io.StringIO(capsys.readouterr().out), index_col=0).shape == table.shape
    assert list(page.iterdir()) == [place]
    assert before.keys() == dict.fromkeys(place.iterdir(), 0).keys()


def test_a_run_may_be_named_by_its_experiment(there, capsys):
    assert run(["compare", "gmm_tied_means:mint", "--json"]) == 0
    (name,) = json.loads(capsys.readouterr().out)["methods"]
    assert name == "mint"
    one, two, _ = there
    assert run_names([one, one]) == {one.path: "gmm_tied_means"}
    assert set(run_names([one, two]).values()) == {f"gmm_tied_means/{f.digest[:6]}" for f in (one, two)}


def test_figures_have_the_labels_of_methods(there):
    (one, *_), names = there, ("mint", "sghmc")
    rows = rows_of([(one, None)])
    found = compare(rows, rows[0])
    assert found.labels == {"mint": "MINT", "sghmc": "SGHMC"}
    drawn = figure(found)
    assert [text.get_text() for text in drawn.axes[0].get_yticklabels()] == ["MINT", "SGHMC"]
    assert "reference" in [text.get_text() for text in drawn.axes[2].texts]
    assert drawn.axes[2].get_xlabel().endswith("MINT")
    assert set(found.rows) == set(names)
    colons = found._replace(labels={"mint": "MINT: m = 50", "sghmc": "MINT: m = 100"})
    assert [text.get_text() for text in figure(colons).axes[0].get_yticklabels()] == [
        "MINT: m = 50",
        "MINT: m = 100",
    ]


def test_the_same_run_in_two_folders_is_two_runs(there, tmp_path, capsys):
    one = there[0]
    copy = tmp_path / "elsewhere" / one.path.parent.name / one.path.name
    shutil.copytree(one.path, copy)
    assert run(["compare", f"{one.path}:mint", "--reference", f"{copy}:mint", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reference"] == f"{copy}: mint"
    assert found["methods"][f"{one.path}: mint"]["mean"]["value"] == 0.0


def test_each_compared_run_is_described(there, capsys):
    """Digest, scale and settings of each run, and that a name stands for the newest of several."""
    one, two, three = there
    assert run(["compare", "gmm_tied_means:mint"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    newest = max(there, key=lambda r: (r.path / "summary.json").stat().st_mtime_ns)  # they end in one second
    assert line.startswith(f"run     gmm_tied_means/{newest.digest}, smoke scale, ")
    assert line.endswith("; newest of 3: give the folder to compare another")
    assert run(["compare", str(one.path), two.digest, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    assert captured.err.splitlines()[:2] == [
        f"run     gmm_tied_means/{one.digest}, smoke scale, seed = 0, thin = 1",
        f"run     gmm_tied_means/{two.digest}, smoke scale, seed = 1, thin = 2",
    ]
    assert run(["compare", one.digest, three.digest]) == 0
    assert f"run     gmm_tied_means/{three.digest}, smoke scale, lam = 0.2, " in capsys.readouterr().out


def test_a_method_that_another_run_lacks_is_one_setting():
    others = [{"methods": {"mcmc": {}}}, {"methods": {"mcmc": {}, "smh2": {}}}]
    settings = {
        "methods.smh2.kernel.rule": 1,
        "seed": 3,
        "methods.smh2.target": 2,
        "methods.mcmc.kernel.m": None,
    }
    found = {"with smh2": None, "seed": 3, "methods.mcmc.kernel.m": "null"}
    assert _by_method(settings, others) == found


def test_a_comparison_warns_of_r_hat_and_of_few_effective_draws(there, capsys):
    rows = {
        "a": {"rhat": 1.016, "ess": 302.0, "ess_tail": 90.0},
        "b": {"rhat": 1.001, "ess": 900.0, "ess_tail": None},
        "c": {"rhat": Estimate(1.3, 0.1), "ess": 5.0},
        "d": {"rhat": math.nan, "ess": math.nan},
    }
    assert convergence_warnings(rows) == [
        "R-hat above 1.01: c (1.300), a (1.016). These chains have not converged.",
        "ESS below 400: c (5), a (302). Means and quantiles are imprecise.",
    ]
    assert convergence_warnings({"b": {"rhat": 1.001, "ess": 900.0, "ess_tail": 90.0}}, str.upper) == [
        "Tail ESS below 400: B (90). Standard deviations and the 5 % and 95 % quantiles are imprecise.",
    ]
    assert run(["compare", there[0].path.name, "--json"]) == 0
    captured = capsys.readouterr()
    assert "ESS below 400" in captured.err or "R-hat above 1.01" in captured.err
    assert json.loads(captured.out)["notes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "compare needs runs"),
        (["gmm_tied_mean"], "'gmm_tied_mean' is not a run"),
        (["gmm_tied_mean:mint"], "Did you mean 'gmm_tied_means'?"),
        (["gmm_tied_means:mnt"], "has no method 'mnt'; it has mint, sghmc"),
        (["gmm_tied_means", "--reference"], "--reference needs a run"),
        (
            ["gmm_tied_means", "--reference", "gmm_tied_means"],
            "has several methods; choose gmm_tied_means:mint, ",
        ),
        (["gmm_tied_means", "--reference", "sghmc"], "use --reference gmm_tied_means:sghmc."),
        (["gmm_tied_means:mint", "--reference=sghmc"], "use --reference gmm_tied_means:sghmc."),
        (["gmm_tied_means", "--reference", "mcmc"], "'mcmc' is not a run"),
        (["gmm_tied_means", "--all"], "There is no option '--all'"),
        (["gmm_tied_means", "--equal-cost=0"], "--equal-cost=0 must be a positive number of evaluations"),
        (
            ["gmm_tied_means", "--equal-cost=many"],
            "--equal-cost=many must be a positive number of evaluations",
        ),
        (["gmm_tied_means", "seed=1"], "is not an option here"),
    ],
)
def test_mistakes_get_one_line(there, capsys, words, message):
    assert run(["compare", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (there[0].path.parents[1] / "compare").exists()


def test_what_cannot_be_compared_is_refused(there, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(there[0].path, copy)
    (copy / "summary.json").write_text("{}")
    assert run(["compare", str(copy)]) == 2
    assert "is not complete" in capsys.readouterr().err
    other = compute(tmp_path / "outputs", *FEW, "model=gaussian_mean", "data=gaussian", "steps=60", "warmup=50",
                    "~methods.sghmc")  # fmt: skip
    assert run(["compare", str(there[0].path), str(other.path)]) == 2
    err = capsys.readouterr().err
    assert "with other names; compare runs of one model" in err
    assert err.count("\n") == 1


def test_methods_without_draws_are_reported_by_what_they_cost(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bare = compute(tmp_path / "outputs", *FEW, "steps=60", "warmup=50", "thin=null")
    assert run(["compare", bare.digest, "--json"]) == 0
    captured = capsys.readouterr()
    mint = json.loads(captured.out)["methods"]["mint"]
    assert mint["ess"] is None
    assert mint["evaluations"] == 4 * 60 * 200
    assert "mint, sghmc: no draws were kept" in captured.err
    assert run(["compare", bare.digest, "--reference", "gmm_tied_means:mint"]) == 2
    assert "is not a reference: no draws were kept" in capsys.readouterr().err
    assert RunFolder(bare.path).is_complete()


@pytest.mark.parametrize(
    ("schedules", "rungs", "same"),
    [
        ({"step_size": {"start": 0.1}}, 1, True),  # no temperature is a temperature of 1
        ({"temperature": {"temperature": 1}}, 1, True),
        ({"temperature": {"temperature": [1.0, 1.0, 1.0, 1.0]}}, 1, True),
        (
            {"temperature": {"temperature": [1.0, 2.0, 1.0, 2.0]}},
            2,
            True,
        ),  # the draws are of the coldest rung
        ({"temperature": {"temperature": [1.0, 2.0, 1.0, 2.0]}}, 1, False),
        ({"temperature": {"temperature": 2.0}}, 1, False),
        ({"temperature": {"at": [10], "temperature": [2.0, 1.0]}}, 2, False),
    ],
)
def test_the_temperature_of_draws_is_distinguished_only_where_it_differs(schedules, rungs, same):
    methods = {"one": {"schedules": {"temperature": {"temperature": 1.0}}}, "other": {"schedules": schedules}}
    config = {"model": {}, "data": {}, "target": {}, "methods": methods}
    run = SimpleNamespace(config=config, rungs=lambda name: rungs if name == "other" else 1)
    one, other = (Row(run, name, name) for name in methods)
    assert unlike(one, other) == ([] if same else ["temperature"])


@pytest.mark.parametrize(
    ("rhat", "line"),
    [
        (1.9, "R-hat 1.900: its chains have not converged, so that distances from it do not measure"),
        (1.05, "R-hat 1.050, above 1.01: a part of each distance may be its error"),
        (math.nan, "has no R-hat"),
    ],
)
def test_a_reference_that_has_not_converged_is_marked(rhat, line):
    assert line in doubts("a: mcmc", rhat)[0]
    assert doubts("a: mcmc", 1.005) == []


def test_what_a_verdict_has_said_is_not_said_again(there, capsys):
    rows = {
        "a": {
            "rhat": 1.016,
            "ess": 302.0,
            "verdict": "cannot tell",
            "verdict_reason": "R-hat 1.016, reference: ESS 50",
        },
        "b": {
            "rhat": 1.02,
            "ess": 302.0,
            "verdict": "another distribution",
            "verdict_reason": "T = 5 (reference: 1)",
        },
        "ref": {"rhat": 1.001, "ess": 50.0, "verdict": "reference", "verdict_reason": ""},
    }
    named = mentioned(rows, "ref", has_doubts=False)
    assert convergence_warnings(rows, except_rhats=named.rhats, except_sizes=named.sizes) == [
        "R-hat above 1.01: b (1.020). These chains have not converged.",
        "ESS below 400: b (302). Means and quantiles are imprecise.",
    ]
    one, two, _ = there
    assert (
        run(["compare", one.digest, f"{two.digest}:mint", "--reference", f"{one.digest}:mint", "--explain"])
        == 0
    )
    captured = capsys.readouterr()
    assert re.search(r"(?m)^mean off by \(sd\) +Mean of the coordinate that is furthest off", captured.out)
    assert "--explain" not in captured.out
    assert captured.err.count("cannot tell: R-hat") == 1  # the others are of another temperature
    assert "mint" not in re.search(r"R-hat above 1.01: (.*)|$", captured.err)[0]
    legend, tables = (
        captured.out.index("Bulk effective sample size"),
        captured.out.index("acceptance  data/step"),
    )
    assert legend < tables < captured.out.index("page    ")


def test_a_better_reference_is_named():
    rows = {
        "mcmc": {"rhat": 1.02, "ess": 500.0, "target": "exact"},
        "sgld": {"rhat": 1.0, "ess": 5000.0, "target": "approximate"},
        "hmc": {"rhat": 1.001, "ess": 900.0, "target": "exact"},
        "mala": {"rhat": 1.0005, "ess": 90.0, "target": "exact"},
    }
    assert better(rows, "mcmc") == " Take hmc as the reference: it is exact, and its R-hat is 1.001."
    assert better(rows, "hmc") == ""
    assert "error. Take hmc" in doubts("mcmc", 1.02, better(rows, "mcmc"))[0]


def test_settings_of_the_computation_make_no_other_target():
    """SMH and MH-SS have a surrogate in their settings of the target, whose density is the same."""
    method = {"schedules": {}}
    config = {"model": {}, "data": {}, "target": {"temper": "posterior"}}
    config["methods"] = {
        "mcmc": method,
        "smh2": method | {"target": {"temper": "posterior", "surrogate": "taylor2"}},
        "cold": method | {"target": {"temper": "likelihood"}},
    }
    run = SimpleNamespace(config=config, rungs=lambda name: 1)
    mcmc, smh2, cold = (Row(run, name, name) for name in config["methods"])
    assert unlike(mcmc, smh2) == []
    assert unlike(mcmc, cold) == ["target"]


def test_the_efficiency_of_a_method_that_is_too_short_is_left_out_of_the_table():
    row = {"per_million": 5.0, "per_second": 2.0}
    rows = {"a": row | {"rhat": 1.0, "ess": 500.0}, "b": row | {"rhat": 1.02, "ess": 500.0}}
    frame = table(Comparison(rows | {"c": row | {"rhat": 1.0, "ess": 100.0}}, {}, [], None))
    assert [x is None for x in frame["ESS per second"]] == [False, True, True]
    assert [x is None for x in frame["ESS per 10^6 evaluations"]] == [False, True, True]


def test_the_finding_begins_with_the_verdicts():
    rows = {
        "a": {"rhat": 1.0, "per_million": 5.0, "verdict": "reference"},
        "b": {"rhat": 1.0, "per_million": 4.0, "verdict": "agrees"},
        "c": {"rhat": 1.2, "per_million": 4.0, "verdict": "cannot tell"},
    }
    sentence = finding(Comparison(rows, {}, [], "a"))
    assert sentence.startswith(
        "1 method (b) agrees with a (to 0.25 sd); no verdict on 1 method (c) against a. a has 5 effective"
    )


def test_the_most_efficient_method_is_compared_with_those_that_are_right():
    row = {"rhat": 1.0, "ess": 900.0, "target": "exact"}
    rows = {
        "a": row | {"per_million": 100.0, "verdict": "reference"},
        "b": row | {"per_million": 50.0, "verdict": "differs", "target": "approximate"},
        "c": row | {"per_million": 400.0, "verdict": "differs (short run)", "target": "approximate"},
        "d": row | {"per_million": 20.0, "verdict": "agrees", "target": "approximate"},
    }
    sentence = finding(Comparison(rows, {}, [], "a"))
    assert "1 method (c) differs from a in a short run" in sentence
    assert (
        "a has 100 effective draws per million evaluations, 5 times as many as the next of 2 that are exact or agree."
        in sentence
    )
    for about in rows.values():
        del about["verdict"]
    assert (
        finding(Comparison(rows, {}, [], None))
        == "a has 100 effective draws per million evaluations, the only exact method that converged."
    )


def test_a_method_that_is_exact_by_declaration_is_compared_as_an_exact_one():
    common = {"rhat": 1.0, "ess": 900, "evaluations": 1e6}
    rows = {
        "a": {"target": "exact (declared)", "per_million": 100, **common},
        "b": {"target": "approximate", "per_million": 500, **common},
    }
    assert finding(Comparison(rows, {}, [], None)).endswith(
        "the only exact (declared) method that converged."
    )
    assert "Take a as the reference: it is exact (declared), and its R-hat" in better(rows, "b")
    rows["c"] = {"target": "exact", "per_million": 50, **common, "rhat": 1.005}
    assert "Take c as the reference: it is exact, and its R-hat" in better(rows, "b")


@short_run
def test_a_rule_of_the_users_own_is_exact_as_declared_in_every_table(tmp_path, monkeypatch, capsys):
    for name in ("MHRUN_TRUST", "MHRUN_FOLDERS"):
        monkeypatch.setenv(name, "")
    (tmp_path / "ownexact.py").write_text(
        "from mhrun.rules.metropolis import Metropolis\n"
        "class Mine(Metropolis):\n"
        "    def __init__(self, scale, names=()): self.scale, self.names = scale, names\n"
    )
    outputs = f"runtime.outputs={tmp_path / 'outputs'}"
    words = ["data=gaussian", "data.n=50", "model=gaussian_mean", "chains=2", "steps=300", outputs]
    words += ["+method@methods.mcmc=mcmc", "+method@methods.mine=mcmc", "runtime.threads=1"]
    words += ["methods.mine.kernel.rule._target_=ownexact.Mine"]
    words += ["+methods.mine.kernel.rule.scale=1e-5", "+methods.mine.kernel.rule.names=[a b,'1']"]
    assert run(["--project", str(tmp_path), *words]) == 0
    out = capsys.readouterr().out
    command = re.search(r"^exact \(declared\): (mhrun check .*) tests whether it is$", out, re.MULTILINE)[1]
    found = ["--project", str(tmp_path), "ownexact.Mine", "scale=1.0e-05", "names=[a b, '1']"]
    assert shlex.split(command) == ["mhrun", "check", *found]
    rows = [line for line in out.splitlines() if line.startswith("MCMC (")]
    assert ["exact (declared)" in row for row in rows if " exact " in row] == [False, True]
    assert run(["compare", "own", "--reference", "own:mcmc", "--json", outputs]) == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    assert {name: row["target"] for name, row in methods.items()} == {
        "mcmc": "exact",
        "mine": "exact (declared)",
    }
    assert run([*shlex.split(command)[1:], "checks=costs"]) == 0
    assert "no check fails" in capsys.readouterr().out


def test_an_approximate_method_that_agrees_is_named_with_its_expected_error():
    class Run:
        def kind(self, method):
            return {"hmc": "exact"}.get(method, "approximate")

        def expected_error(self, method):
            return {"sgld_cv": "sd up to 5% too large by its settings if the posterior is normal"}.get(
                method, ""
            )

    rows = [Row(Run(), name, f"own: {name}") for name in ("hmc", "sgld_cv", "mint", "sgld")]
    verdicts = {"hmc": "agrees", "sgld_cv": "agrees", "mint": "agrees", "sgld": "differs"}
    found = {f"own: {name}": {"verdict": verdict} for name, verdict in verdicts.items()}
    (line,) = small_errors(found, rows, 0.1)
    assert line == (
        "Approximate, though they agree: own: sgld_cv (sd up to 5% too large by its settings if the "
        "posterior is normal), own: mint. A verdict "
        "does not see differences far below 0.1 sd."
    )
    assert small_errors(found, rows[::3], 0.1) == []


@short_run
def test_runs_are_compared_without_their_data_and_project(tmp_path, monkeypatch, capsys, rng):
    """Traces have all that a comparison needs; the command that a run prints works wherever it is typed."""
    home = tmp_path / "mine"
    home.mkdir()
    x = rng.normal(size=(80, 2))
    rows = np.column_stack([x, (rng.random(80) < 0.5)])
    np.savetxt(home / "rows.csv", rows, delimiter=",", header="a,b,y", comments="", fmt="%.6g")
    for name in ("MHRUN_TRUST", "MHRUN_FOLDERS"):
        monkeypatch.setenv(name, "")
    outputs = f"runtime.outputs={tmp_path / 'outputs'}"
    words = ["data=table", "data.file=rows.csv", "data.target=y", "data.outcome=sign", "data.intercept=true"]
    words += [
        "model=logistic",
        "model.dim=3",
        "+method@methods.mcmc=mcmc",
        "+method@methods.mala=mala",
        "steps=300",
    ]
    assert run(["--project", str(home), *words, "runtime.report=false", "runtime.threads=1", outputs]) == 0
    (home / "rows.csv").unlink()
    for name in ("MHRUN_TRUST", "MHRUN_FOLDERS"):
        monkeypatch.setenv(name, "")
    capsys.readouterr()
    assert run(["compare", "own", "--reference", "own:mcmc", "--json", outputs]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["methods"]) == {"mcmc", "mala"}
    assert found["methods"]["mala"]["verdict"]


@short_run
def test_a_trace_names_its_parameters_as_the_model_does(tmp_path):
    settings = {
        "slopes": {"prior": "Normal(0, 1)", "dims": {"feature": ["age", "dose"]}},
        "cells": {"shape": [2, 2]},
    }
    model = FunctionModel(
        lambda theta, rows: -0.5 * (rows.y - theta.slopes.sum() - theta.cells.sum()) ** 2,
        parameters=settings,
        log_prior=lambda theta: -0.5 * theta.cells.square().sum(),
    )
    trace = mhrun.sample(model, {"y": np.zeros(5)}, MetropolisHastings(RandomWalk(), Full(), Metropolis()),
                         step_size=0.1, steps=10, warmup=0, chains=2)  # fmt: skip
    assert parameter_names(trace["posterior"].to_dataset()) == list(model.names)
    assert "slopes[dose]" in model.names


def test_a_folder_of_sample_is_for_python(there, tmp_path, capsys):
    place = tmp_path / "sampled"
    place.mkdir()
    (place / "trace.nc").touch()
    assert run(["compare", str(place)]) == 2
    assert "holds a trace of mhrun.sample, not a run; compare it from Python" in capsys.readouterr().err
