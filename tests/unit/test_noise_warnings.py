"""Warnings after a run whose minibatches are too small for its acceptance test."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import mhrun
from mhrun.kernels.acceptance import noise_widening
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.pairing.growing import Growing
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.rules.compensated import Compensated
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.penalty import Penalty
from mhrun.store.blocks import TraceWriter
from mhrun.store.netcdf import Shape
from mhrun.store.totals import SKEW_EDGES
from mhrun.types import INFO_DEFAULTS, INFO_DTYPES

pytestmark = pytest.mark.long

N = 2_000
NORMAL = np.random.default_rng(0).normal(0.5, 1.0, N)
SKEWED = np.random.default_rng(0).exponential(1.0, N)


def warned(rule, pairing, x=NORMAL, step=0.1, temperature=20.0, **settings):
    """Return the warnings of a short run on the mean of normal data that are about minibatch noise."""
    settings = {"executor": "torch", "steps": 300, "warmup": 50} | settings
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            GaussianMean(),
            x,
            mhrun.MetropolisHastings(mhrun.RandomWalk(), pairing, rule),
            start=[float(x.mean())],
            step_size=step,
            temperature=temperature,
            temper="likelihood",
            **settings,
        )
    others = ("R-hat", "ESS", "acceptance", "the target is at T")
    return [line for one in found if not (line := str(one.message)).startswith(others)]


@pytest.mark.slow
def test_noise_that_dominates_a_log_ratio_is_warned_of():
    # The noise's sd is about (n/T) |step| / sqrt(m): 100 0.1 / sqrt(20) = 2.2, and 0.3 at ten times the temperature.
    for executor in ("compiled", "torch"):
        (line,) = warned(mhrun.Metropolis(), Shared(20), executor=executor)
        assert "minibatch noise has sd 2" in line
        assert "(n/T = 100, m = 20): draws are too wide" in line
        assert re.search(r"standard deviations by up to 7\d %\. Raise T or m", line)
    assert not warned(mhrun.Metropolis(), Shared(20), temperature=200.0)
    assert not warned(mhrun.Metropolis(), Shared(1_500))
    assert not warned(mhrun.Metropolis(), mhrun.Full())


def test_a_minibatch_of_one_gets_a_line_that_its_noise_is_unknown():
    assert warned(mhrun.Metropolis(), Shared(1)) == [
        "the noise of the log-ratio cannot be estimated from minibatches of m = 1. It makes draws wrong unless n/T "
        "is small; choose m >= 2 to see how large it is."
    ]
    (line,) = warned(mhrun.Metropolis(), Shared(2), step=10.0)
    assert "standard deviations by more than 1000 %" in line


def test_a_penalty_that_rejects_most_moves_is_warned_of():
    (line,) = warned(Penalty(), Shared(20), step=0.2)  # twice the noise of the test above
    assert (
        "Penalty corrects for noise up to 2; above that draws may be of another distribution, and noise costs "
        "acceptance. Raise T" in line
    )
    assert not warned(Penalty(), Shared(20), step=0.05)
    assert warned(mhrun.Metropolis(), Shared(20), step=0.05)


@pytest.mark.slow
def test_a_penalty_is_warned_of_where_its_series_fails():
    """From m terms it corrects a variance below m/4: sd 1.12 with m = 5; known variances have no such limit."""
    (line,) = warned(Penalty(), Shared(5), step=0.03)  # sd 100 0.03 / sqrt(5) = 1.3
    assert "Penalty corrects for noise up to 1.12; above that draws may be of another distribution" in line
    assert not warned(Penalty(), Shared(5), step=0.015)
    assert not warned(Penalty(estimated=False), Shared(5), step=0.03)


@pytest.mark.slow
def test_the_warning_is_for_tests_that_take_no_account_of_the_noise():
    assert not warned(Compensated(variance=1.0), Shared(20))
    assert not [line for line in warned(MHMinibatch(50), Growing()) if "noise has sd" in line]
    (line,) = warned(mhrun.Metropolis(), Stored(20))
    assert "each point keeps its minibatch, and chains stay where it overestimates the density" in line


@pytest.mark.slow
def test_a_design_whose_log_ratio_is_too_skewed_is_warned_of():
    size = {"chains": 16, "steps": 75, "warmup": 25}  # as many draws as 300 steps of 4 chains, in fewer calls
    (line,) = warned(MHMinibatch(50, stop="sequential", finite=False), Growing(), SKEWED, **size)
    assert "the mean of a minibatch has skewness 0.1" in line or "has skewness 0.2" in line
    assert "above 0.048 the acceptance probability may be off by 0.01. Choose stop=pilot" in line
    assert not warned(MHMinibatch(50), Growing(), SKEWED, **size)
    assert not warned(MHMinibatch(50, stop="sequential"), Growing(), NORMAL, **size)
    heavy = np.random.default_rng(0).exponential(1.0, N) ** 4
    (line,) = warned(MHMinibatch(50), Growing(), heavy / heavy.std(), **size)
    assert "Choose a smaller noise_share" in line


def test_the_summary_of_the_skewness_is_without_what_chance_has_of_it(tmp_path):
    rng, size, skew = np.random.default_rng(1), 100, 0.02
    record = {name: np.zeros((4, 5_000), dtype) for name, dtype in INFO_DTYPES.items()}
    record |= {name: np.broadcast_to(np.float32(v), (4, 5_000)) for name, v in INFO_DEFAULTS.items()}
    record["theta"], record["batch_size"] = np.zeros((4, 5_000, 1)), np.full((4, 5_000), size)
    values = skew + np.sqrt(6) / size * rng.standard_normal((4, 5_000))
    record["log_ratio_skew"] = values.astype(np.float32)
    writer = TraceWriter(tmp_path, Shape(4, ("a",), 1_000, 4_000, 1), INFO_DTYPES, n=10_000)
    for first in (1, 2_001, 4_001):  # in parts, as a run has them
        part = slice(first - 1, min(first + 1_999, 5_000))
        writer.append(first, {name: v[:, part] for name, v in record.items()})
    from mhrun.engine.warnings.noise import log_ratio_skew

    typical, most = log_ratio_skew({"totals": {k: v.tolist() for k, v in writer.totals.items()}})
    assert typical == pytest.approx(skew, abs=2e-3)
    edge = np.searchsorted(SKEW_EDGES, np.quantile(np.abs(values[:, 1_000:]), 0.95))
    assert most == SKEW_EDGES[edge]


@pytest.mark.parametrize("barker", [False, True])
def test_the_widening_that_is_named_is_that_of_small_moves(rng, barker):
    """A chain on N(0, 1) with noise N(0, s^2) in its log-ratio, in NumPy; small moves, many chains.

    Standard deviations of 4,000 chains, so that a standard error is about 1.2 %.
    """
    assert noise_widening(0.0, barker=barker) == pytest.approx(0.0)
    for noise in (0.5, 1.0, 2.0):
        widening = noise_widening(noise, barker=barker)
        x = rng.standard_normal(4_000) * (1 + widening)
        for _ in range(1_500):
            to = x + 0.25 * rng.standard_normal(len(x))
            ratio = (x**2 - to**2) / 2 + noise * rng.standard_normal(len(x))
            u = rng.random(len(x))
            x = np.where(np.log(u) - np.log1p(-u) * barker < ratio, to, x)
        assert x.std() == pytest.approx(1 + widening, rel=0.06)
        assert x.std() > 1 + 0.6 * widening - 0.03 * barker


@pytest.mark.parametrize("barker", [False, True])
@pytest.mark.parametrize(("dim", "step"), [(1, 0.5), (1, 2.4), (3, 0.5)])
def test_noise_in_proportion_to_the_length_of_moves_does_not_widen_more(rng, barker, dim, step):
    """As that of log-likelihood differences; s is that of all moves, pooled. Long moves have more than its share."""
    x = rng.standard_normal((20_000, dim))
    variances = []
    for k in range(500):
        move = step * rng.standard_normal(x.shape)
        ratio = -(move * (x + move / 2)).sum(1)
        sd = 0.9 * np.linalg.norm(move, axis=1) / (step * dim**0.5)
        u = rng.random(len(x))
        accept = np.log(u) - np.log1p(-u) * barker < ratio + sd * rng.standard_normal(len(x))
        x[accept] += move[accept]
        if k >= 250:
            variances.append(x.var())
    widening = np.mean(variances) ** 0.5 - 1
    assert 0.02 < widening < noise_widening(0.9, barker=barker, dim=dim)
    if (dim, step) == (1, 0.5):  # where one of equal moves is exceeded
        assert widening > 1.1 * noise_widening(0.9, barker=barker)


def test_the_quadrature_of_barkers_test_is_exact():
    for noise in (1e-3, 0.3, 1.0, 7.0, 300.0):
        z = np.linspace(-12, 12, 2_000_001)
        p = 1 / (1 + np.exp(-np.clip(noise * z, -700, 700)))
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        mean = np.trapezoid(p * (1 - p) * density, z)
        assert noise_widening(noise, barker=True) == pytest.approx(
            (4 * mean) ** -0.5 - 1, rel=1e-6, abs=1e-12
        )
