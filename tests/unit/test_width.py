"""Draws of a dynamics that are far wider than the scale of its steps."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

import mhrun
from mhrun.engine.diagnosis.width import WIDTH


def of_a_rate(step_size, folder, **settings):
    """Return the draws of the log of a rate with one event, U = e^x - x, the recorded width, and the warnings."""
    call = {"start": [0.0, 0.0], "precondition": "dense", "steps": 4000, "warmup": 500, "seed": 1} | settings
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            lambda theta: theta[0] - theta[0].exp() - 0.5 * theta[1] ** 2,
            None,
            mhrun.Unadjusted(mhrun.SGLD(), m=1),
            step_size=step_size,
            folder=folder,
            **call,
        )
    width = json.loads((folder / "done.json").read_text()).get(WIDTH)
    draws = trace["posterior"]["theta"].to_numpy() if "posterior" in trace.children else None
    return draws, width, [str(one.message) for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_width_is_the_largest_standard_deviation(tmp_path, temperature):
    """At the mode, x = 0, both curvatures are 1."""
    draws, width, lines = of_a_rate(0.1, tmp_path, temperature=temperature)
    assert width == pytest.approx(draws.std((0, 1)).max() / temperature**0.5, rel=0.05)
    assert not any("as wide as the scale" in line for line in lines)


@pytest.mark.slow
def test_draws_that_the_steep_side_throws_far_out_are_warned_of(tmp_path):
    """Of a posterior with standard deviation 1.28 they have 44, the same in all chains."""
    draws, width, lines = of_a_rate(1.5, tmp_path)
    assert draws.std() > 20
    assert width > 20
    assert any("times as wide as the scale of its steps" in line for line in lines)
    assert not any("R-hat" in line for line in lines)


@pytest.mark.slow
def test_what_has_no_scale_has_no_width(tmp_path):
    assert of_a_rate(0.1, tmp_path / "none", precondition="none", steps=200)[1] is None
    assert of_a_rate(0.1, tmp_path / "few", steps=20)[1] is None
    assert of_a_rate(0.1, tmp_path / "no", steps=200, thin=None)[1] is None


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "events"), [(1, (1, 3)), (3, (1, 3)), (1, (0, 1)), (1, (0, 0))])
def test_the_default_for_many_data_is_right_where_outcomes_are_rare(seed, events):
    """A few positive outcomes at the values of a dummy variable; the part of the data that a mode is from has none.

    The standard deviations are by quadrature on a grid. Steps make variances 10 % too large in a normal posterior, and
    up to 1.3 times too wide draws are tolerated where it is skewed.
    """
    n = 210_000
    x = torch.repeat_interleave(torch.tensor([0.0, 1.0], dtype=torch.float64), n // 2)
    y = torch.zeros(n, dtype=torch.float64)
    y[: events[0]] = y[n // 2 : n // 2 + events[1]] = 1.0

    def log_lik(theta, batch):
        score = theta.a + theta.b * batch.x
        return batch.y * score - torch.nn.functional.softplus(score)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            log_lik, {"x": x, "y": y}, parameters={"a": "Normal(0, 5)", "b": "Normal(0, 5)"}, seed=seed
        )
    a, b = np.linspace(-35, -5, 1201)[:, None], np.linspace(-25, 20, 1801)[None]
    height = -(a**2 + b**2) / 50 + sum(
        count * score - n // 2 * np.logaddexp(0, score)
        for count, score in zip(events, (a, a + b), strict=True)
    )
    weight = np.exp(height - height.max())
    weight /= weight.sum()
    for name, axis in (("a", a), ("b", b)):
        mean = (weight * axis).sum()
        sd = (weight * (axis - mean) ** 2).sum() ** 0.5
        draws = trace["posterior"][name].to_numpy()
        assert draws.std() / sd == pytest.approx(1.1, abs=0.2), name
        assert draws.mean() == pytest.approx(mean, abs=0.35 * sd), name
    assert not [str(one.message) for one in found if "wide" in str(one.message)]


@pytest.mark.slow
def test_the_noise_of_a_rare_value_is_known_though_no_step_moves_along_it():
    """Four positive and four negative outcomes have it: its draws were 60 times too wide."""
    n = 60_000
    rng = np.random.default_rng(7)
    dummy, x = np.zeros(n), rng.normal(size=n)
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-0.5 * x)), 1.0, -1.0)
    rare = rng.choice(n, 8, replace=False)
    dummy[rare], x[rare], y[rare] = 1.0, 0.0, [1.0, -1.0] * 4

    def log_lik(theta, batch):
        return torch.nn.functional.logsigmoid(batch.y * (theta.w[0] * batch.x + theta.w[1] * batch.d))

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            log_lik,
            {"x": x, "d": dummy, "y": y},
            mhrun.Unadjusted(mhrun.SGLD(), m="auto"),
            surrogate="taylor1",
            parameters={"w": {"shape": 2, "prior": "Normal(0, 5)"}},
            steps=4_000,
            seed=1,
        )
    grid = np.linspace(-20, 20, 8001)
    weight = np.exp(-8 * np.logaddexp(0, grid) + 4 * grid - grid**2 / 50)
    sd = (weight / weight.sum() @ grid**2) ** 0.5
    draws = trace["posterior"]["w"].to_numpy()[..., 1]
    assert 0.85 < draws.std() / sd < 1.3  # 400 effective draws; 10 % of the variance is the step's
    assert not [str(one.message) for one in found if "wide" in str(one.message)]
    assert json.loads(trace.attrs["pilot"])["m"] > 1_000
