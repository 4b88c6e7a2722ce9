"""What the arena's reports compute, against other ways to compute it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mhrun
from mhrun.cli.configuration.compose import compose_config
from mhrun.data import Dataset
from mhrun.data.regression_sample import RegressionSample
from mhrun.diagnostics.grid import Estimate
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import UserError
from mhrun.models.logistic import Logistic
from mhrun.paths import experiment_module
from mhrun.report.efficiency import costs
from mhrun.report.run import Run
from mhrun.target import Target

errors = experiment_module("arena.errors")
truth = experiment_module("arena.truth")
growth = experiment_module("arena.growth")
networks = experiment_module("arena.networks")


def exact_truth(means):
    zero = np.zeros(1)
    return truth.Truth(np.array(means), np.full(len(means), 2.0), 0.0, zero, zero + 1, False, 0, 1.0)


@pytest.mark.slow
def test_importance_sampling_agrees_with_quadrature_within_its_stated_error(monkeypatch):
    """20 seeds on a skewed posterior in one dimension; squares over stated ones are 1 on average, 0.3 about it."""
    monkeypatch.setattr(truth, "LEAST", 40_000)
    monkeypatch.setattr(truth, "MOST", 40_000)
    target = Target(Logistic(1, prior_variance=4.0, start="zeros"), RegressionSample(150, 1, signal=1.0))
    theta = np.linspace(-10, 20, 20_001)
    x, y = (target.data.fields[name].double().numpy() for name in ("x", "y"))
    log_density = -np.logaddexp(0, -y * (theta[:, None] * x[:, 0])).sum(axis=1) - theta**2 / 8
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    square = []
    for seed in range(20):
        found = truth.by_importance(target, seed)
        u = (theta - found.center[0]) / found.scale[0]
        mean = np.array([mass @ u, mass @ u**2])
        sd = np.sqrt([mass @ u**2 - mean[0] ** 2, mass @ u**4 - mean[1] ** 2])
        assert found.sd == pytest.approx(sd, rel=0.1)
        square.append(np.mean(((found.mean - mean) / sd) ** 2) / found.error)
    assert 0.25 < np.mean(square) < 2.4
    assert found.effective < 0.999


def test_errors_of_a_constrained_parameter_are_in_the_coordinates_of_chains():
    """A scale: draws are of s, and the truth is of log s, whose posterior is that of an inverse gamma variable."""
    x = torch.from_numpy(np.random.default_rng(3).normal(0.0, 0.6, 400))
    model = mhrun.FunctionModel(
        lambda theta, batch: -torch.log(theta.s) - 0.5 * (batch.x / theta.s) ** 2,
        parameters={"s": "LogNormal(0, 10)"},
    )
    shape, rate = (
        len(x) / 2,
        float((x**2).sum()) / 2,
    )  # of 1/s^2, but for the prior, which is nearly flat in log s
    draws = np.random.default_rng(4).gamma(shape, 1 / rate, (4, 5000, 1)) ** -0.5
    run = SimpleNamespace(target=Target(model, Dataset({"x": x})), draws=lambda method: draws)
    found = truth.by_importance(run.target, 1)
    values = found.functions(truth.coordinates(run, "any")).reshape(-1, 2)
    # 20,000 independent draws: 5 standard errors.
    assert np.abs((values.mean(0) - found.mean) / found.sd).max() < 5 / np.sqrt(20_000)
    assert values.std(0) == pytest.approx(found.sd, rel=0.05)


def test_the_error_of_independent_draws_is_one_over_the_root_of_their_number():
    """1e-5 for the whole, by the standard error that is reported."""
    rng = np.random.default_rng(2)
    draws = rng.normal(3.0, 2.0, (200, 400, 3))
    spent = errors.Cost(np.arange(1, 401) * 50.0, np.arange(1, 401) * 1e-3, 0.0)
    found = errors.course(spent, draws, exact_truth([3.0] * 3))
    count = found.evaluations / 50
    assert (np.abs(found.error - count**-0.5) < 5.2 * found.se).all()
    assert found.seconds == pytest.approx(count * 1e-3)
    size = errors.effective(draws)
    assert isinstance(size, Estimate)
    assert 0.85 * 200 * 400 < size.value <= 200 * 400
    biased = errors.course(spent, draws + 1.0, exact_truth([3.0] * 3))
    assert biased.error[-1] == pytest.approx((0.25 + 1 / 400) ** 0.5, rel=0.05)


def test_the_cost_of_an_error_is_interpolated_and_has_an_error():
    found = errors.Course(
        np.array([10.0, 1000.0]), np.array([1.0, 100.0]), np.array([1.0, 0.1]), np.array([0.1, 0.01])
    )
    assert errors.cost_of(found, "evaluations", 0.316228).value == pytest.approx(100, rel=1e-4)
    assert errors.cost_of(found, "seconds", 0.316228).value == pytest.approx(10, rel=1e-4)
    assert errors.cost_of(found, "evaluations", 0.1).se == pytest.approx(200)
    assert np.isnan(errors.cost_of(found, "evaluations", 0.05).value)


def test_exponents_of_growth_are_those_of_powers():
    found = growth.exponent({10: Estimate(30.0, 3.0), 1000: Estimate(300.0, 30.0)})
    assert found.value == pytest.approx(0.5)
    assert found.se == pytest.approx(0.1 * 2**0.5 / np.log(100))
    assert np.isnan(growth.exponent({10: 3.0}).value)


@pytest.mark.slow
def test_costs_are_those_of_one_chain_and_the_set_up_is_shared(outputs):
    others = (
        "mint",
        "penalty",
        "mhminibatch",
        "austere",
        "tunamh",
        "sghmc",
        "mala",
        "penalty_cv",
        "smh1",
        "mh_ss",
        "zig_zag",
        "hmc",
    )
    words = ["scale=smoke", "chains=3", "warmup=60", "data.n=80", "model.dim=2", "thin=5", "executor=torch"]
    words += [f"scales.smoke.{length}=20" for length in ("full", "few", "gradient")]
    words += [f"runtime.outputs={outputs}", *(f"~methods.{method}" for method in others)]
    run = Run(run_experiment(compose_config(["experiment=arena_logistic", *words], compare=False), Silent()))
    spent = errors.cost(run, "metropolis")
    pilot = run.methods["metropolis"]["pilot"]
    assert spent.evaluations == pytest.approx(80 * np.array([5, 10, 15, 20]))
    assert spent.setup == pytest.approx(80 * 60 + (pilot["n_lik"] + pilot["n_grad"]) / 3, abs=81)
    assert (np.diff(spent.seconds) >= 0).all()
    assert spent.seconds[-1] < run.methods["metropolis"]["wall_s"] / 3
    about = run.methods["smh2"]
    assert about["reference_n_grad"] > 80
    common = (about["pilot"]["n_lik"] + about["pilot"]["n_grad"] + about["reference_n_grad"]) / 3
    burnt = errors.cost(run, "smh2").setup - common
    total = (about["likelihood_evals"] - about["pilot"]["n_lik"]) / 3
    assert 0 <= burnt < total
    for method in run.methods:
        assert costs(run, method)["setup"] / 3 == pytest.approx(errors.cost(run, method).setup, abs=81)
    assert errors.cost(run, "sgld").evaluations[-1] == 20 * run.methods["sgld"]["pilot"]["m"]
    assert [m for m in run.methods if errors.is_exact(run, m)] == ["metropolis", "smh2"]


# --- Networks -----------------------------------------------------------------------------------------------


def test_agreement_and_total_variation_are_means_over_data(rng):
    p, q = rng.dirichlet(np.full(4, 0.3), (2, 50))
    found = networks.score(p, q)
    same = [max(range(4), key=p[i].__getitem__) == max(range(4), key=q[i].__getitem__) for i in range(50)]
    assert found.agreement == pytest.approx(sum(same) / 50)
    assert found.tv == pytest.approx(
        np.mean([sum(max(0.0, a - b) for a, b in zip(p[i], q[i], strict=True)) for i in range(50)])
    )
    assert networks.score(p, p) == (1.0, 0.0)


@pytest.fixture
def predicted(rng, monkeypatch):
    """Predictions of HMC (four chains of six draws), of a sampler and of an ensemble, on 30 data of three classes."""
    found = {
        name: rng.dirichlet(np.ones(3), (chains, draws, 30))
        for name, chains, draws in (("hmc", 4, 6), ("sgld", 2, 5), ("ensemble", 3, 1))
    }
    data = {"y": torch.as_tensor(rng.integers(0, 3, 30))}
    monkeypatch.setattr(networks, "predictions", lambda run: found)
    monkeypatch.setattr(networks, "monitored_data", lambda run: data)
    summary = {
        "gradient_evals": 600,
        "likelihood_evals": 0,
        "after_burn_in": {"n_grad": 400, "n_lik": 0},
        "steps": 60,
        "n_accept_tests": 0,
        "accept_rate": 0.8,
    }
    optimiser = {"kernel": {"dynamics": {"_target_": "mhrun.dynamics.momentum.Momentum"}}}
    run = SimpleNamespace(
        methods={name: summary | {"chains": len(each)} for name, each in found.items()},
        config={"methods": {name: optimiser if name == "ensemble" else {"kernel": {}} for name in found}},
        target=SimpleNamespace(n=10),
        draw_steps=lambda method: np.arange(10, 70, 60 // found[method].shape[1]),
    )
    run.cached = lambda function: function(run)
    return run, found, data["y"].numpy()


def test_predictions_of_all_chains_are_compared_with_those_of_hmc(predicted):
    run, found, y = predicted
    metrics = networks.metrics(run)
    truth = found["hmc"].reshape(24, 30, 3).mean(axis=0)
    mean = found["sgld"].reshape(10, 30, 3).mean(axis=0)
    assert metrics["sgld.tv"] == pytest.approx(0.5 * np.abs(mean - truth).sum(axis=1).mean())
    each = [0.5 * np.abs(chain.mean(axis=0) - truth).sum(axis=1).mean() for chain in found["sgld"]]
    assert metrics["sgld.tv_one"].value == pytest.approx(np.mean(each))
    halves = [found["hmc"][half].reshape(12, 30, 3).mean(axis=0) for half in (slice(2), slice(2, 4))]
    assert metrics["hmc.tv"] == pytest.approx(0.5 * np.abs(halves[0] - halves[1]).sum(axis=1).mean())
    assert metrics["sgld.nll"] == pytest.approx(-np.log(mean[np.arange(30), y]).mean())
    assert metrics["sgld.error"] == pytest.approx(100 * (mean.argmax(axis=1) != y).mean())
    alone = found["hmc"].mean(axis=1)
    others = [alone[[i for i in range(4) if i != c]].mean(axis=0) for c in range(4)]
    assert metrics["hmc.agreement_one"].value == pytest.approx(
        np.mean([(a.argmax(1) == b.argmax(1)).mean() for a, b in zip(alone, others, strict=True)])
    )
    assert "ensemble.rhat" not in metrics
    assert "sgld.rhat" in metrics
    assert metrics["sgld.passes"] == 20  # 400 gradients after burn-in, two chains, ten data


def test_convergence_is_of_the_draws_so_far(predicted):
    run, found, _ = predicted
    curves = networks.convergence(run)
    assert set(curves) == {"hmc", "sgld"}
    truth = found["hmc"].mean(axis=(0, 1))
    x, tv = curves["sgld"]
    assert x == pytest.approx([20 * step / 60 for step in (10, 22, 34, 46, 58)])
    so_far = found["sgld"][:, :3].mean(axis=(0, 1))
    assert tv[2] == pytest.approx(0.5 * np.abs(so_far - truth).sum(axis=1).mean())
    assert tv[-1] == pytest.approx(networks.metrics(run)["sgld.tv"])


def test_predictions_are_refused_without_a_truth():
    run = SimpleNamespace(methods={"sgld": {"chains": 4}})
    with pytest.raises(UserError, match="needs the method hmc"):
        networks.predictions(run)
    with pytest.raises(UserError, match="two chains"):
        networks.predictions(SimpleNamespace(methods={"hmc": {"chains": 1}}))
