"""A run that is stopped, killed or doubled ends with the bits of one that was not."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from kit import FEW, StopAfter, assert_same_bits, compute, config, contents

import mhrun
from mhrun.cli.main import run
from mhrun.data import Dataset
from mhrun.durations import describe_duration
from mhrun.engine.estimate import Pace
from mhrun.engine.experiment import run_experiment
from mhrun.engine.method import Method
from mhrun.engine.pilot.chains import PilotChains
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.kernels import MetropolisHastings
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.predictive import Predictive
from mhrun.pairing.moving import Moving
from mhrun.pairing.shared import Shared
from mhrun.proposals.langevin import LangevinProposal
from mhrun.report.run import Run
from mhrun.rules.metropolis import Metropolis
from mhrun.schedules import Plan
from mhrun.schedules.fixed import Fixed
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import Shape, open_trace
from mhrun.target import Target

OVERRIDES = {
    "plain": (*FEW, "executor=torch"),
    "compiled": (*FEW, "executor=compiled"),
}
METHODS = ("mint", "sghmc")
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module", params=OVERRIDES)
def whole(request, tmp_path_factory):
    """An uninterrupted run of each driver, and the overrides for it."""
    folder = compute(tmp_path_factory.mktemp("whole"), *OVERRIDES[request.param])
    return OVERRIDES[request.param], {name: contents(folder, name) for name in METHODS}


@pytest.mark.parametrize("chunks", [1, 3, 9])
def test_control_c_leaves_a_run_that_goes_on(whole, outputs, chunks):
    overrides, expected = whole
    if chunks == 1:  # sixteen steps each time: a shorter run, as each start takes a while
        overrides = (*overrides, "steps=60", "warmup=50")
        short = compute(outputs.with_name("short"), *overrides)
        expected = {name: contents(short, name) for name in METHODS}
    stopped, requested = 0, config(outputs, *overrides)
    for _ in range(200):
        try:
            folder = run_experiment(requested, StopAfter(chunks))
            break
        except Interrupted as stop:
            stopped += 1
            message = str(stop)
            summary = next(outputs.glob("*/*/summary.json")).read_text()
    assert stopped >= 1
    assert "stopped after step" in message
    assert '"status": "stopped"' in summary
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])


def test_a_thinned_run_that_is_stopped_has_the_draws_and_all_statistics_of_the_whole_one(whole, outputs):
    """Every 7th draw, counted from the first step of a burn-in of 200; each step's statistics."""
    overrides, expected = whole
    overrides = (*overrides, "thin=7", "thin_stats=1", "runtime.block_seconds=0")
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *overrides), StopAfter(5))
    assert len(list(outputs.rglob("blocks/*.npz"))) == 5
    folder = compute(outputs, *overrides)
    steps = Run(folder).draw_steps("mint")
    assert steps.tolist() == list(range(3, 401, 7))
    for name in METHODS:
        draws = Run(folder).draws(name)
        assert np.array_equal(draws, expected[name]["/posterior/theta"][:, steps - 1])
        found = contents(folder, name)
        assert np.array_equal(
            found["/warmup_posterior/theta"], expected[name]["/warmup_posterior/theta"][:, 6::7]
        )
        statistics = [key for key in expected[name] if "sample_stats" in key]
        assert_same_bits({k: found[k] for k in statistics}, {k: expected[name][k] for k in statistics})


def _kill_at(call: int) -> None:
    """Have this process kill itself at its `call`-th dealing with the disk."""
    count = 0

    def counted(function):
        def wrapper(*args, **kwargs):
            nonlocal count
            count += 1
            if count == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    for module, name in (
        (os, "replace"),
        (os, "fsync"),
        (shutil, "rmtree"),
        (Path, "unlink"),
        (builtins, "open"),
    ):
        setattr(module, name, counted(getattr(module, name)))


def _killed_at(call: int, outputs: Path, overrides: tuple[str, ...]) -> None:
    """Run in a child that kills itself at its `call`-th dealing with the disk."""
    _kill_at(call)
    run_experiment(config(outputs, *overrides, "runtime.block_seconds=0"), Silent())


def test_a_kill_at_any_dealing_with_the_disk_loses_nothing(whole, outputs):
    """Each child process resumes what the one before left, and is killed some calls later."""
    overrides, expected = whole
    kills = 0
    for call in range(1, 2000, 7):
        child = FORK.Process(target=_killed_at, args=(call, outputs, overrides))
        child.start()
        child.join(120)
        assert child.exitcode in (0, -signal.SIGKILL)
        if child.exitcode == 0:
            break
        kills += 1
    assert child.exitcode == 0
    assert kills >= 5
    folder = compute(outputs, *overrides)
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])
    assert not list(folder.path.rglob("*.partial"))


@pytest.mark.slow
def test_a_kill_at_every_dealing_with_the_disk_loses_nothing(whole, outputs):
    overrides, expected = whole
    for call in range(1, 2000):
        fresh = outputs / str(call)
        child = FORK.Process(target=_killed_at, args=(call, fresh, overrides))
        child.start()
        child.join(120)
        if child.exitcode == 0:
            break
        folder = compute(fresh, *overrides)
        for name in METHODS:
            assert_same_bits(contents(folder, name), expected[name])
        shutil.rmtree(fresh)
    assert child.exitcode == 0
    assert call > 50


@pytest.mark.slow
def test_a_soak_of_kills_at_random_moments(whole, outputs):
    """Two hundred SIGKILLs from outside, at random times, over runs with small blocks."""
    import random

    overrides, expected = whole
    rng = random.Random(0)
    kills = 0
    while kills < 200:
        child = FORK.Process(target=_killed_at, args=(10**9, outputs, overrides))
        child.start()
        child.join(rng.uniform(0.02, 0.5))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        if child.exitcode == 0:
            folder = compute(outputs, *overrides)
            for name in METHODS:
                assert_same_bits(contents(folder, name), expected[name])
            shutil.rmtree(outputs)
    folder = compute(outputs, *overrides)
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])


def _command(outputs: Path, window: int | None = None, call: int | None = None) -> None:
    """Run a command whose step size a pilot finds, with a SIGKILL in a window of the pilot or at a call to the disk."""
    windows = 0
    moved = PilotChains.window

    def killed(chains, step_size):
        nonlocal windows
        windows += 1
        if windows == window:
            os.kill(os.getpid(), signal.SIGKILL)
        return moved(chains, step_size)

    PilotChains.window = killed
    if call is not None:
        _kill_at(call)
    overrides = [
        *("experiment=gmm_tied_means", "scale=smoke", *FEW, "~methods.sghmc", "executor=torch"),
        *("schedule@methods.mint.schedules.step_size=tuned", "steps=60", "warmup=50"),
        *(
            "runtime.threads=1",
            "runtime.report=false",
            "runtime.block_seconds=0",
            f"runtime.outputs={outputs}",
        ),
    ]
    with contextlib.redirect_stderr(io.StringIO()):
        os._exit(run(overrides))


@pytest.mark.slow
def test_a_command_with_a_pilot_ends_with_the_same_bits_after_kills(tmp_path):
    """Kills in the pilot, then at some of the dealings with the disk, each in a new process."""

    def exit_code(outputs, **kill):
        child = FORK.Process(target=_command, args=(outputs,), kwargs=kill)
        child.start()
        child.join(120)
        return child.exitcode

    def found(outputs):
        (pilot,) = outputs.glob("*/[0-9a-f]*/methods/mint/pilot.npz")
        return pilot, contents(RunFolder(pilot.parents[2]), "mint")

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert exit_code(whole) == 0
    assert exit_code(stopped, window=3) == -signal.SIGKILL
    assert not list(stopped.rglob("pilot.npz"))
    codes = []
    for call in range(15, 2000, 20):
        codes.append(exit_code(stopped, call=call))
        if codes[-1] == 0:
            break
    assert codes == [-signal.SIGKILL] * (len(codes) - 1) + [0]
    assert len(codes) > 2
    (one, expected), (two, bits) = found(whole), found(stopped)
    assert one.read_bytes() == two.read_bytes()
    assert_same_bits(bits, expected)


def _waits(outputs: Path, overrides: tuple[str, ...], queue) -> None:
    class Reporting(Silent):
        def note(self, message: str) -> None:
            queue.put(message)

    queue.put(str(run_experiment(config(outputs, *overrides), Reporting()).path))


def test_two_runs_at_once_are_one(outputs):
    """The second says that the first is running, waits, and finds the work done."""
    overrides = (*FEW, "executor=torch", "steps=1500")
    queue = FORK.Queue()

    class Slow(Silent):
        def begin(self, method: str, step: int, total: int, executor: str) -> None:
            if method == "mint":
                self.second = FORK.Process(target=_waits, args=(outputs, overrides, queue))
                self.second.start()
                self.message = queue.get(timeout=60)

    watcher = Slow()
    folder = run_experiment(config(outputs, *overrides), watcher)
    assert "being computed already" in watcher.message
    assert f"process {os.getpid()}" in watcher.message
    assert queue.get(timeout=60) == str(folder.path)
    watcher.second.join(60)
    assert watcher.second.exitcode == 0


def test_a_run_goes_on_in_the_executor_it_began_in(outputs, monkeypatch):
    monkeypatch.setattr("mhrun.engine.cost._COMPILING_PAYS", 0.0)
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *FEW), StopAfter(1))
    monkeypatch.setattr("mhrun.target.target.available", lambda: False)
    with pytest.raises(UserError, match="began in a compiled loop"):
        compute(outputs, *FEW)


def test_a_run_that_has_done_no_step_may_choose_another_executor(tmp_path, monkeypatch):
    """Its record is there before the first step: `executor=compiled` was ignored silently."""
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    call = {"step_size": 0.1, "steps": 30, "warmup": 10, "chains": 2, "progress": False, "folder": tmp_path}

    def stopped(*args):
        raise Interrupted("before the first step")

    with monkeypatch.context() as patch:
        patch.setattr("mhrun.engine.run_method._to_the_end", stopped)
        with pytest.raises(Interrupted):
            mhrun.sample(mhrun.GaussianMean(3.0), np.zeros(50), kernel, executor="torch", **call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mhrun.sample(mhrun.GaussianMean(3.0), np.zeros(50), kernel, executor="compiled", **call)
    assert json.loads((tmp_path / "done.json").read_text())["executor"] == "compiled"


def test_without_numba_the_plain_path_takes_over(outputs, monkeypatch):
    monkeypatch.setattr("mhrun.target.target.available", lambda: False)
    monkeypatch.setattr("mhrun.engine.method.available", lambda: False)
    monkeypatch.setattr("mhrun.engine.cost._COMPILING_PAYS", 0.0)
    folder = compute(outputs, *FEW)
    assert folder.summary()["methods"]["mint"]["executor"] == "hybrid"
    from mhrun.errors import Refusal

    with pytest.raises(Refusal, match="no compiled loop"):
        compute(outputs, *FEW, "executor=compiled")


def test_blocks_are_written_while_the_run_goes(outputs):
    seen, rates = [], []

    class Progress(Silent):
        def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
            seen.append(len(list(outputs.rglob("blocks/*.npz"))))
            if method == "mint":
                rates.append(accept_rate)

    folder = run_experiment(config(outputs, *FEW, "executor=torch", "runtime.block_seconds=0"), Progress())
    assert rates[-1] == folder.summary()["methods"]["mint"]["accept_rate"]  # after burn-in, as tables have it
    assert max(seen) >= 3
    assert not list(outputs.rglob("blocks/*.npz"))


def test_the_clock_may_jump(outputs, monkeypatch):
    """Wall times come from a clock that only goes forward; a jump of the calendar changes nothing."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 1e6)
    folder = compute(outputs, *FEW)
    assert folder.summary()["methods"]["mint"]["wall_s"] > 0


def test_a_list_of_draws_survives_a_stop(whole, outputs):
    overrides, expected = whole
    kept = [1, 17, 199, 200, 201, 333, 600]
    overrides = (*overrides, f"thin={kept}".replace(" ", ""), "runtime.block_seconds=0")
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *overrides), StopAfter(5))
    folder = compute(outputs, *overrides)
    for name in METHODS:
        found, every = contents(folder, name), expected[name]
        for group, steps in (("warmup_posterior", [0, 16, 198, 199]), ("posterior", [0, 132, 399])):
            assert np.array_equal(found[f"/{group}/theta"], every[f"/{group}/theta"][:, steps])
        statistics = [key for key in every if "sample_stats" in key]
        assert_same_bits({k: found[k] for k in statistics}, {k: every[k] for k in statistics})


class Recording(Silent):
    """Records the notes that it receives."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        # That is a warning after the run, which has nothing to do with its estimate.
        if "minibatch noise" not in message:
            self.lines.append(message)


def test_a_run_that_is_estimated_first_is_the_same(whole, outputs, monkeypatch):
    """Steps that are done for the clock alone are forgotten: their draws, their counts, their files."""
    overrides, expected = whole
    watcher = Recording()
    run_experiment(config(outputs / "short", *overrides), watcher)
    assert watcher.lines == []
    monkeypatch.setattr("mhrun.engine.estimate._WORTH", 0.0)
    monkeypatch.setattr("mhrun.engine.estimate._TRIED", 0.02)
    watcher = Recording()
    folder = run_experiment(config(outputs, *overrides), watcher)
    assert [line.split(":")[0] for line in watcher.lines[:-1]] == list(METHODS)
    assert all("600 steps of 4 chains, about " in line for line in watcher.lines[:-1])
    assert watcher.lines[-1].startswith("in all about ")
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])
    watcher = Recording()
    run_experiment(config(outputs, *overrides), watcher)  # nothing is left to do
    assert watcher.lines == []


def test_an_estimate_is_of_what_is_left(outputs, monkeypatch):
    overrides = (*FEW, "executor=torch", "runtime.block_seconds=0")
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *overrides), StopAfter(2))
    monkeypatch.setattr("mhrun.engine.estimate._WORTH", 0.0)
    monkeypatch.setattr("mhrun.engine.estimate._pace", lambda *_: Pace(1.0, 1.0, 1.0, None))
    watcher = Recording()
    run_experiment(config(outputs, *overrides), watcher)
    done = 600 - int(watcher.lines[0].removeprefix("mint: ").split(" ")[0])
    assert 0 < done < 600
    assert watcher.lines[1].startswith("sghmc: 600 steps of 4 chains, about 10 min")
    assert watcher.lines[2] == f"in all about {describe_duration(1200 - done)}"


def test_seconds_are_formatted_in_readable_units():
    for seconds, message in (
        (0.2, "0 s"), (89, "89 s"), (90, "1.5 min"), (600, "10 min"), (5399, "90 min"), (5400, "1.5 h"),
        (86400 * 1.4, "34 h"), (86400 * 1.5, "1.5 days"), (86400 * 123.4, "123 days"),
    ):  # fmt: skip
        assert describe_duration(seconds) == message


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("pairing", [Shared(20), Moving(20)])
def test_a_network_on_a_gpu_that_is_stopped_is_the_whole_one(tmp_path, pairing):
    rng = np.random.default_rng(0)
    data = Dataset.of({"x": rng.normal(size=(200, 30)), "y": rng.integers(0, 4, 200)})
    model = Perceptron([30, 200, 4])
    plan = Plan({"s": Fixed(step_size=1e-5, temperature=5.0)}, 2, 0, 30)
    kernel = MetropolisHastings(LangevinProposal(), pairing, Metropolis())
    method = Method("gpu", kernel, Target(model, data, device="cuda"), plan, Shape(2, model.names, 0, 30, 1), 1,
                    dtype=torch.float32, monitor=Predictive(data, 5, 1, 2))  # fmt: skip
    found = []
    for stop in (lambda: False, lambda: True):
        folder = tmp_path / str(len(found))
        while not (folder / "trace.nc").exists():
            try:
                run_method(method, folder, Settings(block_seconds=0.0), Silent(), stop, {})
            except Interrupted:
                continue
        with open_trace(folder) as trace:
            found.append({f"{g}/{n}": trace[g][n].to_numpy() for g in ("posterior", "monitor")
                          for n in trace[g].data_vars if n != "wall_s"})  # fmt: skip
    assert_same_bits(*found)


@pytest.mark.slow
def test_a_process_that_compiles_and_one_that_reads_the_cache_have_the_same_bits(tmp_path):
    """The sums over components of MINTEE's mixture, in a routine, had another order in each."""
    found = []
    for number in range(2):
        command = [sys.executable, "-m", "mhrun", "experiment=mintee", "scale=smoke", "runtime.report=false"]
        command += [f"runtime.outputs={tmp_path / str(number)}", "~methods.mcmc"]
        environment = os.environ | {"MHRUN_CACHE_DIR": str(tmp_path / "cache")}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        found.append(contents(RunFolder(tmp_path / str(number) / "mintee" / "latest"), "mintee"))
    assert_same_bits(*found)


def test_compiling_is_announced_where_it_takes_a_while(outputs, monkeypatch):
    """A line for a loop that is slow to compile, and none for one that the cache has."""
    slow, watcher = [0.3], Silent()
    watcher.note = (notes := []).append
    monkeypatch.setattr("mhrun.engine.run_method._SILENT_SECONDS", 0.1)
    monkeypatch.setattr(
        "mhrun.engine.execution.executors.TorchExecutor.prepare", lambda self, state: time.sleep(slow[0])
    )
    overrides = (*FEW, "~methods.sghmc", "executor=torch", "steps=20", "warmup=50")
    run_experiment(config(outputs, *overrides), watcher)
    assert sum("mint: compiling its loop, or loading it" in line for line in notes) == 1
    notes.clear()
    slow[0] = 0.0
    run_experiment(config(outputs, *overrides, "seed=1"), watcher)
    time.sleep(0.2)
    assert not any("compiling" in line for line in notes)
