"""Check the GPU path: ``make gpu-check``. Values against the CPU, kernel launches of a step, and throughput.

Without a GPU it prints a line and does nothing. With one it takes a few minutes, and exits with 1 if a value differs.
"""

from __future__ import annotations

import sys
from typing import Any

import modules
import torch
from rich.console import Console
from rich.table import Table

import mhrun
from mhrun.data import Dataset
from mhrun.models.perceptron import Perceptron
from mhrun.random import Streams
from mhrun.target import Target
from mhrun.types import Controls

TOLERANCE = 1e-3  # relative to the largest value, in float32 without TF32
WIDE_CHAINS = 300  # of a 784-200-10 network


def values(device: str, console: Console) -> bool:
    """Compare log-likelihoods and gradients with the CPU's; return whether all agree."""
    table, good = Table(title="Values against the CPU: largest relative difference"), True
    for column in ("network", "log-likelihood", "gradient"):
        table.add_column(column)
    for name, network in modules.NETWORKS.items():
        model = network.make()
        torch.manual_seed(1)
        rows = {"x": torch.rand(2, 16, *network.shape), "y": torch.randint(0, 10, (2, 16))}
        theta = model.init(2, Streams(1, 2).at(0))
        own = model.log_lik_and_grad(theta, rows)
        there = {key: value.to(device) for key, value in rows.items()}
        other = model.log_lik_and_grad(theta.to(device), there)
        gaps = [
            float((a - b.cpu()).abs().max() / a.abs().max().clamp_min(1e-12))
            for a, b in zip(own, other, strict=True)
        ]
        good &= max(gaps) < TOLERANCE
        table.add_row(name, *(f"{gap:.1e}{'' if gap < TOLERANCE else ' !'}" for gap in gaps))
    console.print(table)
    return good


def launches(device: str, console: Console) -> None:
    """Count the kernels that a step launches, and what it copies between host and device."""
    table = Table(title="One step, one chain: kernels launched, and copies between host and device")
    for column in ("network", "plain torch", "mhrun", "copies, mhrun"):
        table.add_column(column)
    for name, network in modules.NETWORKS.items():
        steps = modules.steps_of(network, 1, device)
        counts = []
        for step in steps:
            modules.seconds(step, 3, device)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                modules.seconds(step, 1, device)
            events = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            copies = sum("HtoD" in event or "DtoH" in event for event in events)
            counts.append((len(events), copies))
        table.add_row(name, str(counts[0][0]), str(counts[1][0]), str(counts[1][1]))
    console.print(table)


def throughput(device: str, console: Console) -> None:
    """Time steps beside a plain training loop, and many chains of a small network."""
    table = Table(title="Milliseconds of a step, per chain")
    for column in ("network", "chains", "plain torch", "mhrun", "ratio"):
        table.add_column(column)
    for name in modules.NETWORKS:
        for chains in (1, 4):
            row: dict[str, Any] = modules.ratio(name, chains, device, rounds=7)
            table.add_row(
                name, str(chains), f"{row['plain_ms']:.3f}", f"{row['ours_ms']:.3f}", f"{row['ratio']}"
            )
    table.add_row("784-200-10", str(WIDE_CHAINS), "", f"{wide(device):.4f}", "")
    console.print(table)


def wide(device: str, chains: int = WIDE_CHAINS) -> float:
    """Return the milliseconds of a step of SGLD, per chain, of many chains of a 784-200-10 network."""
    torch.manual_seed(0)
    data = Dataset({"x": torch.rand(1000, 784), "y": torch.randint(0, 10, (1000,))})
    target = Target(Perceptron([784, 200, 10], 1.0), data, device=device)
    kernel, streams = mhrun.Unadjusted(mhrun.SGLD(), m=100), Streams(1, chains, device)
    draws = streams.at(1)
    controls = Controls(*(torch.full((chains,), value, device=device) for value in (1e-7, 1.0, 1.0)))
    with torch.no_grad():
        state = kernel.start(target, target.model.init(chains, streams.at(0)).to(device), streams.at(0))

        def step() -> None:
            nonlocal state
            draws.step += 1
            state, _ = kernel.step(target, state, controls, draws)

        modules.seconds(step, 2, device)
        return 1e3 * modules.seconds(step, 5, device) / chains


def main() -> int:
    if not torch.cuda.is_available():
        print("gpu-check: no GPU here, so that nothing was checked.")
        return 0
    console = Console(width=110)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    good = values("cuda", console)
    launches("cuda", console)
    throughput("cuda", console)
    if not good:
        print(
            "gpu-check: some values differ from the CPU's; they are marked with '!' above.", file=sys.stderr
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
