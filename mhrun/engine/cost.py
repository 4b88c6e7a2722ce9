"""The cost of a step, estimated from counts, and the choices that depend on it.

Guesses choose an executor, a generator of random numbers, threads and worker processes. What they chose is recorded
with the run; `mhrun.engine.estimate` measures where a number is shown to a user.
"""

from __future__ import annotations

from typing import Protocol

from mhrun.kernels import MetropolisHastings
from mhrun.native import native_form
from mhrun.pairing.full import Full
from mhrun.parts import Kernel
from mhrun.store.netcdf import Shape
from mhrun.target import Target

# Seconds of a step in torch on one core, and for each datum that a chain reads.
_STEP_SECONDS, _DATUM_SECONDS = 3e-4, 6e-8
# Seconds for each parameter of such a datum: in elementwise operations, which most small models have, and in products
# of large matrices, for which alone threads pay. A model that is between has a guess that is too high by the former,
# which costs a compilation, and too low by the latter, which costs a core.
_ELEMENTWISE_SECONDS, _MATMUL_SECONDS = 2e-9, 2e-10
_STATE_SECONDS = 5e-9  # for each parameter of a chain, in all passes of a step over the state
_STAGES_FACTOR = 2  # times as long if data come in stages

_COMPILING_PAYS = 4.0  # seconds of a run in torch
# Parameters and chains from which products of all data with all chains are faster than a compiled loop.
_MIN_PARAMETERS, _MIN_CHAINS = 256, 4
# Bytes and chains from which gradients of all data are. On one core of an EPYC of the third generation, with 32 MB,
# they are 1.2 to 1.4 times as fast for 4 chains, twice for 8 and three times for 16; threads share a loop's chains.
_LARGE_DATA, _MANY_CHAINS = 1 << 24, 8


class Costed(Protocol):
    """What has a cost: a `mhrun.engine.method.Method`."""

    @property
    def kernel(self) -> Kernel:
        """How the chains move."""
        ...

    @property
    def target(self) -> Target:
        """The target density."""
        ...

    @property
    def shape(self) -> Shape:
        """Chains and steps."""
        ...


def step_seconds(method: Costed) -> float:
    """Return a guess at the seconds of a step in torch, with its overhead."""
    kernel, target = method.kernel, method.target
    datum = _DATUM_SECONDS + _ELEMENTWISE_SECONDS * target.dim
    datum *= _STAGES_FACTOR if kernel.is_sequential else 1
    data_seconds = datum * method.shape.chains * kernel.reads(target)
    return _STEP_SECONDS * kernel.of_a_chain.rounds(target) + data_seconds


def arithmetic_seconds(method: Costed) -> float:
    """Return a guess at the seconds of a step's arithmetic on one core, which threads can share."""
    dim, reads = method.target.dim, method.kernel.reads(method.target)
    return method.shape.chains * (reads * (_DATUM_SECONDS + _MATMUL_SECONDS * dim) + _STATE_SECONDS * dim)


def compiling_pays(method: Costed, steps: int | None = None) -> bool:
    """Return whether compilation pays for a number of steps; None: those of the run."""
    return (method.shape.total if steps is None else steps) * step_seconds(method) > _COMPILING_PAYS


def batching_pays(method: Costed) -> bool:
    """Return whether steps in torch beat a compiled loop, which moves one chain after another.

    They do where each step multiplies all data by the points of many chains: a product of matrices reads the data once
    for all of them. Gradients read them twice, which in a loop is slow where they do not fit into a cache.
    """
    if not isinstance(method.kernel.pairing, Full):
        return False
    kernel, data = method.kernel.of_a_chain, method.target.data.fields.values()
    if isinstance(kernel, MetropolisHastings) and kernel.proposal.gradients:
        is_large = sum(field.numel() * field.element_size() for field in data) >= _LARGE_DATA
        if is_large and method.shape.chains >= _MANY_CHAINS:
            return True
    if method.target.dim < _MIN_PARAMETERS or method.shape.chains < _MIN_CHAINS:
        return False
    offered = native_form(method.target.model, "multiplies_chains", "log_lik")
    return offered is not None and bool(offered(method.target.data.fields))
