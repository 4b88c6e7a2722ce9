"""The mode of the posterior and derivatives of the log-likelihood there, from all data in float64, for a surrogate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import scipy  # which imports its subpackages on first use
import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.native import native_form
from mhrun.target.first_point import first_point
from mhrun.types import Model, Rows

_SEARCH_DATA = 20_000  # data on which the search begins
_VALUES = 1 << 22  # most data values times chains in memory
# Rows of a part for second derivatives: those of a sum of slices cost their number times their size
_ROWS = 1 << 13
_ITERATIONS = 500
_NEWTON = 12  # steps on all data, at most
_MOST_NEWTON = 200  # parameters, up to which steps have the Hessian of all data
_HALVED = 10  # times that such a step is halved, at most
_SINGULAR = 1e-13  # times D: eigenvalues of a standardised Hessian that are 0 but for rounding
_START_SD = 1e-3  # of the normal offset from where the model has chains begin
_SCALINGS = 4  # searches in other units, at most
# Posterior standard deviations from the mode at which no Newton step is needed, and at which a point is a reference.
_CLOSE, _NEAR = 1e-2, 1.0


class Differentiable(Protocol):
    """What has a log-likelihood of single data."""

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return per-datum log-likelihoods (C, m)."""
        ...


class LaplaceMode(NamedTuple):
    """The mode, and the Laplace approximation and derivatives of the log-likelihood there, float64."""

    theta: Tensor  # (D,)
    root: Tensor  # (D, D) Cholesky factor of the Laplace approximation's covariance
    gradient: Tensor  # (D,) of the sum of all log-likelihoods
    hessian: Tensor  # (D, D) of that sum
    n_grad: int  # per-datum gradients evaluated; a Hessian counts as D of them


def low_energy(model: Model, data: Dataset) -> Tensor:
    """Return a point (D,) of high posterior density: the end of L-BFGS from where the model has chains begin.

    It begins a little off that point, which may be a saddle between two modes, and needs no curvature at its end.

    Raises:
        UserError: the log posterior is not finite where the search begins, or has no gradient.
    """
    theta = first_point(model, data.device).cpu().numpy()[0]
    theta = theta + _START_SD * np.random.default_rng(0).standard_normal(len(theta))
    units = np.ones_like(theta)
    with _differentiated():
        for size in sorted({min(_SEARCH_DATA, data.n), data.n}):
            theta = _search(_Energy(model, data, size), theta, units)
    return torch.from_numpy(theta).to(data.device)


def find_reference(model: Model, data: Dataset) -> LaplaceMode:
    """Return the mode of the posterior at temperature 1.

    L-BFGS finds the mode given some of the data. Newton steps on all data lead from there, with the Hessian of these
    data: each costs one gradient and divides the distance to the mode by ten or so. Where they do not approach it,
    L-BFGS goes on, on all data. A last Newton step has the Hessian of all data, which is returned.

    Where coordinates have very different units, as of unstandardised features, L-BFGS stops far from the mode. It is
    then restarted from there in units of the curvature, 1 / sqrt(diag |H|).

    Raises:
        UserError: no mode within reach: the log posterior is unbounded, or not finite where the search begins; or the
            log-likelihood does not have two derivatives.
    """
    with _differentiated():
        return _search_result(model, data)


@contextmanager
def _differentiated() -> Iterator[None]:
    """Explain an error of automatic differentiation in one line."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        if not any(word in first for word in ("require grad", "once_differentiable", "derivative")):
            raise
        raise UserError(
            f"a surrogate needs two derivatives of the log-likelihood, and torch finds none: {first.rstrip('.')}; "
            "choose surrogate=none (target.surrogate in a configuration)."
        ) from error


def _search_result(model: Model, data: Dataset) -> LaplaceMode:
    theta, cost = first_point(model, data.device).cpu().numpy()[0], 0
    units = np.ones_like(theta)
    for scaling in range(_SCALINGS + 1):
        end = _attempt(model, data, theta, units)
        cost += end.mode.n_grad if end.mode is not None else end.n_grad
        if end.mode is not None:
            return end.mode._replace(n_grad=cost)
        if scaling < _SCALINGS:
            theta, units = end.theta, _units(model, data, end.theta)
            cost += min(_SEARCH_DATA, data.n) * len(theta)
    raise _no_mode()


class _End(NamedTuple):
    """Where a search ended, and the mode if it is one."""

    mode: LaplaceMode | None
    theta: np.ndarray  # (D,)
    n_grad: int


def _attempt(model: Model, data: Dataset, theta: np.ndarray, units: np.ndarray) -> _End:
    """Search for the mode from theta (D,), by L-BFGS on coordinates theta / units."""
    few_data, all_data = _Energy(model, data, min(_SEARCH_DATA, data.n)), _Energy(model, data, data.n)
    theta = _search(few_data, theta, units)
    cost = few_data.evaluated
    if few_data.size < data.n:
        curvature = _curvature(model, data, torch.from_numpy(theta).to(data.device), few_data.size)
        close = False
        if curvature is not None:
            theta, close = _approached(all_data, theta, curvature.cpu().numpy())
        if not close:
            theta, close, evaluated = _by_newton_steps(model, data, all_data, theta)
            cost += evaluated
        if not close:
            theta = _search(all_data, theta, units)
        cost += few_data.size * len(theta) + all_data.evaluated
    point = torch.from_numpy(theta).to(data.device)
    root: Tensor | None = None
    for newton in (True, False):  # one Newton step at most
        gradient, hessian = gradient_of_sum(model, data, point), hessian_of_sum(model, data, point)
        cost += data.n * (1 + len(point))
        prior_gradient, prior_hessian = prior_derivatives(model, point)
        root = _root(-(hessian + prior_hessian))
        if root is None:
            return _End(None, theta, cost)
        step = root.T @ (gradient + prior_gradient)  # to the mode, in standard deviations
        distance = float(step.norm())
        if distance < _CLOSE or not newton:
            break
        point = point + root @ step
    if root is None or not distance < _NEAR:
        return _End(None, theta, cost)
    return _End(LaplaceMode(point, root, gradient, hessian, cost), theta, cost)


def _units(model: Model, data: Dataset, theta: np.ndarray) -> np.ndarray:
    """Return 1 / sqrt(diag |H|), with the Hessian H of the log posterior at theta (D,)."""
    point, size = torch.from_numpy(theta).to(data.device), min(_SEARCH_DATA, data.n)
    hessian = hessian_of_sum(model, data, point, size) * (data.n / size) + prior_derivatives(model, point)[1]
    curvatures = hessian.diagonal().abs().nan_to_num(0.0, posinf=0.0).cpu().numpy()
    # A coordinate without curvature, or a point without any, leaves nothing to scale by.
    return np.where(curvatures > 0, curvatures, 1.0) ** -0.5


def _no_mode() -> UserError:
    return UserError(
        "a surrogate needs a reference point, and no mode of the posterior was found: the prior may be improper, or "
        "the density unbounded, as of effects of groups beside their scale. Choose another start, write effects "
        "as standardised ones times a scale, or take a method without a surrogate, such as hmc."
    )


class _Energy:
    """- log posterior / n and its gradient at values (D,), from `size` of the data, weighted to count as all."""

    def __init__(self, model: Model, data: Dataset, size: int) -> None:
        self.size = size
        self.n = data.n
        self.evaluated = 0  # per-datum gradients
        self._model, self._data = model, data

    def __call__(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        model, data = self._model, self._data
        self.evaluated += self.size
        point = torch.from_numpy(np.array(values))[None].to(data.device).requires_grad_()
        total, grad = 0.0, torch.zeros_like(point)
        with torch.enable_grad():
            for rows in _parts(model, data, 1, self.size):
                part = model.log_lik(point, rows).double().sum()
                if not part.requires_grad:
                    raise UserError(
                        "a surrogate needs a gradient of log_lik with respect to theta, and it has none; use torch "
                        "operations throughout, or choose surrogate=none (target.surrogate in a configuration)."
                    )
                grad += torch.autograd.grad(part, point)[0]
                total += float(part.detach())
            prior = model.log_prior(point).sum()
            add = torch.autograd.grad(prior, point)[0] if prior.requires_grad else torch.zeros_like(point)
        value = -total / self.size - float(prior.detach()) / data.n
        gradient = -grad[0] / self.size - add[0] / data.n
        if not np.isfinite(value):
            value = np.inf  # the line search turns back
        return value, gradient.detach().cpu().numpy()


def _search(energy: _Energy, theta: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return the mode by L-BFGS from theta (D,), on coordinates theta / units."""

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = energy(x * units)
        return value, gradient * units

    optimum = scipy.optimize.minimize(
        scaled,
        theta / units,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _ITERATIONS, "maxfun": 3 * _ITERATIONS, "ftol": 1e-15, "gtol": 1e-9},
    )
    if not np.isfinite(optimum.x).all() or not np.isfinite(optimum.fun):
        raise UserError(
            "target.surrogate: the log posterior is not finite where the search for its mode begins."
        )
    return np.asarray(optimum.x) * units


def _approached(energy: _Energy, theta: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, bool]:
    """Follow Newton steps with the covariance root root^T (D, D); return the point and whether it is near the mode.

    They end where the next step has less than `_CLOSE` standard deviations, or more than half of the last one's; the
    point is then the last from which steps became shorter.
    """
    before, last = math.inf, theta
    for _ in range(_NEWTON):
        value, gradient = energy(theta)
        if not math.isfinite(value) or not np.isfinite(gradient).all():
            return last, False
        step = -root @ (root.T @ gradient) * energy.n
        distance = float(np.linalg.norm(root.T @ gradient)) * energy.n
        if not distance < before / 2:
            return last, False
        if distance < _CLOSE:
            return theta, True
        theta, last, before = theta + step, theta, distance
    return last, False


def _by_newton_steps(
    model: Model, data: Dataset, energy: _Energy, theta: np.ndarray
) -> tuple[np.ndarray, bool, int]:
    """Follow Newton steps with the Hessian of all data, halved until the energy falls.

    Where some of the data have hardly any of what decides on a parameter, as of a rare level of a factor, L-BFGS takes
    a thousand passes, and these steps some passes for each parameter.

    Returns:
        The point (D,), whether it is near the mode, and the gradients of single data that the Hessians took.
    """
    cost, (value, gradient) = 0, energy(theta)
    if len(theta) > _MOST_NEWTON or not math.isfinite(value):
        return theta, False, 0
    for _ in range(_NEWTON):
        root = _curvature(model, data, torch.from_numpy(theta).to(data.device), energy.n)
        cost += energy.n * len(theta)
        if root is None:
            return theta, False, cost
        step = -(root @ (root.T @ torch.from_numpy(gradient).to(root))).cpu().numpy() * energy.n
        distance = float((root.T @ torch.from_numpy(gradient).to(root)).norm()) * energy.n
        if distance < _CLOSE:
            return theta, True, cost
        for _ in range(_HALVED):
            next_value, next_gradient = energy(theta + step)
            if next_value < value:
                break
            step = step / 2
        else:
            return theta, False, cost
        theta, value, gradient = theta + step, next_value, next_gradient
    return theta, False, cost


def _curvature(model: Model, data: Dataset, point: Tensor, size: int) -> Tensor | None:
    """Return the Cholesky factor of the Laplace approximation's covariance at a point, or None if there is none.

    The Hessian is that of `size` of the data, weighted to count as all.
    """
    hessian = hessian_of_sum(model, data, point, size) * (data.n / size)
    return _root(-(hessian + prior_derivatives(model, point)[1]))


def gradient_of_sum(model: Differentiable, data: Dataset, point: Tensor) -> Tensor:
    """Return the gradient (D,) of the sum of all log-likelihoods."""
    grad = torch.zeros_like(point)
    with torch.enable_grad():
        at = point[None].detach().requires_grad_()
        for rows in _parts(model, data, 1, data.n):
            grad += torch.autograd.grad(model.log_lik(at, rows).double().sum(), at)[0][0]
    return grad


def hessian_of_sum(model: Differentiable, data: Dataset, point: Tensor, size: int | None = None) -> Tensor:
    """Return the Hessian (D, D) of the sum of all log-likelihoods, or of `size` evenly spread ones, symmetric.

    Chain d of D equal chains differentiates coordinate d of the gradient: one pass gives all rows.
    """
    dim = len(point)
    hessian = point.new_zeros(dim, dim)
    with torch.enable_grad():
        at = point.repeat(dim, 1).requires_grad_()
        for rows in _parts(model, data, dim, data.n if size is None else size, _ROWS):
            total = model.log_lik(at, rows).double().sum()
            (grad,) = torch.autograd.grad(total, at, create_graph=True)
            if grad.requires_grad:
                (part,) = torch.autograd.grad(grad.diagonal().sum(), at, allow_unused=True)
                hessian += 0 if part is None else part
    return 0.5 * (hessian + hessian.T)


def prior_derivatives(model: Model, point: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient (D,) and the Hessian (D, D) of the log-prior."""
    dim = len(point)
    with torch.enable_grad():
        at = point.repeat(dim, 1).requires_grad_()
        prior = model.log_prior(at).double()
        if not prior.requires_grad:
            return torch.zeros_like(point), point.new_zeros(dim, dim)
        (grad,) = torch.autograd.grad(prior.sum(), at, create_graph=True)
        second = None
        if grad.requires_grad:
            (second,) = torch.autograd.grad(grad.diagonal().sum(), at, allow_unused=True)
    return grad[0].detach(), point.new_zeros(dim, dim) if second is None else second.detach()


def _root(precision: Tensor) -> Tensor | None:
    """Return the Cholesky factor of the inverse, or None if the matrix is not positive definite, but for rounding."""
    units = precision.diagonal().abs().rsqrt()
    standardised = units[:, None] * precision * units
    if not bool(standardised.isfinite().all()):
        return None
    if float(torch.linalg.eigvalsh(standardised).min()) < _SINGULAR * len(precision):
        return None
    factor, wrong = torch.linalg.cholesky_ex(precision)
    if int(wrong) or not bool(factor.isfinite().all()):
        return None
    root, wrong = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor))
    return None if int(wrong) or not bool(root.isfinite().all()) else root


def _parts(
    model: Differentiable, data: Dataset, chains: int, size: int, most: int | None = None
) -> Iterator[Rows]:
    """Yield `size` data, evenly spread, in parts that fit in memory and have at most `most` rows, as float64."""
    width = max(value[0].numel() for value in data.fields.values())
    part = max(1, min(_VALUES // max(chains, width), most or size))
    for start in range(0, size, part):
        stop = min(start + part, size)
        if size == data.n:
            rows: Rows = data.part(start, stop)
        else:
            places = torch.arange(start, stop, device=data.device) * data.n // size
            rows = data.rows(places[None])
        yield in_float64(model, rows)


def in_float64(model: Differentiable, rows: Rows) -> Rows:
    """Return the rows with float64 fields for floating-point ones, so that remainders are more than rounding errors."""
    offered = native_form(model, "in_float64", "log_lik")
    if offered is not None:
        converted: Rows = offered(rows)
        return converted
    return {name: v.double() if v.is_floating_point() else v for name, v in rows.items()}
