"""A step of SGHMC on a torch module over a plain training step of the same module, in one process, turn by turn.

Run by ``make bench`` (table `modules`) and by ``make gpu-check``. Prints a JSON line for each network and number of
chains.
Arguments: device, networks (default: all of them, on a CPU but the last two).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import mhrun
from mhrun.compiled import with_compiled_update
from mhrun.data import Dataset
from mhrun.engine.machine import keep_memory
from mhrun.models.convolutional import Convolutional
from mhrun.models.module import ModuleModel
from mhrun.models.module_evaluation import COMPILED
from mhrun.models.recurrent import Recurrent
from mhrun.models.residual import Residual
from mhrun.random import Draws, Streams
from mhrun.target import Target
from mhrun.types import Controls

N = 2000


class Network(NamedTuple):
    """A model, the shape of a datum, and the minibatch size."""

    make: Callable[[], ModuleModel]
    shape: tuple[int, ...]
    m: int


def _mlp(hidden: int = 200, activation: type[nn.Module] = nn.ReLU) -> ModuleModel:
    layers = nn.Sequential(nn.Linear(784, hidden), activation(), nn.Linear(hidden, 10))
    return ModuleModel(layers, prior_variance=1.0)


NETWORKS: dict[str, Network] = {
    "mlp": Network(_mlp, (784,), 200),
    "mlp_tanh": Network(lambda: _mlp(activation=nn.Tanh), (784,), 200),
    "cnn": Network(lambda: Convolutional([16, 32], 0, side=16, prior_variance=1.0), (3, 16, 16), 64),
    "resnet8": Network(
        lambda: Residual([1, 1, 1], [8, 16, 32], "group", prior_variance=1.0), (3, 32, 32), 32
    ),
    "lstm": Network(lambda: Recurrent(prior_variance=1.0), (784,), 64),
    "resnet18": Network(lambda: Residual(prior_variance=1.0), (3, 32, 32), 64),  # for a GPU
    "tiny": Network(lambda: _mlp(8), (784,), 4),  # what a step costs whatever the network
}
BY_NAME = ("resnet18", "tiny")  # left out on a CPU, unless they are named


class Steps(NamedTuple):
    """Two steps on one network, to be timed."""

    plain: Callable[[], None]
    ours: Callable[[], None]


def steps_of(network: Network, chains: int, device: str) -> Steps:
    """Return a step of SGD with momentum in plain torch, and one of SGHMC of some chains."""
    torch.manual_seed(0)
    x, y = torch.randn(N, *network.shape).to(device), torch.randint(0, 10, (N,)).to(device)
    model = network.make()
    target = Target(model, Dataset({"x": x, "y": y}), device=device)
    if device == "cpu" and model.has_compiled_loop:  # as a run of some seconds finds by measuring
        model.select_evaluation(COMPILED)
    kernel = with_compiled_update(mhrun.Unadjusted(mhrun.SGHMC(friction=0.1), m=network.m))
    streams = Streams(1, chains, device, compiled=device == "cpu")
    draws = Draws(streams, 1)
    theta = model.init(chains, Draws(streams, 0)).to(device)
    controls = Controls(*(torch.full((chains,), value, device=device) for value in (1e-7, 1.0, 1.0)))
    with torch.no_grad():
        held: list[Any] = [kernel.start(target, theta, Draws(streams, 0))]

    def ours() -> None:
        draws.step += 1
        with torch.no_grad():
            held[0], _ = kernel.step(target, held[0], controls, draws)

    module = model.module_at(theta[0]).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)

    def plain() -> None:
        index = torch.randint(0, N, (network.m,), device=device)
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[index]), y[index]).backward()
        optimiser.step()

    return Steps(plain, ours)


def seconds(step: Callable[[], None], repeats: int, device: str) -> float:
    """Return the seconds of a step: of CPU time on a CPU, of the clock on a GPU."""
    if device != "cpu":
        torch.cuda.synchronize()
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    for _ in range(repeats):
        step()
    if device != "cpu":
        torch.cuda.synchronize()
    return (clock() - began) / repeats


def ratio(name: str, chains: int, device: str = "cpu", rounds: int = 15, repeats: int = 3) -> dict[str, Any]:
    """Return the milliseconds of both steps and their ratio per chain, medians over rounds."""
    steps = steps_of(NETWORKS[name], chains, device)
    for step in steps:  # compilers, caches
        seconds(step, 2, device)
    pairs = [
        (seconds(steps.plain, repeats, device), seconds(steps.ours, repeats, device) / chains)
        for _ in range(rounds)
    ]
    plain, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    found = statistics.median(b / a for a, b in pairs)
    return {
        "network": name,
        "chains": chains,
        "plain_ms": 1e3 * plain,
        "ours_ms": 1e3 * ours,
        "ratio": round(found, 3),
    }


def main(device: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    keep_memory()
    for name in names or [name for name in NETWORKS if device != "cpu" or name not in BY_NAME]:
        for chains in (1, 4):
            print(json.dumps(ratio(name, chains, device)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu", sys.argv[2:])
