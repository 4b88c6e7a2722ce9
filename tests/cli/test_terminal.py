"""The list of what has been run, and how a run shows on a terminal."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from mhrun.cli.main import run
from mhrun.cli.progress import Bars
from mhrun.cli.running import compute
from mhrun.store.folder import RunFolder


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

    def stopped(config, watching):
        watching.begin("mint", 0, 100, "plain")
        watching.advance(10, 0.3, 20, 0)
        assert hide in terminal.getvalue()
        assert show not in terminal.getvalue()
        raise error

    monkeypatch.setattr("mhrun.engine.experiment.run_experiment", stopped)
    with pytest.raises(error):
        compute({"experiment": "x", "methods": {}, "runtime": {"outputs": tmp_path, "force": True}})
    assert terminal.getvalue().rindex(show) > terminal.getvalue().rindex(hide)


def test_each_method_has_one_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    bars = Bars(terminal)
    for method in ("mint", "mcmc"):
        bars.begin(method, 0, 100, "plain")
        bars.advance(100, 0.3, 20, 0)
        bars.end(method)
    bars.close()
    bars.close()
    # Shown once and left once: a display that is begun anew would draw the bars before it again.
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1
