"""A step in torch and in a compiled loop reports the same, field by field, where minibatches are at their limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.dynamics.badodab import Badodab
from mhrun.dynamics.refresh import refresh
from mhrun.engine.execution.executors import choose_executor
from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings, ReplicaExchange
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.native import compiler, piece
from mhrun.pairing.growing import Growing
from mhrun.random import Draws, Streams
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target
from mhrun.types import INFO_DTYPES, Controls

pytestmark = pytest.mark.long

CHAINS, STEPS, N = 4, 12, 6
METROPOLIS = mhrun.Metropolis()


def records(target, kernel):
    """Return what both executors record of the same steps."""
    found = []
    for choice in ("torch", "compiled"):
        shape = Shape(CHAINS, target.model.names, 0, STEPS, 1, 1)
        plan = Plan({"all": mhrun.Fixed(step_size=0.05, temperature=[1.0, 1.5] * 2)}, CHAINS, 0, STEPS)
        method = Method("one", kernel, target, plan, shape, 3, torch.float64)
        draws = Draws(Streams(method.key, CHAINS), 0)
        state = kernel.start(target, target.model.init(CHAINS, draws), draws)
        temperature = torch.tensor([1.0, 1.5] * 2, dtype=torch.float64).expand(STEPS, CHAINS).contiguous()
        controls = Controls(torch.full_like(temperature, 0.05), temperature, temperature)
        found.append(choose_executor(method, choice, None, 1).advance(state, 1, controls)[1])
    return found


def assert_same(target, kernel):
    plain, fast = records(target, kernel)
    assert set(plain) == set(INFO_DTYPES) | {"theta"}
    assert set(fast) == set(plain)
    for name, value in plain.items():
        assert value.dtype == fast[name].dtype, name
        assert np.allclose(value, fast[name], rtol=1e-5, atol=1e-9, equal_nan=True), name
    return plain


def numbers(n, replacement):
    x = np.random.default_rng(1).normal(0.3, 1, n)
    return Target(GaussianMean(3.0), Dataset.of(x), replacement=replacement)


@pytest.mark.usefixtures("either_code")
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (N, 1), (N, 2), (N, N)])
def test_metropolis_and_exchanges(n, m, replacement):
    """The error of a minibatch: 0 of all data, NaN of one datum among several, else a number above 0."""
    target = numbers(n, replacement)
    exact = n == 1 or (m == n and not replacement)
    for pairing in (mhrun.Shared(m), mhrun.Stored(m), mhrun.Full()):
        kernel = MetropolisHastings(mhrun.RandomWalk(), pairing, METROPOLIS)
        var = assert_same(target, kernel)["log_ratio_var"]
        if exact or isinstance(pairing, mhrun.Full):
            assert (var == 0).all()
        else:
            assert np.isnan(var).all() if m == 1 else (var >= 0).all() and var.any()
        if isinstance(pairing, mhrun.Stored):
            continue
        ladder = ReplicaExchange(kernel, pairing, METROPOLIS, 2, every=2)
        exchange = assert_same(target, ladder)["exchange"]
        assert (exchange > 0).any()


@pytest.mark.usefixtures("either_code")
def test_a_density_without_data():
    """One datum that stands for none: whatever the pairing, the error is 0."""
    target = Target(GaussianMixture([[0.0, 0.0], [1.0, 1.0]], 0.5), NoData().load())
    kernel = MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(1), METROPOLIS)
    assert (assert_same(target, kernel)["log_ratio_var"] == 0).all()


@pytest.mark.usefixtures("either_code")
@pytest.mark.parametrize(("n", "m"), [(1, 2), (N, 2), (N, N), (60, 7)])
def test_growing_minibatches(n, m):
    kernel = MetropolisHastings(mhrun.RandomWalk(), Growing(), MHMinibatch(m, 0.9, "paper"))
    target = Target(
        mhrun.TiedMeans(), Dataset.of(np.random.default_rng(2).normal(0, 2, n).astype(np.float32))
    )
    plain = assert_same(target, kernel)
    assert (plain["log_ratio_var"][plain["batch_size"] == n] == 0).all()


@piece
def _own_piece(x):
    return x + 1


@piece
def _calls_it(x):
    return _own_piece(x)


def test_machine_code_is_kept_by_all_pieces_that_it_came_from():
    """Also those that a piece calls by name, in other modules; code with a user's piece is not kept."""
    assert refresh in compiler._parts(Badodab().native().move)
    assert _own_piece in compiler._parts(_calls_it)
    assert not compiler._is_bundled(_calls_it)


def test_products_of_all_data_with_many_chains_run_in_torch():
    """A compiled loop moves one chain after another, and would read wide data once for each."""
    rng = np.random.default_rng(0)
    fields = {"x": rng.normal(size=(200, 300)), "y": rng.choice([-1, 1], 200)}
    target = Target(mhrun.Logistic(300, 1.0, "zeros"), Dataset.of(fields))
    kernel = MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), METROPOLIS)
    for chains, name in ((2, "compiled"), (8, "hybrid")):
        shape = Shape(chains, target.model.names, 0, 10**6, 1, 1)
        plan = Plan({"all": mhrun.Fixed(step_size=0.05, temperature=1.0)}, chains, 0, 10**6)
        method = Method("one", kernel, target, plan, shape, 3, torch.float64)
        assert choose_executor(method, "auto", None, 1).name == name
