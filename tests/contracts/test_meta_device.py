"""A steady step waits for nothing: on torch's device `meta` it reads no value, and it moves nothing between devices.

On `meta` tensors have no values: `.item()`, `bool()`, `.numpy()`, `nonzero` and mixed devices raise. Copies between
devices do not, so `NoCrossing` catches them. The first steps may copy tables to the device; a later one may not.
"""

from __future__ import annotations

import traceback
import warnings

import numpy as np
import pytest
import torch
from configured import part, parts
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import mhrun
from mhrun.data import Dataset
from mhrun.data.transforms import Transforms
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.random import Draws, Streams
from mhrun.target import Target
from mhrun.types import Controls

N, M, C, SIDE, CLASSES = 64, 8, 4, 6, 3


class NoCrossing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in _pytree.tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        if len({t.device.type for t in tensors if t.dim() or t.device.type != "cpu"}) > 1:
            ours = [frame for frame in traceback.extract_stack() if "/mhrun/" in frame.filename][-1]
            raise AssertionError(f"{func} crosses devices at {ours.filename}:{ours.lineno}")
        return out


def module(norm="group"):
    layer = nn.GroupNorm(2, 4) if norm == "group" else nn.BatchNorm2d(4)
    conv = nn.Conv2d(1, 4, 3)
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)), conv, layer, nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def target(model, **settings):
    rng = np.random.default_rng(0)
    fields = {"x": torch.from_numpy(rng.normal(size=(N, SIDE**2)).astype(np.float32))}
    fields["y"] = torch.from_numpy(rng.integers(0, CLASSES, N))
    transforms = settings.pop("transforms", None)
    return Target(model, Dataset(fields, transforms=transforms), device="meta", **settings)


MODELS = {
    "perceptron": lambda: Perceptron([SIDE**2, 5, CLASSES], 1.0),
    "bound": lambda: ModuleModel(module(), prior_variance=1.0, evaluation="bound"),
    "vmapped": lambda: ModuleModel(module(), prior_variance=1.0, evaluation="vmapped"),
    "batch norm": lambda: ModuleModel(module("batch"), prior_variance=1.0, evaluation="bound"),
}


def steady(where, kernel, temperature=1.0):
    """Do three steps on `meta`, the last of them under watch."""
    controls = Controls(*(torch.full((C,), v, device="meta") for v in (1e-3, temperature, temperature)))
    streams = Streams(1, C, "meta")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        theta = torch.empty(C, where.dim, device="meta")
        state = kernel.start(where, theta, Draws(streams, 0))
        draws = Draws(streams, 1)
        for step in (1, 2):
            draws.step = step
            state, _ = kernel.step(where, state, controls, draws)
        draws.step = 3
        with NoCrossing():
            after, info = kernel.step(where, state, controls, draws)
    assert after.evaluation.theta.device.type == info.accepted.device.type == "meta"


DYNAMICS = {name: lambda name=name: part("dynamics", name) for name in parts("dynamics")} | {
    "sghmc with fresh momenta": lambda: mhrun.SGHMC(refresh=2),
    "sgnht that begins again": lambda: mhrun.SGNHT(0.1, refresh=2, keep=False),
    "sgnht of rungs": lambda: mhrun.SGNHT([0.1, 0.2]),
    "badodab of rungs": lambda: mhrun.Badodab([0.1, 0.2]),
    "momentum with skipped steps": lambda: mhrun.Momentum(0.9, skip=0.2),
}


@pytest.mark.parametrize("name", DYNAMICS)
def test_a_step_of_each_dynamics_stays_on_the_device(name):
    steady(target(MODELS["perceptron"]()), mhrun.Unadjusted(DYNAMICS[name](), m=M))


@pytest.mark.parametrize("model", MODELS)
def test_a_step_on_each_model_stays_on_the_device(model):
    steady(target(MODELS[model]()), mhrun.Unadjusted(mhrun.SGHMC(), m=M))


def test_a_step_with_transforms_stays_on_the_device():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (N, 3, 8, 8)).astype(np.uint8))
    data = Dataset({"x": x, "y": torch.from_numpy(rng.integers(0, CLASSES, N))}, transforms=Transforms(N, 1))
    model = ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES)))
    steady(Target(model, data, device="meta"), mhrun.Unadjusted(mhrun.SGLD(), m=M))


@pytest.mark.parametrize("proposal", parts("proposal"))
def test_a_step_of_each_proposal_stays_on_the_device(proposal):
    where = target(MODELS["perceptron"]())
    kernel = mhrun.MetropolisHastings(part("proposal", proposal), mhrun.Full(), mhrun.Metropolis())
    assert kernel.refuses(where) is None
    steady(where, kernel)


TESTS = {
    "random walk, shared, Metropolis": (mhrun.RandomWalk, lambda: mhrun.Shared(M), mhrun.Metropolis),
    "Langevin, shared, Barker": (mhrun.LangevinProposal, lambda: mhrun.Shared(M), mhrun.Barker),
    "Langevin, stored, compensated": (
        mhrun.LangevinProposal,
        lambda: mhrun.Stored(M),
        lambda: mhrun.Compensated(1.0, density="series"),
    ),
    "Langevin, moving, Metropolis": (mhrun.LangevinProposal, lambda: mhrun.Moving(M), mhrun.Metropolis),
    "reversible, stored, Metropolis": (
        mhrun.ReversibleLangevinProposal,
        lambda: mhrun.Stored(M),
        mhrun.Metropolis,
    ),
    "Crank-Nicolson, full, Metropolis": (
        lambda: mhrun.CrankNicolson(prior_sd=1.0),
        mhrun.Full,
        mhrun.Metropolis,
    ),
    "Langevin, full, Metropolis": (mhrun.LangevinProposal, mhrun.Full, mhrun.Metropolis),
    "Hamiltonian, full, Metropolis": (lambda: mhrun.HamiltonianProposal(3), mhrun.Full, mhrun.Metropolis),
    "Hamiltonian, shared, Barker": (
        lambda: mhrun.HamiltonianProposal(3),
        lambda: mhrun.Shared(M),
        mhrun.Barker,
    ),
    "random walk, shared, penalty": (mhrun.RandomWalk, lambda: mhrun.Shared(M), mhrun.Penalty),
}


@pytest.mark.parametrize("model", ["perceptron", "bound"])
@pytest.mark.parametrize("name", TESTS)
def test_a_metropolis_hastings_step_stays_on_the_device(name, model):
    proposal, pairing, rule = TESTS[name]
    steady(target(MODELS[model]()), mhrun.MetropolisHastings(proposal(), pairing(), rule()))


@pytest.mark.parametrize("model", ["perceptron", "batch norm"])
@pytest.mark.parametrize("order", ["random", "alternate"])
def test_an_exchange_stays_on_the_device(order, model):
    inner = mhrun.Unadjusted(mhrun.SGNHT([0.1, 0.2, 0.3, 0.4]), m=M)
    kernel = mhrun.ReplicaExchange(inner, mhrun.Shared(M), mhrun.Metropolis(), rungs=4, order=order)
    steady(target(MODELS[model]()), kernel)


def test_the_watch_sees_a_copy_and_a_value_that_is_read():
    class Copies(mhrun.SGLD):
        def move(self, theta, grad, aux, controls, draws):
            return theta + torch.zeros(theta.shape[1]).to(theta.device), aux

    class Reads(mhrun.SGLD):
        def move(self, theta, grad, aux, controls, draws):
            return theta + float(grad.sum()), aux

    with pytest.raises(AssertionError, match="crosses devices"):
        steady(target(MODELS["perceptron"]()), mhrun.Unadjusted(Copies(), m=M))
    with pytest.raises((RuntimeError, NotImplementedError)):
        steady(target(MODELS["perceptron"]()), mhrun.Unadjusted(Reads(), m=M))
