"""The stochastic gradient Nose-Hoover thermostat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.dynamics.refresh import checked, is_due, refresh, refreshed, temperature_of_theta
from mhrun.errors import Refusal
from mhrun.native import NativeDynamics, piece
from mhrun.native.philox import NOISE, fill_normals
from mhrun.parts import Bias, Dynamics
from mhrun.random import Draws, Purpose
from mhrun.types import Controls

LARGEST_FRICTION = 0.45
"""Friction above which the thermostat of the explicit scheme rises without end, with all data from 1/2 on."""
_THERMOSTAT_SD = 0.15


def stationary_thermostat(friction: float) -> float:
    """Return the mean of the thermostat s for small steps, s (1 - s / 2) = a: there momenta have the variance e T.

    With a > 1/2 there is none, as momenta are hotter for any s; then 1, where they are least so.
    """
    return 1 - math.sqrt(max(0.0, 1 - 2 * friction))


def stable_step(dim: int, temperature: float, inertia: float = 1.0) -> float:
    """Return the step size e at which a thermostat of the explicit scheme has the variance e T / (D q) = 0.15^2.

    With few coordinates its fluctuations make it negative, and momenta grow until it is above 2, where steps are
    unstable. On normal targets of 1 to 10 dimensions with a = 0.1 none of 400 chains was lost in 20,000 steps at 0.15,
    and some were at 0.25 in 1 to 6 dimensions.
    """
    return _THERMOSTAT_SD**2 * dim * inertia / temperature


class SGNHT(Dynamics):
    """v' = (1 - s) v + e g + sqrt(2 a e T) z,  theta' = theta + v',  s' = s + (|v'|^2 / D - e T) / q.

    SGNHT (Ding et al. 2014, Algorithm 2), in step-scaled variables: v = p h, s = xi h, h^2 = e the step size; their A
    is a / h. The thermostat s, one number per chain, rises when the momenta are too hot. It thereby compensates for
    gradient noise of unknown variance V, with s about a + e V / 2 T. Momenta start at 0, the thermostat at a. At T = 0
    the thermostat is constant, and the dynamics is gradient ascent with momentum. Where the thermostat settles at s,
    the variance of theta is too small by the relative amount s / 2, for any step size: it holds the variance of the
    momenta at e T, where a constant friction s makes it e T / (1 - s / 2) and the variance of theta right.

    On a ladder with a friction a = c / T for each rung the noise is 2 c e on every rung. This is Algorithm 2 of Luo et
    al. (2020), which also resets the thermostat whenever momenta are redrawn (`keep` = false).

    Args:
        friction: a, in (0, 1]; one for all chains, or one for each rung of a ladder (chain c is rung c mod rungs).
        inertia: q; the thermostat's variance is e T / (D q) in the limit of small steps. Infinite: s is constant.
        refresh: momenta are redrawn from N(0, e T) at steps 1, 1 + refresh, ...; None: never, momenta start at 0.
        thermostat: initial s, one for all chains or one for each rung; None for the friction.
        keep: whether the thermostat keeps its value when momenta are redrawn; False resets it to its initial value.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        friction: float | Sequence[float] = 0.1,
        inertia: float = 1.0,
        refresh: int | None = None,
        thermostat: float | Sequence[float] | None = None,
        keep: bool = True,
    ) -> None:
        self.friction = frictions(friction)
        if not inertia > 0:
            raise Refusal(f"inertia = {inertia:g} must be positive.")
        self.inertia = inertia
        self.stable_remedy = "" if math.isinf(inertia) else "give its thermostat more inertia"
        self.refresh = checked(refresh)
        self.thermostat = self.friction if thermostat is None else np.atleast_1d(np.array(thermostat, float))
        if not np.isfinite(self.thermostat).all():
            raise Refusal("thermostat must be a number, or one for each rung.")
        self.keep = keep
        if not keep and not self.refresh:
            raise Refusal(
                "keep = false resets the thermostat at each refreshment; set refresh to a number of steps."
            )

    corrects_noise = True  # except for differences between directions

    @property
    def bias(self) -> Bias:  # type: ignore[override]
        """On a ladder that of the first rung, the coldest.

        Gradient noise adds at most e V / 2 a to T in a direction: the thermostat removes its mean over coordinates. It
        settles at s, where the variance is too small by s / 2, and by more with momenta that are drawn anew
        (`temperature_of_theta`). Steps shift means as those of SGHMC with the friction s.
        """
        friction = float(self.friction[0])
        thermostat = stationary_thermostat(friction)
        holds = not math.isinf(self.inertia)
        return Bias(
            noise=1 / friction,
            means=1 / (2 - thermostat),
            in_small_steps=temperature_of_theta(thermostat, friction, self.refresh) - 1 if holds else 0.0,
            thermostat=holds,
        )

    def largest_step(self, dim: int, temperature: float) -> float:
        """Return the step size at which the thermostat has a standard deviation of 0.15, see `stable_step`.

        0 with a friction above 0.45: at 1/2 the thermostat has no stationary value, and rises until chains are lost.
        """
        if math.isinf(self.inertia):
            return math.inf
        return stable_step(dim, temperature, self.inertia) if self.friction[0] <= LARGEST_FRICTION else 0.0

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero momenta (C, D) and the initial thermostats (C,).

        Raises:
            Refusal: the number of chains is not a multiple of the number of rungs.
        """
        each(self.friction, theta)
        return {"momentum": torch.zeros_like(theta), "thermostat": each(self.thermostat, theta)}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta, momenta (C, D) and thermostats (C,)."""
        variance = controls.step_size * controls.noise_temperature
        momentum = refreshed(aux["momentum"], variance, self.refresh, draws)
        thermostat = aux["thermostat"]
        if not self.keep and draws.due(self.refresh):
            thermostat = each(self.thermostat, theta)
        z = draws.normal(Purpose.NOISE, theta.shape[1], dtype=theta.dtype)
        momentum = (
            (1 - thermostat)[:, None] * momentum
            + controls.step_size[:, None] * grad
            + (2 * each(self.friction, theta) * variance).sqrt()[:, None] * z
        )
        change = (momentum.square().mean(-1) - variance) / self.inertia
        thermostat = torch.where(controls.noise_temperature > 0, thermostat + change, thermostat)
        return theta + momentum, {"momentum": momentum, "thermostat": thermostat}

    def native(self) -> NativeDynamics:
        """Return the pieces of a compiled loop."""
        args = (self.friction, float(self.inertia), self.refresh, self.thermostat, self.keep)
        return NativeDynamics(args, _move, ("momentum",), ("thermostat",))


def frictions(given: float | Sequence[float]) -> npt.NDArray[np.float64]:
    """Return one friction, or one for each rung, as an array.

    Raises:
        Refusal: a friction outside (0, 1].
    """
    friction = np.atleast_1d(np.array(given, float))
    for a in friction:
        if not 0 < a <= 1:
            raise Refusal(f"friction = {a:g} must lie in (0, 1].")
    return friction


def each(values: npt.NDArray[np.float64], theta: Tensor) -> Tensor:
    """Return a value for each chain of theta (C, D): chain c has ``values[c mod len(values)]``.

    Raises:
        Refusal: the number of chains is not a multiple of the number of values.
    """
    times, remainder = divmod(len(theta), len(values))
    if remainder:
        raise Refusal(
            f"{len(values)} frictions or thermostats for {len(theta)} chains; give one, or one for each rung."
        )
    if len(values) == 1:
        return theta.new_full((times,), float(values[0]))
    return _placed(tuple(values.tolist()), theta.dtype, theta.device).repeat(times)


@lru_cache(maxsize=64)
def _placed(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return values on a device, copied there once: a step waits for no copy."""
    return torch.tensor(values, dtype=dtype, device=device)


@piece
def _move(args: Any, theta: Any, grad: Any, vectors: Any, scalars: Any, controls: Any, draw: Any) -> None:
    momentum, thermostat, (step_size, temperature) = vectors[0], scalars, controls
    frictions, inertia, every, starts, keep = args
    variance = step_size * temperature
    refresh(momentum, math.sqrt(variance), every, draw)
    if not keep and is_due(every, draw):
        thermostat[0] = starts[int(draw.chain) % len(starts)]
    friction = frictions[int(draw.chain) % len(frictions)]
    number = theta.dtype.type
    noise = number(math.sqrt(2 * friction * variance))
    keep_momentum, drift = number(1 - thermostat[0]), number(step_size)
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    square = 0.0
    for d in range(len(theta)):
        momentum[d] = keep_momentum * momentum[d] + drift * grad[d] + noise * z[d]
        theta[d] += momentum[d]
        square += np.float64(momentum[d]) ** 2
    if temperature > 0:
        thermostat[0] += (square / len(theta) - variance) / inertia
