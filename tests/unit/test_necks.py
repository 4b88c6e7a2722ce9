"""Chains begin at their starting points where the highest mode has hardly any mass beside them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.engine.landscape.modes import find_curved_modes
from mhrun.engine.landscape.necks import nats_below_starts
from mhrun.engine.landscape.surface import Surface
from mhrun.models.function import FunctionModel
from mhrun.target import Target

pytestmark = pytest.mark.long


def funnel(theta):
    """Neal's funnel: theta[0] ~ N(0, 3^2), and the others have the variance exp(theta[0])."""
    v, x = theta[0], theta[1:]
    return -(v**2) / 18 - 0.5 * x.square().sum() * torch.exp(-v) - 0.5 * len(x) * v


STARTS = {
    "at the centre": [0.0] * 10,
    "beside it": [0.1] * 10,
    "in the typical set": np.random.default_rng(1).normal(size=(4, 10)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("method", "settings"), [(None, {}), ("mcmc", {}), ("mcmc", {"precondition": "none"})]
)
def test_chains_do_not_begin_in_the_neck_of_a_funnel(method, settings, start, capsys):
    """Its mode, at theta[0] = -40, has e^-90 of the mass near the centre."""
    trace = mhrun.sample(funnel, None, method, start=STARTS[start], seed=1, steps=300, warmup=300, **settings)
    assert "of the mass near the starting points, like the neck of a funnel" in capsys.readouterr().err
    v = trace["posterior"]["theta"][..., 0].to_numpy()
    assert v.min() > -15
    assert abs(v.mean()) < 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8, 1e10])
def test_a_regression_on_features_of_any_units_has_no_neck(scale):
    """Without units the least eigenvalue of the curvature is rounding, which may be negative."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), rng.random(200), rng.lognormal(size=200) * scale])
    data = {"x": x, "y": x @ [1.0, 2.0, 1 / scale] + rng.normal(size=200)}
    trace = mhrun.sample(
        lambda theta, batch: -0.5 * (batch["y"] - batch["x"] @ theta) ** 2,
        data,
        start=[0.0] * 3,
        steps=100,
        warmup=100,
        progress=False,
    )
    assert "neck" not in json.loads(trace.attrs["pilot"])


def test_the_mass_at_a_point_is_that_of_a_normal_density():
    """Of two normal modes, the mass at points at the wider and lower one, relative to the other: e^20."""
    sds = torch.tensor([1e3, 1.0, 1e-3], dtype=torch.float64)

    def log_density(
        theta,
    ):  # the narrow one is at 0, a hundredth as wide, with e^-20 of the mass of the wide one
        wide = -0.5 * ((theta - 50 * sds) / sds).square().sum()
        narrow = -0.5 * (theta / sds * 100).square().sum() + 3 * np.log(100) - 20
        return torch.logaddexp(wide, narrow)

    model = FunctionModel(lambda theta, b: log_density(theta) + 0 * b["x"], torch.zeros(3))
    surface = Surface(Target(model, Dataset.of({"x": np.zeros(1)})), 1.0, 0)
    modes, curvature, proper = find_curved_modes(surface, torch.zeros(1, 3, dtype=torch.float64))
    assert proper
    at_wide = (50 * sds)[None]
    assert nats_below_starts(surface, modes, curvature, at_wide) == pytest.approx(20, abs=0.01)
    assert nats_below_starts(surface, modes, curvature, torch.zeros(1, 3, dtype=torch.float64)) is None


def test_a_poor_starting_point_has_less_mass_than_the_mode():
    """However flat the density is there: hundreds of nats below the mode."""
    n = 200
    rng = np.random.default_rng(0)
    data = {"y": rng.standard_normal(n)}

    def log_lik(theta, batch):  # Student's t, whose log density has hardly any curvature far out
        return -2 * torch.log1p((batch["y"] - theta[0]) ** 2 / 3) - 0.5 * (theta[1] - 1e-6 * theta[0]) ** 2

    trace = mhrun.sample(log_lik, data, start=[1e4, 0.0], steps=100, warmup=100, progress=False)
    assert "neck" not in json.loads(trace.attrs["pilot"])
