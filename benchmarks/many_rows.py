"""Logistic regressions on many rows with the defaults of `mhrun.sample`, beside SGLD-CV: seconds and effective draws.

    python benchmarks/many_rows.py [--n 300000,1000000] [--dims 10,40] [--methods default,sgld_cv,smh2_pcn,zig_zag]

Columns: seconds of a call, its pilot and the mode before the run included, data per step, the least effective sample
size, and the largest difference of standard deviations from those of the normal approximation at the mode, in per cent:
the posterior of so many rows is nearly normal. Each method has a short call first, which compiles its loops.
"""

from __future__ import annotations

import argparse
import time
import warnings

import arviz_stats
import numpy as np

import mhrun
from mhrun.array_types import Array


def rows(n: int, dim: int, seed: int = 0) -> tuple[Array, Array]:
    """Return features (n, dim), a constant and correlated ones, and labels +1 and -1."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(0.5 * np.eye(dim - 1) + 0.5)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, dim - 1)) @ root.T])
    theta = rng.standard_normal(dim) / dim**0.5
    return x, np.where(rng.random(n) < 1 / (1 + np.exp(-x @ theta)), 1.0, -1.0)


def normal_sds(x: Array, y: Array) -> Array:
    """Return the standard deviations of the normal approximation, with a prior of variance 1."""
    theta = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ theta))
        precision = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(len(theta))
        theta += np.linalg.solve(precision, x.T @ ((y > 0) - p) - theta)
    return np.sqrt(np.diag(np.linalg.inv(precision)))


def line(method: str, x: Array, y: Array, sds: Array) -> str:
    """Return a row of the table."""
    name = None if method == "default" else method
    model = mhrun.Logistic(x.shape[1], prior_variance=1.0)
    data = {"x": x, "y": y}
    mhrun.sample(model, data, name, steps=50, warmup=50, progress=False)
    began = time.perf_counter()
    trace = mhrun.sample(model, data, name, seed=1, progress=False)
    seconds = time.perf_counter() - began
    theta = trace["posterior"]["theta"]
    ess = float(arviz_stats.ess(trace["posterior"].dataset)["theta"].min())
    off = 100 * np.abs(theta.std(("chain", "draw")).to_numpy() / sds - 1).max()
    per_step = float(trace["sample_stats"]["batch_size"].mean())
    return (
        f"| {len(x):,} | {x.shape[1]} | {method} | {seconds:.1f} | {per_step:,.1f} | {ess:,.0f} | {off:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", default="300000,1000000")
    parser.add_argument("--dims", default="10,40")
    parser.add_argument("--methods", default="default,sgld_cv,smh2_pcn,zig_zag")
    args = parser.parse_args()
    print("| n | D | method | s | data per step | ESS | sd off by, % |\n|--:|--:|---|--:|--:|--:|--:|")
    for n in map(int, args.n.split(",")):
        for dim in map(int, args.dims.split(",")):
            x, y = rows(n, dim)
            sds = normal_sds(x, y)
            for method in args.methods.split(","):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    print(line(method, x, y, sds), flush=True)


if __name__ == "__main__":
    main()
