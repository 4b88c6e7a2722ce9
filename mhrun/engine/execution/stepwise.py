"""Base of executors that do one step at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from mhrun.engine.execution.buffers import filled, info_buffers, record_of, write
from mhrun.engine.method import Method
from mhrun.random import Draws
from mhrun.types import Controls, Info, Record, State


class StepwiseExecutor(ABC):
    """An executor that does one step at a time, and records a block of them.

    Args:
        method: what is run.
        compiled: whether its random numbers may be compiled.
    """

    # Whether statistics are written after the last step of a block, which is faster for small steps, or after each
    # step, which needs less memory of the device
    writes_at_once = False

    def __init__(self, method: Method, *, compiled: bool) -> None:
        self._method = method
        self._draws = Draws(method.streams(compiled=compiled), 1)

    @abstractmethod
    def _step(self, state: State, controls: Controls) -> tuple[State, Info]:
        """Do one step, with controls (C,)."""

    @torch.no_grad()
    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C)."""
        method, target = self._method, self._method.target
        on_device = controls.each(lambda c: c.to(device=target.device, dtype=method.dtype))
        steps, chains = len(controls.step_size), len(state.evaluation.theta)
        place = {int(k): i for i, k in enumerate(method.shape.kept(first_step, steps))}
        theta = state.evaluation.theta.new_empty(len(place), chains, target.width)
        buffers, infos = info_buffers(steps, chains, target.device), list[Info]()
        for k in range(steps):
            self._draws.step = first_step + k
            state, info = self._step(state, on_device.each(lambda c, k=k: c[k]))  # type: ignore[misc]
            if k in place:
                theta[place[k]] = target.points(state)
            if self.writes_at_once:
                infos.append(info)
            else:
                write(info, buffers, k)
        return state, record_of(theta, filled(infos, buffers) if self.writes_at_once else buffers)
