"""The list of what has been run, and how a run shows on a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from kit import FEW
from rich.console import Console
from rich.progress import Progress

from mhrun.cli.listing.experiment import print_section
from mhrun.cli.listing.outline import seconds_at_paper_scale
from mhrun.cli.main import run
from mhrun.cli.places import experiments
from mhrun.cli.progress import Bars, Lines, Notes, _Clock
from mhrun.cli.running import compute
from mhrun.durations import describe_duration
from mhrun.report.claims.recorded import recorded_results
from mhrun.store.folder import RunFolder
from mhrun.store.identity import RESULTS_VERSION


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- The list -----------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from mhrun.store.folder import RunFolder
with RunFolder(Path(sys.argv[1])).held(print):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_run_is_listed_as_interrupted(tmp_path, capsys):
    folder = RunFolder(tmp_path / "outputs" / "gmm_tied_means" / "0123456789ab")
    folder.create({"experiment": "gmm_tied_means"})
    folder.write_summary({"status": "running", "scale": "quick"})
    with subprocess.Popen([sys.executable, "-c", HOLDER, folder.path], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            assert run(["list"]) == 0
            assert "quick running" in capsys.readouterr().out
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    assert (folder.path / ".owner").exists()
    time.sleep(0.05)
    assert run(["list"]) == 0
    assert "quick interrupted" in capsys.readouterr().out


def test_claims_are_folded_and_not_cut(capsys):
    print_section(
        "claims",
        ["a claim of which the end is what tells it from the others: with tau = 0.7"],
        40,
        cuts=False,
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines[2:]).split()).endswith("from the others: with tau = 0.7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\nb: 3\n", "line 2: expected"),
        ("- a\n", "holds no settings"),
        ("a: \x01", "U+0001 is not allowed in YAML"),
    ],
)
def test_an_experiment_file_that_is_broken_is_reported_in_a_line(tmp_path, capsys, text, message):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "broken.yaml").write_text(text)
    assert run(["list", "--config-dir", "mine"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "broken.yaml'" in err
    assert err.count("\n") == 1


def test_experiments_are_listed_by_paper_in_a_line_each(capsys, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "own.yaml").write_text("title: Of mine\n")
    assert run(["list", "--config-dir", "mine"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["experiment", "time", "recorded", "yours", "title"]
    assert lines[1:3] == ["Your own", f"  {'own':25} {'':7}  {'':8}  not run  Of mine"]
    paper = lines.index("Li & Wong 2017: Mini-batch Tempered MCMC")
    # mint_logistic_flat names no paper: mint_logistic, which it builds on, does.
    group = lines[paper + 1 : lines.index("", paper)]
    assert {"gmm_tied_means", "mint_logistic_flat"} <= {line.split()[0] for line in group}
    assert lines.index("Beyond the papers") > paper
    (row,) = (line for line in group if line.split()[0] == "gmm_tied_means")
    assert row.endswith(
        "not run  Mixture of Gaussians with tied means [Li & Wong 2017, section 4.1, Figure 1]"
    )
    reproduced = "{} of {}".format(*recorded_results("mint")["experiments", "gmm_tied_means"].counts)
    time = describe_duration(seconds_at_paper_scale()["gmm_tied_means"])
    assert f"{time}  {reproduced:>8}  not run" in row
    names = [line.split()[0] for line in lines if re.match(r"  \w", line)]
    assert sorted(names) == sorted([*experiments(), "own"])


def test_the_list_fits_a_terminal_of_80_columns(capsys, monkeypatch):
    monkeypatch.setattr("mhrun.cli.listing.experiments.columns", lambda: 80)
    assert run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if re.match(r"  \w", line)]
    assert len(rows) == len(experiments())
    assert all(len(line) <= 80 for line in lines)
    assert len(lines[0]) == lines[0].index("title") + 5
    assert "recorded: claims reproduced by the project's runs" in "\n".join(lines)


RECORD = {
    "run": "abc",
    "finished": "2026-01-02",
    "results_version": RESULTS_VERSION,
    "claims": [
        {"id": "f1l-close", "verdict": "reproduced", "ours": 0.0123},
        {"id": "f1r-ratio", "verdict": "not reproduced", "ours": 2.5},
    ],
}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Write recorded results of gmm_tied_means in the place of the project's."""
    monkeypatch.setattr("mhrun.report.claims.recorded.RESULTS", tmp_path / "results")

    def write(**changes):
        (tmp_path / "results").mkdir(exist_ok=True)
        groups = {"experiments": {"gmm_tied_means": RECORD | changes}, "sweeps": {}}
        (tmp_path / "results" / "mint.json").write_text(json.dumps(groups))

    return write


def test_recorded_verdicts_and_those_of_the_users_runs_are_listed_together(record, capsys, tmp_path):
    record()
    assert run(["list"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  gmm_tied_means "))
    assert "  1 of 2  not run  " in row
    assert run(["list", "gmm_tied_means"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "recorded: 1 of 2 reproduced (the project's run abc at scale=paper, 2026-01-02, in docs/results) "
        "yours: not run at paper scale reproduced (recorded): Figure 1, left: total variation distance"
    ) in out
    assert "not run at paper scale (recorded): Figure 1, left: the same for the chain" in out
    assert "not reproduced (recorded): Figure 1, right" in out
    assert "recorded 0.0123)" in out

    folder = RunFolder(tmp_path / "outputs" / "gmm_tied_means" / "0123456789ab")
    folder.create({"experiment": "gmm_tied_means"})
    judged = [{"id": "f1l-close", "verdict": "not reproduced", "ours": 0.5}]
    folder.write_summary({"status": "complete", "scale": "paper", "claims": judged})
    assert run(["list", "gmm_tied_means"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "yours: 0 of 1 reproduced reproduced (recorded), not reproduced (yours): Figure 1, left" in out
    assert "recorded 0.0123, yours 0.5)" in out
    assert "not reproduced (recorded), not run at paper scale (yours): Figure 1, right" in out


@pytest.mark.parametrize("version", [None, RESULTS_VERSION - 1])
def test_without_recorded_results_lists_have_those_of_the_user_alone(record, capsys, version):
    if version is not None:  # of other random numbers
        record(results_version=version)
    assert run(["list"]) == 0
    assert "recorded" not in capsys.readouterr().out
    assert run(["list", "gmm_tied_means"]) == 0
    out = capsys.readouterr().out
    assert "recorded" not in out
    assert "\n    not run at paper scale: Figure 1, left: total variation distance" in out


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"experiments": []}', '{"experiments": {"gmm_tied_means": 1}}']
)
def test_recorded_results_that_cannot_be_read_are_none(record, capsys, tmp_path, damage):
    record()
    (tmp_path / "results" / "mint.json").write_text(damage)
    assert run(["list", "gmm_tied_means"]) == 0
    assert "recorded" not in capsys.readouterr().out


def test_an_experiment_of_a_user_has_no_recorded_verdicts(record, capsys, tmp_path):
    """Even if it has the name of a published one and names the same paper."""
    record()
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    own = "# @package _global_\ntitle: Of mine\nreport: {paper: mint}\n"
    (tmp_path / "mine" / "experiment" / "own.yaml").write_text(own)
    assert run(["list", "--config-dir", "mine", "own"]) == 0
    assert "recorded" not in capsys.readouterr().out


@pytest.mark.slow
def test_an_experiment_is_shown_with_methods_settings_claims_and_runs(capsys, tmp_path):
    folder = RunFolder(tmp_path / "outputs" / "gmm_tied_means" / "0123456789ab")
    folder.create({"experiment": "gmm_tied_means"})
    judged = {"id": "f1l-close", "verdict": "reproduced", "ours": 0.0123}
    times = {"started": "2026-01-02T10:00:00+0000", "finished": "2026-01-02T10:05:00+0000"}
    # Seconds of steps of five minutes, in which there was other work.
    methods = {"mint": {"wall_s": 70.0}, "sgld": {"wall_s": 50.0}, "lost": {}}
    summary = {"status": "complete", "scale": "paper", "claims": [judged], "methods": methods, **times}
    folder.write_summary(summary)
    assert run(["list", "gmm_tied_means"]) == 0
    out = capsys.readouterr().out
    for line in (
        "  reproduces Li & Wong 2017, section 4.1, Figure 1",
        "  run it: mhrun gmm_tied_means [scale=smoke|quick|paper]",
        "    mint           MetropolisHastings, RandomWalk, Shared, Metropolis",
        "    tau=0.5  # minibatch size m = n^tau",
        "    m=1000",
        "    0123456789ab  paper complete    2026-01-02 10:05, 2 min of steps, 1 of 1 claims reproduced  ",
    ):
        assert f"\n{line}" in out
    assert "reproduced (recorded), reproduced (yours): Figure 1, left: total variation distance" in out
    assert "not run at paper scale (yours): Figure 1, left: the same for the chain" in out
    assert run(["list", "mnist_tests"]) == 0
    assert "not run yet: mhrun mnist_tests" in capsys.readouterr().out
    assert run(["list", "bnn_truth"]) == 0
    assert "\n  beyond the papers: agreement and" in capsys.readouterr().out


def test_runs_are_listed_with_the_settings_in_which_they_differ(capsys, tmp_path):
    for digest, m, warmup in (("a" * 12, 10, 5), ("b" * 12, 20, 5)):
        config = {"experiment": "mine", "scale": "quick", "m": m, "warmup": warmup}
        parts = {"model": {}, "data": {}, "target": {}, "runtime": {"outputs": "outputs"}}
        methods = {"one": {"kernel": {"m": m}}}
        folder = RunFolder(tmp_path / "outputs" / "mine" / digest)
        folder.create({**config, **parts, "methods": methods})
        folder.write_summary({"status": "complete", "scale": "quick"})
    (tmp_path / "outputs" / "mine" / ("c" * 12)).mkdir()
    (tmp_path / "outputs" / "mine" / ("c" * 12) / "config.yaml").write_text("damaged: [")
    assert run(["list", "mine"]) == 0
    lines = capsys.readouterr().out.partition("\n  runs\n")[2].splitlines()
    below = {line.split()[0]: lines[i + 1].strip() for i, line in enumerate(lines[:-1]) if line.strip()}
    assert below["a" * 12] == "m=10"
    assert below["b" * 12] == "m=20"


def test_an_experiment_with_a_setting_to_be_given_is_shown_all_the_same(capsys, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "own.yaml").write_text(
        "# @package _global_\ndefaults: [/data: gaussian, /model: gaussian_mean]\nmine: ???\n"
    )
    assert run(["list", "--config-dir", "mine", "own"]) == 0
    assert "data.n, mine must be given; add data.n=VALUE." in capsys.readouterr().out


# --- The terminal -------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_cursor_comes_back_whatever_ends_a_run(tmp_path, monkeypatch, error):
    hide, show = "\x1b[?25l", "\x1b[?25h"
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("mhrun.cli.progress.watcher", lambda: Bars(terminal))

    def stopped(config, watching, **_):
        watching.begin("mint", 0, 100, "plain")
        watching.advance("mint", 10, 0.3, 20, 0)
        assert hide in terminal.getvalue()
        assert show not in terminal.getvalue()
        raise error

    monkeypatch.setattr("mhrun.engine.experiment.run_experiment", stopped)
    with pytest.raises(error):
        compute({"experiment": "x", "methods": {}, "runtime": {"outputs": tmp_path, "force": True}})
    assert terminal.getvalue().rindex(show) > terminal.getvalue().rindex(hide)


def test_the_remaining_time_is_that_of_the_steps_since_a_resume():
    now = 0.0
    clock = _Clock()
    with Progress(clock, console=Console(file=io.StringIO()), get_time=lambda: now) as progress:
        bar = progress.add_task("mint", total=1000, completed=900)

        def shown(seconds, step):
            nonlocal now
            now = seconds
            progress.update(bar, completed=step)
            return clock.render(progress.tasks[0]).plain

        assert shown(0.5, 901) == shown(1.0, 902) == "-:-- left"  # too early to tell
        for second in range(2, 11):
            text = shown(second, 900 + 5 * second)
        assert text == "0:10 left"  # 50 steps at 5 a second
        progress.update(bar, completed=1000)
        assert clock.render(progress.tasks[0]).plain == "took 0:10"


def test_each_method_has_one_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    bars = Bars(terminal)
    for method in ("mint", "mcmc"):
        bars.begin(method, 0, 100, "plain")
        bars.advance(method, 100, 0.3, 20, 0)
        bars.end(method)
    bars.close()
    bars.close()
    # Shown once and left once: a display that is begun anew would draw the bars before it again.
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1


def shown(width, *advances, first=0):
    """Return the lines of a bar on a terminal of some columns, without control sequences."""
    terminal = Terminal()
    bars = Bars(terminal, width)
    bars.begin("mhminibatch_printed", first, 4000, "compiled")
    for step in advances:
        bars.advance("mhminibatch_printed", step, 0.31, 480_000, 1200)
    bars.close()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").splitlines()


@pytest.mark.parametrize(
    ("width", "facts"), [(64, ""), (80, "acc. 0.31"), (140, "acceptance 0.31, 4.8e5 likelihoods")]
)
def test_a_bar_has_one_clock_and_fits_the_terminal(monkeypatch, width, facts):
    monkeypatch.setenv("TERM", "xterm")
    moving, done = shown(width, 2000)[-1], shown(width, 4000)[-1]
    for line in (moving, done):
        assert len(line.rstrip()) <= width
        assert line.startswith("mhminibatch_printed ")
        assert facts in line
        assert sum(line.count(character) for character in "━╸╺") >= 14
    assert " 50 % " in moving
    assert len(re.findall(r"\d:\d\d|-:--", moving)) == 1
    assert moving.rstrip().endswith("left")
    assert re.search(r"100 % .*took 0:00$", done.rstrip())
    assert ("2,000/4,000 steps" in moving) == (width == 140)
    assert ("(compiled)" in moving) == (width == 140)


@pytest.mark.slow
def test_only_a_method_with_an_acceptance_test_shows_acceptance(tmp_path, capsys, unrendered):
    """A dynamics that computes energies counts likelihoods too."""
    words = ["experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", *FEW, "~methods.sghmc"]
    words += [
        "+method@methods.tact=tact_hmc",
        "methods.tact.schedules.step_size.step_size=1e-6",
        "runtime.report=false",
    ]
    assert run([*words, f"runtime.outputs={tmp_path}"]) == 0
    done = {line.split(":")[0]: line for line in capsys.readouterr().err.splitlines() if ": done in" in line}
    assert "acceptance" in done["mint"]
    assert "likelihoods" in done["tact"]
    assert "acceptance" not in done["tact"]


def test_time_left_is_estimated_after_the_first_block(monkeypatch):
    """A loop is compiled in the first block: 20 s for its 47 steps say nothing of the others."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = Lines(stream := io.StringIO())
    lines.begin("mint", 0, 1050, "compiled")
    for now[0], step in ((20.0, 47), (26.0, 347)):
        lines.advance("mint", step, None, 0, 0)
    first, second = stream.getvalue().splitlines()[1:]
    assert "step 47 of 1,050" in first
    assert "left" not in first
    assert second.endswith(", 14 s left")  # 300 steps in 6 s, 703 steps are left


def test_a_resumed_run_reports_the_step_where_it_resumed(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    line = "mint: resumed at step 2,398 of 4,000"
    assert line in "\n".join(shown(80, 3000, first=2398)).replace("mhminibatch_printed", "mint")
    stream = io.StringIO()
    Lines(stream).begin("mint", 2398, 4000, "compiled")
    assert stream.getvalue() == f"{line} (compiled)\n"
    Notes("job 2 of 4:").begin("mint", 2398, 4000, "compiled")
    assert capsys.readouterr().err == f"job 2 of 4: {line}\n"


@pytest.mark.slow
def test_a_warning_of_the_last_method_is_printed_once(tmp_path, capsys, unrendered):
    """It is in the result at the end; without a report it follows the method."""
    words = ["experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", *FEW, "~methods.sghmc"]
    words += [f"runtime.outputs={tmp_path}"]
    assert run(words) == 0
    captured = capsys.readouterr()
    line = "the log-ratio's minibatch noise has sd"
    assert line not in captured.err
    assert " ".join(captured.out.split()).count(line) == 1
    assert run([*words, "thin=2", "runtime.report=false"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count(line) == 1
