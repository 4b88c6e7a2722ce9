"""The number format of a method's acceptance ratios."""

from __future__ import annotations

from mhrun.kernels import MetropolisHastings
from mhrun.parts import Kernel
from mhrun.schedules import Plan
from mhrun.target import Target
from mhrun.target.precision import FP32, SMALL_SCALE


def ratio_precision(kernel: Kernel, target: Target, plan: Plan) -> str:
    """Return the number format of log-likelihoods in acceptance ratios: that of gradients, or fp32.

    It is that of gradients where one pass gives both, on minibatches of fixed size, and n/T <= 100 at every step. Then
    the ratio needs no further pass. Elsewhere the ratio would have n/T times the rounding of a mean.
    """
    if target.precision.gradients == FP32 or not isinstance(kernel, MetropolisHastings):
        return FP32
    if not kernel.proposal.gradients or kernel.pairing.m is None:
        return FP32
    return target.precision.gradients if target.n / plan.lowest()[0] <= SMALL_SCALE else FP32
