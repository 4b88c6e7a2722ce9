"""Successes out of trials: density, derivatives, mean, simulation, fit and what the data must be."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from kit import short_run
from scipy import stats

import mhrun
from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.models.binomial_regression import BinomialRegression
from mhrun.models.logistic import Logistic
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.target.fields import unfit

D, N = 3, 8
RNG = np.random.default_rng(0)
X = RNG.normal(0, 0.7, (N, D))
THETA = np.array([[0.5, -1.0, 0.25], [-2.0, 0.3, 1.0]])
TRIALS = np.array([1, 2, 5, 30, 1000, 100_000, 7, 0])
Y = np.array([1, 0, 5, 11, 600, 42_000, 3, 0])
MODEL = BinomialRegression(D, prior_variance=4.0)
ROWS = {name: torch.from_numpy(field)[None] for name, field in {"x": X, "y": Y, "trials": TRIALS}.items()}
CHANCES = 1 / (1 + np.exp(-THETA @ X.T))


def test_the_log_likelihood_is_that_of_scipy():
    found = MODEL.log_lik(torch.from_numpy(THETA), ROWS).numpy()
    assert found == pytest.approx(stats.binom.logpmf(Y, TRIALS, CHANCES), rel=1e-9, abs=1e-9)


def test_a_chance_near_0_or_1_has_a_finite_log_likelihood():
    """log p = 7 log(1e-131) or 0, without a chance that is rounded to 0 or 1."""
    rows = {"x": torch.ones(1, 2, 1), "y": torch.tensor([[7.0, 0.0]]), "trials": torch.tensor([[7.0, 7.0]])}
    found = MODEL.log_lik(torch.tensor([[-300.0]]), rows)[0]
    assert found.tolist() == pytest.approx([-2100.0, 0.0])


def test_it_is_a_logistic_regression_of_single_trials():
    """The posteriors differ by a constant: by the same amount at all theta."""
    successes = [[1.0] * y + [-1.0] * (t - y) for y, t in zip(Y[:4], TRIALS[:4], strict=True)]
    single = {"x": np.repeat(X[:4], TRIALS[:4], 0), "y": np.concatenate(successes)}
    single = {name: torch.from_numpy(field)[None] for name, field in single.items()}
    theta = torch.from_numpy(RNG.normal(size=(5, D)))
    grouped = MODEL.log_lik(theta, {name: field[:, :4] for name, field in ROWS.items()}).sum(1)
    difference = grouped - Logistic(D).log_lik(theta, single).sum(1)
    assert difference.numpy() == pytest.approx(np.full(5, float(difference[0])))


def test_slopes_are_the_derivatives():
    eta = torch.linspace(-3, 3, N, dtype=torch.float64)[None].requires_grad_()
    first = torch.autograd.grad(MODEL.value(eta, ROWS).sum(), eta, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), eta)[0]
    found = MODEL.derivatives(eta, ROWS)
    assert torch.allclose(found[0], first)
    assert torch.allclose(found[1], second)


@pytest.mark.parametrize("anchor", [None, THETA[1]])
def test_lower_bounds_are_below_and_touch_where_they_should(anchor):
    theta = torch.from_numpy(np.concatenate([THETA, RNG.normal(0, 3, (200, D))]))
    known = None if anchor is None else torch.from_numpy(anchor)
    gap = (MODEL.log_lik(theta, ROWS) - MODEL.lower_bound(theta, ROWS, known)).numpy()
    assert gap.min() > -1e-9 * TRIALS.max()
    if anchor is None:  # |eta| = 1.5 of a single feature
        rows = {"x": torch.ones(1, 1, 1), "y": torch.tensor([[3.0]]), "trials": torch.tensor([[8.0]])}
        at = torch.tensor([[1.5], [-1.5], [0.5]], dtype=torch.float64)
        gap = (MODEL.log_lik(at, rows) - MODEL.lower_bound(at, rows, None))[:, 0]
        assert gap[:2].abs().max() < 1e-12
        assert gap[2] > 1e-3
    else:
        assert np.abs(gap[1]).max() < 1e-9 * TRIALS.max()
        assert gap[0].max() > 1e-3


def test_mean_and_simulated_successes_are_binomial():
    """Eight means, each within 5 standard errors, and variances within 15 %; the seed is fixed."""
    repeats, theta = 5_000, torch.from_numpy(THETA[0])
    exact = TRIALS * CHANCES[0]
    assert MODEL.outcome_mean(theta[None], ROWS).numpy()[0] == pytest.approx(exact)
    torch.manual_seed(1)
    many = {name: ROWS[name][0].repeat(repeats, *[1] * (ROWS[name].dim() - 2)) for name in ("x", "trials")}
    drawn = MODEL.simulate(theta, many)["y"].numpy().reshape(repeats, N)
    sd = np.sqrt(exact * (1 - CHANCES[0]))
    assert np.abs(drawn.mean(0) - exact).max() < 5 * (sd / repeats**0.5).max() + 1e-12
    assert (np.abs(drawn.mean(0) - exact) <= 5 * sd / repeats**0.5).all()
    assert drawn.std(0) == pytest.approx(sd, rel=0.15)


@pytest.mark.parametrize(("size", "lines"), [(None, 0), (2.0, 1)])
def test_successes_that_vary_too_much_are_named(size, lines):
    """Beta-binomial ones of 20 trials with a = b = 2 have 1 + 19/5 = 4.8 times the variance; single trials have one."""
    rng = np.random.default_rng(3)
    chance = 0.5 if size is None else rng.beta(size, size, 400)
    for trials, expected in ((20, lines), (1, 0)):
        y, counts = rng.binomial(trials, chance, 400) * 1.0, np.full(400, float(trials))
        data = {name: torch.from_numpy(field) for name, field in {"y": y, "trials": counts}.items()}
        data["x"] = torch.ones(400, 1, dtype=torch.float64)
        centre = np.log(y.mean() / (trials - y.mean()))
        draws = torch.full((10, 1), centre, dtype=torch.float64)
        found = BinomialRegression(1).fit_warnings(draws, data)
        assert len(found) == expected
        if found:
            times = float(re.search(r"about (\S+) times that of a binomial", found[0])[1])
            assert times == pytest.approx(4.8, rel=0.2)


def test_a_function_of_the_family_binomial_is_judged_by_its_trials():
    rng = np.random.default_rng(4)
    group = np.arange(400) % 20
    for chance, count in ((0.3, 0), (rng.beta(2, 2, 400), 1)):
        data = Dataset.of(
            {"y": rng.binomial(20, chance, 400) * 1.0, "trials": np.full(400, 20.0), "group": group}
        ).fields
        model = mhrun.FunctionModel(
            lambda theta, rows: torch.distributions.Binomial(20, logits=theta.effects[rows.group]).log_prob(
                rows.y
            ),
            parameters={"effects": {"shape": 20, "prior": "Normal(0, 3)"}},
            mean=lambda theta, rows: rows.trials * theta.effects[rows.group].sigmoid(),
            family="binomial",
        )
        shares = np.bincount(group, data["y"]) / 400
        logits = np.log(shares / (1 - shares))
        sd = 1 / np.sqrt(400 * shares * (1 - shares))
        draws = torch.from_numpy(logits + sd * rng.normal(size=(300, 20)))
        assert len(model.fit_warnings(draws, data)) == count
    without = Dataset.of({name: data[name] for name in ("y", "group")})
    assert "family = binomial requires the field trials of the data" in unfit(model, without)
    assert unfit(model, Dataset.of(data)) is None


def test_what_the_data_must_be():
    fields = {"x": np.ones((3, 1)), "y": np.array([0.0, 2.0, 3.0]), "trials": np.array([1.0, 2.0, 2.0])}
    model = BinomialRegression(1)
    assert "needs y to be at most trials; the data have 3 of 2 in row 2" in unfit(model, Dataset.of(fields))
    assert (
        "needs the fields x, y and trials; the data have x, y; of a table, set data.trials=COLUMN."
        in unfit(model, Dataset.of({name: fields[name] for name in "xy"}))
    )
    halves = fields | {"trials": np.array([1.0, 2.0, 3.5])}
    assert "needs trials to be counts" in unfit(model, Dataset.of(halves))
    assert unfit(model, Dataset.of(fields | {"trials": np.array([0.0, 2.0, 3.0])})) is None
    signs = fields | {"y": np.array([1.0, -1.0, 1.0])}
    for other, data in ((PoissonRegression(1), fields), (Logistic(1), signs)):
        assert "has no trials; leave it out of the data, or take a binomial" in unfit(other, Dataset.of(data))


@short_run
def test_predictions_are_expected_successes():
    rng = np.random.default_rng(5)
    data = {"x": rng.normal(size=(50, 1)), "y": rng.binomial(9, 0.3, 50) * 1.0, "trials": np.full(50, 9.0)}
    model = BinomialRegression(1, prior_variance=4.0)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    trace = mhrun.sample(model, data, kernel, step_size=0.1, chains=2, steps=20, warmup=0)
    theta = trace["posterior"]["theta"].to_numpy()
    new = {"x": X[:, :1], "trials": TRIALS}
    expected = TRIALS * (1 / (1 + np.exp(-theta @ X[:, :1].T))).mean((0, 1))
    assert mhrun.predict(trace, model, new).to_numpy() == pytest.approx(expected)
    with pytest.raises(UserError, match="the new data have no trials, which the model was fitted with"):
        mhrun.predict(trace, model, X[:, :1])
    with pytest.raises(UserError, match=r"needs trials to be counts, .* the new data have 3.5 in row 0"):
        mhrun.predict(trace, model, {"x": X[:2, :1], "trials": np.array([3.5, 4.0])})
