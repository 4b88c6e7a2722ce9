"""Diagnostics: numbers for arrays whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
from laws import Z

from mhrun.diagnostics.chains import ess, rhat
from mhrun.diagnostics.grid import (
    Grid,
    chi_squared,
    jackknife,
    log_masses,
    monte_carlo_distance,
    total_variation,
)
from mhrun.diagnostics.modes import hits, nearest, ratio


def gaussian(theta):
    return -0.5 * (theta**2).sum(axis=1)


def test_quadrature_of_a_gaussian():
    grid = Grid.of((-8.0, -8.0), (8.0, 8.0), 64)
    assert np.logaddexp.reduce(log_masses(gaussian, grid, 4)) == pytest.approx(np.log(2 * np.pi), abs=1e-9)


def test_shares_are_counts_and_know_what_is_outside():
    grid = Grid.of((0.0, 0.0), (2.0, 3.0), 1)
    draws = np.array([[[0.5, 0.5], [1.9, 2.9], [-0.1, 1.0], [1.0, 3.5]]])
    assert grid.shares(draws).tolist() == [[0.5, 0.5]]
    fine = Grid.of((0.0, 0.0), (2.0, 3.0), 2)
    assert fine.shares(draws)[0].tolist() == [0.25, 0.0, 0.0, 0.25, 0.5]


def test_shares_agree_with_a_library_histogram(rng):
    grid = Grid.of((-2.0, -1.0), (2.0, 3.0), 7)
    draws = rng.normal(0.5, 1.5, (3, 500, 2))
    for c in range(3):
        counts, _, _ = np.histogram2d(draws[c, :, 0], draws[c, :, 1], bins=(grid.x, grid.y))
        assert np.allclose(grid.shares(draws)[c, :-1], counts.ravel() / 500)


@pytest.fixture
def law(rng):
    return rng.dirichlet(np.full(200, 0.7))


def test_chi_squared_is_unbiased_where_a_plain_distance_is_not(rng, law):
    """With exact draws the estimate is about zero, the total variation is not; with a wrong law it is right."""
    exact = rng.multinomial(400, law, size=40) / 400
    found = chi_squared(exact, law)
    assert abs(found.value) < Z * found.se
    assert total_variation(exact, law) > 0.02
    wrong = 0.9 * law + 0.1 * np.roll(law, 1)
    truth = ((wrong - law) ** 2 / law).sum()
    found = chi_squared(rng.multinomial(4000, wrong, size=400) / 4000, law)
    assert abs(found.value - truth) < Z * found.se
    assert found.value > 5 * found.se


def test_the_distance_that_chance_brings(rng, law):
    exact = rng.multinomial(400, law, size=40) / 400
    assert monte_carlo_distance(exact) == pytest.approx(total_variation(exact, law), rel=0.15)


def test_the_jackknife_is_the_standard_error_of_a_mean(rng):
    rows = rng.normal(size=(30, 1))
    found = jackknife(lambda r: float(r.mean()), rows)
    assert found.value == pytest.approx(rows.mean())
    assert found.se == pytest.approx(rows.std(ddof=1) / np.sqrt(30))


def test_ratios_of_sums(rng):
    assert ratio(np.array([1, 3]), np.array([2, 2])).value == 1.0
    assert np.isnan(ratio(np.array([1, 3]), np.array([0, 0])).value)
    first, second = rng.poisson(30, (2, 400))
    found = ratio(first, second)
    assert abs(found.value - 1) < Z * found.se
    assert found.se == pytest.approx(np.sqrt(2 / (30 * 400)), rel=0.3)


def test_modes():
    modes = np.array([[0.0, 1.0], [1.0, -1.0]])
    draws = np.array([[[0.0, 1.005], [0.9, -1.0], [5.0, 5.0]]])
    assert nearest(draws, modes).tolist() == [[0, 1, 0]]
    assert hits(draws, modes[0], 0.01).tolist() == [[True, False, False]]


def test_chain_diagnostics_are_arvizs(rng):
    draws = rng.normal(size=(4, 1000))
    assert ess(draws) == pytest.approx(4000, rel=0.15)
    assert rhat(draws) == pytest.approx(1, abs=0.01)
    apart = draws + np.array([[0], [0], [3], [3]])
    assert rhat(apart) > 1.5
    walk = np.cumsum(rng.normal(size=(4, 20000)), axis=1)
    assert ess(walk) < 60
    assert rhat(walk) == pytest.approx(rhat(walk, most=20000), rel=0.05)
    for nothing in (np.zeros((4, 100)), np.full((4, 100), np.nan), np.zeros((4, 2))):
        assert np.isnan(ess(nothing))
        assert np.isnan(rhat(nothing))
