"""Chains that a pilot moves, in windows of steps at one step size each."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.engine.limits import most_scaled
from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings
from mhrun.random import Draws, Streams, derive_key
from mhrun.types import Controls, State

WINDOW = 25  # steps
MOST_LEAPFROG_STEPS = 100
TUNED = 12  # most leapfrog steps while a step size is tuned, which depends little on their number


class PilotChains:
    """Chains that move in windows of steps at one step size each, and trajectories at one length, if it is given."""

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
        self.streams = Streams(derive_key(key, "tune"), len(theta), theta.device)
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
        accepted, noise, count = 0.0, 0.0, 0
        for _ in range(WINDOW):
            self.step += 1
            self.draws.step = self.step
            self.state, info = self.kernel.step(self.target, self.state, controls, self.draws)
            accepted += float(info.accepted.double().mean())
            var = info.log_ratio_var[info.log_ratio_var.isfinite()]
            noise, count = noise + float(var.double().sum()), count + len(var)
            if self.keeps:
                self.kept.append(self.state.evaluation.theta)
            self.n_lik += int(info.n_lik.sum())
            self.n_grad += int(info.n_grad.sum())
        return accepted / WINDOW, noise / max(1, count)


def leapfrog_steps(length: float, step_size: Tensor) -> int:
    """Return the number of leapfrog steps of a trajectory of this length, at the mean step size of the chains (C,)."""
    return max(1, min(MOST_LEAPFROG_STEPS, round(length / float(step_size.mean()))))
