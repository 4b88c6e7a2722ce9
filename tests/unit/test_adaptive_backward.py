"""The backward moves of RSGLD that adapt (Wu, Wang & Wong 2020, section 5.2): against the rule in a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import controls

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.engine.method import Method
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, Refusal
from mhrun.kernels import AdaptiveBackward, MetropolisHastings
from mhrun.models.logistic import Logistic
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.predictive import Predictive
from mhrun.pairing.full import Full
from mhrun.pairing.moving import Moving
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.schedules import Plan
from mhrun.schedules.fixed import Fixed
from mhrun.store.netcdf import Shape, open_trace
from mhrun.target import Target

KEY = derive_key(9, "backward")
N, DIM, M = 40, 2, 6
RSGLD = ReversibleLangevinProposal(density="unnormalised")


@pytest.fixture
def target(rng):
    fields = {"x": rng.normal(0, 1.5, (N, DIM)), "y": rng.choice([-1.0, 1.0], N)}
    return Target(Logistic(DIM, prior_variance=0.8), Dataset.of(fields))


def control_of(chains, step=0.02, noise=0.5):
    return controls(step, 2.0, noise, chains)


def kernel(pairing=None, **settings):
    settings = {"epoch": 5, "trials": 4} | settings
    return AdaptiveBackward(RSGLD, pairing or Moving(M), Metropolis(), **settings)


def follow(kernel, target, theta, steps, first_chain=0, step=0.02):
    chains = len(theta)
    draws = Draws(Streams(KEY, chains, first_chain=first_chain), 0)
    state, states, infos = kernel.start(target, theta, draws), [], []
    for k in range(1, steps + 1):
        draws.step = k
        state, info = kernel.step(target, state, control_of(chains, step), draws)
        states.append(state)
        infos.append(info)
    return states, infos


# ---------------------------------------------------------------- the rule of beta


def adjusted(beta, rates, forward=0.7, change=0.05, most=0.5):
    """The adjustment of one chain that is tested with these rates: beta, and how many tests there were."""
    first, tests = beta, 0
    for rate in rates:
        if beta - change * first <= 1 or first - beta > (most - change) * first * (1 + 1e-9):
            break
        tests += 1
        if rate <= forward:
            break
        beta -= change * first
    return beta, tests


CASES = {
    "all the way": (1000.0, [0.9] * 30),
    "three times": (1000.0, [0.9, 0.71, 0.8, 0.7, 0.9, 0.9]),
    "not at all": (1000.0, [0.2, 0.9, 0.9]),
    "not to one": (1.3, [1.0] * 30),
    "no room": (1.02, [1.0] * 30),
    "at one": (1.0, [1.0] * 30),
    "just above": (1.0526, [1.0] * 30),
}


@pytest.mark.parametrize(("change", "most"), [(0.05, 0.5), (0.1, 0.25), (0.3, 0.5), (0.04, 0.9), (0.6, 0.5)])
def test_beta_is_lowered_by_the_rule(target, monkeypatch, change, most):
    """Each chain adapts by its own rates, by a factor per epoch, and never below 1 - `most`."""
    names, requested = list(CASES), []

    def tried(self, target, theta, controls, draws, beta, rows, test):
        requested.append(rows.tolist())
        assert torch.equal(theta, start[rows])
        return torch.tensor([CASES[names[r]][1][test - 1] for r in rows.tolist()]), 100

    monkeypatch.setattr(AdaptiveBackward, "_tried", tried)
    start = torch.arange(2.0 * len(names)).reshape(-1, 2).double()
    begun = torch.tensor([CASES[name][0] for name in names], dtype=torch.float64)
    everyone = torch.ones(len(names), dtype=torch.bool)
    draws = Draws(Streams(KEY, len(names)), 1)
    parts = kernel(change=change, most=most)
    for begin in (everyone, torch.arange(len(names)) % 2 == 0):
        requested.clear()
        beta, spent = parts._adjusted(target, start, control_of(len(names)), draws, begun, begin)
        for i, name in enumerate(names):
            wanted, tests = adjusted(*CASES[name], change=change, most=most) if begin[i] else (begun[i], 0)
            assert float(beta[i]) == pytest.approx(float(wanted)), name
            assert int(spent[i]) == 100 * tests, name
            assert sum(i in rows for rows in requested) == tests
            assert beta[i] == begun[i] or (beta[i] > 1 and beta[i] >= (1 - most) * begun[i] * (1 - 1e-9))
        assert begun.tolist() == [CASES[name][0] for name in names]


def test_beta_follows_the_acceptance_of_each_epoch(target, monkeypatch):
    """Above 0.4 it is adjusted, below 0.2 raised by 5 per cent, between left alone; before the first epoch adjusted."""
    rates = {0: [0.9, 0.9, 0.1], 1: [0.1], 2: [0.9] * 20}
    tests = []

    def tried(self, target, theta, controls, draws, beta, rows, test):
        tests.append((draws.step, rows.tolist()))
        return torch.tensor([(rates[r] + [0.0] * 20)[test - 1] for r in rows.tolist()]), 7

    monkeypatch.setattr(AdaptiveBackward, "_tried", tried)
    means = [
        *([0.5, 0.1, 0.3], [0.5, 0.1, 0.3], [1.0, 0.2, 0.3], [0.0, 0.3, 0.5]),  # in the mean 0.5, 0.175, 0.35
        *([0.4, 0.2, 0.19], [0.4, 0.2, 0.19], [0.4, 0.2, 0.2], [0.4, 0.2, 0.2]),  # two at the bounds: nothing
        [0.0, 0.0, 0.0],
    ]
    chances = iter(np.array(means))

    def step(self, target, state, controls, draws):
        seen.append(controls.backward.tolist())
        assert controls.backward.dtype == controls.step_size.dtype
        after, info = plain(self, target, state, controls, draws)
        chance = torch.from_numpy(next(chances))
        log_ratio = torch.where(chance == 1.0, 3.0, chance.log())  # a ratio above 1 counts as 1
        return after, info._replace(log_ratio=torch.where(chance == 0.0, torch.nan, log_ratio))

    plain, seen = MetropolisHastings.step, []
    monkeypatch.setattr(MetropolisHastings, "step", step)
    follow(kernel(epoch=4), target, torch.zeros(3, DIM, dtype=torch.float64), 9)
    first = [900.0, 1000.0, 500.0]
    second = [900.0 * 0.9, 1000.0 * 1.05, 500.0]
    third = [second[0], second[1], second[2] * 1.05]
    wanted = [first] * 4 + [second] * 4 + [third]
    assert np.array(seen) == pytest.approx(np.array(wanted))
    assert {s for s, _ in tests} == {1, 5}
    assert all(rows == [0] for s, rows in tests if s == 5)
    assert sum(0 in rows for s, rows in tests if s == 1) == 3
    assert sum(2 in rows for s, rows in tests if s == 1) == 10


# ---------------------------------------------------------------- what a trial is


@pytest.mark.parametrize("pairing", [Moving(M), Stored(M), Shared(M), Full()])
def test_a_trial_is_a_forward_move_on_fresh_minibatches(target, monkeypatch, pairing):
    """Spied on: where the moves go, what they are scored on, and that none is made."""
    batches, moves, scored = [], [], []
    parts = kernel(pairing, trials=3, forward=0.0, most=0.1)
    row, move, score = target.batches.draw, ReversibleLangevinProposal.moved, MetropolisHastings.contest
    trying = False

    def batch(draws, m):
        index = row(draws, m)
        if trying:
            batches.append(index)
        return index

    def moved(self, origin, forward, controls, draws):
        found = move(self, origin, forward, controls, draws)
        if trying:
            assert forward.all()
            # The noise is what is left when the drift is taken off.
            z = (found - origin.theta - controls.step_size[:, None] * origin.grad) / (
                2 * controls.step_size * controls.noise_temperature
            ).sqrt()[:, None]
            moves.append((origin, z))
        return found

    def contest(self, target, origin, theta, controls, draws):
        candidate, found = score(self, target, origin, theta, controls, draws)
        if trying:
            scored.append((origin, candidate, controls, found))
        return candidate, found

    monkeypatch.setattr(target.batches, "draw", batch)
    monkeypatch.setattr(ReversibleLangevinProposal, "moved", moved)
    monkeypatch.setattr(MetropolisHastings, "contest", contest)
    theta = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64)
    draws = Draws(Streams(KEY, 2), 0)
    state = parts.start(target, theta, draws)
    draws.step, trying = 1, True
    beta, spent = parts._adjusted(
        target, theta, control_of(2), draws, state.aux["backward"], torch.ones(2, dtype=torch.bool)
    )
    trying = False
    tests, trials = 2, 3
    assert beta.tolist() == [900.0] * 2
    assert len(moves) == len(scored) == tests * trials
    full = isinstance(pairing, Full)
    size = N if full else M
    assert spent.tolist() == [2 * size * tests * trials] * 2
    assert len(batches) == (0 if full else tests * trials * (1 if isinstance(pairing, Shared) else 2))
    kept = {tuple(row.tolist()) for index in batches for row in index}
    assert len(kept) == 2 * len(batches)  # no minibatch comes twice, in no trial and no chain
    noise = torch.cat([z.flatten() for _, z in moves])
    assert len(set(noise.tolist())) == len(noise)
    assert float(noise.abs().max()) < 5
    for number, (origin, candidate, here, found) in enumerate(scored):
        assert torch.equal(origin.theta, theta)
        assert here.backward.tolist() == [1000.0 if number < trials else 950.0] * 2
        warm = here.temperature
        where = (
            [batches[number], batches[number]] if isinstance(pairing, Shared) else batches[2 * number :][:2]
        )
        for point, index in zip((origin, candidate), where or (None, None), strict=True):
            grad = (
                target.gradients.full(point.theta, warm)
                if full
                else target.gradients.minibatch(point.theta, index, warm)
            )
            assert torch.allclose(point.grad, grad)
        assert found.log_ratio.isfinite().all()


def test_a_test_s_rate_is_the_mean_of_min_1_r(target):
    """The acceptance of forward moves in a NumPy loop, from equations 6 to 8, with the densities unnormalised."""
    trials, beta, temperature, step, noise = 5, 3.0, 2.0, 0.02, 0.5
    parts = kernel(trials=trials)
    theta = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64)
    draws = Draws(Streams(KEY, 2), 11)
    rows = torch.tensor([1, 0])
    betas = torch.full((2,), beta, dtype=torch.float64)
    found, _ = parts._tried(target, theta[rows], control_of(2), draws, betas, rows, 2)
    x, y = (target.data.fields[name].numpy() for name in "xy")
    s = math.sqrt(2 * step * noise)

    def point(here, batch):
        z = y[batch] * (x[batch] @ here)
        grad = N * np.mean((y[batch] / (1 + np.exp(z)))[:, None] * x[batch], axis=0) - here / 0.8
        return -np.log1p(np.exp(-z)).mean(), grad

    def log_q(here, grad, to):
        ahead = -(((to - here - step * grad) / s) ** 2).sum() / 2
        back = -(((to - here + step * grad) / (beta * s)) ** 2).sum() / 2
        return np.logaddexp(ahead, back)

    first = (11 * 11 + 2) * 2 * trials
    streams = Streams(KEY, 2).of("backward", torch.arange(2))
    wanted = np.zeros(2)
    for trial in range(trials):
        old, new = (
            Draws(streams, first + 2 * trial + k).index(N, M, replacement=False).numpy() for k in range(2)
        )
        noise_of = Draws(streams, first + 2 * trial + 1).normal(Purpose.PROPOSAL, DIM).numpy()
        for c in range(2):
            here = theta[c].numpy()
            lik, grad = point(here, old[c])
            there = here + step * grad + s * noise_of[c]
            lik_there, grad_there = point(there, new[c])
            log_r = N / temperature * (lik_there - lik)
            log_r -= ((there**2).sum() - (here**2).sum()) / (2 * 0.8) / temperature
            log_r += log_q(there, grad_there, here) - log_q(here, grad, there)
            wanted[c] += min(1.0, math.exp(log_r)) / trials
    assert found.numpy() == pytest.approx(wanted[[1, 0]], rel=1e-9)
    assert ((wanted > 0.01) & (wanted < 0.99)).all()


def test_no_two_tests_have_the_same_numbers(target, monkeypatch):
    for change, most in ((0.05, 0.5), (0.2, 0.5), (0.3, 0.5), (0.1, 0.35), (0.07, 0.9)):
        parts, used = kernel(trials=2, change=change, most=most), []
        whole = Draws.__init__

        def noting(self, streams, step, ahead=64, used=used, whole=whole):
            used.append(step)
            whole(self, streams, step, ahead)

        monkeypatch.setattr(Draws, "__init__", noting)
        theta, betas = torch.zeros(1, DIM, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        for step in (1, 2, 3):
            draws = Draws(Streams(KEY, 1), step)
            used.pop()
            for test in range(1, int(most / change + 1e-9) + 1):
                parts._tried(target, theta, control_of(1), draws, betas, torch.tensor([0]), test)
        monkeypatch.undo()
        now = [step for step in used if step % 2]  # each trial's own step, which draws noise
        assert len(set(now)) == len(now)


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("pairing", [Moving(M), Stored(M), Shared(M)])
def test_what_adapting_costs_is_counted(target, pairing):
    theta = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64)
    states, infos = follow(kernel(pairing, trials=3, forward=-1.0), target, theta, 6)  # every test says lower
    plain = MetropolisHastings(RSGLD, pairing, Metropolis())
    _, usual = follow(plain, target, theta, 6)
    extra = [
        [(getattr(i, name) - getattr(u, name)).tolist() for i, u in zip(infos, usual, strict=True)]
        for name in ("n_lik", "n_grad")
    ]
    assert extra[0] == extra[1]
    assert extra[0][0] == [10 * 3 * 2 * M] * 2
    assert extra[0][1:5] == [[0, 0]] * 4
    assert states[0].aux["backward"].tolist() == [500.0] * 2
    means = states[4].aux["accepted"] / 5
    assert extra[0][5] == [10 * 3 * 2 * M if mean > 0.4 else 0 for mean in means.tolist()]


def test_a_step_is_that_of_the_proposal_with_its_beta(target):
    """What a chain does, given beta, is a step of RSGLD with that beta."""
    theta = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64)
    states, infos = follow(kernel(epoch=3), target, theta, 7)
    draws = Draws(Streams(KEY, 2), 0)
    plain = MetropolisHastings(RSGLD, Moving(M), Metropolis())
    state = plain.start(target, theta, draws)
    chance = torch.zeros(2, dtype=torch.float64)
    ahead, of_forward = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for k in range(1, 8):
        draws.step = k
        if (k - 1) % 3 == 0:
            chance, ahead, of_forward = (torch.zeros_like(chance) for _ in range(3))
        aux = states[k - 1].aux
        state, info = plain.step(target, state, control_of(2)._replace(backward=aux["backward"]), draws)
        assert torch.equal(state.evaluation.theta, states[k - 1].evaluation.theta)
        assert torch.equal(info.log_ratio, infos[k - 1].log_ratio)
        chance = chance + info.log_ratio.exp().clamp_max(1)
        forward = Draws(Streams(KEY, 2), k).uniform(Purpose.PROPOSAL, use=1) < 0.5
        ahead, of_forward = ahead + forward, of_forward + forward * info.log_ratio.exp().clamp_max(1)
        assert torch.allclose(aux["accepted"], chance)
        assert torch.allclose(aux["forward"], ahead)
        assert torch.allclose(aux["accepted_forward"], of_forward)


@pytest.mark.slow
@pytest.mark.parametrize("pairing", [Moving(M), Stored(M), Shared(M)])
def test_a_chain_adapts_without_its_neighbours(target, pairing):
    """Neighbours whose adjustments end sooner or later change no number of it."""
    theta = torch.tensor([[3.0, -2.0], [0.1, 0.4], [-4.0, 5.0], [0.0, 0.1]], dtype=torch.float64)
    parts = kernel(pairing, forward=0.985 if isinstance(pairing, Shared) else 0.45, lower=0.3, trials=6)
    sizes = torch.tensor([0.02, 0.05, 0.01, 0.03], dtype=torch.float64)
    together, infos = follow(parts, target, theta, 16, step=sizes)
    lowered = {float(b) for b in together[0].aux["backward"]}
    assert len(lowered) > 1  # or nobody ended sooner
    for chain in (1, 3):
        alone, own = follow(parts, target, theta[chain : chain + 1], 16, chain, sizes[chain])
        for k in range(16):
            for name in ("backward", "accepted"):
                assert torch.allclose(alone[k].aux[name][0], together[k].aux[name][chain], rtol=1e-12)
            assert torch.allclose(
                alone[k].evaluation.theta[0], together[k].evaluation.theta[chain], rtol=1e-10
            )
            for name in ("n_lik", "n_grad"):
                assert getattr(own[k], name)[0] == getattr(infos[k], name)[chain]


@pytest.mark.parametrize("pairing", [Moving(5), Stored(5), Shared(5), Full()])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_no_chain_adapts_into_what_is_no_number(rng, pairing, value):
    class Broken:
        dim, names = 1, ("a",)

        def log_prior(self, theta):
            return theta.new_zeros(len(theta))

        def log_lik(self, theta, rows):
            return torch.where(theta > 0.6, value, -0.5 * (rows["x"] - theta) ** 2)

    broken = Target(Broken(), Dataset.of(rng.normal(0.4, 1.0, 20)))
    theta = torch.zeros(4, 1, dtype=torch.float64)
    states, infos = follow(kernel(pairing, start=2.0, forward=0.1), broken, theta, 40)
    assert all(float(s.evaluation.theta.max()) <= 0.6 for s in states)
    assert all(s.aux[name].isfinite().all() for s in states for name in s.aux)
    refused = torch.stack([i.diverging for i in infos])
    assert refused.any()
    assert not (refused & torch.stack([i.accepted for i in infos])).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaptiveBackward(LangevinProposal(), Moving(M), Metropolis(), 5), "needs the proposal"),
        (lambda: kernel(start=0.5), "start >= 1"),
        (lambda: kernel(epoch=0), "epoch and trials >= 1"),
        (lambda: kernel(trials=0), "epoch and trials >= 1"),
        (lambda: kernel(change=0.0), r"within \(0, 1\)"),
        (lambda: kernel(most=1.0), r"within \(0, 1\)"),
        (lambda: kernel(lower=0.4, upper=0.2), "lower < upper"),
        (lambda: kernel(forward=7.0), "forward < 1"),
    ],
)
def test_meaningless_settings_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def test_a_kernel_uses_its_pairing(target):
    assert "valid minibatch size" in kernel(Moving(0)).refuses(target)
    assert compile_loop(kernel(), target, KEY, 1) is None


# ---------------------------------------------------------------- a run


@pytest.mark.long
def test_an_adapting_run_that_is_stopped_is_the_whole_one(rng, tmp_path):
    """Stopped after every chunk, in the middle of epochs; beta and acceptances are recorded at each observation."""
    fields = {"x": rng.normal(size=(N, 4)), "y": rng.integers(0, 3, N)}
    data = Dataset.of(fields)
    plan = Plan({"s": Fixed(step_size=1e-3, temperature=5.0, noise_temperature=0.1)}, 2, 0, 24)
    method = Method(
        "rsgld",
        kernel(epoch=8, trials=2, forward=0.3),
        Target(Perceptron([4, 5, 3]), data),
        plan,
        Shape(2, Perceptron([4, 5, 3]).names, 0, 24, 1),
        1,
        dtype=torch.float32,
        monitor=Predictive(data, 6),
    )
    method.check()
    found = []
    for stop in (lambda: False, lambda: True):
        folder = tmp_path / str(len(found))
        while not (folder / "trace.nc").exists():
            try:
                run_method(method, folder, Settings(block_seconds=0.0), Silent(), stop, {})
            except Interrupted:
                continue
        with open_trace(folder) as trace:
            found.append(trace.load())
    for group in ("posterior", "sample_stats", "monitor"):
        for name in found[0][group].data_vars:
            if name != "wall_s":
                assert np.array_equal(*(t[group][name].to_numpy() for t in found), equal_nan=True), name
    metrics = found[0]["monitor"]
    assert {"backward", "accepted", "forward", "accepted_forward"} <= set(metrics.data_vars)
    assert metrics["step"].to_numpy().tolist() == [6, 12, 18, 24]
    assert (metrics["backward"].to_numpy()[:, 0] < 1000).all()
