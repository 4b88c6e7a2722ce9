"""Langevin moves along the gradient of a second minibatch, decided by thinning: the exact target.

False-alarm rate: see `significance`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, begin, controls
from scipy import stats
from significance import ALPHA

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings
from mhrun.models.logistic import Logistic
from mhrun.models.robust_regression import RobustRegression
from mhrun.pairing.thinned import Thinned
from mhrun.proposals.hamiltonian import HamiltonianProposal
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import derive_key
from mhrun.rules.mh_ss import MHSS
from mhrun.rules.smh import SMH
from mhrun.rules.tunamh import TunaMH
from mhrun.target import Target

KEY = derive_key(6, "exact langevin")
N, CHAINS, STEPS = 30, 6_000, 6
RNG = np.random.default_rng(21)
X = RNG.normal(size=(N, 1)) * 0.8
SIGNS = np.where(RNG.random(N) < 1 / (1 + np.exp(-1.5 * X[:, 0])), 1, -1)
OUTCOMES = X[:, 0] + 0.5 * RNG.normal(size=N)
GRID = np.linspace(-3, 6, 40_001)


def made(name, surrogate):
    if name == "logistic":
        return Target(Logistic(1, 2.0, "zeros"), Dataset.of({"x": X, "y": SIGNS}), surrogate=surrogate)
    data = {"x": X, "y": OUTCOMES}
    return Target(RobustRegression(1, prior_variance=2.0), Dataset.of(data), surrogate=surrogate)


def after(target, kernel, step, temperature):
    """Return points and their cdf on a grid, after some steps from exact draws, and the infos."""
    mass = torch.softmax(target.log_density(torch.from_numpy(GRID)[:, None], temperature), 0).numpy()
    cdf = np.cumsum(mass)
    theta = np.interp(np.random.default_rng(9).random(CHAINS), cdf, GRID)[:, None]
    state, draws = begin(kernel, target, theta, KEY)
    control = controls(step, temperature, chains=CHAINS)
    _, thetas, infos = advance(kernel, target, state, control, draws, STEPS)
    return thetas[:, -1, 0], theta[:, 0], lambda x: np.interp(x, GRID, cdf), infos


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "surrogate", "rule", "step"),
    [
        ("logistic", "none", TunaMH(0.05), 0.15),
        ("robust", "taylor1", MHSS(0.5), 0.05),
        ("logistic", "taylor2", SMH(), 0.3),
    ],
)
def test_draws_of_the_posterior_remain_draws_of_it(name, surrogate, rule, step):
    target, m = made(name, surrogate), 3
    kernel = MetropolisHastings(LangevinProposal(), Thinned(m), rule)
    assert kernel.refuses(target) is None
    end, first, cdf, infos = after(target, kernel, step, 2.0)
    assert np.mean(end != first) > 0.7
    assert int(infos[0].n_grad[0]) == 2 * m * (1 if surrogate == "none" else 2)
    assert np.mean([info.batch_size.double().mean() for info in infos]) < N
    assert stats.kstest(end, cdf).pvalue > ALPHA
    if surrogate == "none":  # it can fail
        wrong = MetropolisHastings(LangevinProposal(ratio=False), Thinned(m), rule)
        assert stats.kstest(after(target, wrong, step, 2.0)[0], cdf).pvalue < ALPHA


@pytest.mark.slow
def test_trajectories_along_minibatch_gradients_leave_the_posterior_invariant():
    target = made("logistic", "taylor1")
    kernel = MetropolisHastings(HamiltonianProposal(3), Thinned(4), TunaMH(0.05))
    assert kernel.refuses(target) is None
    end, first, cdf, infos = after(target, kernel, 0.3, 2.0)
    assert np.mean(end != first) > 0.5
    assert int(infos[0].n_grad[0]) == 2 * 4 * (3 + 1)
    assert stats.kstest(end, cdf).pvalue > ALPHA


def test_a_minibatch_that_cannot_be_drawn_is_refused():
    target = made("logistic", "none")
    kernel = MetropolisHastings(LangevinProposal(), Thinned(), TunaMH())
    assert "or set pairing.gradient_m" in kernel.refuses(target)
    assert "more than the n = 30" in MetropolisHastings(LangevinProposal(), Thinned(31), TunaMH()).refuses(
        target
    )
    with pytest.raises(Refusal, match="gradient_m = 0"):
        Thinned(0)
    # Without gradients nothing is read for them
    plain = MetropolisHastings(RandomWalk(), Thinned(3), TunaMH(0.05))
    state, draws = begin(plain, target, np.zeros((2, 1)), KEY)
    _, _, infos = advance(plain, target, state, controls(0.1, 2.0, chains=2), draws, 1)
    assert int(infos[0].n_grad[0]) == 0
