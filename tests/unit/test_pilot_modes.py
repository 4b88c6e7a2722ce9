"""Pilots whose ascents end at modes that have no share of the posterior."""

import json
import math
import re

import numpy as np
import pytest
import torch
from kit import short_run

import mhrun


def two_modes(gap):
    """N(0, 1) and N(60, 1), the second of them `gap` nats lower."""

    def log_density(theta):
        return torch.logaddexp(-0.5 * theta[0] ** 2, -0.5 * (theta[0] - 60) ** 2 - gap)

    return log_density


def sampled(gap, **settings):
    starts = torch.tensor([[1.0], [59.0], [-1.0], [61.0]])
    return mhrun.sample(two_modes(gap), None, start=starts, steps=400, warmup=200, seed=1, **settings)


@pytest.mark.slow
@short_run
def test_chains_begin_at_the_highest_mode_if_their_mode_has_little_mass(capsys):
    """51 nats are e^-51 of the posterior, and 49 are below what is judged."""
    trace = sampled(51.0)
    draws = trace["posterior"]["theta"].to_numpy()
    assert abs(draws).max() < 6
    found = json.loads(trace.attrs["pilot"])["moved"]
    assert found == {"ascents": 2, "of": 4, "nats": pytest.approx(51.0, abs=0.1)}
    words = r"2 of 4 searches ended at a mode with a share of about e\^-51 of the posterior"
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.slow
@short_run
@pytest.mark.parametrize(("gap", "temperature"), [(49.0, 1.0), (540.0, 11.0)])
def test_modes_that_may_have_a_share_keep_their_chains(gap, temperature):
    trace = sampled(gap, temperature=temperature)
    last = trace["posterior"]["theta"].to_numpy()[:, -1, 0]
    assert list(last > 30) == [False, True, False, True]
    assert "moved" not in json.loads(trace.attrs["pilot"])


@pytest.mark.slow
@short_run
def test_an_ordered_mixture_of_regressions_is_sampled_from_draws_of_the_prior():
    """Two regressions whose intercepts are ordered have a mode where these are equal, hundreds of nats lower."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(1_000, generator=generator, dtype=torch.float64)
    first = torch.rand(1_000, generator=generator) < 0.65
    noise = 0.8 * torch.randn(1_000, generator=generator, dtype=torch.float64)
    y = torch.where(first, -0.5 - 0.8 * x, 1.5 + x) + noise

    def log_lik(theta, rows):
        means = theta.intercepts + rows.x[:, None] * theta.slopes
        terms = torch.distributions.Normal(means, theta.scale).log_prob(rows.y[:, None])
        return torch.logsumexp(terms + torch.stack([theta.share, 1 - theta.share]).log(), -1)

    parameters = {
        "intercepts": {"shape": 2, "prior": "Normal(0, 3)", "constraint": "ordered"},
        "slopes": {"shape": 2, "prior": "Normal(0, 3)"},
        "scale": "HalfNormal(2)",
        "share": "Beta(2, 2)",
    }
    data = {"x": x, "y": y}
    trace = mhrun.sample(log_lik, data, parameters=parameters, steps=300, warmup=200, seed=1)
    means = trace["posterior"].mean("draw")
    assert (abs(means["slopes"].to_numpy() - [-0.8, 1.0]) < 0.3).all()
    assert json.loads(trace.attrs["pilot"])["moved"]["ascents"] >= 1


@short_run
@pytest.mark.parametrize(("sd", "stays"), [(1e-3, True), (0.5, False)])
def test_a_broad_mode_below_a_narrow_one_keeps_its_chains(sd, stays):
    """In 20 dimensions N(20, sd^2) with a share of e^-90 or so is 50 nats higher than N(0, 1), or 110."""
    dim, share = 20, {1e-3: -90.0, 0.5: 94.0}[sd]

    def log_density(theta):
        broad = -0.5 * theta.square().sum()
        narrow = share - dim * math.log(sd) - 0.5 * ((theta - 20) / sd).square().sum()
        return torch.logaddexp(broad, narrow)

    starts = torch.stack([torch.zeros(dim), torch.full((dim,), 20.0)] * 2)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    trace = mhrun.sample(log_density, None, kernel, start=starts, steps=200, warmup=100, seed=1)
    last = trace["posterior"]["theta"].to_numpy()[:, -1].mean(-1)
    assert list(last > 10) == ([False, True, False, True] if stays else [True] * 4)


@short_run
@pytest.mark.parametrize("seed", [6, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (9, 12))])
def test_modes_are_compared_on_all_data(seed):
    """The mode at -3 is 199 nats higher, and on the 20,000 data of these seeds more than 50 lower."""
    n = 100_000
    x = torch.from_numpy(np.random.default_rng(0).normal(size=n))
    x = x - x.mean() - 199 / (2 * 0.3 * math.tanh(3) * n)

    def log_lik(theta, x):
        return -0.5 * ((theta[0] ** 2 - 9) / 3) ** 2 + 0.3 * torch.tanh(theta[0]) * x

    starts = torch.tensor([[3.0], [-3.0], [2.9], [-2.9]])
    trace = mhrun.sample(
        log_lik, x, mhrun.Unadjusted(mhrun.SGLD(), m=100), start=starts, steps=20, warmup=10, seed=seed
    )
    first = trace["posterior"]["theta"].to_numpy()[:, 0, 0]
    assert (first[[1, 3]] < 0).all()
