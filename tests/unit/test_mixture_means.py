"""The mixture of fifty means, its sums from nodes; ladders of minibatch sizes; step sizes within a band."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mhrun.data import Dataset
from mhrun.data.mixture import MixtureSample
from mhrun.errors import Refusal
from mhrun.models.mixture_means import MixtureMeans
from mhrun.schedules import Plan
from mhrun.schedules.banded import Banded
from mhrun.schedules.fixed import Fixed
from mhrun.target import Target
from mhrun.units import batch_sizes, batch_temperatures, first_axis


def direct(x, theta, variance=1.0):
    """Log-likelihoods by the formula, one by one."""
    scale = -0.5 / variance
    return np.array(
        [math.log(sum(math.exp(scale * (v - t) ** 2) for t in theta) / len(theta)) for v in x]
    ) - 0.5 * math.log(2 * math.pi * variance)


def test_it_is_the_paper_s_model(rng):
    x, theta = rng.normal(0, 1.5, 40), rng.normal(0, 1, (3, 7))
    for variance in (1.0, 0.3):
        found = MixtureMeans(7, variance).log_lik(torch.from_numpy(theta), {"x": torch.from_numpy(x)[None]})
        assert found.numpy() == pytest.approx(np.stack([direct(x, t, variance) for t in theta]), rel=1e-12)
    model = MixtureMeans(3, half=4.0)
    inside = torch.tensor([[4.0, 0, -4.0], [0, 4.01, 0]], dtype=torch.float64)
    assert model.log_prior(inside).tolist() == [0.0, -math.inf]
    point = torch.from_numpy(rng.normal(0, 1, (1, 7)))
    order = torch.from_numpy(rng.permutation(7))
    rows = {"x": torch.from_numpy(x)[None]}
    whole = MixtureMeans(7)
    assert torch.allclose(whole.log_lik(point, rows), whole.log_lik(point[:, order], rows), rtol=1e-13)


@pytest.mark.parametrize("spread", [0.2, 1.0, 2.0])
def test_sums_of_nodes_are_sums_of_data(rng, spread):
    """All data and a minibatch, sum and gradient, to 1e-9 a datum; up to means about nine standard deviations apart."""
    model = MixtureMeans(50)
    x = np.concatenate([rng.normal(0, 1, 1960), rng.normal(2, 1, 40)]).astype(np.float32)
    target = Target(model, Dataset.of(x))
    theta = torch.from_numpy(rng.normal(0, spread, (2, 50)))
    rows = {"x": torch.from_numpy(x)[None]}
    plain, gradient = model.log_lik_and_grad(theta, rows)
    assert np.abs((target.full_log_lik(theta) - plain.sum(-1)).numpy()).max() < 1e-9 * len(x)
    total, grad = model._value_and_grad(target.data.fields)(theta)
    assert np.abs((total - plain.sum(-1)).numpy()).max() < 1e-9 * len(x)
    assert grad.numpy() == pytest.approx(len(x) * gradient.numpy(), rel=1e-8, abs=1e-6)
    native, index = target.native(full=True), rng.permutation(len(x))[:300]
    weights, values, found = np.empty(native.sums.size), np.empty(native.sums.size), np.empty(50)
    native.sums.gather(native.args, index, 300, weights)
    assert weights.sum() == pytest.approx(300, rel=1e-12)
    one = native.sums.score(native.args, weights, theta[0].numpy(), found, values)
    part, pull = model.log_lik_and_grad(theta[:1], {"x": torch.from_numpy(x[index])[None]})
    assert abs(one - float(part.sum())) < 1e-9 * 300
    assert found == pytest.approx(300 * pull[0].numpy(), rel=1e-8, abs=1e-8)
    assert weights @ values**2 == pytest.approx(float(part.square().sum()), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variance", "centres"),
    [
        (0.04, (6.0, -6.0)),
        (0.005, (9.0, -9.0)),
        (1.0, (40.0, 43.0)),
        (1.0, (1000.0, 1003.0)),
        (1e4, (0.0, 3e3)),
    ],
    ids=["apart", "far apart", "away from 0", "far away", "wide"],
)
@pytest.mark.parametrize("components", [2, 6])
def test_sums_of_nodes_have_no_range(rng, variance, centres, components):
    """Exponents beyond those of float64: means that are many standard deviations apart, or away from 0."""
    sd = math.sqrt(variance)
    x = np.concatenate([rng.normal(centre, sd, 150) for centre in centres])
    model = MixtureMeans(components, variance, 1e4)
    data = Dataset.of(x)
    points = np.array([np.resize(centres, components), np.resize(centres, components) + 3 * sd])
    points = np.vstack([points, points[0] + rng.normal(0, 5 * sd, components)])
    theta = torch.from_numpy(points)
    plain, gradient = model.log_lik_and_grad(theta, {"x": torch.from_numpy(x)[None]})
    exact, slopes = plain.sum(-1).numpy(), len(x) * gradient.numpy()
    native = model.native(data.fields, full=True)
    values, found = np.empty(native.sums.size), np.empty(components)
    for k, point in enumerate(points):
        one = native.sums.score(native.args, native.sums.whole, point, found, values)
        assert one == pytest.approx(exact[k], rel=1e-9)
        assert found == pytest.approx(slopes[k], rel=1e-6, abs=1e-6 * np.abs(slopes[k]).max() + 1e-9 / sd)
    for both in (model._value_and_grad(data.fields), model.full_value_and_grad(data.fields)):
        total, grad = both(theta)
        assert total.numpy() == pytest.approx(exact, rel=1e-9)
        assert grad.numpy() == pytest.approx(slopes, rel=1e-6, abs=1e-6 * np.abs(slopes).max() + 1e-9 / sd)


@pytest.mark.slow
def test_compiled_sums_of_all_data_are_the_plain_ones(rng):
    model = MixtureMeans(50)
    data = MixtureSample(2000, (2.0, 0.0), weights=(0.02, 0.98)).load()
    theta = torch.from_numpy(rng.normal(0, 0.5, (5, 50)))
    (a, b), (c, d) = model.full_value_and_grad(data.fields)(theta), model._value_and_grad(data.fields)(theta)
    assert a.numpy() == pytest.approx(c.numpy(), rel=1e-12)
    assert b.numpy() == pytest.approx(d.numpy(), rel=1e-9, abs=1e-7)
    target, temperature = Target(model, data), torch.ones(5, dtype=torch.float64)
    found = target.evaluate_full(theta, temperature)
    assert (found.n_lik, found.n_grad) == (2000, 2000)
    assert (found.log_lik_mean * 2000).numpy() == pytest.approx(a.numpy())
    assert torch.equal(found.grad, target.gradients.full(theta, temperature))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"components": 0}, "components >= 1"),
        ({"variance": 0.0}, "positive variance"),
        ({"components": 3, "start": [0.0, 1.0]}, "start has 2 numbers for 3"),
        ({"start": 11.0}, "outside the prior's cube"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        MixtureMeans(**settings)


# --- Ladders of minibatches ----------------------------------------------------------------------------------


def test_the_ladder_of_table_3():
    assert batch_sizes(100_000, 1000, 1.4, 7) == [100_000, 5378, 3841, 2743, 1959, 1400, 1000]
    found = batch_temperatures(100_000, 1000, 1.4, 7, 0.995, 14)
    assert found[:7] == found[7:]
    assert [round(t, 2) for t in found[:7]] == [1.0, 19.41, 27.13, 37.93, 53.02, 74.06, 103.51]
    for words in ((100, 50, 1.4, 7), (100, 0, 1.4, 3), (100, 10, 1.0, 3), (100, 10, 1.4, 1)):
        with pytest.raises(Refusal):
            batch_sizes(*words)
    with pytest.raises(Refusal, match="not a multiple of 7 rungs"):
        batch_temperatures(100_000, 1000, 1.4, 7, 0.995, 8)


# --- Step sizes within a band --------------------------------------------------------------------------------


def run_of(plan, warmup, rate, chains):
    """Return the step sizes (steps, C) of a burn-in whose acceptances are rate(step size) of each window's steps."""
    memory, step, seen = plan.start(), 1, []
    while step <= warmup:
        size = min(plan.steps_until_update(step) or warmup, 10, warmup - step + 1)
        controls = plan.controls(memory, step, size)
        seen.append(controls.step_size)
        at = torch.arange(step - 1, step - 1 + size)[:, None] % 10
        memory = plan.learn(memory, step, at < (10 * rate(controls.step_size)).round())
        step += size
    return torch.cat(seen).numpy(), plan.controls(memory, warmup + 1, 50).step_size.numpy()


def test_a_step_size_comes_into_its_band_and_stays():
    schedule = Banded(1e-4, 0.2, 0.5, window=10, factor=2.0)
    plan = Plan({"step": schedule, "temperature": Fixed(temperature=1.0)}, 2, 400, 100)
    steps, after = run_of(plan, 400, lambda e: 1 / (1 + e), 2)  # 0.5 at e = 1, 0.2 at e = 4
    assert steps[:10].tolist() == [[1e-4] * 2] * 10
    assert steps[10].tolist() == [2e-4] * 2
    assert (np.diff(steps[:, 0])[np.arange(1, 400) % 10 != 0] == 0).all()
    assert 0.8 < after[0, 0] < 4.0
    assert (after == steps[-1]).all()
    assert plan.steps_until_update(401) is None


def test_rungs_adapt_one_after_the_other():
    schedule = Banded(1.0, window=10, factor=2.0, length=40, rungs=3, stagger=100)
    plan = Plan({"step": schedule, "temperature": Fixed(temperature=1.0)}, 6, 260, 100)
    # Too much is accepted, so that it doubles
    steps, after = run_of(plan, 260, lambda e: torch.ones_like(e), 6)
    for rung, begins in ((2, 0), (1, 100), (0, 200)):
        for chain in (rung, rung + 3):
            expected = 2.0 ** np.clip((np.arange(260) - begins) // 10, 0, 4)
            assert steps[:, chain].tolist() == expected.tolist()
            assert (after[:, chain] == 16.0).all()
    assert plan.steps_until_update(41) == 60  # until the next rung begins
    assert plan.steps_until_update(36) == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Banded(0.0), "must be positive"),
        (lambda: Banded(1.0, 0.5, 0.2), "low < high"),
        (lambda: Banded(1.0, window=0), "window >= 1"),
        (lambda: Banded(1.0, rungs=2, stagger=150), "whole number of windows"),
        (lambda: Banded(1.0, rungs=3, stagger=100).bind(200, 10), "make it 1200 or more"),
    ],
)
def test_bands_without_meaning_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def test_a_point_on_the_first_axis():
    assert first_axis(2, 4) == [2.0, 0.0, 0.0, 0.0]
    assert first_axis(2, 1) == [2.0]
    with pytest.raises(Refusal, match="dimension = 0"):
        first_axis(2.0, 0)
