"""Chains that a pilot moves, in windows of steps at one step size each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mhrun.compiled import Loop, compile_loop
from mhrun.cores import usable_cores
from mhrun.engine.cost import batching_pays, compiling_pays
from mhrun.engine.limits import most_scaled
from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings
from mhrun.kernels.stationary import user_parts
from mhrun.ownership import is_bundled
from mhrun.random import Draws, Streams, derive_key
from mhrun.types import Controls, Record, State

WINDOW = 25  # steps
MOST_LEAPFROG_STEPS = 100
_RECORDED = ("accepted", "log_ratio_var", "n_lik", "n_grad")
_STEPS = 300  # of a pilot, about
TUNED = 12  # most leapfrog steps while a step size is tuned, which depends little on their number


class PilotChains:
    """Chains that move in windows of steps at one step size each, and trajectories at one length, if it is given.

    They move in a compiled loop where that is estimated to save seconds, else in torch. The user's own pieces are not
    compiled here: that takes as long in each process, and errors in them are for the run to report.
    """

    def __init__(
        self,
        method: Method,
        kernel: MetropolisHastings,
        theta: Tensor,
        temperature: Tensor,
        key: int,
        length: float | None,
    ) -> None:
        self.method, self.kernel, self.temperature, self.length = method, kernel, temperature, length
        self.target = method.target.with_passes_of(kernel.pass_size)  # an open minibatch size is known here
        last = method.plan.controls(method.plan.start(), method.shape.total, 1)
        self.noise_temperature = last.noise_temperature[0]
        self.key = key
        self._tuning_key = derive_key(key, "tune")
        self.streams = Streams(self._tuning_key, len(theta), theta.device)
        self.draws = Draws(self.streams, 0)
        self.step = 0
        self.state: State = kernel.start(self.target, theta, self.draws)
        self.n_lik = self.n_grad = 0
        self.keeps = kernel.proposal.follows and self.target.dim <= most_scaled(self.target.model)
        self.kept: list[Tensor] = []  # theta after each step, of trajectories

    @property
    def last_half(self) -> Tensor | None:
        """Theta of the last half of the steps, (C, S, D)."""
        return torch.stack(self.kept[len(self.kept) // 2 :], 1).double().cpu() if self.kept else None

    def with_kernel(self, kernel: MetropolisHastings) -> PilotChains:
        """Return the chains with another kernel, from where they are."""
        theta = self.state.evaluation.theta
        chains = PilotChains(
            self.method, kernel, theta, self.temperature, derive_key(self.key, "again"), self.length
        )
        chains.n_lik, chains.n_grad = self.n_lik, self.n_grad
        return chains

    @torch.no_grad()
    def noise_of_points(self) -> float:
        """Return the mean variance of the noise of the log-ratio of two points that are each on m data of their own."""
        target, theta = self.target, self.state.evaluation.theta
        m = self.kernel.pairing.m or target.n
        self.step += 1
        point = target.evaluate(theta, target.batches.draw(Draws(self.streams, self.step), m))
        self.n_lik += len(theta) * m
        error = target.differences.unpaired(point, point, m).error
        return float(((target.n / self.temperature.to(error)) ** 2 * error).mean())

    @torch.no_grad()
    def window(self, step_size: Tensor) -> tuple[float, float]:
        """Return the acceptance rate of `WINDOW` steps and the mean variance of the noise of their log-ratios."""
        if self.length is not None:
            count = min(TUNED, leapfrog_steps(self.length, step_size))
            self.kernel = self.kernel.with_leapfrog_steps(count)
        device, dtype = self.target.device, self.method.dtype
        controls = Controls(step_size, self.temperature, self.noise_temperature).each(
            lambda c: c.to(device=device, dtype=dtype)
        )
        loop = self._loop()
        record = self._in_torch(controls) if loop is None else self._in_loop(loop, controls)
        self.step += WINDOW
        self.n_lik += int(record["n_lik"].sum())
        self.n_grad += int(record["n_grad"].sum())
        noise = record["log_ratio_var"].astype(float)
        noise = noise[np.isfinite(noise)]
        return float(record["accepted"].mean()), float(noise.mean()) if len(noise) else 0.0

    def _loop(self) -> Loop | None:
        """Return the compiled loop of the kernel, if it pays for the steps of a pilot."""
        method = replace(self.method, kernel=self.kernel, target=self.target)
        of_user = not is_bundled(self.target.model) or any(user_parts(self.kernel))
        if self.method.dtype != torch.float64 or of_user:
            return None
        if not compiling_pays(method, _STEPS) or batching_pays(method):
            return None
        return compile_loop(self.kernel, self.target, self._tuning_key, usable_cores())

    def _in_loop(self, loop: Loop, controls: Controls) -> Record:
        """Move the chains a window in a compiled loop, and return what was recorded, (C, K)."""
        every = controls.each(lambda c: c.expand(WINDOW, len(c)).contiguous())
        self.state, found = loop.advance(self.state, self.step + 1, every)
        if self.keeps:
            self.kept.extend(torch.from_numpy(found["theta"]).unbind(1))
        return {name: found[name] for name in _RECORDED}

    def _in_torch(self, controls: Controls) -> Record:
        """Move the chains a window, and return the same."""
        infos = []
        for k in range(1, WINDOW + 1):
            self.draws.step = self.step + k
            self.state, info = self.kernel.step(self.target, self.state, controls, self.draws)
            infos.append(info)
            if self.keeps:
                self.kept.append(self.state.evaluation.theta)
        return {
            name: torch.stack([getattr(info, name) for info in infos], 1).cpu().numpy() for name in _RECORDED
        }


def leapfrog_steps(length: float, step_size: Tensor) -> int:
    """Return the number of leapfrog steps of a trajectory of this length, at the mean step size of the chains (C,)."""
    return max(1, min(MOST_LEAPFROG_STEPS, round(length / float(step_size.mean()))))
