"""Zhang et al. (2020), the toy problem and the sums of step sizes: what their reports are computed from."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate

from mhrun.cli.configuration.compose import compose_config
from mhrun.diagnostics.chains import ess_of_chain
from mhrun.diagnostics.grid import Grid
from mhrun.paths import experiment_module
from mhrun.report.metrics import MetricTable
from mhrun.report.notes import Notes

coverage, figures, schedules = (
    experiment_module(name) for name in ("shared.coverage", "shared.plane", "csgmcmc.schedules")
)
CENTRES = np.array([[x, y] for x in (-4, -2, 0, 2, 4) for y in (-4, -2, 0, 2, 4)], float)


# --- Coverage -----------------------------------------------------------------------------------------------


@pytest.fixture
def chains(rng):
    """Chains of unlike lengths: about some of the centres, between them, and far off."""
    about = [CENTRES[rng.integers(0, 25, n)] + 0.3 * rng.normal(size=(n, 2)) for n in (300, 120, 80, 200)]
    return [np.concatenate([points, rng.uniform(-9, 9, size=(40, 2))]) for points in about]


def test_draws_are_counted_as_by_a_plain_loop(chains):
    found = coverage.tally(chains, CENTRES, (0.25, 0.5), 1.0)
    for c, draws in enumerate(chains):
        nearest, squares = np.zeros(25, int), []
        within = {0.25: np.zeros(25, int), 0.5: np.zeros(25, int)}
        for draw in draws:
            distances = [math.dist(draw, centre) for centre in CENTRES]
            best = int(np.argmin(distances))
            nearest[best] += 1
            for radius, counts in within.items():
                counts[best] += distances[best] < radius
            if distances[best] < 1:
                squares.append(distances[best] ** 2 / 2)
        assert (found.nearest[c] == nearest).all()
        assert all((found.within[radius][c] == counts).all() for radius, counts in within.items())
        assert found.squares[c] == pytest.approx(np.mean(squares))
        assert found.share(0.5)[c] == pytest.approx(within[0.5].sum() / len(draws))
    assert found.weights.sum(axis=1) == pytest.approx(1)


def test_a_chain_far_from_all_modes_has_no_width():
    found = coverage.tally([np.full((3, 2), 30.0)], CENTRES, (0.25,), 1.0)
    assert np.isnan(found.squares).all()
    assert found.within[0.25].sum() == 0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_chains_that_stopped_at_once_have_no_shares():
    found = coverage.tally([np.empty((0, 2)), CENTRES], CENTRES, (0.25,), 1.0)
    for shares in (found.share(0.25), found.weights.sum(axis=1)):
        assert np.isnan(shares[0])
        assert shares[1] == 1
    assert np.isnan(ess_of_chain(np.empty((2, 0)))).all()
    assert np.isnan(Grid.of((0, 0), (1, 1), 2).shares(np.empty((1, 0, 2)))).all()


def test_a_mode_is_covered_by_more_than_the_threshold_and_chains_are_pooled():
    counts = np.array([[3, 0, 1], [0, 3, 1], [5, 0, 0], [0, 0, 0], [9, 9, 9]])
    assert coverage.covered(counts, 3).tolist() == [0, 0, 1, 0, 3]
    assert coverage.covered(counts, 2).tolist() == [1, 1, 1, 0, 3]
    pooled = coverage.pooled(counts, 2)  # the fifth chain makes no run
    assert pooled.tolist() == [[3, 3, 2], [5, 0, 0]]
    assert coverage.covered(pooled, 2).tolist() == [2, 1]


def test_random_visits_against_simulation(rng):
    visits = rng.integers(0, 25, size=(4000, 30))
    counts = np.stack([np.bincount(row, minlength=25) for row in visits])
    distance = 0.5 * np.abs(counts / 30 - 1 / 25).sum(axis=1)
    assert coverage.visited(25, 30) == pytest.approx(17.65, abs=0.01)
    assert coverage.visited(25, 30) == pytest.approx((counts > 0).sum(axis=1).mean(), abs=0.1)
    assert coverage.distance_by_chance(25, 30) == pytest.approx(distance.mean(), abs=0.005)
    assert coverage.union(25, 1, 30) == pytest.approx(coverage.visited(25, 30))
    assert coverage.union(25, 1.8, 4) == pytest.approx(6.46, abs=0.01)


def test_densities_integrate_to_the_share_inside(rng):
    grid = figures.Grid.of((-5, -5), (5, 5), 100)
    draws = np.concatenate([rng.normal(size=(900, 2)), np.full((100, 2), 50.0)])
    assert figures.density(draws, grid).sum() * 0.01 == pytest.approx(0.9, abs=0.001)


# --- Sums of step sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cycles", "length"), [(1, 7), (4, 50), (30, 11)])
def test_sums_of_cycles_have_a_closed_form(cycles, length):
    steps = cycles * length
    sizes = schedules.cyclical(0.3, cycles, steps)
    assert sizes.sum() == pytest.approx(0.3 / 2 * (steps + cycles))
    assert np.square(sizes).sum() == pytest.approx(0.3**2 * (3 * steps / 8 + cycles / 2))


@pytest.mark.parametrize("exponent", [1 / 3, 0.5, 0.55, 1.0])
def test_sums_of_decays(exponent):
    sizes = schedules.decreasing(2.0, exponent, 4000)
    assert sizes == pytest.approx([2 * k**-exponent for k in range(1, 4001)])
    for power in (exponent, 2 * exponent):  # what is left out is of lower order
        whole = sum(k**-power for k in range(1, 4001))
        assert schedules.power_sum(power, 4000) == pytest.approx(whole, abs=2.5)
        if power > 1:
            assert schedules.power_sum(power, 4000) == pytest.approx(whole, abs=1e-3)
    first = schedules.matched(0.1, 4, exponent, 4000)
    assert schedules.decreasing(first, exponent, 4000).sum() == pytest.approx(
        schedules.cyclical(0.1, 4, 4000).sum()
    )


@pytest.mark.slow
def test_bounds_of_schedules_are_compared_at_one_length():
    """In plain sums: exp(-S) + (6 + S)^(1/2) (Q^(1/2) + (Q/2)^(1/4)), constants of 1."""

    def plain(sizes):
        time, squares = sum(sizes), sum(size**2 for size in sizes)
        return math.exp(-time) + math.sqrt(6 + time) * (math.sqrt(squares) + (squares / 2) ** 0.25)

    config = compose_config(["experiment=step_size_sums"], compare=False)
    found = schedules.metrics(SimpleNamespace(config=config))
    steps, cycles, first = config["steps"], config["cycles"], config["a_0"]
    length = steps // cycles
    cyclical = [first / 2 * (math.cos(math.pi * (k % length) / length) + 1) for k in range(steps)]
    decay = [k ** (-1 / 3) for k in range(1, steps + 1)]
    raised = sum(cyclical) / sum(decay)
    for name, size in (("third.bound_ratio", first), ("third.bound_ratio_raised", raised)):
        assert found[name] == pytest.approx(plain([size * d for d in decay]) / plain(cyclical))


@pytest.mark.slow
def test_the_second_case_goes_one_way_for_a_third_and_the_other_for_a_half():
    assert schedules.square_ratio(4, 1 / 3, 40_000) == pytest.approx(8 / 9, abs=0.03)
    turn = schedules.squares_from(4, 0.5)
    assert schedules.square_ratio(4, 0.5, turn - 4) <= 1 < schedules.square_ratio(4, 0.5, turn)
    assert schedules.not_longer(1, 1 / 3) < 27  # where the two formulas cross
    assert schedules.not_longer(4, 1 / 3) == 0


def test_the_recalled_bound_by_hand():
    sizes = np.array([0.3, 0.2])
    time, squares = 0.5, 0.13
    by_hand = math.exp(-time) + math.sqrt(6 + time) * (math.sqrt(squares) + (squares / 2) ** 0.25)
    assert schedules.bound(sizes) == pytest.approx(by_hand)


def test_curves_cross_where_they_do():
    epochs = np.linspace(0.01, 10, 1000)
    found = schedules.crossings(epochs, np.cos(epochs), np.full(1000, 0.25))
    assert [epoch for epoch, _ in found] == pytest.approx(
        [math.acos(0.25), 2 * math.pi + math.acos(0.25)], abs=1e-4
    )
    assert [size for _, size in found] == pytest.approx([0.25, 0.25])
    config = {"a_0": 0.1, "cycles": 4, "epochs": 200, "steps_per_epoch": 20, "decay": 0.55}
    at, cycles, falling = schedules.figure_steps(config)
    assert falling[at == 1] == pytest.approx([0.1])
    assert falling[-1] == pytest.approx(0.1 * 200**-0.55)
    assert integrate.trapezoid(cycles, at) == pytest.approx(10, rel=0.01)  # half of 0.1 over 200 epochs


@pytest.mark.parametrize(
    ("draws", "start"), [(3000, "The run is too short for coverage: 3,000"), (50_000, "One chain of A")]
)
def test_coverage_is_not_stated_where_its_rule_cannot_be_met(draws, start):
    """Of 3,000 even draws a mode has 78 near, and needs more than 100. Methods with stopped chains are left out."""
    found = MetricTable({"theory.share": 0.65})
    for name, modes in (("a", 3.0), ("b", 20.0)):
        found.add(name, {"modes_one": modes, "draws": float(draws)})
    run = SimpleNamespace(
        methods={"a": {}, "b": {"diverging": 9, "n_accept_tests": 0}},
        config={},
        label=str.upper,
        cached=lambda function: found,
    )
    (sentence,) = Notes("csgmcmc.toy", "csgmcmc/toy.finding.md")(run)
    assert sentence.startswith(start)
