"""Traces are opened as xarray's own reader opens them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import xarray as xr
from kit import FEW, compute, config

import mhrun
from mhrun.engine.assemble import large_draws, methods_of
from mhrun.store.netcdf import TRACE, open_trace

KERNEL = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())


def density(theta):
    return -0.5 * (theta.a**2 + (theta.b**2).sum(-1))


def plain(folder):
    mhrun.sample(
        lambda theta, x: -0.5 * (x - theta[0]) ** 2, torch.zeros(20), KERNEL, start=[0.0], step_size=0.3,
        steps=20, warmup=10, chains=2, executor="torch", folder=folder,
    )  # fmt: skip
    return folder


def named(folder):
    mhrun.sample(
        density, None, KERNEL, parameters={"a": 1, "b": 3}, start={"a": 0.0, "b": [0.0, 0.0, 0.0]},
        step_size=0.3, steps=20, warmup=10, chains=2, executor="torch", folder=folder,
    )  # fmt: skip
    return folder


def listed(folder):
    return compute(folder, *FEW, "~methods.sghmc", "executor=torch", "steps=50", "thin=[1,230,240]").method(
        "mint"
    )


@pytest.mark.parametrize("make", [plain, named, listed])
def test_a_trace_is_what_xarray_reads(tmp_path, make):
    folder = make(tmp_path / "run")
    with xr.open_datatree(folder / TRACE, engine="h5netcdf") as expected, open_trace(folder) as found:
        xr.testing.assert_identical(found, expected)
        assert list(found.children) == list(expected.children)
        for group in expected.subtree:
            ours = found[group.path]
            assert list(ours.variables) == list(group.variables)
            assert list(ours.coords) == list(group.coords)
            for name, variable in group.variables.items():
                assert ours.variables[name].dtype == variable.dtype == ours.variables[name].values.dtype
        accepted = found["sample_stats"]["accepted"]
        assert np.array_equal(accepted[:, [1, 3]], expected["sample_stats"]["accepted"].values[:, [1, 3]])


def test_an_open_trace_can_be_pickled_and_copied(tmp_path):
    tree = open_trace(plain(tmp_path / "run"))
    values = tree["posterior"]["theta"].values
    for other in (
        pickle.loads(pickle.dumps(open_trace(tmp_path / "run"))),
        copy.deepcopy(open_trace(tmp_path / "run")),
    ):
        assert np.array_equal(other["posterior"]["theta"], values)


def test_draws_above_a_gigabyte_are_announced(tmp_path):
    """2 chains of 2 numbers: 32 bytes a step."""

    def lines(*words):
        return large_draws(methods_of(config(tmp_path, *FEW, "~methods.sghmc", "chains=2", *words)))

    assert lines("steps=31000000") == []
    assert lines("steps=200000000") == [
        "mint: its draws take up to 6.4 GB; thin=10 keeps 640 MB, and all statistics with thin_stats=1."
    ]
    assert lines("steps=200000000", "thin=10") == []
    assert lines("steps=200000000", "thin=null") == []
    assert lines("steps=200000000", "thin=[1,2]") == []
