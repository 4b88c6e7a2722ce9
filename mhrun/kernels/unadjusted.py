"""Follow a dynamics, with no acceptance test."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.kernels.fused_unadjusted import FusedUnadjusted
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Controls, Dynamics, Fused, Info, State


class Unadjusted:
    """Each step: a fresh minibatch of `m`, its gradient, a move of the dynamics.

    A chain that leaves the finite numbers stops where it last was, and every later step of it is
    marked as diverging; the others go on.

    Args:
        dynamics: where to.
        m: minibatch size; None for all data.
    """

    decides = False
    grows = False

    def __init__(self, dynamics: Dynamics, m: int | None) -> None:
        self.dynamics = dynamics
        self.m = m

    def refuses(self, target: Target) -> str | None:
        """Refuse a minibatch that the data cannot give."""
        return target.refuses_batch(self.m) if self.m is not None else None

    def reads(self, target: Target) -> int:
        """Return the minibatch size."""
        return self.m if self.m is not None else target.n

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Begin at theta (C, D)."""
        stopped = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        return State(target.prior(theta), self.dynamics.start(theta, draws) | {"stopped": stopped})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain one step."""
        aux = dict(state.aux)
        stopped = aux.pop("stopped")
        theta = state.evaluation.theta
        if self.m is None:
            grad = target.gradient_full(theta, controls.temperature)
        else:
            grad = target.gradient(theta, target.batch(draws, self.m), controls.temperature)
        moved, aux_moved = self.dynamics.move(theta, grad, aux, controls, draws)
        stopped = stopped | ~moved.isfinite().all(-1)
        moved = torch.where(stopped[:, None], theta, moved)
        n_lik, n_grad = target.spent()
        nan = torch.full_like(controls.step_size, torch.nan)
        info = Info(
            accepted=~stopped,
            log_ratio=nan,
            log_ratio_var=nan,
            batch_size=torch.full_like(stopped, self.reads(target), dtype=torch.int32),
            n_lik=torch.full_like(stopped, n_lik, dtype=torch.int64),
            n_aside=torch.zeros_like(stopped, dtype=torch.int64),
            n_grad=torch.full_like(stopped, n_grad, dtype=torch.int64),
            diverging=stopped,
        )
        return State(target.prior(moved), aux_moved | {"stopped": stopped}), info

    def fused(self, target: Target, key: int, threads: int) -> Fused | None:
        """Return the compiled loop if the model and the dynamics have native forms."""
        return FusedUnadjusted.of(self.dynamics, self.m, target, key, threads)
