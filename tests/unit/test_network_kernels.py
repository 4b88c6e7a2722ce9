"""Kernels that follow a network's gradients: against loops written from the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from nets import KEY, C, M, conv

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.dynamics.sgld import SGLD as LangevinDynamics
from mhrun.errors import UserError
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models.logistic import Logistic
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.native import tensors, vectors
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.moving import Moving
from mhrun.pairing.shared import Shared
from mhrun.pairing.stored import Stored
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.random import MANY, Draws, Purpose, Streams
from mhrun.rules.austere import Austere
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.subsampling import MHSubLhd
from mhrun.target import Target
from mhrun.types import Controls, Evaluation

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


# ---------------------------------------------------------------- MINT with SGLD's proposal, from the paper


def lik(theta, x, y):
    return -math.log1p(math.exp(-y * sum(t * v for t, v in zip(theta, x, strict=True))))


def gradient_of(theta, x, y):
    z = y * sum(t * v for t, v in zip(theta, x, strict=True))
    return [y * v / (1 + math.exp(z)) for v in x]


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("ratio", [True, False])
@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_mint_with_the_proposal_of_sgld_is_the_papers(rng, common, ratio, temper):
    """log r = c [muhat(th') - muhat(th)] + (|z|^2 - |z'|^2) / 2, z' = (th - th' - eta ghat(th')) / s, the same I."""
    chains, steps, n, m, dim, variance = 3, 30, 30, 6, 2, 0.8
    x, y = rng.normal(0, 1.5, (n, dim)), rng.choice([-1.0, 1.0], n)
    data = Dataset.of({"x": x, "y": y})
    target = Target(Logistic(dim, prior_variance=variance), data, temper=temper, common_batch=common)
    kernel = MetropolisHastings(LangevinProposal(ratio=ratio), Shared(m), Metropolis())
    warm = 2.5
    rates = [0.02, 0.05, 0.1]  # per chain, on the full-data gradient
    one = torch.ones(chains, dtype=torch.float64)
    controls = Controls(torch.tensor(rates, dtype=torch.float64), warm * one, 1.7 * one)
    draws = Draws(Streams(KEY, chains), 0)
    state = kernel.start(target, torch.from_numpy(rng.normal(0, 0.5, (chains, dim))), draws)
    position = state.evaluation.theta.tolist()
    running, power = Draws(Streams(KEY, chains), 0), 1 / warm if temper == "posterior" else 1.0
    accepted = rejected = 0
    for k in range(1, steps + 1):
        draws.step = running.step = k
        state, info = kernel.step(target, state, controls, draws)
        index = running.index(n, m, replacement=False).tolist()
        z, u = running.normal(Purpose.PROPOSAL, dim).tolist(), running.uniform(Purpose.ACCEPT).tolist()
        for c in range(chains):
            batch = index[0] if common else index[c]
            eta, s = rates[c], math.sqrt(2 * rates[c] * 1.7)

            def mean(theta, batch=batch):
                return sum(lik(theta, x[i], y[i]) for i in batch) / m

            def gradient(theta, batch=batch):
                total = [sum(gradient_of(theta, x[i], y[i])[d] for i in batch) / m for d in range(dim)]
                prior = [-t / variance * power * warm for t in theta]
                return [n * g + p for g, p in zip(total, prior, strict=True)]

            here = position[c]
            there = [t + eta * g + s * e for t, g, e in zip(here, gradient(here), z[c], strict=True)]
            log_r = n / warm * (mean(there) - mean(here))
            log_r -= power * (sum(t * t for t in there) - sum(t * t for t in here)) / (2 * variance)
            if ratio:
                back = [(a - b - eta * g) / s for a, b, g in zip(here, there, gradient(there), strict=True)]
                log_r += (sum(e * e for e in z[c]) - sum(e * e for e in back)) / 2
            assert float(info.log_ratio[c]) == pytest.approx(log_r, abs=1e-9)
            if math.log(u[c]) < log_r:
                position[c], accepted = there, accepted + 1
            else:
                rejected += 1
            assert state.evaluation.theta[c].tolist() == pytest.approx(position[c], abs=1e-9)
        assert info.n_lik.tolist() == info.n_grad.tolist() == [2 * m] * chains
        assert info.batch_size.tolist() == [m] * chains
    assert min(accepted, rejected) >= 5


@pytest.mark.parametrize("pairing", [Shared(6), Stored(6), Moving(6)])
@pytest.mark.parametrize("proposal", [RandomWalk(), LangevinProposal(), ReversibleLangevinProposal(1.5)])
def test_each_chain_reads_the_common_minibatch_and_its_first_chain_goes_as_alone(rng, pairing, proposal):
    data = Dataset.of({"x": rng.normal(0, 1.5, (30, 2)), "y": rng.choice([-1.0, 1.0], 30)})
    start = torch.from_numpy(rng.normal(0, 0.5, (4, 2)))
    kernel, found = MetropolisHastings(proposal, pairing, Metropolis()), []
    for common, chains in ((True, 4), (False, 1)):
        target = Target(Logistic(2, prior_variance=0.8), data, common_batch=common)
        one, shapes = torch.ones(chains, dtype=torch.float64), set()
        requested = target.data.rows
        object.__setattr__(
            target.data, "rows", lambda index, a=requested, s=shapes: s.add(index.shape) or a(index)
        )
        draws = Draws(Streams(KEY, chains), 0)
        state, kept = kernel.start(target, start[:chains], draws), []
        for k in range(1, 25):
            draws.step = k
            state, info = kernel.step(target, state, Controls(0.1 * one, 2 * one, one), draws)
            kept.append(torch.cat([state.evaluation.theta[0], info.log_ratio[:1]]))
        assert shapes == {(1, 6)}
        object.__delattr__(target.data, "rows")
        found.append(torch.stack(kept))
    assert torch.allclose(*found, atol=1e-10)


def test_what_cannot_have_a_common_minibatch_is_refused(rng):
    data = Dataset.of({"x": rng.normal(size=(30, 2)), "y": rng.choice([-1.0, 1.0], 30)})
    target = Target(Logistic(2), data, common_batch=True)
    growing = MetropolisHastings(RandomWalk(), Growing(), MHMinibatch(2))
    assert "common_batch=false" in growing.refuses(target)
    assert MetropolisHastings(RandomWalk(), Shared(2), Metropolis()).refuses(target) is None
    assert compile_loop(MetropolisHastings(RandomWalk(), Shared(2), Metropolis()), target, KEY, 1) is None
    assert Unadjusted(LangevinDynamics(), 2).refuses(target) is None
    assert "common_batch=false" in Unadjusted(LangevinDynamics(), 2, passes=True).refuses(target)


# ---------------------------------------------------------------- long vectors


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [3, 4096, 5003])
def test_moves_of_many_parameters_are_those_of_few(rng, monkeypatch, dim, dtype, compiled):
    """Langevin's move and density by NumPy in double precision, whichever way they are computed."""
    if not compiled:
        monkeypatch.setattr(tensors, "available", lambda: False)
    theta, grad, to = torch.from_numpy(rng.normal(size=(3, C, dim))).to(dtype)
    step, noise = np.array([1e-3, 2e-2, 0.3]), np.array([1.0, 5.0, 0.1])
    controls = Controls(*(torch.from_numpy(v).to(dtype) for v in (step, np.ones(3), noise)))
    origin = Evaluation(theta, None, grad=grad)
    z = Draws(Streams(KEY, C), 4).normal(Purpose.PROPOSAL, dim, dtype=dtype).double().numpy()
    a, g, b = (v.double().numpy() for v in (theta, grad, to))
    tolerance = {"rel": 1e-6, "abs": 1e-5} if dtype == torch.float32 else {"rel": 1e-12, "abs": 1e-12}
    found = LangevinProposal().sample(origin, controls, Draws(Streams(KEY, C), 4))
    assert found.dtype == dtype
    wanted = a + step[:, None] * g + np.sqrt(2 * step * noise)[:, None] * z
    assert found.double().numpy() == pytest.approx(wanted, **tolerance)
    forward = -((b - a - step[:, None] * g) ** 2).sum(1) / (4 * step * noise)
    density = LangevinProposal().log_density(origin, to, controls)
    assert density.dtype == torch.float64
    tight = 1e-6 if dtype == torch.float32 else 1e-12
    assert density.numpy() == pytest.approx(forward, rel=tight)
    there = torch.from_numpy(rng.normal(size=(C, dim))).to(dtype)
    back = -((a - b - step[:, None] * there.double().numpy()) ** 2).sum(1) / (4 * step * noise)
    candidate = Evaluation(to, None, grad=there)
    ratio = LangevinProposal().log_density_ratio(origin, candidate, controls)
    assert ratio.dtype == torch.float64
    assert ratio.numpy() == pytest.approx(
        back - forward, rel=1e3 * tight, abs=10 * tight * abs(forward).max()
    )
    backward = -((b - a + step[:, None] * g) ** 2).sum(1) / (4 * step * noise * 4)
    mixed = np.logaddexp(forward, backward - dim * math.log(2)) - math.log(2)
    found = ReversibleLangevinProposal(2.0).log_density(origin, to, controls)
    assert found.numpy() == pytest.approx(mixed, rel=tight)
    ahead = torch.tensor([True, False, True])
    found = ReversibleLangevinProposal(2.0).moved(origin, ahead, controls, Draws(Streams(KEY, C), 4))
    sign, wide = np.where(ahead, 1.0, -1.0), np.where(ahead, 1.0, 2.0)
    wanted = a + (sign * step)[:, None] * g + (wide * np.sqrt(2 * step * noise))[:, None] * z
    assert found.double().numpy() == pytest.approx(wanted, **tolerance)


def test_numbers_drawn_ahead_are_not_overwritten():
    assert vectors.LONG >= MANY


class Wider(LangevinProposal):
    """A density that is not that of its moves."""

    def log_density(self, origin, to, controls):
        """Return the density at three times the noise."""
        return super().log_density(origin, to, controls) / 3


def test_the_ratio_of_densities_is_that_of_the_density_that_a_subclass_overrides(rng):
    a, b, g, h = torch.from_numpy(rng.normal(size=(4, C, 5)))
    points = Evaluation(a, None, grad=g), Evaluation(b, None, grad=h)
    controls = Controls(*(torch.full((C,), v, dtype=torch.float64) for v in (0.1, 1.0, 2.0)))
    plain = LangevinProposal().log_density_ratio(*points, controls)
    assert Wider().log_density_ratio(*points, controls).numpy() == pytest.approx(plain.numpy() / 3)
    assert LangevinProposal(ratio=False).log_density_ratio(*points, controls) is None


# ---------------------------------------------------------------- numbers that are none


class Broken:
    """A Gaussian, but to the right of 0.6 its log-likelihood or its gradient is not a number."""

    dim, names = 2, ("a", "b")

    def __init__(self, what, value, some=False):
        self.what, self.value, self.some = what, value, some

    def init(self, chains, draws):
        return torch.zeros(chains, 2, dtype=torch.float64)

    def log_prior(self, theta):
        return theta.new_zeros(len(theta))

    def log_lik(self, theta, rows):
        value = -0.5 * (rows["x"] - theta[:, :1]) ** 2 - 0.5 * theta[:, 1:] ** 2
        bad = theta[:, :1] > 0.6
        if self.some:
            bad = bad & (rows["x"] > 0)  # of some data only
        return torch.where(bad, self.value, value) if self.what == "lik" else value

    def log_lik_and_grad(self, theta, rows):
        right = (theta[:, 0] > 0.6)[:, None]
        grad = torch.stack([(rows["x"] - theta[:, :1]).mean(-1), -theta[:, 1]], 1)
        return self.log_lik(theta, rows), torch.where(
            right, self.value, grad
        ) if self.what == "grad" else grad


@pytest.mark.parametrize("proposal", [RandomWalk(), LangevinProposal(), ReversibleLangevinProposal(1.5)])
@pytest.mark.parametrize("pairing", [Shared(5), Stored(5), Moving(5), Full()])
@pytest.mark.parametrize(
    ("what", "value", "some"),
    [
        ("lik", torch.nan, False),
        ("lik", torch.inf, False),
        ("lik", torch.inf, True),
        ("grad", torch.nan, False),
        ("grad", torch.inf, False),
    ],
)
def test_no_chain_goes_where_there_are_no_numbers(rng, proposal, pairing, what, value, some):
    if what == "grad" and not proposal.gradients:
        return
    target = Target(Broken(what, value, some), Dataset.of(rng.normal(0.4, 1.0, 20)))
    kernel = MetropolisHastings(proposal, pairing, Metropolis())
    assert kernel.refuses(target) is None
    one = torch.ones(8, dtype=torch.float64)
    size = 0.05 if proposal.gradients else 0.8
    draws = Draws(Streams(KEY, 8), 0)
    state, counted, tried = kernel.start(target, target.model.init(8, draws), draws), 0, 0
    for k in range(1, 60):
        draws.step = k
        before = state.evaluation.theta
        state, info = kernel.step(target, state, Controls(size * one, 4 * one, 4 * one), draws)
        assert not (info.diverging & info.accepted).any()
        moved = (state.evaluation.theta != before).any(-1)
        assert torch.equal(moved, info.accepted)
        if what == "lik" and some and not isinstance(pairing, Full):
            # A minibatch without such a datum knows nothing of it: what it has seen must be numbers.
            assert info.log_ratio[info.accepted].isfinite().all()
        else:
            assert float(state.evaluation.theta[:, 0].max()) <= 0.6
        counted += int(info.diverging.sum())
        tried += int(info.accepted.sum())
    assert tried > 20
    if what == "lik" or value is torch.nan:  # infinitely long gradients make an honest zero density
        assert counted > 5


@pytest.mark.long
@pytest.mark.parametrize("rule", [Austere(m=10, epsilon=0.05), MHMinibatch(10), MHSubLhd(20)])
def test_a_rare_infinite_likelihood_is_no_reason_to_accept(rng, rule):
    """Even where a growing minibatch meets it late."""

    class Rare(Broken):
        def log_lik(self, theta, rows):
            value = -0.5 * (rows["x"] - theta[:, :1]) ** 2
            return torch.where((theta[:, :1] > 0.6) & (rows["x"] > 2.5), torch.inf, value)

    target = Target(Rare("lik", torch.inf), Dataset.of(rng.normal(size=1500)))
    kernel = MetropolisHastings(RandomWalk(), Growing(), rule)
    one = torch.ones(4, dtype=torch.float64)
    draws = Draws(Streams(KEY, 4), 0)
    state, counted = kernel.start(target, target.model.init(4, draws), draws), 0
    for k in range(1, 100):
        draws.step = k
        state, info = kernel.step(target, state, Controls(3 * one, 1000 * one, one), draws)
        assert not (info.accepted & ~info.log_ratio.isfinite()).any()
        counted += int(info.diverging.sum())
    assert counted > 0


# ---------------------------------------------------------------- on a GPU


@cuda
@pytest.mark.parametrize("pairing", [Shared(50), Stored(50), Moving(50)])
def test_a_step_on_the_gpu_is_that_of_the_cpu(rng, pairing):
    """Given the same point and the same minibatch; the device draws normals of its own."""
    x = torch.from_numpy(rng.integers(0, 256, (500, 30)).astype(np.uint8))
    data = Dataset({"x": x, "y": torch.from_numpy(rng.integers(0, 4, 500))})
    model = Perceptron([30, 20, 4], 1.0)
    theta = model.init(C, Draws(Streams(KEY, C), 0))
    index = Draws(Streams(KEY, C), 1).index(500, 50, replacement=False)
    found = {}
    for device in ("cpu", "cuda"):
        target = Target(model, data, device=device)
        warm = torch.full((C,), 2.0, device=device)
        point = target.evaluate(theta.to(device), index.to(device), warm)
        found[device] = [v.cpu().double() for v in (point.log_lik, point.grad, point.log_lik_mean)]
        kernel = MetropolisHastings(LangevinProposal(), pairing, Metropolis())
        draws = Draws(Streams(KEY, C, device), 0)
        state = kernel.start(target, theta.to(device), draws)
        draws.step = 1
        one = torch.ones(C, device=device)
        state, info = kernel.step(target, state, Controls(1e-5 * one, warm, warm), draws)
        assert state.evaluation.theta.device.type == device
        assert info.log_ratio.isfinite().all()
    for one, two in zip(found["cpu"], found["cuda"], strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"x": torch.zeros(1, 4, 3), "y": torch.zeros(1, 4)}, r"a datum is x \(3,\), y \(\)"),
        ({"x": torch.zeros(1, 4, 2), "y": torch.full((1, 4), 5)}, "out of bounds"),
        ({"x": torch.zeros(1, 4, 2)}, "class of a datum is the field y"),
    ],
)
def test_data_that_do_not_go_through_a_module_are_reported_in_a_line(rows, message):
    model = ModuleModel(torch.nn.Linear(2, 3))
    for method in (model.log_lik, model.log_lik_and_grad):
        with pytest.raises(UserError, match=message) as raised:
            method(torch.zeros(2, model.dim), rows)
        assert "\n" not in str(raised.value)


@cuda
def test_a_module_goes_to_the_gpu(rng):
    net = conv()
    rows = {
        "x": torch.from_numpy(rng.normal(size=(C, M, 36))),
        "y": torch.from_numpy(rng.integers(0, 3, (C, M))),
    }
    model = ModuleModel(net)
    theta = model.init(C, Draws(Streams(KEY, C), 0))
    there = {name: field.cuda() for name, field in rows.items()}
    for one, two in zip(
        model.log_lik_and_grad(theta, rows), model.log_lik_and_grad(theta.cuda(), there), strict=True
    ):
        assert torch.allclose(one, two.cpu(), atol=1e-4)
