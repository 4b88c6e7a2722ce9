"""The compiled loop of the zig-zag sampler takes the same steps as the torch step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, controls, logistic_target, regression_target

from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.kernels import ZigZag
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.native import available
from mhrun.random import derive_key
from mhrun.target import Target

KEY, CHAINS, STEPS, N = derive_key(8, "zig-zag"), 4, 25, 400
pytestmark = pytest.mark.skipif(not available(), reason="needs numba")


@pytest.mark.parametrize(
    ("kind", "surrogate", "step", "temperature", "temper"),
    [
        ("float64", "taylor1", 0.3, 1.0, "posterior"),
        ("float32", "taylor2", 2.0, 1.0, "posterior"),
        ("bytes", "taylor2", 1.0, 1.0, "posterior"),
        ("float64", "taylor2", 3.0, 5.0, "likelihood"),
        ("robust", "taylor1", 0.3, 1.0, "posterior"),
        ("robust", "taylor2", 1.0, 1.0, "posterior"),
        ("poisson", "taylor2", 0.3, 1.0, "posterior"),
        ("binomial", "taylor2", 1.0, 5.0, "likelihood"),
        ("softmax", "taylor1", 0.1, 1.0, "posterior"),
        ("softmax", "taylor2", 0.3, 1.0, "posterior"),
    ],
)
def test_every_field_agrees(request, kind, surrogate, step, temperature, temper):
    """The case with the most turns between two records in machine code, and the others as plain Python."""
    if kind != "float32":
        request.getfixturevalue("interpreted")
    kernel = ZigZag()
    if kind in ("robust", "poisson", "binomial", "softmax"):
        target = regression_target(kind, N, surrogate, temper)
    else:
        target = logistic_target(N, kind, surrogate, temper)
    theta = target.quadratic.theta(
        torch.from_numpy(np.random.default_rng(3).normal(size=(CHAINS, target.dim)))
    )
    state, draws = begin(kernel, target, theta, KEY)
    control = controls(step, temperature, chains=CHAINS)
    after, thetas, infos = advance(kernel, target, state, control, draws, STEPS)
    compiled, found, record = advance_compiled(kernel, target, state, control, STEPS, KEY)
    assert np.allclose(thetas, found, rtol=1e-8, atol=1e-8)
    assert sum(int(info.batch_size.sum()) for info in infos) > 5
    for field in ("accepted", "batch_size", "n_lik", "n_lik_overhead", "n_grad", "diverging", "violations"):
        there = torch.stack([getattr(info, field) for info in infos], 1).numpy()
        assert np.array_equal(record[field], there), field
    assert torch.equal(compiled.aux["velocity"], after.aux["velocity"])
    assert torch.allclose(compiled.evaluation.log_prior, after.evaluation.log_prior)


def test_bounds_that_are_too_wide_end_the_loop(interpreted):
    target = logistic_target(N, "float64", "taylor2")
    state, _ = begin(ZigZag(), target, torch.full((2, 3), 3000.0, dtype=torch.float64), KEY)
    with pytest.raises(UserError, match="too wide for the zig-zag sampler"):
        advance_compiled(ZigZag(), target, state, controls(1.0, 1.0, chains=2), 3, KEY)


def test_a_regression_that_changes_its_likelihood_has_no_compiled_form():
    """Each part of it that the compiled form replaces."""
    data = Dataset.of({"x": np.ones((5, 2)), "y": np.arange(5.0)})

    class Value(RobustRegression):
        def value(self, eta, rows):
            return 2 * super().value(eta, rows)

    class Slopes(PoissonRegression):
        def derivatives(self, eta, rows):
            return super().derivatives(eta, rows)

    class Offset(PoissonRegression):
        def offset(self, rows):
            return rows["x"][..., 0]

    class LogLik(RobustRegression):
        def log_lik(self, theta, rows):
            return super().log_lik(theta, rows)

    for model in (
        Value(2, prior_variance=1.0),
        Slopes(2, 1.0),
        Offset(2, 1.0),
        LogLik(2, prior_variance=1.0),
    ):
        assert Target(model, data).native(full=True) is None, type(model).__name__
        assert Target(model, data, surrogate="taylor2").bounded.native() is None, type(model).__name__
    assert Target(RobustRegression(2, prior_variance=1.0), data).native(full=True) is not None

    class Bounded(PoissonRegression):
        def bounds(self, data, kind, reference=None):
            return super().bounds(data, kind, reference)

    assert Target(Bounded(2, 1.0), data, surrogate="taylor2").bounded.native() is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["robust", "poisson", "binomial", "softmax", "logistic"])
def test_features_of_16_bits_are_left_to_torch(family, dtype):
    target = logistic_target(5, "float64", "none") if family == "logistic" else regression_target(family, 5)
    fields = dict(target.data.fields)
    narrow = Target(target.model, Dataset(fields | {"x": fields["x"].to(dtype)}), surrogate="taylor2")
    assert narrow.native(full=True, plain=True) is None
    assert narrow.bounded.native() is None
    assert target.native(full=True) is not None


def test_errors_that_are_nearly_normal_keep_their_log_likelihood(interpreted):
    """With 10^12 degrees of freedom, log(1 + s^2 / nu) is 10^-12, and multiplied by as much."""
    rng = np.random.default_rng(0)
    data = Dataset.of({"x": rng.normal(size=(50, 1)), "y": rng.normal(size=50)})
    target = Target(RobustRegression(1, degrees=1e12, prior_variance=1.0), data)
    native, index = target.native(full=True), np.arange(50)
    terms, residuals = np.empty(50), data.fields["y"].numpy()[:, None] - data.fields["x"].numpy() * [0.2, 0.7]
    native.terms(native.args, index, 50, np.array([0.2]), np.array([0.7]), terms)
    assert terms == pytest.approx(0.5 * (residuals[:, 0] ** 2 - residuals[:, 1] ** 2), rel=1e-9, abs=1e-9)
    total, _ = native.moments(native.args, index, 50, np.array([np.inf]))
    assert total == -np.inf
