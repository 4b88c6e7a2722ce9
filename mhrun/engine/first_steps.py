"""Checks of the first steps of a method with a part that is not of this package, before its run begins."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.errors import Refusal
from mhrun.kernels.stationary import user_parts
from mhrun.parts import Dynamics, Proposal, Rule
from mhrun.random import Draws
from mhrun.types import BUFFER, Info, State
from mhrun.types.state import aux_fault

_STEPS = 4  # that are done twice: a decision between two points may be the same by chance
# Share of the distance moved by which two runs may differ by rounding: sums on a GPU have no order.
_SAME, _SAME_ON_GPU = {torch.float64: 1e-9, torch.float32: 1e-6}, 1e-3


def check_first_steps(method: Method, state: State) -> None:
    """Do the first steps twice, from copies of a state, and compare them.

    Args:
        method: nothing is done if all of its parts are of this package, which tests cover.
        state: the first one.

    Raises:
        Refusal: auxiliary variables change their names or shapes, or are no tensors of the chains; two runs differ; or
            all chains become non-finite in the first step.
    """
    parts = list(user_parts(method.kernel))
    if not parts:
        return
    who = " and ".join(type(part).__name__ for part in parts)
    chains = len(state.evaluation.theta)
    if any(isinstance(part, Dynamics) for part in parts):  # a kernel may keep more, such as a bank of points
        _check_aux(who, state, chains)
    first, infos = _advanced(method, state, who)
    if method.kernel.of_a_chain.dynamics is not None and bool(infos[0].diverging.all()):
        raise Refusal(
            f"{who}: all chains become non-finite in the first step. See what move and the gradient of the model "
            "return there, or lower the step size."
        )
    second, _ = _advanced(method, state, who)
    start, one, other = (_flat(each) for each in (state, first, second))
    moved = (one - start)[one.isfinite()].abs()
    on_gpu = state.evaluation.theta.device.type != "cpu"
    share = _SAME_ON_GPU if on_gpu else _SAME.get(method.dtype, _SAME_ON_GPU)
    allowed = share * float(moved.max()) if len(moved) else 0.0
    if not torch.allclose(one, other, rtol=0.0, atol=allowed, equal_nan=True):
        raise Refusal(
            f"{who}: two runs of the first {_STEPS} steps from the same state differ, so that a run could be neither "
            f"repeated nor resumed. Random numbers must come from draws, such as {_numbers(parts[0])}, and what a step "
            "keeps for later ones must be in aux."
        )


def _numbers(part: object) -> str:
    """Return how a part may draw its random numbers."""
    if isinstance(part, Rule):
        return "draws.uniform(Purpose.ACCEPT)"
    return f"draws.normal(Purpose.{'PROPOSAL' if isinstance(part, Proposal) else 'NOISE'}, D)"


def _check_aux(who: str, state: State, chains: int) -> None:
    """Refuse auxiliary variables at the start that are no tensors of the chains (C, ...)."""
    for name, value in state.aux.items():
        found: Any = value  # of the user's
        if not isinstance(found, Tensor):
            raise Refusal(
                f"{who}: aux['{name}'] is of type {type(found).__name__}, and must be a tensor ({chains}, ...)."
            )
        if not name.startswith(BUFFER) and found.shape[:1] != (chains,):
            raise Refusal(
                f"{who}: aux['{name}'] is {tuple(found.shape)} at the start, and its first dimension must be the "
                f"chains: ({chains}, ...)."
            )


@torch.no_grad()
def _advanced(method: Method, state: State, who: str) -> tuple[State, list[Info]]:
    """Return the state some steps after a copy of a state, and what they report.

    Raises:
        Refusal: auxiliary variables change.
    """
    evaluation = {name: value.clone() for name, value in state.evaluation.tensors().items()}
    aux = {name: value.clone() for name, value in state.aux.items()}
    begin = state.aux
    state = State(state.evaluation._replace(**cast(Any, evaluation)), aux)
    plan, draws, infos = method.plan, Draws(method.streams(), 0), list[Info]()
    for step in range(1, 1 + min(_STEPS, method.shape.total)):
        draws.step = step
        controls = plan.controls(plan.start(), step, 1).each(
            lambda c: c[0].to(device=method.target.device, dtype=method.dtype)
        )
        state, info = method.kernel.step(method.target, state, controls, draws)
        if fault := aux_fault(begin, state.aux):
            raise Refusal(f"{who}: {fault}.")
        infos.append(info)
    return state, infos


def _flat(state: State) -> Tensor:
    return state.evaluation.theta.double().flatten()
