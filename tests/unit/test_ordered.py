"""Increasing vectors: the transform, its unit, and a mixture with more components than the data have."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Cauchy, Normal

import mhrun
from mhrun.models.ordered import OrderedTransform, ordered
from mhrun.models.parameters import Parameters

POINTS = torch.tensor(
    [[0.3, -40.0, 0.2, 55.0], [-2.0, 1.0, -3.0, 0.0], [1e3, 30.0, -8.0, 700.0]], dtype=torch.float64
)


@pytest.mark.parametrize("unit", [None, 0.3, 1e-3, 1e4])
def test_the_transform_and_its_inverse(unit):
    transform = OrderedTransform(unit)
    values = transform(POINTS[:2])
    assert bool(ordered.check(values)[1])
    exact = (lambda u: math.exp(u)) if unit is None else (lambda u: unit * math.log1p(math.exp(u)))
    expected = np.cumsum([-2.0, *(exact(float(u)) for u in POINTS[1, 1:])])
    assert values[1].numpy() == pytest.approx(expected, rel=1e-12)
    assert transform.inv(values)[1].numpy() == pytest.approx(POINTS[1].numpy(), abs=1e-8)


@pytest.mark.parametrize("unit", [None, 0.3, 1e4])
def test_the_jacobian_is_that_of_the_transform(unit):
    transform = OrderedTransform(unit)
    for point in POINTS[:2]:
        matrix = torch.autograd.functional.jacobian(transform, point)
        assert isinstance(matrix, torch.Tensor)
        found = float(transform.log_abs_det_jacobian(point, transform(point)))
        assert found == pytest.approx(float(matrix.diagonal().log().sum()), rel=1e-10)


def test_large_differences_are_linear_and_small_ones_exponential():
    u = torch.tensor([0.0, 500.0], dtype=torch.float64)
    assert float(OrderedTransform(0.5)(u)[1]) == pytest.approx(250.0)
    u = torch.tensor([0.0, -500.0], dtype=torch.float64)
    assert float(OrderedTransform(0.5)(u)[1]) == pytest.approx(0.5 * math.exp(-500.0), rel=1e-12)


def test_the_unit_follows_the_prior():
    assert OrderedTransform.for_prior(Normal(torch.zeros(3), torch.tensor([8.0, 4.0, 16.0]))).unit == 0.25
    assert OrderedTransform.for_prior(Cauchy(0.0, 1.0)).unit is None
    assert OrderedTransform.for_prior(None).unit is None
    assert OrderedTransform(0.25) == OrderedTransform(0.25) != OrderedTransform(0.5)
    (parameter,) = Parameters({"c": {"shape": 3, "prior": "Normal(0, 3)", "constraint": "ordered"}}).all
    assert parameter.transform == OrderedTransform(3 / 16)


def test_other_units_of_the_data_give_the_same_moves():
    """Of 1,000 times the values with 1,000 times the prior."""
    small, large = (
        OrderedTransform.for_prior(Normal(0.0, 2.0)),
        OrderedTransform.for_prior(Normal(0.0, 2000.0)),
    )
    u = torch.tensor([0.0, -1.0, 4.0], dtype=torch.float64)
    assert large(u).numpy() == pytest.approx(1000 * small(u).numpy(), rel=1e-12)


def test_many_increasing_numbers_are_drawn_from_their_prior():
    """One of 40,320 draws of eight is increasing; a draw in order has the distribution."""
    parameters = Parameters(
        {
            "c": {"shape": 8, "prior": "Normal(100, 2)", "constraint": "ordered"},
            "d": {"shape": [3, 6], "prior": "StudentT(4, 0, 1)", "constraint": "ordered"},
        }
    )
    torch.manual_seed(0)
    draws = [parameters.sample(strict=True) for _ in range(2000)]
    found = torch.stack([draw["c"] for draw in draws]).mean(0)
    exact = [1.4236, 0.8522, 0.4728, 0.1525]  # means of order statistics of eight standard normal numbers
    assert found.numpy() == pytest.approx(
        100 + 2 * np.array([-x for x in exact] + exact[::-1]), abs=5 * 2 * 0.62 / 2000**0.5
    )
    assert bool((draws[0]["d"].diff(dim=-1) > 0).all())


def test_numbers_with_several_distributions_are_drawn_until_they_increase():
    parameters = Parameters(
        {"c": {"prior": Normal(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0])), "constraint": "ordered"}}
    )
    torch.manual_seed(0)
    draws = torch.stack([parameters.sample(strict=True)["c"] for _ in range(4000)])
    # E[x_1 | x_1 < x_2] = -1 / sqrt(5 pi) for standard deviations 1 and 3
    assert float(draws[:, 0].mean()) == pytest.approx(-((5 * math.pi) ** -0.5), abs=5 / 4000**0.5)


@pytest.mark.slow
def test_a_component_without_data_is_free():
    """Two ordered means of data from one component, against a grid: 9 % of the lower one is below -2.

    With differences that are exponentials 1 to 5 % of the draws of four seeds were.
    """
    y = np.random.default_rng(11).normal(size=40)
    grid, weights = np.linspace(-18, 18, 241), np.linspace(0.0025, 0.9975, 200)
    densities = np.exp(-0.5 * (y[:, None] - grid) ** 2)
    below = np.full((len(grid), len(grid)), -np.inf)
    for low in range(len(grid)):
        mixed = (
            weights[:, None, None] * densities[:, low, None, None].T
            + (1 - weights)[:, None, None] * densities.T
        )
        log_lik = np.log(mixed + 1e-300).sum(-1) - (grid[low] ** 2 + grid**2) / 50
        below[low, low + 1 :] = np.logaddexp.reduce(log_lik, 0)[low + 1 :]
    mass = np.exp(below - below.max())
    exact = float(mass[grid < -2].sum() / mass.sum())

    def log_lik(theta, batch):
        each = Normal(theta.mu, 1.0).log_prob(batch[..., None]) + theta.w.log()
        return torch.logsumexp(each, -1)

    means = {"shape": 2, "prior": "Normal(0, 5)", "constraint": "ordered"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            log_lik, y, "hmc", parameters={"mu": means, "w": "Dirichlet([1, 1])"}, seed=1, acceptance=0.95,
            steps=6000, warmup=1500, progress=False,
        )  # fmt: skip
    low = trace["posterior"]["mu"].to_numpy()[..., 0]
    assert float((low < -2).mean()) == pytest.approx(exact, abs=0.03)
