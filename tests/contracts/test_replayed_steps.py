"""Steps that are replayed from a recording have the results of the kernel's own steps, bit for bit."""

import gc

import numpy as np
import pytest
import torch

import mhrun
from mhrun import MetropolisHastings, ReplicaExchange, Unadjusted
from mhrun.engine.execution import executors, replay
from mhrun.engine.execution.executors import TorchExecutor
from mhrun.engine.execution.replay import ReplayedSteps
from mhrun.engine.execution.steps import PlainSteps
from mhrun.engine.method import Method
from mhrun.models import recorded as recorded_
from mhrun.models.recorded import recording
from mhrun.proposals.hamiltonian import HamiltonianProposal
from mhrun.proposals.langevin import LangevinProposal
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape

N, M, CHAINS, STEPS = 30, 10, 4, 60
WALK = MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())


def log_lik(theta, rows):
    return -0.5 * (rows.y - theta.slope * rows.x - theta.level) ** 2 - torch.nn.functional.softplus(
        theta.slope
    )


def model(function=log_lik):
    return mhrun.FunctionModel(function, parameters={"slope": "Normal(0, 1)", "level": "StudentT(4, 0, 2)"})


def of_model(one, **settings):
    rng = np.random.default_rng(1)
    x = rng.normal(size=N)
    return mhrun.Target(one, mhrun.Dataset.of({"x": x, "y": 0.7 * x + 0.3 + rng.normal(size=N)}), **settings)


def target(function=log_lik):
    return of_model(model(function))


def method(kernel, of, steps=STEPS):
    schedule = mhrun.Fixed(step_size=0.02, temperature=[1.0, 1.5] * 2)
    plan, shape = Plan({"all": schedule}, CHAINS, 0, steps), Shape(CHAINS, of.model.names, 0, steps, 1, 1)
    return Method("one", kernel, of, plan, shape, 3, torch.float64)


def recorded(monkeypatch, kernel, of, *, replays=True):
    """Return what a method records in two blocks, and the steps of its executor."""
    monkeypatch.setattr(executors, "replaying_pays", replay.replaying_pays if replays else lambda one: False)
    one = method(kernel, of)
    executor, state, parts = TorchExecutor(one), one.first_state(), []
    for first, size in ((1, 25), (26, STEPS - 25)):
        state, record = executor.advance(state, first, one.plan.controls(one.plan.start(), first, size))
        parts.append(record)
    return {name: np.concatenate([part[name] for part in parts], 1) for name in parts[0]}, executor._steps


@pytest.fixture(autouse=True)
def early(monkeypatch):
    """Record after a few steps, in runs of any length."""
    monkeypatch.setattr(replay, "_PAYS", 1)
    monkeypatch.setattr(replay, "_STEPS_BEFORE_RECORDING", 5)


def compared(monkeypatch, kernel, of):
    """Return the steps of a run with replays, after comparing what it records with a run without."""
    found, steps = recorded(monkeypatch, kernel, of)
    plain, without = recorded(monkeypatch, kernel, of, replays=False)
    assert isinstance(without, PlainSteps)
    assert set(found) == set(plain)
    for name, value in plain.items():
        assert np.array_equal(value, found[name], equal_nan=value.dtype.kind == "f"), name
    return steps


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        (WALK, 1),
        (MetropolisHastings(HamiltonianProposal(3), mhrun.Full(), mhrun.Metropolis()), 1),
        (MetropolisHastings(LangevinProposal(), mhrun.Shared(M), mhrun.Metropolis()), 1),
        (MetropolisHastings(mhrun.RandomWalk(), mhrun.Stored(M), mhrun.Barker()), 1),
        (Unadjusted(mhrun.SGLD(), M), 1),
        (Unadjusted(mhrun.SGHMC(0.2, refresh=3), M), 2),  # momenta drawn anew, or not
        (ReplicaExchange(WALK, mhrun.Full(), mhrun.Metropolis(), 4, every=3, order="alternate"), 3),
    ],
    ids=["walk", "hmc", "langevin", "mhbt", "sgld", "sghmc", "ladder"],
)
def test_replays_are_the_steps_to_the_bit(monkeypatch, kernel, kinds):
    steps = compared(monkeypatch, kernel, target())
    assert isinstance(steps, ReplayedSteps)
    assert steps.reasons == []
    assert [kind.run is not None for kind in steps.kinds] == [True] * kinds
    assert all(count == replay._CHECKED for count in steps._checked.values())


@pytest.mark.slow
def test_by_default_a_run_of_a_function_is_replayed(monkeypatch):
    monkeypatch.undo()
    made = []

    class Seen(ReplayedSteps):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    settings = {"steps": 1_200, "warmup": 100, "seed": 2}
    data = {"x": np.linspace(-1, 1, N), "y": np.linspace(-1, 2, N)}
    monkeypatch.setattr(executors, "ReplayedSteps", Seen)
    fast = mhrun.sample(model(), data, **settings)
    assert [kind.run is not None for kind in made[-1].kinds] == [True]
    monkeypatch.setattr(executors, "replaying_pays", lambda one: False)
    plain = mhrun.sample(model(), data, **settings)
    for name in ("slope", "level"):
        assert np.array_equal(fast["posterior"][name], plain["posterior"][name])


def test_a_replay_that_differs_is_not_used(monkeypatch):
    """Wrong only after the step at which it was recorded, as of a function with a memory."""
    calls = []

    def wrong(function, tensors):
        def run(*given):
            calls.append(1)
            outputs = list(function(*given))
            outputs[0] = outputs[0] + (1e-12 if len(calls) > 2 else 0.0)
            return outputs

        return run

    monkeypatch.setattr(replay, "recording", wrong)
    steps = compared(monkeypatch, WALK, target())
    assert steps.reasons == ["the recorded step and the kernel's differ"]
    assert [kind.run for kind in steps.kinds] == [None]
    assert len(calls) == 3


def test_a_step_whose_operations_fail_is_the_kernels(monkeypatch):
    def failing(function, tensors):
        calls = []

        def run(*given):
            calls.append(1)
            if len(calls) > 6:
                raise torch.linalg.LinAlgError("the input is not positive-definite")
            return function(*given)

        return run

    monkeypatch.setattr(replay, "recording", failing)
    steps = compared(monkeypatch, WALK, target())
    assert set(steps.reasons) == {"it failed (the input is not positive-definite)"}


def of_a_mask(theta, rows):
    """Return log-likelihoods of data that are selected by their values: a number that a recording would fix."""
    x = torch.zeros_like(rows.x)
    x[rows.x > 0] = rows.x[rows.x > 0]
    return -0.5 * (rows.y - theta.slope * x - theta.level) ** 2


def test_selections_by_values_are_not_recorded(monkeypatch):
    steps = compared(monkeypatch, WALK, target(of_a_mask))
    assert [kind.run for kind in steps.kinds] == [None]


def of_a_number(theta, rows):
    """Return log-likelihoods of a branch that a rare datum takes."""
    if bool((rows.x > 1.8).any()):
        return log_lik(theta, rows) - 1.0 * (rows.x > 1.8)
    return log_lik(theta, rows)


def of_an_array(theta, rows):
    return log_lik(theta, rows) - 1.0 * torch.from_numpy((rows.x.numpy() > 1.8).astype(float))


def of_a_list(theta, rows):
    return log_lik(theta, rows) - torch.tensor([float(x > 1.8) for x in rows.x.tolist()])


@pytest.mark.parametrize("function", [of_a_number, of_an_array, of_a_list])
def test_functions_that_read_the_data_in_python_are_called_as_they_are(monkeypatch, function):
    """Where all chains share a minibatch, `vmap` lets a function read it."""
    of = of_model(model(function), common_batch=True)
    kernel = MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(3), mhrun.Metropolis())
    steps = compared(monkeypatch, kernel, of)
    assert [kind.run for kind in steps.kinds] == [None]
    log_liks = [key for key, one in of.model._memo.recorded.items() if any(one._replays.values())]
    assert not [key for key in log_liks if "log_lik" in key[0]]


def test_very_many_operations_are_not_recorded(monkeypatch):
    monkeypatch.setattr(recorded_, "_OPERATIONS", 40)
    steps = compared(monkeypatch, WALK, target())
    assert [kind.run for kind in steps.kinds] == [None]


class ReadsValues(mhrun.Metropolis):
    """A user's rule, which may do anything in Python."""


def batched(theta, rows):
    return -0.5 * (rows["y"] - theta[:, :1] * rows["x"] - theta[:, 1:]) ** 2


@pytest.mark.parametrize(
    ("kernel", "of"),
    [
        (WALK, of_model(mhrun.FunctionModel(batched, [0.0, 0.0], batched=True))),
        (MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), ReadsValues()), target()),
        (WALK, of_model(mhrun.TiedMeans())),
    ],
    ids=["batched", "own rule", "built-in model"],
)
def test_what_may_read_values_is_not_replayed(kernel, of):
    assert not replay.replaying_pays(method(kernel, of))


def test_sequential_tests_are_called_as_they_are(monkeypatch):
    growing = MetropolisHastings(mhrun.RandomWalk(), mhrun.Growing(), MHMinibatch(5, 1.0, "paper"))
    steps = compared(monkeypatch, growing, target())
    assert [kind.run for kind in steps.kinds] == [None]


def test_short_runs_are_not_recorded(monkeypatch):
    monkeypatch.undo()
    assert not replay.replaying_pays(method(WALK, target(), 999))
    assert replay.replaying_pays(method(WALK, target(), 1_000))


def test_a_recording_keeps_no_tensors():
    """TorchScript keeps what it traced; without care, all intermediate tensors of a step."""
    data = torch.randn(1_000)
    repeated = recording(lambda x: [(x * data).sum()[None]], [data.clone()])
    gc.collect()
    alive = [one for one in gc.get_objects() if type(one).__name__ == "_Recorder"]
    assert all(not one._tensors and not one._operations for one in alive)
    assert torch.equal(repeated(2 * data)[0], (2 * data * data).sum()[None])
