"""Fully connected modules in the compiled loop give what the module itself gives."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import mhrun
from mhrun.engine.execution import module_evaluation
from mhrun.engine.method import Method
from mhrun.errors import Refusal, UserError
from mhrun.native import available

pytestmark = pytest.mark.skipif(not available(), reason="numba is missing")

SHAPES = {"flat": (12,), "image": (1, 3, 4)}


def network(shape, first=nn.ReLU, second=nn.ReLU):
    """Two hidden layers."""
    layers = [nn.Linear(12, 6), first(), nn.Linear(6, 5), second(), nn.Linear(5, 3)]
    return nn.Sequential(*([nn.Flatten()] if len(shape) > 1 else []), *layers)


def models(shape, *activations):
    """The same network by itself and in the loop."""
    net = network(shape, *activations)
    return tuple(mhrun.ModuleModel(net, evaluation=how) for how in ("bound", "compiled"))


def rows_of(shape, chains, m=40, *, dtype=torch.float32):
    """Return data of some chains, or the same for all."""
    torch.manual_seed(1)
    x = torch.randint(0, 256, (chains, m, *shape)).to(dtype)
    return {"x": x if dtype == torch.uint8 else x / 100, "y": torch.randint(0, 3, (chains, m))}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("of_rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.float64])
@pytest.mark.parametrize(("state", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_log_likelihoods_and_gradients_are_those_of_the_module(shape, of_rows, dtype, state, rounding):
    """Of chains that share a minibatch and of chains with their own; bytes are pixels."""
    bound, compiled = models(shape)
    rows = rows_of(shape, of_rows, dtype=dtype)
    theta = 0.5 * torch.randn(3, bound.dim, dtype=state)
    ours = (compiled.log_lik(theta, rows), *compiled.log_lik_and_grad(theta, rows))
    modules = (bound.log_lik(theta, rows), *bound.log_lik_and_grad(theta, rows))
    for one, other in zip(ours, modules, strict=True):
        torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)


@pytest.mark.filterwarnings("error:the module's log-likelihood or gradient")  # then the loop is not used
@pytest.mark.parametrize("activations", [(nn.Tanh, nn.Tanh), (nn.Sigmoid, nn.Tanh), (nn.ReLU, nn.Sigmoid)])
@pytest.mark.parametrize(("state", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_other_activations(activations, state, rounding):
    """Of weights small and large, so that they are linear and at their limits."""
    bound, compiled = models((12,), *activations)
    rows, theta = rows_of((12,), 1), torch.randn(3, bound.dim, dtype=state)
    theta *= torch.tensor([0.01, 0.5, 20.0])[:, None].to(state)
    ours = (compiled.log_lik(theta, rows), *compiled.log_lik_and_grad(theta, rows))
    modules = (bound.log_lik(theta, rows), *bound.log_lik_and_grad(theta, rows))
    for one, other in zip(ours, modules, strict=True):
        torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("state", [torch.float32, torch.float64])
def test_what_is_not_finite_is_not_finite(state, activation):
    """A NaN in one chain's weights, and one that makes outputs infinite."""
    bound, compiled = models((12,), activation, activation)
    rows = rows_of((12,), 1)
    theta = torch.randn(3, bound.dim, dtype=state)
    theta[0, 3], theta[1, -1] = torch.nan, torch.inf
    for one, other in zip(
        compiled.log_lik_and_grad(theta, rows), bound.log_lik_and_grad(theta, rows), strict=True
    ):
        assert torch.equal(one[:2].isfinite(), other[:2].isfinite())
        torch.testing.assert_close(one[2], other[2], rtol=1e-4, atol=1e-5)


def _calls(monkeypatch):
    """Count the calls of the compiled loop."""
    from mhrun.models import perceptron_native

    calls = []
    for name in ("log_lik", "log_lik_and_grad"):
        function = getattr(perceptron_native, name)
        monkeypatch.setattr(
            perceptron_native, name, lambda *given, f=function: (calls.append(len(given[0])), f(*given))[1]
        )
    return calls


def test_the_loop_is_used_and_first_compared(monkeypatch):
    """One datum of one chain is compared with the module."""
    calls = _calls(monkeypatch)
    _, compiled = models((12,))
    rows, theta = rows_of((12,), 1), torch.randn(3, compiled.dim)
    compiled.log_lik(theta, rows)
    compiled.log_lik_and_grad(theta, rows)
    assert calls == [1, 3, 3]


def test_a_first_point_that_is_not_finite_is_no_comparison(monkeypatch):
    """The module is called there, and the loop compared at the next."""
    calls = _calls(monkeypatch)
    _, compiled = models((12,))
    rows, theta = rows_of((12,), 1), torch.randn(3, compiled.dim)
    assert compiled.log_lik(theta * torch.nan, rows).isnan().all()
    compiled.log_lik(theta, rows)
    assert calls == [1, 1, 3]


class Moody(nn.Module):
    """Applies a factor of Python's, which is 1 when its graph is read."""

    factor = 1

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x):
        """Return the outputs."""
        return self.layer(x) if Moody.factor == 1 else Moody.factor * self.layer(x)


def test_a_module_that_does_more_than_its_graph_shows(monkeypatch):
    """The loop disagrees at the first datum, and the module is called."""
    calls = _calls(monkeypatch)
    compiled = mhrun.ModuleModel(Moody(), evaluation="compiled")
    monkeypatch.setattr(Moody, "factor", 2)
    rows, theta = rows_of((12,), 1), torch.randn(3, compiled.dim)
    bound = mhrun.ModuleModel(Moody(), evaluation="bound")
    with pytest.warns(UserWarning, match="it is called itself, and evaluation=compiled is not used"):
        compiled.log_lik(theta, rows)
    torch.testing.assert_close(compiled.log_lik(theta, rows), bound.log_lik(theta, rows), rtol=0, atol=0)
    assert calls == [1]


class Frozen(nn.Module):
    """Leaves its first layer out of the gradient, or computes in bfloat16: no graph shows it."""

    def __init__(self, context):
        super().__init__()
        self.first, self.last, self.context = nn.Linear(12, 6), nn.Linear(6, 3), context

    def forward(self, x):
        """Return the outputs."""
        with self.context():
            hidden = self.first(x)
        return self.last(hidden.relu())


def lowered():
    return torch.autocast("cpu", dtype=torch.bfloat16)


class Lowered(Frozen):
    def forward(self, x):
        """Return the outputs in bfloat16."""
        with self.context():
            return self.last(self.first(x).relu())


@pytest.mark.filterwarnings("ignore:the module's log-likelihood")
@pytest.mark.parametrize("module", [Frozen(torch.no_grad), Lowered(lowered)], ids=["no_grad", "bfloat16"])
def test_gradients_and_types_are_compared_too(module):
    """Such a module is called as it is."""
    bound, compiled = (mhrun.ModuleModel(module, evaluation=how) for how in ("bound", "compiled"))
    rows, theta = rows_of((12,), 1), torch.randn(3, bound.dim)
    for one, other in zip(
        compiled.log_lik_and_grad(theta, rows), bound.log_lik_and_grad(theta, rows), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_what_the_loop_cannot_evaluate_the_module_does(monkeypatch):
    """Points that the caller differentiates."""
    calls = _calls(monkeypatch)
    bound, compiled = models((12,))
    rows, theta = rows_of((12,), 1), torch.randn(2, compiled.dim)
    moved = theta.clone().requires_grad_()
    (grad,) = torch.autograd.grad(compiled.log_lik(moved, rows).mean(1).sum(), moved)
    torch.testing.assert_close(grad, bound.log_lik_and_grad(theta, rows)[1], rtol=1e-5, atol=1e-6)
    assert not calls


def test_a_class_without_an_output_is_named():
    """As by the model `perceptron`."""
    _, compiled = models((12,))
    rows = rows_of((12,), 1)
    compiled.log_lik(torch.randn(2, compiled.dim), rows)
    rows["y"][0, 3] = 3
    with pytest.raises(UserError, match="y holds the class 3"):
        compiled.log_lik(torch.randn(2, compiled.dim), rows)


def test_other_modules_and_likelihoods_are_refused():
    """They say what the loop is for."""
    gelu = nn.Sequential(nn.Linear(12, 3), nn.GELU(), nn.Linear(3, 3))
    for given in ({"module": gelu}, {"module": nn.Linear(12, 1), "likelihood": "bernoulli"}):
        with pytest.raises(Refusal, match="evaluation=compiled is for a fully connected network"):
            mhrun.ModuleModel(**given, evaluation="compiled")


def _sampled(model, folder=None, steps=1500, **settings):
    torch.manual_seed(3)
    x = torch.randn(600, 12)
    y = (x @ torch.randn(12, 3)).argmax(1)
    kernel = mhrun.Unadjusted(mhrun.SGHMC(friction=0.1), m=50)
    return mhrun.sample(
        model,
        {"x": x, "y": y},
        kernel,
        step_size=1e-5,
        steps=steps,
        warmup=0,
        chains=2,
        seed=2,
        folder=folder,
        progress=False,
        thin=10,
        **settings,
    )


def test_a_gpu_is_refused():
    """The loop computes on a CPU."""
    target = SimpleNamespace(model=models((12,))[1], device=torch.device("cuda:1"))
    with pytest.raises(Refusal, match="evaluation = compiled is for a CPU, and device = cuda:1"):
        Method._check_evaluation(SimpleNamespace(target=target))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_long_run_measures_and_keeps_the_loop(tmp_path, monkeypatch):
    """The loop is chosen where it is fastest, and a run that began with it goes on with it."""
    monkeypatch.setattr(module_evaluation, "compiling_pays", lambda method: True)
    monkeypatch.setattr(module_evaluation, "_seconds", lambda model, names, *_: [3.0, 2.0, 1.0][: len(names)])
    monkeypatch.setattr(module_evaluation, "kept", lambda kind, name, version, make: make())
    model = mhrun.ModuleModel(network((12,)), prior_variance=1.0)
    trace = _sampled(model, tmp_path)
    (record,) = tmp_path.rglob("executor.json")
    assert json.loads(record.read_text())["evaluation"] == "compiled"
    chosen = mhrun.ModuleModel(network((12,)), prior_variance=1.0, evaluation="compiled")
    assert trace["posterior"].equals(_sampled(chosen)["posterior"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_short_and_long_runs_are_measured_apart(monkeypatch, tmp_path):
    """The evaluations to choose from depend on the length of a run; what was measured of them is kept."""
    measured = []

    def seconds(model, names, *_):
        measured.append(names)
        return [1.0] * len(names)

    monkeypatch.setattr(module_evaluation, "_seconds", seconds)
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path))
    model = mhrun.ModuleModel(network((12,)), prior_variance=3.0)
    for pays in (False, True, False):
        monkeypatch.setattr(module_evaluation, "compiling_pays", lambda method, p=pays: p)
        _sampled(model, steps=1000)
    assert measured == [["bound", "vmapped"], ["bound", "vmapped", "compiled"]]


def test_short_runs_are_not_measured_with_the_loop():
    """Compiling takes seconds, and must pay."""
    model = mhrun.ModuleModel(network((12,)))
    one, two = torch.zeros(1, model.dim), torch.zeros(2, model.dim)

    for pays, theta, names in (
        (True, one, ["bound", "compiled"]),
        (True, two, ["bound", "vmapped", "compiled"]),
        (False, two, ["bound", "vmapped"]),
        (False, one, ["bound"]),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module_evaluation, "compiling_pays", lambda method, p=pays: p)
            assert module_evaluation.evaluations(None, model, theta) == names
