"""The log predictive density of held-out data, against SciPy and closed forms."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import special, stats

import mhrun

RNG = np.random.default_rng(3)
X, NEW = RNG.normal(size=(60, 2)), RNG.normal(size=(7, 2))
SHORT = {"steps": 60, "warmup": 0, "step_size": 0.2, "seed": 1, "progress": False}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def draws_of(trace):
    return trace["posterior"]["theta"].to_numpy().reshape(-1, trace["posterior"].sizes["parameter"])


def sampled(model, data, **settings):
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    return mhrun.sample(model, data, kernel, **(SHORT | settings))


def mean_of(terms):
    """Return log (1/S) sum_s exp(terms_s), of terms (S, n)."""
    return special.logsumexp(terms, axis=0) - np.log(len(terms))


def logistic():
    return mhrun.Logistic(2, prior_variance=4.0), lambda rng, n: np.where(rng.random(n) < 0.5, 1, -1)


def of_logistic(theta, x, y):
    return special.log_expit(y * (theta @ x.T))


def poisson():
    return mhrun.PoissonRegression(2, prior_variance=1.0), lambda rng, n: rng.poisson(1.5, n)


def of_poisson(theta, x, y):
    return stats.poisson.logpmf(y, np.exp(theta @ x.T))


@pytest.mark.parametrize(("made", "expected"), [(logistic, of_logistic), (poisson, of_poisson)])
def test_a_regression_has_the_density_of_its_outcomes(made, expected, rng):
    model, outcomes = made()
    trace = sampled(model, {"x": X, "y": outcomes(rng, 60)})
    new = {"x": NEW, "y": outcomes(rng, 7)}
    terms = expected(draws_of(trace), NEW, new["y"])
    found = mhrun.log_score(trace, model, new)
    assert found.dims == ("datum",)
    assert found.to_numpy() == pytest.approx(mean_of(terms), rel=1e-9)
    each = mhrun.log_score(trace, model, new, each=True, every=2)
    assert each.dims == ("chain", "draw", "datum")
    assert each.to_numpy() == pytest.approx(terms.reshape(4, -1, 7)[:, ::2], rel=1e-9)
    assert mhrun.log_score(trace, model, new, every=2).to_numpy() == pytest.approx(
        mean_of(each.to_numpy().reshape(-1, 7))
    )
    with pytest.raises(mhrun.UserError, match="the new data: "):
        mhrun.log_score(trace, model, {"x": NEW})


def test_classes_have_the_probability_of_the_class(rng):
    model, outcomes = mhrun.SoftmaxRegression(2, 3), rng.integers(0, 3, 60)
    trace, new = sampled(model, {"x": X, "y": outcomes}), {"x": NEW, "y": rng.integers(0, 3, 7)}
    probability = mhrun.predict(trace, model, {"x": NEW}).to_numpy()
    assert mhrun.log_score(trace, model, new).to_numpy() == pytest.approx(
        np.log(probability[np.arange(7), new["y"]]), rel=1e-6
    )


def test_a_torch_module_has_the_density_of_its_likelihood(rng):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3))
    model = mhrun.ModuleModel(module)
    trace = sampled(model, {"x": X.astype(np.float32), "y": rng.integers(0, 3, 60)}, dtype=torch.float32)
    new = {"x": NEW.astype(np.float32), "y": rng.integers(0, 3, 7)}
    probability = mhrun.predict(trace, model, {"x": new["x"]}).to_numpy()
    expected = np.log(probability[np.arange(7), new["y"]])
    assert mhrun.log_score(trace, model, new).to_numpy() == pytest.approx(expected, rel=1e-5)
    assert mhrun.log_score(trace, module, new).to_numpy() == pytest.approx(expected, rel=1e-5)


def test_named_parameters_and_functions_agree(rng):
    def log_lik(theta, rows):
        return torch.distributions.Normal(rows.x @ theta.w, theta.s).log_prob(rows.y)

    model = mhrun.FunctionModel(
        log_lik, parameters={"w": {"shape": 2, "prior": "Normal(0, 5)"}, "s": "HalfNormal(2)"}
    )
    trace = sampled(model, {"x": X, "y": X @ [1.0, -1.0] + rng.normal(size=60)})
    new = {"x": NEW, "y": rng.normal(size=7)}
    w = trace["posterior"]["w"].to_numpy().reshape(-1, 2)
    s = trace["posterior"]["s"].to_numpy().reshape(-1, 1)
    expected = mean_of(stats.norm.logpdf(new["y"], w @ NEW.T, s))
    for given in (model, log_lik):
        assert mhrun.log_score(trace, given, new).to_numpy() == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_the_predictive_density_of_a_normal_mean(rng):
    """With a flat prior y_new is N(mean of y, 1 + 1/n); the Monte Carlo error of 4,000 draws is below 0.01."""
    y = rng.normal(size=(20, 1))
    model = mhrun.GaussianLocation(1)
    trace = sampled(model, {"x": y}, steps=20_000, warmup=500, step_size=0.5, thin=5)
    new = np.array([[-2.0], [0.0], [1.0]])
    constant = -0.5 * np.log(2 * np.pi)  # which the model leaves out
    expected = stats.norm.logpdf(new[:, 0], y.mean(), (1 + 1 / 20) ** 0.5) - constant
    assert mhrun.log_score(trace, model, {"x": new}).to_numpy() == pytest.approx(expected, abs=0.03)


def test_draws_that_do_not_count_are_left_out(rng):
    model, outcomes = logistic()
    trace = sampled(model, {"x": X, "y": outcomes(rng, 60)})
    new = {"x": NEW, "y": outcomes(rng, 7)}
    valid = np.ones((4, 60), bool)
    valid[0] = False
    trace["sample_stats"] = xr.DataTree(
        trace["sample_stats"].to_dataset().assign(valid=(("chain", "draw"), valid))
    )
    terms = of_logistic(draws_of(trace), NEW, new["y"]).reshape(4, 60, 7)
    assert mhrun.log_score(trace, model, new).to_numpy() == pytest.approx(mean_of(terms[1:].reshape(-1, 7)))
    each = mhrun.log_score(trace, model, new, each=True)
    assert np.isnan(each[0]).all()
    assert not np.isnan(each[1:]).any()


def test_a_density_of_zero_in_all_draws_is_minus_infinity():
    trace = sampled(lambda theta, x: -0.5 * (x[:, 0] - theta[0]) ** 2, X, start=[0.0])

    def log_lik(theta, x):
        return torch.where(x[:, 0] > 0, 0.0 * theta[0], -torch.inf)

    found = mhrun.log_score(trace, log_lik, np.array([[1.0], [-1.0]]))
    assert found.to_numpy() == pytest.approx([0.0, -np.inf])


def of_nothing(theta, rows):
    raise ValueError("of nothing")


def test_data_whose_score_rests_on_few_draws_are_named():
    """A normal mean with variance 1 / 61 and data at 0, 3 and 30: at the last the tail of the draws decides."""
    trace = sampled(lambda theta, row: -0.5 * (row.x - theta[0]) ** 2, {"x": X[:, 0]}, start=[0.0], steps=500)
    with pytest.warns(
        UserWarning, match="of 1 of 3 data rest on fewer than 5 of 2,000 draws, first of datum 2"
    ):
        scores = mhrun.log_score(
            trace, lambda theta, row: -0.5 * (row.x - 20 * theta[0]) ** 2, {"x": np.array([0.0, 3.0, 30.0])}
        )
    draws = draws_of(trace)[:, 0]
    terms = -0.5 * (np.array([0.0, 3.0, 30.0]) - 20 * draws[:, None]) ** 2
    assert scores.to_numpy() == pytest.approx(mean_of(terms))
    shares = special.softmax(terms, axis=0)
    effective = 1 / (shares**2).sum(0)
    assert effective[2] < 5 < effective[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mhrun.log_score(trace, lambda theta, row: -0.5 * (row.x - 20 * theta[0]) ** 2, {"x": np.zeros(3)})


def test_another_model_is_refused(rng):
    model, outcomes = logistic()
    trace = sampled(model, {"x": X, "y": outcomes(rng, 60)})
    with pytest.raises(mhrun.UserError, match="Logistic has 3 parameters and a draw of the trace has 2"):
        mhrun.log_score(trace, mhrun.Logistic(3), {"x": np.ones((2, 3)), "y": [1, -1]})
    with pytest.raises(mhrun.UserError, match="must be a Model, a torch module or a function"):
        mhrun.log_score(trace, 3.0, {"x": NEW})
    with pytest.raises(mhrun.UserError, match=r"^the log-likelihood failed: ValueError: of nothing"):
        mhrun.log_score(trace, of_nothing, {"x": NEW})
    with pytest.raises(mhrun.UserError, match="the log-likelihood must return one number per datum"):
        mhrun.log_score(trace, lambda theta, rows: rows.x * theta, {"x": NEW})
    for each in (True, False):
        with pytest.raises(mhrun.UserError, match="the log-likelihood must return one number per datum"):
            mhrun.log_score(trace, lambda theta, rows: rows.x * theta, {"x": NEW}, each=each)
        x = np.where(np.arange(7)[:, None] == 3, np.nan, NEW)
        with pytest.raises(mhrun.UserError, match="of 1 of the new data is NaN, first of datum 3"):
            mhrun.log_score(trace, model, {"x": x, "y": np.ones(7)}, each=each)
