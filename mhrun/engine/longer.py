"""Methods that go on where a run of them with fewer steps ended (`mhrun.store.longer`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mhrun.engine.execution.executors import HYBRID, prefers_compiled
from mhrun.engine.method import Method
from mhrun.errors import Refusal
from mhrun.monitors import Monitor
from mhrun.ownership import is_bundled
from mhrun.schedules import Plan
from mhrun.schedules.contract import QUANTITIES
from mhrun.store.files import read_json
from mhrun.store.sharing import EXECUTOR

_CHUNK = 1 << 12  # steps whose controls are compared at once


def reason_to_begin_anew(method: Method, steps: int) -> str | None:
    """Return why the first steps of a method are not those of the same one with fewer, or None if they are.

    All random numbers are functions of the seed, the chain and the step, so that only schedules, what is kept and a
    monitor can depend on the number of steps.

    Args:
        method: before its pilot.
        steps: the smaller number, after burn-in.
    """
    shape, plan = method.shape, method.plan
    total = shape.warmup + steps
    try:
        shorter = Plan(plan.schedules, plan.chains, shape.warmup, steps)
    except Refusal as error:
        return str(error)
    for name in plan.schedules:
        if not _same_values(plan, shorter, name, total):
            return f"its schedule '{name}' depends on the number of steps"
    if plan.is_open and not _same_last_controls(plan, shorter):
        return "its pilot depends on the temperature of the last step"
    if not np.array_equal(_collected(plan, total), _collected(shorter, total)):
        return "a schedule chooses which draws are collected by the number of steps"
    if method.monitor is not None:
        monitor = method.monitor.bind(shorter.collected, shape.warmup, total, rungs=method.kernel.rungs)
        if (step := _first_difference(method.monitor, monitor, total)) is not None:
            return f"its monitor is due after step {step:,} only with the smaller number of steps"
    return None


def is_slower(method: Method, shorter: Path, executor: str) -> bool:
    """Return whether a shorter run was made in torch, with which it would go on, and this one pays for compilation.

    Args:
        method: with more steps.
        shorter: the folder of the method with fewer.
        executor: the setting of the run.
    """
    was_in_torch = (read_json(shorter / EXECUTOR) or {}).get("executor") == HYBRID
    return executor == "auto" and was_in_torch and prefers_compiled(method)


def _same_values(plan: Plan, shorter: Plan, name: str, total: int) -> bool:
    """Return whether a schedule of both plans sets the same in the first `total` steps."""
    schedules = [each.schedules[name] for each in (plan, shorter)]
    if any(schedule.steps_until_update(1) is not None for schedule in schedules):
        # Those of this package adapt to what happens in burn-in, and to nothing else.
        return is_bundled(schedules[0])
    memories = [schedule.start(plan.chains) for schedule in schedules]
    for first in range(1, total + 1, _CHUNK):
        count = min(_CHUNK, total + 1 - first)
        one, other = (s.values(m, first, count) for s, m in zip(schedules, memories, strict=True))
        if any(not torch.equal(*map(torch.nan_to_num, (value, other[key]))) for key, value in one.items()):
            return False
    return True


def _same_last_controls(plan: Plan, shorter: Plan) -> bool:
    one, other = (each.controls(each.start(), each.total, 1) for each in (plan, shorter))
    return all(torch.equal(getattr(one, quantity), getattr(other, quantity)) for quantity in QUANTITIES)


def _first_difference(monitor: Monitor, shorter: Monitor, total: int) -> int | None:
    """Return the first step that only one of two monitors observes, or has a row of; None without any."""
    step = 0
    while step < total:
        wait = shorter.steps_until_due(step + 1)
        if monitor.steps_until_due(step + 1) != wait and step + wait <= total:
            return step + wait
        step += wait
        if step <= total and monitor.emits(step) != shorter.emits(step):
            return step
    return None


def _collected(plan: Plan, total: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the steps up to `total` whose draws a schedule collects; all where it does not choose them."""
    if plan.collected is None:
        return np.arange(plan.warmup + 1, total + 1)
    return plan.collected[plan.collected <= total]
