"""Moves in coordinates scaled by the posterior's spread."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import KEY, C, advance, advance_compiled, begin, controls
from regressions import full

import mhrun
from mhrun.errors import Refusal
from mhrun.kernels.preconditioned import PreconditionedDynamics, PreconditionedProposal
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.parts import Dynamics, Proposal
from mhrun.proposals.crank_nicolson import CrankNicolson
from mhrun.target import Target
from mhrun.types.scale import Scale

pytestmark = pytest.mark.long


def scale(dense):
    center = torch.tensor([0.5, -1.0], dtype=torch.float64)
    factor = torch.tensor([[0.7, 0.0], [0.4, 1.5]], dtype=torch.float64)
    return Scale(center, factor if dense else factor.diagonal().clone())


@pytest.mark.parametrize("dense", [False, True])
def test_a_scale_maps_there_and_back(dense):
    one, theta = scale(dense), torch.randn(3, 2, dtype=torch.float64)
    assert torch.allclose(one.to_theta(one.to_phi(theta)), theta)
    theta.requires_grad_()
    phi = one.to_phi(theta.detach()).requires_grad_()
    one.to_theta(phi).sin().sum().backward()
    at = one.to_theta(phi.detach()).requires_grad_()
    at.sin().sum().backward()
    assert torch.allclose(phi.grad, one.pull(at.grad))
    with pytest.raises(Refusal, match="positive diagonal"):
        Scale(torch.zeros(2), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("wrapper", "base"), [(PreconditionedProposal, Proposal), (PreconditionedDynamics, Dynamics)]
)
def test_a_scaled_part_forwards_all_that_a_part_may_override(wrapper, base):
    """What it inherited would answer for the base class, not for the part in it."""
    names = {n for n, v in vars(base).items() if n[0] != "_" and (callable(v) or isinstance(v, property))}
    assert names - set(vars(wrapper)) == set()
    limited = mhrun.Unadjusted(mhrun.SGNHT(), m=1).with_scale(scale(dense=True)).dynamics
    assert limited.largest_step(2, 1.0) == mhrun.SGNHT().largest_step(2, 1.0) < np.inf


CORRELATED = GaussianMixture([[0.0, 0.0]], 1.0)
GRADIENT_MOVES = {
    "Langevin": mhrun.LangevinProposal(),
    "reversible Langevin": mhrun.ReversibleLangevinProposal(beta=1.5),
    "trajectories": mhrun.HamiltonianProposal(3),
}


@pytest.mark.parametrize(
    ("kernel", "dense", "in_machine_code"),
    [
        pytest.param(full(), False, False, id="random walk, diagonal"),
        pytest.param(full(), True, False, id="random walk, dense"),
        pytest.param(
            full(CrankNicolson()), False, False, id="Crank-Nicolson, diagonal", marks=pytest.mark.slow
        ),
        pytest.param(full(CrankNicolson()), True, True, id="Crank-Nicolson, dense", marks=pytest.mark.slow),
        pytest.param(
            mhrun.Unadjusted(mhrun.SGHMC(), m=1), False, True, id="SGHMC, diagonal", marks=pytest.mark.slow
        ),
        pytest.param(mhrun.Unadjusted(mhrun.SGHMC(), m=1), True, False, id="SGHMC, dense"),
        *(
            pytest.param(full(proposal), dense, False, id=f"{name}, {'dense' if dense else 'diagonal'}")
            for name, proposal in GRADIENT_MOVES.items()
            for dense in (False, True)
        ),
        pytest.param(
            full(mhrun.HamiltonianProposal(3)), True, True, id="machine code", marks=pytest.mark.slow
        ),
    ],
)
def test_compiled_and_torch_steps_agree_in_scaled_coordinates(request, kernel, dense, in_machine_code):
    """Each scale and each kind of kernel once in machine code, and all pairs as plain Python."""
    if not in_machine_code:
        request.getfixturevalue("interpreted")
    target = Target(CORRELATED, mhrun.NoData().load())
    moves = kernel.with_scale(scale(dense))
    state, draws = begin(moves, target, C)
    _, thetas, _ = advance(moves, target, state, controls(0.3, 1.0), draws, 30)
    _, compiled, _ = advance_compiled(moves, target, begin(moves, target, C)[0], controls(0.3, 1.0), 30, KEY)
    assert compiled == pytest.approx(thetas, abs=1e-9)


@pytest.mark.parametrize("proposal", ["RandomWalk", "LangevinProposal", "CrankNicolson"])
def test_tests_in_scaled_coordinates_keep_the_target(proposal):
    """Means and variances of a standard normal, 64 chains: each within 5 standard errors by batches (seed fixed)."""
    make = {"CrankNicolson": CrankNicolson}.get(proposal) or getattr(mhrun, proposal)
    target = Target(CORRELATED, mhrun.NoData().load())
    moves = full(make()).with_scale(scale(True))
    state, draws = begin(moves, target, 64)
    step = 0.3 if proposal == "LangevinProposal" else 0.6
    _, thetas, _ = advance(moves, target, state, controls(step, 1.0, chains=64), draws, 600)
    draws_of = thetas[:, 100:]
    for moment, exact in ((draws_of, 0.0), (draws_of**2, 1.0), (draws_of[..., :1] * draws_of[..., 1:], 0.0)):
        by_chain = moment.mean(1)
        z = (by_chain.mean(0) - exact) / (by_chain.std(0, ddof=1) / 8)
        assert (np.abs(z) < 5).all()


@pytest.mark.parametrize("base", [Proposal, Dynamics])
def test_a_part_in_scaled_coordinates_declares_what_its_part_declares(base):
    """Every attribute of the base class, so that a new one is not left at its default."""

    class Part(base):
        pass

    Part.__abstractmethods__ = frozenset()
    part = Part()
    for name in base.__annotations__:
        setattr(part, name, object())
    wrapped = (PreconditionedProposal if base is Proposal else PreconditionedDynamics)(part, scale(False))
    assert len(base.__annotations__) > 5
    for name in base.__annotations__:
        assert getattr(wrapped, name) is getattr(part, name), name
