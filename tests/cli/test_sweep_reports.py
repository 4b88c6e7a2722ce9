"""Figures, tables, notes and claims that an experiment declares for its sweeps."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest
from sweeps import BARE, OVERRIDES, QUICK, enter, the_sweep

from mhrun.cli.main import run
from mhrun.store.folder import runs

# Tests that look at figures; the others read text, tables and files.
RENDERED = {
    "test_a_sweep_has_what_its_experiment_declares",
}


@pytest.fixture(autouse=True)
def _here(request, tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    if request.node.name not in RENDERED:
        request.getfixturevalue("unrendered")


OURS = """
import numpy as np
from matplotlib import pyplot as plt
import numpy as np
import pandas as pd


def metrics(runs):
    return {"rates": float(sum(run.methods["mint"]["accept_rate"] > 0 for run in runs)), "none": float("nan")}


def rates(runs):
    \"\"\"Acceptance of each.

    All of them.
    \"\"\"
    figure, axis = plt.subplots()
    axis.plot([run.config["lam"] for run in runs], [run.methods["mint"]["accept_rate"] for run in runs])
    return figure


def table(runs):
    \"\"\"Settings of each.\"\"\"
    return pd.DataFrame({"lam": [run.config["lam"] for run in runs]})


def notes(runs):
    return [f"{len(runs)} runs & no more"]


def broken(runs):
    raise ZeroDivisionError("no such luck")
"""
CLAIM = {
    "id": "all",
    "artefact": "text",
    "quantity": "all move",
    "paper": 2,
    "metric": "rates",
    "rule": {"equals": 2},
}


@pytest.fixture
def of_its_own(tmp_path, monkeypatch):
    """Report functions of a sweep in a package of the user's, and a claim on it."""
    (tmp_path / "sweepreport.py").write_text(OURS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MHRUN_TRUST", "sweepreport")
    book = {"paper": {}, "experiments": {}, "sweeps": {}}
    book["sweeps"]["gmm_tied_means"] = {"over": {"lam": [0.3, 0.2]}, "claims": [CLAIM]}
    monkeypatch.setattr("mhrun.report.claims.judge._claims_of_paper", lambda config: book)
    return book


NAMED = {"metrics": "metrics", "notes": "notes"}
GROUPS = {"figures": "{rates: sweepreport.rates}", "tables": "{table: sweepreport.table}"}
OWN = (
    *(f"+report.sweep_{key}=sweepreport.{name}" for key, name in NAMED.items()),
    *(f"+report.sweep_{key}={names}" for key, names in GROUPS.items()),
)


def judged(place):
    return json.loads((place / "summary.json").read_text())["claims"]


def test_a_sweep_has_what_its_experiment_declares(tmp_path, of_its_own, every_format):
    assert run([*OVERRIDES, *QUICK, *OWN, "lam=0.3,0.2"]) == 0
    place = the_sweep(tmp_path)
    page = (place / "index.html").read_text()
    assert page.count("<figure>") == 2
    for message in ("Acceptance of each.", "All of them.", "Settings of each.", "2 runs &amp; no more"):
        assert message in page
    assert matplotlib.image.imread(place / "report" / "rates.png").shape[0] > 200
    assert list(pd.read_csv(place / "report" / "table.csv")["lam"]) == [0.3, 0.2]
    summary = json.loads((place / "summary.json").read_text())
    assert summary["metrics"] == {"rates": 2.0, "none": None}
    (claim,) = summary["claims"]
    assert claim["holds"]
    assert claim["why"] == "other settings than the paper's"
    assert "Preview: 1 of 1 checks hold; no verdict at smoke scale." in page
    # Made again from the runs, and the same.
    shutil.rmtree(place / "report")
    (place / "summary.json").unlink()
    assert run(["report", str(place)]) == 0
    assert (place / "report" / "rates.pdf").exists()
    assert json.loads((place / "summary.json").read_text()) == summary
    assert (place / "index.html").read_text() == page


@pytest.mark.slow
def test_a_verdict_on_a_sweep_wants_the_papers_values_and_settings(tmp_path, of_its_own, monkeypatch):
    # As if the run of one of the jobs had the paper's settings.
    monkeypatch.setattr("mhrun.cli.sweep.job.compared", with_departures)
    assert run([*OVERRIDES, *BARE, *OWN, "lam=0.3,0.2"]) == 0
    place = the_sweep(tmp_path)
    assert [claim["verdict"] for claim in judged(place)] == ["reproduced"]
    assert "1 of 1 reproduced" in (place / "index.html").read_text()
    of_its_own["sweeps"]["gmm_tied_means"]["claims"] = [CLAIM | {"rule": {"equals": 3}}]
    assert run(["report"]) == 0
    assert [claim["verdict"] for claim in judged(place)] == ["not reproduced"]
    # A run that is gone makes it another sweep.
    shutil.rmtree(next(f for f in runs(tmp_path / "outputs") if f.config()["lam"] == 0.2).path)
    assert run(["report"]) == 0
    (claim,) = judged(place)
    assert claim["verdict"] == "not run at paper scale"
    assert claim["why"] == "another sweep than the paper's, lam = 0.2,0.3"


def with_departures(config, reference):
    lines = [] if config["lam"] == 0.3 else ["lam = 0.2 (paper: 0.3)"]
    return config | {"runtime": config["runtime"] | {"departures": lines}}


@pytest.mark.slow
def test_a_part_of_a_sweeps_report_that_fails_leaves_a_line(tmp_path, capsys, of_its_own):
    overrides = [*OVERRIDES, *BARE, "lam=0.3,0.2", *OWN[:1]]
    assert (
        run([*overrides, "+report.sweep_figures={rates: sweepreport.broken, more: sweepreport.rates}"]) == 1
    )
    err = capsys.readouterr().err
    assert "rates: This figure could not be drawn: ZeroDivisionError: no such luck" in err
    place = the_sweep(tmp_path)
    page = (place / "index.html").read_text()
    assert "This figure could not be drawn: ZeroDivisionError" in page
    assert page.count("<figure>") == 2
    assert (place / "report" / "more.png").exists()
    assert not (place / "report" / "rates.png").exists()
    assert run(["report"]) == 1


@pytest.mark.slow
def test_metrics_of_a_sweep_that_fail_are_reported_in_their_place(tmp_path, capsys, of_its_own):
    overrides = [*OVERRIDES, *BARE, "lam=0.3,0.2", "+report.sweep_metrics=sweepreport.broken"]
    assert run(overrides) == 1
    assert "The metrics of the sweep could not be computed" in capsys.readouterr().err
    page = (the_sweep(tmp_path) / "index.html").read_text()
    assert "The metrics of the sweep could not be computed: ZeroDivisionError" in page
    assert judged(the_sweep(tmp_path)) == []


def test_a_sweep_whose_report_names_nothing_there_is_refused(capsys):
    overrides = [*OVERRIDES, *BARE, "lam=0.3,0.2", "+report.sweep_metrics=mint.figure1.nothing"]
    assert run(overrides) == 2
    assert "report: there is no 'mint.figure1.nothing'" in capsys.readouterr().err
    assert not Path("outputs").exists()


@pytest.mark.slow
def test_a_function_of_a_sweep_that_has_gone_leaves_a_line(tmp_path, capsys, of_its_own, monkeypatch):
    assert run([*OVERRIDES, *BARE, "lam=0.3,0.2", *OWN]) == 0
    monkeypatch.delattr(sys.modules["sweepreport"], "rates")
    assert run(["report"]) == 1
    assert "This figure could not be drawn: report: there is no 'sweepreport.rates'" in (
        capsys.readouterr().err
    )
    page = (the_sweep(tmp_path) / "index.html").read_text()
    assert "2 runs &amp; no more" in page
    assert page.count("<figure>") == 1  # the figure of every sweep is there


@pytest.mark.slow
def test_a_sweep_whose_jobs_have_no_methods_says_so(tmp_path, capsys):
    """Here a sweep of a computation without chains: the terminal and the page point to the reports of the jobs."""
    assert (
        run(["-m", "experiment=backward_moves", "scale=smoke", "draws=20,30", f"runtime.outputs={tmp_path}"])
        == 0
    )
    sentence = "No job of this sweep has methods to compare; the tables and figures of each job are in its own report."
    assert f"{sentence}\n\nsweep   " in capsys.readouterr().out
    (page,) = tmp_path.glob("backward_moves/sweeps/*/index.html")
    assert sentence in page.read_text()
