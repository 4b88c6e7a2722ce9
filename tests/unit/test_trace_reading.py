"""Traces are opened as xarray's own reader opens them."""

from __future__ import annotations

import copy
import pickle

import h5netcdf
import h5py
import numpy as np
import pytest
import torch
import xarray as xr
from kit import FEW, compute, config, short_run

import mhrun
from mhrun.engine.assemble import methods_of
from mhrun.engine.disk_space import large_draws
from mhrun.store.netcdf import TRACE, open_trace
from mhrun.store.netcdf_file import NetcdfFile

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


@short_run
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


LABELS = np.array(["a", "b", "c"], dtype=object)
STORED = {"chunks": (2, 3), "fletcher32": True, "compression": "gzip", "compression_opts": 1}


def ours(path):
    with NetcdfFile(path) as file:
        file.set_attributes({"text": "é", "number": 3, "several": np.arange(2)})
        for name in ("one", "two"):
            group = file.add_group(name)
            group.add_dimension("row", np.arange(2))
            group.add_dimension("column", LABELS)
            group.set_attributes({"of": name})
            group.add_variable("filled", ("row", "column"), data=np.arange(6.0).reshape(2, 3))
            group.add_variable("turned", ("column", "row"), "int8")[...] = 1
            group.add_variable("stored", ("row", "column"), "float64", **STORED)[...] = 2.5
            group.variables["stored"].attrs["coordinates"] = "row"


def theirs(path):
    with h5netcdf.File(path, "x") as file:
        file.attrs.update({"text": "é", "number": 3, "several": np.arange(2)})
        for name in ("one", "two"):
            group = file.create_group(name)
            group.dimensions["row"] = 2
            group.create_variable("row", ("row",), data=np.arange(2))
            group.dimensions["column"] = 3
            group.create_variable("column", ("column",), h5py.string_dtype())[...] = LABELS
            group.attrs["of"] = name
            group.create_variable("filled", ("row", "column"), data=np.arange(6.0).reshape(2, 3))
            group.create_variable("turned", ("column", "row"), "int8")[...] = 1
            group.create_variable("stored", ("row", "column"), "float64", **STORED)[...] = 2.5
            group.variables["stored"].attrs["coordinates"] = "row"


def in_hdf5(path):
    """Return everything of a file: attributes with their types, links by name, values, and how they are stored."""
    found = {}
    with h5py.File(path) as file:

        def visit(name, item):
            attributes = {}
            for key, value in item.attrs.items():
                if key == "DIMENSION_LIST":
                    attributes[key] = [[file[one].name for one in axis] for axis in value]
                elif key == "REFERENCE_LIST":
                    attributes[key] = sorted((file[one].name, int(axis)) for one, axis in value)
                elif key != "_NCProperties":
                    stored = item.attrs.get_id(key)
                    attributes[key] = (str(stored.dtype), stored.shape, np.asarray(value).tolist())
            found[name] = attributes
            order = (list(item), ()) if isinstance(item, h5py.Group) else (item.shape, item[...].tolist())
            plist = item.id.get_create_plist()
            found[name, "order"] = (*order, plist.get_attr_creation_order())
            if isinstance(item, h5py.Dataset):
                names = (
                    "dtype",
                    "chunks",
                    "compression",
                    "compression_opts",
                    "fletcher32",
                    "maxshape",
                    "fillvalue",
                )
                found[name, "storage"] = {key: getattr(item, key) for key in names}

        visit("/", file["/"])
        file.visititems(visit)
        assert str(file.attrs["_NCProperties"]).startswith("b'version=2,")
    return found


def test_files_are_those_of_h5netcdf(tmp_path):
    """But for the library that they name."""
    ours(tmp_path / "ours.nc")
    theirs(tmp_path / "theirs.nc")
    found, expected = in_hdf5(tmp_path / "ours.nc"), in_hdf5(tmp_path / "theirs.nc")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, name


@short_run
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
    (line,) = lines("steps=1000", "chains=70000000")
    assert line.endswith(
        "; thin=null keeps none, where a monitor has what is wanted."
    )  # one draw of all has 1.1 GB
    assert lines("steps=200000000", "thin=10") == []
    assert lines("steps=200000000", "thin=null") == []
    assert lines("steps=200000000", "thin=[1,2]") == []
