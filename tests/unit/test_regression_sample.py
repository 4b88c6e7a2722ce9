"""Simulated regressions have the distribution that they state. False-alarm rate of the file: 1e-4."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mhrun.data.regression_sample import RegressionSample
from mhrun.errors import Refusal

N, Z = 200_000, 5.0  # 5 sd: 6e-7 two-sided, of about 50 numbers


def loaded(family, **settings):
    sample = RegressionSample(N, 3, family, **settings)
    fields = sample.load().fields
    return sample, fields["x"].double().numpy(), fields["y"].double().numpy()


def test_neighbouring_features_are_correlated_and_the_predictor_has_its_spread():
    sample, x, _ = loaded("logistic", correlation=0.6, signal=1.5)
    expected = 0.6 ** np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    moments = x[:, :, None] * x[:, None, :]
    assert (np.abs(moments.mean(axis=0) - expected) < Z * moments.std(axis=0) / N**0.5).all()
    eta = x @ sample.theta
    assert abs(eta.var() / 1.5**2 - 1) < Z * (2 / N) ** 0.5


@pytest.mark.parametrize("family", ["logistic", "robust", "poisson", "softmax"])
def test_outcomes_have_the_distribution_of_the_model(family):
    """Score equations: residuals have mean 0 at the true coefficients, against each feature; and their spread."""
    sample, x, y = loaded(family)
    eta = x @ sample.theta.T
    if family == "logistic":
        residual, variance = (y > 0) - 1 / (1 + np.exp(-eta)), np.exp(-eta) / (1 + np.exp(-eta)) ** 2
    elif family == "robust":
        assert stats.kstest(y - eta, stats.t(4).cdf).pvalue > 1e-6
        residual, variance = np.tanh(y - eta), None  # bounded and odd
    elif family == "poisson":
        residual, variance = y - np.exp(eta), np.exp(eta)
    else:
        share = np.exp(eta) / np.exp(eta).sum(axis=1, keepdims=True)
        residual, variance = (y == 1) - share[:, 1], share[:, 1] * (1 - share[:, 1])
    scores = residual[:, None] * x
    assert (np.abs(scores.mean(axis=0)) < Z * scores.std(axis=0) / N**0.5).all()
    if variance is not None:
        off = residual**2 - variance
        assert abs(off.mean()) < Z * off.std() / N**0.5


def test_data_are_functions_of_the_seed_and_coefficients_not_of_n():
    small, large = RegressionSample(10, 4, seed=3), RegressionSample(20, 4, seed=3)
    assert np.array_equal(small.theta, large.theta)
    assert np.array_equal(small.load().fields["x"], RegressionSample(10, 4, seed=3).load().fields["x"])
    assert not np.array_equal(small.theta, RegressionSample(10, 4, seed=4).theta)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 0}, "n = 0"),
        ({"family": "probit"}, "probit"),
        ({"correlation": 1.0}, "correlation = 1"),
        ({"signal": 0.0}, "signal = 0"),
        ({"classes": 1}, "classes = 1"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_invalid_settings_are_refused(settings, words):
    with pytest.raises(Refusal, match=words):
        RegressionSample(**({"n": 10, "dim": 2} | settings))
