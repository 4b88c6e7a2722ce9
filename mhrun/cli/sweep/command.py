"""``mhrun -m``: checks the jobs of a sweep, launches them, and ends with the sweep's page and the failures."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from mhrun.cli.configuration.compose import reference_of
from mhrun.cli.configuration.composition import composed, search_path
from mhrun.cli.configuration.hydra_errors import explained
from mhrun.cli.configuration.hydra_settings import is_of_hydra
from mhrun.cli.configuration.overrides import parsed, sweep_jobs
from mhrun.cli.configuration.without_experiment import is_own
from mhrun.cli.crash import show_traceback
from mhrun.cli.exit_status import BUG, FAILED, OK
from mhrun.cli.report_functions import check_report
from mhrun.cli.sweep.launch import launched
from mhrun.cli.sweep.planned import checked, planned
from mhrun.cli.sweep.records import clear, failure, file_of, record
from mhrun.errors import UserError, writable
from mhrun.messages import say
from mhrun.paths import expanded
from mhrun.store.files import explain, write_json
from mhrun.store.locks import held
from mhrun.store.sweep import jobs_of_sweep


def sweep(overrides: Sequence[str], folders: Sequence[Path]) -> int:
    """Run every job, go on past those that fail, and end with the sweep's table and the failures.

    A job is an ordinary run in its own folder: doing a sweep again does what is missing.
    """
    given, swept = sweep_jobs(overrides)
    if len(given) < 2:
        raise UserError("A sweep needs a key with several values, such as lam=0.25,0.35.")
    # Overrides that Hydra cannot compose stop the sweep before its first job; a job with invalid settings
    # is refused alone.
    config, jobs = checked(planned(given, swept, folders), folders)
    check_report(config)
    # Of data that are swept Hydra has no settings before it makes a job; those of the first valid one are for all.
    of_all = next(job.overrides for job in jobs if job.refusal is None) if is_own(given[0]) else overrides
    _check_composition(of_all, folders)
    place = _place(overrides, swept, config)
    summary = {"experiment": config["experiment"], "overrides": list(overrides), "swept": swept}
    summary["jobs"] = [job.given for job in jobs]
    with held(place, "sweep", say):
        clear(place)
        write_json(place / "sweep.json", summary | {"reference": reference_of(config, folders)})
        for job in jobs:
            if job.refusal is not None:
                log = file_of(place, job.number, "log")
                record(place, job.number, job.given, failure(job.refusal, log))
        launched([*of_all, *search_path(folders)], place, jobs)
        return _summarised(place, len(jobs), with_reports=bool(config["runtime"]["report"]))


def _place(overrides: Sequence[str], swept: Sequence[str], config: dict[str, Any]) -> Path:
    """Return the folder of a sweep, after making it.

    Raises:
        UserError: it cannot be made, or is a link.
    """
    # Settings of where and how jobs are computed do not change the digest.
    where = tuple(f"runtime.{name}=" for name in config["runtime"] if f"runtime.{name}" not in swept)
    digest = digest_of([override for override in overrides if not override.lstrip("+~").startswith(where)])
    place = expanded(config["runtime"]["outputs"]) / str(config["experiment"]) / "sweeps" / digest
    for folder in (place.parent.parent, place.parent, place, place / "jobs"):
        if folder.is_symlink():
            raise UserError(
                f"{folder} leads elsewhere, and a sweep writes and removes files there; move it away."
            )
    try:
        (place / "jobs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, place / "jobs") from error
    return place


def digest_of(overrides: Sequence[str]) -> str:
    """Return the digest of a sweep: a hash of its overrides without Hydra's settings."""
    task = sorted(override for override in overrides if not is_of_hydra(parsed([override])[0]))
    return hashlib.sha256("\n".join(task).encode()).hexdigest()[:12]


def _check_composition(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Check the composition of the sweep as a whole, which may read files that no job reads.

    Raises:
        UserError: a file changes a setting of Hydra.
    """
    try:
        composed(overrides, folders, multirun=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, overrides, folders) from error


def _summarised(place: Path, count: int, *, with_reports: bool) -> int:
    """Make the page of a sweep of `count` jobs, print results and failures, and return the exit status."""
    from mhrun.report.sweep.build import build_sweep_report

    outcomes = jobs_of_sweep(place)
    failed = [job for job in outcomes if job.error]
    lost_parts: list[str] = []  # parts of the sweep's own report

    def warn(line: str) -> None:
        lost_parts.append(line)
        say(line)

    if any(job.is_done for job in outcomes):
        page = build_sweep_report(place, warn)
        _show(place)
        print(f"sweep   {page}")
    if not with_reports:
        say(
            "ESS, R-hat and the experiment's own metrics in the table come from the reports of the runs; the same "
            "command without runtime.report=false makes them, and computes no step again."
        )
    if failed:
        print(f"\n{len(failed)} of {count} jobs failed:", file=sys.stderr)
        for job in failed:
            print(f"  {job.number + 1:3}  {' '.join(job.overrides)}", file=sys.stderr)
            print(f"       {job.error}  (log: {job.log})", file=sys.stderr)
    if any(job.is_bug for job in failed):
        return BUG
    return FAILED if failed or lost_parts else OK


def _show(place: Path) -> None:
    """Print the results of the sweep, or one line if those of its runs cannot be shown."""
    from mhrun.cli.result import show_sweep

    try:
        show_sweep(place)
    except (UserError, KeyError, ValueError) as error:
        show_traceback(error)
        say(f"the table of the sweep cannot be shown: {writable(str(error))}")
