"""Trials of a dynamics at the step size that its pilot chose, where the posterior may be far from normal."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.kernels import Unadjusted
from mhrun.random import Draws, Streams, derive_key
from mhrun.types import Controls
from mhrun.types.scale import Scale

_MAX_STEPS = 2_000  # of a trial, whose first quarter is dropped
_RUN_PER_TRIAL = 4  # a trial has at most one step for so many of the run
_MAX_HALVINGS = 6  # of the step size
# Largest standard deviation of draws in the units of the scale at which no shorter step is tried; that of a normal
# posterior is 1.
_MAX_WIDTH = 1.2
# Largest ratio of the standard deviations at a step size and at its half at which the step size is kept.
_MAX_WIDTH_RATIO = 1.3


class Trials(NamedTuple):
    """What trials found."""

    step_size: float
    longest: float  # the step size that was tried first
    # How many times as wide draws were at it as at the other one; NaN if chains diverged at both
    wider: float
    n_lik: int
    n_grad: int


def tried(
    method: Method, kernel: Unadjusted, scale: Scale, step_size: float, theta: Tensor, temperature: Tensor
) -> Trials:
    """Return the step size, or the half, quarter, ... of it at which draws are about as wide as at half of that.

    A step size from the curvature at the mode is too long where gradients, or their noise, grow as exp does on one side
    of it: chains are thrown far to the other side, from where they drift back slowly. Draws of a wide posterior are as
    wide at a shorter step.

    Args:
        method: whose chains they are.
        kernel: its kernel, with a minibatch size and without the scale.
        scale: of its dynamics.
        step_size: that is tried first.
        theta: where chains begin (C, D).
        temperature: of each chain (C,).
    """
    trial = _Trial(method, kernel, scale, temperature)
    first = width = trial.width(theta, step_size, 0)
    chosen = step_size
    for halvings in range(1, _MAX_HALVINGS + 1):
        if width <= _MAX_WIDTH:
            break
        shorter = trial.width(theta, step_size / 2**halvings, halvings)
        if math.isfinite(width) and width <= _MAX_WIDTH_RATIO * shorter:
            break
        chosen, width = step_size / 2**halvings, shorter
    wider = 1.0 if chosen == step_size else first / width  # NaN: chains diverged in all trials
    return Trials(chosen, step_size, wider, trial.n_lik, trial.n_grad)


class _Trial:
    """Chains of a dynamics with a scale."""

    def __init__(self, method: Method, kernel: Unadjusted, scale: Scale, temperature: Tensor) -> None:
        self.scale, self.temperature, self.dtype = scale, temperature, method.dtype
        self.kernel = kernel.with_scale(scale)
        self.target = method.target.with_passes_of(kernel.pass_size)
        self.steps = min(_MAX_STEPS, math.ceil(method.shape.total / _RUN_PER_TRIAL))
        last = method.plan.controls(method.plan.start(), method.shape.total, 1)
        self.noise_temperature = last.noise_temperature[0]
        self.key, self.n_lik, self.n_grad = derive_key(method.seed, method.name), 0, 0

    @torch.no_grad()
    def width(self, theta: Tensor, step_size: float, number: int) -> float:
        """Return the largest standard deviation of draws in scaled coordinates, over sqrt(T); inf if a chain stops.

        Args:
            theta: where chains begin (C, D).
            step_size: of the dynamics.
            number: of the trial, by which random numbers differ.
        """
        draws = Draws(Streams(derive_key(self.key, f"trial {number}"), len(theta), theta.device), 0)
        size = torch.full_like(self.temperature, step_size)
        controls = Controls(size, self.temperature, self.noise_temperature)
        controls = controls.each(lambda c: c.to(device=self.target.device, dtype=self.dtype))
        state, kept = self.kernel.start(self.target, theta, draws), list[Tensor]()
        for step in range(1, self.steps + 1):
            draws.step = step
            state, info = self.kernel.step(self.target, state, controls, draws)
            self.n_lik += int(info.n_lik.sum())
            self.n_grad += int(info.n_grad.sum())
            if step > self.steps // 4:
                kept.append(state.evaluation.theta)
        if not bool(info.accepted.all()):
            return math.inf
        phi = self.scale.to_phi(torch.stack(kept).double().cpu()) / self.temperature.cpu().sqrt()[:, None]
        return float(phi.flatten(0, 1).std(0).max())
