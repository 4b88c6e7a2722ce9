"""Results that changed since they were written, by accident or on purpose: one line, no traceback, no wrong number.

The fast tests have fixed cases; the slow test draws hundreds.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

import h5py
import pytest
from kit import FEW, assert_same_bits, config, contents, one_line, unrendered

import mhrun
from mhrun.cli.comparing import compare_runs
from mhrun.cli.listing.experiments import show_list
from mhrun.cli.main import run
from mhrun.cli.reporting import make_reports
from mhrun.cli.running import compute
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.report.build import Built, build_report
from mhrun.report.run import Run
from mhrun.store.blocks import TraceWriter, done
from mhrun.store.checksums import file_digest, sealed
from mhrun.store.folder import RunFolder

pytestmark = pytest.mark.usefixtures("unrendered")  # files and their digests, whatever is in them

# --- Results that are no longer what was written ---------------------------------------------------------------

SMALL = (*FEW, "~methods.sghmc", "warmup=50", "steps=60", "data.n=500", "m=20", "temperature=5", "report={}")


def settings_of(outputs):
    return config(outputs, *SMALL, "runtime.block_seconds=0")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A complete run with its report, and one that was stopped before its trace was put together."""
    place = tmp_path_factory.mktemp("kept")
    whole = run_experiment(settings_of(place / "whole"), Silent())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mhrun.report.on_page.draw", unrendered)
        build_report(whole)
    stopped = settings_of(place / "stopped")
    with pytest.MonkeyPatch.context() as patch:

        def finish(*_):
            raise Interrupted

        patch.setattr(TraceWriter, "finish", finish)
        with pytest.raises(Interrupted):
            run_experiment(stopped, Silent())
    return whole, RunFolder.of(stopped)


def copied(kept: RunFolder, outputs: Path) -> RunFolder:
    """Return a copy of a run folder in other outputs."""
    place = outputs / kept.experiment / kept.digest
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(kept.path, place)
    return RunFolder(place)


def flip(path, at):
    raw = bytearray(path.read_bytes())
    raw[int(at * (len(raw) - 1))] ^= 0x10
    path.write_bytes(raw)


def gone(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def a_folder(path):
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("trace.nc", gone),
        ("trace.nc", cut),
        ("trace.nc", a_folder),
        ("trace.nc", lambda path: flip(path, 0.7)),
        ("done.json", a_folder),
        ("done.json", lambda path: path.write_text(path.read_text().replace("1", "2", 1))),
    ],
)
def test_results_that_changed_are_computed_again_and_never_reported(finished, outputs, file, damage, capsys):
    folder = copied(finished[0], outputs)
    before = contents(folder, "mint")
    damage(folder.method("mint") / file)
    arguments = [f"runtime.outputs={outputs}"]
    for make in (lambda: build_report(folder), lambda: compare_runs([str(folder.path), *arguments])):
        assert one_line(make) is not None
    assert make_reports(arguments) == 1
    capsys.readouterr()
    message = []
    watcher = Silent()
    watcher.note = message.append
    if (
        folder.method("mint") / file
    ).is_dir() and file == "done.json":  # what is not a file is left for its owner
        assert "done.json" in one_line(run_experiment, settings_of(outputs), watcher)
        return
    again = run_experiment(settings_of(outputs), watcher)
    assert any("it is computed again" in line for line in message)
    assert again.path == folder.path
    assert_same_bits(before, contents(folder, "mint"))


def test_a_run_that_is_whole_is_not_computed_again(finished, outputs, capsys):
    folder = copied(finished[0], outputs)
    state = (folder.method("mint") / "trace.nc").stat().st_mtime_ns
    compute(settings_of(outputs))
    assert "This run exists already" in capsys.readouterr().err
    assert (folder.method("mint") / "trace.nc").stat().st_mtime_ns == state
    note = done(folder.method("mint"))
    assert note["files"] == {"trace.nc": file_digest(folder.method("mint") / "trace.nc")}


@pytest.mark.parametrize(
    ("key", "value"), [("threads", 0), ("block_seconds", float("nan")), ("block_seconds", [1])]
)
def test_settings_are_checked_where_the_run_is_there_too(finished, outputs, key, value):
    copied(finished[0], outputs)
    settings = settings_of(outputs)
    message = one_line(run_experiment, settings | {"runtime": settings["runtime"] | {key: value}}, Silent())
    assert f"runtime.{key} = " in message


def test_a_digest_is_that_of_the_file_as_it_is_now(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    first = file_digest(path)
    path.write_bytes(b"two!")
    assert file_digest(path) != first


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_place_that_cannot_be_written(finished, outputs, monkeypatch, number, capsys):
    """A complete run is left as it is; everything else is refused in one line."""
    folder = copied(finished[0], outputs)
    settings = settings_of(outputs)
    run_experiment(settings, Silent())  # config.yaml says these outputs

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    make = Path.mkdir

    def mkdir(place, *args, **how):
        make(place, *args, **how) if place.exists() else refuse()

    for place, name in (
        (Path, "unlink"),
        (Path, "symlink_to"),
        (shutil, "rmtree"),
        (os, "replace"),
    ):
        monkeypatch.setattr(place, name, refuse)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr("mhrun.store.files._alone", refuse)
    assert one_line(run_experiment, settings, Silent()) is None
    forced = settings | {"runtime": settings["runtime"] | {"force": True}}
    for change in (forced, settings | {"seed": 5}, settings | {"title": "another"}):
        assert "cannot be written; choose another folder" in one_line(run_experiment, change, Silent())
    assert "cannot be written" in one_line(build_report, folder)
    arguments = ["-m", "experiment=gmm_tied_means", "scale=smoke", "seed=1,2", f"runtime.outputs={outputs}"]
    capsys.readouterr()
    assert run(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- Damaged folders -------------------------------------------------------------------------------------------

NOTES = [
    "[]", "{}", "null", "[" * 100_000, "9" * 5000, '{"a": NaN}', '{"methods": 3}', '{"claims": 3}',
    '{"status": "complete", "format": 3}', '{"status": "complete", "format": 3, "methods": {"mint": 5}}',
    '{"status": "complete", "format": 3, "methods": {"mint": {}}}', '{"totals": {}}', '{"totals": {"n_lik": "a"}}',
    '{"executor": 5}', '{"executor": "compiled"}', '{"claims": [{"verdict": 3}]}',
    "a: [", "- 1\n- 2\n", "x: 1\n", "methods: {}\n", "!!python/object:os.system x\n", "{" * 3000, "a: &a [*a]\n",
    "\t\n", "methods: 3\nruntime: {}\n",
]  # fmt: skip


def remove(path):
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def harm(path: Path, how: str, rng: random.Random) -> None:
    """Damage a file or folder of a run."""
    if how in ("cut", "flip"):
        if path.is_file() and (raw := bytearray(path.read_bytes())):
            at = rng.randrange(len(raw))
            raw[at] ^= 1 << rng.randrange(8)
            path.write_bytes(raw[:at] if how == "cut" else raw)
        return
    remove(path)
    if how in ("folder", "full"):
        path.mkdir()
        if how == "full":
            (path / "inside").write_text("x")
    elif how == "link":
        path.symlink_to("/nonexistent/place")
    elif how == "loop":
        path.symlink_to(path)
    elif how != "gone":
        text = {"empty": b"", "bytes": rng.randbytes(200), "note": rng.choice(NOTES).encode()}[how]
        path.write_bytes(text)


def all_reports(outputs):
    """Make all reports; a bug in one is not a mistake of the user's."""
    assert make_reports([f"runtime.outputs={outputs}"]) in (0, 1)


HARMS = ("cut", "flip", "folder", "full", "link", "loop", "gone", "empty", "bytes", "note")
ACTS = {
    "again": lambda folder, outputs: compute(settings_of(outputs) | {"experiment": folder.experiment}),
    "report": lambda folder, outputs: all_reports(outputs),
    "list": lambda folder, outputs: show_list([f"runtime.outputs={outputs}"], []),
    "compare": lambda folder, outputs: compare_runs([str(folder.path), f"runtime.outputs={outputs}"]),
}


def damaged(finished, outputs, rng: random.Random, kept: int, name: str, how: str, act: str) -> str | None:
    """Damage one thing in a copy of a run folder, do something with it, and return its output."""
    folder = copied(finished[kept], outputs)
    if not os.path.lexists((folder.path / name).parent):
        return None
    harm(folder.path / name, how, rng)
    return one_line(ACTS[act], folder, outputs)


def everything(folder: RunFolder) -> list[str]:
    there = [str(path.relative_to(folder.path)) for path in folder.path.rglob("*")]
    return sorted({*there, "report", "log.txt", ".owner", ".report.partial", "methods/mint/blocks/x.npz"})


@pytest.mark.parametrize(
    ("kept", "name", "how", "act"),
    [
        (1, "BLOCK", "folder", "again"),
        (1, "BLOCK", "full", "again"),
        (1, "methods/mint/blocks/x.npz", "bytes", "again"),
        (1, "methods/mint/blocks", "bytes", "again"),
        (0, "config.yaml", "folder", "again"),
        (0, "config.yaml", "folder", "report"),
        (1, "config.yaml", "bytes", "again"),
        (0, "config.yaml", "note", "compare"),
        (1, "log.txt", "folder", "again"),
        (1, "methods/mint/executor.json", "folder", "again"),
        (0, "summary.json", "folder", "list"),
        (0, "summary.json", "note", "list"),
        (0, "report", "bytes", "again"),
        (0, ".report.partial", "bytes", "again"),
        (0, "methods/mint", "bytes", "again"),
        (0, "methods/mint/done.json", "full", "again"),
    ],
)
def test_damaged_folders(finished, outputs, kept, name, how, act):
    block = next((finished[1].method("mint") / "blocks").iterdir())
    name = name if name != "BLOCK" else str(block.relative_to(finished[1].path))
    for seed in range(3 if how in ("note", "bytes") else 1):
        damaged(finished, outputs, random.Random(seed), kept, name, how, act)


@pytest.mark.slow
def test_no_damage_to_a_folder_brings_a_traceback(finished, tmp_path):
    rng = random.Random(7)
    cases = [
        (kept, name, how, act)
        for kept, folder in enumerate(finished)
        for name in everything(folder)
        for how in HARMS
        for act in ACTS
    ]
    for at, case in enumerate(rng.sample(cases, min(len(cases), 600))):
        damaged(finished, tmp_path / str(at), rng, *case)
        shutil.rmtree(tmp_path / str(at))


def test_bytes_are_reported_in_readable_units(outputs, monkeypatch):
    """0.0 GB is not less than 0.0 GB."""
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    with pytest.raises(UserError, match=r"The traces may need [\d.]+ kB and .* has 1 kB free"):
        run_experiment(settings_of(outputs), Silent())


def of_note(folder: RunFolder, change) -> Path:
    """Change the note of a method."""
    path = folder.method("mint") / "done.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return path


def less(note, *names):
    return {key: value for key, value in note.items() if key not in names}


@pytest.mark.parametrize("lacking", [("checksum",), ("files", "checksum"), ("files",)])
def test_a_note_without_checksums_is_none(finished, outputs, lacking):
    folder = copied(finished[0], outputs)
    of_note(folder, lambda note: less(note, *lacking))
    assert "done.json is missing or damaged" in folder.damage()["mint"]
    with pytest.raises(UserError, match="to recompute it"):
        Run(folder).draws("mint")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/hostname", "..", ".", "a/b", "a\\b", "", "a\0b", "x" * 5000, ".hidden"]
)
def test_a_record_names_only_files_in_its_folder(finished, outputs, name):
    folder = copied(finished[0], outputs)
    of_note(folder, lambda note: sealed(less(note, "files", "checksum"), {name: "0" * 64}))
    assert "names a file in another folder" in folder.damage()["mint"]


@pytest.mark.parametrize("files", [{}, [], None, 3])
def test_a_note_names_a_file(finished, outputs, files):
    folder = copied(finished[0], outputs)
    of_note(folder, lambda note: sealed({**less(note, "checksum"), "files": files}))
    assert folder.damage() == {"mint": "its record names no file"}


def test_a_summary_that_changed_is_no_result(finished, outputs, capsys):
    """Any flipped bit and any cut: the summary is as it was written, or there is none."""
    folder = copied(finished[0], outputs)
    path, before = folder.path / "summary.json", folder.summary()
    raw, rng = path.read_bytes(), random.Random(3)
    for _ in range(400):
        harmed, at = bytearray(raw), rng.randrange(len(raw) - 2)
        harmed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(harmed if rng.random() < 0.8 else raw[:at])
        found = folder.summary()
        assert found is None or less(found, *(set(found) - set(before))) == before
    path.write_bytes(raw.replace(b'"accept_rate": 0', b'"accept_rate": 1', 1))
    assert not folder.is_complete()
    arguments = [f"runtime.outputs={outputs}"]
    assert make_reports(arguments) == 1
    assert "summary.json is damaged" in capsys.readouterr().err
    assert show_list(arguments, []) == 0
    assert "damaged" in capsys.readouterr().out
    state = (folder.method("mint") / "trace.nc").stat().st_mtime_ns
    run_experiment(settings_of(outputs), Silent())
    assert (folder.method("mint") / "trace.nc").stat().st_mtime_ns == state  # no draw is computed again
    assert folder.summary()["methods"] == before["methods"]


def test_a_summary_without_its_checksum_counts_as_changed(finished, outputs):
    folder = copied(finished[0], outputs)
    before = folder.summary()
    (folder.path / "summary.json").write_text(json.dumps(before))
    assert folder.summary() is None
    assert folder.has_damaged_summary()
    assert not folder.is_complete()


def test_a_summary_of_another_layout_needs_no_checksum_to_be_recognised(finished, outputs):
    folder = copied(finished[0], outputs)
    note = folder.summary() | {"format": 1, "versions": {"mhrun": "0.1.0"}}
    (folder.path / "summary.json").write_text(json.dumps(note))
    assert folder.other_layout() == "was written by mhrun 0.1.0 (layout 1, now 3)"


def test_one_report_that_fails_stops_no_other(finished, outputs, monkeypatch, capsys):
    """A bug, a user's mistake and user code that exits are one line each, and the report after them is made."""
    errors = {"a": KeyError, "b": UserError("no such thing"), "c": SystemExit(0), "d": None}
    for name in errors:
        shutil.copytree(finished[0].path, outputs / name / finished[0].digest)

    def build(folder, *_, **__):
        error = errors[folder.experiment]
        if error is KeyError:
            RunFolder.of({})  # a KeyError in mhrun's own code
        elif error is not None:
            raise error
        return Built(folder.report / "index.html", [])

    monkeypatch.setattr("mhrun.report.build.build_report", build)
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(outputs / "cache"))
    assert run(["report", f"runtime.outputs={outputs}"]) == 70
    captured = capsys.readouterr()
    assert [line[:7] for line in captured.err.splitlines()] == 3 * ["mhrun: "]
    assert "Traceback" not in captured.err
    assert "this is a bug in mhrun: KeyError: 'experiment'" in captured.err
    assert len(list((outputs / "cache" / "mhrun" / "crashes").iterdir())) == 2
    assert captured.out == f"report  {outputs / 'd' / finished[0].digest / 'report' / 'index.html'}\n"
    errors["a"] = None
    errors["c"] = None
    assert run(["report", f"runtime.outputs={outputs}"]) == 1


@pytest.mark.slow
def test_a_link_in_the_place_of_a_file_is_not_written_through(finished, outputs, tmp_path):
    """The stopped run's trace is assembled, its log is continued, and its report is made."""
    folder, mine = copied(finished[1], outputs), tmp_path / "mine"
    mine.write_text("mine")
    for name in ("log.txt", ".lock", "report", "summary.json.partial", "methods/mint/trace.nc.partial"):
        remove(folder.path / name)
        (folder.path / name).symlink_to(mine)
    compute(settings_of(outputs) | {"runtime": settings_of(outputs)["runtime"] | {"report": True}})
    assert folder.is_complete()
    assert mine.read_text() == "mine"
    assert not (folder.path / "log.txt").is_symlink()
    assert "mint: done" in folder.log.read_text()


@pytest.mark.parametrize("force", [False, True])
def test_a_run_folder_that_is_a_link_is_refused(finished, outputs, tmp_path, force):
    folder = copied(finished[0], outputs)
    (folder.path / "summary.json").unlink()
    folder.path.rename(tmp_path / "elsewhere")
    folder.path.symlink_to(tmp_path / "elsewhere")
    settings = settings_of(outputs)
    runtime = settings["runtime"] | {"force": force}
    assert "leads elsewhere" in one_line(run_experiment, settings | {"runtime": runtime}, Silent())
    assert (tmp_path / "elsewhere" / "methods" / "mint" / "trace.nc").exists()


def test_links_are_refused_where_the_configuration_is_gone(finished, outputs, tmp_path):
    folder, own = copied(finished[1], outputs), tmp_path / "own"
    blocks = folder.method("mint") / "blocks"
    blocks.rename(own)
    blocks.symlink_to(own)
    (folder.path / "config.yaml").unlink()
    kept = sorted(own.iterdir())
    assert "leads elsewhere" in one_line(run_experiment, settings_of(outputs), Silent())
    assert sorted(own.iterdir()) == kept


def test_a_configuration_that_is_gone_is_written_again(finished, outputs):
    folder = copied(finished[0], outputs)
    before = file_digest(folder.method("mint") / "trace.nc")
    (folder.path / "config.yaml").unlink()
    assert not folder.is_complete()
    compute(settings_of(outputs))
    assert folder.is_complete()
    assert folder.config()["experiment"] == folder.experiment
    assert file_digest(folder.method("mint") / "trace.nc") == before


def test_a_run_that_is_named_and_not_complete_has_no_report(finished, outputs, capsys):
    folder = copied(finished[1], outputs)
    assert make_reports([f"runtime.outputs={outputs}"]) == 0  # one of all runs, which may be at work
    assert make_reports([str(folder.path)]) == 1
    assert capsys.readouterr().err.count("skipped: ") == 2


def test_a_changed_trace_is_not_loaded(finished, outputs):
    folder = copied(finished[0], outputs)
    trace = folder.method("mint") / "trace.nc"
    with h5py.File(trace, "r+") as file:
        variable = next(iter(file["posterior"].values()))
        variable[0] = variable[0] + 5.0
    loaded = mhrun.load(folder.path)
    assert "its SHA-256 is not the recorded one" in one_line(loaded.trace, "mint")


def test_a_file_named_latest_is_kept(finished, outputs):
    copied(finished[0], outputs)
    latest = outputs / finished[0].experiment / "latest"
    latest.write_text("of the user")
    run_experiment(settings_of(outputs), Silent())
    assert latest.read_text() == "of the user"


def test_files_of_a_run_have_a_largest_size(finished, outputs, monkeypatch):
    folder = copied(finished[0], outputs)
    monkeypatch.setattr("mhrun.store.folder._MOST_BYTES", 100)
    assert "too much" in one_line(folder.config)
    monkeypatch.setattr("mhrun.store.files._MOST_JSON", 100)
    assert "more than a run writes" in one_line(folder.summary)


@pytest.mark.parametrize(
    ("name", "act"),
    [("config.yaml", "again"), ("summary.json", "list"), ("methods/mint/done.json", "report")],
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(finished, outputs, name, act):
    folder = copied(finished[0], outputs)
    (folder.path / name).unlink()
    os.mkfifo(folder.path / name)
    one_line(ACTS[act], folder, outputs)


def test_a_folder_is_checked_when_it_is_held(finished, outputs, monkeypatch):
    """What another process does while this one waits is seen."""
    folder = copied(finished[1], outputs)
    held = RunFolder.held

    def late(self, waiting):
        (self.path / "config.yaml").write_text("seed: 3\n")
        return held(self, waiting)

    monkeypatch.setattr(RunFolder, "held", late)
    assert "holds a run of other settings" in one_line(run_experiment, settings_of(outputs), Silent())
    assert (folder.path / "config.yaml").read_text() == "seed: 3\n"
