"""Block pseudo-marginal subsampling: the stationary distribution of theta and its minibatch, exactly.

False-alarm rate: see `significance`.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from kit import advance, begin, controls
from scipy import stats
from significance import ALPHA, assert_counts, assert_mean

from mhrun.check.results import NONE
from mhrun.check.subject import Subject
from mhrun.check.suite import run_suite
from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings
from mhrun.models.logistic import Logistic
from mhrun.pairing.blocks import Blocks
from mhrun.pairing.shared import Shared
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.pseudo_marginal import PseudoMarginal
from mhrun.target import Target
from mhrun.types import State

KEY = derive_key(8, "blocks")
N, M = 4, 2
X = np.array([[1.0], [-0.8], [1.5], [0.4]])
Y = np.array([1, 1, 1, -1])
GRID = np.linspace(-5, 6, 4001)
MINIBATCHES = np.array(list(itertools.product(range(N), repeat=M)))


def made(surrogate, temper="posterior"):
    return Target(Logistic(1, 1.0, "zeros"), Dataset.of({"x": X, "y": Y}), temper=temper, surrogate=surrogate)


def joint(target, temperature, *, correct):
    """Return the probabilities of (grid, minibatch), written from the definition, and the estimates' moments."""
    value = -np.logaddexp(0, -Y * X[:, 0] * GRID[:, None])  # (G, n)
    known = np.zeros(len(GRID))
    if target.surrogate is not None:
        about = float(target.surrogate.reference.theta[0])
        eta = Y * X[:, 0] * about
        share = 1 / (1 + np.exp(eta))
        step = GRID[:, None] - about
        first, second = share * Y * X[:, 0], -share * (1 - share) * X[:, 0] ** 2
        taylor = -np.logaddexp(0, -eta) + first * step + 0.5 * second * step**2
        known, value = taylor.sum(1), value - taylor
    terms = value[:, MINIBATCHES]  # (G, U, m)
    estimate = (known[:, None] + N * terms.mean(2)) / temperature
    variance = (N / temperature) ** 2 * terms.var(2, ddof=1) / M
    prior = -0.5 * GRID[:, None] ** 2
    mass = np.exp(prior + estimate - variance / 2 * correct)
    return mass / mass.sum()


@pytest.mark.parametrize(
    ("surrogate", "correct", "blocks"), [("none", True, 2), ("none", False, 2), ("taylor2", True, 1)]
)
def test_the_stationary_distribution_of_theta_and_the_minibatch(surrogate, correct, blocks):
    temperature, chains, steps = 1.2, 20_000, 15
    target = made(surrogate, temper="likelihood")
    mass = joint(target, temperature, correct=correct)
    rng = np.random.default_rng(4)
    drawn = rng.choice(mass.size, chains, p=mass.ravel())
    theta = GRID[drawn // mass.shape[1]][:, None] + rng.uniform(-0.5, 0.5, (chains, 1)) * (GRID[1] - GRID[0])
    index = torch.from_numpy(MINIBATCHES[drawn % mass.shape[1]])
    pairing = Blocks(M, blocks)
    kernel = MetropolisHastings(RandomWalk(), pairing, PseudoMarginal(correct))
    assert kernel.refuses(target) is None
    kept = kernel._kept(pairing._evaluated(target, torch.from_numpy(theta), index))
    draws = Draws(Streams(KEY, chains), 1)
    control = controls(1.2, temperature, chains=chains)
    state, thetas, infos = advance(kernel, target, State(kept, {}), control, draws, steps)
    end, cdf = thetas[:, -1, 0], np.cumsum(mass.sum(1))
    assert 0.1 < np.mean([info.accepted.double().mean() for info in infos]) < 0.9
    assert int(infos[0].n_lik[0]) == M * (1 if surrogate == "none" else 2)
    assert stats.kstest(end, lambda x: np.interp(x, GRID, cdf)).pvalue > ALPHA
    number = state.evaluation.batch.numpy() @ np.array([N, 1])
    assert_counts(np.bincount(number, minlength=N**M), mass.sum(0), "minibatches")
    assert np.array_equal(
        state.evaluation.log_lik_mean,
        target.differences.remainders(state.evaluation.theta, state.evaluation.batch).mean(1),
    )
    if surrogate == "none":  # it can fail: neither is the other, nor the target
        other = np.cumsum(joint(target, temperature, correct=not correct).sum(1))
        assert stats.kstest(end, lambda x: np.interp(x, GRID, other)).pvalue < ALPHA


def test_the_perturbation_is_that_of_the_formula():
    """log E exp(l - s^2/2) - log E exp(l) ... = S/2 - (m-1)/2 log(1 + S/(m-1)) for normal terms, by simulation."""
    rng, m, variance = np.random.default_rng(6), 20, 2.0
    terms = rng.normal(size=(200_000, m)) * (variance * m) ** 0.5  # their mean has the variance S
    estimate, noise = terms.mean(1), terms.var(1, ddof=1) / m
    found = np.exp(estimate - noise / 2)
    assert_mean(found, np.exp(variance / 2 - (m - 1) / 2 * np.log1p(variance / (m - 1))), "E exp(l - s^2/2)")


def test_with_a_control_variate_the_marginal_is_nearly_the_target():
    mass = joint(made("taylor2"), 1.0, correct=True).sum(1)
    target = torch.softmax(made("none").log_density(torch.from_numpy(GRID)[:, None]), 0).numpy()
    plain = joint(made("none"), 1.0, correct=True).sum(1)
    assert np.abs(mass - target).sum() < 0.5 * np.abs(plain - target).sum()


def test_one_block_of_the_minibatch_is_new():
    target, chains = made("taylor2"), 3000
    kernel = MetropolisHastings(RandomWalk(), Blocks(8, 4), PseudoMarginal())
    state, draws = begin(kernel, target, np.zeros((chains, 1)), KEY)
    origin = kernel.pairing.current(target, state.evaluation, draws)
    draws.step = 1
    candidate, found = kernel.pairing.compare(target, origin, origin.theta, draws)
    changed = (candidate.batch != origin.batch).reshape(chains, 4, 2).any(2)
    assert int(changed.sum(1).max()) == 1
    assert_mean(changed.double().sum(1).numpy(), 1 - 1 / N**2, "a block that differs")
    assert_counts(changed.sum(0).double().numpy(), np.full(4, 0.25), "which block")
    assert torch.allclose(found.error_change, (candidate.log_lik_var - origin.log_lik_var) / 8)


def test_unsuitable_parts_are_refused():
    target = made("none")
    assert "choose pairing blocks" in MetropolisHastings(RandomWalk(), Shared(2), PseudoMarginal()).refuses(
        target
    )
    assert "rule pseudo_marginal" in MetropolisHastings(RandomWalk(), Blocks(4, 2), Metropolis()).refuses(
        target
    )
    moves = MetropolisHastings(LangevinProposal(), Blocks(4, 2), PseudoMarginal())
    assert "without gradients" in moves.refuses(target)
    with pytest.raises(Refusal, match="blocks = 0 must be a whole number, at least 1"):
        Blocks(10, 0)


def test_blocks_need_not_divide_the_minibatch():
    target = made("taylor2")
    pairing = Blocks(5, 3)  # places 0-1, 2-3, 3-4
    origin = pairing._evaluated(
        target, torch.zeros(4000, 1, dtype=torch.float64), torch.full((4000, 5), -1) % N
    )
    candidate, _ = pairing.compare(target, origin, origin.theta, Draws(Streams(KEY, 4000), 1))
    share = (candidate.batch != origin.batch).double().mean(0).numpy()
    assert share == pytest.approx(0.75 * np.array([1, 1, 1, 2, 1]) / 3, abs=0.05)


def test_checks_do_not_take_it_for_exact_at_m_equal_to_n():
    """Its minibatches are drawn with replacement: n of them are not all data."""
    subject = Subject(
        "blocks", lambda n, m: MetropolisHastings(RandomWalk(), Blocks(m), PseudoMarginal()), chains=200
    )
    found = list(run_suite(subject, ["invariance", "geweke"]))
    assert {verdict.outcome for verdict in found} == {NONE}
    assert all("perturbs its target" in verdict.detail for verdict in found)
