"""Steps as captured graphs, for a GPU and for wide models.

The step of a kernel is a pure function of tensors, so it can be recorded once and replayed. A first step shows which
random numbers it needs; these are then drawn outside of the graph and passed in. The kind of step (an exchange is due,
momenta are redrawn) selects one of a few graphs.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.engine.stepwise import StepwiseExecutor
from mhrun.errors import reason
from mhrun.random import Draws, Streams
from mhrun.types import Controls, Evaluation, Info, State

GRAPH = "graph"
_KINDS = 32  # most kinds of steps with a graph
_WARM = 3  # steps on a side stream before a capture, as CUDA requires

Step = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Dynamic(Exception):
    """A step requests random numbers that depend on data."""


@dataclass
class Requests:
    """The requests of a step, in order."""

    numbers: list[Callable[[Draws], Tensor]] = field(default_factory=list)
    kinds: list[tuple[Callable[[Draws], Hashable], Hashable]] = field(
        default_factory=list
    )  # with their answers

    def holds(self, draws: Draws) -> bool:
        """Return whether this step is of the same kind."""
        return all(ask(draws) == answer for ask, answer in self.kinds)


class _Source(ABC):
    """The interface of `Draws` over two functions: one for tensors, and one for answers that select a kind of step."""

    def __init__(self, draws: Draws, rows: int | None = None) -> None:
        self.device = draws.device
        self.on_host = False
        self.chains = draws.chains if rows is None else rows
        self.streams = Streams(0, self.chains, draws.device)  # no compiled generator or update within a graph

    @abstractmethod
    def tensor(self, ask: Callable[[Draws], Tensor]) -> Tensor:
        """Return the random numbers of a request."""

    @abstractmethod
    def kind(self, ask: Callable[[Draws], Any]) -> Any:
        """Return the answer of a request that selects a kind of step."""

    def normal(self, *args: Any, **named: Any) -> Tensor:
        return self.tensor(lambda draws: draws.normal(*args, **named))

    def uniform(self, *args: Any, **named: Any) -> Tensor:
        return self.tensor(lambda draws: draws.uniform(*args, **named))

    def uniforms(self, *args: Any, **named: Any) -> Tensor:
        return self.tensor(lambda draws: draws.uniforms(*args, **named))

    def index(self, *args: Any, rows: Tensor | None = None, start: int = 0, **named: Any) -> Tensor:
        if rows is not None or start:
            raise Dynamic("its minibatch grows as the data decide")
        return self.tensor(lambda draws: draws.index(*args, **named))

    def arrivals(self, *args: Any, **named: Any) -> Any:
        raise Dynamic("the data decide how many it reads")

    def uniforms_at(self, *args: Any, **named: Any) -> Tensor:
        raise Dynamic("the data decide how many it reads")

    def piece(self, *args: Any) -> Tensor:
        return self.tensor(lambda draws: draws.piece(*args))

    def choices(self, *args: Any, rows: Tensor | None = None, **named: Any) -> Tensor:
        if rows is not None:
            raise Dynamic("its minibatch grows as the data decide")
        return self.tensor(lambda draws: draws.choices(*args, **named))

    def shuffled_share(self, *args: Any) -> Tensor:
        return self.tensor(lambda draws: draws.shuffled_share(*args))

    def number(self, *args: Any) -> Tensor:
        return self.tensor(lambda draws: draws.number(*args))

    @property
    def time(self) -> Tensor:
        return self.tensor(lambda draws: draws.time)

    def due(self, *args: Any, **named: Any) -> bool:
        return cast(bool, self.kind(lambda draws: draws.due(*args, **named)))

    def before(self, *args: Any) -> bool:
        return cast(bool, self.kind(lambda draws: draws.before(*args)))

    def coin(self, *args: Any) -> bool:
        return cast(bool, self.kind(lambda draws: draws.coin(*args)))

    def parity(self, *args: Any) -> int:
        return cast(int, self.kind(lambda draws: draws.parity(*args)))

    def trial(self, *args: Any) -> Draws:
        raise Dynamic("it makes trials whose number depends on the data")

    def of_steps(self, *args: Any) -> Tensor:
        raise Dynamic("it goes on with minibatches of earlier steps")


class _Recorder(_Source):
    """Answers from `Draws`, and records the requests."""

    def __init__(
        self, draws: Draws, requested: Requests, derive: Callable[[Draws], Draws] = lambda draws: draws
    ) -> None:
        super().__init__(draws)
        self._draws, self._requests, self._derive = draws, requested, derive

    def tensor(self, ask: Callable[[Draws], Tensor]) -> Tensor:
        derive = self._derive
        self._requests.numbers.append(lambda draws: ask(derive(draws)))
        return ask(self._draws)

    def kind(self, ask: Callable[[Draws], Any]) -> Any:
        derive, answer = self._derive, ask(self._draws)
        self._requests.kinds.append((lambda draws: ask(derive(draws)), answer))
        return answer

    def part(self, name: str, rows: Tensor, every: int = 1) -> _Recorder:
        derive = self._derive
        child = self._draws.part(name, rows, every)
        return _Recorder(child, self._requests, lambda draws: derive(draws).part(name, rows, every))

    def again(self) -> _Recorder:
        derive = self._derive
        return _Recorder(self._draws.again(), self._requests, lambda draws: derive(draws).again())


class _Given(_Source):
    """Answers in the order of a recording, which makes the step a function of tensors alone."""

    def __init__(
        self, draws: Draws, numbers: Iterator[Tensor], kinds: Iterator[Hashable], rows: int | None = None
    ) -> None:
        super().__init__(draws, rows)
        self._root, self._numbers, self._kinds = draws, numbers, kinds

    def tensor(self, ask: Callable[[Draws], Tensor]) -> Tensor:
        return next(self._numbers)

    def kind(self, ask: Callable[[Draws], Any]) -> Any:
        return next(self._kinds)

    def part(self, name: str, rows: Tensor, every: int = 1) -> _Given:
        return _Given(self._root, self._numbers, self._kinds, len(rows))

    def again(self) -> _Given:
        return self


Names = tuple[tuple[str, ...], ...]


class _Kind(NamedTuple):
    """A kind of step and its graph; None if it runs in torch."""

    requests: Requests
    given: Names  # what the state and the controls have before it
    run: Step | None
    evaluation: list[str]  # names of the tensors of the next state, in the order of the outputs
    aux: list[str]
    info: list[str]


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
        self._note = note
        self._backend = backend or ("inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager")
        self._kinds: list[_Kind] = []
        self._said: set[str] = set()
        self.compilations = 0

    def prepare(self, state: State) -> None:
        """Do nothing: a graph is captured at the first step of its kind."""

    def _step(self, state: State, controls: Controls) -> tuple[State, Info]:
        kernel, target = self._method.kernel, self._method.target
        names = _given(state, controls)
        kind = next((k for k in self._kinds if k.given == names and k.requests.holds(self._draws)), None)
        if kind is None:
            return self._captured(state, controls)
        if kind.run is None:
            return kernel.step(target, state, controls, self._draws)
        numbers = [ask(self._draws) for ask in kind.requests.numbers]
        return _unpacked(kind, kind.run([*_tensors(state, controls), *numbers]))

    def _captured(self, state: State, controls: Controls) -> tuple[State, Info]:
        """Do a step of a new kind in torch, capture it, and compare the two."""
        method, requested = self._method, Requests()
        before = [value.clone() for value in _tensors(state, controls)]
        recorder = cast(Draws, _Recorder(self._draws, requested))
        try:
            after, info = method.kernel.step(method.target, state, controls, recorder)
        except Dynamic as reason:  # nothing of the step has been kept
            self._refused(str(reason))
            self._kinds.append(_Kind(requested, _given(state, controls), None, [], [], []))
            self._draws.rewind()
            return method.kernel.step(method.target, state, controls, self._draws)
        self._draws.rewind()
        numbers = [ask(self._draws) for ask in requested.numbers]
        names = (list(after.evaluation.tensors()), list(after.aux), _given_fields(info))
        kind = _Kind(requested, _given(state, controls), None, *names)
        if len(self._kinds) < _KINDS:
            try:
                step = self._pure(kind)
                run = self._capture(step, [*before, *numbers])
                replay = _unpacked(kind, run([*(value.clone() for value in before), *numbers]))
                if _agree(replay, (after, info)):
                    kind = kind._replace(run=run)
                else:
                    self._refused("its graph and torch differ")
            except Exception as error:  # in tracing or compiling: torch can always run the step
                self._refused(_reason(error))
        self._kinds.append(kind)
        return after, info

    def _pure(self, kind: _Kind) -> Step:
        """Return the step of a kind as a function of tensors: state, controls and random numbers."""
        method, draws = self._method, self._draws
        evaluation, aux, control_names = kind.given
        first, second = len(evaluation), len(evaluation) + len(aux)
        third = second + len(control_names)

        def step(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            point = Evaluation.of(dict(zip(evaluation, tensors[:first], strict=True)))
            state = State(point, dict(zip(aux, tensors[first:second], strict=True)))
            controls = Controls(**dict(zip(control_names, tensors[second:third], strict=True)))
            answers = iter([answer for _, answer in kind.requests.kinds])
            numbers = cast(Draws, _Given(draws, iter(tensors[third:]), answers))
            after, info = method.kernel.step(method.target, state, controls, numbers)
            return [
                *(after.evaluation.tensors()[name] for name in kind.evaluation),
                *(after.aux[name] for name in kind.aux),
                *(getattr(info, name) for name in kind.info),
            ]

        return step

    def _capture(self, step: Step, inputs: list[Tensor]) -> Step:
        return _cuda(step, inputs) if inputs[0].is_cuda else self._compiled(step, inputs)

    def _compiled(self, step: Step, inputs: list[Tensor]) -> Step:
        """Trace the step without data, which detects dependence on data, and compile the trace once."""
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(inputs)
        before = self.compilations

        def counted(module: Any, example: Any) -> Any:
            self.compilations += 1
            if self.compilations > before + 1:
                raise RuntimeError("its graph was compiled again")
            return torch._dynamo.lookup_backend(self._backend)(module, example)

        compiled: Step = torch.compile(traced, fullgraph=True, dynamic=False, backend=counted)
        buffers = [value.clone() for value in inputs]  # the same tensors each time: nothing to compile again

        def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            for buffer, value in zip(buffers, tensors, strict=True):
                buffer.copy_(value)
            return [value.clone() for value in compiled(buffers)]

        return run

    def _refused(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self._note(f"{self._method.name}: some of its steps run in torch, not as a graph: {reason}.")


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


def _tensors(state: State, controls: Controls) -> list[Tensor]:
    point = state.evaluation.tensors().values()
    return [*point, *state.aux.values(), *(control for control in controls if control is not None)]


def _given(state: State, controls: Controls) -> Names:
    """Return the names of the tensors of `_tensors`, in their order."""
    control_names = (name for name in controls._fields if getattr(controls, name) is not None)
    return tuple(state.evaluation.tensors()), tuple(state.aux), tuple(control_names)


def _given_fields(info: Info) -> list[str]:
    return [name for name, value in info._asdict().items() if value is not None]


def _unpacked(kind: _Kind, outputs: Sequence[Tensor]) -> tuple[State, Info]:
    tensors = iter(outputs)
    evaluation = {name: next(tensors) for name in kind.evaluation}
    aux = {name: next(tensors) for name in kind.aux}
    return State(Evaluation.of(evaluation), aux), Info(**{name: next(tensors) for name in kind.info})


def _agree(one: tuple[State, Info], two: tuple[State, Info]) -> bool:
    """Return whether two steps agree in every field, to rounding."""
    pairs = [
        *((one[0].evaluation.tensors()[name], value) for name, value in two[0].evaluation.tensors().items()),
        *((one[0].aux[name], value) for name, value in two[0].aux.items()),
        *((getattr(one[1], name), getattr(two[1], name)) for name in _given_fields(two[1])),
    ]

    # Ratios and counts in float64 have the rounding of the state from which they were computed.
    tolerance = 1e-3 if one[0].evaluation.theta.dtype == torch.float32 else 1e-8

    def close(a: Tensor, b: Tensor) -> bool:
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if not a.is_floating_point():
            return torch.equal(a, b)
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)

    return all(close(a, b) for a, b in pairs)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}, {reason(error).rstrip('.')[:160]}"
