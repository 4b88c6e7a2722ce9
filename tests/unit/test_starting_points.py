"""Where chains begin: points in turn, or random ones. False alarms: see `significance`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import FEW, config
from scipy import stats
from significance import ALPHA, assert_mean

from mhrun.engine.assemble import methods_of
from mhrun.engine.starts import starts_of
from mhrun.errors import UserError
from mhrun.random import Draws, Streams


def drawn(setting, chains, dim=2, key=5):
    return starts_of(setting, dim, "methods.a.starts")(chains, Draws(Streams(key, chains), 0))


def test_points_are_dealt_in_turn():
    points = [[0, 1], [2, 3], [4, 5]]
    assert drawn(points, 5).tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert drawn(points, 2).tolist() == points[:2]
    assert drawn(points, 1).dtype == torch.float64
    assert starts_of(None, 2, "") is None


@pytest.mark.parametrize(
    ("setting", "expected"),
    [({"normal": 0.03}, stats.norm(scale=0.03)), ({"uniform": [-1, 3.0]}, stats.uniform(-1, 4))],
)
def test_random_points_have_their_distribution_and_are_independent(setting, expected):
    points = drawn(setting, 40_000).numpy()
    assert points.shape == (40_000, 2)
    for column in points.T:
        assert stats.kstest(column, expected.cdf).pvalue > ALPHA
        assert_mean(column, expected.mean())
        assert_mean((column - expected.mean()) ** 2, expected.var())
    centred = points - expected.mean()
    assert_mean(centred[:, 0] * centred[:, 1], 0.0, "between coordinates")
    assert_mean(centred[1:, 0] * centred[:-1, 0], 0.0, "between chains")


def test_a_chains_start_is_no_matter_of_the_others():
    for setting in ({"normal": 1.0}, {"uniform": [0, 1]}):
        assert torch.equal(drawn(setting, 7)[:3], drawn(setting, 3))
        assert not torch.equal(drawn(setting, 3), drawn(setting, 3, key=6))


POINTS = "must be a list of points, each of 2 numbers"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([], POINTS),
        ([[]], POINTS),
        ([1.0, 2.0], POINTS),
        ([[1.0, 2.0, 3.0]], POINTS),
        ([[1.0, 2.0], [3.0]], POINTS),
        ([["a", "b"]], POINTS),
        ([[None, 1.0]], POINTS),
        ("near", POINTS),
        (3.0, POINTS),
        ({}, "is unknown; give normal: SD, uniform:"),
        ({"normal": 0}, "is unknown"),
        ({"normal": -0.1}, "is unknown"),
        ({"normal": math.nan}, "is unknown"),
        ({"normal": math.inf}, "is unknown"),
        ({"uniform": [0, math.inf]}, "is unknown"),
        ([[math.nan, 1.0]], "not finite"),
        ({"normal": None}, "is unknown"),
        ({"normal": "0.1"}, "is unknown"),
        ({"normal": [0, 1]}, "is unknown"),
        ({"normal": 0.1, "uniform": [0, 1]}, "is unknown"),
        ({"gaussian": 0.1}, "is unknown"),
        ({"uniform": 1.0}, "is unknown"),
        ({"uniform": [1.0]}, "is unknown"),
        ({"uniform": [0, 1, 2]}, "is unknown"),
        ({"uniform": [1, 1]}, "is unknown"),
        ({"uniform": [1, 0]}, "is unknown"),
        ({"uniform": ["a", "b"]}, "is unknown"),
        ({"uniform": [0, 1], "normal": 1}, "is unknown"),
    ],
)
def test_what_is_no_start_is_reported_in_one_line(setting, message):
    with pytest.raises(UserError, match=message) as caught:
        starts_of(setting, 2, "methods.a.starts")
    assert str(caught.value).startswith("methods.a.starts")
    assert "\n" not in str(caught.value)


def test_a_configuration_sets_the_starting_points_of_its_methods(outputs):
    words = [*FEW, "chains=3", "+methods.mint.starts={normal: 0.03}", "methods.sghmc.starts=[[5,6],[7,8]]"]
    mint, sghmc = methods_of(config(outputs, *words))
    assert sghmc.first_state().evaluation.theta.tolist() == [[5, 6], [7, 8], [5, 6]]
    theta = mint.first_state().evaluation.theta.numpy()
    z = Draws(Streams(mint.key, 3), 0)
    assert np.array_equal(theta, starts_of({"normal": 0.03}, 2, "")(3, z).numpy())
    assert 0 < np.abs(theta).max() < 0.2  # the model would have (0, 1)
    with pytest.raises(UserError, match=r"methods.mint.starts = \{'normal': -1\} is unknown"):
        methods_of(config(outputs, *FEW, "+methods.mint.starts={normal: -1}"))
