"""Modes and curvature of the posterior from some of the data, for pilots; a surrogate has `mhrun.target.reference`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # which imports its subpackages on first use
import torch
from torch import Tensor

from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.target import Target

ROWS = 20_000  # data that modes and curvature are computed from, at most
_VALUES = 1 << 24  # numbers of one evaluation, at most
_MODES = 4  # chains that an ascent begins from
_ITERATIONS = 200
# L-BFGS is restarted, without its memory of earlier gradients, where the gradient times 1 + |theta| is above this share
# of the height: below a steep wall, as exp makes, it takes a small relative change for convergence.
_STEEP, _ASCENTS = 1e-2, 10
_LOST = 1e3  # nats per datum below the highest end, at which an ascent has not left its wall
_DIFFERENCE = 1e-4  # of a coordinate, relative, in a finite difference of gradients
_OFF = 0.5  # standard deviations of the tempered target that the mode of a part of the data may be off
# Steps towards the mode of all data, and how many times the expected distance one may be
_NEWTON, _FARTHEST = 3, 20.0
# Eigenvalues are at least this share of the largest; of a proper mode, whatever the units
_FLAT, _TINY = 1e-8, 1e-15
_SCALINGS = 2  # restarts of ascents in coordinates scaled by the curvature
# How far below its mode, as a quadratic, an end is at most; and as a share of its height
_NATS, _RELATIVE = 0.05, 1e-8
# Standard deviations: the largest difference of coordinates, and what a larger one becomes
_FINE, _FINER = 0.1, 0.01


class Surface:
    """The log posterior at temperature 1 in the units of its gradient, from a fixed part of the data.

    f(theta) = n mean log p(x | theta) + T prior_power(T) log prior: its gradient is that which proposals and dynamics
    use, and f / T is the log of the tempered target.

    Args:
        target: the target.
        temperature: T.
        seed: of the choice of data.
    """

    def __init__(self, target: Target, temperature: float, seed: int) -> None:
        self.target = target
        self.temperature = temperature
        self.size = min(target.n, ROWS)
        streams = Streams(derive_key(seed, "reference"), 1, target.device)
        self._index = Draws(streams, 0).index(target.n, self.size, replacement=False)
        self.n_grad = 0  # gradients of single data evaluated

    def value_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return f (C,) and its gradient (C, D) at theta (C, D), float64."""
        block = max(1, _VALUES // (self.size * max(1, len(theta[0]) // 8)))
        parts = [self._part(theta[first : first + block]) for first in range(0, len(theta), block)]
        return torch.cat([value for value, _ in parts]), torch.cat([grad for _, grad in parts])

    def _part(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        temperature = torch.full((len(theta),), self.temperature, dtype=torch.float64, device=theta.device)
        point = self.target.evaluate(theta, self._index, temperature)
        assert point.grad is not None
        assert point.log_lik_mean is not None
        self.n_grad += len(theta) * self.size
        prior = self.target.prior_power(temperature) * temperature * point.log_prior
        return (self.target.n * point.log_lik_mean + prior).double(), point.grad.double()

    def single_gradients(self, points: Tensor, count: int) -> Tensor:
        """Return gradients of K single data (P, K, D) at points (P, D); K is count / P, or all that were read if fewer.

        They are those of the log-likelihoods, less their control variate if there is a surrogate.
        """
        n_points = len(points)
        per_point = min(count // n_points, self.size)
        index = self._index[0, :per_point].repeat(n_points)[:, None]
        theta = points.repeat_interleave(per_point, 0)
        self.n_grad += self.target.gradients.per_datum * len(index)
        _, grad = self.target.gradients.mean_log_lik(theta, index)
        grad = grad.double()
        if self.target.surrogate is not None:
            grad = grad - self.target.surrogate.gradient_error(theta, self.target.data.rows(index))
        return grad.reshape(n_points, -1, grad.shape[-1])


class Mode(NamedTuple):
    """Modes of a surface."""

    theta: Tensor  # (C, D), where each chain's ascent ended; of many chains they are shared
    best: int  # the chain with the highest one
    height: float  # there
    gradient: Tensor  # (D,) there, float64


def find_modes(surface: Surface, theta: Tensor, units: Tensor | None = None) -> Mode:
    """Return the modes that ascents by L-BFGS end at, from the first points of the chains theta (C, D).

    An ascent that fails, as from a point where the density is not finite, is replaced by the one with the highest end.

    Args:
        surface: to ascend.
        theta: where ascents begin.
        units: of the coordinates that L-BFGS sees, (D,); None: 1.
    """
    ends, heights, gradients = [], [], []
    for start in theta[:_MODES].double().cpu():
        end, height, gradient = _ascent(
            surface, start.numpy(), theta, np.ones(len(start)) if units is None else units.numpy()
        )
        ends.append(torch.from_numpy(end))
        heights.append(height)
        gradients.append(torch.from_numpy(gradient))
    best = int(np.argmax(heights))
    least = heights[best] - _LOST * surface.target.n
    ends = [end if height >= least else ends[best] for end, height in zip(ends, heights, strict=True)]
    modes = torch.stack(ends)[torch.arange(len(theta)) % len(ends)]
    return Mode(modes.to(theta.device), best, heights[best], gradients[best])


def _ascent(
    surface: Surface, start: npt.NDArray[np.float64], like: Tensor, units: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], float, npt.NDArray[np.float64]]:
    """Return where an ascent by L-BFGS ends (D,), its height and its gradient (D,).

    It is restarted where it stops although the gradient is large.
    """
    height = -math.inf
    for _ in range(_ASCENTS):
        optimum = scipy.optimize.minimize(
            _objective,
            start / units,
            args=(surface, like, units),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _ITERATIONS, "maxcor": 20},
        )
        start, before, height = np.asarray(optimum.x) * units, height, -float(optimum.fun)
        steep = np.abs(optimum.jac * (1 + np.abs(optimum.x))).max() > _STEEP * max(1.0, abs(height))
        if not steep or optimum.nit >= _ITERATIONS or not height > before:
            break
    return start, height, -optimum.jac / units


def find_curved_modes(surface: Surface, theta: Tensor) -> tuple[Mode, Tensor | None, bool]:
    """Return modes, minus the Hessian (D, D) at the highest one, if it is finite, and whether that is a proper mode.

    Where coordinates have very different units, as of unstandardised features, ascents stop far from a mode.
    They are then restarted from there in units of the curvature, 1 / sqrt(diag |H|).
    """
    modes = find_modes(surface, theta)
    for scaling in range(_SCALINGS + 1):
        if not bool(modes.theta.isfinite().all()):
            return modes, None, False
        curvature = hessian(surface, modes.theta[modes.best].to(theta.dtype))
        if not bool(curvature.isfinite().all()) or not bool(curvature.abs().max() > 0):
            return modes, None, False
        below = _below_mode(modes.gradient, curvature)
        if below < _NATS + _RELATIVE * abs(modes.height):
            return modes, curvature, not (is_degenerate(curvature) and is_degenerate(_scaled(curvature)))
        if scaling < _SCALINGS:
            modes = find_modes(surface, modes.theta, _units(curvature))
    return modes, curvature, not is_degenerate(curvature)


def _units(curvature: Tensor) -> Tensor:
    scales = curvature.diagonal().abs()
    return scales.clamp_min(float(scales.max()) * _TINY**2).rsqrt()


def _scaled(curvature: Tensor) -> Tensor:
    units = _units(curvature)
    return units[:, None] * curvature * units


def _below_mode(gradient: Tensor, curvature: Tensor) -> float:
    """Return g^T |H|^-1 g / 2, the nats by which a point is below the mode of a quadratic."""
    eigenvalues, vectors = torch.linalg.eigh(_scaled(curvature))
    eigenvalues = eigenvalues.abs().clamp_min(float(eigenvalues.abs().max()) * _FLAT)
    return float(((vectors.T @ (_units(curvature) * gradient)) ** 2 / eigenvalues).sum()) / 2


def on_all_data(
    surface: Surface, modes: Tensor, best: int, curvature: Tensor, *, proper: bool = True
) -> Tensor:
    """Return modes (C, D) of a part of the data, moved towards those of all data by Newton steps.

    The mode of a part is about sqrt(n / size - 1) standard deviations of the posterior at T = 1 off. Where that is more
    than half a standard deviation of the target, chains would begin in its tails, and a pilot would tune its step size
    there. A step s solves H s = g, with the curvature H of the part and the gradient g on all data. Modes that are the
    same but for this error are moved once.

    Args:
        surface: of the part; what is evaluated is added to its count.
        modes: where ascents on it ended.
        best: the highest one.
        curvature: minus its Hessian (D, D) there.
        proper: whether that is a proper mode, see `spectrum`.
    """
    target, error = surface.target, math.sqrt(surface.target.n / surface.size - 1)
    if error <= _OFF * math.sqrt(surface.temperature):
        return modes
    eigenvalues, vectors = spectrum(curvature, proper=proper)
    # (D, D): |scaled x| is a distance in standard deviations at T = 1.
    scaled = (vectors * eigenvalues.sqrt()).T
    starts = modes.double().cpu().clone()
    offsets = (starts - starts[best]) @ scaled.T
    starts[offsets.norm(dim=1) < error] = starts[best].clone()
    points, indices = starts.unique(dim=0, return_inverse=True)
    temperature = torch.full((len(points),), surface.temperature, dtype=torch.float64, device=modes.device)
    for _ in range(_NEWTON):
        grad = target.gradients.full(points.to(modes), temperature).double().cpu()
        surface.n_grad += len(points) * target.n
        step = ((grad @ vectors) / eigenvalues) @ vectors.T
        distances = (step @ scaled.T).norm(dim=1)
        # Where the density is no quadratic, points are better not moved.
        if not float(distances.max()) < _FARTHEST * error * math.sqrt(len(scaled)):
            return modes
        points = points + step
        if float(distances.max()) < _OFF * math.sqrt(surface.temperature):
            break
    return points[indices].to(modes)


def _objective(
    x: npt.NDArray[np.float64], surface: Surface, like: Tensor, units: npt.NDArray[np.float64]
) -> tuple[float, Any]:
    theta = torch.from_numpy(x * units)[None].to(device=like.device, dtype=like.dtype)
    value, grad = surface.value_and_grad(theta)
    if not bool(value.isfinite().all() and grad.isfinite().all()):
        return 1e300, np.zeros_like(x)
    return -float(value), -grad[0].cpu().numpy() * units


def hessian(surface: Surface, theta: Tensor) -> Tensor:
    """Return minus the Hessian (D, D) of the surface at theta (D,), by central differences of gradients."""
    steps = _DIFFERENCE * (1 + theta.double().abs())
    curvature = _differences(surface, theta, steps)
    sds = curvature.diagonal().abs().rsqrt().to(steps)
    if bool((steps > _FINE * sds).any()):
        curvature = _differences(surface, theta, torch.minimum(steps, _FINER * sds))
    return curvature


def _differences(surface: Surface, theta: Tensor, steps: Tensor) -> Tensor:
    dim = len(theta)
    shifts = torch.diag(steps).to(theta)
    _, grads = surface.value_and_grad(torch.cat([theta + shifts, theta - shifts]))
    curvature = -(grads[:dim] - grads[dim:]).cpu() / (2 * steps.cpu())[:, None]
    return (curvature + curvature.T) / 2


def largest_curvature(surface: Surface, theta: Tensor, iterations: int = 20) -> float:
    """Return the largest |eigenvalue| of the Hessian at theta (D,), by power iteration on differences of gradients."""
    streams = Streams(derive_key(0, "power"), 1, theta.device)
    direction = Draws(streams, 0).normal(Purpose.INIT, len(theta))[0].double()
    curvature = 0.0
    for _ in range(iterations):
        direction = direction / direction.norm()
        step = _DIFFERENCE * (1 + float(theta.abs().max()))
        points = torch.stack([theta + step * direction.to(theta), theta - step * direction.to(theta)])
        _, grads = surface.value_and_grad(points)
        direction = (grads[1] - grads[0]) / (2 * step)
        curvature = float(direction.norm())
        if not curvature > 0:
            return 0.0
    return curvature


def is_degenerate(curvature: Tensor) -> bool:
    """Return whether a curvature is not that of a proper mode: an eigenvalue is negative, or flat beside the largest.

    So it is where the density is unbounded, as in the funnel of a hierarchy, or flat.
    """
    eigenvalues = torch.linalg.eigvalsh(curvature)
    return bool(eigenvalues.min() <= _FLAT * eigenvalues.max())


def spectrum(curvature: Tensor, *, proper: bool = False) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (D,), positive, and eigenvectors (D, D) of a curvature; flat directions get a floor.

    The floor of a `proper` mode, where coordinates may have very different units, is lower.
    """
    values, vectors = torch.linalg.eigh(curvature)
    values = values.abs()
    return values.clamp_min(float(values.max()) * (_TINY if proper else _FLAT)).clamp_min(1e-300), vectors
