"""`mhrun check`: compiled forms that differ from the torch step, or that do not compile."""

import math

import numpy as np
import pytest
import torch

import mhrun
from mhrun.check.subject import Subject
from mhrun.check.suite import run_suite
from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.native import NativeDynamics, NativeGradientProposal, NativeProposal, piece
from mhrun.native.philox import NOISE, PROPOSAL, fill_normals, normals
from mhrun.target import Target


def with_pieces(base, form):
    """A part that moves as `base` does in torch, with these pieces."""

    class Part(base):
        def start(self, *args):
            return super().start(*args)

        def move(self, *args):
            return super().move(*args)

        def sample(self, *args):
            return super().sample(*args)

        def native(self):
            return form

    return Part


@piece
def right(args, theta, grad, vectors, scalars, controls, draw):
    noise = math.sqrt(2 * controls.step_size * controls.noise_temperature)
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    for d in range(len(theta)):
        theta[d] += controls.step_size * grad[d] + noise * z[d]


@piece
def one_number(args, theta, grad, vectors, scalars, controls, draw):
    noise = math.sqrt(2 * controls.step_size * controls.noise_temperature)
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    for d in range(len(theta)):
        theta[d] += controls.step_size * grad[d] + noise * z[0]


@piece
def first_block(args, theta, grad, vectors, scalars, controls, draw):
    noise = math.sqrt(2 * controls.step_size * controls.noise_temperature)
    z = normals(0, NOISE, draw)  # a plain number is a block's, too
    for d in range(len(theta)):
        theta[d] += controls.step_size * grad[d] + noise * z[d % 4]


@piece
def other_temperature(args, theta, grad, vectors, scalars, controls, draw):
    noise = math.sqrt(2 * controls.step_size)
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    for d in range(len(theta)):
        theta[d] += controls.step_size * grad[d] + noise * z[d]


@piece
def no_drift(args, theta, grad, vectors, scalars, controls, draw):
    noise = math.sqrt(2 * controls.step_size * controls.noise_temperature)
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    for d in range(len(theta)):
        theta[d] += noise * z[d]


def helper(value):
    return 2 * value


@piece
def with_a_plain_function(args, theta, grad, vectors, scalars, controls, draw):
    theta[0] = helper(theta[0])


@piece
def misspelt(args, theta, grad, vectors, scalars, controls, draw):
    for d in range(len(theta)):
        theta[d] += controls.step_sizes * grad[d]


@piece
def walk(args, origin, controls, draw, out):
    fill_normals(out, PROPOSAL, draw)
    for d in range(len(origin)):
        out[d] = origin[d] + controls.step_size * out[d]


@piece
def ratio_of_the_last(args, origin, candidate):
    return 100.0 * (candidate[5] - origin[5]) if len(origin) > 5 else 0.0


def verdict(kernel):
    (found,) = run_suite(Subject("mine", kernel, chains=400, n=400, m=40), ["compiled"])
    return found


def dynamics(move):
    part = with_pieces(mhrun.SGLD, NativeDynamics((), move))
    return lambda n, m: mhrun.Unadjusted(part(), None if n == m else m)


@pytest.mark.parametrize(
    ("move", "outcome"),
    [
        pytest.param(right, "holds", marks=pytest.mark.slow),
        pytest.param(one_number, "fails", marks=pytest.mark.slow),
        pytest.param(first_block, "fails", marks=pytest.mark.slow),
        pytest.param(other_temperature, "fails", marks=pytest.mark.slow),
        (no_drift, "fails"),
    ],
)
@pytest.mark.slow
def test_the_moves_of_six_coordinates_are_compared_at_another_temperature_of_the_noise(move, outcome):
    assert verdict(dynamics(move)).outcome == outcome


@pytest.mark.slow
def test_the_ratio_of_a_compiled_proposal_is_compared_in_all_coordinates():
    part = with_pieces(mhrun.RandomWalk, NativeProposal((), walk, ratio_of_the_last))
    found = verdict(lambda n, m: mhrun.MetropolisHastings(part(), mhrun.Full(), mhrun.Metropolis()))
    assert found.outcome == "fails"
    assert "accepted" in found.detail


@piece
def along_the_gradient(args, origin, grad, controls, draw, out):
    fill_normals(out, PROPOSAL, draw)
    spread = math.sqrt(2 * controls.step_size * controls.noise_temperature)
    for d in range(len(origin)):
        out[d] = origin[d] + controls.step_size * grad[d] + spread * out[d]


@piece
def ratio_along_the_gradient(args, origin, candidate, here, there, controls):
    total, half = 0.0, 0.5 * controls.step_size
    for d in range(len(origin)):
        total += (here[d] + there[d]) * (candidate[d] - origin[d] + half * (there[d] - here[d]))
    return -total / (2 * controls.noise_temperature)


@piece
def ratio_of_one_gradient(args, origin, candidate, here, there, controls):
    total = 0.0
    for d in range(len(origin)):
        total += 2 * here[d] * (candidate[d] - origin[d])
    return -total / (2 * controls.noise_temperature)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "outcome"), [(ratio_along_the_gradient, "holds"), (ratio_of_one_gradient, "fails")]
)
@pytest.mark.parametrize("pairing", [mhrun.Full, lambda: mhrun.Stored(20)])
def test_the_ratio_of_a_compiled_proposal_with_gradients_is_compared(ratio, outcome, pairing):
    part = with_pieces(mhrun.LangevinProposal, NativeGradientProposal((), along_the_gradient, ratio))
    found = verdict(lambda n, m: mhrun.MetropolisHastings(part(), pairing(), mhrun.Metropolis()))
    assert found.outcome == outcome


@pytest.mark.slow
def test_a_piece_that_does_not_compile_is_named_with_its_line():
    found = verdict(dynamics(misspelt))
    assert found.outcome == "fails"
    assert "the compiled form of Part does not compile: Unknown attribute 'step_sizes'" in found.detail
    assert "(test_check_compiled.py, line " in found.detail
    with pytest.raises(UserError, match=r"Unknown attribute 'step_sizes'.*executor=torch runs without it"):
        mhrun.sample(
            mhrun.GaussianMean(1.0),
            torch.zeros(100, dtype=torch.float64),
            dynamics(misspelt)(100, 10),
            step_size=1e-3,
            steps=100,
            executor="compiled",
        )


@pytest.mark.slow
def test_a_plain_function_in_a_piece_is_named():
    found = verdict(dynamics(with_a_plain_function))
    assert "Untyped global name 'helper'" in found.detail


def test_a_ladder_of_a_user_part_keeps_its_compiled_loop():
    """The loop of a ladder looks at the loop of its rungs."""
    part = with_pieces(mhrun.RandomWalk, NativeProposal((), walk, None))
    rung = mhrun.MetropolisHastings(part(), mhrun.Full(), mhrun.Metropolis())
    ladders = [
        mhrun.ReplicaExchange(kernel, mhrun.Full(), mhrun.Metropolis(), rungs=2)
        for kernel in (rung, mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()))
    ]
    target = Target(mhrun.GaussianMean(1.0), Dataset.of(torch.zeros(10, dtype=torch.float64)))
    own, ours = (compile_loop(ladder, target, 1, 1) for ladder in ladders)
    assert type(own._loop) is type(ours)
