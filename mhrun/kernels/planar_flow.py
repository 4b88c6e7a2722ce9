"""A planar normalizing flow: variational inference, for comparison with the samplers."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from mhrun.errors import Refusal
from mhrun.numbers import whole_number
from mhrun.parts import Kernel
from mhrun.random import Draws, Purpose
from mhrun.target import Target
from mhrun.types import Controls, Info, State

_B1, _B2, _SMALL = 0.9, 0.999, 1e-8  # of Adam


class PlanarFlow(Kernel):
    """z_k = z_{k-1} + u_k tanh(w_k' z_{k-1} + b_k), z_0 ~ N(0, I): a flow fitted to the target, one draw per step.

    u_k is constrained so that the layer is invertible (Rezende & Mohamed 2015, eq. 10 and appendix A.1). The first
    `trains` steps each train the flow before they draw. A training step is one Adam step with the step size as learning
    rate. It minimises E[log q(z_K) - log p(z_K) / T], estimated from draws of the flow and gradients of the target at
    them, from one minibatch and with the target's gradient noise. Each chain trains a separate flow. After training
    its draws are independent. They follow the fitted flow, however far that is from the target.

    Args:
        trains: number of training steps; later steps only draw.
        layers: K.
        size: draws of the flow per training step.
        m: minibatch size of a training step; None for all data.
        spread: standard deviation of the initial parameters.

    Raises:
        Refusal: an invalid setting.
    """

    fitted = True

    def __init__(
        self, trains: int, layers: int = 16, size: int = 256, m: int | None = 1, spread: float = 0.1
    ) -> None:
        if trains < 0 or layers < 1 or size < 1 or not spread > 0:
            raise Refusal("PlanarFlow needs trains >= 0, layers >= 1, size >= 1 and a positive spread.")
        self.trains = trains
        self.layers = layers
        self.size = size
        self.m = None if m is None else whole_number("m", m, least=1, other="null")
        self.spread = spread

    def refuses(self, target: Target) -> str | None:
        """Return why a minibatch of m cannot be drawn, or that the target's surrogate is of no use, or None."""
        refused = target.batches.refuses(self.m) if self.m is not None else None
        return refused or target.refuses_surrogate(type(self).__name__)

    @property
    def pass_size(self) -> int | None:
        """The minibatch size; None where all data are read."""
        return self.m

    def reads(self, target: Target) -> int:
        """Return the data behind a training step, those of each of its points counted."""
        return (self.m if self.m is not None else target.n) * self.size

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Begin with small random layers; theta (C, D) is where the chains are before the first step."""
        parameters = self.layers * (2 * theta.shape[1] + 1)
        flow = self.spread * draws.normal(Purpose.NOISE, parameters, use=2, dtype=theta.dtype)
        zero = torch.zeros_like(flow)
        return State(target.prior(theta), {"flow": flow, "first": zero, "second": zero.clone()})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Train, if it is time, and draw."""
        theta, aux = state.evaluation.theta, state.aux
        read = 0
        if draws.before(self.trains):
            read = self.m if self.m is not None else target.n
            aux = self._trained(target, aux, theta, controls, draws)
        base = draws.normal(Purpose.NOISE, theta.shape[1], use=1, dtype=theta.dtype)
        drawn, _ = through(aux["flow"], base[:, None], self.layers)
        drawn = drawn[:, 0]
        lost = ~drawn.isfinite().all(-1)
        drawn = torch.where(lost[:, None], theta, drawn)
        nan = torch.full_like(controls.step_size, torch.nan)
        info = Info(
            accepted=~lost,
            log_ratio=nan,
            log_ratio_var=nan,
            batch_size=torch.full_like(lost, read, dtype=torch.int32),
            n_lik=torch.zeros_like(lost, dtype=torch.int64),
            n_lik_overhead=torch.zeros_like(lost, dtype=torch.int64),
            n_grad=torch.full_like(lost, read * self.size, dtype=torch.int64),
            diverging=lost,
            valid=~lost,
        )
        return State(target.prior(drawn), aux), info

    def _trained(
        self, target: Target, aux: dict[str, Tensor], theta: Tensor, controls: Controls, draws: Draws
    ) -> dict[str, Tensor]:
        """Return the flow after one step of Adam."""
        chains, dim = theta.shape
        base = draws.normal(Purpose.NOISE, self.size * dim, dtype=theta.dtype).reshape(chains, self.size, dim)
        flow = aux["flow"].detach().requires_grad_()
        with torch.enable_grad():
            points, log_volume = through(flow, base, self.layers)
            gradients = self._gradients(target, points.detach(), controls.temperature, draws)
            # log q_0 is not a function of the flow
            loss = -(log_volume + (points * gradients).sum(-1)).mean(1).sum()
            (grad,) = torch.autograd.grad(loss, flow)
        first = _B1 * aux["first"] + (1 - _B1) * grad
        second = _B2 * aux["second"] + (1 - _B2) * grad**2
        corrected = (draws.number(f"1 - {b}^t", lambda t, b=b: 1 - b**t) for b in (_B1, _B2))  # type: ignore[misc]
        change = (first / next(corrected)) / ((second / next(corrected)).sqrt() + _SMALL)
        new_flow = flow.detach() - controls.step_size[:, None].to(change.dtype) * change
        return {"flow": new_flow, "first": first, "second": second}

    def _gradients(self, target: Target, points: Tensor, temperature: Tensor, draws: Draws) -> Tensor:
        """Return the gradients (C, S, D) of the tempered log density at points (C, S, D)."""
        chains, size, dim = points.shape
        flat, hot = points.reshape(-1, dim), temperature.repeat_interleave(size)
        if self.m is None:
            grad = target.gradients.full(flat, hot)
        else:
            index = target.batches.draw(draws, self.m)
            index = index if len(index) == 1 else index.repeat_interleave(size, 0)
            grad = target.gradients.minibatch(flat, index, hot)
        grad = grad.reshape(chains, size, dim)
        if target.gradient_noise:
            z = draws.normal(Purpose.GRADIENT, size * dim, dtype=grad.dtype)
            grad = grad + math.sqrt(target.gradient_noise) * z.reshape(chains, size, dim)
        return grad / temperature[:, None, None].to(grad.dtype)


def through(flow: Tensor, base: Tensor, layers: int) -> tuple[Tensor, Tensor]:
    """Return where a flow (C, P) takes points (C, S, D), and the log of its change of volume there (C, S)."""
    dim = base.shape[-1]
    u, w, b = flow.reshape(len(flow), layers, 2 * dim + 1).split([dim, dim, 1], -1)
    inner = (w * u).sum(-1, keepdim=True)
    u = u + (softplus(inner) - 1 - inner) * w / w.square().sum(-1, keepdim=True)
    inner = (w * u).sum(-1)  # above -1
    points, log_volume = base, torch.zeros_like(base[..., 0])
    for k in range(layers):
        bent = torch.tanh((points * w[:, None, k]).sum(-1) + b[:, k])  # (C, S)
        points = points + u[:, None, k] * bent[..., None]
        log_volume = log_volume + torch.log1p((1 - bent.square()) * inner[:, k, None])
    return points, log_volume
