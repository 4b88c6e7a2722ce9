"""Modes of a posterior and its curvature there, from parts of the data and from all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from regressions import D, X, Y, logistic

import mhrun
from mhrun.data import Dataset
from mhrun.engine.diagnosis.gradient_noise import root_of_covariance
from mhrun.engine.landscape.all_data import moved_to_all_data, without_absent
from mhrun.engine.landscape.curvature import below_mode, hessian, largest_curvature, spectrum
from mhrun.engine.landscape.modes import CurvedModes, Mode, find_curved_modes, find_modes
from mhrun.engine.landscape.surface import Surface
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.target import Target

pytestmark = pytest.mark.long


def test_modes_and_curvature_of_a_normal_density():
    precision = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    data = mhrun.Dataset({"x": torch.zeros(10, 1)})

    class Normal:
        dim, names = 2, ("a", "b")

        def init(self, chains, draws):
            return torch.zeros(chains, 2, dtype=torch.float64)

        def log_prior(self, theta):
            return torch.zeros(len(theta), dtype=theta.dtype)

        def log_lik(self, theta, rows):
            off = theta - torch.tensor([1.0, -2.0], dtype=theta.dtype)
            height = -0.05 * torch.einsum("cd,de,ce->c", off, precision.to(theta), off)
            return height[:, None].expand(-1, rows["x"].shape[1])

    surface = Surface(Target(Normal(), data), 1.0, 0)
    modes = find_modes(surface, torch.tensor([[5.0, 5.0], [-3.0, 0.0]], dtype=torch.float64))
    assert modes.theta.numpy() == pytest.approx(np.array([[1.0, -2.0]] * 2), abs=1e-4)
    assert hessian(surface, modes.theta[0]).numpy() == pytest.approx(precision.numpy(), abs=1e-5)
    largest = float(torch.linalg.eigvalsh(precision).max())
    assert largest_curvature(surface, modes.theta[0]) == pytest.approx(largest, rel=1e-3)
    values, _ = spectrum(torch.diag(torch.tensor([0.0, 4.0], dtype=torch.float64)))
    assert values.min() > 0
    assert surface.n_grad > 0


@pytest.mark.parametrize(("temperature", "moved"), [(1.0, True), (1e4, False)])
def test_chains_of_many_data_begin_at_the_mode_of_all_of_them(monkeypatch, temperature, moved):
    """A part of 500 of 200,000 data has its mode about 20 standard deviations off at T = 1, and 0.2 at T = 10^4."""
    monkeypatch.setattr("mhrun.engine.landscape.surface.ROWS", 500)
    n = 200_000
    x = np.random.default_rng(5).normal(0.3, 1.0, n)
    target = Target(GaussianMean(), Dataset.of(x))
    surface = Surface(target, temperature, seed=1)
    modes = find_modes(surface, torch.tensor([[0.0], [5.0], [-7.0]], dtype=torch.float64))
    curvature = hessian(surface, modes.theta[0])
    before, spent = (float(modes.theta[0]) - x.mean()) * n**0.5, surface.n_grad
    on_all = moved_to_all_data(surface, CurvedModes(modes, curvature, True))
    after = (on_all.theta - x.mean()) * n**0.5
    assert abs(before) > 5
    assert after.abs().max() < 0.01 if moved else after[0] == pytest.approx(before)
    # One mode: a step, one that finds it there; and three points that show the curvature.
    assert surface.n_grad - spent == (5 * n if moved else 3 * n)


def survival(theta, rows):
    """Weibull lifetimes, a third of them censored; far from the mode exp(z) is a wall of 10^10 nats."""
    z = theta[3].exp() * (rows["log_time"] - theta[0] - rows["x"] @ theta[1:3])
    return rows["event"] * (theta[3] + z) - z.exp()


def lifetimes(n=3_000):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 2))
    time, censored = np.exp(1 + x @ [0.5, -0.3]) * rng.weibull(1.5, n), rng.exponential(6.0, n)
    return {
        "x": x,
        "log_time": np.log(np.minimum(time, censored)),
        "event": (time <= censored).astype("float64"),
    }


def test_ascents_come_down_from_steep_walls():
    """From wide starts, some of which L-BFGS leaves far from the mode the first time, all end at one mode."""
    model = FunctionModel(
        survival, torch.zeros(4, dtype=torch.float64), lambda theta: -0.125 * (theta**2).sum()
    )
    surface = Surface(Target(model, Dataset.of(lifetimes())), 1.0, 0)
    starts = 2 * torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ends = torch.cat([find_modes(surface, starts[i : i + 4]).theta for i in range(0, 24, 4)])
    sd = torch.linalg.inv(hessian(surface, ends[0])).diagonal().sqrt()
    assert ((ends - ends[0]).abs() < 0.05 * sd).all()


def raw_rows(n=500):
    """Age in years, income in coins, and an outcome of 0 and 1 beside one with noise."""
    rng = np.random.default_rng(1)
    age, income = rng.normal(45, 12, n), rng.lognormal(10.5, 0.5, n)
    x = np.column_stack([np.ones(n), age, income])
    y = x @ [2.0, 0.1, 5e-5] + rng.normal(size=n)
    died = rng.random(n) < 1 / (1 + np.exp(-(x @ [-6.0, 0.1, 3e-5])))
    return x, y, died.astype("float64")


def gaussian(theta, rows):
    return -theta[3] - 0.5 * ((rows["y"] - rows["x"] @ theta[:3]) / theta[3].exp()) ** 2


def binary(theta, rows):
    score = rows["x"] @ theta
    return rows["y"] * score - torch.nn.functional.softplus(score)


@pytest.mark.parametrize("log_lik", [gaussian, binary])
def test_features_that_nobody_standardised_have_a_mode_and_a_scale(log_lik):
    """The curvature has a condition number above 10^10; ascents begin at draws of N(0, 10^2) priors."""
    x, y, died = raw_rows()
    dim = 4 if log_lik is gaussian else 3
    model = FunctionModel(
        log_lik, torch.zeros(dim, dtype=torch.float64), lambda theta: -0.005 * (theta**2).sum()
    )
    target = Target(model, Dataset.of({"x": x, "y": y if log_lik is gaussian else died}))
    surface = Surface(target, 1.0, 0)
    starts = 10 * torch.randn(4, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    starts[:, 3:] = 0.5
    modes, curvature, proper = find_curved_modes(surface, starts)
    assert proper
    values, vectors = spectrum(curvature, proper=True)
    assert values.max() / values.min() > 1e10
    at = modes.theta[modes.best].clone().requires_grad_()
    rows = {"x": torch.from_numpy(x), "y": torch.from_numpy(y if log_lik is gaussian else died)}

    def energy(theta):
        return 0.005 * (theta**2).sum() - log_lik(theta, rows).sum()

    exact = torch.autograd.functional.hessian(energy, at.detach())
    units = exact.diagonal().rsqrt()
    assert torch.allclose(units[:, None] * curvature * units, units[:, None] * exact * units, atol=1e-3)
    (gradient,) = torch.autograd.grad(energy(at), at)
    covariance = torch.linalg.inv(units[:, None] * exact * units)
    assert (units * gradient) @ covariance @ (units * gradient) < 0.1  # a third of a standard deviation
    root = torch.linalg.cholesky(vectors @ torch.diag(1 / values) @ vectors.T) / units[:, None]
    assert torch.allclose(root @ root.T, covariance, rtol=0.02, atol=0.02)


def test_modes_that_are_apart_stay_apart_on_all_data(monkeypatch):
    """Two modes of one likelihood, |theta| = 1: each moves to its own on all data."""
    monkeypatch.setattr("mhrun.engine.landscape.surface.ROWS", 200)
    n = 20_000
    x = np.random.default_rng(6).normal(1.0, 1.0, n)

    def log_lik(theta, batch):
        return -0.5 * (batch["x"] - theta[0] ** 2) ** 2

    target = Target(FunctionModel(log_lik, torch.zeros(1)), Dataset.of(x))
    surface = Surface(target, 1.0, seed=1)
    modes = find_modes(surface, torch.tensor([[-0.8], [1.2], [-1.5]], dtype=torch.float64))
    curvature = hessian(surface, modes.theta[modes.best])
    found = moved_to_all_data(surface, CurvedModes(modes, curvature, True)).theta
    assert found[:, 0].abs().numpy() == pytest.approx(np.sqrt(x.mean()), abs=0.2 * n**-0.5)
    assert found[:, 0].sign().tolist() == [-1, 1, -1]


def test_modes_of_several_coordinates_move_together(monkeypatch):
    """Four coordinates, 200 of 2,000 data: the gradient on all data is that of a point near the mode."""
    monkeypatch.setattr("mhrun.engine.landscape.surface.ROWS", 200)
    target = Target(
        FunctionModel(logistic, torch.zeros(D, dtype=torch.float64)), Dataset.of({"x": X, "y": Y})
    )
    surface = Surface(target, 1.0, seed=1)
    modes = find_modes(
        surface, torch.randn(6, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    )
    curvature = hessian(surface, modes.theta[modes.best])
    root = torch.linalg.cholesky(torch.linalg.inv(curvature))

    def distance(points):
        return (target.gradients.full(points, torch.ones(6, dtype=torch.float64)) @ root).norm(dim=1)

    assert distance(modes.theta).min() > 1
    found = moved_to_all_data(surface, CurvedModes(modes, curvature, True)).theta
    assert distance(found).max() < 0.5
    assert (found - found[0]).abs().max() < 1e-3


def test_modes_of_all_data_stay_where_they_are():
    """A surface of all data has their mode; a step from another point would be to it."""
    surface = Surface(Target(GaussianMean(), Dataset.of([-1.0, 0.0, 4.0])), 1.0, seed=1)
    points = torch.tensor([[9.0], [-9.0]], dtype=torch.float64)
    curvature = torch.tensor([[3.0]], dtype=torch.float64)
    modes = Mode(points, 0, 0.0, torch.zeros(1), [0.0, 0.0])
    assert moved_to_all_data(surface, CurvedModes(modes, curvature, True)).theta.tolist() == [[9.0], [-9.0]]
    assert surface.n_grad == 0


@pytest.mark.parametrize(("gradient", "curvature"), [(1.0, 1.0), (2.0, 4.0), (-3.0, 9.0)])
def test_half_a_nat_below_its_mode_is_one_standard_deviation_off(gradient, curvature):
    g, h = (torch.tensor(value, dtype=torch.float64) for value in ([gradient], [[curvature]]))
    assert below_mode(g, h) == pytest.approx(0.5)


@pytest.mark.parametrize("points", [1, 5])
def test_the_covariance_of_gradients_is_the_mean_over_points(points):
    """Gradients of a normal log-likelihood, x - theta, have the variance of the data at every point."""
    x = np.array([-1.0, 0.0, 0.5, 2.0, 7.0])
    surface = Surface(Target(GaussianMean(), Dataset.of(x)), 1.0, seed=1)
    root = root_of_covariance(surface, torch.zeros(points, 1, dtype=torch.float64))
    assert float(root.T @ root) == pytest.approx(x.var(ddof=1))


def logistic_with_dummy(dummy, y):
    """A logistic regression on a constant and a dummy variable, with prior N(0, 5^2)."""

    def log_lik(theta, batch):
        score = theta[0] + theta[1] * batch["d"]
        prior = -0.5 * (theta / 5).square().sum() / len(y)
        return batch["y"] * score - torch.nn.functional.softplus(score) + prior

    return Target(FunctionModel(log_lik, torch.zeros(2)), Dataset.of({"d": dummy, "y": y}))


@pytest.mark.parametrize("ones", [30, 3_000])
def test_the_curvature_is_that_of_all_data_where_a_part_has_hardly_any_of_a_category(monkeypatch, ones):
    """30 of 30,000 rows have a dummy variable: about 0.3 of the 300 that are read. Newton steps show it."""
    monkeypatch.setattr("mhrun.engine.landscape.surface.ROWS", 300 if ones == 30 else 3_000)
    n = 30_000
    rng = np.random.default_rng(4)
    dummy = np.zeros(n)
    dummy[rng.choice(n, ones, replace=False)] = 1.0
    y = (rng.random(n) < 1 / (1 + np.exp(-1.0 - 0.5 * dummy))).astype(float)

    target = logistic_with_dummy(dummy, y)
    surface = Surface(target, 1.0, seed=1)
    part = find_curved_modes(surface, torch.zeros(2, 2, dtype=torch.float64))
    before = surface.n_grad
    theta, of, found = moved_to_all_data(surface, part)
    p = 1 / (1 + np.exp(-float(theta[0] @ torch.ones(2, dtype=torch.float64))))
    if ones == 30:
        assert of.size == n
        assert float(found.curvature[1, 1]) == pytest.approx(ones * p * (1 - p) + 1 / 25, rel=1e-3)
        assert float(part.curvature[1, 1]) < 0.5 * float(found.curvature[1, 1])
        # At the mode observed and expected numbers of ones agree, but for the prior.
        events = y[dummy == 1].sum()
        assert float(theta[0, 1]) / 25 == pytest.approx(events - ones * p, abs=1e-2 * ones**0.5)
        assert surface.n_grad - before > 4 * n  # passes over all data are counted
    else:
        assert of is surface
        assert found is part
        assert surface.n_grad - before <= 6 * n


def test_a_rare_value_whose_gradient_is_0_at_the_mode_of_a_part_shows_at_other_points(monkeypatch):
    """Four positive and four negative outcomes of 50,000 have it; Newton steps would not move along it."""
    monkeypatch.setattr("mhrun.engine.landscape.surface.ROWS", 2_000)
    n = 50_000
    dummy, y = np.zeros(n), np.arange(n) % 2.0
    dummy[100:108] = 1.0

    target = logistic_with_dummy(dummy, y)
    surface = Surface(target, 1.0, seed=2)
    part = find_curved_modes(surface, torch.zeros(2, 2, dtype=torch.float64))
    assert float(part.curvature[1, 1]) == pytest.approx(1 / 25, rel=1e-3)  # the part has none
    _, of, found = moved_to_all_data(surface, part)
    assert float(found.curvature[1, 1]) == pytest.approx(8 / 4 + 1 / 25, rel=1e-3)
    points = torch.tensor([[0.0, 0.0], [0.5, -1.0]], dtype=torch.float64)
    root = root_of_covariance(of, points)
    exact = np.zeros((2, 2))
    for place, theta in enumerate(points.numpy()):  # each has every other datum
        grad = (y - 1 / (1 + np.exp(-theta[0] - theta[1] * dummy)))[:, None] * np.stack(
            [np.ones(n), dummy], 1
        )
        exact += np.cov(grad[place::2].T) / 2
    # The prior in the function, a share of each datum, is a constant.
    assert (root.T @ root).numpy() == pytest.approx(exact, rel=1e-6, abs=1e-12)
    before = of.n_grad
    twice = root_of_covariance(of, torch.cat([points, points.flip(0)]), in_pass=2)  # in two passes
    assert of.n_grad - before == 2 * n
    other = np.zeros((2, 2))
    for place, theta in enumerate(points.flip(0).numpy()):
        grad = (y - 1 / (1 + np.exp(-theta[0] - theta[1] * dummy)))[:, None] * np.stack(
            [np.ones(n), dummy], 1
        )
        other += np.cov(grad[place::2].T) / 2
    assert (twice.T @ twice).numpy() == pytest.approx((exact + other) / 2, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("rows", [6, 0])
def test_a_value_that_a_part_has_not_at_all_makes_no_flat_direction(monkeypatch, rows):
    """With a flat prior; a coordinate that no datum decides on is flat on all data too."""
    monkeypatch.setattr("mhrun.engine.landscape.surface.ROWS", 2_000)
    n = 40_000
    rng = np.random.default_rng(2)
    dummy = np.zeros(n)
    dummy[100 : 100 + rows] = 1.0
    y = 1.0 + 2.0 * dummy + rng.normal(size=n)

    def log_lik(theta, batch):
        return -0.5 * (batch["y"] - theta[0] - theta[1] * batch["d"]) ** 2

    target = Target(FunctionModel(log_lik, torch.zeros(2)), Dataset.of({"d": dummy, "y": y}))
    surface = Surface(target, 1.0, seed=2)
    part = find_curved_modes(surface, torch.zeros(2, 2, dtype=torch.float64))
    assert not part.proper
    of, found = without_absent(surface, part)
    if rows:
        assert of.is_whole
        assert found.proper
        assert float(found.curvature[1, 1]) == pytest.approx(rows, rel=1e-4)
        assert float(found.modes.theta[0].sum()) == pytest.approx(y[dummy == 1].mean(), abs=1e-3)
    else:
        assert found is part


@pytest.mark.parametrize("temperature", [1.0, 100.0])
def test_the_curvature_of_a_part_is_checked_at_any_temperature(monkeypatch, temperature):
    """At T = 100 the mode of the part is near enough to that of all data, and no Newton steps are taken."""
    monkeypatch.setattr("mhrun.engine.landscape.surface.ROWS", 2_000)
    n = 40_000
    dummy = np.zeros(n)
    dummy[100:104] = 1.0

    def log_lik(theta, batch):
        return -0.5 * (theta[0] + theta[1] * batch["d"]) ** 2 - 0.005 * theta[1] ** 2 / n

    target = Target(FunctionModel(log_lik, torch.zeros(2)), Dataset.of({"d": dummy}))
    surface = Surface(target, temperature, seed=2)
    part = find_curved_modes(surface, torch.zeros(2, 2, dtype=torch.float64))
    assert moved_to_all_data(surface, part).surface.is_whole


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_ascents_that_end_at_a_saddle_go_on_to_both_sides(chains, scale):
    """Two normal modes at -4 and 4 in the first of two coordinates of other units, begun between them."""

    def log_lik(theta, rows):
        both = [-0.5 * (theta[0] / scale + sign * 4) ** 2 for sign in (-1, 1)]
        return torch.logaddexp(*both) - 0.5 * 1e4 * theta[1] ** 2 + 0 * rows["x"]

    model = FunctionModel(log_lik, torch.zeros(2))
    surface = Surface(Target(model, Dataset.of({"x": np.zeros(1)})), 1.0, 0)
    modes, _, proper = find_curved_modes(surface, torch.zeros(chains, 2, dtype=torch.float64))
    assert proper
    signs = modes.theta[:, 0].sign()
    assert modes.theta[:, 0].abs() / scale == pytest.approx(torch.full((chains,), 4.0), abs=0.05)
    assert chains == 1 or sorted(signs.tolist()) == [-1, -1, 1, 1]
