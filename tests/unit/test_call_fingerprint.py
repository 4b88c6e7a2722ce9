"""What makes two calls from Python the same call: neither too little nor too much."""

from __future__ import annotations

import functools
import importlib
import inspect
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from kit import short_run

import mhrun
from mhrun.engine.call import sample
from mhrun.errors import UserError
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.store.fingerprint import fingerprint


def scaled(theta, x, by=1.0):
    return by * x


def scaled_twice(theta, x, by=2.0):
    return by * x


class Scaled:
    def __init__(self, by):
        self.by = by

    def log_lik(self, theta, x):
        return self.by * x


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by


def made(text):
    there = {"torch": torch, "__name__": "own"}
    exec(text, there)
    return there["f"]


DIFFERENT = {
    "functions called": (lambda t, x: torch.sin(x), lambda t, x: torch.cos(x)),
    "methods called": (lambda t, x: x.sin(), lambda t, x: x.cos()),
    "defaults": (scaled, scaled_twice),
    "arguments held": (functools.partial(scaled, by=3.0), functools.partial(scaled, by=4.0)),
    "whose method": (Scaled(1.0).log_lik, Scaled(2.0).log_lik),
    "slots": (Slotted(1.0), Slotted(2.0)),
    "globals": (made("s = 1.0\ndef f(t, x): return s * x"), made("s = 2.0\ndef f(t, x): return s * x")),
    "globals of globals": (
        made("def g(x): return x + 1\ndef f(t, x): return g(x)"),
        made("def g(x): return x + 2\ndef f(t, x): return g(x)"),
    ),
    "functions within": (lambda t, x: (lambda y: y * 2.0)(x), lambda t, x: (lambda y: y * 3.0)(x)),
    "tuples": (lambda t, x: x[(0, 1)], lambda t, x: x[(0, 2)]),
    "methods of a class": (
        made("class A:\n def g(s, x): return x\nf = A()"),
        made("class A:\n def g(s, x): return -x\nf = A()"),
    ),
    "where lists end": ([[1], 2], [[1, 2]]),
    "bfloat16": (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    "generators": (np.random.default_rng(1), np.random.default_rng(2)),
    "objects in arrays": (np.array([1, "a"], object), np.array([1, "b"], object)),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_computes_other_numbers_is_another_call(case):
    one, two = DIFFERENT[case]
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(two)


PROGRAM = """
__name__ = "own"
import numpy as np, torch
from mhrun.store.fingerprint import fingerprint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.kind, self.of, self.rng = torch.tanh, np.float64, torch.Tensor, np.random.default_rng(0)
def make():
    import torch as inner
    def f(theta, x): return inner.sin(x) + len({"a", "b"})
    return f
loop = Net(); loop.itself = loop
printed = fingerprint(Net(), make(), {"a", "b"}, frozenset("xyz"), object(), loop)
print(printed)
"""


@pytest.mark.slow
@pytest.mark.long
def test_another_process_has_the_same_fingerprint():
    there = {}
    exec(PROGRAM, there)
    other = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == there["printed"]


def test_parts_that_were_used_are_those_that_they_were(tmp_path):
    """A call that is interrupted and repeated in one notebook has the same fingerprint."""
    model = GaussianMixture([[0.0], [3.0]])
    before = fingerprint(model)
    model.log_prior(torch.zeros(2, 1, dtype=torch.float64))
    assert fingerprint(model) == before
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    before = fingerprint(prior)
    assert prior.precision_matrix.shape == (2, 2)  # which it keeps
    assert fingerprint(prior) == before


def test_parts_without_an_end_are_reported_in_a_line():
    endless = []
    endless.append(endless)
    with pytest.raises(UserError, match="too deep"):
        fingerprint(endless)


@short_run
@pytest.mark.long
def test_a_folder_is_of_one_likelihood(tmp_path):
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(5), mhrun.Metropolis())
    call = {"start": [0.0], "step_size": 0.3, "steps": 5, "warmup": 0, "chains": 1, "folder": tmp_path}

    def of(width):
        return functools.partial(lambda theta, x, width: -(((x - theta[0]) / width) ** 2), width=width)

    mhrun.sample(of(1.0), np.arange(9.0), kernel, **call)
    mhrun.sample(of(1.0), np.arange(9.0), kernel, **call)
    with pytest.raises(UserError, match="another call"):
        mhrun.sample(of(5.0), np.arange(9.0), kernel, **call)


@pytest.fixture
def described(tmp_path, monkeypatch):
    """Return the settings that a folder is compared by as a function of those of a call, without its run."""
    found = []

    def kept(settings):
        found.append(settings)
        raise InterruptedError

    monkeypatch.setattr(sample, "digests_of", kept)

    def of(model=None, labels=(1.0, -1.0), **change):
        kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(5), mhrun.Metropolis())
        data = {"x": np.ones((30, 1)), "y": np.repeat(labels, 15)}
        with pytest.raises(InterruptedError):
            mhrun.sample(model or mhrun.Logistic(1), data, kernel, folder=tmp_path, **change)
        return found[-1]

    return of


@pytest.mark.parametrize("change", [{"surrogate": "taylor1"}, {"precondition": "diagonal"}])
def test_another_surrogate_or_scale_is_another_call(described, change):
    one, two, changed = described(), described(), described(**change)
    assert fingerprint(one) == fingerprint(two)
    assert [name for name in one if fingerprint(one[name]) != fingerprint(changed[name])] == list(change)


# Settings that change no draw, or how many there are (`test_until`). Another executor rounds differently; a trace that
# has begun keeps its own.
NO_DRAWS = {"executor", "threads", "folder", "progress", "steps", "ess", "max_steps"}
CHANGES = {
    "step_size": 0.1,
    "warmup": 30,
    "chains": 2,
    "temperature": 2.0,
    "start": [0.3],
    "parameters": {"b": {"prior": "Normal(0, 1)"}},
    "log_prior": lambda theta: -theta.square().sum(),
    "acceptance": 0.31,
    "precondition": "diagonal",
    "temper": "likelihood",
    "replacement": True,
    "surrogate": "taylor1",
    "seed": 5,
    "thin": 3,
    "dtype": torch.float32,
    "monitor": mhrun.HeldOut({"x": np.ones((4, 1)), "y": np.repeat([1.0, -1.0], 2)}, every=5),
    "precision": "bf16",
}


def of_function(b, batch):
    weight = b["b"] if isinstance(b, dict) or hasattr(b, "b") else b[0]
    return torch.nn.functional.logsigmoid(batch["x"][:, 0] * weight)


@pytest.mark.parametrize(
    "name", sorted(set(inspect.signature(mhrun.sample).parameters) - {"model", "data", "kernel", "device"} - NO_DRAWS)
)  # fmt: skip
def test_every_setting_that_changes_draws_makes_another_call(described, name):
    """A setting that were left out would resume the trace of another call."""
    alike = {"step_size": 0.2}
    if name in ("parameters", "log_prior", "start"):  # those of functions
        alike |= {"model": of_function, "start": [0.0]}
    if name == "precision":
        alike |= {"dtype": torch.float32, "model": torch.nn.Linear(1, 2), "labels": (0, 1)}
    change = {name: CHANGES[name]}
    if name == "parameters":
        change["start"] = None
    one, other = described(**alike), described(**(alike | change))
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(described(**alike))


def test_a_call_is_of_a_kind_of_device(described):
    assert described()["device"] == "cpu"


@short_run
def test_a_trace_of_another_version_is_another_call(tmp_path, monkeypatch):
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(5), mhrun.Metropolis())
    call = {"start": [0.0], "step_size": 0.3, "steps": 20, "warmup": 0, "chains": 1, "folder": tmp_path}
    mhrun.sample(normal, np.arange(9.0), kernel, **call)
    monkeypatch.setattr("mhrun.engine.call.folder.FORMAT", 0)
    with pytest.raises(UserError, match="another version of mhrun"):
        mhrun.sample(normal, np.arange(9.0), kernel, **call)


def normal(theta, x):
    return -0.5 * (x - theta[0]) ** 2


MODELS = {
    "function": (mhrun.FunctionModel(normal, [0.0], single=True), np.arange(30.0)),
    "parameters": (
        mhrun.FunctionModel(
            lambda theta, batch: normal(theta.mu[None], batch["x"]),
            parameters={"mu": torch.distributions.Normal(0.0, 1.0)},
        ),
        {"x": np.arange(30.0)},
    ),
    "logistic": (mhrun.Logistic(1), {"x": np.ones((30, 1)), "y": np.repeat([1.0, -1.0], 15)}),
    "module": (
        mhrun.ModuleModel(torch.nn.Linear(1, 2), prior_variance=1.0),
        {"x": np.ones((30, 1), dtype="float32"), "y": np.repeat([0, 1], 15)},
    ),
}


@short_run
@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_call_that_is_repeated_with_the_same_model_is_the_same_call(tmp_path, name):
    """Models keep what they have computed, such as recordings of functions, and are the same models."""
    model, data = MODELS[name]
    kernel = mhrun.MetropolisHastings(mhrun.LangevinProposal(), mhrun.Shared(5), mhrun.Metropolis())
    call = {
        "step_size": 0.001,
        "steps": 40,
        "warmup": 0,
        "chains": 2,
        "folder": tmp_path,
        "executor": "torch",
    }
    one, two = (mhrun.sample(model, data, kernel, **call)["posterior"].to_dataset() for _ in range(2))
    assert one.identical(two)


WIDTH = 1.0


@short_run
@pytest.mark.long
def test_a_call_computes_with_the_present_values_of_globals(monkeypatch):
    model = mhrun.FunctionModel(lambda theta, x: normal(theta / WIDTH, x / WIDTH), [0.0], single=True)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    call = {"step_size": 1.0, "steps": 100, "warmup": 0, "chains": 2, "executor": "torch"}
    first = mhrun.sample(model, np.arange(9.0), kernel, **call)
    monkeypatch.setitem(globals(), "WIDTH", 5.0)
    found, anew = (
        mhrun.sample(given, np.arange(9.0), kernel, **call)["posterior"]["theta"].to_numpy()
        for given in (model, mhrun.FunctionModel(model._log_lik, [0.0], single=True))
    )
    assert np.array_equal(found, anew)
    assert not np.array_equal(found, first["posterior"]["theta"])


@short_run
@pytest.mark.parametrize("kind", ["predictive", "calibration", "kernel"])
def test_parts_that_have_run_are_the_same_parts(tmp_path, kind, rng):
    """What a part keeps from a run, such as data on the device of the chains, is none of its settings."""
    data = {"x": rng.normal(size=(40, 2)), "y": rng.integers(0, 3, 40)}
    monitors = {
        "predictive": mhrun.Predictive(data, every=5, average=1, collect=5),
        "calibration": mhrun.Calibration(data, every=5, collect=5),
    }
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    model = mhrun.SoftmaxRegression(2, 3, 2.0)
    traces = [
        mhrun.sample(
            model,
            data,
            kernel,
            step_size=0.05,
            steps=20,
            warmup=10,
            folder=tmp_path,
            monitor=monitors.get(kind),
        )
        for _ in range(2)
    ]
    assert (traces[0]["posterior"]["theta"].values == traces[1]["posterior"]["theta"].values).all()


@pytest.mark.parametrize(
    "part",
    [lambda: mhrun.Moving("auto"), lambda: mhrun.PlanarFlow(5, m="auto"), lambda: mhrun.PlanarFlow(5, m=0)],
)
def test_a_minibatch_size_that_no_pilot_finds_must_be_a_number(part):
    """`Moving` ran with m = 2, which stands for a size that a pilot is still to find."""
    with pytest.raises(UserError, match=r"m = .* must be a whole number"):
        part()


def test_labels_of_tables_and_masks_are_part_of_their_content():
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    arrays = [xr.DataArray([1.0, 2.0], dims="x", coords={"x": at}) for at in ([0, 1], [5, 6])]
    masked = [np.ma.array([1.0, 2.0], mask=mask) for mask in ([False, True], [False, False])]
    cases = [
        (table, table.rename(columns={"a": "b", "b": "a"})),
        (table, table.set_axis([5, 6])),
        (table["a"], table["a"].rename("c")),
        (table["a"].astype("int64"), table["a"].astype("int32")),
        (arrays[0], arrays[1]),
        (arrays[0].drop_vars("x"), arrays[0].drop_vars("x").rename(x="y")),
        (masked[0], masked[1]),
    ]
    for one, other in cases:
        assert fingerprint(one) != fingerprint(other)
        assert fingerprint(one) == fingerprint(one.copy())


@pytest.mark.parametrize("text", ["from shift_of_a_user import BY", "import shift_of_a_user as s; BY = s.BY"])
def test_what_a_function_imports_in_its_body_is_part_of_its_content(tmp_path, monkeypatch, text):
    monkeypatch.syspath_prepend(tmp_path)
    code = f"def log_lik(theta, x):\n    {text}\n    import math\n    return x - BY + math.pi\n"
    found = []
    for by in ("1.0", "22.0"):
        (tmp_path / "shift_of_a_user.py").write_text(f"BY = {by}\n")
        sys.modules.pop("shift_of_a_user", None)
        importlib.invalidate_caches()
        namespace = {"__name__": "__main__"}
        exec(compile(code, "code", "exec"), namespace)
        found.append(fingerprint(namespace["log_lik"]))
        assert fingerprint(namespace["log_lik"]) == found[-1]
    assert found[0] != found[1]
    sys.modules.pop("shift_of_a_user", None)


def test_a_program_that_a_library_runs_is_the_users(monkeypatch):
    """As by ``python -m cProfile`` or ``python -m pytest``: what its functions name counts."""
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", "/x/site-packages/runner/__main__.py", raising=False
    )
    digests = set()
    for by in (1.0, 2.0):
        namespace = {"__name__": "__main__", "BY": by}
        exec("def log_lik(theta, x):\n    return x - BY", namespace)
        digests.add(fingerprint(namespace["log_lik"]))
    assert len(digests) == 2
