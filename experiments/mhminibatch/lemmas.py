"""Lemmas 2 to 6 and Corollaries 1 and 2 of Seita et al. (2017), on terms whose distribution is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter
from scipy import stats
from scipy.interpolate import RectBivariateSpline
from scipy.special import expit, ndtr

from mhrun.report.metrics import Metrics
from mhrun.report.plots import THIN, legend_below, panels, points
from mhrun.report.vocabulary import COLOURS, Array, Axes, Estimate, Figure, Run, Style, by_rows, log_slope
from mhrun.rules.correction import convolved_cdf, nonnegative

from .lemmas_trials import AT_ONCE, NEEDED, barker, decided

SKEWNESS, THIRD, FIRST = 2.0, 12 / np.e - 2, 2 / np.e  # of exponential terms: and their absolute moments
RARE = 0.1  # probability of the larger of two values
RARE_SKEWNESS = (1 - 2 * RARE) / np.sqrt(RARE * (1 - RARE))
V0 = 0.5  # variance of the estimate of the log-ratio, where its minibatch is fixed
GAPS = np.linspace(-4.0, 4.0, 33)  # log-ratios that acceptance is computed at
BOUNDED = (100, 400, 1600)  # minibatches that Lemma 5 is computed at
LARGE = 64  # b from which on the first term of the expansion is most of the distance
TERMS = 250_000_000  # that are simulated for one b at most
# Errors of the acceptance probability, in the names of metrics: the field of `Exact` that each is.
FIELDS = {"own": "own", "pilot": "pilot", "mixed": "mixed", "skewed_limit": "skewed", "printed": "printed"}
_LEAST = 0.02  # variance below which the table of acceptance is not read


class Simulated(NamedTuple):
    """Distances of Student's statistic of b exponential terms, by simulation."""

    to_normal: float  # from the normal distribution (Lemma 3)
    to_skewed: float  # from its skewed limit (Lemma 6)
    chance: float  # what chance alone gives, about
    bound: float  # equation 18's


class Exact(NamedTuple):
    """Largest errors of the acceptance probability over `GAPS`, for b terms of two values."""

    before: float  # of the distribution of the estimate itself
    known: float  # its variance known
    own: float  # estimated from the same terms, as in Algorithm 1
    pilot: float  # estimated from as many other terms
    mixed: float  # one third the first, two thirds the second
    skewed: float  # of the skewed limit of `own`
    printed: float  # of the limit of appendix A.5
    bound: float  # equation 20's


class Bounded(NamedTuple):
    """Lemma 5 on a grid."""

    error: float  # of the acceptance probability, at most
    contraction: float  # of the exact chain
    distance: float  # of the two stationary distributions

    @property
    def bound(self) -> float:
        """The lemma's."""
        return self.error / (1 - self.contraction)


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    t, exact, grown = run.cached(student), run.cached(acceptance), run.cached(decided)
    clear = {b: case.to_skewed for b, case in t.items() if case.to_skewed > 3 * case.chance}
    numbers: Metrics = {
        "normal.slope": slope({b: case.to_normal for b, case in t.items() if b >= LARGE}),
        "normal.share_of_bound": max(case.to_normal / case.bound for case in t.values()),
        "skewed.slope": slope(clear),
        "symmetric.slope": slope({b: symmetric(b) for b in t}),
        "added.ratio": max(case.known / case.before for case in exact.values()),
        "added.share_of_bound": max(case.own / case.bound for case in exact.values()),
    }
    fixed = {name: {b: getattr(case, field) for b, case in exact.items()} for name, field in FIELDS.items()}
    for name, errors in fixed.items():
        numbers |= {f"{name}.slope": slope(errors), f"{name}.error": errors[min(errors)]}
    for rule, estimates in grown.items():
        numbers[f"{rule}.slope"] = slope({b: number.value for b, number in estimates.items()})
        numbers[f"{rule}.error"] = estimates[min(estimates)]
        if (late := _of_a_sixteenth(estimates)) is not None:
            numbers[f"{rule}.late"] = late
    numbers["stopped.limit"] = limit()
    numbers["barker.half"], numbers["barker.balance_z"] = run.cached(barker)
    shares_of_bound = [case.distance / case.bound for case in run.cached(stationary).values()]
    return numbers | {"stationary.share_of_bound": max(shares_of_bound)}


def slope(errors: Mapping[int, float]) -> float:
    """Return the power of b that errors go with, by least squares in logarithms; NaN from fewer than two."""
    return log_slope(list(errors), list(errors.values())) if len(errors) > 1 else float("nan")


def _of_a_sixteenth(errors: Mapping[int, Estimate]) -> Estimate | None:
    """Return the error at the largest m over that at a sixteenth of it, which is 1/4 if it falls as m^-1/2.

    None without an error there.
    """
    last = errors[max(errors)]
    first = errors.get(max(errors) // 16)
    if first is None or not first.value or not last.value:
        return None
    ratio = last.value / first.value
    return Estimate(ratio, ratio * float(np.hypot(last.se / last.value, first.se / first.value)))


def limit() -> float:
    """Return the error of Algorithm 1's acceptance probability at log-ratio 0 as m grows, for the terms of `decided`.

    The estimate Z from 2 m terms and its sample variance are then normal, with correlation rho = skewness /
    sqrt(kurtosis - 1) whatever m is. The variance is 1 on average: half of the time it is below, and Z decides.
    Otherwise m more terms make it (2/3) Z + (1/3) sqrt(2) Z', whose variance, with that of X_nc beside it, is 1.
    """
    rho = SKEWNESS / np.sqrt(9 - 1)  # an exponential term has kurtosis 9
    z = np.linspace(-9, 9, 4001)
    stops = ndtr(-rho * z / np.sqrt(1 - rho**2))
    second = convolved_cdf(nonnegative(1.0), z, 1e-3)
    third = convolved_cdf(nonnegative(1.0), 2 * z / 3, float(np.sqrt(2 / 9 + 1 / 3)))
    accepted = np.trapezoid(stats.norm.pdf(z) * (stops * second + (1 - stops) * third), z)
    return float(abs(accepted - 0.5))


def bound(b: int) -> float:
    """Return equation 18's bound for exponential terms."""
    return float((6.4 * THIRD + 2 * FIRST) / np.sqrt(b))


def two_point_bound(b: int) -> float:
    """Return equation 20's bound for terms of two values."""
    values, weights = _two_values()
    third, first = (float(np.abs(values) ** k @ weights) for k in (3, 1))
    return float((6.4 * third + 2 * first) / np.sqrt(b))


def symmetric(b: int) -> float:
    """Return the distance of Student's statistic of b normal terms from the normal distribution, exactly."""
    x = np.linspace(-6, 6, 24_001)
    return float(np.abs(stats.t.cdf(x * np.sqrt((b - 1) / b), b - 1) - ndtr(x)).max())


def student(run: Run) -> dict[int, Simulated]:
    """Return distances of t = mean / (sd / sqrt(b)) of b exponential terms from its limits, for each b."""
    rng, by_size = np.random.default_rng(int(run.config["seed"])), {}
    for b in run.config["sizes"]:
        count = min(int(run.config["simulated"]), TERMS // b)
        t = np.empty(count)
        for start in range(0, count, AT_ONCE):
            x = rng.standard_exponential((min(AT_ONCE, count - start), b)) - 1
            mean = x.mean(axis=1)
            t[start : start + len(x)] = mean / np.sqrt((np.einsum("ij,ij->i", x, x) / b - mean**2) / b)
        t.sort()
        normal = ndtr(t)
        skewed = normal + SKEWNESS / (6 * np.sqrt(b)) * (2 * t**2 + 1) * stats.norm.pdf(t)
        by_size[int(b)] = Simulated(_distance(normal), _distance(skewed), 0.87 / np.sqrt(count), bound(b))
    return by_size


def _distance(limit: Array) -> float:
    """Return the distance of an empirical distribution from a limit at its sorted values (N,)."""
    steps = np.arange(len(limit) + 1) / len(limit)
    return float(max(np.abs(limit - steps[1:]).max(), np.abs(limit - steps[:-1]).max()))


def acceptance(run: Run) -> dict[int, Exact]:
    """Return the errors of the acceptance probability for each b: sums over the two values' counts, no chance in them.

    The estimate of the log-ratio is gap + sqrt(V0) W, W the standardised mean of b terms that have one of two values.
    """
    return {int(b): _acceptance(int(b)) for b in run.config["exact_sizes"]}


def _acceptance(b: int) -> Exact:
    w, v, p = _counts(b)
    accept = _table()
    x = GAPS[:, None] + np.sqrt(V0) * w
    own = accept(x, 1 - V0 * v) @ p
    known = accept(x, np.full_like(v, 1 - V0)) @ p
    pilot, mixed = np.zeros(len(GAPS)), np.zeros(len(GAPS))
    for variance, chance in zip(v, p, strict=True):
        pilot += chance * (accept(x, np.full_like(v, 1 - V0 * variance)) @ p)
        mixed += chance * (accept(x, 1 - V0 * (v + 2 * variance) / 3) @ p)
    s = expit(GAPS)
    first = s * (1 - s)
    third = first * (1 - 6 * s + 6 * s**2)  # derivatives of the logistic function
    kappa = RARE_SKEWNESS / np.sqrt(b)
    # What is added to P(estimate + noise < y) at y = -gap; of acceptance it is taken away, and both are even.
    skewed = s - kappa * V0**1.5 / 3 * third
    printed = s - kappa / 6 * (2 * V0**1.5 * third + 3 * V0**0.5 * first)
    cumulative = np.cumsum(p)
    before = max(np.abs(cumulative - ndtr(w)).max(), np.abs(cumulative - p - ndtr(w)).max())
    errors = [float(np.abs(curve - s).max()) for curve in (known, own, pilot, mixed)]
    distances = [float(np.abs(own - curve).max()) for curve in (skewed, printed)]
    return Exact(*[float(before), *errors, *distances, two_point_bound(b)])


def _two_values() -> tuple[Array, Array]:
    """Return two values of mean 0 and variance 1, and their probabilities."""
    root = np.sqrt(RARE / (1 - RARE))
    return np.array([1 / root, -root]), np.array([RARE, 1 - RARE])


def _counts(b: int) -> tuple[Array, Array, Array]:
    """Return, for each number of the rarer value that matters, the standardised mean, the variance, the probability."""
    middle, sd = b * RARE, np.sqrt(b * RARE * (1 - RARE))
    k = np.arange(max(0, int(middle - 9 * sd)), min(b, int(middle + 11 * sd)) + 1)
    p = stats.binom.pmf(k, b, RARE)
    return (k - middle) / sd, k / b * (1 - k / b) / (RARE * (1 - RARE)), p / p.sum()


class _Accepts:
    """P(x + N(0, u) + X_corr > 0), sigma = 1."""

    def __init__(self) -> None:
        x, u = np.linspace(-16, 16, 641), np.linspace(_LEAST, 1.0, 16)
        table = np.stack(
            [convolved_cdf(nonnegative(1.0), x, float(np.sqrt(variance))) for variance in u], axis=1
        )
        self._spline = RectBivariateSpline(x, u, table)

    def __call__(self, x: Array, u: Array) -> Array:
        """Return the probability at x (..., K) for variances u (K,), which are cut at `_LEAST` and 1."""
        probability: Array = self._spline.ev(
            np.clip(x, -16, 16), np.broadcast_to(np.clip(u, _LEAST, 1.0), x.shape)
        )
        return probability


@cache
def _table() -> _Accepts:
    return _Accepts()


def stationary(run: Run) -> dict[int, Bounded]:
    """Return Lemma 5's two sides for each b.

    A normal mean at 31 points, z = -3 ... 3 of its own standard deviations; every point is proposed with one
    probability. Data of two values; the estimate of the log-ratio of z and z' has the variance (z' - z)^2 / 48.
    """
    z = np.linspace(-3, 3, 31)
    gap, distance = (z[:, None] ** 2 - z**2) / 2, z - z[:, None]
    exact = _transition(expit(gap))
    right = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    overlap = np.minimum(exact[:, None], exact[None]).sum(axis=2)
    by_size = {}
    for b in BOUNDED:
        w, v, p = _counts(b)
        s0 = distance / np.sqrt(48)
        accept = np.array(
            [
                [_table()(gap[i, j] + s0[i, j] * w, 1 - s0[i, j] ** 2 * v) @ p for j in range(len(z))]
                for i in range(len(z))
            ]
        )
        values, vectors = np.linalg.eig(_transition(accept).T)
        density = np.real(vectors[:, np.argmax(np.real(values))])
        density = density / density.sum()
        by_size[b] = Bounded(
            float(np.abs(accept - expit(gap)).max()),
            float(1 - overlap.min()),
            float(np.abs(density - right).sum() / 2),
        )
    return by_size


def _transition(accept: Array) -> Array:
    """Return the transition probabilities of a chain that proposes every point (P, P) with one probability."""
    matrix = accept / len(accept)
    np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(matrix, 1 - matrix.sum(axis=1))
    return matrix


def stopped(run: Run) -> pd.DataFrame:
    """The error of the acceptance probability of Algorithm 1, which grows its minibatch until the variance is below 1.

    By the rule itself on exponential terms, at log-ratios -1, 0 and 1; the largest, with its standard error. The
    terms are scaled so that the variance at the second look is 1 on average, which is where the stopping rule does
    most harm.
    """
    rows: dict[str, dict[str, Any]] = {}
    for rule, errors in run.cached(decided).items():
        for m, error in errors.items():
            rows.setdefault(f"m = {m}", {})[rule] = error
    return by_rows(rows)


def errors(run: Run) -> Figure:
    """Errors against the minibatch size."""
    panel_style: Style = {"xscale": "log", "yscale": "log", "xlabel": "minibatch size b"}
    figure, (left, right) = panels(2, size=(4.6, 3.8), share="", **panel_style)
    t, exact = run.cached(student), run.cached(acceptance)
    b, at = np.array(list(t)), np.array(list(exact))
    left.plot(b, [case.chance for case in t.values()], color="grey", linewidth=4, alpha=0.4, label="chance")
    _line(left, b, [case.to_normal for case in t.values()], 0, "skewed terms, normal limit", "o")
    _line(left, b, [case.to_skewed for case in t.values()], 1, "skewed terms, skewed limit", "s")
    _line(left, b, [symmetric(size) for size in b], 2, "normal terms, normal limit", "^")
    left.set(ylabel="distance of distribution functions", ylim=(5e-4, 0.3))
    fixed = {"own": "variance of the same", "pilot": "of a pilot", "mixed": "1/3 and 2/3"}
    for k, (name, label) in enumerate(fixed.items()):
        _line(right, at, [getattr(case, name) for case in exact.values()], k, f"fixed b, {label}", "^sv"[k])
    for k, (rule, estimates) in enumerate(run.cached(decided).items()):
        style: Style = {
            "color": COLOURS[3 + k],
            "fmt": "oD"[k % 2],
            "label": f"MHminibatch, {rule}",
            "capsize": 0,
        }
        points(
            right,
            np.array(list(estimates)) * NEEDED * (1 + 0.06 * k),
            list(estimates.values()),
            errors=2,
            **style,
        )
    right.set(ylabel="error of the acceptance probability", ylim=(1e-5, 0.3))
    for axis, top in ((left, 0.1), (right, 0.008)):
        low, high = axis.get_xlim()
        span = np.array([30.0, high])
        for power, line in ((0.5, "--"), (1.0, ":")):
            axis.plot(span, top * (span / span[0]) ** -power, line, **THIN)
        axis.set_xlim(max(low, 10.0), high)
        axis.xaxis.set_minor_formatter(NullFormatter())
        legend_below(axis)
    return figure


def _line(axis: Axes, x: Array, y: Sequence[float], colour: int, label: str, marker: str) -> None:
    axis.plot(x, y, color=COLOURS[colour], marker=marker, markersize=4, linewidth=1.2, label=label)
