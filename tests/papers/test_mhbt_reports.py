"""Wu, Wang & Wong (2020): what its reports are computed from, against plain loops written from the paper."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit import controls
from scipy import stats
from significance import assert_mean, differs_in_mean

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.data.gaussian import GaussianSample
from mhrun.diagnostics.grid import Estimate
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings
from mhrun.models.gaussian_location import GaussianLocation
from mhrun.pairing.full import Full
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.paths import experiment_module
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Controls
from mhrun.units import learning_rate_steps

acceptance, backward, gaussian, mixture, optima = (
    experiment_module(f"mhbt.{name}") for name in ("acceptance", "backward", "gaussian", "mixture", "optima")
)
KEY = derive_key(11, "mhbt")


# --- The model ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 5, 9])
@pytest.mark.parametrize("pairing", [Stored(300), Shared(301), Full()])
def test_the_compiled_gaussian_gives_the_same(dim, pairing):
    """The same random numbers and the same decisions as the plain loop, whose likelihoods are of float32 data."""
    target = Target(GaussianLocation(dim, 1.0, start=2.2), GaussianSample(3000, dim, 2.0, seed=4))
    kernel, chains, steps = MetropolisHastings(RandomWalk(), pairing, Metropolis()), 6, 80
    control = controls(0.4 / math.sqrt(dim), 3000 / 20, 1.0, chains, steps)
    draws = Draws(Streams(KEY, chains), 0)
    state = start = kernel.start(target, target.model.init(chains, draws), draws)
    plain, accepted, ratios = [], [], []
    for k in range(steps):
        draws.step = k + 1
        state, info = kernel.step(target, state, Controls(*(c[k] for c in control[:3])), draws)
        plain.append(state.evaluation.theta)
        accepted.append(info.accepted)
        ratios.append(info.log_ratio)
    fused = compile_loop(kernel, target, KEY, 1)
    _, record = fused.advance(start, 1, control)
    assert 0.1 < record["accepted"].mean() < 0.9
    assert (record["accepted"] == torch.stack(accepted, 1).numpy()).all()
    assert np.abs(record["theta"] - torch.stack(plain, 1).numpy()).max() < 1e-12
    assert np.abs(record["log_ratio"] - torch.stack(ratios, 1).numpy()).max() < 1e-3


@pytest.mark.slow
def test_the_distribution_of_figure_2a():
    """The variance over that of the tempered posterior, 1 + (c/m) (1 - m/n) to first order in c/m.

    From 60,000 independent numbers: false alarms are below 1e-5 (`significance`); 1 is excluded by the same test.
    """
    n, m, c, dim, chains = 20_000, 200, 20.0, 5, 12_000
    ratio = gaussian.variance_ratio(c, m, n)
    assert ratio == pytest.approx(1 + c / m * (1 - m / n), rel=(c / m) ** 2)
    target = Target(GaussianLocation(dim, 1.0, start=2.0), GaussianSample(n, dim, 2.0, seed=1))
    kernel = MetropolisHastings(RandomWalk(), Stored(m), Metropolis())
    draws = Draws(Streams(KEY, chains), 0)
    start = kernel.start(target, target.model.init(chains, draws), draws)
    state, _ = compile_loop(kernel, target, KEY, 2).advance(start, 1, controls(0.15, n / c, 1.0, chains, 120))
    x = target.data.fields["x"].double().numpy()
    centre = n * x.mean(axis=0) / (n + 1)
    theta = state.evaluation.theta.numpy()
    squares = (np.square(theta - centre) * (n + 1) / (n / c)).mean(axis=1)
    assert_mean(squares, ratio)
    assert differs_in_mean(squares, 1.0)


# --- Figure 1 -----------------------------------------------------------------------------------------------


def test_learning_rates_are_n_times_the_steps():
    found = learning_rate_steps(1e-10, 1e-2, 65, 10_000)
    assert len(found) == 65
    assert found[0] == pytest.approx(1e-14)
    assert found[-1] == pytest.approx(1e-6)
    assert np.diff(np.log10(found)) == pytest.approx(1 / 8)
    for wrong in ((1e-2, 1e-10, 5, 10), (0, 1, 5, 10), (1e-3, 1e-2, 1, 10)):
        with pytest.raises(Refusal, match="are not a grid"):
            learning_rate_steps(*wrong)


def test_the_largest_rate_is_the_last_one_that_has_the_level():
    rates = np.array([1e-4, 1e-3, 1e-2, 1e-1])
    largest = acceptance.largest_rate
    assert largest(rates, np.array([0.9, 0.7, 0.3, 0.1]), 0.5) == pytest.approx(10**-2.5)
    assert largest(rates, np.array([0.9, 0.4, 0.6, 0.2]), 0.5) == pytest.approx(10**-1.75)
    assert largest(rates, np.array([0.1, 0.2, 0.5, 0.5]), 0.5) == 1e-1
    assert largest(rates, np.array([0.5, 0.2, 0.1, 0.1]), 0.5) == pytest.approx(1e-4)
    assert math.isnan(largest(rates, np.array([0.4, 0.3, 0.2, 0.1]), 0.5))


def test_a_lead_is_a_difference_of_means_with_the_spread_of_its_batches(rng):
    one, other = rng.random((5, 200)) < 0.6, rng.random((5, 200)) < 0.3
    found = acceptance.lead(one, other)
    total, means = 0.0, []
    for batch in range(20):
        part = 0.0
        for s in range(10 * batch, 10 * batch + 10):
            for c in range(5):
                part += (float(one[c, s]) - float(other[c, s])) / 50
        means.append(part)
        total += part / 20
    assert found.value == pytest.approx(total)
    assert found.se == pytest.approx(np.std(means, ddof=1) / math.sqrt(20))


def fake(dim, numbers):
    found = {f"{method}.{name}": number for (method, name), number in numbers.items()}
    return SimpleNamespace(config={"dim": dim}, cached=lambda function: found)


def test_notes_on_several_dimensions():
    runs = [
        fake(
            d,
            {
                ("printed_sgld", "eps_half"): float("nan") if d > 1 else 1e-5,
                ("code_sgld", "eps_half"): 1e-5 / d,
                ("code_sgld", "eps_tenth"): 1e-4 * d**-0.25,
                ("shared_sgld", "eps_tenth"): 1e-4 if d != 10 else 1e-3,
                ("code_rsgld_1", "gain"): Estimate(0.04 if d == 100 else 0.06, 0.001),
                ("code_rsgld_2", "gain"): Estimate(0.1, 0.001),
                ("shared_rsgld_1", "gain"): Estimate(float("nan"), float("nan")),
                ("mala_sgld", "eps_half"): 0.1 * d ** (-1 / 3),
            },
        )
        for d in (100, 1, 1000, 10)
    ]
    found = acceptance.sweep_metrics(runs)
    assert found["code.falls_half"] == 3
    assert found["code.slope_half"] == pytest.approx(-1)
    assert found["code.slope_tenth"] == pytest.approx(-0.25)
    assert found["code.last_half"] == pytest.approx(1e-8)
    assert found["shared.falls_tenth"] == 1
    assert math.isnan(found["printed.falls_half"])
    assert found["code_rsgld_1.wins"] == 2  # of those above 1
    assert found["code_rsgld_2.wins"] == 3
    assert found["printed_rsgld_1.wins"] == 0
    assert found["shared_rsgld_1.wins"] == 0
    assert found["mala.slope_half"] == pytest.approx(-1 / 3)


def test_a_gain_is_a_lead_where_sgld_accepts_between_a_tenth_and_a_half(rng):
    """Few learning rates have that acceptance: a mean over all of them hides a gain, or makes one of a plateau."""
    grid = np.geomspace(1e-4, 1e-1, 4)
    accepts = {"code_sgld": [0.9, 0.4, 0.2, 0.0], "code_rsgld_1": [0.9, 0.7, 0.5, 0.9]}
    accepted = {
        name: np.array(rates)[:, None] > (np.arange(200) + 0.5) / 200 for name, rates in accepts.items()
    }
    run = SimpleNamespace(
        config={
            "data": {"n": 1},
            "methods": {name: {"schedules": {"step_size": {"step_size": list(grid)}}} for name in accepts},
        },
        methods={
            name: {"accept_rate": 0.5, "accept_rate_by_chain": rates} for name, rates in accepts.items()
        },
        stat=lambda method, name: accepted[method],
    )
    found = acceptance.metrics(run)
    assert found["code_rsgld_1.gain"].value == pytest.approx(0.3)
    assert found["code_rsgld_1.lead"].value == pytest.approx((0 + 0.3 + 0.3 + 0.9) / 4)
    accepts["code_sgld"] = [0.9, 0.8, 0.05, 0.0]
    run.methods["code_sgld"]["accept_rate_by_chain"] = accepts["code_sgld"]
    assert math.isnan(acceptance.metrics(run)["code_rsgld_1.gain"].value)


# --- Proposition 1 ------------------------------------------------------------------------------------------


def log_q(start, to, grad, eps, n, beta, normalised):
    """Equation 7 in plain loops, without what both directions share."""
    variance = 2 * eps / n**2
    forward = backward = 0.0
    for a, b, g in zip(start, to, grad, strict=True):
        forward -= (b - a - eps * g) ** 2 / (2 * variance)
        backward -= (b - a + eps * g) ** 2 / (2 * beta**2 * variance)
        backward -= math.log(beta) * normalised
    top = max(forward, backward)
    return top + math.log(0.5 * math.exp(forward - top) + 0.5 * math.exp(backward - top))


@pytest.mark.parametrize("density", ["normalised", "unnormalised"])
@pytest.mark.parametrize("forward", [True, False])
def test_moves_are_those_of_equation_6_with_the_ratio_of_equation_7(density, forward):
    n, eps, beta, dim, length, curvature, gap = 50, 3e-3, 1.7, 4, 0.8, 0.6, 0.3
    found = backward.moves(
        5,
        dim,
        beta,
        density,
        n=n,
        eps=eps,
        grad=length,
        forward=forward,
        curvature=curvature,
        mismatch=gap,
        seed=2,
    )
    z = np.random.default_rng(2).standard_normal((5, dim))
    here = np.full(dim, length / 2)
    across = gap / 2 * np.array([1, -1, 1, -1])
    assert np.linalg.norm(here) == pytest.approx(length)
    assert abs(here @ across) < 1e-15
    for i in range(5):
        noise = math.sqrt(2 * eps) / n * z[i]
        to = eps * here + noise if forward else -eps * here + beta * noise
        there = here + across - curvature * to
        normalised = density == "normalised"
        wanted = log_q(to, np.zeros(dim), there, eps, n, beta, normalised)
        wanted -= log_q(np.zeros(dim), to, here, eps, n, beta, normalised)
        assert found[i] == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("beta", [1.1, 2.0, 5.0])
@pytest.mark.parametrize("density", ["normalised", "unnormalised"])
def test_the_ratio_where_the_gradient_is_strong(density, beta):
    """By algebra, with noise a five-hundredth of the drift, against 5,000 moves: a t-test each."""
    config = {"draws": 5000, "n": 10_000, "eta": 0.002, "seed": 0}
    assert backward.derived(2.0, "normalised", forward=True) == pytest.approx(0.375 - math.log(2))
    assert backward.derived(2.0, "unnormalised", forward=True) == 0.375
    assert backward.derived(2.0, "normalised", forward=False) == pytest.approx(math.log(2) - 1.5)
    assert backward.derived(2.0, "unnormalised", forward=False) == -1.5
    for forward in (True, False):
        found = backward.strong(config, 50, beta, density, forward=forward) / 50
        assert_mean(found, backward.derived(beta, density, forward=forward))


def test_the_ratio_where_the_gradient_vanishes():
    config = {"draws": 500, "n": 10_000, "eta": 0.05, "seed": 0}
    for density in backward.DENSITIES:
        for forward in (True, False):
            at = {"n": 100, "eps": 1e-3, "grad": 0.0, "seed": 0}
            still = backward.moves(100, 30, 2.0, density, forward=forward, **at)
            assert np.abs(still).max() < 1e-9  # the mixture is symmetric
            assert np.abs(backward.flat(config, 1000, 2.0, density, forward=forward)).max() < 0.05


# --- Theorems 1 and 2 ---------------------------------------------------------------------------------------


def test_means_over_minibatches_and_the_distribution_made_of_them(rng):
    values = rng.normal(size=(30, 5))
    values[:, 4] = 2.5  # of which every mean is
    means = optima.batch_means(values, 7, 2500, seed=3)
    assert means.shape == (2500, 5)
    assert means[:, 4] == pytest.approx(2.5, rel=1e-6)
    spread = values.var(axis=0, ddof=1) / 7 * (1 - 7 / 30)
    for p in range(4):
        assert_mean(means[:, p], values[:, p].mean())
        assert_mean(np.square(means[:, p] - values[:, p].mean()), spread[p])
    expected = optima.log_densities(values, means, 3.0)
    assert expected.tempered == pytest.approx(3.0 * values.mean(axis=0))
    assert expected.stationary == pytest.approx(np.log(np.exp(3.0 * means).mean(axis=0)))


def test_optima_margins_and_divergences():
    places = optima.population_optima()
    assert len(places) == 2
    assert places == pytest.approx([-optima.TRUE, optima.TRUE], abs=0.1)
    # Of the tempered density itself: equation 4 has 3 Q_0 nats, and this density 9 Q_0 where delta_n is small.
    for place in places:
        ratio = optima.margin_over_printed(400 * optima.population(), place, optima.DELTA / 20)
        assert ratio == pytest.approx(3.0, abs=0.5)
        assert optima.margin_over_printed(4 * optima.population(), place, optima.DELTA / 20) < 0.04
    bump = -np.abs(optima.GRID - 1.0)
    assert optima.margin(bump, 1.0, 0.5) == pytest.approx(0.5, abs=0.011)
    one, other = stats.norm(0, 0.5), stats.norm(0.3, 0.6)
    densities = optima.LogDensities(one.logpdf(optima.GRID), other.logpdf(optima.GRID) + 7)
    exact = math.log(0.6 / 0.5) + (0.5**2 + 0.3**2) / (2 * 0.6**2) - 0.5
    assert optima.divergence(densities) == pytest.approx(exact, rel=1e-5)
    assert optima.gaussian_divergence(20.0, 1000, 10**7) == pytest.approx(2 * 0.02**2 / 4, rel=0.03)


def test_divergences_where_the_temperature_falls_with_the_minibatch():
    """c = m^0.45: in closed form d (c/m)^2 / 4 = d m^-1.1 / 4 falls; at a c that rises as m it does not."""
    config = {"sizes": [100, 400, 1600], "c": 20.0, "n": 4000, "batches": 400, "seed": 0, "trials": 1}
    found = optima._of_sizes(config)
    values = optima.log_lik(optima.GRID, optima.sample(4000, 0))
    for m in config["sizes"]:
        own = optima.log_densities(values, optima.batch_means(values, m, 400, 1), m**0.45)
        assert found[f"kl_remark.{m}"] == pytest.approx(optima.divergence(own))
        assert found[f"kl_remark_gaussian.{m}"] == pytest.approx(
            m**-1.1 / 2 * (1 - m / 4000) ** 2, rel=0.2 if m < 1000 else 0.5
        )
    assert found["kl_remark.falls"] == found["kl_remark_gaussian.falls"] == 2


def test_other_temperatures_and_minibatches_are_compared_in_one_dimension():
    for dim in (2, 5):
        there = {f"mhbt_{dim}{end}": {} for end in ("", "_c5", "_m500")}
        run = SimpleNamespace(methods=there | {"mhbt_5": {}, "mhbt_2": {}, f"full_{dim}": {}})
        assert gaussian._others(run) == list(there)


# --- Figure 2 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [2, 5])
def test_shares_of_a_histogram(rng, dim):
    truth = gaussian.Truth(rng.normal(size=dim), 0.3, 20.0, 1.0)
    draws = truth.mean + 0.6 * rng.standard_normal((500, dim))
    found, bins = gaussian.shares(draws, truth), gaussian.BINS[dim]
    edges = [centre + 0.3 * np.linspace(-4, 4, bins + 1) for centre in truth.mean]
    counts = np.histogramdd(draws, edges)[0].ravel()
    assert (found[:-1] * 500).round().astype(int).tolist() == counts.astype(int).tolist()
    assert found[-1] == pytest.approx(1 - counts.sum() / 500)
    assert found[-1] > 0


def test_probabilities_of_a_histogram():
    p = gaussian.probabilities(2, 1.3)
    expected = stats.norm(scale=math.sqrt(1.3))
    edges = np.linspace(-4, 4, 11)
    for i in range(10):
        for j in range(10):
            wanted = (expected.cdf(edges[i + 1]) - expected.cdf(edges[i])) * (
                expected.cdf(edges[j + 1]) - expected.cdf(edges[j])
            )
            assert p[10 * i + j] == pytest.approx(wanted)
    assert p.sum() == pytest.approx(1)
    assert gaussian.bias(2, 1.0) == 0
    ratio = gaussian.variance_ratio(20.0, 1000, 100_000)
    cross = 2 * math.log(ratio) * ratio / (ratio - 1)  # the squared length at which the two densities meet
    whole = math.exp(-cross / 2 / ratio) - math.exp(-cross / 2)
    assert whole == pytest.approx(0.0074, abs=2e-4)
    assert 0.9 * whole < gaussian.bias(2, ratio) < whole  # on cells
    # Two dimensions, 100 cells: nearly all hold many draws, so that the normal approximation serves.
    q = gaussian.probabilities(2)
    assert gaussian.noise(2, 100_000) == pytest.approx(
        0.5 * math.sqrt(2 / math.pi) * np.sqrt(2 * q * (1 - q) / 100_000).sum(), rel=0.05
    )


def test_a_distance_comes_down_to_a_level_between_two_steps():
    steps = np.array([1, 10, 100])
    assert gaussian.reached(steps, np.array([1.0, 0.1, 0.05]), 0.1) == pytest.approx(10)
    assert gaussian.reached(steps, np.array([1.0, 0.3, -0.1]), 0.1) == pytest.approx(10**1.5)
    assert gaussian.reached(steps, np.array([0.05, 0.5, 0.02]), 0.1) == 1
    assert math.isnan(gaussian.reached(steps, np.array([1.0, 0.5, 0.2]), 0.1))


def test_crossings_lead_from_core_to_core(rng):
    theta2 = rng.normal(0, 2.0, (3, 400)).cumsum(axis=1) / 5
    draws = np.stack([rng.normal(size=theta2.shape), theta2], axis=-1)
    found = mixture.cores(draws, 2.0)
    for c in range(3):
        last, count = 0, 0
        for s in range(400):
            core = 1 if theta2[c, s] > 1 else -1 if theta2[c, s] < -1 else 0
            assert found[c, s] == core
            if core and last and core != last:
                count += 1
            last = core or last
        assert mixture.crossings(found[c]) == count
    assert mixture.crossings(np.array([0, 1, 0, -1, -1, 0, 1, 1], np.int8)) == 2
    assert mixture.crossings(np.zeros(5, np.int8)) == 0


def test_minibatches_of_all_data_have_no_distribution_but_the_target():
    assert gaussian.variance_ratio(20.0, 5000, 5000) == pytest.approx(1, abs=2e-5)
    assert gaussian.variance_ratio(20.0, 100, 10**9) == pytest.approx(1.2)  # with replacement, exactly


def test_all_data_in_one_pass_are_the_sum_and_its_gradient(rng):
    data = Dataset.of({"x": rng.normal(1.0, 1.0, (400, 3))})
    model, theta = GaussianLocation(3), torch.from_numpy(rng.normal(size=(5, 3)))
    total, grad = model.full_value_and_grad(data.fields)(theta)
    assert total.numpy() == pytest.approx(model.full_log_lik(data.fields)(theta).numpy(), rel=1e-12)
    x = data.fields["x"].numpy()
    for c in range(5):
        gaps = x - theta[c].numpy()
        assert total[c].item() == pytest.approx(-0.5 * np.square(gaps).sum(), rel=1e-9)
        assert grad[c].numpy() == pytest.approx(gaps.sum(axis=0), rel=1e-9)


def test_rows_of_another_width_are_reported():
    data = Dataset({"x": torch.zeros(8, 3)})
    with pytest.raises(Exception, match=r"rows of shape \(2,\).*set model\.dim"):
        Target(GaussianLocation(2), data).evaluate(torch.zeros(1, 2).double(), torch.zeros(1, 4).long())
