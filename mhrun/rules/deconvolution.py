"""Numerical solution for the correction distribution X_corr: N(0, sigma^2) + X_corr is standard logistic.

Barker's rule accepts iff log r plus a standard logistic variable is positive. The noise of a minibatch estimate of
log r provides the normal part of that variable; X_corr is the rest (Seita, Pan, Chen & Canny 2017, Section 4). For no
sigma > 0 is there an exact solution. `Correction.error` is the remaining distance between the cdfs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft, linalg, optimize, special

from mhrun.array_types import Float64Array
from mhrun.errors import Refusal
from mhrun.native.products import single_threaded_products

REACH = 20.0
LARGEST_SIGMA = math.pi / math.sqrt(3)  # the standard deviation of the logistic distribution


class Correction(NamedTuple):
    """A distribution of X_corr: masses on a grid symmetric about 0.

    The masses are stored as solved, so that their sum is close to 1 but not equal. Mean, variance and draws are those
    of the normalised masses; `error` is that of the masses as stored.
    """

    points: Float64Array  # (P,) increasing, evenly spaced
    masses: Float64Array  # (P,) non-negative
    sigma: float  # standard deviation of the normal variable
    spread: float = 0.0  # width over which each mass is spread in the problem solved

    @property
    def step(self) -> float:
        """The distance between neighbouring points."""
        return float(self.points[-1] - self.points[0]) / (len(self.points) - 1)

    @property
    def mass(self) -> float:
        """The sum of the masses."""
        return float(self.masses.sum())

    @property
    def mean(self) -> float:
        """The mean."""
        return float(self.masses @ self.points) / self.mass

    @property
    def variance(self) -> float:
        """The variance; exact would be pi^2/3 - sigma^2."""
        centred = self.points - self.mean
        return float(self.masses @ (centred * centred)) / self.mass + self.spread**2 / 12

    @property
    def error(self) -> float:
        """The largest |cdf - logistic cdf| on the grid X of twice the range (eq. 14), for the masses as stored."""
        half = len(self.points) // 2
        logistic = special.expit(_grid(self.step, 2 * half))
        cdf = _convolve(self.masses[:, None], self.step, self.sigma, self.spread)[:, 0]
        return float(np.abs(cdf - logistic).max())

    def normalised(self) -> Correction:
        """Return the correction with masses that sum to 1."""
        return self._replace(masses=self.masses / self.mass)


def ridge(sigma: float, lam: float, half_width_steps: int, reach: float = REACH) -> Correction:
    """Return the correction of the paper for one lambda; see `ridges`."""
    return ridges(sigma, [lam], half_width_steps, reach)[0]


def ridges(
    sigma: float, lams: Sequence[float], half_width_steps: int, reach: float = REACH
) -> list[Correction]:
    """Return the paper's correction for each lambda: regularised least squares, clipped at zero.

    The masses u at Y_j = j V / G, |j| <= G, minimise |M u - v|^2 + lambda |u|^2, with
    M_ij = Phi((X_i - Y_j) / sigma) and v_i the logistic cdf at X_i = i V / G, |i| <= 2 G
    (Seita et al. 2017, eq. 15 and B.1). Negative masses are then set to zero.

    Since u = M'(v - M u) / lambda, u is a combination of the rows of M. Rows sigma/3 apart span the others up to
    rounding, because their spectrum decays like exp(-sigma^2 t^2 / 2). The problem is therefore solved in about 170
    dimensions, and products with M are convolutions.

    Args:
        sigma: standard deviation of the normal variable.
        lams: the values of lambda; all but the first cost little.
        half_width_steps: G (the paper's N).
        reach: V.

    Raises:
        Refusal: an invalid setting.
    """
    _check(sigma, min(lams), half_width_steps, reach)
    step = reach / half_width_steps
    y = _grid(step, half_width_steps)
    stride = max(1, int(sigma / 3 / step))
    beyond = math.ceil((reach + 9 * sigma) / step / stride)  # rows further out are 0 or 1 throughout
    rows = _grid(stride * step, beyond)
    basis = linalg.qr(special.ndtr((rows - y[:, None]) / sigma), mode="economic")[0]
    v = special.expit(_grid(step, 2 * half_width_steps))
    triangle, share = _reduced(_convolve(basis, step, sigma, 0.0), v)
    left, singular, right = linalg.svd(triangle)
    share = left.T @ share
    solved = []
    for lam in lams:
        masses = basis @ (right.T @ (singular / (singular**2 + lam) * share))
        solved.append(Correction(y, np.maximum(_symmetric(masses), 0.0), sigma))
    return solved


def nonnegative(
    sigma: float, lam: float = 1e-6, steps_per_unit: float = 8, reach: float = REACH
) -> Correction:
    """Return the solution of the paper's problem under the constraint u >= 0, instead of clipping afterwards.

    Clipping limits the accuracy of the paper's masses; without it lambda can be small and the grid coarse. The problem
    takes each mass as spread uniformly over its cell, as `quantiles` draws it. With point masses at step 1/8, the
    draws' variance would be 0.0013 too large.

    Args:
        sigma: standard deviation of the normal variable.
        lam: lambda.
        steps_per_unit: steps of the grid per unit of its range.
        reach: V.

    Raises:
        Refusal: an invalid setting.
    """
    with single_threaded_products():  # hundreds of small systems: see `mhrun.engine.execution.threads`
        return _nonnegative(sigma, lam, round(steps_per_unit * reach), reach)


def _nonnegative(sigma: float, lam: float, half: int, reach: float) -> Correction:
    _check(sigma, lam, half, reach)
    step = reach / half
    y, x = _grid(step, half), _grid(step, 2 * half)
    system = np.vstack((_cell_cdf(x[:, None] - y, sigma, step), math.sqrt(lam) * np.eye(len(y))))
    triangle, share = _reduced(system, np.concatenate((special.expit(x), np.zeros(len(y)))))
    solved = optimize.lsq_linear(
        triangle, share, (0.0, np.inf), method="bvls", tol=1e-14, max_iter=20 * len(y)
    )
    masses = np.maximum(_symmetric(solved.x), 0.0)  # the solver keeps the bound up to rounding
    return Correction(y, masses, sigma, step)


def convolved_cdf(correction: Correction, x: npt.ArrayLike, sigma: float) -> Float64Array:
    """Return the cdf of N(0, sigma^2) + X_corr at x (n,), for the masses as stored."""
    at = np.atleast_1d(np.asarray(x, np.float64))
    parts = np.array_split(at, max(1, at.size * len(correction.points) >> 22))  # 32 MB at once
    cdfs = [_cell_cdf(part[:, None] - correction.points, sigma, correction.spread) for part in parts]
    return np.concatenate([cdf @ correction.masses for cdf in cdfs])


def check_sigma(sigma: float) -> None:
    """Check that a correction exists for a standard deviation.

    Raises:
        Refusal: sigma is not between 0 and pi / sqrt(3).
    """
    if not 0.0 < sigma < LARGEST_SIGMA:
        raise Refusal(
            f"sigma = {sigma:g} cannot be corrected to a logistic variable; choose 0 < sigma < pi/sqrt(3) = 1.814."
        )


def _check(sigma: float, lam: float, half_width_steps: int, reach: float) -> None:
    check_sigma(sigma)
    if not 0.0 < lam < math.inf:
        raise Refusal(f"lam = {lam:g} does not regularise; choose lam > 0.")
    if half_width_steps < 1 or not sigma >= reach / half_width_steps:
        raise Refusal(
            f"half_width_steps = {half_width_steps} makes steps wider than sigma = {sigma:g}; "
            f"choose at least {math.ceil(reach / sigma)}."
        )


def _grid(step: float, half: int) -> Float64Array:
    return step * np.arange(-half, half + 1, dtype=np.float64)


def _reduced(system: Float64Array, right: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return R and Q'right with Q R = system: an equivalent least-squares problem with fewer rows."""
    # With `right` as an extra column, the last column of the triangle is Q'right, and Q is not computed.
    triangle = linalg.qr(np.column_stack((system, right)), mode="r", overwrite_a=True)[0][
        : system.shape[1] + 1
    ]
    return triangle[:-1, :-1], triangle[:-1, -1]


def _cell_cdf(z: Float64Array, sigma: float, spread: float) -> Float64Array:
    """Return the cdf at z of N(0, sigma^2) plus a uniform variable on (-spread/2, spread/2)."""
    if spread == 0.0:
        return special.ndtr(z / sigma)

    def area(t: Float64Array) -> Float64Array:  # integral of the normal cdf up to t
        return t * special.ndtr(t) + np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)

    return (sigma / spread) * (area((z + spread / 2) / sigma) - area((z - spread / 2) / sigma))


def _convolve(columns: Float64Array, step: float, sigma: float, spread: float) -> Float64Array:
    """Return M times columns (2 G + 1, k), (4 G + 1, k)."""
    half = len(columns) // 2
    kernel = _cell_cdf(_grid(step, 3 * half), sigma, spread)[:, None]
    # Sums that wrap around fall in the first 2 G rows, which are not part of the product.
    size = fft.next_fast_len(len(kernel), real=True)
    transform = fft.rfft(kernel, size, axis=0)
    products = []
    for part in np.array_split(columns, -(-columns.shape[1] // 256), axis=1):  # a few hundred MB at once
        product = fft.irfft(transform * fft.rfft(part, size, axis=0), size, axis=0)
        products.append(product[2 * half : 6 * half + 1])
    return np.hstack(products)


def _symmetric(masses: Float64Array) -> Float64Array:
    """Return the even part. The odd part is rounding error, or of order mass - 1 if the masses fit badly."""
    return 0.5 * (masses + masses[::-1])
