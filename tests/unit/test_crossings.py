"""Where a curve reaches a level: between points, linear or in the logarithm of x."""

from __future__ import annotations

import numpy as np
import pytest

from mhrun.paths import experiment_module

first_crossing = experiment_module("shared.crossings").first_crossing
X, RISING = np.array([1.0, 10.0, 100.0]), np.array([0.2, 0.4, 0.8])


def test_between_points_a_curve_is_linear():
    assert first_crossing(X, RISING, 0.3) == pytest.approx(5.5)
    assert first_crossing(X, RISING, 0.6, log=True) == pytest.approx(10**1.5)
    assert first_crossing(X, -RISING[::-1], -0.6, log=True) == pytest.approx(10**0.5)  # it comes down


def test_a_curve_may_be_at_the_level_from_the_first_or_never():
    assert first_crossing(X, RISING, 0.1) == 1.0
    assert np.isnan(first_crossing(X, RISING, 0.9))
    assert first_crossing(X, np.array([0.0, 1.0, 0.0]), 1.0) == 10.0  # the first time counts
