"""Surrogates: Taylor expansions about the mode as control variates, and what a run does with bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from kit import advance, begin, controls, short_run

import mhrun
from mhrun.data import Dataset
from mhrun.errors import Refusal, UserError
from mhrun.kernels import MetropolisHastings
from mhrun.models.bounds import constant_bounds
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.tied_means import TiedMeans
from mhrun.native.forms import ROUNDING
from mhrun.pairing.growing import Growing
from mhrun.pairing.shared import Shared
from mhrun.pairing.thinned import Thinned
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules import thinning
from mhrun.rules.austere import Austere
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.smh import SMH
from mhrun.rules.tunamh import TunaMH
from mhrun.store.reference import prepare_reference
from mhrun.store.sharing import REFERENCE
from mhrun.target import Target
from mhrun.types import Reference

RNG = np.random.default_rng(12)
N = 400
X = RNG.normal(size=(N, 3)) * np.array([1.0, 0.5, 0.2])
Y = np.where(RNG.random(N) < 1 / (1 + np.exp(-X.sum(1))), 1, -1)
BYTES = RNG.integers(0, 256, (N, 3), dtype=np.uint8)


def plain_logistic(theta, rows):
    """The logistic log-likelihood without fast forms, for automatic differentiation."""
    eta = (rows["x"].double() * theta[:, None]).sum(-1)
    return torch.nn.functional.logsigmoid(rows["y"] * eta)


MODELS = {
    "float64": (Logistic(3, 1.0, "zeros"), {"x": X, "y": Y}),
    "float32": (Logistic(3, 1.0, "zeros"), {"x": X.astype(np.float32), "y": Y}),
    "bytes": (Logistic(3, 1.0, "zeros"), {"x": BYTES, "y": Y}),
    "function": (
        FunctionModel(plain_logistic, [0.0] * 3, lambda t: -0.5 * t.square().sum(-1), batched=True),
        {"x": X, "y": Y},
    ),
}


@pytest.fixture(params=[(name, order) for name in MODELS for order in (1, 2)], ids=str)
def target(request):
    name, order = request.param
    model, data = MODELS[name]
    return Target(model, Dataset.of(data, pixels=True), surrogate=f"taylor{order}")


def points(target, count=6):
    about = target.surrogate.reference.theta
    return about + torch.from_numpy(0.3 * np.random.default_rng(4).normal(size=(count, 3)))


def test_the_reference_is_the_mode_and_its_metric_the_laplace_approximation(target):
    reference = target.surrogate.reference
    theta = reference.theta.clone().requires_grad_()

    def log_density(t):
        rows = MODELS["function"][1]
        x, y = (torch.from_numpy(np.asarray(rows[k])).double() for k in ("x", "y"))
        if target.data.fields["x"].dtype == torch.uint8:
            x = torch.from_numpy(BYTES).double() / 255
        return torch.nn.functional.logsigmoid(y * (x @ t)).sum() - 0.5 * t.square().sum()

    (slope,) = torch.autograd.grad(log_density(theta), theta)
    hessian = torch.autograd.functional.hessian(log_density, reference.theta)
    off = (reference.root.T @ slope).norm()
    assert float(off) < 0.02
    assert torch.allclose(reference.root @ reference.root.T, torch.linalg.inv(-hessian), rtol=1e-5)
    assert target.surrogate.n_grad >= N * 4


@pytest.mark.parametrize("order", [1, 2])
def test_terms_of_a_function_that_is_linear_in_parameters_or_ignores_them_are_exact(order):
    def log_lik(theta, rows):
        return rows["x"] @ theta[:2] - 0.5 * rows["y"] * theta[0] ** 2

    prior = {"log_prior": lambda theta: -0.5 * theta.square().sum(), "start": [0.0] * 3}
    rng = np.random.default_rng(2)
    data = {"x": rng.normal(size=(9, 2)), "y": np.r_[np.zeros(4), np.ones(5)]}
    surrogate = Target(
        FunctionModel(log_lik, **prior), Dataset.of(data), surrogate=f"taylor{order}"
    ).surrogate
    reference, theta = surrogate.reference.theta, torch.from_numpy(rng.normal(size=(5, 3)))
    found = surrogate.terms(theta, Dataset.of(data).part(0, 9))
    step = theta - reference
    y = torch.from_numpy(data["y"])
    wanted = step[:, :2] @ torch.from_numpy(data["x"]).T - y * (reference[0] * step[:, :1])
    wanted = wanted - (0.5 * y * step[:, :1] ** 2 if order == 2 else 0.0)
    assert torch.allclose(found, wanted, atol=1e-12)
    assert not found.requires_grad


def test_the_known_sum_is_that_of_the_terms(target):
    theta = points(target)
    rows = target.data.part(0, N)
    assert torch.allclose(
        target.surrogate.total(theta), target.surrogate.terms(theta, rows).sum(-1), rtol=1e-9, atol=1e-9
    )


def test_rounding_is_relative_to_the_log_likelihoods_and_the_expansions(target):
    one, two = points(target)[:3], points(target)[3:]
    index = torch.arange(N)[None].expand(3, -1)
    rows = target.data.part(0, N)
    plain = MODELS["function"][0]
    exact = {"x": rows["x"].double() / (255 if rows["x"].dtype == torch.uint8 else 1), "y": rows["y"]}
    size = sum(
        plain.log_lik(theta, exact).abs() + target.surrogate.terms(theta, rows).abs() for theta in (one, two)
    )
    found = target.bounded.terms(one, two, index)[1] / ROUNDING
    assert torch.allclose(found, size, rtol=1e-9)


@pytest.mark.parametrize("mean", [1.0, 1e5, 1e8])
def test_rounding_of_large_counts_is_that_of_the_summands(mean):
    """log p of a Poisson count of 10^8 is about -10, and the difference of numbers of 10^9."""
    y = np.random.default_rng(3).poisson(mean, 50).astype(float)
    data = Dataset.of({"x": np.ones((50, 1)), "y": y})
    target = Target(PoissonRegression(1, 1e4), data, surrogate="taylor1")
    mode, sd = target.surrogate.reference.theta, (50 * mean) ** -0.5
    one, two = (mode[None] + shift * sd for shift in (0.3, -1.1))
    terms, allowed = target.bounded.terms(one, two, torch.arange(50)[None])
    eta, to, at = (np.longdouble(float(theta)) for theta in (one, two, mode))
    exact = y * (to - eta) - (np.exp(to) - np.exp(eta)) - (y - np.exp(at)) * (to - eta)
    assert (np.abs(terms[0].numpy() - exact) <= allowed[0].numpy()).all()
    assert (allowed <= 1e-11 * mean * max(1.0, np.log(mean))).all()


def test_terms_and_known_part_add_up_to_the_difference(target):
    one, two = points(target)[:3], points(target)[3:]
    index = torch.arange(N)[None].expand(3, -1)
    plain = Target(target.model, target.data)
    wanted = (plain.full_log_lik(two) - plain.full_log_lik(one)) / N
    found = target.differences.known(one, two) + target.differences.terms(one, two, index).mean(-1)
    tolerance = 1e-12 if target.data.fields["x"].dtype == torch.float64 else 2e-7
    assert torch.allclose(found, wanted, rtol=0, atol=tolerance)
    assert torch.allclose(
        target.differences.full_moments(one, two)[0],
        target.differences.terms(one, two, index).mean(-1),
        atol=1e-13,
    )
    assert torch.allclose(
        target.differences.full_largest(one, two), target.differences.terms(one, two, index).abs().amax(-1)
    )
    assert float(target.differences.terms(one, two, index).var(-1).max()) < 0.05 * float(
        plain.differences.terms(one, two, index).var(-1).max()
    )


@pytest.mark.parametrize("pairing", ["shared", "langevin", "growing"])
def test_log_ratios_with_a_surrogate_have_less_noise_and_the_same_mean(pairing):
    """The log-ratio of a whole minibatch is exact; that of a part is nearer to it with a surrogate."""
    model, data = MODELS["float64"]
    noise = {}
    for name in ("none", "taylor1", "taylor2"):
        target = Target(model, Dataset.of(data, pixels=True), surrogate=name)
        proposal = LangevinProposal() if pairing == "langevin" else RandomWalk()

        def kernel(m, proposal=proposal):
            if pairing == "growing":
                return MetropolisHastings(proposal, Growing(), Austere(m, 1e-9))
            return MetropolisHastings(proposal, Shared(m), Metropolis())

        step, begins = (0.002, 0.3) if pairing == "langevin" else (0.1, 0.3)
        theta = np.full((300, 3), begins)
        found = []
        for m in (N, 40) if pairing != "growing" else (N,):
            state, draws = begin(kernel(m), target, theta, derive_key(1, "noise"))
            _, _, infos = advance(kernel(m), target, state, controls(step, 1.0, chains=300), draws, 1)
            found.append(infos[0].log_ratio)
            if pairing == "shared" and m == 40:
                assert int(infos[0].n_lik[0]) == (80 if name == "none" else 120)
        noise[name] = found
    assert torch.allclose(noise["none"][0], noise["taylor1"][0], atol=1e-9)
    assert torch.allclose(noise["none"][0], noise["taylor2"][0], atol=1e-9)
    if pairing == "shared":
        spread = {name: float((found[1] - found[0]).std()) for name, found in noise.items()}
        assert spread["taylor1"] < 0.5 * spread["none"]
        assert spread["taylor2"] < 0.7 * spread["taylor1"]


def test_unsuitable_targets_are_refused(monkeypatch):
    monkeypatch.setattr("mhrun.target.reference._SCALINGS", 0)  # further searches would take seconds
    flat = FunctionModel(lambda t, rows: rows["x"] * t[:, :1], [0.0], batched=True)
    unbounded = Target(flat, Dataset.of(np.ones(20)), surrogate="taylor1")
    with pytest.raises(UserError, match="no mode"):
        unbounded.differences.known(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
    with pytest.raises(Refusal, match="surrogate = 'taylor3' is unknown"):
        Target(flat, Dataset.of(np.ones(20)), surrogate="taylor3")
    kernel = MetropolisHastings(RandomWalk(), Thinned(), TunaMH())
    assert "FunctionModel has none" in kernel.refuses(Target(flat, Dataset.of(np.ones(20))))
    tied = Target(TiedMeans(), Dataset.of(X[:, 0]), surrogate="taylor2")
    assert "TiedMeans has no bounds for surrogate=taylor2; choose surrogate=none" in kernel.refuses(tied)
    wrong = MetropolisHastings(RandomWalk(), Shared(10), TunaMH())
    assert "choose pairing thinned" in wrong.refuses(Target(GaussianMean(), Dataset.of(X[:, 0])))
    moves = MetropolisHastings(LangevinProposal(), Thinned(), TunaMH())
    assert "without gradients" in moves.refuses(Target(GaussianMean(), Dataset.of(X[:, 0])))


def a_model(constant):
    def bounds(data, kind, reference):
        return constant_bounds([constant, None, None], data, kind, reference)

    return FunctionModel(lambda t, rows: torch.cos(t[:, :1] - rows["x"]), [0.0], batched=True, bounds=bounds)


@short_run
def test_a_bound_that_does_not_hold_stops_the_run(tmp_path):
    kernel = MetropolisHastings(RandomWalk(), Thinned(), TunaMH(0.01))
    settings = {"step_size": 0.3, "steps": 50, "warmup": 0, "chains": 2, "start": [0.0], "executor": "torch"}
    data = {"x": X[:, 0]}
    mhrun.sample(a_model(1.0), data, kernel, **settings, temperature=100.0)
    with pytest.raises(
        UserError, match=r"terms exceeded their bounds, the first in step \d+: .* do not hold"
    ):
        mhrun.sample(a_model(0.2), data, kernel, **settings, temperature=100.0)


@short_run
@pytest.mark.parametrize("rule", [TunaMH(1.0), SMH()])
def test_a_likelihood_of_zero_exceeds_every_bound(rule):
    """What rounding may add to an infinite term is infinite: it must make no room, or chains leave the support."""

    def log_lik(theta, rows):
        value = torch.cos(theta[:, :1] - rows["x"])
        return torch.where(theta[:, :1].abs() > 0.5, -torch.inf, value)

    def bounds(data, kind, reference):
        return constant_bounds([1.0, None, None], data, kind, reference)

    model = FunctionModel(log_lik, [0.0], batched=True, bounds=bounds)
    kernel = MetropolisHastings(RandomWalk(), Thinned(), rule)
    with pytest.raises(UserError, match="exceeded their bounds"):
        mhrun.sample(model, {"x": X[:5, 0]}, kernel, step_size=0.5, steps=300, warmup=0, chains=4, start=[0.0],
                     executor="torch")  # fmt: skip


@short_run
def test_the_reference_is_stored_with_a_run_and_its_cost_counted(tmp_path):
    model, data = MODELS["float64"]
    kernel = MetropolisHastings(RandomWalk(), Thinned(), SMH())
    mhrun.sample(
        model,
        data,
        kernel,
        step_size=0.1,
        steps=20,
        warmup=0,
        chains=2,
        surrogate="taylor2",
        executor="torch",
        folder=tmp_path / "run",
    )
    with np.load(tmp_path / "run" / REFERENCE) as stored:
        theta = stored["theta"]
    target = Target(model, Dataset.of(data, pixels=True), surrogate="taylor2")
    assert theta == pytest.approx(target.surrogate.reference.theta.numpy(), abs=1e-6)
    summary = json.loads((tmp_path / "run" / "done.json").read_text())
    assert summary["reference_n_grad"] == target.surrogate.n_grad > N


def test_another_reference_replaces_all_that_was_computed_from_the_first(tmp_path, rng):
    """A trial computes bounds before a resumed run reads the reference that another machine has stored."""
    data = Dataset.of({"x": rng.normal(size=(50, 2)), "y": rng.choice([-1.0, 1.0], 50)})
    target, fresh = (Target(Logistic(2, 2.0), data, surrogate="taylor2") for _ in range(2))
    stored = target.surrogate.pack()
    stored["theta"], stored["root"] = stored["theta"] + 0.05, 2 * stored["root"]
    np.savez(tmp_path / REFERENCE, **{name: value.numpy() for name, value in stored.items()})
    assert target.quadratic.about.tolist() != stored["theta"].tolist()
    before = float(target.bounded.table.total)  # computed now, and kept
    for each in (target, fresh):
        prepare_reference(each, tmp_path)
    assert target.quadratic.about.tolist() == stored["theta"].tolist()
    assert (target.bounded.bounds.weights == fresh.bounded.bounds.weights).all()
    assert target.bounded.table.total == fresh.bounded.table.total
    assert float(fresh.bounded.table.total) == pytest.approx(8 * before)  # of third derivatives


def test_arrivals_do_not_depend_on_how_they_are_cut_into_parts(monkeypatch):
    """Nor on the neighbours of a chain."""
    target = Target(GaussianMean(1.0), Dataset.of(X[:, 0]))
    kernel = MetropolisHastings(RandomWalk(), Thinned(), TunaMH(0.1))
    runs = []
    for first, held in ((32, 1 << 20), (3, 1 << 20), (2, 8)):
        monkeypatch.setattr(thinning, "_DRAWN_AT_ONCE", first)
        monkeypatch.setattr(thinning, "_HELD", held)
        state, draws = begin(kernel, target, np.zeros((4, 1)), derive_key(2, "parts"))
        _, thetas, infos = advance(kernel, target, state, controls(0.2, 8.0, chains=4), draws, 15)
        runs.append((thetas, torch.stack([info.log_ratio for info in infos])))
    assert max(info.batch_size.max() for info in infos) > 8
    for thetas, log_ratios in runs[1:]:
        assert np.array_equal(thetas, runs[0][0])
        assert torch.equal(log_ratios, runs[0][1])
    streams = Streams(derive_key(2, "parts"), 1, first_chain=2)
    state = kernel.start(target, torch.zeros(1, 1).double(), Draws(streams, 0))
    _, alone, _ = advance(kernel, target, state, controls(0.2, 8.0, chains=1), Draws(streams, 0), 15)
    assert np.array_equal(alone[0], runs[0][0][2])


def test_bounds_do_not_grow_with_the_data_and_are_those_of_the_paper():
    """Arrivals per step of 10-d logistic regression at the optimal random walk (Cornish et al. 2019, figure 1).

    The mean sum of the paper's bounds is about 374 and 70 at n = 2^10 for orders 1 and 2; it grows like n^0 and n^-1/2.
    """
    dim, found = 10, []
    for log_n in (10, 12, 16):
        rng = np.random.default_rng(1)
        x = rng.normal(size=(2**log_n, dim))
        y = np.where(rng.random(2**log_n) < 1 / (1 + np.exp(-x.sum(1))), 1, -1)
        target = Target(Logistic(dim, 1.0, "zeros"), Dataset.of({"x": x, "y": y}), surrogate="taylor1")
        theta, root = target.surrogate.reference
        away = torch.from_numpy(rng.normal(size=(2000, dim))) @ root.T
        to = away + 2.38 / dim**0.5 * torch.from_numpy(rng.normal(size=(2000, dim))) @ root.T
        for order in (1, 2):
            bounds = target.model.bounds(target.data.fields, f"taylor{order}", Reference(theta))
            ends = sum(point.norm(dim=1) ** (order + 1) for point in (away, to)) / (1, 2, 6)[order]
            paper = float(ends.mean() * bounds.weights.sum())
            ours = float(bounds.width(theta + away, theta + to).mean() * bounds.weights.sum())
            assert ours < (0.7, 0.9)[order - 1] * paper
            found.append(paper)
    assert found[:2] == pytest.approx([374, 70], rel=0.1)  # of other data
    slopes = np.log(np.divide(found[4:], found[2:4])) / np.log(2**4)
    assert slopes == pytest.approx([0, -0.5], abs=0.05)
