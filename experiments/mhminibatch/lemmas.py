"""Lemmas 2 to 6 and Corollaries 1 and 2 of Seita et al. (2017), on terms whose distribution is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy import stats
from scipy.interpolate import RectBivariateSpline
from scipy.special import expit, ndtr
from torch import Tensor

from mhrun.diagnostics.grid import Estimate
from mhrun.random import Streams, derive_key
from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.rules.barker import Barker
from mhrun.rules.correction import convolved_cdf, nonnegative
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.types import Contest, Difference

from ..shared.measures import Metrics

Array = npt.NDArray[Any]

SKEWNESS, THIRD, FIRST = 2.0, 12 / np.e - 2, 2 / np.e  # of exponential terms: and their absolute moments
NEEDED = 2.0  # first minibatches that MHminibatch needs until the variance of its estimate is 1
RARE = 0.1  # probability of the larger of two values
RARE_SKEWNESS = (1 - 2 * RARE) / np.sqrt(RARE * (1 - RARE))
V0 = 0.5  # variance of the estimate of the log-ratio, where its minibatch is fixed
GAPS = np.linspace(-4.0, 4.0, 33)  # log-ratios that acceptance is computed at
BALANCED = (1.0, 2.0, 3.0)  # log-ratios that detailed balance is checked at
BOUNDED = (100, 400, 1600)  # minibatches that Lemma 5 is computed at
LARGE = 64  # b from which on the first term of the expansion is most of the distance
TERMS = 250_000_000  # that are simulated for one b at most
_LEAST = 0.02  # variance below which the table of acceptance is not read
_AT_ONCE = 20_000  # decisions


class Simulated(NamedTuple):
    """Distances of Student's statistic of b exponential terms, by simulation."""

    to_normal: float  # from the normal distribution (Lemma 3)
    to_skewed: float  # from its skewed limit (Lemma 6)
    chance: float  # what chance alone gives, about


class Exact(NamedTuple):
    """Largest errors of the acceptance probability over `GAPS`, for b terms of two values."""

    before: float  # of the distribution of the estimate itself
    known: float  # its variance known
    own: float  # estimated from the same terms, as in Algorithm 1
    pilot: float  # estimated from as many other terms
    mixed: float  # one third the first, two thirds the second
    skewed: float  # of the skewed limit of `own`
    printed: float  # of the limit of appendix A.5


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
    """Everything of this experiment that a claim or a table speaks of."""
    t, exact, grown = run.once(student), run.once(acceptance), run.once(decided)
    found: Metrics = {
        "normal.slope": slope({b: each.to_normal for b, each in t.items() if b >= LARGE}),
        "normal.share_of_bound": max(each.to_normal / bound(b) for b, each in t.items()),
        "skewed.slope": slope(
            {b: each.to_skewed for b, each in t.items() if each.to_skewed > 3 * each.chance}
        ),
        "symmetric.slope": slope({b: symmetric(b) for b in t}),
        "added.ratio": max(each.known / each.before for each in exact.values()),
        "added.share_of_bound": max(each.own / two_point_bound(b) for b, each in exact.items()),
    }
    for name, field in {
        "own": "own",
        "pilot": "pilot",
        "mixed": "mixed",
        "skewed_limit": "skewed",
        "printed": "printed",
    }.items():
        errors = {b: getattr(each, field) for b, each in exact.items()}
        found[f"{name}.slope"] = slope(errors)
        found[f"{name}.error"] = errors[min(errors)]
    for rule, errors in grown.items():
        found[f"{rule}.slope"] = slope({b: each.value for b, each in errors.items()})
        found[f"{rule}.error"] = errors[min(errors)]
    half, balance = run.once(barker)
    found |= {"barker.half": half, "barker.balance_z": balance}
    found["stationary.share_of_bound"] = max(
        each.distance / each.bound for each in run.once(stationary).values()
    )
    return found


def slope(errors: Mapping[int, float]) -> float:
    """Return the power of b that errors go with, by least squares in logarithms; NaN from fewer than two."""
    if len(errors) < 2:
        return float("nan")
    return float(np.polyfit(np.log(list(errors)), np.log(list(errors.values())), 1)[0])


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
    rng, found = np.random.default_rng(0), {}
    for b in run.config["sizes"]:
        many = min(int(run.config["simulated"]), TERMS // b)
        t = np.empty(many)
        for start in range(0, many, _AT_ONCE):
            x = rng.standard_exponential((min(_AT_ONCE, many - start), b)) - 1
            mean = x.mean(axis=1)
            t[start : start + len(x)] = mean / np.sqrt((np.einsum("ij,ij->i", x, x) / b - mean**2) / b)
        t.sort()
        normal = ndtr(t)
        skewed = normal + SKEWNESS / (6 * np.sqrt(b)) * (2 * t**2 + 1) * stats.norm.pdf(t)
        found[int(b)] = Simulated(_distance(normal), _distance(skewed), 0.87 / np.sqrt(many))
    return found


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
    for other, chance in zip(v, p, strict=True):
        pilot += chance * (accept(x, np.full_like(v, 1 - V0 * other)) @ p)
        mixed += chance * (accept(x, 1 - V0 * (v + 2 * other) / 3) @ p)
    s = expit(GAPS)
    first = s * (1 - s)
    third = first * (1 - 6 * s + 6 * s**2)  # derivatives of the logistic function
    kappa = RARE_SKEWNESS / np.sqrt(b)
    # What is added to P(estimate + noise < y) at y = -gap; of acceptance it is taken away, and both are even.
    skewed = s - kappa * V0**1.5 / 3 * third
    printed = s - kappa / 6 * (2 * V0**1.5 * third + 3 * V0**0.5 * first)
    below = np.cumsum(p)
    before = max(np.abs(below - ndtr(w)).max(), np.abs(below - p - ndtr(w)).max())
    return Exact(
        float(before),
        *(float(np.abs(each - s).max()) for each in (known, own, pilot, mixed)),
        *(float(np.abs(own - each).max()) for each in (skewed, printed)),
    )


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
        table = np.stack([convolved_cdf(nonnegative(1.0), x, float(np.sqrt(each))) for each in u], axis=1)
        self._spline = RectBivariateSpline(x, u, table)

    def __call__(self, x: Array, u: Array) -> Array:
        """Return the probability at x (..., K) for variances u (K,), which are cut at `_LEAST` and 1."""
        found: Array = self._spline.ev(np.clip(x, -16, 16), np.broadcast_to(np.clip(u, _LEAST, 1.0), x.shape))
        return found


def _table() -> _Accepts:
    global _ACCEPTS
    if _ACCEPTS is None:
        _ACCEPTS = _Accepts()
    return _ACCEPTS


_ACCEPTS: _Accepts | None = None


class _Exponential:
    """A supply of independent exponential terms of mean 0 and variance 1."""

    def __init__(self, chains: int, seed: int) -> None:
        self.n = 10**6  # as good as no end for minibatches of some hundreds
        self.replacement = True  # independent terms have no finite population
        self.n_aside = torch.zeros(chains, dtype=torch.int64)
        self._rng = np.random.default_rng(seed)

    def terms(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Return new terms (R, stop - start)."""
        return torch.from_numpy(self._rng.standard_exponential((len(rows), stop - start)) - 1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return 0 and 1."""
        return torch.zeros(len(self.n_aside)).double(), torch.ones(len(self.n_aside)).double()

    def largest(self) -> Tensor:
        """Return infinity."""
        return torch.full((len(self.n_aside),), torch.inf, dtype=torch.float64)


def decided(run: Run) -> dict[str, dict[int, Estimate]]:
    """Return the largest error of the acceptance probability of MHminibatch over three log-ratios, for each rule and m.

    The rule itself decides, again and again, on exponential terms of which 2 m are needed on average, so that the
    second look decides half of the time.
    """
    return {
        name: {int(m): _decided(run, dict(options), int(m)) for m in run.config["firsts"]}
        for name, options in run.config["rules"].items()
    }


def _decided(run: Run, options: dict[str, Any], m: int) -> Estimate:
    rule, many = MHMinibatch(m, **options), int(run.config["decisions"])
    found = []
    for i, gap in enumerate((-1.0, 0.0, 1.0)):
        accepted, done = 0, 0
        draws = Streams(derive_key(int(run.config["seed"]), f"lemmas/{m}/{i}"), min(_AT_ONCE, many)).at(0)
        while done < many:
            chains = min(_AT_ONCE, many)
            draws.step = done // chains + 1
            full = torch.ones(chains, dtype=torch.float64)
            supply = _Exponential(chains, hash((m, i, done)) % 2**32)
            contest = Contest(None, np.sqrt(NEEDED * m) * full, gap * full, supply)
            accepted += int(rule.decide(contest, draws).accepted.sum())
            done += chains
        rate, right = accepted / done, float(expit(gap))
        found.append(Estimate(abs(rate - right), float(np.sqrt(right * (1 - right) / done))))
    return max(found, key=lambda each: each.value)


def barker(run: Run) -> tuple[Estimate, float]:
    """Return how often Barker's rule accepts at log-ratio 0, and how far it is from detailed balance.

    The second: the largest of |a(s) - exp(s) a(-s)| over its standard error.
    """
    many = 20 * int(run.config["decisions"])
    draws = Streams(derive_key(int(run.config["seed"]), "lemmas/barker"), many).at(1)

    def share(log_ratio: float, step: int) -> float:
        draws.step = step
        zero, one = torch.zeros(many, dtype=torch.float64), torch.ones(many, dtype=torch.float64)
        contest = Contest(Difference(log_ratio * one, zero, one.long(), zero), one, zero)
        return float(Barker().decide(contest, draws).accepted.double().mean())

    half, worst = share(0.0, 1), 0.0
    for k, s in enumerate(BALANCED):
        up, down = share(s, 2 * k + 2), share(-s, 2 * k + 3)
        a = expit(s)
        error = np.sqrt((a * (1 - a)) * (1 + np.exp(2 * s)) / many)
        worst = max(worst, abs(up - np.exp(s) * down) / error)
    return Estimate(half, 0.5 / np.sqrt(many)), float(worst)


def stationary(run: Run) -> dict[int, Bounded]:
    """Return Lemma 5's two sides for each b.

    A normal mean at 31 points, z = -3 ... 3 of its own standard deviations; every point is proposed with one
    probability. Data of two values; the estimate of the log-ratio of z and z' has the variance (z' - z)^2 / 48.
    """
    z = np.linspace(-3, 3, 31)
    gap, apart = (z[:, None] ** 2 - z**2) / 2, z - z[:, None]
    exact = _transition(expit(gap))
    right = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    overlap = np.minimum(exact[:, None], exact[None]).sum(axis=2)
    found = {}
    for b in BOUNDED:
        w, v, p = _counts(b)
        s0 = apart / np.sqrt(48)
        accept = np.array(
            [
                [_table()(gap[i, j] + s0[i, j] * w, 1 - s0[i, j] ** 2 * v) @ p for j in range(len(z))]
                for i in range(len(z))
            ]
        )
        values, vectors = np.linalg.eig(_transition(accept).T)
        law = np.real(vectors[:, np.argmax(np.real(values))])
        law = law / law.sum()
        found[b] = Bounded(
            float(np.abs(accept - expit(gap)).max()),
            float(1 - overlap.min()),
            float(np.abs(law - right).sum() / 2),
        )
    return found


def _transition(accept: Array) -> Array:
    """Return the transition probabilities of a chain that proposes every point (P, P) with one probability."""
    found = accept / len(accept)
    np.fill_diagonal(found, 0.0)
    np.fill_diagonal(found, 1 - found.sum(axis=1))
    return found


def limits(run: Run) -> pd.DataFrame:
    """Student's statistic of b exponential terms, and its limits (Lemmas 3 and 6).

    The largest distance of its distribution function from the normal one, the bound of equation 18 (terms
    standardised), and the distance from the skewed limit of equation 38; by simulation, in which chance alone gives
    the last column.
    """
    rows = {
        f"b = {b}": {
            "from normal": each.to_normal,
            "bound": bound(b),
            "from skewed": each.to_skewed,
            "chance": each.chance,
        }
        for b, each in run.once(student).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def acceptances(run: Run) -> pd.DataFrame:
    """The error of the acceptance probability of a fixed minibatch (Corollary 2).

    The largest over log-ratios from -4 to 4, for b terms of two values (skewness 2.67) and an estimate of variance 0.5.
    Exact sums. "Before": the distance of the estimate's own distribution from the normal one (Lemma 4 says that adding
    variables does not increase it). Variance of X_nc: from the true variance; from the same minibatch (Algorithm 1);
    from a pilot minibatch; one third from the same and two thirds from a pilot. Then how far "same" is from its skewed
    limit, and from that of appendix A.5.
    """
    names = {
        "before": "before",
        "known": "known",
        "same": "own",
        "pilot": "pilot",
        "third": "mixed",
        "from its limit": "skewed",
        "from A.5's": "printed",
    }
    rows = {
        f"b = {b}": {"bound": two_point_bound(b)}
        | {heading: getattr(each, name) for heading, name in names.items()}
        for b, each in run.once(acceptance).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def stopped(run: Run) -> pd.DataFrame:
    """The error of the acceptance probability of Algorithm 1, which grows its minibatch until the variance is below 1.

    By the rule itself on exponential terms, at log-ratios -1, 0 and 1; the largest, with its standard error. The
    terms are scaled so that the variance at the second look is 1 on average, which is where the stopping rule does
    most harm.
    """
    rows: dict[str, dict[str, Any]] = {}
    for rule, errors in run.once(decided).items():
        for m, error in errors.items():
            rows.setdefault(f"m = {m}", {})[rule] = error
    return pd.DataFrame.from_dict(rows, orient="index")


def bounds(run: Run) -> pd.DataFrame:
    """The error of the stationary distribution and its bound (Lemma 5).

    The largest error of the acceptance probability, the contraction of the exact chain, the total variation distance of
    the two stationary distributions, and the lemma's bound on it.
    """
    rows = {
        f"b = {b}": {
            "error": each.error,
            "contraction": each.contraction,
            "distance": each.distance,
            "bound": each.bound,
        }
        for b, each in run.once(stationary).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def errors(run: Run) -> Figure:
    """Errors against the minibatch size.

    Left: distance of Student's statistic from its limits (Lemmas 3 and 6; grey: what chance gives). Right: error of the
    acceptance probability: fixed minibatches, exact (lines), and MHminibatch with its own stopping rule (points,
    two standard errors). Black: slopes -1/2 (dashed) and -1 (dotted).
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.8))
    t = run.once(student)
    b = np.array(list(t))
    axes[0].plot(
        b, [each.chance for each in t.values()], color="grey", linewidth=4, alpha=0.4, label="chance"
    )
    _line(axes[0], b, [each.to_normal for each in t.values()], 0, "skewed terms, normal limit", "o")
    _line(axes[0], b, [each.to_skewed for each in t.values()], 1, "skewed terms, skewed limit", "s")
    _line(axes[0], b, [symmetric(each) for each in b], 2, "normal terms, normal limit", "^")
    axes[0].set(xlabel="minibatch size b", ylabel="distance of distribution functions", ylim=(5e-4, 0.3))
    exact = run.once(acceptance)
    b = np.array(list(exact))
    for k, (name, label) in enumerate(
        {
            "own": "fixed b, variance of the same",
            "pilot": "fixed b, of a pilot",
            "mixed": "fixed b, 1/3 and 2/3",
        }.items()
    ):
        _line(axes[1], b, [getattr(each, name) for each in exact.values()], k, label, "^sv"[k])
    for k, (rule, found) in enumerate(run.once(decided).items()):
        axes[1].errorbar(
            np.array(list(found)) * NEEDED * (1 + 0.06 * k),
            [each.value for each in found.values()],
            yerr=[2 * each.se for each in found.values()],
            color=COLOURS[3 + k],
            marker="oD"[k % 2],
            markersize=4,
            linestyle="",
            label=f"MHminibatch, {rule}",
        )
    axes[1].set(xlabel="minibatch size b", ylabel="error of the acceptance probability", ylim=(1e-5, 0.3))
    for axis, top in ((axes[0], 0.1), (axes[1], 0.008)):
        low, high = axis.get_xlim()
        at = np.array([30.0, high])
        for power, style in ((0.5, "--"), (1.0, ":")):
            axis.plot(at, top * (at / at[0]) ** -power, color="black", linestyle=style, linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlim=(max(low, 10.0), high))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=2)
    return figure


def _line(axis: Axes, x: Array, y: Sequence[float], colour: int, label: str, marker: str) -> None:
    axis.plot(x, y, color=COLOURS[colour], marker=marker, markersize=4, linewidth=1.2, label=label)


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    first = int(min(run.config["exact_sizes"]))
    return [
        "Equation 18 holds for standardised terms only, as its source (Novak 2005) has it; the paper leaves that "
        "out. The "
        f"bound is never sharp: the distance is at most {found['normal.share_of_bound']:.2g} of it here.",
        "To first order the acceptance probability errs by -skewness / sqrt(b) s^3 S'''(log-ratio) / 3 when the "
        "variance "
        "comes from the minibatch itself, +1/6 instead of -1/3 when it comes from a pilot, and by nothing when one "
        "third "
        f"comes from the first and two thirds from the second: {found['own.error']:.2g}, {found['pilot.error']:.2g} "
        "and "
        f"{found['mixed.error']:.2g} at b = {first}.",
        "Appendix A.5 takes the skewed limit of Student's statistic for that of the estimate, which is not divided "
        "by its "
        "standard deviation. Its correction term is of the wrong size: what is left falls as b to the power "
        f"{found['printed.slope']:.2f} and not -1. With the right term it is {found['skewed_limit.slope']:.2f}.",
        "Corollary 2 is for a fixed minibatch. Algorithm 1 stops where the sample variance happens to be small, "
        "which goes "
        "with a small estimate where terms are skewed: where the needed minibatch is a multiple of m, its error does "
        "not "
        f"fall as m grows (power {found.get('as printed.slope', float('nan')):.2f}).",
    ]
