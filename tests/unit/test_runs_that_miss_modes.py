"""What runs say of the modes of a posterior: those that draws miss, and those between which chains hardly cross."""

from __future__ import annotations

import json
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mhrun
from mhrun.engine.pilot.sentences import pilot_warnings

RNG = np.random.default_rng(0)
X = RNG.normal(size=300)
SQUARES = {"x": X, "y": X**2 + RNG.normal(size=300)}


def sample_squares(method, seed, start=None, steps=500):
    """A regression on (b x)^2: of the posterior 4.9 % has b < 0, and no chain crosses."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            lambda theta, row: -0.5 * (row.y - (theta.b * row.x) ** 2) ** 2,
            SQUARES, *([method] if method else []), parameters={"b": "Normal(1.5, 1)"}, seed=seed, start=start,
            steps=steps, warmup=200, progress=False,
        )  # fmt: skip
    return trace, [str(one.message) for one in caught]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["parallel_tempering", None])
@pytest.mark.parametrize("seed", range(1, 6))
def test_chains_that_miss_a_mode_warn(method, seed):
    """Where the first points of all ladders, or of all chains, are on one side, and where they are not."""
    trace, lines = sample_squares(method, seed)
    share = float((trace["posterior"]["b"] < 0).mean())
    named = any("another mode, at b = -0.99" in line and "about 5% of the mass" in line for line in lines)
    assert named == (share == 0)
    assert named or any("R-hat is 1.5" in line for line in lines)


def test_the_rungs_of_a_ladder_begin_at_one_mode():
    """As many chains of each ladder at each mode would agree with one another without crossing."""
    trace, _ = sample_squares(
        "parallel_tempering",
        1,
        start={"b": np.tile([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0], 2)},
        steps=100,
    )
    b = trace["posterior"]["b"].to_numpy().reshape(4, 4, -1)  # ladders, rungs, draws
    assert ((b > 0).mean((1, 2)) == [1, 0, 1, 0]).all()  # as their coldest rungs are given


@pytest.mark.slow
def test_ladders_that_hardly_cross_warn():
    """Two modes of different width have half of the posterior each, and the coldest rungs 4 % at the wide one."""

    def log_density(theta):
        narrow = -0.5 * ((theta - 4) ** 2).sum() / 0.09 - 3 * math.log(0.3)
        return torch.logaddexp(-0.5 * ((theta + 4) ** 2).sum(), narrow)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(log_density, None, "parallel_tempering", start=[4.0] * 3, seed=1, progress=False)
    cold = mhrun.rung(trace, 0)["posterior"]["theta"][..., 0]
    assert float((cold < 0).mean()) < 0.15
    (line,) = [str(one.message) for one in caught if "another mode" in str(one.message)]
    assert "with about 50% of the mass of all known ones; no ladder begins there, and" in line
    assert "of the draws of the coldest rungs are there: ladders hardly cross" in line


@pytest.mark.slow
@pytest.mark.parametrize(("apart", "crosses"), [(4.5, True), (9.0, False)])
def test_a_run_that_goes_there_does_not_warn(apart, crosses):
    """The narrower of two modes, in one of two parameters: hmc crosses between them where they are near."""

    def log_density(theta):
        first = -0.5 * ((theta[0] / 0.8).square() + theta[1].square()) - math.log(0.8)
        return torch.logaddexp(first, -0.5 * ((theta[0] - apart).square() + theta[1].square()))

    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        trace = mhrun.sample(log_density, None, start=[0.0, 0.0], chains=2, steps=1000, warmup=200)
    (mode,) = [mode for mode in json.loads(trace.attrs["pilot"])["modes"] if not mode["begins"]]
    assert mode["share"] == pytest.approx(0.5, abs=0.02)
    went = float((trace["posterior"]["theta"][..., 0] > apart / 2).mean())
    assert (went > 0.2) == crosses
    assert any("another mode" in str(line.message) for line in lines) != crosses


@pytest.mark.slow
def test_a_run_warns_of_it_with_the_parameters_as_they_are_drawn():
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.normal(-2.0, 1.0, 100), rng.normal(3.0, 1.0, 50)])

    def log_lik(theta, batch):
        one, two = (-0.5 * (batch.z - mean) ** 2 for mean in (theta.m1, theta.m2))
        return torch.logaddexp(theta.w.log() + one, (1 - theta.w).log() + two)

    normal = "Normal(0, 10)"
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        mhrun.sample(
            log_lik,
            {"z": data},
            parameters={"w": "Beta(2, 2)", "m1": normal, "m2": normal},
            start={"w": 0.5, "m1": -1.0, "m2": 1.0},
            steps=200,
            warmup=200,
        )
    (line,) = [str(line.message) for line in lines if "another mode" in str(line.message)]
    assert "w = 0.33" in line or "w = 0.34" in line
    assert "with about 50% of the mass of all known ones" in line


@pytest.mark.long
def test_the_share_counts_a_mode_to_which_chains_went():
    """Beside the modes where chains begin, with 1 % of the mass, the other one has 71 %; of all of it, 4 %.

    By quadrature over the frequency w, the amplitudes integrated out.
    """
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 30, 25))
    y = np.sin(1.7 * t + 0.4) + 0.8 * rng.standard_normal(25)
    grid = np.linspace(0.1, 3, 40_001)
    waves = np.stack([np.sin(grid[:, None] * t), np.cos(grid[:, None] * t)], -1)
    precision = waves.swapaxes(1, 2) @ waves / 0.64 + np.eye(2)
    pull = y @ waves / 0.64
    height = 0.5 * np.einsum("gi,gi->g", pull, np.linalg.solve(precision, pull[..., None])[..., 0])
    mass = np.exp(height - height.max()) / np.sqrt(np.linalg.det(precision))
    exact = mass[(grid > 2.4) & (grid < 2.6)].sum() / mass.sum()

    def log_lik(p, batch):
        wave = p["a"] * torch.sin(p["w"] * batch["t"]) + p["c"] * torch.cos(p["w"] * batch["t"])
        return -0.5 * ((batch["y"] - wave) / 0.8) ** 2

    normal = {"prior": "Normal(0, 1)"}
    parameters = {"w": {"prior": "Uniform(0.1, 3)"}, "a": normal, "c": normal}
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        mhrun.sample(log_lik, {"t": t, "y": y}, parameters=parameters, seed=3, progress=False)
    (line,) = [str(line.message) for line in lines if "another mode" in str(line.message)]
    assert "at w = 2.5" in line
    share = float(line.split("with about ")[1].split("%")[0]) / 100
    assert share == pytest.approx(exact, abs=0.015)


MODES = [
    {"at": {"a": 1.0}, "theta": [1.0], "share": 0.6, "begins": True},
    {"at": {"a": 9.0}, "theta": [9.0], "share": 0.3, "begins": False},
    {"at": {"a": 5.0}, "theta": [5.0], "share": 0.1, "begins": False},
]


@pytest.mark.parametrize(
    ("found", "rungs", "named"),
    [
        ((0.6, 0.3, 0.1), 1, None),
        ((0.9, 0.04, 0.06), 1, None),
        ((0.9, 0.02, 0.08), 1, "at a = 9, with about 30% of the mass of all known ones, and no chain begins"),
        ((0.9, 0.06, 0.04), 4, "about 30% of the mass of all known ones; no ladder begins there, and 6% of"),
        (
            (0.02, 0.9, 0.08),
            1,
            "about 60% of the mass of all known ones; chains begin there, and 2% of the draws",
        ),
        (
            (1.0, 0.0, 0.0),
            1,
            "Give each chain its own start, or take a ladder (parallel_tempering). The same holds",
        ),
        (None, 1, "The same holds for 1 more mode."),
    ],
)
def test_modes_that_draws_miss_have_a_line(found, rungs, named):
    method = SimpleNamespace(
        pilot={"modes": MODES}, name="hmc", dtype=torch.float64, kernel=SimpleNamespace(rungs=rungs)
    )
    shares = [mode["share"] for mode in MODES]
    visits = found and {"found": list(found), "share": shares, "crossings": 0.0}
    lines = list(pilot_warnings(method, visits, None))
    assert len(lines) == (named is not None)
    assert named is None or named in lines[0]


def test_chains_that_stay_at_their_modes_are_advised():
    def two_modes(theta):
        return torch.logaddexp(*(-0.5 * (theta - place).square().sum() for place in (-6.0, 6.0)))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mhrun.sample(two_modes, None, "mcmc", start=[[6.0, 6.0], [-6.0, -6.0]] * 2, steps=500)
    (line,) = [str(one.message) for one in caught if "R-hat" in str(one.message)]
    assert "They are at 2 modes that the pilot found, and hardly cross between them" in line


def heavy_and_far(theta):
    """Return the log density of 0.9 t_3(0, I) + 0.1 N(25 e_1, 3.5^2 I) in three dimensions."""
    heavy = math.lgamma(3) - math.lgamma(1.5) - 1.5 * math.log(3 * math.pi)
    heavy = heavy - 3 * torch.log1p(theta.square().sum() / 3)
    away = theta - torch.tensor([25.0, 0.0, 0.0], dtype=theta.dtype)
    far = -0.5 * away.square().sum() / 3.5**2 - 3 * math.log(3.5) - 1.5 * math.log(2 * math.pi)
    return torch.logaddexp(math.log(0.9) + heavy, math.log(0.1) + far)


def lines_of(log_density, **settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(log_density, None, progress=False, **settings)
    return trace, [str(one.message) for one in caught]


@pytest.mark.slow
def test_draws_in_a_tail_are_at_no_mode():
    """A draw at -28 is nearer to the wide mode at 25 by its normal density than to the narrow one at 0."""
    trace, lines = lines_of(heavy_and_far, start=[0.0, 0.0, 0.0], seed=1)
    known = json.loads(trace.attrs["pilot"])["modes"]
    assert [mode["begins"] for mode in known] == [True, False]
    assert float(trace["posterior"]["theta"][..., 0].max()) < 15
    assert any("another mode, at theta[0] = 25" in line for line in lines)


@pytest.mark.slow
def test_mass_of_a_known_mode_is_no_narrow_peak():
    def log_density(theta):
        return torch.logaddexp(
            math.log(0.8) - 0.5 * (theta[0] + 4) ** 2, math.log(0.2) - 0.5 * (theta[0] - 4) ** 2
        )

    _, lines = lines_of(log_density, start=[-4.0], seed=1)
    assert any("another mode" in line for line in lines)
    assert not any("narrow peak" in line for line in lines)


@pytest.mark.slow
def test_chains_that_cross_are_not_advised_to():
    """Two modes five standard deviations apart, beside a curved ridge in another parameter, whose R-hat is high."""

    def log_density(theta):
        bimodal = torch.logaddexp(-0.5 * (theta[0] - 2.5) ** 2, -0.5 * (theta[0] + 2.5) ** 2)
        return bimodal - 0.5 * theta[1] ** 2 - 0.5 * ((theta[2] - 3 * theta[1] ** 2) / 0.1) ** 2

    _, lines = lines_of(log_density, start=[0.1, 0.1, 0.1], seed=1, steps=1000)
    assert any("R-hat" in line for line in lines)
    assert not any("hardly cross between them" in line for line in lines)
