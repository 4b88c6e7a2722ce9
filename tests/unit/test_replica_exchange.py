"""Exchanges of replicas: the ratio in plain NumPy, the invariance of the product, compiled against torch, counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, ladder_controls
from scipy import stats
from significance import Z, assert_counts, assert_mean

from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.dynamics.sgnht import SGNHT
from mhrun.errors import Refusal
from mhrun.exchanges import MADE, REFUSED
from mhrun.kernels import MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.barker import Barker
from mhrun.rules.compensated import Compensated
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.target import Target
from mhrun.types import Contest, Difference

KEY = derive_key(12, "exchange")
NOTHING = NoData().load()


def ladder(target, kernel, temperatures, ladders, steps, step_size, compiled_loop=False, key=KEY):
    """Return theta (ladders, rungs, steps, D) and the record of a run from the model's own start."""
    rungs = len(temperatures)
    chains = rungs * ladders
    state, draws = begin(kernel, target, chains, key)
    controls = ladder_controls(temperatures, ladders, step_size)
    if compiled_loop:
        _, theta, record = advance_compiled(kernel, target, state, controls, steps, key)
        return theta.reshape(ladders, rungs, steps, -1), record
    _, theta, infos = advance(kernel, target, state, controls, draws, steps)
    record = {
        name: torch.stack([getattr(i, name) for i in infos], 1).numpy()
        for name in ("n_lik", "accepted", "batch_size")
    }
    none = torch.zeros(chains, dtype=torch.int8)
    record["exchange"] = torch.stack([none if i.exchange is None else i.exchange for i in infos], 1).numpy()
    return theta.reshape(ladders, rungs, steps, -1), record


class Seen(Metropolis):
    """Metropolis's rule that records its contests."""

    def decide(self, contest, draws):
        self.contest = contest
        return super().decide(contest, draws)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("pairing", [Full(), Shared(40)])
def test_the_ratio_of_a_swap_is_that_of_the_product_density(rng, temper, pairing):
    """pi_a(theta_b) pi_b(theta_a) / pi_a(theta_a) pi_b(theta_b), rung by rung in plain numbers; m = n is all data."""
    x = rng.normal(0.4, 1, 40)
    target = Target(GaussianMean(3.0), Dataset.of(x), temper=temper)
    temperatures, rule = [1.0, 3.0, 7.0, 20.0], Seen()
    kernel = ReplicaExchange(
        MetropolisHastings(RandomWalk(), Full(), Metropolis()), pairing, rule, 4, every=1, order="alternate"
    )
    theta = torch.from_numpy(rng.normal(0.4, 0.5, (8, 1)))
    draws = Draws(Streams(KEY, 8), 0)
    state = kernel.start(target, theta, draws)
    for step, lows in ((1, (1, 5)), (2, (0, 2, 4, 6))):

        def log_density(value, t):
            prior = -0.5 * value**2 / 3.0
            likelihood = sum(-0.5 * (xi - value) ** 2 for xi in x)
            return likelihood / t + prior / (t if temper == "posterior" else 1)

        state_after, exchange, n_lik, _ = kernel.exchange(
            target, state, torch.tensor(temperatures * 2, dtype=torch.float64), Draws(draws.streams, step)
        )
        wanted = []
        for a in lows:
            (va, vb), (ta, tb) = theta[a : a + 2, 0].tolist(), temperatures[a % 4 : a % 4 + 2]
            wanted.append(
                log_density(vb, ta) + log_density(va, tb) - log_density(va, ta) - log_density(vb, tb)
            )
        assert rule.contest.log_ratio.tolist() == pytest.approx(wanted)
        offered = np.zeros(8, bool)
        offered[[*lows, *(a + 1 for a in lows)]] = True
        assert ((exchange.numpy() > 0) == offered).all()
        assert (n_lik.numpy() == np.where(offered, 0 if isinstance(pairing, Full) else 40, 0)).all()
        # Those that were made have changed places, whole; the others have not.
        after = state_after.evaluation
        for a in lows:
            order = [a + 1, a] if exchange[a] == 2 else [a, a + 1]
            assert after.theta[a : a + 2, 0].tolist() == theta[order, 0].tolist()
            assert after.log_lik_mean[a : a + 2].tolist() == state.evaluation.log_lik_mean[order].tolist()


def test_pairs_are_even_or_odd_with_equal_chances():
    kernel = ReplicaExchange(Unadjusted(SGLD(), 1), Shared(1), Barker(), 5)
    streams = Streams(KEY, 10)
    draws = Draws(streams, 0)

    def lows_of(kernel, draws, step):
        draws.step = step
        return kernel._pairs(draws)[0].tolist()

    seen = [lows_of(kernel, draws, k) for k in range(2000)]
    even, odd = [0, 2, 5, 7], [1, 3, 6, 8]
    assert all(lows in (even, odd) for lows in seen)
    assert stats.binomtest(sum(lows == even for lows in seen), 2000).pvalue > 1e-6
    in_turn = ReplicaExchange(Unadjusted(SGLD(), 1), Shared(1), Barker(), 5, order="alternate")
    assert [lows_of(in_turn, draws, k) for k in (1, 2, 3)] == [odd, even, odd]
    two = ReplicaExchange(Unadjusted(SGLD(), 1), Shared(1), Barker(), 2)
    assert all(lows_of(two, Draws(Streams(KEY, 4), 0), k) == [0, 2] for k in range(20))


MODES = GaussianMixture([[-3.0], [3.0]], 0.25, [0.3, 0.7], start=[-3.0])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("rule", [Metropolis(), pytest.param(Barker(), marks=pytest.mark.slow)])
@pytest.mark.parametrize("compiled_loop", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_ladder_s_product_distribution_is_kept(rule, compiled_loop):
    """Each rung has its own tempered mixture, from quadrature; one chain alone never leaves its mode."""
    temperatures, target = [1.0, 3.0, 10.0, 30.0], Target(MODES, NOTHING)
    inner = MetropolisHastings(RandomWalk(), Full(), Metropolis())
    kernel = ReplicaExchange(inner, Full(), rule, 4, every=2)
    sizes, steps, ladders = [0.8, 1.5, 3.0, 6.0], (4000 if compiled_loop else 1200), 60
    theta, record = ladder(target, kernel, temperatures, ladders, steps, sizes, compiled_loop)
    kept = theta[:, :, steps // 4 :, 0]
    x = np.linspace(-40, 40, 160_001)
    log_p = MODES.log_lik(torch.from_numpy(x)[:, None], {"x": torch.zeros(1, 1, 1)})[:, 0].numpy()
    for rung, t in enumerate(temperatures):
        p = np.exp((log_p - log_p.max()) / t)
        p /= p.sum()
        assert_mean((kept[:, rung] > 0).mean(1), p[x > 0].sum(), f"weight at {t}")
        assert_mean((kept[:, rung] ** 2).mean(1), (p * x**2).sum(), f"square at {t}")
    made = record["exchange"].reshape(ladders, 4, steps)
    assert (made[:, :, 0::2] == 0).all()  # steps 1, 3, ...: none is due
    assert (made[:, 1:3, 1::2] > 0).all()  # the inner rungs always have a neighbour
    assert 0.2 < (made[made > 0] == 2).mean() < 0.95
    alone, _ = ladder(
        target, ReplicaExchange(inner, Full(), rule, 2, every=10**6), [1.0, 1.0001], 5, 1000, 0.8
    )
    assert (alone < 0).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "dynamics", [SGHMC(0.2, refresh=10), pytest.param(SGNHT(0.1, refresh=10), marks=pytest.mark.slow), SGLD()]
)
def test_compiled_ladders_are_the_plain_ones(request, dynamics):
    """The thermostat, which has most of a state, in machine code; the others as plain Python."""
    if not isinstance(dynamics, SGNHT):
        request.getfixturevalue("interpreted")
    target = Target(MODES, NOTHING, gradient_noise=0.25, energy_noise=0.25)
    kernel = ReplicaExchange(Unadjusted(dynamics, 1), Shared(1), Compensated(0.2**0.5 + 0.6), 3, every=10)
    slow, infos = ladder(target, kernel, [1.0, 1.5, 2.25], 4, 60, 0.02)
    fast, record = ladder(target, kernel, [1.0, 1.5, 2.25], 4, 60, 0.02, compiled_loop=True)
    assert fast == pytest.approx(slow, rel=1e-8, abs=1e-8)
    for name in ("exchange", "n_lik", "accepted"):
        assert (record[name] == infos[name]).all(), name
    assert (infos["exchange"] == 2).any()


def test_minibatch_swaps_read_what_they_say(rng):
    x = rng.normal(0, 1, 500)
    target = Target(GaussianMean(), Dataset.of(x))
    inner = MetropolisHastings(RandomWalk(), Shared(10), Metropolis())
    kernel = ReplicaExchange(inner, Shared(50), Barker(), 3, every=5, order="alternate")
    _, record = ladder(target, kernel, [100.0, 200.0, 400.0], 2, 20, 0.3)
    offered = record["exchange"] > 0
    assert (record["n_lik"] == 20 + 50 * offered).all()
    growing = ReplicaExchange(inner, Growing(), MHMinibatch(25), 3, every=5)
    _, record = ladder(target, growing, [100.0, 200.0, 400.0], 2, 20, 0.3)
    offered = record["exchange"] > 0
    assert (record["n_lik"][~offered] == 20).all()
    assert ((record["n_lik"][offered] - 20) % 25 == 0).all()
    assert (record["n_lik"][offered] > 20).all()


def test_of_an_odd_number_of_evaluations_the_lower_rung_counts_one_more(rng):
    """One datum with an expansion: it is evaluated at both points, and once more for the expansion."""
    target = Target(GaussianMean(), Dataset.of(rng.normal(size=20)), surrogate="taylor1")
    inner = MetropolisHastings(RandomWalk(), Shared(1), Metropolis())
    kernel = ReplicaExchange(inner, Shared(1), Metropolis(), 2)
    state, draws = begin(kernel, target, 4, KEY)
    draws.step = 1
    temperatures = torch.tensor([1.0, 2.0] * 2, dtype=torch.float64)
    _, _, n_lik, _ = kernel.exchange(target, state, temperatures, draws)
    assert n_lik.tolist() == [2, 1, 2, 1]


def test_the_compensated_rule_has_barker_s_probability(rng):
    """Whatever the noise below sigma^2; chi-squared over a grid of log-ratios, on 200,000 decisions each."""
    rule, count = Compensated(0.9), 200_000
    for noise in (0.0, 0.3, 0.8):
        for ratio in (-2.0, 0.0, 1.0):
            draws = Draws(Streams(derive_key(int(10 * noise), str(ratio)), count), 1)
            seen = torch.from_numpy(rng.normal(ratio, math.sqrt(noise), count))
            one = torch.ones(count, dtype=torch.float64)
            found = Difference(seen / 5, one, one.long(), noise / 25 * one)
            accepted = rule.decide(Contest(found, 5 * one, 0 * one), draws).accepted.sum().item()
            p = 1 / (1 + math.exp(-ratio))
            assert_counts(np.array([accepted, count - accepted]), np.array([p, 1 - p]), f"{noise} {ratio}")
    loud = Difference(one, one, one.long(), one)
    assert not rule.decide(Contest(loud, one, one), Draws(Streams(KEY, count), 1)).accepted.any()


@pytest.mark.long
@pytest.mark.slow
def test_noisy_energies_keep_the_distribution_where_the_rule_corrects_for_them():
    """Barker's rule, blind to the noise, makes the cold rung too wide; the compensated one does not."""
    target = Target(GaussianMixture([[0.0]], 1.0), NOTHING, energy_noise=4.0)
    inner = MetropolisHastings(RandomWalk(), Full(), Metropolis())
    wide = {}
    for name, rule in (("blind", Barker()), ("corrected", Compensated(2.8))):
        kernel = ReplicaExchange(inner, Shared(1), rule, 2, every=1)
        theta, _ = ladder(target, kernel, [1.0, 2.2], 120, 1500, [2.0, 3.0], compiled_loop=True)
        wide[name] = (theta[:, 0, 200:, 0] ** 2).mean(1)
    assert_mean(wide["corrected"], 1.0)
    error = wide["blind"].std(ddof=1) / math.sqrt(120)
    assert wide["blind"].mean() - 1.0 > Z * error


def test_a_stopped_chain_keeps_its_place():
    target = Target(MODES, NOTHING)
    kernel = ReplicaExchange(Unadjusted(SGLD(), 1), Shared(1), Barker(), 2, every=1)
    theta, _ = ladder(target, kernel, [1.0, 1.1], 3, 8, [0.01, 1e300])
    assert np.isfinite(theta).all()
    assert (np.diff(theta[:, 1], axis=1) == 0).all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("stopped", [0, 1])
@pytest.mark.slow
def test_a_stopped_chain_does_not_exchange_whatever_the_ratio(compiled, stopped):
    """Rungs of one temperature always exchange; neither the colder nor the hotter one does if it has stopped."""
    target = Target(GaussianMixture([[0.0]], 1.0), NOTHING)
    kernel = ReplicaExchange(Unadjusted(SGLD(), 1), Shared(1), Metropolis(), 2, every=1)
    for stops in (False, True):
        state, draws = begin(kernel, target, torch.tensor([[0.0], [1.0]], dtype=torch.float64), KEY)
        state.aux["stopped"][stopped] = stops
        controls = ladder_controls([1.0, 1.0], 1, 1e-12)
        if compiled:
            _, theta, record = advance_compiled(kernel, target, state, controls, 1, KEY)
            made = record["exchange"][:, 0]
        else:
            _, theta, infos = advance(kernel, target, state, controls, draws, 1)
            made = infos[0].exchange.numpy()
        assert (made == (REFUSED if stops else MADE)).all()
        assert theta[:, 0, 0] == pytest.approx([0.0, 1.0] if stops else [1.0, 0.0], abs=1e-4)


def test_a_mixture_has_its_heights_in_every_form_and_density_0_far_out():
    """Two components at one point: log(0.5 / (2 pi) + 0.5 / (8 pi)) there in two dimensions; -inf beyond overflow."""
    model = GaussianMixture([[0.0, 0.0], [0.0, 0.0]], [1.0, 4.0])
    rows = NOTHING.part(0, 1)
    native = model.native(NOTHING.fields, full=True)
    for x, wanted in ((0.0, math.log(0.625 / (2 * math.pi))), (1e200, -math.inf)):
        theta = torch.full((1, 2), x, dtype=torch.float64)
        assert float(model.log_lik(theta, rows)) == pytest.approx(wanted)
        assert float(model.full_log_lik(NOTHING.fields)(theta)) == pytest.approx(wanted)
        with np.errstate(over="ignore"):
            assert native.total(native.args, theta[0].numpy()) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ReplicaExchange(Unadjusted(SGLD(), 1), Full(), Barker(), 1),
            "rungs = 1 must be a whole number, at least 2",
        ),
        (
            lambda: ReplicaExchange(Unadjusted(SGLD(), 1), Full(), Barker(), 2, every=0),
            "every = 0 must be a whole number, at least 1",
        ),
        (
            lambda: ReplicaExchange(Unadjusted(SGLD(), 1), Full(), Barker(), 2, order="odd"),
            "random or alternate",
        ),
        (lambda: Target(MODES, NOTHING, energy_noise=-1.0), "energy_noise"),
        (
            lambda: ReplicaExchange(Unadjusted(SGLD(), 1), Full(), Barker(), 3).start(
                Target(MODES, NOTHING), torch.zeros(4, 1), Draws(Streams(KEY, 4), 0)
            ),
            "4 chains are not a whole number of ladders of 3 rungs",
        ),
    ],
)
def test_ladders_without_meaning_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def test_what_does_not_go_together_is_refused(rng):
    target = Target(GaussianMean(), Dataset.of(rng.normal(size=20)))
    inner = Unadjusted(SGLD(), 5)
    assert "choose pairing growing" in ReplicaExchange(inner, Shared(5), MHMinibatch(5), 2).refuses(target)
    assert "more than the n = 20" in ReplicaExchange(inner, Shared(21), Barker(), 2).refuses(target)
    assert "more than the n = 20" in ReplicaExchange(Unadjusted(SGLD(), 21), Full(), Barker(), 2).refuses(
        target
    )
    assert (
        ReplicaExchange(
            MetropolisHastings(RandomWalk(), Stored(5), Metropolis()), Full(), Barker(), 2
        ).refuses(target)
        is None
    )
