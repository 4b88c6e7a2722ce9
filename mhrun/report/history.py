"""History of a method: acceptance over steps, adapted step sizes, minibatch sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mhrun.report.densities import Curve
from mhrun.report.run import Run

_WINDOWS = 60  # of an acceptance rate over a whole run
_STEPS = 200_000  # of burn-in that are replayed at most
_EDGES = 24  # of a histogram


def acceptance_history(run: Run, method: str) -> Curve | None:
    """Return steps (0 at the end of burn-in) and acceptance rates of windows; None without an acceptance test."""
    if not run.methods[method]["n_accept_tests"]:
        return None
    thin, warmup = run.methods[method]["thin_stats"], run.methods[method]["warmup"]
    parts = [
        part.mean(axis=0, dtype=float)
        for part in (_accepted_in_burn_in(run, method), run.stat(method, "accepted"))
    ]
    rates = np.concatenate([np.atleast_1d(part) for part in parts])
    width = max(1, len(rates) // _WINDOWS)
    count = len(rates) // width
    places = (np.arange(count) + 0.5) * width * thin - warmup
    return places, rates[: count * width].reshape(count, width).mean(axis=1)


def step_size_history(run: Run, method: str) -> Curve | None:
    """Return steps (0 at the end of burn-in) and the mean step size of chains; None where it is not tuned.

    Step sizes are functions of the acceptances before them, which the trace has: the schedules are run on these again.
    """
    summary = run.methods[method]
    if (
        not summary.get("tuned_to")
        or summary["thin_stats"] != 1
        or summary["warmup"] > _STEPS
        or run.rungs(method) > 1
    ):
        return None
    plan = run.plan(method)
    accepted = torch.from_numpy(_accepted_in_burn_in(run, method).T.astype(bool).copy())
    memory, step = plan.start(), 0
    steps, sizes = list[float](), list[float]()
    while step < len(accepted):
        stride = min(plan.steps_until_update(step + 1) or len(accepted), len(accepted) - step)
        steps.append(step - summary["warmup"])
        sizes.append(float(plan.controls(memory, step + 1, 1).step_size.log().mean().exp()))
        memory = plan.learn(memory, step + 1, accepted[step : step + stride])
        step += stride
    return np.asarray(steps, float), np.asarray(sizes)


def batch_sizes(run: Run, method: str) -> Curve | None:
    """Return the edges and heights of a histogram of minibatch sizes; None where all are one size.

    Steps that read no data have the first bin, from 0 to 1.
    """
    if not run.methods[method]["minibatch_size_sd"] > 0:
        return None
    sizes: npt.NDArray[Any] = run.stat(method, "batch_size").ravel()
    if sizes.size == 0 or sizes.min() == sizes.max():
        return None
    edges = np.unique(np.geomspace(max(1, sizes.min()), sizes.max() + 1, _EDGES).round())
    if sizes.min() == 0:
        edges = np.append(0.0, edges)
    return edges, np.histogram(sizes, edges)[0] / sizes.size


def _accepted_in_burn_in(run: Run, method: str) -> npt.NDArray[Any]:
    """Return which steps of burn-in accepted (C, S); empty where the method has none."""
    chains = run.methods[method]["chains"]
    with run.trace(method) as trace:
        if "warmup_sample_stats" not in trace.children:
            return np.empty((chains, 0))
        values: npt.NDArray[Any] = trace["warmup_sample_stats"]["accepted"].to_numpy()
    return values[:: run.rungs(method)] if values.ndim > 1 else values
