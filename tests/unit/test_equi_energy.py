"""Equi-energy jumps: rings, banks, top-ups and ratios in plain NumPy; distribution; compiled and torch; resume."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import advance, assert_same_bits, begin, ladder_controls
from significance import assert_cells, assert_mean, differs_in_mean

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.data.transforms import Transforms
from mhrun.errors import Refusal
from mhrun.exchanges import MADE, NEVER, REFUSED
from mhrun.kernels import EquiEnergy
from mhrun.kernels.bank import ENERGY, SEEN, STAMP, THETA, Bank
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.models.mixture_means import MixtureMeans
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.rules.barker import Barker
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.target import Target
from mhrun.types import State

KEY = derive_key(5, "equi energy")


def means(n=3000, components=5, seed=2):
    """Return a target of some means, whose modes are at 2 e_j."""
    rng = np.random.default_rng(seed)
    x = rng.normal(np.where(rng.random(n) < 1 / components, 2.0, 0.0), 1.0)
    return Target(MixtureMeans(components), Dataset.of(x.astype(np.float32)))


def kernel(sizes, anchor=(2.0, 0, 0, 0, 0), proposal=None, rule=None, **settings):
    return EquiEnergy(
        proposal or LangevinProposal(),
        rule or Metropolis(),
        len(sizes),
        sizes,
        anchor,
        **{"jump": 0.5, **settings},
    )


def copied(state):
    return State(state.evaluation, {name: value.clone() for name, value in state.aux.items()})


def stepped(target, made, state, controls, draws, steps, first=1):
    """Return the state after some steps, theta (C, K, D) and the fields of the info (C, K)."""
    state, theta, infos = advance(made, target, state, controls, draws, steps, first)
    given = [name for name, value in zip(infos[0]._fields, infos[0], strict=True) if value is not None]
    record = {name: torch.stack([getattr(i, name) for i in infos], 1).numpy() for name in given}
    return state, theta, record


# --- Levels, rings, banks ------------------------------------------------------------------------------------


def test_levels_and_rings_of_the_paper():
    """Table 3's ladder: H_k - H_0 = 0, 10, 204.1, 475.4, 854.7, 1384.9, 2125.5; ring 0 is all below H_1."""
    target = means()
    made = kernel([3000] * 7)
    t = torch.tensor([1.0, 19.41, 27.13, 37.93, 53.02, 74.06, 103.51] * 2)
    levels = made.levels(target, t)
    lowest = -float(target.full_log_lik(torch.tensor([[2.0, 0, 0, 0, 0]])))
    wanted = [0, 10, 204.1, 475.4, 854.7, 1384.9, 2125.5, math.inf]
    assert levels.shape == (14, 8)
    for row in levels:
        assert (row - lowest).tolist() == pytest.approx(wanted, abs=0.01)
    energy = lowest + torch.tensor(
        [-50.0, 0, 9.9, 10.1, 204.0, 204.2, 500, 900, 1384, 1385, 2125, 2126, 1e9, 0]
    )
    assert made.ring(levels, energy).tolist() == [0, 0, 0, 1, 1, 2, 3, 4, 4, 5, 5, 6, 6, 0]


def test_a_bank_is_a_uniform_sample_of_what_was_handed_in():
    """Each of 60 points is kept with probability 20/60, by 3000 rows; nothing but those is in it, and no more."""
    rows, capacity, count = 3000, 20, 60
    bank, at = Bank(rows, capacity, 1), torch.arange(rows)
    aux = bank.empty(torch.device("cpu"))
    u = torch.from_numpy(np.random.default_rng(0).random((count, rows)))
    for k in range(count):
        value = torch.full((rows,), float(k), dtype=torch.float64)
        bank.add(aux, at, value[:, None], value, value.long(), u[k])
        assert (aux[ENERGY].isfinite().sum(1) == min(k + 1, capacity)).all()
    assert (aux[SEEN] == count).all()
    assert torch.equal(aux[THETA][..., 0], aux[ENERGY])
    assert torch.equal(aux[STAMP].double(), aux[ENERGY])
    kept = np.zeros((rows, count))
    np.put_along_axis(kept, aux[STAMP].numpy(), 1.0, 1)
    assert (kept.sum(1) == capacity).all()
    assert_cells(kept / capacity, np.full(count, 1 / count))


def test_an_entry_is_uniform_in_its_ring():
    bank = Bank(2, 6, 1)
    aux = bank.empty(torch.device("cpu"))
    aux[ENERGY][0, :5] = torch.tensor([1.0, 5.0, 2.0, 3.0, 9.0], dtype=torch.float64)
    u = torch.linspace(0.001, 0.999, 300, dtype=torch.float64)
    rows = torch.zeros(300, dtype=torch.int64)
    there, place = bank.drawn(aux, rows, torch.full((300,), 2.0), torch.full((300,), 9.0), u)
    assert there.all()
    assert place.unique(return_counts=True)[0].tolist() == [1, 2, 3]
    assert place.unique(return_counts=True)[1].tolist() == [100, 100, 100]
    for low, high, row in ((10.0, math.inf, 0), (-math.inf, math.inf, 1)):
        none, _ = bank.drawn(aux, rows + row, torch.full((300,), low), torch.full((300,), high), u)
        assert not none.any()


# --- One step in plain numbers -------------------------------------------------------------------------------


def log_lik(x, theta):
    """Log of the mixture's density at each x."""
    return np.log(np.mean([np.exp(-0.5 * (x - t) ** 2) / math.sqrt(2 * math.pi) for t in theta], axis=0))


@pytest.mark.parametrize(
    ("sizes", "differences"),
    [((1200, 700, 500), False), ((900, 700, 700), True), ((1200, 1200, 300), True), ((900, 600, 300), False)],
)
def test_a_jump_by_the_paper_s_formula(differences, sizes):
    """Energies topped up with the next data of the entry's own order; the ratio with both floors, number by number."""
    target = means(1200, 3)
    made = kernel(sizes, (2.0, 0, 0), spacing=4.0, jump=0.999, differences=differences, capacity=8)
    temperatures, n = [2.0, 5.0, 11.0], 1200
    x = target.data.fields["x"].double().numpy()
    state, draws = begin(made, target, 6, KEY)
    controls = ladder_controls(temperatures, 2, 2e-4)
    state, _, _ = stepped(target, made, state, controls, draws, 30)
    anchor = log_lik(x, (2.0, 0, 0))
    lowest = -anchor.sum()
    levels = [lowest, lowest + 8.0, lowest + 28.0, math.inf]
    jumped = 0
    for step in range(31, 61):
        before = copied(state)
        draws.step = step
        with torch.no_grad():
            state, info = made.step(target, state, controls, draws)
        uniform = Draws(Streams(KEY, 6), step)
        requested, which = uniform.uniform(Purpose.EXCHANGE), uniform.uniform(Purpose.EXCHANGE, use=1)
        for c in range(6):
            k = c % 3
            if k == 2:
                assert info.exchange[c] == NEVER
                continue
            here = float(before.aux["energy"][c])
            j = sum(here >= level for level in levels[1:3])
            row = c // 3 * 2 + k
            low = -math.inf if j == 0 else levels[j]
            ring = [s for s in range(8) if low <= float(before.aux[ENERGY][row, s]) < levels[j + 1]]
            if not ring or requested[c] >= 0.999:
                assert info.exchange[c] == NEVER
                continue
            entry = ring[int(which[c] * len(ring))]
            theta = before.aux[THETA][row, entry].tolist()
            stamp = int(before.aux[STAMP][row, entry])
            order = Draws(Streams(KEY, 6), stamp // 3).index(n, sizes[k], replacement=False)[
                c // 3 * 3 + stamp % 3
            ]
            terms = log_lik(x[order], theta) - differences * anchor[order]
            there = -n / sizes[k] * terms.sum() + differences * lowest
            known = -n / sizes[k + 1] * terms[: sizes[k + 1]].sum() + differences * lowest
            assert known == pytest.approx(float(before.aux[ENERGY][row, entry]), abs=1e-6)
            t, hot, f, g = temperatures[k], temperatures[k + 1], levels[k], levels[k + 1]
            ratio = -max(there, f) / t + max(here, f) / t - max(here, g) / hot + max(there, g) / hot
            assert float(info.log_ratio[c]) == pytest.approx(ratio, abs=1e-6)
            more = (sizes[k] - sizes[k + 1]) * (1 + differences)
            assert int(info.n_lik[c]) == (n if sizes[k] == n > sizes[k + 1] else more)
            made_it = info.exchange[c] == MADE
            assert bool(made_it) == bool(info.accepted[c])
            if made_it:
                assert state.evaluation.theta[c].tolist() == theta
                assert float(state.aux["energy"][c]) == pytest.approx(there, abs=1e-6)
            else:
                assert info.exchange[c] == REFUSED
                assert torch.equal(state.evaluation.theta[c], before.evaluation.theta[c])
            jumped += 1
    assert jumped > 40


def test_a_local_move_has_a_floor_in_density_and_gradient():
    """One rung above its floor and one below: drift, both proposal densities and the ratio, in plain numbers."""
    target = means(400, 3)
    n, m, e = 400, 150, 3e-3
    made = kernel([m, m], (2.0, 0, 0), spacing=25.0, jump=0.0)
    temperatures = [3.0, 9.0]
    x = target.data.fields["x"].double()
    theta = torch.tensor([[1.2, 0.3, -0.4], [2.0, 0.1, 0.0]], dtype=torch.float64)
    draws = Draws(Streams(KEY, 2), 0)
    state = made.start(target, theta, draws)
    seen = []
    for step in range(1, 9):
        draws.step = step
        before = state
        with torch.no_grad():
            state, info = made.step(target, state, ladder_controls(temperatures, 1, e), draws)
        numbers = Draws(Streams(KEY, 2), step)
        z = numbers.normal(Purpose.PROPOSAL, 3)
        index = numbers.index(n, m, replacement=False)
        for c, t in enumerate(temperatures):
            floor = -float(target.full_log_lik(made.energies.anchor[None])) + (0 if c == 0 else 25.0 * 3.0)

            def energy_and_slope(point, index=index[c], floor=floor):
                point = point.clone().requires_grad_()
                parts = torch.exp(-0.5 * (x[index][:, None] - point) ** 2) / math.sqrt(2 * math.pi)
                h = -n / m * torch.log(parts.mean(1)).sum()
                (g,) = torch.autograd.grad(-h, point)
                return float(h.detach()), g if float(h.detach()) >= floor else torch.zeros(3)

            here = before.evaluation.theta[c]
            h0, g0 = energy_and_slope(here)
            to = here + e * g0 + math.sqrt(2 * e * t) * z[c]
            h1, g1 = energy_and_slope(to)
            ratio = (max(h0, floor) - max(h1, floor)) / t
            ratio += float(((to - here - e * g0) ** 2).sum() - ((here - to - e * g1) ** 2).sum()) / (
                4 * e * t
            )
            assert float(info.log_ratio[c]) == pytest.approx(ratio, abs=1e-7)
            after = to if info.accepted[c] else here
            assert state.evaluation.theta[c].tolist() == pytest.approx(after.tolist(), abs=1e-12)
            assert float(state.aux["energy"][c]) == pytest.approx(h1 if info.accepted[c] else h0, abs=1e-7)
            seen.append((c, h0 < floor))
        assert info.n_lik.tolist() == info.n_grad.tolist() == [2 * m, 2 * m]
    assert len(set(seen)) >= 3  # the cold rung above its floor, the hot one on both sides or the like


@pytest.mark.slow
def test_energy_and_gradient_are_of_the_point_and_the_minibatch_that_a_chain_has():
    """After jumps and local moves, made or refused: the energy by NumPy from the data of its stamp."""
    target, sizes, temperatures = means(900, 3), (900, 500, 300), [2.0, 5.0, 11.0]
    made = kernel(sizes, (2.0, 0, 0), spacing=4.0, jump=0.4, capacity=8)
    x = target.data.fields["x"].double().numpy()
    state, draws = begin(made, target, 6, KEY)
    controls = ladder_controls(temperatures, 2, 4e-3)
    seen = []
    for step in range(1, 80):
        draws.step = step
        with torch.no_grad():
            state, info = made.step(target, state, controls, draws)
            full = target.gradients.full(state.evaluation.theta, controls.temperature)
        for c in range(6):
            n, m, stamp = 900, sizes[c % 3], int(state.aux["stamp"][c])
            order = Draws(Streams(KEY, 6), stamp // 3).index(n, m, replacement=False)[c // 3 * 3 + stamp % 3]
            rows = x if m == n else x[order]
            energy = -n / m * log_lik(rows, state.evaluation.theta[c].tolist()).sum()
            assert float(state.aux["energy"][c]) == pytest.approx(energy, abs=1e-6)
            if m == n:
                assert state.aux["grad"][c].tolist() == pytest.approx(full[c].tolist(), abs=1e-6)
            seen.append((m == n, int(info.exchange[c]), bool(info.accepted[c])))
    for what in ((True, NEVER), (True, MADE), (False, NEVER), (False, MADE), (False, REFUSED)):
        assert what in {one[:2] for one in seen}
    assert (False, NEVER, False) in seen  # a local move that was refused


def test_the_lowest_ring_has_no_lower_end():
    """Entries below the level of the anchor are in it: jumps to and from them would not balance otherwise."""
    target = means(300, 3)
    made = kernel([300, 200], (2.0, 0, 0), spacing=4.0, jump=0.999, capacity=4)
    state, draws = begin(made, target, 2, KEY)
    levels = made.levels(target, torch.tensor([1.0, 3.0], dtype=torch.float64))
    lowest = float(levels[0, 0])
    state.aux["energy"][0] = lowest + 0.5
    state.aux[ENERGY][0, :2] = torch.tensor([lowest - 1.0, lowest + 1.0], dtype=torch.float64)
    chosen = set()
    for step in range(1, 60):
        jumping, place = made._chosen(
            state, levels, torch.ones(2, dtype=torch.bool), Draws(draws.streams, step)
        )
        chosen |= {int(place[0])} if jumping[0] else set()
    assert chosen == {0, 1}


def test_a_full_bank_leaves_points_out_from_the_first_on():
    """With room for one, the second point replaces it with probability 1/2."""
    bank, row = Bank(1, 1, 1), torch.zeros(1, dtype=torch.int64)
    for u, kept in ((0.49, 2.0), (0.75, 1.0)):
        aux = bank.empty(torch.device("cpu"))
        for value, uniform in ((1.0, 0.3), (2.0, u)):
            one = torch.tensor([value], dtype=torch.float64)
            bank.add(aux, row, one[:, None], one, one.long(), torch.tensor([uniform], dtype=torch.float64))
        assert aux[ENERGY][0, 0] == kept


# --- Starts one after the other, counts ----------------------------------------------------------------------


def test_rungs_begin_one_after_the_other_and_wait_at_no_cost():
    target = means(600, 3)
    made = kernel([600, 300, 200], (2.0, 0, 0), stagger=20, burn=5, every=3, jump=0.3, spacing=2.0)
    state, draws = begin(made, target, 3, KEY)
    controls = ladder_controls([1.0, 2.0, 4.0], 1, 1e-3)
    first = state.evaluation.theta.clone()
    state, theta, record = stepped(target, made, state, controls, draws, 60)
    for rung, start in ((0, 40), (1, 20), (2, 0)):
        assert (record["valid"][rung] == (np.arange(60) >= start)).all()
        assert (theta[rung, :start] == first[rung].numpy()).all()
        for name in ("n_lik", "n_grad", "batch_size", "accepted", "exchange", "diverging"):
            assert not record[name][rung, :start].any(), name
        assert (record["batch_size"][rung, start:] == (600, 300, 200)[rung]).all()
    # What is handed in: every third step after a rung's own first five.
    assert state.aux[SEEN].tolist() == [(40 - 5) // 3, (60 - 5) // 3]
    jumps, moved = record["exchange"] > 0, record["exchange"] == MADE
    local = record["valid"] & ~jumps
    twice, more = np.array([600, 600, 400])[:, None], np.array([600, 100, 0])[:, None]
    assert (record["n_lik"] == twice * local + more * jumps).all()
    assert (record["n_grad"] == twice * local + np.array([600, 0, 0])[:, None] * moved).all()
    assert jumps[:2].any(1).all()


# --- The stationary distribution -----------------------------------------------------------------------------------

MODES = GaussianMixture([[-3.0], [3.0]], 0.25, [0.3, 0.7], start=[-3.0])
HEATS = [1.0, 3.0, 9.0]
SIZES = [0.8, 1.5, 3.0]


def exact(spacing, temperatures=HEATS):
    """Return a grid, its energies, and its probabilities on each rung, with the energy floor and without."""
    x = np.linspace(-60, 60, 120_001)
    h = -MODES.log_lik(torch.from_numpy(x)[:, None], {"x": torch.zeros(1, 1, 1)})[:, 0].numpy()
    levels = h[np.abs(x - 3).argmin()] + np.append(0.0, spacing * np.cumsum(temperatures[:-1]))
    densities, free = [], []
    for t, level in zip(temperatures, levels, strict=True):
        for kept, energy in ((densities, np.maximum(h, level)), (free, h)):
            p = np.exp(-(energy - h.min()) / t)
            kept.append(p / p.sum())
    return x, h, densities, free


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("keep", [pytest.param("sample", marks=pytest.mark.slow), "latest"])
def test_each_rung_has_its_distribution(keep):
    """Two modes that no local move joins at T = 1: weights and squares of every rung, from quadrature."""
    target, ladders, spacing, start = Target(MODES, NoData().load()), 60, 2.0, 900
    settings = {"spacing": spacing, "jump": 0.3, "capacity": 300, "stagger": 300, "burn": 100, "keep": keep}
    made = kernel([1] * 3, (3.0,), RandomWalk(), **settings)
    state, draws = begin(made, target, 3 * ladders, KEY)
    _, theta, record = stepped(
        target, made, state, ladder_controls(HEATS, ladders, SIZES), draws, start + 900
    )
    kept = theta.reshape(ladders, 3, -1)[:, :, start:]
    x, _, densities, free = exact(spacing)
    for rung, p in enumerate(densities):
        assert_mean((kept[:, rung] > 0).mean(1), p[x > 0].sum(), f"weight of rung {rung}")
        assert_mean((kept[:, rung] ** 2).mean(1), (p * x**2).sum(), f"square of rung {rung}")
    # The draws follow the floor's distribution
    assert differs_in_mean((kept[:, 2] ** 2).mean(1), (free[2] * x**2).sum())
    offered = record["exchange"].reshape(ladders, 3, -1)[:, :, start:]
    assert (offered[:, 2] == NEVER).all()
    assert 0.3 < (offered[offered > 0] == MADE).mean() < 0.95


@pytest.mark.long
@pytest.mark.parametrize("rule", [Metropolis(), Barker()])
def test_jumps_keep_the_distribution_with_a_bank_of_exact_draws(rule):
    """With exact draws of the hot rung in the bank, three jumps leave the cold rung's distribution invariant."""
    target, ladders, each = Target(MODES, NoData().load()), 400, 25
    made = kernel([1, 1], (3.0,), RandomWalk(), rule, spacing=1.5, jump=0.999, capacity=64)
    x, h, densities, _ = exact(1.5, [1.0, 3.0])
    rng, pairs = np.random.default_rng(1), ladders * each
    theta = np.stack([rng.choice(x, pairs, p=p) for p in densities], 1).reshape(-1, 1)
    draws = Draws(Streams(KEY, 2 * pairs), 0)
    state = made.start(target, torch.from_numpy(theta), draws)
    entries = rng.choice(len(x), (pairs, 64), p=densities[1])
    state.aux[THETA][..., 0] = torch.from_numpy(x[entries])
    state.aux[ENERGY][:] = torch.from_numpy(h[entries])
    _, after, record = stepped(target, made, state, ladder_controls([1.0, 3.0], pairs, 1e-6), draws, 3)
    cold = after[0::2, -1, 0].reshape(ladders, each)
    edges = np.array([-100, -3.5, -3, -2.5, 0, 2.5, 3, 3.5, 100])
    shares = np.stack([np.histogram(row, edges)[0] / each for row in cold])
    assert_cells(shares, np.histogram(x, edges, weights=densities[0])[0])
    assert (record["exchange"][0::2] == MADE).mean() > 0.3
    assert (np.sign(after[0::2, -1, 0]) != np.sign(theta[0::2, 0])).mean() > 0.2


# --- Compiled and plain, resume ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "differences"),
    [((3000, 1500, 800), False), ((2000, 1500, 1500), True), ((3000, 3000, 1500), True)],
)
def test_compiled_ladders_are_the_plain_ones(sizes, differences):
    target = means()
    made = kernel(sizes, spacing=3.0, capacity=15, every=2, stagger=15, burn=4, differences=differences)
    state, draws = begin(made, target, 6, KEY)
    controls = ladder_controls([1.0, 2.0, 4.0], 2, 1e-3)
    slow, theta, infos = stepped(target, made, copied(state), controls, draws, 90)
    loop = compile_loop(made, target, KEY, 1)
    fast, parts = copied(state), []
    for first, steps in ((1, 37), (38, 53)):
        there = controls.each(lambda c, k=steps: c.expand(k, 6).contiguous())
        fast, record = loop.advance(fast, first, there)
        parts.append(record)
    joined = {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}
    assert joined["theta"] == pytest.approx(theta, rel=1e-9, abs=1e-9)
    for name in (
        "accepted",
        "exchange",
        "n_lik",
        "n_grad",
        "n_lik_overhead",
        "batch_size",
        "valid",
        "diverging",
    ):
        assert (joined[name] == infos[name]).all(), name
    for name in ("log_ratio", "log_ratio_var"):
        assert joined[name] == pytest.approx(infos[name], rel=1e-4, abs=1e-4, nan_ok=True), name
    for name, value in slow.aux.items():
        assert fast.aux[name].numpy() == pytest.approx(value.numpy(), rel=1e-8, abs=1e-7, nan_ok=True), name
    assert {NEVER, REFUSED, MADE} == set(np.unique(infos["exchange"]))
    assert (slow.aux[SEEN] > 15).any()  # so that places are taken anew


def test_a_ladder_goes_on_to_the_bit(outputs):
    """Two halves with a state that went through its arrays, as a checkpoint does, are the whole."""
    target = means(1500, 4)
    made = kernel([1500, 600, 300], (2.0, 0, 0, 0), spacing=3.0, capacity=10)
    state, draws = begin(made, target, 3, KEY)
    controls = ladder_controls([1.0, 2.0, 4.0], 1, 1e-3)
    whole, theta, _ = stepped(target, made, copied(state), controls, draws, 80)
    half, first, _ = stepped(target, made, copied(state), controls, Draws(Streams(KEY, 3), 0), 40)
    np.savez(outputs.with_suffix(".npz"), **{name: value.numpy() for name, value in half.aux.items()})
    with np.load(outputs.with_suffix(".npz")) as file:
        aux = {name: torch.from_numpy(file[name]) for name in file.files}
    again = EquiEnergy(LangevinProposal(), Metropolis(), 3, [1500, 600, 300], (2.0, 0, 0, 0), 3.0, 0.5, 10)
    rest, second, _ = stepped(
        target, again, State(half.evaluation, aux), controls, Draws(Streams(KEY, 3), 0), 40, first=41
    )
    assert_same_bits({"theta": theta}, {"theta": np.concatenate((first, second), 1)})
    assert_same_bits(
        {name: value.numpy() for name, value in whole.aux.items()},
        {name: value.numpy() for name, value in rest.aux.items()},
    )


def test_chains_may_be_float32():
    target = means(600, 3)
    made = kernel([600, 300], (2.0, 0, 0), spacing=3.0, capacity=10)
    theta, draws = torch.zeros(2, 3, dtype=torch.float32), Draws(Streams(KEY, 2), 0)
    controls = ladder_controls([1.0, 3.0], 1, 1e-3).each(lambda c: c.float())
    state, path, record = stepped(target, made, made.start(target, theta, draws), controls, draws, 60)
    assert path.dtype == np.float32
    assert state.aux["energy"].dtype == torch.float64
    assert (record["exchange"] == MADE).any()
    assert record["accepted"].mean() > 0.2


# --- Refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": [5]}, "at least 2 rungs"),
        ({"sizes": [5, 10]}, "do not increase from cold to hot"),
        ({"jump": 1.0}, "jump < 1"),
        ({"spacing": 0.0}, "positive spacing"),
        ({"capacity": 0}, "at least 1"),
        ({"stagger": -1}, "no negative"),
        ({"rule": MHMinibatch(5)}, "a truncated energy is not a sum"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        kernel(**{"sizes": [10, 5], **settings})


def test_targets_that_do_not_go_with_it_are_refused(rng):
    data = Dataset.of(rng.normal(size=20))
    for words, message in (
        ({"temper": "likelihood"}, "temper=posterior"),
        ({"replacement": True}, "replacement=false"),
        ({"energy_noise": 1.0}, "minibatch noise only"),
    ):
        assert message in kernel([20, 5], (0.0,)).refuses(Target(GaussianMean(), data, **words))
    moved = Dataset(data.fields | {"y": torch.zeros(20)}, transforms=Transforms(20, permuted=0.5))
    assert "leave out the transforms" in kernel([20, 5], (0.0,)).refuses(Target(GaussianMean(), moved))
    assert "anchor has 1 numbers" in kernel([20, 5], (0.0,)).refuses(means())
    assert "more than the n = 20" in kernel([30, 5], (0.0,)).refuses(Target(GaussianMean(), data))
    assert "anchor lies where" in kernel([5, 5], (99.0, 0, 0, 0, 0)).refuses(means())
    assert kernel([20, 5], (0.0,)).refuses(Target(GaussianMean(), data)) is None
    theta, draws = torch.zeros(5, 1, dtype=torch.float64), Draws(Streams(KEY, 5), 0)
    with pytest.raises(Refusal, match="5 chains are not a whole number of ladders of 2 rungs"):
        kernel([20, 5], (0.0,)).start(Target(GaussianMean(), data), theta, draws)
