"""``mhrun experiment=NAME --dry-run``: the cost of a run, from a short trial that writes nothing."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.overrides import sweep_jobs, swept_only
from mhrun.cli.exit_status import FAILED, OK
from mhrun.cli.report_functions import check_report
from mhrun.data.memory import in_bytes
from mhrun.durations import describe_duration
from mhrun.errors import UserError
from mhrun.numbers import in_figures
from mhrun.store.folder import RunFolder

if TYPE_CHECKING:
    from mhrun.engine.estimate import Cost
    from mhrun.engine.method import Method
    from mhrun.engine.settings import Settings

_SWEEP_SECONDS = 30.0  # seconds of the trials of all jobs of a sweep
_BETWEEN = 10.0  # seconds between two lines on how many methods have been tried


class _SetUp(NamedTuple):
    """What a method takes before its first step: its pilot, and the mode of its surrogate."""

    evaluations: float  # log-likelihoods and gradients
    seconds: float


class _RunCost(NamedTuple):
    """The cost of a run, of the methods that are left."""

    costs: list[Any]  # of its methods
    setups: dict[str, _SetUp]  # of the methods that have not begun
    seconds: tuple[float, float]  # of all, and an upper bound
    jobs: int  # methods that run at a time
    disk: int  # bytes at most


def dry_run(overrides: Sequence[str], folders: Sequence[Path], multirun: bool) -> int:
    """Print the cost of the run, or of each job of the sweep; nothing is written to the outputs.

    Raises:
        UserError: as the run itself would.
    """
    if not multirun:
        config = compose_config(overrides, folders, compare=False, check=True)
        check_report(config)
        width = None if sys.stdout.isatty() else 120  # a pipe has no width
        _of_run(config, Console(width=width))
        return OK
    jobs, swept = sweep_jobs(overrides)
    return _of_sweep([(job, swept_only(job, swept)) for job in jobs], folders)


def _of_run(config: Mapping[str, Any], console: Console) -> None:
    from mhrun.engine.estimate import about

    folder = RunFolder.of(config)
    if _is_done(config, folder):
        print(f"This run exists already: {folder.path}; the same command makes its report if necessary.")
        return
    run_cost = _run_cost(config, folder, None, set())
    costs = run_cost.costs
    console.print(_costs_table(run_cost))
    if not costs:
        print("nothing is left to run but the report: it has no methods, or all have run")
    note = f" with {run_cost.jobs} methods at a time" if run_cost.jobs > 1 else ""
    print(f"in all  {about(run_cost.seconds)}{note}, the report not counted")
    print(
        f"disk    at most {in_bytes(run_cost.disk)} in {folder.path}; {in_bytes(_free(folder.path))} free there"
    )
    for line in _memory(config, costs):
        print(line)


def _costs_table(run_cost: _RunCost) -> Table:
    """Return a row for each method that is left to run: its size, and the cost of its steps and of its pilot."""
    from mhrun.engine.estimate import about

    costs = run_cost.costs
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    monitored = any(cost.monitor_runs for cost in costs)
    headings = [
        "chains",
        "steps",
        *(["monitor runs"] if monitored else []),
        "likelihoods",
        "gradients",
        "disk",
        "time",
    ]
    if any(setup.evaluations for setup in run_cost.setups.values()):
        headings += ["pilot", "its time"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for cost in costs:
        setup = run_cost.setups.get(cost.method, _SetUp(0, 0))
        row = (
            cost.method,
            f"{cost.chains:,}",
            f"{cost.steps:,}",
            *([f"{cost.monitor_runs:,}" if cost.monitor_runs else ""] if monitored else []),
            _number(cost.n_lik),
            _number(cost.n_grad),
            in_bytes(cost.disk),
            about(cost.seconds).removeprefix("about "),
            _number((setup.evaluations, setup.evaluations)),
            describe_duration(setup.seconds) if setup.evaluations else "",
        )
        table.add_row(*row[: 1 + len(headings)])
    return table


def _of_sweep(jobs: Sequence[tuple[list[str], list[str]]], folders: Sequence[Path]) -> int:
    from mhrun.engine.estimate import about

    seconds, disk, existing, refused, paths = [0.0, 0.0], 0, 0, 0, set()
    methods_seen: set[str] = set()  # digests of methods that jobs before have
    for job, swept in jobs:
        try:
            config = compose_config(job, folders, compare=False, check=True)
            check_report(config)
            folder = RunFolder.of(config)
            if folder.path in paths or _is_done(config, folder):
                existing += 1
                print(f"{' '.join(swept)}: there already")
                continue
            paths.add(folder.path)
            trial_seconds = _SWEEP_SECONDS / len(jobs) / max(1, len(config["methods"]))
            run_cost = _run_cost(config, folder, min(1.0, trial_seconds), methods_seen)
        except UserError as error:
            refused += 1
            print(f"{' '.join(swept)}: {error}", file=sys.stderr)
            continue
        seconds = [a + b for a, b in zip(seconds, run_cost.seconds, strict=True)]
        disk += run_cost.disk
        disk_need = f"at most {in_bytes(run_cost.disk)} on disk"
        print(f"{' '.join(swept)}: {about(run_cost.seconds)}, {disk_need}", flush=True)
    print(
        f"in all  {len(jobs)} jobs, {existing} of them there already, {refused} refused; one after the other "
        f"{about((seconds[0], seconds[1]))}, reports not counted; at most {in_bytes(disk)} on disk"
    )
    return FAILED if refused else OK


def _is_done(config: Mapping[str, Any], folder: RunFolder) -> bool:
    return folder.is_complete() and not config["runtime"]["force"] and not folder.damage()


def _run_cost(
    config: Mapping[str, Any], folder: RunFolder, trial_seconds: float | None, seen_digests: set[str]
) -> _RunCost:
    """Return what a run would take, after its checks.

    Methods that another run has, or whose digest is in `seen_digests`, cost nothing; the digests of the others are
    added to it.
    """
    import torch

    from mhrun.engine.assemble import check_data, methods_of
    from mhrun.engine.disk_space import check_space, trace_bytes
    from mhrun.engine.estimate import total
    from mhrun.engine.execution.executors import check_executor
    from mhrun.engine.jobs import jobs_of, separable
    from mhrun.engine.settings import Settings
    from mhrun.store.identity import method_digest
    from mhrun.store.sharing import finished_elsewhere

    runtime = config["runtime"]
    settings = Settings(config["executor"], runtime["threads"], runtime["block_seconds"])
    torch.set_num_threads(settings.threads or 1)
    methods = methods_of(config)
    check_space(methods, folder.path, force=bool(runtime["force"]))
    check_data(methods)
    check_executor(methods, settings.executor, settings.threads)
    if not runtime["force"]:
        digests = {method.name: method_digest(config, method.name) for method in methods}
        methods = [
            method
            for method in methods
            if digests[method.name] not in seen_digests
            and finished_elsewhere(folder, method.name, digests[method.name]) is None
        ]
        seen_digests |= set(digests.values())
    # A forced run starts again: it has no folder to resume from.
    methods_folder = folder.path / "methods" if not runtime["force"] else folder.path / "none"
    methods, setups = _set_up(methods, methods_folder)
    estimates = _tried(methods, methods_folder, settings, trial_seconds)
    unfinished = {cost.method for cost in estimates}
    separable_methods = separable(
        [method for method in methods if method.name in unfinished], settings.threads
    )
    jobs = jobs_of(runtime.get("jobs"), separable_methods, settings)
    # The search of each method's set-up counts with its steps.
    with_set_up = []
    for cost in estimates:
        least, most = (seconds + _seconds(setups, cost.method) for seconds in cost.seconds)
        with_set_up.append(cost._replace(seconds=(least, most)))
    seconds = total(with_set_up, jobs, {method.name for method in separable_methods})
    return _RunCost(estimates, setups, seconds, jobs, sum(trace_bytes(method) for method in methods))


def _set_up(methods: Sequence[Method], folder: Path) -> tuple[list[Method], dict[str, _SetUp]]:
    """Return the methods with the settings that their pilots find, and what that takes for those that have not begun.

    An open minibatch size decides what a step reads, so that pilots are run. Nothing of them is kept.
    """
    from mhrun.engine.pilot import piloted
    from mhrun.report.efficiency import pilot_passes
    from mhrun.store.blocks import steps_done

    ready, setups = [], {}
    for method in methods:
        before = time.perf_counter()
        filled = piloted(method, None, lambda line: None)
        count = pilot_passes(filled.pilot, method.kernel.separate_gradients())
        if (surrogate := method.target.surrogate) is not None:
            surrogate.pack()  # finds its mode
            count += surrogate.n_grad
        if not steps_done(folder / method.name):
            setups[method.name] = _SetUp(count, time.perf_counter() - before)
        ready.append(filled)
    return ready, setups


def _tried(
    methods: Sequence[Method], methods_folder: Path, settings: Settings, trial_seconds: float | None
) -> list[Cost]:
    """Return the costs of the methods, each from a trial; print from time to time how many have been tried."""
    from mhrun.engine.estimate import costs

    estimates: list[Cost] = []
    last_line = time.monotonic()
    for place, method in enumerate(methods):
        if time.monotonic() > last_line + _BETWEEN:
            last_line = time.monotonic()
            print(f"{place} of {len(methods)} methods tried, next {method.name}", file=sys.stderr)
        estimates += costs([(method, methods_folder / method.name)], settings, trial_seconds)
    return estimates


def _seconds(setups: Mapping[str, _SetUp], method: str) -> float:
    return setups[method].seconds if method in setups else 0.0


def _memory(config: Mapping[str, Any], costs: Sequence[Any]) -> list[str]:
    """Return lines on memory: the peak of the trial, and the draws that a run holds besides."""
    if sys.platform == "win32":  # which has no such measurement
        return []
    import resource

    import torch

    from mhrun.engine.settings import HELD_BYTES

    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    held_bytes = max((min(HELD_BYTES, 2 * cost.disk) for cost in costs), default=0)
    lines = [f"memory  about {in_bytes(peak + held_bytes)} ({in_bytes(peak)} in this trial)"]
    if str(config["device"]).startswith("cuda"):
        lines.append(f"        {in_bytes(torch.cuda.max_memory_allocated(config['device']))} of the GPU's")
    return lines


def _free(path: Path) -> int:
    return shutil.disk_usage(next(p for p in (path, *path.absolute().parents) if p.exists())).free


def _number(between: tuple[float, float]) -> str:
    if not between[1]:
        return ""
    low, high = (in_figures(value, 2) for value in between)
    return low if low == high else f"{low} to {high}"
