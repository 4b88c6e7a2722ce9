"""MINT and MHminibatch in C++ (loops.cpp), built with the machine's own compiler.

Arguments: cores, algorithm (mint or mh_minibatch), number of data, the file with the correction's quantiles (of
MHminibatch).
"""

from __future__ import annotations

import sys

import worker

if __name__ == "__main__":
    worker.pin_to(int(sys.argv[1]))

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import problem
import problem_growing as growing

COMPILER = next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)
FLAGS = ("-O3", "-march=native", "-ffast-math", "-std=c++17", "-shared", "-fPIC")


class Problem(ctypes.Structure):
    """The struct of loops.cpp."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("m", "chains", "steps")),
        ("seed", ctypes.c_uint32),
        *(
            (name, ctypes.c_double)
            for name in ("variance", "prior1", "prior2", "step_size", "scale", "prior_power")
        ),
        ("probabilities", ctypes.c_void_p),
        ("points", ctypes.c_void_p),
        ("quantiles", ctypes.c_int32),
        *((name, ctypes.c_double) for name in ("sigma2", "noise_share", "growth")),
    )


def build() -> ctypes.CDLL:
    """Return the compiled loops."""
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "loops.so"
        source = Path(__file__).with_name("loops.cpp")
        subprocess.run([COMPILER, *FLAGS, str(source), "-o", str(library)], check=True)
        loops = ctypes.CDLL(str(library))
    loops.parts.restype = ctypes.c_double
    return loops


def mint_problem(x: np.ndarray, chains: int, steps: int, seed: int) -> Problem:
    """Return MINT as in problem.py."""
    temperature = problem.temperature(len(x))
    return Problem(
        x.ctypes.data,
        *(len(x), problem.M, chains, steps, seed),
        *(problem.VARIANCE, *problem.PRIOR_VARIANCES, problem.STEP_SIZE),
        *(len(x) / temperature, 1 / temperature),
    )


def run_mint(loops: ctypes.CDLL, asked: Problem) -> dict[str, float]:
    """Run MINT and return its acceptance rate and minibatch size."""
    arrays, out = _arrays(asked.chains, asked.steps)
    loops.mint(ctypes.byref(asked), *out)
    return {"accepted": float(arrays[1].mean()), "batch": float(asked.m)}


def run_part(loops: ctypes.CDLL, asked: Problem, number: int) -> float:
    """Run the first parts of MINT's steps, see loops.cpp."""
    return loops.parts(ctypes.byref(asked), number)


def _arrays(chains: int, steps: int) -> tuple[list[np.ndarray], list[ctypes.c_void_p]]:
    """Return the arrays of draws and statistics, and their addresses."""
    arrays = [np.empty((chains, steps, 2)), np.empty((chains, steps), bool), *np.empty((2, chains, steps))]
    return arrays, [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def main(algorithm: str, n: int, table: str | None) -> None:
    loops = build()
    x = growing.mixture(n).astype("float32")
    quantiles = {}
    if table is not None:
        with np.load(table) as file:
            quantiles = {name: file[name].astype(float) for name in ("probabilities", "points")}

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        if algorithm == "mint":
            return run_mint(loops, mint_problem(x, chains, steps, seed))
        asked = mint_problem(x, chains, steps, seed)
        asked.m, asked.step_size = growing.M, growing.STEP_SIZE
        asked.scale, asked.prior_power = n / growing.temperature(n), 1.0
        asked.probabilities, asked.points = (quantiles[k].ctypes.data for k in ("probabilities", "points"))
        asked.quantiles, asked.sigma2 = len(quantiles["points"]), growing.SIGMA**2
        asked.noise_share, asked.growth = growing.NOISE_SHARE, growing.GROWTH
        arrays, out = _arrays(chains, steps)
        size = np.empty((chains, steps), np.int32)
        loops.mh_minibatch(ctypes.byref(asked), *out, ctypes.c_void_p(size.ctypes.data))
        return {"accepted": float(arrays[1].mean()), "batch": float(size.mean())}

    worker.serve(work)


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
