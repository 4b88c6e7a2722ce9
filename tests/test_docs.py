"""What the documentation shows runs as it stands."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy import stats

from mhrun.cli.compose import compose_config, sweep_jobs
from mhrun.cli.main import run, taken_apart
from mhrun.paths import PACKAGE
from mhrun.store.identity import RESULTS_VERSION

DOCS = PACKAGE.parent / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@cache
def blocks(page: str, language: str) -> list[tuple[str, str]]:
    """Return the title and the text of each block of a page; ``py`` is Python that is shown and not run."""
    return [
        (title, text) for kind, title, text in BLOCK.findall((DOCS / page).read_text()) if kind == language
    ]


@pytest.mark.parametrize("page", [p for p in PAGES if any(not title for title, _ in blocks(p, "python"))])
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {}
    for title, code in blocks(page, "python"):
        if not title:  # a block goes on from those before it
            exec(compile(code, page, "exec"), names)


def commands() -> list[tuple[str, str]]:
    found = [
        (page, " ".join(line.partition(" #")[0].split()))
        for page in PAGES
        for _, text in blocks(page, "bash")
        for line in text.replace("\\\n", " ").splitlines()
        if line.startswith("mhrun ")
    ]
    # A page of a paper has its commands made; a folder of the reader's own is tested below.
    return [
        (page, line)
        for page, line in dict.fromkeys(found)
        if "--config-dir" not in line and "--project" not in line
    ]


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_mean_something(page, line):
    words = taken_apart([word for word in shlex.split(line)[1:] if word != "--help"] or ["list"])
    if words.command == "run":
        # Where a job is done is no matter of what it is; the first job of a sweep stands for all.
        told = [word for word in words.rest if not word.startswith(("device=", "hydra"))]
        assert compose_config(sweep_jobs(told)[0][0] if words.multirun else told)["methods"] is not None


def test_the_worked_example(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MHRUN_TRUST", "")  # put back afterwards
    monkeypatch.chdir(tmp_path)
    page = "extending.md"
    for title, text in [*blocks(page, "python"), *blocks(page, "yaml")]:
        if title:
            Path(title).parent.mkdir(parents=True, exist_ok=True)
            Path(title).write_text(text)
    lines = [line for _, text in blocks(page, "bash") for line in text.splitlines() if "scale=smoke" in line]
    assert len(lines) == 2
    for line in lines:
        assert run([*shlex.split(line)[1:], "runtime.threads=1"]) == 0, capsys.readouterr().err
    assert "could not be" not in capsys.readouterr().err
    summary = json.loads((next(Path("outputs/waiting").glob("*/report")).parent / "summary.json").read_text())

    from ours.waits import Waits

    x = Waits(1000, 2.0).load().fields["x"]
    posterior = stats.gamma(1001, scale=1 / (float(x.sum()) + 1))
    # Its draws are worth a hundred independent ones or more: five standard errors. Laws are tested elsewhere.
    for method in ("lazy_walk", "scaled_sgld"):
        assert abs(summary["metrics"][f"{method}.mean"] - posterior.mean()) < posterior.std() / 2


def test_results_are_of_the_last_run_with_the_papers_settings(tmp_path, monkeypatch):
    """Whatever it found: a run that reproduces does not stand in for a later one that does not."""
    monkeypatch.syspath_prepend(DOCS / "_made")
    import claims
    import collect

    def left_by(name, finished, tv, departures=(), version=RESULTS_VERSION):
        folder = tmp_path / "outputs" / "gmm_tied_means" / name
        folder.mkdir(parents=True)
        config = {"experiment": "gmm_tied_means", "seed": 0, "report": {"paper": "mint"}}
        config |= {
            "runtime": {"departures": list(departures)},
            "methods": {},
            "model": {},
            "data": {},
            "target": {},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        summary = {"status": "complete", "format": 1, "finished": finished, "versions": {}}
        summary |= {"results_version": version}
        metrics = {"mint.tv": tv, "mint.mode_ratio": {"value": None, "se": None}}
        (folder / "summary.json").write_text(json.dumps(summary | {"metrics": metrics}))

    left_by("a", "2026-01-01T10", 0.01)
    left_by("b", "2026-01-03T10", 0.03)
    left_by("c", "2026-01-02T10", 0.01)
    left_by("d", "2026-01-04T10", 0.01, ["scale = quick"])
    left_by("e", "2026-01-05T10", 0.01, version=RESULTS_VERSION - 1)
    monkeypatch.setattr(collect, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(collect, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mint.json").write_text(
        f'{{"experiments": {{"other": {{"results_version": {RESULTS_VERSION}, "claims": []}},'
        '"old": {"results_version": 1, "claims": []}}, "sweeps": {}}'
    )
    collect.main(tmp_path / "outputs")
    found = json.loads((tmp_path / "results" / "mint.json").read_text())["experiments"]
    assert set(found) == {"gmm_tied_means", "other"}
    assert found["gmm_tied_means"]["run"] == "b"
    told = {claim["id"]: claim for claim in found["gmm_tied_means"]["claims"]}
    assert told["f1l-close"]["verdict"] == "not reproduced"
    assert told["f1r-ratio"]["verdict"] == "not reproduced"  # a metric that is not a number satisfies no rule
    assert told["f1l-modes"]["verdict"] == "not run at paper scale"

    assert found["gmm_tied_means"]["results_version"] == RESULTS_VERSION
    told["f1l-close"]["rule"] = "below 0.04"
    monkeypatch.setattr(
        claims, "results", lambda paper: {"experiments": {"gmm_tied_means": found["gmm_tied_means"]}}
    )
    assert [line.split("'")[1] for line in claims.stale("mint")] == ["f1l-close"]
    assert claims.verdicts("mint")["not reproduced"] == 2
    assert "<span class='bad'>not reproduced</span>" in claims.tables("mint")

    told["f1l-close-stored"]["verdict"] = "self-check passed"
    assert any("does not allow" in line for line in claims.stale("mint"))

    found["gmm_tied_means"]["results_version"] -= 1
    assert any("are of version" in line for line in claims.stale("mint"))


def test_committed_results_are_of_one_version():
    """Numbers made with other random numbers or distributions do not stand beside those of the code."""
    for path in sorted((DOCS / "results").glob("*.json")):
        for kind, experiments in json.loads(path.read_text()).items():
            for name, result in experiments.items():
                assert result["results_version"] == RESULTS_VERSION, f"{path.name}, {kind}, {name}"
