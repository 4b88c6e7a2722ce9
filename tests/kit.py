"""What several tests build or do: small whole runs, steps in plain torch, and drawn examples."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, settings

from mhrun.cli.compose import compose_config
from mhrun.engine.chains import Silent
from mhrun.engine.experiment import run_experiment
from mhrun.random import Streams, derive_key
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import open_trace
from mhrun.types import Controls

FEW = ("~methods.tempered_mcmc", "~methods.mcmc", "~methods.sgld", "~methods.mint_stored")


def config(outputs: Path, *words: str) -> dict[str, Any]:
    """Return the configuration of the smallest run, with some words on top."""
    return compose_config(
        [
            "experiment=gmm_tied_means",
            "scale=smoke",
            "runtime.threads=1",
            "runtime.report=false",
            f"runtime.outputs={outputs}",
            *words,
        ]
    )


def compute(outputs: Path, *words: str) -> RunFolder:
    return run_experiment(config(outputs, *words), Silent())


def contents(folder: RunFolder, method: str) -> dict[str, np.ndarray]:
    """Return every array of a trace but the wall clock's, and the totals of the method."""
    totals = json.loads((folder.method(method) / "done.json").read_text())["totals"]
    with open_trace(folder.method(method)) as trace:
        return {f"total/{name}": np.asarray(value) for name, value in totals.items()} | {
            f"{group.path}/{name}": variable.to_numpy()
            for group in trace.subtree
            for name, variable in group.variables.items()
            if name != "wall_s"
        }


def assert_same_bits(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].dtype == two[name].dtype, name
        equal_nan = one[name].dtype.kind == "f"
        assert np.array_equal(one[name], two[name], equal_nan=equal_nan), name


class StopAfter(Silent):
    """Presses Ctrl-C after some chunks."""

    def __init__(self, chunks: int) -> None:
        self._left = chunks

    def advance(self, step: int, accept_rate: float, n_lik: int, n_grad: int) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGINT)


C, STEPS = 4, 40
KEY = derive_key(11, "algebra")


def controls(step_size=0.8, temperature=3.0, chains=C, steps=None):
    shape = (chains,) if steps is None else (steps, chains)
    full = torch.full(shape, 1.0, dtype=torch.float64)
    return Controls(step_size * full, temperature * full, temperature * full)


def follow(kernel, target, control, steps=STEPS, chains=C, first_chain=0):
    """Return theta (steps, C, D) and the infos of a run in plain torch."""
    draws = Streams(KEY, chains, first_chain=first_chain).at(0)
    state = kernel.start(target, target.model.init(chains, draws), draws)
    thetas, infos = [], []
    for k in range(steps):
        draws.step = k + 1
        state, info = kernel.step(target, state, control, draws)
        thetas.append(state.evaluation.theta)
        infos.append(info)
    return torch.stack(thetas), infos


QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)
COUNT = int(os.environ.get("MHRUN_FUZZ", "1"))  # times the examples of the slow tests


def fast(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=QUIET
    )


def many(count: int) -> settings:
    return settings(
        max_examples=COUNT * count, deadline=None, database=None, suppress_health_check=QUIET, print_blob=True
    )
