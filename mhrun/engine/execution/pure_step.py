"""The step of a kernel as a pure function of tensors, which can be captured once and run again.

A first step shows which random numbers it needs; these are then drawn outside of the function and passed in. The kind
of step (an exchange is due, momenta are redrawn) selects one of a few captured functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from torch import Tensor

from mhrun.parts import Kernel
from mhrun.random import Draws, Streams
from mhrun.target import Target
from mhrun.types import Controls, Evaluation, Info, State

Step = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Dynamic(Exception):
    """A step requests random numbers that depend on data."""


@dataclass
class Requests:
    """The requests of a step, in order."""

    numbers: list[Callable[[Draws], Tensor]] = field(default_factory=list)
    # With their answers
    kinds: list[tuple[Callable[[Draws], Hashable], Hashable]] = field(default_factory=list)

    def holds(self, draws: Draws) -> bool:
        """Return whether this step is of the same kind."""
        return all(ask(draws) == answer for ask, answer in self.kinds)


class _Source(ABC):
    """The interface of `Draws` over two functions: one for tensors, and one for answers that select a kind of step."""

    def __init__(self, draws: Draws, rows: int | None = None) -> None:
        self.device = draws.device
        self.on_host = False
        self.chains = draws.chains if rows is None else rows
        self.streams = Streams(0, self.chains, draws.device)  # no compiled generator or update within a step

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


class Kind(NamedTuple):
    """A kind of step, and the captured function that runs it; None if it is run by the kernel itself."""

    requests: Requests
    given: Names  # what the state and the controls have before it
    run: Step | None
    evaluation: list[str]  # names of the tensors of the next state, in the order of the outputs
    aux: list[str]
    info: list[str]


def pure(kernel: Kernel, target: Target, draws: Draws, kind: Kind) -> Step:
    """Return the step of a kind as a function of tensors: state, controls and random numbers."""
    evaluation, aux, control_names = kind.given
    first, second = len(evaluation), len(evaluation) + len(aux)
    third = second + len(control_names)

    def step(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        point = Evaluation.of(dict(zip(evaluation, tensors[:first], strict=True)))
        state = State(point, dict(zip(aux, tensors[first:second], strict=True)))
        controls = Controls(**dict(zip(control_names, tensors[second:third], strict=True)))
        answers = iter([answer for _, answer in kind.requests.kinds])
        numbers = cast(Draws, _Given(draws, iter(tensors[third:]), answers))
        after, info = kernel.step(target, state, controls, numbers)
        return [
            *(after.evaluation.tensors()[name] for name in kind.evaluation),
            *(after.aux[name] for name in kind.aux),
            *(getattr(info, name) for name in kind.info),
        ]

    return step


def recording(draws: Draws, requests: Requests) -> Draws:
    """Return draws with the same random numbers that record the requests of a step in `requests`."""
    return cast(Draws, _Recorder(draws, requests))


def tensors_of(state: State, controls: Controls) -> list[Tensor]:
    """Return the tensors of a state and of controls."""
    point = state.evaluation.tensors().values()
    return [*point, *state.aux.values(), *(control for control in controls if control is not None)]


def names_of(state: State, controls: Controls) -> Names:
    """Return the names of the tensors of `tensors_of`, in their order."""
    control_names = (name for name in controls._fields if getattr(controls, name) is not None)
    return tuple(state.evaluation.tensors()), tuple(state.aux), tuple(control_names)


def fields_of(info: Info) -> list[str]:
    """Return the names of the fields that are not None."""
    return [name for name, value in info._asdict().items() if value is not None]


def unpacked(kind: Kind, outputs: Sequence[Tensor]) -> tuple[State, Info]:
    """Return the state and the info that the outputs of a pure step are."""
    tensors = iter(outputs)
    evaluation = {name: next(tensors) for name in kind.evaluation}
    aux = {name: next(tensors) for name in kind.aux}
    return State(Evaluation.of(evaluation), aux), Info(**{name: next(tensors) for name in kind.info})
