"""Thinning rules have the exact target at their own minibatch size. False-alarm rate: see `significance`."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from kit import advance, begin, controls
from scipy import stats
from significance import ALPHA, Z, assert_mean

from mhrun.data import Dataset
from mhrun.kernels import MetropolisHastings
from mhrun.models.binomial_regression import BinomialRegression
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.softmax_regression import SoftmaxRegression
from mhrun.models.tied_means import TiedMeans
from mhrun.native import available
from mhrun.pairing.thinned import Thinned
from mhrun.parts import Proposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.mh_ss import MHSS
from mhrun.rules.poisson_mh import PoissonMH
from mhrun.rules.smh import SMH
from mhrun.rules.tunamh import TunaMH
from mhrun.target import Target

KEY = derive_key(3, "exact")
N = 30
RULES = {
    "tunamh": TunaMH(chi=0.05),
    "tunamh_small": TunaMH(chi=1e-4),
    "poisson_mh": PoissonMH(rate=4.0),
    "smh": SMH(),
    "mh_ss": MHSS(gamma=0.5),
}


def regression(rng, dim=2):
    return rng.normal(size=(N, dim)) * np.array([1.0, 0.5])


def targets():
    """Return targets of few data by name, each with a scale of moves whose arrivals are far fewer than the data."""
    rng = np.random.default_rng(17)
    x = regression(rng)
    signs = np.where(rng.random(N) < 1 / (1 + np.exp(-x.sum(1))), 1, -1)
    mixture = rng.normal(size=N) * 1.4 + (rng.random(N) < 0.5)
    counts, classes = rng.poisson(np.exp(0.5 * x.sum(1))), rng.integers(0, 3, N)
    logistic = Logistic(2, prior_variance=2.0, start="zeros")
    trials = counts + np.arange(N) % 4
    return {
        "gaussian": (Target(GaussianMean(1.0), Dataset.of(rng.normal(0.5, 1, N))), 0.2),
        "tied_means": (Target(TiedMeans(), Dataset.of(mixture), temper="likelihood"), 0.25),
        "logistic": (Target(logistic, Dataset.of({"x": x, "y": signs})), 0.2),
        "logistic_1": (Target(logistic, Dataset.of({"x": x, "y": signs}), surrogate="taylor1"), 0.4),
        "logistic_2": (Target(logistic, Dataset.of({"x": x, "y": signs}), surrogate="taylor2"), 1.2),
        "robust_1": (
            Target(
                RobustRegression(2, prior_variance=2.0),
                Dataset.of({"x": x, "y": x @ [1, -1]}),
                surrogate="taylor1",
            ),
            0.2,
        ),
        "poisson_2": (
            Target(PoissonRegression(2, 2.0), Dataset.of({"x": x, "y": counts}), surrogate="taylor2"),
            0.4,
        ),
        "binomial_2": (
            Target(
                BinomialRegression(2, 2.0),
                Dataset.of({"x": x, "y": counts, "trials": trials}),
                surrogate="taylor2",
            ),
            0.6,
        ),
        "softmax_2": (
            Target(SoftmaxRegression(2, 3, 1.0), Dataset.of({"x": x, "y": classes}), surrogate="taylor2"),
            0.4,
        ),
    }


TARGETS = targets()


class Jump(Proposal):
    """Proposes given points."""

    def __init__(self, to):
        self.to = to

    def sample(self, origin, controls, draws):
        return self.to

    def log_density(self, origin, to, controls):
        return None


def accepted(target, rule, theta, to, temperature, key=KEY):
    """Return the acceptances of moves theta -> to (C, D), and the number of data read."""
    kernel = MetropolisHastings(Jump(to), Thinned(), rule)
    assert kernel.refuses(target) is None
    state, _ = begin(kernel, target, theta, key)
    draws = Draws(Streams(key, len(theta), compiled=available()), 1)
    with torch.no_grad():
        _, info = kernel.step(target, state, controls(1.0, temperature, chains=len(theta)), draws)
    assert int(info.violations.sum()) == 0
    return info.accepted.numpy().astype(float), info.batch_size.numpy()


def pairs(target, size, count, seed):
    """Return pairs of points near the mode or the model's start, of which the second is the less likely."""
    rng = np.random.default_rng(seed)
    begins = (
        target.model.init(1, Draws(Streams(KEY, 1), 0))
        if target.surrogate is None
        else target.surrogate.reference.theta[None]
    )
    one = begins.numpy() + 0.5 * size * rng.normal(size=(count, target.dim))
    two = one + size * rng.normal(size=(count, target.dim))
    return torch.from_numpy(one), torch.from_numpy(two)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", TARGETS)
def test_detailed_balance_between_pairs_of_points(name, rule):
    """pi(a) P(a -> b) = pi(b) P(b -> a), from the frequencies of 4 pairs, most of them decided on few data."""
    target, size = TARGETS[name]
    temperature, repeats = 2.0, 4000
    one, two = pairs(target, size, 4, 23)
    ratio = (target.log_density(two, temperature) - target.log_density(one, temperature)).exp()
    swap = ratio > 1
    high, low = torch.where(swap[:, None], two, one), torch.where(swap[:, None], one, two)
    ratio = torch.minimum(ratio, 1 / ratio).numpy()
    high, low = high.repeat_interleave(repeats, 0), low.repeat_interleave(repeats, 0)
    down, read = accepted(target, RULES[rule], high, low, temperature)
    up, _ = accepted(target, RULES[rule], low, high, temperature, KEY + 1)
    down, up, read = (v.reshape(4, repeats) for v in (down, up, read))
    assert (read < N).mean() > 0.4
    assert read.mean() > 0.1
    error = np.sqrt(down.var(1) + ratio**2 * up.var(1)) / math.sqrt(repeats) + 1e-9
    z = (down.mean(1) - ratio * up.mean(1)) / error
    assert np.abs(z).max() < Z, f"{z}"
    assert (down.mean(1) > 0.01).all()


def enumerated(rule, d, bounds, rho):
    """Return the acceptance probability by summing over all Poisson counts, as in the papers; d = -term, (3,)."""
    total = bounds.sum()
    if isinstance(rule, TunaMH):
        kappa = rule.chi * bounds * total + (bounds - np.abs(d)) / 2
    elif isinstance(rule, PoissonMH):
        kappa = rule.rate * bounds / total + (bounds - np.abs(d)) / 2
    else:
        kappa = (rule.gamma if isinstance(rule, MHSS) else 0.0) * bounds
    f, g = np.maximum(d, 0) + kappa, np.maximum(-d, 0) + kappa
    found, each = 0.0, stats.poisson.pmf(np.arange(14)[:, None], f)
    for counts in itertools.product(range(14), repeat=len(d)):
        probability = np.prod(each[counts, range(len(d))])
        if probability == 0:  # a count of arrivals at a rate of 0
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(np.array(counts) > 0, counts * (np.log(g) - np.log(f)), 0.0)
        found += probability * math.exp(min(0.0, rho + parts.sum()))
    return found


@pytest.mark.parametrize("rule", RULES)
def test_acceptance_probabilities_are_those_of_the_papers(rule):
    """Against sums over all Poisson counts of three data, written from the definitions; reads as many as it should."""
    data, theta, to, temperature, chains = np.array([-0.6, 0.3, 1.4]), 0.1, 0.55, 1.3, 20_000
    target = Target(GaussianMean(1.0), Dataset.of(data))
    bounds = target.bounded.bounds.weights * target.bounded.bounds.width(
        torch.tensor([[theta]]), torch.tensor([[to]])
    )
    bounds = bounds.numpy() / temperature
    d = (0.5 * (data - to) ** 2 - 0.5 * (data - theta) ** 2) / temperature
    rho = 0.5 * (theta**2 - to**2) / temperature
    here = RULES[rule]
    full = torch.full((chains, 1), theta, dtype=torch.float64)
    if (1 + float(here.share(torch.tensor([bounds.sum()])))) * bounds.sum() > 3:
        here = {"poisson_mh": PoissonMH(rate=0.5)}[rule]
    found, read = accepted(target, here, full, torch.full_like(full, to), temperature)
    assert_mean(found, enumerated(here, d, bounds, rho), rule)
    if not here.only_lowers:
        rate = (1 + float(here.share(torch.tensor([bounds.sum()])))) * bounds.sum()
        assert_mean(read.astype(float), rate, "data read")


@pytest.mark.parametrize("rule", ["tunamh", "smh", "mh_ss"])
def test_steps_decided_on_all_data_are_metropolis_steps(rule):
    target, size = TARGETS["logistic_1"]
    one, two = pairs(target, size, 1, 5)
    one, two = one.repeat(4000, 1), two.repeat(4000, 1)
    ratio = float((target.log_density(two[:1], 2.0) - target.log_density(one[:1], 2.0)).exp())
    least = 1e-12  # arrivals in expectation, above which all data are read
    made = {"tunamh": TunaMH(0.05, at_most=least), "smh": SMH(least), "mh_ss": MHSS(0.5, least)}[rule]
    found, read = accepted(target, made, one, two, 2.0)
    assert (read == N).all()
    assert_mean(found, min(1.0, ratio)) if ratio < 1 else np.testing.assert_array_equal(found, 1.0)


@pytest.mark.parametrize(
    ("name", "rule"), [("gaussian", "tunamh"), ("gaussian", "poisson_mh"), ("gaussian", "smh")]
)
def test_draws_of_the_posterior_remain_draws_of_it(name, rule):
    """From exact draws of a normal posterior: Kolmogorov-Smirnov after 8 steps at two step sizes."""
    target, _ = TARGETS[name]
    x, temperature, chains = target.data.fields["x"].numpy(), 2.0, 6000
    precision = (N + 1) / temperature
    mean = x.sum() / temperature / precision
    theta = np.random.default_rng(9).normal(mean, precision**-0.5, (chains, 1))
    kernel = MetropolisHastings(RandomWalk(), Thinned(), RULES[rule])
    state, _ = begin(kernel, target, torch.from_numpy(theta), KEY)
    draws = Draws(Streams(KEY, chains, compiled=available()), 1)
    step = torch.where(torch.arange(chains) % 2 == 0, 0.15, 0.4)
    _, thetas, infos = advance(kernel, target, state, controls(step, temperature, chains=chains), draws, 8)
    end = thetas[:, -1, 0]
    assert 0.3 < np.mean([info.batch_size.double().mean() for info in infos]) < N
    assert np.mean(end != theta[:, 0]) > 0.5
    assert stats.kstest(end, stats.norm(mean, precision**-0.5).cdf).pvalue > ALPHA
    assert stats.kstest(end, stats.norm(mean, 1.25 * precision**-0.5).cdf).pvalue < ALPHA  # it can fail


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["tunamh_small", "mh_ss"])
def test_the_mixture_of_the_papers(rule):
    """E theta_2^2 of the tied means at n/K = 100, step 0.15, from exact draws: that of quadrature."""
    rng, n, chains, steps = np.random.default_rng(2), 20_000, 2000, 25
    x = rng.normal(size=n) * 2**0.5 + (rng.random(n) < 0.5)
    target = Target(TiedMeans(), Dataset.of(x.astype(np.float32)), temper="likelihood")
    temperature = n / 100
    axis = torch.linspace(-4, 4, 161, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    mass = torch.softmax(target.log_density(grid, temperature), 0).numpy()
    square = grid[:, 1].numpy() ** 2
    expected = float(mass @ square)
    begins = grid.numpy()[rng.choice(len(mass), chains, p=mass)] + rng.uniform(-0.025, 0.025, (chains, 2))
    kernel = MetropolisHastings(RandomWalk(), Thinned(), RULES[rule])
    state, _ = begin(kernel, target, begins, KEY)
    draws = Draws(Streams(KEY, chains, compiled=available()), 1)
    _, thetas, infos = advance(
        kernel, target, state, controls(0.15, temperature, chains=chains), draws, steps
    )
    read = np.mean([info.batch_size.double().mean() for info in infos])
    assert 5 < read < 60
    assert_mean(thetas[:, -1, 1] ** 2, expected, "E theta_2^2")
    assert_mean(thetas[:, -1, 0], float(mass @ grid[:, 0].numpy()), "E theta_1")
