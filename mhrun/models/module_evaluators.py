"""The evaluators of a module, of which one is in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from mhrun.models.module_bound import Bound
from mhrun.models.module_copy import Prepared
from mhrun.models.module_evaluation import BOUND, VMAPPED, Buffers, Evaluator, Likelihood, values_kept
from mhrun.models.module_vmapped import Vmapped
from mhrun.types import Rows

Mode = Literal["auto", "bound", "vmapped"]
_Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each field of a datum."""


class Evaluators:
    """Makes each evaluator of a module when it is first used, and keeps it.

    Args:
        prepared: the module.
        likelihood: ``(outputs, rows) -> (m,)`` for one chain.
        mode: which one is in use until another is selected; ``auto``: ``bound``.
    """

    def __init__(self, prepared: Prepared, likelihood: Likelihood, mode: Mode) -> None:
        self.selected: str | None = None  # ``bound`` or ``vmapped``, as a run chose it; None: by the mode
        self._prepared, self._likelihood = prepared, likelihood
        self._default = BOUND if mode == "auto" else mode
        self._made: dict[str, Evaluator] = {}  # by these names
        self._values_per_datum: dict[_Shapes, int] = {}

    @property
    def bound(self) -> Evaluator:
        """The evaluator that works for any module."""
        return self._made_once(BOUND, Bound)

    @property
    def vmapped(self) -> Evaluator:
        """The evaluator of all chains at once."""
        return self._made_once(VMAPPED, Vmapped)

    @property
    def current(self) -> Evaluator:
        """The evaluator in use."""
        return self.bound if (self.selected or self._default) == BOUND else self.vmapped

    def values_per_datum(self, rows: Rows, first: Callable[[], tuple[Tensor, Buffers]]) -> int:
        """Return how many values a forward pass keeps for the gradient of one datum, measured once for each shape.

        Args:
            rows: data (1, m, ...).
            first: returns theta (1, D) and the buffers of the pass.
        """
        shapes = tuple((name, tuple(field.shape[2:])) for name, field in rows.items())
        if shapes not in self._values_per_datum:
            theta, buffers = first()
            self._values_per_datum[shapes] = values_kept(
                lambda point, part: self.bound.outputs(point, buffers, part), theta, rows
            )
        return self._values_per_datum[shapes]

    def _made_once(self, name: str, kind: Callable[[Prepared, Likelihood], Evaluator]) -> Evaluator:
        if name not in self._made:
            self._made[name] = kind(self._prepared, self._likelihood)
        return self._made[name]
