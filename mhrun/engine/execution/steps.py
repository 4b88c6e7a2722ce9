"""The steps of a kernel on a target, plain or captured."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from mhrun.engine.execution.pure_step import (
    Dynamic,
    Kind,
    Requests,
    Step,
    fields_of,
    names_of,
    pure,
    recording,
    tensors_of,
    unpacked,
)
from mhrun.errors import reason_of
from mhrun.parts import Kernel
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Controls, Info, State

_KINDS = 32  # most kinds of steps that are captured


class PlainSteps:
    """Steps as the kernel has them.

    Args:
        kernel: whose steps they are.
        target: its target.
        draws: the random numbers of the current step.
    """

    def __init__(self, kernel: Kernel, target: Target, draws: Draws) -> None:
        self.kernel, self.target, self.draws = kernel, target, draws

    def __call__(self, state: State, controls: Controls) -> tuple[State, Info]:
        """Do one step, with controls (C,)."""
        return self.kernel.step(self.target, state, controls, self.draws)


class CapturedSteps(PlainSteps, ABC):
    """The steps of a kernel, captured by kind; what cannot be captured is called as it is.

    Args: see `PlainSteps`.
    """

    def __init__(self, kernel: Kernel, target: Target, draws: Draws) -> None:
        super().__init__(kernel, target, draws)
        self.kinds: list[Kind] = []

    @abstractmethod
    def capture(self, step: Step, inputs: list[Tensor]) -> Step:
        """Return a function that does what `step` does, for tensors of the same shapes.

        Raises:
            Exception: the step cannot be captured.
        """

    @abstractmethod
    def agree(self, one: Tensor, other: Tensor) -> bool:
        """Return whether a result of the captured function is that of the step."""

    @abstractmethod
    def refused(self, reason: str) -> None:
        """Take note of why a kind of step is not captured."""

    def plain(self, state: State, controls: Controls) -> tuple[State, Info]:
        """Do one step as the kernel has it."""
        return super().__call__(state, controls)

    def __call__(self, state: State, controls: Controls) -> tuple[State, Info]:
        """Do one step, with controls (C,)."""
        names = names_of(state, controls)
        kind = next((k for k in self.kinds if k.given == names and k.requests.holds(self.draws)), None)
        if kind is None:
            return self._captured(state, controls)
        return self.plain(state, controls) if kind.run is None else self.repeated(kind, state, controls)

    def repeated(self, kind: Kind, state: State, controls: Controls) -> tuple[State, Info]:
        """Do one step of a captured kind."""
        assert kind.run is not None
        numbers = [ask(self.draws) for ask in kind.requests.numbers]
        return unpacked(kind, kind.run([*tensors_of(state, controls), *numbers]))

    def _captured(self, state: State, controls: Controls) -> tuple[State, Info]:
        """Do a step of a new kind as the kernel has it, capture it, and compare the two."""
        requested = Requests()
        before = [value.clone() for value in tensors_of(state, controls)]
        recorder = recording(self.draws, requested)
        try:
            after, info = self.kernel.step(self.target, state, controls, recorder)
        except Dynamic as reason:  # nothing of the step has been kept
            self.refused(str(reason))
            self.kinds.append(Kind(requested, names_of(state, controls), None, [], [], []))
            self.draws.rewind()
            return self.plain(state, controls)
        self.draws.rewind()
        numbers = [ask(self.draws) for ask in requested.numbers]
        names = (list(after.evaluation.tensors()), list(after.aux), fields_of(info))
        kind = Kind(requested, names_of(state, controls), None, *names)
        if len(self.kinds) < _KINDS:
            try:
                run = self.capture(pure(self.kernel, self.target, self.draws, kind), [*before, *numbers])
                repeated = unpacked(kind, run([*(value.clone() for value in before), *numbers]))
                if self.same(repeated, (after, info)):
                    kind = kind._replace(run=run)
                else:
                    self.refused("the captured step and the kernel's differ")
            except Exception as error:  # in tracing or compiling: torch can always run the step
                self.refused(reason_of(error).rstrip(".")[:160])
        self.kinds.append(kind)
        return after, info

    def same(self, one: tuple[State, Info], other: tuple[State, Info]) -> bool:
        """Return whether two steps agree in every field."""
        pairs = [
            *(
                (one[0].evaluation.tensors()[name], value)
                for name, value in other[0].evaluation.tensors().items()
            ),
            *((one[0].aux[name], value) for name, value in other[0].aux.items()),
            *((getattr(one[1], name), getattr(other[1], name)) for name in fields_of(other[1])),
        ]
        return all(a.shape == b.shape and a.dtype == b.dtype and self.agree(a, b) for a, b in pairs)
