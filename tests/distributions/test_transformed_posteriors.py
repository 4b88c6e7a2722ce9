"""Posteriors of constrained parameters against closed forms and quadrature. False alarms: see `significance`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from significance import assert_mean
from torch.distributions import Beta, Categorical, Dirichlet, HalfNormal, Normal

import mhrun

CHAINS, STEPS, WARMUP = 300, 200, 200


def sampled(log_lik, data, parameters, step_size=0.5, **settings):
    """Return the posterior's draws by name, (C, S, ...), of full-data Metropolis from starts in the prior."""
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    trace = mhrun.sample(
        log_lik,
        data,
        kernel,
        parameters=parameters,
        step_size=step_size,
        acceptance=0.35,
        chains=CHAINS,
        steps=STEPS,
        warmup=WARMUP,
        executor="torch",
        seed=4,
        **settings,
    )
    return {name: values.to_numpy() for name, values in trace["posterior"].data_vars.items()}


def assert_moments(draws, mean, variance, what):
    """Draws (C, S) of independent chains have this mean and this variance."""
    assert_mean(draws.mean(1), mean, f"mean of {what}")
    assert_mean(((draws - mean) ** 2).mean(1), variance, f"variance of {what}")


def on_grid(log_density, *axes):
    """Return the mean and variance of each coordinate of a density, by the trapezoidal rule on a grid."""
    places = np.meshgrid(*axes, indexing="ij")
    log_p = log_density(*places)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    means = [float((p * place).sum()) for place in places]
    return [(m, float((p * (place - m) ** 2).sum())) for m, place in zip(means, places, strict=True)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_normal_mean_and_scale(rng):
    y = rng.normal(0.7, 1.3, 15)
    draws = sampled(
        lambda theta, batch: Normal(theta.mu, theta.sigma).log_prob(batch),
        y,
        {"mu": Normal(0.0, 1.0), "sigma": "HalfNormal(1.0)"},
    )

    def log_density(mu, sigma):
        likelihood = sum(stats.norm.logpdf(value, mu, sigma) for value in y)
        return likelihood + stats.norm.logpdf(mu) + stats.halfnorm.logpdf(sigma)

    known = on_grid(log_density, np.linspace(-2, 3, 400), np.linspace(0.4, 5, 500))
    assert (draws["sigma"] > 0).all()
    for name, (mean, variance) in zip(("mu", "sigma"), known, strict=True):
        assert_moments(draws[name], mean, variance, name)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kernel", ["full", "minibatches"])
def test_a_probability_with_a_beta_prior(kernel, rng):
    y = (rng.random(12) < 0.2).astype(float)
    exact = stats.beta(2 + y.sum(), 3 + 12 - y.sum())

    def log_lik(theta, batch):
        return batch * theta.p.log() + (1 - batch) * (-theta.p).log1p()

    if kernel == "full":
        draws = sampled(log_lik, y, {"p": Beta(2.0, 3.0)}, step_size=1.0)["p"]
        assert_moments(draws, exact.mean(), exact.var(), "p")
        return
    # A dynamics moves in the unconstrained coordinates too; its bias is that of its step size.
    trace = mhrun.sample(
        log_lik,
        y,
        mhrun.Unadjusted(mhrun.SGLD(), m=6),
        parameters={"p": Beta(2.0, 3.0)},
        step_size=0.02,
        chains=CHAINS,
        steps=STEPS,
        warmup=WARMUP,
        executor="torch",
    )
    found = trace["posterior"]["p"].to_numpy()
    assert found.mean() == pytest.approx(exact.mean(), abs=0.02)
    assert found.std() == pytest.approx(exact.std(), rel=0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_shares_with_a_dirichlet_prior(rng):
    y = rng.choice(3, size=20, p=[0.5, 0.3, 0.2])
    prior = np.array([1.0, 2.0, 0.7])
    draws = sampled(
        lambda theta, batch: Categorical(theta.w).log_prob(batch),
        y,
        {"w": Dirichlet(torch.from_numpy(prior))},
    )["w"]
    assert np.allclose(draws.sum(-1), 1.0)
    exact = stats.dirichlet(prior + np.bincount(y, minlength=3))
    for k in range(3):
        assert_moments(draws[..., k], exact.mean()[k], exact.var()[k], f"w[{k}]")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ordered_means_of_a_mixture(rng):
    y = np.where(rng.random(15) < 0.4, rng.normal(-1.0, 1.0, 15), rng.normal(1.5, 1.0, 15))

    def log_lik(theta, batch):
        each = Normal(theta.mu, 1.0).log_prob(batch[:, None]) + torch.tensor([0.4, 0.6]).log()
        return each.logsumexp(-1)

    draws = sampled(
        log_lik, y, {"mu": {"shape": 2, "prior": "Normal(0.0, 2.0)", "constraint": "ordered"}}, step_size=0.8
    )["mu"]
    assert (draws[..., 0] < draws[..., 1]).all()

    def log_density(low, high):
        each = [
            np.logaddexp(
                np.log(0.4) + stats.norm.logpdf(v, low, 1), np.log(0.6) + stats.norm.logpdf(v, high, 1)
            )
            for v in y
        ]
        inside = np.where(low < high, 0.0, -np.inf)
        return sum(each) + stats.norm.logpdf(low, 0, 2) + stats.norm.logpdf(high, 0, 2) + inside

    grid = np.linspace(-7, 7, 900)
    for k, (mean, variance) in enumerate(on_grid(log_density, grid, grid)):
        assert_moments(draws[..., k], mean, variance, f"mu[{k}]")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_log_prior_adds_to_the_declared_priors(rng):
    """A hierarchy: groups have a prior that depends on other parameters."""
    y = rng.normal(0.5, 1.0, (5, 3)) + rng.normal(0.0, 1.0, 3)

    def log_lik(theta, batch):
        return Normal(theta.groups, 1.0).log_prob(batch).sum(-1)

    draws = sampled(
        log_lik,
        y,
        {"centre": Normal(0.0, 2.0), "spread": HalfNormal(1.0), "groups": 3},
        log_prior=lambda theta: Normal(theta.centre, theta.spread).log_prob(theta.groups).sum(),
    )

    def log_density(centre, spread):
        sd = np.sqrt(spread**2 + 1 / 5)
        likelihood = sum(stats.norm.logpdf(mean, centre, sd) for mean in y.mean(0))
        return likelihood + stats.norm.logpdf(centre, 0, 2) + stats.halfnorm.logpdf(spread)

    known = on_grid(log_density, np.linspace(-6, 6, 600), np.linspace(1e-3, 6, 800))
    for name, (mean, variance) in zip(("centre", "spread"), known, strict=True):
        assert_moments(draws[name], mean, variance, name)
