"""Nanoseconds per datum of a MINT step's parts, here and in C++ (loops.cpp), in turn on one core: JSON lines.

Each part is measured with the parts before it: the minibatch's indices; its rows fetched; the terms computed. ``step``
is the whole step, ``written`` the whole step with its trace on disk (which C++ does not write; a run of more steps).
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(1)

import json  # noqa: E402
import shutil  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import cpp_loops  # noqa: E402
import numpy as np  # noqa: E402
import ours as problems  # noqa: E402
import problem  # noqa: E402
import torch  # noqa: E402

from mhrun.compiled.metropolis import MetropolisLoop  # noqa: E402
from mhrun.native import Draw, Piece, compiled, piece  # noqa: E402
from mhrun.native.indices import independent, workspace  # noqa: E402
from mhrun.native.philox import MINIBATCH, split_key  # noqa: E402
from mhrun.types import Controls, Evaluation, State  # noqa: E402

u64 = np.uint64
PARTS = ("indices", "rows", "terms")
LONGER = 25  # a run has so many more steps, to which its start and end add little


def _part(use: Piece) -> Piece:
    """Return steps that draw indices and use them."""

    def loop(model: Any, origin: Any, to: Any, key: Any, steps: Any, n: Any, m: Any, work: Any) -> Any:
        index = np.empty(m + 1, np.int64)
        total = 0.0
        for k in range(steps):
            independent(index, m, n, Draw(key, u64(k), u64(0)), MINIBATCH, 0, work)
            total += use(model, index, m, origin, to)
        return total

    return compiled(loop)


@piece
def _last_index(model: Any, index: Any, m: Any, origin: Any, to: Any) -> Any:
    return np.float64(index[m - 1])


@piece
def _sum_of_rows(model: Any, index: Any, m: Any, origin: Any, to: Any) -> Any:
    x = model[0]
    rows = np.empty(1024, np.float32)
    total = 0.0
    for start in range(0, m, 1024):
        size = min(1024, m - start)
        for j in range(size):
            rows[j] = x[index[start + j]]
        part = np.float32(0)
        for j in range(size):
            part += rows[j]
        total += np.float64(part)
    return total


def _terms_of(difference: Piece) -> Piece:
    @piece
    def terms(model: Any, index: Any, m: Any, origin: Any, to: Any) -> Any:
        one, _two = difference(model, index, m, origin, to)
        return one

    return terms


def _ours(n: int, folder: Path) -> dict[str, Callable[[int, int], object]]:
    """Return what does so many steps of each part."""
    work = problems.mint(n, "memory")
    model = work.target.native(full=False)
    assert model is not None
    uses = (_last_index, _sum_of_rows, _terms_of(model.difference))
    origin, to = np.array([0.0, 1.0]), np.array([0.1, 0.9])
    own = workspace(n, problem.M, replacement=True)

    def part(loop: Piece) -> Callable[[int, int], object]:
        return lambda steps, seed: loop(
            model.args, origin, to, split_key(seed), steps, u64(n), problem.M, own
        )

    kernel: Any = work.kernel
    loop = MetropolisLoop.of(kernel, work.target, 1, 1)
    assert loop is not None
    theta = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    start = State(Evaluation(theta, work.target.model.log_prior(theta)), {})
    written = problems.runner(work, "mint", folder, "compiled", 1)

    def step(steps: int, seed: int) -> object:
        same = torch.ones((steps, 1), dtype=torch.float64)
        controls = Controls(problem.STEP_SIZE * same, problem.temperature(n) * same, same)
        return loop.advance(start, seed * steps, controls)

    return {
        **{name: part(_part(use)) for name, use in zip(PARTS, uses, strict=True)},
        "step": step,
        "written": lambda steps, seed: written(1, LONGER * steps, seed),
    }


def _cpp(n: int) -> dict[str, Callable[[int, int], object]]:
    loops, x = cpp_loops.build(), problems.mint(n, "memory").target.data.fields["x"].numpy()

    def part(number: int) -> Callable[[int, int], object]:
        return lambda steps, seed: cpp_loops.run_part(
            loops, cpp_loops.mint_problem(x, 1, steps, seed), number
        )

    return {
        **{name: part(number) for number, name in enumerate(PARTS)},
        "step": lambda steps, seed: cpp_loops.run_mint(loops, cpp_loops.mint_problem(x, 1, steps, seed)),
    }


def main(n: int, steps: int, rounds: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mhrun-bench-"))
    field = {"mhrun": _ours(n, folder)} | ({"C++": _cpp(n)} if cpp_loops.COMPILER else {})
    seen: dict[tuple[str, str], list[float]] = {}
    try:
        for seed in range(rounds + 1):
            for who, parts in field.items():
                for name, work in parts.items():
                    before = time.process_time()
                    work(steps, seed + 1)
                    if seed:  # the first compiles
                        seen.setdefault((name, who), []).append(time.process_time() - before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for (name, who), times in seen.items():
        done = steps * (LONGER if name == "written" else 1)
        each = statistics.median(times) / (done * problem.M) * 1e9
        print(json.dumps({"n": n, "part": name, "who": who, "ns_per_datum": each}))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:4]))
