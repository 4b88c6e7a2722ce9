"""Exchanges at their edges: what a rung keeps, priors that are 0, ladders that fall, counts, what cannot be a rung."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import begin, ladder_controls
from significance import assert_mean

from mhrun.compiled.replica_exchange import StagedExchange
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.dynamics.sgld import SGLD
from mhrun.dynamics.tact_hmc import TACTHMC
from mhrun.errors import Refusal
from mhrun.exchanges import MADE, REFUSED
from mhrun.kernels import EquiEnergy, MetropolisHastings, PlanarFlow, ReplicaExchange, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.models.mixture_means import MixtureMeans
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.priors.gamma import GammaPrecision
from mhrun.proposals import langevin
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.rules.austere import Austere
from mhrun.rules.barker import Barker
from mhrun.rules.compensated import Compensated
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.subsampling import MHSubLhd
from mhrun.schedules import Plan
from mhrun.schedules.banded import Banded
from mhrun.target import Target

KEY = derive_key(31, "edges")
WALK = MetropolisHastings(RandomWalk(), Full(), Metropolis())
NOTHING = NoData().load()


@torch.no_grad()
def stepped(target, kernel, state, controls, draws, steps):
    """Yield the state and the info after each of some steps."""
    for k in range(1, steps + 1):
        draws.step = k
        state, info = kernel.step(target, state, controls, draws)
        yield state, info


# --- What a rung keeps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pairing", "m"), [(Stored(10), 10), (Full(), 100)])
def test_a_kept_gradient_has_the_prior_of_its_new_rung_and_the_data_that_it_had(rng, pairing, m):
    """The likelihood tempered alone: g = n mean l' + T log prior'; no exchange makes it one of other data."""
    x = rng.normal(0.4, 1, 100)
    target = Target(GaussianMean(3.0), Dataset.of(x), temper="likelihood")
    proposal, temperatures = langevin.LangevinProposal(), [1.0, 3.0]
    kernel = ReplicaExchange(MetropolisHastings(proposal, pairing, Metropolis()), Full(), Barker(), 2)
    controls = ladder_controls(temperatures, 2, 1e-3)
    state, draws = begin(kernel, target, [[0.3], [0.4], [0.5], [0.6]], KEY)
    state, _ = next(stepped(target, kernel.kernel, state, controls, draws, 1))
    made = set()
    for step in range(2, 12):
        before = state.evaluation
        state, came, _, _ = kernel.exchange(target, state, controls.temperature, Draws(draws.streams, step))
        after = state.evaluation
        for c in range(4):
            at = c ^ 1 if came[c] == MADE else c
            value = float(before.theta[at])
            of_data = float(before.grad[at]) - temperatures[at % 2] * -value / 3.0
            assert float(after.grad[c]) == pytest.approx(of_data + temperatures[c % 2] * -value / 3.0)
        made |= set(came.tolist())
    assert made == {MADE, REFUSED}
    draws.step = 2
    _, info = kernel.kernel.step(target, state, controls, draws)
    assert (info.n_grad == m).all()  # the candidate's alone


def test_a_prior_that_is_not_tempered_cancels_where_it_is_0(rng):
    """The hot rung is outside of the cube: the ratio is that of the likelihoods alone, as the compiled loop has it."""
    target = Target(
        MixtureMeans(2, half=1.0), Dataset.of(rng.normal(size=200).astype(np.float32)), temper="likelihood"
    )
    kernel = ReplicaExchange(Unadjusted(SGLD(), 20), Full(), Metropolis(), 2)
    state, draws = begin(kernel, target, [[0.9, 0.9], [1.1, 0.0]] * 20, KEY)
    _, info = next(stepped(target, kernel, state, ladder_controls([1.0, 1.001], 20, 1e-9), draws, 1))
    assert (info.exchange == MADE).all()


def test_a_rung_that_tempers_itself_is_exchanged_where_it_has_the_rung_s_temperature():
    """Tact's theta has temperature T / lambda(x): it follows exp(-U / T) at the valid steps only."""
    target = Target(GaussianMixture([[0.0]], 1.0), NOTHING)
    kernel = ReplicaExchange(
        Unadjusted(TACTHMC(step_of_x=0.1, flat=0.3, refresh=10), 1), Shared(1), Barker(), 2
    )
    state, draws = begin(kernel, target, [[0.5], [-0.5]] * 30, KEY)
    came, valid = [], []
    for _, info in stepped(target, kernel, state, ladder_controls([1.0, 2.0], 30, 0.02), draws, 60):
        came.append(info.exchange.reshape(30, 2))
        valid.append(info.valid.reshape(30, 2).all(1, keepdim=True).expand(-1, 2))
    came, valid = torch.cat(came), torch.cat(valid)
    assert (came[~valid] == REFUSED).all()
    assert (~valid).any()
    assert (came[valid] == MADE).any()


class Still:
    """A compiled loop whose chains stay, at no cost."""

    def advance(self, state, first_step, controls):
        steps, chains = controls.step_size.shape
        none = np.broadcast_to(np.int64(0), (chains, steps))
        theta = np.zeros((chains, steps, state.evaluation.theta.shape[1]))
        return state, {"theta": theta, "n_lik": none, "n_lik_overhead": none}


# --- Rules that grow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [MHSubLhd(20, delta=1e-9), Austere(20, epsilon=1e-9), MHMinibatch(20)],
    ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize(("sign", "temperatures"), [("right", [4.0, 1.0]), ("printed", [1.0, 4.0])])
def test_a_rule_that_grows_is_right_whatever_the_sign_of_the_ladder(rng, rule, sign, temperatures):
    """Ladders that fall, and the printed sign: with certain tests the decision is that on all data."""
    x = rng.normal(0.4, 1, 60)
    target, ladders = Target(GaussianMean(3.0), Dataset.of(x)), 40
    kernel = ReplicaExchange(WALK, Growing(), rule, 2, sign=sign)
    theta = torch.from_numpy(rng.normal(0.4, 0.5, (2 * ladders, 1)))
    state, draws = begin(kernel, target, theta, KEY)
    controls = ladder_controls(temperatures, ladders, 0.1)
    _, came, n_lik, n_lik_overhead = kernel.exchange(
        target, state, controls.temperature, Draws(draws.streams, 2)
    )
    log_p = target.log_density(theta).reshape(ladders, 2)
    ratio = (1 / temperatures[0] - 1 / temperatures[1]) * (log_p[:, 1] - log_p[:, 0])
    ratio = ratio if sign == "right" else -ratio
    pairs = Draws(Streams(KEY, 2 * ladders).of("exchange 0", torch.arange(0, 2 * ladders, 2)), 2)
    if isinstance(rule, MHMinibatch):
        made = (came[::2] == MADE)[ratio.abs() > 12]  # its own coins are beyond that with probability 1e-5
        assert (made == (ratio > 0)[ratio.abs() > 12]).all()
    else:
        assert ((came[::2] == MADE) == (pairs.uniform(Purpose.ACCEPT).log() < ratio)).all()
    assert 0 < (came == MADE).sum() < 2 * ladders
    # Steps served by a bound on all data are counted separately.
    assert (n_lik_overhead == (60 if isinstance(rule, MHSubLhd) else 0)).all()
    assert ((n_lik - n_lik_overhead) <= 60).all()
    before = torch.full((2 * ladders,), 60)
    draws.step = 1
    info = kernel.step(target, state, controls, draws)[1]
    assert (info.n_lik_overhead == n_lik_overhead).all()
    assert (info.n_lik > before + n_lik_overhead).all()
    whole = controls.each(lambda c: c[None].contiguous())
    _, record = StagedExchange(kernel, Still(), target, KEY).advance(state, 1, whole)
    assert (record["n_lik_overhead"][:, 0] == info.n_lik_overhead.numpy()).all()
    assert (record["n_lik"][:, 0] > n_lik_overhead.numpy()).all()


@pytest.mark.parametrize("rule", [MHSubLhd(20), Austere(20, epsilon=0.01), MHMinibatch(20)])
@pytest.mark.parametrize("sign", ["right", "printed"])
def test_rungs_of_one_temperature_always_change_places(rng, rule, sign):
    """The ratio is 1; Barker's rule accepts half."""
    target = Target(GaussianMean(3.0), Dataset.of(rng.normal(0.4, 1, 60)))
    kernel = ReplicaExchange(WALK, Growing(), rule, 2, sign=sign)
    theta = torch.from_numpy(rng.normal(0.4, 0.5, (800, 1)))
    state, draws = begin(kernel, target, theta, KEY)
    _, came, _, _ = kernel.exchange(target, state, torch.ones(800).double(), Draws(draws.streams, 1))
    made = (came[::2] == MADE).double().numpy()
    if isinstance(rule, MHMinibatch):
        assert_mean(made, 0.5)
    else:
        assert made.all()


# --- What does not go together -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReplicaExchange(WALK, Stored(5), Metropolis(), 2), "Stored keeps a minibatch"),
        (
            lambda: ReplicaExchange(
                EquiEnergy(RandomWalk(), Metropolis(), 2, [5, 5]), Full(), Metropolis(), 2
            ),
            "EquiEnergy is a ladder itself",
        ),
        (
            lambda: ReplicaExchange(ReplicaExchange(WALK, Full(), Metropolis(), 2), Full(), Metropolis(), 2),
            "ReplicaExchange is a ladder itself",
        ),
        (lambda: ReplicaExchange(PlanarFlow(5), Full(), Metropolis(), 2), "PlanarFlow draws from a fitted"),
        (
            lambda: ReplicaExchange(Unadjusted(SGLD(), 5, prior=GammaPrecision()), Full(), Barker(), 2),
            "defines its own prior",
        ),
        (lambda: ReplicaExchange(WALK, Shared(1), Compensated(), 2), "m = 1 does not allow; choose m >= 2"),
        (
            lambda: MetropolisHastings(RandomWalk(), Shared(1), Compensated()),
            "m = 1 does not allow; choose m >= 2",
        ),
    ],
)
def test_what_an_exchange_cannot_know_is_refused(rng, make, message):
    assert message in make().refuses(Target(GaussianMean(), Dataset.of(rng.normal(size=20))))


def test_noise_of_energies_is_refused_where_the_rule_would_not_see_it(rng):
    target = Target(GaussianMean(), Dataset.of(rng.normal(size=20)), energy_noise=1.0)
    assert "leave out energy_noise" in ReplicaExchange(WALK, Growing(), MHMinibatch(5), 2).refuses(target)
    assert ReplicaExchange(WALK, Full(), Compensated(), 2).refuses(target) is None


def test_a_single_datum_is_all_data_where_there_is_one():
    target = Target(GaussianMixture([[0.0]], 1.0), NOTHING)
    assert ReplicaExchange(WALK, Shared(1), Compensated(), 2).refuses(target) is None


def test_a_band_of_rungs_wants_whole_ladders():
    with pytest.raises(Refusal, match="3 rungs, and 4 chains are not a whole number"):
        Plan({"step_size": Banded(0.1, rungs=3, window=10)}, 4, 100, 10)
