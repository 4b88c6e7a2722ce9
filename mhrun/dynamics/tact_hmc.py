"""Thermostat-assisted continuously tempered Hamiltonian Monte Carlo (Luo et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mhrun.dynamics.refresh import checked, refreshed, temperature_of_theta
from mhrun.dynamics.sgnht import LARGEST_FRICTION, stable_step, stationary_thermostat
from mhrun.errors import Refusal
from mhrun.numbers import is_number
from mhrun.parts import AUTO, Bias, Dynamics
from mhrun.random import Draws, Purpose
from mhrun.types import Controls

_MEASURED = 100  # steps in which the noise of energies is measured
_LARGEST_STEP_OF_X = 1e-4


class TACTHMC(Dynamics):
    """The energy lambda(x) U(theta) / T + W(x) with a tempering variable x in (-1, 1), an additional coordinate.

    Given x, theta has the temperature T / lambda(x): T for |x| <= d, up to `hottest` T at |x| = 1. W reflects x at the
    ends. A learnt bias (the running mean of U by |x|) makes all x equally likely. theta is a draw from the target at
    the steps with |x| <= `margin` d; the trace marks them as `valid`. In step-scaled variables, with l = lambda(x) and
    l' its derivative:

        y += l'^2 (w^2 - h);  s += l^2 (|v|^2 / D - e T)
        w += h l' (mean U - U) / T + l' sqrt(2 b h) z - l'^2 y w;  v = (1 - l^2 s) v + e l g + l sqrt(2 a e T) z
        x += w, turned back at the ends;  theta += v

    with e the step size, and mean U the mean over the steps with |x| in the same bin, this one included, so that the
    first step in a bin has no force; in the authors' algorithm a step updates the mean last. Otherwise this follows
    their public code, except that w is reflected at the ends, which the code omits.

    The energy of a minibatch has a noise, of variance V in units of T^2, for which y settles at b + h V / 2; the step
    for w is unstable where l'^2 y > 2. With ``auto`` each chain takes h = min(1e-4, b / V), and y = b + h V / 2, after
    its first 100 steps, in which x = 0 and V is measured: the mean of (U_t - 2 U_(t-1) + U_(t-2))^2 / 6, free of a
    trend. V grows as n^2 / m, and with it the number of steps that x needs from one end to the other. A chain whose x
    would leave (-2, 2) in a step is unstable, and stops.

    Args:
        friction: a, the initial s.
        friction_of_x: b, the initial y.
        step_of_x: h; ``auto``: see above.
        hottest: the highest temperature of theta in units of T.
        flat: d, the largest |x| with temperature T.
        margin: share of d within which theta is a draw.
        bins: number of bins of |x| for the running means.
        refresh: steps after which momenta are redrawn; None for never.

    Raises:
        Refusal: an invalid setting.
    """

    energies = True
    marks_valid = True
    valid_remedy = (
        "Raise steps, m (step_of_x can then be larger, and x moves faster), or flat (the range of x with temperature "
        "T)."
    )
    stable_remedy = "lower step_of_x, or leave it to auto"

    def __init__(
        self,
        friction: float = 0.1,
        friction_of_x: float = 0.1,
        step_of_x: float | str = AUTO,
        hottest: float = 6.0,
        flat: float = 0.1,
        margin: float = 0.85,
        bins: int = 100,
        refresh: int | None = 50,
    ) -> None:
        if step_of_x != AUTO and not (is_number(step_of_x) and step_of_x > 0):
            raise Refusal(f"step_of_x = {step_of_x!r} must be positive, or auto.")
        if not (0 < friction <= 1 and 0 < friction_of_x <= 1):
            raise Refusal("TACTHMC needs frictions in (0, 1].")
        if not (hottest > 1 and 0 < flat < 1 and 0 < margin <= 1 and bins >= 1):
            raise Refusal("TACTHMC needs hottest > 1, 0 < flat < 1, 0 < margin <= 1 and bins >= 1.")
        self.friction, self.friction_of_x = friction, friction_of_x
        self.step_of_x = None if isinstance(step_of_x, str) else float(step_of_x)  # None: measured
        self.hottest = hottest
        self.flat = flat
        self.margin = margin
        self.bins = bins
        self.refresh = checked(refresh)

    corrects_noise = True  # by its thermostats

    @property
    def bias(self) -> Bias:  # type: ignore[override]
        """At most that of SGNHT, which its draws would have if x never left [-d, d]; that of means is unknown."""
        thermostat = stationary_thermostat(self.friction)
        return Bias(
            noise=1 / self.friction,
            in_small_steps=temperature_of_theta(thermostat, self.friction, self.refresh) - 1,
        )

    def largest_step(self, dim: int, temperature: float) -> float:
        """Return that of SGNHT with an inertia of 1."""
        return stable_step(dim, temperature) if self.friction <= LARGEST_FRICTION else 0.0

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero momenta, thermostats at their frictions, x = 0 with a momentum, and empty means.

        Where h is measured, the momentum of x is one for h = 1 until h is known.
        """
        # Energies are full-data sums: quantities combined with them are float64, whatever the dtype of theta.
        ones = torch.ones_like(theta[:, 0], dtype=torch.float64)
        table = ones.new_zeros(len(theta), self.bins)
        z = draws.normal(Purpose.NOISE, 1, use=2)[:, 0]
        measured = {}
        if self.step_of_x is None:
            names = ("step_of_x", "age", "energy_before", "change_before", "squares")
            measured = {name: torch.zeros_like(ones) for name in names}
        return measured | {
            "momentum": torch.zeros_like(theta),
            "thermostat": self.friction * ones,
            "x": 0 * ones,
            "momentum_of_x": (1.0 if self.step_of_x is None else self.step_of_x**0.5) * z,
            "thermostat_of_x": self.friction_of_x * ones,
            "energy": table,
            "visits": table.clone(),
            "valid": torch.ones_like(ones, dtype=torch.bool),
        }

    def coupling(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return lambda(x) and its derivative, each like x."""
        rise = ((x.abs() - self.flat) / (1 - self.flat)).clamp_min(0.0)
        temperature = 1 + (self.hottest - 1) * rise**3
        derivative = 3 * (self.hottest - 1) * rise.square() / (1 - self.flat) * x.sign()
        return 1 / temperature, -derivative / temperature.square()

    def _measured(self, aux: Mapping[str, Tensor], energy: Tensor) -> dict[str, Tensor]:
        """Return aux with this step's energy U / T (C,), and at the last step of measuring h, y and the momentum of x.

        h is 0 until it is known.
        """
        age = aux["age"] + 1
        change = energy - aux["energy_before"]
        # The first second difference is that of the third energy.
        squares = aux["squares"] + torch.where(age > 2, (change - aux["change_before"]).square(), 0.0)
        noise = squares / (6 * (_MEASURED - 2))
        found = (self.friction_of_x / noise).clamp_max(_LARGEST_STEP_OF_X)
        is_last = age == _MEASURED
        return {
            **aux,
            "age": age,
            "energy_before": energy,
            "change_before": change,
            "squares": squares,
            "step_of_x": torch.where(is_last, found, aux["step_of_x"]),
            "momentum_of_x": torch.where(is_last, found.sqrt(), 1.0) * aux["momentum_of_x"],
            "thermostat_of_x": aux["thermostat_of_x"] + torch.where(is_last, found * noise / 2, 0.0),
        }

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and aux; the given `aux` includes the log density at theta."""
        step, temperature = controls.step_size.double(), controls.noise_temperature.double()
        energy = -aux["log_density"].double() / temperature
        h: float | Tensor | None = self.step_of_x
        if h is None:
            aux = self._measured(aux, energy)
            h = aux["step_of_x"]
        x, w = aux["x"], aux["momentum_of_x"]
        coupled, derivative = self.coupling(x)
        variance = step * temperature
        momentum = refreshed(aux["momentum"], variance.to(theta.dtype), self.refresh, draws)
        thermostat = aux["thermostat"] + coupled.square() * (momentum.square().mean(-1).double() - variance)
        thermostat_of_x = aux["thermostat_of_x"] + derivative.square() * (w.square() - h)

        place = (x.abs() * self.bins).long().clamp(0, self.bins - 1)[:, None]
        visits = aux["visits"].scatter_add(1, place, torch.ones_like(x)[:, None])
        count = visits.gather(1, place)
        mean = aux["energy"].gather(1, place)
        mean = mean + (energy[:, None] - mean) / count
        table = aux["energy"].scatter(1, place, mean)

        z = draws.normal(Purpose.NOISE, theta.shape[1] + 1, dtype=theta.dtype)
        w = (
            (1 - derivative.square() * thermostat_of_x) * w
            + h * derivative * (mean[:, 0] - energy)
            + derivative * (2 * self.friction_of_x * h) ** 0.5 * z[:, -1].double()
        )
        keep, drift = 1 - coupled.square() * thermostat, step * coupled
        spread = coupled * (2 * self.friction * variance).sqrt()
        keep, drift, spread = (factor.to(theta.dtype)[:, None] for factor in (keep, drift, spread))
        momentum = keep * momentum + drift * grad + spread * z[:, :-1]
        next_x = x + w if self.step_of_x is not None else torch.where(aux["step_of_x"] > 0, x + w, x)
        outside = next_x.abs() >= 1
        lost = next_x.abs() >= 2
        next_x = torch.where(outside, next_x.sign() * (2 - next_x.abs()), next_x)
        return (theta + momentum).masked_fill(lost[:, None], torch.nan), {
            **aux,
            "momentum": momentum,
            "thermostat": thermostat,
            "x": next_x,
            "momentum_of_x": torch.where(outside, -w, w),
            "thermostat_of_x": thermostat_of_x,
            "energy": table,
            "visits": visits,
            "valid": next_x.abs() <= self.margin * self.flat,
        }
