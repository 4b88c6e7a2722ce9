"""What the reports on effective sample sizes compute: the posterior without a chain, pairs, chosen step sizes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from scipy.special import log_expit, logsumexp

from mhrun.cli.configuration.compose import compose_config
from mhrun.data import Dataset
from mhrun.models.logistic import Logistic
from mhrun.paths import EXPERIMENTS, experiment_module
from mhrun.target import Target

exact = experiment_module("csgmcmc.exact")
logistic = experiment_module("csgmcmc.logistic")
step_grid = experiment_module("csgmcmc.step_grid")
readings = experiment_module("csgmcmc.readings")


@pytest.fixture
def small():
    """40 data, an intercept and a covariate; two in three are positive."""
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(40), rng.normal(size=40)])
    y = np.where(rng.random(40) < 1 / (1 + np.exp(-0.7 - 1.5 * x[:, 1])), 1, -1).astype(np.int8)
    return x, y


def test_moments_and_evidence_are_those_of_quadrature(small):
    x, y = small
    data = Dataset({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
    found = exact.posterior(Target(Logistic(2, prior_variance=100.0), data))
    side = np.linspace(-6, 10, 801)
    theta = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    density = log_expit(theta @ (y[:, None] * x).T).sum(axis=1)
    density -= np.square(theta).sum(axis=1) / 200 + np.log(2 * np.pi * 100)
    p = np.exp(density - logsumexp(density))
    mean = p @ theta
    sd = np.sqrt(p @ np.square(theta - mean))
    assert found.draws > 0.5 * exact.DRAWS
    assert np.abs(found.mean - mean).max() < 4 * sd.max() / np.sqrt(found.draws)
    assert found.sd == pytest.approx(sd, rel=0.02)
    assert found.log_evidence == pytest.approx(logsumexp(density) + 2 * np.log(side[1] - side[0]), abs=0.01)


def test_a_flat_prior_has_no_evidence(small):
    x, y = small
    data = Dataset({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
    with pytest.raises(ValueError, match="proper prior"):
        exact.posterior(Target(Logistic(2), data))


def truth(dim, sd=2.0):
    return exact.Posterior(np.ones(dim), np.full(dim, sd), 0.0, 1e6, 1.0)


def test_draws_of_the_posterior_are_reported_as_such():
    draws = 1 + 2 * np.random.default_rng(0).normal(size=(6, 4000, 3))
    found, by_chain = logistic.of_draws(draws, truth(3))
    assert by_chain.shape == (6,)
    assert found["ess"].value == pytest.approx(4000, rel=0.05)
    assert found["ess_least"].value <= found["ess"].value
    assert found["mean_error_rms"] <= found["mean_error"] < 0.03
    assert found["chance"] == pytest.approx(1 / np.sqrt(6 * 4000), rel=0.1)
    assert found["variance"].value == pytest.approx(1, abs=0.05)
    shifted, _ = logistic.of_draws(draws + 1, truth(3, sd=1.0))
    assert shifted["mean_error_rms"] == pytest.approx(1, abs=0.06)
    assert shifted["variance"].value == pytest.approx(4, rel=0.05)


def test_a_pair_keeps_the_order_within_its_error():
    names = [f"{s}_{d}" for d in logistic.SETS for s in ("sgld", "csgld", "sghmc", "csghmc")]
    sizes = {name: np.array([100.0, 110.0, 90.0]) for name in names}
    gradients = {f"{name}.gradients": 7500.0 if name.startswith("c") else 6000.0 for name in names}
    sizes["csgld_german"] = np.array([200.0, 220.0, 180.0])
    sizes["csghmc_heart"] = sizes["sghmc_heart"] - [5, 4, 6]
    sizes["csghmc_german"] = sizes["sghmc_german"] - [5, -4, 1]
    found = logistic._pairs(gradients, sizes)
    assert found["order.kept"] == 5  # all but sghmc on heart, which is below beyond its error
    assert found["csgld_german.over_sgld"].value == pytest.approx(2)
    assert found["csgld_german.over_sgld_per_gradient"].value == pytest.approx(1.6)
    assert "order_constant.kept" not in found


def test_the_largest_size_is_chosen_of_what_is_near_enough():
    run = SimpleNamespace(config={"within": {"mean": 0.1, "variance": 0.1}})
    points = [
        {"step_size": step, "ess": ess, "mean_error_rms": error, "variance": variance}
        for step, ess, error, variance in (
            (0.1, 10.0, 0.30, 0.7),
            (0.2, 20.0, 0.05, 1.05),
            (0.5, 50.0, 0.09, 1.4),
            (1.0, 90.0, 0.11, 3.0),
        )
    ]
    assert step_grid.choice(run, points)["step_size"] == 0.5
    assert step_grid.best(step_grid.faithful(run, points))["step_size"] == 0.2
    assert step_grid.choice(run, [points[0], points[3]])["step_size"] == 1.0  # none will do: the least error
    assert step_grid.best(step_grid.faithful(run, points[3:])) is None


def test_chains_in_a_row_have_a_step_size_of_the_grid():
    for key in ("start", "step_size"):
        node = {"schedules": {"step_size": {key: [0.1, 0.1, 0.5, 0.5, 0.2, 0.2]}}}
        assert step_grid.grid_of(node) == [0.1, 0.5, 0.2]


def test_the_largest_size_of_all_is_of_chains_that_did_not_diverge():
    points = [
        {"step_size": 0.1, "ess": 10.0, "variance": 1.0},
        {"step_size": 0.2, "ess": 50.0, "variance": 7.0},
        {"step_size": 0.5, "ess": 90.0, "variance": float("inf")},
    ]
    assert step_grid.best(step_grid.finite(points))["step_size"] == 0.2


def reading(name, sizes):
    """A run of one reading; `sizes`: (sampler, data) -> effective sample size, the paper's if it is not there."""
    found = {}
    for sampler, data, paper in readings._cells():
        for rule in ("chosen", "most"):
            found[f"{sampler}_{data}.{rule}.ess"] = float(sizes.get((sampler, data), paper))
            found[f"{sampler}_{data}.{rule}.variance"] = 1.0
    labels = {key: {"label": key.upper()} for key in ("each_step", "raw")}
    config = {"reading": name, "readings": labels}
    return SimpleNamespace(config=config, cached=lambda function: found)


def test_sizes_and_orders_of_readings_are_counted():
    runs = [
        reading(
            "raw", {("sgld", "heart"): 2199 / 3.1, ("csghmc", "german"): 2436 / 2.9, ("sghmc", "german"): 900}
        ),
        reading("each_step", {}),
    ]
    found = readings.sweep_metrics(runs)
    assert found["each_step.near"] == 12
    assert found["each_step.ordered"] == 6
    assert found["raw.near"] == 11
    assert found["raw.ordered_most"] == 5
    assert list(readings.readings_table(runs).index) == ["EACH_STEP", "RAW"]
    assert readings.sizes(runs, "chosen").loc["SGLD, Heart", "RAW"] == "709 (1.00)"


@pytest.mark.parametrize("name", ["logistic_ess_readings", "logistic_ess_priors"])
def test_every_claim_on_readings_has_its_metric(name):
    config = compose_config([f"experiment={name}"], compare=False)
    book = yaml.safe_load((EXPERIMENTS / "csgmcmc" / "claims.yaml").read_text())["sweeps"][name]
    there = set(compose_config(["experiment=logistic_ess_readings"], compare=False)["readings"])
    own = [each for each in config["readings"] if name == "logistic_ess_readings" or each not in there]
    assert book["over"]["reading"] == own
    runs = [reading(each, {}) for each in own]
    for run in runs:
        run.config["readings"] = config["readings"]
    assert {claim["metric"] for claim in book["claims"]} <= set(readings.sweep_metrics(runs))


def test_priors_change_nothing_but_the_prior():
    """Of a reading with another prior, the settings of every method are those of the first reading."""
    first, other = (
        compose_config(["experiment=logistic_ess_priors", f"reading={name}", "scale=paper"], compare=False)
        for name in ("prior_10", "prior_1")
    )
    base = compose_config(["experiment=logistic_ess_readings", "scale=paper"], compare=False)["methods"]
    for method, node in base.items():
        for config, variance in ((first, 10.0), (other, 1.0)):
            assert config["methods"][method]["model"]["prior_variance"] == variance
            rest = dict(config["methods"][method], model={**node["model"]})
            assert rest == node
