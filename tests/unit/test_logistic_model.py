"""Logistic regression and the mean of a Gaussian, against NumPy and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import short_run

from mhrun import sample
from mhrun.data import Dataset
from mhrun.dynamics.sgld import SGLD
from mhrun.errors import Refusal, UserError
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models import logistic_sums
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.logistic_sums import compiled_sums_pay, sums
from mhrun.pairing.shared import Shared
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target


@pytest.fixture
def problem(rng):
    x = rng.integers(0, 256, (9000, 12)).astype(np.uint8)
    data = Dataset.of({"x": x, "y": rng.choice(np.array([-1, 1], np.int8), 9000)}, pixels=True)
    theta, to = torch.from_numpy(rng.normal(0, 2, (2, 5, 12)))
    return Logistic(12, prior_variance=0.5), data, theta, to


def exact(data, theta):
    """Log-likelihoods (C, n) by NumPy, in double."""
    x = data.fields["x"].numpy()
    x = x / 255 if x.dtype == np.uint8 else x.astype(float)
    return -np.logaddexp(0, -data.fields["y"].numpy() * (theta.numpy() @ x.T))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_logistic_log_likelihoods(problem, dtype):
    model, data, theta, _ = problem
    x = data.fields["x"] if dtype == torch.uint8 else data.fields["x"].to(dtype) / 255
    data = Dataset({"x": x, "y": data.fields["y"]})
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    expected = exact(data, theta)
    index = torch.arange(40).reshape(5, 8)
    own = model.log_lik(theta, data.rows(index)).numpy()
    assert own == pytest.approx(np.take_along_axis(expected, index.numpy(), 1), rel=tolerance, abs=tolerance)
    assert model.log_lik(theta, data.part(0, 9000)).numpy() == pytest.approx(
        expected, rel=tolerance, abs=tolerance
    )
    total = model.full_log_lik(data.fields)(theta)
    assert total.dtype == torch.float64
    assert total.numpy() == pytest.approx(expected.sum(1), rel=1e-12 if dtype == torch.float64 else 2e-7)


def test_logistic_far_out_is_finite(problem):
    model, data, theta, _ = problem
    values = model.log_lik(1e6 * theta, data.part(0, 100))
    assert torch.isfinite(values).all()
    assert values.numpy() == pytest.approx(exact(data, 1e6 * theta)[:, :100], rel=1e-5)


def test_logistic_bound_is_the_largest_term(problem):
    model, data, theta, to = problem
    expected = np.abs(exact(data, to) - exact(data, theta)).max(1)
    assert model.bound(data.fields)(theta, to).numpy() == pytest.approx(expected, rel=1e-5)


def test_gaussian_bound_is_the_largest_term(rng):
    model, data = GaussianMean(), Dataset.of(rng.normal(0.5, 1, 500).astype(np.float32))
    theta, to = torch.from_numpy(rng.normal(0, 1, (2, 8, 1)))
    rows = data.part(0, 500)
    expected = (model.log_lik(to, rows) - model.log_lik(theta, rows)).abs().amax(1)
    assert torch.allclose(model.bound(data.fields)(theta, to), expected, rtol=1e-10)


def test_gaussian_mean_is_a_density(rng):
    model = GaussianMean(prior_variance=2.0)
    x = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    values = model.log_lik(torch.tensor([[0.3]], dtype=torch.float64), {"x": x[None]})[0]
    assert float(torch.trapezoid(values.exp(), x)) == pytest.approx(1.0)
    assert float(model.log_prior(torch.tensor([[2.0]]))) == pytest.approx(-1.0)
    assert float(GaussianMean().log_prior(torch.tensor([[2.0]]))) == 0.0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_logistic_gradient(problem, dtype):
    model, data, theta, _ = problem
    x = data.fields["x"] if dtype == torch.uint8 else data.fields["x"].double() / 255
    target = Target(model, Dataset({"x": x, "y": data.fields["y"]}))
    index = torch.arange(40).reshape(5, 8)
    one = torch.ones(5, dtype=torch.float64)
    grad = target.gradients.minibatch(theta, index, one)
    reference = Target(model, Dataset({"x": data.fields["x"].double() / 255, "y": data.fields["y"]}))
    for d in range(model.dim):
        step = torch.zeros(12, dtype=torch.float64)
        step[d] = 1e-5

        def value(point):
            likelihood = model.log_lik(point, reference.data.rows(index)).mean(1) * reference.n
            return likelihood + model.log_prior(point)

        gradient = (value(theta + step) - value(theta - step)) / 2e-5
        assert grad[:, d].numpy() == pytest.approx(gradient.numpy(), rel=1e-4, abs=0.05)
    everything = target.gradients.minibatch(theta, torch.arange(9000).expand(5, -1), one)
    assert torch.allclose(target.gradients.full(theta, one), everything, rtol=1e-4, atol=0.05)


def test_logistic_pieces_on_bytes(problem):
    """The contract tests try the pieces on float64; here are the bytes that MNIST has."""
    model, data, theta, to = problem
    native = model.native(data.fields, full=True)
    expected, after = exact(data, theta), exact(data, to)
    index = np.arange(600)  # more rows than are summed before the float64 sum takes over
    for c in range(2):
        a, b = theta[c].numpy(), to[c].numpy()
        one, two = native.difference(native.args, index, 600, a, b)
        d = (after - expected)[c, :600]
        assert (one, two) == pytest.approx((d.sum(), (d**2).sum()), rel=1e-6, abs=1e-4)
        one, two = native.moments(native.args, index, 600, a)
        assert (one, two) == pytest.approx(
            (expected[c, :600].sum(), (expected[c, :600] ** 2).sum()), rel=1e-6
        )
        out = np.empty(12)
        native.gradient(native.args, index, 600, a, out)
        grad = data.fields["y"].numpy()[:600] * -np.expm1(expected[c, :600])
        assert out == pytest.approx(grad @ (data.fields["x"].numpy()[:600] / 255), rel=1e-5, abs=1e-4)
    few = Dataset({name: value[:200] for name, value in data.fields.items()})
    native = model.native(few.fields, full=True)
    assert native.total(native.args, theta[0].numpy()) == pytest.approx(expected[0, :200].sum(), rel=1e-6)


def test_labels_and_fields_of_another_kind_are_reported(problem):
    model, data, theta, _ = problem
    with pytest.raises(UserError, match=r"y = \+1 and -1"):
        model.log_lik(theta, {"x": data.fields["x"][None], "y": (data.fields["y"] > 0)[None].int()})
    with pytest.raises(UserError, match="fields x and y"):
        model.log_lik(theta, {"x": data.fields["x"][None]})
    with pytest.raises(UserError, match=r"set model\.dim"):
        Logistic(13).full_log_lik(data.fields)(torch.zeros(1, 13))


def test_logistic_starts():
    def start(**settings):
        return Logistic(**settings).init(40, Draws(Streams(derive_key(1, "start"), 40), 0))

    normal, uniform = start(), start(start="uniform")
    assert float(normal.std()) == pytest.approx(0.03, rel=0.03)
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(uniform.var()) == pytest.approx(1 / 12, rel=0.03)
    assert float(uniform.min()) > 0
    assert float(uniform.max()) < 1
    assert torch.equal(start(start="zeros"), torch.zeros(40, 784, dtype=torch.float64))
    assert torch.equal(normal[:7], Logistic().init(7, Draws(Streams(derive_key(1, "start"), 7), 0)))


def test_meaningless_settings_are_refused():
    for settings in ({"dim": 0}, {"start": "random"}, {"prior_variance": 0.0}, {"start_sd": 0.0}):
        with pytest.raises(Refusal):
            Logistic(**settings)
    with pytest.raises(Refusal):
        GaussianMean(prior_variance=-1.0)


@short_run
@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("decides", marks=pytest.mark.slow), "follows"])
def test_the_compiled_loop_does_the_same_on_bytes(request, problem, kind):
    """The acceptance test in machine code, and the dynamics as plain Python."""
    if kind == "follows":
        request.getfixturevalue("interpreted")
    model, data, _, _ = problem
    kernel = {
        "decides": MetropolisHastings(RandomWalk(), Shared(50), Metropolis()),
        "follows": Unadjusted(SGLD(), 50),
    }[kind]
    settings = {"step_size": 1e-3, "steps": 60, "warmup": 0, "chains": 3, "temperature": 30.0}
    plain, fused = (
        sample(model, data, kernel, executor=executor, **settings)["posterior"]
        for executor in ("torch", "compiled")
    )
    for name in plain.data_vars:
        # Plain torch has products in float32: in each of 60 steps of 1e-3 a gradient, the sum of 9,000 terms, is
        # rounded by some 5e-4, differently from one processor to the next.
        assert fused[name].values == pytest.approx(plain[name].values, abs=3e-5)


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("chains", [1, 2, 5, 7, 8, 10, 14, 20])
@pytest.mark.parametrize(
    ("kind", "machine_code"),
    [
        (torch.uint8, False),
        *(
            pytest.param(kind, True, marks=pytest.mark.slow)
            for kind in (torch.uint8, torch.float32, torch.float64)
        ),
    ],
)
def test_the_compiled_pass_over_all_data_is_the_sum_of_the_terms(
    rng, monkeypatch, request, kind, chains, registers, machine_code
):
    """Rows are taken in tiles and in threes or fours, chains in groups of two to five: numbers of neither."""
    pytest.importorskip("numba")
    monkeypatch.setattr(logistic_sums, "vector_registers", lambda: registers)
    dim = 1700 if machine_code else 3
    if not machine_code:
        request.getfixturevalue("interpreted")
    n = 2 * 256 + 131
    x = torch.from_numpy(rng.integers(0, 256, (n, dim))).to(kind) / (1 if kind == torch.uint8 else 255)
    x, y = x.to(kind), torch.from_numpy(rng.choice([-1, 1], n)).to(torch.int8)
    theta = torch.from_numpy(rng.normal(0, 0.03, (chains, dim)))
    assert compiled_sums_pay(theta, x) == machine_code
    scale = 1 / 255 if kind == torch.uint8 else 1.0
    wanted = torch.nn.functional.logsigmoid(y.double() * (theta @ (x.double() * scale).T)).sum(1)
    found = sums(theta, x, y, scale)
    assert torch.allclose(found, wanted, rtol=1e-12 if kind == torch.float64 else 1e-5)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(sums(theta, x, y, scale), found)
    finally:
        torch.set_num_threads(before)
    if machine_code:
        assert torch.equal(Logistic(dim).full_log_lik({"x": x, "y": y})(theta), found)
