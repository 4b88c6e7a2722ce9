"""Compiled updates for dynamics with many parameters: one or two passes over them where torch needs ten."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from mhrun.kernels import ReplicaExchange, Unadjusted
from mhrun.native import Draw, NativeDynamics, Piece, StepControls, available, compiled_once, native_form
from mhrun.native.philox import split_key
from mhrun.parts import Kernel
from mhrun.random import MANY, Draws
from mhrun.types import Controls

u64 = np.uint64


def with_compiled_update(kernel: Kernel) -> Kernel:
    """Return a kernel whose step moves many parameters by a compiled update, or the kernel itself if it has none.

    The random numbers are the same, and results agree to rounding.
    """
    cls: type = type(kernel)
    if cls is Unadjusted:
        unadjusted = cast(Unadjusted, kernel)
        return WideUnadjusted(unadjusted.dynamics, unadjusted.m, unadjusted.passes, unadjusted.prior)
    if cls is ReplicaExchange:
        ladder = copy(cast(ReplicaExchange, kernel))
        ladder.kernel = with_compiled_update(ladder.kernel)
        return cast(Kernel, ladder)
    return kernel


class WideUnadjusted(Unadjusted):
    """`Unadjusted` with a compiled update for wide theta."""

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the next theta (C, D), aux without ``stopped``, and which chains have stopped (C,)."""
        if theta.device.type == "cpu" and theta.shape[1] >= MANY and draws.streams.compiled and available():
            form = native_form(self.dynamics, "native", "start", "move")
            native: NativeDynamics | None = form() if form is not None else None
            if native is not None:
                rest = dict(aux)
                return _moved(native, theta, grad, rest, rest.pop("stopped"), controls, draws)
        return super().move(theta, grad, aux, controls, draws)


class Update(NamedTuple):
    """The arguments of an update; the first four are changed in place."""

    theta: Any  # (C, D)
    vectors: Any  # (C, A, D)
    scalars: Any  # (C, S)
    stopped: Any  # (C,)
    before: Any  # (C, D)
    grad: Any  # (C, D)
    controls: StepControls  # (C,) each
    key: Any
    step: Any
    numbers: Any  # (C,) one per chain


def _loop(move: Piece) -> Piece:
    def loop(args: Any, update: Any) -> None:
        theta, vectors, scalars, stopped, before, grad, (size, temperature), key, step, numbers = update
        for c in range(theta.shape[0]):
            if not stopped[c]:
                row = theta[c]
                draw, controls = Draw(key, step, numbers[c]), StepControls(size[c], temperature[c])
                move(args, row, grad[c], vectors[c], scalars[c], controls, draw)
                # 0 times a non-finite value is NaN; `or` is vectorised, a sum is not.
                zero, infinite = row.dtype.type(0), False
                for d in range(len(row)):
                    infinite |= row[d] * zero != zero
                if infinite:
                    stopped[c] = True
                    row[:] = before[c]

    return loop


def _moved(
    native: NativeDynamics,
    theta: Tensor,
    grad: Tensor,
    aux: dict[str, Tensor],
    stopped: Tensor,
    controls: Controls,
    draws: Draws,
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Return the next theta (C, D), aux, and which chains became non-finite (C,), whose theta is unchanged.

    The random numbers are those of the dynamics' `move`, and results agree to rounding.
    """
    to, ended = theta.clone(), stopped.clone()
    chains = len(theta)
    rows = [aux[name] for name in native.vectors]
    if len(rows) == 1:
        vectors = rows[0].clone()[:, None]
    else:
        vectors = torch.stack(rows, 1) if rows else theta.new_zeros(chains, 1, 1)
    scalars = np.zeros((chains, max(1, len(native.scalars))))
    for a, name in enumerate(native.scalars):
        scalars[:, a] = aux[name].numpy()
    update = Update(
        theta=to.numpy(),
        vectors=vectors.numpy(),
        scalars=scalars,
        stopped=ended.numpy(),
        before=theta.numpy(),
        grad=grad.contiguous().numpy(),
        controls=StepControls(
            controls.step_size.double().numpy(), controls.noise_temperature.double().numpy()
        ),
        key=split_key(draws.streams.key),
        step=u64(draws.step),
        numbers=draws.streams.numbers.numpy().astype(u64),
    )
    compiled_once(_loop, native.move)(native.args, update)
    moved_aux = {name: vectors[:, a] for a, name in enumerate(native.vectors)}
    moved_aux |= {
        name: torch.from_numpy(scalars[:, a].copy()).to(aux[name].dtype)
        for a, name in enumerate(native.scalars)
    }
    return to, aux | moved_aux, ended
