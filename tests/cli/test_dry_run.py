"""A dry run says what a run would take, and leaves nothing behind."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit import FEW, compute, config

from mhrun.cli.main import run
from mhrun.data import Dataset
from mhrun.dynamics.momentum import Momentum
from mhrun.engine.assemble import methods_of
from mhrun.engine.estimate import Cost, Pace, about, costs, total
from mhrun.engine.method import Method
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.kernels import EquiEnergy, Unadjusted
from mhrun.kernels.adaptive_backward import AdaptiveBackward
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.calibration import Calibration
from mhrun.monitors.predictive import Predictive
from mhrun.pairing.moving import Moving
from mhrun.proposals.random_walk import RandomWalk
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.rules.metropolis import Metropolis
from mhrun.schedules import Plan
from mhrun.schedules.fixed import Fixed
from mhrun.store.netcdf import Shape
from mhrun.target import Target

SMOKE = ("experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", *FEW)


@pytest.fixture(autouse=True)
def _quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mhrun.engine.estimate._TRIED", 0.01)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    assert run([*SMOKE, "--dry-run"]) == 0
    out = capsys.readouterr().out
    mint = next(line for line in out.splitlines() if line.startswith("mint")).split()
    # 4 chains, 600 steps, two points on 100 data: 480,000 log-likelihoods.
    assert mint[:4] == ["mint", "4", "600", "4.8e5"]
    sghmc = next(line for line in out.splitlines() if line.startswith("sghmc")).split()
    assert sghmc[:4] == ["sghmc", "4", "600", "2.4e5"]
    for message in (
        "in all  about ",
        "the report not counted",
        "disk    at most ",
        "free there",
        "memory  about ",
    ):
        assert message in out
    assert files(tmp_path) == []


@pytest.mark.slow
def test_a_dry_run_has_the_pilot_of_methods_that_have_one(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    lines = [f"{a:.3f},{b:.3f},{int(rng.random() < 0.5)}" for a, b in x]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,y", *lines]))
    arguments = ["data=table", "data.file=rows.csv", "data.target=y", "data.outcome=sign", "model=logistic"]
    arguments += [
        "model.dim=2",
        "model.prior_variance=1",
        "steps=20",
        "warmup=60",
        "chains=2",
        "executor=torch",
    ]
    arguments += [
        "+method@methods.smh2=smh2",
        "+method@methods.zig_zag=zig_zag",
        "--project",
        ".",
        "--dry-run",
    ]
    assert run(arguments) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == ["pilot", "its", "time"]
    assert "monitor" not in head
    for line in rows[:2]:
        # Evaluations of the pilot, and its seconds
        assert re.search(r" [\d.,]+(e\d)? +\d+(\.\d+)? s$", line), line


@pytest.mark.slow
def test_of_a_run_that_was_begun_what_is_left_is_reported(tmp_path, capsys):
    folder = compute(tmp_path / "outputs", *FEW)
    before = files(tmp_path)
    assert run([*SMOKE, "--dry-run"]) == 0
    assert "exists already" in capsys.readouterr().out
    (folder.path / "summary.json").unlink()  # as if it had been killed between its methods
    (folder.method("sghmc") / "done.json").unlink()
    assert run(["--dry-run", *SMOKE]) == 0
    out = capsys.readouterr().out
    assert "sghmc" in out
    assert "mint" not in out
    assert run(["--dry-run", *SMOKE, "runtime.force=true"]) == 0
    assert "mint" in capsys.readouterr().out
    assert set(files(tmp_path)) < set(before)


def test_the_time_of_a_dry_run_is_that_of_concurrent_methods(tmp_path, capsys, monkeypatch):
    def ten_seconds(methods, settings, tried):
        ends = (10.0, 10.0)
        return [Cost(method.name, 4, 600, 0, ends, ends, ends, 1000) for method, _ in methods]

    monkeypatch.setattr("mhrun.engine.estimate.costs", ten_seconds)
    for jobs, line in (
        (1, "in all  about 20 s, the report"),
        (2, "in all  about 10 s with 2 methods at a time,"),
    ):
        assert run([*SMOKE, "--dry-run", f"runtime.jobs={jobs}"]) == 0
        assert line in capsys.readouterr().out
    assert run(["-m", *SMOKE, "lam=0.2,0.3", "--dry-run", "runtime.jobs=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lam=0.2: about 10 s, at most")


def test_the_total_is_that_of_processes_that_take_the_longest_method_first():
    """Of 3, 2 and 2 s, two processes need 4 s, and at most 6 s of 6, 2 and 2 s; a fourth method runs alone."""
    ends = [("a", (2.0, 2.0)), ("b", (3.0, 6.0)), ("c", (2.0, 2.0)), ("alone", (7.0, 7.0))]
    found = [Cost(name, 1, 1, 0, seconds, (0, 0), (0, 0), 0) for name, seconds in ends]
    assert total(found) == total(found, 1, {"a", "b", "c"}) == (14.0, 17.0)
    assert total(found[:3], 2, {"a", "b", "c"}) == (4.0, 6.0)
    assert total(found, 2, {"a", "b", "c"}) == (11.0, 13.0)
    assert total(found[:3], 8, {"a", "b", "c"}) == (3.0, 6.0)


def test_a_dry_run_refuses_what_the_run_would(tmp_path, capsys):
    assert run([*SMOKE, "m=10001", "--dry-run"]) == 2
    assert "more than the n = 10000 data" in capsys.readouterr().err
    assert run(["list", "--dry-run"]) == 2
    assert "There is no option '--dry-run'" in capsys.readouterr().err


def test_a_sweep_can_be_planned(tmp_path, capsys):
    assert run(["-m", *SMOKE, "lam=0.2,0.9,0.3", "--dry-run"]) == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("lam=0.2: about ")
    assert "on disk" in lines[1]
    assert lines[2].startswith(
        "in all  3 jobs, 0 of them there already, 1 refused; one after the other about "
    )
    assert "lam=0.9: lam = 0.9 must be below tau" in captured.err
    assert files(tmp_path) == []


def network(monitor=None, kernel=None, steps=40):
    rng = np.random.default_rng(0)
    data = Dataset.of({"x": rng.normal(size=(60, 5)), "y": rng.integers(0, 3, 60)})
    model = Perceptron([5, 4, 3])
    plan = Plan({"s": Fixed(step_size=1e-3, temperature=2.0)}, 3, 0, steps)
    return Method(
        "net",
        kernel or Unadjusted(Momentum(), 6),
        Target(model, data),
        plan,
        Shape(3, (), 0, steps, None, 5),
        1,
        torch.float64,
        monitor=monitor and monitor(data),
    )


class Progress(Silent):
    """Counts evaluations and observations."""

    lik = 0

    def advance(self, method, step, accept_rate, n_lik, n_grad):
        self.lik = n_lik


@pytest.mark.parametrize("average", [None, 3])
def test_monitor_runs_are_counted_and_timed(tmp_path, monkeypatch, average):
    """In 40 steps: observations at 8, 16, ...; snapshots at 15, 20, ...; parameters averaged at 12, 15, ..."""
    monitored = []
    real = Predictive.observe

    def counted(self, target, memory, step, *rest):
        monitored.append(step)
        return real(self, target, memory, step, *rest)

    monkeypatch.setattr(Predictive, "observe", counted)
    method = network(lambda data: Predictive(data, 8, average, 5, after=10))
    run_method(method, tmp_path / "run", Settings("torch"), Silent(), lambda: False, {})
    due = {8, 16, 24, 32, 40, 15, 20, 25, 30, 35} | set(range(12, 41, 3) if average else ())
    assert monitored == sorted(due)
    expected = len(due)
    monkeypatch.setattr("mhrun.engine.estimate._pace", lambda *_: Pace(0.0, 0.0, 0.0, method.first_state()))
    now = [0.0]
    monkeypatch.setattr(Predictive, "observe", lambda *_: now.__setitem__(0, now[0] + 0.5))
    monkeypatch.setattr("mhrun.engine.estimate.time.perf_counter", lambda: now[0])
    (cost,) = costs([(method, tmp_path / "none")], Settings("torch"))
    assert cost.monitor_runs == expected
    assert cost.seconds == (0.5 * expected, 0.5 * expected)
    assert f"with {expected} monitor runs, about" in cost.line


def test_the_time_of_a_monitor_of_groups_is_that_of_whole_groups(tmp_path, monkeypatch):
    """One chain of three is no ensemble; a slow monitor is timed for a group, or for a few."""
    method = network(lambda data: Calibration(data, 8, group=3))
    (cost,) = costs([(method, tmp_path / "none")], Settings("torch"), tried=0.01)
    assert cost.monitor_runs == 5
    monkeypatch.setattr("mhrun.engine.estimate._LONG_OBSERVATION", 0.0)
    (slow,) = costs([(method, tmp_path / "none")], Settings("torch"), tried=0.01)
    assert slow.monitor_runs == 5


@pytest.mark.parametrize("step", [1e-6, 0.3])
def test_the_trials_of_backward_moves_are_within_the_stated_range(tmp_path, step):
    kernel = AdaptiveBackward(ReversibleLangevinProposal(), Moving(6), Metropolis(), 10, start=30.0, trials=4)
    method = network(kernel=kernel)
    least, most = kernel.extra(40)
    assert (least, most) == (4, 4 * 10 * 4)
    watcher = Progress()
    run_method(method, tmp_path / "run", Settings("torch"), watcher, lambda: False, {})
    plain = 40 * 3 * 12  # both points on six data, three chains
    found = (watcher.lik - plain) / (plain / 40)
    assert least <= found <= most
    (cost,) = costs([(method, tmp_path / "none")], Settings("torch"))
    assert cost.n_lik[0] <= watcher.lik <= cost.n_lik[1]


def test_an_estimate_between_two_bounds_is_shown_as_a_range():
    assert about((5.0, 5.0)) == "about 5 s"
    assert about((5.0, 600.0)) == "between 5 s and 10 min"
    assert total([]) == (0, 0)


@pytest.mark.slow
def test_an_estimate_is_about_what_a_run_takes(tmp_path, monkeypatch):
    """Steps that take milliseconds each: within a factor of three of the CPU time, whatever else runs."""
    clock = SimpleNamespace(perf_counter=time.process_time, monotonic=time.process_time)
    monkeypatch.setattr("mhrun.engine.estimate.time", clock)
    monkeypatch.setattr("mhrun.store.blocks.time", clock)
    arguments = config(tmp_path / "outputs", *FEW, "executor=torch", "steps=1500")
    methods = [m for m in methods_of(arguments) if m.name == "mint"]
    (cost,) = costs([(methods[0], tmp_path / "none")], Settings("torch", 1), 0.3)
    arguments = (*FEW, "~methods.sghmc", "executor=torch", "steps=1500")
    took = compute(tmp_path / "outputs", *arguments).summary()["methods"]["mint"]["wall_s"]
    assert took / 3 < cost.seconds[0] < took * 3


def test_rungs_that_begin_later_are_counted_from_then_on(tmp_path):
    """Rungs 2, 1, 0 of m = 2, 3, 5 begin at steps 1, 31, 61 of 100; no jumps: two points on m data at each step."""
    target = Target(GaussianMean(), Dataset.of(np.random.default_rng(3).normal(size=50)))
    kernel = EquiEnergy(RandomWalk(), Metropolis(), 3, [5, 3, 2], [0.0], jump=0.0, stagger=30)
    shape = Shape(3, ("theta",), 20, 80, 1)
    temperatures = {"all": Fixed(step_size=0.1, temperature=[10.0, 20.0, 40.0])}
    method = Method("ladder", kernel, target, Plan(temperatures, 3, 20, 80), shape, 0)
    (cost,) = costs([(method, tmp_path)], Settings("torch", 1))
    wanted = 2 * (2 * 100 + 3 * 70 + 5 * 40)
    assert cost.n_lik == pytest.approx((wanted, wanted))
    summary = run_method(method, tmp_path / "run", Settings("torch", 1), Silent(), lambda: False, {})
    assert sum(summary["totals"]["n_lik"]) == wanted


@pytest.mark.slow
def test_a_run_that_goes_on_names_the_methods_that_are_finished(tmp_path, capsys):
    folder = compute(tmp_path / "outputs", *FEW)
    (folder.path / "summary.json").unlink()  # as if it had been killed between its methods
    (folder.method("sghmc") / "done.json").unlink()
    capsys.readouterr()
    assert run([*SMOKE, "runtime.report=false"]) == 0
    err = capsys.readouterr().err
    assert "finished by an earlier part of this run" in err
    assert "sghmc" not in err.partition(": finished")[0].splitlines()[-1]
