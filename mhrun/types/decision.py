"""What a pairing of two points passes to an acceptance test, and what the test decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mhrun.errors import Refusal


class Difference(NamedTuple):
    """An estimate of the mean over the data of log p(x | candidate) - log p(x | origin).

    Sums are float64 whatever the dtype of the chains, because n/T multiplies their rounding errors too.
    """

    mean: Tensor  # (C,)
    var: Tensor  # (C,) sample variance of the averaged terms
    size: Tensor  # (C,) number of terms averaged
    error: Tensor  # (C,) estimated variance of `mean` over minibatches; 0 when the mean is over all data
    # Per-datum log-likelihoods evaluated in addition to those of the two evaluations, per chain
    n_lik: int = 0
    # (C,) the part of the mean that a surrogate knows; `mean` is of the remainders
    known: Tensor | None = None
    # (C,) of two estimates kept with their points: the candidate's variance less the origin's
    error_change: Tensor | None = None


class Reference(NamedTuple):
    """A point about which log-likelihoods are expanded, and a metric there."""

    theta: Tensor  # (D,), float64
    root: Tensor | None = None  # (D, D) lower triangular, root root^T: the Laplace approximation's covariance


BOUND_KINDS = ("difference", "taylor1", "taylor2")
"""Terms that a model may bound: log-likelihood differences, or those of remainders after order 1 or 2."""


class Bounds(NamedTuple):
    """Bounds on the terms of a log-ratio: |term of datum i| <= weights[i] * width(theta, theta').

    `width` is symmetric in its arguments; an asymmetric one would break detailed balance.

    `slope`, of bounds on remainders, is for kernels that move along gradients: with the reference's metric
    root root^T, |root^T grad r_i(theta)|_2 <= weights[i] * slope(theta). On a line it is largest at one of the ends.
    """

    weights: Tensor  # (n,), float64, at least 0
    width: Callable[[Tensor, Tensor], Tensor]  # (C, D) and (C, D) -> (C,)
    slope: Callable[[Tensor], Tensor] | None = None  # (C, D) -> (C,)


class Supply(Protocol):
    """Per-datum terms of a difference, for a rule that grows its minibatch.

    A term is log p(x | candidate) - log p(x | origin) of one datum, float64.
    """

    n: int  # number of data
    # (C,) per-datum log-likelihoods for full-data statistics, which one pass gives together
    n_lik_overhead: Tensor
    # (C,) the part of the mean that a surrogate knows; the terms are those of the remainders
    known: Tensor | None

    def evaluated(self, size: Tensor) -> Tensor:
        """Return how many log-likelihoods the decisions (C,) cost that used `size` data each."""
        ...

    def terms(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Return terms start..stop of the minibatches of the chains `rows` (R,), as (R, stop - start).

        Each part can be read once in a step; a rule keeps the terms that it needs again.
        """
        ...

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the terms over all data, each (C,). Reads every datum."""
        ...

    def largest(self) -> Tensor:
        """Return the largest absolute term over all data (C,). Reads every datum."""
        ...


class Events(NamedTuple):
    """Some arrivals of chains (R,): each is at datum i with probability bound_i / (sum of all bounds)."""

    time: Tensor  # (R, k) increasing: arrival times of a Poisson process of rate 1
    term: Tensor  # (R, k) of the datum
    bound: Tensor  # (R, k) of |term|, at least 0
    uniform: Tensor  # (R, k) in (0, 1), for thinning


class Arrivals(ABC):
    """Poisson arrivals at single data with bounded terms, for a rule that thins them. A term is that of a `Supply`."""

    n: int  # number of data
    total: Tensor  # (C,) sum of the bounds of all data
    violations: Tensor  # (C,) terms that exceeded their bound so far
    n_lik_overhead: Tensor  # (C,) as of a `Supply`
    known: Tensor | None  # (C,) as of a `Supply`

    @abstractmethod
    def arrive(self, rows: Tensor, since: Tensor, start: int, stop: int, until: Tensor) -> Events:
        """Return arrivals start..stop of chains `rows` (R,), the first after time `since` (R,).

        Those after time `until` (R,) are not evaluated: their terms are 0.
        """
        ...

    @abstractmethod
    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean of the terms over all data (R,), for chains `rows` (R,). Reads every datum."""
        ...

    @abstractmethod
    def evaluated(self, size: Tensor) -> Tensor:
        """Return how many log-likelihoods the decisions (C,) cost that used `size` data each."""
        ...


class Contest(NamedTuple):
    """The acceptance decision of one step: log-ratio = offset + scale * (mean of the terms over all data).

    `scale` is n/T. `offset` contains the prior ratio, the proposal densities and what a surrogate knows of the mean.
    The rest of the mean is estimated by `difference`, from terms that the rule draws from `supply`, or by thinning
    `arrivals`; exactly one of the three is set. A rule receives only its contest and random numbers.
    """

    difference: Difference | None
    scale: Tensor  # (C,)
    offset: Tensor  # (C,)
    supply: Supply | None = None
    arrivals: Arrivals | None = None

    @classmethod
    def of(cls, found: Difference | Supply | Arrivals, scale: Tensor, offset: Tensor) -> Contest:
        """Return the contest of a pairing's estimate; the surrogate's exact part is added to the offset."""
        if found.known is not None:
            offset = offset + scale * found.known
        if isinstance(found, Difference):
            return cls(found, scale, offset)
        if isinstance(found, Arrivals):
            return cls(None, scale, offset, arrivals=found)
        return cls(None, scale, offset, found)

    @property
    def log_ratio_var(self) -> Tensor:
        """The estimated variance of `log_ratio` over minibatches, (C,): scale^2 times the variance of the mean."""
        assert self.difference is not None
        return self.scale**2 * self.difference.error

    @property
    def log_ratio(self) -> Tensor:
        """The log-ratio estimated by `difference`, (C,)."""
        assert self.difference is not None
        return self.offset + self.scale * self.difference.mean

    def to_verdict(self, accepted: Tensor) -> Verdict:
        """Return the verdict of a rule that decides from `difference`.

        Args:
            accepted: which chains accept, (C,) bool.

        Raises:
            Refusal: `accepted` has another shape or type, such as probabilities.
        """
        assert self.difference is not None
        log_ratio = self.log_ratio
        _check_accepted(accepted, log_ratio.shape)
        return Verdict(accepted, log_ratio, self.log_ratio_var, self.difference.size)


def _check_accepted(accepted: object, shape: torch.Size) -> None:
    """Check that `accepted` is a boolean tensor with one value for each chain; its values are not read."""
    if isinstance(accepted, Tensor):
        if accepted.dtype == torch.bool and accepted.shape == shape:
            return
        given = f"{tuple(accepted.shape)}, {str(accepted.dtype).removeprefix('torch.')}"
    else:
        given = f"a {type(accepted).__name__}"
    raise Refusal(
        f"contest.to_verdict takes which chains accept, a tensor of shape (C,) = {tuple(shape)} and type bool, and was "
        f"given {given}; compare with a uniform: u < probability."
    )


class Verdict(NamedTuple):
    """A rule's decision, the log-ratio it used, and the number of data it used."""

    accepted: Tensor  # (C,) bool
    log_ratio: Tensor  # (C,)
    log_ratio_var: Tensor  # (C,) estimated variance of the log-ratio over minibatches
    batch_size: Tensor  # (C,)
    # (C,) estimated skewness of the log-ratio over minibatches; None if unknown
    log_ratio_skew: Tensor | None = None
