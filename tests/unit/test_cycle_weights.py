"""The effective sample size of a chain and the weights of cycles, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal, stats

from mhrun.diagnostics.chains import ess, ess_of_chain
from mhrun.diagnostics.cycles import combined, equal, harmonic


def autoregression(rho, chains, n, seed=0):
    noise = np.random.default_rng(seed).normal(size=(chains, n + 500))
    return signal.lfilter([1], [1, -rho], noise, axis=1)[:, 500:]


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.97])
def test_autoregressions_have_the_effective_size_of_the_closed_form(rho):
    n = 20_000
    found = ess_of_chain(autoregression(rho, 40, n)) / (n * (1 - rho) / (1 + rho))
    assert found.mean() == pytest.approx(1, abs=0.06)
    assert found.std() < 0.2


def test_sizes_of_bulk_and_tail_are_near_those_of_independent_draws():
    draws = autoregression(0.0, 4, 2000)
    for method in ("bulk", "tail", "mean"):
        assert ess(draws, method) == pytest.approx(8000, rel=0.15)


def test_more_draws_than_there_are_cannot_be_claimed():
    draws = autoregression(-0.6, 3, 999)
    assert ess_of_chain(draws).tolist() == [999] * 3  # n (1 - rho) / (1 + rho) would be four times as many


def test_the_sum_is_that_of_geyer_term_by_term():
    draws = autoregression(0.7, 1, 301, seed=3)[0]
    off = draws - draws.mean()
    rho = np.array([np.sum(off[: len(off) - k] * off[k:]) for k in range(300)]) / np.sum(off**2)
    total, last = 0.0, np.inf
    for pair in rho.reshape(-1, 2).sum(axis=1):
        if pair <= 0:
            break
        last = min(last, pair)
        total += last
    assert ess_of_chain(draws) == pytest.approx(301 / (2 * total - 1))


def test_shapes_units_and_uninformative_draws():
    draws = autoregression(0.5, 6, 400).reshape(2, 3, 400)
    assert ess_of_chain(draws).shape == (2, 3)
    assert ess_of_chain(1e6 + 1e-3 * draws) == pytest.approx(ess_of_chain(draws), rel=1e-4)
    draws[0, 1] = 7.0
    draws[1, 2, 5] = np.nan
    assert np.isnan(ess_of_chain(draws)).tolist() == [[False, True, False], [False, False, True]]


def test_harmonic_means_are_those_of_the_likelihoods():
    p = [np.array([0.2, 0.5, 0.1]), np.array([0.3, 0.3])]
    found = harmonic([np.log(values) for values in p])
    means = np.array([1 / np.mean(1 / values) for values in p])
    assert np.exp(found.log_estimate) == pytest.approx(means)
    assert found.weights == pytest.approx(means / means.sum())
    assert found.largest_share == pytest.approx([10 / 17, 0.5])
    # Log-likelihoods of thousands of data, where no likelihood is a float64.
    far = harmonic([np.log(values) - 1e5 for values in p])
    assert far.weights == pytest.approx(found.weights, rel=1e-6)
    assert far.log_estimate == pytest.approx(found.log_estimate - 1e5)


def test_the_harmonic_mean_forgets_the_prior_mass_of_a_region():
    """Two flat regions, one nine times as wide: they have 9/10 and 1/10 of the posterior, and the same weight."""
    found = harmonic([np.zeros(900), np.zeros(100)])
    assert found.weights == pytest.approx([0.5, 0.5])
    assert found.log_estimate == pytest.approx([0, 0])  # log(Z_i / prior(Theta_i)), with Z_i = prior(Theta_i)
    assert found.relative_error == pytest.approx([0, 0], abs=1e-12)
    assert found.doubts == ()


def normal_cycles(prior_sd, n=4000, seed=1):
    """Draws of the posterior of x = 0 ~ N(theta, 1), theta ~ N(0, prior_sd^2); log-likelihoods in four cycles."""
    theta = np.random.default_rng(seed).normal(size=(4, n)) / np.sqrt(1 + prior_sd**-2)
    return list(stats.norm.logpdf(theta)), stats.norm.logpdf(0, scale=np.sqrt(1 + prior_sd**2))


def test_with_a_narrow_prior_it_estimates_the_evidence_and_its_error():
    """With prior sd s the mean of 1/p^2 is finite for s < 1; of the prior no mass is lost here."""
    log_lik, evidence = normal_cycles(prior_sd=0.6)
    found = harmonic(log_lik)
    off = np.exp(found.log_estimate - evidence) - 1
    assert abs(off).max() < 4 * found.relative_error.max() < 0.04
    # The variance of 1/p: its second moment over the square of its first, less 1, by the Gaussian integrals.
    precision = 1 + 0.6**-2
    ratio = np.sqrt(precision / (precision - 2)) * (precision - 1) / precision
    assert found.relative_error == pytest.approx(np.sqrt((ratio - 1) / 4000), rel=0.2)
    assert found.tail.mean() == pytest.approx(1 / precision, abs=0.15)  # P(1/p > t) falls as t^-precision
    assert found.doubts == ()


def test_the_error_of_a_correlated_cycle_is_that_of_fewer_samples():
    log_lik = 0.3 * autoregression(0.9, 1, 2000)[0]
    ratio = np.exp(-log_lik) / np.exp(-log_lik).mean()
    effective = ess_of_chain(ratio)
    assert effective < 400
    assert harmonic([log_lik]).relative_error == pytest.approx(ratio.std() / np.sqrt(effective))


def test_with_a_wide_prior_the_weights_get_a_warning():
    log_lik, evidence = normal_cycles(prior_sd=100.0)
    found = harmonic(log_lik)
    assert (found.log_estimate > evidence + 1).all()  # as it always is then: the worst draws are never met
    assert found.tail.mean() == pytest.approx(1, abs=0.2)  # no mean but for the prior
    assert any("tail" in line for line in found.doubts)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:arviz_stats")  # of one weight
def test_one_cycle_or_one_sample_that_takes_all_is_reported():
    rng = np.random.default_rng(2)
    apart = harmonic([0.01 * rng.normal(size=200), 5 + 0.01 * rng.normal(size=200)])
    assert apart.weights[1] == pytest.approx(1 / (1 + np.exp(-5)), rel=1e-3)
    assert [line for line in apart.doubts if "cycle has 99% of the weight" in line]
    values = np.zeros(200)
    values[17] = -8.0
    (share,) = harmonic([values]).largest_share
    assert share == pytest.approx(np.exp(8) / (np.exp(8) + 199))
    assert [line for line in harmonic([values]).doubts if "one sample makes up 94%" in line]


@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_a_likelihood_that_is_no_number_is_reported(broken):
    values = [np.linspace(-3, 0, 50) for _ in range(3)]
    values[1] = np.append(values[1], broken)
    assert "a log-likelihood is not finite" in harmonic(values).doubts


def test_cycles_are_combined_with_their_weights():
    values = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0]])]
    assert combined(values, equal(2)) == pytest.approx([3.5, 4.5])
    assert combined(values, np.array([1.0, 0.0])) == pytest.approx([2, 3])
    for nothing in ([], [np.zeros(3), np.zeros(0)]):
        with pytest.raises(ValueError, match="at least one"):
            harmonic(nothing)
