"""Runs side by side: numbers of the traces, the page, and arguments that are refused."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import shutil

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from arviz_stats.base.array import array_stats
from kit import FEW, compute, contents, short_run

import mhrun
from mhrun.cli.main import run
from mhrun.diagnostics.grid import Estimate
from mhrun.kernels import MetropolisHastings
from mhrun.models.function import FunctionModel
from mhrun.pairing.full import Full
from mhrun.proposals.random_walk import RandomWalk
from mhrun.report.comparison.compare import compare
from mhrun.report.comparison.figures import figure
from mhrun.report.comparison.notes import mentioned
from mhrun.report.comparison.rows import rows_of, run_names
from mhrun.report.convergence import convergence_warnings
from mhrun.rules.metropolis import Metropolis
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import parameter_names


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
    assert mint["ess_per_million"] == pytest.approx(min(sizes) / 0.24)
    assert mint["ess_per_second"] == pytest.approx(min(sizes) / mint["seconds"])
    assert mint["acceptance"] == one.summary()["methods"]["mint"]["accept_rate"]
    sghmc = found["methods"][names[1]]
    assert sghmc["acceptance"] is None
    assert sghmc["evaluations"] == 4 * 300 * 100  # gradients
    assert found["methods"][names[2]]["draws"] == 150
    assert found["runs"][names[2].split(":")[0]]["unlike the first"] == "thin = 2 (first: 1); seed = 1"
    assert "mean" not in mint
    assert "page    outputs/compare/" in captured.err


@pytest.mark.slow
def test_the_page_has_a_table_a_figure_and_what_to_know(there, capsys):
    one, two, other = there
    arguments = ["compare", *(f.digest for f in there), "--reference", f"{one.digest}:mint"]
    assert run(arguments) == 0
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
    # One label for each method, its reason in a line, the rule under the table.
    # Of sghmc T is another
    expected = ["reference", "another distribution", "cannot tell", "another distribution"]
    assert list(table["verdict"].iloc[:4]) == expected
    assert table["verdict"].iloc[4] == "another distribution"
    assert f"{two.digest[:6]}: mint: cannot tell: R-hat" in captured.err
    assert f"{other.digest[:6]}: mint: another distribution than that of the reference: T = " in captured.err
    assert re.search(r"(?m)^verdict +Means and standard deviations of 2 coordinates", captured.out)
    assert re.search(r"<td[^>]*>\s*cannot tell", text)
    before = {p: p.stat().st_mtime_ns for p in place.iterdir()}
    assert run([*arguments, "--csv"]) == 0
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
    assert found["methods"][f"{one.path}: mint"]["mean_off"]["value"] == 0.0


@pytest.mark.slow
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
    ("arguments", "message"),
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
        (
            ["gmm_tied_means:mint", "--reference=sghmc", "--tolerance=", "gmm_tied_means"],
            "--tolerance (nothing) must be a positive number",
        ),
        (["gmm_tied_means", "--equal-cost=0"], "--equal-cost=0 must be a positive number of evaluations"),
        (
            ["gmm_tied_means", "--equal-cost=many"],
            "--equal-cost=many must be a positive number of evaluations",
        ),
        (["gmm_tied_means", "seed=1"], "is not an option here"),
    ],
)
def test_mistakes_get_one_line(there, capsys, arguments, message):
    assert run(["compare", *arguments]) == 2
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


def test_reasons_of_verdicts_are_not_repeated(there, capsys):
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


@pytest.mark.slow
@short_run
def test_a_user_rule_is_exact_as_declared_in_every_table(tmp_path, monkeypatch, capsys):
    for name in ("MHRUN_TRUST", "MHRUN_FOLDERS"):
        monkeypatch.setenv(name, "")
    (tmp_path / "ownexact.py").write_text(
        "from mhrun.rules.metropolis import Metropolis\n"
        "class Mine(Metropolis):\n"
        "    def __init__(self, scale, names=()): self.scale, self.names = scale, names\n"
    )
    outputs = f"runtime.outputs={tmp_path / 'outputs'}"
    arguments = ["data=gaussian", "data.n=50", "model=gaussian_mean", "chains=2", "steps=300", outputs]
    arguments += ["+method@methods.mcmc=mcmc", "+method@methods.mine=mcmc", "runtime.threads=1"]
    arguments += ["methods.mine.kernel.rule._target_=ownexact.Mine"]
    arguments += ["+methods.mine.kernel.rule.scale=1e-5", "+methods.mine.kernel.rule.names=[a b,'1']"]
    assert run(["--project", str(tmp_path), *arguments]) == 0
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


@pytest.mark.slow
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
    arguments = [
        "data=table",
        "data.file=rows.csv",
        "data.target=y",
        "data.outcome=sign",
        "data.intercept=true",
    ]
    arguments += [
        "model=logistic",
        "model.dim=3",
        "+method@methods.mcmc=mcmc",
        "+method@methods.mala=mala",
        "steps=300",
    ]
    assert (
        run(["--project", str(home), *arguments, "runtime.report=false", "runtime.threads=1", outputs]) == 0
    )
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
