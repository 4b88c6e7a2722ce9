"""What a check runs: a kernel on a target whose distribution is known."""

from __future__ import annotations

from typing import NamedTuple

from mhrun.check.targets import Known
from mhrun.parts import Kernel
from mhrun.target import Target


class Case(NamedTuple):
    """A kernel on a known target, at a lowest temperature."""

    kernel: Kernel
    known: Known
    target: Target  # of the distribution `known`, as the kernel needs it
    base: float = 1.0  # the temperature of the coldest rung

    def at(self, base: float) -> Case:
        """Return the same kernel and target at another lowest temperature."""
        return self._replace(base=base)
