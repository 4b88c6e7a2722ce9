"""The stationary distribution of a method, if its parts determine it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mhrun.ownership import is_bundled
from mhrun.parts import PARTS, Kernel
from mhrun.schedules.plan import Plan

EXACT, APPROXIMATE, OPTIMISER = "exact", "approximate", "optimiser"
"""The kinds of methods, see `Samples.kind`."""
DECLARED = f"{EXACT} (declared)"
"""Label in reports of a method that is `EXACT` if the declarations of a user's part hold."""
TARGET = {"distribution": "tempered", "m": None}
"""The `stationary` of a kernel whose stationary distribution is the target, given all data."""


class Samples(NamedTuple):
    """The stationary distribution of a method; run summaries contain it as a mapping."""

    # "tempered" (the target at its temperature), "stored" (`mhrun.pairing.stored`) or None: unknown
    distribution: str | None
    m: int | None  # the minibatch size on which the distribution depends; None: all data
    temperature: float  # at the last step whose draw is kept; for a ladder, that of the coldest rung
    tempered: bool  # whether the temperature is above 1
    optimises: bool = False  # whether the kernel is an optimiser
    declared: bool = False  # whether it depends on a part that is not of this package

    @property
    def is_cold(self) -> bool:
        """Whether the method samples, at a temperature below 1."""
        return 0 < self.temperature < 1 and not self.optimises

    @property
    def kind(self) -> str:
        """`EXACT`: the target at its temperature is stationary, whatever the minibatch. `OPTIMISER`: it has no noise.

        All others are `APPROXIMATE`: their stationary distribution is another one, by minibatch noise or by the
        discretisation of a dynamics, or unknown.
        """
        if self.optimises or self.temperature == 0:
            return OPTIMISER
        return EXACT if self.distribution == "tempered" and self.m is None else APPROXIMATE


def kind_of(sampled: Samples, energy_noise: float) -> str:
    """Return the kind of a method, see `Samples.kind`; none is exact on energies with noise of this variance."""
    return APPROXIMATE if sampled.kind == EXACT and energy_noise else sampled.kind


def describe_kind(sampled: Samples, kind: str) -> str:
    """Return a kind as tables show it: `DECLARED` if it is exact by what a part of the user's declares."""
    return DECLARED if kind == EXACT and sampled.declared else kind


def samples(kernel: Kernel, plan: Plan) -> Samples:
    """Return the stationary distribution of a kernel under these schedules."""
    at = plan.collected_controls
    by_noise = by_noise_alone(kernel)
    temperature = float((at.noise_temperature if by_noise else at.temperature).min())
    stationary: dict[str, Any] = kernel.stationary or {"distribution": None, "m": None}
    if varies_temperature(kernel, plan):
        stationary = {**stationary, "distribution": None}
    return Samples(
        stationary["distribution"],
        stationary["m"],
        temperature,
        temperature > 1,
        kernel.optimises,
        any(user_parts(kernel)),
    )


def is_declared_exact(kernel: Kernel) -> bool:
    """Return whether a kernel's parts declare that the target is stationary, whatever the minibatch size."""
    return (kernel.rule is not None and kernel.rule.exact) or kernel.stationary == TARGET


def by_noise_alone(kernel: Kernel) -> bool:
    """Return whether a kernel has no acceptance test, so that its noise sets the temperature of draws."""
    return kernel.of_a_chain.dynamics is not None and not kernel.optimises


def varies_temperature(kernel: Kernel, plan: Plan) -> bool:
    """Return whether a chain's draws are at several temperatures."""
    return plan.varies_noise_temperature if by_noise_alone(kernel) else plan.varies_temperature


def user_parts(part: Any) -> Iterator[Any]:
    """Yield the parts of a kernel whose class is not defined in this package: those of the user."""
    if not is_bundled(part):
        yield part
        return
    for value in vars(part).values():
        if isinstance(value, PARTS):
            yield from user_parts(value)
