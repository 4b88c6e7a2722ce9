"""Thermostat-assisted continuously tempered Hamiltonian Monte Carlo (Luo et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.dynamics.refresh import checked, refreshed, temperature_of_theta
from mhrun.dynamics.sgnht import LARGEST_FRICTION, stable_step, stationary_thermostat
from mhrun.errors import Refusal
from mhrun.parts import Bias, Dynamics
from mhrun.random import Draws, Purpose
from mhrun.types import Controls


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

    Args:
        friction: a, the initial s.
        friction_of_x: b, the initial y.
        step_of_x: h.
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
        "Raise steps, step_of_x (x then moves faster), or flat (the range of x with temperature T)."
    )

    def __init__(
        self,
        friction: float = 0.1,
        friction_of_x: float = 0.1,
        step_of_x: float = 1e-4,
        hottest: float = 6.0,
        flat: float = 0.1,
        margin: float = 0.85,
        bins: int = 100,
        refresh: int | None = 50,
    ) -> None:
        if not (0 < friction <= 1 and 0 < friction_of_x <= 1 and step_of_x > 0):
            raise Refusal("TACTHMC needs frictions in (0, 1] and a positive step_of_x.")
        if not (hottest > 1 and 0 < flat < 1 and 0 < margin <= 1 and bins >= 1):
            raise Refusal("TACTHMC needs hottest > 1, 0 < flat < 1, 0 < margin <= 1 and bins >= 1.")
        self.friction, self.friction_of_x = friction, friction_of_x
        self.step_of_x = step_of_x
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
        """Return zero momenta, thermostats at their frictions, x = 0 with a momentum, and empty means."""
        # Energies are full-data sums: quantities combined with them are float64, whatever the dtype of theta.
        ones = torch.ones_like(theta[:, 0], dtype=torch.float64)
        table = ones.new_zeros(len(theta), self.bins)
        z = draws.normal(Purpose.NOISE, 1, use=2)[:, 0]
        return {
            "momentum": torch.zeros_like(theta),
            "thermostat": self.friction * ones,
            "x": 0 * ones,
            "momentum_of_x": self.step_of_x**0.5 * z,
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

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and aux; the given `aux` includes the log density at theta."""
        step, temperature, h = (
            controls.step_size.double(),
            controls.noise_temperature.double(),
            self.step_of_x,
        )
        energy = -aux["log_density"].double() / temperature
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
        next_x = x + w
        outside = next_x.abs() >= 1
        next_x = torch.where(outside, next_x.sign() * (2 - next_x.abs()).clamp(0.0, 1.0), next_x)
        return theta + momentum, {
            "momentum": momentum,
            "thermostat": thermostat,
            "x": next_x,
            "momentum_of_x": torch.where(outside, -w, w),
            "thermostat_of_x": thermostat_of_x,
            "energy": table,
            "visits": visits,
            "valid": next_x.abs() <= self.margin * self.flat,
        }
