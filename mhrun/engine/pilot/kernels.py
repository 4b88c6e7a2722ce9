"""Copies of a kernel with the settings that a pilot tries."""

from __future__ import annotations

import copy

from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings
from mhrun.pairing.shared import Shared
from mhrun.types.scale import Scale

_MEASURED = 50_000  # data of a minibatch while an open size is found, at most


def measuring_kernel(kernel: MetropolisHastings, method: Method) -> MetropolisHastings:
    """Return the kernel with a large minibatch, if its size is open, for both points.

    Chains whose points keep their own minibatches would hardly move while these are too small.
    """
    if not kernel.pairing.m_is_open:
        return kernel
    m = min(_MEASURED, max(2, method.target.n // 2))
    if not kernel.pairing.keeps_batch:
        return kernel.with_m(m)
    measuring = copy.copy(kernel)
    measuring.pairing = Shared(m)
    return measuring


def scaled_kernel(kernel: MetropolisHastings, scale: Scale | None) -> MetropolisHastings:
    """Return the kernel in the coordinates of a scale, if there is one."""
    return kernel if scale is None else kernel.with_scale(scale)
