"""Draws of a kernel on a known target: chains begin in the target, and the first quarter of a run is left out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from mhrun.check.case import Case
from mhrun.check.subject import Subject
from mhrun.compiled import compile_loop
from mhrun.random import Draws, Streams, derive_key
from mhrun.types import Controls

_SHARE = 0.25  # share of the steps in which chains reach their stationary distribution


class CaseDraws(NamedTuple):
    """Draws of a kernel on a known target."""

    theta: np.ndarray  # (C, S, D), NaN at steps that are not draws
    ends: np.ndarray  # (2, C, D), where chains begin and end
    batch_size: float  # mean number of data per step


def draw(
    subject: Subject,
    case: Case,
    chains: int,
    steps: int,
    step_size: float,
    noise: float = 1.0,
    name: str = "check",
) -> CaseDraws:
    """Return draws of chains that begin in the target.

    Args:
        subject: the part under test.
        case: its kernel and target.
        chains: their number.
        steps: their length, of which the first quarter is left out.
        step_size: of all chains.
        noise: the temperature of the noise in units of the target's.
        name: of the random numbers of a dynamics.
    """
    kernel, known, target, base = case
    temperature = subject.temperatures(chains, base)
    rng = np.random.default_rng(derive_key(subject.seed, "measure"))
    theta = known.draw(rng, noise * temperature)
    first = int(_SHARE * steps)
    key = derive_key(subject.seed, "check")
    loop = compile_loop(kernel, target, key, 1) if subject.rungs == 1 and kernel.decides else None
    if loop is not None:
        t = torch.from_numpy(temperature).expand(steps, -1).contiguous()
        with torch.no_grad():
            start = kernel.start(target, torch.from_numpy(theta), Draws(Streams(key, chains), 0))
            _, record = loop.advance(start, 1, Controls(torch.full_like(t, step_size), t, t))
        path = record["theta"]
        return CaseDraws(path[:, first:], np.stack([theta, path[:, -1]]), float(record["batch_size"].mean()))
    trajectory = subject.follow(
        kernel, target, theta, steps, step_size, temperature, noise_temperature=noise * temperature, name=name
    )
    subject.count_periods(trajectory)
    draws = trajectory.theta[first:].transpose(0, 1).numpy()
    ends = np.stack([theta, draws[:, -1]])
    if trajectory.infos[0].valid is not None:
        draws = np.where(trajectory.stat("valid")[first:].T.numpy()[..., None], draws, np.nan)
    return CaseDraws(draws, ends, float(trajectory.stat("batch_size").double().mean()))
