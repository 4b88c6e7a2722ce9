"""Replicas on ladders, followed in plain numbers; arithmetic of rungs; the sign of equation 7."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from kit import gaussian

import mhrun
from mhrun import units
from mhrun.compiled import compile_loop
from mhrun.compiled.replica_exchange import ExchangeLoop
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.diagnostics.ladders import replica_flow
from mhrun.dynamics.sgld import SGLD
from mhrun.errors import Refusal
from mhrun.exchanges import MADE, REFUSED
from mhrun.kernels import MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.pairing.full import Full
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.barker import Barker
from mhrun.rules.compensated import Compensated
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Controls


def followed(exchange):
    """Follow each ladder exchange by exchange: proposed, accepted, round trips, the coldest replica."""
    rungs, times = exchange.shape
    offered, made = np.zeros(rungs - 1, int), np.zeros(rungs - 1, int)
    replicas, journeys, trips, coldest = list(range(rungs)), ["cold"] + ["none"] * (rungs - 1), 0, []
    for k in range(times):
        first = 0 if exchange[0, k] else 1
        for low in range(first, rungs - 1, 2):
            offered[low] += 1
            if exchange[low, k] == MADE:
                assert exchange[low + 1, k] == MADE
                made[low] += 1
                replicas[low], replicas[low + 1] = replicas[low + 1], replicas[low]
        if journeys[replicas[-1]] == "cold":
            journeys[replicas[-1]] = "hot"
        if journeys[replicas[0]] == "hot":
            trips += 1
        journeys[replicas[0]] = "cold"
        coldest.append(replicas[0])
    return offered, made, trips, coldest


@pytest.mark.parametrize("rungs", [2, 3, 6])
def test_replicas_are_followed(rng, rungs):
    exchange = np.zeros((4, rungs, 300), np.int8)
    for k in range(300):
        odd = int(rng.integers(2)) if rungs > 2 else 0
        for low in range(odd, rungs - 1, 2):
            exchange[:, low, k] = exchange[:, low + 1, k] = rng.choice([REFUSED, MADE], size=4, p=[0.4, 0.6])
    found = replica_flow(exchange)
    for ladder in range(4):
        offered, made, trips, coldest = followed(exchange[ladder])
        assert (found.offered[ladder] == offered).all()
        assert (found.made[ladder] == made).all()
        assert found.round_trips[ladder] == trips
        assert (found.replica[ladder] == coldest).all()
    assert found.round_trips.min() > 0


@pytest.mark.parametrize("rungs", [2, 3, 4])
def test_the_trace_has_the_share_of_exchanges_that_each_pair_accepted(rungs):
    ladder = mhrun.ReplicaExchange(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        mhrun.Full(),
        mhrun.Metropolis(),
        rungs=rungs,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            gaussian(5),
            None,
            ladder,
            step_size=0.3,
            temperature=[3.0**r for r in range(rungs)],
            chains=2 * rungs,
            steps=400,
            warmup=50,
        )
    exchange = trace["sample_stats"]["exchange"].values
    exchange = exchange[:, (exchange > 0).any(0)].reshape(2, rungs, -1)
    flow = replica_flow(exchange)
    assert 0 < flow.made.sum() < flow.offered.sum()
    assert trace.attrs["exchange_rates"] == pytest.approx(flow.made.sum(0) / flow.offered.sum(0))


def test_rungs_have_their_numbers():
    assert units.over_rungs(1.5, 3, 0.1, -1, 0) == pytest.approx([0.1, 0.1 / 1.5, 0.1 / 2.25])
    assert units.over_rungs(2, 2, 0.1, -1, 0.999) == pytest.approx([1.099, 1.049])
    assert units.ladder(2, 3, 6) == [1, 2, 4, 1, 2, 4]
    with pytest.raises(Refusal, match="A ladder needs ratio > 1"):
        units.over_rungs(0.5, 3, 1, 1, 0)


class Seen(Metropolis):
    """Metropolis's rule that records its contests."""

    def decide(self, contest, draws):
        self.contest = contest
        return super().decide(contest, draws)


def test_the_printed_sign_is_the_other_one(rng):
    target = Target(GaussianMixture([[0.0], [2.0]], 0.5), NoData().load())
    theta = torch.from_numpy(rng.normal(size=(6, 1)))
    temperature = torch.tensor([1.0, 2.0, 4.0] * 2, dtype=torch.float64)
    ratios = []
    for sign in ("right", "printed"):
        rule = Seen()
        kernel = ReplicaExchange(Unadjusted(SGLD(), 1), Shared(1), rule, 3, order="alternate", sign=sign)
        draws = Draws(Streams(derive_key(4, "sign"), 6), 0)
        state = kernel.start(target, theta, draws)
        kernel.exchange(target, state, temperature, Draws(draws.streams, 2))
        ratios.append(rule.contest.log_ratio)
    log_p = target.log_density(theta)
    low = torch.tensor([0, 3])
    wanted = (1 / temperature[low] - 1 / temperature[low + 1]) * (log_p[low + 1] - log_p[low])
    assert torch.allclose(ratios[0], wanted)
    assert torch.allclose(ratios[1], -wanted)
    with pytest.raises(Refusal, match="right or printed"):
        ReplicaExchange(Unadjusted(SGLD(), 1), Shared(1), Metropolis(), 2, sign="wrong")


KERNELS = {
    "full": MetropolisHastings(RandomWalk(), Full(), Metropolis()),
    "stored": MetropolisHastings(RandomWalk(), Stored(20), Metropolis()),
    "shared": MetropolisHastings(RandomWalk(), Shared(20), Barker()),
    "langevin": Unadjusted(SGLD(), 20),
}


@pytest.mark.usefixtures("either_code")
@pytest.mark.parametrize(("temper", "threads"), [("posterior", 1), ("likelihood", 2)])
@pytest.mark.parametrize("pairing", [Full(), Shared(30), Shared(200)])
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_exchanges_are_the_plain_ones(rng, name, pairing, temper, threads):
    """Kept sums and fresh ones, minibatches and all data, priors tempered or not, noise that the rule knows."""
    target = Target(
        GaussianMean(3.0),
        Dataset.of(rng.normal(0.3, 1, 200)),
        temper=temper,
        energy_noise=0.1 * (name == "full"),
    )
    rule = Compensated(0.9) if name in ("full", "langevin") else Metropolis()
    ways = {"shared": {"order": "alternate"}, "stored": {"sign": "printed"}}.get(name, {})
    kernel = ReplicaExchange(KERNELS[name], pairing, rule, 3, every=4, **ways)
    key, chains, steps = derive_key(6, name), 6, 37
    draws = Draws(Streams(key, chains), 0)
    t = torch.tensor([2.0, 40.0, 800.0] * 2, dtype=torch.float64)
    controls = Controls(torch.full_like(t, 0.002 if name == "langevin" else 0.2), t, t)

    def begun():
        draws.step = 0
        state = kernel.start(target, target.model.init(chains, draws), draws)
        if "stopped" in state.aux:  # which keeps its place, whatever it is offered
            state.aux["stopped"][4] = True
        return state

    def plain(state):
        for k in range(1, steps + 1):
            draws.step = k
            state, info = kernel.step(target, state, controls, draws)
            yield state.evaluation.theta, info

    with torch.no_grad():
        thetas, infos = zip(*plain(begun()), strict=True)
        loop = compile_loop(kernel, target, key, threads)
        assert isinstance(loop, ExchangeLoop)
        whole = controls.each(lambda c: c.expand(steps, chains).contiguous())
        parts, state = [], begun()
        for first, last in ((0, 18), (18, 37)):  # a block may end anywhere
            state, record = loop.advance(state, first + 1, whole.each(lambda c, a=first, b=last: c[a:b]))
            parts.append(record)
    found = {
        name: np.concatenate([part[name] for part in parts], 1) for name in ("theta", "exchange", "n_lik")
    }
    assert found["theta"] == pytest.approx(torch.stack(thetas, 1).numpy(), rel=1e-9, abs=1e-9)
    none = torch.zeros(chains, dtype=torch.int8)
    exchanges = torch.stack([none if info.exchange is None else info.exchange for info in infos], 1)
    assert (found["exchange"] == exchanges.numpy()).all()
    assert (found["n_lik"] == torch.stack([info.n_lik for info in infos], 1).numpy()).all()
    assert (exchanges == MADE).any()
    assert (exchanges == REFUSED).any()
