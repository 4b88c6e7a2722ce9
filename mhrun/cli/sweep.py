"""``mhrun -m``: a run for each value, through Hydra's sweepers and launchers."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import create_config_search_path
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from mhrun.cli.configuration.compose import (
    compared,
    compose_config,
    reference_of,
    resolved,
    with_default_method,
)
from mhrun.cli.configuration.composition import composed, search_path, version_base
from mhrun.cli.configuration.file_settings import check_runtime_of_files
from mhrun.cli.configuration.hydra_errors import explained
from mhrun.cli.configuration.hydra_settings import is_of_hydra
from mhrun.cli.configuration.loader import Loader
from mhrun.cli.configuration.overrides import parsed, sweep_jobs
from mhrun.cli.configuration.replaced import with_replaced_parts
from mhrun.cli.configuration.resolvers import register_resolvers
from mhrun.cli.configuration.without_experiment import added, check_own, is_own
from mhrun.cli.crash import BUG, crash_of, show_traceback
from mhrun.cli.report_functions import check_report
from mhrun.cli.running import compute
from mhrun.cores import CORES, usable_cores
from mhrun.errors import Interrupted, UserError, first_line, is_of_launcher, reason
from mhrun.paths import CONF
from mhrun.store.files import explain, read_json, write_json, write_text
from mhrun.store.folder import RunFolder
from mhrun.store.locks import held
from mhrun.store.sweep import DONE, FAILED, jobs_of_sweep

_OF_A_JOB = re.compile(r"\d{4,}\.(json|log|begun)(\.partial)?|launcher\.log(\.partial)?")
_CHECK_SECONDS = 3.0  # for the settings of all jobs; those of a job take some 0.03 s
_ROUNDS = 5  # times that what lost workers left is launched again, while each gets some jobs done


def sweep(overrides: Sequence[str], folders: Sequence[Path]) -> int:
    """Run every job, go on past those that fail, and end with the sweep's table and the failures.

    A job is an ordinary run in its own folder: doing a sweep again does what is missing.
    """
    jobs, swept = sweep_jobs(overrides)
    if len(jobs) < 2:
        raise UserError("A sweep needs a key with several values, such as lam=0.25,0.35.")
    # Overrides that Hydra cannot compose stop the sweep before its first job; a job with invalid settings
    # fails by itself, and is named before.
    config = _checked(jobs, folders)
    check_report(config)
    own = is_own(jobs[0])
    # Of data that are swept Hydra has no settings before it makes a job; those of the first are for all jobs.
    of_all = added(jobs[0]) if own else overrides
    _check_all_jobs(of_all, folders)
    _name_refused(jobs, folders)
    name, outputs = str(config["experiment"]), Path(config["runtime"]["outputs"]).expanduser()
    # Settings of where and how jobs are computed do not change the digest.
    where = tuple(f"runtime.{name}=" for name in config["runtime"] if f"runtime.{name}" not in swept)
    digest = digest_of([override for override in overrides if not override.lstrip("+~").startswith(where)])
    place = outputs / name / "sweeps" / digest
    for folder in (place.parent.parent, place.parent, place, place / "jobs"):
        if folder.is_symlink():
            raise UserError(
                f"{folder} leads elsewhere, and a sweep writes and removes files there; move it away."
            )
    try:
        (place / "jobs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, place / "jobs") from error
    record = {"experiment": name, "overrides": list(overrides), "swept": swept, "jobs": len(jobs)}
    with held(place, "sweep", _say):
        _clear(place / "jobs")
        write_json(place / "sweep.json", record | {"reference": reference_of(config, folders)})
        launched = _own_jobs(jobs, folders) if own else jobs
        _launched([*of_all, *search_path(folders)], place, launched)
        return _summarised(place, len(jobs), with_reports=bool(config["runtime"]["report"]))


def _clear(folder: Path) -> None:
    """Remove the files of jobs that were done before.

    Raises:
        UserError: a file cannot be removed.
    """
    try:
        for path in folder.iterdir():
            if _OF_A_JOB.fullmatch(path.name):
                path.unlink()
    except OSError as error:
        raise explain(error, folder) from error


def _summarised(place: Path, count: int, *, with_reports: bool) -> int:
    """Make the page of a sweep of `count` jobs, print results and failures, and return the exit status."""
    from mhrun.report.sweep.build import build_sweep_report

    outcomes = jobs_of_sweep(place)
    failed = [job for job in outcomes if job.error]
    lost_parts: list[str] = []  # parts of the sweep's own report

    def warn(line: str) -> None:
        lost_parts.append(line)
        _say(line)

    if any(job.is_done for job in outcomes):
        page = build_sweep_report(place, warn)
        _show(place)
        print(f"sweep   {page}")
    if not with_reports:
        _say(
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
    return 1 if failed or lost_parts else 0


def _say(line: str) -> None:
    print(f"mhrun: {line}", file=sys.stderr, flush=True)


def _show(place: Path) -> None:
    """Print the results of the sweep, or one line if those of its runs cannot be shown."""
    from mhrun.cli.result import show_sweep

    try:
        show_sweep(place)
    except (UserError, KeyError, ValueError) as error:
        show_traceback(error)
        _say(f"the table of the sweep cannot be shown: {_writable(str(error))}")


def _check_all_jobs(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Check the composition of the sweep as a whole, which may read files that no job reads.

    Raises:
        UserError: a file changes a setting of Hydra.
    """
    try:
        composed(overrides, folders, multirun=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, overrides, folders) from error


def digest_of(overrides: Sequence[str]) -> str:
    """Return the digest of a sweep: a hash of its overrides without Hydra's settings."""
    task = sorted(override for override in overrides if not is_of_hydra(parsed([override])[0]))
    return hashlib.sha256("\n".join(task).encode()).hexdigest()[:12]


def _launched(overrides: Sequence[str], place: Path, jobs: Sequence[Sequence[str]]) -> None:
    """Run the jobs with Hydra's launcher; jobs that a dead worker left undone are launched again.

    A launcher gives up all of its jobs when one of its workers is killed or runs out of memory. A job that still has
    left nothing in the end is recorded as failed.
    """
    register_resolvers()
    log = place / "jobs" / "launcher.log"
    of_task = [[override for override in job if not is_of_hydra(parsed([override])[0])] for job in jobs]
    counts = [len(jobs)]
    for _ in range(_ROUNDS):
        failure = _once(overrides, place, of_task)
        undone = _undone(place, jobs)
        if not undone:
            return
        write_text(log, failure)
        lines = [line for line in failure.splitlines() if line.strip()]
        why = lines[-1] if lines else "the launcher did not say why"
        _say(f"{len(undone)} of {len(jobs)} jobs are left undone: {why}")
        counts.append(len(undone))
        if counts[-3:] == 3 * [len(undone)]:  # two rounds brought nothing
            break
    swept = (read_json(place / "sweep.json") or {})["swept"]
    for number in undone:
        was_begun = _file_of(place, number, "begun").exists()
        error = "its worker died, killed or out of memory" if was_begun else f"it was not begun: {why}"
        result = {"number": number, "overrides": _swept_only(jobs[number], swept), "status": FAILED}
        write_json(
            _file_of(place, number, "json"),
            result | {"log": str(log), "error": f"{error}; the same command does what is missing"},
        )


def _once(overrides: Sequence[str], place: Path, jobs: Sequence[Sequence[str]]) -> str:
    """Run the jobs once with Hydra's launcher, and return its failure as text, or an empty string."""
    sweep_dir = "hydra.sweep.dir='{}'".format(str(place).replace("'", "\\'"))
    try:
        with initialize_config_dir(str(CONF), "mhrun", **version_base()):
            loader = Loader(create_config_search_path(str(CONF)))
            overrides = [*overrides, sweep_dir, "hydra.mode=MULTIRUN"]
            config = loader.load_configuration("config", overrides, RunMode.MULTIRUN)
            launcher = Plugins.instance().instantiate_launcher(
                HydraContext(config_loader=loader, callbacks=Callbacks()), _job, config
            )
            for job_return in launcher.launch(jobs, 0):
                _ = job_return.return_value  # raises what the launcher has caught
    except Exception as error:  # of a launcher: the results of its jobs are on disk
        return f"{traceback.format_exc()}{type(error).__name__}: {first_line(error)}\n"
    return ""


def _undone(place: Path, jobs: Sequence[Sequence[str]]) -> list[int]:
    return [number for number in range(len(jobs)) if not _file_of(place, number, "json").exists()]


def _file_of(place: Path, number: int, kind: str) -> Path:
    """Return a file of a job in the sweep's folder; it is numbered from 1, as in messages."""
    return place / "jobs" / f"{number + 1:04d}.{kind}"


def _swept_only(overrides: Sequence[str], swept: Sequence[str]) -> list[str]:
    """Return the overrides of swept settings; data and a model as they were given, without the plus of `added`."""
    given = [
        override.removeprefix("+") if override.startswith(("+data=", "+model=")) else override
        for override in overrides
    ]
    return [override for override in given if override.partition("=")[0] in swept]


def _own_jobs(jobs: Sequence[Sequence[str]], folders: Sequence[Path]) -> list[list[str]]:
    """Return the jobs of data and a model without an experiment, each with its default method if it names none.

    Of a job whose data or model are refused no method is known; it fails as it begins, with what is wrong.
    """
    complete, printed = [], set[str]()
    for job in jobs:
        try:
            overrides, lines = with_default_method(job, folders)
        except (Exception, SystemExit) as error:  # with which the job will end; it may be of the user's code
            if is_of_launcher(error):
                raise
            overrides, lines = added(job), []
        for line in lines:
            if line not in printed:
                _say(line)
        printed.update(lines)
        complete.append(overrides)
    return complete


def _checked(jobs: Sequence[Sequence[str]], folders: Sequence[Path]) -> dict[str, Any]:
    """Return the configuration of one of the jobs.

    Raises:
        UserError: jobs of several experiments, overrides that cannot be composed, or no valid job.
    """
    first_config: dict[str, Any] | None = None
    first_error: BaseException | None = None
    for group in _put_together_alike(jobs, folders):
        for job in group:
            try:
                config = compose_config(job, folders, compare=False, check=True)
            except UserError as error:
                if isinstance(error.__cause__, HydraException):
                    raise
                first_error = first_error or error
                continue
            except (
                Exception,
                SystemExit,
            ) as error:  # of the user's data or model, where there is no experiment
                if is_of_launcher(error):
                    raise
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


def _name_refused(jobs: Sequence[Sequence[str]], folders: Sequence[Path]) -> None:
    """Print the jobs whose settings are refused, before the first is computed; of many jobs those of a few seconds.

    Their parts are made, unless they are for a GPU, which this machine may lack. The others run, and the sweep ends
    with all failures.

    Raises:
        UserError: all jobs are refused.
    """
    from mhrun.engine.assemble import methods_of

    end, refused = time.monotonic() + _CHECK_SECONDS, 0
    for number, job in enumerate(jobs, 1):
        if time.monotonic() > end:
            return
        try:
            config = compose_config(job, folders, compare=False)
            if config["device"] == "cpu":
                methods_of(config)
        except UserError as error:
            refused += 1
            _say(f"job {number} of {len(jobs)} will fail: {_writable(reason(error))}")
        except (Exception, SystemExit) as error:  # of the user's code, with which the job will end
            if is_of_launcher(error):
                raise
    if refused == len(jobs):
        raise UserError("no job of this sweep can run.")


def _put_together_alike(
    jobs: Sequence[Sequence[str]], folders: Sequence[Path]
) -> Iterable[list[Sequence[str]]]:
    """Return groups of jobs that differ in plain values only, so that Hydra composes one if it composes the others.

    Composing a job takes a third of a second, too long for each of many jobs.
    """
    groups = {path.name for place in (CONF, *folders) for path in place.iterdir() if path.is_dir()}
    lots: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for job in jobs:
        keys = {override: override.partition("=")[0].lstrip("+~").partition("@")[0] for override in job}
        deciding = [w for w, key in keys.items() if key.split("/")[0] in groups or key == "runtime.outputs"]
        lots.setdefault(tuple(deciding), []).append(job)
    return lots.values()


def _job(config: DictConfig) -> dict[str, Any] | None:
    """Do one job of a sweep, and return what happened, which is in a file of the sweep too.

    None if a worker that died had done the job and its file cannot be read.

    Never raises but when the user stops, or when the launcher does because the job is queued again.
    """
    hydra = HydraConfig.get()
    place = Path(hydra.sweep.dir)
    sweep = read_json(place / "sweep.json") or {}
    number = hydra.job.num
    result_path, log, begun_path = (_file_of(place, number, kind) for kind in ("json", "log", "begun"))
    if result_path.exists():  # this job was done before a worker of another died
        return read_json(result_path)
    overrides = _swept_only(hydra.overrides.task, sweep["swept"])
    result: dict[str, Any] = {"number": number, "overrides": overrides, "status": FAILED, "log": str(log)}
    title = f"job {number + 1} of {sweep['jobs']}"
    print(f"{title}: {' '.join(overrides)}", file=sys.stderr, flush=True)
    write_text(begun_path, f"{os.getpid()}\n")
    register_resolvers()
    from mhrun.cli.progress import Notes
    from mhrun.report.build import reported

    runs_alone = str(hydra.launcher._target_).endswith("BasicLauncher")
    try:
        experiment = hydra.runtime.choices.get("experiment")
        plain = compared(resolved(config, experiment or sweep["experiment"]), sweep["reference"])
        if experiment is None:
            check_own(plain)
        fixed = [override for override in hydra.overrides.task if override not in overrides]
        plain = with_replaced_parts(plain, fixed)
        check_runtime_of_files(plain["runtime"], hydra.overrides.task)
        if not runs_alone and (cores := _share(hydra.launcher)) is not None:
            os.environ[CORES] = str(cores)  # of this worker
        result["folder"] = str(RunFolder.of(plain).path)
        folder = compute(plain, None if runs_alone else Notes(f"{title}:"))
        result |= {"status": DONE, "digest": folder.digest}
        if plain["runtime"]["report"] and not reported(folder):
            result |= {"error": "a part of its report could not be made", "log": str(folder.log)}
    except Interrupted as stop:
        _say(f"{stop}. What is computed is kept; {stop.command} resumes it.")
        raise KeyboardInterrupt from stop
    except UserError as error:
        show_traceback(error)
        write_text(log, traceback.format_exc())
        result["error"] = _writable(reason(error))
        _say(f"{title} failed: {result['error']} (log: {log})")
    except (Exception, SystemExit) as error:  # SystemExit: of the user's code, which is to end no other job
        if is_of_launcher(error):
            raise
        show_traceback(error)
        crash = crash_of(error)
        write_text(log, traceback.format_exc())
        result |= {"error": _writable(crash.line), "bug": not crash.of_user}
        _say(f"{title} failed: {result['error']} (log: {log})")
    write_json(result_path, result)
    with suppress(OSError):
        begun_path.unlink()
    return result


def _writable(text: str) -> str:
    """Return a text with characters that UTF-8 cannot encode escaped: an exception may quote anything."""
    return text.encode(errors="backslashreplace").decode()


def _share(launcher: DictConfig) -> int | None:
    """Return how many cores a job has, where the launcher has several on one machine; None: all it may use."""
    if "n_jobs" in launcher:  # joblib; -1: a job for each core, -2: for all but one
        cores = usable_cores()
        n_jobs = int(launcher.n_jobs) if launcher.n_jobs > 0 else cores + 1 + int(launcher.n_jobs)
        return max(1, cores // max(1, n_jobs))
    if "remote" in launcher:
        return max(1, int(launcher.remote.get("num_cpus") or 1))
    return None
