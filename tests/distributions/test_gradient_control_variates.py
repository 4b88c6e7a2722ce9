"""Gradients with a surrogate as control variate: their mean, their noise, and the stationary variance of SGLD-CV.

False-alarm rate: see `significance`.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, controls
from significance import assert_mean, differs_in_mean

import mhrun
from mhrun.data import Dataset
from mhrun.dynamics.sgld import SGLD
from mhrun.dynamics.tact_hmc import TACTHMC
from mhrun.kernels import Unadjusted
from mhrun.models.function import FunctionModel
from mhrun.models.logistic import Logistic
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.softmax_regression import SoftmaxRegression
from mhrun.random import Draws, Streams, derive_key
from mhrun.store.sharing import PILOT
from mhrun.target import Target

KEY = derive_key(5, "control variates")
N, D = 40, 2
RNG = np.random.default_rng(8)
X = RNG.normal(size=(N, D)) * np.array([1.0, 0.4])
SIGNS = np.where(RNG.random(N) < 1 / (1 + np.exp(-X.sum(1))), 1, -1)


def line(theta, rows):
    """Log-likelihood of y = x theta + normal noise."""
    return -0.5 * (rows["y"] - rows["x"] * theta[:, :1]).square()


def normal_prior(theta):
    return -0.5 * theta.square().sum(-1)


WIDE, Y = RNG.normal(1.0, 1.0, 12), RNG.normal(0.5, 1.0, 12)
MODELS = {
    "logistic": (Logistic(D, 2.0, "zeros"), {"x": X, "y": SIGNS}),
    "robust": (RobustRegression(D, prior_variance=2.0), {"x": X, "y": X @ [1.0, -1.0] + RNG.normal(size=N)}),
    "softmax": (SoftmaxRegression(D, 3, 1.0), {"x": X, "y": RNG.integers(0, 3, N)}),
    "function": (FunctionModel(line, [0.0], normal_prior, batched=True), {"x": WIDE, "y": Y}),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_the_mean_over_all_minibatches_is_the_full_gradient(name, order):
    model, data = MODELS[name]
    target = Target(model, Dataset.of(data), temper="likelihood", surrogate=f"taylor{order}")
    away = torch.from_numpy(0.1 * np.random.default_rng(1).normal(size=(1, target.dim)))
    theta = (target.surrogate.reference.theta + away).repeat(target.n, 1)
    temperature = torch.full((target.n,), 3.0, dtype=torch.float64)
    index = torch.arange(target.n)[:, None]
    single = target.gradients.reduced(theta, index, temperature)
    plain = target.gradients.minibatch(theta, index, temperature)
    full = target.gradients.full(theta[:1], temperature[:1])
    assert torch.allclose(single.mean(0), full[0], rtol=0, atol=1e-10 * target.n)
    assert torch.allclose(plain.mean(0), full[0], rtol=0, atol=1e-10 * target.n)
    # About the mode the noise vanishes like the distance, or its square.
    assert float(single.var(0).sum()) < (0.3, 0.1)[order - 1] * float(plain.var(0).sum())
    common = target.gradients.reduced(theta[:3], index[:2].T, temperature[:3])  # one minibatch for all chains
    assert torch.allclose(common[0], single[:2].mean(0))


def stationary_variance(step, curvature, noise):
    """Of x' = (1 - e (A + w)) x + sqrt(2 e) z with E w = 0 and E w^2 = noise."""
    return 2 * step / (1 - (1 - step * curvature) ** 2 - step**2 * noise)


@pytest.mark.parametrize("surrogate", ["none", "taylor1", "taylor2"])
@pytest.mark.parametrize("m", [1, 4, 12])
def test_the_variance_of_sgld_on_a_normal_posterior(m, surrogate):
    """Linear regression: gradient noise grows with the distance to the mode; of order 2 there is none."""
    model, data = MODELS["function"]
    n, chains = len(WIDE), 6000
    target = Target(model, Dataset.of(data), surrogate=surrogate)
    curvature = (WIDE**2).sum() + 1
    mode = (WIDE * Y).sum() / curvature
    step, share = 0.4 / curvature, (1 - m / n) / m * n**2
    relative = WIDE**2  # what multiplies the distance in a datum's gradient
    noise = 0.0 if surrogate == "taylor2" else share * relative.var(ddof=1)
    wanted = stationary_variance(step, curvature, noise)
    if surrogate == "none":  # noise at the mode too, and independent of the distance on average
        at_mode = WIDE * (Y - WIDE * mode)
        added = step**2 * share * at_mode.var(ddof=1)
        wanted *= (2 * step + added) / (2 * step)
    theta = np.random.default_rng(3).normal(mode, wanted**0.5, (chains, 1))
    kernel = Unadjusted(SGLD(), m)
    state, draws = begin(kernel, target, theta, KEY)
    _, thetas, infos = advance(kernel, target, state, controls(step, 1.0, chains=chains), draws, 15)
    square = (thetas[:, -1, 0] - mode) ** 2
    assert_mean(square, wanted, f"{surrogate}, m = {m}")
    if m == 1 and surrogate != "taylor2":  # it can fail
        assert differs_in_mean(square, stationary_variance(step, curvature, 0.0))
    assert int(infos[0].n_grad[0]) == (m if surrogate == "none" else 2 * m)


@pytest.mark.usefixtures("either_code")
def test_the_compiled_loop_moves_as_torch():
    model, data = MODELS["logistic"]
    target = Target(model, Dataset.of(data), surrogate="taylor1")
    kernel = Unadjusted(SGLD(), 5)
    state, draws = begin(kernel, target, np.zeros((3, D)), KEY)
    _, plain, infos = advance(kernel, target, state, controls(0.01, 1.0, chains=3), draws, 30)
    _, compiled, record = advance_compiled(kernel, target, state, controls(0.01, 1.0, chains=3), 30, KEY)
    assert np.abs(plain - compiled).max() < 1e-9
    assert (record["n_grad"] == 10).all()
    assert all(int(info.n_grad[0]) == 10 for info in infos)


def test_a_dynamics_that_needs_energies_gets_the_reduced_gradient_and_the_same_energy():
    model, data = MODELS["logistic"]
    plain, reduced = (Target(model, Dataset.of(data), surrogate=name) for name in ("none", "taylor1"))
    index = torch.arange(5)[None]
    theta, temperature = torch.zeros(1, D, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    grad, energy = Unadjusted._with_energy(reduced, theta, index, temperature)
    assert torch.equal(energy, Unadjusted._with_energy(plain, theta, index, temperature)[1])
    assert torch.equal(grad, reduced.gradients.reduced(theta, index, temperature))
    kernel = Unadjusted(TACTHMC(), 5)
    state, draws = begin(kernel, reduced, np.zeros((3, D)), KEY)
    _, _, infos = advance(kernel, reduced, state, controls(1e-3, 1.0, chains=3), draws, 3)
    assert (int(infos[-1].n_grad[0]), int(infos[-1].n_lik[0])) == (10, 5)


def test_a_pilot_allows_longer_steps_with_a_control_variate(tmp_path):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4000, 2))
    data = {"x": x, "y": np.where(rng.random(len(x)) < 1 / (1 + np.exp(-x.sum(1))), 1, -1)}
    settings = {"steps": 2, "warmup": 0, "chains": 2, "step_size": "auto", "precondition": "dense"}
    found = {}
    for name, m in (("none", 100), ("taylor1", "auto")):
        folder = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = mhrun.Unadjusted(mhrun.SGLD(), m)
            model = Logistic(2, 1.0, "zeros")
            mhrun.sample(model, data, kernel, surrogate=name, folder=folder, executor="torch", **settings)
        with np.load(folder / PILOT) as kept:
            found[name] = json.loads(kept["facts"].tobytes())
    assert found["taylor1"]["m"] == 100
    # Noise of a minibatch: at most 10 % of the curvature with a control variate, and 40 times the curvature without.
    assert 0.15 < found["taylor1"]["step_size"] < 0.2
    assert found["none"]["step_size"] < 0.01


def test_streams_of_minibatches_do_not_change_with_a_surrogate():
    """The indices are those without one, so that two runs differ by the gradient alone."""
    model, data = MODELS["logistic"]
    one, two = (
        Target(model, Dataset.of(data), surrogate=name).batches.draw(Draws(Streams(KEY, 2), 1), 5)
        for name in ("none", "taylor1")
    )
    assert torch.equal(one, two)
