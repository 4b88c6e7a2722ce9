"""Diagnostics: numbers for arrays whose answers are known."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.signal import lfilter
from significance import Z

from mhrun.data import Dataset
from mhrun.diagnostics import chains as chain_statistics
from mhrun.diagnostics.chains import (
    diagnoses,
    diagnosis,
    ess,
    mcse,
    rhat,
    valid_of_each,
    worth,
    worth_of_predictions,
)
from mhrun.diagnostics.grid import (
    Grid,
    chi_squared,
    jackknife,
    log_masses,
    monte_carlo_distance,
    total_variation,
)
from mhrun.diagnostics.modes import hits, nearest, ratio
from mhrun.models.tied_means import TiedMeans
from mhrun.paths import experiment_module
from mhrun.target import Target


@pytest.mark.parametrize("scale", [1e-200, 1e-16, 1.0, 1e160])
def test_statistics_of_draws_do_not_depend_on_their_scale(rng, scale):
    draws = lfilter([1.0], [1.0, -0.95], rng.normal(size=(4, 500)))
    wanted, found = diagnosis(draws), diagnosis(scale * draws)
    assert found[:3] == pytest.approx(wanted[:3])
    assert found.mcse / scale == pytest.approx(wanted.mcse)
    assert ess(scale * draws, "mean") == pytest.approx(ess(draws, "mean"))


def test_no_draws_have_no_statistics():
    assert np.isnan([*diagnosis(np.zeros((2, 0)))[:4], *diagnosis(np.zeros((2, 0))).quantiles]).all()


def gaussian(theta):
    return -0.5 * (theta**2).sum(axis=1)


def test_quadrature_of_a_gaussian():
    grid = Grid.of((-8.0, -8.0), (8.0, 8.0), 64)
    assert np.logaddexp.reduce(log_masses(gaussian, grid, 4)) == pytest.approx(np.log(2 * np.pi), abs=1e-9)


@pytest.mark.parametrize("sd", [0.5, 0.05, 0.003])
def test_quadrature_of_a_gaussian_narrower_than_the_cells(sd):
    """Off the middle of any cell, two of them far apart, in proportion 1 : 3."""

    def log_density(theta):
        one, two = (gaussian((theta - centre) / sd) for centre in ([0.61, -1.3], [-2.07, 2.9]))
        return np.logaddexp(one, two + np.log(3)) - np.log(4 * 2 * np.pi * sd**2)

    grid = Grid.of((-8.0, -8.0), (8.0, 8.0), 32)
    masses = np.exp(log_masses(log_density, grid, 5, (sd, sd)))
    finer = np.exp(log_masses(log_density, grid, 9, (sd, sd)))
    assert masses.sum() == pytest.approx(1, abs=1e-8)
    assert np.abs(masses - finer).sum() < 1e-8
    assert masses.reshape(32, 32)[:, :18].sum() == pytest.approx(0.25, abs=1e-3)


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
def known_shares(rng):
    return rng.dirichlet(np.full(200, 0.7))


def test_chi_squared_is_unbiased_where_a_plain_distance_is_not(rng, known_shares):
    """The estimate is about zero for exact draws, unlike the total variation, and right for a wrong distribution."""
    exact = rng.multinomial(400, known_shares, size=40) / 400
    found = chi_squared(exact, known_shares)
    assert abs(found.value) < Z * found.se
    assert total_variation(exact, known_shares) > 0.02
    wrong = 0.9 * known_shares + 0.1 * np.roll(known_shares, 1)
    truth = ((wrong - known_shares) ** 2 / known_shares).sum()
    found = chi_squared(rng.multinomial(4000, wrong, size=400) / 4000, known_shares)
    assert abs(found.value - truth) < Z * found.se
    assert found.value > 5 * found.se


def test_chi_squared_of_two_chains_is_the_product_of_their_deviations():
    """Both are in the first of two cells of 1/2: 2 (1/2)^2 / (1/2) = 1."""
    assert chi_squared(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0.5, 0.5])).value == pytest.approx(1.0)


def test_the_distance_that_chance_brings(rng, known_shares):
    exact = rng.multinomial(400, known_shares, size=40) / 400
    expected = monte_carlo_distance(exact, known_shares)
    assert expected == pytest.approx(total_variation(exact, known_shares), rel=0.15)


@pytest.mark.parametrize(("chains", "draws"), [(4, 20), (4, 2_000), (20, 50), (20, 20_000)])
def test_the_distance_that_chance_brings_with_more_cells_than_draws(rng, chains, draws):
    """On average over runs to 3 %, also where most cells are empty, or each is visited by one chain."""
    p = rng.dirichlet(np.full(1_600, 0.5))
    runs = [rng.multinomial(draws, p, size=chains) / draws for _ in range(40)]
    found = [monte_carlo_distance(shares, p) for shares in runs]
    assert np.mean(found) == pytest.approx(np.mean([total_variation(shares, p) for shares in runs]), rel=0.03)


def test_the_distance_that_chance_brings_to_two_cells_of_which_one_has_most_draws(rng):
    """Without the factor sqrt(1 - p_k) it would be twice as large."""
    p = np.array([0.9, 0.1])
    runs = [rng.multinomial(50, p, size=20) / 50 for _ in range(400)]
    found = [monte_carlo_distance(shares, p) for shares in runs]
    assert np.mean(found) == pytest.approx(np.mean([total_variation(shares, p) for shares in runs]), rel=0.08)


def test_the_distance_that_chance_brings_to_chains_whose_draws_depend_on_each_other(rng):
    """Of AR(1) chains, by the grid of a normal."""
    edges = np.linspace(-4, 4, 21)
    across = np.diff(stats.norm.cdf(edges))
    p = np.append(np.outer(across, across), 0.0)
    p[-1] = 1 - p.sum()
    grid, found, distances = Grid.of((-4, -4), (4, 4), 20), [], []
    for _ in range(40):
        noise = rng.normal(size=(8, 1_000, 2)) * (1 - 0.95**2) ** 0.5
        noise[:, 0] /= (1 - 0.95**2) ** 0.5
        shares = grid.shares(lfilter([1], [1, -0.95], noise, axis=1))
        found.append(monte_carlo_distance(shares, p))
        distances.append(total_variation(shares, p))
    assert np.mean(found) == pytest.approx(np.mean(distances), rel=0.05)


def test_the_distance_that_chance_brings_to_chains_that_stay_in_modes_and_are_wide_there(rng):
    """Half of the chains are in each mode on average: the error of the shares is as large as of exact draws there."""
    of_mode = np.append(np.full(20, 1 / 40), np.zeros(20))
    p = np.append(of_mode, of_mode)
    found, distances = [], []
    for _ in range(200):
        upper = rng.random((20, 1)) < 0.5
        wide = np.full(40, 1 / 40)  # of a mode, twice as wide as p
        shares = np.where(upper, np.append(0 * wide, wide), np.append(wide, 0 * wide))
        found.append(monte_carlo_distance(shares, p))
        distances.append(abs(upper.mean() - 0.5))
    assert np.mean(found) == pytest.approx(np.mean(distances), rel=0.1)


def test_chains_that_do_not_move_have_no_error_that_shows():
    assert monte_carlo_distance(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0.5, 0.5])) == 0
    assert np.isnan(monte_carlo_distance(np.full((2, 2), np.nan), np.array([0.5, 0.5])))


def test_the_distance_that_chance_brings_where_one_cell_has_all_of_the_probability():
    """Also if that is larger than 1 by rounding: the estimate is that of the cells."""
    shares = np.array([[1.0, 0.0], [0.8, 0.2]])
    with np.errstate(all="raise"):
        for above in (0.0, 2**-52):
            found = monte_carlo_distance(shares, np.array([1.0 + above, 0.0]))
            assert found == pytest.approx(0.1)


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


def test_one_chain_and_two_have_what_they_can_have(rng, known_shares):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shares = rng.multinomial(400, known_shares, size=2) / 400
        assert np.isnan(chi_squared(shares[:1], known_shares)).all()
        assert np.isnan(monte_carlo_distance(shares[:1], known_shares))
        assert np.isfinite(total_variation(shares[:1], known_shares))
        two = chi_squared(shares, known_shares)
        assert np.isfinite(two.value)
        assert np.isnan(two.se)
        single = ratio(np.array([3]), np.array([2]))
        assert single.value == 1.5
        assert np.isnan(single.se)
        draws = rng.normal(size=(1, 2_000))
        assert rhat(draws) < 1.01 < rhat(draws + np.linspace(0, 3, 2_000))
        assert np.isfinite(ess(rng.normal(size=(1, 100))))


def test_modes():
    modes = np.array([[0.0, 1.0], [1.0, -1.0]])
    draws = np.array([[[0.0, 1.005], [0.9, -1.0], [5.0, 5.0]]])
    assert nearest(draws, modes).tolist() == [[0, 1, 0]]
    assert hits(draws, modes[0], 0.01).tolist() == [[True, False, False]]


def test_exchanged_hidden_units_are_not_seen_in_function_space(rng):
    """f(x) = a_1 tanh(w_1 x) + a_2 tanh(w_2 x), with the units of half of the chains exchanged."""
    draws = np.array([1.0, -2.0, 0.5, 2.0]) + 0.1 * rng.normal(size=(4, 300, 4))  # w_1, w_2, a_1, a_2
    draws[2:] = draws[2:, :, [1, 0, 3, 2]]
    x = np.append(np.linspace(-1, 1, 6), 0.0)
    predictions = (draws[..., 2:, None] * np.tanh(draws[..., :2, None] * x)).sum(2)  # 0 at x = 0
    found = worth_of_predictions(predictions)
    assert worth(draws)["rhat"] > 1.5
    assert found["rhat"] < 1.02
    assert found == worth(predictions[..., :6])
    assert np.isnan(worth_of_predictions(predictions[..., 6:])["ess"])


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


# --- The exact distributions of the mixture with tied means ---------------------------------------------------------


@pytest.fixture(scope="module")
def truths(mixture):
    exact = experiment_module("shared.exact")
    return [exact.Truth(Target(TiedMeans(), mixture), order=order) for order in (exact.ORDER, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "c", "m"),
    [
        *(("tempered", 30, 0), ("tempered", 1000, 0), ("stored", 30, 1000), ("stored", 500, 1000)),
        *(pytest.param("tempered", c, 0, marks=pytest.mark.slow) for c in (300, 4000, 20000)),
        *(pytest.param("stored", c, m, marks=pytest.mark.slow) for c, m in ((300, 1000), (4000, 8000))),
    ],
)
def test_distribution_are_exact_at_every_temperature(truths, kind, c, m):
    """Cells and total are integrated in different coordinates: that they agree is a test of both."""
    density, finer = (truth.stationary(kind, truth.target.n / c, m) for truth in truths)
    assert np.abs(density.probability - finer.probability).sum() < 1e-6
    assert density.probability.sum() == pytest.approx(1, abs=1e-6)
    if c >= 300 and len(density.grids) == 1:
        assert density.probability[:-1].sum() == pytest.approx(1, abs=1e-6)
    if len(density.grids) == 2:  # the windows leave out what is beyond six standard deviations
        assert density.probability[-1] < 1e-4
    common = truths[0].stationary(kind, truths[0].target.n / c, m, cells=40)
    assert common.probability.sum() == pytest.approx(1, abs=1e-6)


def trapezoids(log_density, x, y):
    at = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    values = log_density(at)
    return np.logaddexp.reduce(values) + np.log((x[1] - x[0]) * (y[1] - y[0]))


@pytest.mark.slow
@pytest.mark.parametrize("c", [10, 30])
def test_the_total_against_a_plain_sum_over_the_plane(truths, c):
    """Far out there are two ridges; at c = 10 they hold some hundredths of the mass."""
    truth, temperature = truths[0], truths[0].target.n / c
    log_density = truth.log_tempered(temperature)
    middle = truth.modes[0] @ (1.0, 0.5)

    def in_middle(at):
        return log_density(np.stack([at[:, 0] - at[:, 1] / 2, at[:, 1]], axis=1))

    def on_ridge(at, sign, first):
        far = sign * at[:, 1]
        return log_density(np.stack([at[:, 0] if first else at[:, 0] - far, far], axis=1))

    across, along = np.arange(-12.0, 12.0, 0.25), np.arange(-20.0, 20.01, 0.4)
    far = np.arange(21.2, 8 * np.sqrt(temperature), 2.0)
    parts = [trapezoids(in_middle, middle + across, along)]
    parts += [
        trapezoids(lambda at, s=sign, f=first: on_ridge(at, s, f), middle + across[32:-32], far)
        for sign in (1, -1)
        for first in (True, False)
    ]
    density = truth.stationary("tempered", temperature)
    cells = log_masses(log_density, density.grids[0], 6)
    error = np.exp(cells - np.logaddexp.reduce(parts)) - density.probability[:-1]
    assert np.abs(error).sum() < (2e-4 if c == 10 else 1e-6)
    assert (density.probability[-1] > 0.03) == (c == 10)


def test_a_distribution_that_does_not_end_is_none(truths):
    assert truths[0].stationary("tempered", truths[0].target.n / 0.5) is None


def test_modes_are_found_whatever_the_data():
    x = torch.from_numpy(np.random.default_rng(0).normal(size=4000) * 2**0.5)
    x[::2] += 3
    exact = experiment_module("shared.exact")
    truth = exact.Truth(Target(TiedMeans(), Dataset.of(x.float())))
    assert np.allclose(np.sort(truth.modes[:, 1]), [-3, 3], atol=0.3)
    assert np.allclose(truth.modes[0] @ (1, 1), truth.modes[1][0], atol=0.05)


@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("chains", [1, 3])
def test_effective_sample_sizes_are_arviz_s_own(rho, chains):
    """The sums over all lags at once give what ArviZ's loop over lags gives, for every length and kind."""
    from arviz_stats.base.array import array_stats

    rng = np.random.default_rng(4)
    for size in (10, 11, 12, 13, 16, 17, 51, 400):
        draws = rng.normal(size=(chains, size))
        for step in range(1, size):
            draws[:, step] += rho * draws[:, step - 1]
        for method in ("bulk", "tail", "mean"):
            tails = {"prob": (0.05, 0.95)} if method == "tail" else {}
            expected = float(array_stats.ess(draws, method=method, **tails))
            np.testing.assert_allclose(ess(draws, method), expected, rtol=1e-9)
        np.testing.assert_allclose(mcse(draws), float(array_stats.mcse(draws, method="mean")), rtol=1e-9)


@pytest.mark.parametrize("size", [400, 3001])
@pytest.mark.parametrize("rejected", [0.0, 0.7])
def test_a_diagnosis_is_arviz_s_own(size, rejected):
    """Of chains of even and odd length, that differ, with and without equal draws."""
    from arviz_stats.base.array import array_stats

    rng = np.random.default_rng(7)
    draws = lfilter([1.0], [1.0, -0.8], rng.standard_t(3, size=(3, size)))
    draws += 0.3 * np.arange(3)[:, None]
    for step in range(1, size):
        draws[:, step] = np.where(rng.random(3) < rejected, draws[:, step - 1], draws[:, step])
    found = diagnosis(draws)
    expected = {
        "rhat": array_stats.rhat(draws),
        "ess": array_stats.ess(draws, method="bulk"),
        "ess_tail": array_stats.ess(draws, method="tail", prob=(0.05, 0.95)),
        "mcse": array_stats.mcse(draws, method="mean"),
        "quantiles": np.quantile(draws, (0.05, 0.5, 0.95)),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-9, err_msg=name)
    assert rhat(draws) == found.rhat
    assert ess(draws) == found.ess
    several = np.stack((draws, draws**2), axis=-1)
    assert diagnoses(several) == [found, diagnosis(draws**2)]
    assert worth(several)["ess"] == min(one.ess for one in diagnoses(several))


def test_many_draws_are_diagnosed_in_threads(monkeypatch, rng):
    draws = rng.normal(size=(2, 500, 7))
    alone = diagnoses(draws)
    monkeypatch.setattr(chain_statistics, "_PARALLEL", 1000)
    assert diagnoses(draws) == alone


@pytest.mark.parametrize(("rho", "size"), [(0.5, 1500), (0.995, 1501), (0.99999, 3000)])
def test_lags_are_added_until_the_sum_ends(monkeypatch, rho, size):
    """Few lags at first, in several blocks: none, one or all of the extensions are needed."""
    from arviz_stats.base.array import array_stats

    monkeypatch.setattr(chain_statistics, "_LAGS", 16)
    monkeypatch.setattr(chain_statistics, "_VALUES", 3000)
    draws = lfilter([1.0], [1.0, -rho], np.random.default_rng(6).normal(size=(2, size)))
    for method in ("bulk", "mean"):
        expected = float(array_stats.ess(draws, method=method))
        np.testing.assert_allclose(ess(draws, method), expected, rtol=1e-9)


def test_a_statistic_is_of_the_draws_as_they_are_now():
    """What is remembered belongs to the values, not to the array."""
    draws = np.random.default_rng(5).normal(size=(4, 500))
    first = ess(draws), rhat(draws)
    draws[:2] += 3
    second = ess(draws), rhat(draws)
    assert second[0] < 0.1 * first[0]
    assert second[1] > 1.2 > first[1]
    assert ess(draws, "tail") != second[0]
    assert ess(draws.T) != second[0]


def test_each_chain_keeps_its_own_valid_draws(rng):
    """Chains that are valid at different steps have no step in common."""
    draws, valid = rng.normal(size=(2, 60, 3)), np.zeros((2, 60), bool)
    valid[0, ::2] = valid[1, 1:41:2] = True
    found = valid_of_each(draws, valid)
    assert np.array_equal(found, np.stack([draws[0, :40:2], draws[1, 1:41:2]]))
    together = np.tile(valid[0], (2, 1))
    assert np.array_equal(valid_of_each(draws, together), draws[:, ::2])
    assert valid_of_each(draws, np.ones((2, 60), bool)) is draws


def test_few_draws_have_no_effective_sample_size(rng):
    """Below 10 draws of each chain the estimate is N log10 N, whether the chains agree or not."""
    apart = 10.0 * np.arange(4.0)[:, None]
    for size in (4, 8, 9, 10, 20):
        stuck, free = apart + rng.normal(size=(4, size)), rng.normal(size=(4, size))
        found = ess(stuck), ess(free), rhat(stuck), worth(stuck[..., None])["ess"]
        assert np.isnan(found).all() == (size < 10)
        if size >= 10:
            assert found[0] < 20 < found[1]
            assert found[2] > 2


def test_rhat_of_long_alternating_chains_is_that_of_all_draws(rng):
    """Every second draw of a negatively correlated chain has a worse mean than all of them."""
    noise = rng.normal(size=(4, 6000))
    draws = np.empty_like(noise)
    draws[:, 0] = noise[:, 0]
    for k in range(1, noise.shape[1]):
        draws[:, k] = -0.9 * draws[:, k - 1] + noise[:, k]
    assert rhat(draws) == pytest.approx(rhat(draws, most=10_000), abs=1e-12)
    assert rhat(draws) < 1.001
    slow = np.cumsum(noise, axis=1)
    assert rhat(slow) == rhat(slow[:, ::2])  # thinned to 3,000
