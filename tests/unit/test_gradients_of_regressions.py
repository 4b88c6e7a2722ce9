"""Gradients of the built-in regressions in closed form, beside automatic differentiation of their log-likelihoods."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mhrun
from mhrun.models.autograd import log_lik_and_grad, log_prior_grad
from mhrun.models.logistic import _MAX_BATCHED_DATA, _MAX_LOOPED_POINTS
from mhrun.target.gradients import Gradients

N, DIM = 90, 4
KINDS = (torch.float64, torch.float32, torch.uint8)


def outcomes(rng, n):
    trials = np.full(n, 9.0)
    return {
        "logistic": (mhrun.Logistic(DIM, 4.0), {"y": rng.choice([-1.0, 1.0], n)}),
        "robust": (mhrun.RobustRegression(DIM, prior_variance=4.0), {"y": rng.standard_t(4, n)}),
        "Poisson": (mhrun.PoissonRegression(DIM, 4.0), {"y": rng.poisson(2.0, n).astype(float)}),
        "binomial": (
            mhrun.BinomialRegression(DIM, 4.0),
            {"y": rng.binomial(9, 0.4, n).astype(float), "trials": trials},
        ),
        "softmax": (mhrun.SoftmaxRegression(DIM, 3, 4.0), {"y": rng.integers(0, 3, n)}),
    }


NAMES = ("logistic", "robust", "Poisson", "binomial", "softmax")


def case(name, rng, n=N, kind=torch.float64):
    model, fields = outcomes(rng, n)[name]
    x = rng.normal(size=(n, DIM))
    x = torch.from_numpy(x if kind.is_floating_point else 255 * rng.random((n, DIM))).to(kind)
    return model, {"x": x, **{key: torch.from_numpy(value) for key, value in fields.items()}}


def agrees(model, rows, theta, tolerance):
    """Assert that value and gradient, their types and shapes are those of automatic differentiation."""
    found = model.log_lik_and_grad(theta, rows)
    wanted = log_lik_and_grad(lambda point: model.log_lik(point, rows), theta)
    for one, other in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance)
    assert float(found[1].abs().max()) > 0


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("chains", "m", "is_shared"),
    [(1, N, True), (3, N, True), (3, 7, False), (3, _MAX_BATCHED_DATA + 1, False), (3, 1, False)],
)
def test_gradients_are_those_of_automatic_differentiation(rng, name, chains, m, is_shared, kind):
    model, data = case(name, rng, kind=kind)
    index = torch.from_numpy(rng.integers(0, N, (1 if is_shared else chains, m)))
    rows = {key: value[index] for key, value in data.items()}
    theta = torch.from_numpy(0.3 * rng.normal(size=(chains, model.dim)))
    agrees(model, rows, theta, 1e-11 if name != "logistic" or kind == torch.float64 else 1e-4)


def test_a_datum_of_each_of_many_points(rng):
    """Products are elementwise there."""
    chains = _MAX_LOOPED_POINTS + 1
    model, data = case("logistic", rng, kind=torch.float32)
    rows = {key: value[torch.from_numpy(rng.integers(0, N, (chains, 1)))] for key, value in data.items()}
    agrees(model, rows, torch.from_numpy(0.3 * rng.normal(size=(chains, DIM))), 1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_flat", [False, True])
def test_the_gradient_of_the_prior(rng, name, is_flat):
    model, _ = case(name, rng)
    model.precision = 0.0 if is_flat else model.precision
    theta = torch.from_numpy(rng.normal(size=(3, model.dim)))
    found = model.log_prior_grad(theta)
    if is_flat:
        assert found is None
    else:
        assert torch.allclose(found, log_prior_grad(model.log_prior, theta), rtol=1e-14)


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float16, 0.02), (torch.bfloat16, 0.05)], ids=str)
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_sum_over_many_data_does_not_overflow_in_16_bits(rng, kind, tolerance, is_shared):
    n, model = 6_000, mhrun.Logistic(2)
    x = torch.from_numpy(np.column_stack([np.full(n, 40.0), rng.normal(size=n)])).to(kind)
    data = {"x": x, "y": torch.from_numpy(rng.choice([-1.0, 1.0], n, p=[0.1, 0.9]))}
    rows = {
        key: value[None] if is_shared else value[None].expand(2, *value.shape) for key, value in data.items()
    }
    theta = torch.zeros(2, 2).double()
    wanted = model.log_lik_and_grad(theta, rows | {"x": rows["x"].double()})[1]
    found = model.log_lik_and_grad(theta, rows)[1]
    assert torch.allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_large_weights_have_finite_gradients():
    """Where probabilities are 0 and 1 in floating point: sigmoid(-z) y x at z = -1e4 and 1e4."""
    model = mhrun.Logistic(1)
    rows = {"x": torch.tensor([[[1e3], [1e3]]]).double(), "y": torch.tensor([[1.0, -1.0]]).double()}
    value, grad = model.log_lik_and_grad(torch.tensor([[10.0]]).double(), rows)
    assert value[0].tolist() == [0.0, -1e4]
    assert float(grad) == -500.0


class OtherValue(mhrun.PoissonRegression):
    """Overrides f, and not its derivatives."""

    def value(self, eta, rows):
        return 2 * super().value(eta, rows)


class OtherOffset(mhrun.PoissonRegression):
    def offset(self, rows):
        return 0.5


class OtherLikelihood(mhrun.Logistic):
    def log_lik(self, theta, rows):
        return 2 * super().log_lik(theta, rows)


@pytest.mark.parametrize(
    ("of_user", "name"), [(OtherValue, "Poisson"), (OtherOffset, "Poisson"), (OtherLikelihood, "logistic")]
)
def test_a_subclass_that_changes_the_likelihood_has_its_own_gradient(rng, of_user, name):
    _, data = case(name, rng)
    rows, theta = {key: value[None] for key, value in data.items()}, torch.full((1, DIM), 0.1).double()
    model = of_user(DIM)
    found = Gradients(model).log_lik_and_grad(theta, rows)[1]
    wanted = log_lik_and_grad(lambda point: model.log_lik(point, rows), theta)[1]
    assert torch.allclose(found, wanted, rtol=1e-12)
    own = type(model).__mro__[1](DIM).log_lik_and_grad(theta, rows)[1]
    assert not torch.allclose(found, own, rtol=1e-3)
