"""The temperature of momenta: its closed forms, and what a run makes of it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit import short_run
from scipy import stats
from significance import ALPHA
from torch import nn

import mhrun
from mhrun.engine.warnings.noise import kinetic_warnings
from mhrun.random import Draws, Streams
from mhrun.types import Controls

STEPS = 300
KINETIC = "kinetic_temperature"


@pytest.mark.parametrize(
    ("friction", "temperature", "noise"), [(0.1, 1.0, 0.0), (0.5, 0.3, 0.0), (0.1, 1.0, 4.0)]
)
def test_momenta_have_the_temperature_of_the_noise_and_what_gradient_noise_adds(friction, temperature, noise):
    """Without forces the temperature is T, and with gradient noise of variance V it is T + e V / 2 a, exactly."""
    dynamics, chains, dim, step = mhrun.SGHMC(friction=friction), 8, 4_000, 0.05
    controls = Controls(
        *(torch.full((chains,), value, dtype=torch.float64) for value in (step, 1.0, temperature))
    )
    draws = Draws(Streams(1, chains), 0)
    theta = torch.zeros(chains, dim, dtype=torch.float64)
    aux = dynamics.start(theta, draws)
    generator = torch.Generator().manual_seed(2)
    for k in range(STEPS):
        draws.step = k
        gradient = math.sqrt(noise) * torch.randn(chains, dim, dtype=torch.float64, generator=generator)
        theta, aux = dynamics.move(theta, gradient, aux, controls, draws)
    found = float(dynamics.kinetic_temperature(aux, controls).mean())
    expected = temperature + step * noise / (2 * friction)
    z = (found / expected - 1) / math.sqrt(2 / (chains * dim))  # the momenta are independent normals
    assert 2 * stats.norm.sf(abs(z)) > ALPHA


@pytest.mark.parametrize(
    ("chains", "dim", "limit"), [(4, 1000, 1.25), (4, 82, stats.chi2.isf(3e-5, 328) / 328), (4, 25, 1.6707)]
)
def test_few_momenta_are_warned_of_beyond_their_error(chains, dim, limit):
    method = SimpleNamespace(
        name="sghmc", shape=SimpleNamespace(chains=chains), target=SimpleNamespace(dim=dim)
    )
    assert not list(kinetic_warnings(method, {KINETIC: limit - 0.01}))
    assert len(list(kinetic_warnings(method, {KINETIC: limit + 0.01}))) == 1


def network(hidden=True):
    if hidden:
        return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))
    return nn.Linear(20, 1)


def sampled(step_size, dynamics=None, hidden=True, m=None):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 20)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=200)).astype(np.float32)

    def log_density(outputs, rows):
        return -0.5 * (rows["y"] - outputs[:, 0]) ** 2 / 0.25

    model = mhrun.ModuleModel(network(hidden), likelihood=log_density, prior_variance=1.0)
    kernel = mhrun.Unadjusted(dynamics or mhrun.SGHMC(friction=0.1), m=m)
    settings = {"steps": 400, "warmup": 100, "thin": 10, "dtype": torch.float32, "seed": 1}
    return mhrun.sample(model, {"x": x, "y": y}, kernel, step_size=step_size, **settings)


@pytest.mark.slow
@short_run
def test_small_steps_on_all_data_have_a_temperature_of_one_and_no_warning(recwarn):
    assert sampled(1e-5).attrs[KINETIC] == pytest.approx(1, abs=0.1)
    assert not [one for one in recwarn if "kinetic" in str(one.message)]


@pytest.mark.slow
@short_run
def test_noise_of_small_minibatches_is_warned_of():
    with pytest.warns(
        UserWarning, match=r"the kinetic temperature of its momenta is .* times that of the noise"
    ):
        trace = sampled(3e-5, m=2)
    assert trace.attrs[KINETIC] > 1.5


@pytest.mark.slow
@short_run
@pytest.mark.parametrize(
    ("step_size", "dynamics", "hidden"),
    [
        (mhrun.Cosine(1e-5, cycles=2), None, True),
        (1e-5, mhrun.SGLD(), True),
        (1e-5, mhrun.SGNHT(), True),
        (1e-5, None, False),
    ],
)
def test_there_is_none_where_it_would_mislead(step_size, dynamics, hidden):
    """Of changing steps, without momenta, with a thermostat that controls them, and where draws show the width."""
    assert KINETIC not in sampled(step_size, dynamics, hidden).attrs
