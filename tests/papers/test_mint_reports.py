"""Li & Wong (2017): what its reports are computed from, against plain loops."""

from __future__ import annotations

import math
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot as plt

from mhrun.paths import experiment_module

bounds, figure1, mintee, network = (
    experiment_module(f"mint.{name}") for name in ("bounds", "figure1", "mintee", "network")
)


# --- Figure 1 -----------------------------------------------------------------------------------------------


def test_ratios_above_the_frame_are_arrows_with_the_largest_number():
    drawn, axis = plt.subplots()
    style = {"color": "black", "alpha": 1}
    figure1._arrows_above(axis, np.array([1, 2, 3, 4]), np.array([1.0, 3.0, 15.5, np.nan]), style)
    (arrows,) = axis.lines
    assert list(arrows.get_xdata()) == [2, 3]
    assert max(arrows.get_ydata()) < 2.5
    assert [(text.get_text(), text.xy[0]) for text in axis.texts] == [("15.5", 3)]
    figure1._arrows_above(axis, np.array([1, 2]), np.array([2.5, 0.1]), style)
    assert len(axis.lines) == 1
    plt.close(drawn)


# --- Theorems 1 and 2 ---------------------------------------------------------------------------------------


def test_acceptance_averages_over_every_minibatch():
    """Against all minibatches of 3 of 7 data, one by one."""
    theta, n, m, c = np.array([-0.7, 0.1, 0.9]), 7, 3, 2.5
    labels = [1, 1, 1, 1, -1, -1, -1]
    found = bounds.acceptance(theta, m, n, c, 4)
    for i, here in enumerate(theta):
        for j, there in enumerate(theta):
            kept = []
            for batch in combinations(labels, m):
                gap = sum(
                    math.log(1 + math.exp(-y * here)) - math.log(1 + math.exp(-y * there)) for y in batch
                )
                kept.append(min(1.0, math.exp(c * gap / m)))
            assert found[i, j] == pytest.approx(np.mean(kept), rel=1e-12)


def test_a_kernel_and_what_it_leaves_as_it_is():
    """The tempered chain's distribution is known; with m = n MINT is the tempered chain."""
    theta, n, alpha = np.linspace(-1, 1, 11), 400, 0.4
    c = 100.0**alpha
    matrix = bounds.kernel(bounds.acceptance(theta, n, n, c, 240))
    assert matrix.sum(axis=1) == pytest.approx(1.0)
    plus, minus = bounds.log_lik(theta)
    density = np.exp(c * (0.6 * plus + 0.4 * minus))
    assert bounds.invariant(matrix) == pytest.approx(density / density.sum(), rel=1e-9)
    same = bounds.cell(theta, n, n, alpha, 240)
    assert same.kernel == same.stationary == pytest.approx(0.0, abs=1e-14)
    other = bounds.cell(theta, 20, n, alpha, 240)
    assert 0 < other.kernel < other.bound
    assert 0 < other.stationary < other.kernel / other.eta


def test_total_variation_is_half_the_sum_of_differences():
    assert bounds.distance(np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.5, 0.25])) == pytest.approx(0.25)


# --- Figure 1 -----------------------------------------------------------------------------------------------


def test_both_modes_are_hit_when_the_later_one_is():
    """Against a loop over kept draws; a chain that never comes to one of the modes has no hitting time."""
    modes, steps = np.array([[0.0, 1.0], [1.0, -1.0]]), np.array([10, 20, 30, 40])
    near, far = [0.004, 1.003], [1.0, -0.994]
    away = [0.5, 0.0]
    draws = np.array([[away, far, away, near], [near, near, far, near], [near, away, [1.0, -0.98], near]])
    assert figure1.hitting_steps(draws, steps, modes, 0.01)[:2].tolist() == [40, 30]
    assert math.isnan(figure1.hitting_steps(draws, steps, modes, 0.01)[2])
    assert figure1.hitting_steps(draws, steps, modes, 0.03)[2] == 30


# --- MINTEE -------------------------------------------------------------------------------------------------


def test_a_chain_in_one_mode_has_one_peak(rng):
    """All coordinates together always have two: each draw has one that is large."""
    draws = rng.normal(0, 0.1, (4000, 50))
    draws[:, 7] += 2
    assert mintee.heights(draws)[:2] == pytest.approx((0, 2), abs=0.1)
    low, high, ratio = mintee.heights(draws[:, 0])
    assert low == pytest.approx(0, abs=0.1)
    assert math.isnan(high)
    assert math.isnan(ratio)
    low, high, ratio = mintee.heights(draws[:, 7])
    assert math.isnan(low)
    assert high == pytest.approx(2, abs=0.1)
    assert math.isnan(ratio)


def test_the_ratio_of_heights_depends_on_the_bins(rng):
    """A narrow peak beside a wide one of 49 times its mass: few bins show masses, many show densities."""
    values = np.concatenate([rng.normal(0, 0.16, 98_000), rng.normal(1.956, 0.04, 2000)])
    few, many = mintee.height_ratio(values, 3), mintee.height_ratio(values, 100)
    assert few > 40
    assert many == pytest.approx(49 * 0.04 / 0.16, rel=0.25)


# --- The network --------------------------------------------------------------------------------------------


def test_readings_are_those_that_the_run_has():
    run = SimpleNamespace(methods={"sgd": {}, "mint_moving": {}})
    assert list(network.readings(run).values()) == [("mint_moving", "cmint_moving")]
    assert network.readings(SimpleNamespace(methods={"sgd": {}})) == {"without MINT": ("", "")}
