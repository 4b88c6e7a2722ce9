"""The spread of the log-ratio of a posterior and its normal approximation."""

from __future__ import annotations

import math

import pytest
import torch

import mhrun
from mhrun.engine.landscape.normality import spread_of_log_ratio
from mhrun.engine.landscape.surface import Surface
from mhrun.models.function import FunctionModel
from mhrun.target import Target


def spread(log_density, dim=1, temperature=1.0, scale=1.0):
    """The spread about 0 of a density at temperature 1, given as a log-likelihood of one datum."""
    data = mhrun.Dataset({"x": torch.zeros(1, 1)})
    target = Target(
        FunctionModel(lambda theta, rows: log_density(theta).expand(len(rows)), start=[0.0] * dim), data
    )
    mode, root = torch.zeros(dim, dtype=torch.float64), scale * torch.eye(dim, dtype=torch.float64)
    return spread_of_log_ratio(Surface(target, temperature, 0), mode, root, key=1)


@pytest.mark.parametrize("temperature", [0.01, 1.0, 1e3])
@pytest.mark.parametrize("dim", [1, 30])
def test_a_normal_density_has_none(dim, temperature):
    found = spread(lambda theta: -2.0 * theta.square().sum(), dim, temperature, scale=0.5)
    assert found == pytest.approx(0.0, abs=1e-9 * dim)


def test_of_a_quartic_density():
    """With log p = -x^2 / 2 - k x^4 it is k T z^4, whose quantiles are those of |z|: 10 % 0.126, 90 % 1.645."""
    one = spread(lambda theta: -(theta[0] ** 2) / 2 - theta[0] ** 4)
    assert one == pytest.approx((1.645**4 - 0.126**4) / 2.56, rel=0.5)  # of 40 draws
    hot = spread(lambda theta: -(theta[0] ** 2) / 2 - theta[0] ** 4, temperature=7.0)
    assert hot == pytest.approx(7 * one, rel=1e-6)
    steep = spread(lambda theta: -(theta[0] ** 2) / 2 - 3 * theta[0] ** 4)
    assert steep == pytest.approx(3 * one, rel=1e-6)


@pytest.mark.parametrize("outside", [-math.inf, math.nan])
def test_a_few_draws_outside_of_the_support_count_for_nothing(outside):
    def cut(at):
        return lambda theta: torch.where(theta[0] > at, -(theta[0] ** 2) / 2, outside)

    assert spread(cut(-3.5)) == pytest.approx(0.0, abs=1e-9)
    assert spread(cut(-0.5)) == math.inf


def test_a_scale_that_does_not_fit_has_a_large_one():
    narrow, wide = (spread(lambda theta: -theta.square().sum() / 2, 10, scale=scale) for scale in (0.1, 4.0))
    assert narrow > 1
    assert wide > 10


def test_a_support_that_nearly_all_draws_are_outside_of():
    box = spread(
        lambda theta: torch.where((theta.abs() < 0.5).all(), -theta.square().sum() / 2, -math.inf), 8
    )
    assert box == math.inf
