"""Sweeps go on past a failing job, say so at once and at the end, and do only what is missing."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time

import filelock
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from kit import FEW
from matplotlib import pyplot as plt

from mhrun.cli.main import run
from mhrun.cli.sweep import digest_of
from mhrun.cli.words import sweep_jobs
from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError
from mhrun.report.declared import column_headings
from mhrun.report.summary import FOOTNOTE
from mhrun.report.sweep_figure import short_names, sweep_figure
from mhrun.report.sweep_words import SHORT, over_seeds, sweep_finding, sweep_warnings
from mhrun.store.folder import runs

WORDS = ["-m", "experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", "~methods.sghmc", *FEW]

QUICK = ("steps=60", "warmup=50", "~report.figures")  # figures of the runs, which take most of the time
BARE = (*QUICK, "runtime.report=false")  # a page of the sweep, none of its runs


# Tests that look at figures; the others read text, tables and files.
RENDERED = {
    "test_a_sweep_with_a_job_that_fails",
    "test_the_table_of_a_sweep",
    "test_a_sweep_has_what_its_experiment_declares",
}


@pytest.fixture(autouse=True)
def _here(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mhrun.report.build.FIGURES", {})  # those of every run, which take most of the time
    if request.node.name not in RENDERED:
        request.getfixturevalue("unrendered")


def test_a_sweep_with_a_job_that_fails(tmp_path, capsys, every_format):
    words = [*WORDS, *BARE, "lam=0.2,0.9,0.3", "tau=0.5"]
    assert run(words) == 1
    err = capsys.readouterr().err
    at = err.index("job 2 of 3 failed: lam = 0.9 must be below tau")
    assert at < err.index("job 3 of 3: lam=0.3")  # told at once, before the next job
    assert err.index("job 2 of 3 will fail: lam = 0.9 must be below tau") < err.index("job 1 of 3: lam=0.2")
    assert "1 of 3 jobs failed" in err
    sweep = next((tmp_path / "outputs/gmm_tied_means/sweeps").iterdir())
    assert "mhrun.errors.Refusal" in (sweep / "jobs" / "0002.log").read_text()  # of job 2
    assert re.search(r"2  lam=0.9\n.*jobs/0002\.log", err)
    jobs = [json.loads(path.read_text()) for path in sorted((sweep / "jobs").glob("*.json"))]
    assert [job["status"] for job in jobs] == ["done", "failed", "done"]
    table = pd.read_csv(sweep / "sweep.csv")
    assert sorted(set(table["lam"])) == [0.2, 0.3]
    assert table["accept_rate"].between(0, 1).all()
    # lam means T = n^(1 - lam), of 10,000 data; minibatches are equal, and no method converged in so few steps.
    assert table["draws_temperature"].tolist() == pytest.approx([10_000**0.8, 10_000**0.7])
    assert re.search(r"<th[^>]*>T</th>", (sweep / "index.html").read_text())
    assert not {"data_per_step", "per_million", "per_second"} & set(table)
    for name in ("sweep.png", "sweep.pdf", "sweep.md", "sweep.tex", "index.html"):
        assert (sweep / name).stat().st_size > 100
    assert "must be below tau" in (sweep / "index.html").read_text()

    # Again: nothing is computed twice; what failed fails again.
    stamps = {
        p: p.stat().st_mtime_ns
        for p in tmp_path.glob("outputs/*/*/methods/*/trace.nc")
        if "latest" not in p.parts
    }
    assert len(stamps) == 2
    assert run(words) == 1
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    # A larger sweep does what is missing.
    assert run([*WORDS, *BARE, "lam=0.2,0.1", "tau=0.5"]) == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert capsys.readouterr().err.count("exists already") == 3


def test_a_sweep_that_cannot_be_put_together(capsys, tmp_path):
    assert run([*WORDS, "lam=0.2,0.3", "lamm=1"]) == 2
    assert "There is no setting 'lamm'" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_a_key_that_is_swept_twice_is_a_mistake():
    with pytest.raises(UserError, match="seed is given several values twice"):
        sweep_jobs(["experiment=gmm_tied_means", "seed=1,2", "seed=3,4"])


@pytest.mark.parametrize("first", [[50, "null", 20], ["b", "a", "b"], [3, 1, 2]])
def test_the_figure_of_a_sweep_over_words_and_numbers(first):
    frame = pd.DataFrame({"m": first, "method": "MINT", "accept_rate": [0.1, 0.2, 0.3], "run": "x"})
    figure = sweep_figure(frame, ["m"])
    line = figure.axes[0].lines[0]
    assert list(line.get_ydata()) == ([0.2, 0.3, 0.1] if first == [3, 1, 2] else [0.1, 0.2, 0.3])
    plt.close(figure)


def test_a_method_that_a_setting_does_not_touch_has_one_line():
    """And settings have their last names, as many parts as tell them apart."""
    keys = ["methods.a.m", "methods.a.rule.most"]
    rows = [
        {keys[0]: m, keys[1]: most, "method": method, "ess": m * most if method == "A" else 5.0, "rhat": 1.0}
        for m in (10, 20)
        for most in (1, 2)
        for method in ("A", "B")
    ]
    figure = sweep_figure(pd.DataFrame(rows), keys)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "A (most = 1)",
        "A (most = 2)",
        "B",
    ]
    assert figure.axes[0].get_xlabel() == "m"
    plt.close(figure)
    assert short_names(["methods.a.m", "methods.b.m", "m", "lam"]) == {
        "methods.a.m": "a.m",
        "methods.b.m": "b.m",
        "m": "m",
        "lam": "lam",
    }


def test_a_method_that_the_first_setting_does_not_touch_has_no_marks():
    """Its value at each place is the same number, of one run: it is no measurement at T = 4."""
    rows = [
        {"T": t, "method": name, "ess": e} for t in (1, 4) for name, e in (("mcmc", 9.0), ("mint", 5.0 * t))
    ]
    figure = sweep_figure(pd.DataFrame(rows), ["T"])
    marks = {line.get_marker() for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 2}
    assert "" in marks
    assert len(marks) == 2
    assert [text.get_text() for text in figure.texts] == ["Lines without marks: T does not touch the method"]
    plt.close(figure)


def test_a_job_that_is_missing_splits_no_line():
    """The settings that do not touch a method have the same numbers where both have a job."""
    rows = [
        {"lam": lam, "tau": tau, "method": method, "ess": lam * (tau if method == "A" else 1.0)}
        for lam, tau in ((0.1, 0.5), (0.1, 0.6), (0.2, 0.5), (0.2, 0.6), (0.5, 0.6))
        for method in ("A", "B")
    ]
    figure = sweep_figure(pd.DataFrame(rows), ["lam", "tau"])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["A (tau = 0.5)", "A (tau = 0.6)", "B"]
    plt.close(figure)
    apart = pd.DataFrame([row for row in rows if (row["lam"] == 0.1) == (row["tau"] == 0.5)])
    figure = sweep_figure(apart, ["lam", "tau"])  # nothing in common shows that B is untouched
    assert [text.get_text() for text in figure.legends[0].get_texts()][2:] == [
        "B (tau = 0.5)",
        "B (tau = 0.6)",
    ]
    plt.close(figure)


def test_the_figure_of_a_sweep_explains_what_it_draws():
    """Bars, open markers and noise floors; a bar through the bottom of a logarithmic axis ends in an arrow."""
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2, 0.3],
            "method": "A",
            "tv": [Estimate(0.01, 0.02), Estimate(0.1, 0.01), 2.0],
            "floor": 0.02,
            SHORT: [True, False, False],
        }
    )
    figure = sweep_figure(frame, ["lam"], None, None, {"tv": "floor"}, "standard deviation over seeds")
    (axis,) = figure.axes
    assert axis.get_ylim() == (0.005, pytest.approx(2.6, rel=0.2))
    (arrow,) = [line for line in axis.lines if line.get_marker() == "v"]
    assert list(arrow.get_xdata()) == [0.1]
    assert any(list(line.get_ydata()) == [0.02] * 3 for line in axis.lines)
    assert [text.get_text() for text in figure.texts] == [
        "Arrows: bars that go on below the axis; bars: standard deviation over seeds; fine dots: noise floor; "
        "open markers: too short to judge"
    ]
    plt.close(figure)
    figure = sweep_figure(frame[["lam", "method"]].assign(tv=[1.0, 2.0, 3.0]), ["lam"])
    assert [text.get_text() for text in figure.texts] == []
    plt.close(figure)


@pytest.mark.parametrize(
    ("methods", "values", "entries"),
    [
        (2, 2, ["M0 (tau = 0)", "M0 (tau = 1)", "M1 (tau = 0)", "M1 (tau = 1)"]),
        (6, 2, [*(f"M{i}" for i in range(6)), "tau = 0", "tau = 1"]),
        (8, 1, [f"M{i}" for i in range(8)]),
        (12, 1, None),
        (2, 6, None),
    ],
)
def test_the_legend_of_a_sweep_has_eight_entries_at_most(methods, values, entries):
    """One for each line, or for methods and values apart; more lines are labelled at their ends."""
    rows = [
        {"m": m, "tau": tau, "method": f"M{i}", "accept_rate": 0.1 * i + 0.01 * tau + 0.001 * m}
        for i in range(methods)
        for tau in range(values)
        for m in (10, 20)
    ]
    frame = pd.DataFrame(rows)
    if values == 1:
        frame = frame.drop(columns="tau")
    figure = sweep_figure(frame, ["m", "tau"] if values > 1 else ["m"])
    labels = [text.get_text() for text in figure.axes[0].texts]
    if entries is not None:
        assert [text.get_text() for text in figure.legends[0].get_texts()] == entries
        assert labels == []
    else:
        assert not figure.legends
        assert len(set(labels)) == methods * values
        heights = np.sort([text.xyann[1] for text in figure.axes[0].texts])
        assert heights.min() > -0.05
        assert heights.max() < 1.05
        assert np.diff(heights).min() > 0.9 / (methods * values)
    plt.close(figure)


def the_sweep(tmp_path):
    return next((tmp_path / "outputs/gmm_tied_means/sweeps").iterdir())


@pytest.mark.slow
def test_a_sweep_waits_for_another_process_that_computes_it(tmp_path, capsys):
    """Both removed each other's records of jobs, and what they had done counted as lost."""
    words = [*WORDS, *BARE, "lam=0.2,0.3"]
    assert run(words) == 0
    sweep = next((tmp_path / "outputs/gmm_tied_means/sweeps").iterdir())
    records = {path.name: path.read_bytes() for path in (sweep / "jobs").glob("*.json")}
    capsys.readouterr()
    begun, meanwhile = threading.Event(), dict[str, bytes]()

    def other_process():
        with filelock.FileLock(sweep / ".lock"):
            begun.set()
            time.sleep(3)
            meanwhile.update({path.name: path.read_bytes() for path in (sweep / "jobs").glob("*.json")})

    thread = threading.Thread(target=other_process)
    thread.start()
    begun.wait()
    assert run(words) == 0
    thread.join()
    assert "This sweep is being computed already" in capsys.readouterr().err
    assert meanwhile == records


def test_a_sweep_whose_jobs_all_failed_has_a_page_of_failures(tmp_path, capsys, monkeypatch):
    def failing(config, watching):
        raise ValueError("nothing works")

    monkeypatch.setattr("mhrun.cli.sweep.compute", failing)
    assert run([*WORDS, "lam=0.2,0.3"]) == 1
    assert not (the_sweep(tmp_path) / "index.html").exists()
    assert run(["report"]) == 0
    assert "sweep   outputs" in capsys.readouterr().out
    page = (the_sweep(tmp_path) / "index.html").read_text()
    assert page.count("ValueError: nothing works") == 2
    assert "<figure>" not in page
    assert page.count("There is no number to show") == 1


def test_a_sweep_without_reports_says_what_its_table_lacks(tmp_path, capsys):
    """With reports it is the same sweep, and no step is computed again."""
    words = [*WORDS, *QUICK, "lam=0.2,0.3", "tau=0.5"]
    assert run([*words, "runtime.report=false"]) == 0
    line = "come from the reports of the runs; the same command without runtime.report=false makes them"
    assert line in capsys.readouterr().err
    assert run(words) == 0
    said = capsys.readouterr().err
    assert line not in said
    assert "steps (" not in said
    (sweep,) = (tmp_path / "outputs/gmm_tied_means/sweeps").iterdir()
    assert pd.read_csv(sweep / "sweep.csv")["ess"].notna().all()


def test_a_sweep_ends_with_its_table(tmp_path, capsys):
    assert run([*WORDS, *BARE, "lam=0.3,0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("lam "))
    assert lines[head].split() == ["lam", "method", "distance", "noise", "floor", "ESS", "R-hat"]
    methods = len(next(f for f in runs(tmp_path / "outputs")).summary()["methods"])
    rows = lines[head + 1 : head + 1 + 2 * methods]
    assert [line.split()[0] for line in rows] == ["0.3"] * methods + ["0.2"] * methods
    assert FOOTNOTE not in lines  # runs without a report have no diagnostics


def test_a_sweep_with_a_run_that_was_deleted(tmp_path, capsys):
    assert run([*WORDS, *BARE, "lam=0.3,0.2"]) == 0
    folders = runs(tmp_path / "outputs")
    gone = next(folder for folder in folders if folder.config()["lam"] == 0.3)
    shutil.rmtree(gone.path)
    assert run(["report"]) == 0
    sweep = the_sweep(tmp_path)
    page = (sweep / "index.html").read_text()
    assert f'{gone.digest}: <span class="bad">its run is missing' in page
    links = re.findall(r'href="([^"#:]+)"', page)
    assert links  # a run without a page is led to by what it has
    assert all((sweep / link).exists() for link in links)
    assert list(pd.read_csv(sweep / "sweep.csv")["lam"]) == [0.2]
    for folder in folders:
        shutil.rmtree(folder.path, ignore_errors=True)
    assert run(["report"]) == 0
    assert (sweep / "index.html").read_text().count("its run is missing") == 2
    assert not (sweep / "sweep.csv").exists()


def test_the_table_of_a_sweep(tmp_path, capsys):
    """Equal labels are distinguished, methods without a test have no acceptance, and estimates have errors."""
    words = [word for word in WORDS if word != "~methods.sgld"]
    words += ["+method@methods.barker=mint", "rule@methods.barker.kernel.rule=barker"]
    words += [*QUICK, "report.sweep=[accept_rate,tv,chi2]"]
    assert run([*words, "lam=0.3,0.1"]) == 0
    assert "warning: lam=0.3: mint: the log-ratio's minibatch noise has sd" in capsys.readouterr().out
    sweep = the_sweep(tmp_path)
    table = pd.read_csv(sweep / "sweep.csv").set_index("method")
    assert set(table.index) == {"MINT", "MINT (rule: barker)", "SGLD"}
    assert table.loc["SGLD", "accept_rate"].isna().all()
    assert table.loc["MINT (rule: barker)", "accept_rate"].between(0, 1).all()
    assert table.loc["MINT", "chi2 (se)"].notna().all()
    lines = (sweep / "sweep.md").read_text().splitlines()
    assert lines[0].split("|")[1].strip() == "lam"
    assert [line for line in lines if "| MINT †" in line and " ± " in line]
    of_sgld = [line for line in lines if "SGLD" in line]
    assert of_sgld
    assert all(line.split("|")[3].strip() == "–" for line in of_sgld)
    assert matplotlib.image.imread(sweep / "sweep.png").shape[0] > 200


def test_a_swept_setting_with_the_name_of_a_metric_keeps_its_column(tmp_path, capsys):
    words = [word for word in WORDS if word not in FEW]
    assert run([*words, *BARE, "chains=2,3", "report.sweep=[chains,accept_rate]"]) == 0
    table = pd.read_csv(the_sweep(tmp_path) / "sweep.csv")
    assert sorted(set(table["chains (setting)"])) == [2, 3]
    assert table.columns[1] == "method"
    assert "chains (setting)  method" in capsys.readouterr().out


def test_a_job_whose_report_has_a_part_that_fails_is_reported(tmp_path, capsys, monkeypatch):
    def broken(run):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr("mhrun.report.build.costs_table", broken)
    assert run([*WORDS, *QUICK, "lam=0.2,0.3"]) == 1
    err = capsys.readouterr().err
    assert "2 of 2 jobs failed" in err
    assert "a part of its report could not be made" in err
    sweep = next((tmp_path / "outputs/gmm_tied_means/sweeps").iterdir())
    assert (sweep / "sweep.csv").exists()  # what was computed is shown


# --- What an experiment says of a sweep ---------------------------------------------------------------------

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
    monkeypatch.setattr("mhrun.report.claims._claims_of_paper", lambda config: book)
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
    assert run([*WORDS, *QUICK, *OWN, "lam=0.3,0.2"]) == 0
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


def test_a_verdict_on_a_sweep_wants_the_papers_values_and_settings(tmp_path, of_its_own, monkeypatch):
    # As if the run of one of the jobs had the paper's settings.
    monkeypatch.setattr("mhrun.cli.sweep.compared", with_departures)
    assert run([*WORDS, *BARE, *OWN, "lam=0.3,0.2"]) == 0
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


def test_a_part_of_a_sweeps_report_that_fails_leaves_a_line(tmp_path, capsys, of_its_own):
    words = [*WORDS, *BARE, "lam=0.3,0.2", *OWN[:1]]
    assert run([*words, "+report.sweep_figures={rates: sweepreport.broken, more: sweepreport.rates}"]) == 1
    err = capsys.readouterr().err
    assert "rates: This figure could not be drawn: ZeroDivisionError: no such luck" in err
    place = the_sweep(tmp_path)
    page = (place / "index.html").read_text()
    assert "This figure could not be drawn: ZeroDivisionError" in page
    assert page.count("<figure>") == 2
    assert (place / "report" / "more.png").exists()
    assert not (place / "report" / "rates.png").exists()
    assert run(["report"]) == 1


def test_metrics_of_a_sweep_that_fail_are_reported_in_their_place(tmp_path, capsys, of_its_own):
    words = [*WORDS, *BARE, "lam=0.3,0.2", "+report.sweep_metrics=sweepreport.broken"]
    assert run(words) == 1
    assert "The metrics of the sweep could not be computed" in capsys.readouterr().err
    page = (the_sweep(tmp_path) / "index.html").read_text()
    assert "The metrics of the sweep could not be computed: ZeroDivisionError" in page
    assert judged(the_sweep(tmp_path)) == []


def test_a_sweep_whose_report_names_nothing_there_is_reported(tmp_path, capsys):
    words = [*WORDS, *BARE, "lam=0.3,0.2", "+report.sweep_metrics=mint.figure1.nothing"]
    assert run(words) == 1
    err = capsys.readouterr().err
    assert (
        "The experiment's part of this page could not be made: UserError: report: there is no 'mint.figure1.nothing'"
        in err
    )
    page = (the_sweep(tmp_path) / "index.html").read_text()
    assert page.count("<figure>") == 1  # the table and the figure of every sweep are there


def test_the_sentence_of_a_sweep_has_the_range_of_the_measure():
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2] * 3,
            "method": ["A", "A", "B", "B", "C", "C"],
            "tv": [Estimate(0.3, 0.01), Estimate(0.2, 0.01), 0.1, 0.4, 0.5, 0.5],
            "run": ["r"] * 6,
            SHORT: [False, True, False, False, True, True],
        }
    )
    config = {"report": {"metrics": "mint.figure1.metrics"}}
    assert sweep_finding(config, frame, ["lam"]) == (
        "Distance: B from 0.100 (lam = 0.1) to 0.400 (lam = 0.2); A from 0.200 ± 0.010 † (lam = 0.2) to 0.300 ± 0.010 "
        "(lam = 0.1)."
    )  # C is the same everywhere
    assert sweep_finding({}, frame, ["lam"]) == ""
    lines = sweep_warnings(frame, [("lam=0.1", ["a: noise"]), ("lam=0.2", [])])
    assert lines == [
        "R-hat above 1.01 or ESS below 400, too short to judge (†, open marks): A (1 of 2 jobs), C (2 of 2 jobs).",
        "lam=0.1: a: noise",
    ]


@pytest.mark.parametrize(
    ("values", "floors", "is_noise"),
    [
        ([0.054, 0.0675], [0.05, 0.06], True),  # two exact runs
        ([0.054, 0.2], [0.05, 0.06], False),
        ([Estimate(0.3, 0.1), Estimate(0.2, 0.1)], None, True),
        ([Estimate(0.3, 0.01), Estimate(0.2, 0.01)], None, False),
        ([0.3, 0.2], None, False),  # exact numbers
    ],
)
def test_a_range_within_monte_carlo_error_is_no_finding(values, floors, is_noise):
    frame = pd.DataFrame({"lam": [0.1, 0.2], "method": "A", "tv": values, SHORT: False})
    if floors:
        frame["tv_noise"] = floors
    found = sweep_finding({"report": {"metrics": "mint.figure1.metrics"}}, frame, ["lam"])
    assert ("no difference between settings beyond Monte Carlo error for A" in found) == is_noise
    assert ("A from" in found) != is_noise


def test_a_swept_seed_is_averaged_over():
    """The mean and the standard deviation over seeds, a row for each other setting; short if any seed is."""
    frame = pd.DataFrame(
        {
            "seed": [1, 1, 2, 2, 3, 3],
            "lam": [0.1, 0.2] * 3,
            "method": "A",
            "tv": [0.1, Estimate(0.4, 9.0), 0.2, 0.5, 0.3, None],
            "rhat": [None] * 6,
            "run": list("abcdef"),
            SHORT: [False, False, True, False, False, False],
        }
    )
    found, keys = over_seeds(frame, ["seed", "lam"])
    assert keys == ["lam"]
    assert found.columns.tolist() == ["lam", "method", "seeds", "tv", "rhat", SHORT]
    assert found["seeds"].tolist() == [3, 3]
    assert found["tv"].tolist() == [
        pytest.approx(Estimate(0.2, 0.1)),
        pytest.approx(Estimate(0.45, 0.05 * 2**0.5)),
    ]
    assert found["rhat"].tolist() == [None, None]
    assert found[SHORT].tolist() == [True, False]
    assert over_seeds(frame, ["lam"])[0] is frame
    config = {"report": {"metrics": "mint.figure1.metrics"}}
    assert sweep_finding(config, found, keys).endswith(
        "Distance: whether settings differ cannot be judged for A † (0.200 to 0.450; too short)."
    )


@pytest.mark.parametrize(
    ("short", "seeds", "words"),
    [
        (True, 4, "Distance: whether settings differ cannot be judged for A † (0.100 to 0.150; too short)."),
        (
            False,
            2,
            "Distance: whether settings differ cannot be judged for A (0.100 to 0.150; fewer than 3 seeds).",
        ),
        (
            False,
            4,
            "Distance: no difference between settings beyond Monte Carlo error for A (0.100 to 0.150; one above 0.262 "
            "would show).",
        ),
    ],
)
def test_equal_settings_are_a_finding_where_a_difference_would_show(short, seeds, words):
    """Not with draws that are too short, nor with two seeds; else the sentence has the critical value of the t-test."""
    assert pytest.approx(0.262, abs=1e-3) == 3.707 * 0.1 / 2**0.5  # t(6) at 0.5 %
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2],
            "method": "A",
            "tv": [Estimate(0.1, 0.1), Estimate(0.15, 0.1)],
            "seeds": seeds,
            SHORT: [False, short],
        }
    )
    assert sweep_finding({"report": {"metrics": "mint.figure1.metrics"}}, frame, ["lam"]) == words


@pytest.mark.parametrize(
    ("means", "deviation", "floors", "is_noise"),
    [
        (
            (0.114, 0.174),
            0.009,
            (0.11, 0.13),
            False,
        ),  # below the sum of the floors, and beyond what seeds differ by
        ((0.114, 0.134), 0.009, (0.11, 0.13), True),
        ((0.114, 0.174), 0.009, (0.08, 0.14), True),  # no more than the floors differ by
    ],
)
def test_over_seeds_their_own_spread_tells_what_is_noise(means, deviation, floors, is_noise):
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2],
            "method": "A",
            "tv": [Estimate(mean, deviation) for mean in means],
            "tv_noise": [Estimate(floor, 0.001) for floor in floors],
            "seeds": 4,
            SHORT: False,
        }
    )
    found = sweep_finding({"report": {"metrics": "mint.figure1.metrics"}}, frame, ["lam"])
    assert ("no difference between settings" in found) == is_noise


def test_a_sweep_over_seeds_has_their_means_ess_and_rhat(tmp_path, capsys, monkeypatch):
    """Also of an experiment that names no numbers for sweeps."""
    drawn = []
    monkeypatch.setattr(
        "mhrun.report.sweep.sweep_figure", lambda frame, keys, *_: drawn.append((frame, keys)) or "-"
    )
    words = [*WORDS, *QUICK, "~report.sweep", "~report.metrics", "~report.tables", "~report.notes"]
    assert run([*words, "seed=1,2", "lam=0.3,0.2"]) == 0
    out = capsys.readouterr().out
    (head,) = (line for line in out.splitlines() if line.startswith("lam "))
    assert head.split() == ["lam", "method", "ESS", "R-hat"]
    assert "mean ± standard deviation over the seeds" in out
    place = the_sweep(tmp_path)
    table = pd.read_csv(place / "sweep.csv")
    assert len(table) == 4 * table["method"].nunique()
    assert {"seed", "ess", "rhat"} <= set(table)
    means = pd.read_csv(place / "sweep_seeds.csv")
    assert len(means) == 2 * table["method"].nunique()
    assert {"seeds", "ess", "ess (sd)", "rhat"} <= set(means)
    page = (place / "index.html").read_text()
    assert page.index("Mean ± standard deviation over the seeds") < page.index("sweep.csv")
    ((frame, keys),) = drawn
    assert keys == ["lam"]  # the seed is no abscissa
    assert "ess" in frame


def test_headings_of_a_sweep_are_those_of_the_experiment():
    config = {"report": {"metrics": "mint.figure1.metrics"}}
    found = column_headings(config, ["lam", "method", "accept_rate", "tv", "mint.tv", "own"])
    assert found == {
        **{name: name for name in ("lam", "method", "own")},
        "accept_rate": "acceptance",
        "tv": "distance",
        "mint.tv": "mint: distance",
    }


def test_a_sweep_over_a_setting_whose_name_begins_like_hydras_has_its_own_folder():
    assert digest_of(["hydraulic=1,2"]) != digest_of(["hydraulic=1,3"])
    assert digest_of(["lam=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]) == digest_of(
        ["lam=1,2"]
    )
