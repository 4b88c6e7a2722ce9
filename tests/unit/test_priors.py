"""Priors that belong to a method: gradients against autograd, Gibbs steps against the gamma distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from significance import ALPHA, assert_mean

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.dynamics.momentum import Momentum
from mhrun.dynamics.sgld import SGLD
from mhrun.errors import Refusal
from mhrun.kernels import Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.perceptron import Perceptron
from mhrun.priors.decay import Decay
from mhrun.priors.gamma import GammaPrecision
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.types import Controls, ParameterBlock, State

KEY = derive_key(8, "priors")
C, N = 4, 30


@pytest.fixture
def target(rng):
    fields = {"x": rng.normal(size=(N, 3)), "y": rng.integers(0, 2, N)}
    return Target(Perceptron([3, 4, 2]), Dataset.of(fields))


def log_decay(target, theta, decay):
    """-(n decay / 2) times the squares of W1 and W2, written out for the layers 3, 4, 2."""
    w1, w2 = theta[:, :12], theta[:, 16:24]
    return -0.5 * N * decay * (w1.square().sum(1) + w2.square().sum(1))


def log_gamma(theta, gamma):
    """log p(theta | gamma) = sum over W1, b1, W2, b2 of -gamma_b |theta_b|^2, up to what gamma alone decides."""
    edges = [0, 12, 16, 24, 26]
    parts = [theta[:, a:b].square().sum(1) for a, b in zip(edges[:-1], edges[1:], strict=True)]  # noqa: RUF007
    return -sum(gamma[:, i] * part for i, part in enumerate(parts))


def test_weight_decay_is_the_gradient_of_its_log(target, rng):
    theta = torch.from_numpy(rng.normal(size=(C, target.dim))).requires_grad_()
    (wanted,) = torch.autograd.grad(log_decay(target, theta, 3e-3).sum(), theta)
    plain = torch.from_numpy(rng.normal(size=(C, target.dim)))
    prior = Decay(3e-3)
    assert prior.start(target, theta) == {}
    found = prior.add_gradient(target, theta.detach(), plain.clone(), {})
    assert torch.allclose(found, plain + wanted, rtol=1e-12)
    assert (found[:, 12:16] == plain[:, 12:16]).all()  # biases have none


def test_a_loss_with_weight_decay_is_torch_s(target, rng):
    """One step of SGD of the mean loss with weight_decay on the weights, in torch."""
    kernel = Unadjusted(Momentum(), None, prior=Decay(0.4))
    theta = torch.from_numpy(rng.normal(size=(1, target.dim)))
    draws, one = Draws(Streams(KEY, 1), 0), torch.ones(1, dtype=torch.float64)
    state = kernel.start(target, theta, draws)
    draws.step = 1
    moved, _ = kernel.step(target, state, Controls(0.1 * one / N, one, one), draws)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).double()
    torch.nn.utils.vector_to_parameters(theta[0], net.parameters())
    groups = [
        {"params": [p for p in net.parameters() if p.dim() == size], "weight_decay": 0.4 * (size == 2)}
        for size in (1, 2)
    ]
    fields = target.data.fields
    torch.nn.functional.cross_entropy(net(fields["x"]), fields["y"]).backward()
    torch.optim.SGD(groups, 0.1).step()
    assert torch.allclose(moved.evaluation.theta[0], torch.nn.utils.parameters_to_vector(net.parameters()))


def test_gamma_priors_have_the_gradient_of_their_log(target, rng):
    theta = torch.from_numpy(rng.normal(size=(C, target.dim))).requires_grad_()
    gamma = torch.from_numpy(rng.gamma(2, 1, (C, 4)))
    (wanted,) = torch.autograd.grad(log_gamma(theta, gamma).sum(), theta)
    plain = torch.from_numpy(rng.normal(size=(C, target.dim)))
    found = GammaPrecision().add_gradient(target, theta.detach(), plain.clone(), {"gamma": gamma})
    assert torch.allclose(found, plain + wanted, rtol=1e-12)


def test_the_first_precisions_are_the_prior_s_mean(target):
    theta = torch.zeros(C, target.dim, dtype=torch.float32)
    gamma = GammaPrecision(1.5, 0.5).start(target, theta)["gamma"]
    assert gamma.dtype == torch.float32
    assert gamma.tolist() == [[3.0] * 4] * C


class Flat:
    """No likelihood at all; two blocks of 2 and 3 parameters."""

    dim, names = 5, tuple("abcde")
    blocks = (ParameterBlock("one", 0, 2, True), ParameterBlock("two", 2, 5, False))

    def init(self, chains, draws):
        return torch.zeros(chains, 5, dtype=torch.float64)

    def log_prior(self, theta):
        return theta.new_zeros(len(theta))

    def log_lik(self, theta, rows):
        return 0 * theta[:, :1] + 0 * rows["x"]


@pytest.mark.parametrize("shape", [2.0, 0.5])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_gibbs_draws_have_their_gamma_distribution(rng, shape, rate):
    """gamma_b | theta ~ Gamma(shape + d_b / 2, rate + |theta_b|^2), blocks and steps independent."""
    chains, target = 8000, Target(Flat(), Dataset.of(np.zeros(4)))
    theta = torch.from_numpy(rng.normal(size=(1, 5))).expand(chains, 5)
    prior, draws, drawn = GammaPrecision(shape, rate, every=1), Draws(Streams(KEY, chains), 1), []
    aux = prior.start(target, theta)
    for step in (1, 2):
        draws.step = step
        aux = prior.resample(target, theta, aux, draws)
        drawn.append(aux["gamma"].numpy())
        for b, (start, stop) in enumerate(((0, 2), (2, 5))):
            square = float(theta[0, start:stop].square().sum())
            expected = stats.gamma(shape + (stop - start) / 2, scale=1 / (rate + square))
            assert stats.kstest(drawn[-1][:, b], expected.cdf).pvalue > ALPHA
    r = np.corrcoef(np.concatenate(drawn, axis=1).T) - np.eye(4)
    assert np.abs(r).max() < 5.5 / np.sqrt(chains)


@pytest.mark.long
def test_precisions_are_drawn_after_every_so_many_steps(target):
    kernel = Unadjusted(Momentum(), 5, prior=GammaPrecision(every=4))
    draws, one = Draws(Streams(KEY, C), 0), torch.ones(C, dtype=torch.float64)
    state = kernel.start(target, torch.zeros(C, target.dim, dtype=torch.float64), draws)
    changed = []
    for k in range(1, 14):
        draws.step = k
        before = state.aux["gamma"]
        state, _ = kernel.step(target, state, Controls(1e-4 * one, one, one), draws)
        changed.append(bool((state.aux["gamma"] != before).all()))
        assert changed[-1] or torch.equal(state.aux["gamma"], before)
    assert [k for k, c in enumerate(changed, 1) if c] == [4, 8, 12]
    assert compile_loop(kernel, target, KEY, 1) is None


def test_a_precision_is_drawn_given_where_the_step_went(rng):
    """The Gibbs step after step k conditions on theta after step k."""
    target = Target(Flat(), Dataset.of(np.zeros(4)))
    kernel = Unadjusted(SGLD(), 2, prior=GammaPrecision(2.0, 1.0, every=1))
    draws, one = Draws(Streams(KEY, C), 0), torch.ones(C, dtype=torch.float64)
    state = kernel.start(target, 100 * torch.ones(C, 5, dtype=torch.float64), draws)
    draws.step = 1
    state, _ = kernel.step(target, state, Controls(0.24 * one, one, 0 * one), draws)
    # gamma = 2 at first: theta' = (1 - 4 e) theta = 4.
    assert torch.allclose(state.evaluation.theta, torch.full((C, 5), 4.0, dtype=torch.float64))
    again = Draws(Streams(KEY, C), 1)
    wanted = GammaPrecision(2.0, 1.0, every=1).resample(target, state.evaluation.theta, {}, again)
    assert torch.equal(state.aux["gamma"], wanted["gamma"])


@pytest.mark.long
def test_chains_that_begin_in_the_joint_distribution_stay_in_it():
    """Geweke's test: gamma ~ Gamma(2, 1), theta | gamma ~ N(0, 1 / (2 gamma)), Langevin in small steps and Gibbs.

    A Langevin step of size e has the variance 1 / (2 gamma (1 - gamma e)), at e = 0.002 half a per cent too large:
    less than these 4,000 chains can see.
    """
    chains, target = 4000, Target(Flat(), Dataset.of(np.zeros(4)))
    rng = np.random.default_rng(1)
    gamma = torch.from_numpy(rng.gamma(2.0, 1.0, (chains, 2)))
    z = torch.from_numpy(rng.normal(size=(chains, 5)))
    theta = z / (2 * torch.cat([gamma[:, :1].expand(-1, 2), gamma[:, 1:].expand(-1, 3)], 1)).sqrt()
    kernel = Unadjusted(SGLD(), 1, prior=GammaPrecision(2.0, 1.0, every=5))
    draws, one = Draws(Streams(KEY, chains), 0), torch.ones(chains, dtype=torch.float64)
    state = kernel.start(target, theta, draws)
    state = State(state.evaluation, state.aux | {"gamma": gamma})
    for k in range(1, 201):
        draws.step = k
        state, _ = kernel.step(target, state, Controls(0.002 * one, one, one), draws)
    found = state.aux["gamma"].numpy()
    for b, size in enumerate((2, 3)):
        assert stats.kstest(found[:, b], stats.gamma(2).cdf).pvalue > ALPHA
        # Each coordinate alone has Student's t with 2 * 2 degrees of freedom, times sqrt(1 / (2 * 2)).
        start = (0, 2)[b]
        for d in range(start, start + size):
            expected = stats.t(df=4, scale=0.5)
            assert stats.kstest(state.evaluation.theta[:, d].numpy(), expected.cdf).pvalue > ALPHA
        assert_mean(found[:, b], 2.0, "mean precision")
    moved = float(np.corrcoef(found[:, 0], gamma[:, 0].numpy())[0, 1])
    assert moved < 0.9  # or there would have been nothing to see


def test_what_has_no_blocks_or_no_meaning_is_refused():
    plain = Target(GaussianMean(), Dataset.of(np.zeros(5)))
    for prior, message in ((Decay(0.1), "blocks of weights"), (GammaPrecision(), "blocks of parameters")):
        assert message in Unadjusted(SGLD(), 2, prior=prior).refuses(plain)
    for make, message in (
        (lambda: Decay(-1.0), "at least 0"),
        (lambda: Decay(float("nan")), "at least 0"),
        (lambda: GammaPrecision(0.0), "shape > 0"),
        (lambda: GammaPrecision(1.25), "2 shape whole"),
        (lambda: GammaPrecision(2.0, 0.0), "rate > 0"),
        (lambda: GammaPrecision(2.0, 1.0, 0), "every >= 1"),
    ):
        with pytest.raises(Refusal, match=message):
            make()
