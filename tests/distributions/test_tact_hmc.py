"""TACT-HMC: the step is the papers' algorithm, its tempering variable moves, and unstable chains stop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import CURVATURE, gaussian, short_run
from significance import Z

import mhrun
from mhrun.data.no_data import NoData
from mhrun.dynamics.tact_hmc import TACTHMC
from mhrun.kernels import Unadjusted
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.types import Controls

KEY = derive_key(9, "sgmcmc")
NOTHING = NoData().load()
OF_X = ("x", "momentum_of_x", "thermostat_of_x", "step_of_x")


def test_tact_hmc_is_a_loop_of_numbers(rng):
    """One chain, one number after the other, with a minibatch's energy and force."""
    d0, most, e, h, a, b, bins, dim, hot = 0.2, 5.0, 0.02, 0.01, 0.2, 0.3, 10, 2, 2.0
    dynamics = TACTHMC(a, b, h, most, d0, 0.8, bins, refresh=None)
    draws = Draws(Streams(KEY, 1), 0)
    found = torch.zeros(1, dim, dtype=torch.float64)
    aux = dynamics.start(found, draws)
    theta, r, x, w = np.zeros(dim), np.zeros(dim), 0.0, float(aux["momentum_of_x"])
    z_theta, z_x, sums, visits = a, b, np.zeros(bins), np.zeros(bins)
    one = torch.ones(1, dtype=torch.float64)
    turned = 0
    for k in range(1, 121):
        grad, energy = rng.normal(size=dim), rng.normal()
        z = Draws(Streams(KEY, 1), k).normal(mhrun.random.Purpose.NOISE, dim + 1)[0].numpy()
        if abs(x) <= d0:
            lam, lam_slope = 1.0, 0.0
        else:
            u = (abs(x) - d0) / (1 - d0)
            g, g_slope = 1 + (most - 1) * u**3, 3 * (most - 1) * u**2 / (1 - d0) * np.sign(x)
            lam, lam_slope = 1 / g, -g_slope / g**2
        z_x += lam_slope**2 * (w**2 - h)
        z_theta += lam**2 * (r @ r / dim - e * hot)
        place = min(int(abs(x) * bins), bins - 1)
        sums[place] += energy / hot
        visits[place] += 1
        bias = lam_slope * sums[place] / visits[place]
        noise = lam_slope * math.sqrt(2 * b * h) * z[-1]
        w = w - h * lam_slope * energy / hot + h * bias + noise - lam_slope**2 * z_x * w
        r = r + e * lam * grad + lam * math.sqrt(2 * a * e * hot) * z[:-1] - lam**2 * z_theta * r
        x += w
        if abs(x) >= 1:
            x, w, turned = np.sign(x) * (2 - abs(x)), -w, turned + 1
        theta = theta + r
        draws.step = k
        given = aux | {"log_density": torch.tensor([-energy], dtype=torch.float64)}
        found, aux = dynamics.move(
            found, torch.from_numpy(grad)[None], given, Controls(e * one, one, hot * one), draws
        )
        assert found[0].numpy() == pytest.approx(theta), k
        assert [float(aux["x"]), float(aux["momentum_of_x"])] == pytest.approx([x, w]), k
        assert bool(aux["valid"]) == (abs(x) <= 0.8 * d0)
    assert turned > 2
    assert (visits > 0).sum() > 7


def test_tact_hmc_moves_networks_too():
    """float32 parameters, float64 energies."""
    target = Target(gaussian(3), NOTHING)
    draws, kernel = Draws(Streams(KEY, 2), 0), Unadjusted(TACTHMC(), 1)
    state = kernel.start(target, torch.zeros(2, 3), draws)
    one = torch.ones(2)
    for k in range(1, 4):
        draws.step = k
        state, _ = kernel.step(target, state, Controls(0.01 * one, one, one), draws)
    assert state.evaluation.theta.dtype == state.aux["momentum"].dtype == torch.float32
    assert state.aux["x"].dtype == state.aux["energy"].dtype == torch.float64


@pytest.mark.slow
@pytest.mark.filterwarnings("error:.*draws are too wide")  # by those that are not valid
@short_run
def test_tact_hmc_draws_at_the_temperature_itself():
    """Where the trace says so the variance is that of the target, less the half friction of any thermostat."""
    a, e = 0.1, 0.01
    tact = TACTHMC(a, step_of_x=1e-3, refresh=None)
    trace = mhrun.sample(
        gaussian(2),
        NOTHING,
        Unadjusted(tact, 1),
        step_size=e,
        steps=8000,
        warmup=2000,
        chains=30,
        executor="torch",
    )
    theta = trace["posterior"]["theta"].to_numpy()
    valid = trace["sample_stats"]["valid"].to_numpy()
    assert 0.04 < valid.mean() < 0.2  # 0.085 if x were even
    by_chain = np.array([(row[kept] ** 2).mean() for row, kept in zip(theta, valid, strict=True)]) * CURVATURE
    error = by_chain.std(ddof=1) / math.sqrt(len(by_chain))
    assert abs(by_chain.mean() - (1 - a / 2)) < 0.05 + Z * error
    assert (theta**2).mean() * CURVATURE > 1.5  # elsewhere it is hotter


def moved(dynamics, chains, steps, noise, rng, trend=0.0):
    """Return the numbers of x after each step (field -> (steps, C)) and theta, with energies trend t + N(0, noise)."""
    draws, one = Draws(Streams(KEY, chains), 0), torch.ones(chains, dtype=torch.float64)
    theta = torch.zeros(chains, 1, dtype=torch.float64)
    aux, found = dynamics.start(theta, draws), []
    for k in range(1, steps + 1):
        draws.step = k
        energy = trend * k + math.sqrt(noise) * rng.normal(size=chains)
        given = aux | {"log_density": torch.from_numpy(-energy)}
        theta, aux = dynamics.move(theta, -theta, given, Controls(0.01 * one, one, one), draws)
        found.append({name: aux[name].numpy() for name in OF_X if name in aux})
    return {name: np.stack([step[name] for step in found]) for name in found[0]}, theta


def test_the_step_of_x_is_found_from_the_noise_of_energies(rng):
    """In plain NumPy: of the energies of the first 100 steps, whatever their trend."""
    noise, b = 400.0, 0.2
    dynamics = TACTHMC(friction_of_x=b)
    aux, _ = moved(dynamics, 3, 110, noise, np.random.default_rng(4), trend=1e3)
    generator = np.random.default_rng(4)
    energies = np.array([1e3 * k + 20 * generator.normal(size=3) for k in range(1, 101)])
    variance = np.square(np.diff(energies, 2, axis=0)).sum(0) / (6 * 98)
    h = np.minimum(1e-4, b / variance)
    assert abs(variance.mean() / noise - 1) < Z * (2 * 35 / 18 / 294) ** 0.5  # of squares of MA(2) noise
    assert aux["step_of_x"][-1] == pytest.approx(h)
    assert (aux["step_of_x"][:99] == 0).all()
    assert (aux["x"][:99] == 0).all()
    first = Draws(Streams(KEY, 3), 0).normal(mhrun.random.Purpose.NOISE, 1, use=2)[:, 0].numpy()
    assert aux["momentum_of_x"][99] == pytest.approx(np.sqrt(h) * first)
    assert aux["x"][99] == pytest.approx(np.sqrt(h) * first)
    assert aux["thermostat_of_x"][99] == pytest.approx(b + h * variance / 2)


def test_energies_without_noise_have_the_largest_step_of_x(rng):
    aux, _ = moved(TACTHMC(), 2, 101, 0.0, rng)
    assert (aux["step_of_x"][-1] == 1e-4).all()


@pytest.mark.slow
def test_x_keeps_its_temperature_however_noisy_energies_are(rng):
    """As of 10^5 data in minibatches of 100; w^2 has the mean h, but for the step's length."""
    aux, theta = moved(TACTHMC(), 400, 2_000, 1e6, rng)
    assert theta.isfinite().all()
    scaled = aux["momentum_of_x"][-1] / aux["step_of_x"][-1] ** 0.5
    assert abs(np.square(scaled).mean() - 1) < 0.15 + Z * (2 / 400) ** 0.5


@pytest.mark.slow
def test_x_is_everywhere_equally_often(rng):
    """After 6 V steps, which are five trips from one end to the other."""
    noise, chains = 1_500.0, 2_000
    aux, _ = moved(TACTHMC(), chains, 9_000, noise, rng)
    x = np.abs(aux["x"][-1])
    for low, high in ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)):
        share = ((low <= x) & (x < high)).mean()
        assert abs(share - 0.25) < 0.03 + Z * (0.25 * 0.75 / chains) ** 0.5, (low, share)


def test_a_chain_whose_x_is_unstable_stops(rng):
    """A step of x that is given, and too long for the noise."""
    data = mhrun.Dataset.of({"x": rng.normal(size=(50_000, 1))})
    moves = mhrun.Unadjusted(TACTHMC(step_of_x=1e-4), m=10)
    with pytest.warns(UserWarning, match="or lower step_of_x, or leave it to auto"):
        trace = mhrun.sample(
            mhrun.GaussianLocation(1), data, moves, step_size=1e-6, steps=600, warmup=0, progress=False
        )
    stats = trace["sample_stats"]
    assert stats["diverging"][:, -1].all()
    assert not stats["valid"][:, -1].any()
    assert trace["posterior"]["theta"].notnull().all()


def test_chains_that_were_never_hotter_are_warned_of(rng):
    """100 steps more than measuring takes, with so much noise that x needs 10^7."""
    data = mhrun.Dataset.of({"x": rng.normal(size=(50_000, 1))})
    moves = mhrun.Unadjusted(TACTHMC(), m=10)
    with pytest.warns(UserWarning, match="chains were never hotter"):
        mhrun.sample(
            mhrun.GaussianLocation(1), data, moves, step_size=1e-6, steps=200, warmup=0, progress=False
        )
