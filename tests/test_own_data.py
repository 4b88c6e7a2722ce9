"""Data of the user's own: tables, .npz files, and maps."""

from __future__ import annotations

import errno
import gc
import os
import resource
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import mhrun
from mhrun.data import mapping
from mhrun.data.arrays import Memmap, Npz
from mhrun.data.dataset import Dataset
from mhrun.data.generated import generated
from mhrun.data.table import Table
from mhrun.errors import Refusal, UserError
from mhrun.kernels.metropolis_hastings import MetropolisHastings
from mhrun.models.function import FunctionModel
from mhrun.pairing.stored import Stored
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Streams
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def frame(rng):
    n = 60
    return pd.DataFrame(
        {
            "a": rng.normal(3, 2, n),
            "b": rng.integers(0, 9, n),
            "kind": rng.choice(["red", "blue", "green"], n),
            "grade": rng.choice([1, 2], n),
            "y": rng.normal(size=n),
            "sick": rng.choice(["no", "yes"], n),
        }
    )


# --- Tables -----------------------------------------------------------------------------------------------


def needs_pyarrow(frame, name):
    pytest.importorskip("pyarrow")
    frame.to_parquet(name)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_columns_have_roles(frame, name):
    if "parquet" in name:
        needs_pyarrow(frame, name)
    else:
        frame.to_csv(name, index=False, sep="\t" if "tsv" in name else ",")
    source = Table(name, target="y", features=["b", "a"], categorical=["kind", "grade"], intercept=True)
    data = source.load()
    assert source.n == data.n == 60
    assert data.facts["columns"] == ["1", "b", "a", "kind=green", "kind=red", "grade=2"]
    x = data.fields["x"].numpy()
    assert (x[:, 0] == 1).all()
    assert x[:, 2] == pytest.approx((frame.a - frame.a.mean()) / frame.a.std(ddof=0))
    assert x[:, 3] == pytest.approx((frame.kind == "green").astype(float))
    assert x[:, 5] == pytest.approx((frame.grade == 2).astype(float))
    assert data.fields["y"].numpy() == pytest.approx(frame.y)
    bare = Table(name, target="y", features=["b"], standardise=False).load().fields["x"]
    assert bare[:, 0].tolist() == frame.b.tolist()


def test_outcomes(frame):
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a"], "target": "sick"}
    assert Table("t.csv", outcome="sign", **rest).load().fields["y"].tolist() == [
        1 if v == "yes" else -1 for v in frame.sick
    ]
    assert Table("t.csv", outcome="sign", positive="no", **rest).load().fields["y"][0] == (
        1 if frame.sick[0] == "no" else -1
    )
    found = Table("t.csv", outcome="class", features=["a"], target="kind").load()
    assert found.facts["classes"] == ["blue", "green", "red"]
    assert found.fields["y"].tolist() == [["blue", "green", "red"].index(v) for v in frame.kind]
    scaled = Table("t.csv", features=["a"], target="y", standardise_target=True).load()
    back = scaled.fields["y"].numpy() * scaled.facts["target_sd"] + scaled.facts["target_mean"]
    assert back == pytest.approx(frame.y)


def test_rows_are_split_by_a_seed_and_scaled_as_those_for_training(frame):
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a"], "target": "y", "test_share": 0.25}
    train, test = (Table("t.csv", part=part, **rest).load() for part in ("train", "test"))
    assert (train.n, test.n) == (45, 15)
    assert sorted([*train.fields["y"].tolist(), *test.fields["y"].tolist()]) == pytest.approx(sorted(frame.y))
    assert float(train.fields["x"].mean()) == pytest.approx(0, abs=1e-12)
    mean, sd = train.facts["scales"]["a"]
    again = test.fields["x"][:, 0].numpy() * sd + mean
    assert set(np.round(again, 9)) <= set(np.round(frame.a, 9))
    other = Table("t.csv", seed=1, **rest).load()
    assert other.fields["y"].tolist() != train.fields["y"].tolist()


def test_types_that_parquet_has_and_csv_has_not(frame):
    """The same numbers as of a text file; what is no number and no category is told."""
    n = len(frame)
    frame = frame.astype({"b": "Int64", "kind": "category"}).assign(
        single=frame.a.astype(np.float32), flag=pd.array(frame.b > 4, dtype="boolean")
    )
    needs_pyarrow(frame, "t.parquet")
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a", "b", "single", "flag"], "categorical": ["kind"], "target": "y"}
    one, two = (Table(name, **rest).load() for name in ("t.parquet", "t.csv"))
    assert one.facts["columns"] == two.facts["columns"]
    torch.testing.assert_close(one.fields["x"], two.fields["x"], rtol=0, atol=1e-6)
    frame.loc[3, "b"] = pd.NA
    frame.loc[4, "kind"] = None
    frame.assign(many=[np.arange(2)] * n, day=pd.date_range("2020", periods=n)).to_parquet("m.parquet")
    assert Table("m.parquet", missing="drop", **rest).load().n == n - 2
    for columns, told in (
        ({"features": ["b"]}, r"1 of 60 rows lack a value \(b: 1\)"),
        ({"features": ["day"]}, "no numbers"),
        ({"features": ["many"]}, "no numbers"),
        ({"features": ["a"], "categorical": ["many"]}, "holds ndarray values, which are no categories"),
    ):
        with pytest.raises(UserError, match=told):
            Table("m.parquet", target="y", **columns).load()
    whole = Path("t.parquet").read_bytes()
    Path("t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"t\.parquet cannot be read as a table"):
        Table("t.parquet", target="y").load()


@pytest.mark.parametrize("name", ["x", "height", "weight_kg", '"value"'])
def test_a_table_of_one_column(name):
    """A search for its separator finds a letter of its name."""
    Path("one.csv").write_text(f"{name}\n1.5\n2.5\n")
    data = Table("one.csv", standardise=False).load()
    assert data.facts["columns"] == [name.strip('"')]
    assert data.fields["x"].tolist() == [[1.5], [2.5]]


@pytest.mark.parametrize("separator", [None, ","])
def test_rows_longer_than_the_first_line_shift_no_column(separator):
    def read(rows):
        Path("long.csv").write_text(f"a,b,y\n{rows}")
        return (
            Table("long.csv", target="y", standardise=False, separator=separator).load().fields["y"].tolist()
        )

    with pytest.raises(UserError, match="more values than its first line has names"):
        read("0,2,3,9\n1,5,6,8\n")
    assert read("0,2,3,\n1,5,6,\n") == [3, 6]


@pytest.mark.parametrize(
    ("column", "told"), [(["0.1"] * 3, "is 0.1 in every row"), (["1e200", "2e200", "3e200"], "too large")]
)
def test_columns_that_cannot_be_standardised(column, told):
    """The mean of three times 0.1 is not 0.1."""
    rows = "".join(f"{a},{b}\n" for b, a in enumerate(column))
    Path("c.csv").write_text(f"a,b\n{rows}")
    with pytest.raises(UserError, match=told):
        Table("c.csv").load()


def test_columns_that_have_numbers_for_names():
    pytest.importorskip("pyarrow")
    pd.DataFrame({0: [1.0, 2.0], 1: [5.0, 7.0]}).to_parquet("n.parquet")
    data = Table("n.parquet", target="1", standardise=False).load()
    assert data.fields["y"].tolist() == [5.0, 7.0]


def test_what_is_no_table_at_all_is_told_of():
    for text in (b"", b"\n", b"\x1f\x8b\x08\x00garbage"):
        for name in ("a.csv", "a.csv.gz"):
            Path(name).write_bytes(text)
            with pytest.raises(UserError, match=name):
                Table(name).load()


def test_missing_values_are_refused_or_dropped(frame):
    frame.loc[[3, 7], "a"] = np.nan
    frame.loc[7, "kind"] = None
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a"], "categorical": ["kind"], "target": "y"}
    with pytest.raises(UserError, match=r"2 of 60 rows lack a value \(a: 2, kind: 1\); missing=drop"):
        Table("t.csv", **rest).load()
    data = Table("t.csv", missing="drop", **rest).load()
    assert data.n == 58
    assert data.facts["dropped"] == 2
    assert Table("t.csv", features=["b"], target="y").load().n == 60  # of columns that are used


def test_a_table_says_in_a_line_what_is_wrong(frame, tmp_path):
    frame.assign(same=1.0).to_csv("t.csv", index=False)
    (tmp_path / "t.parquet").write_bytes(b"no")
    (tmp_path / "t.doc").write_text("no")
    for make, told in (
        (lambda: Table("tt.csv", target="y"), r"There is no data file 'tt.csv'.*Did you mean 't.csv'"),
        (lambda: Table("t.csv", target="yy"), r"no column 'yy'. (Did you mean 'y'|There are: a, b)"),
        (lambda: Table("t.csv", target="y"), r"'kind' holds 'blue', 'green', 'red', no numbers"),
        (lambda: Table("t.csv", target="kind", features=["a"]), "no numbers"),
        (lambda: Table("t.csv", target="y", features=["same"]), "which cannot be standardised"),
        (lambda: Table("t.csv", target="a", features=["a"]), "has two roles"),
        (lambda: Table("t.csv", target="kind", features=["a"], outcome="sign"), "wants two values"),
        (lambda: Table("t.parquet", target="y"), "pyarrow|cannot be read"),
        (lambda: Table("t.doc", target="y"), "is no table"),
    ):
        with pytest.raises(UserError, match=told) as raised:
            make().load()
        assert "\n" not in str(raised.value)
    for settings in ({"outcome": "x"}, {"missing": "x"}, {"part": "test"}, {"test_share": 1.0}):
        with pytest.raises(Refusal):
            Table("t.csv", **settings)


# --- Arrays -----------------------------------------------------------------------------------------------


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
    for file, fields, told in (
        ("d.npz", {"x": "input"}, "no array 'input'. Did you mean 'inputs'"),
        ("d.npz", None, "'names' holds <U1"),
        ("nan.npz", None, "no finite number in row 1"),
        ("odd.npz", None, "must have one length"),
        ("pickled.npz", None, "Python objects, which are never read"),
        ("broken.npz", None, "cannot be read"),
    ):
        with pytest.raises(UserError, match=told):
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
        found.zero_()  # is no change of the file
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


def test_arrays_of_every_kind_are_taken_or_told_of():
    index = torch.tensor([[2, 0]])
    x = np.arange(4)
    for kind in ("uint16", "uint32", "uint64", ">i2", ">f4", ">f8", "longdouble"):
        assert Dataset.of(x.astype(kind)).rows(index)["x"].tolist() == [[2, 0]]
    assert Dataset.of(x[::-1]).rows(index)["x"].tolist() == [[1, 3]]
    for data, told in (
        (np.array([1, 2**64 - 1], np.uint64), "more than 64 bits"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        ([[1, 2], [3]], "is no array"),
        (torch.tensor(3.0), "a single number"),
        (np.ma.masked_equal([1.0, 999.0], 999.0), "masked"),
    ):
        with pytest.raises(UserError, match=told):
            Dataset.of(data)
    np.savez_compressed("x.npz", x=np.arange(1000.0))
    damaged = bytearray(Path("x.npz").read_bytes())
    for place in range(60, len(damaged) - 120, 7):
        damaged[place] ^= 0xFF
    Path("x.npz").write_bytes(damaged)
    with pytest.raises(UserError, match=r"x\.npz cannot be read"):
        Npz("x.npz").load()


def test_a_pass_through_a_map_is_read_ahead_and_the_same(rng, monkeypatch):
    """Parts that begin and end within pages; nothing is asked of what is no map, or of one that has gone."""
    x = rng.normal(size=(5000, 3))
    np.save("x.npy", x)
    before, asked = len(mapping._MAPS), []
    real = mapping.np.frombuffer
    monkeypatch.setattr(mapping.np, "frombuffer", lambda *args: asked.append(1) or real(*args))
    data = Dataset.of({"x": np.load("x.npy", mmap_mode="r"), "y": x})
    assert len(mapping._MAPS) == before + 1
    asked.clear()
    for start, stop in ((0, 5000), (1, 2), (777, 1234), (4999, 5000), (4000, 9000)):
        rows = data.part(start, stop)
        assert (rows["x"][0].numpy() == x[start:stop]).all()
        assert (rows["y"][0].numpy() == x[start:stop]).all()
    assert len(asked) == 5
    del data, rows
    gc.collect()
    assert len(mapping._MAPS) == before


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
    for file, told in (
        ("f.npy", "column by column"),
        ("big.npy", "would have to be copied"),
        ("o.npy", "never read"),
        ("nan.npy", "no finite number in row 1"),
        ("z.npz", "cannot be mapped"),
    ):
        with pytest.raises(UserError, match=told):
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
    theta = target.model.init(2, Streams(0, 2).at(0))
    whole = target.full_log_lik(theta)
    assert seen == [100]
    monkeypatch.setattr("mhrun.target.all_data._VALUES", 240)
    assert torch.allclose(target.full_log_lik(theta), whole)
    assert max(seen[1:]) == 30


def test_generated_numbers_are_whole(tmp_path, monkeypatch):
    """Also after a power cut that left a file too short; and a full disk is told of, where a map would kill us."""
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
