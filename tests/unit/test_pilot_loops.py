"""Windows of a pilot's chains in compiled loops, which are those in torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.engine.method import Method
from mhrun.engine.pilot import chains as of_pilots
from mhrun.engine.pilot.chains import WINDOW, PilotChains
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target
from mhrun.types.scale import Scale

N, C = 60, 3
METROPOLIS = mhrun.Metropolis()
KERNELS = {
    "HMC": mhrun.MetropolisHastings(mhrun.HamiltonianProposal(), mhrun.Full(), METROPOLIS),
    "MALA": mhrun.MetropolisHastings(mhrun.LangevinProposal(), mhrun.Full(), METROPOLIS),
    "MINT": mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(20), METROPOLIS),
    "each with its own": mhrun.MetropolisHastings(mhrun.LangevinProposal(), mhrun.Stored(20), METROPOLIS),
    "MHminibatch": mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Growing(), mhrun.MHMinibatch(20)),
}


class OwnModel(mhrun.Logistic):
    """A user's, with the pieces of the built-in one."""


def chains_of(name, model=mhrun.Logistic, n=N, dtype=torch.float64):
    rng = np.random.default_rng(5)
    fields = {"x": rng.normal(size=(n, 2)), "y": rng.choice([-1.0, 1.0], n)}
    target = Target(model(2, 1.0), Dataset.of(fields))
    plan = Plan({"all": mhrun.Fixed(step_size=0.1, temperature=2.0)}, C, 0, 500)
    shape = Shape(C, target.model.names, 0, 500, 1, 1)
    scale = Scale(torch.tensor([0.1, -0.2]).double(), torch.tensor([[0.3, 0.0], [0.1, 0.2]]).double())
    kernel = KERNELS[name].with_scale(scale)
    method = Method(name, kernel, target, plan, shape, 3, dtype)
    theta = 0.3 * torch.from_numpy(rng.normal(size=(C, 2)))
    temperature = torch.full((C,), 2.0).double()
    return PilotChains(
        method, kernel, theta.to(dtype), temperature, 7, math.pi / 2 if name == "HMC" else None
    )


@pytest.mark.parametrize("name", KERNELS)
def test_windows_in_a_loop_are_those_in_torch(name, interpreted, monkeypatch):
    """Also where the step size, and the leapfrog steps with it, change from one window to the next."""
    found = []
    for pays in (False, True):
        monkeypatch.setattr(of_pilots, "compiling_pays", lambda method, steps, pays=pays: pays)
        chains = chains_of(name)
        assert (chains._loop() is not None) == pays
        windows = [chains.window(torch.full((C,), size).double()) for size in (0.2, 0.7)]
        chains.noise_of_points()
        windows.append(chains.window(torch.tensor([0.1, 0.4, 0.9]).double()))
        assert chains.step == 3 * WINDOW + 1
        found.append((windows, chains))
    (plain, in_torch), (fast, in_loop) = found
    assert np.allclose(plain, fast, rtol=1e-6)
    assert 0 < plain[0][0] <= 1
    assert (in_torch.n_lik, in_torch.n_grad) == (in_loop.n_lik, in_loop.n_grad)
    assert torch.allclose(in_torch.state.evaluation.theta, in_loop.state.evaluation.theta, rtol=1e-9)
    assert (in_torch.last_half is None) == (in_loop.last_half is None) == (name != "HMC")
    if name == "HMC":
        assert torch.allclose(in_torch.last_half, in_loop.last_half, rtol=1e-9)


def test_loops_are_for_pilots_of_seconds_with_mhrun_s_own_parts():
    assert chains_of("HMC")._loop() is None
    assert chains_of("HMC", n=100_000)._loop() is not None
    assert chains_of("HMC", OwnModel, n=100_000)._loop() is None
    assert chains_of("HMC", n=100_000, dtype=torch.float32)._loop() is None
    assert chains_of("MINT", n=100_000)._loop() is None
