"""Bytes of plain arrays may be pixels or numbers: models to which bytes are pixels refuse them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import short_run

import mhrun
from mhrun.data.arrays import Memmap, Npz
from mhrun.errors import Refusal, UserError
from mhrun.target import Target

N = 40
PIXELS = "x holds bytes .* pixels to (Logistic|ModuleModel|Perceptron), k for k/255"


@pytest.fixture
def rows(rng):
    """Counts 0 to 3 beside an intercept, and labels."""
    x = np.column_stack([np.ones(N), rng.integers(0, 4, N)]).astype(np.uint8)
    return {"x": x, "y": rng.choice([-1, 1], N)}


def sampled(model, data, **settings):
    kernel = mhrun.Unadjusted(mhrun.SGLD(), m=10)
    return mhrun.sample(model, data, kernel, step_size=1e-3, steps=5, warmup=0, chains=2, **settings)


@short_run
def test_plain_bytes_are_refused_and_other_types_and_pixels_are_not(rows):
    model = mhrun.Logistic(2, prior_variance=10.0)
    with pytest.raises(UserError, match=PIXELS):
        sampled(model, rows)
    with pytest.raises(UserError, match=PIXELS):
        sampled(torch.nn.Linear(2, 2), rows | {"y": (rows["y"] > 0).astype(int)})
    as_numbers = Target(model, mhrun.Dataset.of(rows | {"x": rows["x"].astype(np.int16)}))
    theta = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    z = rows["y"] * (rows["x"] @ theta[0].numpy())
    assert float(as_numbers.full_log_lik(theta)) == pytest.approx(-np.log1p(np.exp(-z)).sum(), rel=1e-6)
    as_pixels = Target(model, mhrun.Dataset.of(rows, pixels=True))
    assert float(as_pixels.full_log_lik(theta)) == pytest.approx(-np.log1p(np.exp(-z / 255)).sum(), rel=1e-6)


@pytest.mark.slow
@short_run
def test_a_model_to_which_bytes_are_numbers_takes_them(rows):
    Target(mhrun.PoissonRegression(2), mhrun.Dataset.of(rows | {"y": rows["x"][:, 1]})).data  # noqa: B018
    trace = sampled(lambda theta, batch: -((batch["x"].to(theta.dtype) @ theta) ** 2), rows, start=[0.0, 0.0])
    assert trace["posterior"]["theta"].shape == (2, 5, 2)


@pytest.mark.slow
@short_run
def test_predictions_and_monitors_refuse_plain_bytes_too(rows):
    data = rows | {"x": rows["x"].astype("float32"), "y": (rows["y"] > 0).astype(int)}
    model = mhrun.ModuleModel(torch.nn.Linear(2, 2), prior_variance=1.0)
    trace = sampled(model, data)
    with pytest.raises(UserError, match=PIXELS):
        mhrun.predict(trace, model, rows["x"])
    assert mhrun.predict(trace, model, data["x"]).shape == (N, 2)
    with pytest.raises(Refusal, match=f"the monitor's data: {PIXELS}.* set monitor.data.pixels=true"):
        sampled(model, data, monitor=mhrun.Predictive(data | {"x": rows["x"]}, every=5))


def test_files_say_whether_bytes_are_pixels(tmp_path, rows):
    np.savez(tmp_path / "rows.npz", **rows)
    np.save(tmp_path / "x.npy", rows["x"])
    for of in (
        lambda pixels: Npz(str(tmp_path / "rows.npz"), pixels=pixels),
        lambda pixels: Memmap(str(tmp_path / "x.npy"), pixels=pixels),
    ):
        assert of(True).load().plain_bytes == ()
        assert of(False).load().plain_bytes == ("x",)
    with pytest.raises(Refusal, match=PIXELS):
        Target(mhrun.Logistic(2), Npz(str(tmp_path / "rows.npz"))).data  # noqa: B018
