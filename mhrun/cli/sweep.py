"""``mhrun -m``: a run for each value, through Hydra's sweepers and launchers."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from mhrun.cli.compose import (
    compared,
    compose_config,
    reference_of,
    register_resolvers,
    resolved,
    search_path,
    sweep_jobs,
    version_base,
)
from mhrun.cli.running import compute
from mhrun.errors import Interrupted, UserError
from mhrun.paths import CONF
from mhrun.store.files import read_json, write_json, write_text
from mhrun.store.folder import RunFolder

DONE, FAILED = "done", "failed"


def sweep(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Run every job, go on past those that fail, and end with the sweep's table and the failures.

    A job is an ordinary run in its own folder: doing a sweep again does what is missing.
    """
    jobs, swept = sweep_jobs(words)
    if len(jobs) < 2:
        raise UserError("A sweep needs a key with several values, such as lam=0.25,0.35.")
    # Words that Hydra cannot put together stop the sweep before its first job; a job whose settings
    # have no meaning fails by itself.
    config = _checked(jobs, folders)
    name, outputs = str(config["experiment"]), Path(config["runtime"]["outputs"])
    digest = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()[:12]
    place = outputs / name / "sweeps" / digest
    (place / "jobs").mkdir(parents=True, exist_ok=True)
    for old in (place / "jobs").iterdir():
        old.unlink()
    about = {"experiment": name, "overrides": list(words), "swept": swept, "jobs": len(jobs)}
    write_json(place / "sweep.json", about | {"reference": reference_of(config, folders)})

    sys.argv = ["mhrun", "--multirun", *words, *search_path(folders), f"hydra.sweep.dir={place}"]
    register_resolvers()
    hydra.main(config_path=str(CONF), config_name="config", **version_base())(_job)()

    from mhrun.report.sweep import build_sweep_report, jobs_of

    results = jobs_of(place)
    failed = [job for job in results if "error" in job]
    if any(job["status"] == DONE for job in results):
        print(f"sweep   {build_sweep_report(place)}")
    if failed or len(results) < len(jobs):
        print(f"\n{len(failed)} of {len(jobs)} jobs failed:", file=sys.stderr)
        for job in failed:
            print(f"  {job['number']:3}  {' '.join(job['overrides'])}", file=sys.stderr)
            print(f"       {job['error']}  (log: {job['log']})", file=sys.stderr)
        return 1
    return 0


def _checked(jobs: Sequence[Sequence[str]], folders: Sequence[Path]) -> dict[str, Any]:
    """Return the configuration of one of the jobs.

    Raises:
        UserError: jobs of several experiments, words that cannot be put together, or no job with a meaning.
    """
    found: dict[str, Any] | None = None
    first_error = None
    for job in jobs:
        try:
            config = compose_config(job, folders, compare=False)
        except UserError as error:
            if isinstance(error.__cause__, HydraException):
                raise
            first_error = first_error or error
            continue
        found = found or config
        if config["experiment"] != found["experiment"]:
            raise UserError("A sweep is of one experiment; run several experiments one by one.")
        if config["runtime"]["outputs"] != found["runtime"]["outputs"]:
            raise UserError("A sweep has one runtime.outputs.")
    if found is None:
        assert first_error is not None
        raise first_error
    return found


def _job(config: DictConfig) -> dict[str, Any]:
    """Do one job of a sweep. Never raises but when the user stops: what happened is in a file of the sweep."""
    own = HydraConfig.get()
    place = Path(own.sweep.dir) / "jobs"
    sweep = read_json(place.parent / "sweep.json") or {}
    number = own.job.num
    overrides = [word for word in own.overrides.task if word.partition("=")[0] in sweep["swept"]]
    log = place / f"{number:04d}.log"
    result: dict[str, Any] = {"number": number, "overrides": overrides, "status": FAILED, "log": str(log)}
    print(f"[{number}] {' '.join(overrides)}", file=sys.stderr, flush=True)
    register_resolvers()
    from mhrun.report.build import reported

    try:
        plain = compared(resolved(config, own.runtime.choices.get("experiment")), sweep["reference"])
        result["folder"] = str(RunFolder.of(plain).path)
        folder = compute(plain)
        result |= {"status": DONE, "digest": folder.digest}
        if plain["runtime"]["report"] and not reported(folder):
            result |= {"error": "a part of its report could not be made", "log": str(folder.log)}
    except Interrupted as stop:
        print(f"mhrun: {stop}. Nothing is lost: {stop.command} goes on from there.", file=sys.stderr)
        raise KeyboardInterrupt from stop
    except Exception as error:
        told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        write_text(log, traceback.format_exc())
        result["error"] = told.splitlines()[0] if told else type(error).__name__
        print(f"mhrun: job {number} failed: {result['error']} (log: {log})", file=sys.stderr, flush=True)
    write_json(place / f"{number:04d}.json", result)
    return result
