"""What every contender speaks: one JSON question per line in, one JSON answer per line out.

A contender is a process of its own, in its own environment. It receives ``{"chains", "steps", "seed"}``
and answers with the seconds that it took, by the wall and of its CPU, and the acceptance rate, by which
the contenders are checked to be the same algorithm; where minibatches grow, their mean size too. Only the
standard library is used here, so that any environment can import it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable


def pin_to(cores: int) -> None:
    """Let this process use only so many cores; call it before a library counts them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(cores)
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if cores > 1 else 'false'}"
    os.environ["JAX_PLATFORMS"] = "cpu"


Found = dict[str, float | Callable[[], float]]


def serve(work: Callable[[int, int, int], Found]) -> None:
    """Answer until the input ends; ``work(chains, steps, seed)`` returns what it found, ``accepted`` at least.

    What only checks that the work is the same may be a function, which is called after the clock has stopped.
    """
    for line in sys.stdin:
        question = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        found = work(question["chains"], question["steps"], question["seed"])
        answer = {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            **{name: value() if callable(value) else value for name, value in found.items()},
        }
        print(json.dumps(answer), flush=True)
