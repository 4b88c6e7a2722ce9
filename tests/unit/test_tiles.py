"""Sums over all data of regressions in tiles: at the sizes where tiles and groups of features end, beside torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.softmax_regression import SoftmaxRegression
from mhrun.models.tiles_native import TILE, tiles_of
from mhrun.target import Target

SIZES = [(1, 1), (2, 5), (TILE - 1, 3), (TILE, 4), (TILE + 1, 7), (2 * TILE + 3, 2)]


def fields_of(rng, n, features, y):
    return {"x": torch.from_numpy(rng.normal(size=(n, features))), "y": torch.as_tensor(y)}


MODELS = {
    "logistic": (mhrun.Logistic, lambda rng, n: rng.choice([-1.0, 1.0], n)),
    "robust": (RobustRegression, lambda rng, n: rng.standard_t(2, n)),
    "Poisson": (PoissonRegression, lambda rng, n: rng.poisson(2.0, n).astype(float)),
    "softmax": (lambda features: SoftmaxRegression(features, 3), lambda rng, n: rng.integers(0, 3, n)),
}


@pytest.mark.parametrize(("n", "features"), SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_totals_and_gradients_are_those_of_the_model(name, n, features):
    rng = np.random.default_rng(n)
    make, outcomes = MODELS[name]
    model, fields = make(features), fields_of(rng, n, features, outcomes(rng, n))
    native = Target(model, Dataset(fields)).native(full=True)
    theta = torch.from_numpy(rng.normal(size=(1, model.dim))).requires_grad_()
    wanted = model.log_lik(theta, {name: field[None] for name, field in fields.items()}).double().sum()
    (grad,) = torch.autograd.grad(wanted, theta)
    out, point = np.full(model.dim, np.nan), theta.detach()[0].numpy()
    assert native.total_and_gradient(native.args, point, out) == pytest.approx(wanted.item(), rel=1e-12)
    assert native.total(native.args, point) == pytest.approx(wanted.item(), rel=1e-12)
    assert out == pytest.approx(grad[0].numpy(), rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_tiles_have_all_data_and_end_with_zeros(rng, dtype, monkeypatch):
    x = (100 * rng.normal(size=(TILE + 5, 3))).astype(dtype)
    tiles = tiles_of(x, np.float32)
    assert tiles.dtype == (np.float32 if dtype == np.int64 else dtype)
    flat = tiles.transpose(0, 2, 1).reshape(-1, 3)
    assert np.array_equal(flat[: len(x)], x)
    assert not flat[len(x) :].any()
    assert tiles_of(np.zeros((5, 65)), np.float64) is None
    with monkeypatch.context() as patch:
        patch.setattr("mhrun.models.tiles_native._MOST_NUMBERS", x.size - 1)
        assert tiles_of(x, np.float32) is None
    wide = Target(mhrun.Logistic(65), Dataset(fields_of(rng, 9, 65, np.ones(9)))).native(full=True)
    assert wide.total_and_gradient is None
