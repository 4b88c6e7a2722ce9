"""Small whole runs for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mhrun.cli.compose import compose_config
from mhrun.engine.chains import Silent
from mhrun.engine.experiment import run_experiment
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import open_trace

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
