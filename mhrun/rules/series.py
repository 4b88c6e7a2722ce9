"""The correction density as a series of derivatives of the logistic density: q = sum_n c_n g^(2n+1).

g is the logistic function and c_n = (-1)^n H_n(lambda sigma^2 / 4) / (lambda^n n!) with the Hermite polynomials H_n
(Luo, Zhang, Yang & Wang 2020, equation 9).

Derivation: the correction has the characteristic function pi w / sinh(pi w) exp(sigma^2 w^2 / 2). Luo et al. multiply
it by exp(-w^4 / lambda^2), so that it stays bounded, and expand the two exponentials in powers of w^2. Each power of
w^2 corresponds to two derivatives of the density.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from mhrun.array_types import Float64Array
from mhrun.errors import Refusal
from mhrun.rules.deconvolution import check_sigma

Polynomial = tuple[Fraction, ...]  # coefficients, the constant first

REACH = 40.0  # the mass beyond is 1e-17
CORNERS = 8193
TERMS = 3


class Series(NamedTuple):
    """An even density of X_corr with mass 1 and variance pi^2/3 - sigma^2 (the variance from two terms on).

    With g the logistic function and s = g (1 - g) its derivative, density = s ratio(s) and cdf = g + (1 - 2 g) rest(s).
    Polynomials in s are as accurate in the tails as at 0; polynomials in g are not.
    """

    coefficients: Polynomial  # c_n
    ratio: Polynomial  # in s: the density divided by the logistic density
    rest: Polynomial  # in s

    def density(self, z: npt.ArrayLike) -> Float64Array:
        """Return the density at z, in the shape of z."""
        s = _derivative_of_g(z)
        return s * _at(self.ratio, s)

    def cdf(self, z: npt.ArrayLike) -> Float64Array:
        """Return the distribution function at z, in the shape of z."""
        z = np.asarray(z, np.float64)
        # 1 - 2 g = -tanh(z/2)
        probability: Float64Array = special.expit(z) - np.tanh(z / 2) * _at(self.rest, _derivative_of_g(z))
        return probability

    def positive(self) -> bool:
        """Return whether the density is positive everywhere; exact, by Sturm's theorem on s in [0, 1/4]."""
        return self.ratio[0] > 0 and _roots(self.ratio, Fraction(0), Fraction(1, 4)) == 0

    def range(self) -> tuple[float, float]:
        """Return the smallest and the largest ratio of the density to the logistic density."""
        ratio = np.array([float(c) for c in self.ratio])
        turns = np.polynomial.polynomial.polyroots(np.polynomial.polynomial.polyder(ratio))
        critical = [float(t.real) for t in turns if abs(t.imag) < 1e-9 and 0 < t.real < 0.25]
        ends = [float(_exact(self.ratio, at)) for at in (Fraction(0), Fraction(1, 4))]
        ratios = [*ends, *(float(_at(self.ratio, np.float64(t))) for t in critical)]
        return min(ratios), max(ratios)

    def in_g(self) -> Polynomial:
        """Return the density as a polynomial in g (equation 18); exact."""
        terms = [[c * k for k in derivative(2 * n + 1)] for n, c in enumerate(self.coefficients)]
        return tuple(sum((t[k] for t in terms if k < len(t)), Fraction(0)) for k in range(len(terms[-1])))

    def convolved_cdf(self, x: npt.ArrayLike, variance: float) -> Float64Array:
        """Return the cdf of N(0, variance) + X_corr at x (n,), by the trapezoidal rule, to 1e-14.

        The integrand has no pole within pi of the real line, so the error decays like exp(-2 pi^2 / step).
        """
        sd = math.sqrt(variance)
        steps = np.linspace(-9, 9, max(361, 2 * math.ceil(72 * sd) + 1))
        share = np.exp(-0.5 * steps**2)
        at = np.atleast_1d(np.asarray(x, np.float64))
        return self.cdf(at[:, None] - sd * steps) @ (share / share.sum())

    def corners(self) -> tuple[Float64Array, Float64Array]:
        """Return values of the cdf (K,) and their points (K,), increasing; linear interpolation is accurate to 1e-7.

        Points are denser where the density is steep: a step h causes the error h^2 |q'| / 8.
        """
        z = np.linspace(-REACH, REACH, 80_001)
        weight = np.sqrt(np.abs(np.gradient(self.density(z), z))) + 0.01
        count = np.concatenate(([0.0], np.cumsum((weight[1:] + weight[:-1]) / 2)))
        points = np.interp(np.linspace(0, count[-1], CORNERS), count, z)
        points = (points - points[::-1]) / 2  # so that the mean of the draws is 0
        probabilities = np.maximum.accumulate(self.cdf(points))
        probabilities[[0, -1]] = 0.0, 1.0
        return probabilities, points


def series(variance: float, lam: float = math.inf, terms: int = TERMS) -> Series:
    """Return the correction with a given number of terms.

    Largest distance between the cdfs of N(0, sigma^2) + X_corr and the logistic distribution:

    - sigma^2 = 0.2, the paper's lambda = 10: 1.0e-3 with 3 terms;
    - sigma^2 = 0.2, lambda infinite: 5.4e-4, 4.7e-5, 5.4e-6 and 1.2e-7 with 2, 3, 4 and 6 terms;
    - sigma^2 = 1, lambda infinite: 2.2e-3 with 3 terms, 1.1e-4 with 6.

    At lambda = 10 it tends to 1.2e-3 for any sigma, because of the kernel exp(-w^4 / lambda^2).

    Args:
        variance: sigma^2 of the normal variable; converted by its decimal digits, 0.2 as 1/5.
        lam: lambda, the bandwidth; infinity for no kernel.
        terms: number of terms; at most `most_terms`.

    Raises:
        Refusal: an invalid setting, a density that is negative somewhere, or more terms than `most_terms`.
    """
    check_sigma(root(variance))
    if not lam > 0.0:
        raise Refusal(f"lam = {lam:g} is not a bandwidth; choose lam > 0, or .inf for no kernel.")
    most = most_terms(variance, lam)
    if not 1 <= terms <= most:
        raise Refusal(
            f"terms = {terms}: at sigma^2 = {variance:g}, lam = {lam:g} 1 to {most} terms are useful, later ones grow; "
            f"choose terms <= {most}."
        )
    truncation = truncated(variance, lam, terms)
    if not truncation.positive():
        raise Refusal(
            f"{terms} terms at sigma^2 = {variance:g}, lam = {lam:g} are negative somewhere and no density; "
            "choose another number of terms or a smaller sigma^2."
        )
    return truncation


def root(variance: float) -> float:
    """Return sigma; negative for a negative variance, so that `check_sigma` rejects it."""
    return math.copysign(math.sqrt(abs(variance)), variance)


def truncated(variance: float, lam: float, terms: int) -> Series:
    """Return the sum of the first `terms` terms, which may not be a density."""
    half, decay = _fraction(variance) / 2, Fraction(0) if math.isinf(lam) else 1 / _fraction(lam) ** 2
    h = [Fraction(1), half]  # H_n / lambda^n, by the recursion of the Hermite polynomials
    for n in range(1, terms):
        h.append(half * h[n] - 2 * n * decay * h[n - 1])
    coefficients = tuple((-1) ** n * h[n] / math.factorial(n) for n in range(terms))
    density = [Fraction(0)] * (terms + 1)
    rest = [Fraction(0)] * (terms + 1)
    f = [Fraction(0), Fraction(1)]  # g^(2n+1) in s: s, then f -> s^2 (1 - 4s) f'' + s (1 - 6s) f'
    for n, c in enumerate(coefficients):
        for k, part in enumerate(f):
            density[k] += c * part
            if n + 1 < terms:  # g^(2n+2) = (1 - 2g) s f'(s)
                rest[k] += coefficients[n + 1] * k * part
        following = [k * k * part for k, part in enumerate([*f, Fraction(0)])]
        for k, part in enumerate(f):
            following[k + 1] -= 2 * k * (2 * k + 1) * part
        f = following
    return Series(coefficients, tuple(density[1:]), tuple(rest))


def most_terms(variance: float, lam: float) -> int:
    """Return the number of terms before the terms grow: the series is asymptotic and nowhere convergent.

    Derivatives grow like (2n+1)! / pi^(2n). At lambda = infinity the terms therefore grow from n = pi^2 / (2 sigma^2)
    on. Those of the kernel alone grow from n = (pi^4 lambda^2 / 32)^(1/3) on: 8 terms at lambda = 10.
    """
    n = math.pi**2 / (2 * variance)
    if math.isfinite(lam):
        n = min(n, (math.pi**4 * lam**2 / 32) ** (1 / 3))
    return math.ceil(n) + 1


def derivative(order: int) -> Polynomial:
    """Return g^(order) as a polynomial in g: by g' = g - g^2."""
    g = [0, 1]
    for _ in range(order):
        # g^k becomes k g^k - k g^(k+1).
        g = [
            k * coefficient - (k - 1) * lower
            for k, (coefficient, lower) in enumerate(zip([*g, 0], [0, *g], strict=True))
        ]
    return tuple(Fraction(c) for c in g)


def _fraction(number: float) -> Fraction:
    return Fraction(repr(float(number)))


def _derivative_of_g(z: npt.ArrayLike) -> Float64Array:
    small = np.exp(-np.abs(np.asarray(z, np.float64)))
    return np.asarray(small / (1 + small) ** 2, np.float64)


def _at(polynomial: Polynomial, x: Float64Array | np.float64) -> Float64Array:
    return np.asarray(np.polynomial.polynomial.polyval(x, [float(c) for c in polynomial]), np.float64)


def _exact(polynomial: Sequence[Fraction], x: Fraction) -> Fraction:
    total = Fraction(0)
    for c in reversed(polynomial):
        total = total * x + c
    return total


def _roots(polynomial: Sequence[Fraction], low: Fraction, high: Fraction) -> int:
    """Return the number of distinct roots in (low, high], by Sturm's theorem."""
    chain = [_trimmed(polynomial), _trimmed([k * c for k, c in enumerate(polynomial)][1:])]
    while chain[-1]:
        chain.append([-c for c in _remainder(chain[-2], chain[-1])])

    def changes(x: Fraction) -> int:
        signs = [value > 0 for p in chain if p and (value := _exact(p, x)) != 0]
        return sum(a != b for a, b in pairwise(signs))

    return changes(low) - changes(high)


def _remainder(dividend: list[Fraction], divisor: list[Fraction]) -> list[Fraction]:
    dividend = list(dividend)
    while len(dividend) >= len(divisor):
        factor = dividend[-1] / divisor[-1]
        for k in range(1, len(divisor) + 1):
            dividend[-k] -= factor * divisor[-k]
        dividend.pop()
    return _trimmed(dividend)


def _trimmed(polynomial: Sequence[Fraction]) -> list[Fraction]:
    coefficients = list(polynomial)
    while coefficients and coefficients[-1] == 0:
        coefficients.pop()
    return coefficients
