"""Sweeps go on past a failing job, say so at once and at the end, and do only what is missing."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time

import filelock
import matplotlib.image
import pandas as pd
import pytest
from kit import FEW
from sweeps import BARE, OVERRIDES, QUICK, enter, the_sweep

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.overrides import given_twice, sweep_jobs
from mhrun.cli.main import run
from mhrun.cli.sweep.command import digest_of
from mhrun.errors import UserError
from mhrun.report.marks import NOTES, SHORT
from mhrun.store.folder import RunFolder, runs

# Tests that look at figures; the others read text, tables and files.
RENDERED = {
    "test_a_sweep_with_a_job_that_fails",
    "test_the_table_of_a_sweep",
}


@pytest.fixture(autouse=True)
def _here(request, tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    if request.node.name not in RENDERED:
        request.getfixturevalue("unrendered")


@pytest.mark.slow
def test_a_sweep_with_a_job_that_fails(tmp_path, capsys, every_format):
    arguments = [*OVERRIDES, *BARE, "lam=0.2,0.9,0.3", "tau=0.5"]
    assert run(arguments) == 1
    err = capsys.readouterr().err
    at = err.index("job 2 of 3 is refused: lam = 0.9 must be below tau")
    assert at < err.index("job 1 of 3: lam=0.2")  # reported at once, before the first job
    assert err.count("lam = 0.9 must be below tau") == 2  # and at the end
    assert "job 2 of 3: lam=0.9" not in err
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
    assert not {"data_per_step", "ess_per_million", "ess_per_second"} & set(table)
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
    assert run(arguments) == 1
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    # A larger sweep does what is missing.
    assert run([*OVERRIDES, *BARE, "lam=0.2,0.1", "tau=0.5"]) == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert capsys.readouterr().err.count("exists already") == 3


def test_a_sweep_that_cannot_be_put_together(capsys, tmp_path):
    assert run([*OVERRIDES, "lam=0.2,0.3", "lamm=1"]) == 2
    assert "There is no setting 'lamm'" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_a_key_that_is_swept_twice_is_a_mistake():
    with pytest.raises(UserError, match="seed is given several values twice"):
        sweep_jobs(["experiment=gmm_tied_means", "seed=1,2", "seed=3,4"])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["seed=1,2", "seed=3"], "seed is given twice, as seed=1,2 and seed=3; leave one out."),
        (["seed=3", "seed=1,2"], "seed is given twice, as seed=3 and seed=1,2; leave one out."),
        (["seed=1,2,1"], "seed=1,2,1 has seed=1 twice, which are one run; leave one out."),
        (
            ["lam=interval(0.3,0.4)"],
            "lam=interval(0.3,0.4) has no list of values to sweep over; give them, such as lam=A,B,C or "
            "lam=range(1,6).",
        ),
    ],
)
def test_jobs_that_would_be_the_same_are_refused(arguments, line):
    with pytest.raises(UserError) as caught:
        sweep_jobs(["experiment=gmm_tied_means", *arguments])
    assert str(caught.value) == line


@pytest.mark.slow
def test_a_sweep_of_data_and_a_model_without_an_experiment(tmp_path, capsys):
    """Each job has its default method, and is the run that the same settings make without a sweep."""
    settings = ["data=gaussian_sample", "model=gaussian_location", "data.n=50", *BARE]
    settings.remove("~report.figures")
    assert run(["-m", *settings, "data.dim=2,3", "model.dim=2,3"]) == 1
    error = capsys.readouterr().err
    assert error.count("no method was named: Hamiltonian Monte Carlo") == 2  # for D = 2 and D = 3
    assert error.count(" of 4 is refused: ") == 2
    assert "job 1 of 4: data.dim=2 model.dim=2" in error
    assert len(list((tmp_path / "outputs" / "own" / "sweeps").iterdir())) == 1
    assert run([*settings, "data.dim=3", "model.dim=3"]) == 0
    assert "This run exists already" in capsys.readouterr().err


def test_a_mistake_in_a_sweep_without_an_experiment_is_named(capsys, tmp_path):
    settings = ["-m", "model=gaussian_location", "data.n=50", "data.dim=2", "model.dim=2", "seed=1,2"]
    for words, message in (
        (["data=gaussian_sample", "stepz=30"], "There is no setting 'stepz'. Did you mean 'steps'?"),
        (["data=gaussian_sample,nosuch"], "There is no data 'nosuch'."),
        (["data=gaussian_sample", "+rule@methods.zz.kernel.rule=nosuch"], "There is no rule 'nosuch'."),
    ):
        assert run([*settings, *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    "launcher",
    [[], pytest.param(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], marks=pytest.mark.slow)],
)
def test_a_job_that_cannot_be_composed_stops_no_other(tmp_path, capsys, launcher):
    if launcher:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    step_size = "methods.sgld.schedules.step_size"
    words = [w for w in OVERRIDES if w != "~methods.sgld"] + [
        *BARE,
        f"{step_size}=1e-5,{{a:1}},2e-5",
        *launcher,
    ]
    assert run(words) == 1
    error = capsys.readouterr().err
    assert f"job 2 of 3 is refused: '{step_size}' has start, end and exponent" in error
    assert "1 of 3 jobs failed" in error
    jobs = [json.loads(path.read_text()) for path in sorted(the_sweep(tmp_path).glob("jobs/*.json"))]
    assert [(job["number"], job["status"], "log" in job) for job in jobs] == [
        (0, "done", False),
        (1, "failed", True),
        (2, "done", False),
    ]


@pytest.mark.slow
def test_data_of_the_user_that_fail_end_one_job_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "odd_data.py").write_text(
        "from mhrun.data.gaussian import GaussianSample\n\n\nclass Odd(GaussianSample):\n"
        "    def load(self):\n        if self.n == 13:\n            raise ValueError('unlucky')\n"
        "        return super().load()\n"
    )
    (tmp_path / "mine" / "data" / "odd.yaml").write_text("_target_: odd_data.Odd\nn: 50\ndim: 2\n")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.setenv("MHRUN_TRUST", "")
    settings = ["data=odd", "model=gaussian_location", "steps=60", "warmup=50", "runtime.report=false"]
    assert run(["--project", "mine", "-m", *settings, "data.n=13,50"]) == 1
    error = capsys.readouterr().err
    assert "1 of 2 jobs failed" in error
    assert error.count("ValueError: unlucky") == 2  # as it is refused, and at the end
    assert len(runs(tmp_path / "outputs")) == 1


@pytest.mark.slow
def test_a_number_is_a_constant_schedule_and_a_sweep_without_a_valid_job_begins_none(tmp_path, capsys):
    step_size = "methods.sgld.schedules.step_size"
    arguments = ["-m", "experiment=gmm_tied_means", "scale=smoke", "~methods.mint"]
    assert run([*arguments, f"{step_size}=-1,-2"]) == 2
    error = capsys.readouterr().err
    assert error.count("is refused: sgld: step_size = -") == 2
    assert "no job of this sweep can run" in error
    assert not (tmp_path / "outputs").exists()
    named = [f"schedule@{step_size}=fixed", f"~{step_size}.start", f"~{step_size}.end"]
    digests = {
        RunFolder.of(compose_config(["experiment=gmm_tied_means", *each])).digest
        for each in ([f"{step_size}=1e-4"], [*named, f"{step_size}.step_size=1e-4"])
    }
    assert len(digests) == 1
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "fixed.yaml").write_text(
        "# @package _global_\ndefaults: [gmm_tied_means, _self_]\n"
        "methods: {sgld: {schedules: {step_size: 1e-4}}}\n"
    )
    of_file = ["experiment=fixed"], [tmp_path / "conf"]
    assert compose_config(*of_file)["methods"]["sgld"]["schedules"]["step_size"]["step_size"] == 1e-4
    with pytest.raises(
        UserError, match=r"the experiment gives methods\.sgld\.schedules\.step_size = 0\.0001, which would"
    ):
        compose_config([*of_file[0], f"schedule@{step_size}=cosine"], of_file[1])


@pytest.mark.slow
def test_data_without_an_experiment_can_be_swept(tmp_path, capsys):
    """Other data are another set-up: what one job lacks does not stop the other."""
    settings = ["model=gaussian_location", "data.n=50", "+data.dim=2", *BARE]
    settings.remove("~report.figures")
    assert run(["-m", "data=gaussian_sample,gaussian", "+method@methods.walk=mcmc", *settings]) == 1
    error = capsys.readouterr().err
    assert "  2  data=gaussian\n" in error
    assert "no method was named" not in error
    [place] = (tmp_path / "outputs" / "own" / "sweeps").iterdir()
    table = pd.read_csv(place / "sweep.csv")
    assert table["data"].tolist() == ["gaussian_sample"]


@pytest.mark.slow
def test_a_job_whose_code_fails_when_it_is_made_does_not_end_the_sweep(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine" / "rule").mkdir(parents=True)
    (tmp_path / "mine" / "mine_rule.py").write_text(
        "from mhrun.rules.metropolis import Metropolis\n\n\nclass Odd(Metropolis):\n"
        "    def __init__(self, kind='a'):\n        super().__init__()\n        self.number = {'a': 1}[kind]\n"
    )
    (tmp_path / "mine" / "rule" / "odd.yaml").write_text("_target_: mine_rule.Odd\nkind: a\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "experiment").mkdir()
    (tmp_path / "mine" / "experiment" / "ours.yaml").write_text(
        "# @package _global_\ndefaults: [/data: gaussian, /model: gaussian_mean, /method@methods.x: mint, _self_]\n"
        "m: 50\ntemperature: 1\ndata: {n: 100}\nsteps: 50\nwarmup: 50\n"
    )
    words = [
        "ours",
        "rule@methods.x.kernel.rule=odd",
        "methods.x.kernel.rule.kind=a,zzz",
        "runtime.report=false",
    ]
    assert run(["--project", "mine", "-m", *words]) != 0
    err = capsys.readouterr().err
    assert "x: done" in err
    assert "KeyError" in err


def test_a_setting_that_is_given_twice_is_named():
    """The last one counts, as where a script adds to its own settings what it was called with."""
    given = [
        "experiment=gmm_tied_means",
        "scale=smoke",
        "seed=1,2",
        "scale=quick",
        "chains=4",
        "chains=4",
        "~lam",
    ]
    given += ["+method@methods.one=mint", "+method@methods.two=mint", "lam=0.2"]
    given += ["tau=0.5", "~tau", "tau=0.6", "scales.smoke={steps:1}", "scales.smoke={warmup:2}"]
    assert given_twice(given) == ["scale=quick overrides scale=smoke."]


@pytest.mark.slow
def test_a_sweep_waits_for_another_process_that_computes_it(tmp_path, capsys):
    """Both removed each other's records of jobs, and what they had done counted as lost."""
    arguments = [*OVERRIDES, *BARE, "lam=0.2,0.3"]
    assert run(arguments) == 0
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
    assert run(arguments) == 0
    thread.join()
    assert "This sweep is being computed already" in capsys.readouterr().err
    assert meanwhile == records


def test_a_sweep_whose_jobs_all_failed_has_a_page_of_failures(tmp_path, capsys, monkeypatch):
    def failing(config, watching):
        raise ValueError("nothing works")

    monkeypatch.setattr("mhrun.cli.sweep.job.compute", failing)
    assert run([*OVERRIDES, "lam=0.2,0.3"]) == 1
    assert not (the_sweep(tmp_path) / "index.html").exists()
    assert run(["report"]) == 0
    assert "sweep   outputs" in capsys.readouterr().out
    page = (the_sweep(tmp_path) / "index.html").read_text()
    assert page.count("ValueError: nothing works") == 2
    assert "<figure>" not in page
    assert page.count("There is no number to show") == 1


@pytest.mark.slow
def test_a_sweep_without_reports_names_what_its_table_lacks(tmp_path, capsys):
    """With reports it is the same sweep, and no step is computed again."""
    arguments = [*OVERRIDES, *QUICK, "lam=0.2,0.3", "tau=0.5"]
    assert run([*arguments, "runtime.report=false"]) == 0
    line = "come from the reports of the runs; the same command without runtime.report=false makes them"
    assert line in capsys.readouterr().err
    assert run(arguments) == 0
    err = capsys.readouterr().err
    assert line not in err
    assert "steps (" not in err
    (sweep,) = (tmp_path / "outputs/gmm_tied_means/sweeps").iterdir()
    assert pd.read_csv(sweep / "sweep.csv")["ess"].notna().all()


@pytest.mark.slow
def test_a_sweep_ends_with_its_table(tmp_path, capsys):
    assert run([*OVERRIDES, *BARE, "lam=0.3,0.2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("lam "))
    assert lines[head].split() == ["lam", "method", "acceptance"]  # what runs without a report have
    methods = len(next(f for f in runs(tmp_path / "outputs")).summary()["methods"])
    rows = lines[head + 1 : head + 1 + 2 * methods]
    assert [line.split()[0] for line in rows] == ["0.3"] * methods + ["0.2"] * methods
    assert NOTES[SHORT] not in lines  # runs without a report have no diagnostics


@pytest.mark.slow
def test_a_sweep_with_a_run_that_was_deleted(tmp_path, capsys):
    assert run([*OVERRIDES, *BARE, "lam=0.3,0.2"]) == 0
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
    arguments = [argument for argument in OVERRIDES if argument != "~methods.sgld"]
    arguments += ["+method@methods.barker=mint", "rule@methods.barker.kernel.rule=barker"]
    arguments += [*QUICK, "report.sweep=[accept_rate,tv,chi2]"]
    assert run([*arguments, "lam=0.3,0.1"]) == 0
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


@pytest.mark.slow
def test_a_swept_setting_with_the_name_of_a_metric_keeps_its_column(tmp_path, capsys):
    arguments = [argument for argument in OVERRIDES if argument not in FEW]
    assert run([*arguments, *BARE, "chains=2,3", "report.sweep=[chains,accept_rate]"]) == 0
    table = pd.read_csv(the_sweep(tmp_path) / "sweep.csv")
    assert sorted(set(table["chains (setting)"])) == [2, 3]
    assert table.columns[1] == "method"
    assert "chains (setting)  method" in capsys.readouterr().out


@pytest.mark.slow
def test_a_job_whose_report_has_a_part_that_fails_is_reported(tmp_path, capsys, monkeypatch):
    def broken(run):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr("mhrun.report.build.costs_table", broken)
    assert run([*OVERRIDES, *QUICK, "lam=0.2,0.3"]) == 1
    err = capsys.readouterr().err
    assert "2 of 2 jobs failed" in err
    assert "a part of its report could not be made" in err
    sweep = next((tmp_path / "outputs/gmm_tied_means/sweeps").iterdir())
    assert (sweep / "sweep.csv").exists()  # what was computed is shown


@pytest.mark.slow
def test_a_sweep_over_seeds_has_their_means_ess_and_rhat(tmp_path, capsys, monkeypatch):
    """Also of an experiment that names no numbers for sweeps."""
    drawn = []
    monkeypatch.setattr(
        "mhrun.report.sweep.build.sweep_figure", lambda frame, keys, *_: drawn.append((frame, keys)) or "-"
    )
    arguments = [*OVERRIDES, *QUICK, "~report.sweep", "~report.metrics", "~report.tables", "~report.notes"]
    assert run([*arguments, "seed=1,2", "lam=0.3,0.2"]) == 0
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


def test_a_sweep_over_a_setting_whose_name_begins_like_hydras_has_its_own_folder():
    assert digest_of(["hydraulic=1,2"]) != digest_of(["hydraulic=1,3"])
    assert digest_of(["lam=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]) == digest_of(
        ["lam=1,2"]
    )


@pytest.mark.slow
def test_built_in_columns_stand_once_and_a_metric_that_no_run_has_is_named(tmp_path, capsys):
    arguments = [*OVERRIDES, *QUICK, "~report.metrics", "~report.tables", "~report.notes", "lam=0.2,0.3"]
    assert run([*arguments, "report.sweep=[ess,rhat,acept_rate,ess]"]) == 0
    line = (
        "report.sweep names acept_rate, a metric that no run of this sweep has. Did you mean 'accept_rate'?"
    )
    out = capsys.readouterr().out
    assert line in " ".join(out.split())
    (head,) = (text for text in out.splitlines() if text.lstrip().startswith("lam "))
    assert (head.count("ESS"), head.count("R-hat")) == (1, 1)
    place = the_sweep(tmp_path)
    assert line.replace("'", "&#39;") in (place / "index.html").read_text()
    frame = pd.read_csv(place / "sweep.csv")
    assert frame["ess"].notna().all()
    assert frame["rhat"].notna().all()
    assert [name for name in frame.columns if name.startswith("ess")] == ["ess"]
