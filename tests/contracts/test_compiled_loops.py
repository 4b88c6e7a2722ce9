"""Which kernels have a compiled loop, and which loop that is."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
import torch

import mhrun
from mhrun.compiled import compile_loop, register, with_compiled_update
from mhrun.data import Dataset
from mhrun.dynamics.sghmc import SGHMC
from mhrun.kernels import MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.native import compiled_once, compiler
from mhrun.native.indices import distinct
from mhrun.random import MANY, Draws, Streams
from mhrun.target import Target
from mhrun.types import Controls

pytestmark = pytest.mark.long


@pytest.fixture
def target():
    return Target(GaussianMean(3.0), Dataset.of(np.random.default_rng(1).normal(size=20)))


def walk(cls=MetropolisHastings):
    return cls(mhrun.RandomWalk(), mhrun.Shared(5), mhrun.Metropolis())


class Reversed(MetropolisHastings):
    """A step of its own, which no loop of its base class does."""

    def step(self, target, state, controls, draws):
        _, info = super().step(target, state, controls, draws)
        return state, info._replace(accepted=~info.accepted)


def test_the_loop_is_chosen_by_the_exact_type_of_the_kernel(target):
    assert compile_loop(walk(), target, 1, 1) is not None
    assert compile_loop(walk(Reversed), target, 1, 1) is None
    assert (
        compile_loop(ReplicaExchange(walk(Reversed), mhrun.Full(), mhrun.Metropolis(), 2), target, 1, 1)
        is None
    )


def test_a_kernel_may_bring_a_loop_of_its_own(target):
    class Own(MetropolisHastings):
        pass

    class Nothing:
        def advance(self, state, first_step, controls):
            return state, {}

    requested = []
    register(Own, lambda *given: requested.append(given) or Nothing())
    kernel = walk(Own)
    assert isinstance(compile_loop(kernel, target, 7, 2), Nothing)
    assert requested == [(kernel, target, 7, 2)]


def test_every_loop_is_compiled_where_the_fixture_interpreted_replaces_the_compiler(interpreted):
    for module in pkgutil.iter_modules(mhrun.compiled.__path__, "mhrun.compiled."):
        names = vars(importlib.import_module(module.name))
        assert "compiled" not in names, f"{module.name} compiles a loop itself; use compiled_once"
    loop = compiled_once(walk, Reversed)  # nothing is compiled
    assert isinstance(loop, Reversed)


def test_the_same_pieces_are_compiled_once(monkeypatch):
    def add(part):
        return lambda x: part(x) + 1

    made = []
    monkeypatch.setattr(compiler, "compiled", lambda function: made.append(function) or function)
    loops = [compiled_once(add, part) for part in (abs, abs, int)]
    assert loops[0] is loops[1] is not loops[2]
    assert made == [loops[0], loops[2]]


class Wide:
    """A Gaussian of many parameters without data."""

    dim = MANY + 3
    names = ()

    def init(self, chains, draws):
        return torch.ones(chains, self.dim, dtype=torch.float64)

    def log_prior(self, theta):
        return -0.5 * theta.square().sum(-1)

    def log_lik(self, theta, rows):
        return -(rows["x"] - theta[:, :1]).square()


def kernels(pairing):
    moves = mhrun.MetropolisHastings(mhrun.RandomWalk(), pairing, mhrun.Metropolis())
    yield moves
    yield mhrun.MetropolisHastings(mhrun.HamiltonianProposal(2), pairing, mhrun.Metropolis())
    yield ReplicaExchange(moves, pairing, mhrun.Metropolis(), 2)


@pytest.mark.parametrize(
    ("pairing", "used", "unused"),
    [
        (mhrun.Full(), {"total"}, {"distinct", "difference", "moments"}),
        (mhrun.Shared(5), {"distinct", "difference"}, {"total"}),
    ],
    ids=["all data", "minibatches"],
)
def test_a_loop_has_no_pieces_that_it_does_not_need(target, pairing, used, unused):
    """Each takes seconds to compile."""
    for kernel in kernels(pairing):
        loop = compile_loop(kernel, target, 1, 1)
        model = target.native(full=True)
        pieces = compiler._parts(loop.body)
        known = {"distinct": distinct} | {
            name: getattr(model, name) for name in ("total", "difference", "moments")
        }
        found = {name for name, one in known.items() if one in pieces}
        assert used <= found, kernel
        assert not found & unused, kernel


@pytest.mark.parametrize("ladder", [False, True])
@pytest.mark.slow
def test_a_compiled_update_of_many_parameters_changes_nothing_else(ladder):
    wide = Target(Wide(), Dataset.of(np.zeros(4)))
    kernel = Unadjusted(SGHMC(0.1), 2)
    if ladder:
        kernel = ReplicaExchange(kernel, mhrun.Full(), mhrun.Metropolis(), 2)
    fast = with_compiled_update(kernel)
    assert type(fast) is type(kernel) if ladder else isinstance(fast, Unadjusted)
    draws = Draws(Streams(3, 2, compiled=True), 0)
    size, temperature = (
        torch.full((2,), 1e-2, dtype=torch.float64),
        torch.tensor([1.0, 2.0], dtype=torch.float64),
    )
    found = []
    for one in (kernel, fast):
        state = one.start(wide, wide.model.init(2, draws), draws)
        for k in (1, 2, 3):
            draws.step = k
            state, info = one.step(wide, state, Controls(size, temperature, temperature), draws)
        found.append((state.evaluation.theta, state.aux["momentum"], info.accepted))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-10)
