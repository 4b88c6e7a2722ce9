"""How many effective draws a dynamics will have, where these are few."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhrun.diagnostics.chains import ESS
from mhrun.engine.method import Method
from mhrun.kernels import Unadjusted

_COUNTED = 10  # effective draws from which on an expected number is given


def expected_draws(method: Method, curvature: Tensor | None, step: Tensor) -> float | None:
    """Return the effective draws of all chains in the slowest direction of a normal posterior; None: unknown, or many.

    In a direction of curvature h the draws of an overdamped dynamics at step size e are an autoregression of
    coefficient r = 1 - e h, each of which is worth (1 - r) / (1 + r) independent ones.

    Args:
        method: whose steps follow.
        curvature: of the log posterior (D, D), in the coordinates that chains move in.
        step: what a pilot found, or the step size that is given (1,) or (C,).
    """
    assert isinstance(method.kernel, Unadjusted)
    if not method.kernel.dynamics.overdamped or curvature is None:
        return None
    plan, chains = method.plan, method.shape.chains
    if plan.is_open:
        plan = plan.filled(step.expand(chains), None)
    sizes = plan.collected_controls.step_size
    shrunk = sizes.double() * torch.linalg.eigvalsh(curvature.double()).min()
    if not bool(((shrunk > 0) & (shrunk <= 1)).all()):
        return None
    count = method.shape.steps if plan.collected is None else len(plan.collected)
    expected = count * float((shrunk / (2 - shrunk)).mean(0).sum())
    return expected if expected < ESS else None


def in_words(method: Method, expected: float, *, is_exact: bool, noisy: bool) -> str:
    """Return a sentence on effective draws that are few, and what makes more of them.

    Args:
        method: of the draws.
        expected: how many they are.
        is_exact: whether a longer step would make the variance little wrong.
        noisy: whether minibatch noise limits the step size that a pilot finds.
    """
    remedies = ["raise steps"]
    if not method.plan.is_open:
        remedies += ["raise the step size"] * is_exact
    elif noisy:
        remedies.append("raise m")
        if method.target.surrogate is None:
            remedies.append("take control variates (sgld_cv)")
    rounded = round(expected, 1 - math.floor(math.log10(max(expected, 1.0))))
    number = f"Fewer than {_COUNTED}" if expected < _COUNTED else f"About {rounded:.0f}"
    shape = method.shape
    return (
        f" {number} effective draws are then expected of {shape.chains} chains of {shape.steps:,} steps: "
        f"{', '.join(remedies)}, or sample with hmc."
    )
