"""What a model offers, and the data that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from mhrun.random import Draws

Rows = Mapping[str, Tensor]
"""Data as passed to a model: field name -> (C or 1, m, ...)."""


class ParameterBlock(NamedTuple):
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
    - ``sample_prior(count) -> (count, D)`` and ``simulate(theta (D,), rows) -> fields``: draws from the prior, and data
      at theta, for simulation-based calibration (`mhrun.check.calibration`).
    - ``reads_pixels``: whether bytes (uint8) of ``x`` are pixels, k for k/255, see `mhrun.Dataset`.
    - ``blocks``: the parts of theta, see `ParameterBlock`.
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
      computation. ``fields_of(data)`` in its place, where they depend on the fields that there are.
    - ``width``, ``buffer_names``, ``first_buffers(theta) -> {BUFFER + name: (C, ...)}`` and
      ``train(theta, buffers, rows) -> (log_lik, gradient of their mean, buffers)``, of a model with state beside theta;
      its other methods then take points (C, D) or (C, width), see `mhrun.models.module.ModuleModel`.
    - ``values_per_datum(rows) -> int``: values that a gradient pass keeps in memory for a datum, if they are more than
      the datum's own.
    - ``prior_summary``: the prior in a line of text, which traces and `summary.json` keep.
    - ``parameters``: a `mhrun.models.parameters.Parameters`, if theta has unconstrained coordinates: traces then hold
      the named parameters, within their constraints, and `names` has a name for each of their numbers.
    - ``start_rows``: above 1, `init` has a point for each of so many chains, and for no other number.
    - ``log_lik_of_one(theta (D,), rows) -> (m,)``: log_lik before it is vectorised over chains, by which a term is
      found that is outside of the support of its distribution.
    - ``tells_classes``: False if `predict` is no probability of classes. ``takes_autocast``: whether its products may
      be in bfloat16. ``batch_norms``: the layers that depend on the rest of a minibatch.
    - ``native(data, full=bool) -> NativeModel``: the pieces of a compiled CPU loop (see `mhrun.native`);
      `full` is True if the loop needs full-data sums. ``native_bounds(data, kind, surrogate) -> NativeBounds`` and
      ``native_lower_bound(data, sums, tuned=bool) -> NativeLowerBound`` are those of thinned and firefly kernels.
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
        """Return the log-prior at theta (C, D), as (C,), up to an additive constant.

        Sums over many parameters are float64 whatever the type of theta: acceptance ratios have their differences.
        """
        ...

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return per-datum log-likelihoods (C, m) from theta (C, D) and rows (C or 1, m, ...)."""
        ...


def prior_summary_of(model: Model) -> str | None:
    """Return the prior of a model in a line; None if it does not describe it."""
    return getattr(model, "prior_summary", None)


def blocks_of(model: Model) -> Sequence[ParameterBlock]:
    """Return the blocks of theta that the model declares; empty if it declares none."""
    return getattr(model, "blocks", ())
