"""Standard streams that are closed, full, or of a terminal without control codes."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mhrun.cli import main

MHRUN = f"{shlex.quote(sys.executable)} -m mhrun"
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def of_shell(line, **environment):
    """Return exit status, output and messages of a line of bash; the status is that of its first command."""
    ended = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        env=BUFFERED | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_reader_that_has_gone_is_no_error(buffering):
    """What is buffered is printed as the process ends."""
    assert of_shell(f"{MHRUN} --help | true", **buffering) == (0, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_full_disk_behind_the_output_is_no_bug(buffering):
    status, _, messages = of_shell(f"{MHRUN} --help >/dev/full", **buffering)
    assert status == main.FAILED
    assert messages.startswith("mhrun: ")
    assert "No space left on device" in messages
    assert messages.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("list >&-", 0),
        ("gmm_tied_means --cfg job >&-", 0),
        ("list 2>&-", 0),
        ("nothing >&- 2>&-", main.MISTAKE),
    ],
)
def test_closed_streams_are_no_error(line, status):
    ended, _, messages = of_shell(f"{MHRUN} {line}")
    assert (ended, messages) == (status, "")


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("kind", "has_codes"), [("dumb", False), ("xterm", True)])
def test_progress_of_a_check_needs_control_codes(monkeypatch, kind, has_codes):
    screen = Terminal()
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(sys, "stderr", screen)
    assert main.run(["check", "rule=barker", "checks=[balance]"]) == 0
    assert ("\x1b[K" in screen.getvalue()) is has_codes
