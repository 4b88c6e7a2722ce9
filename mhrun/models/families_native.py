"""The compiled forms of robust, Poisson and binomial regression, see `mhrun.models.regression_native.Family`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhrun.models.regression_native import Family
from mhrun.native import piece
from mhrun.native.maths import exp_64, exp_negative_64, log1p_64, log1p_unit_64

# Robust regression. known: y; settings: degrees of freedom, scale, log of the density at 0.


@piece
def _robust_value(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    s = (known[i, 0] - eta) / settings[1]
    z = s * s / settings[0]
    return settings[2] - 0.5 * (settings[0] + 1) * log1p_64(z)


@piece
def _robust_derivatives(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    nu, scale = settings[0], settings[1]
    s = (known[i, 0] - eta) / scale
    base, factor = nu + s * s, (nu + 1) / scale
    return factor * s / base, factor / scale * (s * s - nu) / (base * base)


@piece
def _robust_size(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    return abs(_robust_value(known, settings, i, eta))


@piece
def _robust_lower_bound(known: Any, settings: Any, tangent: Any, i: Any, eta: Any) -> Any:
    """The tangent in s^2; tangent: s^2 where it touches, and the log-likelihood there."""
    s = (known[i, 0] - eta) / settings[1]
    return tangent[i, 1] - 0.5 * (settings[0] + 1) * (s * s - tangent[i, 0]) / (settings[0] + tangent[i, 0])


ROBUST = Family(_robust_value, _robust_derivatives, _robust_size, lower_bound=_robust_lower_bound)

# Poisson regression. known: y, log of the exposure, log y!


@piece
def _poisson_value(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    eta += known[i, 1]
    return known[i, 0] * eta - exp_64(eta) - known[i, 2]


@piece
def _poisson_derivatives(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    mean = exp_64(eta + known[i, 1])
    return known[i, 0] - mean, -mean


@piece
def _poisson_size(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    eta += known[i, 1]
    return known[i, 0] * abs(eta) + exp_64(eta) + known[i, 2]


@piece
def _poisson_stretch(widest: Any, a: Any, b: Any) -> Any:
    return np.exp(widest * max(a, b))


POISSON = Family(_poisson_value, _poisson_derivatives, _poisson_size, _poisson_stretch)

# Binomial regression. known: y, trials t, log of t! / (y! (t - y)!), log of t! y! (t - y)!


@piece
def _binomial_value(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    y, both = known[i, 0], log1p_unit_64(exp_negative_64(-abs(eta)))
    success, failure = min(eta, 0.0) - both, min(-eta, 0.0) - both
    return y * success + (known[i, 1] - y) * failure + known[i, 2]


@piece
def _binomial_derivatives(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    e = exp_negative_64(-abs(eta))
    chance = (1.0 if eta > 0 else e) / (1.0 + e)
    return known[i, 0] - known[i, 1] * chance, -known[i, 1] * e / ((1.0 + e) * (1.0 + e))


@piece
def _binomial_size(known: Any, settings: Any, i: Any, eta: Any) -> Any:
    return known[i, 3] + known[i, 2] - _binomial_value(known, settings, i, eta)


@piece
def _binomial_lower_bound(known: Any, settings: Any, tangent: Any, i: Any, eta: Any) -> Any:
    """Jaakkola and Jordan's; tangent: xi, tanh(xi / 2) / (4 xi), log sigmoid(xi)."""
    xi = tangent[i, 0]
    of_a_trial = tangent[i, 2] - xi / 2 - tangent[i, 1] * (eta - xi) * (eta + xi)
    return (known[i, 0] - known[i, 1] / 2) * eta + known[i, 1] * of_a_trial + known[i, 2]


BINOMIAL = Family(_binomial_value, _binomial_derivatives, _binomial_size, lower_bound=_binomial_lower_bound)
