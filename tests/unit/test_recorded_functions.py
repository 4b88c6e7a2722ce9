"""Functions replayed from recordings: the same bits as the functions themselves, or the functions themselves."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, MixtureSameFamily, Normal, StudentT

import mhrun
from mhrun.models import recorded
from mhrun.models.module_vmapped import Vmapped
from mhrun.models.recorded import Recorded

CALLS = 5
ROWS = 20


def points(seed: int, chains: int = 3, dim: int = 2) -> Tensor:
    return torch.randn(chains, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def counted(
    function: Callable[..., tuple[Tensor, ...]],
) -> tuple[Callable[..., tuple[Tensor, ...]], list[int]]:
    """Return a function that counts its calls in Python, and the count."""
    count = [0]

    def counting(*tensors: Tensor) -> tuple[Tensor, ...]:
        count[0] += 1
        return function(*tensors)

    return counting, count


def value_and_grad(theta: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """A log-likelihood under vmap with its gradient, a constant, views, work in place and several results."""
    weights = torch.linspace(0, 1, ROWS, dtype=torch.float64)

    def one(theta: Tensor) -> Tensor:
        terms = Normal(theta[0], theta[1].exp(), validate_args=False).log_prob(x)
        changed = (terms * weights).clone()
        changed[1:3] += theta[1]
        head, tail = changed.split([5, ROWS - 5])
        return torch.cat([head, tail.exp().log1p()])

    with torch.enable_grad():
        point = theta.detach().requires_grad_()
        value = torch.func.vmap(one)(point)
        (grad,) = torch.autograd.grad(value.sum(), point)
    return value.detach(), grad


def test_replays_have_the_same_bits_and_do_not_call_the_function() -> None:
    function, count = counted(value_and_grad)
    replayed = Recorded(function, CALLS)
    x = torch.linspace(-2, 2, ROWS, dtype=torch.float64)
    for seed in range(40):
        theta = points(seed)
        if seed == 30:
            theta[1, 0] = torch.nan
        for ours, direct in zip(replayed(theta, x * seed), value_and_grad(theta, x * seed), strict=True):
            assert torch.equal(ours.view(torch.int64), direct.view(torch.int64))
    assert count[0] == CALLS + 1 + recorded._CHECKED + 1  # one of them while its operations were recorded


def test_each_shape_is_recorded_by_itself() -> None:
    replayed = Recorded(lambda theta: (theta.square().sum(-1),), CALLS)
    for k in range(60):
        theta = points(k, chains=1 + k % 3)
        (found,) = replayed(theta.T.contiguous().T if k % 2 else theta)
        assert torch.equal(found, theta.square().sum(-1))


def test_what_reads_values_in_python_is_called_as_it_is() -> None:
    """Operations that differ from call to call would be replayed as those of one call."""
    function, count = counted(
        lambda theta: (theta * 2 if float(theta[0, 0]) > 0 else theta * float(theta[0, 1]),)
    )
    replayed = Recorded(function, CALLS)
    for seed in range(30):
        theta = points(seed)
        (found,) = replayed(theta)
        assert torch.equal(found, theta * 2 if theta[0, 0] > 0 else theta * theta[0, 1])
    assert count[0] >= 30


def test_random_functions_are_called_as_they_are() -> None:
    function, count = counted(lambda theta: (theta + torch.randn(2),))
    replayed = Recorded(function, CALLS)
    for seed in range(20):
        replayed(points(seed))
    assert count[0] >= 20


def test_gradients_and_transforms_see_the_operations() -> None:
    function, count = counted(lambda theta: (theta.square().sum(-1),))
    replayed = Recorded(function, CALLS)
    for seed in range(20):
        replayed(points(seed))
    before = count[0]
    theta = points(0).requires_grad_()
    (grad,) = torch.autograd.grad(replayed(theta)[0].sum(), theta)
    assert torch.equal(grad, 2 * theta)
    found = torch.func.jacrev(lambda one: replayed(one)[0])(points(1))
    assert torch.equal(found.sum(1), 2 * points(1))
    assert count[0] == before + 2


def test_large_tensors_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_VALUES", 100)
    function, count = counted(lambda theta: (theta.square().exp().sum(-1),))
    replayed = Recorded(function, CALLS)
    for seed in range(20):
        replayed(points(seed, chains=30))
    assert count[0] == 20 + 1


def test_errors_come_from_the_function() -> None:
    def failing(theta: Tensor) -> tuple[Tensor, ...]:
        raise ValueError("mine")

    replayed = Recorded(failing, 0)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            replayed(points(0))


def model() -> mhrun.FunctionModel:
    def log_lik(theta: mhrun.Named, rows: mhrun.Named) -> Tensor:
        near = Normal(theta.mean, theta.scale).log_prob(rows.y)
        return torch.logaddexp(near, StudentT(3.0, theta.mean, 1.0).log_prob(rows.y))

    return mhrun.FunctionModel(
        log_lik,
        parameters={
            "mean": "Normal(0, 2)",
            "scale": "HalfNormal(1)",
            "free": {"shape": 1, "constraint": "unit_interval"},
        },
        log_prior=lambda theta: Gamma(2.0, 1.0).log_prob(theta.scale),
    )


def calls_of(which: mhrun.FunctionModel, theta: Tensor, rows: dict[str, Tensor]) -> list[Tensor]:
    grad = which.log_prior_autograd(theta)
    assert grad is not None
    return [which.log_lik(theta, rows), which.log_prior(theta), *which.log_lik_and_grad(theta, rows), grad]


@pytest.mark.slow
def test_a_model_of_functions_is_replayed_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared rows and rows for each chain, with the gradients; the direct model is never recorded."""
    direct, ours = model(), model()
    for seed in range(recorded._CALLS + 20):
        generator = torch.Generator().manual_seed(seed)
        rows = {"y": torch.randn(1 + 2 * (seed % 2), 7, generator=generator, dtype=torch.float64)}
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(
                    mhrun.FunctionModel, "_replayed", lambda self, function, *args: function(*args)
                )
                expected = calls_of(direct, points(seed, dim=3), rows)
            found = calls_of(ours, points(seed, dim=3), rows)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    kept = [replays for each in ours._memo.recorded.values() for replays in each._replays.values()]
    assert len(kept) == 6  # two shapes of rows for two functions, and the prior with its gradient
    assert None not in kept


def test_a_model_with_recordings_can_be_copied() -> None:
    ours = mhrun.FunctionModel(_normal, [0.0])
    theta, rows = points(0, dim=1), {"x": torch.ones(1, 4, dtype=torch.float64)}
    for _ in range(recorded._CALLS + 10):
        ours.log_lik(theta, rows)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(twin.log_lik(theta, rows), ours.log_lik(theta, rows))
        assert twin._memo is not ours._memo


def _normal(theta: Tensor, rows: mhrun.Named) -> Tensor:
    return Normal(theta[0], 1.0).log_prob(rows.x)


def test_a_vmapped_module_is_replayed_with_the_same_bits() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model = mhrun.ModuleModel(module, evaluation="vmapped")
    rows = {"x": points(0, 6, 3)[None], "y": torch.tensor([[0, 1, 1, 0, 1, 0]])}
    for seed in range(recorded._CALLS + 10):
        theta = points(seed, dim=model.dim)
        found = (model.log_lik(theta, rows), *model.log_lik_and_grad(theta, rows))
        evaluator = model._memo.evaluators.current
        assert isinstance(evaluator, Vmapped)
        values, grad = evaluator._log_lik_and_grad_of(theta, rows)
        expected = (*evaluator._log_lik_of(theta, rows), values, grad)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    kept = [replays for each in evaluator._replays.recorded.values() for replays in each._replays.values()]
    assert len(kept) == 2
    assert None not in kept


def test_a_mixture_distribution_is_replayed() -> None:
    """torch's own distributions, with logsumexp and gathered components."""

    def mixture(theta: Tensor) -> tuple[Tensor, ...]:
        weights = torch.distributions.Categorical(logits=theta.new_zeros(2), validate_args=False)
        parts = Normal(theta[:2], 1.0, validate_args=False)
        return (
            torch.func.vmap(MixtureSameFamily(weights, parts, validate_args=False).log_prob)(
                torch.linspace(-1, 1, 5)
            ),
        )

    replay = recorded.recording(mixture, (torch.zeros(2),))
    assert replay is not None
    theta = torch.tensor([0.3, -0.7])
    assert torch.equal(replay(theta)[0], mixture(theta)[0])


@pytest.mark.parametrize("parameters", [None, {"m": "Normal(0, 1)"}])
def test_a_function_without_a_return_statement_is_named(parameters):
    def forgets(theta, rows):
        torch.zeros(3)

    settings = {"start": [0.0]} if parameters is None else {"parameters": parameters}
    model = mhrun.FunctionModel(forgets, **settings)
    with pytest.raises(
        mhrun.UserError, match=r"log_lik \(forgets\) \(test_recorded_functions.py, line \d+\) returns nothing"
    ):
        model.log_lik(torch.zeros(2, 1), {"x": torch.zeros(1, 3)})
    model = mhrun.FunctionModel(lambda theta, rows: rows.x, log_prior=lambda theta: 0.0, **settings)
    with pytest.raises(mhrun.UserError, match=r"must return one number, as a tensor, and returned a float"):
        model.log_prior(torch.zeros(2, 1))
