"""Regressions draw weights from their prior and outcomes given weights, and say the mean of an outcome."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import short_run
from scipy import stats

import mhrun
from mhrun.errors import Refusal, UserError
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.models.logistic import Logistic
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.softmax_regression import SoftmaxRegression
from mhrun.store.netcdf import open_trace

D, N, REPEATS = 3, 5, 20_000
X = np.random.default_rng(0).normal(0, 0.7, (N, D))
THETA = np.array([0.5, -1.0, 0.25])


def sigmoid(eta):
    return 1 / (1 + np.exp(-eta))


MEANS = {
    "logistic": (Logistic(D, prior_variance=4.0), sigmoid),
    "poisson": (PoissonRegression(D, prior_variance=4.0), np.exp),
    "robust": (RobustRegression(D, degrees=5.0, scale=0.5, prior_variance=4.0), lambda eta: eta),
}


def outcomes(model, theta, x=X):
    """Many outcomes for each row of x, (REPEATS, N)."""
    torch.manual_seed(1)
    rows = {"x": torch.from_numpy(np.tile(x, (REPEATS, 1)))}
    return model.simulate(torch.from_numpy(theta), rows)["y"].numpy().reshape(REPEATS, len(x))


@pytest.mark.parametrize("name", MEANS)
def test_the_mean_of_the_outcome_is_that_of_plain_numpy_and_of_simulated_outcomes(name):
    """15 means, each within 5 standard errors: a false alarm in 1e5; the seed is fixed."""
    model, of_predictor = MEANS[name]
    exact = of_predictor(X @ THETA)
    found = model.outcome_mean(torch.from_numpy(THETA)[None], {"x": torch.from_numpy(X)[None]})
    assert found.numpy() == pytest.approx(exact[None])
    drawn = outcomes(model, THETA)
    if name == "logistic":
        assert set(np.unique(drawn)) == {-1.0, 1.0}
        drawn = (drawn + 1) / 2
    z = (drawn.mean(0) - exact) / (drawn.std(0) / REPEATS**0.5)
    assert np.abs(z).max() < 5
    if name == "poisson":
        assert drawn.var(0) == pytest.approx(exact, rel=0.1)
    if name == "robust":  # scale^2 nu / (nu - 2)
        assert drawn.var(0) == pytest.approx(np.full(N, 0.25 * 5 / 3), rel=0.15)


def test_counts_are_proportional_to_the_exposure():
    """Mean, log-likelihood and simulated counts, against plain NumPy."""
    model, exposure = PoissonRegression(D), np.array([0.1, 1.0, 2.5, 7.0, 30.0])[:N]
    exact = exposure * np.exp(X @ THETA)
    rows = {"x": torch.from_numpy(X)[None], "exposure": torch.from_numpy(exposure)[None]}
    assert model.outcome_mean(torch.from_numpy(THETA)[None], rows).numpy() == pytest.approx(exact[None])
    y = np.arange(N)
    found = model.log_lik(torch.from_numpy(THETA)[None], rows | {"y": torch.from_numpy(y)[None]})
    assert found.numpy()[0] == pytest.approx(stats.poisson.logpmf(y, exact))
    torch.manual_seed(1)
    many = {name: field[0].repeat(REPEATS, *[1] * (field.dim() - 2)) for name, field in rows.items()}
    drawn = model.simulate(torch.from_numpy(THETA), many)["y"].numpy().reshape(REPEATS, N)
    assert np.abs((drawn.mean(0) - exact) / np.sqrt(exact / REPEATS)).max() < 5


def test_bounds_of_small_moves_know_the_exposure():
    """Near theta = 0 the derivative of a term is y - e, whatever the exponential slack of the bound."""
    model, x = PoissonRegression(1), torch.ones(3, 1, dtype=torch.float64)
    data = {"x": x, "y": torch.tensor([1.0, 0.0, 2.0]), "exposure": torch.tensor([50.0, 20.0, 9.0])}
    bounds = model.bounds(data, "difference")
    theta, to = torch.tensor([[1e-4]]).double(), torch.tensor([[-1e-4]]).double()
    rows = {name: field[None] for name, field in data.items()}
    moved = (model.log_lik(to, rows) - model.log_lik(theta, rows)).abs()[0]
    limit = bounds.weights * bounds.width(theta, to)[0]
    assert (moved <= limit).all()
    assert (moved > 0.5 * limit).all()


def test_simulated_classes_have_the_probabilities_of_the_softmax():
    model = SoftmaxRegression(D, 3, prior_variance=4.0)
    weights = np.random.default_rng(2).normal(size=(3, D))
    exact = np.exp(X @ weights.T)
    exact /= exact.sum(1, keepdims=True)
    drawn = outcomes(model, weights.ravel())
    shares = np.stack([(drawn == k).mean(0) for k in range(3)], 1)
    assert np.abs((shares - exact) / np.sqrt(exact * (1 - exact) / REPEATS)).max() < 5


@pytest.mark.parametrize("name", MEANS)
def test_weights_are_drawn_from_the_prior(name):
    model, _ = MEANS[name]
    draws = model.draw_prior(4_000, key=3).numpy()
    assert draws.shape == (4_000, D)
    assert np.array_equal(draws, model.draw_prior(4_000, key=3).numpy())
    assert np.abs(draws.mean(0)).max() < 5 * 2 / 4_000**0.5
    assert draws.var(0) == pytest.approx(np.full(D, 4.0), rel=0.15)
    flat = type(model)(D)
    assert "flat" in flat.refuses_simulation()
    with pytest.raises(Refusal, match="the prior of the weights is flat; set prior_variance"):
        flat.draw_prior(2, key=3)


def test_bytes_are_pixels_in_the_mean_too():
    pixels = np.array([[0, 255, 51]], dtype=np.uint8)
    model, _ = MEANS["logistic"]
    found = model.outcome_mean(torch.from_numpy(THETA)[None], {"x": torch.from_numpy(pixels)[None]})
    assert float(found) == pytest.approx(sigmoid(pixels[0] / 255 @ THETA))


@short_run
def test_predict_of_a_regression_is_the_mean_of_the_outcome_over_the_draws():
    rng = np.random.default_rng(4)
    data = {"x": rng.normal(size=(50, D)), "y": rng.poisson(1.0, 50).astype(float)}
    model, _ = MEANS["poisson"]
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    trace = mhrun.sample(model, data, kernel, step_size=0.1, chains=2, steps=20, warmup=0)
    theta = trace["posterior"]["theta"].to_numpy()
    found = mhrun.predict(trace, model, X)
    assert found.dims == ("datum",)
    assert found.to_numpy() == pytest.approx(np.exp(theta @ X.T).mean((0, 1)))
    with pytest.raises(UserError, match=r"the new data have no x, .* give \{'x': \.\.\.\}\."):
        mhrun.predict(trace, model, {"z": X})
    with pytest.raises(
        UserError, match=r"needs x with rows of shape \(\d,\); the new data have rows of shape"
    ):
        mhrun.predict(trace, model, X[:, :-1])
    with pytest.raises(UserError, match="x of the new data has 1 values that are not finite"):
        mhrun.predict(trace, model, np.where(np.arange(X.size).reshape(X.shape) == 1, np.nan, X))
    with pytest.raises(
        UserError, match=r"does not say what it predicts; .* lambda theta, rows: rows.x @ theta\."
    ):
        mhrun.predict(trace, GaussianMixture([[0.0] * D], 1.0), X)


@short_run
def test_predict_needs_the_exposure_that_the_model_was_fitted_with(tmp_path):
    """Without it a mean would be that of one unit; a trace that was opened again knows of it too."""
    rng = np.random.default_rng(5)
    exposure = rng.uniform(1, 9, 50)
    data = {"x": rng.normal(size=(50, D)), "y": rng.poisson(exposure).astype(float), "exposure": exposure}
    model, _ = MEANS["poisson"]
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    how = {"step_size": 0.1, "chains": 2, "steps": 20, "warmup": 0, "folder": tmp_path / "trace"}
    theta = mhrun.sample(model, data, kernel, **how)["posterior"]["theta"].to_numpy()
    trace = open_trace(tmp_path / "trace")
    with pytest.raises(UserError, match="the new data have no exposure, which the model was fitted with"):
        mhrun.predict(trace, model, X)
    with pytest.raises(UserError, match="needs exposure to be positive; the new data have -1 in row 0"):
        mhrun.predict(trace, model, {"x": X, "exposure": np.full(N, -1.0)})
    found = mhrun.predict(trace, model, {"x": X, "exposure": np.full(N, 7.0)})
    assert found.to_numpy() == pytest.approx(7 * np.exp(theta @ X.T).mean((0, 1)))


@short_run
def test_predict_refuses_an_exposure_that_the_model_was_fitted_without():
    """It would multiply means that are of one unit in the data."""
    rng = np.random.default_rng(5)
    data = {"x": rng.normal(size=(50, D)), "y": rng.poisson(2.0, 50).astype(float)}
    model, _ = MEANS["poisson"]
    trace = mhrun.sample(model, data, "mcmc", step_size=0.1, chains=2, steps=20, warmup=0)
    with pytest.raises(UserError, match="the new data have exposure, without which the model was fitted"):
        mhrun.predict(trace, model, {"x": X, "exposure": np.full(N, 7.0)})


@short_run
def test_predict_of_a_model_function_is_its_mean():
    def log_lik(theta, rows):
        return -0.5 * (rows.y - rows.x @ theta.w) ** 2

    model = mhrun.FunctionModel(
        log_lik,
        parameters={"w": {"shape": D, "prior": "Normal(0, 1)"}},
        mean=lambda theta, rows: rows.x @ theta.w,
    )
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    data = {"x": X, "y": np.arange(float(N))}
    trace = mhrun.sample(model, data, kernel, step_size=0.1, chains=2, steps=20, warmup=0)
    w = trace["posterior"]["w"].to_numpy()
    assert mhrun.predict(trace, model, {"x": X}).to_numpy() == pytest.approx((w @ X.T).mean((0, 1)))
    assert mhrun.predict(trace, model, {"x": X}, each=True).to_numpy() == pytest.approx(w @ X.T)
