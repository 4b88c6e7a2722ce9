"""Measure speed: ``make bench``. Prints tables and writes them to outputs/benchmarks.json.

``--only`` makes some of them, and writes them to a file that bears their names.

Contenders are processes of their own, called in turn, round after round, so that a busy machine is busy
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cpp_loops
import numpy as np
import problem_dynamics
import problem_growing
import problem_logistic
import problem_network
import scipy.linalg  # noqa: F401  # loads the library of the compiled networks' products
from contenders import (
    HERE,
    PEER,
    ROOT,
    Contender,
    Goal,
    N,
    against_peers,
    in_turn,
    make_peers,
    ours,
    steps_of,
    stop_all,
)
from rich.console import Console
from rich.table import Table

from mhrun.cores import cpu_name, usable_cores
from mhrun.engine.machine import matrix_products


def without_replacement(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """MINT and MHminibatch on the mixture, n = 10^6: minibatches without replacement, the default, and with."""
    rows: list[dict[str, Any]] = []
    for what, problem, share in (
        ("MINT, m = 100", "mint_100", 1.0),
        ("MINT, m = 1000", "mint_1000", 0.2),
        ("MHminibatch, m = 50", "mh_minibatch", 0.2),
    ):
        field = {"without": (ours(1, problem, N), share), "with": (ours(1, f"{problem}_with", N), share)}
        rows += [
            {"what": what, "C": chains} | in_turn(field, chains, rounds, chain_steps, "cpu")
            for chains in (1, 20)
        ]
        stop_all(field)
    table = Table(
        title="Minibatches, n = 1e6, one core: microseconds per chain-step (median)", title_justify="left"
    )
    for column in ("what", "C", "without replacement", "with", "ratio", "goal", "acceptance (without, with)"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        cost, accepted = row["us_per_chain_step"], row["accepted"]
        table.add_row(
            *(row["what"], str(row["C"]), f"{cost['without']:.2f}", f"{cost['with']:.2f}"),
            *(f"{cost['without'] / cost['with']:.2f}", "<= 1.3"),
            f"{accepted['without']:.4f}, {accepted['with']:.4f}",
        )
    console.print(table)
    return rows


def against_jax(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """MINT, n = 10^6, m = 1000, independent uniform minibatches: microseconds per chain-step."""
    rows: list[dict[str, Any]] = []
    for cores in sorted({1, min(2, usable_cores())}):
        field = {
            "ours": (ours(cores, "mint", N), 1.0),
            "ours, plain torch": (ours(cores, "mint", N, executor="torch"), 0.02),
            "JAX": (Contender(PEER, "jax_mint.py", cores, N), 1.0),
        }
        clock = "cpu" if cores == 1 else "wall"
        rows += [
            {"cores": cores, "clock": clock, "C": chains} | in_turn(field, chains, rounds, chain_steps, clock)
            for chains in (1, 20, 100)
        ]
        stop_all(field)
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
    contenders = {n: ours(1, "mint", n, storage="file" if n >= 10**8 else "memory") for n in sizes}
    for contender in contenders.values():
        contender.request(20, steps_of(chain_steps, 1, 20))
    seen: dict[int, list[float]] = {n: [] for n in sizes}
    for seed in range(1, rounds + 1):
        for n, contender in contenders.items():
            seen[n].append(contender.request(20, steps_of(chain_steps, 1, 20), seed)["cpu"])
    for contender in contenders.values():
        contender.stop()
    per_step = 1e6 / (20 * steps_of(chain_steps, 1, 20))
    rows = [{"n": n, "us_per_chain_step": statistics.median(times) * per_step} for n, times in seen.items()]
    table = Table(title="MINT against n: m = 1000, C = 20, one core (CPU time)", title_justify="left")
    for column in ("n", "microseconds per chain-step", "of n = 1e4"):
        table.add_column(column, justify="right")
    for row in rows:
        cost = row["us_per_chain_step"]
        table.add_row(f"{row['n']:,}", f"{cost:.2f}", f"{cost / rows[0]['us_per_chain_step']:.2f}")
    console.print(table)
    return rows


def mh_minibatch(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """MHminibatch (Seita et al. 2017, Algorithm 1) on the mixture, n = 10^6: microseconds per chain-step."""
    with tempfile.TemporaryDirectory() as folder:
        n, table = problem_growing.N, Path(folder) / "quantiles.npz"
        save_quantiles(table)
        field = {
            "ours": (ours(1, "mh_minibatch", n), 1.0),
            "JAX": (Contender(PEER, "jax_growing.py", 1, n, table), 0.1),
            "NumPy": (Contender(PEER, "numpy_growing.py", 1, n, table), 0.02),
        }
        rows = [{"C": c} | in_turn(field, c, rounds, chain_steps, "cpu") for c in (1, 10)]
        stop_all(field)
    goals = [Goal("JAX", 10, 0.75), Goal("NumPy", 10, 1 / 8)]
    title = "MHminibatch, n = 1e6, m = 50, one core: microseconds per chain-step (median)"
    console.print(against_peers(title, rows, goals))
    return rows


def against_cpp(rounds: int, chain_steps: int, console: Console) -> dict[str, list[dict[str, Any]]]:
    """MINT and MHminibatch beside loops written by hand in C++, and the parts of a MINT step in both."""
    if cpp_loops.COMPILER is None:
        console.print("no C++ compiler: the comparison with loops in C++ is left out.")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "quantiles.npz"
        save_quantiles(table)
        found = {}
        for name, problem, what, share, sizes in (
            ("mint", "mint", "MINT, n = 1e6, m = 1000", 1.0, (1, 20)),
            ("mh_minibatch", "mh_minibatch_with", "MHminibatch, n = 1e6, m = 50", 2.0, (1, 10)),
        ):
            field = {
                "ours": (ours(1, problem, N), share),
                "C++": (Contender(sys.executable, "cpp_loops.py", 1, name, N, table), share),
            }
            rows = [{"C": c} | in_turn(field, c, rounds, chain_steps, "cpu") for c in sizes]
            stop_all(field)
            goals = [Goal("C++", c, 1.5) for c in sizes]
            console.print(against_peers(f"{what}, one core: microseconds per chain-step", rows, goals))
            found[name] = rows
    return found | {"parts": mint_parts(rounds, chain_steps, console)}


def mint_parts(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """Nanoseconds per datum of the parts of a MINT step, here and in C++, where data fit the cache and where not."""
    rows: list[dict[str, Any]] = []
    for n in (10**4, 10**6, 10**8):
        steps = max(10, chain_steps // 100)
        words = (str(HERE / "mint_profile.py"), str(n), str(steps), str(rounds))
        printed = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout
        rows += [json.loads(line) for line in printed.splitlines()]
    table = Table(title="A MINT step, m = 1000: CPU nanoseconds per datum, sums", title_justify="left")
    for column in ("up to", "n", "mhrun", "C++", "ratio"):
        table.add_column(column, justify="left" if column == "up to" else "right")
    cost = {(row["part"], row["n"], row["who"]): row["ns_per_datum"] for row in rows}
    for part, n in dict.fromkeys((row["part"], row["n"]) for row in rows):
        here, there = cost[part, n, "mhrun"], cost.get((part, n, "C++"))
        cells = ("", "") if there is None else (f"{there:.2f}", f"{here / there:.2f}")
        table.add_row(part, f"{n:,}", f"{here:.2f}", *cells)
    console.print(table)
    return rows


def tuna_mh(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """TunaMH (Zhang, Cooper & De Sa 2020, Algorithm 1) on the same mixture: microseconds per chain-step."""
    with tempfile.TemporaryDirectory() as folder:
        n, table = problem_growing.N, Path(folder) / "bounds.npz"
        save_bounds(table)
        field = {
            "ours": (ours(1, "tuna_mh", n), 1.0),
            "JAX": (Contender(PEER, "jax_thinned.py", 1, n, table), 0.3),
        }
        rows = [{"C": c} | in_turn(field, c, rounds, chain_steps, "cpu") for c in (1, 10)]
        stop_all(field)
    goals = [Goal("JAX", 1, 0.75), Goal("JAX", 10, 0.75)]
    title = f"TunaMH, n = 1e6, chi = {problem_growing.CHI:g}, one core: microseconds per chain-step (median)"
    console.print(against_peers(title, rows, goals))
    return rows


def logistic(rounds: int, chain_steps: int, console: Console) -> dict[str, list[dict[str, Any]]]:
    """Logistic regression on 13,007 images: MINT, and Metropolis on all data: microseconds per chain-step."""
    n, m = problem_logistic.N, problem_logistic.M
    parts = {
        "mint": ("JAX", f"MINT, m = {m}", 0.1, [Goal("JAX", 10, 0.55)]),
        "metropolis": (
            "BlackJAX",
            "Metropolis on all data",
            0.005,
            [Goal("BlackJAX", 1, 1.0), Goal("BlackJAX", 10, 1.0)],
        ),
    }
    found = {}
    for name, (peer, what, share, goals) in parts.items():
        field = {
            "ours": (ours(1, f"{name}_logistic", n, executor="auto"), share),
            peer: (Contender(PEER, "jax_logistic.py", 1, name, n), share),
        }
        rows = [{"C": c} | in_turn(field, c, rounds, chain_steps, "cpu") for c in (1, 10)]
        stop_all(field)
        title = f"Logistic regression, {what}, one core: microseconds per chain-step"
        console.print(against_peers(title, rows, goals))
        found[name] = rows
    return found


def network(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """MINT with a Langevin proposal on 784-200-10, m = 200: microseconds per chain-step."""
    n, share = problem_network.N, 0.002
    field = {
        "ours": (ours(1, "mint_network", n, executor="auto"), share),
        "JAX": (Contender(PEER, "jax_network.py", 1, n), share),
        "torch SGD": (Contender(sys.executable, "torch_network.py", 1, n), share),
    }
    rows = [{"C": c} | in_turn(field, c, rounds, chain_steps, "cpu") for c in (1, 10)]
    stop_all(field)
    goals = [Goal("JAX", 1, 1.0), Goal("JAX", 10, 0.75), Goal("torch SGD", 1, 1.5)]
    title = "784-200-10 network, MINT with Langevin moves, m = 200, one core: microseconds per chain-step"
    console.print(against_peers(title, rows, goals))
    ten, one = (row["us_per_chain_step"]["ours"] for row in reversed(rows))
    console.print(f"ten chains over ten single ones: {ten / one:.2f} (goal <= 1.2)")
    return rows


def dynamics(rounds: int, chain_steps: int, console: Console) -> dict[str, list[dict[str, Any]]]:
    """SGLD, SGHMC and SGNHT on a mixture of 25 Gaussians and on 784-200-10: microseconds per chain-step."""
    found = {}
    goals = [Goal(peer, chains, 1.0) for peer in ("BlackJAX", "posteriors") for chains in (1, 10)]
    n = problem_network.N
    for target, executor, shares in (
        ("mixture", "compiled", (4.0, 4.0, 0.005)),  # long runs: a trace and its checks take 0.05 s
        ("network", "auto", (0.002,) * 3),
    ):
        for name in problem_dynamics.ALGORITHMS:
            field = {
                "ours": (ours(1, f"{name}_{target}", n, executor=executor), shares[0]),
                "BlackJAX": (Contender(PEER, "jax_dynamics.py", 1, target, name), shares[1]),
                "posteriors": (Contender(PEER, "posteriors_dynamics.py", 1, target, name), shares[2]),
            }
            rows = [{"C": c} | in_turn(field, c, rounds, chain_steps, "cpu") for c in (1, 10)]
            stop_all(field)
            title = f"{name.upper()}, {target}, one core: microseconds per chain-step"
            seen = "near a centre" if target == "mixture" else "-"
            console.print(against_peers(title, rows, goals, seen))
            found[f"{name}_{target}"] = rows
    return found


def ladders(rounds: int, chain_steps: int, console: Console) -> list[dict[str, Any]]:
    """Ladders of 8 rungs that exchange every 40 steps, and single chains of the same: microseconds per chain-step."""
    parts = {
        "mixture": ("RENHD on five Gaussians", 1, 5.0, "compiled"),
        "logistic": ("Metropolis on all 13,007 images", problem_logistic.N, 0.02, "compiled"),
        "network": ("RENHD on 784-200-10, m = 200", problem_network.N, 0.004, "auto"),
    }
    rows = []
    for name, (what, n, share, executor) in parts.items():
        field = {
            "ladder": ours(1, f"ladder_{name}", n, executor=executor),
            "single": ours(1, f"rungs_{name}", n, executor=executor),
        }
        seen: dict[str, list[float]] = {"ladder": [], "single": []}
        sizes = {"ladder": 8, "single": 1}
        for seed in range(rounds + 1):
            for which, contender in field.items():
                steps = steps_of(chain_steps, share, 8)
                found = contender.request(sizes[which], steps, seed)
                if seed:  # the first compiles
                    seen[which].append(found["cpu"] / (steps * sizes[which]) * 1e6)
        stop_all({which: (contender, 1.0) for which, contender in field.items()})
        rows.append({"what": what} | {which: statistics.median(times) for which, times in seen.items()})
    table = Table(
        title="Ladders of 8 rungs, an exchange every 40 steps, one core (CPU time)", title_justify="left"
    )
    for column in ("what", "ladder", "single chains", "ladder / 8 single ones", "goal"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in rows:
        ratio = row["ladder"] / row["single"]
        table.add_row(row["what"], f"{row['ladder']:.2f}", f"{row['single']:.2f}", f"{ratio:.2f}", "<= 1.1")
    console.print(table)
    return rows


def save_quantiles(path: Path) -> None:
    """Write down the table that MHminibatch draws its correction from."""
    from mhrun.rules.correction import correction, quantiles

    table = quantiles(correction("paper", problem_growing.SIGMA))
    np.savez(path, probabilities=table.probabilities.numpy(), points=table.points.numpy())


def save_bounds(path: Path) -> None:
    """Write down the weights of the bounds on the mixture, with their alias table."""
    import torch

    from mhrun.models.bounds import centred_norms
    from mhrun.native.alias import alias_table

    x = torch.from_numpy(problem_growing.mixture(problem_growing.N).astype("float32"))
    centre, half, weights = centred_norms(x)
    cut, other = alias_table(weights.numpy())
    np.savez(path, weights=weights.numpy(), cut=cut, other=other, centre=centre, half=half)


def module_steps(console: Console) -> list[dict[str, Any]]:
    """A step of SGHMC on a torch module over a plain training step of the same module, one thread."""
    command = [sys.executable, str(HERE / "modules.py"), "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    rows: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
    table = Table(title="SGHMC on a torch module, CPU ms of a step per chain", title_justify="left")
    for column in ("network", "chains", "plain SGD-M", "mhrun", "ratio", "aim"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for row in rows:
        aim = "1.15" if row["chains"] == 1 else "1.0"
        cells = (f"{row['plain_ms']:.2f}", f"{row['ours_ms']:.2f}", f"{row['ratio']:.2f}", aim)
        table.add_row(row["network"], str(row["chains"]), *cells)
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
            contender = ours(1, "mint", 10_000, MHRUN_CACHE_DIR=empty)
            found[name] = contender.request(1, 100)["wall"]
            contender.stop()
    table = Table(title="Start-up", title_justify="left")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:.3f}")
    console.print(table)
    return found


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


TABLES: dict[str, Callable[[argparse.Namespace, Console], Any]] = {
    "without_replacement": lambda options, console: without_replacement(
        options.rounds, options.chain_steps, console
    ),
    "start_up": lambda options, console: start_up(options.rounds, console),
    "against_jax": lambda options, console: against_jax(options.rounds, options.chain_steps, console),
    "over_n": lambda options, console: over_n(options.rounds, options.chain_steps, options.largest, console),
    "mh_minibatch": lambda options, console: mh_minibatch(options.rounds, options.chain_steps, console),
    "tuna_mh": lambda options, console: tuna_mh(options.rounds, options.chain_steps, console),
    "against_cpp": lambda options, console: against_cpp(options.rounds, options.chain_steps, console),
    "modules": lambda options, console: module_steps(console),
    "network": lambda options, console: network(options.rounds, options.chain_steps, console),
    "dynamics": lambda options, console: dynamics(options.rounds, options.chain_steps, console),
    "ladders": lambda options, console: ladders(options.rounds, options.chain_steps, console),
    "logistic": lambda options, console: logistic(options.rounds, options.chain_steps, console),
}


OURS_ALONE = {"start_up", "modules", "against_cpp", "without_replacement", "over_n", "ladders"}


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
    parser.add_argument("--only", nargs="+", default=[], choices=TABLES, help="make these tables only")
    arguments = parser.parse_args()
    console = Console(width=110)
    chosen = [name for name in TABLES if name in (arguments.only or TABLES)]
    if set(chosen) - OURS_ALONE:
        make_peers()
    found = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{cpu_name()}, {usable_cores()} cores",
        "matrix products": matrix_products(),
        "python": platform.python_version(),
    }
    console.print(f"{found['machine']}; matrix products: {found['matrix products']}")
    if forced := os.environ.get("OPENBLAS_CORETYPE"):
        console.print(
            f"OPENBLAS_CORETYPE={forced} is set: OpenBLAS does not choose its kernels by the processor."
        )
    found |= {name: TABLES[name](arguments, console) for name in chosen}
    name = "-".join(["benchmarks", *(chosen if arguments.only else [])]) + ".json"
    place = ROOT / "outputs" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    console.print(f"written to {place.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
