"""The mixture with tied means by quadrature: its modes, and the stationary distributions of chains on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from mhrun.diagnostics.grid import FAR, Grid, log_masses
from mhrun.models.compressed import compress
from mhrun.report.vocabulary import Array
from mhrun.target import Target

Density = Callable[[Array], Array]
"""The log of a density, (P, 2) -> (P,)."""

CONCENTRATED = 2000  # effective data beyond which the density is two spikes on any common grid
ORDER = 5  # points a side in a piece as wide as the density's own scale
EXACT = 1e-6  # what probabilities may miss
_STRIP = 10.0  # |theta2| up to which the two components are integrated as one lump
_REACH = 5.0  # half the width of the ridges beyond
_CHUNK = 4096  # points at once


class Stationary(NamedTuple):
    """A distribution on cells: those of some grids one after the other, and last all that is outside."""

    grids: Sequence[Grid]
    probability: Array

    def shares(self, draws: Array) -> Array:
        """Return the shares of each chain's draws (C, S, 2) in the cells, (C, cells + 1)."""
        inside = np.concatenate([grid.shares(draws)[:, :-1] for grid in self.grids], axis=1)
        return np.append(inside, 1 - inside.sum(axis=1, keepdims=True), axis=1)

    def maps(self, values: Array) -> list[tuple[Array, Array, Array]]:
        """Return values of the cells (cells + 1,) per area, for each grid with its centres in x and in y."""
        by_grid: list[tuple[Array, Array, Array]] = []
        at = 0
        for grid in self.grids:
            x, y = ((edges[:-1] + edges[1:]) / 2 for edges in grid)
            area = (grid.x[1] - grid.x[0]) * (grid.y[1] - grid.y[0])
            by_grid.append((x, y, values[at : at + len(x) * len(y)].reshape(len(x), len(y)) / area))
            at += len(x) * len(y)
        return by_grid


class Truth:
    """What can be known of a run's target without sampling, by quadrature over theta.

    Sums over the data are exact to about 1e-13 a datum (`mhrun.models.compressed`).
    """

    def __init__(self, target: Target, order: int = ORDER) -> None:
        self.target = target
        self.order = order
        nodes, weights = compress(target.data.fields["x"].numpy(), 0.25, 20)
        self._rows = {"x": torch.from_numpy(nodes)[None]}
        self._shares = torch.from_numpy(weights / target.n)
        self.modes = np.stack([self._mode(start) for start in ((0.0, 1.0), (1.0, -1.0))])
        self._cache: dict[tuple[str, float, int, int | None], Stationary | None] = {}
        self._totals: dict[tuple[str, float, int], float | None] = {}

    def moments(self, theta: Array) -> tuple[Array, Array]:
        """Return mean and variance over the data of log p(x | theta) at theta (P, 2)."""
        mean, var = [], []
        for part in torch.from_numpy(theta).split(_CHUNK):
            values = self.target.model.log_lik(part, self._rows)
            mean.append(values @ self._shares)
            var.append(values.sub_(mean[-1][:, None]).square_() @ self._shares)
        return torch.cat(mean).numpy(), torch.cat(var).numpy()

    def log_tempered(self, temperature: float) -> Density:
        """Return the log of the tempered density, (P, 2) -> (P,)."""

        def log_density(theta: Array) -> Array:
            mean, _ = self.moments(theta)
            return self._with_prior(mean, theta, temperature)

        return log_density

    def log_stored(self, temperature: float, m: int) -> Density:
        """Return the log density of the stationary distribution with stored minibatches, (P, 2) -> (P,).

        The chain is exact for exp(c mean_I l) on points and minibatches I, l the log-likelihood of one datum;
        over I, drawn with replacement, that averages to (mean exp(c l / m))^m. Its second order,
        c mu + (c sigma)^2 / 2m, is section 3.2's f*; what drawing without replacement takes away is put right
        to that order.
        """
        c, n = self.target.n / temperature, self.target.n
        without = 0.0 if self.target.replacement or n == 1 else (m - 1) / (n - 1)

        def log_density(theta: Array) -> Array:
            mean, var, excess = [], [], []
            for part in torch.from_numpy(theta).split(_CHUNK):
                values = self.target.model.log_lik(part, self._rows)
                mean.append(values @ self._shares)
                values -= mean[-1][:, None]
                var.append(values.square() @ self._shares)
                excess.append(((c / m * values).exp() @ self._shares).log())
            second = 0.5 * c / m * without * torch.cat(var)
            return self._with_prior(
                (torch.cat(mean) + m / c * torch.cat(excess) - second).numpy(), theta, temperature
            )

        return log_density

    def stationary(
        self, kind: str, temperature: float, m: int = 0, cells: int | None = None
    ) -> Stationary | None:
        """Return the cell probabilities of the stationary distribution `tempered` or `stored`.

        On `cells` x `cells` cells of [-4, 4]^2, 40 if None; but at temperatures near 1 the tempered density
        is two spikes, and with None it has 30 x 30 cells about each mode. None is returned if the
        density does not decay within reach.

        Raises:
            ArithmeticError: the cells hold more than there is, which is an error of the quadrature.
        """
        key = (kind, temperature, m, cells)
        if key not in self._cache:
            self._cache[key] = self._stationary(*key)
        return self._cache[key]

    def _stationary(self, kind: str, temperature: float, m: int, cells: int | None) -> Stationary | None:
        """As `stationary`, which keeps it."""
        hot = kind == "tempered"
        log_density = self.log_tempered(temperature) if hot else self.log_stored(temperature, m)
        if not hot and self.target.n / temperature > m:
            # Beyond c = m the best few minibatches determine the distribution, which has no scale.
            return None
        if (kind, temperature, m) not in self._totals:
            self._totals[kind, temperature, m] = self._log_total(log_density, temperature)
        total = self._totals[kind, temperature, m]
        if total is None:
            return None
        grids = self._windows(temperature) if hot and cells is None else []
        grids = grids or [Grid.of((-4.0, -4.0), (4.0, 4.0), cells or 40)]
        scale = self._scale(temperature)
        masses = [log_masses(log_density, grid, self.order, scale) for grid in grids]
        p = np.exp(np.concatenate(masses) - total)
        outside = 1 - p.sum()
        if outside < -EXACT:
            raise ArithmeticError(
                f"the cells of the {kind} distribution at T = {temperature:g} sum to {p.sum():.9f}."
            )
        return Stationary(grids, np.append(p, max(0.0, outside)))

    def _log_total(self, log_density: Density, temperature: float) -> float | None:
        """Return the log of the integral over the plane, or None if the density does not end within reach.

        In u = theta1 + theta2 / 2, the middle of the two components, and theta2 the two modes are mirror
        images. Where |theta2| is large, one component has all the data and the other is free: two ridges
        that only the prior ends, with a good part of the mass at high temperatures.
        """
        width, height = self._scale(temperature, turned=True)
        middle = float(self.modes[0] @ (1.0, 0.5))
        half = _STRIP / 2 + _REACH
        grid = Grid.of((middle - half, -_STRIP), (middle + half, _STRIP), 40)
        strip = log_masses(partial(_on_strip, log_density), grid, self.order, (width, height)).reshape(40, 40)
        parts, border = [strip], [strip[[0, -1]]]
        end = self._prior_end(temperature)
        if end <= _STRIP:
            border.append(strip[:, [0, -1]])
        else:
            grid = Grid.of((middle - _REACH, np.log(_STRIP)), (middle + _REACH, np.log(end)), 20)
            for sign in (1, -1):
                for first in (True, False):
                    ridge = partial(_on_ridge, log_density, sign, first)
                    part = log_masses(ridge, grid)
                    if _log_sum([part]) > _log_sum([strip]) + np.log(EXACT / 10):  # else a rough idea will do
                        part = log_masses(ridge, grid, self.order, (width, 0.25))
                    part = part.reshape(20, 20)
                    parts.append(part)
                    border += [part[[0, -1]], part[:, [-1]]]
        total = float(_log_sum(parts))
        return total if np.exp(_log_sum(border) - total) < EXACT else None

    def _prior_end(self, temperature: float) -> float:
        """Return |theta2| beyond which the prior leaves nothing, to within a factor of 2."""
        end = 1.0
        drop = 0.0
        while drop < FAR**2 / 2 and end < 1e9:
            end *= 2
            at = self._with_prior(np.zeros(2), np.array([[0.0, 0.0], [0.0, end]]), temperature)
            drop = at[0] - at[1]
        return end

    def _with_prior(self, mean: Array, theta: Array, temperature: float) -> Array:
        t = torch.as_tensor(temperature, dtype=torch.float64)
        prior = self.target.prior_power(t) * self.target.model.log_prior(torch.from_numpy(theta))
        return self.target.n / temperature * mean + prior.numpy()

    def _scale(self, temperature: float, *, turned: bool = False) -> tuple[float, float]:
        """Return the standard deviations along the two axes (theta1 or, `turned`, u; theta2) at a mode.

        Each is that of a section through the mode, with the other axis held: the narrowest there is.
        """
        narrowest = []
        for mode in self.modes:
            hessian = self._hessian(torch.from_numpy(mode)).numpy()
            axes = np.array([[1.0, -0.5 if turned else 0.0], [0.0, 1.0]])
            narrowest.append(np.sqrt(temperature / -np.diag(axes.T @ hessian @ axes)))
        a, b = np.min(narrowest, axis=0)
        return float(a), float(b)

    def _mode(self, start: tuple[float, float]) -> Array:
        point = torch.tensor(start, dtype=torch.float64)
        for _ in range(50):
            gradient = torch.autograd.functional.jacobian(self._log_posterior, point)
            # Newton's method with curvatures made positive: uphill wherever it is, so never to a saddle.
            curvature, axes = torch.linalg.eigh(-self._hessian(point))
            step = axes @ ((axes.T @ gradient) / curvature.abs())
            point = point + step * min(1.0, 0.5 / float(step.norm().clamp(min=1e-12)))
        return point.numpy()

    def _hessian(self, point: torch.Tensor) -> torch.Tensor:
        return torch.autograd.functional.hessian(self._log_posterior, point)

    def _log_posterior(self, point: torch.Tensor) -> torch.Tensor:
        theta = point[None]
        mean = self.target.model.log_lik(theta, self._rows)[0] @ self._shares
        return self.target.n * mean + self.target.model.log_prior(theta)[0]

    def _windows(self, temperature: float) -> list[Grid]:
        """Return 30 x 30 cells about each mode, or nothing where these would overlap or the density is broad."""
        if self.target.n / temperature < CONCENTRATED:
            return []
        grids = []
        for mode in self.modes:
            hessian = self._hessian(torch.from_numpy(mode)).numpy()
            sd = np.sqrt(np.diag(np.linalg.inv(-hessian)) * temperature)
            low, high = mode - 6 * sd, mode + 6 * sd
            grids.append(Grid.of((low[0], low[1]), (high[0], high[1]), 30))
        one, two = grids
        apart = any(a[-1] < b[0] or b[-1] < a[0] for a, b in zip(one, two, strict=True))
        return grids if apart else []


def _on_strip(log_density: Density, at: Array) -> Array:
    """Return the density at (u, theta2)."""
    return log_density(np.stack([at[:, 0] - at[:, 1] / 2, at[:, 1]], axis=1))


def _on_ridge(log_density: Density, sign: int, first: bool, at: Array) -> Array:
    """Return the density at (mean of the component with the data, log |theta2|), per unit of these."""
    far = sign * np.exp(at[:, 1])
    return log_density(np.stack([at[:, 0] if first else at[:, 0] - far, far], axis=1)) + at[:, 1]


def _log_sum(parts: Sequence[Array]) -> np.floating:
    return np.logaddexp.reduce(np.concatenate([part.ravel() for part in parts]))
