"""Sweeps: go on past a failing job, say so at once and at the end, and do only what is missing."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from runs import FEW

from mhrun.cli.main import run

WORDS = ["-m", "experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", "~methods.sghmc", *FEW]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_sweep_with_a_job_that_fails(tmp_path, capsys):
    words = [*WORDS, "lam=0.2,0.3,0.9", "tau=0.5,0.6"]
    assert run(words) == 1
    err = capsys.readouterr().err
    at = err.index("job 4 failed: lam = 0.9 must be below tau")
    assert at < err.index("[5] lam=0.9")  # told at once, before the next job
    assert "2 of 6 jobs failed" in err
    sweep = next((tmp_path / "outputs/gmm_tied_means/sweeps").iterdir())
    assert "mhrun.errors.Refusal" in (sweep / "jobs" / "0004.log").read_text()
    jobs = [json.loads(path.read_text()) for path in sorted((sweep / "jobs").glob("*.json"))]
    assert [job["status"] for job in jobs] == ["done"] * 4 + ["failed"] * 2
    table = pd.read_csv(sweep / "sweep.csv")
    assert sorted({*zip(table["lam"], table["tau"], strict=True)}) == [
        (0.2, 0.5),
        (0.2, 0.6),
        (0.3, 0.5),
        (0.3, 0.6),
    ]
    assert table["accept_rate"].between(0, 1).all()
    for name in ("sweep.png", "sweep.pdf", "sweep.md", "sweep.tex", "index.html"):
        assert (sweep / name).stat().st_size > 100
    assert "must be below tau" in (sweep / "index.html").read_text()

    # Again: nothing is computed twice; what failed fails again.
    stamps = {
        p: p.stat().st_mtime_ns
        for p in tmp_path.glob("outputs/*/*/methods/*/trace.nc")
        if "latest" not in p.parts
    }
    assert len(stamps) == 4
    assert run(words) == 1
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    # A larger sweep does what is missing.
    assert run([*WORDS, "lam=0.2,0.3,0.1", "tau=0.5"]) == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
    assert capsys.readouterr().err.count("there already") >= 6


def test_a_sweep_that_cannot_be_put_together(capsys, tmp_path):
    assert run([*WORDS, "lam=0.2,0.3", "lamm=1"]) == 2
    assert "There is no setting 'lamm'" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()
