"""The scale that a pilot takes from a mode, or from draws where the posterior is not normal about it."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit import short_run
from regressions import found
from torch.distributions import Normal

import mhrun
from mhrun.diagnostics.chains import rhat
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.pilot.adaptation import scaled_covariance
from mhrun.engine.pilot.sentences import line
from mhrun.engine.pilot.start import explored_for, scaled_start
from mhrun.target import Target
from mhrun.types.scale import Scale

pytestmark = short_run


def judged_by_draws_up_to(data, monkeypatch):
    """Let trajectories judge scales with so many data at most."""
    for name in ("_MOST_DATA", "_MOST_IF_FLAT"):
        monkeypatch.setattr(f"mhrun.engine.pilot.trajectories.{name}", data)


@pytest.mark.slow
@pytest.mark.parametrize(("flat", "data"), [(True, 10), (True, 500), (False, 10)])
def test_a_direction_that_nothing_determines_is_named(flat, data, capsys, monkeypatch):
    """A parameter that nothing determines, and the same with a prior."""
    judged_by_draws_up_to(data, monkeypatch)
    x = torch.linspace(-1, 1, 500)
    prior = {} if flat else {"log_prior": lambda theta: -0.5 * (theta[1] / 3) ** 2}
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mhrun.sample(
            lambda theta, row: -0.5 * (row - theta[0]) ** 2,
            x,
            kernel,
            start=[0.0, 0.0],
            steps=20,
            warmup=50,
            **prior,
        )
    err = capsys.readouterr().err
    assert ("The log posterior does not fall off along" in err) == flat
    assert any("The log posterior does not fall off along" in str(one.message) for one in caught) == flat
    assert "from draws (" not in err  # no scale fits draws of an improper density


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["random walk", "dynamics"])
def test_features_in_very_different_units_keep_the_scale_of_the_mode(kernel):
    """The posterior is normal: sds are those of least squares, though the condition number is 1e9."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2)) * np.array([1.0, 3e4])
    y = x @ np.array([0.5, 1e-4]) + rng.normal(size=500)
    kernels = {
        "random walk": mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        "dynamics": mhrun.Unadjusted(mhrun.SGLD(), m=250),
    }
    trace = mhrun.sample(
        lambda theta, rows: -0.5 * (rows.y - rows.x @ theta) ** 2,
        {"x": x, "y": y},
        kernels[kernel],
        start=[0.0, 0.0],
        steps=3_000,
        warmup=500,
        seed=1,
    )
    assert found(trace)["condition"] > 1e7
    assert "rounds" not in found(trace)
    draws = trace["posterior"]["theta"].values
    sd = np.sqrt(np.diag(np.linalg.inv(x.T @ x)))
    assert draws.std((0, 1)) == pytest.approx(sd, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["random walk", "dynamics"])
def test_a_hierarchical_model_in_centred_form_gets_its_scale_from_draws(kernel):
    """The density grows without bound as the spread of the effects goes to 0, where a search for a mode ends."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(8), 20)
    y = rng.normal(0.5 * rng.normal(size=8)[group], 1.0)
    kernels = {
        "random walk": mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        "dynamics": mhrun.Unadjusted(mhrun.SGLD(), m=80),
    }
    trace = mhrun.sample(
        lambda theta, rows: -0.5 * (rows.y - theta.effects[rows.group.long()]) ** 2,
        {"y": y, "group": group},
        kernels[kernel],
        parameters={"tau": torch.distributions.HalfNormal(1.0), "effects": 8},
        log_prior=lambda theta: torch.distributions.Normal(0.0, theta.tau).log_prob(theta.effects).sum(),
        steps=4_000,
        warmup=500,
        seed=1,
    )
    facts = found(trace)
    assert facts["condition"] < 1e4
    assert facts["rounds"] >= 1
    means = trace["posterior"]["effects"].mean(("chain", "draw")).to_numpy()
    of_groups = np.array([y[group == g].mean() for g in range(8)])
    shrunk = means @ of_groups / (of_groups @ of_groups)
    assert 0.5 < shrunk < 1.0
    rhats = [rhat(trace["posterior"]["effects"].values[..., g]) for g in range(8)]
    assert max(rhats) < 1.1


GROUP = np.repeat(np.arange(8), 20)
Y = np.random.default_rng(0).normal(0.5 * np.random.default_rng(1).normal(size=8)[GROUP], 1.0)
HIERARCHY = {
    "parameters": {"tau": "HalfNormal(1)", "effects": 8},
    "log_prior": lambda theta: torch.distributions.Normal(0.0, theta.tau).log_prob(theta.effects).sum(),
}


def hierarchical(kernel, **settings):
    return mhrun.sample(
        lambda theta, rows: -0.5 * (rows.y - theta.effects[rows.group.long()]) ** 2,
        {"y": Y, "group": GROUP},
        kernel,
        **HIERARCHY,
        **({"steps": 20, "warmup": 50, "seed": 1} | settings),
    )


@pytest.mark.parametrize("rounds", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_scale_is_taken_if_the_last_draws_fit_it(rounds, monkeypatch):
    """Also if that is so after the last change that is allowed: the second, here."""
    monkeypatch.setattr("mhrun.engine.pilot.adaptation.ROUNDS", rounds)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    assert found(hierarchical(kernel))["rounds"] == 2


@pytest.mark.slow
def test_what_the_trajectories_cost_is_counted(monkeypatch):
    """A method without gradients has those of the trajectories, and no likelihoods besides its own."""
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    with_draws = found(hierarchical(kernel))
    judged_by_draws_up_to(10, monkeypatch)
    without = found(hierarchical(kernel))
    assert "rounds" in with_draws
    assert "rounds" not in without
    # A leapfrog step of 4 chains on 160 data at least
    assert with_draws["n_grad"] > without["n_grad"] + 160 * 4 * 175
    assert with_draws["n_lik"] < 2 * without["n_lik"] + 160 * 4 * 2000


@pytest.mark.slow
def test_a_ladder_gets_a_scale_at_its_temperatures():
    kernel = mhrun.ReplicaExchange(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        mhrun.Full(),
        mhrun.Metropolis(),
        rungs=2,
    )
    trace = hierarchical(kernel, temperature=[1.0, 4.0], chains=8, steps=4_000, warmup=500)
    assert "rounds" in found(trace)
    cold = trace["posterior"]["effects"].values[::2]
    assert max(rhat(cold[..., g]) for g in range(8)) < 1.1
    means, of_groups = cold.mean((0, 1)), np.array([Y[g == GROUP].mean() for g in range(8)])
    assert 0.3 < means @ of_groups / (of_groups @ of_groups) < 1.0


NON_CENTRED = {"tau": "HalfNormal(1)", "effects": {"shape": 8, "prior": "Normal(0, 1)"}}


def non_centred(kernel, **settings):
    return mhrun.sample(
        lambda theta, rows: -0.5 * (rows.y - theta.tau * theta.effects[rows.group.long()]) ** 2,
        {"y": Y, "group": GROUP},
        kernel,
        parameters=NON_CENTRED,
        **({"steps": 20, "warmup": 50, "seed": 1} | settings),
    )


KERNELS = {
    "random walk": lambda: mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
    "langevin": lambda: mhrun.MetropolisHastings(mhrun.LangevinProposal(), mhrun.Full(), mhrun.Metropolis()),
    "dynamics": lambda: mhrun.Unadjusted(mhrun.SGLD(), m=80),
}


@pytest.mark.slow
def test_a_hierarchical_model_in_non_centred_form_gets_its_scale_from_draws(capsys):
    """Its mode is proper, but one standard deviation of the curvature there is far from one of the posterior."""
    facts = found(non_centred(KERNELS["dynamics"]()))
    assert facts["rounds"] >= 1
    assert facts["doubt"] is None
    assert "precondition=dense from draws (condition number" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_with_that_scale_chains_agree_and_effects_are_shrunk(kernel):
    trace = non_centred(KERNELS[kernel](), steps=8_000, warmup=1_000)
    assert found(trace)["rounds"] >= 1
    tau, effects = trace["posterior"]["tau"].values, trace["posterior"]["effects"].values
    of_group = tau[..., None] * effects
    assert max(rhat(of_group[..., g]) for g in range(8)) < 1.05
    assert rhat(tau) < 1.05
    shrunk = of_group.mean((0, 1)) @ (means := np.array([Y[g == GROUP].mean() for g in range(8)]))
    assert 0.5 < shrunk / (means @ means) < 1.0


@pytest.mark.slow
def test_for_many_data_the_pilot_warns_that_the_scale_may_be_far_off(capsys, monkeypatch):
    judged_by_draws_up_to(100, monkeypatch)
    facts = found(non_centred(KERNELS["random walk"]()))
    assert facts["doubt"] == "skewed"
    assert "rounds" not in facts
    assert "The posterior is far from normal about the mode that was found" in capsys.readouterr().err


@pytest.mark.slow
def test_hmc_is_not_advised_to_use_hmc(capsys):
    trace = non_centred(None)
    assert found(trace)["doubt"] is None
    assert "far from normal" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_scale_that_fits_draws_stays(monkeypatch):
    """A nearly normal posterior needs no draws; where they are made, they change the count of gradients alone."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def facts_of_run():
        return mhrun.sample(
            lambda theta, rows: rows[:, 0] * theta[0] - torch.nn.functional.softplus(rows @ theta),
            x,
            KERNELS["random walk"](),
            start=[0.0, 0.0, 0.0],
            log_prior=lambda theta: -theta.square().sum() / 8,
            steps=20,
            warmup=50,
        )

    without = facts_of_run()
    monkeypatch.setattr("mhrun.engine.pilot.start._LARGEST_SPREAD", 0.0)
    judged = facts_of_run()
    assert np.array_equal(without["posterior"]["theta"].values, judged["posterior"]["theta"].values)
    assert found(judged)["n_grad"] > found(without)["n_grad"] + 50 * 4 * 175
    assert {k: v for k, v in found(judged).items() if k != "n_grad"} == {
        k: v for k, v in found(without).items() if k != "n_grad"
    }


@pytest.mark.parametrize("step_size", [0.01, 5.0])
@pytest.mark.parametrize("length", [{"leapfrog_steps": 3}, {}], ids=["3 steps", "open"])
def test_a_given_step_size_decides_nothing_of_the_scale(step_size, length, capsys):
    """Draws of trajectories that hardly move, or are all rejected, are no draws of the target.

    That is normal, so that the scale of the mode fits.
    """
    sd = torch.tensor([1.0, 100.0], dtype=torch.float64)
    proposal = mhrun.HamiltonianProposal(**length)
    trace = mhrun.sample(
        lambda theta: -0.5 * (theta / sd).square().sum(),
        None,
        kernel=mhrun.MetropolisHastings(proposal, mhrun.Full(), mhrun.Metropolis()),
        start=[0.5, 0.5],
        precondition="diagonal",
        step_size=step_size,
        steps=10,
        warmup=0,
    )
    assert "rounds" not in found(trace)
    assert f"step size {step_size:g} as given" in (line := capsys.readouterr().err)
    assert "; 0.80 is efficient; measured in 25 steps." in line


def test_draws_at_temperature_4_have_half_the_sd_at_temperature_1():
    scale = Scale(torch.zeros(1), torch.ones(1))
    draws, temperature = torch.tensor([[[-2.0], [2.0]]]).double(), torch.tensor([4.0])
    assert scaled_covariance(scale, draws, temperature, within=True).tolist() == [[1.0]]


def test_points_to_begin_at_are_as_wide_as_the_temperature_makes_the_target():
    """Of a normal target all are as far off as drawn: ten times as far at T = 100."""
    data = mhrun.Dataset({"x": torch.zeros(1, 1)})
    model = mhrun.FunctionModel(lambda theta, rows: -0.5 * theta.square().sum() + rows["x"][:, 0], [0.0] * 10)
    method = SimpleNamespace(
        target=Target(model, data),
        kernel=KERNELS["random walk"](),
        precondition="dense",
        starts=[0.0] * 10,
        reads=50 * 100,
    )
    first = torch.zeros(50, 10, dtype=torch.float64)

    def begun(t: float) -> torch.Tensor:
        found = explored_for(method, Surface(method.target, t, 0), first, key=1)
        return scaled_start(method, found, first, torch.full((50,), t), key=1).theta

    cold, hot = begun(1.0), begun(100.0)
    assert cold.std() > 1.5
    assert hot.numpy() == pytest.approx(10 * cold.numpy(), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("dim", "size"), [(200, 20_000), (400, 12_500), (1_000, 5_000), (1_001, 20_000)])
def test_a_curvature_of_many_parameters_is_of_fewer_data(dim, size):
    """Two gradients for each parameter on 20,000 data of 1,000 features took minutes."""
    target = SimpleNamespace(
        n=30_000, dim=dim, device=torch.device("cpu"), model=mhrun.Logistic(dim, prior_variance=1.0)
    )
    assert Surface(target, 1.0, 0).size == size


@pytest.mark.slow
@pytest.mark.parametrize(("effects", "doubt"), [(False, None), (True, "skewed")])
def test_a_posterior_of_many_parameters_is_in_doubt_for_its_form_alone(rng, effects, doubt, monkeypatch):
    judged_by_draws_up_to(100, monkeypatch)
    dim, each = 400, 5
    if effects:
        group = np.repeat(np.arange(dim), each)
        data = {"group": group, "y": 0.5 * rng.normal(size=dim)[group] + rng.normal(size=len(group))}

        def log_lik(theta, rows):
            return Normal(theta.sd * theta.z[rows.group], 1.0).log_prob(rows.y)

        parameters = {"sd": "HalfNormal(1)", "z": {"shape": dim, "prior": "Normal(0, 1)"}}
        model, settings = log_lik, {"parameters": parameters}
    else:
        x = rng.normal(size=(8_000, dim))
        y = np.where(rng.random(8_000) < 1 / (1 + np.exp(-x @ rng.normal(size=dim) / dim**0.5)), 1, -1)
        model, data, settings = mhrun.Logistic(dim, prior_variance=1.0), {"x": x, "y": y}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(model, data, KERNELS["random walk"](), steps=20, warmup=60, **settings)
    assert found(trace)["doubt"] == doubt


@pytest.mark.parametrize(
    ("doubt", "surrogate", "warns"), [("skewed", True, True), ("skewed", False, False), (None, True, False)]
)
def test_a_control_variate_far_from_its_mode_gets_a_warning(doubt, surrogate, warns):
    facts = {
        "step_size": 0.1,
        "m": None,
        "why": "as it is.",
        "n_grad": 100,
        "doubt": doubt,
        "control_variate": surrogate,
    }
    assert ("takes little noise off where the draws are" in line("one", facts)) == warns


@pytest.mark.slow
def test_a_dynamics_on_a_network_gets_no_scale_by_default():
    """The curvature at a mode is small in some directions and large elsewhere on them: all chains were lost."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None]
    data = {"x": x, "y": torch.sin(3 * x[:, 0]) + 0.2 * torch.randn(60)}
    module = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model = mhrun.ModuleModel(
        module,
        likelihood=lambda output, rows: Normal(output[:, 0], 0.2).log_prob(rows["y"]),
        prior_variance=1.0,
    )
    trace = mhrun.sample(model, data, mhrun.Unadjusted(mhrun.SGHMC(), 30), seed=1, steps=300, warmup=300)
    assert "scale" not in found(trace)
    assert trace["sample_stats"]["valid"].to_numpy().all()
