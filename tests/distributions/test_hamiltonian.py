"""The Hamiltonian proposal: its trajectories, and the distribution of chains. False alarms: see `significance`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from kit import KEY, advance, begin, controls
from significance import assert_mean, differs_in_mean

import mhrun
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.pairing.full import Full
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.hamiltonian import HamiltonianProposal
from mhrun.proposals.langevin import LangevinProposal
from mhrun.random import Draws, Streams
from mhrun.rules.barker import Barker
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Evaluation
from mhrun.types.scale import Scale

BEND, WIDTH = 0.6, 0.5
SCALES = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)


def banana(theta):
    """theta_1 ~ N(0, 1), theta_2 ~ N(BEND theta_1^2, WIDTH^2)."""
    one, two = theta.unbind(-1)
    return -0.5 * one**2 - 0.5 * ((two - BEND * one**2) / WIDTH) ** 2


def density(log_density, dim):
    def log_lik(theta, rows):
        return log_density(theta)[:, None].expand(-1, rows["x"].shape[1])

    return Target(FunctionModel(log_lik, [0.0] * dim, batched=True), NoData().load())


def hmc(leapfrog_steps=4, jitter=0.2, rule=None, pairing=None):
    return MetropolisHastings(
        HamiltonianProposal(leapfrog_steps, jitter), pairing or Full(), rule or Metropolis()
    )


def gradient_of(log_density):
    def gradient(theta):
        with torch.enable_grad():
            at = theta.detach().requires_grad_()
            (grad,) = torch.autograd.grad(log_density(at).sum(), at)
        return grad

    return gradient


class Given(NamedTuple):
    """Draws of given momenta, before their temperature."""

    z: torch.Tensor

    def normal(self, purpose, count, dtype=torch.float64):
        return self.z


def end_of(proposal, theta, momentum, control):
    """Return the end of a trajectory from theta with a momentum, and the momentum there."""
    gradient = gradient_of(banana)
    zero = torch.zeros(len(theta), dtype=torch.float64)
    z = momentum / control.noise_temperature.sqrt()[:, None]
    path = proposal.follow(Evaluation(theta, zero, grad=gradient(theta)), gradient, control, Given(z))
    last = path.last + 0.5 * path.step_size[:, None] * gradient(path.theta)
    found = proposal.log_ratio(path, Evaluation(path.theta, zero, grad=gradient(path.theta)), control)
    return path.theta, last, found


# --- Trajectories -------------------------------------------------------------------------------------------------


def test_a_trajectory_is_the_leapfrog_of_a_plain_loop(rng):
    """Neal (2011), equations 2.28 to 2.30, for each chain by itself, with its own step size and temperature."""
    steps, temperature = np.array([0.05, 0.1, 0.2]), np.array([1.0, 2.0, 4.0])
    theta, momentum = rng.normal(size=(2, 3, 2))
    control = controls(steps, temperature, chains=3)
    to, last, ratio = end_of(HamiltonianProposal(5, 0.0), *map(torch.from_numpy, (theta, momentum)), control)

    def gradient(q):
        off = (q[1] - BEND * q[0] ** 2) / WIDTH**2
        return np.array([-q[0] + 2 * BEND * q[0] * off, -off])

    for c in range(3):
        q, p, e = theta[c].copy(), momentum[c].copy(), steps[c]
        for _ in range(5):
            p += e / 2 * gradient(q)
            q += e * p
            p += e / 2 * gradient(q)
        assert to[c].numpy() == pytest.approx(q)
        assert last[c].numpy() == pytest.approx(p)
        wanted = (momentum[c] @ momentum[c] - p @ p) / (2 * temperature[c])
        assert float(ratio[c]) == pytest.approx(wanted)


def test_a_trajectory_leads_back_and_keeps_volume(rng):
    theta, momentum = (torch.from_numpy(part) for part in rng.normal(size=(2, 6, 2)))
    proposal, control = HamiltonianProposal(7, 0.0), controls(0.15, 1.0, chains=6)
    to, last, ratio = end_of(proposal, theta, momentum, control)
    back, again, other = end_of(proposal, to, -last, control)
    assert back.numpy() == pytest.approx(theta.numpy(), abs=1e-12)
    assert again.numpy() == pytest.approx(-momentum.numpy(), abs=1e-12)
    assert other.numpy() == pytest.approx(-ratio.numpy(), abs=1e-12)
    h = 1e-6
    for c in range(6):
        start = torch.cat([theta[c], momentum[c]])
        shifts = h * torch.eye(4, dtype=torch.float64)
        eight = torch.cat([start + shifts, start - shifts])
        ends = torch.cat(end_of(proposal, eight[:, :2], eight[:, 2:], controls(0.15, 1.0, chains=8))[:2], 1)
        jacobian = (ends[:4] - ends[4:]) / (2 * h)
        assert float(torch.linalg.det(jacobian)) == pytest.approx(1.0, abs=1e-6)


def test_one_leapfrog_step_is_a_langevin_move():
    """Step size e of HMC and e^2 / 2 of the Langevin proposal; the momentum is its noise."""
    target = density(banana, 2)
    found = []
    for proposal, step in ((HamiltonianProposal(1, 0.0), 0.4), (LangevinProposal(), 0.08)):
        kernel = MetropolisHastings(proposal, Full(), Metropolis())
        state, draws = begin(kernel, target, torch.linspace(-1, 1, 10, dtype=torch.float64).view(5, 2))
        _, theta, infos = advance(kernel, target, state, controls(step, 2.0, chains=5), draws, 30)
        found.append((theta, torch.stack([info.log_ratio for info in infos]).numpy()))
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1] == pytest.approx(found[1][1])


def test_step_sizes_are_jittered_within_their_range():
    chains = 4000
    origin = Evaluation(
        torch.zeros(chains, 1).double(), torch.zeros(chains), grad=torch.zeros(chains, 1).double()
    )
    path = HamiltonianProposal(1, 0.3).follow(
        origin, torch.zeros_like, controls(0.5, 1.0, chains=chains), Draws(Streams(KEY, chains), 1)
    )
    relative = (path.step_size / 0.5).numpy()
    assert 0.7 <= relative.min() < 0.71
    assert 1.29 < relative.max() <= 1.3
    assert_mean(relative, 1.0)
    assert_mean((relative - 1) ** 2, 0.03)


# --- Distributions ------------------------------------------------------------------------------------------------


def draws_of(kernel, target, theta, control, steps=25):
    """Return theta (C, K, D) of chains that begin at draws of their target."""
    state, draws = begin(kernel, target, theta)
    _, thetas, infos = advance(kernel, target, state, control, draws, steps)
    accepted = torch.stack([info.accepted for info in infos]).double()
    return thetas, float(accepted.mean())


def assert_normals(thetas, temperature=1.0):
    for d, sd in enumerate(SCALES.numpy() * math.sqrt(temperature)):
        assert_mean(thetas[..., d].mean(1), 0.0, f"mean {d}")
        assert_mean((thetas[..., d] ** 2).mean(1), sd**2, f"variance {d}")


def normals():
    return density(lambda theta: -0.5 * (theta / SCALES.to(theta)).square().sum(-1), 3)


@pytest.mark.parametrize(
    ("rule", "temperature", "scaled"),
    [(Metropolis(), 1.0, False), (Metropolis(), 5.0, True), (Barker(), 5.0, False)],
    ids=["Metropolis", "tempered and scaled", "Barker, tempered"],
)
def test_a_product_of_normals_is_kept(rng, rule, temperature, scaled):
    target, kernel = normals(), hmc(6, rule=rule)
    if scaled:
        kernel = kernel.with_scale(Scale(torch.zeros(3), SCALES))
    step = 1.1 if scaled else 0.11
    theta = torch.from_numpy(rng.normal(size=(2000, 3))) * SCALES * temperature**0.5
    thetas, accepted = draws_of(kernel, target, theta, controls(step, temperature, chains=2000))
    assert 0.3 < accepted < 0.97
    assert_normals(thetas, temperature)


def begun_on_banana(rng, temperature):
    one, two = rng.normal(size=(2, 2000)) * math.sqrt(temperature)
    return torch.from_numpy(np.column_stack([one, BEND * one**2 + WIDTH * two]))


def moments(thetas):
    return (
        thetas[..., 0].mean(1),
        (thetas[..., 0] ** 2).mean(1),
        thetas[..., 1].mean(1),
        (thetas[..., 1] ** 2).mean(1),
    )


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_banana_is_kept_at_temperatures_and_step_sizes_of_each_chain(rng, temperature):
    """theta_1 ~ N(0, T) and theta_2 ~ N(BEND theta_1^2, T WIDTH^2): moments in closed form."""
    step = np.where(np.arange(2000) % 2 == 0, 0.25, 0.45)
    thetas, accepted = draws_of(
        hmc(4),
        density(banana, 2),
        begun_on_banana(rng, temperature),
        controls(step, temperature, chains=2000),
    )
    assert 0.4 < accepted < 0.95
    square = 3 * (BEND * temperature) ** 2 + temperature * WIDTH**2
    for found, expected in zip(moments(thetas), (0.0, temperature, BEND * temperature, square), strict=True):
        assert_mean(found, expected)


def test_noise_at_another_temperature_changes_no_distribution(rng):
    control = controls(0.25, 2.0, noise=1.0, chains=2000)
    thetas, _ = draws_of(hmc(4), density(banana, 2), begun_on_banana(rng, 2.0), control)
    assert_mean(moments(thetas)[1], 2.0)
    assert_mean(moments(thetas)[2], 2 * BEND)


def test_these_tests_see_a_wrong_trajectory(rng):
    """Without the last half step of the momentum, and with the energy of the momenta left out."""

    class NoLastHalf(HamiltonianProposal):
        def log_ratio(self, trajectory, candidate, controls):
            return super().log_ratio(trajectory, candidate._replace(grad=0 * candidate.grad), controls)

    class NoEnergy(HamiltonianProposal):
        def log_ratio(self, trajectory, candidate, controls):
            return 0 * super().log_ratio(trajectory, candidate, controls)

    for wrong in (NoLastHalf, NoEnergy):
        kernel = MetropolisHastings(wrong(6, 0.2), Full(), Metropolis())
        theta = torch.from_numpy(rng.normal(size=(2000, 3))) * SCALES
        thetas, _ = draws_of(kernel, normals(), theta, controls(0.11, 1.0, chains=2000))
        assert differs_in_mean((thetas[..., 0] ** 2).mean(1), float(SCALES[0]) ** 2), wrong.__name__


def test_a_tempered_likelihood_has_its_prior_whole(rng):
    x = rng.normal(1.6, 1.0, 60)
    target, temperature, sd = Target(GaussianMean(0.64), Dataset.of(x), temper="likelihood"), 20.0, 0.8
    precision = 60 / temperature + 1 / sd**2
    mean = 60 / temperature * x.mean() / precision
    theta = torch.from_numpy(mean + rng.normal(size=(2000, 1)) * precision**-0.5)
    thetas, _ = draws_of(hmc(3), target, theta, controls(0.08, temperature, chains=2000))
    assert_mean(thetas[..., 0].mean(1), mean)
    assert_mean(((thetas[..., 0] - mean) ** 2).mean(1), 1 / precision)


def test_trajectories_of_one_length_return_and_jittered_ones_do_not(rng):
    """On a standard normal a length of 2 pi is a period: without jitter a chain hardly moves."""
    target = density(lambda theta: -0.5 * theta.square().sum(-1), 1)
    start = torch.from_numpy(rng.normal(size=(500, 1)))
    moved = {}
    for jitter in (0.0, 0.2):
        thetas, _ = draws_of(hmc(63, jitter), target, start, controls(0.1, 1.0, chains=500), steps=1)
        moved[jitter] = float(np.abs(thetas[:, 0] - start.numpy()).mean())
    assert moved[0.0] < 0.05
    assert moved[0.2] > 0.3


# --- Costs, pairings, refusals ------------------------------------------------------------------------------------


def counted(pairing, rng):
    x = rng.normal(0.7, 1.0, 30)
    target = Target(GaussianMean(), Dataset.of(x))
    kernel = hmc(5, pairing=pairing)
    state, draws = begin(kernel, target, 4)
    state, _, _ = advance(kernel, target, state, controls(0.01, 1.0), draws, 1)
    _, _, infos = advance(kernel, target, state, controls(0.01, 1.0), draws, 1, first=2)
    return int(infos[0].n_lik[0]), int(infos[0].n_grad[0]), kernel.reads(target)


def test_evaluations_are_counted(rng):
    """All data: the current gradient is kept, so that L steps are L gradients. A minibatch: both ends anew."""
    assert counted(Full(), rng) == (30, 5 * 30, 5 * 30)
    assert counted(Shared(10), rng) == (20, 6 * 10, 6 * 10)


def test_a_trajectory_that_is_not_finite_is_rejected():
    """A density that is NaN above 1: chains never go there, and say so."""
    target = density(lambda theta: torch.where(theta > 1, torch.nan, -0.5 * theta.square()).sum(-1), 1)
    theta = torch.full((200, 1), 0.9, dtype=torch.float64)
    state, draws = begin(hmc(5), target, theta)
    _, thetas, infos = advance(hmc(5), target, state, controls(0.3, 1.0, chains=200), draws, 20)
    assert thetas.max() <= 1
    diverging = torch.stack([info.diverging for info in infos])
    assert diverging.any()
    assert not (diverging & torch.stack([info.accepted for info in infos])).any()
    # A step beyond the range of numbers.
    _, wide, infos = advance(hmc(5), target, state, controls(1e300, 1.0, chains=200), draws, 3)
    assert np.isfinite(wide).all()
    assert not any(info.accepted.any() for info in infos)


def test_what_does_not_fit_is_refused(rng):
    target = Target(GaussianMean(), Dataset.of(rng.normal(size=30)))
    assert "choose pairing full" in hmc(pairing=Stored(5)).refuses(target)
    assert "minibatch gradient" in hmc(pairing=mhrun.Growing(), rule=mhrun.MHMinibatch(2)).refuses(target)
    for wrong in (0, -1, True, 1.5, "many"):
        with pytest.raises(Refusal, match="leapfrog_steps"):
            HamiltonianProposal(wrong)
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(Refusal, match="jitter"):
            HamiltonianProposal(2, wrong)
    with pytest.raises(Refusal, match="follows a trajectory"):
        mhrun.EquiEnergy(HamiltonianProposal(2), Metropolis(), 2, [5, 5])
    with pytest.raises(Refusal, match="requires the kernel MetropolisHastings"):
        HamiltonianProposal(2).sample(None, None, None)
