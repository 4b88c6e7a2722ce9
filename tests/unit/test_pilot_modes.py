"""Pilots whose ascents end at modes that have no share of the posterior."""

import json
import re

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


@short_run
def test_chains_begin_at_the_highest_mode_where_theirs_has_no_share(capsys):
    """56 nats are e^-56 of the posterior, and 54 are below what is judged: 50, and 5 for the coordinate."""
    trace = sampled(56.0)
    draws = trace["posterior"]["theta"].to_numpy()
    assert abs(draws).max() < 6
    assert json.loads(trace.attrs["pilot"])["moved"] == pytest.approx([2, 56.0])
    words = (
        "ended 56 nats below the highest mode from the starting points of 2 chains: such a mode has no share"
    )
    assert re.search(words, capsys.readouterr().err)


@short_run
@pytest.mark.parametrize(("gap", "temperature"), [(54.0, 1.0), (560.0, 11.0)])
def test_modes_that_may_have_a_share_keep_their_chains(gap, temperature):
    trace = sampled(gap, temperature=temperature)
    last = trace["posterior"]["theta"].to_numpy()[:, -1, 0]
    assert list(last > 30) == [False, True, False, True]
    assert "moved" not in json.loads(trace.attrs["pilot"])


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
    assert json.loads(trace.attrs["pilot"])["moved"][0] >= 1
