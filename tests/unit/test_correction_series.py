"""The correction as a series: its exact coefficients, the distribution that it has, and its use by the rule."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import special, stats
from significance import ALPHA

from mhrun.errors import Refusal
from mhrun.paths import experiment_module
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.rules.correction import inverse, series_quantiles
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.series import derivative, most_terms, series, truncated
from mhrun.types import Contest

KEY = derive_key(22, "series")
AT = np.linspace(-14, 14, 2801)
SETTINGS = [(v, lam, n) for v in (0.2, 0.5, 1.0) for lam in (10.0, math.inf) for n in (1, 2, 3, 6)]

# The largest distance of cdfs, of a calculation apart from this one: (sigma^2, lambda) -> 1, ..., 6 terms.
ERRORS = {
    (0.2, 10.0): (0.009171, 0.0005368, 0.001031, 0.001229, 0.001226, 0.001213),
    (0.2, math.inf): (0.009171, 0.0005368, 4.734e-05, 5.403e-06, 7.43e-07, 1.182e-07),
    (0.5, 10.0): (0.02148, 0.002699, 0.001176, 0.001161, 0.001205, 0.001214),
    (0.5, math.inf): (0.02148, 0.002699, 0.0004819, 0.0001062, 2.714e-05, 7.759e-06),
    (1.0, 10.0): (0.03906, 0.008065, 0.002677, 0.001514, 0.001261, 0.001215),
    (1.0, math.inf): (0.03906, 0.008065, 0.002233, 0.0007321, 0.0002697, 0.0001083),
}


def hermite(n, u):
    """H_n(u) by its explicit sum."""
    parts = (
        (-1) ** k * Fraction(math.factorial(n), math.factorial(k) * math.factorial(n - 2 * k))
        for k in range(n // 2 + 1)
    )
    return sum(part * (2 * u) ** (n - 2 * k) for k, part in enumerate(parts))


def test_the_printed_polynomial():
    printed = ["0", "0.895", "-0.145", "-2.1", "2.55", "-1.8", "0.6"]
    assert series(0.2, 10.0, 3).in_g() == tuple(map(Fraction, printed))


@pytest.mark.parametrize("variance", ["0.2", "0.9", "1.3"])
@pytest.mark.parametrize("lam", ["4", "10", "12.5"])
def test_coefficients_are_those_of_the_papers_sum(variance, lam):
    v, width = Fraction(variance), Fraction(lam)
    found = truncated(float(variance), float(lam), 6)
    for n, c in enumerate(found.coefficients):
        assert c == (-1) ** n * hermite(n, width * v / 4) / (width**n * math.factorial(n))
    without = truncated(float(variance), math.inf, 6)
    assert without.coefficients == tuple((-v / 2) ** n / math.factorial(n) for n in range(6))


def test_derivatives_are_worpitzkys():
    for order in range(1, 12):
        # (k - 1)! times Stirling's number of the second kind (order + 1, k): by its sum.
        triangle = [
            sum((-1) ** j * math.comb(k, j) * (k - j) ** (order + 1) for j in range(k + 1)) // (k or 1)
            for k in range(order + 2)
        ]
        assert derivative(order) == tuple((-1) ** (k + 1) * t if k else 0 for k, t in enumerate(triangle))


@pytest.mark.parametrize(("variance", "lam", "terms"), SETTINGS)
def test_density_and_cdf_are_the_polynomials_in_g(variance, lam, terms):
    found = series(variance, lam, terms)
    in_g = found.in_g()
    for z in (-3.7, -0.4, 0.0, 1.1, 5.0):
        g = Fraction(float(special.expit(z)))  # exact powers of a rounded g
        assert found.density(z) == pytest.approx(float(sum(c * g**k for k, c in enumerate(in_g))), rel=1e-9)
        whole = sum(
            (c * d * g**k for n, c in enumerate(found.coefficients) for k, d in enumerate(derivative(2 * n))),
            Fraction(0),
        )
        assert found.cdf(z) / float(whole) == pytest.approx(1.0, rel=1e-9)  # whatever its size
    assert found.density(-700.0) > 0  # no cancellation in the tails
    assert found.cdf(-60.0) * math.exp(60) == pytest.approx(float(found.ratio[0]), rel=1e-9)
    z = np.linspace(-60, 60, 24_001)
    variance_found = np.trapezoid(found.density(z) * z * z, z)
    assert np.trapezoid(found.density(z), z) == pytest.approx(1, abs=1e-12)
    assert variance_found == pytest.approx(math.pi**2 / 3 - variance * (terms > 1), abs=1e-10)


@pytest.mark.parametrize(("variance", "lam", "terms"), SETTINGS)
def test_the_density_is_the_inverse_transform(variance, lam, terms):
    """Of sum_n h_n w^(2n) pi w / sinh(pi w), the expanded quotient of spectra: by the trapezium rule."""
    w = np.linspace(1e-9, 30, 30_001)
    u = math.inf if math.isinf(lam) else lam * variance / 4
    weights = [
        (variance / 2) ** n / math.factorial(n)
        if math.isinf(lam)
        else special.eval_hermite(n, u) / (lam**n * math.factorial(n))
        for n in range(terms)
    ]
    spectrum = sum(h * w ** (2 * n) for n, h in enumerate(weights)) * math.pi * w / np.sinh(math.pi * w)
    z = np.array([0.0, 0.3, 1.0, 2.5, 6.0])
    inverted = np.trapezoid(np.cos(z[:, None] * w) * spectrum, w) / math.pi
    assert series(variance, lam, terms).density(z) == pytest.approx(inverted, abs=1e-7)


@pytest.mark.parametrize(("variance", "lam"), ERRORS)
def test_distances_from_the_logistic_distribution(variance, lam):
    errors = [
        np.abs(series(variance, lam, n).convolved_cdf(AT, variance) - special.expit(AT)).max()
        for n in range(1, 7)
    ]
    assert errors == pytest.approx(ERRORS[variance, lam], rel=2e-3)


def test_quotients_and_signs():
    assert series(0.2, 10.0, 3).range() == (0.895, 1.045)
    for variance, least in ((1.5, 0.4196), (2.0, 0.1682), (2.5, -0.1393), (3.0, -0.502)):
        found = truncated(variance, 10.0, 3)
        assert found.range()[0] == pytest.approx(least, abs=1e-4)
        assert found.positive() == (least > 0)
        s = np.linspace(1e-6, 0.25, 10_001)
        assert (np.polynomial.polynomial.polyval(s, [float(c) for c in found.ratio]).min() > 0) == (least > 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.2, 10.0, 9), r"1 to 8 .*choose terms <= 8"),
        ((0.2, 10.0, 0), "1 to 8"),
        ((1.0, math.inf, 7), "choose terms <= 6"),
        ((2.5, 10.0, 3), "negative somewhere .* smaller sigma"),
        ((0.2, 1.0, 3), "choose terms <= 3|negative somewhere"),
        ((0.2, 0.0, 3), "lam > 0"),
        ((0.2, math.nan, 3), "lam > 0"),
        ((0.0, 10.0, 3), "0 < sigma"),
        ((-1.0, 10.0, 3), "0 < sigma"),
        ((3.5, 10.0, 3), "0 < sigma"),
        ((math.nan, 10.0, 3), "0 < sigma"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(Refusal, match=message) as refused:
        series(*settings)
    assert "\n" not in str(refused.value)


def test_settings_of_the_rule_that_do_not_go_together():
    assert most_terms(0.2, 10.0) == 8
    for settings, message in (
        ({"density": "series", "half_width_steps": 100}, "has none; leave it out"),
        ({"density": "nnls", "terms": 3}, "choose that one"),
        ({"density": "serie"}, "choose paper, nnls, series. Did you mean 'series'"),
        ({"density": "series", "variance": 0.2, "lam": 10, "terms": 9}, "choose terms <= 8"),
        ({"variance": -0.2}, "0 < sigma"),
        ({"sigma": -0.5, "density": "series"}, "sigma = -0.5 .* 0 < sigma"),
        ({"sigma": -1.0}, "sigma = -1 .* 0 < sigma"),
        ({"five_sd": "always"}, "needs stop = 'sequential'"),
        ({"stop": "late"}, "choose pilot or sequential"),
        ({"pilot": 1}, "pilot = 1 must be at least 2"),
        ({"pilot": 20, "stop": "sequential"}, "has no pilot"),
        ({"noise_share": 1.0}, "between 0 and 1"),
        ({"sigma": 1.0, "variance": 0.2}, "both set the noise"),
    ):
        with pytest.raises(Refusal, match=message):
            MHMinibatch(50, **settings)
    assert MHMinibatch(50, density="series", variance=0.2).variance == 0.2


@pytest.mark.parametrize(
    ("variance", "lam", "terms"), [(0.2, 10.0, 3), (0.2, math.inf, 26), (1.0, math.inf, 6)]
)
def test_the_table_is_right_to_its_error(variance, lam, terms):
    found, table = series(variance, lam, terms), series_quantiles(variance, lam, terms)
    probabilities, points = table.probabilities.numpy(), table.points.numpy()
    assert (np.diff(probabilities) >= 0).all()
    assert (np.diff(points) > 0).all()
    z = np.random.default_rng(1).uniform(-38, 38, 100_000)
    assert np.abs(np.interp(z, points, probabilities) - found.cdf(z)).max() < 1e-7
    u = torch.tensor([2.0**-60, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    ends = inverse(u, table)
    assert torch.isfinite(ends).all()
    assert ends[1] == pytest.approx(0, abs=1e-6)
    assert ends[2] > 36


@pytest.mark.parametrize(("lam", "terms"), [(10.0, 3), (math.inf, 3), (math.inf, 6)])
def test_draws_follow_the_cdf(lam, terms):
    """Kolmogorov-Smirnov on 100,000 draws; and the sum with a normal variable is logistic as far as they tell."""
    variance, rng = 0.2, np.random.default_rng(7)
    found = series(variance, lam, terms)
    drawn = inverse(torch.from_numpy(rng.random(100_000)), series_quantiles(variance, lam, terms)).numpy()
    assert stats.kstest(drawn, found.cdf).pvalue > ALPHA
    assert stats.kstest(drawn, series(0.9).cdf).pvalue < ALPHA
    total = drawn + math.sqrt(variance) * rng.normal(size=100_000)
    assert stats.kstest(total, lambda x: _tabulated(found, x, variance)).pvalue > ALPHA
    if math.isinf(lam):
        assert stats.kstest(total, "logistic").pvalue > ALPHA


def _tabulated(found, x, variance):
    at = np.linspace(-40, 40, 4_001)
    return np.interp(x, at, found.convolved_cdf(at, variance))


class Normal:
    """A supply of n normal terms for each chain, the same at each call."""

    n = 100_000

    replacement = False

    def __init__(self, chains, read, mean, sd):
        rng = np.random.default_rng(11)
        self.values = torch.from_numpy(rng.normal(mean, sd, (chains, read)))

    def terms(self, rows, start, stop):
        return self.values[rows, start:stop]


@pytest.mark.slow
@pytest.mark.parametrize("delta", [-1.5, 0.0, 0.8])
def test_the_rule_accepts_as_barker_would(delta):
    """Where D is normal; 1e-3 for a t-statistic of 250 terms and more, and the series' own 4.7e-5."""
    chains = 20_000
    full = torch.ones(chains, dtype=torch.float64)
    rule = MHMinibatch(250, density="series", variance=0.2, stop="sequential")
    contest = Contest(None, 10.0 * full, 0.0 * full, Normal(chains, 2_000, delta / 10, 1.0))
    verdict = rule.decide(contest, Draws(Streams(KEY, chains), 1))
    exact = float(special.expit(delta))
    error = math.sqrt(exact * (1 - exact) / chains)
    assert abs(float(verdict.accepted.double().mean()) - exact) < stats.norm.isf(ALPHA / 2) * error + 1e-3
    assert set(verdict.batch_size.tolist()) <= {500, 750}  # 100 / b < 0.2


def test_the_rule_is_the_papers_loop():
    chains, m, star = 60, 50, 0.2
    supply = Normal(chains, 2_000, 0.02, 0.6)
    full = torch.ones(chains, dtype=torch.float64)
    settings = {"density": "series", "lam": 10.0, "terms": 3}
    rule = MHMinibatch(m, variance=star, stop="sequential", finite=False, **settings)
    verdict = rule.decide(Contest(None, 15.0 * full, -0.4 * full, supply), Draws(Streams(KEY, chains), 3))
    draws = Draws(Streams(KEY, chains), 3)
    z = draws.normal(Purpose.ACCEPT, 1)[:, 0].numpy()
    u = draws.uniform(Purpose.ACCEPT, use=1).numpy()
    for c in range(chains):
        x, b = 15.0 * supply.values[c].numpy(), m
        while (s2 := x[:b].var() / b) >= star:
            b += m
        # zC by bisection on the printed polynomial's integral, in exact arithmetic.
        low, high = Fraction(0), Fraction(1)
        for _ in range(50):
            g = (low + high) / 2
            q = sum(
                Fraction(k) * g ** (i + 1) for i, k in enumerate(("0.895", "0.375", "-0.45", "0.3", "-0.12"))
            )
            low, high = (g, high) if q < u[c] else (low, g)
        corrected = float(special.logit(float(low)))
        total = -0.4 + x[:b].mean() + math.sqrt(star - s2) * z[c] + corrected
        assert (bool(verdict.accepted[c]), int(verdict.batch_size[c])) == (total > 0, b)


# --- The experiment on it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["searched", "rejected", "chained", "tabulated"])
def test_every_way_that_is_timed_draws_from_the_density(sampler):
    sampling, rng = experiment_module("renhd.sampling"), np.random.default_rng(3)
    found = series(0.2, 10.0, 3)
    if sampler == "searched":
        drawn = sampling.searched(rng, 100_000, found.corners())
    elif sampler == "tabulated":
        points = np.linspace(-30, 30, 6_001)
        keep, other = sampling.aliased(found.density(points))
        drawn = sampling.tabulated(rng, 100_000, points, keep, other) + rng.uniform(-0.005, 0.005, 100_000)
    else:
        drawn = getattr(sampling, sampler)(rng, 100_000, found)
    if sampler == "chained":
        drawn = drawn[::5]  # they depend on each other, if little
    assert stats.kstest(drawn, found.cdf).pvalue > ALPHA


@pytest.mark.parametrize(("tau", "dim"), [(3.0, 2), (1.5, 50), (1.2, 100), (1.1, 300)])
def test_swap_rates_of_harmonic_replicas(tau, dim):
    replicas = experiment_module("renhd.replicas")
    cold, hot = np.random.default_rng(4).gamma(dim / 2, size=(2, 100_000))
    accepted = special.expit((cold - tau * hot) * (1 - 1 / tau))
    limit = stats.norm.isf(ALPHA / 2) * accepted.std() / math.sqrt(len(accepted))
    assert abs(replicas.swap_rate(tau, dim) - accepted.mean()) < limit
    assert replicas.swap_rate(replicas.ratio_for(0.3, dim), dim) == pytest.approx(0.3, abs=1e-9)


def test_the_spectrum_turns_and_passes_one():
    module = experiment_module("renhd.compensation")
    for variance, turns, ratio, one in ((0.2, 15.38, 1.879e-9, 29.65), (0.4, 7.522, 2.119e-4, 14.12)):
        assert module.turning_point(variance) == pytest.approx(turns, abs=0.01)
        assert math.exp(module.log_quotient(module.turning_point(variance), variance)) == pytest.approx(
            ratio, rel=1e-3
        )
        assert module.passes_one(variance) == pytest.approx(one, abs=0.01)
