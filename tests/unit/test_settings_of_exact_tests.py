"""Invalid settings of exact minibatch tests are refused in a line that names the setting and a remedy."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

import mhrun
from mhrun.data import Dataset
from mhrun.errors import Refusal, UserError
from mhrun.kernels import MetropolisHastings, ReplicaExchange
from mhrun.models.bounds import constant_bounds
from mhrun.models.function import FunctionModel
from mhrun.models.logistic import Logistic
from mhrun.models.user_function import UserFunction
from mhrun.pairing.full import Full
from mhrun.pairing.thinned import Thinned
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_ss import MHSS
from mhrun.rules.poisson_mh import PoissonMH
from mhrun.rules.smh import SMH
from mhrun.rules.tunamh import TunaMH
from mhrun.target import Target

NOT_POSITIVE = (0.0, -1.0, math.nan, -math.inf)
NOT_FINITE = (math.nan, math.inf, -1.0)


def one_line(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize(("rule", "name"), [(TunaMH, "chi"), (PoissonMH, "rate"), (MHSS, "gamma")])
def test_a_tuning_constant_is_a_finite_number(rule, name, value):
    with pytest.raises(Refusal) as error:
        rule(**{name: value})
    assert re.fullmatch(rf"{name} = -?\w+ must be (positive|at least 0) and finite\.", one_line(error))


@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize("rule", [TunaMH, PoissonMH, MHSS, SMH])
def test_a_limit_of_arrivals_is_positive(rule, value):
    with pytest.raises(Refusal) as error:
        rule(at_most=value)
    assert one_line(error).endswith("must be positive; leave it out for n.")
    rule(at_most=math.inf)


@pytest.mark.parametrize("name", ["lipschitz", "curvature", "third"])
@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_constant_of_a_bound_is_a_finite_number(name, value, monkeypatch):
    monkeypatch.setattr("mhrun.models.user_function.trusted_object", lambda *name: lambda theta, rows: None)
    with pytest.raises(Refusal) as error:
        UserFunction("own.log_lik", dim=1, **{name: value})
    assert one_line(error) == f"{name} = {value:g} bounds a norm; it must be a finite number, at least 0."


def failing(rows):
    raise KeyError("z")


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (lambda rows: rows["x"] * math.nan, "first derivative is nan for datum 0"),
        (lambda rows: rows["x"] - 2.0, "first derivative is -1 for datum 1"),
        (lambda rows: rows["x"][:2], r"one number for each of the 3 data, not \(2,\)"),
        (lambda rows: "large", "the bound on the first derivative failed"),
        (failing, "the bound on the first derivative failed: KeyError: 'z'"),
    ],
)
def test_a_function_that_returns_no_bounds_is_named(bound, message):
    data = {"x": torch.tensor([3.0, 1.0, 2.0])}
    with pytest.raises(UserError, match=message) as error:
        constant_bounds([bound, None, None], data, "difference", None)
    one_line(error)


def with_lipschitz(constant, log_lik):
    def bounds(data, kind, reference):
        return constant_bounds([constant, None, None], data, kind, reference)

    model = FunctionModel(log_lik, [0.0], bounds=bounds)
    return Target(model, Dataset({"x": torch.tensor([0.0, 1.0, 2.0])}))


def test_a_bound_of_0_must_hold():
    """No arrival is at such a datum, so that chains cannot find it wrong."""
    with pytest.raises(UserError, match="the bound of datum 1 is 0, and its term is 1 ") as error:
        with_lipschitz(0.0, lambda theta, rows: rows["x"] * theta[0]).bounded.bounds  # noqa: B018
    one_line(error)
    right = with_lipschitz(lambda rows: rows["x"], lambda theta, rows: rows["x"] * theta[0])
    assert right.bounded.bounds.weights.tolist() == [0.0, 1.0, 2.0]


BOUNDED = Target(Logistic(2, 1.0, "zeros"), Dataset({"x": torch.ones(5, 2), "y": torch.ones(5)}))
UNBOUNDED = Target(
    FunctionModel(lambda theta, rows: -((rows["x"] - theta[0]) ** 2), [0.0]), Dataset({"x": torch.ones(5)})
)


@pytest.mark.parametrize(
    ("kernel", "target", "remedy"),
    [
        (MetropolisHastings(RandomWalk(), Thinned(), TunaMH()), UNBOUNDED, "need bounds, .*lipschitz"),
        (MetropolisHastings(RandomWalk(), Full(), TunaMH()), BOUNDED, "choose pairing thinned"),
        (MetropolisHastings(RandomWalk(), Thinned(), Metropolis()), BOUNDED, "choose another pairing"),
        (MetropolisHastings(LangevinProposal(), Thinned(), SMH()), BOUNDED, "choose a proposal without"),
        (
            ReplicaExchange(
                MetropolisHastings(RandomWalk(), Full(), Metropolis()), Thinned(), TunaMH(), 2, 1
            ),
            BOUNDED,
            "choose another rule",
        ),
    ],
)
def test_thinned_arrivals_are_refused_where_they_cannot_be(kernel, target, remedy):
    reason = kernel.refuses(target)
    assert re.search(remedy, reason)
    assert "\n" not in reason


def test_rungs_of_a_ladder_may_thin_arrivals():
    inner = MetropolisHastings(RandomWalk(), Thinned(), TunaMH())
    assert ReplicaExchange(inner, Full(), Metropolis(), 2, 1).refuses(BOUNDED) is None


# --- Surrogates ---------------------------------------------------------------------------------------------


def expanded(log_lik, order=2, n=4, **how):
    model = FunctionModel(log_lik, [0.5], lambda theta: -0.5 * (theta**2).sum(-1), **how)
    return Target(model, Dataset({"x": torch.linspace(0, 1, n)}), surrogate=f"taylor{order}").surrogate


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("n", [1, 2])
def test_one_datum_and_one_parameter_have_an_expansion(n, order):
    surrogate = expanded(lambda theta, rows: -((rows["x"] - theta[0]) ** 2), order, n)
    mode = 2 * torch.linspace(0, 1, n).sum() / (1 + 2 * n)
    assert surrogate.reference.theta.item() == pytest.approx(mode.item(), abs=1e-6)


@pytest.mark.parametrize(
    "log_lik",
    [
        lambda theta, rows: -((rows["x"] - theta.detach()[0]) ** 2),
        lambda theta, rows: -rows["x"] + 0.0 * theta.detach()[0],
        lambda theta, rows: -((rows["x"] - theta[0].round().long()) ** 2).double(),
    ],
)
def test_a_surrogate_of_a_model_without_gradients_is_refused(log_lik):
    with pytest.raises(UserError, match=r"needs a gradient.*choose surrogate=none") as error:
        expanded(log_lik).reference  # noqa: B018
    one_line(error)


class Square(torch.autograd.Function):
    """A square that can be differentiated once, as some of torch's functions."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return SquareBackward.apply(*ctx.saved_tensors, grad)


class SquareBackward(torch.autograd.Function):
    """Its derivative."""

    @staticmethod
    def forward(ctx, x, grad):
        return 2 * x * grad

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("derivative for square_backward is not implemented")


def test_a_surrogate_needs_two_derivatives():
    def log_lik(theta, rows):
        return -Square.apply(rows["x"] - theta)

    with pytest.raises(UserError, match=r"two derivatives.*choose surrogate=none") as error:
        expanded(log_lik, batched=True).reference  # noqa: B018
    one_line(error)


def test_a_flat_posterior_has_no_expansion():
    model = FunctionModel(lambda theta, rows: 0.0 * rows["x"] * theta[0], [0.0])
    target = Target(model, Dataset({"x": torch.ones(3)}), surrogate="taylor1")
    with pytest.raises(UserError, match="the prior may be improper") as error:
        target.surrogate.reference  # noqa: B018
    one_line(error)


# --- Layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2)), "layer 2"),
        (nn.BatchNorm1d(3), "the module itself"),
    ],
)
def test_a_layer_is_called_a_layer(module, where):
    data = {"x": torch.randn(20, 3), "y": torch.zeros(20, dtype=torch.long)}
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    with pytest.raises(Refusal, match=rf"BatchNorm in training mode \({where}\)"):
        mhrun.sample(module, data, kernel, steps=10, step_size=0.1)
