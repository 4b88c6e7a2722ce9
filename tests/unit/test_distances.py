"""Distances between samples, and their errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from mhrun.diagnostics.distances import energy_distance, shifts


def autoregressive(rng, chains, steps, rho, dim=1):
    """Draws of stationary AR(1) chains with variance 1: (chains, steps, dim)."""
    draws = rng.normal(size=(chains, steps, dim))
    for t in range(1, steps):
        draws[:, t] = rho * draws[:, t - 1] + np.sqrt(1 - rho**2) * draws[:, t]
    return draws


def exact_energy(shift):
    """The energy distance of N(0, 1) and N(shift, 1), from the mean of a folded normal variable."""
    s = np.sqrt(2)
    folded = s * np.sqrt(2 / np.pi) * np.exp(-(shift**2) / 4) + shift * (1 - 2 * norm.cdf(-shift / s))
    return 2 * folded - 4 / np.sqrt(np.pi)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_energy_distance_has_no_bias_though_chains_are_correlated(rng, shift):
    """Mean over 200 pairs of sets within four standard errors: false alarm once in 16,000."""
    found = [
        energy_distance(autoregressive(rng, 5, 60, 0.8) + shift, rng.normal(size=(6, 400, 1)) / 1.0)
        for _ in range(200)
    ]
    values = np.array([f.value for f in found])
    # The scale is that of the reference, which is itself estimated, to 2 % at most.
    assert abs(values.mean() - exact_energy(shift)) < 4 * values.std() / np.sqrt(200) + 0.01 * exact_energy(
        shift
    )
    errors = np.array([f.se for f in found])
    assert 0.7 < np.sqrt(np.mean(errors**2)) / values.std() < 2.0


def test_the_energy_distance_of_few_chains(rng):
    draws = rng.normal(size=(3, 50, 2))
    assert np.isnan(energy_distance(draws[:1], draws).value)
    assert np.isnan(energy_distance(draws[:2], draws).se)
    assert np.isfinite(energy_distance(draws[:2], draws).value)
    assert np.isnan(energy_distance(draws, np.zeros((3, 50, 2))).value)
    # The order of the chains, and the unit of a coordinate, are nothing to it.
    one = energy_distance(draws, draws[:, ::-1] * 2)
    two = energy_distance(draws[::-1] * [1, 1000], draws[:, ::-1] * [2, 2000])
    assert one.value == pytest.approx(two.value)
    assert one.se == pytest.approx(two.se)


def test_shifts_are_within_their_errors(rng):
    """Coordinates of variance 4 about 3 beside those of variance 1 about 0; 300 of them, each within its errors."""
    draws = 3 + 2 * autoregressive(rng, 4, 400, 0.7, 150)
    reference = autoregressive(rng, 4, 400, 0.3, 150)
    found = shifts(draws, reference)
    mean = (found.mean - 3) / found.mean_se
    spread = (found.spread - 2) / found.spread_se
    for z in (mean, spread):
        assert 0.8 < np.sqrt(np.mean(z**2)) < 1.25
    worst, wide = found.worst()
    assert worst.value == pytest.approx(np.abs(found.mean).max())
    assert wide.value == found.spread.max()
    assert np.isnan(shifts(np.zeros((2, 9, 1)), np.zeros((2, 9, 1))).worst()[0].value)
