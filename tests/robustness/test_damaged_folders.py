"""Nothing wrong is used in silence: folders that are copied, older, hostile or damaged, and memory that runs out."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time

import h5netcdf
import numpy as np
import pytest
import yaml
from kit import FEW, assert_same_bits, compute, config, contents

from mhrun.cli.main import run
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.report.run import Run
from mhrun.store.checksums import file_digest, sealed
from mhrun.store.folder import RunFolder

OVERRIDES = (*FEW, "~methods.sghmc", "executor=torch")
SMOKE = ["experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", "runtime.report=false", *OVERRIDES]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return compute(tmp_path_factory.mktemp("kept") / "outputs", *OVERRIDES)


@pytest.fixture
def folder(kept, tmp_path, monkeypatch):
    """A copy of a complete run, where the command line finds it."""
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "outputs" / "gmm_tied_means" / kept.digest
    shutil.copytree(kept.path, there)
    return RunFolder(there)


def half(outputs, blocks=3):
    """A run that was stopped after some blocks."""

    class Stop(Silent):
        left = blocks

        def advance(self, method, step, accept_rate, n_lik, n_grad):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *OVERRIDES, "runtime.block_seconds=0"), Stop())
    return next(outputs.glob("*/*/config.yaml")).parent


def test_a_run_that_was_begun_elsewhere_goes_on_here(kept, tmp_path):
    """Another place, another machine's lock and owner left behind, files of another time."""
    begun = half(tmp_path / "there")
    (begun / ".owner").write_text(json.dumps({"pid": 1, "host": "another", "since": "2001-01-01 00:00:00"}))
    (begun / ".lock").touch()
    here = tmp_path / "here" / "gmm_tied_means" / begun.name
    shutil.copytree(begun, here)
    for path in here.rglob("*"):
        os.utime(path, (2e9, 4e9))
    folder = compute(tmp_path / "here", *OVERRIDES)
    assert folder.path == here
    assert_same_bits(contents(folder, "mint"), contents(kept, "mint"))


def test_a_folder_of_another_layout_is_not_gone_on_with(folder, capsys):
    folder.write_summary({**folder.summary(), "format": 0})
    before = (folder.method("mint") / "trace.nc").stat().st_mtime_ns
    assert run(SMOKE) == 2
    assert "(layout 0, now 3)" in capsys.readouterr().err
    assert (folder.method("mint") / "trace.nc").stat().st_mtime_ns == before
    assert run([*SMOKE, "runtime.force=true"]) == 0
    assert folder.is_complete()


def test_reports_and_comparisons_refuse_a_folder_of_version_0_1(folder, capsys):
    folder.write_summary({**folder.summary(), "format": 1, "versions": {"mhrun": "0.1.0"}})
    outputs = f"runtime.outputs={folder.path.parent.parent}"
    assert run(["report", outputs]) == 0
    message = "was written by mhrun 0.1.0 (layout 1, now 3); run its experiment again."
    assert message in capsys.readouterr().err
    assert run(["compare", str(folder.path), str(folder.path), outputs]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["seed", "nonsense"])
def test_a_folder_of_other_settings_is_not_gone_on_with(folder, capsys, text):
    """As when a folder is copied onto the name of another run."""
    there = folder.config() | {"seed": 7}
    (folder.path / "config.yaml").write_text(yaml.safe_dump(there) if text == "seed" else "- [a: }")
    (folder.path / "summary.json").unlink()
    assert run(SMOKE) == 2
    err = capsys.readouterr().err
    assert "holds a run of other settings" in err
    assert err.count("\n") == 1


def test_links_out_of_a_folder_are_not_followed(folder, tmp_path, capsys):
    own = tmp_path / "own"
    own.mkdir()
    (own / "000000000001-000000000005.npz").write_bytes(b"somebody's work")
    (folder.path / "summary.json").unlink()
    shutil.rmtree(folder.method("mint"))
    folder.method("mint").mkdir()
    (folder.method("mint") / "blocks").symlink_to(own)
    assert run(SMOKE) == 2
    assert "leads elsewhere" in capsys.readouterr().err
    assert run([*SMOKE, "runtime.force=true"]) == 0
    assert (own / "000000000001-000000000005.npz").read_bytes() == b"somebody's work"


def chunk(path):
    """Where the numbers of theta begin in a trace, and how many bytes their chunk has."""
    import h5py

    with h5py.File(path) as file:
        info = file["posterior/theta"].id.get_chunk_info(0)
        return info.byte_offset, info.size


def seal_again(folder, method):
    """Make a method's note one of the trace that is there now, as somebody might who changed it on purpose."""
    place = folder.method(method)
    known = json.loads((place / "done.json").read_text())
    note = {k: v for k, v in known.items() if k not in ("files", "checksum")}
    digest = file_digest(place / "trace.nc")
    (place / "done.json").write_text(json.dumps(sealed(note, {"trace.nc": digest})))


@pytest.mark.slow
def test_links_in_a_circle_are_an_unfinished_run(folder, capsys):
    """A run beside it is reported as ever."""
    broken = folder.path.parent / "0123456789ab"
    broken.mkdir()
    (broken / "config.yaml").symlink_to("config.yaml")
    outputs = f"runtime.outputs={folder.path.parent.parent}"
    assert run(["list", "gmm_tied_means", outputs]) == 0
    assert run(["report", outputs]) == 0
    captured = capsys.readouterr()
    assert f"{broken} is not complete" in captured.err
    assert (folder.path / "report" / "index.html").is_file()


@pytest.mark.parametrize("place", [0.0, 0.3, 0.99])
def test_a_damaged_chunk_is_an_error_and_no_number(folder, capsys, place):
    """HDF5's own checksums too, where those of mhrun were made after the damage."""
    path = folder.method("mint") / "trace.nc"
    begin, size = chunk(path)
    raw = bytearray(path.read_bytes())
    raw[begin + int(place * (size - 1))] ^= 0x10
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"trace\.nc is damaged"):
        Run(folder).draws("mint")
    assert run(["report", str(folder.path)]) == 1
    assert capsys.readouterr().err.count(str(folder.path)) == 1  # the folder is named once
    seal_again(folder, "mint")
    with pytest.raises(OSError, match=r"checksum|inflate|filter"):
        Run(folder).draws("mint")
    assert run(["compare", folder.digest]) == 2
    assert "its trace is damaged" in capsys.readouterr().err


HOSTILE = {
    "object": lambda: np.array(["__import__('os').system('true')"] * 8, dtype=object).reshape(4, 2),
    "chains": lambda: np.zeros((9, 2)),
    "complex": lambda: np.zeros((4, 2), complex),
}


@pytest.mark.parametrize("kind", [*HOSTILE, "no file", "no HDF5", "empty"])
def test_a_hostile_trace_is_refused(folder, kind, capsys):
    path = folder.method("mint") / "trace.nc"
    path.unlink()
    if kind == "no HDF5":
        path.write_bytes(b"\x80\x04\x95" + b"cos\nsystem\n(S'true'\ntR.")
    elif kind == "empty":
        with h5netcdf.File(path, "w"):
            pass
    elif kind != "no file":
        import h5py

        values = HOSTILE[kind]()
        with h5py.File(path, "w") as file:
            for group, name in (("posterior", "theta"), ("sample_stats", "accepted")):
                made = file.create_group(group)
                made.create_dataset(
                    name, data=values, dtype=h5py.string_dtype() if kind == "object" else None
                )
                for size, axis in zip(values.shape, ("chain", "draw"), strict=True):
                    made.create_dataset(axis, data=np.arange(size)).make_scale(axis)
                for i, axis in enumerate(("chain", "draw")):
                    made[name].dims[i].attach_scale(made[axis])
    for _ in range(2):
        with pytest.raises(UserError, match=r"trace\.nc"):
            Run(folder).draws("mint")
        assert run(["compare", folder.digest]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        if path.is_file():
            seal_again(folder, "mint")


def _starved(outputs, queue):
    """Run where the ninth step of the disk's dealings finds no memory."""
    real, calls = np.savez, []

    def savez(*args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise MemoryError
        return real(*args, **kwargs)

    np.savez = savez
    queue.put(run([*SMOKE, f"runtime.outputs={outputs}", "runtime.block_seconds=0"]))


def test_a_run_without_memory_is_reported_and_goes_on(kept, tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_starved, args=(tmp_path / "outputs", queue))
    child.start()
    assert queue.get(timeout=60) == 1
    child.join()
    assert len(list(tmp_path.rglob("blocks/*.npz"))) == 3
    folder = compute(tmp_path / "outputs", *OVERRIDES)
    assert_same_bits(contents(folder, "mint"), contents(kept, "mint"))


def test_a_clock_that_jumps_while_a_run_goes(kept, tmp_path, monkeypatch):
    """The calendar goes to and fro by years; the steady clock stands still."""
    jumps = iter([1e8 * (-1) ** k for k in range(10**6)])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    folder = compute(tmp_path / "outputs", *OVERRIDES)
    assert_same_bits(contents(folder, "mint"), contents(kept, "mint"))
