"""One job of a sweep, as a worker of Hydra's launcher runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mhrun.cli.configuration.compose import compared, resolved
from mhrun.cli.configuration.file_settings import check_runtime_of_files
from mhrun.cli.configuration.replaced import with_replaced_parts
from mhrun.cli.configuration.resolvers import register_resolvers
from mhrun.cli.running import compute
from mhrun.cli.sweep.records import failure, file_of, record
from mhrun.cores import CORES, usable_cores
from mhrun.errors import Interrupted, is_of_launcher
from mhrun.messages import say
from mhrun.store.files import read_json, write_text
from mhrun.store.sweep import DONE


def job_name(number: int) -> str:
    """Return the name by which a worker knows which job of the sweep it has; its launcher counts those that it runs."""
    return f"job_{number + 1}"


def job_number(hydra: DictConfig) -> int:
    """Return the number (from 0) of the job of which this is Hydra's configuration."""
    return int(str(hydra.job.name).removeprefix("job_")) - 1


def run_job(config: DictConfig) -> dict[str, Any] | None:
    """Do one job of a sweep, and return its record, which is in a file of the sweep too.

    A job that has a record is not done: it was refused, or done before a worker of another died. None if that file
    cannot be read.

    Never raises but when the user stops, or when the launcher does because the job is queued again.
    """
    hydra = HydraConfig.get()
    place, number = Path(hydra.sweep.dir), job_number(hydra)
    if file_of(place, number, "json").exists():
        return read_json(file_of(place, number, "json"))
    sweep = read_json(place / "sweep.json") or {}
    given = sweep["jobs"][number]
    title = f"job {number + 1} of {len(sweep['jobs'])}"
    print(f"{title}: {' '.join(given)}", file=sys.stderr, flush=True)
    begun = file_of(place, number, "begun")
    write_text(begun, f"{os.getpid()}\n")
    register_resolvers()
    try:
        result = _done(config, sweep, title)
    except Interrupted as stop:
        say(f"{stop}. What is computed is kept; {stop.command} resumes it.")
        raise KeyboardInterrupt from stop
    except (Exception, SystemExit) as error:  # SystemExit: of the user's code, which is to end no other job
        if is_of_launcher(error):
            raise
        log = file_of(place, number, "log")
        result = failure(error, log)
        say(f"{title} failed: {result['error']} (log: {log})")
    whole = record(place, number, given, result)
    with suppress(OSError):
        begun.unlink()
    return whole


def _done(config: DictConfig, sweep: Mapping[str, Any], title: str) -> dict[str, Any]:
    """Compute a job's run and make its report, and return its record."""
    from mhrun.cli.progress import Notes
    from mhrun.report.build import reported

    hydra = HydraConfig.get()
    given = sweep["jobs"][job_number(hydra)]
    plain = compared(
        resolved(config, hydra.runtime.choices.get("experiment") or sweep["experiment"]), sweep["reference"]
    )
    plain = with_replaced_parts(
        plain, [override for override in hydra.overrides.task if override not in given]
    )
    check_runtime_of_files(plain["runtime"], hydra.overrides.task)
    runs_alone = str(hydra.launcher._target_).endswith("BasicLauncher")
    if not runs_alone and (cores := _share(hydra.launcher)) is not None:
        os.environ[CORES] = str(cores)  # of this worker
    folder = compute(plain, None if runs_alone else Notes(f"{title}:"))
    result = {"status": DONE, "digest": folder.digest, "folder": str(folder.path)}
    if plain["runtime"]["report"] and not reported(folder):
        result |= {"error": "a part of its report could not be made", "log": str(folder.log)}
    return result


def _share(launcher: DictConfig) -> int | None:
    """Return how many cores a job has, where the launcher has several on one machine; None: all it may use."""
    if "n_jobs" in launcher:  # joblib; -1: a job for each core, -2: for all but one
        cores = usable_cores()
        n_jobs = int(launcher.n_jobs) if launcher.n_jobs > 0 else cores + 1 + int(launcher.n_jobs)
        return max(1, cores // max(1, n_jobs))
    if "remote" in launcher:
        return max(1, int(launcher.remote.get("num_cpus") or 1))
    return None
