"""The captured step: results as in torch, one compilation for each kind of step, a note where it is impossible."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import short_run
from torch import nn

import mhrun
from mhrun.data import Dataset
from mhrun.dynamics.adam import Adam
from mhrun.engine.execution import executors
from mhrun.engine.execution.executors import choose_executor
from mhrun.engine.execution.graph import GraphExecutor
from mhrun.engine.method import Method
from mhrun.kernels import AdaptiveBackward, MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.pairing.growing import Growing
from mhrun.pairing.moving import Moving
from mhrun.proposals.langevin import LangevinProposal
from mhrun.random import MANY
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target

pytestmark = pytest.mark.long

CHAINS, STEPS, N, M = 4, 13, 40, 5
WALK = MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(M), mhrun.Metropolis())
SGLD = Unadjusted(mhrun.SGLD(), M)


def numbers():
    return Target(GaussianMean(3.0), Dataset.of(np.random.default_rng(1).normal(0.3, 1, N)))


def network():
    """A network with more parameters than are compared on the host."""
    rng = np.random.default_rng(2)
    data = {
        "x": torch.from_numpy(rng.normal(size=(N, 40)).astype(np.float32)),
        "y": torch.arange(N) % 3,
    }
    target = Target(Perceptron([40, 100, 3], 1.0), Dataset.of(data))
    assert target.dim >= MANY
    return target


def method(kernel, target, dtype=torch.float64, size=0.01):
    schedule = mhrun.Fixed(step_size=size, temperature=[1.0, 1.5] * 2)
    plan = Plan({"all": schedule}, CHAINS, 0, STEPS)
    return Method("one", kernel, target, plan, Shape(CHAINS, target.model.names, 0, STEPS, 1, 1), 3, dtype)


def both(kernel, target, dtype=torch.float64, backend="eager", size=0.01):
    """Return what torch and the graph record of the same steps, in two blocks, the graph, and what it says."""
    one, setting = method(kernel, target, dtype, size), []
    graph = GraphExecutor(one, setting.append, backend)
    records = []
    for executor in (choose_executor(one, "torch", None, 1), graph):
        state, parts = one.first_state(), []
        for first, size in ((1, 4), (5, STEPS - 4)):
            controls = one.plan.controls(one.plan.start(), first, size)
            state, record = executor.advance(state, first, controls)
            parts.append(record)
        records.append({name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]})
    plain, captured = records
    assert set(plain) == set(captured)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    for name, value in plain.items():
        assert value.dtype == captured[name].dtype, name
        assert np.allclose(value, captured[name], rtol=tolerance, atol=tolerance, equal_nan=True), name
    return graph, setting


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        (WALK, 1),
        # The first step computes a gradient.
        (MetropolisHastings(LangevinProposal(), mhrun.Stored(M), mhrun.Barker()), 2),
        (MetropolisHastings(LangevinProposal(), Moving(M), mhrun.Metropolis()), 1),
        (MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()), 1),
        (Unadjusted(Adam(N), M, passes=True), 1),
        (Unadjusted(mhrun.SGHMC(0.2, refresh=3), M), 2),  # momenta drawn anew, or not
        (ReplicaExchange(WALK, mhrun.Shared(M), mhrun.Metropolis(), 4, every=3, order="alternate"), 3),
        (ReplicaExchange(SGLD, mhrun.Full(), mhrun.Metropolis(), 2, every=2), 2),
    ],
    ids=["mint", "mhbt", "moving", "full", "adam", "refreshed", "alternate", "ladder"],
)
def test_a_captured_step_is_the_step_in_torch(kernel, kinds):
    graph, value = both(kernel, numbers())
    assert value == []
    assert [kind.run is not None for kind in graph.steps.kinds] == [True] * kinds
    assert graph.steps.compilations == kinds  # and not once more


@pytest.mark.parametrize("kernel", [SGLD, WALK], ids=["sgld", "mint"])
def test_wide_steps_are_captured(kernel):
    graph, value = both(kernel, network(), torch.float32)
    assert value == []
    assert graph.steps.compilations == 1


class Recurrent(nn.Module):
    """oneDNN's recurrent layer keeps a workspace for the gradient."""

    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.lstm(x[:, 0])[0][:, -1])


class Counted(nn.Module):
    """One buffer is changed in place and another is put in its place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.register_buffer("mean", torch.zeros(36))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        flat = x.flatten(1)
        if self.training:
            self.mean.lerp_(flat.detach().mean(0), 0.1)
            self.calls = self.calls + 1
        return self.linear(flat - self.mean) + 0.01 * self.calls


def convolution(norm):
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


MODULES = {
    "group norm": lambda: convolution(nn.GroupNorm(2, 4)),
    "batch norm": lambda: convolution(nn.BatchNorm2d(4)),
    "own buffers": Counted,
    "lstm": Recurrent,
}
MOVES = {
    "sgld": SGLD,
    "sghmc": Unadjusted(mhrun.SGHMC(0.2, refresh=3), M),
    "ladder": ReplicaExchange(SGLD, mhrun.Shared(M), mhrun.Metropolis(), 2, every=2),
    "walk": WALK,
    "langevin": MetropolisHastings(LangevinProposal(), mhrun.Shared(M), mhrun.Metropolis()),
}


def images(module, precision="fp32"):
    rng = np.random.default_rng(2)
    x = torch.from_numpy(rng.normal(size=(N, 1, 6, 6)).astype(np.float32))
    model = ModuleModel(module, prior_variance=1.0, evaluation="bound")
    return Target(model, Dataset.of({"x": x, "y": torch.arange(N) % 3}), precision=precision)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        pytest.param("group norm", "sghmc", marks=pytest.mark.slow),
        ("group norm", "walk"),
        pytest.param("group norm", "langevin", marks=pytest.mark.slow),
        pytest.param("batch norm", "sgld", marks=pytest.mark.slow),
        pytest.param("batch norm", "ladder", marks=pytest.mark.slow),
        pytest.param("own buffers", "sghmc", marks=pytest.mark.slow),
        pytest.param("lstm", "sgld", marks=pytest.mark.slow),
    ],
)
def test_a_step_of_a_bound_module_is_captured(name, kernel):
    """With the buffers of each chain."""
    graph, lines = both(MOVES[kernel], images(MODULES[name]()), torch.float32, "aot_eager", size=1e-5)
    assert lines == []
    assert graph.steps.compilations == len(graph.steps.kinds) > 0
    assert all(kind.run is not None for kind in graph.steps.kinds)


def test_a_step_in_bf16_is_captured():
    target = images(MODULES["group norm"](), "bf16")
    graph, lines = both(SGLD, target, torch.float32, "aot_eager", size=1e-5)
    assert (lines, graph.steps.compilations) == ([], 1)


def test_a_graph_is_compiled_by_a_backend_of_torch():
    graph, value = both(WALK, numbers(), backend="aot_eager")
    assert (value, graph.steps.compilations) == ([], 1)


def test_steps_that_depend_on_data_run_in_torch_with_a_line():
    growing = MetropolisHastings(mhrun.RandomWalk(), Growing(), MHMinibatch(M, 0.9, "paper"))
    graph, value = both(growing, numbers())
    assert [kind.run for kind in graph.steps.kinds] == [None]
    assert len(value) == 1
    assert "one: some of its steps run in torch, not as a graph: its minibatch grows" in value[0]
    adaptive = AdaptiveBackward(
        mhrun.ReversibleLangevinProposal(), mhrun.Stored(M), mhrun.Metropolis(), 4, trials=2
    )
    graph, value = both(adaptive, numbers())  # the steps between two adjustments are captured
    assert [kind.run is not None for kind in graph.steps.kinds] == [False, True, False]
    assert "trials" in value[0]


class Waits(mhrun.RandomWalk):
    """A proposal that waits for the device."""

    def sample(self, origin, controls, draws):
        found = super().sample(origin, controls, draws)
        return found if bool((found > -1e9).all()) else origin.theta


class Drifts(mhrun.RandomWalk):
    """A proposal that is not a function of what it is given."""

    calls = 0

    def sample(self, origin, controls, draws):
        self.calls += 1
        return super().sample(origin, controls, draws) + (0.0 if self.calls != 2 else 0.5)


def test_a_step_that_waits_or_remembers_is_found():
    """Each would be wrong in a graph, so that the run continues without one."""
    for proposal, words in (
        (Waits(), "DataDependent"),
        (Drifts(), "the captured step and the kernel's differ"),
    ):
        one, value = method(MetropolisHastings(proposal, mhrun.Shared(M), mhrun.Metropolis()), numbers()), []
        graph = GraphExecutor(one, value.append, "eager")
        graph.advance(one.first_state(), 1, one.plan.controls(one.plan.start(), 1, 2))
        assert graph.steps.kinds[0].run is None
        assert words in value[0]


def test_a_graph_that_would_be_compiled_again_is_an_error():
    one = method(WALK, numbers())
    graph = GraphExecutor(one, backend="eager")
    run = graph.steps._compiled(lambda tensors: [tensors[0] + 1], [torch.zeros(3)])
    assert run([torch.ones(3)])[0].tolist() == [2.0] * 3
    with pytest.raises(RuntimeError):
        run([torch.ones(4)])  # the buffers have one shape


@short_run
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_runs_take_it_by_name(monkeypatch, backend):
    made = []

    def graph(*args):
        made.append(GraphExecutor(*args, backend))
        return made[-1]

    monkeypatch.setattr(executors, "GraphExecutor", graph)
    x = np.random.default_rng(5).normal(0.3, 1, N)
    settings = {"step_size": 0.2, "steps": 20, "warmup": 5, "chains": 2, "start": [0.0]}

    def log_lik(theta, row):
        return -0.5 * (row - theta[0]) ** 2

    traces = [mhrun.sample(log_lik, x, WALK, executor=name, **settings) for name in ("torch", "graph")]
    assert sum(one.steps.compilations for one in made) > 0
    plain, captured = (trace["posterior"]["theta"].to_numpy() for trace in traces)
    assert np.allclose(plain, captured, atol=1e-9)
