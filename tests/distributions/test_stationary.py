"""Samplers have the distribution that they claim. False-alarm rate of the whole suite: 1e-4 (see `significance`)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, controls
from scipy import linalg, stats
from significance import ALPHA, assert_cells, assert_mean, differs_in_mean

from mhrun.data import Dataset
from mhrun.diagnostics.grid import Grid, chi_squared, log_masses
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models.function import FunctionModel
from mhrun.models.tied_means import TiedMeans
from mhrun.pairing.full import Full
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.barker import Barker
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Evaluation, State


def run(kernel, target, theta, steps, step_size, temperature, seed, noise=None, state=None):
    """Return the draws (C, steps, D) of chains that begin at theta (C, D), in plain torch."""
    start, draws = begin(kernel, target, theta, derive_key(seed, "laws"))
    control = controls(step_size, temperature, noise, len(theta))
    return advance(kernel, target, state or start, control, draws, steps)[1]


def compiled(kernel, target, theta, steps, step_size, temperature, seed):
    """The same in the compiled loop."""
    key, control = derive_key(seed, "laws"), controls(step_size, temperature, chains=len(theta))
    state, _ = begin(kernel, target, theta, key)
    return advance_compiled(kernel, target, state, control, steps, key)[1]


# --- Full-batch Metropolis and Barker against quadrature --------------------------------------------------

GRID = Grid.of((-3.0, -4.0), (3.5, 4.0), 9)
OUTER = Grid.of((-9.0, -9.0), (9.0, 9.0), 40)  # of order 3, the total is right to 1e-10


def exact_cells(target, temperature):
    def log_density(theta):
        return target.log_density(torch.from_numpy(theta), temperature).numpy()

    inside, total = log_masses(log_density, GRID, 6), np.logaddexp.reduce(log_masses(log_density, OUTER, 3))
    p = np.exp(inside - total)
    return np.append(p, 1 - p.sum())


@pytest.fixture(scope="module")
def small():
    """Few data, and a prior that counts: the posterior is not symmetric."""
    x = np.random.default_rng(5).normal(0.8, 1.3, 12)
    return Target(TiedMeans(start=(0.5, 0.2)), Dataset.of(x.astype(np.float32)))


@pytest.mark.parametrize("seed", [101, 202, 303])
@pytest.mark.parametrize("rule", [Metropolis(), Barker()], ids=["metropolis", "barker"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_full_batch_chains_have_the_target(small, rule, seed, temperature):
    theta = small.model.init(300, Draws(Streams(0, 300), 0))
    kernel = MetropolisHastings(RandomWalk(), Full(), rule)
    shares = GRID.shares(compiled(kernel, small, theta, 2500, 1.3, temperature, seed)[:, 500:])
    assert_cells(shares, exact_cells(small, temperature), "target")


@pytest.mark.slow
def test_the_comparison_can_fail(small):
    """Negative controls: the wrong temperature, and the wrong power of the prior, are seen."""
    theta = small.model.init(300, Draws(Streams(0, 300), 0))
    kernel = MetropolisHastings(RandomWalk(), Full(), Metropolis())
    warm = GRID.shares(compiled(kernel, small, theta, 2500, 1.3, 2.5, 101)[:, 500:])
    with pytest.raises(AssertionError):
        assert_cells(warm, exact_cells(small, 2.2))
    likelihood = Target(small.model, small.data, temper="likelihood")
    with pytest.raises(AssertionError):
        assert_cells(warm, exact_cells(likelihood, 2.5))
    right = GRID.shares(compiled(kernel, likelihood, theta, 2500, 1.3, 2.5, 101)[:, 500:])
    assert_cells(right, exact_cells(likelihood, 2.5), "likelihood tempered")


def test_geweke_prior_in_prior_out():
    """Theta from the prior, data from theta, then MH steps on the data's posterior: theta has the prior still.

    Each chain has data of its own (a column), so that one run is 400 joint draws.
    """
    chains, n = 400, 4
    rng = np.random.default_rng(77)
    theta = rng.gamma(3.0, 0.5, (chains, 1))  # an asymmetric prior
    x = rng.normal(theta[:, 0], 1.0, (n, chains))

    def own_column(theta, rows):
        return -0.5 * (torch.diagonal(rows["x"].expand(len(theta), -1, -1), dim1=0, dim2=2).T - theta) ** 2

    def log_prior(theta):
        inside = theta[:, 0].clamp_min(1e-300)
        return torch.where(theta[:, 0] > 0, 2 * inside.log() - 2 * inside, -torch.inf)

    model = FunctionModel(own_column, torch.zeros(1), log_prior, batched=True)
    target = Target(model, Dataset.of({"x": x}))
    for rule in (Metropolis(), Barker()):
        kernel = MetropolisHastings(RandomWalk(), Full(), rule)
        end = run(kernel, target, torch.from_numpy(theta), 25, 0.9, 1.0, 4)[:, -1, 0]
        assert np.mean(end != theta[:, 0]) > 0.9
        assert stats.kstest(end, stats.gamma(3.0, scale=0.5).cdf).pvalue > ALPHA
        wrong = run(kernel, target, torch.from_numpy(theta), 40, 2.0, 10.0, 4)[:, -1, 0]
        assert stats.kstest(wrong, stats.gamma(3.0, scale=0.5).cdf).pvalue < ALPHA


# --- The stored minibatch: an exact chain on (theta, I) ----------------------------------------------------

X = np.array([-2.1, 0.3, 0.4, 1.9, 3.2, -0.6])
M, C_EFFECTIVE, PRIOR = 3, 4.0, 0.5  # c = n/T; prior N(0, 1/PRIOR)


def augmented_density():
    """The distribution of section 3.2 by enumeration: subsets I with weight w_I, and theta | I ~ N(mean_I, var).

    exp(c mean_I log N(x; theta, 1)) exp(-PRIOR theta^2 / 2) is a Gaussian in theta, for each of the 20 I.
    """
    subsets = [np.array(s) for s in itertools.combinations(range(len(X)), M)]
    precision = C_EFFECTIVE + PRIOR
    means = np.array([C_EFFECTIVE * X[s].mean() / precision for s in subsets])
    log_weight = (
        np.array([-0.5 * C_EFFECTIVE * (X[s] ** 2).mean() for s in subsets]) + 0.5 * precision * means**2
    )
    weight = np.exp(log_weight - log_weight.max())
    return subsets, weight / weight.sum(), means, 1 / precision


def gaussian_mean_target():
    model = FunctionModel(
        lambda theta, rows: -0.5 * (rows["x"] - theta) ** 2,
        [0.0],
        lambda theta: -0.5 * PRIOR * theta[:, 0] ** 2,
        batched=True,
    )
    return Target(model, Dataset.of(X), temper="likelihood")


def exact_start(chains, seed):
    subsets, weight, means, var = augmented_density()
    rng = np.random.default_rng(seed)
    which = rng.choice(len(subsets), chains, p=weight)
    theta = torch.from_numpy(rng.normal(means[which], math.sqrt(var))[:, None])
    target = gaussian_mean_target()
    index = torch.from_numpy(np.stack(subsets)[which])
    evaluation = target.evaluate(theta, index)._replace(batch=None)
    return target, State(evaluation, {}), theta


def marginal_cdf(values):
    _, weight, means, var = augmented_density()
    return sum(w * stats.norm.cdf(values, m, math.sqrt(var)) for w, m in zip(weight, means, strict=True))


def test_the_stored_chain_is_exact_on_the_augmented_space():
    """MINT, section 3.2: the distribution found by enumeration is invariant."""
    target, state, theta = exact_start(20_000, 1)
    temperature = len(X) / C_EFFECTIVE
    kernel = MetropolisHastings(RandomWalk(), Stored(M), Metropolis())
    end = run(kernel, target, theta, 25, 1.2, temperature, 8, state=state)[:, -1, 0]
    assert np.mean(end != theta[:, 0].numpy()) > 0.7
    assert stats.kstest(end, marginal_cdf).pvalue > ALPHA
    # The tempered posterior is another distribution, and so is the stationary one of the shared chain.
    precision = C_EFFECTIVE + PRIOR
    tempered = stats.norm(C_EFFECTIVE * X.mean() / precision, 1 / math.sqrt(precision)).cdf
    assert stats.kstest(end, tempered).pvalue < ALPHA
    shared = MetropolisHastings(RandomWalk(), Shared(M), Metropolis())
    other = run(shared, target, theta, 25, 1.2, temperature, 8)[:, -1, 0]
    assert stats.kstest(other, marginal_cdf).pvalue < ALPHA


@pytest.mark.parametrize("pairing", [Stored(M), Full()], ids=["stored", "full"])
def test_stationary_chains_are_reversible(pairing):
    """E f(before) g(after) = E g(before) f(after) in the stationary chain, for f and g not alike."""
    target, state, theta = exact_start(60_000, 2)
    temperature = len(X) / C_EFFECTIVE
    if isinstance(pairing, Full):
        precision = C_EFFECTIVE + PRIOR
        rng = np.random.default_rng(3)
        mean = C_EFFECTIVE * X.mean() / precision
        theta = torch.from_numpy(rng.normal(mean, 1 / math.sqrt(precision), (60_000, 1)))
        state = None
    kernel = MetropolisHastings(RandomWalk(), pairing, Metropolis())
    after = run(kernel, target, theta, 1, 1.2, temperature, 9, state=state)[:, 0, 0]
    before = theta[:, 0].numpy()
    f, g = np.tanh, lambda v: np.exp(0.4 * v)
    assert_mean(f(before) * g(after) - g(before) * f(after), 0.0, "detailed balance")


# --- The shared minibatch: near the tempered target, nearer with larger m --------------------------------


@pytest.mark.slow
def test_the_shared_chain_nears_the_target_as_m_grows(mixture):
    """At a fixed temperature the chi-squared distance falls about as m^-2, and is nothing at m = n."""
    target = Target(TiedMeans(), mixture)
    c = 12.0
    temperature = mixture.n / c
    cells = exact_cells(target, temperature)
    theta = target.model.init(400, Draws(Streams(0, 400), 0))
    found = {}
    for m in (25, 100, 400):
        kernel = MetropolisHastings(RandomWalk(), Shared(m), Metropolis())
        found[m] = chi_squared(
            GRID.shares(compiled(kernel, target, theta, 3000, 1.3, temperature, m)[:, 500:]), cells
        )
    exact = MetropolisHastings(RandomWalk(), Full(), Metropolis())
    full = chi_squared(GRID.shares(compiled(exact, target, theta, 3000, 1.3, temperature, 1)[:, 500:]), cells)
    assert found[25].value > 6 * found[25].se
    assert found[25].value > 5 * found[100].value
    assert found[100].value > 3 * max(found[400].value, 0)
    assert abs(full.value) < 6 * full.se


@pytest.mark.slow
def test_the_stored_chain_has_its_cumulant_distribution(mixture):
    """exp(c mu + (c sigma)^2 (1 - (m-1)/(n-1)) / 2m): within Monte Carlo error of it, and not of the tempered."""
    target = Target(TiedMeans(), mixture)
    m, c = 200, 20.0
    temperature = mixture.n / c
    rows = mixture.part(0, mixture.n)

    def log_density(theta):
        out = []
        for part in torch.from_numpy(theta).split(100):
            values = target.model.log_lik(part, rows)
            mean, var = values.mean(1), values.var(1, correction=0)
            rest = 1 - (m - 1) / (mixture.n - 1)
            out.append(c * mean + 0.5 * c**2 * var / m * rest + target.model.log_prior(part) / temperature)
        return torch.cat(out).numpy()

    total = np.logaddexp.reduce(log_masses(log_density, Grid.of((-7.0, -7.0), (8.0, 7.0), 26), 2))
    p = np.exp(log_masses(log_density, GRID, 4) - total)
    theta = target.model.init(400, Draws(Streams(0, 400), 0))
    kernel = MetropolisHastings(RandomWalk(), Stored(m), Metropolis())
    shares = GRID.shares(compiled(kernel, target, theta, 4000, 1.3, temperature, 5)[:, 500:])
    own = chi_squared(shares, np.append(p, 1 - p.sum()))
    tempered = chi_squared(shares, exact_cells(target, temperature))
    assert abs(own.value) < 6 * own.se + 2e-4  # the closed form leaves out the third cumulant
    assert tempered.value > 10 * abs(own.value)


# --- Dynamics against their stationary distribution on a Gaussian, discretisation and gradient noise included ------

CURVATURE = np.array([1.0, 4.0])


def quadratic_target(spread):
    """A Gaussian posterior with these curvatures; data scatter makes minibatch gradients noisy."""
    rng = np.random.default_rng(6)
    noise = rng.normal(size=(40, 2)) * spread
    noise -= noise.mean(axis=0)
    h = torch.from_numpy(CURVATURE) / 40

    def log_lik(theta, rows):
        pull = torch.einsum("cmd,cd->cm", rows["noise"].expand(len(theta), -1, -1), theta)
        return pull - 0.5 * (h * theta**2).sum(-1, keepdim=True)

    return Target(FunctionModel(log_lik, [0.0, 0.0], batched=True), Dataset.of({"noise": noise})), noise


def gradient_noise(noise, m):
    """The variance of the full-data gradient's estimate from m of the 40, without replacement."""
    n = len(noise)
    return n**2 / m * noise.var(axis=0, ddof=1) * (1 - m / n)


@pytest.mark.parametrize("step", [0.2, 0.1])
@pytest.mark.parametrize("m", [None, 8])
def test_sgld_has_its_discrete_stationary_distribution(step, m):
    """theta' = (1 - e h) theta + noise: variance (2 e T + e^2 V) / (1 - (1 - e h)^2), V the gradient's."""
    target, noise = quadratic_target(0.2)
    theta = torch.zeros(6000, 2, dtype=torch.float64)
    end = run(Unadjusted(SGLD(), m), target, theta, 60, step, 1.0, 12, noise=1.5)[:, -1]
    extra = 0.0 if m is None else gradient_noise(noise, m)
    expected = (2 * step * 1.5 + step**2 * extra) / (1 - (1 - step * CURVATURE) ** 2)
    for d in range(2):
        assert_mean(end[:, d] ** 2, expected[d], f"variance {d}")
        assert_mean(end[:, d], 0.0, f"mean {d}")
    # The target's own variance is another: the bias is there, and this many chains see it.
    assert differs_in_mean(end[:, 1] ** 2, 1.5 / CURVATURE[1])


@pytest.mark.slow
def test_the_bias_of_langevin_falls_with_the_step():
    bias = [abs((2 * e) / (1 - (1 - e * CURVATURE) ** 2) - 1 / CURVATURE) for e in (0.2, 0.1, 0.05)]
    target, _ = quadratic_target(0.2)
    theta = torch.zeros(6000, 2, dtype=torch.float64)
    seen = [
        abs(
            (run(Unadjusted(SGLD(), None), target, theta, 100, e, 1.0, 13)[:, -1] ** 2).mean(0)
            - 1 / CURVATURE
        )
        for e in (0.2, 0.1, 0.05)
    ]
    assert bias[0][1] > bias[1][1] > bias[2][1]
    assert seen[0][1] > seen[1][1] > seen[2][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "estimate"),
    [
        (None, 0.0),
        pytest.param(None, 0.05, marks=pytest.mark.slow),
        (8, 0.05),
        pytest.param(8, 0.0, marks=pytest.mark.slow),
    ],
)
def test_sghmc_has_its_discrete_stationary_distribution(m, estimate):
    """v' = (1-a) v - e h theta + noise, theta' = theta + v': linear, with the covariance of Lyapunov's equation."""
    a, e, temperature = 0.2, 0.02, 1.5
    target, noise = quadratic_target(0.2)
    theta = torch.zeros(6000, 2, dtype=torch.float64)
    end = run(Unadjusted(SGHMC(a, estimate), m), target, theta, 150, e, 1.0, 14, noise=temperature)[:, -1]
    extra = np.zeros(2) if m is None else gradient_noise(noise, m)
    for d, h in enumerate(CURVATURE):
        step = np.array([[1 - e * h, 1 - a], [-e * h, 1 - a]])  # (theta, v)
        variance = 2 * e * (a - estimate) * temperature + e**2 * extra[d]
        expected = linalg.solve_discrete_lyapunov(step, variance * np.ones((2, 2)))
        assert_mean(end[:, d] ** 2, expected[0, 0], f"variance {d}")
        assert_mean(end[:, d], 0.0, f"mean {d}")


def test_noise_temperature_zero_is_an_optimiser():
    target, _ = quadratic_target(0.2)
    theta = torch.ones(3, 2, dtype=torch.float64)
    for dynamics, step, steps in ((SGLD(), 0.2, 200), (SGHMC(0.2), 0.02, 600)):
        end = run(Unadjusted(dynamics, None), target, theta, steps, step, 1.0, 1, noise=0.0)[:, -1]
        assert np.abs(end).max() < 1e-3


@pytest.mark.slow
def test_a_tempered_likelihood_weighs_the_prior_right():
    """With temper=likelihood and noise at T, Langevin has prior x likelihood^(1/T) as its limit."""
    x = np.random.default_rng(1).normal(1.0, 1.0, 40)
    model = FunctionModel(
        lambda theta, rows: -0.5 * (rows["x"] - theta) ** 2,
        [0.0],
        lambda t: -2.0 * t[:, 0] ** 2,
        batched=True,
    )
    target = Target(model, Dataset.of(x), temper="likelihood")
    t = 10.0
    precision = 40 / t + 4.0
    theta = torch.zeros(6000, 1, dtype=torch.float64)
    kernel, step = Unadjusted(SGLD(), None), 1e-3
    end = run(kernel, target, theta, 300, step, t, 15, noise=t)[:, -1, 0]
    assert_mean(end, 40 / t * x.mean() / precision, "mean")
    # The drift's curvature is T times the target's precision; the discretisation's factor is exact.
    assert_mean((end - end.mean()) ** 2, 1 / precision / (1 - step * t * precision / 2), "variance")


def test_states_hold_what_the_next_step_needs(small):
    """A chain split in two calls of the compiled loop keeps what its pairing keeps."""
    kernel = MetropolisHastings(RandomWalk(), Stored(5), Metropolis())
    theta = small.model.init(3, Draws(Streams(0, 3), 0))
    state = kernel.start(small, theta, Draws(Streams(0, 3), 0))
    assert isinstance(state.evaluation, Evaluation)
    assert state.evaluation.log_lik_mean is not None
    after, _, _ = advance_compiled(kernel, small, state, controls(1.0, 1.0, chains=3), 4, key=1)
    assert after.evaluation.log_lik_mean.shape == (3,)
    assert torch.allclose(after.evaluation.log_prior, small.model.log_prior(after.evaluation.theta))
