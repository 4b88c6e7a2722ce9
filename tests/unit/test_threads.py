"""How many threads torch has: one for small steps, all cores where they pay, and what the user chose in any case."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import compute

import mhrun
from mhrun.cores import CORES, usable_cores
from mhrun.data import Dataset
from mhrun.engine.execution.executors import TorchExecutor, measured_threads
from mhrun.engine.execution.threads import faster_threads, limited, torch_threads
from mhrun.engine.method import Method
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.perceptron import Perceptron
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target

FULL = MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch):
    monkeypatch.setattr("mhrun.cores.os.sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.delenv(CORES, raising=False)


def method(kernel, target, chains, steps=10):
    plan = Plan({"all": mhrun.Fixed(step_size=0.01)}, chains, 0, steps)
    return Method("one", kernel, target, plan, Shape(chains, target.model.names, 0, steps, 1, 1), 0)


def numbers(n):
    return Target(GaussianMean(3.0), Dataset.of(np.zeros(n)))


def images(widths, n=1000):
    data = {"x": torch.zeros(n, widths[0]), "y": torch.arange(n) % widths[-1]}
    return Target(Perceptron(widths), Dataset.of(data))


@pytest.mark.parametrize(
    ("kernel", "target", "chains", "expected"),
    [
        (FULL, numbers(1000), 4, 1),
        (FULL, numbers(1_000_000), 1, 8),
        (Unadjusted(mhrun.SGLD(), 100), numbers(1_000_000), 1000, 1),  # a hundred of a million for each chain
        (Unadjusted(mhrun.SGLD(), 100), images([784, 100, 10]), 4, 1),
        (Unadjusted(mhrun.SGLD(), 1000), images([784, 100, 10]), 10, 8),
    ],
    ids=["small", "all data", "many chains", "network", "wide network"],
)
def test_more_threads_only_for_long_steps(kernel, target, chains, expected):
    one = method(kernel, target, chains)
    assert torch_threads(one, None) == expected
    assert torch_threads(one, 3) == 3


def test_jobs_have_a_share_of_the_cores(monkeypatch):
    assert usable_cores() == 8
    monkeypatch.setenv(CORES, "2")
    assert usable_cores() == 2
    assert torch_threads(method(FULL, numbers(1_000_000), 1), None) == 2
    monkeypatch.setenv(CORES, "100")
    assert usable_cores() == 8  # not more than there are


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with limited(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_steps_of_many_seconds_are_not_compared(monkeypatch):
    """Such as those of 120 recurrent networks, of which six more would take minutes."""
    clock = [0.0]
    monkeypatch.setattr("mhrun.engine.execution.threads.time.perf_counter", lambda: clock[0])
    assert faster_threads(8, lambda: clock.__setitem__(0, clock[0] + 6.0)) == 8
    assert clock == [12.0]  # the first one prepares things


def test_a_run_records_its_threads(tmp_path):
    words = (
        "~methods.tempered_mcmc",
        "~methods.mint",
        "~methods.mcmc",
        "~methods.sgld",
        "~methods.mint_stored",
    )
    words += ("steps=20", "warmup=50")
    one = compute(tmp_path / "one", *words, "runtime.threads=null")
    assert one.summary()["methods"]["sghmc"]["torch_threads"] == 1
    two = compute(tmp_path / "two", *words, "runtime.threads=2")
    assert two.summary()["methods"]["sghmc"]["torch_threads"] == 2
    torch.set_num_threads(1)  # as all tests have it


def test_steps_of_seconds_are_not_compared(monkeypatch):
    """Hundreds of networks: a comparison would take minutes, which a dry run should not."""
    monkeypatch.setattr("mhrun.engine.execution.executors.faster_threads", lambda *_: 1)
    light = method(Unadjusted(mhrun.SGLD(), 1000), images([784, 100, 10]), 10)
    heavy = method(Unadjusted(mhrun.SGLD(), 1000), images([784, 100, 10]), 200)
    monkeypatch.setattr(Method, "first_state", lambda self: None)
    assert measured_threads(light, TorchExecutor(light)) == 1
    assert measured_threads(heavy, TorchExecutor(heavy)) == 8


@pytest.mark.parametrize(
    ("seconds", "expected"), [({1: 2.0, 8: 1.0}, 8), ({1: 1.0, 8: 4.0}, 1), ({1: 1.0, 8: 0.9}, 1)]
)
def test_more_threads_only_if_they_are_faster(seconds, expected, monkeypatch):
    """Beside another process a step on all cores waits for the busy one."""
    clock = [0.0]
    monkeypatch.setattr("mhrun.engine.execution.threads.time.perf_counter", lambda: clock[0])

    def step():
        clock[0] += seconds[torch.get_num_threads()]

    before = torch.get_num_threads()
    assert faster_threads(8, step) == expected
    assert faster_threads(1, step) == 1
    assert torch.get_num_threads() == before


def test_threads_are_measured_once_and_kept_with_the_method(tmp_path, monkeypatch):
    """Sums over several threads round differently: a method that is resumed has those that it began with."""
    chosen = iter([2, 1])
    monkeypatch.setattr("mhrun.engine.run_method.measured_threads", lambda method, executor: next(chosen))
    stop = iter([False, True])
    one, place = method(FULL, numbers(100), 2, 500), tmp_path / "one"
    settings = Settings(block_seconds=0.0)
    with pytest.raises(Interrupted):
        run_method(one, place, settings, Silent(), lambda: next(stop), {})
    summary = run_method(one, place, settings, Silent(), lambda: False, {})
    assert summary["torch_threads"] == 2


@pytest.mark.parametrize("threads", [0, 1.5, "two"])
def test_threads_from_python_are_checked(threads):
    with pytest.raises(UserError, match=r"^threads = .* must be a whole number, at least 1, or None"):
        mhrun.sample(lambda theta, x: -(x**2) * theta[0], np.ones(5), start=[0.0], threads=threads)
