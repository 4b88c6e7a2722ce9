"""The steps that `gpu_check.py` counts and times: methods on made-up images, by an executor, in a precision."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import modules
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.engine.assemble import assembled
from mhrun.engine.execution.executors import Executor, TorchExecutor
from mhrun.engine.execution.graph import GRAPH, GraphExecutor
from mhrun.engine.method import Method
from mhrun.kernels import AdaptiveBackward
from mhrun.models.perceptron import Perceptron
from mhrun.pairing.moving import Moving
from mhrun.parts import Kernel
from mhrun.target import Target

N = 2000
SCALE = 100.0  # n/T of the methods with an acceptance test, as in Wu et al.
M = 100  # minibatch of their networks


def sghmc(m: int) -> Kernel:
    """Return the dynamics that is timed beside plain training."""
    return mhrun.Unadjusted(mhrun.SGHMC(friction=0.1), m=m)


def langevin(m: int) -> Kernel:
    """Return a Metropolis-Hastings step on minibatches of fixed size."""
    return mhrun.MetropolisHastings(mhrun.LangevinProposal(), mhrun.Shared(m), mhrun.Metropolis())


def rsgld() -> Kernel:
    """Return RSGLD as `rsgld_mnist` has it; beta adapts before the first step alone, in few trials."""
    proposal = mhrun.ReversibleLangevinProposal(density="unnormalised")
    return AdaptiveBackward(proposal, Moving(M), mhrun.Metropolis(), epoch=1 << 20, trials=1)


TRAININGS: dict[str, Callable[[], Kernel]] = {
    "RSGLD": rsgld,
    "SGD": lambda: mhrun.Unadjusted(mhrun.Momentum(0.0), m=M),
    "SGLD": lambda: mhrun.Unadjusted(mhrun.SGLD(), m=M, passes=True),
}
"""The three methods of Table 1 of Wu et al."""


def target_of(network: modules.Network, device: str, precision: str = "fp32") -> Target:
    """Return a network on random data."""
    torch.manual_seed(0)
    fields = {"x": torch.randn(N, *network.shape), "y": torch.randint(0, 10, (N,))}
    return Target(network.make(), Dataset(fields), device=device, precision=precision)


def perceptron(device: str, precision: str = "fp32") -> Target:
    """Return a 784-200-10 network on random data."""
    torch.manual_seed(0)
    fields = {"x": torch.rand(N, 784), "y": torch.randint(0, 10, (N,))}
    return Target(Perceptron([784, 200, 10], 1.0), Dataset(fields), device=device, precision=precision)


def method_of(kernel: Kernel, target: Target, chains: int) -> Method:
    """Return a method whose steps change little."""
    temperature = N / SCALE if kernel.decides else 1.0
    schedules = {"all": mhrun.Fixed(step_size=1e-7, temperature=temperature)}
    counts: dict[str, Any] = {"chains": chains, "warmup": 0, "steps": 1 << 20, "thin": None}
    counts |= {"thin_stats": 1, "seed": 0}
    return assembled(
        "steps", kernel, target, schedules, counts, dtype=torch.float32, starts=None, monitor=None
    )


class Steps:
    """Does steps of a method by an executor.

    Args:
        method: what is done.
        executor: torch or graph.
        notes: receives why a step was not captured.
    """

    def __init__(self, method: Method, executor: str, notes: list[str]) -> None:
        self._method = method
        self._executor: Executor = TorchExecutor(method)
        if executor == GRAPH:
            backend = "aot_eager" if method.target.device.type == "cpu" else None
            self._executor = GraphExecutor(method, notes.append, backend)
        self._state, self._next = method.first_state(), 1

    def __call__(self, count: int) -> None:
        """Do the next `count` steps."""
        plan = self._method.plan
        controls = plan.controls(plan.start(), self._next, count)
        with self._method.exact_products():
            self._state, _ = self._executor.advance(self._state, self._next, controls)
        self._next += count

    def milliseconds(self, rounds: int, repeats: int) -> float:
        """Return the milliseconds of a step of one chain: the median over rounds."""
        device, chains = str(self._method.target.device), self._method.shape.chains
        self(2)  # compilers, caches, graphs
        times = [modules.seconds(lambda: self(repeats), 1, device) / repeats for _ in range(rounds)]
        return 1e3 * statistics.median(times) / chains


def events(step: Callable[[], None], device: str) -> tuple[int, int]:
    """Return the kernels that a call launches (on a CPU: its operations), and its copies between host and device."""
    on_gpu = device != "cpu"
    kind = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as seen:
        modules.seconds(step, 1, device)
    wanted = "CUDA" if on_gpu else "CPU"
    names = [e.name for e in seen.events() if e.device_type.name == wanted]
    return len(names), sum("HtoD" in name or "DtoH" in name for name in names)
