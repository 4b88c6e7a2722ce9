"""Claims of a user's paper, in the user's project."""

import json
import sys

import pytest

from mhrun.cli.main import run

FILES = {
    "own.py": "def log_lik(theta, rows):\n    return -0.5 * (rows.x[:, 0] - theta.mu) ** 2\n",
    "numbers_of.py": "def metrics(run):\n    return {f'{m}.mean': float(run.draws(m).mean()) for m in run.methods}\n",
    "conf/experiment/thing.yaml": """# @package _global_
defaults: [{/data: gaussian_sample}, {/method@methods.mcmc: mcmc}, _self_]
title: A mean
data: {n: 50, dim: 1}
model:
  _target_: mhrun.models.user_function.UserFunction
  log_lik: own.log_lik
  parameters: {mu: 1}
scales: {smoke: {steps: 200}, quick: {steps: 300}, paper: {steps: 400}}
chains: 2
warmup: 100
steps: ${scales.${scale}.steps}
report: {paper: mine_2026, metrics: numbers_of.metrics}
""",
    "experiments/mine_2026/claims.yaml": """
paper: {key: mine_2026, title: A mean, authors: Jane Doe, year: 2026, where: in preparation}
experiments:
  thing:
    claims:
      - {id: finite, artefact: Table 1, quantity: the mean, paper: 0, metric: mcmc.mean, rule: {between: [-2, 2]}}
      - {id: large, artefact: Table 1, quantity: the mean, paper: 9, metric: mcmc.mean, rule: {above: 5}}
""",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)
    path, there = list(sys.path), set(sys.modules)
    for name, text in FILES.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    yield "mine"
    sys.path[:] = path
    for name in {"own", "numbers_of"} & set(sys.modules) - there:
        del sys.modules[name]


@pytest.mark.slow
def test_they_are_judged_and_listed(project, tmp_path, capsys):
    assert run(["--project", project, "thing", "scale=paper"]) == 0
    assert "1 of 2 claims reproduced" in capsys.readouterr().out
    summary = tmp_path / "outputs" / "thing" / "latest" / "summary.json"
    verdicts = {claim["id"]: claim["verdict"] for claim in json.loads(summary.read_text())["claims"]}
    assert verdicts == {"finite": "reproduced", "large": "not reproduced"}
    assert run(["--project", project, "list", "thing"]) == 0
    assert "not reproduced: Table 1: the mean (paper 9" in capsys.readouterr().out


def test_a_paper_without_claims_is_refused_before_the_run(project, tmp_path, capsys):
    assert run(["--project", project, "thing", "scale=smoke", "report.paper=mnt"]) == 2
    error = capsys.readouterr().err
    assert "report.paper = 'mnt' has no claims: write experiments/mnt/claims.yaml" in error
    assert "Did you mean 'mint'" in error
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_the_command_for_verdicts_names_the_project(project, tmp_path, capsys):
    assert run(["--project", project, "thing", "scale=smoke"]) == 0
    line = "mhrun --project mine experiment=thing scale=paper"
    assert f"For verdicts: {line}\n" in capsys.readouterr().out
    page = tmp_path / "outputs" / "thing" / "latest" / "report" / "index.html"
    assert f"<code>{line}</code>" in page.read_text()
    assert run(line.split()[1:]) == 0
    assert "1 of 2 claims reproduced" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_of_a_sweep_shows_its_command_with_the_project(project, tmp_path):
    words = ["experiment=thing", "scale=smoke", "seed=1,2", "runtime.report=false"]
    assert run(["--project", project, "-m", *words]) == 0
    (page,) = (tmp_path / "outputs" / "thing" / "sweeps").glob("*/index.html")
    assert f"<code>mhrun --project mine -m {' '.join(words)}</code>" in page.read_text()


@pytest.mark.slow
def test_a_claim_whose_metric_no_run_has_is_named_with_it(project, tmp_path, capsys):
    path = tmp_path / "mine" / "experiments" / "mine_2026" / "claims.yaml"
    path.write_text(path.read_text().replace("9, metric: mcmc.mean", "9, metric: mcmc.maen"))
    assert run(["--project", project, "thing", "scale=paper"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 claims reproduced. 1 has no number: large (this run has no mcmc.maen. Did you" in out
