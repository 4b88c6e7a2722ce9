"""How many effective draws a dynamics will have, where these are few."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.diagnostics.chains import ESS
from mhrun.engine.method import Method
from mhrun.kernels import Unadjusted
from mhrun.target.function_space import is_network

_COUNTED = 10  # effective draws from which on an expected number is given


class ExpectedDraws(NamedTuple):
    """How many effective draws all chains will have."""

    draws: float  # in the slowest direction, or
    in_narrowest: bool  # in the narrowest one, where draws are worth most: the slowest has fewer


def expected_draws(
    method: Method, curvature: Tensor | None, largest: float, step: Tensor
) -> ExpectedDraws | None:
    """Return the effective draws of all chains on a normal posterior; None: unknown, or many.

    What a draw is worth is known of some dynamics, see `mhrun.parts.Dynamics.worth`.

    Args:
        method: whose steps follow.
        curvature: of the log posterior (D, D), in the coordinates that chains move in; None: not computed.
        largest: its largest eigenvalue.
        step: what a pilot found, or the step size that is given (1,) or (C,).
    """
    assert isinstance(method.kernel, Unadjusted)
    plan, chains = method.plan, method.shape.chains
    if plan.is_open:
        plan = plan.filled(step.expand(chains), None)
    sizes = plan.collected_controls.step_size
    least = -math.inf if curvature is None else float(torch.linalg.eigvalsh(curvature.double()).min())
    in_narrowest = not least > 0  # as of a network, some of whose directions are flat
    if in_narrowest and not is_network(method.target.model):
        return None
    shrunk = sizes.double() * (largest if in_narrowest else least)
    if not bool(((shrunk > 0) & (shrunk <= 1)).all()):
        return None
    count = method.shape.steps if plan.collected is None else len(plan.collected)
    if (worth := method.kernel.dynamics.worth(shrunk)) is None:
        return None
    expected = count * float(worth.mean(0).sum())
    return ExpectedDraws(expected, in_narrowest) if expected < ESS else None


def in_words(method: Method, expected: ExpectedDraws, *, is_exact: bool, noisy: bool) -> str:
    """Return a sentence on effective draws that are few, and what makes more of them.

    Args:
        method: of the draws.
        expected: how many they are.
        is_exact: whether a longer step would make the variance little wrong.
        noisy: whether minibatch noise limits the step size that a pilot finds.
    """
    remedies = ["raise steps"]
    count, in_narrowest = expected
    if in_narrowest:  # a network, whose draws need not have the width of weights to be of use
        remedies += ["raise m"] * noisy
        if method.plan.is_open:
            remedies.append("give step_size a number, at which draws are of a higher temperature")
    elif not method.plan.is_open:
        remedies += ["raise the step size"] * is_exact
    elif noisy:
        remedies.append("raise m")
        if method.target.surrogate is None:
            remedies.append("take control variates (sgld_cv)")
    rounded = round(count, 1 - math.floor(math.log10(max(count, 1.0))))
    number = f"{'About' if not in_narrowest else 'At most'} {rounded:.0f}"
    if count < _COUNTED:
        number = f"Fewer than {_COUNTED}"
    shape = method.shape
    where = ", so that chains hardly leave the modes where they begin" if in_narrowest else ""
    return (
        f" {number} effective draws are then expected of {shape.chains} chains of {shape.steps:,} steps{where}: "
        f"{', '.join(remedies)}, or sample with hmc."
    )
