"""Stochastic gradient Barker dynamics: its formulas, its stationary distribution by quadrature, and its robustness."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from kit import CURVATURE, advance, advance_compiled, begin, controls, gaussian
from scipy.special import expit
from significance import assert_mean, differs_in_mean

import mhrun
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.dynamics.sgbd import SGBD
from mhrun.dynamics.sgld import SGLD
from mhrun.errors import Refusal
from mhrun.kernels import Unadjusted
from mhrun.models.function import FunctionModel
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.target import Target

KEY = derive_key(9, "barker")
NOTHING = NoData().load()
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)


@pytest.mark.parametrize("known_noise", [0.0, 0.7, 40.0, None], ids=["plain", "known", "loud", "estimated"])
def test_a_step_is_the_formula(rng, known_noise):
    """A plain loop over chains and coordinates; where the noise is too loud, the sign of z g decides."""
    chains, dim, decay, e, temperature = 3, 5, 0.8, 0.3, 1.7
    dynamics = SGBD(known_noise, decay)
    draws = Draws(Streams(KEY, chains), 0)
    theta = rng.normal(size=(chains, dim))
    found = torch.from_numpy(theta.copy())
    aux, signs = dynamics.start(found, draws), 0
    history: list[np.ndarray] = []
    for k in range(1, 31):
        grad = rng.normal(size=(chains, dim)) * 3
        draws.step = k
        found, aux = dynamics.move(
            found, torch.from_numpy(grad), aux, controls(e, 1.0, temperature, chains), draws.again()
        )
        z = draws.normal(Purpose.NOISE, dim).numpy()
        u = draws.uniforms(Purpose.NOISE, dim, use=2).numpy()
        squares = [(b - a) ** 2 / 2 for a, b in pairwise(history)]
        weights = decay ** np.arange(len(squares))[::-1]
        for c in range(chains):
            for d in range(dim):
                step = math.sqrt(2 * e * temperature) * z[c, d]
                odds = step * grad[c, d] / temperature
                var = known_noise
                if known_noise is None:
                    one = np.array([square[c, d] for square in squares])
                    var = float((weights * one).sum() / weights.sum()) if squares else 0.0
                left = 1.702**2 - var * step**2 / temperature**2
                if left <= 0:
                    share, signs = float(odds > 0), signs + 1
                else:
                    share = expit(1.702 * odds / math.sqrt(left))
                theta[c, d] += step if u[c, d] < share else -step
        history.append(grad)
        assert found.numpy() == pytest.approx(theta, abs=1e-9), k
    assert (signs > 20) == (known_noise == 40.0 or known_noise is None)


def test_two_gradients_estimate_the_noise_as_half_the_square_of_their_difference(rng, interpreted):
    """Gradients 0 and 3: the third move is that of known_noise = 4.5 in every coordinate."""
    theta, control = torch.from_numpy(rng.normal(size=(1, 500))), controls(0.1, 1.0, chains=1)
    target, dynamics, draws = Target(gaussian(500), NOTHING), SGBD(None), Draws(Streams(KEY, 1), 0)
    aux = dynamics.start(theta, draws)
    for grad in (0.0, 3.0):
        _, aux = dynamics.move(theta, torch.full_like(theta, grad), aux, control, draws.again())
    moved = []
    for each, gathered in ((dynamics, aux), (SGBD(4.5), {})):
        kernel = Unadjusted(each, 1)
        state, draws = begin(kernel, target, theta, KEY)
        state = state._replace(aux=state.aux | gathered)
        moved.append(advance(kernel, target, state, control, draws, 1)[1])
        moved.append(advance_compiled(kernel, target, state, control, 1, KEY)[1])
    for found in moved[:3]:
        assert found == pytest.approx(moved[3], abs=1e-12)


def stationary_variance(e, rough=0.0, corrected=False, points=601, width=8.0):
    """Return the variance on N(0, 1/CURVATURE) from the transition density 2 phi_s(w) E p(w g) on a grid.

    A step w has the density phi_s(w) p(w g) + phi_s(w) (1 - p(-w g)), with phi_s the normal density of variance 2 e.
    """
    grid = np.linspace(-width, width, points) / math.sqrt(CURVATURE)
    w = grid[None, :] - grid[:, None]
    density = np.exp(-(w**2) / (4 * e))
    grad = -CURVATURE * grid[:, None, None] + math.sqrt(rough) * NODES
    odds = w[..., None] * grad
    if corrected:
        left = 1.702**2 - rough * w[..., None] ** 2
        odds = np.where(left > 0, 1.702 * odds / np.sqrt(np.maximum(left, 1e-30)), np.sign(odds) * 1e9)
    up = (expit(odds) * WEIGHTS).sum(-1) / WEIGHTS.sum()
    matrix = density * up
    matrix /= matrix.sum(1, keepdims=True)
    shares = np.full(points, 1 / points)
    for _ in range(12):  # the matrix to the power 4096
        matrix = matrix @ matrix
    shares = shares @ matrix
    return float((shares * grid**2).sum() / shares.sum())


def sampled(dynamics, e, rough, chains=60, steps=6_000, dim=2):
    target = Target(gaussian(dim), NOTHING, gradient_noise=rough)
    kernel = Unadjusted(dynamics, 1)
    state, _ = begin(kernel, target, chains, KEY)
    _, theta, _ = advance_compiled(kernel, target, state, controls(e, 1.0, 1.0, chains), steps, KEY)
    return (theta[:, 500:] ** 2).mean((1, 2))


@pytest.mark.long
@pytest.mark.parametrize(
    ("e", "rough", "known"),
    [pytest.param(0.2, 0.0, 0.0, marks=pytest.mark.slow), (0.02, 30.0, 0.0), (0.02, 30.0, 30.0)],
    ids=["exact", "noisy", "corrected"],
)
@pytest.mark.slow
def test_the_stationary_variance_is_that_of_the_transition_density(e, rough, known):
    assert_mean(sampled(SGBD(known), e, rough), stationary_variance(e, rough, known > 0), "variance")


@pytest.mark.slow
def test_the_bias_falls_with_the_step_and_the_correction_removes_that_of_small_noise():
    bias = [stationary_variance(e) * CURVATURE - 1 for e in (0.2, 0.05, 0.0125)]
    assert bias[0] > 3 * bias[1] > 9 * bias[2] > 0
    exact = stationary_variance(0.02)
    noisy, corrected = (stationary_variance(0.02, 5.0, fix) / exact - 1 for fix in (False, True))
    assert noisy > 0.05
    assert abs(corrected) < noisy / 4


def test_the_tables_of_the_page_are_those_of_the_transition_density():
    """docs/algorithms/sgbd.md: relative excess of the variance at e lambda, and at e = 0.02 with noise."""
    exact = [
        stationary_variance(product / CURVATURE, points=251) * CURVATURE - 1 for product in (0.05, 0.2, 0.8)
    ]
    assert exact == pytest.approx([0.07, 0.25, 0.88], abs=0.005)
    settings = ((0.0, False), (5.0, False), (5.0, True), (30.0, False), (30.0, True))
    noisy = [stationary_variance(0.02, *setting, points=251) * CURVATURE - 1 for setting in settings]
    assert noisy == pytest.approx([0.11, 0.21, 0.13, 0.55, 0.27], abs=0.006)


@pytest.mark.slow
def test_an_estimated_noise_corrects_as_a_known_one_does():
    estimated, known = (sampled(SGBD(noise), 0.02, 5.0) for noise in (None, 5.0))
    assert_mean(estimated, float(known.mean()), "variance")
    assert differs_in_mean(sampled(SGBD(), 0.02, 5.0), float(known.mean()))


@pytest.mark.slow
@pytest.mark.long
def test_a_step_too_large_for_one_coordinate_leaves_the_others_alone():
    """Standard deviations 1 and 0.01, e = 0.02: a hundred times SGLD's bound of 2 / 10^4. Only SGLD runs off."""
    scales = torch.tensor([1.0, 0.01], dtype=torch.float64)
    model = FunctionModel(
        lambda theta, batch: 0 * batch["x"] - 0.5 * (theta / scales).square().sum(), start=[0.0, 0.0]
    )
    target = Target(model, Dataset.of(np.zeros(1)))
    stopped = {}
    for dynamics in (SGLD(), SGBD()):
        kernel = Unadjusted(dynamics, None)
        state, draws = begin(kernel, target, 400, KEY)
        state, theta, infos = advance(kernel, target, state, controls(0.02, 1.0, 1.0, 400), draws, 1_000)
        stopped[type(dynamics)] = int(infos[-1].diverging.sum())
        wide = (theta[:, 300:, 0] ** 2).mean(1)
    assert stopped == {SGLD: 400, SGBD: 0}
    assert_mean(wide, stationary_variance(0.02 / CURVATURE) * CURVATURE, "variance of the wide coordinate")
    assert np.abs(theta[..., 1]).max() < 2  # steps of 0.2, as of the wide one


def test_a_temperature_of_zero_is_refused_and_a_gradient_that_is_no_number_stops_the_chain():
    assert Unadjusted(SGBD(), 1).needs_noise
    assert not Unadjusted(SGLD(), 1).needs_noise
    with pytest.raises(Refusal, match="its moves need noise"):
        mhrun.sample(
            lambda theta: -0.5 * theta.square().sum(),
            None,
            Unadjusted(SGBD(), m=1),
            start=[0.0],
            step_size=mhrun.Cosine(0.4, cycles=2, explore=0.25),
            steps=20,
            warmup=0,
        )
    grad = torch.tensor([[math.nan, 1.0], [math.inf, 1.0]], dtype=torch.float64)
    for dynamics in (SGBD(), SGBD(1.0), SGBD(None)):
        draws = Draws(Streams(KEY, 2), 1)
        theta, _ = dynamics.move(
            0 * grad.nan_to_num(), grad, dynamics.start(grad, draws), controls(chains=2), draws
        )
        assert theta.isnan().tolist() == [[True, False], [False, False]]
    with pytest.raises(Refusal, match="a variance"):
        SGBD(-1.0)
    with pytest.raises(Refusal, match="decay"):
        SGBD(decay=1.0)
