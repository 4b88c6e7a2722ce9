"""The penalty method: detailed balance under normal noise by quadrature, its algebra, and what it is refused with."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit import KEY, C, advance_compiled, begin, controls, follow
from scipy import stats
from scipy.special import ndtr, ndtri
from significance import assert_mean, differs_in_mean

import mhrun
from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.kernels import EquiEnergy, MetropolisHastings
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.tied_means import TiedMeans
from mhrun.native import Draw
from mhrun.native.philox import split_key
from mhrun.pairing.full import Full
from mhrun.pairing.moving import Moving
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Purpose, Streams
from mhrun.rules.compensated import Compensated
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.penalty import Penalty, penalty
from mhrun.target import Target
from mhrun.types import Contest, Difference


def accepted(rule, log_ratio, noise, m=50, levels=800):
    """Return the acceptance rate at each log-ratio (R,): over a grid of uniforms and one of normal noise."""
    quantiles = (np.arange(levels) + 0.5) / levels
    shape = (len(log_ratio), levels, levels)
    r = np.asarray(log_ratio)[:, None, None] + math.sqrt(noise) * ndtri(quantiles)[:, None]
    one = torch.ones(math.prod(shape), dtype=torch.float64)
    draws = SimpleNamespace(
        uniform=lambda purpose: torch.from_numpy(np.broadcast_to(quantiles, shape).ravel())
    )
    found = Difference(torch.from_numpy(np.broadcast_to(r, shape).ravel()), one, m * one, noise * one)
    verdict = rule.decide(Contest(found, one, 0 * one), draws)
    return verdict.accepted.reshape(shape).double().mean((1, 2)).numpy()


@pytest.mark.parametrize("noise", [0.1, 1.0, 4.0])
def test_with_known_normal_noise_detailed_balance_is_exact(noise):
    """a(R) = e^R a(-R) for the closed form of Ceperley & Dewing, which the rule's own decisions have by quadrature."""
    log_ratio = np.array([-2.0, -0.5, 0.0, 0.5, 2.0])
    s = math.sqrt(noise)
    closed = ndtr((log_ratio - noise / 2) / s) + np.exp(log_ratio) * ndtr(-(log_ratio + noise / 2) / s)
    assert closed == pytest.approx(np.exp(log_ratio) * closed[::-1], rel=1e-12)
    assert accepted(Penalty(estimated=False), log_ratio, noise) == pytest.approx(closed, abs=2e-3)
    naive = accepted(Metropolis(), log_ratio, noise)  # without the penalty it fails
    assert np.abs(naive - np.exp(log_ratio) * naive[::-1]).max() > noise / 10


def test_the_series_at_a_variance_of_2_from_2_terms():
    """v/2 + v^2 / (4 (m + 1)) + v^3 / (3 (m + 1) (m + 3)) in torch, and where the compiled decision changes."""
    expected, two = 1 + 4 / 12 + 8 / 45, torch.tensor([2.0], dtype=torch.float64)
    assert float(penalty(two, two)) == pytest.approx(expected, rel=1e-12)
    limit = math.log(float(Draws(Streams(KEY, 1), 1).uniform(Purpose.ACCEPT))) + expected
    decide, draw = Penalty().native().decide, Draw(split_key(KEY), np.uint64(1), np.uint64(0))
    assert [decide((True,), limit + shift, 2.0, 2, draw) for shift in (-1e-9, 1e-9)] == [False, True]


def test_the_series_allows_for_an_estimated_variance():
    """At m = 20, the error of detailed balance over the distribution of s^2 falls from 1 % to below 0.1 %."""
    m, noise, s = 20, 1.5, math.sqrt(1.5)
    estimates = noise * stats.chi2.ppf((np.arange(20_000) + 0.5) / 20_000, m - 1) / (m - 1)
    sizes = torch.full((len(estimates),), float(m), dtype=torch.float64)
    series = penalty(torch.from_numpy(estimates), sizes).numpy()
    errors = []
    for u in (series, estimates / 2):

        def rate(log_ratio, u=u):
            below = ndtr(-(log_ratio - u + noise) / s) * np.exp(log_ratio - u + noise / 2)
            return float((ndtr((log_ratio - u) / s) + below).mean())

        errors.append(max(abs(rate(r) - math.exp(r) * rate(-r)) / rate(r) for r in (0.5, 1.0, 2.0, 3.0)))
    assert errors[1] > 0.01
    assert errors[0] < errors[1] / 10


@pytest.mark.parametrize("estimated", [True, False])
def test_a_step_is_the_formula(rng, estimated):
    n, m, steps = 60, 9, 30
    x = rng.normal(0.5, 1.7, n)
    target = Target(TiedMeans(), Dataset.of(x))
    kernel = MetropolisHastings(RandomWalk(), Shared(m), Penalty(estimated))
    thetas, infos = follow(kernel, target, controls(), steps)
    draws, model = Draws(Streams(KEY, C), 0), TiedMeans()
    before = np.broadcast_to([0.0, 1.0], (C, 2))
    for k in range(steps):
        draws.step = k + 1
        to = torch.from_numpy(before + 0.8 * draws.normal(Purpose.PROPOSAL, 2).numpy())
        origin = torch.from_numpy(before.copy())
        rows = {"x": torch.from_numpy(x[draws.index(n, m, replacement=False).numpy()])}
        terms = (model.log_lik(to, rows) - model.log_lik(origin, rows)).numpy()
        prior = (model.log_prior(to) - model.log_prior(origin)).numpy() / 3
        r = n / 3 * terms.mean(1) + prior
        v = (n / 3) ** 2 * terms.var(1, ddof=1) / m * (1 - m / n)
        u = v / 2 + estimated * (v**2 / (4 * (m + 1)) + v**3 / (3 * (m + 1) * (m + 3)))
        made = np.log(draws.uniform(Purpose.ACCEPT).numpy()) < r - u
        assert infos[k].accepted.tolist() == made.tolist()
        assert infos[k].log_ratio.numpy() == pytest.approx(r, abs=1e-9)
        before = np.where(made[:, None], to.numpy(), before)
        assert thetas[k].numpy() == pytest.approx(before, abs=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_the_stationary_distribution_is_right_where_metropolis_is_wrong():
    """A Gaussian mean with n/T = 100, m = 300 and steps of 1.5 standard deviations: the noise has sd 0.9 |z|."""
    n, m, chains, temperature = 10_000, 300, 200, 100.0
    x = np.random.default_rng(3).normal(size=n)
    target = Target(GaussianMean(), Dataset.of(x))
    squares = {}
    for rule in (Penalty(), Metropolis()):
        kernel = MetropolisHastings(RandomWalk(), Shared(m), rule)
        state, _ = begin(kernel, target, chains, KEY)
        control = controls(0.15, temperature, chains=chains)
        _, theta, _ = advance_compiled(kernel, target, state, control, 3_000, KEY)
        squares[type(rule)] = ((theta[:, 100:, 0] - x.mean()) ** 2).mean(1)
    assert_mean(squares[Penalty], temperature / n)
    assert differs_in_mean(squares[Metropolis], temperature / n)


def test_noise_that_stays_or_drives_the_move_is_refused(rng):
    target = Target(TiedMeans(), Dataset.of(rng.normal(size=60)))
    for rule in (Penalty(), Compensated()):
        for pairing in (Stored(9), Moving(9)):
            reason = MetropolisHastings(RandomWalk(), pairing, rule).refuses(target)
            assert reason is not None
            assert (
                f"{type(pairing).__name__} keeps a minibatch from step to step; choose pairing shared"
                in reason
            )
        reason = MetropolisHastings(LangevinProposal(), Shared(9), rule).refuses(target)
        assert reason is not None
        assert "takes its gradient from the same minibatch" in reason
        for pairing in (Full(), Shared(60)):
            assert MetropolisHastings(LangevinProposal(), pairing, rule).refuses(target) is None
        ladder = EquiEnergy(LangevinProposal(), rule, 2, [9, 5])
        assert "no estimate of the noise" in (ladder.refuses(target) or "")
    assert MetropolisHastings(RandomWalk(), Stored(9), Metropolis()).refuses(target) is None
    with pytest.raises(Refusal, match="choose m >= 2"):
        mhrun.sample(
            TiedMeans(),
            rng.normal(size=60),
            MetropolisHastings(RandomWalk(), Shared(1), Penalty()),
            step_size=0.1,
            steps=5,
        )
