"""Sweeps on workers: what a killed one leaves undone is done all the same, and nothing that was done is done again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import slurm
from hydra.core.hydra_config import HydraConfig
from kit import FEW, assert_same_bits, compute, contents
from omegaconf import OmegaConf

import mhrun.cli.sweep.job as job_module
import mhrun.cli.sweep.launch as launch
from mhrun.cli.main import run
from mhrun.cli.sweep.records import file_of
from mhrun.store.folder import RunFolder, runs

SHORT = ("experiment=gmm_tied_means", "scale=smoke", *FEW, "~methods.sghmc")
SHORT += ("steps=60", "warmup=50", "runtime.report=false")
LONG = ("steps=200000", "runtime.block_seconds=0.2")  # some seconds, in many blocks


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# --- What is left by a launcher that gives up ---------------------------------------------------------------


def dying(monkeypatch, deaths):
    """Let Hydra's launcher be one whose worker dies at a job, one for each round, and that then gives up the others."""
    once, rounds = launch._once, []

    def launched(*arguments):
        job, at = launch.run_job, deaths[min(len(rounds), len(deaths) - 1)]
        rounds.append(at)
        together = [planned.number for planned in arguments[2]]

        def killed(config):
            number = job_module.job_number(HydraConfig.get())
            place = Path(HydraConfig.get().sweep.dir)
            if number < at or at not in together or file_of(place, number, "json").exists():
                return job(config)
            if number == at:
                file_of(place, number, "begun").write_text("1\n")
            raise RuntimeError("TerminatedWorkerError: a worker stopped")

        monkeypatch.setattr(launch, "run_job", killed)
        try:
            return once(*arguments)
        finally:
            monkeypatch.setattr(launch, "run_job", job)

    monkeypatch.setattr(launch, "_once", launched)
    return rounds


def jobs(tmp_path):
    (place,) = (tmp_path / "outputs/gmm_tied_means/sweeps").iterdir()
    return [json.loads(path.read_text()) for path in sorted((place / "jobs").glob("*.json"))]


@pytest.mark.slow
def test_what_a_dead_worker_left_is_launched_again(tmp_path, monkeypatch, capsys):
    rounds = dying(monkeypatch, [0, 1, 9])
    assert run(["-m", *SHORT, "seed=0,1"]) == 0
    assert len(rounds) == 4  # both; the second, which dies too, and the first; the second again
    err = capsys.readouterr().err
    assert "2 of 2 jobs are left undone: RuntimeError: TerminatedWorkerError" in err
    assert "1 of 2 jobs are left undone" in err
    assert err.count("job 1 of 2: seed=0") == 1  # done once
    assert "exists already" not in err
    assert [job["status"] for job in jobs(tmp_path)] == ["done"] * 2
    assert not list(tmp_path.rglob("*.begun"))


@pytest.mark.slow
def test_a_job_that_kills_its_worker_each_time_is_reported_and_done_by_the_same_command(
    tmp_path, monkeypatch, capsys
):
    rounds = dying(monkeypatch, [1])
    arguments = ["-m", *SHORT, "seed=0,1,2"]
    assert run(arguments) == 1
    assert len(rounds) == 5  # all; the third, and the second alone, three times more
    err = capsys.readouterr().err
    assert "1 of 3 jobs failed" in err
    assert (
        "seed=1\n       its worker died, killed or out of memory; the same command does what is missing"
        in err
    )
    assert [job["status"] for job in jobs(tmp_path)] == ["done", "failed", "done"]
    assert "its worker died" in next(tmp_path.glob("outputs/*/sweeps/*/index.html")).read_text()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    stamp = next(f for f in runs(tmp_path / "outputs") if f.config()["seed"] == 0)
    before = (stamp.method("mint") / "trace.nc").stat().st_mtime_ns
    assert run(arguments) == 0
    assert (stamp.method("mint") / "trace.nc").stat().st_mtime_ns == before
    assert [job["status"] for job in jobs(tmp_path)] == ["done"] * 3


def test_where_jobs_run_makes_no_other_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(job_module, "compute", lambda config, watching: RunFolder.of(config))
    assert run(["-m", *SHORT, "seed=0,1"]) == 0
    assert run(["-m", *SHORT, "seed=0,1", "hydra.verbose=false"]) == 0
    assert len(list(tmp_path.glob("outputs/*/sweeps/*"))) == 1


@pytest.mark.parametrize(("n_jobs", "share"), [(1, 8), (2, 4), (3, 2), (-1, 1), (-2, 1), (100, 1)])
def test_concurrent_jobs_share_the_cores(monkeypatch, n_jobs, share):
    monkeypatch.setattr("mhrun.cli.sweep.job.usable_cores", lambda: 8)
    assert job_module._share(OmegaConf.create({"n_jobs": n_jobs})) == share
    assert job_module._share(OmegaConf.create({"remote": {"num_cpus": share}})) == share
    assert job_module._share(OmegaConf.create({"timeout_min": 5})) is None


def test_a_job_that_its_launcher_has_queued_again_is_not_recorded(tmp_path, monkeypatch):
    """submitit ends the process from its handler of a signal, wherever the job is."""
    environment = pytest.importorskip("submitit.core.job_environment")
    handler = environment.SignalHandler(None, None, None)
    monkeypatch.setattr(job_module, "compute", lambda config, watching: handler._exit())
    run(["-m", *SHORT, "seed=0,1"])
    assert jobs(tmp_path) == []
    (begun,) = tmp_path.rglob("*.begun")
    assert begun.name == "0001.begun"


# --- Real launchers -----------------------------------------------------------------------------------------


def swept(*arguments: str) -> subprocess.Popen[str]:
    """Begin a sweep; what it says goes into a file, as workers that outlive it would hold a pipe open."""
    with open("said.txt", "w") as value:
        return subprocess.Popen(
            [sys.executable, "-m", "mhrun", "-m", *SHORT, *arguments],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=value,
            stderr=subprocess.STDOUT,
            text=True,
        )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit status of a sweep and its output."""
    return process.wait(3000), Path("said.txt").read_text()


def killing(place: Path, kills: int, every: int, alive: subprocess.Popen[str], killed: list[int]) -> None:
    """Kill a worker that is at a job whenever so many more are done; its id is in what it left when it began."""
    while alive.poll() is None and len(killed) < kills:
        time.sleep(0.01)
        if len(list(place.glob("*/jobs/*.json"))) < every * (len(killed) + 1):
            continue
        for path in place.glob("*/jobs/*.begun"):
            try:
                worker = int(path.read_text())
                if worker not in killed and worker != alive.pid and not path.with_suffix(".json").exists():
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)
                    break
            except (OSError, ValueError):
                continue


def killed_sweep(tmp_path: Path, kills: int, every: int, *arguments: str) -> tuple[int, str, list[int]]:
    process, killed = swept(*arguments), []
    place = tmp_path / "outputs/gmm_tied_means/sweeps"
    killer = threading.Thread(target=killing, args=(place, kills, every, process, killed))
    killer.start()
    status, out = ended(process)
    killer.join()
    return status, out, killed


def assert_whole(tmp_path: Path, count: int, arguments: Sequence[str] = ()) -> None:
    folders = runs(tmp_path / "outputs")
    assert len(folders) == count
    assert all(folder.is_complete() for folder in folders)
    some = sorted(folders, key=lambda folder: folder.config()["seed"])[:: max(1, count // 4)]
    for folder in some:
        fresh = compute(tmp_path / "fresh", *SHORT[2:], *arguments, f"seed={folder.config()['seed']}")
        assert fresh.digest == folder.digest
        assert_same_bits(contents(folder, "mint"), contents(fresh, "mint"))


JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


@pytest.mark.slow
def test_a_sweep_of_a_hundred_jobs_survives_killed_workers_and_is_completed_by_running_it_again(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    arguments = (*JOBLIB, "seed=range(100)")
    status, out, killed = killed_sweep(tmp_path, 3, 20, *arguments)
    assert len(killed) == 3
    assert "jobs are left undone" in out
    done = len([folder for folder in runs(tmp_path / "outputs") if folder.is_complete()])
    print(
        f"\n{len(killed)} workers killed; exit status {status}; {done} of 100 jobs done by the first command"
    )
    stamps = {f.path: f.summary()["finished"] for f in runs(tmp_path / "outputs") if f.is_complete()}
    status, out = ended(swept(*arguments))
    assert status == 0, out
    assert {f.path: f.summary()["finished"] for f in runs(tmp_path / "outputs") if f.path in stamps} == stamps
    assert_whole(tmp_path, 100)


@pytest.mark.slow
def test_a_sweep_whose_command_is_killed_with_its_workers_is_completed_by_running_it_again(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    arguments = (*JOBLIB, "seed=range(8)")
    process = swept(*arguments)
    while not list(tmp_path.glob("outputs/*/sweeps/*/jobs/*.json")):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    status, out = ended(swept(*arguments))  # beside workers that are still at their jobs
    assert status == 0, out
    assert_whole(tmp_path, 8)


@pytest.mark.slow
def test_a_local_ray_does_a_sweep_and_survives_a_killed_worker(tmp_path):
    pytest.importorskip("ray")
    status, out, killed = killed_sweep(tmp_path, 1, 2, "hydra/launcher=ray", "hydra.launcher.init.num_cpus=2",
                                     "seed=range(8)")  # fmt: skip
    assert len(killed) == 1
    assert status == 0, out
    assert_whole(tmp_path, 8)


@pytest.mark.slow
def test_submitit_does_a_sweep_on_this_machine(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    status, out = ended(swept("hydra/launcher=submitit_local", "seed=0,1"))
    assert status == 0, out
    assert_whole(tmp_path, 2)


@pytest.mark.slow
def test_a_slurm_job_that_is_reported_to_stop_is_queued_again_and_goes_on(tmp_path, monkeypatch):
    """SLURM sends the jobs a signal when it preempts them, and before their time limit."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    for name, value in slurm.install(tmp_path / "bin").items():
        monkeypatch.setenv(name, value)
    process = swept("hydra/launcher=slurm", *LONG, "seed=0,1")
    block = "outputs/gmm_tied_means/*/methods/mint/blocks/*"
    while not list(tmp_path.glob(block)):
        assert process.poll() is None, Path("said.txt").read_text()
        time.sleep(0.02)
    os.kill(int((tmp_path / "bin/1000_0.pid").read_text()), signal.SIGUSR2)
    status, out = ended(process)
    assert status == 0, out
    assert (tmp_path / "bin/1000_0.state").read_text() == "COMPLETED"
    logs = "".join(path.read_text() for path in tmp_path.glob("outputs/*/sweeps/*/.submitit/*/*_0_log.*"))
    assert logs.count("Requeued job 1000_0") == 1
    assert_whole(tmp_path, 2, LONG)


def test_slurm_has_the_bundled_settings(capsys):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    from mhrun.cli.configuration.composition import composed

    config = composed([*SHORT, "hydra/launcher=slurm", "hydra.launcher.partition=cpu"])
    assert config.hydra.launcher._target_.endswith("SlurmLauncher")
    assert config.hydra.launcher.max_num_timeout == 20
    assert config.hydra.launcher.partition == "cpu"
