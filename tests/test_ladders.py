"""Replicas on ladders, followed in plain numbers; arithmetic of rungs; the sign of equation 7."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhrun import units
from mhrun.data.no_data import NoData
from mhrun.diagnostics.ladders import MADE, REFUSED, travel
from mhrun.dynamics.langevin import Langevin
from mhrun.errors import Refusal
from mhrun.kernels import ReplicaExchange, Unadjusted
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.pairing.shared import Shared
from mhrun.random import Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target


def followed(exchange):
    """One ladder, one exchange after the other: offered, made, round trips, the coldest replica."""
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
    found = travel(exchange)
    for ladder in range(4):
        offered, made, trips, coldest = followed(exchange[ladder])
        assert (found.offered[ladder] == offered).all()
        assert (found.made[ladder] == made).all()
        assert found.round_trips[ladder] == trips
        assert (found.replica[ladder] == coldest).all()
    assert found.round_trips.min() > 0


def test_rungs_have_their_numbers():
    assert units.over_rungs(1.5, 3, 0.1, -1, 0) == pytest.approx([0.1, 0.1 / 1.5, 0.1 / 2.25])
    assert units.over_rungs(2, 2, 0.1, -1, 0.999) == pytest.approx([1.099, 1.049])
    assert units.ladder(2, 3, 6) == [1, 2, 4, 1, 2, 4]
    with pytest.raises(Refusal, match="make no sense"):
        units.over_rungs(0.5, 3, 1, 1, 0)


class Seen(Metropolis):
    """Metropolis's rule that remembers what it was asked."""

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
        kernel = ReplicaExchange(Unadjusted(Langevin(), 1), Shared(1), rule, 3, order="alternate", sign=sign)
        draws = Streams(derive_key(4, "sign"), 6).at(0)
        state = kernel.start(target, theta, draws)
        kernel.exchange(target, state, temperature, draws.streams, 2)
        ratios.append(rule.contest.log_ratio)
    log_p = target.log_density(theta)
    low = torch.tensor([0, 3])
    wanted = (1 / temperature[low] - 1 / temperature[low + 1]) * (log_p[low + 1] - log_p[low])
    assert torch.allclose(ratios[0], wanted)
    assert torch.allclose(ratios[1], -wanted)
    with pytest.raises(Refusal, match="right or printed"):
        ReplicaExchange(Unadjusted(Langevin(), 1), Shared(1), Metropolis(), 2, sign="wrong")
