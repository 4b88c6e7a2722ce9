"""The mode about which a surrogate expands, and derivatives there, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.models.function import FunctionModel
from mhrun.models.logistic import Logistic
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.target import reference
from mhrun.target.reference import find_reference

FEW, MANY = 2_000, 50_000


def observed(n, common=1.0):
    """Return n rows of four features and outcomes; the last feature is 0 but in a share `common` of the rows."""
    rng = np.random.default_rng(21)
    x = rng.normal(size=(n, 4)) * [1.0, 0.5, 2.0, 1.0]
    x[:, 3] *= rng.random(n) < common
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.3, 0.5])), 1, -1)
    return x, y


def derivatives(x, y, theta):
    """Return the gradient and the Hessian of the log posterior with standard normal priors."""
    p = 1 / (1 + np.exp(y * (x @ theta)))
    return x.T @ (y * p) - theta, -(x.T * (p * (1 - p))) @ x - np.eye(len(theta))


def assert_mode(found, x, y):
    theta = found.theta.numpy()
    gradient, hessian = derivatives(x, y, theta)
    covariance = np.linalg.inv(-hessian)
    assert np.sqrt(gradient @ covariance @ gradient) < 0.011  # standard deviations from the mode
    assert found.root.numpy() @ found.root.numpy().T == pytest.approx(covariance, rel=1e-6, abs=1e-12)
    assert found.gradient.numpy() == pytest.approx(gradient + theta, abs=1e-5)
    assert found.hessian.numpy() == pytest.approx(hessian + np.eye(len(theta)), rel=1e-8, abs=1e-6)


@pytest.mark.parametrize("n", [1, 300, FEW, MANY])
def test_the_mode_of_few_and_of_many_data(monkeypatch, n):
    monkeypatch.setattr(reference, "_SEARCH_DATA", FEW)
    x, y = observed(n)
    found = find_reference(Logistic(4, 1.0, "zeros"), Dataset.of({"x": x, "y": y}))
    assert_mode(found, x, y)
    if n == MANY:  # the derivatives that are returned cost 1 + 4 passes, the steps on all data the others
        assert found.n_grad < n * (1 + 4 + 6) + 60 * FEW


@pytest.mark.parametrize("n", [300, MANY])
@pytest.mark.parametrize("scales", [(1e3, 1e-3), (1e6, 1e6), (1e4, 1.0)])
def test_the_mode_of_features_in_other_units(monkeypatch, n, scales, rng):
    """L-BFGS stops at its first step for the largest; the posterior is that of the standardised features."""
    monkeypatch.setattr(reference, "_SEARCH_DATA", FEW)
    scales = np.array([1.0, *scales])
    z = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    y = rng.poisson(np.exp(z @ [0.3, 0.5, 0.5])).astype(float)
    found = find_reference(PoissonRegression(3, 1e12), Dataset.of({"x": z * scales, "y": y}))
    mean = np.exp(z @ (found.theta.numpy() * scales))
    covariance = np.linalg.inv((z.T * mean) @ z)
    gradient = z.T @ (y - mean)
    assert np.sqrt(gradient @ covariance @ gradient) < 0.011
    root = found.root.numpy() * scales[:, None]
    assert root @ root.T == pytest.approx(covariance, rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_of_a_feature_has_no_mode(seed):
    """The Hessian is singular, but for rounding of either sign; each new search would give it another chance."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5_000, 3))
    x = np.column_stack([x, x[:, 0] * rng.choice([1.0, 1.7])])
    y = np.where(rng.random(5_000) < 1 / (1 + np.exp(-x[:, 0])), 1, -1)
    with pytest.raises(UserError, match="no mode of the posterior was found"):
        find_reference(Logistic(4, None, "zeros"), Dataset.of({"x": x, "y": y}))


def test_newton_steps_that_lead_astray_are_left(monkeypatch):
    """Among the data of the first search no more than one has the last feature."""
    monkeypatch.setattr(reference, "_SEARCH_DATA", FEW)
    x, y = observed(MANY, common=0.5)
    x[np.arange(FEW) * MANY // FEW, 3] = 0.0
    searched = []
    search = reference._search
    monkeypatch.setattr(
        reference, "_search", lambda energy, *at: searched.append(energy.size) or search(energy, *at)
    )
    found = find_reference(Logistic(4, 1.0, "zeros"), Dataset.of({"x": x, "y": y}))
    assert_mode(found, x, y)
    assert searched == [FEW]  # steps with the Hessian of all data lead to the mode


def test_a_curvature_that_is_none_leaves_the_search_to_all_data(monkeypatch):
    """The first data say nothing of theta, and its prior is flat."""
    monkeypatch.setattr(reference, "_SEARCH_DATA", 10)
    x = np.arange(40.0)
    x[::4] = np.nan
    data = Dataset.of(np.nan_to_num(x, nan=-1.0))

    def log_lik(theta, rows):
        return torch.where(rows["x"] < 0, 0.0 * theta[:, :1], -0.5 * (rows["x"] - theta[:, :1]) ** 2)

    found = find_reference(FunctionModel(log_lik, [0.5], batched=True), data)
    assert float(found.theta) == pytest.approx(np.nanmean(x))
    assert float(found.root) == pytest.approx(30**-0.5)


def test_rare_levels_take_few_passes():
    """The part on which the search begins has none of their rows, and L-BFGS takes hundreds of passes."""
    rng = np.random.default_rng(0)
    n = 50_000
    x = np.column_stack([np.ones(n), rng.random((n, 4)) < [1e-4, 3e-4, 0.1, 0.5]])
    y = rng.poisson(np.exp(-1 + 0.3 * x[:, 1:].sum(1)))
    found = find_reference(PoissonRegression(5, 100.0), Dataset.of({"x": x, "y": y}))
    theta = found.theta.numpy()
    mean = np.exp(x @ theta)
    off = found.root.numpy().T @ (x.T @ (y - mean) - theta / 100)  # in standard deviations
    assert np.linalg.norm(off) < 0.01
    assert found.n_grad < 120 * n
