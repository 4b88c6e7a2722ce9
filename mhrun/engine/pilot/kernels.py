"""Copies of a kernel with the settings that a pilot tries."""

from __future__ import annotations

import copy
from typing import TypeVar

from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.kernels.preconditioned import Scale, preconditioned
from mhrun.pairing.shared import Shared
from mhrun.parts import Kernel, TrajectoryProposal

K = TypeVar("K", bound=Kernel)

_MEASURED = 50_000  # data of a minibatch while an open size is found, at most


def with_leapfrog_steps(kernel: MetropolisHastings, count: int) -> MetropolisHastings:
    """Return the kernel with trajectories of this number of leapfrog steps."""
    changed = copy.copy(kernel)
    assert isinstance(changed.proposal, TrajectoryProposal)
    changed.proposal = changed.proposal.filled(count)
    return changed


def measuring_kernel(kernel: MetropolisHastings, method: Method) -> MetropolisHastings:
    """Return the kernel with a large minibatch, if its size is open, for both points.

    Chains whose points keep their own minibatches would hardly move while these are too small.
    """
    if not kernel.pairing.m_is_open:
        return kernel
    m = min(_MEASURED, max(2, method.target.n // 2))
    if not kernel.pairing.keeps_batch:
        return with_m(kernel, m)
    measuring = copy.copy(kernel)
    measuring.pairing = Shared(m)
    return measuring


def with_m(kernel: K, m: int) -> K:
    """Return a kernel with this minibatch size."""
    kernel = copy.copy(kernel)
    if isinstance(kernel, MetropolisHastings):
        kernel.pairing = copy.copy(kernel.pairing)
        kernel.pairing.m, kernel.pairing.m_is_open = m, False
    elif isinstance(kernel, Unadjusted):
        kernel.m, kernel.m_is_open = m, False
    return kernel


def scaled_kernel(kernel: MetropolisHastings, scale: Scale | None) -> MetropolisHastings:
    """Return the kernel in the coordinates of a scale, if there is one."""
    scaled = kernel if scale is None else preconditioned(kernel, scale)
    assert isinstance(scaled, MetropolisHastings)
    return scaled
