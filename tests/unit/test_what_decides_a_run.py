"""What a run is made of is in its digest, what is stored decides on resume, and what is done needs no space."""

from __future__ import annotations

import threading
import types

import numpy as np
import pytest
import torch
from kit import short_run

import mhrun
from mhrun.data import Dataset
from mhrun.engine import disk_space
from mhrun.engine.disk_space import check_space
from mhrun.errors import UserError
from mhrun.models.explained import explained
from mhrun.models.function import FunctionModel
from mhrun.store.blocks import DONE
from mhrun.store.identity import distinguishing
from mhrun.store.sharing import REFERENCE
from mhrun.store.sources import sources
from mhrun.target import Target


def npz(path):
    np.savez(path, x=np.zeros((4, 2)), y=np.zeros(4))
    return {"_target_": "mhrun.data.arrays.Npz", "file": str(path)}


def test_the_files_of_all_monitors_are_sources(tmp_path):
    parts = {name: npz(tmp_path / f"{name}.npz") for name in ("train", "test", "outside", "own")}
    config = {
        "data": parts["train"],
        "monitor": {"data": parts["test"], "outside": parts["outside"]},
        "methods": {"a": {"monitor": {"data": parts["own"]}}, "b": {}},
    }
    before = sources(config)
    assert {name.rpartition("/")[2] for name in before} == {f"{name}.npz" for name in parts}
    for name in parts:
        np.savez(tmp_path / f"{name}.npz", x=np.ones((4, 2)), y=np.zeros(4))
        after = sources(config)
        assert [file for file in before if before[file] != after[file]] == [str(tmp_path / f"{name}.npz")]
        before = after


def test_settings_by_which_runs_are_distinguished():
    def config(scale="quick", steps=10, title="", methods=("one", "two"), **settings):
        nodes = {name: {"kernel": {"m": settings.get("m", 5)}, "lr": 0.1} for name in methods}
        return {"scale": scale, "steps": steps, "title": title, "seed": 0, "methods": nodes, **settings}

    assert distinguishing([]) == []
    assert distinguishing([config()]) == [{}]
    cases = [
        config(),
        config(title="Other"),
        config("paper", 99),
        config(m=6),
        config(seed=3, methods=["one"]),
    ]
    common = {"seed": 0, "methods": ["one", "two"]}
    assert distinguishing(cases) == [
        common,  # nor the title, nor what follows from m; the others lack m
        common,
        common,  # the scale is shown elsewhere, and its steps follow from it
        {**common, "m": 6},
        {"seed": 3, "methods": ["one"]},
    ]
    assert distinguishing([config(), config("paper", 99, seed=1)]) == [{"seed": 0}, {"seed": 1}]
    others = [
        {"scale": "quick", "steps": steps, "data": {"_target_": f"a.{kind}", "n": 5}}
        for steps, kind in ((10, "Table"), (20, "Sample"))
    ]
    assert [{k: v for k, v in one.items() if k != "methods"} for one in distinguishing(others)] == [
        {"data": "Table", "steps": 10},
        {"data": "Sample", "steps": 20},
    ]
    nested = [config(), config(), config()]
    for seed, one in enumerate(nested):
        one |= {"seed": seed, "methods": {"two": {"lr": 0.1 * seed}}}
    assert [list(settings) for settings in distinguishing(nested)] == 3 * [["seed", "methods.two.lr"]]
    nested = [config(), config()]
    nested[1]["methods"]["two"]["lr"] = 0.2
    assert distinguishing(nested) == [{"methods.two.lr": 0.1}, {"methods.two.lr": 0.2}]


@pytest.mark.slow
@short_run
@pytest.mark.long
@pytest.mark.parametrize("executor", ["torch", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_stored_reference_decides_whatever_the_executor(tmp_path, rng, executor):
    """Another one is put in its place, as another machine may have found it: the run takes that one."""
    x = rng.normal(size=(300, 2))
    data = {"x": x, "y": np.where(x[:, 0] + rng.normal(size=300) > 0, 1.0, -1.0)}

    def draws():
        kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Thinned(), mhrun.MHSS(0.1))
        model = mhrun.Logistic(2, prior_variance=10.0)
        call = {"step_size": 0.1, "steps": 100, "warmup": 0, "chains": 2, "folder": tmp_path / "kept"}
        trace = mhrun.sample(model, data, kernel, surrogate="taylor2", executor=executor, **call)
        found = trace["posterior"]["theta"].to_numpy().copy()
        trace.close()
        return found

    def again():
        for name in (DONE, "trace.nc"):
            (tmp_path / "kept" / name).unlink()
        return draws()

    first = draws()
    assert np.array_equal(again(), first)
    with np.load(tmp_path / "kept" / REFERENCE) as stored:
        moved = dict(stored)
    moved["theta"] = moved["theta"] + 0.05
    np.savez(tmp_path / "kept" / REFERENCE, **moved)
    assert not np.array_equal(again(), first)


@pytest.mark.parametrize(
    "kernel",
    [
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Stored(10), mhrun.Metropolis()),
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Moving(10), mhrun.Metropolis()),
        mhrun.PlanarFlow(m=10, trains=5),
    ],
    ids=["stored", "moving", "planar flow"],
)
def test_a_surrogate_that_nothing_uses_is_refused(kernel):
    data = Dataset.of({"x": torch.ones(30, 2), "y": torch.ones(30)})
    assert kernel.refuses(Target(mhrun.Logistic(2), data)) is None
    refused = kernel.refuses(Target(mhrun.Logistic(2), data, surrogate="taylor2"))
    assert "makes no use of a surrogate" in refused
    shared = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(10), mhrun.Metropolis())
    assert shared.refuses(Target(mhrun.Logistic(2), data, surrogate="taylor2")) is None


def test_methods_that_are_done_need_no_space(tmp_path, monkeypatch):
    shape = types.SimpleNamespace(
        chains=4, total=1000, stats_thin=1, parameters=["a"], kept=lambda first, last: range(last)
    )
    target = types.SimpleNamespace(width=1, dim=1)
    methods = [types.SimpleNamespace(name=name, shape=shape, target=target) for name in ("a", "b")]
    free = types.SimpleNamespace(free=1.2 * disk_space.trace_bytes(methods[0]))
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda place: free)
    with pytest.raises(UserError, match=r"The traces may need .* has .* free"):
        check_space(methods, tmp_path)
    place = tmp_path / "methods" / "a"
    monkeypatch.setattr(disk_space, "done", lambda folder: {} if folder == place else None)
    check_space(methods, tmp_path)  # there is room for b
    with pytest.raises(UserError, match="The traces may need"):
        check_space(methods, tmp_path, force=True)


def test_validation_of_distributions_is_as_before_when_threads_have_left():
    """Two threads whose contexts overlap, the first to enter leaving first."""
    entered, left = threading.Event(), threading.Event()

    def other():
        with explained("log_lik", {}):
            entered.set()
            left.wait(10)

    kind = torch.distributions.Distribution
    before, thread = kind._validate_args, threading.Thread(target=other)
    with explained("log_lik", {}):
        thread.start()
        entered.wait(10)
        assert not kind._validate_args
    assert not kind._validate_args  # the other thread needs it off
    left.set()
    thread.join()
    assert kind._validate_args == before


def test_torchs_warnings_of_slow_vmaps_do_not_show(recwarn):
    """log_ndtr has no batching rule in torch: each call would warn, several times a step."""
    model = FunctionModel(lambda theta, batch: torch.special.log_ndtr(theta[0] * batch.y), start=[1.0])
    model.log_lik_and_grad(torch.ones(2, 1), {"y": torch.ones(1, 3)})
    assert not [warning for warning in recwarn if "performance drop" in str(warning.message)]
    torch.func.vmap(torch.special.log_ndtr)(torch.ones(2))  # the user's own call afterwards
    assert [warning for warning in recwarn if "performance drop" in str(warning.message)]
