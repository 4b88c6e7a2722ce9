"""A small network whose chains are monitored while they run."""

from __future__ import annotations

import numpy as np
from scipy import special

from mhrun.data import Dataset
from mhrun.engine.method import Method
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.kernels import MetropolisHastings
from mhrun.models.perceptron import Perceptron
from mhrun.pairing.shared import Shared
from mhrun.proposals.langevin import LangevinProposal
from mhrun.rules.metropolis import Metropolis
from mhrun.schedules import Plan
from mhrun.schedules.stairs import Stairs
from mhrun.store.netcdf import Shape, open_trace
from mhrun.target import Target

LAYERS, C, N, TEST = [4, 5, 3], 3, 40, 23
WARMUP, STEPS = 6, 64


def train_and_test(rng):
    def some(n):
        return Dataset.of({"x": rng.normal(size=(n, 4)), "y": rng.integers(0, 3, n)})

    return some(N), some(TEST)


def log_probabilities(theta, x):
    """(D,) -> (n, 3), in NumPy."""
    w1, b1, w2, b2 = np.split(theta, [20, 25, 40])
    hidden = np.maximum(x @ w1.reshape(5, 4).T + b1, 0)
    return special.log_softmax(hidden @ w2.reshape(3, 5).T + b2, axis=1)


def method_of(data, monitor, kernel=None, **changes):
    schedules = changes.pop("schedules", None) or {"step_size": Stairs([2e-3, 2e-2, 5e-2], 8, 24)}
    shape = Shape(C, Perceptron(LAYERS).names, WARMUP, STEPS, 1)
    kernel = kernel or MetropolisHastings(LangevinProposal(), Shared(7), Metropolis())
    target = Target(Perceptron(LAYERS, 1.0), data)
    plan = Plan(schedules, C, WARMUP, STEPS)
    return Method("looked", kernel, target, plan, shape, 5, monitor=monitor)


def run(method, folder, block_seconds=0.0):
    method.check()
    run_method(method, folder, Settings(block_seconds=block_seconds), Silent(), lambda: False, {})
    with open_trace(folder) as trace:
        return trace.load()


def whole(trace, group, name):
    """A variable over burn-in and the draws proper."""
    return np.concatenate([trace[f"{w}{group}"][name].to_numpy() for w in ("warmup_", "")], axis=1)
