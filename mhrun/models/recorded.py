"""Functions of tensors, replayed from a recording of their operations.

A user's function of small tensors costs far more in Python, `vmap` and autograd than in arithmetic. Its operations are
the same at every call with tensors of the same shapes, so they are recorded once, below `vmap` and autograd, and
replayed by TorchScript's interpreter. The operations and their order are the same, and so is every bit of the result.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mhrun.torch_private import (
    TorchDispatchMode,
    count_dispatch_modes,
    is_wrapped,
    traced,
    tree_leaves,
    tree_map,
)
from mhrun.types import Rows

Tensors = Sequence[Tensor]
Function = Callable[..., Tensors]
Key = tuple[Any, ...]

_CALLS = 20  # with tensors of the same shapes before they are recorded, which takes as long as some 20 calls
_CHECKED = 3  # calls after a recording whose results are compared with the function's
_SHAPES = 64  # most shapes that are counted; minibatches that grow have very many
_RECORDINGS = 8  # most recordings of a function
_READING = {  # functions that read values unseen by a dispatch mode
    *(Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, Tensor.__repr__),
    *(Tensor.tensor_split, torch.tensor_split),
}
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}
_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_OPERATIONS = 10_000  # most operations of a recording; TorchScript's time grows faster than their number
_VALUES = 1 << 24  # most values in the tensors of a recording; with more, arithmetic takes the time


class Recorded:
    """A function ``(*tensors) -> tensors`` that is replayed from a recording once it has been called often.

    The function must depend on its arguments alone, constants apart, and must not read their values in Python: a
    function under `torch.func.vmap` cannot. What cannot be recorded, or differs from the function in a bit when it is
    replayed, is called as it is. Nothing is replayed where gradients, a `torch.func` transform or `torch.autocast` have
    to see the operations themselves, nor on a GPU, where whole steps can be captured (``executor=graph``).

    Args:
        function: the function.
        calls: with tensors of the same shapes before their operations are recorded.
    """

    def __init__(self, function: Function, calls: int = _CALLS) -> None:
        self._function = function
        self._calls = calls
        self._seen = Counter[Key]()
        self._replays: dict[Key, Function | None] = {}  # None: cannot be recorded

    def __call__(self, *tensors: Tensor) -> Tensors:
        """Return the function's tensors."""
        if _must_be_seen(tensors):
            return self._function(*tensors)
        key = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)
        replay, calls = self._replays.get(key), self._seen[key]
        if replay is not None and calls > self._calls + _CHECKED:
            return replay(*tensors)
        outputs = self._function(*tensors)
        if calls or len(self._seen) <= _SHAPES:
            self._seen[key] += 1
        if replay is not None:
            if not all(map(same_bits, replay(*tensors), outputs)):
                self._replays[key] = None
        elif calls == self._calls and len(self._replays) < _RECORDINGS:
            self._replays[key] = recording(self._function, tensors)
        return outputs


class Replays:
    """Replays functions ``(theta, rows) -> tensors``, see `Recorded`; a copy begins without recordings."""

    def __init__(self) -> None:
        self.recorded: dict[tuple[str, ...], Recorded] = {}  # by the function's name and its fields

    def __reduce__(self) -> tuple[Any, ...]:
        return Replays, ()

    def __call__(self, function: Callable[[Tensor, Rows], Tensors], theta: Tensor, rows: Rows) -> Tensors:
        """Return ``function(theta, rows)``; functions have different names."""
        if torch.compiler.is_compiling():
            return function(theta, rows)
        key = (function.__name__, *rows)
        if key not in self.recorded:
            names = tuple(rows)
            self.recorded[key] = Recorded(
                lambda theta, *fields: function(theta, dict(zip(names, fields, strict=True)))
            )
        return self.recorded[key](theta, *rows.values())


def recording(function: Function, tensors: Tensors) -> Function | None:
    """Return a function that repeats the operations of `function` at tensors of these shapes; None if it cannot.

    It cannot if the function reads values in Python, if shapes depend on values, or of very many operations.
    """
    recorder = _Recorder(tensors)
    try:
        with recorder, _NoReading():
            outputs = function(*tensors)
        with torch.no_grad(), warnings.catch_warnings():
            # It warns that TorchScript is old, and that constants will stay what they are.
            warnings.simplefilter("ignore")
            replay = traced(recorder.replayed(outputs), tensors)
    except Exception:  # on any error the function is called instead, which raises its own errors again
        return None
    finally:
        recorder.clear()

    def without_gradients(*tensors: Tensor) -> Tensors:
        with torch.no_grad():
            return replay(*tensors)

    return without_gradients


def _must_be_seen(tensors: Tensors) -> bool:
    """Return whether something has to see the operations on these tensors, or they are on a GPU."""
    if count_dispatch_modes() or torch.is_autocast_enabled("cpu"):
        return True
    gradients = torch.is_grad_enabled()
    return any(
        (gradients and tensor.requires_grad) or tensor.device.type != "cpu" or is_wrapped(tensor)
        for tensor in tensors
    )


def _depends_on_values(operation: Any, operands: tuple[Any, ...]) -> bool:
    """Return whether the values of operands decide what Python sees of an operation: a number, or a shape."""
    if operation is torch.ops.aten.index.Tensor:  # only masks select a number of elements
        return any(index.dtype in (torch.bool, torch.uint8) for index in operands[1] if index is not None)
    return not _BY_VALUES.isdisjoint(operation.tags)


def _has_default_dtype(outputs: Any, operands: Any) -> bool:
    """Return whether torch's default decides the type of floating-point outputs: no operand has such a type."""
    given = [value for value in tree_leaves(operands) if isinstance(value, Tensor | torch.dtype)]
    types = [value.dtype if isinstance(value, Tensor) else value for value in given]
    made = [value for value in tree_leaves(outputs) if isinstance(value, Tensor)]
    return any(value.is_floating_point() for value in made) and not any(t.is_floating_point for t in types)


class _NoReading(TorchFunctionMode):
    """Refuses functions that read tensor values in Python, which dispatch modes do not see."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _READING:
            raise ValueError(f"{func} reads values")
        return func(*args, **(kwargs or {}))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one shape and type are equal bit for bit: -0 is not 0, and a NaN is itself."""
    bits = _BITS.get(one.dtype)
    return torch.equal(one, other) if bits is None else torch.equal(one.view(bits), other.view(bits))


@dataclass(frozen=True)
class _Slot:
    """Stands for a tensor in a recording."""

    number: int


class _Recorder(TorchDispatchMode):
    """Writes down the operations on tensors, below `vmap` and autograd.

    Args:
        inputs: tensors that stand for arguments; what else comes from outside is a constant.

    Raises:
        ValueError: an operation whose values decide what Python sees of it, or one too many.
    """

    def __init__(self, inputs: Tensors) -> None:
        super().__init__()
        self._default = torch.get_default_dtype()
        self._tensors = list(inputs)  # by slot; kept, so that no later tensor has the id of an earlier one
        self._slots = {id(tensor): _Slot(k) for k, tensor in enumerate(inputs)}
        self._constants: dict[_Slot, Tensor] = {}
        self._operations: list[tuple[Any, Any, Any]] = []  # operation, its arguments, slots of its results
        self._room = _VALUES

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch's compiler is imported, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if _depends_on_values(func, args):
            raise ValueError(f"{func} depends on values")
        if len(self._operations) >= _OPERATIONS:
            raise ValueError("too many operations")
        operands = tree_map(self._read, (args, dict(kwargs or {})))
        outputs = func(*args, **(kwargs or {}))
        if torch.get_default_dtype() != self._default and _has_default_dtype(outputs, (args, kwargs)):
            raise ValueError(f"{func} depends on torch's default dtype")
        self._operations.append((func, operands, tree_map(self._written, outputs)))
        return outputs

    def _read(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._slots:
            self._constants[self._written(value)] = value.detach()
        return self._slots[id(value)]

    def _written(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        self._room -= value.numel()
        if self._room < 0:
            raise MemoryError("too many values to record")
        self._slots[id(value)] = slot = _Slot(len(self._tensors))
        self._tensors.append(value)
        return slot

    def clear(self) -> None:
        """Forget all tensors: TorchScript keeps the function that it traced, and with it this."""
        for kept in (self._tensors, self._slots, self._constants, self._operations):
            kept.clear()

    def replayed(self, results: Tensors) -> Function:
        """Return a function of the inputs that repeats the operations."""
        last = [self._read(tensor) for tensor in results]

        def replay(*tensors: Tensor) -> Tensors:
            values = {_Slot(k): tensor for k, tensor in enumerate(tensors)} | self._constants

            def value(operand: Any) -> Any:
                return values[operand] if isinstance(operand, _Slot) else operand

            def write(slot: Any, tensor: Any) -> None:
                if isinstance(slot, _Slot):
                    values[slot] = tensor

            for func, operands, slots in self._operations:
                args, kwargs = tree_map(value, operands)
                tree_map(write, slots, func(*args, **kwargs))
            return tuple(values[slot] for slot in last)

        return replay
