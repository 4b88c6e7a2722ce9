"""Acceptance tests that grow their minibatch: against plain loops, and against the probabilities they promise."""

from __future__ import annotations

import itertools
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import special

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.data.mixture import MixtureSample
from mhrun.kernels import MetropolisHastings
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.tied_means import TiedMeans
from mhrun.native import ACCEPT, REJECT, UNDECIDED, Draw, Seen, SequentialTest
from mhrun.native.philox import split_key
from mhrun.pairing.growing import Growing, Terms
from mhrun.pairing.shared import Shared
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.rules.austere import Austere
from mhrun.rules.austere_design import DESIGNS, Designs
from mhrun.rules.correction import correction, inverse, quantiles
from mhrun.rules.growth import mean_variance
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch, own_share
from mhrun.rules.subsampling import MHSubLhd
from mhrun.target import Target
from mhrun.types import Contest, Controls

N = 1_000
KEY = derive_key(21, "growing")


class Fixed:
    """A supply whose terms are given: one row of N terms for all chains, each chain in an order of its own."""

    def __init__(self, terms, chains):
        self.n = len(terms)
        order = Draws(Streams(KEY, chains), 7).index(self.n, self.n, replacement=False)
        self.values = torch.from_numpy(terms)[order]
        self.n_lik_overhead = torch.zeros(chains, dtype=torch.int64)

    def terms(self, rows, start, stop):
        return self.values[rows, start:stop]

    def moments(self):
        self.n_lik_overhead += 2 * self.n
        return self.values.mean(1), self.values.var(1, correction=0)

    def largest(self):
        self.n_lik_overhead += 2 * self.n
        return self.values.abs().amax(1)


def contest_of(mean, spread, scale, offset, chains, seed=0, n=N):
    """A contest whose terms have this mean and standard deviation exactly."""
    raw = np.random.default_rng(seed).standard_t(8, n)
    terms = mean + spread * (raw - raw.mean()) / raw.std()
    supply = Fixed(terms, chains)
    full = torch.full((chains,), 1.0, dtype=torch.float64)
    return Contest(None, scale * full, offset * full, supply)


CASES = [(0.02, 0.3, 60.0, -0.4), (-0.01, 1.0, 25.0, 0.3), (0.1, 0.5, 40.0, 0.0), (0.0, 0.8, 200.0, 0.1)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("five_sd", ["off", "undecided", "always"])
def test_mh_minibatch_is_the_papers_loop(case, five_sd):
    chains, m, sigma = 40, 50, 0.9
    contest = contest_of(*case, chains)
    rule = MHMinibatch(m, sigma, five_sd=five_sd, finite=False, stop="sequential")
    verdict = rule.decide(contest, Draws(Streams(KEY, chains), 1))
    draws = Draws(Streams(KEY, chains), 1)
    z = draws.normal(Purpose.ACCEPT, 1)[:, 0].numpy()
    corr = inverse(draws.uniform(Purpose.ACCEPT, use=1), quantiles(correction("nnls", sigma))).numpy()
    u = draws.uniform(Purpose.ACCEPT, use=2).numpy()
    scale, offset = float(contest.scale[0]), float(contest.offset[0])
    for c in range(chains):
        x = scale * contest.supply.values[c].numpy()
        b = m
        while True:
            mean = x[:b].mean()
            s2 = ((x[:b] - mean) ** 2).mean() / b
            d = mean + offset
            if b == N:
                accept = d + math.log(u[c] / (1 - u[c])) > 0
                break
            if five_sd == "always" and abs(d) > 5 * math.sqrt(s2):
                accept = d > 0
                break
            if s2 < sigma**2:
                accept = d + math.sqrt(sigma**2 - s2) * z[c] + corr[c] > 0
                break
            if five_sd == "undecided" and abs(d) > 5 * math.sqrt(s2):
                accept = d > 0
                break
            b = min(b + m, N)
        assert (bool(verdict.accepted[c]), int(verdict.batch_size[c])) == (accept, b)
        assert float(verdict.log_ratio[c]) == pytest.approx(d)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "settings", [{}, {"pilot": 20, "noise_share": 0.5}, {"skew_corrected": False}, {"finite": False}]
)
def test_mh_minibatch_with_a_pilot_is_its_loop(case, settings):
    chains, m, v = 40, 50, 0.81
    contest = contest_of(*case, chains)
    verdict = MHMinibatch(m, 0.9, **settings).decide(contest, Draws(Streams(KEY, chains), 1))
    draws = Draws(Streams(KEY, chains), 1)
    z = draws.normal(Purpose.ACCEPT, 1)[:, 0].numpy()
    corr = inverse(draws.uniform(Purpose.ACCEPT, use=1), quantiles(correction("nnls", 0.9))).numpy()
    u = draws.uniform(Purpose.ACCEPT, use=2).numpy()
    scale, offset = float(contest.scale[0]), float(contest.offset[0])
    p, share = settings.get("pilot", m), settings.get("noise_share", 0.8)
    over_n = 1 / N if settings.get("finite", True) else 0.0
    for c in range(chains):
        x = scale * contest.supply.values[c].numpy()
        before = x[:p].var(ddof=1)
        needed = before / (share * v + before * over_n)
        b = m
        while True:
            used = x if b == N - p else x[p : p + b]
            d, f = used.mean() + offset, len(used) * over_n
            w = 0.0 if settings.get("skew_corrected") is False else (1 + f) / 3
            s2 = (w * used.var(ddof=1) + (1 - w) * before) / len(used) * (1 - f)
            if b == N - p:
                accept = d + math.log(u[c] / (1 - u[c])) > 0
                break
            if b >= needed and s2 < v:
                accept = d + math.sqrt(v - s2) * z[c] + corr[c] > 0
                break
            b = min(max(b + 1, math.ceil(1.05 * b)), N - p)
        assert (bool(verdict.accepted[c]), int(verdict.batch_size[c])) == (accept, p + b)
        assert float(verdict.log_ratio[c]) == pytest.approx(d)
        noise = 0.0 if len(used) == N else used.var(ddof=1) / len(used) * (1 - len(used) / N)
        assert float(verdict.log_ratio_var[c]) == pytest.approx(noise)
        skew = (
            0.0 if len(used) == N else ((used - used.mean()) ** 3).mean() / used.std() ** 3 / len(used) ** 0.5
        )
        assert float(verdict.log_ratio_skew[c]) == pytest.approx(skew, abs=1e-12)


def test_the_variance_and_the_correction_of_the_skewness_are_exact_over_all_minibatches():
    """Over every pilot of 2 and every minibatch of 3 out of 8 data, without chance."""
    x, n, b = np.random.default_rng(2).exponential(1.0, 8), 8, 3
    mean, own, other = [], [], []
    for batch in combinations(range(n), b):
        rest = [i for i in range(n) if i not in batch]
        for first in combinations(rest, 2):
            used = torch.from_numpy(x[list(batch)])
            mean.append(float(used.mean()))
            own.append(float(mean_variance(used.var(correction=0), torch.tensor(b), n)))
            other.append(float(torch.from_numpy(x[list(first)]).var()) / b * (1 - b / n))
    mean, own, other = (np.array(each) for each in (mean, own, other))
    assert mean.var() == pytest.approx(own.mean()) == pytest.approx(other.mean())
    third = ((mean - x.mean()) ** 3).mean()
    share = own_share(b / n)
    s2 = share * own + (1 - share) * other
    assert abs(third) > 1e-4
    assert third - 3 * ((mean - x.mean()) * s2).mean() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "rule",
    [
        lambda: MHMinibatch(50),
        lambda: MHMinibatch(50, stop="sequential"),
        lambda: Austere(50, 0.02),
        lambda: MHSubLhd(50),
        lambda: MHSubLhd(50, bound="bernstein_serfling"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_datum_that_is_impossible_at_the_candidate_is_a_rejection(rule, first):
    """Its log-ratio is -infinity, and not a NaN that a run would warn of, in the first data that are read or later."""
    contest = contest_of(2.0, 0.3, 20.0, 0.0, 6)
    contest.supply.values[:, 3 if first else slice(300, None)] = -torch.inf
    rule, draws = rule(), Draws(Streams(KEY, 6), 3)
    verdict = rule.decide(contest, draws)
    seen = verdict.log_ratio.isneginf()
    assert not verdict.log_ratio.isnan().any()
    assert not verdict.accepted[seen].any()
    assert seen.any() == (first or isinstance(rule, MHSubLhd))
    assert verdict.log_ratio_var.isfinite().all()
    assert verdict.log_ratio_skew.isfinite().all()


def test_terms_that_are_nearly_equal_have_no_skewness():
    """The third moment about the pilot's mean is what rounding has left of it: up to 1e8 without the limit."""
    contest = contest_of(1.0, 0.3, 1e-3, 0.0, 40)
    noise = 1e-12 * np.random.default_rng(1).normal(size=(40, 2))
    contest.supply.values[:, 2:4] = 0.7 + torch.from_numpy(noise)
    verdict = MHMinibatch(2).decide(contest, Draws(Streams(KEY, 40), 3))
    assert (verdict.batch_size == 4).all()
    assert verdict.log_ratio_skew.abs().max() <= 1


@pytest.mark.parametrize("stop", ["pilot", "sequential"])
def test_without_the_prior_an_offset_of_the_log_ratio_plays_no_part(stop):
    with_offset, without = (
        MHMinibatch(50, prior=False, stop=stop).decide(
            contest_of(0.0, 0.0, 1.0, offset, 200), Draws(Streams(KEY, 200), 1)
        )
        for offset in (-40.0, 0.0)
    )
    assert torch.equal(with_offset.accepted, without.accepted)
    assert 0.4 < with_offset.accepted.double().mean() < 0.6
    seen, test = Seen(0, 50, 0.0, 0.0, 0.0), SequentialTest(N, 1.0, -40.0)
    for prior, wanted in ((False, ACCEPT), (True, REJECT)):
        compiled = MHMinibatch(50, prior=prior, stop=stop).sequential(N)
        assert compiled.judge(compiled.args, (0.0, 0.1, 0.0, 0, 0.0), test, seen) == wanted


@pytest.mark.parametrize("five_sd", ["off", "undecided", "always"])
def test_only_always_decides_a_known_log_ratio_by_its_sign(five_sd):
    """At a log-ratio of -1 without noise Barker's rule accepts with probability 1 / (1 + e)."""
    chains, exact = 2_000, 0.0 if five_sd == "always" else 1 / (1 + math.e)
    rule = MHMinibatch(50, five_sd=five_sd, stop="sequential")
    verdict = rule.decide(contest_of(0.0, 0.0, 1.0, -1.0, chains), Draws(Streams(KEY, chains), 1))
    error = 4.5 * math.sqrt(exact * (1 - exact) / chains)
    assert float(verdict.accepted.double().mean()) == pytest.approx(exact, abs=error)
    compiled, seen = rule.sequential(N), Seen(0, 50, 0.0, 0.0, 0.0)
    found = compiled.judge(compiled.args, (0.0, 1.1, 0.0, 0), SequentialTest(N, 1.0, -1.0), seen)
    assert found == (REJECT if five_sd == "always" else ACCEPT)


@pytest.mark.parametrize("case", CASES)
def test_austere_is_the_papers_loop(case):
    chains, m, epsilon = 40, 50, 0.05
    contest = contest_of(*case, chains)
    verdict = Austere(m, epsilon).decide(contest, Draws(Streams(KEY, chains), 1))
    u = Draws(Streams(KEY, chains), 1).uniform(Purpose.ACCEPT).numpy()
    scale, offset = float(contest.scale[0]), float(contest.offset[0])
    for c in range(chains):
        x = contest.supply.values[c].numpy()
        mu0 = (math.log(u[c]) - offset) / scale
        n = 0
        while True:
            n = min(n + m, N)
            mean = x[:n].mean()
            sd = math.sqrt(((x[:n] ** 2).mean() - mean**2) * n / (n - 1))
            s = sd / math.sqrt(n) * math.sqrt(1 - (n - 1) / (N - 1))
            if n == N or 1 - special.stdtr(n - 1, abs(mean - mu0) / s) < epsilon:
                break
        assert (bool(verdict.accepted[c]), int(verdict.batch_size[c])) == (mean > mu0, n)


def test_a_design_that_ignores_u_keeps_one_nth_of_its_logarithm(monkeypatch):
    """With 2 data of mean 0 and variance 1, |mu_std| is |log u| / 2: the usage of the first design of the table."""
    usage = np.full((len(DESIGNS), 2), 0.4)
    usage[0] = [0.0, 10.0]
    designs = Designs(np.zeros_like(usage), usage, 10.0)
    monkeypatch.setattr("mhrun.rules.austere._designs", lambda n, reach: designs)
    rule, chains = Austere(design="per_step", bound=0.1, ignores_u=True), 40
    log_u = Draws(Streams(KEY, chains), 1).uniform(Purpose.ACCEPT).log()
    first = (log_u / 2).abs() < 0.4
    assert 0 < first.sum() < chains
    contest = Contest(
        None, torch.ones_like(log_u), torch.zeros_like(log_u), Fixed(np.array([-1.0, 1.0]), chains)
    )
    _, epsilon = rule._per_step(contest, contest.supply, log_u, log_u)
    assert torch.equal(epsilon == DESIGNS[0].epsilon, first)
    compiled, key = rule.sequential(2), split_key(KEY)
    for c in range(chains):
        draw = Draw(key, np.uint64(1), np.uint64(c))
        test, seen = SequentialTest(2, 1.0, 0.0), Seen(-1, 2, 0.0, 1.0, 0.0)
        threshold, row, *_ = compiled.begin(compiled.args, test, seen, draw)
        assert threshold == pytest.approx(float(log_u[c]))
        assert (row == 0) == bool(first[c])


MANY = 20_000
FAR = [(0.02, 0.005, 60.0, -0.4), (-0.15, 0.05, 8.0, 0.3)]


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("bound", ["empirical_bernstein", "hoeffding_serfling", "bernstein_serfling"])
@pytest.mark.parametrize(("case", "n"), [*((case, N) for case in CASES), *((case, MANY) for case in FAR)])
def test_mhsublhd_is_the_papers_loop(case, n, bound, released):
    """Of many data, whose mean is far from the thresholds beside the bounds, chains read different parts."""
    chains, m, gamma, delta, p = 40, 50, 1.5, 0.1, 2.0
    contest = contest_of(*case, chains, n=n)
    rule = MHSubLhd(m, gamma, delta, p, bound, released)
    verdict = rule.decide(contest, Draws(Streams(KEY, chains), 1))
    u = Draws(Streams(KEY, chains), 1).uniform(Purpose.ACCEPT).numpy()
    scale, offset = float(contest.scale[0]), float(contest.offset[0])
    for c in range(chains):
        x = contest.supply.values[c].numpy()
        psi = (math.log(u[c]) - offset) / scale
        largest = np.abs(x).max()
        t, stage = m, 1
        while True:
            share = (p - 1) / (p * (stage + released) ** p) * delta
            mean, sd = x[:t].mean(), x.std() if released else x[:t].std()
            if bound == "empirical_bernstein":
                c_t = sd * math.sqrt(2 * math.log(3 / share) / t) + 6 * largest * math.log(3 / share) / t
            elif bound == "hoeffding_serfling":
                c_t = largest * math.sqrt(2 * (1 - (t - 1) / n) * math.log(2 / share) / t)
            else:
                rho = 1 - (t - 1) / n if t <= n / 2 else (1 - t / n) * (1 + 1 / t)
                kappa = 7 / 3 + 3 / math.sqrt(2)
                c_t = sd * math.sqrt(2 * rho * math.log(5 / share) / t)
                c_t += kappa * 2 * largest * math.log(5 / share) / t
            following = min(n, math.ceil(gamma * t))
            if abs(mean - psi) >= c_t or t == n or (released and following == n):
                break
            t, stage = following, stage + 1
        assert (bool(verdict.accepted[c]), int(verdict.batch_size[c])) == (mean > psi, t)
    if n == MANY:
        assert (verdict.batch_size < n / 2).any()
        assert len(set(verdict.batch_size.tolist())) > 2


@pytest.mark.parametrize(
    ("bound", "var", "largest", "log_of", "expected"),
    [
        ("hoeffding_serfling", 0.0, 1.0, 2, math.sqrt(2 * (1 - 899 / 1000) / 900)),
        ("bernstein_serfling", 1.0, 0.0, 5, math.sqrt(2 * (1 - 900 / 1000) * (1 + 1 / 900) / 900)),
    ],
)
def test_the_bounds_without_replacement_of_900_of_1000_data(bound, var, largest, log_of, expected):
    """Bardenet & Maillard 2015, with delta such that the logarithm is 1."""
    numbers = [torch.tensor(x, dtype=torch.float64) for x in (var, largest, log_of / math.e)]
    limit = MHSubLhd(50, bound=bound)._limit(torch.tensor(900), *numbers, 1000)
    assert float(limit) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("bound", ["empirical_bernstein", "hoeffding_serfling", "bernstein_serfling"])
def test_the_compiled_bound_of_mhsublhd_is_that_of_torch(bound, released):
    """A mean just below the bound is undecided, and one just above it accepted, at each stage."""
    threshold, var, largest = 0.3, 0.2, 1.5
    rule = MHSubLhd(50, 1.5, 0.1, 2.0, bound, released)
    compiled = rule.sequential(MANY)
    numbers = [torch.tensor(value, dtype=torch.float64) for value in (var, largest)]
    for stage, size in enumerate(compiled.sizes[:-1]):
        share = torch.tensor(compiled.args[0][stage])
        limit = float(rule._limit(torch.tensor(size), *numbers, share, MANY))
        for factor, wanted in ((1 - 1e-9, UNDECIDED), (1 + 1e-9, ACCEPT)):
            seen = Seen(stage, size, threshold + factor * limit, var, largest)
            test = SequentialTest(MANY, 1.0, 0.0)
            assert compiled.judge(compiled.args, (threshold, largest, var, 0), test, seen) == wanted


PAIRS = [(m, 1.0, c, o) for m in (-0.03, 0.0, 0.02) for c, o in ((30.0, 0.2), (120.0, -0.5))]


@pytest.mark.parametrize("case", PAIRS)
def test_mh_minibatch_accepts_as_barker_would(case):
    mean, _spread, scale, offset = case
    chains = 2_000
    exact = special.expit(offset + scale * mean)
    for rule in (MHMinibatch(100), MHMinibatch(100, stop="sequential"), MHMinibatch(N)):
        verdict = rule.decide(contest_of(*case, chains), Draws(Streams(KEY, chains), 1))
        share = float(verdict.accepted.double().mean())
        error = math.sqrt(exact * (1 - exact) / chains)
        # 4.5 standard errors (7e-6), and 1e-3 for what is not normal in a mean of 100 or more terms.
        assert abs(share - exact) < 4.5 * error + (0.0 if rule.first_batch == N else 1e-3)


@pytest.mark.parametrize("case", PAIRS)
def test_sequential_tests_keep_the_error_that_they_promise(case):
    mean, _spread, scale, offset = case
    chains = 2_000
    exact = min(1.0, math.exp(offset + scale * mean))
    slack = 4.5 * math.sqrt(max(exact * (1 - exact), 1e-4) / chains)
    for rule, bound in (
        (Austere(design="conservative", bound=0.1), 0.1),
        (Austere(design="per_step", bound=0.05), 0.05),
        (MHSubLhd(50, 1.5, 0.05), 0.05),
    ):
        contest = contest_of(*case, chains)
        verdict = rule.decide(contest, Draws(Streams(KEY, chains), 1))
        assert abs(float(verdict.accepted.double().mean()) - exact) < bound + slack
        assert (verdict.batch_size <= N).all()
        assert (contest.supply.n_lik_overhead > 0).all() == (
            not isinstance(rule, Austere) or rule.design == "per_step"
        )


def test_the_supply_is_the_targets(rng):
    data = Dataset({"x": torch.from_numpy(rng.normal(size=(300,)))})
    model = FunctionModel(lambda theta, x: -0.5 * (x - theta[0]) ** 2, [0.0], single=True)
    target = Target(model, data)
    one, two = torch.tensor([[0.0], [0.5], [1.0]]).double(), torch.tensor([[0.3], [0.1], [0.2]]).double()
    supply = Terms(target, one, two, Draws(Streams(KEY, 3), 1))
    x = data.fields["x"].numpy()
    wanted = -0.5 * (x - two.numpy()) ** 2 + 0.5 * (x - one.numpy()) ** 2
    mean, var = supply.moments()
    assert mean.numpy() == pytest.approx(wanted.mean(1))
    assert var.numpy() == pytest.approx(wanted.var(1))
    assert supply.largest().numpy() == pytest.approx(np.abs(wanted).max(1))
    rows = torch.tensor([0, 2])
    parts = [supply.terms(torch.arange(3), 0, 100)[rows], supply.terms(rows, 100, 300)]
    whole = torch.cat(parts, dim=1).numpy()
    assert np.sort(whole, axis=1) == pytest.approx(np.sort(wanted[[0, 2]], axis=1))
    assert supply.n_lik_overhead.tolist() == [600] * 3  # one pass gives both


def test_rules_and_pairings_that_do_not_go_together_say_so(mixture):
    model = FunctionModel(lambda theta, x: -0.5 * (x - theta[0]) ** 2, [0.0], single=True)
    target = Target(model, mixture)
    grown = MetropolisHastings(RandomWalk(), Growing(), Metropolis())
    assert "Metropolis needs a fixed one" in grown.refuses(target)
    fixed = MetropolisHastings(RandomWalk(), Shared(10), MHMinibatch(50))
    assert "choose pairing growing" in fixed.refuses(target)
    right = MetropolisHastings(RandomWalk(), Growing(), MHMinibatch(50))
    assert right.refuses(target) is None
    assert "replacement=false" in right.refuses(Target(model, mixture, replacement=True))


RULES = {
    "mh_minibatch": lambda: MHMinibatch(50, density="nnls"),
    "mh_minibatch, pilot": lambda: MHMinibatch(30, pilot=7, noise_share=0.6),
    "mh_minibatch, skewed": lambda: MHMinibatch(3, pilot=80, skew_corrected=False, at_end="sign"),
    "mh_minibatch, pilot as if with replacement": lambda: MHMinibatch(50, finite=False),
    "mh_minibatch, printed": lambda: MHMinibatch(50, stop="sequential", finite=False),
    "mh_minibatch, released": lambda: MHMinibatch(
        50, 0.9, "paper", 3.0, 200, five_sd="always", at_end="sign", finite=False, stop="sequential"
    ),
    "mh_minibatch, finite": lambda: MHMinibatch(64, five_sd="undecided", stop="sequential"),
    "mh_minibatch, series": lambda: MHMinibatch(50, density="series", variance=0.2, lam=10.0),
    "mh_minibatch, no prior": lambda: MHMinibatch(50, prior=False),
    "austere": lambda: Austere(60, 0.02),
    "austere, conservative": lambda: Austere(design="conservative", bound=0.2),
    "austere, per step": lambda: Austere(design="per_step", bound=0.1),
    "austere, ignores u": lambda: Austere(design="per_step", bound=0.1, ignores_u=True),
    "mhsublhd": lambda: MHSubLhd(50, 1.5),
    "mhsublhd, released": lambda: MHSubLhd(50, released=True),
    "mhsublhd, hoeffding": lambda: MHSubLhd(50, bound="hoeffding_serfling"),
    "mhsublhd, bernstein": lambda: MHSubLhd(50, bound="bernstein_serfling"),
}
PROBLEMS = {
    "tied means": (
        lambda: TiedMeans(),
        lambda: MixtureSample(3_000, (0.0, 1.0), 2.0, seed=3).load(),
        0.8,
        60,
    ),
    "few data": (lambda: TiedMeans(), lambda: MixtureSample(700, (0.0, 1.0), 2.0, seed=3).load(), 0.8, 60),
    "gaussian": (lambda: GaussianMean(), lambda: MixtureSample(3_000, (0.5,), 1.0, seed=3).load(), 0.1, 100),
    "logistic": (lambda: Logistic(12), lambda: logistic_data(3_000), 0.3, 60),
}


def logistic_data(n):
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (n, 12), dtype=np.uint8)
    z = (x / 255 - 0.5) @ np.linspace(-3, 3, 12)
    y = np.where(rng.random(n) < special.expit(z), 1, -1).astype(np.int8)
    return Dataset({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})


def pairs():
    """Yield one pair; the others, each with a loop to compile, are slow."""
    for name, problem in itertools.product(RULES, PROBLEMS):
        quick = (name, problem) == ("mh_minibatch", "tied means")
        yield pytest.param(name, problem, marks=[] if quick else pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("name", "problem"), list(pairs()))
def test_the_compiled_loop_reads_and_decides_the_same(name, problem):
    model, data, step, weight = PROBLEMS[problem]
    target = Target(model(), data(), temper="likelihood")
    record = assert_alike(RULES[name](), target, step, weight)
    assert 0 < record["accepted"].mean() < 1


@pytest.mark.usefixtures("either_code")
@pytest.mark.parametrize("n", [1, 2, 3, 49, 50, 51, 100, 101, 102])
@pytest.mark.parametrize(
    "name", ["mh_minibatch", "mh_minibatch, finite", "mh_minibatch, printed", "austere", "mhsublhd"]
)
def test_few_data_are_read_and_decided_on_alike(name, n):
    """With m = 50: fewer data than a minibatch, one more or less, and one more or less than pilot and minibatch.

    Plain Python checks the indices of arrays.
    """
    x = np.random.default_rng(n).normal(0.5, 1.0, n)
    target = Target(GaussianMean(), Dataset.of(x), temper="likelihood")
    record = assert_alike(RULES[name](), target, 0.1, 100, 10, (2,))
    assert 0 < record["accepted"].mean() < 1
    everything = record["batch_size"] == n
    assert everything.all() if n <= 50 else everything.any()
    assert (record["log_ratio_var"][everything] == 0).all()
    assert np.isfinite(record["log_ratio_skew"]).all()


def assert_alike(rule, target, step, weight, steps=30, numbers_of_threads=(1, 2)):
    """Decision by decision, datum by datum, on the same random numbers; return the record of the compiled loop."""
    kernel = MetropolisHastings(RandomWalk(), Growing(), rule)
    chains = 4
    full = torch.ones(steps, chains, dtype=torch.float64)
    controls = Controls(step * full, target.n / weight * full, full)
    draws = Draws(Streams(KEY, chains), 0)
    start = kernel.start(target, target.model.init(chains, draws), draws)
    state, infos, thetas = start, [], []
    for k in range(steps):
        draws.step = k + 1
        state, info = kernel.step(target, state, controls.each(lambda c, k=k: c[k]), draws)
        infos.append(info)
        thetas.append(state.evaluation.theta)
    for threads in numbers_of_threads:
        fused = compile_loop(kernel, target, KEY, threads)
        assert fused is not None
        end, record = fused.advance(start, 1, controls)
        for field in ("accepted", "batch_size", "n_lik", "n_lik_overhead", "n_grad", "diverging"):
            assert (record[field] == torch.stack([getattr(i, field) for i in infos], 1).numpy()).all()
        for field in ("log_ratio", "log_ratio_var", "log_ratio_skew"):
            theirs = torch.stack([getattr(i, field) for i in infos], 1).numpy()
            assert np.allclose(record[field], theirs, rtol=1e-3, atol=1e-3)
        assert record["theta"] == pytest.approx(torch.stack(thetas, 1).numpy(), abs=1e-9)
        assert end.evaluation.log_prior.numpy() == pytest.approx(state.evaluation.log_prior.numpy())
    return record
