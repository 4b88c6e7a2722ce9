"""Jobs on Hydra's launchers, again where a worker has died."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import create_config_search_path
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode

from mhrun.cli.configuration.composition import version_base
from mhrun.cli.configuration.hydra_settings import is_of_hydra
from mhrun.cli.configuration.loader import Loader
from mhrun.cli.configuration.overrides import parsed
from mhrun.cli.configuration.resolvers import register_resolvers
from mhrun.cli.sweep.job import job_name, run_job
from mhrun.cli.sweep.planned import PlannedJob
from mhrun.cli.sweep.records import file_of, launcher_log, record
from mhrun.errors import reason_of
from mhrun.messages import say
from mhrun.paths import CONF
from mhrun.store.files import write_text

_ROUNDS = 5  # times that what lost workers left is launched again, while each gets some jobs done


def launched(overrides: Sequence[str], place: Path, jobs: Sequence[PlannedJob]) -> None:
    """Run the jobs that have no record with Hydra's launcher; what a dead worker left undone is launched again.

    A launcher gives up all of its jobs when one of its workers is killed or runs out of memory. Jobs that were begun
    then are launched one by one. A job that still has left nothing in the end is recorded as failed.

    Args:
        overrides: of the sweep as a whole, with the search path.
        place: the sweep's folder.
        jobs: all of them.
    """
    register_resolvers()
    counts = [len(jobs)]
    for _ in range(_ROUNDS):
        failure = "".join(_once(overrides, place, group) for group in _groups(place, jobs))
        undone = _undone(place, jobs)
        if not undone:
            return
        write_text(launcher_log(place), failure)
        lines = [line for line in failure.splitlines() if line.strip()]
        why = lines[-1] if lines else "the launcher did not say why"
        say(f"{len(undone)} of {len(jobs)} jobs are left undone: {why}")
        counts.append(len(undone))
        if counts[-3:] == 3 * [len(undone)]:  # two rounds brought nothing
            break
    for job in undone:
        was_begun = file_of(place, job.number, "begun").exists()
        error = "its worker died, killed or out of memory" if was_begun else f"it was not begun: {why}"
        result = {"error": f"{error}; the same command does what is missing", "log": str(launcher_log(place))}
        record(place, job.number, job.given, result)


def _undone(place: Path, jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return the jobs without a record; one that was refused has one."""
    return [job for job in jobs if not file_of(place, job.number, "json").exists()]


def _groups(place: Path, jobs: Sequence[PlannedJob]) -> list[list[PlannedJob]]:
    """Return the jobs to launch together: those not begun, then one by one those whose worker died."""
    fresh, begun = list[PlannedJob](), list[PlannedJob]()
    for job in _undone(place, jobs):
        (begun if file_of(place, job.number, "begun").exists() else fresh).append(job)
    return [*([fresh] if fresh else []), *([job] for job in begun)]


def _once(overrides: Sequence[str], place: Path, jobs: Sequence[PlannedJob]) -> str:
    """Run the jobs once with Hydra's launcher, and return its failure as text, or an empty string."""
    sweep_dir = "hydra.sweep.dir='{}'".format(str(place).replace("'", "\\'"))
    try:
        with initialize_config_dir(str(CONF), "mhrun", **version_base()):
            loader = Loader(create_config_search_path(str(CONF)))
            overrides = [*overrides, sweep_dir, "hydra.mode=MULTIRUN"]
            config = loader.load_configuration("config", overrides, RunMode.MULTIRUN)
            launcher = Plugins.instance().instantiate_launcher(
                HydraContext(config_loader=loader, callbacks=Callbacks()), run_job, config
            )
            for job_return in launcher.launch([_of_job(job) for job in jobs], 0):
                _ = job_return.return_value  # raises what the launcher has caught
    except Exception as error:  # of a launcher: the results of its jobs are on disk
        return f"{traceback.format_exc()}{reason_of(error)}\n"
    return ""


def _of_job(job: PlannedJob) -> list[str]:
    """Return the overrides of a job for a launcher: without those of Hydra, but with its name, see `job_number`."""
    own = [override for override in job.overrides if not is_of_hydra(parsed([override])[0])]
    return [*own, f"hydra.job.name={job_name(job.number)}"]
