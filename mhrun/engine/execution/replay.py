"""Steps that are replayed from a recording of their torch operations, with the same results bit for bit.

A step of a small model is some hundred operations on small tensors, and most of its time is Python's. TorchScript's
interpreter repeats the recorded operations without Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mhrun.engine.cost import Costed
from mhrun.engine.execution.pure_step import Kind, Step
from mhrun.engine.execution.steps import CapturedSteps
from mhrun.kernels import MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.models.recorded import recording, same_bits
from mhrun.native import native_form
from mhrun.parts import PARTS, Kernel
from mhrun.random import MANY, Draws
from mhrun.target import Target
from mhrun.types import Controls, Info, State

_STEPS_BEFORE_RECORDING = 30  # steps before a recording; by then a target has computed what it keeps
_CHECKED = 3  # replayed steps of each kind that are compared with the kernel's
_PAYS = 1_000  # steps of a run: a recording takes as long as some hundred of them
_KERNELS = (MetropolisHastings, ReplicaExchange, Unadjusted)


def replaying_pays(method: Costed) -> bool:
    """Return whether a run is long enough for a recording, and its steps are operations on small tensors alone.

    They must be of mhrun's own parts, which read no values in Python where they need not, and of a model that declares
    as much (`replayable`).
    """
    target, kernel = method.target, method.kernel
    plain = ("log_lik", "log_prior", "log_lik_and_grad", "log_prior_autograd")
    offered = native_form(target.model, "replayable", *plain)
    if method.shape.total < _PAYS or offered is None or not offered():
        return False
    if (
        type(target) is not Target
        or target.device.type != "cpu"
        or target.dim >= MANY
        or target.transforms is not None
    ):
        return False
    of_rungs = kernel.of_a_chain
    return all(isinstance(one, _KERNELS) for one in (kernel, of_rungs)) and all(
        type(part).__module__.split(".")[0] == "mhrun" for part in _parts(kernel)
    )


def _parts(part: object) -> Iterator[object]:
    """Yield a part and the parts that it has, and so on."""
    yield part
    for name, value in vars(part).items():
        if isinstance(value, PARTS):
            yield from _parts(value)
        elif name == "prior" and type(value).__module__ != "builtins":
            yield value


class ReplayedSteps(CapturedSteps):
    """Steps that are replayed bit for bit; what cannot be recorded, or differs in a bit, is called as it is."""

    def __init__(self, kernel: Kernel, target: Target, draws: Draws) -> None:
        super().__init__(kernel, target, draws)
        self._done = 0
        self._checked: dict[Step, int] = {}  # replayed steps that agreed
        self.reasons: list[str] = []  # why kinds of steps are not replayed

    def __call__(self, state: State, controls: Controls) -> tuple[State, Info]:
        """Do one step, with controls (C,)."""
        self._done += 1
        if self._done <= _STEPS_BEFORE_RECORDING:
            return self.plain(state, controls)
        return super().__call__(state, controls)

    def repeated(self, kind: Kind, state: State, controls: Controls) -> tuple[State, Info]:
        """Do one step of a recorded kind; the first few are compared with the kernel's, which are returned."""
        assert kind.run is not None
        checked = self._checked.get(kind.run, 0)
        try:
            replayed = super().repeated(kind, state, controls)
        except RuntimeError as error:  # of an operation on these values: the kernel's own step explains it
            self.refused(f"it failed ({str(error).strip().partition(chr(10))[0]})")
            self.kinds[self.kinds.index(kind)] = kind._replace(run=None)
            self.draws.rewind()
            return self.plain(state, controls)
        if checked >= _CHECKED:
            return replayed
        self.draws.rewind()
        after = self.plain(state, controls)
        if self.same(replayed, after):
            self._checked[kind.run] = checked + 1
        else:
            self.refused("the recorded step and the kernel's differ")
            self.kinds[self.kinds.index(kind)] = kind._replace(run=None)
        return after

    def capture(self, step: Step, inputs: list[Tensor]) -> Step:
        """Return a replay of the step's operations.

        Raises:
            ValueError: they cannot be recorded.
        """
        replay = recording(lambda *tensors: step(tensors), inputs)
        if replay is None:
            raise ValueError("its operations cannot be recorded")
        return lambda tensors: replay(*tensors)

    def agree(self, one: Tensor, other: Tensor) -> bool:
        """Return whether two tensors are equal bit for bit."""
        return same_bits(one, other)

    def refused(self, reason: str) -> None:
        """Take note of why a kind of step is not replayed."""
        self.reasons.append(reason)
