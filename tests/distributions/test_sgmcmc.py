"""Dynamics without a test: the stationary distribution at a given step size, the noise, and the papers' loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import (
    CURVATURE,
    advance,
    advance_compiled,
    assert_states_close,
    begin,
    controls,
    gaussian,
    plain_and_fused,
)
from scipy.linalg import solve_discrete_lyapunov
from scipy.special import ndtr
from significance import Z, assert_cells, assert_mean

import mhrun
from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.dynamics.sgnht import SGNHT
from mhrun.dynamics.tact_hmc import TACTHMC
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.pairing.shared import Shared
from mhrun.proposals.langevin import LangevinProposal as LangevinProposal
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Controls

KEY = derive_key(9, "sgmcmc")
NOTHING = NoData().load()
ROUGH = 30.0  # V


def run(dynamics, target, step_size, steps, chains=1, burn=0, temperature=1.0, compiled=True):
    """Return theta (C, steps, D) after some burn-in, and the last state."""
    kernel, control = Unadjusted(dynamics, 1), controls(step_size, 1.0, temperature, chains)
    state, draws = begin(kernel, target, chains, KEY)
    if compiled:
        state, theta, _ = advance_compiled(kernel, target, state, control, burn + steps, KEY)
    else:
        state, theta, _ = advance(kernel, target, state, control, draws, burn + steps)
    return theta[:, burn:], state


# ---------------------------------------------------------------- stationary on a Gaussian, in closed form


def langevin_variance(e, temperature, injected_for=0.0, rough=0.0):
    """Of theta' = (1 - e k) theta + noise of variance 2 e T - e^2 b + e^2 V."""
    noise = 2 * e * temperature + e**2 * (rough - injected_for)
    return noise / (1 - (1 - e * CURVATURE) ** 2)


def hamiltonian_covariance(e, a, temperature, b=0.0, rough=0.0):
    """Of (theta, v): v' = (1 - a) v - e k theta + noise, theta' = theta + v'."""
    move = np.array([[1 - e * CURVATURE, 1 - a], [-e * CURVATURE, 1 - a]])
    noise = 2 * e * (a - b) * temperature + e**2 * rough
    return solve_discrete_lyapunov(move, noise * np.ones((2, 2)))


def thermostat_root(e, a, temperature, rough):
    """The friction s at which momenta have variance e T: s^2 - s (2 - e k / 2) + 2 a + e V / T = 0.

    From E v'^2 = e T and the stationarity of theta^2 and theta v; var theta is then T / k (1 - s / 2).
    """
    half = 1 - e * CURVATURE / 4
    return half - math.sqrt(half**2 - 2 * a - e * rough / temperature)


# name -> dynamics, step size, gradient noise V, variance of theta
LINEAR = {
    "sgld": (SGLD(), 0.1, 0.0, langevin_variance(0.1, 1.0)),
    "sgld finer": (SGLD(), 0.01, 0.0, langevin_variance(0.01, 1.0)),
    "sgld rough": (SGLD(), 0.02, ROUGH, langevin_variance(0.02, 1.0, rough=ROUGH)),
    "sgld that knows the noise": (SGLD(ROUGH), 0.02, ROUGH, langevin_variance(0.02, 1.0)),
    "sghmc": (SGHMC(0.3), 0.05, 0.0, hamiltonian_covariance(0.05, 0.3, 1.0)[0, 0]),
    "sghmc finer": (SGHMC(0.1), 0.01, 0.0, hamiltonian_covariance(0.01, 0.1, 1.0)[0, 0]),
    "sghmc rough": (SGHMC(0.3), 0.01, ROUGH, hamiltonian_covariance(0.01, 0.3, 1.0, rough=ROUGH)[0, 0]),
    "sghmc that knows the noise": (
        SGHMC(0.3, 0.01 * ROUGH / 2),
        0.01,
        ROUGH,
        hamiltonian_covariance(0.01, 0.3, 1.0)[0, 0],
    ),
}


@pytest.mark.parametrize(
    ("name", "temperature"),
    [(name, 1.0) for name in LINEAR]
    + [pytest.param(name, 0.5, marks=() if "knows" in name else pytest.mark.slow) for name in LINEAR],
)
def test_the_variance_on_a_gaussian_is_that_of_the_recursion(name, temperature):
    dynamics, e, rough, variance = LINEAR[name]
    # At another temperature everything scales, the gradient's noise with it: V -> T V.
    target = Target(gaussian(2), NOTHING, gradient_noise=rough * temperature)
    if getattr(dynamics, "known_noise", 0):
        dynamics = SGLD(rough * temperature)
    theta, _ = run(dynamics, target, e, 4000, chains=40, burn=500, temperature=temperature)
    by_chain = (theta**2).mean((1, 2))
    assert_mean(by_chain, temperature * variance, name)


def test_the_bias_falls_with_the_step():
    """What the recursions above promise: relative errors of about e k / 2, and none without a step."""
    wrong = [langevin_variance(e, 1.0) * CURVATURE - 1 for e in (0.1, 0.01, 0.001)]
    assert wrong == pytest.approx([0.25, 0.0204, 0.002], rel=0.02)
    wrong = [hamiltonian_covariance(e, 0.1, 1.0)[0, 0] * CURVATURE - 1 for e in (0.1, 0.01, 0.001)]
    assert wrong == pytest.approx([0.1176, 0.0106, 0.00105], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("e", "a", "rough"), [(0.02, 0.05, 0.0), (0.02, 0.05, ROUGH), (0.005, 0.1, 4 * ROUGH)]
)
def test_a_thermostat_pays_for_noise_that_it_is_not_given(e, a, rough):
    """With D = 100 the thermostat hardly fluctuates, and theta follows the distribution at the root of its drift."""
    target = Target(gaussian(100), NOTHING, gradient_noise=rough)
    theta, state = run(SGNHT(a), target, e, 3000, chains=30, burn=1500)
    root = thermostat_root(e, a, 1.0, rough)
    assert_mean((theta**2).mean((1, 2)), (1 - root / 2) / CURVATURE, "theta")
    # The thermostat itself fluctuates by sqrt(e / D) about its root, and its square shifts the mean a little.
    found = state.aux["thermostat"].numpy()
    assert abs(found.mean() - root) < Z * math.sqrt(e / 100 / 30) + 2 * e / 100
    blind, _ = run(SGHMC(a), target, e, 3000, chains=30, burn=1500)
    inflated = hamiltonian_covariance(e, a, 1.0, rough=rough)[0, 0]
    assert (blind**2).mean() == pytest.approx(inflated, rel=0.05)
    assert not rough or inflated * CURVATURE > 2  # which is far from the target


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_momenta_have_the_variance_of_the_recursion(temperature):
    e, a = 0.02, 0.2
    target = Target(gaussian(2), NOTHING)
    squares = []
    for seed in range(8):  # the last state of each of many chains
        kernel = Unadjusted(SGHMC(a), 1)
        key = derive_key(seed, "momenta")
        draws = Draws(Streams(key, 500), 0)
        state = kernel.start(target, target.model.init(500, draws), draws)
        one = torch.ones(400, 500, dtype=torch.float64)
        state, _ = compile_loop(kernel, target, key, 1).advance(
            state, 1, Controls(e * one, one, temperature * one)
        )
        squares.append(state.aux["momentum"].square().mean().item())
    wanted = temperature * hamiltonian_covariance(e, a, 1.0)[1, 1]
    assert_mean(np.array(squares), wanted)
    assert wanted == pytest.approx(e * temperature, rel=0.2)  # e T in the limit


@pytest.mark.parametrize("dynamics", [SGHMC(0.001, refresh=7), SGNHT(0.001, 1e9, refresh=7)])
def test_refreshed_momenta_are_those_of_the_temperature(dynamics):
    """Free flight (an all but flat density): after a refreshment v ~ N(0, e T) whatever it was before."""
    flat = Target(GaussianMixture([[0.0, 0.0]], 1e12), NOTHING)
    theta, _ = run(dynamics, flat, 0.5, 15, chains=3000, temperature=2.0)
    moves = np.diff(theta, axis=1)
    for k in (6, 13):  # theta after steps 7 and 8: the eighth has a fresh momentum
        assert_mean((moves[:, k] ** 2).mean(-1), 0.5 * 2.0, f"step {k + 2}")
        before, after = moves[:, k - 1, 0], moves[:, k, 0]
        assert abs(np.corrcoef(before, after)[0, 1]) < Z / math.sqrt(3000)
        assert np.corrcoef(after, moves[:, k + 1, 0] if k < 13 else after)[0, 1] > 0.99  # and keeps it


# ---------------------------------------------------------------- stationary on a mixture, by quadrature

PAIR = GaussianMixture([[-1.0], [1.2]], [0.25, 0.36], [0.4, 0.6])


def gradient_of(x):
    return PAIR.log_lik_and_grad(torch.from_numpy(x)[:, None], {"x": torch.zeros(1, 1, 1)})[1][:, 0].numpy()


def density(x):
    return np.exp(PAIR.log_lik(torch.from_numpy(x)[:, None], {"x": torch.zeros(1, 1, 1)})[:, 0].numpy())


def stationary(e, friction=None, points=141):
    """Return a grid and the stationary distribution of the discretised dynamics on it, from its transition matrix.

    With a friction the state is (theta before, theta): the momentum is their difference.
    """
    x = np.linspace(-3.6, 4.2, points)
    ahead = x + e * gradient_of(x)
    if friction is None:
        move = np.exp(-((x[None] - ahead[:, None]) ** 2) / (4 * e))
        move /= move.sum(1, keepdims=True)
        expected = density(x) / density(x).sum()
        for _ in range(3000):
            expected = expected @ move
        return x, expected
    keep = 1 - friction
    middle = ahead[:, None] + keep * (x[:, None] - x[None])  # of theta, given (theta, before)
    move = np.exp(-((x[None, None] - middle[..., None]) ** 2) / (4 * e * friction))
    move /= np.maximum(move.sum(2, keepdims=True), 1e-300)
    expected = np.diag(density(x) / density(x).sum())  # (before, theta): no momentum
    for _ in range(600):
        expected = np.einsum("pt,tpn->tn", expected, move)
    return x, expected.sum(0)


EDGES = np.array([-np.inf, -1.6, -1.2, -0.8, -0.4, 0.0, 0.4, 0.8, 1.2, 1.6, 2.0, np.inf])


def target_cells():
    sides = [ndtr((EDGES - c) / math.sqrt(v)) for (c,), v in zip(PAIR.centres, PAIR.variances, strict=True)]
    return np.diff(sum(w * s for w, s in zip(PAIR.weights, sides, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize(("dynamics", "e"), [(SGLD(), 0.1), (SGLD(), 0.025), (SGHMC(0.4), 0.05)])
def test_the_distribution_on_a_mixture_is_that_of_its_transitions(dynamics, e):
    friction = getattr(dynamics, "friction", None)
    x, expected = stationary(e, friction)
    inner = (x[1] - x[0]) / 2
    edges = np.clip(EDGES, x[0] - inner, x[-1] + inner)
    # Cells of the grid that an edge cuts are shared out by the part on either side.
    cumulative = np.interp(edges, np.append(x - inner, x[-1] + inner), np.append(0.0, expected.cumsum()))
    theta, _ = run(dynamics, Target(PAIR, NOTHING), e, 6000, chains=60, burn=1000)
    shares = np.stack([np.histogram(row, EDGES)[0] / row.size for row in theta[..., 0]])
    assert_cells(shares, np.diff(cumulative), f"{type(dynamics).__name__} {e}")


def test_the_bias_on_a_mixture_falls_with_the_step():
    x, _ = stationary(0.1)
    exact = density(x) / density(x).sum()
    off = [0.5 * np.abs(stationary(e)[1] - exact).sum() for e in (0.1, 0.05, 0.025)]
    assert off[0] > 1.8 * off[1] > 3.2 * off[2]
    assert off[2] < 0.03


def test_a_thermostat_s_distribution_on_a_mixture_nears_the_target():
    """No closed form: within 0.02 of the target in total variation at a small step, and nearer than at a large one."""
    far = []
    for e, a in ((0.1, 0.4), (0.01, 0.05)):
        theta, _ = run(SGNHT(a, inertia=5.0), Target(PAIR, NOTHING), e, 30000, chains=30, burn=1000)
        shares = np.histogram(theta, EDGES)[0] / theta.size
        far.append(0.5 * np.abs(shares - target_cells()).sum())
    assert far[1] < 0.02 < far[0]


# ---------------------------------------------------------------- the papers' loops


def test_sgnht_is_the_loop_of_ding_and_others(rng):
    """Their Algorithm 2 in p, xi and h, in plain numbers: v = p h, s = xi h, e = h^2, a = A h."""
    h, big, dim = 0.1, 0.8, 3
    grads, z = rng.normal(size=(20, dim)), np.empty((20, dim))
    draws = Draws(Streams(KEY, 1), 0)
    for k in range(20):
        z[k] = Draws(Streams(KEY, 1), k + 1).normal(mhrun.random.Purpose.NOISE, dim).numpy()
    theta, p, xi = np.zeros(dim), np.zeros(dim), big
    dynamics = SGNHT(big * h)
    found = torch.zeros(1, dim, dtype=torch.float64)
    aux = dynamics.start(found, draws)
    one = torch.ones(1, dtype=torch.float64)
    for k in range(20):
        p = p - xi * p * h + grads[k] * h + math.sqrt(2 * big * h) * z[k]
        theta = theta + p * h
        xi = xi + (p @ p / dim - 1) * h
        draws.step = k + 1
        found, aux = dynamics.move(
            found, torch.from_numpy(grads[k])[None], aux, Controls(h**2 * one, one, one), draws
        )
        assert found[0].numpy() == pytest.approx(theta)
        assert aux["momentum"][0].numpy() == pytest.approx(p * h)
        assert float(aux["thermostat"]) == pytest.approx(xi * h)


# ---------------------------------------------------------------- compiled and plain, noise, energies


@pytest.mark.parametrize(
    "dynamics",
    [
        SGLD(),
        SGLD(0.7),
        SGHMC(0.2, 0.1, refresh=9),
        SGNHT(0.2, 0.5, refresh=11),
        SGNHT(0.1),
    ],
)
def test_compiled_steps_are_the_plain_ones(dynamics):
    grid = GaussianMixture([[0.0, 1.0, -1.0], [1.0, 0.5, 0.0], [-2.0, 0.0, 1.0]], [0.3, 0.5, 1.0])
    target = Target(grid, NOTHING, gradient_noise=2.0)
    fast, ended = run(dynamics, target, 0.03, 60, chains=4)
    slow, end = run(dynamics, target, 0.03, 60, chains=4, compiled=False)
    assert fast == pytest.approx(slow, rel=1e-8, abs=1e-8)
    for name, value in end.aux.items():
        assert ended.aux[name].shape == value.shape
        assert ended.aux[name].double().numpy() == pytest.approx(
            value.double().numpy(), rel=1e-7, abs=1e-9
        ), name


@pytest.mark.parametrize("dynamics", [SGLD(), SGHMC(0.2, refresh=3), SGNHT(0.3, refresh=4)])
def test_fused_updates_are_the_torch_ones(dynamics):
    """With many parameters the move is compiled alone; a chain that leaves the numbers stops where it was."""
    target = Target(gaussian(5000), NOTHING, gradient_noise=1.0)
    one = torch.ones(3, dtype=torch.float32)
    control = Controls(torch.tensor([0.01, 0.02, 1e30]), 2 * one, 2 * one)
    states = []
    for before, state, info in plain_and_fused(Unadjusted(dynamics, 1), target, control, 7, KEY):
        assert torch.equal(before[2], state.evaluation.theta[2])
        assert info.diverging.tolist() == [False, False, True]
        assert state.evaluation.theta.isfinite().all()
        states.append(state)
    assert_states_close(*states, chains=slice(2), atol=1e-4)


def test_a_cold_thermostat_stands_still():
    theta, state = run(SGNHT(0.2), Target(gaussian(2), NOTHING), 0.03, 50, chains=3, temperature=0.0)
    assert (state.aux["thermostat"] == 0.2).all()
    assert (theta == 0).all()  # it began at the mode


def test_roughness_has_its_variance_and_is_no_one_else_s():
    target = Target(gaussian(3), NOTHING, gradient_noise=2.5)
    streams = Streams(KEY, 4000)
    first, second = (
        target.gradients.add_noise(torch.zeros(4000, 3, dtype=torch.float64), Draws(streams, k))
        for k in (1, 2)
    )
    assert_mean(first.square().mean(-1).numpy(), 2.5)
    assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < Z / math.sqrt(4000)
    noise = Draws(streams, 1).normal(mhrun.random.Purpose.NOISE, 3)
    assert abs(np.corrcoef(first[:, 0], noise[:, 0])[0, 1]) < Z / math.sqrt(4000)
    langevin = MetropolisHastings(LangevinProposal(), Shared(1), Metropolis())
    assert "gradient_noise" in langevin.refuses(target)


@pytest.mark.parametrize("m", [None, 40])
@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_energies_are_those_of_the_data(rng, m, temper):
    """m = n without repeats is all data: the log density itself, at the temperature times it."""

    class Spy(SGLD):
        energies = True

        def move(self, theta, grad, aux, controls, draws):
            self.seen, self.grad, self.theta = aux["log_density"], grad.clone(), theta
            return super().move(theta, grad, {}, controls, draws)

    target = Target(GaussianMean(2.0), Dataset.of(rng.normal(size=40)), temper=temper)
    spy, t = Spy(), 3.0
    kernel = Unadjusted(spy, m)
    draws = Draws(Streams(KEY, 2), 0)
    state = kernel.start(target, torch.tensor([[0.3], [-1.0]], dtype=torch.float64), draws)
    draws.step = 1
    one = torch.ones(2, dtype=torch.float64)
    after, info = kernel.step(target, state, Controls(0.001 * one, t * one, one), draws)
    assert spy.seen.numpy() == pytest.approx((t * target.log_density(spy.theta, t)).numpy())
    point = spy.theta.clone().requires_grad_()
    (slope_there,) = torch.autograd.grad(target.log_density(point, t).sum(), point)
    assert spy.grad.numpy() == pytest.approx(t * slope_there.numpy())
    assert set(after.aux) == {"stopped"}
    assert info.n_lik.tolist() == info.n_grad.tolist() == [40, 40]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGLD(-1.0), "at least 0"),
        (lambda: SGHMC(0.1, refresh=0), "at least 1"),
        (lambda: SGNHT(0.0), "friction"),
        (lambda: SGNHT(0.1, inertia=0.0), "inertia"),
        (lambda: TACTHMC(hottest=1.0), "hottest > 1"),
        (lambda: TACTHMC(friction=0.0), "frictions"),
        (lambda: NoData(2), "counts as one"),
        (lambda: Target(gaussian(), NOTHING, gradient_noise=-1.0), "gradient_noise"),
        (lambda: GaussianMixture([[0.0], [1.0, 2.0]]), "as many numbers"),
        (lambda: GaussianMixture([[0.0]], -1.0), "positive"),
        (lambda: GaussianMixture([[0.0], [1.0]], 1.0, [0.5, 0.6]), "sum to 1"),
    ],
)
def test_meaningless_settings_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()
