"""The stationary distribution of a method, if its parts determine it."""

from __future__ import annotations

from typing import Any, NamedTuple

from mhrun.parts import Kernel
from mhrun.schedules.plan import Plan


class Samples(NamedTuple):
    """The stationary distribution of a method; run summaries contain it as a mapping."""

    distribution: (
        str | None
    )  # "tempered" (the target at its temperature), "stored" (`mhrun.pairing.stored`) or None: unknown
    m: int | None  # the minibatch size on which the distribution depends; None: all data
    temperature: float  # at the last step; for a ladder, that of the coldest rung
    tempered: bool  # whether the temperature is above 1


def samples(kernel: Kernel, plan: Plan) -> Samples:
    """Return the stationary distribution of a kernel under these schedules."""
    last = plan.controls(plan.start(), plan.total, 1).temperature
    temperature = float(last.min())
    known: dict[str, Any] = kernel.stationary or {"distribution": None, "m": None}
    return Samples(known["distribution"], known["m"], temperature, temperature > 1)
