"""Methods beside each other in worker processes: the same bits, whatever happens to a worker or to the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from kit import FEW, StopAfter, assert_same_bits, compute, config, contents

from mhrun.engine import jobs, workers
from mhrun.engine.assemble import methods_of
from mhrun.engine.experiment import run_experiment
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.store.folder import RunFolder

OVERRIDES = (*FEW, "executor=torch", "runtime.block_seconds=0")
METHODS = ("mint", "sghmc")


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begun: list[str] = []

    def begin(self, method: str, *about: object) -> None:
        self.begun.append(method)

    def note(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The contents of a run without workers."""
    folder = compute(tmp_path_factory.mktemp("whole"), *OVERRIDES, "runtime.jobs=1")
    assert folder.summary()["jobs"] == 1
    return {name: contents(folder, name) for name in METHODS}


@pytest.fixture
def started(monkeypatch):
    """The worker processes that are started."""
    found, popen = [], subprocess.Popen

    def start(*overrides, **options):
        found.append(popen(*overrides, **options))
        return found[-1]

    monkeypatch.setattr(workers.subprocess, "Popen", start)
    yield found
    assert all(process.poll() is not None for process in found)


@pytest.mark.slow
@pytest.mark.long
def test_neither_a_killed_worker_nor_an_error_costs_the_other_methods_a_bit(
    whole, outputs, started, monkeypatch
):
    """One of two workers is killed after its first block, and a method fails: the run ends with these two."""
    requested = config(
        outputs, *(override for override in OVERRIDES if "mint_stored" not in override), "runtime.jobs=2"
    )
    folder = RunFolder.of(requested)
    (folder.path / "methods").mkdir(parents=True)
    (folder.path / "methods" / "mint_stored").touch()  # where its folder belongs

    given, give = {}, workers._Worker.give

    def recorded(worker, task, name):
        given[name] = worker._process
        return give(worker, task, name)

    monkeypatch.setattr(workers._Worker, "give", recorded)

    class Kill(Notes):
        def begin(self, method: str, *about: object) -> None:
            if method == "mint" and method not in self.begun:
                deadline = time.monotonic() + 60
                while not list(outputs.glob("*/*/methods/mint/blocks/*.npz")) and time.monotonic() < deadline:
                    time.sleep(0.001)
                given[method].kill()
            super().begin(method, *about)

    watcher = Kill()
    with pytest.raises(UserError) as error:
        run_experiment(requested, watcher)
    assert len(started) == 2
    assert any("killed by signal 9" in line for line in watcher.lines)
    assert sorted(watcher.begun) == ["mint", "mint", "sghmc"]
    assert len(str(error.value).splitlines()) == 1
    assert f"mint_stored failed: {error.value}" in watcher.lines
    summary = folder.summary()
    assert summary["status"] == "failed"
    assert summary["jobs"] == 2
    assert sorted(summary["methods"]) == list(METHODS)
    for name in METHODS:
        assert_same_bits(contents(folder, name), whole[name])


@pytest.mark.long
def test_control_c_stops_all_workers(whole, outputs, started):
    with pytest.raises(Interrupted, match="stopped after step"):
        run_experiment(config(outputs, *OVERRIDES, "runtime.jobs=2"), StopAfter(1))
    (folder,) = (RunFolder(path.parent) for path in outputs.glob("*/*/config.yaml"))
    assert folder.summary()["status"] == "stopped"
    folder = compute(outputs, *OVERRIDES, "runtime.jobs=1")
    for name in METHODS:
        assert_same_bits(contents(folder, name), whole[name])


@pytest.mark.slow
def test_the_workers_of_a_run_that_is_killed_end_and_the_run_goes_on(whole, outputs):
    overrides = [sys.executable, "-m", "mhrun", "experiment=gmm_tied_means", "scale=smoke", *OVERRIDES]
    overrides += ["runtime.threads=1", "runtime.report=false", "runtime.jobs=2", f"runtime.outputs={outputs}"]
    parent = subprocess.Popen(overrides, stderr=subprocess.PIPE, text=True)
    for line in parent.stderr:
        if "600 steps" in line:
            break
    parent.kill()
    parent.wait()
    folder = compute(outputs, *OVERRIDES, "runtime.jobs=1")
    for name in METHODS:
        assert_same_bits(contents(folder, name), whole[name])


def test_a_run_waits_for_the_workers_of_one_that_was_killed(tmp_path):
    folder = RunFolder(tmp_path)
    held, ended = threading.Event(), []

    def orphan() -> None:
        with folder.worker_lock(0):
            held.set()
            time.sleep(0.2)
            ended.append(True)

    thread = threading.Thread(target=orphan)
    thread.start()
    held.wait()
    with folder.held(lambda line: None):
        assert ended == [True]
    thread.join()


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.delenv("MHRUN_CORES", raising=False)
    monkeypatch.setattr("mhrun.engine.jobs.usable_cores", lambda: 8)
    monkeypatch.setattr(jobs, "idle_cores", lambda: 8.0)
    monkeypatch.setattr(jobs, "available", lambda: 1e12)
    monkeypatch.setattr(jobs, "_PAYS", 20.0)


def test_the_number_of_jobs_fits_the_machine_and_the_work(quiet, monkeypatch, outputs):
    short = methods_of(config(outputs, *FEW, "executor=torch"))
    long = methods_of(config(outputs, *FEW, "executor=torch", "steps=1000000"))
    free, two = Settings(), Settings(threads=2)
    assert jobs.jobs_of(None, short, free) == 1  # starting workers takes longer
    assert jobs.jobs_of(None, long, free) == 2  # methods
    assert jobs.jobs_of(None, 3 * long, free) == 6
    assert jobs.jobs_of(None, 6 * long, free) == 8  # cores
    assert jobs.jobs_of(None, 6 * long, two) == 4
    assert jobs.jobs_of(3, short, free) == 2
    assert jobs.jobs_of(1, long, free) == 1
    assert jobs.jobs_of(None, long[:1], free) == 1
    monkeypatch.setattr(jobs, "idle_cores", lambda: 1.0)
    assert jobs.jobs_of(None, long, free) == 1  # beside other work
    assert jobs.jobs_of(2, long, free) == 2
    monkeypatch.setattr(jobs, "idle_cores", lambda: 8.0)
    monkeypatch.setattr(jobs, "available", lambda: 4e9)
    assert jobs.jobs_of(None, 6 * long, free) == 2


def test_idle_cores_are_counted_from_clock_ticks(monkeypatch):
    ticks = iter(({0: (0, 0), 1: (5, 10), 2: (0, 0)}, {0: (19, 20), 1: (5, 30), 2: (17, 20)}))
    monkeypatch.setattr(jobs, "_ticks", lambda: next(ticks))
    monkeypatch.setattr(jobs, "_SAMPLE", 0.0)
    monkeypatch.setattr("mhrun.engine.jobs.usable_cores", lambda: 3)
    assert jobs.idle_cores() == 2.0  # 0.95, 0 and 0.85


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_systems_ticks_are_those_of_the_usable_cores():
    assert jobs._ticks().keys() == os.sched_getaffinity(0)
    assert all(0 <= idle <= whole for idle, whole in jobs._ticks().values())


def test_a_wide_step_keeps_all_cores(quiet, monkeypatch, outputs):
    """Sums over other numbers of threads round differently."""
    long = methods_of(config(outputs, *FEW, "executor=torch"))
    monkeypatch.setattr(jobs, "torch_threads", lambda method, threads: 8 if method.name == "mint" else 1)
    assert [method.name for method in jobs.separable(long, None)] == ["sghmc"]
    assert [method.name for method in jobs.separable(long, 2)] == list(METHODS)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "two"])
def test_other_numbers_of_jobs_are_refused(outputs, value):
    with pytest.raises(UserError, match=r"runtime\.jobs = "):
        config(outputs, f"runtime.jobs={value}")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_stops_a_pilot_at_once(tmp_path, monkeypatch, jobs):
    """Nothing of a pilot is kept, so that there is nothing to wait for."""
    overrides = [*OVERRIDES, f"runtime.jobs={jobs}", "methods.mint.schedules.step_size.start=auto"]
    waits = []

    def press(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        waits.append(1)
        time.sleep(0.1)

    if jobs == 1:
        monkeypatch.setattr("mhrun.engine.experiment.piloted", press)
    else:
        whole = workers._Worker.give_one
        monkeypatch.setattr(workers._Worker, "give_one", lambda *about: (press(), whole(*about)))
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        run_experiment(config(tmp_path, *overrides), Silent())
    assert len(waits) == jobs - 1
    folder = RunFolder(next(tmp_path.glob("*/*/config.yaml")).parent)
    assert folder.summary()["status"] == "stopped"


def test_a_failure_in_a_worker_is_noted_and_logged(outputs, caplog):
    """The method goes on in the run's own process: an error that does not come again there would leave no trace."""
    requested = config(outputs, *OVERRIDES, "runtime.jobs=1")
    watcher, folder = Notes(), RunFolder.of(requested)
    with workers.Workers(requested, folder, [], Settings(), {}, watcher, lambda: False) as none:
        trace = "Traceback (most recent call last):\n  File ...\nRuntimeError: out of memory\n"
        none._ended("mint", ("failed", trace), workers.Outcome({}, {}), [])
    assert watcher.lines == [
        "mint failed in its process (RuntimeError: out of memory); this process goes on with it."
    ]
    assert "Traceback (most recent call last)" in caplog.text
