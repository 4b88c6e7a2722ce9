"""What a method samples, as far as its parts know."""

from __future__ import annotations

from typing import Any, NamedTuple

from mhrun.parts import Kernel
from mhrun.schedules.plan import Plan


class Samples(NamedTuple):
    """What a method samples; summaries of runs have it as a mapping."""

    distribution: (
        str | None
    )  # "tempered" (the target at its temperature), "stored" (`mhrun.pairing.stored`) or unknown
    m: int | None  # the minibatch size that the distribution depends on; None: all data
    temperature: float  # at the last step; of a ladder that of its coldest rung
    tempered: bool  # whether it is above 1


def samples(kernel: Kernel, plan: Plan) -> Samples:
    """Return what a kernel under these schedules samples."""
    last = plan.controls(plan.start(), plan.total, 1).temperature
    temperature = float(last.min())
    known: dict[str, Any] = kernel.stationary or {"distribution": None, "m": None}
    return Samples(known["distribution"], known["m"], temperature, temperature > 1)
