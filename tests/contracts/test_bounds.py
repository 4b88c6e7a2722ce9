"""Bounds of models hold at random and at adversarial points, and Taylor polynomials are those of the log-likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.models.binomial_regression import BinomialRegression
from mhrun.models.bounds import constant_bounds
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.mixture_means import MixtureMeans
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.softmax_regression import SoftmaxRegression
from mhrun.models.tied_means import TiedMeans
from mhrun.models.user_function import UserFunction
from mhrun.types import Reference

RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 3)) * np.array([1.0, 0.3, 2.0])
SIGNS, COUNTS, CLASSES = RNG.choice([-1, 1], 12), RNG.poisson(2.0, 12), RNG.integers(0, 4, 12)


def sine(theta, rows):
    """Derivatives of every order are bounded by powers of |x|: that of order j by |x|^j."""
    return torch.sin((rows["x"] * theta[:, None]).sum(-1))


def sine_bounds(data, kind, reference):
    constants = [lambda rows, j=j: rows["x"].norm(dim=-1) ** j for j in (1, 2, 3)]
    return constant_bounds(constants, data, kind, reference)


SINE = FunctionModel(
    sine, np.zeros(3), batched=True, bounds=sine_bounds, bound_kinds=("difference", "taylor1", "taylor2")
)
CASES = {
    "logistic": (Logistic(3), {"x": X, "y": SIGNS}),
    "logistic_bytes": (Logistic(3), {"x": RNG.integers(0, 256, (12, 3), dtype=np.uint8), "y": SIGNS}),
    "robust": (RobustRegression(3, degrees=4.0, scale=0.7), {"x": X, "y": X.sum(1)}),
    "robust_cauchy": (RobustRegression(3, degrees=1.0), {"x": X, "y": X.sum(1)}),
    "poisson": (PoissonRegression(3), {"x": X, "y": COUNTS}),
    "poisson_exposure": (
        PoissonRegression(3),
        {"x": X, "y": COUNTS, "exposure": np.random.default_rng(5).uniform(0.1, 9.0, 12)},
    ),
    "binomial": (
        BinomialRegression(3),
        {"x": X, "y": COUNTS, "trials": COUNTS + np.random.default_rng(5).integers(0, 9, 12)},
    ),
    "softmax": (SoftmaxRegression(3, 4), {"x": X, "y": CLASSES}),
    "tied_means": (TiedMeans(), {"x": X.ravel()}),
    "mixture_means": (MixtureMeans(4), {"x": 3 * X.ravel()}),
    "gaussian_mean": (GaussianMean(), {"x": X.ravel()}),
    "function": (SINE, {"x": X}),
}
PAIRS = [(name, kind) for name, (model, _) in CASES.items() for kind in model.bound_kinds]
# Bounds that a search should nearly reach; the others are products of separate bounds.
TIGHT = {
    "logistic": 0.8,
    "logistic_bytes": 0.8,
    "robust": 0.8,
    "robust_cauchy": 0.8,
    "function": 0.8,
    "binomial": 0.8,
}


# The bytes as they are stored, for a model that converts them itself.
RAW = {id(CASES["logistic_bytes"][0]): Dataset.of(CASES["logistic_bytes"][1]).rows(torch.arange(12)[None])}


def a_reference(dim, seed=4):
    rng = np.random.default_rng(seed)
    root = np.tril(rng.normal(size=(dim, dim)) * 0.3) + np.eye(dim)
    return Reference(torch.from_numpy(0.3 * rng.normal(size=dim)), torch.from_numpy(root))


def whole(model, data):
    """Return the rows in float64, as a surrogate computes with them."""
    rows = {name: field[None] for name, field in Dataset.of(data).fields.items()}
    return model.in_float64(rows) if hasattr(model, "in_float64") else rows


def polynomial(model, theta, reference, rows, order):
    """Return the Taylor polynomial without its constant, by nested forward differentiation."""
    at, step = reference.repeat(len(theta), 1), theta - reference

    def first(point):
        return torch.func.jvp(lambda t: model.log_lik(t, rows), (point,), (step,))[1]

    if order == 1:
        return first(at)
    slope, curvature = torch.func.jvp(first, (at,), (step,))
    return slope + 0.5 * curvature


def ratios(model, rows, bounds, kind, reference, theta, to):
    """Return |term| / bound, (C, n), less what rounding may add."""
    values = [model.log_lik(to, rows), -model.log_lik(theta, rows)]
    if kind != "difference":
        order = int(kind[-1])
        expand = model.taylor if hasattr(model, "taylor") else lambda *args: polynomial(model, *args)
        given = RAW.get(id(model), rows)
        values += [-expand(to, reference.theta, given, order), expand(theta, reference.theta, given, order)]
    rounding = 1e-14 * sum(value.detach().abs() for value in values)
    return (sum(values).abs() - rounding).clamp_min(0) / (bounds.weights * bounds.width(theta, to)[:, None])


def points(model, rows, about, rng, count):
    """Return pairs of points: at all scales, near and far, along data and at random, and equal coordinates."""
    dim = model.dim
    scale = 10 ** rng.uniform(-2.5, 1.2, (count, 1))
    one = about + torch.from_numpy(scale * rng.normal(size=(count, dim)))
    two = about + torch.from_numpy(10 ** rng.uniform(-2.5, 1.2, (count, 1)) * rng.normal(size=(count, dim)))
    near = one + torch.from_numpy(10 ** rng.uniform(-2.5, -1, (count, 1)) * rng.normal(size=(count, dim)))
    lines = [(one, two), (one, near), (about.expand_as(two), two), (one, 2 * about - one)]
    if rows["x"].dim() == 3 and dim == rows["x"].shape[-1]:
        along = rows["x"][0, rng.integers(0, rows["x"].shape[1], count)].double()
        along = along / along.norm(dim=-1, keepdim=True).clamp_min(1e-9)
        lines += [(about + torch.from_numpy(scale) * along, about - torch.from_numpy(scale) * along)]
        lines += [(one, one + torch.from_numpy(scale) * along)]
    return (torch.cat([a for a, _ in lines]), torch.cat([b for _, b in lines]))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
@pytest.mark.parametrize("metric", ["euclid", "laplace"])
def test_no_point_exceeds_a_bound(name, kind, metric):
    """At random pairs, and where gradient ascent on the ratio leads from the worst of them."""
    model, data = CASES[name]
    rows = whole(model, data)
    reference = a_reference(model.dim)
    if metric == "euclid":
        reference = Reference(reference.theta)
    bounds = model.bounds(Dataset.of(data).fields, kind, reference)
    assert bounds.weights.dtype == torch.float64
    rng = np.random.default_rng(5)
    theta, to = points(model, rows, reference.theta, rng, 1000)
    if name == "gaussian_mean" and kind == "taylor2":
        assert float(bounds.weights.max()) == 0  # its remainder is 0, and there is no ratio
        return
    found = ratios(model, rows, bounds, kind, reference, theta, to).nan_to_num(0.0)
    worst = found.amax(1).topk(40).indices
    both = torch.stack((theta[worst], to[worst])).requires_grad_()
    optimiser = torch.optim.Adam([both], lr=0.02)
    largest = float(found.max())
    for _ in range(60):
        optimiser.zero_grad()
        ratio = ratios(model, rows, bounds, kind, reference, *both).amax(1).nan_to_num(0.0)
        largest = max(largest, float(ratio.detach().max()))
        (-ratio.sum()).backward()
        optimiser.step()
    assert largest <= 1 + 1e-6, f"{largest:.6f} of the bound"
    if metric == "euclid":
        assert largest > TIGHT.get(name, 0.1)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_two_classes_attain_the_bounds_of_softmax(order):
    """Along (1, -1) / sqrt(2) the log-likelihood is a logistic function of sqrt(2) t, and no bound can be lower."""
    model = SoftmaxRegression(1, 2)
    data = {"x": np.ones((1, 1)), "y": np.array([0])}
    rows = whole(model, data)
    kind = ("difference", "taylor1", "taylor2")[order - 1]
    bound = model.bounds(
        Dataset.of(data).fields, kind, Reference(torch.zeros(2, dtype=torch.float64))
    ).weights
    direction = torch.tensor([0.5**0.5, -(0.5**0.5)], dtype=torch.float64)
    t = torch.linspace(-30, 3, 4000, dtype=torch.float64, requires_grad=True)
    derivative = model.log_lik(t[:, None] * direction, rows)[:, 0]
    for _ in range(order):
        (derivative,) = torch.autograd.grad(derivative.sum(), t, create_graph=True)
    assert float(derivative.detach().abs().max()) == pytest.approx(float(bound), rel=1e-5)


def gradients(model, rows, reference, theta, kind):
    """Return the gradients (C, n, D) of the remainders in the reference's metric, and norms of the log-likelihoods'."""
    at = theta.detach().requires_grad_()
    expand = model.taylor if hasattr(model, "taylor") else lambda *args: polynomial(model, *args)
    whole_of = model.log_lik(at, rows)
    rest = whole_of - expand(at, reference.theta, RAW.get(id(model), rows), int(kind[-1]))
    found = []
    for value in (rest, whole_of):
        each = [torch.autograd.grad(v.sum(), at, retain_graph=True)[0] for v in value.unbind(1)]
        found.append(torch.stack(each, 1).detach())
    root = torch.eye(model.dim, dtype=torch.float64) if reference.root is None else reference.root
    return found[0] @ root, (found[1] @ root).norm(dim=-1)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kind in PAIRS if kind != "difference"])
@pytest.mark.parametrize("metric", ["euclid", "laplace"])
def test_no_gradient_of_a_remainder_exceeds_its_bound(name, kind, metric):
    model, data = CASES[name]
    rows, reference = whole(model, data), a_reference(model.dim)
    if metric == "euclid":
        reference = Reference(reference.theta)
    bounds = model.bounds(Dataset.of(data).fields, kind, reference)
    theta, to = points(model, rows, reference.theta, np.random.default_rng(5), 300)
    found, size = gradients(model, rows, reference, theta, kind)
    bound = bounds.weights * bounds.slope(theta)[:, None]
    excess = (found.norm(dim=-1) - 1e-13 * size) / bound
    if name == "gaussian_mean" and kind == "taylor2":
        assert float(found.abs().max()) < 1e-12
        return
    assert float(excess.nan_to_num(0.0).max()) <= 1 + 1e-6
    if metric == "euclid" and name in TIGHT:
        assert float(excess.nan_to_num(0.0).max()) > 0.5
    between = theta + torch.linspace(0, 1, len(theta), dtype=torch.float64)[:, None] * (to - theta)
    ends = torch.maximum(bounds.slope(theta), bounds.slope(to))
    assert bool((bounds.slope(between) <= ends * (1 + 1e-9)).all())  # on a line it is largest at an end


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_widths_are_symmetric(name, kind):
    model, data = CASES[name]
    reference = a_reference(model.dim)
    width = model.bounds(Dataset.of(data).fields, kind, reference).width
    rng = np.random.default_rng(6)
    one, two = (torch.from_numpy(rng.normal(size=(500, model.dim))) for _ in range(2))
    assert torch.equal(width(one, two), width(two, one))
    assert float(width(one, one).max()) == 0


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", [name for name, (model, _) in CASES.items() if hasattr(model, "taylor")])
def test_taylor_forms_are_the_polynomials(name, order):
    model, data = CASES[name]
    rows, about = Dataset.of(data).rows(torch.arange(12)[None]), a_reference(model.dim).theta
    theta = about + torch.from_numpy(np.random.default_rng(7).normal(size=(5, model.dim)))
    wanted = polynomial(model, theta, about, whole(model, data), order)
    assert torch.allclose(model.taylor(theta, about, rows, order), wanted, rtol=1e-9, atol=1e-11)
    each = {name: value.repeat_interleave(5, 0) for name, value in rows.items()}
    assert torch.allclose(model.taylor(theta, about, each, order), wanted, rtol=1e-9, atol=1e-11)


def test_a_constant_that_is_too_small_is_seen():
    """A negative control of the attack."""
    fields = Dataset.of({"x": X}).fields
    bounds = constant_bounds([0.3, None, None], fields, "difference", None)
    rows = whole(SINE, {"x": X})
    theta, to = points(SINE, rows, torch.zeros(3, dtype=torch.float64), np.random.default_rng(8), 500)
    assert float(ratios(SINE, rows, bounds, "difference", None, theta, to).nan_to_num(0.0).max()) > 1


def test_a_bound_on_a_second_derivative_is_ten_times_as_large_in_a_metric_of_tenths():
    """At distance 1 the gradient of a remainder is at most 1 in the Euclidean norm, and its root^T times it 10."""
    reference = Reference(torch.zeros(2).double(), 10 * torch.eye(2).double())
    bounds = constant_bounds([None, 1.0, None], {"x": torch.zeros(1)}, "taylor1", reference)
    assert bounds.slope(torch.tensor([[0.6, 0.8]]).double()).tolist() == pytest.approx([10.0])


def test_exposure_counts_in_bounds_without_a_reference():
    """A count of 0 with exposure 100 has the term 100 (exp(0.1) - 1) between 0 and 0.1."""
    data = {"x": [[1.0]], "y": [0.0], "exposure": [100.0]}
    fields = Dataset.of({name: np.array(value) for name, value in data.items()}).fields
    bounds = PoissonRegression(1).bounds(fields, "difference")
    width = bounds.width(torch.zeros(1, 1).double(), torch.full((1, 1), 0.1).double())
    assert float(bounds.weights * width) == pytest.approx(100 * 0.1 * np.exp(0.1))
    assert float(bounds.weights * width) > 100 * (np.exp(0.1) - 1)


@pytest.mark.parametrize(
    ("kind", "name"), [("difference", "lipschitz"), ("taylor1", "curvature"), ("taylor2", "third")]
)
def test_a_function_takes_bounds_on_its_derivatives(kind, name):
    """They give what `constant_bounds` gives; numbers and functions of rows, whose fields are attributes too."""
    order = ("lipschitz", "curvature", "third").index(name) + 1
    model = FunctionModel(
        sine, np.zeros(3), batched=True, **{name: lambda rows: rows.x.norm(dim=-1) ** order}
    )
    assert model.bound_kinds == (kind,)
    fields, reference = Dataset.of({"x": X}).fields, Reference(torch.ones(3, dtype=torch.float64))
    found, wanted = model.bounds(fields, kind, reference), sine_bounds(fields, kind, reference)
    one, two = torch.zeros(1, 3, dtype=torch.float64), torch.full((1, 3), 0.4, dtype=torch.float64)
    assert torch.equal(found.weights, wanted.weights)
    assert torch.equal(found.width(one, two), wanted.width(one, two))
    number = FunctionModel(sine, np.zeros(3), batched=True, **{name: 2.5})
    assert number.bounds(fields, kind, reference).weights.tolist() == [2.5] * len(X)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"third": [1.0]}, "third = [1.0] must be a number, or a function of the rows."),
        ({"lipschitz": "0.5"}, "lipschitz = '0.5' must be a number, or a function of the rows."),
        ({"third": -1.0}, "third = -1 bounds a norm; it must be a finite number, at least 0."),
        ({"third": 1.0, "bounds": sine_bounds}, "bounds and third both bound the terms; give one of them."),
    ],
)
def test_bounds_on_derivatives_that_are_refused(settings, message):
    with pytest.raises(Refusal) as refused:
        FunctionModel(sine, np.zeros(3), batched=True, **settings)
    assert str(refused.value) == message


def test_bounds_on_derivatives_go_with_parameters_without_constraints():
    with pytest.raises(Refusal, match="are for parameters without constraints"):
        FunctionModel(lambda theta, rows: theta.a * rows.x, parameters={"a": "HalfNormal(1)"}, third=1.0)


def test_a_function_in_place_of_a_name_is_refused():
    with pytest.raises(Refusal, match=r"give a function to mhrun\.FunctionModel"):
        UserFunction(sine, dim=3)
