"""The evaluators of a module, of which one is in use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Literal

from torch import Tensor

from mhrun.models.module_bound import Bound
from mhrun.models.module_compiled import Compiled
from mhrun.models.module_copy import Prepared
from mhrun.models.module_evaluation import (
    BOUND,
    COMPILED,
    VMAPPED,
    Buffers,
    Evaluator,
    Likelihood,
    values_kept,
)
from mhrun.models.module_layers import FullyConnected, fully_connected
from mhrun.models.module_vmapped import Vmapped
from mhrun.types import Rows

Mode = Literal["auto", "bound", "vmapped", "compiled"]
_Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each field of a datum."""


class Evaluators:
    """Makes each evaluator of a module when it is first used, and keeps it.

    Args:
        prepared: the module.
        likelihood: ``(outputs, rows) -> (m,)`` for one chain.
        mode: which one is in use until another is selected; ``auto``: ``bound``.
        has_loop: whether there is a compiled loop for the likelihood, `categorical`.
    """

    def __init__(self, prepared: Prepared, likelihood: Likelihood, mode: Mode, *, has_loop: bool) -> None:
        self.selected: str | None = None  # by name, as a run chose it; None: by the mode
        self._prepared, self._likelihood, self._has_loop = prepared, likelihood, has_loop
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

    @cached_property
    def network(self) -> FullyConnected | None:
        """The layers of a fully connected network whose likelihood has a compiled loop; None for any other module."""
        return fully_connected(self._prepared) if self._has_loop else None

    @property
    def compiled(self) -> Evaluator:
        """The evaluator in a compiled loop; `bound` where there is none."""
        network = self.network
        if network is None:
            return self.bound
        wanted = self._default == COMPILED
        return self._made_once(
            COMPILED, lambda prepared, likelihood: Compiled(prepared, likelihood, network, wanted=wanted)
        )

    @property
    def current(self) -> Evaluator:
        """The evaluator in use."""
        by_name = {VMAPPED: lambda: self.vmapped, COMPILED: lambda: self.compiled}
        return by_name.get(self.selected or self._default, lambda: self.bound)()

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
