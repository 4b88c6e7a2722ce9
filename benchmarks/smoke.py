"""Measures the CPU seconds of every experiment at smoke scale with default settings, its report included.

    python benchmarks/smoke.py [--only NAME ...] [--runtime KEY=VALUE ...]

Each experiment runs in a process of its own and in a new folder; compiled loops come from the user's cache, which is
empty the first time. Prints a Markdown table, the slowest experiment first; exits with 1 if an experiment fails.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from mhrun.cli.places import experiments

BOUND = 60.0  # CPU seconds that smoke scale should stay below


class Row(NamedTuple):
    """What a run took."""

    experiment: str
    cpu: float  # seconds of the process and its workers
    wall: float
    peak: float  # GB of memory of the largest process so far
    status: int


def measured(name: str, words: list[str]) -> Row:
    """Run an experiment and return what it took."""
    with tempfile.TemporaryDirectory() as outputs:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-m", "mhrun", f"experiment={name}", "scale=smoke"]
        done = subprocess.run(
            [*command, f"runtime.outputs={outputs}", *words], capture_output=True, text=True, check=False
        )
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return Row(name, cpu, wall, after.ru_maxrss * unit / 2**30, done.returncode)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--runtime", nargs="*", default=[], metavar="KEY=VALUE")
    chosen = parser.parse_args()
    rows = []
    for name in chosen.only or experiments([]):
        rows.append(measured(name, chosen.runtime))
        print(f"{name}: {rows[-1].cpu:.1f} s", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: -row.cpu)
    print(f"\n{os.cpu_count()} cores\n\n| experiment | CPU s | wall s |\n|---|--:|--:|")
    for row in rows:
        print(f"| {row.experiment} | {row.cpu:.1f}{' (failed)' * bool(row.status)} | {row.wall:.1f} |")
    slow = sum(row.cpu > BOUND for row in rows)
    print(
        f"\n{len(rows)} experiments, {slow} above {BOUND:.0f} s; {sum(row.cpu for row in rows):.0f} s in all"
    )
    return int(any(row.status for row in rows))


if __name__ == "__main__":
    sys.exit(main())
