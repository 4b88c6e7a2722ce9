"""Compiled forms of parts, and the records passed to their pieces.

``args`` of a form is passed to each of its pieces unchanged. Other related numbers travel as NamedTuples. Arrays are
separate arguments of a piece: unpacking one from a tuple costs a reference count, ten nanoseconds in a loop over steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mhrun.native.compiler import Piece, piece

SHARED, STORED, FULL, GROWING, THINNED = 0, 1, 2, 3, 4  # how a pairing scores
UNDECIDED, REJECT, ACCEPT = -1, 0, 1  # verdicts of a sequential test
SLACK = 1e-6  # relative, that a term may exceed its bound by
ROUNDING = 1e-13  # share of its summands that rounding may add to a term in float64
NEARLY_EQUAL = 1e-12  # variance of terms over their squared mean up to which their third moment is rounding
GRADIENT_ROUNDING = 1e-11  # share of a gradient that rounding may add to that of a remainder
GAP_ROUNDING = 1e-10  # that of a log-likelihood over its lower bound, in units of 1 + |log_lik| + |bound|


class Draw(NamedTuple):
    """The counter of the random numbers of one step of one chain; purpose and block complete it."""

    key: Any  # two words, uint64; see `mhrun.native.philox.split_key`
    step: Any  # uint64
    chain: Any  # uint64


class StepControls(NamedTuple):
    """The controls of one step of one chain; see `mhrun.types.Controls`."""

    step_size: Any
    noise_temperature: Any


class SequentialTest(NamedTuple):
    """The log-ratio that a sequential test decides: offset + scale * (mean term of all n data)."""

    n: Any
    scale: Any  # n/T
    offset: Any


class Seen(NamedTuple):
    """Statistics of the terms d_i at a stage of a sequential test."""

    stage: Any  # from 0 on; -1 before the first
    size: Any  # number of data behind the moments
    mean: Any
    var: Any  # divisor size; of a pilot, size - 1
    largest: Any  # largest |d_i| of all data, for a test that starts with a full pass; else 0


@piece
def flat_prior_gradient(args: Any, theta: Any, out: Any) -> None:
    """Fill out (D,) with 0: the gradient of a log-prior that is constant where it is finite."""
    for d in range(len(theta)):
        out[d] = 0.0


class NativeModel(NamedTuple):
    """A model's pieces."""

    args: tuple[Any, ...]
    log_prior: Piece  # (args, theta (D,)) -> float
    difference: Piece  # (args, index, m, origin, candidate) -> sum of d_i, sum of d_i^2 over the batch
    moments: Piece  # (args, index, m, theta) -> sum of l_i, sum of l_i^2 over the batch
    total: Piece  # (args, theta) -> sum of l_i over all data
    gradient: Piece  # (args, index, m, theta, out (D,)): sum over the batch of the gradient of l_i
    prior_gradient: Piece  # (args, theta, out (D,))
    # (args, theta, out (D,)) -> sum of l_i over all data, and its gradient in out; without it they take two passes
    total_and_gradient: Piece | None = None
    # For minibatches that grow; without these two they run in torch.
    terms: Piece | None = None  # (args, index, m, origin, candidate, out (m,)): d_i of each datum
    # (args, origin, candidate) -> sums over all data of d_i, d_i^2; largest |d_i|
    full_pass_stats: Piece | None = None
    sums: NativeSums | None = None


class NativeSums(NamedTuple):
    """Sums over data as weighted sums over a fixed set of nodes, for models whose data allow it.

    A sum over a minibatch, or over all data, of any smooth function of l is that of its values at the nodes with the
    minibatch's weights: log-likelihood, gradient and the square of a difference all come from one pass over the nodes.
    """

    size: int  # how many nodes
    whole: Any  # (size,) the weights of all data
    gather: Piece  # (args, index, m, out (size,)): the weights of a minibatch
    # (args, weights (size,), theta, grad (D,), values (size,)) -> the weighted sum; grad: its gradient; values: l
    score: Piece


@piece
def nothing_known(args: Any, origin: Any, candidate: Any) -> Any:
    """Return 0: the part of a log-likelihood difference that a surrogate knows, without one."""
    return 0.0


class NativeBounds(NamedTuple):
    """The pieces of a model whose terms are bounded, see `mhrun.types.Bounds`; in float64.

    `terms` and `total` may share arguments with a `NativeModel`.
    """

    args: tuple[Any, ...]
    log_prior: Piece  # (args, theta (D,)) -> float
    width: Piece  # (args, origin, candidate) -> float, at least 0
    terms: Piece  # (args, index, m, origin, candidate, out (m,)): the term of each datum
    total: Piece  # (args, theta) -> sum of l_i over all data
    # (args, i, origin, candidate) -> sum of |l_i| at both points, and of the surrogate's terms: what rounding is
    # relative to, see `ROUNDING`
    size: Piece
    known: Piece = nothing_known  # (args, origin, candidate) -> the surrogate's part, summed over all data
    # For moves along gradients of remainders, see `Bounds.slope`; without these two they run in torch.
    slope: Piece | None = None  # (args, theta) -> float, at least 0
    # (args, i, theta, rest (D,), whole (D,)): the gradients of r_i and of l_i of datum i
    remainder: Piece | None = None


class NativeLowerBound(NamedTuple):
    """The pieces of a model with lower bounds, see `mhrun.target.lower_bound.LowerBound`; in float64."""

    args: tuple[Any, ...]
    log_prior: Piece  # (args, theta (D,)) -> float
    gap: Piece  # (args, i, theta) -> l_i - log B_i of datum i, and what rounding may add to it
    total: Piece  # (args, theta) -> sum of log B_i over all data, up to a constant


@piece
def no_share(args: Any, total: Any) -> Any:
    """Return 0: a of a rule without excess arrivals."""
    return 0.0


class NativeThinning(NamedTuple):
    """The pieces of a rule that thins Poisson arrivals, see `mhrun.rules.thinning.Thinning`."""

    args: tuple[Any, ...]
    share: Piece  # (args, total bound B) -> a
    lifts: bool
    only_lowers: bool
    at_most: float


class NativePairing(NamedTuple):
    """A pairing, as one of the scoring modes of the Metropolis-Hastings loop."""

    mode: int  # SHARED, STORED, FULL, GROWING or THINNED
    m: int | None  # minibatch size; None for all data, or if the rule determines it


class NativeTest(NamedTuple):
    """The pieces of a sequential test: a rule that grows its minibatch.

    `begin` returns a tuple of parameters of the step, which is passed to `judge`; the fourth is the first stage. The
    verdict is ACCEPT, REJECT or UNDECIDED, and at the last stage ACCEPT or REJECT. With a pilot, the first `pilot` data
    are read beforehand, and `begin` gets the moments of their terms. The stages then use the data that follow; once
    these are exhausted, the pilot's data join them.
    """

    args: tuple[Any, ...]
    sizes: Sequence[int]  # data at each stage, increasing, at most n
    wants_full_pass_stats: bool  # whether `begin` gets the moments of all data
    begin: Piece  # (args, test: SequentialTest, seen: Seen, draw: Draw) -> params
    judge: Piece  # (args, params, test: SequentialTest, seen: Seen) -> verdict
    pilot: int = 0  # data read before the first stage


class NativeDecision(NamedTuple):
    """The piece of a rule that decides from a log-ratio and the variance of its noise."""

    args: tuple[Any, ...]
    decide: Piece  # (args, log_ratio, its noise's variance, number of terms, draw: Draw) -> whether to accept


@piece
def symmetric(args: Any, origin: Any, candidate: Any) -> Any:
    """Return 0: the log-ratio of the densities of a symmetric proposal."""
    return 0.0


class NativeProposal(NamedTuple):
    """A proposal's pieces."""

    args: tuple[Any, ...]
    propose: Piece  # (args, origin (D,), controls: StepControls, draw: Draw, out (D,))
    # (args, origin, candidate) -> log q(candidate -> origin) - log q(origin -> candidate)
    log_ratio: Piece = symmetric


class NativeGradientProposal(NamedTuple):
    """The pieces of a proposal with gradients: those of the log posterior at the origin and at the candidate, (D,)."""

    args: tuple[Any, ...]
    propose: Piece  # (args, origin (D,), grad, controls: StepControls, draw: Draw, out (D,))
    # (args, origin, candidate, grad, grad at the candidate, controls) -> log q(candidate -> origin) - log q(origin ->
    # candidate)
    log_ratio: Piece


class FollowedPath(NamedTuple):
    """What a trajectory leaves for the acceptance test, beside its end."""

    momenta: Any  # (2, D): the first, and the last, which the gradient at the end has not moved yet
    step_size: Any  # of this trajectory


class NativeTrajectory(NamedTuple):
    """The pieces of a proposal that follows a trajectory.

    `follower` makes the piece that follows it from the piece ``gradient(data, theta (D,), out (D,))`` of the log
    posterior, whose `data` it passes on: ``(args, data, origin (D,), grad, controls: StepControls, draw: Draw, out,
    momenta) -> FollowedPath``. It fills `out` (D,) with the end, and `momenta` (2, D).
    """

    args: tuple[Any, ...]
    follower: Callable[[Piece], Piece]
    log_ratio: Piece  # (args, path: FollowedPath, grad at the candidate, controls) -> that of the momenta's densities
    between: int  # gradients between the ends


class NativeDynamics(NamedTuple):
    """A dynamics' piece, which moves a chain in place.

    Theta may be float32: numbers that meet it in a loop should have its type, as ``theta.dtype.type(x)``, or the loop
    is slow.
    """

    args: tuple[Any, ...]
    # (args, theta (D,), grad (D,), vectors (A, D), scalars (S,), controls: StepControls, draw: Draw)
    move: Piece
    vectors: tuple[str, ...] = ()  # names in `State.aux` of the rows of `vectors`
    scalars: tuple[str, ...] = ()  # names in `State.aux` of the elements of `scalars`


def native_form(part: Any, form: str, *plain: str) -> Callable[..., Any] | None:
    """Return the method `form` of a part; None if it has none, or a subclass overrides one of its methods `plain`.

    A subclass that overrides a method but not its compiled form has no compiled form, nor has an object that was given
    such a method.
    """
    own = getattr(part, "__dict__", {})

    def depth(name: str) -> float:
        if name in own:
            return -1
        return next((i for i, owner in enumerate(type(part).__mro__) if name in vars(owner)), math.inf)

    if depth(form) == math.inf or any(depth(name) < depth(form) for name in plain):
        return None
    method: Callable[..., Any] = getattr(part, form)
    return method
