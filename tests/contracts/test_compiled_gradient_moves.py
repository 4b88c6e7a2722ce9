"""Moves along gradients in the compiled loop: which parts have one, their algebra, and gradients that are kept.

`test_parity.py` compares all methods with the step in torch, field by field.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import KEY, advance_compiled, begin, controls
from significance import assert_mean

import mhrun
from mhrun.compiled import compile_loop
from mhrun.compiled.gradient_moves import GradientLoop
from mhrun.data import Dataset
from mhrun.engine.execution.executors import choose_executor
from mhrun.engine.method import Method
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.native import compiler
from mhrun.native.forms import Draw, StepControls
from mhrun.native.philox import split_key
from mhrun.proposals import langevin, reversible_langevin
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target
from mhrun.target.gradients import Gradients
from mhrun.types import Controls
from mhrun.types.scale import Scale

N, STEPS = 30, 12


def target(temper="posterior", surrogate="none"):
    rng = np.random.default_rng(5)
    fields = {
        "x": torch.from_numpy(rng.normal(size=(N, 2))),
        "y": torch.from_numpy(rng.choice([-1.0, 1.0], N)),
    }
    return Target(mhrun.Logistic(2, 0.5), Dataset(fields), temper=temper, surrogate=surrogate)


def kernel(proposal=None, pairing=None):
    return mhrun.MetropolisHastings(
        proposal or mhrun.LangevinProposal(), pairing or mhrun.Full(), mhrun.Metropolis()
    )


class OtherRatio(mhrun.LangevinProposal):
    def log_density_ratio(self, origin, candidate, controls):
        return 0 * super().log_density_ratio(origin, candidate, controls)


class OtherPath(mhrun.HamiltonianProposal):
    def follow(self, origin, gradient, controls, draws):
        return super().follow(origin, lambda theta: -gradient(theta), controls, draws)


class OtherEnergy(mhrun.HamiltonianProposal):
    def log_ratio(self, trajectory, candidate, controls):
        return 2 * super().log_ratio(trajectory, candidate, controls)


class OtherTurn(mhrun.ReversibleLangevinProposal):
    def forward(self, draws):
        return torch.ones_like(super().forward(draws))


class OtherSpread(mhrun.ReversibleLangevinProposal):
    def moved(self, origin, forward, controls, draws):
        return super().moved(origin, forward, controls, draws) + 1


class ClippedGradient(mhrun.Logistic):
    def log_lik_and_grad(self, theta, rows):
        value, grad = super().log_lik_and_grad(theta, rows)
        return value, grad.clamp(-0.1, 0.1)


class OtherMove(mhrun.ReversibleLangevinProposal):
    def sample(self, origin, controls, draws):
        return super().sample(origin, controls, draws) + 1


@pytest.mark.parametrize(
    ("proposal", "is_compiled"),
    [
        (mhrun.LangevinProposal(), True),
        (mhrun.ReversibleLangevinProposal(beta=2.0), True),
        (mhrun.LangevinProposal(ratio=False), False),
        (OtherRatio(), False),
        (OtherMove(), False),
        (OtherTurn(), False),
        (OtherSpread(), False),
        (mhrun.HamiltonianProposal(3), True),
        (OtherPath(3), False),
        (OtherEnergy(3), False),
    ],
)
def test_a_subclass_that_changes_a_method_runs_in_torch(proposal, is_compiled):
    scale = Scale(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    for moves in (kernel(proposal), kernel(proposal).with_scale(scale)):
        assert (compile_loop(moves, target(), 1, 1) is not None) == is_compiled


@pytest.mark.parametrize(
    ("proposal", "pairing", "needed"),
    [
        (mhrun.LangevinProposal(), mhrun.Full(), {"total_and_gradient"}),
        (mhrun.HamiltonianProposal(2), mhrun.Full(), {"total_and_gradient"}),
        (mhrun.LangevinProposal(), mhrun.Stored(7), {"moments", "gradient"}),
    ],
    ids=["all data", "trajectories", "stored"],
)
def test_all_data_are_read_in_one_pass(proposal, pairing, needed):
    loop = compile_loop(kernel(proposal, pairing), target(), 1, 1)
    model, pieces = target().native(full=True), compiler._parts(loop.body)
    names = ("total", "moments", "gradient", "total_and_gradient")
    assert {name for name in names if getattr(model, name) in pieces} == needed


def test_one_pass_is_two(monkeypatch):
    """A model that does not offer it gives the same chains, to rounding."""
    moves = kernel(mhrun.HamiltonianProposal(2))
    state, _ = begin(moves, target(), 2)
    one_pass, thetas, record = advance_compiled(moves, target(), state, controls(0.2, chains=2), STEPS)
    native = mhrun.Logistic.native

    def without(model, data, *, full):
        return native(model, data, full=full)._replace(total_and_gradient=None)

    monkeypatch.setattr(mhrun.Logistic, "native", without)
    two_passes, expected, other = advance_compiled(moves, target(), state, controls(0.2, chains=2), STEPS)
    assert record["accepted"].any()
    assert np.allclose(thetas, expected, rtol=1e-10)
    assert np.allclose(record["log_ratio"], other["log_ratio"], rtol=1e-8, atol=1e-10)
    for field in ("log_lik_mean", "grad"):
        found, wanted = (getattr(state.evaluation, field) for state in (one_pass, two_passes))
        assert torch.allclose(found, wanted, rtol=1e-10)


@pytest.mark.parametrize("name", ["log_prior_grad", "prior_precision", "full_log_lik", "full_value_and_grad"])
def test_a_model_that_changes_a_method_runs_in_torch(name):
    data = target().data
    assert compile_loop(kernel(), Target(mhrun.Logistic(2, 0.5), data), 1, 1) is not None
    assert compile_loop(kernel(), Target(ClippedGradient(2, 0.5), data), 1, 1) is None
    of_user = type("OfUser", (mhrun.Logistic,), {name: lambda self, *args: None})
    assert compile_loop(kernel(), Target(of_user(2, 0.5), data), 1, 1) is None


@pytest.mark.parametrize("part", ["model", "proposal"])
def test_a_method_that_an_object_was_given_is_used(part):
    model, proposal = mhrun.Logistic(2, 0.5), mhrun.HamiltonianProposal(2)
    if part == "model":
        model.log_lik = lambda theta, rows: 0.05 * mhrun.Logistic.log_lik(model, theta, rows)
        theta = torch.ones(1, 2).double()
        rows = {name: field[None] for name, field in target().data.fields.items()}
        plain = mhrun.Logistic(2, 0.5).log_lik_and_grad(theta, rows)[1]
        assert torch.allclose(Gradients(model).log_lik_and_grad(theta, rows)[1], 0.05 * plain)
    else:
        proposal.follow = lambda *args: mhrun.HamiltonianProposal.follow(proposal, *args)
    assert compile_loop(kernel(proposal), Target(model, target().data), 1, 1) is None


def test_a_minibatch_with_a_surrogate_runs_in_torch():
    shared = kernel(pairing=mhrun.Shared(5))
    assert isinstance(compile_loop(shared, target(), 1, 1), GradientLoop)
    assert compile_loop(shared, target(surrogate="taylor1"), 1, 1) is None


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize(
    ("proposal", "pairing"),
    [
        *(
            (proposal, pairing)
            for proposal in (mhrun.LangevinProposal(), mhrun.ReversibleLangevinProposal(beta=1.5))
            for pairing in (mhrun.Stored(7), mhrun.Full(), mhrun.Shared(7))
        ),
        (mhrun.HamiltonianProposal(3), mhrun.Full()),
        (mhrun.HamiltonianProposal(3), mhrun.Shared(7)),
    ],
)
def test_a_kept_gradient_follows_the_temperature(temper, pairing, proposal, interpreted):
    """With a prior that matters, temperatures that change in each step, and noise at another one."""
    chains = 3
    shape = Shape(chains, target().model.names, 0, STEPS, 1, 1)
    fixed = mhrun.Fixed(step_size=0.02, temperature=1.0)
    plan = Plan({"all": fixed}, chains, 0, STEPS)
    method = Method("one", kernel(proposal, pairing), target(temper), plan, shape, 3, torch.float64)
    temperature = 1 + torch.rand(STEPS, chains, generator=torch.Generator().manual_seed(1)).double()
    step_size = 0.01 + 0.02 * torch.rand(STEPS, chains, generator=torch.Generator().manual_seed(2)).double()
    step_size = 3 * step_size.sqrt() if proposal.follows else step_size
    controls = Controls(step_size, temperature, 0.7 * temperature)
    records = [
        choose_executor(method, wish, None, 1).advance(method.first_state(), 1, controls)[1]
        for wish in ("torch", "compiled")
    ]
    for field in ("theta", "log_ratio", "accepted", "n_grad", "n_lik"):
        plain, fast = (np.asarray(record[field]) for record in records)
        assert np.allclose(plain, fast, rtol=1e-6, atol=1e-9), field
    assert 0 < np.mean(records[0]["accepted"]) < 1


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("pairing", [mhrun.Stored(7), mhrun.Full(), mhrun.Shared(7)])
def test_where_blocks_end_changes_no_bit_at_a_temperature_whose_inverse_is_rounded(
    temper, pairing, interpreted
):
    chains, temperature = 3, 49.0
    assert temperature * (1 / temperature) != 1
    shape = Shape(chains, target().model.names, 0, STEPS, 1, 1)
    plan = Plan({"all": mhrun.Fixed(step_size=0.5, temperature=temperature)}, chains, 0, STEPS)
    method = Method("one", kernel(pairing=pairing), target(temper), plan, shape, 3, torch.float64)
    executor, found = choose_executor(method, "compiled", None, 1), []
    for blocks in ((STEPS,), (5, 1, STEPS - 6)):
        state, done, parts = method.first_state(), 0, []
        for count in blocks:
            controls = method.plan.controls(method.plan.start(), done + 1, count)
            state, record = executor.advance(state, done + 1, controls)
            parts.append(np.array(record["theta"]))
            done += count
        found.append(np.concatenate(parts, 1))
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("proposal", "pairing"),
    [
        (mhrun.LangevinProposal(), mhrun.Stored(7)),
        (mhrun.LangevinProposal(), mhrun.Full()),
        (mhrun.LangevinProposal(), mhrun.Shared(7)),
        (mhrun.HamiltonianProposal(2), mhrun.Full()),
        (mhrun.HamiltonianProposal(2), mhrun.Shared(7)),
    ],
)
def test_threads_and_blocks_without_steps_change_no_bit(proposal, pairing, interpreted):
    """Chains have their own random numbers, whichever thread moves them, and a block of no steps computes nothing."""
    chains, found = 5, []
    control = controls(0.02, 1.3, chains=chains, steps=STEPS)
    no_steps = control.each(lambda c: c[:0])
    moves = kernel(proposal, pairing)
    for threads, is_begun_before in ((1, False), (3, False), (1, True)):
        state, _ = begin(moves, target("likelihood"), chains)
        loop = compile_loop(moves, target("likelihood"), KEY, threads)
        if is_begun_before:
            state, _ = loop.advance(state, 1, no_steps)
        _, record = loop.advance(state, 1, control)
        found.append(record)
    for other in found[1:]:
        for field in found[0]:
            assert np.array_equal(other[field], found[0][field], equal_nan=True), field
    assert len(np.unique(found[0]["theta"][:, -1, 0])) == chains


@pytest.mark.parametrize("wish", ["torch", "compiled"])
@pytest.mark.parametrize("proposal", [mhrun.LangevinProposal(), mhrun.HamiltonianProposal(2)])
def test_what_diverges(proposal, wish, interpreted):
    """Candidates beyond the finite numbers, and ends of trajectories whose log-ratio is below -1000, as in Stan."""
    shape = Shape(3, target().model.names, 0, STEPS, 1, 1)
    plan = Plan({"all": mhrun.Fixed(step_size=1.0, temperature=1.0)}, 3, 0, STEPS)
    method = Method("one", kernel(proposal), target(), plan, shape, 3, torch.float64)
    control = controls([1e308, 100.0, 0.01], 1.0, chains=3, steps=STEPS)
    with np.errstate(all="ignore"):
        _, record = choose_executor(method, wish, None, 1).advance(method.first_state(), 1, control)
    assert np.array_equal(record["diverging"], np.transpose([[True, proposal.follows, False]] * STEPS))
    assert np.isfinite(record["log_ratio"][1:]).all()
    assert (record["log_ratio"][1] < -1000).all()
    assert not np.any(record["accepted"][:2])


def test_the_ratio_of_langevin_moves_is_that_of_their_normal_densities():
    """log N(x; y + e g(y), 2 e tau) - log N(y; x + e g(x), 2 e tau)."""
    rng = np.random.default_rng(0)
    x, y, here, there = rng.normal(size=(4, 3))
    e, tau = 0.3, 1.7

    def log_density(to, origin, grad):
        return -np.sum((to - origin - e * grad) ** 2) / (4 * e * tau)

    found = langevin._log_ratio((), x, y, here, there, StepControls(e, tau))
    assert found == pytest.approx(log_density(x, y, there) - log_density(y, x, here), rel=1e-12)


def energy(theta):
    """U of the trajectories, whose gradient g = -U' is not linear."""
    return np.sum(theta**4) / 4 + theta[0] * theta[1]


def posterior_gradient(data, theta, out):
    out[:] = -(theta**3)
    out[0] -= theta[1]
    out[1] -= theta[0]


FACTOR = np.array([[0.7, 0.0], [0.4, 1.5]])


@pytest.mark.parametrize("factor", [None, np.diag([0.7, 1.5]), FACTOR], ids=["unscaled", "diagonal", "dense"])
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_a_trajectory_is_the_leapfrog_of_a_plain_loop(factor, jitter):
    """Neal (2011), equations 2.28 to 2.30; in scaled coordinates phi, with momenta of phi."""
    step, tau, count = 0.2, 1.7, 5
    proposal = mhrun.HamiltonianProposal(count, jitter)
    center, whole = (np.zeros(2), np.eye(2)) if factor is None else (np.array([0.3, -0.2]), factor)
    if factor is not None:
        is_dense = factor[1, 0] != 0
        scale = Scale(
            torch.from_numpy(center), torch.from_numpy(factor if is_dense else factor.diagonal().copy())
        )
        proposal = kernel(proposal).with_scale(scale).proposal
    form, control = proposal.native(), StepControls(step, tau)
    origin, grad, grad_at_end = np.array([0.4, -0.9]), np.empty(2), np.empty(2)
    posterior_gradient((), origin, grad)
    out, momenta = np.empty(2), np.empty((2, 2))
    first = momenta[0]
    sizes = []
    for k in range(20):
        draw = Draw(split_key(3), np.uint64(k), np.uint64(1))
        follow = form.follower(posterior_gradient)
        path = follow(form.args, (), origin, grad, control, draw, out, momenta)
        posterior_gradient((), out, grad_at_end)
        found = form.log_ratio(form.args, path, grad_at_end, control)
        size = path.step_size
        phi, p = np.linalg.solve(whole, origin - center), first.copy()
        for _ in range(count):
            for half in (True, False):
                at = np.empty(2)
                posterior_gradient((), center + whole @ phi, at)
                p = p + size / 2 * whole.T @ at
                if half:
                    phi = phi + size * p
        assert out == pytest.approx(center + whole @ phi, rel=1e-12)
        assert found == pytest.approx((first @ first - p @ p) / (2 * tau), rel=1e-9)
        assert abs(size / step - 1) <= jitter
        sizes.append(size)
    assert (np.ptp(sizes) > 0.2 * step) == (jitter > 0)
    loss = energy(origin) - energy(out) + tau * found  # of H: small, as a leapfrog almost keeps it
    assert abs(loss) < 0.05


def test_the_momenta_of_trajectories_have_the_variance_of_the_noise_temperature():
    """Of 4,000 in two dimensions: within 6 standard errors. False alarms: 1e-8."""
    form, tau, origin = mhrun.HamiltonianProposal(1).native(), 2.5, np.zeros(2)
    out, momenta = np.empty(2), np.empty((2, 2))
    first = momenta[0]
    drawn = []
    for k in range(4000):
        draw = Draw(split_key(7), np.uint64(k), np.uint64(0))
        follow = form.follower(posterior_gradient)
        follow(form.args, (), origin, np.zeros(2), StepControls(0.1, tau), draw, out, momenta)
        drawn.append(first.copy())
    square = np.square(drawn) / tau
    assert abs(square.mean() - 1) < 6 * math.sqrt(2 / square.size)
    assert abs(np.mean(drawn)) < 6 * math.sqrt(tau / square.size)


def test_a_trajectory_that_leaves_the_finite_numbers_ends_at_its_last_finite_point():
    form, origin, huge = (
        mhrun.HamiltonianProposal(4, 0.0).native(),
        np.array([1e200, 0.0]),
        np.array([-1e300, 0.0]),
    )
    out, momenta = np.empty(2), np.empty((2, 2))
    last = momenta[1]
    draw = Draw(split_key(7), np.uint64(1), np.uint64(0))
    with np.errstate(all="ignore"):
        follow = form.follower(posterior_gradient)
        path = follow(form.args, (), origin, huge, StepControls(1e10, 1.0), draw, out, momenta)
        found = form.log_ratio(form.args, path, huge, StepControls(1e10, 1.0))
    assert np.isfinite(out).all()
    assert np.isnan(last).all()
    assert math.isnan(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("proposal", "step"),
    [(mhrun.HamiltonianProposal(4), 0.25), (mhrun.LangevinProposal(), 0.02)],
    ids=["trajectories", "Langevin"],
)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_posterior_is_kept_in_machine_code(proposal, step, is_scaled):
    """Means and variances of chains that begin at draws of a normal posterior, tempered. See `significance`."""
    chains, steps, temperature, n = 4000, 25, 3.0, 24
    x = np.random.default_rng(2).normal(0.4, 1.5, n)
    posterior = Target(GaussianMean(3.0), Dataset.of(x))
    precision = 1 / 3 + n
    mean, sd = x.sum() / precision, math.sqrt(temperature / precision)
    moves = kernel(proposal)
    if is_scaled:
        of_data = (
            torch.tensor([mean], dtype=torch.float64),
            torch.tensor([precision**-0.5], dtype=torch.float64),
        )
        moves, step = moves.with_scale(Scale(*of_data)), 0.8
    begun = torch.from_numpy(mean + sd * np.random.default_rng(4).normal(size=(chains, 1)))
    state, _ = begin(moves, posterior, begun)
    control = controls(step, temperature, chains=chains)
    _, thetas, _ = advance_compiled(moves, posterior, state, control, steps, KEY)
    assert_mean(thetas[..., 0].mean(1), mean, "mean")
    assert_mean(((thetas[..., 0] - mean) ** 2).mean(1), sd**2, "variance")
    assert 0.3 < np.mean(np.abs(np.diff(thetas[..., 0], axis=1)) > 0) < 1


@pytest.mark.parametrize("normalised", [True, False])
def test_the_ratio_of_reversible_moves_is_that_of_mixtures_of_two_normal_densities(normalised):
    """Wu, Wang & Wong (2020), equation 7, and without the factor beta^-D."""
    rng = np.random.default_rng(1)
    x, y, here, there = rng.normal(size=(4, 3))
    e, tau, beta = 0.3, 1.7, 1.4

    def log_density(to, origin, grad):
        forward = math.exp(-np.sum((to - origin - e * grad) ** 2) / (4 * e * tau))
        backward = math.exp(-np.sum((to - origin + e * grad) ** 2) / (4 * e * tau * beta**2))
        return math.log(0.5 * forward + 0.5 * backward * (beta**-3 if normalised else 1))

    args = (beta, normalised)
    found = reversible_langevin._log_ratio(args, x, y, here, there, StepControls(e, tau))
    assert found == pytest.approx(log_density(x, y, there) - log_density(y, x, here), rel=1e-12)


def test_a_reversible_move_is_forward_or_backward_with_half_of_the_probability_each():
    """With little noise: all moves are along the gradient, up or down. False alarms: 1e-9."""
    origin, grad, out = np.zeros(2), np.array([1.0, 2.0]), np.empty(2)
    ups, draws = 0, 2000
    for step in range(draws):
        draw = Draw(split_key(11), np.uint64(step), np.uint64(0))
        reversible_langevin._propose((3.0, True), origin, grad, StepControls(0.1, 1e-12), draw, out)
        assert np.allclose(abs(out), 0.1 * grad, atol=1e-4)
        ups += out[0] > 0
    assert abs(ups - draws / 2) < 6.2 * math.sqrt(draws / 4)
