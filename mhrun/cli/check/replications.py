"""Runs a method on simulated data sets, concurrently on idle cores, and tests the ranks."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhrun.cli.check.calibration_study import Setting, Study, study_of
from mhrun.durations import describe_duration
from mhrun.messages import say

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mhrun.check.calibration import MethodCalibration
    from mhrun.engine.method import Method
    from mhrun.engine.watcher import Silent

_EVERY = 10.0  # seconds between lines on the progress
_PAYS = 20.0  # seconds of work that are left, for which processes are started
_PROCESS = 1 << 30  # bytes of a process


def calibration_of(study: Study, method: Method, *, quiet: bool) -> MethodCalibration:
    """Run a method on each data set, and judge the ranks.

    Args:
        study: the data sets.
        method: one of the study.
        quiet: whether progress is not printed.

    Raises:
        Refusal: the method cannot be run on the data sets.
    """
    import numpy as np
    import torch

    from mhrun.check.calibration import MethodCalibration, calibrated
    from mhrun.check.results import NONE, CheckResult
    from mhrun.diagnostics.chains import ess
    from mhrun.engine.pilot import is_open

    simulation, counts = study.simulations[method.name], study.counts[method.name]
    replications, chains = len(simulation.truth), method.shape.chains
    plan = method.plan.filled(torch.ones(chains), None) if is_open(method) else method.plan
    hot = plan.controls(plan.start(), method.shape.total, 1).temperature[0, :: method.kernel.rungs]
    if bool((hot != 1).any()):
        detail = f"it samples at temperature {float(hot.max()):g}, not the posterior"
        return MethodCalibration(CheckResult(method.name, NONE, detail), {}, {})
    if _at_once(method):
        watcher = None if quiet else _reporting(method.name)
        draws, valid = _run(method, simulation.data, counts, chains * replications, method.seed, watcher)
        draws = draws.reshape(replications, -1, *draws.shape[1:])
    else:
        parts = list(_one_by_one(study, method, quiet))
        draws = np.stack([set_draws[:: method.kernel.rungs] for set_draws, _ in parts])
        valid = all(is_valid for _, is_valid in parts)
    if not valid:
        return MethodCalibration(CheckResult(method.name, NONE, "only some of its draws are valid"), {}, {})
    return calibrated(
        method.name, method.target.model, simulation, draws, ess, len(study.methods), method.seed
    )


def _one_by_one(study: Study, method: Method, quiet: bool) -> Iterator[tuple[npt.NDArray[np.float64], bool]]:
    """Yield the draws on each data set, and whether they are valid.

    The first one is run here; it shows whether processes for the others pay.
    """
    replications, began = len(study.simulations[method.name].truth), time.monotonic()
    sets = _Sets(method.name, replications)
    watcher = None if quiet else _reporting(f"{method.name}, data set 1")
    yield _on_set(study, method, 0, watcher)
    jobs = _jobs(study, method, (time.monotonic() - began) * (replications - 1))
    if not quiet:
        sets.done(1, jobs)
    for k, found in enumerate(_others(study, method, replications, jobs), 2):
        if not quiet:
            sets.done(k, jobs)
        yield found


def _others(
    study: Study, method: Method, replications: int, jobs: int
) -> Iterator[tuple[npt.NDArray[np.float64], bool]]:
    """Yield what is found on the data sets after the first, in their order."""
    if jobs == 1:
        for k in range(1, replications):
            yield _on_set(study, method, k)
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin_process, (study.setting,))
    try:
        yield from pool.map(_in_process, [method.name] * (replications - 1), range(1, replications))
    except BaseException:  # a failure, or Ctrl-C: results under way are not needed
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _jobs(study: Study, method: Method, seconds: float) -> int:
    """Return how many processes run the data sets that are left, which take these seconds in one."""
    from mhrun.data.memory import available
    from mhrun.engine.jobs import idle_cores, separable

    left = study.setting.replications - 1
    if os.name != "posix" or not separable([method], None):
        return 1
    if study.jobs is not None:
        return max(1, min(study.jobs, left))
    if seconds < _PAYS:
        return 1
    return max(1, min(left, int(idle_cores()), int(available() // _PROCESS)))


_study: Study | None = None  # of a process of the pool


def _begin_process(setting: Setting) -> None:
    """Make the study in a process, which has one core. What it prints goes to the standard error output."""
    from mhrun.cores import CORES

    global _study
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the end of a process, without a traceback
    os.environ[CORES] = "1"
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # the first data set has shown them
    _study = study_of(setting)


def _in_process(name: str, which: int) -> tuple[npt.NDArray[np.float64], bool]:
    assert _study is not None
    return _on_set(_study, _study.methods[name], which)


def _on_set(
    study: Study, method: Method, which: int, watcher: Silent | None = None
) -> tuple[npt.NDArray[np.float64], bool]:
    """Return the draws (C, S, P) of a method on one of the data sets, and whether all are valid."""
    data = study.simulations[method.name].data.one(which)
    return _run(method, data, study.counts[method.name], method.shape.chains, method.seed + which, watcher)


def _reporting(name: str) -> Silent:
    """Return what prints the progress of a method's run, after ten seconds and then every ten."""
    from mhrun.engine.call.progress import Progress

    class NamedProgress(Progress):
        def _print(self, line: str) -> None:
            super()._print(f"{name}: {line}")

    return NamedProgress()


class _Sets:
    """Prints how many data sets are done and how long the others will take: after the first, and every ten seconds."""

    def __init__(self, name: str, replications: int) -> None:
        self._name, self._all = name, replications
        self._began = self._last = time.monotonic()

    def done(self, count: int, jobs: int = 1) -> None:
        """Note that `count` data sets are done, and that the others are run by so many processes."""
        now = time.monotonic()
        seconds_left = (now - self._began) / count * (self._all - count)
        if count == 1:
            seconds_left /= jobs
        is_long = seconds_left >= _EVERY if count == 1 else now - self._last >= _EVERY
        if not is_long or count == self._all:
            return
        self._last = now
        say(
            f"{self._name}: {count} of {self._all} data sets, about {describe_duration(seconds_left)} left"
            + (f", in {jobs} processes" if count == 1 and jobs > 1 else "")
        )


def _at_once(method: Method) -> bool:
    """Return whether data sets can be run as chains of one run: a step reads for all chains, and no pilot is needed.

    Built-in models have full-data sums and compiled loops, which read the one data set of a target.
    """
    from mhrun.engine.pilot import is_open
    from mhrun.kernels import MetropolisHastings, Unadjusted
    from mhrun.models.function import FunctionModel
    from mhrun.parts import DIFFERENCE

    if is_open(method):  # a pilot finds the settings for one posterior
        return False
    if not isinstance(method.target.model, FunctionModel) or method.target.surrogate is not None:
        return False
    if type(method.kernel) is MetropolisHastings:
        return method.kernel.pairing is not None and method.kernel.pairing.offers == DIFFERENCE
    return type(method.kernel) is Unadjusted


def _run(
    method: Method,
    data: Any,
    counts: Mapping[str, int],
    chains: int,
    seed: int,
    watcher: Silent | None = None,
) -> tuple[npt.NDArray[np.float64], bool]:
    """Return the draws (C, S, P) of a method on other data, and whether all are valid."""
    from mhrun.engine.assemble import assembled
    from mhrun.engine.pilot import piloted
    from mhrun.engine.run_method import run_method
    from mhrun.engine.settings import Settings
    from mhrun.engine.watcher import Silent
    from mhrun.store.netcdf import flat_draws, open_trace

    other_counts = {"chains": chains, "thin": 1, "thin_stats": None, "seed": seed}
    method_on_data = assembled(
        method.name,
        method.kernel,
        method.target.on(data),
        method.plan.schedules,
        {**counts, **other_counts},
        dtype=method.dtype,
        starts=method.starts,
        monitor=None,
        precondition=method.precondition,
    )
    method_on_data.check_data()
    method_on_data = piloted(method_on_data, None, lambda line: None)
    with tempfile.TemporaryDirectory(prefix="mhrun-") as folder:
        run_method(method_on_data, Path(folder), Settings(), watcher or Silent(), lambda: False, {})
        with open_trace(Path(folder)) as trace:
            return flat_draws(trace["posterior"]), bool(trace["sample_stats"]["valid"].all())
