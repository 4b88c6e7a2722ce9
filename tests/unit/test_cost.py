"""Guesses at the cost of a step, and what is chosen by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.engine.cost import batching_pays, step_seconds
from mhrun.engine.method import Method
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target


def method(proposal, n=50, dim=2, chains=4, pairing=None):
    rng = np.random.default_rng(0)
    fields = {"x": torch.from_numpy(rng.normal(size=(1, dim))).expand(n, dim), "y": torch.ones(n).double()}
    target = Target(mhrun.Logistic(dim, 1.0), Dataset(fields))
    plan = Plan({"all": mhrun.Fixed(step_size=0.1, temperature=1.0)}, chains, 0, 10)
    kernel = mhrun.MetropolisHastings(proposal, pairing or mhrun.Full(), mhrun.Metropolis())
    return Method("one", kernel, target, plan, Shape(chains, target.model.names, 0, 10, 1, 1), 1)


def test_a_trajectory_costs_its_gradients():
    """On few data the overhead of each, on many their data."""
    for n in (10, 1_000_000):
        one, ten = (step_seconds(method(mhrun.HamiltonianProposal(count), n)) for count in (1, 10))
        assert ten == pytest.approx(10 * one, rel=0.01)


@pytest.mark.parametrize(
    ("proposal", "n", "dim", "chains", "is_batched"),
    [
        (mhrun.HamiltonianProposal(3), 20_000, 200, 16, True),  # 32 MB
        (mhrun.LangevinProposal(), 20_000, 200, 16, True),
        (mhrun.HamiltonianProposal(3), 20_000, 200, 4, False),
        (mhrun.HamiltonianProposal(3), 5_000, 200, 16, False),  # 8 MB
        (mhrun.RandomWalk(), 20_000, 200, 16, False),
        (mhrun.RandomWalk(), 20, 300, 16, True),  # products of large matrices
        (mhrun.RandomWalk(), 20, 300, 2, False),
    ],
)
def test_gradients_of_many_data_for_many_chains_are_products_in_torch(proposal, n, dim, chains, is_batched):
    assert batching_pays(method(proposal, n, dim, chains)) == is_batched
    assert not batching_pays(method(proposal, n, dim, chains, mhrun.Shared(10)))
