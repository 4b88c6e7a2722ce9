"""Draws of a dynamics beyond an edge of the prior, and chains that have not settled, are warned of."""

from __future__ import annotations

import math
import types
import warnings

import pytest
import torch

import mhrun
from mhrun.engine.warnings.noise import mean_warnings
from mhrun.models.mixture_means import MixtureMeans


def said_of(model, data, kernel, **call):
    settings = {"steps": 1000, "warmup": 200, "chains": 4, "seed": 3, "thin": 1} | call
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mhrun.sample(model, data, kernel, **settings)
    return [str(warning.message) for warning in caught]


def normal(theta, batch):
    return -0.5 * (batch.x - theta[0]) ** 2


def box(theta):
    return torch.where(theta[0].abs() < 1.0, 0.0, -math.inf)


@pytest.mark.parametrize("dynamics", [mhrun.SGLD(), mhrun.SGHMC(friction=0.3)])
@pytest.mark.parametrize("executor", ["torch", "auto"])
def test_draws_beyond_an_edge_of_the_prior_are_warned_of(dynamics, executor):
    """The posterior is N(0.9, 1/20) below 1, beyond which a chain without an edge has a third of its draws."""
    x = torch.linspace(-1.0, 1.0, 20, dtype=torch.float64) + 0.9
    call = {"log_prior": box, "start": [0.5], "step_size": 5e-3, "executor": executor}
    (line,) = [
        w for w in said_of(normal, {"x": x}, mhrun.Unadjusted(dynamics, m=20), **call) if "density is 0" in w
    ]
    assert 20 < float(line.partition(" %")[0]) < 50
    assert "Declare the constraint of the parameter" in line


@pytest.mark.slow
def test_draws_beyond_an_edge_of_a_density_without_data_are_too():
    def density(theta):
        return torch.where(theta[0] < 0.5, -0.5 * theta[0] ** 2, -math.inf - 0.5 * theta[0] ** 2)

    said = said_of(
        density, None, mhrun.Unadjusted(mhrun.SGLD(), m=1), start=[0.0], step_size=0.05, steps=4000
    )
    assert any("of draws are where the density is 0" in line for line in said)


@pytest.mark.slow
def test_chains_that_diverge_are_not_beyond_an_edge():
    """The logarithm of a normal density overflows there."""
    x = torch.linspace(-1.0, 1.0, 400, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        said = said_of(
            normal,
            {"x": x.to(dtype)},
            mhrun.Unadjusted(mhrun.SGLD(), m=400),
            log_prior=lambda theta: -0.5 * theta[0] ** 2,
            start=[0.1],
            step_size=6e-3,  # 2.4 times the inverse of the curvature: unstable
            dtype=dtype,
            steps=600,
        )
        assert said
        assert not any("density is 0" in line for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("log_prior", [None, box])
def test_draws_inside_and_draws_of_tests_are_not(log_prior):
    x = torch.linspace(-1.0, 1.0, 400, dtype=torch.float64)  # sd 0.05 about 0, inside of the box
    for kernel in (mhrun.Unadjusted(mhrun.SGLD(), m=400), None):
        said = said_of(normal, {"x": x}, kernel, log_prior=log_prior, start=[0.0], step_size=1e-3)
        assert not any("density is 0" in line for line in said)


def test_the_cube_of_the_mixture_is_such_an_edge():
    generator = torch.Generator().manual_seed(1)
    model = MixtureMeans(1, half=1.0)
    x = 1.0 + torch.randn(30, generator=generator, dtype=torch.float64)
    said = said_of(model, {"x": x}, mhrun.Unadjusted(mhrun.SGLD(), m=30), step_size=1e-2)
    assert any("of draws are where the density is 0" in line for line in said)


@pytest.mark.slow
def test_noise_is_not_blamed_for_what_chains_that_hardly_moved_show():
    """Steps of 1e-9 from starts two standard deviations apart: the step size is too small."""
    x = torch.randn(2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    starts = [[-0.05], [0.0], [0.03], [0.06]]
    kernel = mhrun.Unadjusted(mhrun.SGLD(), m=5)
    still = said_of(normal, {"x": x}, kernel, start=starts, step_size=1e-9)
    assert not any("draws are too wide" in line for line in still)
    slow = said_of(normal, {"x": x}, kernel, start=starts, step_size=3e-6, steps=200, warmup=0)
    assert not any(
        "its gradients makes draws too wide, variances" in line for line in slow if "settled" not in line
    )
    settled = said_of(normal, {"x": x}, kernel, start=starts, step_size=1e-4, steps=5000)
    assert any("minibatch noise of its gradients makes draws too wide, variances" in line for line in settled)
    assert not any("once chains have settled" in line for line in settled)


@pytest.mark.parametrize(
    ("size", "ratio", "words"),
    [
        (0.2, None, None),
        (-0.5, None, "too small, by up to about 0.5 posterior"),
        (3e5, None, "off by more than 2 posterior"),  # an expansion says neither how far nor where
        (3e5, 80.0, None),  # another line says it
    ],
)
def test_a_bias_beyond_the_first_order_has_no_size(size, ratio, words):
    kernel = types.SimpleNamespace(dynamics=mhrun.SGLD())
    method = types.SimpleNamespace(name="a", kernel=kernel)
    lines = list(mean_warnings(method, {"mean_bias": {"size": size, "name": "b"}, "variance_ratio": ratio}))
    assert len(lines) == (words is not None)
    assert all(words in line for line in lines)
