"""The zig-zag sampler: its rates, its bounds and its stationary distribution.

False-alarm rate: see `significance`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, assert_resumes_with_the_same_bits, begin, controls, ladder_controls
from scipy import stats
from significance import ALPHA, Z, assert_mean

from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.exchanges import MADE
from mhrun.kernels import ReplicaExchange
from mhrun.kernels.zig_zag import VELOCITY, ZigZag, first_times
from mhrun.models.binomial_regression import BinomialRegression
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.tied_means import TiedMeans
from mhrun.pairing.full import Full
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Bounds

KEY = derive_key(7, "zig-zag")
N = 12
RNG = np.random.default_rng(31)
X = 3 * RNG.normal(size=(N, 1))
SIGNS = np.where(RNG.random(N) < 1 / (1 + np.exp(-0.5 * X[:, 0])), 1, -1)
MODELS = {
    "logistic": (Logistic(1, 2.0, "zeros"), {"x": X, "y": SIGNS}),
    "robust": (RobustRegression(1, prior_variance=2.0), {"x": X, "y": 0.5 * X[:, 0] + RNG.standard_t(4, N)}),
    "poisson": (PoissonRegression(1, 2.0), {"x": X / 3, "y": RNG.poisson(np.exp(0.1 * X[:, 0]))}),
    "binomial": (
        BinomialRegression(1, 2.0),
        {"x": X / 3, "y": 1.0 + np.arange(N) % 3, "trials": 1.0 + np.arange(N) % 3 + np.arange(N) % 5},
    ),
    "poisson_exposure": (
        PoissonRegression(1, 2.0),
        {"x": X / 3, "y": RNG.poisson(np.exp(0.1 * X[:, 0])), "exposure": 0.2 + np.arange(len(X)) % 5},
    ),
}


def made(name, surrogate, temper="posterior"):
    model, data = MODELS[name]
    return Target(model, Dataset.of(data), surrogate=surrogate, temper=temper)


def quadrature(target, temperature, low=-12.0, high=15.0):
    grid = np.linspace(low, high, 20_001)
    mass = torch.softmax(target.log_density(torch.from_numpy(grid)[:, None], temperature), 0).numpy()
    return grid, np.cumsum(mass)


def follow(kernel, target, theta, step, temperature, steps):
    """Return draws (C, K, D) after some steps from theta (C, D), the last state, and the infos."""
    chains = len(theta)
    state, _ = begin(kernel, target, theta, KEY)
    control, draws = controls(step, temperature, chains=chains), Draws(Streams(KEY, chains), 1)
    state, thetas, infos = advance(kernel, target, state, control, draws, steps)
    return thetas, state, infos


@pytest.mark.parametrize(
    ("name", "surrogate", "step", "temperature", "temper"),
    [
        ("logistic", "taylor1", 0.7, 1.0, "posterior"),
        ("logistic", "taylor2", 3.0, 1.0, "posterior"),
        ("logistic", "taylor2", 4.0, 6.0, "likelihood"),
        ("robust", "taylor1", 2.0, 2.0, "posterior"),
        ("robust", "taylor2", 2.0, 1.0, "posterior"),
        ("poisson", "taylor2", 1.5, 1.0, "posterior"),
        ("binomial", "taylor1", 0.5, 1.0, "posterior"),
        ("binomial", "taylor2", 1.5, 1.0, "posterior"),
    ],
)
def test_draws_of_the_posterior_remain_draws_of_it(name, surrogate, step, temperature, temper):
    """Long steps too: the rate of arrivals must not depend on the time of the next turn."""
    target, kernel, chains = made(name, surrogate, temper), ZigZag(), 8000
    assert kernel.refuses(target) is None
    grid, cdf = quadrature(target, temperature)
    theta = np.interp(np.random.default_rng(9).random(chains), cdf, grid)[:, None]
    thetas, state, infos = follow(kernel, target, theta, step, temperature, 5)
    assert np.mean(np.abs(thetas[:, -1, 0] - theta[:, 0]) > 1e-6) > 0.9
    assert int(sum(info.violations.sum() for info in infos)) == 0
    read = float(sum(info.batch_size.double().mean() for info in infos))
    assert read > 0.2  # data matter
    assert stats.kstest(thetas[:, -1, 0], lambda x: np.interp(x, grid, cdf)).pvalue > ALPHA
    assert_mean(state.aux[VELOCITY][:, 0].numpy(), 0.0, "velocities")


def test_rungs_of_a_ladder_keep_their_targets():
    """An exchange leaves velocities where they are: they are independent of theta."""
    target, ladders, temperatures = made("logistic", "taylor2"), 3000, [1.0, 4.0]
    kernel = ReplicaExchange(ZigZag(), Full(), Metropolis(), rungs=2)
    rng, theta = np.random.default_rng(9), np.empty((2 * ladders, 1))
    cdfs = [quadrature(target, temperature) for temperature in temperatures]
    for k, (grid, cdf) in enumerate(cdfs):
        theta[k::2, 0] = np.interp(rng.random(ladders), cdf, grid)
    state, _ = begin(kernel, target, theta, KEY)
    draws = Draws(Streams(KEY, 2 * ladders), 1)
    _, thetas, infos = advance(
        kernel, target, state, ladder_controls(temperatures, ladders, [1.0, 2.0]), draws, 5
    )
    assert sum(int((info.exchange == MADE).sum()) for info in infos) > ladders
    for k, (grid, cdf) in enumerate(cdfs):
        found = stats.kstest(thetas[k::2, -1, 0], lambda x, g=grid, c=cdf: np.interp(x, g, c))
        assert found.pvalue > ALPHA, temperatures[k]


@pytest.mark.slow
def test_two_correlated_weights_have_the_posterior_of_a_grid():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(20, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    y = np.where(rng.random(20) < 1 / (1 + np.exp(-x.sum(1))), 1, -1)
    target = Target(Logistic(2, 4.0, "zeros"), Dataset.of({"x": x, "y": y}), surrogate="taylor2")
    axis = np.linspace(-8, 12, 401)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    mass = torch.softmax(target.log_density(torch.from_numpy(grid)), 0).numpy()
    theta = grid[rng.choice(len(grid), 4000, p=mass)] + rng.uniform(-0.025, 0.025, (4000, 2))
    thetas, _, infos = follow(ZigZag(), target, theta, 2.0, 1.0, 5)
    end = thetas[:, -1]
    for what in (lambda t: t[:, 0], lambda t: t[:, 1], lambda t: t[:, 0] * t[:, 1], lambda t: t[:, 0] ** 3):
        assert_mean(what(end), float(mass @ what(grid)))
    assert sum(float(info.batch_size.double().mean()) for info in infos) > 1


def plain_rates(x, y, theta, velocity, reference, variance):
    """Rates of turning by a datum and by the known part, D = 1, from the definition; in coordinates of theta."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    at, here = y * x * reference, y * x * theta
    share = sigmoid(-at)
    known = (
        -(share * y * x).sum() + (share * (1 - share) * x**2).sum() * (theta - reference) + theta / variance
    )
    rest = sigmoid(-here) * y * x - share * y * x + share * (1 - share) * x**2 * (theta - reference)
    return np.maximum(0, -velocity * rest).sum(), max(0.0, velocity * known)


@pytest.mark.parametrize(("place", "velocity"), [(2.0, -1.0), (2.0, 1.0), (4.0, -1.0)])
def test_turns_have_the_rates_of_the_definition(place, velocity):
    """In a very short step: the share of the chains that turn."""
    target, chains, short = made("logistic", "taylor2"), 300_000, 0.01
    reference, root = float(target.quadratic.about), float(target.quadratic.root)
    theta = reference + place * root
    by_data, by_known = plain_rates(X[:, 0], SIGNS, theta, velocity, reference, 2.0)
    state, _ = begin(ZigZag(), target, np.full((chains, 1), theta), KEY)
    state.aux[VELOCITY][:] = velocity
    control, draws = controls(short, 1.0, chains=chains), Draws(Streams(KEY, chains), 1)
    state, _, infos = advance(ZigZag(), target, state, control, draws, 1)
    turned = (state.aux[VELOCITY][:, 0] != velocity).double().numpy()
    expected = short * root * (by_data + by_known)
    assert abs(turned.mean() - expected) < Z * (expected / chains) ** 0.5 + 3 * short * expected
    size = float(
        target.bounded.table.total * target.bounded.bounds.slope(torch.tensor([[theta]], dtype=torch.float64))
    )
    read = infos[0].batch_size.double().numpy()
    assert abs(read.mean() - short * size) < Z * (short * size / chains) ** 0.5 + 3 * short**2 * size
    assert bool((infos[0].n_grad == 2 * infos[0].batch_size).all())


def test_an_arrival_turns_every_coordinate_with_its_own_probability():
    """A gradient with as much in each of four coordinates: their probabilities sum to nearly 1, and to no more."""
    model = FunctionModel(
        lambda theta, rows: -0.5 * (theta.sum() - rows["x"]) ** 2,
        [0.0] * 4,
        lambda theta: -50.0 * (theta**2).sum(),
        curvature=4.0,
    )
    target = Target(model, Dataset.of(np.zeros(1)), surrogate="taylor1")
    kernel, many = ZigZag(), 4000
    at, velocity, one = (torch.ones(many, k, dtype=torch.float64) for k in (4, 4, 1))
    rate, everyone = kernel._rate(target, at, at), torch.arange(many)
    uniform = (everyone.double() + 0.5) / many
    wrong = kernel._turn(target, at, velocity, everyone, 0 * everyone, uniform, rate, one[:, 0])
    assert not wrong.any()
    theta, root = target.quadratic.theta(at[:1])[0], target.quadratic.root
    wanted = (theta.sum() * root.sum(0) / rate[0]).numpy()  # the expansion at 0 has gradient 0
    assert 0.95 < wanted.sum() < 1
    assert (velocity < 0).double().mean(0).numpy() == pytest.approx(wanted, abs=1.5 / many)


@pytest.mark.parametrize(
    ("rate", "change"), [(0.7, 0.9), (-1.5, 0.4), (2.0, -0.5), (0.5, -2.0), (0.8, 0.0), (-1.0, -1.0)]
)
def test_first_times_are_those_of_the_rate(rate, change):
    """P(no arrival before t) = exp(-integral of the rate)."""
    e = torch.from_numpy(np.random.default_rng(4).exponential(size=(20_000, 1)))
    found = first_times(torch.full_like(e, rate), torch.full_like(e, change), e)[:, 0].numpy()
    finite = found[np.isfinite(found)]

    def integral(t):
        start = -rate / change if rate < 0 < change else 0.0
        stop = np.minimum(t, -rate / change) if change < 0 < rate else np.maximum(t, start)
        if rate <= 0 and change <= 0:
            return np.zeros_like(t)
        return rate * (stop - start) + 0.5 * change * (stop**2 - start**2)

    assert np.allclose(integral(finite), e[np.isfinite(found), 0].numpy())
    assert np.mean(np.isinf(found)) == pytest.approx(np.exp(-integral(np.array(1e9))), abs=0.03)


def test_a_normal_posterior_needs_no_data():
    target = Target(GaussianMean(), Dataset.of(X[:, 0]), surrogate="taylor2")
    theta = target.quadratic.theta(torch.from_numpy(np.random.default_rng(2).normal(size=(6000, 1))))
    thetas, _, infos = follow(ZigZag(), target, theta, 1.5, 1.0, 4)
    assert all(int(info.batch_size.max()) == 0 for info in infos)
    z = target.quadratic.whitened(torch.from_numpy(thetas[:, -1]))[:, 0].numpy()
    assert stats.kstest(z, "norm").pvalue > ALPHA


def test_a_bound_that_does_not_hold_is_counted():
    class Wrong(Logistic):
        def log_lik(self, theta, rows):
            return super().log_lik(theta, rows)

        def taylor(self, theta, reference, rows, order):
            return super().taylor(theta, reference, rows, order)

        def bounds(self, data, kind, reference=None):
            found = super().bounds(data, kind, reference)
            return Bounds(found.weights, found.width, lambda theta: 0.2 * found.slope(theta))

    target = Target(Wrong(1, 2.0, "zeros"), Dataset.of(MODELS["logistic"][1]), surrogate="taylor2")
    _, _, infos = follow(ZigZag(), target, np.ones((500, 1)), 2.0, 1.0, 5)
    assert sum(int(info.violations.sum()) for info in infos) > 0


def test_unsuitable_targets_are_refused():
    model, data = MODELS["logistic"]
    kernel = ZigZag()
    assert "needs an expansion" in kernel.refuses(Target(model, Dataset.of(data)))
    assert "needs an expansion" in kernel.refuses(made("logistic", "lower_bound"))
    assert "no bounds on the remainders of surrogate=taylor2" in kernel.refuses(
        Target(TiedMeans(), Dataset.of(X[:, 0]), surrogate="taylor2")
    )

    class Cauchy(Logistic):
        def log_prior(self, theta):
            return -(1 + theta.square()).log().sum(-1)

    class Box(Logistic):
        def log_prior(self, theta):
            return torch.where((theta.abs() < 50.0).all(-1), super().log_prior(theta), -torch.inf)

    class Wide(Logistic):
        """N(0, 1e12) with its normalising constant, whose rounding is above the change near the mode."""

        def log_prior(self, theta):
            return torch.distributions.Normal(0.0, 1e6).log_prob(theta).sum(-1) - 1e5

    begin(kernel, Target(Wide(1, 2.0, "zeros"), Dataset.of(data), surrogate="taylor2"), np.zeros((2, 1)), KEY)

    def unsloped(data, kind, reference):
        found = Logistic(1, 2.0, "zeros").bounds(data, kind, reference)
        return Bounds(found.weights, found.width)

    own = FunctionModel(model.log_lik, [0.0], batched=True, bounds=unsloped, bound_kinds=("taylor2",))
    for each, why in (
        (Cauchy(1, 2.0, "zeros"), "normal or a flat prior"),
        (Box(1, 2.0, "zeros"), "an edge"),
        (own, "not on gradients"),
    ):
        target = Target(each, Dataset.of(data), surrogate="taylor2")
        with pytest.raises(UserError, match=why):
            begin(kernel, target, np.zeros((2, 1)), KEY)
    far = made("poisson", "taylor2")
    with pytest.raises(UserError, match="too wide for the zig-zag sampler"):
        follow(kernel, far, np.full((2, 1), 60.0), 1.0, 1.0, 1)


@pytest.mark.slow
def test_a_run_that_is_stopped_ends_with_the_same_bits(outputs):
    """Velocities are part of what is kept; the pilot finds the step size and where chains begin."""
    assert_resumes_with_the_same_bits(outputs, "zig_zag", "warmup=500", "steps=300")
