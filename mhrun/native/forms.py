"""The compiled forms that parts state, and the records that their pieces are handed.

``args`` of a form is handed to each of its pieces as it is. What else belongs together travels as a NamedTuple of
numbers. Arrays are arguments of their own in a piece: to take one out of a tuple counts a reference, which costs ten
nanoseconds in a loop over steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mhrun.native.compiler import Piece, piece

SHARED, STORED, FULL, GROWING = 0, 1, 2, 3  # how a pairing scores
UNDECIDED, REJECT, ACCEPT = -1, 0, 1  # verdicts of a sequential test


class Draw(NamedTuple):
    """Whose random numbers: the counter of one step of one chain. Purpose and block complete it."""

    key: Any  # two words, uint64; see `mhrun.native.philox.split_key`
    step: Any  # uint64
    chain: Any  # uint64


class StepControls(NamedTuple):
    """The controls of one step of one chain, as `mhrun.types.Controls`."""

    step_size: Any
    noise_temperature: Any


class SequentialTest(NamedTuple):
    """What a sequential test decides: log-ratio = offset + scale * (mean term of all n data)."""

    n: Any
    scale: Any  # n/T
    offset: Any


class Seen(NamedTuple):
    """What is known of the terms d_i at a stage of a sequential test."""

    stage: Any  # from 0 on; -1 before the first
    size: Any  # how many data are behind the moments
    mean: Any
    var: Any  # divisor size; of a pilot, size - 1
    largest: Any  # |d_i| of all data, for a test that reads all of them beforehand; else 0


class NativeModel(NamedTuple):
    """A model's pieces."""

    args: tuple[Any, ...]
    log_prior: Piece  # (args, theta (D,)) -> float
    difference: Piece  # (args, index, m, origin, candidate) -> sum of d_i, sum of d_i^2 over the batch
    moments: Piece  # (args, index, m, theta) -> sum of l_i, sum of l_i^2 over the batch
    total: Piece  # (args, theta) -> sum of l_i over all data
    gradient: Piece  # (args, index, m, theta, out (D,)): sum over the batch of the gradient of l_i
    prior_gradient: Piece  # (args, theta, out (D,))
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


class NativePairing(NamedTuple):
    """A pairing, as one of the scoring pieces that the Metropolis-Hastings loop has."""

    mode: int  # SHARED, STORED, FULL or GROWING
    m: int | None  # minibatch size; None for all data, or as many as the rule wants


class NativeTest(NamedTuple):
    """The pieces of a rule that grows its minibatch: a sequential test.

    `begin` returns a tuple of parameters of the step, which `judge` is handed; the fourth is the stage to begin at. The
    verdict is ACCEPT, REJECT or UNDECIDED, and at the last stage one of the first two. With a pilot, the first `pilot`
    data are read beforehand, `begin` sees the moments of their terms, and the stages are of the data that follow; when
    those are all that there are, the pilot's join them.
    """

    args: tuple[Any, ...]
    sizes: Sequence[int]  # data at each stage, increasing, n at most
    wants_full_pass_stats: bool  # whether `begin` sees the moments of all data
    begin: Piece  # (args, test: SequentialTest, seen: Seen, draw: Draw) -> params
    judge: Piece  # (args, params, test: SequentialTest, seen: Seen) -> verdict
    pilot: int = 0  # data read before the first stage


class NativeDecision(NamedTuple):
    """The piece of a rule that decides on a log-ratio whose noise is known."""

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


class NativeDynamics(NamedTuple):
    """A dynamics' piece, which moves a chain in place.

    Theta may be float32: numbers that meet it in a loop should have its type, as ``theta.dtype.type(x)``, or the loop
    is slow.
    """

    args: tuple[Any, ...]
    # (args, theta (D,), grad (D,), vectors (A, D), scalars (S,), controls: StepControls, draw: Draw)
    move: Piece
    vectors: tuple[str, ...] = ()  # what the rows of `vectors` are in `State.aux`
    scalars: tuple[str, ...] = ()  # and the numbers of `scalars`


def native_form(part: Any, form: str, *plain: str) -> Callable[..., Any] | None:
    """Return the method `form` of a part, if it was written by whoever wrote its methods `plain`.

    A subclass that changes what a method does has not changed its compiled form: then there is none.
    """

    def depth(name: str) -> float:
        return next((i for i, owner in enumerate(type(part).__mro__) if name in vars(owner)), math.inf)

    if depth(form) == math.inf or any(depth(name) < depth(form) for name in plain):
        return None
    found: Callable[..., Any] = getattr(part, form)
    return found
