"""The compiled loop of Firefly Monte Carlo takes the same steps as the torch step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, controls, logistic_target, regression_target

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.kernels import Firefly
from mhrun.kernels.firefly import DARK, GAPS
from mhrun.models.logistic import Logistic
from mhrun.models.robust_regression import RobustRegression
from mhrun.native import available
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import derive_key
from mhrun.target import Target

KEY, CHAINS, STEPS, N = derive_key(8, "firefly"), 4, 30, 300
pytestmark = pytest.mark.skipif(not available(), reason="needs numba")


@pytest.mark.usefixtures("either_code")
@pytest.mark.parametrize(
    ("kind", "surrogate", "share", "step", "temperature", "temper"),
    [
        ("float64", "lower_bound", 0.02, 0.1, 1.0, "posterior"),
        ("float32", "lower_bound_untuned", 0.3, 0.1, 1.0, "posterior"),
        ("bytes", "lower_bound", 0.1, 0.2, 1.0, "posterior"),
        ("float64", "lower_bound", 1.0, 0.3, 5.0, "likelihood"),
        ("robust", "lower_bound", 0.1, 0.1, 1.0, "posterior"),
        ("robust", "lower_bound_untuned", 0.3, 0.1, 1.0, "posterior"),
        ("binomial", "lower_bound", 0.1, 0.1, 1.0, "posterior"),
        ("binomial", "lower_bound_untuned", 0.3, 0.1, 5.0, "likelihood"),
        ("softmax", "lower_bound", 0.1, 0.05, 1.0, "posterior"),
        ("softmax", "lower_bound_untuned", 0.3, 0.05, 5.0, "likelihood"),
    ],
)
def test_every_field_agrees(kind, surrogate, share, step, temperature, temper):
    """In two blocks: the first step draws all bits, and the others continue from what is kept."""
    kernel = Firefly(RandomWalk(), share)
    if kind in ("robust", "binomial", "softmax"):
        target = regression_target(kind, N, surrogate, temper)
    else:
        target = logistic_target(N, kind, surrogate, temper)
    about = target.surrogate.reference.theta
    theta = about + 0.1 * torch.from_numpy(np.random.default_rng(3).normal(size=(CHAINS, target.dim)))
    state, draws = begin(kernel, target, theta, KEY)
    control = controls(step, temperature, chains=CHAINS)
    after, thetas, infos = advance(kernel, target, state, control, draws, STEPS)
    half, found, record = advance_compiled(kernel, target, state, control, STEPS // 2, KEY)
    every = control.each(lambda c: c.expand(STEPS - STEPS // 2, len(c)).contiguous())
    last, rest = compile_loop(kernel, target, KEY, 1).advance(half, STEPS // 2 + 1, every)
    assert np.allclose(thetas, np.concatenate((found, rest["theta"]), 1), rtol=1e-9, atol=1e-9)
    assert 0.1 < np.mean([info.accepted.double().mean() for info in infos]) < 0.99
    for field in ("accepted", "batch_size", "n_lik", "n_lik_overhead", "n_grad", "diverging", "violations"):
        there = torch.stack([getattr(info, field) for info in infos], 1).numpy()
        assert np.array_equal(np.concatenate((record[field], rest[field]), 1), there), field
    ratios = torch.stack([info.log_ratio for info in infos], 1).numpy()
    assert np.allclose(
        np.concatenate((record["log_ratio"], rest["log_ratio"]), 1), ratios, rtol=1e-4, atol=1e-4
    )
    assert torch.equal(last.aux[GAPS] == DARK, after.aux[GAPS] == DARK)
    assert torch.allclose(last.aux[GAPS], after.aux[GAPS], rtol=1e-6, atol=1e-9)


def test_other_parts_have_no_compiled_loop():
    rng = np.random.default_rng(6)
    data = Dataset.of({"x": rng.normal(size=(50, 2)), "y": rng.normal(size=50)})

    class Wider(RobustRegression):
        def value(self, eta, rows):
            return 2 * super().value(eta, rows)

    target = Target(Wider(2, prior_variance=1.0), data, surrogate="lower_bound")
    assert compile_loop(Firefly(RandomWalk()), target, KEY, 1) is None

    class Other(Logistic):
        def lower_bound(self, theta, rows, anchor):
            return super().lower_bound(theta, rows, anchor) - 0.1

    fields = logistic_target(N, "float64", "lower_bound").data.fields
    other = Target(Other(3, 1.0, "zeros"), Dataset(fields), surrogate="lower_bound")
    assert compile_loop(Firefly(RandomWalk()), other, KEY, 1) is None
    assert (
        compile_loop(Firefly(RandomWalk()), logistic_target(N, "float64", "lower_bound"), KEY, 1) is not None
    )
