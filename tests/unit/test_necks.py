"""Chains begin at their starting points where the highest mode has hardly any mass beside them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import mhrun

pytestmark = pytest.mark.long


def funnel(theta):
    """Neal's funnel: theta[0] ~ N(0, 3^2), and the others have the variance exp(theta[0])."""
    v, x = theta[0], theta[1:]
    return -(v**2) / 18 - 0.5 * x.square().sum() * torch.exp(-v) - 0.5 * len(x) * v


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [None, "mcmc"])
def test_chains_do_not_begin_in_the_neck_of_a_funnel(method, capsys):
    """Its mode, at theta[0] = -40, has e^-91 of the mass near the point that is given."""
    trace = mhrun.sample(funnel, None, method, start=[0.1] * 10, seed=1, steps=300, warmup=300)
    assert "about e^-91 of the mass near the starting points" in capsys.readouterr().err
    v = trace["posterior"]["theta"][..., 0].to_numpy()
    assert v.min() > -15
    assert abs(v.mean()) < 5


def test_a_poor_starting_point_has_less_mass_than_the_mode():
    """However flat the density is there: the mass at a point is that of a width of the mode at most."""
    n = 200
    rng = np.random.default_rng(0)
    data = {"y": rng.standard_normal(n)}

    def log_lik(theta, batch):  # Student's t, whose log density has hardly any curvature far out
        return -2 * torch.log1p((batch["y"] - theta[0]) ** 2 / 3) - 0.5 * (theta[1] - 1e-6 * theta[0]) ** 2

    trace = mhrun.sample(log_lik, data, start=[1e4, 0.0], steps=100, warmup=100, progress=False)
    assert "neck" not in json.loads(trace.attrs["pilot"])
