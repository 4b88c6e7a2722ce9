"""Check the GPU path: ``make gpu-check``. Values against the CPU, kernel launches of a step, and throughput.

Without a GPU it prints a line and does nothing. With one it takes less than ten minutes, and exits with 1 if a value
differs. ``--device cpu --small`` does everything on a CPU with two small networks in about a minute: it tests this
program, and its times say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gpu_steps
import modules
import torch
from rich.console import Console
from rich.table import Table

from mhrun.random import Draws, Streams
from mhrun.types import Controls

TOLERANCE = 1e-3  # relative to the largest value, in float32 without TF32
PAPER_STEPS = 275_000  # of a training in Table 1 of Wu et al.
WAYS = (("torch", "fp32"), ("graph", "fp32"), ("torch", "tf32"), ("torch", "bf16"), ("graph", "bf16"))


class Extent(NamedTuple):
    """How much is checked."""

    networks: tuple[str, ...]
    chains: tuple[int, ...]
    trainings: int  # of each method of Table 1
    rounds: int
    repeats: int


WHOLE = Extent(("mlp", "cnn", "resnet8", "lstm", "resnet18"), (1, 4), 300, 5, 5)
SMALL = Extent(("mlp", "cnn"), (1, 2), 3, 1, 1)


def values(device: str, console: Console, extent: Extent = WHOLE) -> bool:
    """Compare log-likelihoods and gradients with the CPU's; return whether all agree."""
    table, good = Table(), True
    for column in ("network", "log-likelihood", "gradient"):
        table.add_column(column)
    for name in extent.networks:
        network = modules.NETWORKS[name]
        model = network.make()
        torch.manual_seed(1)
        rows = {"x": torch.rand(2, 16, *network.shape), "y": torch.randint(0, 10, (2, 16))}
        theta = model.init(2, Draws(Streams(1, 2), 0))
        own = model.log_lik_and_grad(theta, rows)
        there = {key: value.to(device) for key, value in rows.items()}
        other = model.log_lik_and_grad(theta.to(device), there)
        gaps = [
            float((a - b.cpu()).abs().max() / a.abs().max().clamp_min(1e-12))
            for a, b in zip(own, other, strict=True)
        ]
        good &= max(gaps) < TOLERANCE
        table.add_row(name, *(f"{gap:.1e}{'' if gap < TOLERANCE else ' !'}" for gap in gaps))
    _show(console, "Values against the CPU: largest relative difference", table)
    return good


def launches(device: str, console: Console, extent: Extent = WHOLE) -> None:
    """Count the kernels that a step launches, and what it copies between host and device."""
    what = "operations" if device == "cpu" else "kernels launched"
    title = f"One step, one chain: {what}; in round brackets: copies between host and device"
    table = Table()
    for column in ("network", "plain torch", "SGHMC", "Metropolis-Langevin"):
        table.add_column(column)
    for name in extent.networks:
        network = modules.NETWORKS[name]
        steps = modules.steps_of(network, 1, device)
        cells = []
        for step in (steps.plain, steps.ours, _test_step(network, device)):
            modules.seconds(step, 3, device)
            count, copies = gpu_steps.events(step, device)
            cells.append(f"{count} ({copies})")
        table.add_row(name, *cells)
    _show(console, title, table)


def _test_step(network: modules.Network, device: str) -> Callable[[], None]:
    """Return a Metropolis-Hastings step of one chain on minibatches of fixed size."""
    target, kernel = gpu_steps.target_of(network, device), gpu_steps.langevin(network.m)
    streams = Streams(1, 1, device)
    draws = Draws(streams, 1)
    heat = gpu_steps.N / gpu_steps.SCALE
    controls = Controls(*(torch.full((1,), value, device=device) for value in (1e-7, heat, heat)))
    with torch.no_grad():
        theta = target.model.init(1, Draws(streams, 0)).to(device)
        held = [kernel.start(target, theta, Draws(streams, 0))]

    def step() -> None:
        draws.step += 1
        with torch.no_grad():
            held[0], _ = kernel.step(target, held[0], controls, draws)

    return step


def throughput(device: str, console: Console, extent: Extent = WHOLE) -> None:
    """Time steps of SGHMC beside a plain training loop: executors and precisions."""
    ways = [way for way in WAYS if device != "cpu" or way[1] != "tf32"]
    title = "Step of SGHMC, per chain, over a step of plain training in fp32 (plain: its milliseconds)"
    table = Table()
    for column in ("network", "chains", "plain", *(" ".join(way) for way in ways)):
        table.add_column(column)
    notes: list[str] = []
    for name in extent.networks:
        network = modules.NETWORKS[name]
        plain = modules.steps_of(network, 1, device).plain
        modules.seconds(plain, 2, device)
        base = 1e3 * min(modules.seconds(plain, extent.repeats, device) for _ in range(extent.rounds))
        for chains in extent.chains:
            cells = []
            for executor, precision in ways:
                target = gpu_steps.target_of(network, device, precision)
                method = gpu_steps.method_of(gpu_steps.sghmc(network.m), target, chains)
                steps = gpu_steps.Steps(method, executor, notes)
                cells.append(f"{steps.milliseconds(extent.rounds, extent.repeats) / base:.2f}")
            table.add_row(name, str(chains), f"{base:.3f}", *cells)
    _show(console, title, table)
    _say(notes, console)


def trainings(device: str, console: Console, extent: Extent = WHOLE) -> None:
    """Time the three methods of Wu et al., Table 1, with all their chains, and say what its steps would take."""
    ways = [way for way in WAYS[:3] if device != "cpu" or way[1] != "tf32"]
    count = extent.trainings
    title = (
        f"{3 * count} trainings of a 784-200-10 network (Wu et al., Table 1), {count} side by side: milliseconds "
        f"of a step of all, and hours for {PAPER_STEPS:,} steps without the trials of beta"
    )
    table = Table()
    for column in ("method", *(f"{' '.join(way)}, {unit}" for way in ways for unit in ("ms", "hours"))):
        table.add_column(column)
    notes: list[str] = []
    for name, kernel in gpu_steps.TRAININGS.items():
        cells = []
        for executor, precision in ways:
            method = gpu_steps.method_of(kernel(), gpu_steps.perceptron(device, precision), count)
            steps = gpu_steps.Steps(method, executor, notes)
            each = count * steps.milliseconds(extent.rounds, extent.repeats)
            cells += [f"{each:.2f}", f"{each * PAPER_STEPS / 3.6e6:.2f}"]
        table.add_row(name, *cells)
    _show(console, title, table)
    _say(notes, console)


def _show(console: Console, title: str, table: Table) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    console.print(table)


def _say(notes: list[str], console: Console) -> None:
    for note in dict.fromkeys(notes):
        console.print(note)


def main(words: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="two small networks and few steps")
    chosen = parser.parse_args(words)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: no GPU here, so that nothing was checked.")
        return 0
    console, extent = Console(width=120), SMALL if chosen.small else WHOLE
    name = "CPU" if chosen.device == "cpu" else torch.cuda.get_device_name()
    console.print(f"{name}, torch {torch.__version__}")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    good = values(chosen.device, console, extent)
    for check in (launches, throughput, trainings):
        check(chosen.device, console, extent)
    if not good:
        print(
            "gpu-check: some values differ from the CPU's; they are marked with '!' above.", file=sys.stderr
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
