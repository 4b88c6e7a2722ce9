"""Optimisers against torch's own, minibatches in passes, and chains that leave the finite numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, controls, gaussian
from scipy import stats
from significance import ALPHA, assert_counts

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.dynamics.adagrad import Adagrad
from mhrun.dynamics.adam import Adam
from mhrun.dynamics.momentum import Momentum
from mhrun.dynamics.rmsprop import RMSprop
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.errors import Refusal
from mhrun.kernels import Unadjusted
from mhrun.models.function import FunctionModel
from mhrun.models.perceptron import Perceptron
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.types import Controls

KEY = derive_key(6, "dynamics")
C, D, N = 3, 7, 250  # N data: a gradient of their mean log-likelihood is 1 / N of what dynamics are given
RATES = [0.3, 0.05, 0.01]

OPTIMISERS = {
    "sgd": (Momentum(), lambda p, rate: torch.optim.SGD([p], rate)),
    "momentum": (Momentum(0.9), lambda p, rate: torch.optim.SGD([p], rate, momentum=0.9)),
    "rmsprop": (RMSprop(N), lambda p, rate: torch.optim.RMSprop([p], rate, alpha=0.9)),
    "rmsprop slow": (RMSprop(N, 0.99, 1e-3), lambda p, rate: torch.optim.RMSprop([p], rate, 0.99, 1e-3)),
    "adagrad": (Adagrad(N), lambda p, rate: torch.optim.Adagrad([p], rate)),
    "adagrad else": (Adagrad(N, 1e-2), lambda p, rate: torch.optim.Adagrad([p], rate, eps=1e-2)),
    "adam": (Adam(N), lambda p, rate: torch.optim.Adam([p], rate)),
    "adam else": (Adam(N, 0.5, 0.9, 1e-2), lambda p, rate: torch.optim.Adam([p], rate, (0.5, 0.9), 1e-2)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_are_torch_s(rng, name):
    """At one rate for each chain, on the same gradients of a mean log-likelihood, which is to rise."""
    dynamics, make = OPTIMISERS[name]
    start = torch.from_numpy(rng.normal(size=(C, D)))
    parameters = [torch.nn.Parameter(row.clone()) for row in start]
    theirs = [make(p, rate) for p, rate in zip(parameters, RATES, strict=True)]
    draws = Draws(Streams(KEY, C), 0)
    theta, aux = start, dynamics.start(start, draws)
    for k in range(1, 26):
        grads = torch.from_numpy(rng.normal(size=(C, D)) * 10.0 ** rng.uniform(-3, 1, (C, 1)))
        draws.step = k
        # The noise temperature is 5, and plays no part.
        size = torch.tensor(RATES, dtype=torch.float64) / N
        theta, aux = dynamics.move(theta, N * grads, aux, controls(size, 1.0, 5.0, C), draws)
        for p, optimiser, grad in zip(parameters, theirs, grads, strict=True):
            p.grad = -grad
            optimiser.step()
        wanted = torch.stack([p.detach() for p in parameters])
        assert torch.allclose(theta, wanted, rtol=1e-10, atol=1e-12), k
    assert float((theta - start).abs().min(1).values.max()) > 1e-3


def test_momentum_keeps_the_step_size_that_it_met(rng):
    """v' = a v + e g: a smaller e does not shrink what was gathered, in a loop of numbers."""
    grads, sizes = rng.normal(size=10), 0.5 ** np.arange(10)
    theta, v = 0.3, 0.0
    draws, dynamics = Draws(Streams(KEY, 1), 0), Momentum(0.8)
    found = torch.tensor([[0.3]], dtype=torch.float64)
    aux = dynamics.start(found, draws)
    for k in range(10):
        v = 0.8 * v + sizes[k] * grads[k]
        theta += v
        draws.step = k + 1
        size = torch.tensor([sizes[k]], dtype=torch.float64)
        grad = torch.tensor([[grads[k]]], dtype=torch.float64)
        found, aux = dynamics.move(found, grad, aux, Controls(size, size, size), draws)
        assert float(found) == pytest.approx(theta)


def test_langevin_with_more_known_noise_than_it_needs_injects_none(interpreted):
    """theta' = theta + e g, here with g = -4 theta and e V = 4 > 2 T."""
    kernel, target = Unadjusted(SGLD(4.0), 1), Target(gaussian(3), NoData().load())
    theta, control = torch.tensor([[0.1, -0.2, 0.3]], dtype=torch.float64), controls(1.0, 1.0, chains=1)
    state, draws = begin(kernel, target, theta, KEY)
    _, plain, _ = advance(kernel, target, state, control, draws, 1)
    _, compiled, _ = advance_compiled(kernel, target, state, control, 1, KEY)
    for found in (plain, compiled):
        assert found[0, 0] == pytest.approx([-0.3, 0.6, -0.9])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("skip", [0.5, 0.1])
def test_a_share_of_steps_is_sat_out(momentum, skip):
    """A chain that sits out stays where it is, whatever its gradient, and keeps its momentum."""
    chains, steps = 400, 50
    dynamics, draws = Momentum(momentum, skip), Draws(Streams(KEY, chains), 0)
    theta = torch.zeros(chains, 2, dtype=torch.float64)
    aux, sat = dynamics.start(theta, draws), np.zeros((steps, chains), bool)
    one = torch.ones(chains, dtype=torch.float64)
    for k in range(steps):
        draws.step = k + 1
        before, kept = theta, aux
        theta, aux = dynamics.move(theta, torch.ones_like(theta), aux, Controls(one, one, one), draws)
        still = (theta == before).all(-1)
        sat[k] = still
        if momentum:
            assert torch.equal(aux["momentum"][still], kept["momentum"][still])
            assert (aux["momentum"][~still] == 0.9 * kept["momentum"][~still] + 1).all()
    assert stats.binomtest(int(sat.sum()), sat.size, skip).pvalue > ALPHA
    # Chains and steps are independent: each chain's count is binomial, and one step says nothing of the next.
    counts = np.bincount(sat.sum(0), minlength=steps + 1)
    expected = stats.binom.pmf(np.arange(steps + 1), steps, skip)
    kept = expected * chains > 5
    assert_counts(
        np.append(counts[kept], counts[~kept].sum()),
        np.append(expected[kept], expected[~kept].sum()),
        "sat out",
    )
    both = (sat[1:] & sat[:-1]).mean()
    assert abs(both - skip**2) < 6 * skip / np.sqrt(sat.size)
    draws.step = steps + 1
    wild, _ = dynamics.move(theta, torch.full_like(theta, torch.inf), aux, Controls(one, one, one), draws)
    assert ((wild == theta) | wild.isinf()).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Momentum(1.0), "0 <= momentum < 1"),
        (lambda: Momentum(0.0, 1.0), "skip < 1"),
        (lambda: Momentum(-0.1), "0 <= momentum"),
        (lambda: Momentum(float("nan")), "0 <= momentum"),
        (lambda: RMSprop(0), "n >= 1"),
        (lambda: RMSprop(None), "RMSprop needs the number of data; add methods.NAME"),
        (lambda: RMSprop(5, smoothing=1.0), "smoothing < 1"),
        (lambda: RMSprop(5, epsilon=0.0), "epsilon > 0"),
        (lambda: Adagrad(0), "n >= 1"),
        (lambda: Adagrad(None), "Adagrad needs the number of data; add methods.NAME"),
        (lambda: Adagrad(5, epsilon=0.0), "epsilon > 0"),
        (lambda: Adam(0), "n >= 1"),
        (lambda: Adam(None), "Adam needs the number of data; add methods.NAME"),
        (lambda: Adam(5, first=1.0), "< 1"),
        (lambda: Adam(5, second=-0.1), "0 <="),
        (lambda: Adam(5, epsilon=float("nan")), "epsilon > 0"),
    ],
)
def test_meaningless_settings_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


# ---------------------------------------------------------------- passes through the data


def pieces(target, streams, m, steps):
    draws = Draws(streams, 0)
    out = []
    for k in steps:
        draws.step = k
        out.append(target.batches.piece(draws, m).numpy())
    return np.stack(out)  # (steps, C, m)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("n", "m"), [(23, 5), (24, 4), (1300, 100), (1300, 1300)])
def test_a_pass_reads_every_datum_once(n, m, compiled):
    target = Target(Perceptron([2, 2]), Dataset.of(np.zeros((n, 2))))
    per, passes = n // m, 3
    streams = Streams(KEY, C, compiled=compiled)
    found = pieces(target, streams, m, range(1, passes * per + 1))
    orders = found.reshape(passes, per, C, m).transpose(0, 2, 1, 3).reshape(passes * C, per * m)
    for order in orders:
        assert len(set(order.tolist())) == per * m
        assert order.min() >= 0
        assert order.max() < n
    for i in range(len(orders)):  # passes and chains have orders of their own
        for j in range(i):
            assert not np.array_equal(orders[i], orders[j])
    # A pass that is entered in its middle goes on as it began, in any order of the steps, by either generator.
    late = pieces(target, Streams(KEY, C, compiled=not compiled), m, range(passes * per, 1, -3))
    assert np.array_equal(late, found[passes * per - 1 : 0 : -3])
    # A chain does not see its neighbours.
    alone = pieces(target, Streams(KEY, 1, first_chain=2, compiled=compiled), m, range(1, per + 1))
    assert np.array_equal(alone[:, 0], found[:per, 2])


def test_what_is_left_over_in_a_pass_is_any_datum():
    chains, n, m = 30_000, 7, 3
    target = Target(Perceptron([2, 2]), Dataset.of(np.zeros((n, 2))))
    found = pieces(target, Streams(KEY, chains), m, (1, 2))
    left = n * (n - 1) // 2 - found.sum((0, 2))  # the one datum of 0..6 that is missing
    assert_counts(np.bincount(left, minlength=n), np.full(n, 1 / n), "left over")
    assert_counts(np.bincount(found[1, :, 0], minlength=n), np.full(n, 1 / n), "first of the second piece")
    again = pieces(target, Streams(KEY, chains), m, (3,))[0]
    pairs = np.bincount(n * found[0, :, 0] + again[:, 0], minlength=n * n)
    assert_counts(pairs, np.full(n * n, 1 / n**2), "two passes are independent")


@pytest.mark.long
def test_the_kernel_takes_its_gradients_on_the_pieces(rng):
    """Six steps of SGD over two passes, in a NumPy loop."""
    n, m = 10, 3
    x = rng.normal(size=n)
    model = FunctionModel(lambda theta, x: -0.5 * (x - theta[0]) ** 2, [0.0], single=True)
    target = Target(model, Dataset.of(x))
    kernel, draws = Unadjusted(Momentum(), m, passes=True), Draws(Streams(KEY, C), 0)
    assert kernel.refuses(target) is None
    assert compile_loop(kernel, target, KEY, 1) is None
    state = kernel.start(target, target.model.init(C, draws), draws)
    one = torch.ones(C, dtype=torch.float64)
    theta = np.zeros(C)
    for k in range(1, 7):
        draws.step = k
        state, info = kernel.step(target, state, Controls(0.03 * one, one, one), draws)
        index = target.batches.piece(Draws(Streams(KEY, C), k), m).numpy()
        theta = theta + 0.03 * n * (x[index].mean(1) - theta)
        assert state.evaluation.theta[:, 0].numpy() == pytest.approx(theta)
        assert info.n_grad.tolist() == info.batch_size.tolist() == [m] * C
        assert info.n_lik.tolist() == [0] * C


def test_passes_that_cannot_be_are_refused():
    data = Dataset.of(np.zeros((5, 2)))
    for m, settings in ((None, {}), (6, {}), (2, {"replacement": True}), (2, {"common_batch": True})):
        refused = Unadjusted(Momentum(), m, passes=True).refuses(Target(Perceptron([2, 2]), data, **settings))
        assert "passes=true needs m <= n" in refused
    assert Unadjusted(Momentum(), 5, passes=True).refuses(Target(Perceptron([2, 2]), data)) is None
    assert "valid minibatch size" in Unadjusted(Momentum(), 0).refuses(Target(Perceptron([2, 2]), data))


# ---------------------------------------------------------------- leaving the numbers

MOVES = {
    "langevin": SGLD(),
    "hamiltonian": SGHMC(0.1),
    "sgd": Momentum(),
    "momentum": Momentum(0.9),
    "rmsprop": RMSprop(20),
    "adagrad": Adagrad(100),  # its steps shrink: at a rate of 20 none gets to the cliff
    "adam": Adam(20),
}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", MOVES)
def test_a_chain_whose_gradient_is_no_number_stops_and_others_go_on(rng, name, value):
    """Only chain 1 begins where the gradient, after a while, is not a number on some minibatches: it stops for good."""

    class Cliff:
        dim, names = 2, ("a", "b")

        def log_prior(self, theta):
            return theta.new_zeros(len(theta))

        def log_lik(self, theta, rows):
            return theta[:, :1] + 0 * rows["x"]

        def log_lik_and_grad(self, theta, rows):
            grad = torch.ones_like(theta)
            grad[:, 1] = torch.where((theta[:, 0] > 2.0) & (rows["x"].mean(-1) > 0), value, grad[:, 1])
            return self.log_lik(theta, rows), grad

    target = Target(Cliff(), Dataset.of(rng.normal(size=20)))
    kernel = Unadjusted(MOVES[name], 5)
    starts = torch.tensor([[-500.0, 0.0], [1.0, 0.0], [-500.0, 3.0]], dtype=torch.float64)
    one = torch.ones(3, dtype=torch.float64)
    hot = Controls(0.002 * one, one, 0.01 * one)

    def follow(rows):
        draws = Draws(Streams(KEY, len(rows), first_chain=rows[0]), 0)
        state = kernel.start(target, starts[rows], draws)
        kept, stopped, accepted = [], [], []
        for k in range(1, 120):
            draws.step = k
            state, info = kernel.step(target, state, hot.each(lambda c: c[: len(rows)]), draws)
            kept.append(state.evaluation.theta)
            stopped.append(info.diverging)
            accepted.append(info.accepted)
        return torch.stack(kept), torch.stack(stopped), torch.stack(accepted)

    theta, stopped, accepted = follow([0, 1, 2])
    assert theta.isfinite().all()
    assert torch.equal(accepted, ~stopped)
    assert not stopped[:, [0, 2]].any()
    assert stopped[-1, 1]
    at = int(stopped[:, 1].int().argmax())
    assert at > 3
    assert stopped[at:, 1].all()
    assert (theta[at - 1 :, 1] == theta[at - 1, 1]).all()
    assert theta[at - 1, 1, 0] > 2  # where it last was
    for chain in (0, 2):
        alone, _, _ = follow([chain])
        assert torch.equal(alone[:, 0], theta[:, chain])
