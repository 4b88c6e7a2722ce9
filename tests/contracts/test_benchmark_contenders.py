"""The contenders of the benchmarks that need no JAX still run, and do the same; speeds are for `make bench`."""

from __future__ import annotations

import importlib
import io
import json
import shutil
import subprocess
import sys

import pytest

from mhrun.engine.execution.graph import GraphExecutor
from mhrun.paths import PACKAGE

FOLDER = PACKAGE.parent / "benchmarks"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER.exists(), reason="the benchmarks are in the repository only"),
]


def answer(
    script: str, *words: object, chains: int = 2, steps: int = 30, most: float = 0.999
) -> dict[str, float]:
    question = json.dumps({"chains": chains, "steps": steps, "seed": 1}) + "\n"
    command = [sys.executable, str(FOLDER / script), "1", *map(str, words)]
    done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return plausible(done.stdout, most)


def plausible(printed: str, most: float = 0.999) -> dict[str, float]:
    found = json.loads(printed)
    assert 0 < found["accepted"] <= most
    assert found["wall"] > 0
    return found


@pytest.fixture(scope="module")
def ours():
    """The script as a module of this process, which keeps all of its cores: a process for each problem takes long."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "ours"]:
            # The worked example of the documentation has a package of this name
            patch.delitem(sys.modules, name)
        patch.syspath_prepend(FOLDER)
        patch.setattr(sys, "argv", ["ours.py", "1"])
        patch.setattr("worker.pin_to", lambda cores: None)
        yield importlib.import_module("ours")
    sys.modules.pop("ours", None)


@pytest.mark.parametrize(
    ("problem", "n", "batch"),
    [
        ("mint", 10_000, 1000),
        ("mint_100", 10_000, 100),
        ("mint_1000_with", 10_000, 1000),
        ("mint_logistic", 500, 100),
        ("metropolis_logistic", 500, 500),
        pytest.param("mint_network", 500, 200, marks=pytest.mark.slow),
        ("sgnht_mixture", 1, 1),
    ],
)
def test_our_contender_answers(problem, n, batch, ours, monkeypatch, capsys):
    question = json.dumps({"chains": 2, "steps": 30, "seed": 1}) + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(question))
    ours.main(1, problem, n, "torch", "memory")
    assert plausible(capsys.readouterr().out)["batch"] == batch


def test_our_contender_is_a_program():
    assert answer("ours.py", "mint_100", 10_000, "torch", "memory")["batch"] == 100


@pytest.mark.slow
def test_the_torch_contender_answers():
    assert answer("torch_network.py", 500, most=1)["accepted"] == 1


@pytest.mark.slow
def test_contenders_of_mh_minibatch_agree(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import run

    run.save_quantiles(tmp_path / "table.npz")
    sizes = {"chains": 5, "steps": 200}
    ours = answer("ours.py", "mh_minibatch", 10_000, "torch", "memory", **sizes)
    theirs = answer("numpy_growing.py", 10_000, tmp_path / "table.npz", **sizes)
    # About five standard errors of a difference of two means over 5 chains.
    assert abs(ours["accepted"] - theirs["accepted"]) < 0.11
    assert abs(ours["batch"] / theirs["batch"] - 1) < 0.4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="it needs a C++ compiler")
@pytest.mark.parametrize("problem", ["mint", "mh_minibatch"])
def test_the_loops_in_cpp_do_the_same(problem, ours, tmp_path, monkeypatch, capsys):
    """Acceptance rates of 20 chains, whose standard error is below 0.004 each; minibatches of MHminibatch too."""
    import run

    run.save_quantiles(tmp_path / "table.npz")
    sizes = {"chains": 20, "steps": 2000}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(sizes | {"seed": 1}) + "\n"))
    ours.main(1, problem, 100_000, "compiled", "memory")
    here = plausible(capsys.readouterr().out)
    there = answer("cpp_loops.py", problem, 100_000, tmp_path / "table.npz", **sizes)
    assert abs(here["accepted"] - there["accepted"]) < 0.02
    assert abs(here["batch"] / there["batch"] - 1) < 0.1


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in ("tiny", "cnn", "lstm")])
def test_steps_on_modules_are_timed_against_plain_training(name, monkeypatch):
    """With one round, a ratio of medians is a median of ratios."""
    monkeypatch.syspath_prepend(str(FOLDER))
    modules = importlib.import_module("modules")
    found = modules.ratio(name, 2, rounds=1, repeats=1)
    assert found["plain_ms"] > 0
    assert found["ratio"] == pytest.approx(found["ours_ms"] / found["plain_ms"], abs=1e-3)


def test_the_gpu_check_reports_a_missing_gpu_in_one_line(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    gpu_check = importlib.import_module("gpu_check")
    monkeypatch.setattr(gpu_check.torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 0
    assert capsys.readouterr().out == "gpu-check: no GPU here, so that nothing was checked.\n"


@pytest.mark.slow
def test_the_gpu_check_runs_on_a_cpu(monkeypatch, capsys):
    """With one small network, where `--small` has two, and graphs that are captured and not compiled."""
    monkeypatch.syspath_prepend(str(FOLDER))
    gpu_check = importlib.import_module("gpu_check")
    monkeypatch.setattr(
        gpu_check, "SMALL", gpu_check.SMALL._replace(networks=("tiny",), chains=(2,), trainings=2)
    )
    monkeypatch.setattr(
        gpu_check.gpu_steps,
        "GraphExecutor",
        lambda method, note, backend: GraphExecutor(method, note, "eager"),
    )
    assert gpu_check.main(["--device", "cpu", "--small"]) == 0
    out = capsys.readouterr().out
    for words in (
        "CPU, torch",
        "largest relative",
        "Metropolis-Langevin",
        "torch bf16",
        "graph bf16",
        "6 trainings",
    ):
        assert words in out
    assert "tf32" not in out
    assert out.count("run in torch, not as a graph") == 1  # the trials of RSGLD before its first step
    monkeypatch.setattr(gpu_check, "TOLERANCE", -1.0)
    assert not gpu_check.values("cpu", gpu_check.Console(), gpu_check.SMALL)
