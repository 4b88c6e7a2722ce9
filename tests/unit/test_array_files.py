"""Arrays of the user's own: .npz files, and maps that may be larger than memory."""

from __future__ import annotations

import errno
import gc
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from kit import short_run

import mhrun
from mhrun.array_cache import generated, kept
from mhrun.data import mapping
from mhrun.data.arrays import Memmap, Npz
from mhrun.data.dataset import Dataset
from mhrun.errors import Refusal, UserError
from mhrun.kernels.metropolis_hastings import MetropolisHastings
from mhrun.models.function import FunctionModel
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)


def test_npz(rng):
    np.savez(
        "d.npz",
        inputs=rng.normal(size=(9, 2)),
        labels=np.arange(9, dtype=np.uint16),
        names=np.array(["a"] * 9),
    )
    data = Npz("d.npz", {"x": "inputs", "y": "labels"}).load()
    assert data.fields["x"].shape == (9, 2)
    assert data.fields["y"].tolist() == list(range(9))
    np.savez("nan.npz", x=np.array([1.0, np.nan]))
    np.savez("odd.npz", x=np.zeros(3), y=np.zeros(4))
    np.savez("pickled.npz", x=np.array([{}], dtype=object))
    with open("broken.npz", "wb") as file:
        file.write(b"PK\x03\x04")
    for file, fields, message in (
        ("d.npz", {"x": "input"}, "no array 'input'. Did you mean 'inputs'"),
        ("d.npz", None, "'names' holds <U1"),
        ("nan.npz", None, "is not finite in row 1"),
        ("odd.npz", None, "must have one length"),
        ("pickled.npz", None, "Python objects, which are never read"),
        ("broken.npz", None, "cannot be read"),
    ):
        with pytest.raises(UserError, match=message):
            Npz(file, fields).load()


def test_maps_are_not_read_into_memory(rng):
    x = rng.normal(size=(5000, 3)).astype(np.float32)
    np.save("x.npy", x)
    np.save("y.npy", np.arange(5000))
    data = Memmap(files={"x": "x.npy", "y": "y.npy"}).load()
    index = torch.tensor([[4, 4999, 17]])
    assert data.rows(index)["x"][0].numpy() == pytest.approx(x[[4, 4999, 17]])
    assert data.rows(index)["y"].tolist() == [[4, 4999, 17]]
    assert Memmap("x.npy").n == 5000
    # What it hands out is the map itself: a change of the file is seen.
    whole = Memmap("x.npy").load().fields["x"]
    with open("x.npy", "r+b") as file:
        file.seek(-4, 2)
        file.write(np.float32(42).tobytes())
    assert float(whole[-1, -1]) == 42


def test_parts_of_a_map_are_those_parts(rng):
    """NumPy says the offset of the whole file of each part of a map."""
    x = rng.normal(size=(5000, 3))
    np.save("x.npy", x)
    whole = np.load("x.npy", mmap_mode="r")
    for part, there in (
        (whole[1234:], x[1234:]),
        (whole[10:20][3:], x[13:20]),
        (whole[::2], x[::2]),
        (whole[:, 1], x[:, 1]),
    ):
        found = Dataset.of(part).fields["x"]
        assert (found.numpy() == there).all()
        found.zero_()  # is not a change of the file
    assert (np.load("x.npy") == x).all()


def test_a_map_of_the_users_stays_one(rng):
    """A map that is read only is mapped anew, not read into memory, unless the file is no longer what it was."""
    np.save("x.npy", rng.normal(size=5000))
    found = Dataset.of(np.load("x.npy", mmap_mode="r")[100:]).fields["x"]
    with open("x.npy", "r+b") as file:
        file.seek(-8, 2)
        file.write(np.float64(42).tobytes())
    assert float(found[-1]) == 42
    scaled = np.load("x.npy", mmap_mode="c")
    scaled[:] = 7.0  # in memory alone
    scaled.flags.writeable = False
    assert (Dataset.of(scaled).fields["x"] == 7).all()
    before = np.load("x.npy", mmap_mode="r")
    kept = np.array(before)
    np.save("y.npy", rng.normal(size=5000))
    os.replace("y.npy", "x.npy")
    assert (Dataset.of(before).fields["x"].numpy() == kept).all()
    os.remove("x.npy")
    assert (Dataset.of(before).fields["x"].numpy() == kept).all()


def test_arrays_of_every_kind_are_accepted_or_refused():
    index = torch.tensor([[2, 0]])
    x = np.arange(4)
    for kind in ("uint16", "uint32", "uint64", ">i2", ">f4", ">f8", "longdouble"):
        assert Dataset.of(x.astype(kind)).rows(index)["x"].tolist() == [[2, 0]]
    assert Dataset.of(x[::-1]).rows(index)["x"].tolist() == [[1, 3]]
    for data, message in (
        (np.array([1, 2**64 - 1], np.uint64), "a signed 64-bit integer"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        ([[1, 2], [3]], "is not an array"),
        (torch.tensor(3.0), "a single number"),
        (np.ma.masked_equal([1.0, 999.0], 999.0), "masked"),
    ):
        with pytest.raises(UserError, match=message):
            Dataset.of(data)
    np.savez_compressed("x.npz", x=np.arange(1000.0))
    damaged = bytearray(Path("x.npz").read_bytes())
    for place in range(60, len(damaged) - 120, 7):
        damaged[place] ^= 0xFF
    Path("x.npz").write_bytes(damaged)
    with pytest.raises(UserError, match=r"x\.npz cannot be read"):
        Npz("x.npz").load()


def test_a_pass_through_a_map_is_read_ahead_and_the_same(rng, monkeypatch):
    """Ranges that begin and end within pages; arrays that are not mapped, or no longer, are left alone."""
    x = rng.normal(size=(5000, 3))
    np.save("x.npy", x)
    before, requested = len(mapping._MAPS), []
    real = mapping.np.frombuffer
    monkeypatch.setattr(mapping.np, "frombuffer", lambda *args: requested.append(1) or real(*args))
    data = Dataset.of({"x": np.load("x.npy", mmap_mode="r"), "y": x})
    assert len(mapping._MAPS) == before + 1
    requested.clear()
    for start, stop in ((0, 5000), (1, 2), (777, 1234), (4999, 5000), (4000, 9000)):
        rows = data.part(start, stop)
        assert (rows["x"][0].numpy() == x[start:stop]).all()
        assert (rows["y"][0].numpy() == x[start:stop]).all()
    assert len(requested) == 5
    del data, rows
    gc.collect()
    assert len(mapping._MAPS) == before


@pytest.mark.long
@pytest.mark.slow
def test_a_map_may_be_larger_than_memory():
    """A file with a hole for most of its rows: twice the memory of this machine, no room on its disk."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    n = min(2 * memory // (20 * 4), 2**31 - 1)
    try:
        array = np.lib.format.open_memmap("x.npy", "w+", np.float32, (n, 20))
    except OSError:
        pytest.skip("no files of that size here")
    array[-1000:] = 1
    array.flush()
    data = Memmap("x.npy")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = FunctionModel(lambda t, x: -0.5 * (x["x"] - t).square().sum(-1), np.zeros(20))
    index = torch.cat([torch.arange(n - 3, n), torch.arange(0, n - 1000, n // 1000)])[None]
    found = Target(model, data).evaluate(torch.zeros(1, 20), index)
    assert float(found.log_lik_mean) * index.shape[1] == pytest.approx(-30.0)
    trace = mhrun.sample(
        model,
        data.load(),
        MetropolisHastings(RandomWalk(), Stored(20), Metropolis()),
        step_size=1e-3,
        steps=200,
        warmup=0,
    )
    assert trace.sample_stats["n_lik"].max() >= 200 * 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kilobytes


def test_maps_that_cannot_be(rng):
    np.save("f.npy", np.asfortranarray(rng.normal(size=(4, 3))))
    np.save("big.npy", np.zeros(3, ">f8"))
    np.save("o.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("nan.npy", np.array([0.0, np.inf]))
    np.savez("z.npz", x=np.zeros(3))
    for file, message in (
        ("f.npy", "column by column"),
        ("big.npy", "would have to be copied"),
        ("o.npy", "never read"),
        ("nan.npy", "is not finite in row 1"),
        ("z.npz", "cannot be mapped"),
    ):
        with pytest.raises(UserError, match=message):
            Memmap(file).load()
    for settings in ({}, {"file": "a", "files": {"x": "b"}}):
        with pytest.raises(Refusal):
            Memmap(**settings)


def test_full_passes_over_wide_rows_go_in_blocks(rng, monkeypatch):
    x = rng.normal(size=(100, 8))
    np.save("x.npy", x)
    seen = []

    def log_lik(theta, rows):
        seen.append(rows["x"].shape[1])
        return -0.5 * (rows["x"].sum(-1) - theta) ** 2

    target = Target(FunctionModel(log_lik, [0.0], batched=True), Memmap("x.npy"))
    theta = target.model.init(2, Draws(Streams(0, 2), 0))
    whole = target.full_log_lik(theta)
    assert seen == [100]
    monkeypatch.setattr("mhrun.target.all_data._VALUES", 240)
    assert torch.allclose(target.full_log_lik(theta), whole)
    assert max(seen[1:]) == 30


def test_generated_numbers_are_whole(tmp_path, monkeypatch):
    """Also after a power cut that left a file too short; a full disk ends in one line, not in a killed process."""
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path))

    def ones():
        return generated("ones", [1], 1000, np.float32, lambda out: out.fill(1.0))

    assert (ones() == 1).all()
    (file,) = tmp_path.rglob("ones-*")
    for left in (0, 2000):
        os.truncate(file, left)
        assert (ones() == 1).all()
    file.unlink()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(UserError, match="No space left on device"):
        ones()
    assert not list(tmp_path.rglob("ones-*"))
    assert not list(tmp_path.rglob("*.partial"))


@short_run
@pytest.mark.long
def test_more_data_than_float32_can_count(tmp_path):
    """Rows that are tried before a run are found by whole numbers: in float32 the last would be one beyond the end."""
    kernel = MetropolisHastings(RandomWalk(), Shared(m=10), Metropolis())
    x = torch.zeros(20_000_000, dtype=torch.float16)
    trace = mhrun.sample(
        lambda theta, x: -((x - theta[0]) ** 2), x, kernel, start=[0.0], steps=2, step_size=0.1
    )
    assert np.isfinite(trace["posterior"]["theta"]).all()


def test_a_generated_array_can_be_read_by_all_who_may_read_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path))
    generated("some", [1], 3, np.float32, lambda out: out.fill(1.0))
    kept("others", "name", "state", lambda: {"x": np.zeros(2)})
    plain = tmp_path / "plain"
    plain.touch()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {path.stat().st_mode for path in files} == {plain.stat().st_mode}


def test_a_generated_array_that_cannot_be_read_is_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path))
    generated("some", [1], 3, np.float32, lambda out: out.fill(1.0))

    def refuse(*_args, **_settings):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(UserError, match=r"cannot be written or read \(Permission denied\)"):
        generated("some", [1], 3, np.float32, lambda out: out.fill(1.0))
