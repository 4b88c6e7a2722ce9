"""Run folders: addressed by content, whole or not there, and opened by ArviZ as they are."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import arviz_base
import filelock
import numpy as np
import pytest
import xarray as xr
from kit import FEW, assert_same_bits, compute, config, contents

import mhrun
from mhrun.engine.run_method import steps_at_once
from mhrun.errors import UserError
from mhrun.report.run import Run
from mhrun.store.blocks import Checkpoint, TraceWriter, done, load_block
from mhrun.store.files import explain, read_json, write_json, write_whole
from mhrun.store.folder import RunFolder, runs
from mhrun.store.identity import departures, digest, method_digest, parts_of
from mhrun.store.netcdf import TRACE, Shape, open_trace
from mhrun.store.trace_file import PartialTrace
from mhrun.types import INFO_DTYPES


def record(rng, chains, count):
    draws = {name: rng.integers(0, 5, (chains, count)).astype(dtype) for name, dtype in INFO_DTYPES.items()}
    return draws | {"theta": rng.normal(size=(chains, count, 2))}


def written(folder: Path, shape: Shape, cuts, rng_seed=0, stop_at=None, convert=False):
    """Write a trace in pieces of given lengths, converted meanwhile or at the end; return all that went in."""
    rng = np.random.default_rng(rng_seed)
    whole = record(rng, shape.chains, shape.total)
    writer = TraceWriter(folder, shape, INFO_DTYPES, 100)
    checkpoint = writer.resume(lambda message: None)
    step = 0 if checkpoint is None else checkpoint.step
    for cut in cuts:
        end = min(cut, shape.total)
        if end <= step:
            continue
        piece = {name: a[:, step:end] for name, a in whole.items()}
        kept = shape.kept(step + 1, end - step)  # executors leave the theta of kept steps alone
        writer.append(step + 1, piece | {"theta": piece["theta"][:, kept]})
        step = end
        writer.commit(Checkpoint(step, {"evaluation/theta": whole["theta"][:, step - 1]}))
        if stop_at is not None and step >= stop_at:
            return whole
        if convert:
            writer.convert()
    writer.finish({"method": "test"}, {})
    return whole


@pytest.mark.parametrize(("thin", "often"), [(1, None), (3, None), (3, 1), (1, 4), (5, 2)])
@pytest.mark.parametrize("warmup", [0, 10, 12])
@pytest.mark.parametrize("convert", [False, True])
def test_a_trace_holds_what_went_in(tmp_path, thin, often, warmup, convert):
    shape = Shape(2, ("a", "b"), warmup, 50, thin, often)
    whole = written(tmp_path, shape, [7, 8, 31, 33, 62], convert=convert)
    assert not (tmp_path / "trace.nc.partial").exists()
    with open_trace(tmp_path) as trace:
        for kind, every in (("posterior", thin), ("sample_stats", often or thin)):
            kept = np.arange(every, shape.total + 1, every)
            for prefix, steps in (("warmup_", kept[kept <= warmup]), ("", kept[kept > warmup])):
                if not len(steps):
                    assert f"{prefix}{kind}" not in trace.children
                    continue
                group = trace[f"{prefix}{kind}"]
                assert group["draw"].values.tolist() == list(range(len(steps)))
                if kind == "posterior":
                    assert group["theta"].dims == ("chain", "draw", "parameter")
                    assert group["parameter"].values.tolist() == ["a", "b"]
                    assert np.array_equal(group["theta"], whole["theta"][:, steps - 1])
                    continue
                for name in INFO_DTYPES:
                    expected = whole[name]
                    if name in ("n_lik", "n_lik_overhead", "n_grad"):
                        expected = np.cumsum(expected, axis=1)
                    assert group[name].dtype == INFO_DTYPES[name]
                    assert np.array_equal(group[name], expected[:, steps - 1])
                assert (np.diff(group["wall_s"]) >= 0).all()
    summary = done(tmp_path)
    assert summary["totals"]["n_lik"] == whole["n_lik"].sum(1).tolist()
    assert summary["totals"]["sum_accepted"] == pytest.approx(whole["accepted"][:, warmup:].sum(1))
    assert not (tmp_path / "blocks").exists()


def test_arviz_opens_it_as_it_is(tmp_path):
    written(tmp_path, Shape(2, ("a", "b"), 5, 50, 1), [55])
    tree = xr.open_datatree(tmp_path / TRACE)
    assert arviz_base.extract(tree).sizes["sample"] == 100
    assert tree.attrs["inference_library"] == "mhrun"
    tree.close()


def test_blocks_that_cannot_be_converted_meanwhile_are_converted_at_the_end(tmp_path, monkeypatch):
    """As when the disk is full for a while; what is wrong at the end is reported."""
    shape, append, failed = Shape(2, ("a", "b"), 0, 50, 1), PartialTrace.append, []

    def fails(trace, block):
        if always or threading.current_thread() is not threading.main_thread():
            failed.append(trace.blocks)
            raise UserError("The disk is full.")
        append(trace, block)

    always = False
    monkeypatch.setattr(PartialTrace, "append", fails)
    whole = written(tmp_path / "one", shape, [7, 8, 31, 33, 50], convert=True)
    assert failed
    with open_trace(tmp_path / "one") as trace:
        assert (trace["posterior/theta"].to_numpy() == whole["theta"]).all()
    always = True
    with pytest.raises(UserError, match="The disk is full"):
        written(tmp_path / "two", shape, [50])
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["blocks"]


def test_a_stopped_method_leaves_no_trace_in_the_making(tmp_path):
    shape = Shape(2, ("a", "b"), 0, 50, 1)
    written(tmp_path, shape, [7, 20], stop_at=20)
    with TraceWriter(tmp_path, shape, INFO_DTYPES, 100) as writer:
        writer.convert()
    assert not writer._converter.is_alive()
    assert [path.name for path in tmp_path.iterdir()] == ["blocks"]
    whole = written(tmp_path, shape, [33, 50], convert=True)
    with open_trace(tmp_path) as trace:
        assert (trace["posterior/theta"].to_numpy() == whole["theta"]).all()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_damaged_blocks_are_noticed_and_done_again(tmp_path, damage):
    shape = Shape(2, ("a", "b"), 4, 50, 1)
    one, two = tmp_path / "whole", tmp_path / "damaged"
    written(one, shape, [9, 20, 37, 54])
    written(two, shape, [9, 20, 37, 54], stop_at=37)
    second = sorted((two / "blocks").glob("*.npz"))[1]
    raw = bytearray(second.read_bytes())
    if damage == "flip":
        raw[raw.index(b"\x93NUMPY") + 128] ^= 0x40  # of an array's numbers, whose header has 128 bytes
        second.write_bytes(raw)
    elif damage == "cut":
        second.write_bytes(raw[: len(raw) // 2])
    elif damage == "empty":
        second.write_bytes(b"")
    else:
        second.unlink()
    messages = []
    checkpoint = TraceWriter(two, shape, INFO_DTYPES, 100).resume(messages.append)
    assert checkpoint.step == 9
    assert "continuing from step 9" in messages[0]
    written(two, shape, [20, 37, 54])
    assert np.array_equal(open_trace(one)["posterior"]["theta"], open_trace(two)["posterior"]["theta"])
    assert done(one)["totals"] == done(two)["totals"]


def test_totals_do_not_depend_on_how_steps_are_cut_into_blocks(tmp_path):
    """Sums of float32, and of squares beyond 2^53, to the last bit."""
    rng = np.random.default_rng(4)
    chains, steps, warmup = 3, 2000, 40
    record = {name: np.zeros((chains, steps), kind) for name, kind in INFO_DTYPES.items()}
    record["log_ratio_var"] = rng.lognormal(0, 3, (chains, steps)).astype(np.float32)
    record["log_ratio_var"][rng.random((chains, steps)) < 0.1] = np.nan
    record["batch_size"] = rng.integers(1, 2**31 - 1, (chains, steps), dtype=np.int32)
    record["theta"] = np.zeros((chains, steps, 1))
    found = []
    for cuts in ([steps], [3, 700, 701, steps], [*range(37, steps, 37), steps]):
        shape = Shape(chains, ("a",), warmup, steps - warmup, 1)
        writer = TraceWriter(tmp_path / str(len(cuts)), shape, INFO_DTYPES, 100)
        for start, stop in itertools.pairwise([0, *cuts]):
            writer.append(start + 1, {name: value[:, start:stop] for name, value in record.items()})
        found.append({name: value.tolist() for name, value in writer.totals.items()})
    assert found[0] == found[1] == found[2]
    var = record["log_ratio_var"][:, warmup:].astype(float)
    assert found[0]["sum_log_ratio_var"] == pytest.approx(np.nansum(var, 1), rel=1e-12)


def test_a_large_state_is_kept_in_the_last_two_blocks_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("mhrun.store.blocks._LARGE_STATE", 8)
    shape = Shape(2, ("a", "b"), 4, 50, 1)
    one, two = tmp_path / "whole", tmp_path / "damaged"
    written(one, shape, [9, 20, 37, 54])
    written(two, shape, [9, 20, 37, 54], stop_at=37)
    blocks = sorted((two / "blocks").glob("*.npz"))
    assert ["evaluation/theta" in np.load(path).files for path in blocks] == [False, True, True]
    blocks[2].write_bytes(b"")
    assert TraceWriter(two, shape, INFO_DTYPES, 100).resume(lambda message: None).step == 20
    written(two, shape, [37, 54])
    assert np.array_equal(open_trace(one)["posterior"]["theta"], open_trace(two)["posterior"]["theta"])
    assert done(one)["totals"] == done(two)["totals"]


def test_with_no_state_left_a_run_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("mhrun.store.blocks._LARGE_STATE", 8)
    shape, messages = Shape(2, ("a", "b"), 4, 50, 1), []
    written(tmp_path, shape, [9, 20, 37, 54], stop_at=37)
    sorted((tmp_path / "blocks").glob("*.npz"))[1].write_bytes(b"")
    assert TraceWriter(tmp_path, shape, INFO_DTYPES, 100).resume(messages.append) is None
    assert "starting again" in messages[-1]
    assert list((tmp_path / "blocks").glob("*.npz")) == []


def test_pickles_are_never_read(tmp_path):
    path = tmp_path / "000000000001-000000000002.npz"
    with open(path, "wb") as file:
        np.savez(file, evil=np.array([{"a": 1}], dtype=object))
    assert load_block(path) is None


def test_a_file_is_whole_or_not_there(tmp_path):
    target = tmp_path / "file"
    write_json(target, {"a": 1})

    def fails(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="full; free some space"):
        write_whole(target, fails)
    assert read_json(target) == {"a": 1}
    assert os.listdir(tmp_path) == ["file"]
    assert "cannot be written" in str(explain(PermissionError(13, "no"), target))


def test_a_file_that_failed_is_removed_before_another_may_write_it(tmp_path, monkeypatch):
    """The other process waits for the lock of this file, and has its own in the same place once it is released."""
    unlink, seen = Path.unlink, []

    def watched(path, missing_ok=False):
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen.append("open to others")
            except BlockingIOError:
                seen.append("locked")
        unlink(path, missing_ok)

    def fails(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "unlink", watched)
    with pytest.raises(UserError, match="full; free some space"):
        write_whole(tmp_path / "file", fails)
    assert seen == ["locked"]
    assert os.listdir(tmp_path) == []


def test_two_that_write_a_file_at_once_both_do(tmp_path):
    """Two processes with the same settings write the same config.yaml."""
    target, failed = tmp_path / "file", []

    def second():
        try:
            write_json(target, {"by": 2})
        except UserError as error:
            failed.append(error)

    other = threading.Thread(target=second)

    def first(file):
        other.start()
        other.join(0.2)  # it waits for us
        file.write(b'{"by": 1}')

    (tmp_path / "file.partial").write_text("of one that was killed, and longer")
    write_whole(target, first)
    other.join()
    assert not failed
    assert read_json(target) == {"by": 2}
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied"), "cannot be written; choose another folder"),
        (
            OSError(errno.ENOLCK, "No locks available"),
            r"cannot be locked \(No locks available\); choose a folder on",
        ),
        (OSError(errno.ENOTSUP, "Operation not supported"), "cannot be locked"),
        (NotImplementedError("no flock"), "cannot be locked"),
    ],
)
@pytest.mark.parametrize("when", ["at once", "after waiting", "in a worker"])
def test_a_folder_that_cannot_be_locked_is_reported(tmp_path, monkeypatch, error, message, when):
    notes: list[str] = []

    def acquire(lock, timeout=-1):
        if when == "after waiting" and timeout == 0:
            raise filelock.Timeout(lock.lock_file)
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    folder = RunFolder(tmp_path)
    with (
        pytest.raises(UserError, match=message),
        folder.worker_lock(0) if when == "in a worker" else folder.held(notes.append),
    ):
        pass
    assert len(notes) == (when == "after waiting")


def test_json_has_no_numbers_that_json_has_not(tmp_path):
    write_json(tmp_path / "a", {"nan": float("nan"), "array": np.arange(2), "number": np.float32(0.5)})
    assert read_json(tmp_path / "a") == {"nan": None, "array": [0, 1], "number": 0.5}
    (tmp_path / "b").write_text("{half")
    assert read_json(tmp_path / "b") is None
    assert read_json(tmp_path / "c") is None


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("gradient_noise", (None, 0, 4.0)),
        ("energy_noise", (None, 0, 4.0)),
        ("common_batch", (None, False, True)),
        ("replacement", (None, False, True)),
        ("temper", (None, "posterior", "likelihood")),
        ("surrogate", (None, "none", "taylor1")),
    ],
)
def test_runs_of_other_settings_of_a_target_have_other_digests(key, values):
    """A method's own setting that is the default may override one of the experiment that is not."""

    def configured(shared, own):
        parts = [{key: value} if value is not None else {} for value in (shared, own)]
        return {"target": parts[0], "methods": {"sgld": {"target": {"precision": "fp32"} | parts[1]}}}

    default = values[1]
    configs = {pair: configured(*pair) for pair in itertools.product(values, values)}
    for (one, first), (other, second) in itertools.combinations(configs.items(), 2):
        effective = [parts_of(c, "sgld")["target"].get(key, default) for c in (first, second)]
        if effective[0] != effective[1]:
            assert method_digest(first, "sgld") != method_digest(second, "sgld"), (one, other)
            assert digest(first) != digest(second), (one, other)
            assert departures(first, second), (one, other)


def test_the_digest_is_of_what_decides_numbers(tmp_path):
    base = config(tmp_path)
    assert digest(base) == digest(config(tmp_path / "elsewhere", "runtime.block_seconds=3", "title=other"))
    assert digest(base) == digest(config(tmp_path, "methods.mint.label=other"))
    for word in (
        "seed=1",
        "lam=0.2",
        "chains=5",
        "data.seed=1",
        "methods.mint.schedules.step_size.start=2.0",
    ):
        assert digest(base) != digest(config(tmp_path, word))


@pytest.mark.slow
@pytest.mark.long
def test_a_run_is_found_again_and_not_done_twice(outputs):
    folder = compute(outputs, *FEW)
    stamp = (folder.method("mint") / TRACE).stat().st_mtime_ns
    again = compute(outputs, *FEW)
    assert again.path == folder.path
    assert (folder.method("mint") / TRACE).stat().st_mtime_ns == stamp
    before = contents(folder, "mint")
    forced = compute(outputs, *FEW, "runtime.force=true")
    assert (forced.method("mint") / TRACE).stat().st_mtime_ns != stamp
    assert_same_bits(before, contents(forced, "mint"))
    assert (outputs / "gmm_tied_means" / "latest").resolve() == folder.path.resolve()
    assert [r.path for r in runs(outputs)] == [folder.path]


def test_a_run_that_is_deleted_while_runs_are_listed_is_left_out(tmp_path, monkeypatch):
    for name in ("one/aaaa", "two/bbbb"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")

    # It is called of a folder that was found, before its files are looked at.
    def is_symlink(path: Path) -> bool:
        shutil.rmtree(tmp_path / "one", ignore_errors=True)
        return False

    monkeypatch.setattr(Path, "is_symlink", is_symlink)
    assert [r.digest for r in runs(tmp_path)] == ["bbbb"]


@pytest.mark.slow
def test_what_changes_no_number_is_brought_up_to_date(outputs):
    folder = compute(outputs)
    again = compute(outputs, "title=Another", "~report.figures.density")
    assert again.path == folder.path
    assert folder.config()["title"] == "Another"
    assert "density" not in folder.config()["report"]["figures"]


@pytest.mark.slow
@pytest.mark.long
def test_the_summary_has_the_documented_fields(outputs):
    summary = compute(outputs, *FEW).summary()
    for key in (
        "experiment",
        "scale",
        "seed",
        "digest",
        "status",
        "versions",
        "methods",
        "metrics",
        "claims",
    ):
        assert key in summary
    mint = summary["methods"]["mint"]
    assert mint["steps"] == 400
    assert mint["chains"] == 4
    assert mint["minibatch_size_mean"] == 100
    assert mint["minibatch_size_sd"] == 0
    assert mint["likelihood_evals"] == 600 * 4 * 200
    assert 0.05 < mint["accept_rate"] < 0.7
    assert mint["wall_s"] > 0
    with open_trace(RunFolder(outputs / "gmm_tied_means" / summary["digest"]).method("mint")) as trace:
        assert float(trace["sample_stats"]["accepted"].mean()) == pytest.approx(mint["accept_rate"])
        assert int(trace["sample_stats"]["n_lik"][0, -1]) == 600 * 200


@pytest.mark.slow
def test_seeds_differ(outputs):
    one = contents(compute(outputs, *FEW), "mint")
    two = contents(compute(outputs, *FEW, "seed=1"), "mint")
    assert not np.array_equal(one["/posterior/theta"], two["/posterior/theta"])


@pytest.mark.slow
@pytest.mark.long
def test_one_chain_more_changes_no_other(outputs):
    four = contents(compute(outputs, *FEW), "mint")
    five = contents(compute(outputs, *FEW, "chains=5"), "mint")
    assert np.allclose(four["/posterior/theta"], five["/posterior/theta"][:4], rtol=1e-12)


@pytest.mark.parametrize("warmup", [0, 10, 45])
@pytest.mark.parametrize("thin", [(3, 11, 12, 30, 50), (10,), (1, 2, 3), (50,), None])
@pytest.mark.parametrize("often", [None, 4])
def test_a_trace_holds_the_steps_that_are_named(tmp_path, thin, often, warmup):
    """A list of steps counted from the first of burn-in, or none at all; statistics are apart from them."""
    shape = Shape(2, () if thin is None else ("a", "b"), warmup, 50 - warmup, thin, often)
    whole = written(tmp_path, shape, [2, 7, 12, 31, 50])
    named = np.array(thin or [], dtype=int)
    with open_trace(tmp_path) as trace:
        for prefix, steps in (("warmup_", named[named <= warmup]), ("", named[named > warmup])):
            assert (f"{prefix}posterior" in trace.children) == bool(len(steps))
            if len(steps):
                theta = trace[f"{prefix}posterior"]["theta"]
                assert np.array_equal(theta, whole["theta"][:, steps - 1])
        every = np.arange(often or 1, 51, often or 1)
        for prefix, steps in (("warmup_", every[every <= warmup]), ("", every[every > warmup])):
            if len(steps):
                found = trace[f"{prefix}sample_stats"]["log_ratio"]
                assert np.array_equal(found, whole["log_ratio"][:, steps - 1])


def test_what_is_reported_is_kept_in_order_through_blocks_and_damage(tmp_path):
    """Observations at a block's end, in its middle, and none in another; those of a lost block are made again."""
    shape, rng = Shape(2, ("a",), 0, 40, None), np.random.default_rng(5)
    whole = record(rng, 2, 40)
    errors = rng.normal(size=(41, 2))
    runs = {10: 10, 15: 20, 20: 20, 40: 40}  # step: the block's last step

    def write(folder, stop_at=None):
        writer, rows = TraceWriter(folder, shape, INFO_DTYPES, 100), []
        checkpoint = writer.resume(rows.append)
        begun = 0 if checkpoint is None else checkpoint.step
        assert checkpoint is None or set(checkpoint.arrays) == {"look/since"}
        for stop in (5, 10, 15, 20, 25, 30, 40):
            if stop <= begun:
                continue
            piece = {name: values[:, begun:stop] for name, values in whole.items()}
            writer.append(begun + 1, piece | {"theta": piece["theta"][:, :0]})
            begun = stop
            if stop in runs:
                writer.note(stop, {"error": errors[stop], "step_size": np.full(2, 0.5)})
            if stop in (10, 20, 30, 40):
                writer.commit(Checkpoint(stop, {"look/since": np.asarray(stop)}))
            if stop == stop_at:
                return
        writer.finish({}, {})

    write(tmp_path / "one")
    write(tmp_path / "two", stop_at=30)
    second = sorted((tmp_path / "two" / "blocks").glob("*.npz"))[1]
    second.write_bytes(second.read_bytes()[:100])
    write(tmp_path / "two")
    for folder in ("one", "two"):
        with open_trace(tmp_path / folder) as trace:
            found = trace["monitor"]
            assert found["step"].to_numpy().tolist() == [10, 15, 20, 40]
            assert found["error"].dims == ("chain", "monitor_run")
            assert np.array_equal(found["error"], errors[[10, 15, 20, 40]].T)
            counts = np.cumsum(whole["n_grad"], 1)[:, [9, 14, 19, 39]]
            assert np.array_equal(found["n_grad"], counts)
            assert found["wall_s"].dims == ("monitor_run",)


def test_settings_that_decide_a_number_make_another_run(tmp_path):
    now = config(tmp_path)
    assert digest(now | {"monitor": {"every": 5}}) != digest(now)
    assert digest(config(tmp_path, "target.common_batch=true")) != digest(now)
    assert digest(config(tmp_path, "thin=null")) != digest(now) != digest(config(tmp_path, "thin=[3,5]"))


def test_a_method_whose_target_is_that_of_the_experiment_is_the_same_run(tmp_path):
    shared, named, other = (
        config(tmp_path, *words)
        for words in (
            [],
            ["+methods.mint.target.replacement=false"],
            ["+methods.mint.target.replacement=true"],
        )
    )
    assert digest(shared) == digest(named) != digest(other)
    assert method_digest(shared, "mint") == method_digest(named, "mint") != method_digest(other, "mint")
    # What the experiment sets is part of it, too.
    wide = config(tmp_path, "target.replacement=true")
    assert digest(wide) != digest(other)
    assert method_digest(wide, "mint") == method_digest(other, "mint")


@pytest.mark.slow
def test_a_report_finds_the_draws_that_are_there(outputs):
    """Steps are counted from the first after a burn-in of 200; a method may name draws of its own."""
    every = contents(compute(outputs / "every", *FEW), "mint")["/posterior/theta"]
    run = Run(compute(outputs, *FEW, "thin=[200,201,205,600]", "+methods.sghmc.thin=150"))
    assert run.draw_steps("mint").tolist() == [1, 5, 400]
    assert np.array_equal(run.draws("mint"), every[:, [0, 4, 399]])
    assert run.draw_steps("sghmc").tolist() == [100, 250, 400]
    assert run.draws("sghmc").shape[1] == 3
    assert run.stat("mint", "accepted").shape == (4, 400)
    assert np.array_equal(run.at_draws("mint", "n_lik"), run.stat("mint", "n_lik")[:, [0, 4, 399]])
    assert run.methods["mint"]["thin"] == [200, 201, 205, 600]
    assert list(run.monitor("mint").data_vars) == []
    none = Run(compute(outputs, *FEW, "thin=null"))
    assert none.draw_steps("mint").tolist() == []
    with pytest.raises(UserError, match="mint: this report needs draws, and thin=null keeps none"):
        none.draws("mint")
    assert none.stat("mint", "accepted").shape == (4, 400)


@pytest.mark.parametrize(("thin", "executor"), [(1, "torch"), (None, "compiled"), (None, "torch")])
def test_steps_at_once_fit_in_memory(thin, executor):
    """A compiled loop returns theta after each step, also where no draw is kept."""
    shape, width = Shape(4, ("a",), 0, 10**9, thin), 2_000
    method = SimpleNamespace(shape=shape, target=SimpleNamespace(width=width))
    count = steps_at_once(method, executor, 10**9, 1e-6)
    bytes_of_step = 4 * (40 + 8 * width * (thin is not None or executor == "compiled"))
    assert 0.5 * (64 << 20) < count * bytes_of_step <= 64 << 20
    assert steps_at_once(method, executor, 10, 1e9) == 1  # slow steps are done one by one


def test_a_name_that_is_too_long_is_not_a_matter_of_permissions(tmp_path):
    folder = tmp_path / ("a" * 300)
    with pytest.raises(
        UserError, match=r"has a name that is too long; choose a shorter one with runtime.outputs"
    ):
        read_json(folder / "summary.json")


def test_an_interruption_from_python_says_that_its_folder_goes_on(tmp_path, capsys, monkeypatch):
    def stopped(*args, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr("mhrun.engine.call.sample.run_method", stopped)
    settings = {"start": [0.0], "step_size": 0.1, "steps": 20, "warmup": 5}
    with pytest.raises(KeyboardInterrupt):
        mhrun.sample(lambda theta: -0.5 * theta.square().sum(), None, folder=tmp_path / "kept", **settings)
    assert f"interrupted: what {tmp_path / 'kept'} has of the run is kept" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        mhrun.sample(lambda theta: -0.5 * theta.square().sum(), None, **settings)
    assert "interrupted" not in capsys.readouterr().err
