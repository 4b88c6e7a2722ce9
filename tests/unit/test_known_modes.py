"""The modes of a posterior that a pilot knows, and their shares of its mass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mhrun.data import Dataset
from mhrun.engine.landscape.known_modes import known_modes
from mhrun.engine.landscape.modes import find_curved_modes
from mhrun.engine.landscape.surface import Surface
from mhrun.models.function import FunctionModel
from mhrun.target import Target


def mixture(share, apart, width=1.0, dim=2):
    """Return the log-density of two normal modes at -apart / 2 and apart / 2 in all coordinates."""

    def log_density(theta):
        first, second = (
            math.log(weight) - 0.5 * ((theta - sign * apart / 2) / sd).square().sum() - dim * math.log(sd)
            for weight, sign, sd in ((share, -1, width), (1 - share, 1, 1.0))
        )
        return torch.logaddexp(first, second)

    return log_density


def surface_and_modes(log_density, starts, n=1):
    """Return a surface, the modes of ascents from `starts` (C, D), and the curvature at the highest one."""
    starts = torch.tensor(starts, dtype=torch.float64)
    model = FunctionModel(lambda theta, b: log_density(theta) / n + 0 * b["x"], torch.zeros(starts.shape[1]))
    surface = Surface(Target(model, Dataset.of({"x": np.zeros(n)})), 1.0, 0)
    modes, curvature, proper = find_curved_modes(surface, starts)
    assert proper
    return surface, modes, curvature


def found(log_density, starts, n=1, key=1):
    """Return the other mode, for chains that begin at `starts` (C, D)."""
    return other_mode(*surface_and_modes(log_density, starts, n), key)


def other_mode(surface, modes, curvature, key):
    """Return the mode with the largest share of those where no chain begins; None if there is none."""
    known = known_modes(surface, modes, curvature, key)
    return next((mode for mode in known if not mode.begins), None)


@pytest.mark.parametrize("key", range(4))
@pytest.mark.parametrize(("share", "width"), [(0.25, 1.0), (0.9, 1.0), (0.5, 1.5)])
def test_a_mode_and_its_mass_are_found(share, width, key):
    """Laplace's approximation of a normal mode is exact."""
    other = found(mixture(share, 8.0, width), [[3.0, 3.0]] * 4, key=key)
    assert other.theta == pytest.approx((-4.0, -4.0), abs=0.01)
    assert other.share == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("key", range(8))
def test_both_sides_of_a_line_are_searched_though_the_density_is_not_defined_far_out(key):
    both = mixture(0.7, 8.0, 0.5, dim=1)
    for edge in (math.inf, 15.0):  # of the support
        other = found(
            lambda theta, edge=edge: (
                both(theta) + (0.0 if edge == math.inf else 0 * (edge - theta[0]).sqrt())
            ),
            [[4.0]],
            key=key,
        )
        assert other.theta == pytest.approx((-4.0,), abs=0.01)


@pytest.mark.parametrize(
    ("log_density", "starts"),
    [
        (mixture(0.5, 8.0), [[3.0, 3.0], [-3.0, -3.0]]),  # chains begin at both
        (
            mixture(0.0005, 8.0),
            [[3.0, 3.0]],
        ),  # with hardly a share: 6 % of a variance, at 11 standard deviations
        (mixture(0.5, 2.5), [[1.0, 1.0]]),  # chains cross
        (lambda theta: -0.5 * theta.square().sum(), [[1.0, 0.5]]),
        (lambda theta: -2 * (1 + theta.square().sum()).log(), [[1.0, 0.5]]),
    ],
)
def test_nothing_else_is(log_density, starts):
    assert found(log_density, starts) is None


def test_a_small_mode_far_away_adds_to_a_variance():
    """A thousandth at 11.3 standard deviations adds 0.128 to a variance of 1."""
    other = found(mixture(0.001, 8.0), [[3.0, 3.0]])
    assert other.share == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_mode_with_other_signs_is_found_at_any_distance(seed):
    """Draws of theta[1] and -theta[1] have the same density: 400 standard deviations apart."""

    def log_density(theta):
        return -0.5 * (theta[0] - 3) ** 2 - 0.5 * ((theta[1].abs() - 2) / 0.01) ** 2

    other = found(log_density, [[3.0, 2.0]] * 2, key=seed)
    assert other.theta == pytest.approx((3.0, -2.0), abs=1e-3)
    assert other.share == pytest.approx(0.5, abs=0.01)


def test_an_exception_at_another_point_keeps_the_modes_that_were_found():
    """As of a class that refuses a negative scale, which the mode with other signs has."""
    both = mixture(0.5, 8.0, dim=1)
    model = FunctionModel(
        lambda theta, b: both(theta[:1]) - 0.5 * ((theta[1] - 3) / 0.01) ** 2 + 0 * b["x"], torch.zeros(2)
    )

    class Refusing(Surface):
        def value_and_grad(self, theta):
            if bool((theta[:, 1] < 0).any()):
                raise RuntimeError("a scale is positive")
            return super().value_and_grad(theta)

    surface = Refusing(Target(model, Dataset.of({"x": np.zeros(1)})), 1.0, 0)
    modes, curvature, _ = find_curved_modes(surface, torch.tensor([[4.0, 3.0]], dtype=torch.float64))
    other = other_mode(surface, modes, curvature, key=1)
    assert other.theta == pytest.approx((-4.0, 3.0), abs=0.01)


@pytest.mark.parametrize("apart", [20.0, 39.0])
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_a_mode_with_another_sign_is_found_among_ten_parameters(apart, temperature):
    def log_density(theta):
        return -0.5 * theta[1:].square().sum() - 0.5 * (theta[0].abs() - apart / 2) ** 2

    starts = torch.tensor([[apart / 2, *[0.1] * 9]], dtype=torch.float64)
    model = FunctionModel(lambda theta, b: log_density(theta) + 0 * b["x"], torch.zeros(10))
    surface = Surface(Target(model, Dataset.of({"x": np.zeros(1)})), temperature, 0)
    modes, curvature, _ = find_curved_modes(surface, starts)
    other = other_mode(surface, modes, curvature, key=1)
    assert other.theta[0] == pytest.approx(-apart / 2, abs=0.01)


def test_a_small_mode_does_not_hide_a_smaller_one_that_adds_more_to_a_variance():
    """0.4 % at 4.8 standard deviations add 9 %, and 0.2 % at 18 add 65 %."""

    def log_density(theta):
        places = ((0.994, 0.0), (0.004, 4.8), (0.002, -18.0))
        return torch.logsumexp(
            torch.stack([math.log(share) - 0.5 * (theta[0] - place) ** 2 for share, place in places]), 0
        )

    other = found(log_density, [[0.0]])
    assert other.theta == pytest.approx((-18.0,), abs=0.01)


def test_a_model_that_fails_far_out_is_sampled_as_before():
    def log_lik(theta, batch):
        if float(theta.abs().max()) > 4.5:
            raise ValueError("out of range")
        return -0.5 * theta.square().sum() + 0 * batch

    class Failing(FunctionModel):
        def log_lik(self, theta, rows):
            return torch.stack([log_lik(one, rows["x"][0]) for one in theta])

    surface = Surface(Target(Failing(log_lik, [0.0, 0.0]), Dataset.of({"x": np.zeros(1)})), 1.0, 0)
    modes, curvature, _ = find_curved_modes(surface, torch.zeros(1, 2, dtype=torch.float64))
    assert other_mode(surface, modes, curvature, 1) is None


def test_nothing_is_tried_with_many_data():
    assert found(mixture(0.5, 8.0), [[3.0, 3.0]], n=20_000) is not None
    assert found(mixture(0.5, 8.0), [[3.0, 3.0]], n=20_001) is None


@pytest.mark.parametrize("apart", [10.0, 20.0])
def test_modes_are_found_among_many_parameters(apart):
    """A random direction has little of the one in which they differ: of 12 searches 10 find a mode 20 away."""

    def log_density(theta):
        shift = torch.zeros(10, dtype=theta.dtype)
        shift[0] = apart / 2
        return torch.logaddexp(*(-0.5 * (theta + sign * shift).square().sum() for sign in (-1, 1)))

    starts = [[apart / 2] + [0.3] * 9]
    count = sum(found(log_density, starts, key=key) is not None for key in range(6))
    assert count >= (6 if apart == 10.0 else 4)


def test_all_modes_are_known_with_their_shares():
    """Chains begin at two of four modes, one of which is narrow."""
    shares, places, sds = (0.4, 0.3, 0.2, 0.1), (-12.0, 0.0, 7.0, 15.0), (1.0, 1.0, 0.3, 1.0)

    def log_density(theta):
        terms = [
            math.log(share / sd) - 0.5 * ((theta[0] - place) / sd) ** 2
            for share, place, sd in zip(shares, places, sds, strict=True)
        ]
        return torch.logsumexp(torch.stack(terms), 0)

    known = known_modes(*surface_and_modes(log_density, [[-11.0], [14.0]]), key=1)
    assert [mode.begins for mode in known] == [True, False, False, True]
    assert [mode.theta[0] for mode in known] == pytest.approx(places, abs=0.01)
    assert [mode.share for mode in known] == pytest.approx(shares, abs=0.001)


def test_a_single_mode_has_no_list():
    assert known_modes(*surface_and_modes(mixture(0.5, 0.0), [[1.0, 0.0], [0.0, 1.0]]), key=1) == []
