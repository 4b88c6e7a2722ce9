"""Methods whose settings do not change from run to run are computed once, and shared soundly."""

from __future__ import annotations

import os
import shutil
import signal
import threading

import pytest
from kit import assert_same_bits, compute, config, contents

from mhrun.cli.main import run
from mhrun.engine.assemble import methods_of
from mhrun.engine.experiment import run_experiment
from mhrun.engine.run_context import RunContext
from mhrun.engine.settings import Settings
from mhrun.engine.shared_methods import each_claimed
from mhrun.engine.stop import StopSignal
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted
from mhrun.store.blocks import DONE, done
from mhrun.store.checksums import sealed
from mhrun.store.files import write_json
from mhrun.store.identity import method_digest
from mhrun.store.sharing import Finished, claimed, finished, take

FEW = (
    "~methods.tempered_mcmc",
    "~methods.mint_stored",
    "~methods.sghmc",
    "~methods.sgld",
    "steps=60",
    "warmup=50",
)


class Noting(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun: list[str] = []

    def begin(self, method, step, total, executor):
        self.begun.append(method)

    def note(self, message):
        self.notes.append(message)


def trace(folder, method):
    return folder.method(method) / "trace.nc"


# --- The digest ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("lam=0.3", {"mint", "mint_stored", "tempered_mcmc"}),
        ("tau=0.6", {"mint", "mint_stored", "tempered_mcmc", "sgld", "sghmc"}),
        ("methods.mint.label=Another", set()),
        ("title=Another", set()),
        ("runtime.block_seconds=1", set()),
        ("methods.sgld.schedules.step_size.start=2e-6", {"sgld"}),
        ("+methods.sgld.steps=30", {"sgld"}),
        ("methods.mcmc.starts=[[0.0,1.0]]", {"mcmc"}),
        ("+methods.mcmc.target={temper:likelihood,replacement:true}", {"mcmc"}),
        *(
            (override, None)
            for override in ("seed=1", "chains=2", "steps=50", "warmup=60", "thin=2", "thin_stats=2")
        ),
        *((override, None) for override in ("dtype=float32", "executor=torch", "data.n=9000", "data.seed=3")),
        *(
            (override, None)
            for override in ("model.variance=3", "target.temper=likelihood", "target.replacement=true")
        ),
    ],
)
def test_the_digest_of_a_method_changes_with_what_it_depends_on(tmp_path, override, changed):
    """`changed` is None where all methods do."""
    before, after = config(tmp_path), config(tmp_path, override)
    names = set(before["methods"])
    found = {name for name in names if method_digest(before, name) != method_digest(after, name)}
    assert found == (names if changed is None else changed)


def test_a_methods_name_is_part_of_its_digest(tmp_path):
    """Its random numbers depend on it."""
    found = config(tmp_path, "+method@methods.twin=mint")
    found["methods"]["twin"] = found["methods"]["mint"]
    assert method_digest(found, "twin") != method_digest(found, "mint")


def test_a_method_is_assembled_from_what_its_digest_covers(tmp_path):
    """A setting that the digest leaves out would be a missing key here."""
    whole = config(tmp_path, *FEW)
    covered = ("model", "data", "target", "monitor", "chains", "warmup", "steps", "thin", "thin_stats")
    covered += ("seed", "dtype", "device", "executor")
    for name, node in whole["methods"].items():
        part = {key: whole[key] for key in covered} | {"methods": {name: node}}
        assert [method.name for method in methods_of(part)] == [name]


# --- Sharing ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_computes_methods_that_do_not_change_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    overrides = [
        "experiment=gmm_tied_means",
        "scale=smoke",
        "runtime.threads=1",
        "runtime.report=false",
        *FEW,
    ]
    assert run(["-m", *overrides, "lam=0.2,0.3"]) == 0
    err = capsys.readouterr().err
    assert err.count("mcmc: 110 steps") == 1
    assert err.count("mint: 110 steps") == 2
    assert "mcmc: taken from run " in err
    one, two = (compute(tmp_path / "outputs", *FEW, f"lam={lam}") for lam in (0.2, 0.3))  # both are there
    assert trace(one, "mcmc").samefile(trace(two, "mcmc"))
    assert not trace(one, "mint").samefile(trace(two, "mint"))
    assert list(two.summary()["methods"]) == ["mint", "mcmc"]
    assert two.summary()["methods"]["mcmc"] == one.summary()["methods"]["mcmc"]
    alone = compute(tmp_path / "elsewhere", *FEW, "lam=0.3")
    for method in ("mint", "mcmc"):
        assert_same_bits(contents(two, method), contents(alone, method))


def test_a_record_is_read_once_until_it_changes(tmp_path, monkeypatch):
    """Each job of a sweep looks at those of all others."""
    read = []
    monkeypatch.setattr("mhrun.store.sharing.done", lambda folder: read.append(folder) or done(folder))
    assert finished(tmp_path) == Finished()
    (tmp_path / "trace.nc").write_bytes(b"trace")
    for digest, steps in (("0123", 10), ("4567", 2000)):
        record = {"totals": {}, "method_digest": digest, "any_steps_digest": "89ab", "steps": steps}
        write_json(tmp_path / DONE, sealed(record, {}))
        assert [finished(tmp_path) for _ in range(3)] == [Finished(digest, "89ab", steps)] * 3
    assert len(read) == 2
    (tmp_path / DONE).unlink()
    assert finished(tmp_path) == Finished()


@pytest.mark.slow
def test_another_run_is_not_changed_by_what_happens_to_a_shared_method(tmp_path):
    one = compute(tmp_path, *FEW)
    before = trace(one, "mcmc").read_bytes()
    two = compute(tmp_path, *FEW, "lam=0.3")
    assert trace(one, "mcmc").samefile(trace(two, "mcmc"))
    run_experiment(config(tmp_path, *FEW, "lam=0.3", "runtime.force=true"), Silent())  # computed, not taken
    assert not trace(one, "mcmc").samefile(trace(two, "mcmc"))
    assert trace(one, "mcmc").read_bytes() == before
    assert not one.damage()
    shutil.rmtree(one.path)
    assert not two.damage()
    assert_same_bits(contents(two, "mcmc"), contents(compute(tmp_path / "elsewhere", *FEW), "mcmc"))


@pytest.mark.slow
def test_a_damaged_method_is_not_taken_and_is_found_in_all_that_share_it(tmp_path):
    one, two = compute(tmp_path, *FEW), compute(tmp_path, *FEW, "lam=0.3")
    with open(trace(one, "mcmc"), "r+b") as file:  # the disk, not a program: both runs have this file
        file.seek(-100, os.SEEK_END)
        file.write(b"damage")
    assert set(one.damage()) == set(two.damage()) == {"mcmc"}
    three = Noting()
    folder = run_experiment(config(tmp_path, *FEW, "lam=0.35"), three)
    assert "mcmc" in three.begun
    assert not folder.damage()
    for run_of in ((), ("lam=0.3",)):  # the same commands mend them
        assert not run_experiment(config(tmp_path, *FEW, *run_of), Silent()).damage()
    assert_same_bits(contents(one, "mcmc"), contents(folder, "mcmc"))


def test_without_hard_links_files_are_copied(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError(95, "Operation not supported")

    one = compute(tmp_path, *FEW)
    monkeypatch.setattr("mhrun.store.sharing.os.link", refused)
    two = compute(tmp_path, *FEW, "lam=0.3")
    assert not trace(one, "mcmc").samefile(trace(two, "mcmc"))
    assert trace(one, "mcmc").read_bytes() == trace(two, "mcmc").read_bytes()


def test_a_kill_while_files_are_linked_leaves_nothing_that_counts(tmp_path, monkeypatch):
    one = compute(tmp_path, *FEW)
    two = compute(tmp_path, *FEW, "lam=0.3")
    digest = method_digest(config(tmp_path, *FEW), "mcmc")
    shutil.rmtree(two.method("mcmc"))

    class Killed(BaseException):
        pass

    def killed(source, target):
        raise Killed

    real = os.link
    for count in (0, 1, 2):
        calls = []

        def link(source, target, count=count, calls=calls):
            calls.append(target)
            (killed if len(calls) > count else real)(source, target)

        monkeypatch.setattr("mhrun.store.sharing.os.link", link)
        monkeypatch.setattr("mhrun.store.sharing.remove", lambda path: None)  # a kill cleans up nothing
        with pytest.raises(Killed):
            take(two, "mcmc", digest)
        assert not two.method("mcmc").exists()
        monkeypatch.undo()
        left = two.path / "methods" / ".mcmc.partial"
        assert left.exists()
        assert take(two, "mcmc", digest) == one.digest
        assert not left.exists()
        assert not two.damage()
        shutil.rmtree(two.method("mcmc"))


def test_a_method_that_has_begun_goes_on_by_itself(tmp_path):
    compute(tmp_path, *FEW)
    two = compute(tmp_path, *FEW, "lam=0.3")
    shutil.rmtree(two.method("mcmc"))
    (two.method("mcmc") / "blocks").mkdir(parents=True)
    assert take(two, "mcmc", method_digest(config(tmp_path, *FEW), "mcmc")) is None


# --- Jobs beside each other ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_method_that_another_job_computes_is_waited_for_after_the_others(tmp_path):
    outputs = tmp_path / "outputs"
    one = compute(tmp_path / "elsewhere", *FEW)
    here, settings = outputs / "gmm_tied_means" / one.digest, config(outputs, *FEW, "lam=0.3")
    (outputs / "gmm_tied_means" / "sweeps").mkdir(parents=True)
    folder, watcher, done = type(one)(here), Noting(), []
    written = threading.Event()

    def note(message):
        watcher.notes.append(message)
        if message.startswith("Waiting for another run that computes mcmc"):
            written.set()

    watcher.note = note
    with claimed(folder, method_digest(settings, "mcmc")) as ours:
        assert ours
        job = threading.Thread(target=lambda: done.append(run_experiment(settings, watcher)))
        job.start()
        assert written.wait(60)
        assert watcher.begun == ["mint"]  # what nobody else computes comes first
        shutil.copytree(one.path, here)
    job.join(60)
    assert watcher.begun == ["mint"]
    assert trace(done[0], "mcmc").samefile(trace(folder, "mcmc"))
    assert list(done[0].summary()["methods"]) == ["mint", "mcmc"]


def test_waiting_for_another_job_can_be_stopped(tmp_path):
    (tmp_path / "gmm_tied_means" / "sweeps").mkdir(parents=True)
    settings = config(tmp_path, *FEW)
    methods = methods_of(settings)
    from mhrun.store.folder import RunFolder

    folder, digests = RunFolder.of(settings), {m.name: method_digest(settings, m.name) for m in methods}
    stop = StopSignal()
    stop.receive(signal.SIGINT, None)
    run = RunContext(settings, folder, Settings(), digests, Noting(), stop)
    with (
        claimed(folder, digests["mint"]),
        claimed(folder, digests["mcmc"]),
        pytest.raises(Interrupted, match="stopped while another run computes mint"),
    ):
        list(each_claimed(run, methods))
