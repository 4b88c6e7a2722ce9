"""Executors of a kernel's steps: one call per step in torch, a compiled loop, or a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from mhrun.compiled import Loop, compile_loop, with_compiled_update
from mhrun.cores import usable_cores
from mhrun.engine.cost import batching_pays, compiling_pays
from mhrun.engine.execution.graph import GRAPH, GraphExecutor
from mhrun.engine.execution.replay import ReplayedSteps, replaying_pays
from mhrun.engine.execution.steps import PlainSteps
from mhrun.engine.execution.stepwise import StepwiseExecutor
from mhrun.engine.execution.threads import faster_threads, is_heavy, torch_threads
from mhrun.engine.method import Method
from mhrun.errors import Refusal, UserError, check_choice
from mhrun.types import INFO_DEFAULTS, INFO_DTYPES, Controls, Info, Record, State

COMPILED, TORCH = "compiled", "torch"
HYBRID = "hybrid"  # torch, with compiled random numbers and passes over many parameters
EXECUTORS = ("auto", COMPILED, TORCH, GRAPH)


class Executor(Protocol):
    """Runs K steps and returns the theta of those that the method keeps; every field of `controls` is (K, C)."""

    name: str

    def prepare(self, state: State) -> None:
        """Do untimed preparations, such as compilation."""
        ...

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on."""
        ...


def choose_executor(
    method: Method,
    choice: str,
    begun_with: str | None,
    threads: int | None,
    note: Callable[[str], None] = lambda line: None,
) -> Executor:
    """Return the executor for a method.

    Args:
        method: the method to run.
        choice: one of `EXECUTORS`: compile if it pays, compile or refuse, never compile, or capture the step as a
            graph.
        begun_with: the executor of an interrupted run, which must continue with it: executors have the same
            distribution and random numbers, but round differently.
        threads: for compiled loops; None for all cores this process may use.
        note: called with messages for the user.

    Raises:
        Refusal: executor=compiled without a compiled loop.
        UserError: the run began with a compiled loop that is unavailable now.
    """
    check_choice("executor", choice, EXECUTORS)
    if begun_with == TORCH or (begun_with is None and choice == TORCH):
        return TorchExecutor(method, TORCH)
    if begun_with == GRAPH or (begun_with is None and choice == GRAPH):
        return GraphExecutor(method, note)
    if begun_with == HYBRID:
        return TorchExecutor(method)
    if begun_with is None and choice == "auto" and (not compiling_pays(method) or batching_pays(method)):
        return TorchExecutor(method)
    loop = _compiled_loop(method, threads)
    if loop is not None:
        return CompiledExecutor(loop, method)
    if begun_with == COMPILED:
        raise UserError(
            f"{method.name} began in a compiled loop, which needs numba and a CPU; install mhrun with its "
            "dependencies to resume it, or start again with runtime.force=true."
        )
    if choice == COMPILED:
        raise _no_loop([method.name])
    return TorchExecutor(method)


def prefers_compiled(method: Method) -> bool:
    """Return whether ``executor=auto`` runs a method in a compiled loop."""
    return compiling_pays(method) and not batching_pays(method) and _compiled_loop(method, None) is not None


def measured_threads(method: Method, executor: Executor) -> int:
    """Return the number of torch threads for a method's steps: more than one only if measured to be faster.

    Steps that are estimated to take seconds have all cores, without a comparison.

    Sums over several threads round differently, so that the number is kept with the method.
    """
    most = torch_threads(method, None)
    if most == 1 or not isinstance(executor, TorchExecutor) or method.target.device.type != "cpu":
        return most
    if is_heavy(method):
        return most
    second = min(2, method.shape.total)  # the first step may do more than the others
    state, controls = method.first_state(), method.plan.controls(method.plan.start(), second, 1)
    return faster_threads(most, lambda: executor.advance(state, second, controls))


def recordings_of(executor: Executor) -> int:
    """Return how many kinds of steps an executor has recorded, see `TorchExecutor.recordings`."""
    return executor.recordings if isinstance(executor, TorchExecutor) else 0


def check_executor(methods: Sequence[Method], choice: str, threads: int | None) -> None:
    """Check that every method supports the chosen executor, before the first one runs.

    Nothing is compiled here.

    Raises:
        Refusal: executor=compiled, and some methods have no compiled loop; the message names all of them.
    """
    if choice == COMPILED and (
        without := [method.name for method in methods if _compiled_loop(method, threads) is None]
    ):
        raise _no_loop(without)


def _compiled_loop(method: Method, threads: int | None) -> Loop | None:
    """Return the compiled loop of a method, or None if it has none."""
    if method.dtype != torch.float64:
        return None
    return compile_loop(method.kernel, method.target, method.key, threads or usable_cores())


def _no_loop(names: Sequence[str]) -> Refusal:
    return Refusal(
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no compiled loop here (it needs numba, a CPU, "
        "float64, and a native form of model, proposal, pairing and rule); use executor=auto."
    )


class CompiledExecutor:
    """A compiled loop."""

    name = COMPILED

    def __init__(self, loop: Loop, method: Method) -> None:
        self._loop = loop
        self._shape = method.shape

    def prepare(self, state: State) -> None:
        """Compile the loop by running zero steps."""
        none = torch.empty(0, len(state.evaluation.theta), dtype=torch.float64)
        self._loop.advance(state, 1, Controls(none, none, none))

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on."""
        state, record = self._loop.advance(state, first_step, controls)
        chains = len(state.evaluation.theta)
        defaults = {
            name: np.broadcast_to(np.asarray(value, INFO_DTYPES[name]), (chains, len(controls.step_size)))
            for name, value in INFO_DEFAULTS.items()
        }
        record = {**defaults, **record}
        indices = self._shape.kept(first_step, len(controls.step_size))
        if len(indices) < len(controls.step_size):  # a copy: a view would keep all of them in memory
            record = {**record, "theta": record["theta"][:, indices]}
        return state, record


class TorchExecutor(StepwiseExecutor):
    """One call per step, in torch, on any device; where it pays, steps are replayed from a recording, bit for bit."""

    writes_at_once = True

    def __init__(self, method: Method, name: str = HYBRID) -> None:
        super().__init__(method, compiled=name != TORCH)
        self.name = name
        kernel = method.kernel if name == TORCH else with_compiled_update(method.kernel)
        replays = name != TORCH and replaying_pays(method)
        self._steps = (ReplayedSteps if replays else PlainSteps)(kernel, method.target, self._draws)

    def prepare(self, state: State) -> None:
        """Do nothing."""

    @property
    def recordings(self) -> int:
        """How many kinds of steps it has recorded, or tried to; each takes as long as many steps, once."""
        return len(self._steps.kinds) if isinstance(self._steps, ReplayedSteps) else 0

    def _step(self, state: State, controls: Controls) -> tuple[State, Info]:
        return self._steps(state, controls)
