"""A run that is stopped, killed or doubled ends with the bits of one that was not."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from runs import FEW, assert_same_bits, compute, config, contents

from mhrun.engine.chains import Silent
from mhrun.engine.experiment import run_experiment
from mhrun.errors import Interrupted
from mhrun.report.run import Run

WORDS = {
    "plain": (*FEW, "native=off"),
    "native": (*FEW, "native=on"),
}
METHODS = ("mint", "sghmc")
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module", params=WORDS)
def whole(request, tmp_path_factory):
    """An uninterrupted run of each driver, and the words for it."""
    folder = compute(tmp_path_factory.mktemp("whole"), *WORDS[request.param])
    return WORDS[request.param], {name: contents(folder, name) for name in METHODS}


class StopAfter(Silent):
    """Presses Ctrl-C after some chunks."""

    def __init__(self, chunks: int) -> None:
        self._left = chunks

    def advance(self, step: int, accept_rate: float, n_lik: int, n_grad: int) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("chunks", [1, 3, 9])
def test_control_c_leaves_a_run_that_goes_on(whole, outputs, chunks):
    words, expected = whole
    stopped = 0
    for _ in range(200):
        try:
            folder = run_experiment(config(outputs, *words), StopAfter(chunks))
            break
        except Interrupted as stop:
            stopped += 1
            told = str(stop)
            summary = next(outputs.glob("*/*/summary.json")).read_text()
    assert stopped >= 1
    assert "stopped after step" in told
    assert '"status": "stopped"' in summary
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])


def test_a_thinned_run_that_is_stopped_has_the_draws_and_all_statistics_of_the_whole_one(whole, outputs):
    """Every 7th draw, counted from the first step of a burn-in of 200; each step's statistics."""
    words, expected = whole
    words = (*words, "thin=7", "thin_stats=1", "runtime.block_seconds=0")
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *words), StopAfter(5))
    assert len(list(outputs.rglob("blocks/*.npz"))) == 5
    folder = compute(outputs, *words)
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


def _killed_at(call: int, outputs: Path, words: tuple[str, ...]) -> None:
    """Run in a child that kills itself at its `call`-th dealing with the disk."""
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
    run_experiment(config(outputs, *words, "runtime.block_seconds=0"), Silent())


def test_a_kill_at_any_dealing_with_the_disk_loses_nothing(whole, outputs):
    """Each child goes on from what the one before left, and is killed some calls later."""
    words, expected = whole
    kills = 0
    for call in range(1, 2000, 7):
        child = FORK.Process(target=_killed_at, args=(call, outputs, words))
        child.start()
        child.join(120)
        assert child.exitcode in (0, -signal.SIGKILL)
        if child.exitcode == 0:
            break
        kills += 1
    assert child.exitcode == 0
    assert kills >= 5
    folder = compute(outputs, *words)
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])
    assert not list(folder.path.rglob("*.partial"))


@pytest.mark.slow
def test_a_kill_at_every_dealing_with_the_disk_loses_nothing(whole, outputs):
    words, expected = whole
    for call in range(1, 2000):
        fresh = outputs / str(call)
        child = FORK.Process(target=_killed_at, args=(call, fresh, words))
        child.start()
        child.join(120)
        if child.exitcode == 0:
            break
        folder = compute(fresh, *words)
        for name in METHODS:
            assert_same_bits(contents(folder, name), expected[name])
        shutil.rmtree(fresh)
    assert child.exitcode == 0
    assert call > 50


@pytest.mark.slow
def test_a_soak_of_kills_at_random_moments(whole, outputs):
    """Two hundred SIGKILLs from outside, at random times, over runs with small blocks."""
    import random

    words, expected = whole
    rng = random.Random(0)
    kills = 0
    while kills < 200:
        child = FORK.Process(target=_killed_at, args=(10**9, outputs, words))
        child.start()
        child.join(rng.uniform(0.02, 0.5))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        if child.exitcode == 0:
            folder = compute(outputs, *words)
            for name in METHODS:
                assert_same_bits(contents(folder, name), expected[name])
            shutil.rmtree(outputs)
    folder = compute(outputs, *words)
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])


def _waits(outputs: Path, words: tuple[str, ...], queue) -> None:
    class Told(Silent):
        def note(self, message: str) -> None:
            queue.put(message)

    queue.put(str(run_experiment(config(outputs, *words), Told()).path))


def test_two_runs_at_once_are_one(outputs):
    """The second says that the first is running, waits, and finds the work done."""
    words = (*FEW, "native=off", "steps=1500")
    queue = FORK.Queue()

    class Slow(Silent):
        def begin(self, method: str, step: int, total: int, driver: str) -> None:
            if method == "mint":
                self.second = FORK.Process(target=_waits, args=(outputs, words, queue))
                self.second.start()
                self.message = queue.get(timeout=60)

    watcher = Slow()
    folder = run_experiment(config(outputs, *words), watcher)
    assert "being computed already" in watcher.message
    assert f"process {os.getpid()}" in watcher.message
    assert queue.get(timeout=60) == str(folder.path)
    watcher.second.join(60)
    assert watcher.second.exitcode == 0


def test_a_run_goes_on_in_the_driver_it_began_in(outputs, monkeypatch):
    words = (*FEW, "native=on")
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *words), StopAfter(1))
    monkeypatch.setattr("mhrun.target.available", lambda: False)
    from mhrun.errors import UserError

    with pytest.raises(UserError, match="began in a compiled loop"):
        compute(outputs, *words)


def test_without_numba_the_plain_path_takes_over(outputs, monkeypatch):
    monkeypatch.setattr("mhrun.target.available", lambda: False)
    monkeypatch.setattr("mhrun.engine.drivers.available", lambda: False)
    monkeypatch.setattr("mhrun.engine.method._COMPILING_PAYS", 0.0)
    folder = compute(outputs, *FEW)
    assert folder.summary()["methods"]["mint"]["driver"] == "plain"
    from mhrun.errors import Refusal

    with pytest.raises(Refusal, match="no compiled loop"):
        compute(outputs, *FEW, "native=on")


def test_blocks_are_written_while_the_run_goes(outputs):
    seen = []

    class Looks(Silent):
        def advance(self, step: int, accept_rate: float, n_lik: int, n_grad: int) -> None:
            seen.append(len(list(outputs.rglob("blocks/*.npz"))))

    run_experiment(config(outputs, *FEW, "native=off", "runtime.block_seconds=0"), Looks())
    assert max(seen) >= 3
    assert not list(outputs.rglob("blocks/*.npz"))


def test_the_clock_may_jump(outputs, monkeypatch):
    """Wall times come from a clock that only goes forward; a jump of the calendar changes nothing."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 1e6)
    folder = compute(outputs, *FEW)
    assert folder.summary()["methods"]["mint"]["wall_s"] > 0
