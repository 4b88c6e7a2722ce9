"""Acceptance tests step by step: against the papers' formulas in plain loops, and in their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import KEY, STEPS, C, advance, begin, controls, follow
from reference import mint_shared_log_ratio, mint_stored_log_ratio

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.data.mixture import MixtureSample
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models.function import FunctionModel
from mhrun.models.tied_means import TiedMeans
from mhrun.pairing.full import Full
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Purpose, Streams
from mhrun.rules.barker import Barker
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.target.batches import Batches
from mhrun.types import Controls

N = 60


@pytest.fixture
def data(rng):
    return Dataset.of(rng.normal(0.5, 1.7, N))


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("rule", [Metropolis(), Barker()], ids=["metropolis", "barker"])
@pytest.mark.parametrize("pairing", [Shared(9), Stored(9), Full()], ids=["shared", "stored", "full"])
def test_every_step_is_the_papers(data, pairing, rule, replacement, temper):
    target = Target(TiedMeans(), data, temper=temper, replacement=replacement)
    kernel = MetropolisHastings(RandomWalk(), pairing, rule)
    thetas, infos = follow(kernel, target, controls())
    c, power = N / 3.0, 1 / 3.0 if temper == "posterior" else 1.0
    x = data.fields["x"].numpy()
    draws = Draws(Streams(KEY, C), 0)
    index = draws.index(N, 9, replacement=replacement)
    held = [x[row] for row in index.numpy()]
    position = [(0.0, 1.0)] * C
    for k in range(STEPS):
        draws.step = k + 1
        z, u = draws.normal(Purpose.PROPOSAL, 2).numpy(), draws.uniform(Purpose.ACCEPT).numpy()
        index = draws.index(N, 9, replacement=replacement).numpy()
        for i in range(C):
            proposal = tuple(p + 0.8 * s for p, s in zip(position[i], z[i], strict=True))
            batch = x[index[i]]
            if isinstance(pairing, Stored):
                log_ratio = mint_stored_log_ratio(held[i], batch, position[i], proposal, c, power)
            else:
                rows = batch if isinstance(pairing, Shared) else x
                log_ratio = mint_shared_log_ratio(rows, position[i], proposal, c, power)
            threshold = math.log(u[i]) if isinstance(rule, Metropolis) else math.log(u[i] / (1 - u[i]))
            accepted = threshold < log_ratio
            if accepted:
                position[i], held[i] = proposal, batch
            assert float(infos[k].log_ratio[i]) == pytest.approx(log_ratio, abs=1e-9)
            assert bool(infos[k].accepted[i]) == accepted
            assert tuple(thetas[k, i].tolist()) == pytest.approx(position[i], abs=1e-12)


def test_costs_are_counted(data):
    target = Target(TiedMeans(), data)
    for pairing, batch, evaluations in ((Shared(9), 9, 18), (Stored(9), 9, 9), (Full(), N, N)):
        _, infos = follow(MetropolisHastings(RandomWalk(), pairing, Metropolis()), target, controls(), 3)
        assert [int(i.n_lik[0]) for i in infos] == [evaluations] * 3
        assert [int(i.batch_size[0]) for i in infos] == [batch] * 3
    _, infos = follow(Unadjusted(SGLD(), 9), target, controls(1e-3), 3)
    assert [int(i.n_grad[0]) for i in infos] == [9] * 3


@pytest.mark.long
@pytest.mark.parametrize("pairing", [Shared(N), Stored(N)], ids=["shared", "stored"])
def test_a_minibatch_of_all_data_is_metropolis(data, pairing):
    """With m = n and no replacement, on the same random numbers, MINT is Metropolis's own algorithm."""
    target = Target(TiedMeans(), data)
    exact, exact_infos = follow(
        MetropolisHastings(RandomWalk(), Full(), Metropolis()), target, controls(), 300
    )
    mint, infos = follow(MetropolisHastings(RandomWalk(), pairing, Metropolis()), target, controls(), 300)
    assert torch.equal(mint, exact)
    for ours, theirs in zip(infos, exact_infos, strict=True):
        assert torch.allclose(ours.log_ratio, theirs.log_ratio, atol=1e-9)


def test_the_noise_of_the_log_ratio_is_estimated_right(rng):
    """The mean of the estimated variance is the variance that fresh minibatches show."""
    data = Dataset.of(rng.normal(0.5, 1.7, 4000))
    target = Target(TiedMeans(), data)
    many = 4000
    theta = torch.tensor([[0.1, 0.9]], dtype=torch.float64).repeat(many, 1)
    other = theta + torch.tensor([0.3, -0.4], dtype=torch.float64)
    index = target.batches.draw(Draws(Streams(KEY, many), 1), 50)
    shared = target.differences.between(theta, other, index)
    assert float(shared.var.mean() / 50) == pytest.approx(float(shared.mean.var()), rel=0.1)
    state = Stored(50)
    origin = state.start(target, theta, Draws(Streams(KEY, many), 1))
    _, stored = state.compare(target, origin, other, Draws(Streams(KEY, many), 2))
    assert float(stored.var.mean() / 50) == pytest.approx(float(stored.mean.var()), rel=0.1)


KERNELS = {
    "shared": (MetropolisHastings(RandomWalk(), Shared(9), Metropolis()), 0.8),
    "stored": (MetropolisHastings(RandomWalk(), Stored(9), Metropolis()), 0.8),
    "full": (MetropolisHastings(RandomWalk(), Full(), Metropolis()), 0.8),
    "barker": (MetropolisHastings(RandomWalk(), Full(), Barker()), 0.8),
    "langevin": (Unadjusted(SGLD(), 9), 3e-3),
    "hamiltonian": (Unadjusted(SGHMC(0.2, 0.05), 9), 3e-3),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_chain_moves_without_its_neighbours(data, name):
    kernel, step = KERNELS[name]
    target = Target(TiedMeans(), data)
    together, _ = follow(kernel, target, controls(step, chains=5), chains=5)
    alone, _ = follow(kernel, target, controls(step, chains=1), chains=1, first_chain=3)
    assert torch.allclose(together[:, 3], alone[:, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        *(("shared", False), ("stored", True), ("full", False), ("langevin", True)),
        *(
            pytest.param(name, replacement, marks=pytest.mark.slow)
            for name, replacement in (
                *(("shared", True), ("stored", False), ("barker", False), ("langevin", False)),
                *(("hamiltonian", False), ("hamiltonian", True)),
            )
        ),
    ],
)
def test_the_compiled_loop_gives_the_same(request, mixture, name, replacement):
    """The same random numbers and the same decisions; float32 sums of a minibatch apart.

    Dynamics read minibatches with replacement as acceptance tests do, and are plain Python there. Of those without,
    the one with momenta is in machine code.
    """
    if (name, replacement) in (("langevin", False), ("langevin", True), ("hamiltonian", True)):
        request.getfixturevalue("interpreted")
    kernel, step = KERNELS[name]
    if name.startswith(("langevin", "hamiltonian")):
        step = 1e-5
    target = Target(TiedMeans(), mixture, replacement=replacement)
    hot = controls(step, mixture.n / 20)
    plain, infos = follow(kernel, target, hot, 60)
    draws = Draws(Streams(KEY, C), 0)
    start = kernel.start(target, target.model.init(C, draws), draws)
    for threads in (1, 2):
        fused = compile_loop(kernel, target, KEY, threads)
        assert fused is not None
        state, before = fused.advance(start, 1, controls(step, mixture.n / 20, steps=35))
        state, after = fused.advance(state, 36, controls(step, mixture.n / 20, steps=25))
        record = {key: np.concatenate([before[key], after[key]], axis=1) for key in before}
        assert (record["accepted"] == torch.stack([i.accepted for i in infos], 1).numpy()).all()
        assert np.abs(record["theta"] - plain.transpose(0, 1).numpy()).max() < 1e-4
        for field in ("batch_size", "n_lik", "n_grad", "diverging"):
            assert (record[field] == torch.stack([getattr(i, field) for i in infos], 1).numpy()).all()
        for field, tolerance in (("log_ratio", 1e-3), ("log_ratio_var", 1e-3)):
            theirs = torch.stack([getattr(i, field) for i in infos], 1).numpy()
            assert np.allclose(record[field], theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
        again = compile_loop(kernel, target, KEY, 1).advance(
            start, 1, controls(step, mixture.n / 20, steps=60)
        )[1]
        assert all((again[key] == record[key]).all() or np.isnan(record[key]).all() for key in record)


def broken_model():
    """Not a number to the right of 1, infinitely unlikely to the left of -1."""

    def log_lik(theta, x):
        value = -0.5 * (x - theta[0]) ** 2
        value = torch.where(theta[0] > 1, torch.nan, value)
        return torch.where(theta[0] < -1, -torch.inf, value)

    return FunctionModel(log_lik, [0.0], single=True)


def test_a_ratio_that_is_no_number_is_a_counted_rejection(rng):
    target = Target(broken_model(), Dataset.of(rng.normal(size=20)))
    kernel = MetropolisHastings(RandomWalk(), Shared(5), Metropolis())
    thetas, infos = follow(kernel, target, controls(1.5, 1.0), 200)
    assert thetas.isfinite().all()
    assert thetas.abs().max() <= 1
    refused = torch.stack([i.diverging for i in infos])
    assert refused.any()
    assert not (refused & torch.stack([i.accepted for i in infos])).any()


def test_a_candidate_whose_gradient_is_no_number_is_rejected():
    """Without the proposal's densities only a finite log-likelihood, equal at both points, is in the ratio."""

    class FlatWithoutSlope:
        dim, names = 1, ("a",)

        def log_prior(self, theta):
            return theta.new_zeros(len(theta))

        def log_lik(self, theta, rows):
            return 0 * theta[:, :1] + 0 * rows["x"]

        def log_lik_and_grad(self, theta, rows):
            return self.log_lik(theta, rows), torch.where(theta == 0, 0.0, torch.nan)

    target = Target(FlatWithoutSlope(), Dataset.of(np.zeros(20)))
    kernel = MetropolisHastings(LangevinProposal(ratio=False), Shared(5), Metropolis())
    state, draws = begin(kernel, target, torch.zeros(C, 1, dtype=torch.float64))
    state, thetas, (info,) = advance(kernel, target, state, controls(), draws, 1)
    assert (thetas == 0).all()
    assert not info.accepted.any()
    assert info.diverging.all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # plain Python warns of what machine code does
def test_a_dynamics_that_leaves_the_numbers_stops_alone(rng, interpreted):
    target = Target(TiedMeans(), Dataset.of(rng.normal(size=50)))
    hot = controls(0.01, 1.0)
    hot = hot._replace(step_size=torch.tensor([0.01, 1e200, 0.01, 0.01], dtype=torch.float64))
    thetas, infos = follow(Unadjusted(SGLD(), 10), target, hot, 30)
    stopped = torch.stack([i.diverging for i in infos])
    assert stopped[-1].tolist() == [False, True, False, False]
    assert thetas.isfinite().all()
    at = int(stopped[:, 1].int().argmax())
    assert (thetas[at:, 1] == thetas[at, 1]).all()
    fused = compile_loop(Unadjusted(SGLD(), 10), target, KEY, 1)
    draws = Draws(Streams(KEY, C), 0)
    start = Unadjusted(SGLD(), 10).start(target, target.model.init(C, draws), draws)
    _, record = fused.advance(start, 1, hot.each(lambda v: v.expand(30, C).contiguous()))
    assert (record["diverging"] == stopped.T.numpy()).all()


def test_minibatches_that_cannot_be_drawn_are_refused(data):
    target = Target(TiedMeans(), data)
    for kernel in (
        MetropolisHastings(RandomWalk(), Shared(N + 1), Metropolis()),
        Unadjusted(SGLD(), N + 1),
    ):
        assert "more than the n = 60" in kernel.refuses(target)
        assert kernel.refuses(Target(TiedMeans(), data, replacement=True)) is None
    assert "valid minibatch size" in MetropolisHastings(RandomWalk(), Stored(0), Metropolis()).refuses(target)


def test_all_data_have_no_error(data):
    for replacement, share in ((False, 0.0), (True, 1.0)):
        target = Target(TiedMeans(), data, replacement=replacement)
        index = torch.arange(N).expand(2, N)
        theta = torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
        difference = target.differences.between(theta, theta + 0.3, index)
        assert difference.error.tolist() == pytest.approx((difference.var / N * share).tolist())


def test_one_datum_drawn_with_replacement_is_all_data_and_has_no_error():
    """Although the variance of a single term is NaN."""
    nan = torch.tensor([math.nan], dtype=torch.float64)
    assert Batches(1, True, False, None).error(nan, 1).tolist() == [0.0]


@pytest.mark.parametrize("replacement", [False, True])
def test_the_error_of_a_difference_is_its_variance_over_minibatches(data, replacement):
    target = Target(TiedMeans(), data, replacement=replacement)
    chains, m = 20_000, N // 2
    theta = torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(chains, 2)
    index = Draws(Streams(KEY, chains), 1).index(N, m, replacement=replacement)
    difference = target.differences.between(theta, theta + 0.3, index)
    ratio = float(difference.mean.var() / difference.error.mean())
    assert ratio == pytest.approx(1.0, abs=5 * math.sqrt(2 / chains))


def test_a_dynamics_on_all_data_has_the_whole_gradient(data):
    theta = torch.tensor([[0.0, 1.0], [0.3, 0.7]], dtype=torch.float64)
    point = theta.clone().requires_grad_()
    for replacement in (False, True):
        target = Target(TiedMeans(), data, replacement=replacement)
        (wanted,) = torch.autograd.grad(target.log_density(point).sum(), point)
        found = target.gradients.full(theta, torch.ones(2))
        assert found.flatten().tolist() == pytest.approx(wanted.flatten().tolist())
        kernel = Unadjusted(SGLD(), None)
        draws = Draws(Streams(KEY, 2), 0)
        state = kernel.start(target, theta, draws)
        draws.step = 1
        still = Controls(torch.full((2,), 1e-3), torch.ones(2), torch.zeros(2))
        moved, info = kernel.step(target, state, still, draws)
        assert torch.allclose(moved.evaluation.theta, theta + 1e-3 * wanted, atol=1e-12)
        assert info.n_grad.tolist() == [N, N]


def test_a_part_that_was_changed_has_no_compiled_form(data):
    class Twice(Shared):
        def compare(self, target, origin, theta, draws):
            candidate, difference = super().compare(target, origin, theta, draws)
            return candidate, difference._replace(mean=2 * difference.mean)

    class Wider(TiedMeans):
        def log_lik(self, theta, rows):
            return 0.5 * super().log_lik(theta, rows)

    class Same(Shared):
        pass

    target = Target(TiedMeans(), data)
    kernels = [MetropolisHastings(RandomWalk(), kind(9), Metropolis()) for kind in (Shared, Same, Twice)]
    assert [compile_loop(kernel, target, 1, 1) is not None for kernel in kernels] == [True, True, False]
    changed = Target(Wider(), data)
    assert compile_loop(kernels[0], changed, 1, 1) is None
    theta = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert float(changed.full_log_lik(theta)) == pytest.approx(0.5 * float(target.full_log_lik(theta)))


def test_sums_are_double_whatever_the_chains_are_in():
    data = MixtureSample(200_000, (0.0, 1.0), 2.0, seed=1).load()
    target = Target(TiedMeans(), data)
    single = torch.tensor([[0.0, 1.0], [0.1, 0.9]], dtype=torch.float32)
    exact = target.full_log_lik(single.double())
    evaluation = target.evaluate_full(single)
    assert evaluation.log_lik_mean is not None
    assert evaluation.log_lik_mean.dtype == torch.float64
    assert torch.allclose(target.n * evaluation.log_lik_mean, exact, rtol=1e-12)
