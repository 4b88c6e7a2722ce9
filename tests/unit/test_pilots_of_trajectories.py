"""Pilots of Hamiltonian trajectories: their length, step size and scale."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from kit import short_run
from regressions import N, found, full, run

import mhrun
from mhrun.diagnostics.chains import mcse
from mhrun.engine.landscape.curvature import is_degenerate
from mhrun.engine.pilot import pilot
from mhrun.engine.pilot.acceptance import Tuning
from mhrun.engine.pilot.adaptation import is_fitting, reach, share_of_draws
from mhrun.errors import Refusal
from mhrun.store.netcdf import flat_draws
from mhrun.target import Target

pytestmark = pytest.mark.long


def of_density(log_density, dim, leapfrog_steps="auto"):
    """Return what a pilot finds for HMC on a log density (C, D) -> (C,)."""
    from mhrun.engine.assemble import assembled
    from mhrun.schedules.tuned import Tuned

    def log_lik(theta, rows):
        return log_density(theta)[:, None]

    model = mhrun.FunctionModel(log_lik, [0.3] * dim, batched=True, start_sd=1.0)
    counts = {"chains": 4, "warmup": 100, "steps": 10, "thin": 1, "thin_stats": None, "seed": 0}
    schedules = {"step_size": Tuned("auto", "auto"), "temperature": mhrun.Fixed(temperature=1.0)}
    target = Target(model, mhrun.NoData().load())
    kernel = full(mhrun.HamiltonianProposal(leapfrog_steps))
    settings = {"dtype": torch.float64, "starts": None, "monitor": None}
    return pilot(assembled("a", kernel, target, schedules, counts, **settings))


@pytest.mark.slow
def test_a_trajectory_is_a_quarter_of_a_period():
    """On a normal target: L = round(pi / 2 / e) for a step size e of acceptance 0.8 or somewhat more."""
    sd = torch.tensor([0.1, 1.0, 7.0])
    about = of_density(lambda theta: -0.5 * (theta / sd.to(theta)).square().sum(-1), 3)
    assert about.facts["leapfrog_steps"] * about.facts["step_size"] == pytest.approx(np.pi / 2)
    assert 0.6 < about.facts["acceptance"] <= 0.95
    assert "rounds" not in about.facts  # the curvature fits
    assert about.scale.factor.diagonal().numpy() == pytest.approx(sd.numpy(), rel=1e-3)
    assert about.facts["n_lik"] > 0
    given = of_density(lambda theta: -0.5 * theta.square().sum(-1), 2, 3)
    assert given.leapfrog_steps is None
    assert abs(given.facts["acceptance_found"] - 0.8) < 0.1


@pytest.mark.slow
def test_a_scale_comes_from_draws_where_the_mode_has_no_curvature():
    """exp(-x^4 / 4) and N(0, 0.5^2): standard deviations of 0.82 and 0.5; of some hundred correlated draws."""
    about = of_density(lambda theta: -(theta[:, 0] ** 4) / 4 - 2 * theta[:, 1] ** 2, 2)
    assert about.facts["rounds"] > 0
    assert about.scale.factor.diagonal().numpy() == pytest.approx([0.82, 0.5], rel=0.6)
    assert about.facts["leapfrog_steps"] <= 4
    for curvature in ([1.0, 0.0], [1.0, -1.0]):  # flat, and a saddle
        assert is_degenerate(torch.diag(torch.tensor(curvature)))
    assert not is_degenerate(torch.diag(torch.tensor([1.0, 1e-4])))


@pytest.mark.slow
def test_a_run_of_trajectories_reads_its_pilot_again(tmp_path, capsys):
    def ran():
        kernel = full(mhrun.HamiltonianProposal())
        return run(kernel, "normal", folder=tmp_path, steps=20, warmup=50)

    first = ran()
    steps = f"{found(first)['leapfrog_steps']} leapfrog step"
    assert re.search(
        rf"aimed at acceptance 0\.\d\d; 0\.\d\d after rounding the trajectory to {steps}",
        capsys.readouterr().err,
    )
    each = np.diff(first["sample_stats"]["n_grad"])
    assert (each == N * found(first)["leapfrog_steps"]).all()
    (tmp_path / "done.json").unlink()
    (tmp_path / "trace.nc").unlink()
    assert np.array_equal(ran()["posterior"]["theta"], first["posterior"]["theta"])


@short_run
def test_divergent_trajectories_are_reported():
    with pytest.warns(UserWarning, match="trajectories diverged: the step size is too large"):
        mhrun.sample(
            lambda theta: -(theta**4).sum(),
            None,
            full(mhrun.HamiltonianProposal(8)),
            start=[0.1],
            step_size=0.9,
            steps=50,
            warmup=0,
        )


def test_leapfrog_steps_of_many_parameters_are_to_be_given():
    with pytest.raises(
        Refusal, match=r"leapfrog_steps from the curvature, for up to 1,000 parameters, not 1,001"
    ):
        of_density(lambda theta: -theta.square().sum(-1), 1_001)


def test_the_slowest_coordinate_makes_trajectories_longer(rng):
    """Draws of a coordinate of standard deviation s, one trajectory of length l apart, correlate by cos(l / s)."""
    noise = rng.normal(size=(4, 20_000, 3))
    draws = noise.copy()
    correlation = np.array([0.0, 0.8, -0.5])
    for t in range(1, draws.shape[1]):
        draws[:, t] = correlation * draws[:, t - 1] + np.sqrt(1 - correlation**2) * noise[:, t]

    def of(accepted, steps=4):
        size, theta = torch.full((4,), 0.25), torch.zeros(4, 3)
        return Tuning(size, theta, 0.8, None, steps, torch.from_numpy(draws), {"acceptance_found": accepted})

    assert reach(of(1.0)) == pytest.approx(1.0 / np.arccos(0.8), rel=0.03)
    # Rejected candidates make draws alike, and no trajectory too short.
    assert reach(of(0.8)) == pytest.approx(1.0 / np.arccos(0.75), rel=0.03)
    # Twelve steps at most are made while a step size is tuned.
    assert reach(of(1.0, 40)) == pytest.approx(3.0 / np.arccos(0.8), rel=0.03)


def test_a_single_variance_needs_few_draws_whatever_the_dimension():
    draws = torch.zeros(4, 100, 900)  # which count as 100
    assert share_of_draws(draws, dense=True) == pytest.approx(100 / (100 + 900))
    assert share_of_draws(draws, dense=False) == pytest.approx(100 / (100 + 5))


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 10, 50, 100, 300, 1_000])
def test_a_dense_scale_is_judged_by_what_so_many_draws_can_tell(rng, dim):
    """The least and largest eigenvalues of 552 draws of N(0, I) are 0.07 and 3.0 in 300 dimensions."""

    def fits(sds):
        draws = rng.normal(size=(552, dim)) * sds
        return is_fitting(torch.from_numpy(draws.T @ draws / 552), 552)

    one = np.ones(dim)
    assert all(fits(one) for _ in range(10))
    one[0] = 4.0
    assert not fits(one)
    turned = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    draws = rng.normal(size=(552, dim)) * one @ turned  # in a direction of all coordinates
    assert not is_fitting(torch.from_numpy(draws.T @ draws / 552), 552)
    assert not fits(np.full(dim, 0.5))


@pytest.mark.parametrize(("correlation", "dense"), [(0.5, False), (0.995, True)])
def test_more_than_fifty_parameters_have_a_dense_scale_if_they_are_correlated(correlation, dense):
    """Thirty pairs: in units of the diagonal the condition number is (1 + r) / (1 - r), 3 or 399."""

    def log_density(theta):
        a, b = theta[:, :30], theta[:, 30:]
        return -0.5 * ((a - correlation * b).square() / (1 - correlation**2) + b.square()).sum(-1)

    about = of_density(log_density, 60)
    assert about.scale.dense is dense
    assert about.facts["leapfrog_steps"] <= 12
    assert "rounds" not in about.facts


@pytest.mark.slow
def test_a_dense_scale_that_is_wrong_in_size_is_changed_in_size():
    """A Student t of 5 degrees of freedom in 60 dimensions: variances are 22 times those of its mode's curvature.

    A covariance matrix of 60 coordinates cannot be estimated from the draws of a pilot, its size can.
    """

    def log_density(theta):
        a, b = theta[:, :30], theta[:, 30:]
        squares = ((a - 0.995 * b).square() / (1 - 0.995**2) + b.square()).sum(-1)
        return -0.5 * (5 + 60) * torch.log1p(squares / 5)

    about = of_density(log_density, 60)
    assert about.scale.dense
    assert about.facts["rounds"] > 0
    assert about.facts["leapfrog_steps"] <= 12
    sizes = about.scale.factor.square().sum(1) * (5 + 60) / 5  # in units of those of the curvature
    assert 5 < float(sizes[30:].mean()) < 80  # 22


@pytest.mark.slow
def test_a_dense_scale_that_is_wrong_in_some_directions_gives_way_to_a_diagonal_one():
    """Sixty coordinates, in three directions of which the mode is sharp: the curvature is 10 and the variance 3."""
    turn = torch.linalg.qr(torch.from_numpy(np.random.default_rng(3).normal(size=(60, 60)))).Q

    def log_density(theta):
        turned = theta @ turn.to(theta.dtype)
        sharp, a, b = turned[:, :3], turned[:, 4::2], turned[:, 5::2]
        correlated = ((a - 0.995 * b).square() / (1 - 0.995**2) + b.square()).sum(-1) + turned[:, 3].square()
        return -0.1 * ((1 + (sharp / 0.1).square()).sqrt() - 1).sum(-1) - 0.5 * correlated

    about = of_density(log_density, 60)
    assert not about.scale.dense
    assert about.facts["rounds"] > 0


@pytest.mark.slow
def test_hundreds_of_effects_and_their_mean(rng):
    """A normal posterior in 303 dimensions, in closed form, whose mean has three times its conditional spread.

    Of 606 standard scores the largest is above 5 with probability 4e-4 if they were normal; the seed is fixed.
    """
    groups, each, tau, sigma = 300, 8, 0.5, 1.0
    group = np.repeat(np.arange(groups), each)
    x = rng.normal(size=(len(group), 2))
    y = 0.3 + tau * rng.normal(size=groups)[group] + x @ [0.5, -0.2] + sigma * rng.normal(size=len(group))
    design = np.column_stack([np.ones(len(y)), x, np.eye(groups)[group]])
    precision = design.T @ design / sigma**2 + np.diag([0.01, 1, 1, *[tau**-2] * groups])
    covariance = np.linalg.inv(precision)
    mean, sd = covariance @ (design.T @ y) / sigma**2, np.sqrt(covariance.diagonal())
    assert sd[0] * np.sqrt(precision[0, 0]) > 1.7

    def log_lik(theta, rows):
        located = theta.mean + theta.effects[rows.group] + rows.x @ theta.slopes
        return torch.distributions.Normal(located, sigma).log_prob(rows.y)

    parameters = {
        "mean": "Normal(0, 10)",
        "slopes": {"shape": 2, "prior": "Normal(0, 1)"},
        "effects": {"shape": groups, "prior": f"Normal(0, {tau})"},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # neither R-hat nor ESS, nor divergences
        trace = mhrun.sample(log_lik, {"group": group, "x": x, "y": y}, parameters=parameters, seed=2)
    draws = flat_draws(trace["posterior"])
    for statistic, wanted in ((draws, mean), (np.square(draws - mean), sd**2)):
        errors = np.array([mcse(statistic[..., d]) for d in range(groups + 3)])
        assert (np.abs(statistic.mean((0, 1)) - wanted) / errors).max() < 5


@pytest.mark.slow
def test_correlated_parameters_get_a_dense_scale_and_the_line_names_both_scales(capsys):
    """A Gaussian process of 60 points, whose neighbours are nearly equal; in closed form."""
    t = np.linspace(0, 1, 60)
    covariance = np.exp(-0.5 * ((t[:, None] - t) / 0.15) ** 2) + 1e-3 * np.eye(60)
    prior = torch.distributions.MultivariateNormal(torch.zeros(60).double(), torch.from_numpy(covariance))
    data = {"place": np.arange(60), "y": np.sin(6 * t)}

    def log_lik(theta, rows):
        return torch.distributions.Normal(theta.f[rows.place], 0.3).log_prob(rows.y)

    settings = {"parameters": {"f": prior}, "seed": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mhrun.sample(log_lik, data, steps=10, warmup=50, precondition="diagonal", **settings)
    assert "precondition=dense may need few steps" in capsys.readouterr().err
    trace = mhrun.sample(log_lik, data, **settings)
    assert "precondition=dense (condition number" in capsys.readouterr().err
    posterior = np.linalg.inv(np.linalg.inv(covariance) + np.eye(60) / 0.09)
    mean, draws = posterior @ data["y"] / 0.09, flat_draws(trace["posterior"])
    errors = np.array([mcse(draws[..., d]) for d in range(60)])
    assert (np.abs(draws.mean((0, 1)) - mean) / errors).max() < 4.5
