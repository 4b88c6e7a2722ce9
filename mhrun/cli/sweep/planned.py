"""The jobs of a sweep before they run: their overrides, and why one is refused."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from mhrun.cli.configuration.compose import compose_config, with_default_method
from mhrun.cli.configuration.overrides import swept_only
from mhrun.cli.configuration.without_experiment import added, is_own
from mhrun.errors import UserError, is_of_launcher, reason_of
from mhrun.messages import say
from mhrun.paths import CONF

_CHECK_SECONDS = 3.0  # for the settings of all jobs; those of a job take some 0.03 s


@dataclass(frozen=True)
class PlannedJob:
    """One job of a sweep that has not run."""

    number: int  # from 0
    given: list[str]  # its swept settings, as they were given
    overrides: list[str]  # all of them, with the default method if it has no experiment and names none
    refusal: BaseException | None = None  # why it cannot run


def planned(jobs: Sequence[Sequence[str]], swept: Sequence[str], folders: Sequence[Path]) -> list[PlannedJob]:
    """Return the jobs, each of data and a model without an experiment with its default method.

    A job whose data or model are refused has no default method: it is refused.

    Args:
        jobs: the overrides of each, as they were given.
        swept: the keys of the swept settings.
        folders: the user's.
    """
    found, printed = [], set[str]()
    for number, job in enumerate(jobs):
        plan = PlannedJob(number, swept_only(job, swept), list(job))
        if is_own(job):
            try:
                overrides, lines = with_default_method(job, folders)
            except (Exception, SystemExit) as error:  # it may be of the user's code
                if is_of_launcher(error):
                    raise
                plan = replace(plan, overrides=added(job), refusal=error)
            else:
                plan = replace(plan, overrides=overrides)
                for line in lines:
                    if line not in printed:
                        say(line)
                printed.update(lines)
        found.append(plan)
    return found


def checked(jobs: Sequence[PlannedJob], folders: Sequence[Path]) -> tuple[dict[str, Any], list[PlannedJob]]:
    """Return the configuration of one of the jobs, and the jobs with the refusals of those that cannot run.

    The refused jobs are named.

    Raises:
        UserError: jobs of several experiments, overrides that cannot be composed, or no job that can run.
    """
    config = _of_one_experiment(jobs, folders)
    jobs = _with_refusals(jobs, folders)
    for job in jobs:
        if job.refusal is not None:
            say(f"job {job.number + 1} of {len(jobs)} is refused: {reason_of(job.refusal)}")
    if all(job.refusal is not None for job in jobs):
        raise UserError("no job of this sweep can run.")
    return config, jobs


def _of_one_experiment(jobs: Sequence[PlannedJob], folders: Sequence[Path]) -> dict[str, Any]:
    """Return the configuration of the first job that has one, after checking that jobs are of one experiment."""
    first_config: dict[str, Any] | None = None
    first_error: BaseException | None = None
    for group in _alike(jobs, folders):
        for job in group:
            error = job.refusal
            if error is None:
                try:
                    config = _composed(job, folders, check=True)
                except UserError as caught:
                    error = caught
            if error is not None:
                if isinstance(error.__cause__, HydraException):
                    raise error
                first_error = first_error or error
                continue
            first_config = first_config or config
            if config["experiment"] != first_config["experiment"]:
                raise UserError("A sweep is of one experiment; run several experiments one by one.")
            if config["runtime"]["outputs"] != first_config["runtime"]["outputs"]:
                raise UserError("A sweep has one runtime.outputs.")
            break
    if first_config is None:
        assert first_error is not None
        raise first_error
    return first_config


def _with_refusals(jobs: Sequence[PlannedJob], folders: Sequence[Path]) -> list[PlannedJob]:
    """Return the jobs with the refusals of those with invalid settings; of many jobs those of a few seconds.

    Their parts are made, unless they are for a GPU, which this machine may lack. What the user's code raises there
    ends the job itself.
    """
    from mhrun.engine.assemble import methods_of

    end, found = time.monotonic() + _CHECK_SECONDS, list(jobs)
    for place, job in _new_values_first(jobs):
        if time.monotonic() > end:
            break
        if job.refusal is not None:
            continue
        try:
            config = _composed(job, folders)
            if config["device"] == "cpu":
                methods_of(config)
        except UserError as error:
            found[place] = replace(job, refusal=error)
        except (Exception, SystemExit) as error:
            if is_of_launcher(error):
                raise
    return found


def _new_values_first(jobs: Sequence[PlannedJob]) -> list[tuple[int, PlannedJob]]:
    """Return jobs with their places, those first that have a value which none before has: most mistakes are of one."""
    seen = set[str]()
    first: list[tuple[int, PlannedJob]] = []
    rest: list[tuple[int, PlannedJob]] = []
    for place, job in enumerate(jobs):
        (rest if seen.issuperset(job.given) else first).append((place, job))
        seen |= set(job.given)
    return [*first, *rest]


def _composed(job: PlannedJob, folders: Sequence[Path], *, check: bool = False) -> dict[str, Any]:
    return compose_config(job.overrides, folders, compare=False, check=check, is_complete=True)


def _alike(jobs: Sequence[PlannedJob], folders: Sequence[Path]) -> Iterable[list[PlannedJob]]:
    """Return groups of jobs that differ in plain values only, so that Hydra composes one if it composes the others.

    Composing a job takes a third of a second, too long for each of many jobs.
    """
    groups = {path.name for place in (CONF, *folders) for path in place.iterdir() if path.is_dir()}
    lots: dict[tuple[str, ...], list[PlannedJob]] = {}
    for job in jobs:
        keys = {
            override: override.partition("=")[0].lstrip("+~").partition("@")[0] for override in job.overrides
        }
        deciding = [w for w, key in keys.items() if key.split("/")[0] in groups or key == "runtime.outputs"]
        lots.setdefault(tuple(deciding), []).append(job)
    return lots.values()
