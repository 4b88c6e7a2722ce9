"""What a pilot found: in a method, and in a file."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.store.blocks import load_block
from mhrun.store.files import write_whole
from mhrun.store.pilot_facts import PilotFacts
from mhrun.store.sharing import PILOT
from mhrun.types.scale import Scale


class PilotResult(NamedTuple):
    """What a pilot found."""

    step_size: Tensor  # (C,)
    starts: Tensor  # (C, D)
    scale: Scale | None
    acceptance: float | None  # the rate that the step size has, and is tuned to
    m: int | None  # the minibatch size, if it was open
    leapfrog_steps: int | None  # of a trajectory, if their number was open
    facts: PilotFacts  # user-facing: what was chosen, why, and what it cost


def filled(method: Method, result: PilotResult) -> Method:
    """Return the method with the settings that a pilot found."""
    kernel = method.kernel.of_a_chain
    kernel = kernel if result.m is None else kernel.with_m(result.m)
    if result.leapfrog_steps is not None:
        kernel = kernel.with_leapfrog_steps(result.leapfrog_steps)
    kernel = kernel if result.scale is None else kernel.with_scale(result.scale)
    points = result.starts
    return replace(
        method,
        kernel=method.kernel.with_kernel_of_a_chain(kernel),
        target=method.target.with_passes_of(kernel.of_a_chain.pass_size),
        plan=method.plan.filled(result.step_size, result.acceptance),
        starts=lambda chains, draws: points[torch.arange(chains) % len(points)],
        precondition=None,
        pilot=result.facts,
    )


def save(result: PilotResult, folder: Path) -> None:
    """Keep a result in the folder of its method."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "step_size": result.step_size.numpy(),
        "starts": result.starts.cpu().numpy(),
        "facts": np.frombuffer(json.dumps(result.facts).encode(), np.uint8),
    }
    if result.scale is not None:
        arrays |= {"center": result.scale.center.numpy(), "factor": result.scale.factor.numpy()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_whole(folder / PILOT, lambda file: file.write(buffer.getvalue()))


def load(method: Method, folder: Path | None) -> PilotResult | None:
    """Return the result that a folder keeps; None if there is none, or it is damaged."""
    content = None if folder is None or not (folder / PILOT).is_file() else load_block(folder / PILOT)
    if content is None or not {"step_size", "starts", "facts"} <= content.keys():
        return None
    facts = json.loads(content["facts"].tobytes().decode())
    scale = (
        Scale(*(torch.from_numpy(content[k]) for k in ("center", "factor"))) if "factor" in content else None
    )
    starts = torch.from_numpy(content["starts"]).to(method.target.device)
    return PilotResult(
        torch.from_numpy(content["step_size"]),
        starts,
        scale,
        facts["acceptance"],
        facts["m"],
        facts.get("leapfrog_steps"),
        facts,
    )
