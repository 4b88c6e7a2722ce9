"""What other operating systems lack: capitals in names of files, measurements of Linux, GNU's tools."""

from __future__ import annotations

import re
import sys

import pytest

from mhrun.cli import dry_run, main
from mhrun.paths import PACKAGE

MAKEFILE = PACKAGE.parent / "Makefile"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+method@methods.MINT=mint"], "the method MINT has the files of mint"),
        (
            ["+report.figures.Own=a.b", "+report.figures.own=a.b"],
            "report.figures: own has the files of Own",
        ),
    ],
)
def test_names_that_differ_in_capitals_alone_are_refused(capsys, overrides, message):
    """On macOS one would have the files of both."""
    assert main.run(["gmm_tied_means", "--cfg", "job", *overrides]) == main.MISTAKE
    assert f"{message} where capitals make no difference; rename one." in capsys.readouterr().err


def test_a_dry_run_leaves_out_the_memory_where_it_is_not_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(sys, "platform", "win32")
    assert dry_run._memory({"device": "cpu"}, []) == []


@pytest.mark.skipif(not MAKEFILE.exists(), reason="is not part of a wheel")
def test_the_makefile_has_no_escapes_that_only_gnu_sed_knows():
    """The sed of macOS writes \\t as a t."""
    assert not re.search(r"sed .*\\t", MAKEFILE.read_text(encoding="utf-8"))


def test_cores_are_counted_in_one_place():
    """macOS has no affinity of processes; what asks for it has another way there."""
    files = [file for folder in ("mhrun", "benchmarks") for file in (PACKAGE.parent / folder).rglob("*.py")]
    asking = [file.name for file in files if "sched_getaffinity" in file.read_text(encoding="utf-8")]
    assert sorted(asking) == ["cores.py", "jobs.py", "worker.py"]
