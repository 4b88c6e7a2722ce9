"""Log-likelihoods of data in single precision that are far from 0, or large: nothing of them cancels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import mhrun
from mhrun.data import Dataset
from mhrun.models.gaussian_location import GaussianLocation
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.target import Target

N = 300


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("common", [True, False])
def test_a_location_far_from_zero(rng, offset, chains, common):
    x = (offset + rng.normal(size=(1 if common else chains, N, 2))).astype(np.float32)
    theta = offset + rng.normal(0, 0.1, (chains, 2))
    exact = -0.5 * ((x.astype(np.float64) - theta[:, None]) ** 2).sum(-1)
    found = GaussianLocation(2).log_lik(torch.from_numpy(theta), {"x": torch.from_numpy(x)})
    assert found.numpy() == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_sums_of_all_data_far_from_zero(rng, offset):
    x, theta = offset + rng.normal(size=(N, 2)), offset + rng.normal(0, 0.1, (3, 2))
    exact = -0.5 * ((x - theta[:, None]) ** 2).sum((1, 2))
    model, data = GaussianLocation(2), Dataset.of({"x": x})
    point = torch.from_numpy(theta)
    assert model.full_log_lik(data.fields)(point).numpy() == pytest.approx(exact, abs=1e-8)
    assert model.full_value_and_grad(data.fields)(point)[0].numpy() == pytest.approx(exact, abs=1e-8)
    native = model.native(data.fields, full=True)
    assert [native.total(native.args, one) for one in theta] == pytest.approx(exact, abs=1e-8)


@pytest.mark.slow
def test_torch_and_compiled_accept_alike_far_from_zero(rng):
    x = (300 + rng.normal(size=(2000, 2))).astype(np.float32)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(1000), mhrun.Metropolis())
    settings = {"step_size": 1e-4, "start": [300.0, 300.0], "steps": 200, "warmup": 0, "progress": False}
    rates = {}
    for executor in ("torch", "compiled"):
        with pytest.warns(UserWarning, match="R-hat|ESS"):
            trace = mhrun.sample(GaussianLocation(2), {"x": x}, kernel, executor=executor, **settings)
        rates[executor] = float(trace["sample_stats"]["accepted"].mean())
    assert rates["torch"] == pytest.approx(rates["compiled"], abs=0.01)
    assert rates["torch"] > 0.5


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64])
def test_large_counts_have_their_factorials(dtype):
    y = np.array([0, 1_000, 100_000, 16_000_000])
    data = {"x": np.log(np.maximum(y, 0.5))[:, None].astype(np.float64), "y": y.astype(dtype)}
    target = Target(PoissonRegression(1), Dataset.of(data))
    theta, rows = torch.ones(1, 1, dtype=torch.float64), target.data.rows(torch.arange(len(y))[None])
    found = target.model.log_lik(theta, rows)[0].numpy()
    assert found == pytest.approx(stats.poisson.logpmf(y, np.maximum(y, 0.5)), abs=1e-6)
