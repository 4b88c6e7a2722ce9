"""Run folders: addressed by content, whole or not there, and opened by ArviZ as they are."""

from __future__ import annotations

import os
from pathlib import Path

import arviz_base
import numpy as np
import pytest
import xarray as xr
from runs import FEW, assert_same_bits, compute, config, contents

from mhrun.errors import UserError
from mhrun.store.blocks import Checkpoint, TraceWriter, done, load_block
from mhrun.store.files import explain, read_json, write_json, write_whole
from mhrun.store.folder import RunFolder, runs
from mhrun.store.identity import digest
from mhrun.store.netcdf import TRACE, Shape, open_trace
from mhrun.types import INFO_DTYPES


def record(rng, chains, count):
    draws = {name: rng.integers(0, 5, (chains, count)).astype(dtype) for name, dtype in INFO_DTYPES.items()}
    return draws | {"theta": rng.normal(size=(chains, count, 2))}


def written(folder: Path, shape: Shape, cuts, rng_seed=0, stop_at=None):
    """Write a trace in pieces of given lengths; return all that went in."""
    rng = np.random.default_rng(rng_seed)
    whole = record(rng, shape.chains, shape.total)
    writer = TraceWriter(folder, shape, INFO_DTYPES)
    checkpoint = writer.resume(lambda message: None)
    step = 0 if checkpoint is None else checkpoint.step
    for cut in cuts:
        end = min(cut, shape.total)
        if end <= step:
            continue
        writer.append(step + 1, {name: a[:, step:end] for name, a in whole.items()})
        step = end
        writer.commit(Checkpoint(step, {"evaluation/theta": whole["theta"][:, step - 1]}))
        if stop_at is not None and step >= stop_at:
            return whole
    writer.finish({"method": "test"}, {})
    return whole


@pytest.mark.parametrize(("thin", "often"), [(1, None), (3, None), (3, 1), (1, 4), (5, 2)])
@pytest.mark.parametrize("warmup", [0, 10, 12])
def test_a_trace_holds_what_went_in(tmp_path, thin, often, warmup):
    shape = Shape(2, ("a", "b"), warmup, 50, thin, often)
    whole = written(tmp_path, shape, [7, 8, 31, 33, 62])
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
                    if name in ("n_lik", "n_aside", "n_grad"):
                        expected = np.cumsum(expected, axis=1)
                    assert group[name].dtype == INFO_DTYPES[name]
                    assert np.array_equal(group[name], expected[:, steps - 1])
                assert (np.diff(group["wall_s"]) >= 0).all()
    noted = done(tmp_path)
    assert noted["totals"]["n_lik"] == whole["n_lik"].sum(1).tolist()
    assert noted["totals"]["sum_accepted"] == pytest.approx(whole["accepted"][:, warmup:].sum(1))
    assert not (tmp_path / "blocks").exists()


def test_arviz_opens_it_as_it_is(tmp_path):
    written(tmp_path, Shape(2, ("a", "b"), 5, 50, 1), [55])
    tree = xr.open_datatree(tmp_path / TRACE)
    assert arviz_base.extract(tree).sizes["sample"] == 100
    assert tree.attrs["inference_library"] == "mhrun"
    tree.close()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_damaged_blocks_are_noticed_and_done_again(tmp_path, damage):
    shape = Shape(2, ("a", "b"), 4, 50, 1)
    one, two = tmp_path / "whole", tmp_path / "damaged"
    written(one, shape, [9, 20, 37, 54])
    written(two, shape, [9, 20, 37, 54], stop_at=37)
    second = sorted((two / "blocks").glob("*.npz"))[1]
    raw = bytearray(second.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 0x40
        second.write_bytes(raw)
    elif damage == "cut":
        second.write_bytes(raw[: len(raw) // 2])
    elif damage == "empty":
        second.write_bytes(b"")
    else:
        second.unlink()
    told = []
    checkpoint = TraceWriter(two, shape, INFO_DTYPES).resume(told.append)
    assert checkpoint.step == 9
    assert "going on from step 9" in told[0]
    written(two, shape, [20, 37, 54])
    assert np.array_equal(open_trace(one)["posterior"]["theta"], open_trace(two)["posterior"]["theta"])
    assert done(one)["totals"] == done(two)["totals"]


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


def test_json_has_no_numbers_that_json_has_not(tmp_path):
    write_json(tmp_path / "a", {"nan": float("nan"), "array": np.arange(2), "number": np.float32(0.5)})
    assert read_json(tmp_path / "a") == {"nan": None, "array": [0, 1], "number": 0.5}
    (tmp_path / "b").write_text("{half")
    assert read_json(tmp_path / "b") is None
    assert read_json(tmp_path / "c") is None


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


def test_what_changes_no_number_is_brought_up_to_date(outputs):
    folder = compute(outputs)
    again = compute(outputs, "title=Another", "~report.figures.density")
    assert again.path == folder.path
    assert folder.config()["title"] == "Another"
    assert "density" not in folder.config()["report"]["figures"]


def test_the_summary_says_what_was_promised(outputs):
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


def test_seeds_differ(outputs):
    one = contents(compute(outputs, *FEW), "mint")
    two = contents(compute(outputs, *FEW, "seed=1"), "mint")
    assert not np.array_equal(one["/posterior/theta"], two["/posterior/theta"])


def test_one_chain_more_changes_no_other(outputs):
    four = contents(compute(outputs, *FEW), "mint")
    five = contents(compute(outputs, *FEW, "chains=5"), "mint")
    assert np.allclose(four["/posterior/theta"], five["/posterior/theta"][:4], rtol=1e-12)
