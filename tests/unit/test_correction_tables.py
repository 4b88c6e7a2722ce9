"""The correction distribution: what is drawn of it, and the stored tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from significance import ALPHA

from mhrun.errors import Refusal
from mhrun.rules import correction as module
from mhrun.rules.correction import (
    Correction,
    convolved_cdf,
    correction,
    inverse,
    nonnegative,
    quantiles,
    ridge,
    table,
)


def drawn_moments(table):
    """Mean and variance of what `inverse` draws: uniform between the corners."""
    share = np.diff(table.probabilities.numpy())
    low, high = table.points.numpy()[:-1], table.points.numpy()[1:]
    mean = share @ (low + high) / 2
    return mean, share @ (low * low + low * high + high * high) / 3 - mean**2


def evenly(n):
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, on disk and in memory."""
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path))
    correction.cache_clear()
    yield tmp_path / "mhrun" / "correction"
    correction.cache_clear()


@pytest.mark.parametrize("kind", ["paper", "nnls"])
@pytest.mark.parametrize("sigma", [0.8, 1.0])
def test_what_is_drawn_is_what_was_solved_for(kind, sigma):
    solved = correction(kind, sigma)
    table = quantiles(solved)
    mean, variance = drawn_moments(table)
    assert abs(mean) < 1e-9
    assert variance == pytest.approx(solved.variance, abs=3e-6)
    x = np.linspace(-8, 8, 33)
    draws = inverse(evenly(200_000), table).numpy()
    mixed = special.ndtr((x[:, None] - draws) / sigma).mean(axis=1)
    assert np.abs(mixed - convolved_cdf(solved.normalised(), x, sigma)).max() < 1e-6
    assert np.abs(mixed - special.expit(x)).max() < (9e-4 if kind == "paper" else 6e-6)


def test_without_normalising_the_right_end_is_not_drawn():
    solved = correction("paper", 1.0)
    u = evenly(100_000)
    whole, cut = inverse(u, quantiles(solved)), inverse(u, quantiles(solved, normalise=False))
    assert (cut <= whole).all()
    assert whole.mean().abs() < 1e-6
    assert cut.mean() < -1e-3


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_inverse_is_linear_interpolation(rng, normalise, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA here")
    for solved in (
        correction("paper", 1.0),
        correction("nnls", 1.0),
        Correction(np.arange(-3.0, 4), HOLES, 1.0),
    ):
        table = quantiles(solved, normalise)
        u = rng.random(5000)
        drawn = inverse(torch.from_numpy(u).to(device), table)
        assert drawn.dtype == torch.float64
        assert drawn.device.type == device
        expected = np.interp(u, table.probabilities.numpy(), table.points.numpy())
        assert np.abs(drawn.cpu().numpy() - expected).max() < 1e-9


# Nothing in the middle and at the ends; less than 1 in all.
HOLES = np.array([0.0, 0.3, 0.1, 0.0, 0.1, 0.3, 0.0])


def test_inverse_stays_in_range():
    table = quantiles(Correction(np.arange(-3.0, 4), HOLES, 1.0), normalise=False)
    drawn = inverse(torch.tensor([1e-300, 0.4, 0.79, 0.81, 1 - 2**-53], dtype=torch.float64), table)
    assert drawn.tolist() == pytest.approx([-2.5, 0.5, 2.5 - 1 / 30, 2.5, 2.5])


@pytest.mark.parametrize("sigma", [0.8, 1.0, 1.1])
def test_the_sum_is_logistic(rng, sigma):
    """Kolmogorov-Smirnov; the correction's own error is far below what 200,000 draws can show."""
    u, noise = torch.from_numpy(rng.random(200_000)), torch.from_numpy(rng.normal(size=200_000))
    drawn = inverse(u, quantiles(correction("nnls", sigma)))
    assert stats.kstest((sigma * noise + drawn).numpy(), "logistic").pvalue > ALPHA
    assert stats.kstest((0.8 * sigma * noise + drawn).numpy(), "logistic").pvalue < ALPHA


@pytest.mark.parametrize("kind", ["paper", "nnls"])
def test_the_second_call_reads_the_file(cache, monkeypatch, kind):
    first = correction(kind, 1.0, half_width_steps=100)
    assert correction(kind, 1.0, half_width_steps=100) is first
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
    correction.cache_clear()
    for solver in ("ridge", "nonnegative"):
        monkeypatch.setattr(module, solver, None)
    second = correction(kind, 1.0, half_width_steps=100)
    assert second is not first
    assert np.array_equal(second.points, first.points)
    assert np.array_equal(second.masses, first.masses)
    assert second[2:] == first[2:]
    with pytest.raises(ValueError, match="read-only"):
        second.masses[0] = 1.0
    correction.cache_clear()
    with pytest.raises(TypeError):  # other settings are another file
        correction(kind, 1.0, lam=0.5, half_width_steps=100)


def test_a_damaged_or_old_file_is_computed_again(cache, monkeypatch):
    first = correction("nnls", 1.0, half_width_steps=100)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (b"", b"no archive", whole[:-1], whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(damaged)
        correction.cache_clear()
        assert np.array_equal(correction("nnls", 1.0, half_width_steps=100).masses, first.masses)
        assert path.read_bytes() == whole
    np.savez(path, recipe="0-old", points=first.points, masses=first.masses + 1, numbers=np.zeros(2))
    correction.cache_clear()
    assert np.array_equal(correction("nnls", 1.0, half_width_steps=100).masses, first.masses)
    monkeypatch.setattr(module, "_VERSION", -1)
    correction.cache_clear()
    correction("nnls", 1.0, half_width_steps=100)
    assert path.read_bytes() != whole
    assert list(cache.iterdir()) == [path]


def test_a_cache_that_cannot_be_written_does_not_matter(cache, tmp_path):
    (tmp_path / "mhrun").write_text("a file where the folder should be")
    assert correction("nnls", 1.0, half_width_steps=100).mass == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.pi / math.sqrt(3), 2.0, math.nan, math.inf])
def test_no_correction_for_this_sigma(cache, sigma):
    for ask in (
        lambda: correction("paper", sigma),
        lambda: correction("nnls", sigma),
        lambda: ridge(sigma, 10.0, 100),
        lambda: nonnegative(sigma),
    ):
        with pytest.raises(Refusal, match=r"0 < sigma < pi/sqrt\(3\)"):
            ask()
    assert not cache.exists()


def test_settings_without_meaning(cache):
    with pytest.raises(Refusal, match=r"choose paper or nnls\. Did you mean 'nnls'"):
        correction("nnl", 1.0)
    for lam in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(Refusal, match="lam > 0"):
            correction("paper", 1.0, lam=lam)
    with pytest.raises(Refusal, match="at least 200"):
        correction("nnls", 0.1)
    with pytest.raises(Refusal, match="at least 20"):
        ridge(1.0, 10.0, 0)


@pytest.mark.parametrize(("density", "variance", "wrong"), [("nnls", 3.0, "0.014"), ("paper", 2.0, "0.2")])
def test_a_table_that_is_too_inaccurate_is_refused(density, variance, wrong):
    """Near pi^2 / 3 no distribution fits, and the paper's clipped masses fit no large variance."""
    line = rf"variance {variance:g} the correction of density = '{density}' .* wrong by up to {wrong}, more than 0.01"
    with pytest.raises(Refusal, match=line):
        table(density, variance)
    table("nnls", 2.8)


@pytest.mark.slow
def test_a_series_that_is_too_short_is_refused():
    """Of one term it is the logistic distribution: its largest error is that of N(0, 0.5) + logistic, by quadrature."""
    x = np.linspace(0, 10, 201)
    sums = [
        integrate.quad(lambda z, at=at: special.expit(at - z) * stats.norm.pdf(z, scale=0.5**0.5), -9, 9)[0]
        for at in x
    ]
    error = np.abs(sums - special.expit(x)).max()
    with pytest.raises(
        Refusal, match=rf"wrong by up to {error:.2g}, .* a smaller variance or .* or no terms\.$"
    ):
        table("series", 0.5, terms=1)
    table("series", 0.2, terms=1)


def test_a_lambda_that_makes_a_table_inaccurate_is_named():
    with pytest.raises(Refusal, match=r"wrong by up to 0.026, .*; choose a smaller variance or no lam\.$"):
        table("nnls", 1.0, lam=10.0)
