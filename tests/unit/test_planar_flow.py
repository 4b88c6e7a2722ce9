"""A planar flow: its volume, its density, its gradients, what it fits, and its resume."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import advance, begin, controls, short_run
from scipy import stats
from significance import assert_mean

import mhrun
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.errors import Refusal
from mhrun.kernels.planar_flow import PlanarFlow, through
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.target import Target

KEY = derive_key(31, "flow")
NOTHING = NoData().load()


def run(kernel, target, chains, steps, rate=0.01, state=None, first=1, temperature=1.0):
    start, draws = begin(kernel, target, chains, KEY)
    control = controls(rate, temperature, 1.0, chains)
    state, theta, infos = advance(kernel, target, state or start, control, draws, steps, first)
    return theta, state, infos


def test_the_volume_is_that_of_the_jacobian(rng):
    """And the layers are the formula's, in plain numbers; also where w'u is far below -1, and made invertible."""
    layers, dim = 3, 2
    flow = torch.from_numpy(rng.normal(size=(4, layers * (2 * dim + 1))) * 2)
    base = torch.from_numpy(rng.normal(size=(4, 5, dim)))
    points, log_volume = through(flow, base, layers)
    for c in range(4):
        parts = flow[c].reshape(layers, 2 * dim + 1).numpy()
        for s in range(5):
            z = base[c, s].numpy()
            for u, w, b in ((p[:dim], p[dim : 2 * dim], p[2 * dim]) for p in parts):
                u = u + (math.log1p(math.exp(w @ u)) - 1 - w @ u) * w / (w @ w)
                assert w @ u > -1
                z = z + u * math.tanh(w @ z + b)
            assert points[c, s].numpy() == pytest.approx(z)
            jacobian = torch.autograd.functional.jacobian(
                lambda x, c=c: through(flow[c : c + 1], x[None, None], layers)[0][0, 0], base[c, s]
            )
            assert log_volume[c, s].item() == pytest.approx(math.log(abs(np.linalg.det(jacobian.numpy()))))


def test_a_step_is_adam_s_down_the_divergence(rng):
    """The first step, where Adam's is the sign of the gradient: of E log q - log p / T, by finite differences."""
    target, size, layers, temperature = (
        Target(GaussianMixture([[1.0, 0.0], [-1.0, 1.0]], 0.5), NOTHING),
        64,
        2,
        2.0,
    )
    kernel = PlanarFlow(10, layers, size)
    _, state, _ = run(kernel, target, 2, 1, temperature=temperature)
    draws = Draws(Streams(KEY, 2), 0)
    before = kernel.start(target, target.model.init(2, draws), draws).aux["flow"]
    base = Draws(Streams(KEY, 2), 1).normal(Purpose.NOISE, size * 2).reshape(2, size, 2)

    def divergence(flow):
        points, log_volume = through(flow, base, layers)
        log_p = target.log_density(points.reshape(-1, 2)).reshape(2, size)
        return (-log_volume - log_p / temperature).mean(1)

    for p in range(before.shape[1]):
        step = torch.zeros_like(before)
        step[:, p] = 1e-6
        grad = (divergence(before + step) - divergence(before - step)) / 2e-6
        assert state.aux["first"][:, p].numpy() == pytest.approx(0.1 * grad.numpy(), rel=1e-4, abs=1e-8)
        moved = (state.aux["flow"] - before)[:, p].numpy()
        assert moved == pytest.approx(-0.01 * np.sign(grad.numpy()), rel=1e-3)


def test_gradient_noise_of_four_times_the_variance_is_twice_as_large():
    def moment(noise):
        target = Target(GaussianMixture([[1.0]], 0.5), NOTHING, gradient_noise=noise)
        return run(PlanarFlow(1, 2, 8), target, 3, 1)[1].aux["first"].numpy()

    exact = moment(0.0)
    assert np.abs(moment(1.0) - exact).min() > 0
    assert moment(4.0) - exact == pytest.approx(2 * (moment(1.0) - exact))


@pytest.mark.slow
@pytest.mark.long
def test_it_fits_what_it_can_fit_and_its_draws_are_the_flow_s():
    """A wide Gaussian away from the origin, from noisy gradients: mean and variance of draws are near its own."""
    target = Target(GaussianMixture([[1.0]], 4.0), NOTHING, gradient_noise=0.25)
    theta, state, _ = run(PlanarFlow(600, 4, 64), target, 6, 1800, rate=0.02)
    drawn = theta[:, 600:, 0]
    assert drawn.mean() == pytest.approx(1.0, abs=0.15)
    assert drawn.var() == pytest.approx(4.0, rel=0.15)
    # What the first chain's flow is, from its own map, and that draws follow it and are independent.
    base = torch.from_numpy(np.random.default_rng(5).normal(size=(1, 200_000, 1)))
    exact = through(state.aux["flow"][:1], base, 4)[0][0, :, 0].numpy()
    assert stats.ks_2samp(drawn[0], exact).pvalue > 1e-6
    assert_mean(np.array([np.corrcoef(c[1:], c[:-1])[0, 1] for c in drawn]), 0.0, "autocorrelation")


def test_it_goes_on_where_it_stopped_and_counts_what_it_reads(rng):
    target = Target(GaussianMean(3.0), Dataset.of(rng.normal(1, 1, 50)))
    kernel = PlanarFlow(4, 2, 8, m=5)
    whole, end, infos = run(kernel, target, 3, 6)
    _, half, _ = run(kernel, target, 3, 3)
    rest, ended, _ = run(kernel, target, 3, 3, state=half, first=4)
    assert (rest == whole[:, 3:]).all()
    assert all(torch.equal(ended.aux[name], end.aux[name]) for name in end.aux)
    assert [int(info.n_grad[0]) for info in infos] == [40] * 4 + [0] * 2
    assert [int(info.batch_size[0]) for info in infos] == [5] * 4 + [0] * 2
    assert kernel.reads(target) == 40
    assert "more than the n = 50" in PlanarFlow(1, m=51).refuses(target)
    for wrong in ({"trains": -1}, {"trains": 1, "layers": 0}, {"trains": 1, "spread": 0.0}):
        with pytest.raises(Refusal, match="PlanarFlow needs"):
            PlanarFlow(**wrong)


@short_run
@pytest.mark.long
def test_from_python():
    trace = mhrun.sample(
        lambda theta: -0.5 * (theta**2).sum(),
        None,
        PlanarFlow(20, 2, 16),
        start=[0.0],
        step_size=0.01,
        steps=30,
        warmup=20,
        chains=2,
    )
    assert np.isfinite(trace["posterior"]["theta"].to_numpy()).all()
