"""Data that do not fit, are hostile or too large: one line, no traceback, no wrong number.

The scheme is that of `test_fuzz_command_line`, for files of data; `test_changed_results` has the files of runs. The
fast tests have fixed cases and a few drawn ones; the slow tests draw thousands.
"""

from __future__ import annotations

import gzip
import io
import struct
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pairs
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit import fast, many, one_line

import mhrun
from mhrun.data import memory
from mhrun.data.arrays import Memmap, Npz
from mhrun.data.dataset import Dataset
from mhrun.data.gaussian import GaussianSample
from mhrun.data.images import Images
from mhrun.data.mixture import MixtureSample
from mhrun.data.table import Table
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import Refusal, UserError
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_location import GaussianLocation
from mhrun.models.logistic import Logistic
from mhrun.models.perceptron import Perceptron
from mhrun.models.user_function import UserFunction
from mhrun.paths import located
from mhrun.target import Target
from mhrun.target.fields import unfit


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_FOLDERS", str(tmp_path))
    monkeypatch.setenv("MHRUN_TRUST", "own,alone")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("own", "alone"):
        sys.modules.pop(name, None)


# --- Every model on every data set -----------------------------------------------------------------------------

FITS = {  # all others are refused
    "five_gaussians": {"no_data"},
    "gaussian_location": {"memmap", "npz", "table"},
    "gaussian_mean": {"fifty_means", "gaussian", "mixture", "tied_mixture"},
    "gaussian_mixture": {"no_data"},
    "logistic": {"mnist_1v7", "mnist_1v7_deformed"},
    "mixture_means": {"fifty_means", "gaussian", "mixture", "tied_mixture"},
    "perceptron": {"mnist", "notmnist"},
    "recurrent": {"mnist", "notmnist"},
    "tied_means": {"fifty_means", "gaussian", "mixture", "tied_mixture"},
    "user_function": {"fifty_means", "gaussian", "mixture", "tied_mixture"},
}


@pytest.mark.slow
def test_every_pair_of_a_model_and_data_runs_or_is_refused_in_a_line(here, monkeypatch):
    """What does not fit is refused before anything is computed or written."""
    data = pairs.write(here, monkeypatch)
    base = pairs.paired(here / "outputs", {}, {})
    for name, model in pairs.models().items():
        for source, node in data.items():
            whole = base | {"model": model, "data": node, "experiment": f"{name}_{source}"}
            message = one_line(run_experiment, whole, Silent())
            assert (message is None) == (source in FITS.get(name, ())), (name, source, message)
            assert (here / "outputs" / f"{name}_{source}").exists() == (message is None)


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (Logistic(2), {"x": torch.ones(3, 2)}, "Logistic needs the fields x and y; the data have x"),
        (
            Logistic(2),
            {"x": torch.ones(3), "y": torch.ones(3)},
            "rows of shape (2,); the data have one number",
        ),
        (
            Logistic(2),
            {"x": torch.ones(3, 2), "y": torch.tensor([1, -1, 0])},
            "labels +1 and -1; the data have 0 in row 2 (counted from 0). Of labels 0 and 1, give 2 * y - 1.",
        ),
        (Logistic(2), {"x": torch.ones(3, 2, dtype=torch.cfloat), "y": torch.ones(3)}, "real numbers"),
        (
            Perceptron([2, 3]),
            {"x": torch.ones(3, 2), "y": torch.tensor([0, 3, 1])},
            "from 0 to 2; the data have 3",
        ),
        (Perceptron([2, 3]), {"x": torch.ones(2, 2), "y": torch.tensor([0.5, 1])}, "the data have 0.5"),
        (Perceptron([2, 3]), {"x": torch.ones(3, 2), "y": torch.tensor([0, 2, 1])}, None),
        (
            GaussianLocation(2),
            {"x": torch.ones(3, 1)},
            "set model.dim to 1, in Python GaussianLocation(dim=1)",
        ),
    ],
)
def test_what_a_model_needs_of_the_data(model, fields, message):
    found = unfit(model, Dataset.of(fields))
    assert found is None if message is None else message in found


def test_a_subclass_that_reads_other_fields_declares_none():
    class Other(Logistic):
        def log_lik(self, theta, rows):
            return -((rows["z"] - theta[:, :1]) ** 2)

    assert unfit(Other(1), Dataset.of({"z": torch.ones(3)})) is None


def test_whole_numbers_are_not_what_theta_is_rounded_to():
    """theta once took the type of x."""
    x, theta = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    model = GaussianLocation(2)
    for of in (model.log_lik, lambda *a: model.log_lik_and_grad(*a)[1]):
        assert torch.equal(of(theta, {"x": x[None]}), of(theta, {"x": x[None].double()}))


# --- What a log-likelihood of the user's returns and does ------------------------------------------------------


def changes(theta, rows):
    rows["y"].mul_(2)
    return -((rows["x"] - theta[0]) ** 2)


@pytest.mark.parametrize(
    ("log_lik", "message"),
    [
        (lambda theta, rows: (rows["x"],), "returned a tuple"),
        (lambda theta, rows: rows["x"] > theta[0], "returned torch.bool"),
        (lambda theta, rows: (rows["x"] - theta[0]).long(), "returned torch.int64"),
        (lambda theta, rows: rows["x"] * 1j, "returned torch.complex128"),
        (lambda theta, rows: rows["x"].sum(), "one value per datum"),
        (changes, "changes the field y of the data in place"),
    ],
)
@pytest.mark.parametrize("kernel", ["mcmc", "sgld"])
def test_a_log_likelihood_that_is_none_is_refused(log_lik, message, kernel):
    chosen = {
        "mcmc": mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        "sgld": mhrun.Unadjusted(mhrun.SGLD(), m=5),
    }[kernel]
    data = {"x": np.linspace(0, 1, 20), "y": np.ones(20)}
    with pytest.raises(UserError, match=message):
        mhrun.sample(log_lik, data, chosen, start=[0.0], step_size=0.1, steps=5, warmup=1)


def test_a_log_likelihood_without_a_gradient_is_refused_where_one_is_needed():
    def detached(theta, x):
        return -((x - theta.detach()[0]) ** 2)

    with pytest.raises(UserError, match="no gradient with respect to theta"):
        mhrun.sample(detached, np.ones(9), mhrun.Unadjusted(mhrun.SGLD(), m=5), start=[0.0], step_size=0.1)


def test_an_error_that_cannot_be_written_is_reported(here):
    (here / "alone.py").write_text("def log_lik(theta, rows):\n    raise ValueError('\\udc80 alone')\n")
    with pytest.raises(UserError, match=r"udc80 alone") as found:
        UserFunction("alone.log_lik", dim=1).log_lik(torch.zeros(1, 1), {"x": torch.ones(1, 3)})
    str(found.value).encode()


# --- Hostile and huge files ------------------------------------------------------------------------------------


def header(text: str, version: int = 1) -> bytes:
    raw = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(raw)) + raw


def npy(shape: str, descr: str = "<f8", order: str = "False") -> bytes:
    return header(f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}")


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


HUGE = npy("(1000000000000,)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("(3,)") + bytes(24), "is a single array, not an .npz; choose data=memmap"),
        ({"x": npy("(-3,)") + bytes(24)}, "which is impossible"),
        ({"x": HUGE + bytes(80)}, "is cut short"),
        ({"x": npy("(3,)")}, "is cut short"),
        ({"x": npy("()") + bytes(8)}, "one number or more per row"),
        ({"x": npy("(3,)", "|O") + bytes(24)}, "Python objects"),
        ({"x": npy("('a',)") + bytes(24)}, "is not an array written by np.save"),
        ({"x": header("__import__('os').getpid()")}, "is not an array written by np.save"),
        ({"x": header("(" * 110)}, "is not an array written by np.save"),
        ({"x": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(99)}, "is not an array written by np.save"),
        ({"x": b"plain text"}, "is not an array written by np.save"),
        ({"x": npy("(3,)") + bytes(24), "y": npy("(4,)") + bytes(32)}, "must have one length"),
        (b"", "cannot be read"),
        (b"PK\x03\x04", "cannot be read"),
    ],
)
def test_archives_that_are_none(here, content, message):
    if isinstance(content, dict):
        zipped("d.npz", **content)
    else:
        Path("d.npz").write_bytes(content)
    assert message in one_line(Npz("d.npz").load)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("(-3,)") + bytes(24), "which is impossible"),
        (HUGE + bytes(80), "is cut short"),
        (npy("(3,)", "|S0"), "one number or more per row"),
        (npy("(3, 2)", order="True") + bytes(48), "stored column by column"),
        (b"\x93NUMPY", "is not an array"),
        (b"text", "cannot be mapped"),
        (b"", "cannot be mapped"),
    ],
)
def test_maps_that_are_none(here, content, message):
    Path("x.npy").write_bytes(content)
    assert message in one_line(Memmap("x.npy").load)


@pytest.fixture
def _little(monkeypatch):
    """A megabyte of memory, as far as data know."""
    monkeypatch.setattr(memory, "_free", lambda: iter([1e6]))


@pytest.mark.usefixtures("_little")
def test_what_memory_does_not_hold_is_refused_before_it_is_read(here):
    """Nothing here takes a second: what would inflate is not inflated beyond what there is."""
    began = time.monotonic()
    with zipfile.ZipFile("d.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        file.write(npy(f"({1 << 24},)"))
        for _ in range(128):
            file.write(bytes(1 << 20))
    with gzip.open("t.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"a,y\n")
        for _ in range(64):
            file.write(b"1,2\n" * (1 << 18))
    Path("plain.csv").write_text("a,y\n" + "1,2\n" * 100_000)
    Path("wide.csv").write_text("a\n" + "\n".join(f"v{i % 2000}" for i in range(4000)) + "\n")
    for source, message in (
        (Npz("d.npz"), "would take 134 MB of memory, and 1 MB are free; .* data=memmap"),
        (
            Table("t.csv.gz", target="y"),
            "holds more than 100 kB of text.* save its columns by np.save and choose data=memmap",
        ),
        (Table("plain.csv", target="y"), "holds more than 100 kB of text"),
        (Table("wide.csv", features=[], categorical=["a"]), "1,999 columns of x"),
        (GaussianSample(100_000, 5), "choose fewer"),
        (MixtureSample(1_000_000, [0.0]), "data.storage=file"),
    ):
        with pytest.raises(UserError, match=message):
            source.load()
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("_little")
def test_a_parquet_file_declares_its_size(here):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": np.zeros(100_000), "y": np.zeros(100_000)}).to_parquet("t.parquet")
    with pytest.raises(UserError, match=r"100,000 rows, would take 4\.8 MB"):
        Table("t.parquet", target="y").load()


def test_free_memory_is_a_number():
    assert 1e6 < memory.available() < 1e15
    assert [memory.in_bytes(n) for n in (0, 999, 1000, 3.4e9)] == ["0 bytes", "999 bytes", "1 kB", "3.4 GB"]


def test_lack_of_memory_for_data_is_reported():
    class Source:
        n = 5

        def load(self):
            raise MemoryError

    with pytest.raises(UserError, match="not enough memory for the n = 5 data; choose fewer"):
        Target(FunctionModel(lambda t, x: x, [0.0]), Source()).data  # noqa: B018


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "y,q,y\n1,2,3\n4,5,6\n", "several columns named 'y'"),
        ("t.csv", "a;a\n1;2\n3;4\n", "several columns named 'a'"),
        ("t.csv.tar", "a,y\n1,2\n", "cannot be read as a table"),
        ("t.csv.gz", "a,y\n1,2\n", "cannot be read as a table"),
        ("t.csv.zip", "a,y\n1,2\n", "cannot be read as a table"),
        ("t.csv.xz", "a,y\n1,2\n", "cannot be read as a table"),
        ("t.csv", "", "cannot be read as a table"),
        ("t.csv", "\n\n\n", "cannot be read as a table"),
        ("t.csv", "\0" * 50, "t.csv"),
        ("t.parquet", "PAR1....PAR1", "cannot be read as a table"),
        ("t.xlsx", "", "is not a supported table"),
    ],
)
def test_tables_that_are_none(here, name, text, message):
    Path(name).write_text(text)
    assert message in one_line(Table(name, target="y").load)


def test_names_and_seeds_that_are_none(here):
    for make in (
        lambda: Table("t.csv", seed=-1),
        lambda: GaussianSample(5, 2, seed=-1),
        lambda: MixtureSample(5, [0.0], seed=-1),
        lambda: Images(shuffle=-1),
    ):
        with pytest.raises(Refusal, match="negative"):
            make()
    for name in ("x" * 5000, "a/" * 3000, "a\0b", "~nosuchuser/x.csv", "", ".", "/", "\udc80"):
        assert "There is no data file" in one_line(located, name)


# What is written into files: pieces of good ones, and of what is none.
PIECES = st.one_of(
    st.sampled_from(
        [
            b",",
            b"\n",
            b";",
            b'"',
            b"a",
            b"y",
            b"1",
            b"-1e400",
            b"nan",
            b"\r",
            b"\0",
            b"\xff",
            b"\t",
            b" ",
            b"|",
            b"''",
        ]
    ),
    st.binary(max_size=4),
)
TEXTS = st.lists(PIECES, max_size=30).map(b"".join)
NAMES = st.sampled_from(
    ["t.csv", "t.tsv", "t.csv.gz", "t.csv.zip", "t.csv.tar", "t.csv.bz2", "t.csv.xz", "t.parquet"]
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "target": st.sampled_from(["y", "a", "", "1"]),
        "features": st.lists(st.sampled_from(["a", "y", "b", ""]), max_size=2),
        "categorical": st.lists(st.sampled_from(["a", "y"]), max_size=1),
        "outcome": st.sampled_from(["number", "sign", "class"]),
        "missing": st.sampled_from(["refuse", "drop"]),
        "test_share": st.sampled_from([0.0, 0.5]),
        "separator": st.sampled_from([",", ";", " ", "", "\0", "ab", "["]),
        "intercept": st.booleans(),
    },
)


def packed(name, text):
    if name.endswith(".gz"):
        return gzip.compress(text)
    if name.endswith(".zip"):
        with io.BytesIO() as kept:
            with zipfile.ZipFile(kept, "w") as archive:
                archive.writestr("t.csv", text)
            return kept.getvalue()
    return text


def try_table(folder, name, text, good, settings):
    path = folder / name
    path.write_bytes(packed(name, (b"a,b,y\n1,2,3\n4,5,6\n" if good else b"") + text))
    one_line(lambda: Table(str(path), **settings).load())


@fast(40)
@given(NAMES, TEXTS, st.booleans(), SETTINGS)
def test_no_table_brings_a_traceback(tmp_path, name, text, good, settings):
    try_table(tmp_path, name, text, good, settings)


@pytest.mark.slow
@many(1500)
@given(NAMES, TEXTS, st.booleans(), SETTINGS)
def test_a_thousand_tables_bring_no_traceback(tmp_path, name, text, good, settings):
    try_table(tmp_path, name, text, good, settings)


def good_file(kind: str) -> bytes:
    with io.BytesIO() as kept:
        x = np.arange(12.0).reshape(6, 2)
        {"npz": lambda: np.savez(kept, x=x, y=np.arange(6)), "npy": lambda: np.save(kept, x)}[kind]()
        return kept.getvalue()


EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 255), st.sampled_from(["set", "cut", "put"])), max_size=4
)
FIELDS = st.sampled_from([None, {"x": "x"}, {"a": "y", "b": "x"}, {"x": "z"}, {"x": ""}])


def try_array(folder, kind, edits, fields):
    raw = bytearray(good_file(kind))
    for share, value, what in edits:
        at = int(share * (len(raw) - 1)) if raw else 0
        if what == "cut":
            del raw[at:]
        elif what == "put":
            raw[at:at] = bytes([value]) * 3
        elif raw:
            raw[at] = value
    path = folder / f"d.{kind}"
    path.write_bytes(raw)
    for source in (Npz(str(path), fields), Memmap(str(path))):
        one_line(source.load)


@fast(60)
@given(st.sampled_from(["npz", "npy"]), EDITS, FIELDS)
def test_no_array_brings_a_traceback(tmp_path, kind, edits, fields):
    try_array(tmp_path, kind, edits, fields)


@pytest.mark.slow
@many(3000)
@given(st.sampled_from(["npz", "npy"]), EDITS, FIELDS)
def test_thousands_of_arrays_bring_no_traceback(tmp_path, kind, edits, fields):
    try_array(tmp_path, kind, edits, fields)
