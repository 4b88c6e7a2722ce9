"""Steps as captured graphs, for a GPU and for wide models."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mhrun.engine.execution.pure_step import Step
from mhrun.engine.execution.steps import CapturedSteps
from mhrun.engine.execution.stepwise import StepwiseExecutor
from mhrun.engine.method import Method
from mhrun.random import Draws
from mhrun.torch_private import lookup_backend
from mhrun.types import Controls, Info, State

GRAPH = "graph"
_WARM = 3  # steps on a side stream before a capture, as CUDA requires


class GraphExecutor(StepwiseExecutor):
    """Replays captured steps: CUDA graphs on a GPU, else `torch.compile`; what cannot be captured runs in torch.

    Results agree with the executor `torch` to rounding: each graph is compared with it on the captured step, and is not
    used if they differ.

    Args:
        method: what is run.
        note: called with a line for each reason why steps run in torch.
        backend: of `torch.compile`; None for inductor if there is a C++ compiler, else aot_eager.
    """

    name = GRAPH

    def __init__(
        self, method: Method, note: Callable[[str], None] = lambda line: None, backend: str | None = None
    ) -> None:
        super().__init__(method, compiled=False)
        backend = backend or ("inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager")
        self.steps = GraphSteps(method, self._draws, note, backend)

    def prepare(self, state: State) -> None:
        """Do nothing: a graph is captured at the first step of its kind."""

    def _step(self, state: State, controls: Controls) -> tuple[State, Info]:
        return self.steps(state, controls)


class GraphSteps(CapturedSteps):
    """Steps that are captured as graphs, see `GraphExecutor`."""

    def __init__(self, method: Method, draws: Draws, note: Callable[[str], None], backend: str) -> None:
        super().__init__(method.kernel, method.target, draws)
        self._name, self._note, self._backend = method.name, note, backend
        self._rounding = 1e-3 if method.dtype == torch.float32 else 1e-8
        self._reasons_reported: set[str] = set()
        self.compilations = 0

    def capture(self, step: Step, inputs: list[Tensor]) -> Step:
        """Return a CUDA graph of the step, or what `torch.compile` makes of it."""
        if inputs[0].is_cuda:
            return _cuda(step, inputs)
        with warnings.catch_warnings():  # torch's compiler imports parts of torch that are deprecated
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\.")
            return self._compiled(step, inputs)

    def agree(self, one: Tensor, other: Tensor) -> bool:
        """Return whether two tensors agree to rounding; ratios and counts in float64 have that of the state."""
        if not one.is_floating_point():
            return torch.equal(one, other)
        return torch.allclose(one, other, rtol=self._rounding, atol=self._rounding, equal_nan=True)

    def _compiled(self, step: Step, inputs: list[Tensor]) -> Step:
        """Trace the step without data, which detects dependence on data, and compile the trace once."""
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(inputs)
        before = self.compilations

        def counted(module: Any, example: Any) -> Any:
            self.compilations += 1
            if self.compilations > before + 1:
                raise RuntimeError("its graph was compiled again")
            return lookup_backend(self._backend)(module, example)

        compiled: Step = torch.compile(traced, fullgraph=True, dynamic=False, backend=counted)
        buffers = [value.clone() for value in inputs]  # the same tensors each time: nothing to compile again

        def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            for buffer, value in zip(buffers, tensors, strict=True):
                buffer.copy_(value)
            return [value.clone() for value in compiled(buffers)]

        return run

    def refused(self, reason: str) -> None:
        """Report why a kind of step runs in torch, each reason once."""
        if reason not in self._reasons_reported:
            self._reasons_reported.add(reason)
            self._note(f"{self._name}: some of its steps run in torch, not as a graph: {reason}.")


def _cuda(step: Step, inputs: list[Tensor]) -> Step:
    """Capture a step in a CUDA graph with its own buffers; device synchronisation fails here."""
    buffers = [value.clone() for value in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM):
            step(buffers)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step(buffers)

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        for buffer, value in zip(buffers, tensors, strict=True):
            buffer.copy_(value)
        graph.replay()
        return [value.clone() for value in outputs]

    return run
