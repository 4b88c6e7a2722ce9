"""Pearson's statistic of counts, from all rows or from evenly spaced ones."""

from __future__ import annotations

import re

import pytest
import torch

from mhrun.models.poisson_regression import PoissonRegression, dispersion_warnings


def test_the_statistic_is_divided_by_its_degrees_of_freedom():
    """Of 12 counts and 4 parameters it is the sum of squares over the mean by 8."""
    y, mean = torch.tensor([0.0, 40.0] * 6), torch.full((12,), 20.0)
    (line,) = dispersion_warnings(y, mean, 4)
    assert re.search(r"variance is about (\S+) times", line)[1] == f"{12 * 20 / 8:.2g}"
    assert not list(dispersion_warnings(y[:4], mean[:4], 4))


@pytest.mark.parametrize(("mean", "lines"), [(0.1, 0), (20.0, 1)])
def test_the_statistic_varies_more_for_small_means(mean, lines):
    """It is 2.1 for both; by chance it has an sd of 0.35 about 1 for a mean of 0.1, and of 0.14 for one of 20."""
    means = torch.full((100,), mean)
    assert len(list(dispersion_warnings(means + (2.1 * means).sqrt(), means, 1))) == lines


@pytest.mark.parametrize(("rows", "lines"), [(25, 0), (100, 1)])
def test_the_statistic_varies_more_with_fewer_rows(rows, lines):
    """It is about 2.3; by chance it has an sd of 0.29 about 1 for 25 rows, and of 0.14 for 100."""
    means = torch.full((rows,), 20.0)
    assert len(list(dispersion_warnings(means + (2.2 * means).sqrt(), means, 1))) == lines


@pytest.mark.parametrize("places", [slice(None, 100), slice(100, None)])
def test_rows_of_a_large_table_are_evenly_spaced(monkeypatch, places):
    """Counts vary too much in the first half or in the second: both halves are read."""
    monkeypatch.setattr("mhrun.models.poisson_regression._ROWS", 100)
    y = torch.full((200,), 20.0, dtype=torch.float64)
    y[places] = torch.tensor([0.0, 0.0, 40.0, 40.0] * 25, dtype=torch.float64)
    data = {"x": torch.ones(200, 1, dtype=torch.float64), "y": y}
    theta = torch.tensor([20.0], dtype=torch.float64).log()
    assert len(PoissonRegression(1, 10.0).fit_warnings(theta, data)) == 1
