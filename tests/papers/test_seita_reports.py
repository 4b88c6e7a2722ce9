"""What the reports on Seita et al. (2017) compute, against other ways to compute it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from scipy import stats
from scipy.special import expit

from mhrun.paths import experiment_module

lemmas = experiment_module("mhminibatch.lemmas")
measures = experiment_module("shared.measures")
mixture = experiment_module("mhminibatch.mixture")


@pytest.mark.slow
def test_the_error_of_the_acceptance_is_that_of_simulated_decisions():
    """Decisions of Algorithm 1 on fixed minibatches, drawn one by one; two-sided, 1e-5 a number."""
    b, gap, many = 50, -0.25, 200_000
    rng = np.random.default_rng(5)
    values, p = lemmas._two_values()
    k = rng.binomial(b, p[0], many)
    mean = (k * values[0] + (b - k) * values[1]) / b
    var = (k * values[0] ** 2 + (b - k) * values[1] ** 2) / b - mean**2
    estimate = gap + np.sqrt(lemmas.V0 * b) * mean
    corrected = rng.choice(lemmas.nonnegative(1.0).points, many, p=_masses())
    corrected += rng.uniform(-0.5, 0.5, many) * lemmas.nonnegative(1.0).step
    for other in (var, np.roll(var, 1)):
        noise = np.sqrt(np.clip(1 - lemmas.V0 * other, lemmas._LEAST, 1)) * rng.standard_normal(many)
        accepted = (estimate + noise + corrected > 0).mean()
        w, v, chance = lemmas._counts(b)
        x = np.broadcast_to(gap + np.sqrt(lemmas.V0) * w, (1, len(w)))
        if other is var:
            right = float((lemmas._table()(x, 1 - lemmas.V0 * v) @ chance)[0])
        else:
            right = sum(
                q * float((lemmas._table()(x, np.full_like(v, 1 - lemmas.V0 * u)) @ chance)[0])
                for u, q in zip(v, chance, strict=True)
            )
        assert abs(accepted - right) < 4.5 * np.sqrt(right * (1 - right) / many) + 5e-4


def _masses():
    masses = lemmas.nonnegative(1.0).masses
    return masses / masses.sum()


def test_distances_from_a_limit_are_those_of_kolmogorov():
    x = np.sort(np.random.default_rng(0).normal(size=500))
    assert lemmas._distance(stats.norm.cdf(x)) == pytest.approx(stats.kstest(x, "norm").statistic)
    assert lemmas.symmetric(10) == pytest.approx(
        np.abs(
            stats.t.cdf(np.linspace(-5, 5, 999) * np.sqrt(0.9), 9) - stats.norm.cdf(np.linspace(-5, 5, 999))
        ).max(),
        rel=1e-4,
    )


def test_sizes_of_decisions_on_fewer_data_than_a_minibatch_are_drawn():
    """With data.n=10 and m = 50 each decision reads 10 data."""
    for n, lowest in ((10, 45), (1000, 45)):
        run = SimpleNamespace(
            methods={"a": None},
            target=SimpleNamespace(n=n),
            stat=lambda method, name, n=n: np.full((1, 20), n),
            label=lambda method: "A",
        )
        figure = measures.size_histograms(run, ["a"], lowest, 20)
        assert sum(bar.get_height() for bar in figure.axes[0].patches) == 20
        plt.close(figure)


def test_first_order_errors_are_one_third_and_one_sixth_of_the_skewness():
    exact = lemmas._acceptance(800)
    first = lemmas.RARE_SKEWNESS / np.sqrt(800) * lemmas.V0**1.5 / 8  # S''' is at most 1/8
    assert exact.own == pytest.approx(first / 3, rel=0.02)
    assert exact.pilot == pytest.approx(first / 6, rel=0.04)
    assert exact.mixed < first / 40


@pytest.mark.slow
def test_the_error_of_a_growing_minibatch_has_a_limit():
    """Algorithm 1 in NumPy on exponential terms, two minibatches needed on average; 1e-5, and 0.003 as m is finite."""
    m, many, at_once = 900, 60_000, 6_000
    rng, accepted = np.random.default_rng(8), 0
    for _ in range(many // at_once):
        blocks = rng.standard_exponential((3, at_once, m)) - 1
        total, squares = blocks.sum(-1).cumsum(0), np.square(blocks).sum(-1).cumsum(0)
        size = m * np.arange(1, 4)[:, None]
        mean = total / size
        # Of an estimate with standard deviation 1 at 2 m terms
        variance = 2 * m * (squares / size - mean**2) / size
        look = (variance < 1).argmax(0)
        estimate, left = (
            np.take_along_axis(v, look[None], 0)[0] for v in (np.sqrt(2 * m) * mean, 1 - variance)
        )
        assert (look > 0).all()
        assert 0.3 < (look == 1).mean() < 0.7
        corrected = rng.choice(lemmas.nonnegative(1.0).points, at_once, p=_masses())
        accepted += (estimate + np.sqrt(left) * rng.standard_normal(at_once) + corrected > 0).sum()
    error = abs(accepted / many - 0.5)
    assert abs(error - lemmas.limit()) < 4.5 * 0.5 / np.sqrt(many) + 0.003
    assert error > 0.01  # it is not 0


def test_an_exact_chain_on_the_grid_has_its_posterior():
    found = lemmas.stationary(SimpleNamespace())
    assert set(found) == set(lemmas.BOUNDED)
    assert all(0 < each.distance < each.bound < 1 for each in found.values())
    z = np.linspace(-3, 3, 31)
    chain = lemmas._transition(expit((z[:, None] ** 2 - z**2) / 2))
    expected = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    assert chain.sum(axis=1) == pytest.approx(1)
    assert expected @ chain == pytest.approx(expected)


def test_slopes_are_powers():
    assert lemmas.slope({b: 3 * b**-0.5 for b in (10, 40, 90)}) == pytest.approx(-0.5)
    assert np.isnan(lemmas.slope({10: 1.0}))


def test_table_4_is_judged_by_both_standard_errors():
    scores = np.random.default_rng(1).normal([-1200, 1500], [100, 300], (10, 2))
    found = mixture._scores("mhsublhd", scores)
    means, errors = scores.mean(axis=0), scores.std(axis=0, ddof=1) / np.sqrt(10)
    for name, mean, error, (paper, sd) in zip(
        ("score_z", "chi2_z"), means, errors, mixture.TABLE_4["mhsublhd"], strict=True
    ):
        assert found[name] == pytest.approx(abs(mean - paper) / np.hypot(sd / np.sqrt(10), error))
    assert mixture._scores("barker", scores) == {}
