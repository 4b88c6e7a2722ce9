"""Which settings a method leaves to a pilot, and which it cannot."""

from __future__ import annotations

from mhrun.engine.limits import most_scaled
from mhrun.engine.method import Method
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings, Unadjusted, ZigZag
from mhrun.kernels.preconditioned import UNSCALED_NOISE
from mhrun.parts import Kernel
from mhrun.types.capabilities import batch_norms_of

SCALES = ("auto", "dense", "diagonal", "none")
_WITH_SCALE = ("dense", "diagonal")


def is_open(method: Method) -> bool:
    """Return whether a method leaves a setting to a pilot."""
    kernel = method.kernel.of_a_chain
    open_size = _m_is_open(kernel) or leapfrog_is_open(kernel)
    return method.plan.is_open or open_size or method.precondition not in (None, "none")


def _m_is_open(kernel: Kernel) -> bool:
    return kernel.m_is_open or (kernel.pairing is not None and kernel.pairing.m_is_open)


def leapfrog_is_open(kernel: Kernel) -> bool:
    """Return whether a kernel leaves the number of leapfrog steps open."""
    return kernel.proposal is not None and kernel.proposal.leapfrog_is_open


class TooManyParameters(Refusal):
    """A pilot cannot find a setting for a model of this size."""


def refusal(method: Method) -> Refusal | None:
    """Return why a method cannot leave settings to a pilot, or None."""
    most = most_scaled(method.target.model)
    if method.target.dim > most:
        of_size = f"for up to {most:,} parameters, not {method.target.dim:,}"
        if method.precondition in _WITH_SCALE:
            return TooManyParameters(
                f"a pilot finds a scale {of_size}; leave out precondition = {method.precondition}."
            )
        if leapfrog_is_open(method.kernel.of_a_chain):
            return TooManyParameters(
                f"a pilot finds leapfrog_steps from the curvature, {of_size}; give a number, such as "
                "mhrun.HamiltonianProposal(leapfrog_steps=20), or kernel.proposal.leapfrog_steps of the method."
            )
    reason = _reason(method)
    return None if reason is None else Refusal(reason)


def _reason(method: Method) -> str | None:
    if method.precondition is not None and method.precondition not in SCALES:
        return f"precondition = {method.precondition!r} is unknown; choose {', '.join(SCALES)}."
    if not is_open(method):
        return None
    kernel = method.kernel.of_a_chain
    name = type(kernel).__name__
    if not isinstance(kernel, MetropolisHastings | Unadjusted | ZigZag):
        return (
            "a pilot finds the settings of MetropolisHastings, Unadjusted and ZigZag, of kernels that derive from "
            f"them, and of ladders of these, alone; give {name} numbers, not auto."
        )
    if isinstance(kernel, ZigZag) and method.precondition not in (None, "none"):
        return "ZigZag has the scale of its surrogate's reference; leave out precondition."
    dynamics = kernel.dynamics
    if dynamics is not None and dynamics.known_noise and method.precondition in _WITH_SCALE:
        return UNSCALED_NOISE
    if dynamics is not None and method.plan.is_open and dynamics.bias.noise is None:
        remedy = "" if dynamics.optimises else "declare bias = mhrun.Bias(noise=...) on the class, or "
        return f"no rule finds the step size of {type(dynamics).__name__}; {remedy}give a number, not auto."
    if method.plan.is_open and batch_norms_of(method.target.model):
        return (
            "a pilot finds no step size for a network with BatchNorm, whose curvature grows without bound as weights "
            "shrink, though predictions stay: chains would hardly move. Give step_size a number, such as 0.1 / n, not "
            "auto."
        )
    return None
