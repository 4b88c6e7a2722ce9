"""Measure speed: ``make bench``. Prints tables and writes them to outputs/benchmarks.json.

Contenders are processes of their own, asked in turn, round after round, so that a busy machine is busy
for all of them; medians over rounds. One core: CPU time. Several cores: wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ROOT / ".venv-peers"
PEER = PEERS / "bin" / "python"
N = 1_000_000


class Contender:
    """A process that does the work when asked."""

    def __init__(self, python: str | Path, script: str, *arguments: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [str(python), str(HERE / script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def ask(self, chains: int, steps: int, seed: int = 0) -> dict[str, float]:
        """Return the seconds and the acceptance rate of one piece of work."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"chains": chains, "steps": steps, "seed": seed}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("a contender died; its message is above.")
        return json.loads(answer)

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def make_peers() -> None:
    if PEER.exists():
        return
    print(f"making {PEERS.name} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
    subprocess.run([str(PEER), "-m", "pip", "install", "--quiet", "-r", str(HERE / "peers.txt")], check=True)


def against_jax(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """MINT, n = 10^6, m = 1000, independent uniform minibatches: microseconds per chain-step."""
    rows = []
    for cores in sorted({1, min(2, len(os.sched_getaffinity(0)))}):
        contenders = {
            "ours": (Contender(sys.executable, "ours.py", cores, N, "on", "memory"), 1.0),
            "ours, plain torch": (Contender(sys.executable, "ours.py", cores, N, "off", "memory"), 0.02),
            "JAX": (Contender(PEER, "jax_mint.py", cores, N), 1.0),
        }
        clock = "cpu" if cores == 1 else "wall"
        for chains in (1, 20, 100):
            seen: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
            for contender, share in contenders.values():  # what is compiled is compiled now
                contender.ask(chains, _steps(chain_steps, share, chains))
            for seed in range(1, rounds + 1):
                for name, (contender, share) in contenders.items():
                    seen[name].append(contender.ask(chains, _steps(chain_steps, share, chains), seed))
            cost = {
                name: statistics.median(a[clock] for a in answers)
                / (_steps(chain_steps, contenders[name][1], chains) * chains)
                * 1e6
                for name, answers in seen.items()
            }
            accepted = {
                name: statistics.mean(a["accepted"] for a in answers) for name, answers in seen.items()
            }
            rows.append(
                {"cores": cores, "clock": clock, "C": chains, "us_per_chain_step": cost, "accepted": accepted}
            )
        for contender, _ in contenders.values():
            contender.stop()
    table = Table(title="MINT, n = 1e6, m = 1000: microseconds per chain-step (median)", title_justify="left")
    for column in (
        "cores",
        "clock",
        "C",
        "ours",
        "plain torch",
        "JAX",
        "JAX / ours",
        "acceptance (ours, JAX)",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        cost, accepted = row["us_per_chain_step"], row["accepted"]
        table.add_row(
            *(str(row[key]) for key in ("cores", "clock", "C")),
            *(f"{cost[name]:.2f}" for name in ("ours", "ours, plain torch", "JAX")),
            f"{cost['JAX'] / cost['ours']:.1f}",
            f"{accepted['ours']:.4f}, {accepted['JAX']:.4f}",
        )
    console.print(table)
    return rows


def over_n(rounds: int, chain_steps: int, largest: int, console: Console) -> list[dict[str, Any]]:
    """Cost per step against the number of data, on one core, data memory-mapped at 10^8."""
    sizes = [n for n in (10**4, 10**5, 10**6, 10**7, 10**8) if n <= largest]
    contenders = {
        n: Contender(sys.executable, "ours.py", 1, n, "on", "file" if n >= 10**8 else "memory") for n in sizes
    }
    for contender in contenders.values():
        contender.ask(20, _steps(chain_steps, 1, 20))
    seen: dict[int, list[float]] = {n: [] for n in sizes}
    for seed in range(1, rounds + 1):
        for n, contender in contenders.items():
            seen[n].append(contender.ask(20, _steps(chain_steps, 1, 20), seed)["cpu"])
    for contender in contenders.values():
        contender.stop()
    per_step = 1e6 / (20 * _steps(chain_steps, 1, 20))
    rows = [{"n": n, "us_per_chain_step": statistics.median(times) * per_step} for n, times in seen.items()]
    table = Table(title="MINT against n: m = 1000, C = 20, one core (CPU time)", title_justify="left")
    for column in ("n", "microseconds per chain-step", "of n = 1e4"):
        table.add_column(column, justify="right")
    for row in rows:
        cost = row["us_per_chain_step"]
        table.add_row(f"{row['n']:,}", f"{cost:.2f}", f"{cost / rows[0]['us_per_chain_step']:.2f}")
    console.print(table)
    return rows


def start_up(rounds: int, console: Console) -> dict[str, float]:
    """CPU seconds of the light commands, and of the first compiled block with nothing cached."""
    found = {}
    for words in (["--help"], ["list"]):
        times = []
        for _ in range(rounds):
            before = _children()
            subprocess.run(
                [str(Path(sys.executable).parent / "mhrun"), *words], check=True, capture_output=True
            )
            times.append(_children() - before)
        found[f"mhrun {' '.join(words)}, CPU s"] = statistics.median(times)
    with tempfile.TemporaryDirectory() as empty:
        for name in ("first compiled block, nothing cached, s", "first compiled block, cached, s"):
            contender = Contender(sys.executable, "ours.py", 1, 10_000, "on", "memory", MHRUN_CACHE_DIR=empty)
            found[name] = contender.ask(1, 100)["wall"]
            contender.stop()
    table = Table(title="Start-up", title_justify="left")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:.3f}")
    console.print(table)
    return found


def _steps(chain_steps: int, share: float, chains: int) -> int:
    return max(10, int(chain_steps * share) // chains)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="pieces of work per contender (default 5)")
    parser.add_argument(
        "--chain-steps", type=int, default=400_000, help="size of a piece of work (default 400,000)"
    )
    parser.add_argument(
        "--largest", type=int, default=10**8, help="largest n (default 10^8: a file of 400 MB)"
    )
    arguments = parser.parse_args()
    console = Console(width=110)
    make_peers()
    found = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "start_up": start_up(arguments.rounds, console),
        "against_jax": against_jax(arguments.rounds, arguments.chain_steps, console),
        "over_n": over_n(arguments.rounds, arguments.chain_steps, arguments.largest, console),
    }
    place = ROOT / "outputs" / "benchmarks.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(found, indent=2) + "\n")
    console.print(f"written to {place.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
