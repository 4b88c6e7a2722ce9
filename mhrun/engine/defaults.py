"""The default method."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.engine.bounded_reading import data_of_a_step
from mhrun.engine.limits import most_scaled
from mhrun.engine.model_checks.step_functions import coordinate_with_steps
from mhrun.errors import UserError
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.native import available, native_form
from mhrun.pairing.full import Full
from mhrun.pairing.thinned import Thinned
from mhrun.parts import AUTO, Kernel, Proposal
from mhrun.proposals.hamiltonian import HamiltonianProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_ss import MHSS
from mhrun.target import Target
from mhrun.target.first_point import first_point
from mhrun.target.function_space import is_network
from mhrun.types import BOUND_KINDS
from mhrun.types.capabilities import bound_kinds_of

HMC, RANDOM_WALK, BOUNDED, CONTROL_VARIATE, STOCHASTIC_GRADIENT = "hmc", "mcmc", "mh_ss", "sgld_cv", "sghmc"
"""Names of the methods in conf/method."""

_FIRST_ORDER, _SECOND_ORDER = BOUND_KINDS[1:]  # surrogates
_DATA = 200_000  # up to which a method on all data is the default
# Above so many parameters, what it is up to: numbers in all data, which a gradient reads, and data times parameters,
# which it computes of them if each datum has a feature for each parameter.
_PARAMETERS, _NUMBERS, _FEATURES = 200, 5_000_000, 20_000_000
# Parameters up to which HMC is taken without a scale, and the leapfrog steps that it then has: effects of 1,100 groups
# are sampled, with which SGHMC did not move.
_UNSCALED, LEAPFROG_STEPS = 5_000, 20
_WALKED = 20  # parameters up to which a random walk is taken where gradients do not see one of them
BOUNDED_UP_TO = 100
"""Parameters up to which MH-SS is the default for many data: the data that a step reads grow as D^3 / sqrt(n)."""
# Of all data, that a step of MH-SS may read for it to be the default, and data in all steps of a chain, which take a
# minute. A datum that it reads costs some 20 times as much as one in a pass over all of them, and HMC, of some thousand
# passes, has eight times as many effective draws.
_FEW, _READ_IN_ALL = 0.01, 200_000_000
# Data times parameters up to which HMC is taken where bounds are wide: as many as it has with 200,000 data.
_AFFORDABLE = _DATA * _PARAMETERS
# Steps that count and those before them. Of MH-SS at least as many, and so many for each parameter that four chains of
# a random walk have 1,000 effective draws: a step takes a microsecond or two.
_COUNTS, _COUNTS_OF_HMC, _STEPS_PER_DIM = (10_000, 1_000), (2_000, 500), 1_000
_ASIDE = 0.1  # of the size of a coordinate
_TRIED = 5  # data of which a gradient is tried


class Default(NamedTuple):
    """The default method for a target."""

    name: str
    reason: str  # as one line
    target: Target  # with the method's surrogate


def default_method(
    target: Target, has_gradients: bool, with_steps: str | None = None, *, read: float | None = None
) -> tuple[str, str]:
    """Return the name of the default method for a target, and why it is that, as one line.

    - Up to 200,000 data and 200 parameters: Hamiltonian Monte Carlo with an acceptance test on all data. Exact. Also up
      to 5,000 parameters, if the data are at most 5,000,000 numbers, data times parameters at most 20,000,000, and the
      model is no network; above 1,000 without a scale.
    - More data and up to 100 parameters, of a model with compiled bounds on its third derivatives, such as the
      regressions of this package: MH-SS, if it is expected to read at most 1 % of the data a step. Exact, and reads a
      few data a step, whatever n is. SMH-2 reads fewer, and stays at points in the skewed tails of a level with few
      rows. Where the bounds are wider, as for a level of a Poisson regression without events: HMC, if data times
      parameters are at most 40,000,000.
    - More data: SGLD on minibatches with control variates about the mode (SGLD-CV), without an acceptance test. On a
      linear regression of 250,000 rows it has 70 times as many effective draws as SGHMC in half the time.
    - More data and more than 200 parameters, or more parameters than that: SGHMC on minibatches, without an acceptance
      test.
    - Without gradients: a random walk with an acceptance test on all data. Exact, and slow on many data. Also where
      gradients do not see a parameter among few, `with_steps`, with which the log-likelihood changes in steps.

    Args:
        target: its sizes count.
        has_gradients: see `gradients_of`.
        with_steps: the parameter with which the log-likelihood changes in steps, if one does.
        read: the data that a step of MH-SS is expected to read, where it may be the default.
    """
    size = f"n = {target.n:,} and D = {target.dim:,}"
    if not has_gradients:
        return (
            RANDOM_WALK,
            f"a random walk with an acceptance test on all data: exact, for {size} without gradients",
        )
    if with_steps is not None and target.n <= _DATA and target.dim <= _WALKED:
        return (
            RANDOM_WALK,
            f"a random walk with an acceptance test on all data: exact, for {size}; log_lik changes with {with_steps} "
            "in steps, which gradients do not see",
        )
    numbers = sum(field.numel() for field in target.data.fields.values())
    wide = target.dim > _PARAMETERS and (
        numbers > _NUMBERS or target.n > _DATA or target.n * target.dim > _FEATURES
    )
    if not wide and is_unscaled(target):
        how = f"{LEAPFROG_STEPS} leapfrog steps a trajectory and no scale"
        return (
            HMC,
            f"Hamiltonian Monte Carlo with an acceptance test on all data (HMC), {how}: exact, for {size}",
        )
    if wide or target.dim > most_scaled(target.model):
        return STOCHASTIC_GRADIENT, f"SGHMC on minibatches: no acceptance test and a small bias, for {size}"
    is_read = read is not None and read <= min(
        _FEW * target.n, _READ_IN_ALL / default_counts(BOUNDED, target.dim)[0]
    )
    if is_read:
        return BOUNDED, f"MH-SS, a random walk whose exact test reads few of many data, for {size}"
    if target.n > _DATA and (read is None or target.n * target.dim > _AFFORDABLE):
        why = "SGLD on minibatches with control variates about the mode (SGLD-CV): no acceptance test and a small bias"
        return CONTROL_VARIATE, f"{why}, for {size}"
    wide_bounds = "" if read is None else "; MH-SS would read too many of them, as the bounds are wide here"
    return (
        HMC,
        f"Hamiltonian Monte Carlo with an acceptance test on all data (HMC): exact, for {size}{wide_bounds}",
    )


def is_unscaled(target: Target) -> bool:
    """Return whether a model has so many parameters that HMC, the default, gets no scale, nor its length by a pilot."""
    return most_scaled(target.model) < target.dim <= _UNSCALED and not is_network(target.model)


def _has_compiled_bounds(target: Target) -> bool:
    """Return whether a compiled loop has bounds on remainders of second order; in torch, a step takes milliseconds."""
    offered = native_form(target.model, "native_bounds", "log_prior", "log_lik", "bounds")
    return (
        target.device.type == "cpu"
        and available()
        and offered is not None
        and _SECOND_ORDER in bound_kinds_of(target.model)
    )


def default_counts(name: str | None, dim: int) -> tuple[int, int]:
    """Return how many steps count and how many come before them, for a default method; None: for another kernel.

    HMC takes a fifth of the steps of others: its draws are nearly independent, and a step has several gradients.

    Args:
        name: of the method.
        dim: number of parameters.
    """
    steps, warmup = _COUNTS_OF_HMC if name == HMC else _COUNTS
    return (max(steps, _STEPS_PER_DIM * dim) if name == BOUNDED else steps), warmup


def default_surrogate(name: str) -> str:
    """Return the surrogate of a default method, see `mhrun.target.Target`."""
    return {CONTROL_VARIATE: _FIRST_ORDER, BOUNDED: _SECOND_ORDER}.get(name, "none")


def default_kernel(name: str, target: Target) -> Kernel:
    """Return the kernel of a default method for a target."""
    if name in (STOCHASTIC_GRADIENT, CONTROL_VARIATE):
        return Unadjusted(SGHMC() if name == STOCHASTIC_GRADIENT else SGLD(), m=AUTO)
    if name == BOUNDED:
        return MetropolisHastings(RandomWalk(), Thinned(), MHSS())
    proposal: Proposal = RandomWalk()
    if name == HMC:
        proposal = HamiltonianProposal(leapfrog_steps=LEAPFROG_STEPS if is_unscaled(target) else AUTO)
    return MetropolisHastings(proposal, Full(), Metropolis())


def default_of(target: Target, surrogate: str | None = None) -> Default:
    """Return `default_method` for what the model's gradients are.

    Args:
        target: of the model and the data.
        surrogate: the one that is given, which the method must take; None: that of the method.

    Raises:
        UserError: the log-likelihood fails at the model's first point.
    """
    has_gradients = gradients_of(target)
    steps = coordinate_with_steps(target, _beside_first_point(target)) if has_gradients else None
    read = None
    if has_gradients and _may_be_bounded(target, surrogate):
        read = 0.0 if surrogate else _expected_reading(target := target.with_surrogate(_SECOND_ORDER))
    name, reason = default_method(target, has_gradients, steps, read=read)
    own = default_surrogate(name) if surrogate is None else surrogate
    return Default(name, reason, target.with_surrogate(own))


def _may_be_bounded(target: Target, surrogate: str | None) -> bool:
    """Return whether MH-SS may be the default of a target, by its sizes, its model and the surrogate that is given."""
    is_large = target.n > _DATA and target.dim <= BOUNDED_UP_TO
    return is_large and surrogate in (None, _SECOND_ORDER) and _has_compiled_bounds(target)


def _expected_reading(target: Target) -> float:
    """Return `data_of_a_step`; infinity without a mode, as with a flat direction, which HMC shows."""
    try:
        return data_of_a_step(target)
    except UserError:
        return math.inf


def _beside_first_point(target: Target) -> Tensor:
    """Return a point (1, D) near the first one, where zeros may hide steps."""
    theta = first_point(target.model, target.device)[:1].to(target.device)
    return theta + _ASIDE * (1 + theta.abs())


def gradients_of(target: Target) -> bool:
    """Return whether the log-likelihood has gradients, from a few data at the model's first point.

    One datum would not show it where its term is a constant, as the first term of a time series often is.

    Raises:
        UserError: the log-likelihood itself fails, or changes a tensor in place.
    """
    theta = first_point(target.model, target.device).to(target.device)
    index = torch.arange(min(target.n, _TRIED), device=target.device)[None]
    try:
        target.gradients.mean_log_lik(theta, index)
        return True
    except UserError as error:
        # Judged below, where an error of the log-likelihood itself has no other one as its context
        reason = str(error)
    if "in-place operation" in reason or "inplace operation" in reason:
        raise UserError(
            f"{reason.rstrip('.')}. It has no gradient for that: write theta = 2 * theta, not theta.mul_(2)."
        )
    with torch.no_grad():
        target.model.log_lik(theta, target.data.rows(index))
    return False
