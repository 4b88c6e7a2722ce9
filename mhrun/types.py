"""Types shared by all packages.

Letters: C chains, D parameters, m minibatch size, n observations (data), K steps of a block. Every tensor of
a step has the leading dimension C. Trials, the rungs of a ladder, replicas and seeds are all chains.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.exchanges import NEVER
from mhrun.random import MANY, Draws

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Rows = Mapping[str, Tensor]
"""Data as passed to a model: field name -> (C or 1, m, ...)."""


class Evaluation(NamedTuple):
    """The target evaluated at a point. Fields that were not computed are None.

    `log_lik_mean` and `log_lik_var` are the mean and the sample variance of the per-datum log-likelihoods of the
    batch. The variance is 0 when the mean is over all data.
    """

    theta: Tensor  # (C, D)
    log_prior: Tensor  # (C,)
    log_lik_mean: Tensor | None = None  # (C,)
    log_lik_var: Tensor | None = None  # (C,)
    batch: Tensor | None = None  # (C, m) indices of the data used for the two fields above
    grad: Tensor | None = None  # (C, D) estimated gradient of the full-data log posterior, from the same data
    grad_temperature: Tensor | None = None  # (C,) of `grad`, if it is for one temperature only
    log_lik: Tensor | None = None  # (C, m) per-datum log-likelihoods behind the mean and the variance
    rows: Rows | None = None  # the gathered data at `batch`, for evaluating another point on them
    n_lik: int = 0  # per-datum log-likelihoods evaluated, per chain
    n_grad: int = 0  # per-datum gradients evaluated, per chain

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Evaluation:
        """Return an evaluation with these fields only."""
        return cls(**cast(Any, tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that hold a tensor; a state stores these."""
        return {name: value for name, value in self._asdict().items() if isinstance(value, Tensor)}


BUFFER = "buffer/"
"""Prefix of the names in `State.aux` of a module's buffers, which belong to theta and not to the kernel."""


class Trajectory(NamedTuple):
    """A path from the current point to a candidate, which random momenta determine; see `TrajectoryProposal`."""

    theta: Tensor  # (C, D) the candidate
    first: Tensor  # (C, D) momentum at the current point
    last: Tensor  # (C, D) momentum half a step before the candidate
    step_size: Tensor  # (C,)


class State(NamedTuple):
    """The state of the chains. `aux` holds momentum, thermostats and the like, name -> (C, ...).

    A module's buffers, such as the running statistics of BatchNorm, are in `aux` under names with the prefix `BUFFER`.
    """

    evaluation: Evaluation
    aux: dict[str, Tensor]


class Controls(NamedTuple):
    """The values of the schedules at one step, each (C,)."""

    step_size: Tensor
    temperature: Tensor  # T of the target, whose density is raised to the power 1/T
    noise_temperature: Tensor  # of the injected noise; 0 gives an optimiser
    backward: Tensor | None = None  # beta, the relative width of backward moves, if a kernel adapts it

    def each(self, change: Callable[[Tensor], Tensor]) -> Controls:
        """Return the controls with `change` applied to each."""
        return Controls(*(None if control is None else change(control) for control in self))  # type: ignore[arg-type]


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
    replacement: bool  # whether data are drawn with replacement
    n_lik_overhead: (
        Tensor  # (C,) per-datum log-likelihoods for full-data statistics, which one pass gives together
    )
    known: (
        Tensor | None
    )  # (C,) the part of the mean that a surrogate knows; the terms are those of the remainders

    def evaluated(self, size: Tensor) -> Tensor:
        """Return how many log-likelihoods the decisions (C,) cost that used `size` data each."""
        ...

    def terms(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Return terms start..stop of the minibatches of the chains `rows` (R,), as (R, stop - start)."""
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
        """Return the contest with what a pairing has found; the part that a surrogate knows joins the offset."""
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
    """Refuse what does not say of each chain whether it accepts; reads no values."""
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


class Info(NamedTuple):
    """What one step of any kernel reports, each (C,). Traces are allocated from this declaration."""

    accepted: Tensor  # bool: the candidate was accepted; with a dynamics, the chain moved
    log_ratio: Tensor  # log acceptance ratio; NaN with a dynamics
    log_ratio_var: Tensor  # estimated variance of log_ratio over minibatches; NaN with a dynamics
    batch_size: Tensor  # data used for the decision or the gradient, as papers count them
    # The three counts are the algorithm's: a faster exact form of the model does not lower them.
    n_lik: Tensor  # per-datum log-likelihoods evaluated in this step
    n_lik_overhead: (
        Tensor  # the part of n_lik spent on full-data statistics, which papers leave out of their counts
    )
    n_grad: Tensor  # per-datum gradients evaluated in this step
    diverging: Tensor  # bool: a value was not finite, or a trajectory unstable, and the step was rejected
    # Fields that only some kernels set; None stands for the value in INFO_DEFAULTS.
    exchange: Tensor | None = None  # int8, of ladders: 0 none proposed, 1 rejected, 2 accepted
    valid: Tensor | None = None  # bool: theta is a valid draw
    log_ratio_skew: Tensor | None = None  # skewness of the terms used / sqrt(their number); 0 with all data
    violations: Tensor | None = None  # terms that exceeded the model's bound; a run stops at the first


INFO_DEFAULTS: dict[str, float] = {
    "exchange": NEVER,
    "valid": 1,
    "log_ratio_skew": math.nan,
    "violations": 0,
}

INFO_DTYPES: dict[str, str] = {
    "accepted": "bool",
    "log_ratio": "float32",
    "log_ratio_var": "float32",
    "batch_size": "int32",
    "n_lik": "int64",
    "n_lik_overhead": "int64",
    "n_grad": "int64",
    "diverging": "bool",
    "exchange": "int8",
    "valid": "bool",
    "log_ratio_skew": "float32",
    "violations": "int32",
}


class Block(NamedTuple):
    """A contiguous part of theta, such as the weights of a layer."""

    name: str
    start: int
    stop: int
    weights: bool  # True for weights, False for biases; weight decay applies to weights only


class Field(NamedTuple):
    """A model's requirements on one field of the data.

    `values`: ``""``, any real numbers; ``signs``, +1 and -1; ``classes``, integers from 0 to `classes` - 1;
    ``counts``, integers from 0 on; ``positive``, above 0; ``zeros``, the placeholder datum of a density without data.
    """

    row: tuple[int, ...] | None  # shape of a row, () for a scalar; None for any shape
    values: str = ""
    classes: int = 0
    setting: str = ""  # the model's setting that determines the shape, for error messages
    remedy: str = ""  # a sentence after the message on wrong values


@runtime_checkable
class Model(Protocol):
    """A log-prior and a per-datum log-likelihood.

    A model may also provide faster exact forms, which the contract tests compare with the plain ones:

    - ``log_lik_and_grad(theta, rows) -> (log_lik (C, m), gradient of their mean (C, D))``: both from one pass.
    - ``log_prior_grad(theta) -> (C, D)``, or None for a flat prior: the analytic gradient.
    - ``prior_precision() -> float``: of a normal prior that is the same for all parameters; 0 for a flat prior, None
      where it differs.
    - ``predict(theta, rows) -> (C, m, K)``: log-probabilities of K classes.
    - ``outcome_mean(theta, rows) -> (C, m)``: the mean of an outcome that is a number.
    - ``fit_warnings(theta (D,), data) -> list[str]``: lines on what the data contradict in the model, at the
      posterior mean.
    - ``reads_pixels``: whether bytes (uint8) of ``x`` are pixels, k for k/255, see `mhrun.Dataset`.
    - ``blocks``: the parts of theta, see `Block`.
    - ``full_log_lik(data) -> Callable[[theta (C, D)], (C,)]``: the sum over all data.
    - ``full_value_and_grad(data)``: the same with its gradient, ((C,), (C, D)).
    - ``multiplies_chains(data) -> bool``: whether log_lik of all data is mostly their product with all chains' points.
    - ``nodes(data) -> (rows, weights)``: a few weighted rows on which full-data sums of smooth functions of
      log_lik are exact.
    - ``bound(data) -> Callable[[theta, theta'], (C,)]``: the largest absolute difference of log_lik.
    - ``bounds(data, kind, reference) -> Bounds`` for the kinds in ``bound_kinds``, some of `BOUND_KINDS`: a bound for
      each datum, see `Bounds`. `reference` is a `Reference`, or None for kind ``difference`` without one.
    - ``taylor(theta, reference (D,), rows, order) -> (C, m)``: the Taylor polynomial of log_lik about the reference,
      without its constant.
    - ``lower_bound(theta, rows, anchor) -> (C, m)``: log B_i <= log_lik, quadratic in theta, float64. It touches at the
      anchor (D,), or where the model chooses if that is None.
    - ``in_float64(rows) -> Rows``: the rows as log_lik computes with them in float64; by default fields of floating
      point are converted.
    - ``fields``: name -> `Field`, the data fields that log_lik reads. Incompatible data are rejected before any
      computation.
    - ``width``, ``buffer_names``, ``first_buffers(theta) -> {BUFFER + name: (C, ...)}`` and
      ``train(theta, buffers, rows) -> (log_lik, gradient of their mean, buffers)``, of a model with state beside theta;
      its other methods then take points (C, D) or (C, width), see `mhrun.models.module.ModuleModel`.
    - ``values_per_datum(rows) -> int``: values that a gradient pass keeps in memory for a datum, if they are more than
      the datum's own.
    - ``prior_summary``: the prior in a line of text, which traces and `summary.json` keep.
    - ``parameters``: a `mhrun.models.parameters.Parameters`, if theta has unconstrained coordinates: traces then hold
      the named parameters, within their constraints, and `names` has a name for each of their numbers.
    - ``native(data, full=bool) -> NativeModel``: the pieces of a compiled CPU loop (see `mhrun.native`);
      `full` is True if the loop needs full-data sums.
    """

    dim: int

    @property
    def names(self) -> Sequence[str]:
        """The name of each number that a draw has: D names, or those of ``parameters``."""
        ...

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        ...

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return the log-prior at theta (C, D), as (C,), up to an additive constant."""
        ...

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return per-datum log-likelihoods (C, m) from theta (C, D) and rows (C or 1, m, ...)."""
        ...


def prior_summary_of(model: Model) -> str | None:
    """Return the prior of a model in a line; None if it does not describe it."""
    return getattr(model, "prior_summary", None)


def blocks_of(model: Model) -> Sequence[Block]:
    """Return the blocks of theta that the model declares; empty if it declares none."""
    return getattr(model, "blocks", ())


Record = Mapping[str, "npt.NDArray[np.generic]"]
"""The trace of some steps: each field of `Info` (C, K), and ``theta`` (C, draws, D) at the stored steps.

A compiled loop returns theta at every step.
"""


def choose(mask: Tensor, yes: Evaluation, no: Evaluation, *, on_host: bool) -> Evaluation:
    """Return `yes` in the rows where `mask` (C,) is True and `no` elsewhere; fields missing from either are None.

    `on_host`: True if reading the mask on the host needs no device synchronisation, see `Draws.on_host`.
    """
    first, second = yes.tensors(), no.tensors()
    names = [name for name in first if name in second]
    if on_host and yes.theta.shape[-1] >= MANY:  # avoids copying wide rows if all chains agree
        if bool(mask.all()):
            return Evaluation.of({name: first[name] for name in names})
        if not bool(mask.any()):
            return Evaluation.of({name: second[name] for name in names})

    def pick(name: str) -> Tensor:
        a, b = first[name], second[name]
        return torch.where(mask.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    return Evaluation.of({name: pick(name) for name in names})
