"""Contenders of a benchmark: processes that do pieces of work in turn, round after round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ROOT / ".venv-peers"
PEER = PEERS / "bin" / "python"
N = 1_000_000


class Contender:
    """A process that does the work on request."""

    def __init__(self, python: str | Path, script: str, *arguments: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [str(python), str(HERE / script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def request(self, chains: int, steps: int, seed: int = 0) -> dict[str, float]:
        """Return the seconds of one piece of work, and what it found: the acceptance rate at least."""
        return self.ask({"chains": chains, "steps": steps, "seed": seed})

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to any question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
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


Field = Mapping[str, tuple[Contender, float]]
"""Contenders by name, each with the share of the steps that it runs: less where it is slow."""


class Goal(NamedTuple):
    """What our time over a peer's should not exceed."""

    peer: str
    chains: int
    ratio: float


def make_peers() -> None:
    """Make the environment of the peers, unless it is there."""
    wanted, made = HERE / "peers.txt", PEERS / "peers.txt"
    if made.exists() and made.read_text(encoding="utf-8") == wanted.read_text(encoding="utf-8"):
        return
    print(f"making {PEERS.name} ...", flush=True)
    if not PEER.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
    subprocess.run([str(PEER), "-m", "pip", "install", "--quiet", "-r", str(wanted)], check=True)
    made.write_text(wanted.read_text(encoding="utf-8"), encoding="utf-8")


def in_turn(field: Field, chains: int, rounds: int, chain_steps: int, clock: str) -> dict[str, Any]:
    """Ask all contenders, round after round; return the cost and what they found, each by name."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in field}
    for contender, share in field.values():  # what is compiled is compiled now
        contender.request(chains, steps_of(chain_steps, share, chains))
    for seed in range(1, rounds + 1):
        for name, (contender, share) in field.items():
            seen[name].append(contender.request(chains, steps_of(chain_steps, share, chains), seed))
    cost = {
        name: statistics.median(a[clock] for a in answers)
        / (steps_of(chain_steps, field[name][1], chains) * chains)
        * 1e6
        for name, answers in seen.items()
    }
    found = {
        what: {name: statistics.mean(a[what] for a in answers) for name, answers in seen.items()}
        for what in ("accepted", "batch")
        if all(what in answers[0] for answers in seen.values())
    }
    return {"us_per_chain_step": cost, **found}


def ours(
    cores: int, problem: str, n: int, executor: str = "compiled", storage: str = "memory", **environment: str
) -> Contender:
    """Return the contender that runs a problem of ours."""
    return Contender(sys.executable, "ours.py", cores, problem, n, executor, storage, **environment)


def stop_all(field: Field) -> None:
    """End all processes."""
    for contender, _ in field.values():
        contender.stop()


def steps_of(chain_steps: int, share: float, chains: int) -> int:
    """Return the steps of a piece of work, at least 10."""
    return max(10, int(chain_steps * share) // chains)


def against_peers(
    title: str, rows: list[dict[str, Any]], goals: list[Goal], seen: str = "acceptance"
) -> Table:
    """Return a table of our cost and each peer's, with goals."""
    table = Table(title=title, title_justify="left")
    for column in ("C", "peer", "ours", "peer's", "ours / peer's", "goal", f"{seen} (ours, peer's)"):
        table.add_column(column, justify="right")
    aims = {(goal.peer, goal.chains): f"<= {goal.ratio:.3g}" for goal in goals}
    for row in rows:
        cost, accepted = row["us_per_chain_step"], row["accepted"]
        for peer in cost:
            if peer == "ours":
                continue
            table.add_row(
                str(row["C"]),
                peer,
                f"{cost['ours']:.2f}",
                f"{cost[peer]:.2f}",
                f"{cost['ours'] / cost[peer]:.3f}",
                aims.get((peer, row["C"]), ""),
                f"{accepted['ours']:.4f}, {accepted[peer]:.4f}",
            )
    return table
