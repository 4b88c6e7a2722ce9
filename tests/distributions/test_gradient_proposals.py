"""Proposals that follow a minibatch's gradient: densities, exactness, and whose minibatch it is."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from kit import controls
from scipy import special, stats
from significance import ALPHA, assert_mean

from mhrun.data import Dataset
from mhrun.kernels import MetropolisHastings
from mhrun.models.gaussian_location import GaussianLocation
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.moving import Moving
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.target import Target
from mhrun.types import Evaluation

KEY = derive_key(3, "gradients")
N, M, DIM = 6, 2, 3


@pytest.fixture
def target(rng):
    x = torch.from_numpy(rng.normal(0.4, 1.0, (N, DIM)))
    return Target(GaussianLocation(DIM, 2.0), Dataset({"x": x}))


def log_normal(x, mean, sd):
    return sum(
        -0.5 * ((a - b) / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)
        for a, b in zip(x, mean, strict=True)
    )


@pytest.mark.parametrize("beta", [1.0, 2.5])
@pytest.mark.parametrize("density", ["normalised", "unnormalised"])
def test_rsgld_is_equation_7(rng, beta, density):
    here, there, grad = (torch.from_numpy(rng.normal(size=(5, DIM))) for _ in range(3))
    found = ReversibleLangevinProposal(beta, density).log_density(
        Evaluation(here, None, grad=grad), there, controls(0.05, 2.0, 1.5, 5)
    )
    step, noise = 0.05, 1.5
    sd = math.sqrt(2 * step * noise)
    for c in range(5):
        ahead, back = here[c] + step * grad[c], here[c] - step * grad[c]
        forward = log_normal(there[c].tolist(), ahead.tolist(), sd)
        backward = log_normal(there[c].tolist(), back.tolist(), beta * sd)
        if density == "unnormalised":
            backward += DIM * math.log(beta)
        wanted = math.log(0.5) + np.logaddexp(forward, backward)
        constant = -DIM * (math.log(sd) + 0.5 * math.log(2 * math.pi))
        assert float(found[c]) == pytest.approx(wanted - constant)


def test_rsgld_draws_from_its_density():
    chains = 20_000
    origin = Evaluation(torch.zeros(chains, 1).double(), None, grad=torch.full((chains, 1), 30.0).double())
    proposal = ReversibleLangevinProposal(2.0)
    drawn = proposal.sample(origin, controls(0.05, 2.0, 1.5, chains), Draws(Streams(KEY, chains), 1))[
        :, 0
    ].numpy()
    sd = math.sqrt(2 * 0.05 * 1.5)

    def cdf(x):
        return 0.5 * stats.norm.cdf(x, 1.5, sd) + 0.5 * stats.norm.cdf(x, -1.5, 2 * sd)

    assert stats.kstest(drawn, cdf).pvalue > ALPHA


@pytest.mark.parametrize(
    "proposal", [LangevinProposal(), ReversibleLangevinProposal(1.0), ReversibleLangevinProposal(2.0)]
)
def test_mhbt_is_reversible_on_points_and_minibatches(target, rng, proposal):
    """For every pair of minibatches: the log-ratio is that of the augmented density, written from the paper."""
    x = target.data.fields["x"].numpy()
    kernel = MetropolisHastings(proposal, Stored(M), Metropolis())
    c, power = N / 2.0, 1 / 2.0
    for one in combinations(range(N), M):
        for other in combinations(range(N), M):
            a, b = rng.normal(0.4, 0.5, (2, DIM))

            def point(theta, batch):
                index = torch.tensor([batch])
                scored = target.evaluate(torch.from_numpy(theta)[None], index)
                return scored._replace(grad=target.gradients.minibatch(scored.theta, index, torch.ones(1)))

            class Given(Stored):
                def compare(self, target, origin, theta, draws, grad_temperature=None, here=other):
                    candidate = target.evaluate(theta, torch.tensor([here]), grad_temperature)
                    return candidate, target.differences.unpaired(origin, candidate, M)

            kernel.pairing = Given(M)
            forward = kernel.contest(
                target, point(a, one), torch.from_numpy(b)[None], controls(0.05, 2.0, 1.5, 1), None
            )[1]

            def log_joint(theta, batch):
                lik = np.mean([-0.5 * ((x[i] - theta) ** 2).sum() for i in batch])
                return c * lik - power * 0.25 * (theta**2).sum()

            def log_q(start, batch, to):
                grad = N * np.mean([x[i] - start for i in batch], axis=0) - 0.5 * start
                sd = math.sqrt(2 * 0.05 * 1.5)
                ahead = log_normal(to, start + 0.05 * grad, sd)
                if isinstance(proposal, LangevinProposal):
                    return ahead
                return np.logaddexp(ahead, log_normal(to, start - 0.05 * grad, proposal.beta * sd))

            wanted = log_joint(b, other) + log_q(b, other, a) - log_joint(a, one) - log_q(a, one, b)
            assert float(forward.log_ratio[0]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("proposal", [LangevinProposal(), ReversibleLangevinProposal(1.3)])
def test_mhbt_has_the_distribution_that_enumeration_gives(proposal):
    """theta has the density that averages exp(c mean_I log p) over all minibatches: a mixture of Gaussians."""
    x = np.array([-1.5, -0.2, 0.3, 0.9, 1.1, 2.4])
    model, chains, steps = GaussianMean(), 400, 400
    target = Target(model, Dataset.of(x))
    temperature = 3.0
    kernel = MetropolisHastings(proposal, Stored(M), Metropolis())
    draws = Draws(Streams(KEY, chains), 0)
    state = kernel.start(target, target.model.init(chains, draws), draws)
    kept = []
    for k in range(steps):
        draws.step = k + 1
        state, _ = kernel.step(target, state, controls(0.05, temperature, 4.0, chains), draws)
        if k >= 100:
            kept.append(state.evaluation.theta[:, 0])
    theta = torch.stack(kept, 1).numpy()
    c = N / temperature
    means = np.array([np.mean([x[i] for i in batch]) for batch in combinations(range(N), M)])
    spread = np.array([np.var([x[i] for i in batch]) for batch in combinations(range(N), M)])
    weights = special.softmax(-0.5 * c * spread)
    mean = weights @ means
    variance = weights @ ((means - mean) ** 2) + 1 / c
    by_chain = theta.mean(1)
    assert_mean(by_chain, mean)
    assert_mean(((theta - mean) ** 2).mean(1), variance)


def test_mala_is_exact(rng):
    x = rng.normal(0.7, 1.0, 50)
    target = Target(GaussianMean(), Dataset.of(x))
    kernel = MetropolisHastings(LangevinProposal(), Full(), Metropolis())
    chains = 400
    draws = Draws(Streams(KEY, chains), 0)
    state = kernel.start(target, target.model.init(chains, draws), draws)
    kept, accepted = [], []
    for k in range(200):
        draws.step = k + 1
        state, info = kernel.step(target, state, controls(0.02, 1.0, 1.0, chains), draws)
        accepted.append(info.accepted)
        if k >= 50:
            kept.append(state.evaluation.theta[:, 0])
    theta = torch.stack(kept, 1).numpy()
    assert 0.5 < torch.stack(accepted).double().mean() < 0.99
    assert_mean(theta.mean(1), x.mean())
    assert_mean(((theta - x.mean()) ** 2).mean(1), 1 / 50)


def test_a_gradient_is_that_of_the_points_own_minibatch(target):
    chains = 4
    for pairing in (Shared(M), Stored(M), Moving(M), Full()):
        kernel = MetropolisHastings(LangevinProposal(), pairing, Metropolis())
        draws = Draws(Streams(KEY, chains), 0)
        state = kernel.start(target, target.model.init(chains, draws), draws)
        index = Draws(Streams(KEY, chains), 0).index(N, M, replacement=False)  # of the stored point
        for k in range(1, 12):
            draws.step = k
            fresh = Draws(Streams(KEY, chains), k).index(N, M, replacement=False)
            before = Draws(Streams(KEY, chains), k - 1).index(N, M, replacement=False)
            theta, warm = state.evaluation.theta, controls(0.05, 2.0, 1.5, chains).temperature
            origin = pairing.current(target, state.evaluation, Draws(Streams(KEY, chains), k), warm)
            used = {Shared: fresh, Moving: before, Stored: index, Full: None}[type(pairing)]
            if used is not None and not isinstance(pairing, Stored):
                assert torch.equal(origin.batch, used)
                assert torch.allclose(origin.grad, target.gradients.minibatch(theta, used, warm))
            state, info = kernel.step(target, state, controls(0.05, 2.0, 1.5, chains), draws)
            grad, theta = state.evaluation.grad, state.evaluation.theta
            assert (grad is None) == pairing.rescores
            index = torch.where(info.accepted[:, None], fresh, index)
            if isinstance(pairing, Stored):
                assert torch.allclose(grad, target.gradients.minibatch(theta, index, warm))
            if isinstance(pairing, Full):
                assert torch.allclose(grad, target.gradients.full(theta, warm))


def test_gradients_and_growing_minibatches_do_not_mix(target):
    refused = MetropolisHastings(LangevinProposal(), Growing(), MHMinibatch(2)).refuses(target)
    assert "choose a proposal without gradients" in refused
