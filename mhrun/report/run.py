"""A run as passed to report functions."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import xarray as xr

from mhrun.build import build
from mhrun.diagnostics.ladders import ReplicaFlow, replica_flow
from mhrun.errors import UserError
from mhrun.kernels.stationary import Samples, describe_kind, kind_of
from mhrun.schedules.plan import Plan
from mhrun.store.blocks import damage
from mhrun.store.draws import places_of_draws, steps_of_draws, validity
from mhrun.store.folder import RunFolder
from mhrun.store.identity import parts_of
from mhrun.store.netcdf import TRACE, flat_draws, open_trace, parameter_names
from mhrun.store.pilot_facts import PilotFacts
from mhrun.store.sources import changed_files
from mhrun.store.targets import Targets
from mhrun.target import Target
from mhrun.types.info import EVALUATIONS

T = TypeVar("T")

_KEPT = 256 << 20  # bytes of draws in memory, besides those of the method that was read last
# A sweep has more traces than a process may open files: those of all runs that are open, in the order of opening.
_MOST_OPEN = 64
_OPENED: deque[tuple[weakref.ref[Run], str]] = deque()


class Run:
    """A complete run: its configuration, summary, traces and target."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._draws: dict[str, npt.NDArray[np.float64]] = {}
        self._cached: dict[Callable[..., Any], Any] = {}
        self._failed: dict[Callable[..., Any], Exception] = {}
        self._traces: dict[str, xr.DataTree] = {}
        self._monitors: dict[str, xr.Dataset] = {}
        self._coldest: dict[str, npt.NDArray[np.bool_]] = {}

    def cached(self, function: Callable[[Run], T]) -> T:
        """Return ``function(self)``, computed at the first call; an error is raised again at each call."""
        if function in self._failed:
            raise self._failed[function]
        if function not in self._cached:
            try:
                self._cached[function] = function(self)
            except Exception as error:
                self._failed[function] = error
                raise
        result: T = self._cached[function]
        return result

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self.folder.config()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary written by the engine."""
        return self.folder.summary() or {}

    @cached_property
    def changed_files(self) -> list[str]:
        """The user's files, of data and of Python, that are not as they were when the run was made."""
        return changed_files(self.config)

    @cached_property
    def target(self) -> Target:
        """The target with its data, on the CPU."""
        return self._targets.of_experiment()

    def target_of(self, method: str) -> Target:
        """The target of a method, see `parts_of`."""
        return self._targets.of(method)

    @cached_property
    def _targets(self) -> Targets:
        return Targets(self.config, device="cpu")

    def samples(self, method: str) -> Samples:
        """The stationary distribution of a method, declared by its parts."""
        return Samples(**self.methods[method]["samples"])

    def kind(self, method: str) -> str:
        """The kind of a method, see `kind_of`."""
        target = parts_of(self.config, method)["target"] or {}
        return kind_of(self.samples(method), float(target.get("energy_noise") or 0.0))

    def describe_kind(self, method: str) -> str:
        """The kind of a method as tables show it, see `describe_kind`."""
        return describe_kind(self.samples(method), self.kind(method))

    def expected_error(self, method: str) -> str:
        """How far off sds are by the settings that the pilot chose, in words; empty if unknown."""
        pilot: PilotFacts = self.methods[method].get("pilot") or PilotFacts()
        error, bias = pilot.get("variance_error"), pilot.get("variance_bias") or 0.0
        if not error:
            return ""
        most = f"{(1 + error) ** 0.5 - 1:.0%} too large by its settings if the posterior is normal"
        # A thermostat removes some of the error, and has a bias in the other direction
        return f"sd {1 - (1 + bias) ** 0.5:.0%} too small to {most}" if bias < 0 else f"sd up to {most}"

    def plan(self, method: str) -> Plan:
        """The schedules of a method, combined."""
        node, summary = self.config["methods"][method], self.methods[method]
        schedules = build(node["schedules"], f"methods.{method}.schedules")
        plan = Plan(schedules, summary["chains"], summary["warmup"], summary["steps"])
        if plan.is_open and (pilot := summary.get("pilot")):
            plan = plan.filled(
                torch.tensor(pilot["step_size_by_chain"], dtype=torch.float64), pilot["acceptance"]
            )
        return plan

    def is_coldest(self, method: str) -> npt.NDArray[np.bool_]:
        """Whether each chain of `draws` has the lowest temperature of all chains at the last step (C,)."""
        if method not in self._coldest:
            plan = self.plan(method)
            last = plan.controls(plan.start(), plan.total, 1).temperature[0, :: self.rungs(method)].numpy()
            self._coldest[method] = last == last.min()
        return self._coldest[method]

    def rungs(self, method: str) -> int:
        """The number of rungs of a method's ladders; 1 without ladders.

        Reports show a ladder by its coldest rung, with the cost of all rungs.
        """
        return int(self.methods[method]["rungs"])

    @property
    def methods(self) -> Mapping[str, dict[str, Any]]:
        """The summaries of the methods, in the order they ran."""
        methods: dict[str, dict[str, Any]] = self.summary["methods"]
        return methods

    def label(self, method: str) -> str:
        """The label of a method, unique in the run."""
        return labels(self.config, self.methods)[method]

    def by_method(self, found: Mapping[str, Any], columns: Mapping[str, str]) -> pd.DataFrame:
        """Return a table with a row per method; `columns` maps headings to metrics of `found`.

        The address of a metric is ``<method>.<metric>``; missing ones stay empty.
        """
        rows = {
            self.label(method): {heading: found.get(f"{method}.{name}") for heading, name in columns.items()}
            for method in self.methods
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    def trace(self, method: str) -> xr.DataTree:
        """The trace of a method; arrays are read lazily, again at each use.

        It is opened once, as that takes longer than to read a statistic of a short run. The returned tree is a view:
        closing it leaves the file open for the next reader.

        Raises:
            UserError: it cannot be read, or does not belong to this run.
        """
        if (why := damage(self.folder.method(method))) is not None:
            raise UserError(
                f"{self.folder.method(method)}: {why}; run the same command again to recompute it."
            )
        if method not in self._traces:
            self._traces[method] = self._open(method)
            _OPENED.append((weakref.ref(self), method))
            while len(_OPENED) > _MOST_OPEN:
                of_run, first = _OPENED.popleft()
                if (run := of_run()) is not None and (trace := run._traces.pop(first, None)) is not None:
                    trace.close()
        return self._traces[method].copy()

    def _open(self, method: str) -> xr.DataTree:
        folder, summary = self.folder.method(method), self.methods[method]
        try:
            trace = open_trace(folder, cache=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / TRACE} cannot be read: {type(error).__name__}.") from error
        arrays = [
            (f"{group}/{name}", array)
            for group in ("posterior", "sample_stats")
            if group in trace.children
            for name, array in trace[group].to_dataset().data_vars.items()
        ]
        faults = [
            f"{name} is {array.dtype} {dict(array.sizes)}"
            for name, array in arrays
            if array.dtype.kind not in "fiub"
            or array.sizes.get("chain", summary["chains"]) != summary["chains"]
        ]
        if faults or "sample_stats" not in trace.children:
            trace.close()
            raise UserError(
                f"{folder / TRACE} is not the trace of this run: {faults[0] if faults else 'it has no sample_stats'}."
            )
        return trace

    def draws(self, method: str, *, marked: bool = False) -> npt.NDArray[np.float64]:
        """The draws after burn-in (C, S, P), in the constrained coordinates of the model's `names`.

        Those of the methods that were read last stay in memory, up to a quarter of a gigabyte.

        Args:
            method: the method.
            marked: also return draws that are not valid; `valid` marks them.

        Raises:
            UserError: the run kept none, or some draws are invalid and the report does not select among them.
        """
        summary = self.methods[method]
        if not marked and summary.get("valid_share", 1.0) < 1.0:
            raise UserError(
                f"{method}: only {summary['valid_share']:.1%} of its draws are valid, and this report does "
                "not choose among them."
            )
        if method not in self._draws:
            with self.trace(method) as trace:
                if "posterior" not in trace.children:
                    raise UserError(f"{method}: this report needs draws, and thin=null keeps none.")
                array = flat_draws(trace["posterior"])[:: self.rungs(method)]
            while self._draws and sum(draws.nbytes for draws in self._draws.values()) > _KEPT - array.nbytes:
                self._draws.popitem()  # the last: reports go through all methods time and again, in one order
            self._draws[method] = array
        return self._draws[method]

    def parameter_names(self, method: str) -> list[str]:
        """The names of the P numbers of a draw, from the trace; empty if the run kept no draws."""
        with self.trace(method) as trace:
            return parameter_names(trace["posterior"]) if "posterior" in trace.children else []

    def draw_steps(self, method: str) -> npt.NDArray[np.int64]:
        """The steps of the kept draws (S,), counted from 1 after burn-in."""
        with self.trace(method) as trace:
            return steps_of_draws(trace) - int(self.methods[method]["warmup"])

    def at_draws(self, method: str, name: str) -> npt.NDArray[Any]:
        """A statistic at the steps of the kept draws (C, S), accumulated if it is per step.

        Counts (n_lik, n_lik_overhead, n_grad) and seconds are cumulative from the first step in the trace; other
        statistics are summed over the steps after burn-in.

        Raises:
            UserError: the trace lacks the statistics of some steps.
        """
        values = self.stat(method, name)
        if name in ("n_lik", "n_lik_overhead", "n_grad", "wall_s"):
            return values[..., self._places(method)]
        self.every_step(method)
        return values.cumsum(axis=-1, dtype=np.float64)[..., self.draw_steps(method) - 1]

    def every_step(self, method: str) -> None:
        """Check that the trace has the statistics of every step.

        Raises:
            UserError: it does not.
        """
        if self.methods[method]["thin_stats"] != 1:
            raise UserError(f"{method}: this report needs the statistics of every step; set thin_stats=1.")

    def valid(self, method: str) -> npt.NDArray[np.bool_]:
        """Whether each kept draw is valid (C, S).

        Raises:
            UserError: the trace lacks the statistics of some draws.
        """
        with self.trace(method) as trace, _named_in_errors(method):
            return validity(trace)[:: self.rungs(method)]

    def _places(self, method: str) -> npt.NDArray[np.int64]:
        """The positions of the kept draws among the kept statistics (S,).

        Raises:
            UserError: the trace lacks the statistics of some draws.
        """
        with self.trace(method) as trace, _named_in_errors(method):
            return places_of_draws(trace)

    def monitor(self, method: str) -> xr.Dataset:
        """The metrics of the monitor (chain, monitor_run); empty without a monitor."""
        if method not in self._monitors:
            with self.trace(method) as trace:
                is_monitored = "monitor" in trace.children
                self._monitors[method] = (
                    trace["monitor"].to_dataset().load() if is_monitored else xr.Dataset()
                )
        return self._monitors[method]

    def stat(self, method: str, name: str) -> npt.NDArray[Any]:
        """A per-step statistic after burn-in (C, S)."""
        with self.trace(method) as trace:
            values: npt.NDArray[Any] = trace["sample_stats"][name].to_numpy()
        rungs = self.rungs(method)
        if rungs == 1 or values.ndim == 1:
            return values
        if name in EVALUATIONS:
            return values.reshape(-1, rungs, values.shape[1]).sum(axis=1)
        return values[::rungs]

    def replica_flow(self, method: str) -> ReplicaFlow:
        """How replicas moved on the ladders of a method after burn-in, from the exchanges in the trace.

        Raises:
            UserError: it is not a ladder, or the trace lacks the statistics of some exchanges.
        """
        rungs = self.rungs(method)
        if rungs == 1:
            raise UserError(f"{method}: this report needs a ladder.")
        summary = self.methods[method]
        every = summary["exchange_every"] or 1  # a kernel of the user's may exchange after any step
        thin = summary["thin_stats"]
        if every % thin or summary["warmup"] % thin:
            raise UserError(
                f"{method}: this report needs every exchange; set thin_stats to {every} or a divisor of it."
            )
        with self.trace(method) as trace:
            exchanges = trace["sample_stats"]["exchange"].to_numpy()
        return replica_flow(
            exchanges[:, (exchanges > 0).any(axis=0)].reshape(
                -1, rungs, int((exchanges > 0).any(axis=0).sum())
            )
        )


@contextmanager
def _named_in_errors(method: str) -> Iterator[None]:
    """Name the method in a message on its trace."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{method}: {error}") from error


def labels(config: Mapping[str, Any], methods: Iterable[str]) -> dict[str, str]:
    """Return the label of each method; equal labels are extended by the method's name."""
    plain = {name: str(config["methods"][name].get("label") or name) for name in methods}
    times = Counter(plain.values())
    return {name: label if times[label] == 1 else f"{label} ({name})" for name, label in plain.items()}
