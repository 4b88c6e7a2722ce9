"""The monitor of any model's test data: log predictive densities and errors, against the draws themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

import mhrun
from mhrun.errors import Refusal, UserError

EVERY, COLLECT, AVERAGE, WARMUP, STEPS, CHAINS = 7, 6, 4, 20, 36, 3


def regression(rng, n, d=2):
    x = rng.normal(size=(n, d))
    return {"x": x, "y": x @ np.arange(1.0, d + 1) + 0.5 * rng.standard_t(4, n)}


def sampled(model, train, monitor, **settings):
    return mhrun.sample(
        model,
        train,
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        step_size=0.1,
        warmup=WARMUP,
        steps=STEPS,
        chains=CHAINS,
        progress=False,
        monitor=monitor,
        **settings,
    )


def assert_is_of_the_draws(trace, log_lik, mean, y):
    """Compare rows after burn-in with draws (C, S, D): log_lik (S, D) -> (S, n), mean (S, D) -> (S, n)."""
    thetas, metrics = trace["posterior"]["theta"].to_numpy(), trace["monitor"]
    steps = metrics["step"].to_numpy()
    rows = np.flatnonzero(steps >= WARMUP + COLLECT)
    assert len(rows) >= 3
    for c, theta in enumerate(thetas):
        for row in rows:
            now = steps[row] - WARMUP
            counted = np.arange(1, now + 1) + WARMUP
            taken = theta[:now][counted % COLLECT == 0]
            points = {
                "": theta[now - 1][None],
                "_of_mean": theta[:now][counted % AVERAGE == 0].mean(0, keepdims=True),
                "_of_ensemble": taken,
            }
            for ending, point in points.items():
                nll = -(logsumexp(log_lik(point), axis=0) - np.log(len(point))).mean()
                rmse = np.sqrt(np.mean((mean(point).mean(0) - y) ** 2))
                assert metrics[f"nll{ending}"].to_numpy()[c, row] == pytest.approx(nll, rel=1e-6), ending
                assert metrics[f"rmse{ending}"].to_numpy()[c, row] == pytest.approx(rmse, rel=1e-6), ending


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["regression", "function", "module"])
def test_scores_are_those_of_the_draws(rng, kind):
    train, test = regression(rng, 60), regression(rng, 23)
    x, y = test["x"], test["y"]
    mean, settings = (lambda theta: theta @ x.T), {}
    if kind == "regression":
        model, of_outcome = mhrun.RobustRegression(2, 4.0, 0.5, prior_variance=4.0), None

        def log_lik(theta):
            return stats.t(4.0, theta @ x.T, 0.5).logpdf(y)
    elif kind == "function":
        settings = {"start": [0.0, 0.0]}

        def model(theta, batch):
            return torch.distributions.Normal(batch.x @ theta, 0.5).log_prob(batch.y)

        def of_outcome(theta, batch):
            return batch.x @ theta

        def log_lik(theta):
            return stats.norm(theta @ x.T, 0.5).logpdf(y)
    else:
        line = torch.nn.Linear(2, 1, bias=False)
        model = mhrun.ModuleModel(
            line, lambda outputs, rows: torch.distributions.Normal(outputs[:, 0], 0.5).log_prob(rows["y"])
        )

        def of_outcome(outputs, rows):
            return outputs

        def log_lik(theta):
            return stats.norm(theta @ x.T, 0.5).logpdf(y)

    monitor = mhrun.HeldOut(test, EVERY, AVERAGE, COLLECT, mean=of_outcome)
    assert_is_of_the_draws(sampled(model, train, monitor, **settings), log_lik, mean, y)


@pytest.mark.filterwarnings("ignore")
def test_constrained_parameters_and_other_fields(rng):
    train, test = (pd.DataFrame({"dose": rng.normal(size=n), "size": rng.normal(size=n)}) for n in (50, 20))
    trace = sampled(
        lambda theta, batch: torch.distributions.Normal(theta.a * batch.dose, theta.scale).log_prob(
            batch.size
        ),
        train,
        mhrun.HeldOut(test, STEPS, collect=1, mean=lambda theta, batch: theta.a * batch.dose, outcome="size"),
        parameters={"a": "Normal(0, 1)", "scale": "HalfNormal(1.0)"},
    )
    a, scale = (trace["posterior"][name].to_numpy()[..., None] for name in ("a", "scale"))
    density = stats.norm(a * test["dose"].to_numpy(), scale).logpdf(test["size"].to_numpy())
    wanted = -(logsumexp(density, axis=1) - np.log(STEPS)).mean(-1)
    assert trace["monitor"]["nll_of_ensemble"].to_numpy()[:, -1] == pytest.approx(wanted)
    gaps = (a * test["dose"].to_numpy()).mean(1) - test["size"].to_numpy()
    assert trace["monitor"]["rmse_of_ensemble"].to_numpy()[:, -1] == pytest.approx(
        np.sqrt((gaps**2).mean(-1))
    )


@pytest.mark.filterwarnings("ignore")
def test_labels_and_exposures(rng):
    x = rng.normal(size=(40, 2))
    labels = np.where(rng.random(40) < 0.5, 1.0, -1.0)
    found = sampled(mhrun.Logistic(2), {"x": x, "y": labels}, mhrun.HeldOut({"x": x, "y": labels}, STEPS))
    assert "rmse" not in found["monitor"]  # an outcome of +1 or -1 is a label
    counts = {"x": x, "y": rng.poisson(2.0, 40), "exposure": np.full(40, 2.0)}
    with pytest.raises(UserError, match="have no exposure"):
        sampled(mhrun.PoissonRegression(2), counts, mhrun.HeldOut({"x": x, "y": counts["y"]}, STEPS))
    trace = sampled(mhrun.PoissonRegression(2), counts, mhrun.HeldOut(counts, STEPS))
    theta = trace["posterior"]["theta"].to_numpy()[:, -1]
    step = trace["monitor"]["step"].to_numpy()[-1]
    assert step == WARMUP + STEPS
    gaps = 2.0 * np.exp(theta @ x.T) - counts["y"]
    assert trace["monitor"]["rmse"].to_numpy()[:, -1] == pytest.approx(np.sqrt((gaps**2).mean(-1)), rel=1e-5)


def test_a_chain_without_a_density_spoils_no_ensemble(rng):
    data = mhrun.Dataset.of(regression(rng, 9))
    target = mhrun.Target(mhrun.RobustRegression(2), data)
    monitor = mhrun.HeldOut(data, 1, collect=1)
    theta = torch.zeros(2, 2, dtype=torch.float64)
    memory, first = monitor.observe(target, monitor.start(target, 2), 1, theta)
    wild = torch.full_like(theta, torch.nan)
    _, metrics = monitor.observe(target, memory, 2, wild, torch.tensor([True, False]))
    assert metrics["nll"].isnan().all()
    assert metrics["nll_of_ensemble"].isnan().tolist() == [True, False]
    for name in ("nll_of_ensemble", "rmse_of_ensemble"):
        assert metrics[name][1] == first[name][1]


def test_what_it_refuses(rng):
    train = regression(rng, 20)
    one = mhrun.RobustRegression(2)
    refused = [
        (one, {"x": train["x"]}, {}, "needs the fields x and y"),
        (one, {"x": train["x"][:, :1], "y": train["y"]}, {}, "needs x with rows of shape"),
        (one, train, {"mean": lambda theta, batch: batch.x @ theta}, "has its own or none"),
        (one, train, {"outcome": "z"}, "there is no outcome 'z'"),
    ]
    for model, test, settings, words in refused:
        with pytest.raises(UserError, match=words):
            sampled(model, train, mhrun.HeldOut(test, 5, **settings))
    with pytest.raises(Refusal, match="must be a function"):
        mhrun.HeldOut(train, 5, mean=3)
    groups = {"g": np.arange(20) % 3, "y": train["y"]}
    unknown = {"g": np.append(np.zeros(19, int), 7), "y": train["y"]}
    with pytest.raises(UserError, match="monitor's data"):
        sampled(
            lambda theta, batch: torch.distributions.Normal(theta.w[batch.g], 1.0).log_prob(batch.y),
            groups,
            mhrun.HeldOut(unknown, 5),
            parameters={"w": {"shape": 3, "prior": "Normal(0, 1)"}},
        )
    with pytest.raises(UserError, match="needs a model of data"):
        sampled(lambda theta: -0.5 * theta.square().sum(), None, mhrun.HeldOut(train, 5), start=[0.0])
    wide = mhrun.ModuleModel(torch.nn.Linear(2, 3), lambda outputs, rows: -outputs.square().sum(-1))
    with pytest.raises(UserError, match="one number for each of theirs"):
        sampled(wide, train, mhrun.HeldOut(train, 5, mean=lambda outputs, rows: outputs))


def network(layer=lambda one: one, outputs=1):
    return torch.nn.Sequential(
        layer(torch.nn.Linear(2, 4)), torch.nn.Tanh(), layer(torch.nn.Linear(4, outputs))
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["normed", "positive"])
def test_a_model_that_is_undefined_at_zero_is_scored(rng, kind):
    """Weights of norm 0 have no direction, and a standard deviation must be positive."""
    train, test = regression(rng, 60), regression(rng, 23)
    layer = torch.nn.utils.parametrizations.weight_norm if kind == "normed" else (lambda one: one)

    def log_lik(outputs, rows):
        sd = 0.3 if kind == "normed" else outputs[:, 1].abs()
        return torch.distributions.Normal(outputs[:, 0], sd).log_prob(rows["y"])

    model = mhrun.ModuleModel(network(layer, 2), log_lik, prior_variance=1.0)
    trace = mhrun.sample(
        model, train, mhrun.Unadjusted(mhrun.SGHMC(), m=20), step_size=1e-6, steps=20, warmup=0, chains=2,
        progress=False, monitor=mhrun.HeldOut(test, every=10),
    )  # fmt: skip
    theta = torch.from_numpy(trace["posterior"]["theta"].to_numpy()[:, -1])
    rows = {name: torch.from_numpy(field)[None] for name, field in test.items()}
    assert trace["monitor"]["nll"].to_numpy()[:, -1] == pytest.approx(
        -model.log_lik(theta, rows).mean(1).numpy()
    )


@pytest.mark.filterwarnings("ignore")
def test_batch_norm_is_scored_at_one_datum(rng):
    """In evaluation mode it has no need of a second."""
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 3)
    )
    x, y = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    for monitor in (mhrun.HeldOut, mhrun.Predictive):
        trace = mhrun.sample(
            mhrun.ModuleModel(net, prior_variance=1.0), {"x": x, "y": y}, mhrun.Unadjusted(mhrun.SGHMC(), m=20),
            step_size=1e-5, steps=20, warmup=0, chains=2, progress=False,
            monitor=monitor({"x": x[:1], "y": y[:1]}, every=10),
        )  # fmt: skip
        assert np.isfinite(trace["monitor"]["nll"].to_numpy()).all()


def test_outcomes_that_are_missing_are_named(rng):
    model = mhrun.ModuleModel(network(), lambda outputs, rows: -((rows["y"] - outputs[:, 0]) ** 2))
    train, test = regression(rng, 60), {"x": rng.normal(size=(5, 2))}
    with pytest.raises(UserError, match="'y'"):
        mhrun.sample(
            model, train, mhrun.Unadjusted(mhrun.SGHMC(), m=20), step_size=1e-5, steps=20, warmup=0,
            progress=False, monitor=mhrun.HeldOut(test, every=10),
        )  # fmt: skip


def test_steps_before_snapshots_are_checked(rng):
    test = regression(rng, 5)
    for after in (-1, 2.5, "3", None):
        with pytest.raises(Refusal, match=r"after = .* must be a whole number, at least 0"):
            mhrun.HeldOut(test, every=10, after=after)
    with pytest.raises(Refusal, match=r"last step, 70; make after smaller, or raise steps"):
        mhrun.HeldOut(test, every=10, collect=1, after=1000).bind(None, 0, 70)
    with pytest.raises(Refusal, match=r"last step, 70; make it smaller"):
        mhrun.HeldOut(test, every=10, collect=40, after=60).bind(None, 0, 70)


def test_means_and_counts_are_those_of_the_chains_type(rng):
    """Single precision counts to 2^24 and rounds at 1e-8."""
    model = mhrun.RobustRegression(2, 4.0, 0.5)
    monitor = mhrun.HeldOut(regression(rng, 5), every=1000, average=1, collect=1)
    target = mhrun.Target(model, mhrun.Dataset.of(regression(rng, 5)))
    memory = monitor.start(target, 1)
    theta = torch.from_numpy(rng.normal(size=(30, 1, 2)) + 1e4)
    for step, point in enumerate(theta, 1):
        memory, _ = monitor.observe(target, memory, step, point)
    assert memory["mean"].numpy() == pytest.approx(theta.mean(0).numpy(), rel=1e-14)
    many = memory | {name: memory[name] * 0 + 2.0**24 for name in ("averaged", "collected")}
    after, _ = monitor.observe(target, many, 31, theta[0])
    assert float(after["averaged"]) == float(after["collected"]) == 2.0**24 + 1
