"""Types shared by all packages.

Letters: C chains, D parameters, m minibatch size, n data, K steps of a block. The leading
dimension of every tensor of a step is C; trials, rungs of a ladder, replicas and seeds are all chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from mhrun.random import MANY, Draws

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Rows = Mapping[str, Tensor]
"""Data as a model sees them: field name -> (C or 1, m, ...)."""


class Evaluation(NamedTuple):
    """The target evaluated at a point. Fields not computed are None.

    `log_lik_mean` and `log_lik_var` are the mean and the sample variance over the batch of the
    log-likelihood of one datum; the variance is 0 when the mean is over all data.
    """

    theta: Tensor  # (C, D)
    log_prior: Tensor  # (C,)
    log_lik_mean: Tensor | None = None  # (C,)
    log_lik_var: Tensor | None = None  # (C,)
    batch: Tensor | None = None  # (C, m) the indices of the data behind the two fields above
    grad: Tensor | None = None  # (C, D) of the log posterior of all data, estimated on the same data
    log_lik: Tensor | None = None  # (C, m) what the mean and the variance are of
    rows: Rows | None = None  # the data at `batch`, gathered: another point may be scored on them
    n_lik: int = 0  # log-likelihoods of single data that it took, for each chain
    n_grad: int = 0  # gradients of single data that it took, for each chain

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Evaluation:
        """Return the evaluation with these fields, and no others."""
        return cls(**cast(Any, tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are tensors and there: what a state keeps."""
        return {name: value for name, value in self._asdict().items() if isinstance(value, Tensor)}


class State(NamedTuple):
    """The state of the chains. `aux` holds momentum, thermostats and the like, name -> (C, ...)."""

    evaluation: Evaluation
    aux: dict[str, Tensor]


class Controls(NamedTuple):
    """The values of the schedules at one step, each (C,)."""

    step_size: Tensor
    temperature: Tensor  # of the target: density to the power 1/T
    noise_temperature: Tensor  # of injected noise: 0 makes an optimiser
    backward: Tensor | None = None  # how much wider backward moves are, where a kernel adapts it

    def each(self, change: Callable[[Tensor], Tensor]) -> Controls:
        """Return the controls with every one of them changed."""
        return Controls(*(None if control is None else change(control) for control in self))  # type: ignore[arg-type]


class Difference(NamedTuple):
    """An estimate of the mean over the data of log p(x | candidate) - log p(x | origin).

    Sums are float64 whatever the chains are in: they are multiplied by n/T, and their rounding with them.
    """

    mean: Tensor  # (C,)
    var: Tensor  # (C,) the sample variance of what is averaged
    size: Tensor  # (C,) the number of data behind it
    error: Tensor  # (C,) the variance of `mean` over minibatches, estimated; 0 when all data are behind it
    n_lik: int = (
        0  # log-likelihoods of single data that it took beside those of the two evaluations, for each chain
    )


class Supply(Protocol):
    """The terms of a difference, datum by datum, for a rule that grows its minibatch.

    A term is log p(x | candidate) - log p(x | origin) of one datum, float64.
    """

    n: int  # how many data there are
    replacement: bool  # whether they are drawn with replacement
    n_lik_overhead: Tensor  # (C,) log-likelihoods of single data evaluated so far for a statistic of all data

    def terms(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Return the terms of the data start..stop of the minibatches of some chains (R,): (R, stop - start)."""
        ...

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the terms of all data, each (C,); every datum is read."""
        ...

    def largest(self) -> Tensor:
        """Return the largest absolute term of all data (C,); every datum is read."""
        ...


class Contest(NamedTuple):
    """Shall the candidate replace the origin?  log-ratio = offset + scale * (mean of the terms of all data).

    `scale` is n/T; `offset` holds the prior and the proposal densities. The mean is estimated by
    `difference`, or by what a rule draws from `supply`: a contest has one of the two. A rule sees this and
    nothing else.
    """

    difference: Difference | None
    scale: Tensor  # (C,)
    offset: Tensor  # (C,)
    supply: Supply | None = None

    @property
    def log_ratio(self) -> Tensor:
        """The log-ratio that `difference` estimates, (C,)."""
        assert self.difference is not None
        return self.offset + self.scale * self.difference.mean

    def to_verdict(self, accepted: Tensor) -> Verdict:
        """Return the verdict of a rule that decides by `difference`."""
        assert self.difference is not None
        error = self.scale**2 * self.difference.error
        return Verdict(accepted, self.log_ratio, error, self.difference.size)


class Verdict(NamedTuple):
    """What a rule decided: yes or no, the log-ratio it used, and the data behind the decision."""

    accepted: Tensor  # (C,) bool
    log_ratio: Tensor  # (C,)
    log_ratio_var: Tensor  # (C,) its variance over minibatches, estimated
    batch_size: Tensor  # (C,)
    log_ratio_skew: Tensor | None = (
        None  # (C,) its skewness over minibatches, estimated; None if it is not known
    )


NEVER, REFUSED, MADE = 0, 1, 2  # what `Info.exchange` says


class Info(NamedTuple):
    """What one step of any kernel reports, each (C,); traces are allocated from this declaration."""

    accepted: Tensor  # bool: the candidate was taken; of a dynamics, the chain moved
    log_ratio: Tensor  # log of the acceptance ratio; NaN for a dynamics, which has none
    log_ratio_var: Tensor  # its variance over minibatches, estimated; NaN for a dynamics
    batch_size: Tensor  # data behind the decision or the gradient, as papers count them
    # What the algorithm needs: a faster exact form of the model does not lower these counts.
    n_lik: Tensor  # log-likelihoods of single data evaluated in this step
    n_lik_overhead: (
        Tensor  # those of n_lik that served a statistic of all data, which papers leave out of their counts
    )
    n_grad: Tensor  # gradients of single data evaluated in this step
    diverging: Tensor  # bool: something was not finite; the step was refused
    # What not every kernel has to say; None means what INFO_DEFAULTS has for it.
    exchange: Tensor | None = None  # int8, of ladders: NEVER, REFUSED or MADE
    valid: Tensor | None = None  # bool: theta is a valid draw
    # Skewness of the terms behind the decision / sqrt(their number): 0 for a normal log-ratio, or from all data.
    log_ratio_skew: Tensor | None = None


INFO_DEFAULTS: dict[str, float] = {"exchange": NEVER, "valid": 1, "log_ratio_skew": math.nan}

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
}


class Block(NamedTuple):
    """A part of theta that belongs together, such as the weights of a layer."""

    name: str
    start: int
    stop: int
    weights: bool  # rather than biases, which weight decay leaves out


class Field(NamedTuple):
    """What a model needs a field of the data to be.

    `values`: ``""``, any real numbers; ``signs``, +1 and -1; ``classes``, whole numbers from 0 to `classes` - 1;
    ``zeros``, of the datum that says nothing.
    """

    row: tuple[int, ...] | None  # the shape of a row, () for one number; None: any
    values: str = ""
    classes: int = 0
    setting: str = ""  # which setting of the model decides the shape, for messages


@runtime_checkable
class Model(Protocol):
    """A prior and the log-likelihood of single data.

    A model may also offer faster exact forms, which the contract tests check against the plain ones:

    - ``log_lik_and_grad(theta, rows) -> (log_lik (C, m), its mean's gradient (C, D))``: both from one pass.
    - ``log_prior_grad(theta) -> (C, D)``, or None where the prior is flat: without differentiation.
    - ``predict(theta, rows) -> (C, m, K)``: log-probabilities of K classes; ``blocks``: see `Block`.
    - ``full_log_lik(data) -> Callable[[theta (C, D)], (C,)]``: the sum over all data; ``full_value_and_grad(data)`` ->
      likewise with its gradient, ((C,), (C, D)).
    - ``nodes(data) -> (rows, weights)``: a few weighted rows on which sums over all data of smooth functions of
      log_lik are exact; ``bound(data) -> Callable[[theta, theta'], (C,)]``: the largest absolute difference.
    - ``fields``: name -> `Field`, the fields of the data that log_lik reads; data that do not fit are refused before
      anything is computed.
    - ``native(data, full=bool) -> NativeModel``: the pieces of a fused CPU loop (see `mhrun.native`);
      `full` says whether sums over all data will be asked for.
    """

    dim: int

    @property
    def names(self) -> Sequence[str]:
        """A name for each parameter."""
        ...

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        ...

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,), up to a constant."""
        ...

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and rows of (C or 1, m, ...) -> (C, m), one value per datum."""
        ...


def blocks_of(model: Model) -> Sequence[Block]:
    """Return the blocks of theta that a model names; none if it names none."""
    return getattr(model, "blocks", ())


Record = Mapping[str, "npt.NDArray[np.generic]"]
"""What some steps left behind: each field of `Info` (C, K), and ``theta`` (C, draws, D) of those that are kept.

A compiled loop leaves the theta of all of them.
"""


def choose(mask: Tensor, yes: Evaluation, no: Evaluation, *, on_host: bool) -> Evaluation:
    """Return `yes` in the rows where `mask` (C,) holds and `no` elsewhere; what one of them lacks is None.

    `on_host`: whether asking whether all rows agree costs nothing, see `Draws.on_host`.
    """
    first, second = yes.tensors(), no.tensors()
    both = [name for name in first if name in second]
    if on_host and yes.theta.shape[-1] >= MANY:  # where asking costs no wait, but copying does
        if bool(mask.all()):
            return Evaluation.of({name: first[name] for name in both})
        if not bool(mask.any()):
            return Evaluation.of({name: second[name] for name in both})

    def pick(name: str) -> Tensor:
        a, b = first[name], second[name]
        return torch.where(mask.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    return Evaluation.of({name: pick(name) for name in both})
