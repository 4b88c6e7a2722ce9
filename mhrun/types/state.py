"""The state of a step: points of the chains, evaluations at them, and the controls of the next move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from mhrun.random import MANY
from mhrun.types.model import Rows


class Evaluation(NamedTuple):
    """The target evaluated at a point. Fields that were not computed are None.

    `log_lik_mean` and `log_lik_var` are the mean and the sample variance of the per-datum log-likelihoods of the
    batch. The variance is 0 when the mean is over all data.
    """

    theta: Tensor  # (C, D)
    log_prior: Tensor  # (C,)
    log_lik_mean: Tensor | None = None  # (C,)
    log_lik_var: Tensor | None = None  # (C,)
    batch: Tensor | None = None  # (C, m) indices of the data used for the two fields above
    grad: Tensor | None = None  # (C, D) estimated gradient of the full-data log posterior, from the same data
    grad_temperature: Tensor | None = None  # (C,) of `grad`, if it is for one temperature only
    log_lik: Tensor | None = None  # (C, m) per-datum log-likelihoods behind the mean and the variance
    rows: Rows | None = None  # the gathered data at `batch`, for evaluating another point on them
    n_lik: int = 0  # per-datum log-likelihoods evaluated, per chain
    n_grad: int = 0  # per-datum gradients evaluated, per chain

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Evaluation:
        """Return an evaluation with these fields only."""
        return cls(**cast(Any, tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that hold a tensor; a state stores these."""
        return {name: value for name, value in self._asdict().items() if isinstance(value, Tensor)}


BUFFER = "buffer/"
"""Prefix of the names in `State.aux` of a module's buffers, which belong to theta and not to the kernel."""


class Trajectory(NamedTuple):
    """A path from the current point to a candidate, which random momenta determine; see `TrajectoryProposal`."""

    theta: Tensor  # (C, D) the candidate
    first: Tensor  # (C, D) momentum at the current point
    last: Tensor  # (C, D) momentum half a step before the candidate
    step_size: Tensor  # (C,)


class State(NamedTuple):
    """The state of the chains. `aux` holds momentum, thermostats and the like, name -> (C, ...).

    A module's buffers, such as the running statistics of BatchNorm, are in `aux` under names with the prefix `BUFFER`.
    """

    evaluation: Evaluation
    aux: dict[str, Tensor]


def aux_fault(first: Mapping[str, Tensor], later: Mapping[str, Tensor]) -> str:
    """Return how the auxiliary variables of a step break the contract of `State.aux`; nothing if they keep it.

    Args:
        first: those at the start.
        later: those after a step.
    """
    must = "names and shapes of auxiliary variables are those that start returns"
    if gained := sorted(set(later) - set(first)):
        return f"a step adds aux['{gained[0]}']: {must}"
    if lost := sorted(set(first) - set(later)):
        return f"a step drops aux['{lost[0]}']: {must}"
    for name, value in later.items():
        was, found = first[name], cast(Any, value)  # of the user's
        if not isinstance(found, Tensor):
            return f"aux['{name}'] is of type {type(found).__name__} after a step, and must be a tensor"
        if (value.shape, value.dtype) != (was.shape, was.dtype):
            forms = [f"{tuple(one.shape)}, {str(one.dtype).removeprefix('torch.')}" for one in (was, value)]
            return f"aux['{name}'] is {forms[0]} at the start and {forms[1]} after a step: {must}"
    return ""


class Controls(NamedTuple):
    """The values of the schedules at one step, each (C,)."""

    step_size: Tensor
    temperature: Tensor  # T of the target, whose density is raised to the power 1/T
    noise_temperature: Tensor  # of the injected noise; 0 gives an optimiser
    backward: Tensor | None = None  # beta, the relative width of backward moves, if a kernel adapts it

    def each(self, change: Callable[[Tensor], Tensor]) -> Controls:
        """Return the controls with `change` applied to each."""
        return Controls(*(None if control is None else change(control) for control in self))  # type: ignore[arg-type]


def choose(mask: Tensor, yes: Evaluation, no: Evaluation, *, on_host: bool) -> Evaluation:
    """Return `yes` in the rows where `mask` (C,) is True and `no` elsewhere; fields missing from either are None.

    `on_host`: True if reading the mask on the host needs no device synchronisation, see `Draws.on_host`.
    """
    first, second = yes.tensors(), no.tensors()
    names = [name for name in first if name in second]
    if on_host and yes.theta.shape[-1] >= MANY:  # avoids copying wide rows if all chains agree
        if bool(mask.all()):
            return Evaluation.of({name: first[name] for name in names})
        if not bool(mask.any()):
            return Evaluation.of({name: second[name] for name in names})

    def pick(name: str) -> Tensor:
        a, b = first[name], second[name]
        return torch.where(mask.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    return Evaluation.of({name: pick(name) for name in names})
