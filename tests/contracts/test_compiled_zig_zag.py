"""The compiled loop of the zig-zag sampler takes the same steps as the torch step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, controls, logistic_target

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.kernels import ZigZag
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
    ],
)
def test_every_field_agrees(request, kind, surrogate, step, temperature, temper):
    """The case with the most turns between two records in machine code, and the others as plain Python."""
    if kind != "float32":
        request.getfixturevalue("interpreted")
    target, kernel = logistic_target(N, kind, surrogate, temper), ZigZag()
    theta = target.quadratic.theta(torch.from_numpy(np.random.default_rng(3).normal(size=(CHAINS, 3))))
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


def test_other_models_have_no_compiled_loop():
    rng = np.random.default_rng(6)
    data = Dataset.of({"x": rng.normal(size=(50, 2)), "y": rng.normal(size=50)})
    target = Target(RobustRegression(2, prior_variance=1.0), data, surrogate="taylor2")
    assert compile_loop(ZigZag(), target, KEY, 1) is None
