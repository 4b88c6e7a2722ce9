"""What several tests build or do: small whole runs, steps in plain torch, and drawn examples."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from matplotlib import pyplot as plt
from PIL import Image

from mhrun.cli.configuration.compose import compose_config
from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.models.binomial_regression import BinomialRegression
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.models.logistic import Logistic
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.softmax_regression import SoftmaxRegression
from mhrun.random import Draws, Streams, derive_key
from mhrun.report import on_page
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import open_trace
from mhrun.target import Target
from mhrun.types import Controls

FEW = ("~methods.tempered_mcmc", "~methods.mcmc", "~methods.sgld", "~methods.mint_stored")


# What a run of a few steps is rightly warned of, for tests of something else. Other warnings stay visible.
short_run = pytest.mark.filterwarnings(
    "ignore:R-hat is",
    "ignore:(tail )?ESS is",
    "ignore:ESS and R-hat are undefined",
    "ignore:acceptance .* is outside",
    "ignore:.*the target is at T",
    "ignore:the log-ratio's minibatch noise",
    "ignore:minibatch noise of its gradients",
    "ignore:.* chains never moved",
    "ignore:.* draws follow the target",
    "ignore:tuning had not settled",
)


def config(outputs: Path, *overrides: str) -> dict[str, Any]:
    """Return the configuration of the smallest run, with some overrides on top."""
    return compose_config(
        [
            "experiment=gmm_tied_means",
            "scale=smoke",
            "runtime.threads=1",
            "runtime.report=false",
            f"runtime.outputs={outputs}",
            *overrides,
        ]
    )


def compute(outputs: Path, *overrides: str) -> RunFolder:
    return run_experiment(config(outputs, *overrides), Silent())


def contents(folder: RunFolder, method: str) -> dict[str, np.ndarray]:
    """Return every array of a trace but the wall clock's, and the totals of the method."""
    totals = json.loads((folder.method(method) / "done.json").read_text())["totals"]
    with open_trace(folder.method(method)) as trace:
        return {f"total/{name}": np.asarray(value) for name, value in totals.items()} | {
            f"{group.path}/{name}": variable.to_numpy()
            for group in trace.subtree
            for name, variable in group.variables.items()
            if name != "wall_s"
        }


def assert_same_bits(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].dtype == two[name].dtype, name
        equal_nan = one[name].dtype.kind == "f"
        assert np.array_equal(one[name], two[name], equal_nan=equal_nan), name


class StopAfter(Silent):
    """Presses Ctrl-C after some chunks."""

    def __init__(self, chunks: int) -> None:
        self._left = chunks

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def assert_resumes_with_the_same_bits(outputs: Path, method: str, *overrides: str) -> None:
    """Compare a run of one method on a small logistic regression with one that is stopped and resumed."""
    experiment = ["experiment=arena_logistic", "scale=smoke"]
    others = compose_config(experiment, compare=False)["methods"].keys() - {method}
    overrides = (
        *experiment,
        *(f"~methods.{name}" for name in others),
        "chains=2",
        "data.n=60",
        "model.dim=2",
        "thin=1",
        "runtime.report=false",
        "runtime.block_seconds=0",
        *overrides,
    )
    uninterrupted, stopped = (
        compose_config([*overrides, f"runtime.outputs={outputs}/{name}"], compare=False)
        for name in ("uninterrupted", "stopped")
    )
    expected = run_experiment(uninterrupted, Silent())
    with pytest.raises(Interrupted):
        run_experiment(stopped, StopAfter(2))
    assert_same_bits(contents(expected, method), contents(run_experiment(stopped, Silent()), method))


EVERY_FORMAT = on_page.FORMATS  # before conftest.py leaves out the slow one


def unrendered(make: Callable[[], Any], name: str) -> dict[str, bytes] | str:
    """Call the function of a figure, as `mhrun.report.on_page.draw` does, and return a white picture of its drawing."""
    before = set(plt.get_fignums())
    try:
        figure = make()
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)
    return figure if isinstance(figure, str) else dict.fromkeys(EVERY_FORMAT, WHITE)


def _white() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), "white").save(buffer, format="png")
    return buffer.getvalue()


WHITE = _white()
C, STEPS = 4, 40
KEY = derive_key(11, "algebra")


def controls(step_size=0.8, temperature=3.0, noise=None, chains=C, steps=None) -> Controls:
    """Return controls (C,), or (K, C) for K steps of a compiled loop; each is a number, or one for each chain.

    The temperature of the noise is that of the target, where no other is given.
    """

    def values(given):
        shape = (chains,) if steps is None else (steps, chains)
        return torch.as_tensor(given, dtype=torch.float64).expand(shape).contiguous()

    noise = temperature if noise is None else noise
    return Controls(values(step_size), values(temperature), values(noise))


def ladder_controls(temperatures, ladders, step_size) -> Controls:
    """Return controls of equal ladders side by side; the step size is a number, or one for each rung."""
    t = torch.tensor(temperatures, dtype=torch.float64).repeat(ladders)
    e = torch.as_tensor(step_size, dtype=torch.float64).expand(len(temperatures)).repeat(ladders)
    return Controls(e, t, t)


def begin(kernel, target, chains, key=KEY, first_chain=0):
    """Return the first state of chains, a number of them or where they begin (C, D), and their random numbers."""
    draws = Draws(
        Streams(key, chains if isinstance(chains, int) else len(chains), first_chain=first_chain), 0
    )
    if isinstance(chains, int):
        theta = target.model.init(chains, draws)
    else:
        theta = chains if isinstance(chains, torch.Tensor) else torch.tensor(chains, dtype=torch.float64)
    return kernel.start(target, theta, draws), draws


@torch.no_grad()
def advance(kernel, target, state, control, draws, steps, first=1):
    """Return the state after some steps in plain torch, theta (C, K, D) in NumPy and the info of each step."""
    thetas, infos = [], []
    for k in range(first, first + steps):
        draws.step = k
        state, info = kernel.step(target, state, control, draws)
        thetas.append(state.evaluation.theta)
        infos.append(info)
    return state, torch.stack(thetas, 1).numpy(), infos


def advance_compiled(kernel, target, state, control, steps, key=KEY):
    """Return the state after some steps of the compiled loop, theta (C, K, D) and the record."""
    every = control.each(lambda c: c.expand(steps, len(c)).contiguous())
    state, record = compile_loop(kernel, target, key, 1).advance(state, 1, every)
    return state, record["theta"], record


def plain_and_fused(kernel, target, control, steps, key=KEY):
    """Yield (theta before the last step, state, info) after steps in float32: in plain torch, and with fused updates.

    A model with many parameters has its gradient from torch, and the update of the dynamics is compiled alone.
    """
    chains = len(control.step_size)
    for compiled in (False, True):
        draws = Draws(Streams(key, chains, compiled=compiled), 0)
        state = kernel.start(target, target.model.init(chains, draws).float(), draws)
        for draws.step in range(1, 1 + steps):
            before = state.evaluation.theta.clone()
            state, info = kernel.step(target, state, control, draws)
        yield before, state, info


def assert_states_close(plain, fused, chains=slice(None), atol=1e-5):
    """Compare theta and the auxiliary variables of some chains, in float32."""
    theta, other = plain.evaluation.theta[chains], fused.evaluation.theta[chains]
    assert torch.allclose(theta, other, rtol=1e-3, atol=atol)
    assert set(plain.aux) == set(fused.aux)
    for name, value in plain.aux.items():
        assert fused.aux[name].dtype == value.dtype
        assert fused.aux[name].shape == value.shape
        found, expected = fused.aux[name][chains].double(), value[chains].double()
        assert torch.allclose(found, expected, rtol=1e-3, atol=atol), name


def follow(kernel, target, control, steps=STEPS, chains=C, first_chain=0):
    """Return theta (K, C, D) and the infos of a run from the model's own start, in plain torch."""
    state, draws = begin(kernel, target, chains, first_chain=first_chain)
    _, thetas, infos = advance(kernel, target, state, control, draws, steps)
    return torch.from_numpy(thetas).transpose(0, 1), infos


def logistic_target(n, kind, surrogate, temper="posterior") -> Target:
    """Return a logistic regression on n data with three features of a type, or of whole bytes (`kind`)."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(n, 3)) * np.array([1.0, 0.5, 0.2])
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-x.sum(1))), 1, -1)
    whole = rng.integers(0, 256, (n, 3), dtype=np.uint8)
    fields = {"x": whole if kind == "bytes" else x.astype(kind), "y": y}
    return Target(
        Logistic(3, 1.0, "zeros"), Dataset.of(fields, pixels=True), surrogate=surrogate, temper=temper
    )


def regression_target(family, n, surrogate="none", temper="posterior", kind="float64") -> Target:
    """Return a robust, Poisson, binomial or softmax regression on n data with three features of a type."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(n, 3)) * np.array([1.0, 0.5, 0.2])
    eta, size = x.sum(1), 1.0 + np.arange(n) % 5
    made, fields = {
        "robust": (RobustRegression, {"y": eta + rng.standard_t(4, n)}),
        "poisson": (PoissonRegression, {"y": rng.poisson(size * np.exp(0.5 * eta)), "exposure": size}),
        "binomial": (BinomialRegression, {"y": rng.binomial(size.astype(int), 0.4), "trials": size}),
        "softmax": (SoftmaxRegression, {"y": rng.integers(0, 4, n)}),
    }[family]
    data = Dataset.of({"x": x.astype(kind), **fields})
    model = made(3, 4, prior_variance=1.0) if family == "softmax" else made(3, prior_variance=1.0)
    return Target(model, data, surrogate=surrogate, temper=temper)


CURVATURE = 4.0


def gaussian(dim=1) -> GaussianMixture:
    """N(0, 1/CURVATURE) in every direction."""
    return GaussianMixture([[0.0] * dim], 1 / CURVATURE)


QUIET = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)
COUNT = int(os.environ.get("MHRUN_FUZZ", "1"))  # times the examples of the slow tests


def fast(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=QUIET
    )


def many(count: int) -> settings:
    return settings(
        max_examples=COUNT * count, deadline=None, database=None, suppress_health_check=QUIET, print_blob=True
    )


def one_line(call, *args, **how):
    """Call, and return the one line of a refusal, or None if nothing was refused."""
    try:
        call(*args, **how)
    except UserError as error:
        message = str(error)
        assert message.strip(), "an empty line"
        assert "\n" not in message, message
        assert len(message) < 2000, message[:300]
        return message
    return None
