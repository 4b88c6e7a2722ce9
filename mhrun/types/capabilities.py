"""What a model may offer besides `Model`: every optional method and attribute, as protocols.

A model declares a capability by having its members; no base class is needed. Letters and shapes are those of `Model`.

A subclass that overrides `log_lik` has those methods of its base class no longer that repeat or describe it:
`FastForms`, `CompiledForms`, bounds, `fields`, `fields_of` and `fit_warnings`; likewise those of the prior if it
overrides `log_prior`. It must override them too. See `mhrun.native.native_form`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeGuard, TypeVar

from torch import Tensor

from mhrun.native import NativeBounds, NativeLowerBound, NativeModel
from mhrun.types.decision import Bounds, Reference
from mhrun.types.model import DataShape, Field, ParameterBlock, Rows

P_co = TypeVar("P_co", covariant=True)


def offers(part: object, capability: Callable[..., P_co]) -> TypeGuard[P_co]:
    """Return whether a part has all members of a capability, one of the protocols below.

    As `isinstance`, but alike in all versions of Python: from 3.12 on that does not see what ``__getattr__`` gives, as
    of a model that wraps another, and takes a property that raises AttributeError for a member.
    """
    return all(hasattr(part, name) for name in _members(capability))


@cache
def _members(capability: Any) -> tuple[str, ...]:
    return tuple(name for name in vars(capability) | capability.__annotations__ if not name.startswith("_"))


# --------------------------------------------------------------------------------------------------- predictions


class HasPredictions(Protocol):
    """Predicts classes, unless it is a `HasClassifierFlag` whose `is_classifier` is false."""

    def predict(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return log-probabilities (C, m, K) of K classes."""
        ...


class HasClassifierFlag(Protocol):
    """Has `predict` for some of its settings only."""

    is_classifier: bool  # whether `predict` is the log-probability of classes


class HasOutcomeMean(Protocol):
    """Predicts an outcome that is a number."""

    def outcome_mean(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the mean (C, m) of the outcome."""
        ...


class AppliesFunctions(Protocol):
    """Evaluates a user's function of what its likelihood is a function of."""

    def applied(self, function: Callable[[Any, Any], Tensor], theta: Tensor, rows: Rows) -> Tensor:
        """Return the function's values, called as the likelihood is, for each chain: (C, m, ...)."""
        ...


# ----------------------------------------------------------------------------------------- data, prior and starts


class HasFields(Protocol):
    """Declares the data fields that log_lik reads. Data without them are refused before any computation.

    Where the fields depend on those that there are: ``fields_of(data) -> Mapping[str, Field]`` in their place.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """What each field must be."""
        ...


class HasDataSettings(Protocol):
    """Has settings that follow from the data, see `mhrun.target.from_data`."""

    @classmethod
    def settings_of(cls, data: DataShape) -> Mapping[str, Any]:
        """Return them: ``dim``, ``features`` or ``classes``, None where the data have none, and ``names``."""
        ...


class ReadsPixels(Protocol):
    """Declares how it reads bytes (uint8) of ``x``."""

    reads_pixels: bool  # whether they are pixels, k for k/255, see `mhrun.Dataset`


class HasBlocks(Protocol):
    """Declares the parts of theta, for proposals and priors that treat one part at a time."""

    blocks: Sequence[ParameterBlock]


class HasPriorSummary(Protocol):
    """Describes its prior."""

    @property
    def prior_summary(self) -> str:
        """The prior in a line of text, which traces and `summary.json` keep."""
        ...


class HasStartRows(Protocol):
    """May have starting points that are given for a number of chains."""

    @property
    def start_rows(self) -> int:
        """Above 1: `init` has a point for each of so many chains, and for no other number."""
        ...


class HasParameters(Protocol):
    """Has named parameters of which theta are unconstrained coordinates.

    Traces hold the parameters, within their constraints, and `Model.names` has a name for each of their numbers.
    """

    parameters: Any  # a `mhrun.models.parameters.Parameters`; anything else is ignored


# ---------------------------------------------------------------------------------------------- checks of a model


class DrawsPrior(Protocol):
    """Draws from its prior, for simulation-based calibration (`mhrun.check.calibration`)."""

    def sample_prior(self, count: int) -> Tensor:
        """Return draws (count, D), by torch's generator."""
        ...


class Simulates(Protocol):
    """Draws data, for simulation-based calibration."""

    def simulate(self, theta: Tensor, rows: Rows) -> Mapping[str, Tensor]:
        """Return new fields of the data `rows` (n, ...) at theta (D,), by torch's generator."""
        ...


class JudgesFit(Protocol):
    """Checks its fit to the data, unless it is a `HasFitFlag` whose `checks_fit` is false."""

    def fit_warnings(self, draws: Tensor, data: Rows) -> list[str]:
        """Return lines on failed checks of the fit.

        Args:
            draws: of the posterior (K, P), as traces have them: theta, or the numbers of all named parameters.
            data: all of it, fields (n, ...).
        """
        ...


class HasFitFlag(Protocol):
    """Has `fit_warnings` for some of its settings only."""

    checks_fit: bool  # whether `fit_warnings` checks anything


class HasLogLikOfOne(Protocol):
    """Has its log_lik before it is vectorised over chains, which raises torch's own errors.

    By them a term is found that is outside of the support of its distribution.
    """

    def log_lik_of_one(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return log_lik at theta (1, D), (1, m)."""
        ...


# ------------------------------------------------------------------------------------------------------- networks


class HasBuffers(Protocol):
    """May have state beside theta, such as running statistics (`mhrun.models.module.ModuleModel`).

    Its other methods take points (C, D), or (C, width) with the buffers after theta.
    """

    width: int  # D, and the numbers of the buffers

    @property
    def buffer_names(self) -> Sequence[str]:
        """The buffers, in the order in which they follow theta; empty if there are none."""
        ...

    def first_buffers(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the initial buffers of the chains at theta (C, D): `BUFFER` + name -> (C, ...)."""
        ...

    def train(
        self, theta: Tensor, buffers: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-likelihoods (C, m), the gradient (C, D) of their mean, and the buffers after this minibatch."""
        ...


class HasBatchNorms(Protocol):
    """May have layers by which the likelihood of a datum depends on its minibatch."""

    @property
    def batch_norms(self) -> Sequence[str]:
        """The names of these layers."""
        ...


class TakesAutocast(Protocol):
    """Declares whether it can be evaluated in other formats."""

    takes_autocast: bool  # whether its products may be in bfloat16


class MeasuresMemory(Protocol):
    """Knows what a gradient pass keeps in memory, if that is more than the data."""

    def values_per_datum(self, rows: Rows) -> int:
        """Return the number of values that are kept for a datum of `rows` (1, m, ...)."""
        ...


# -------------------------------------------------------------------------------- bounds, for exact minibatch tests


class HasBounds(Protocol):
    """Bounds the terms of a log-ratio."""

    bound_kinds: Sequence[str]  # the terms that it bounds, some of `BOUND_KINDS`; empty: none

    def bounds(self, data: Rows, kind: str, reference: Reference | None) -> Bounds:
        """Return a bound for each datum; `reference` is None for the kind ``difference`` where there is none."""
        ...


class HasLowerBounds(Protocol):
    """Has lower bounds of its log-likelihood that are quadratic in theta, for `mhrun.kernels.Firefly`."""

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        """Return log B_i <= log_lik, (C, m), float64.

        It touches log_lik at the anchor (D,), or where the model chooses if that is None.
        """
        ...


# --------------------------------------------------------- forms, each looked up by `mhrun.native.native_form`


class FastForms(Protocol):
    """Exact forms that are faster than log_lik and log_prior; a model has any of them.

    Contract tests compare those of mhrun's own models with the plain ones. A run compares the gradients of a user's
    model with finite differences.
    """

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return log_lik (C, m) and the gradient (C, D) of its mean, from one pass."""
        ...

    def log_prior_grad(self, theta: Tensor) -> Tensor | None:
        """Return the analytic gradient (C, D) of the log-prior; None if it is flat."""
        ...

    def log_prior_autograd(self, theta: Tensor) -> Tensor | None:
        """Return the same by the model's own automatic differentiation; None if the prior is flat."""
        ...

    def prior_precision(self) -> float | None:
        """Return the precision of a normal prior that all parameters share; 0: flat, None: it differs."""
        ...

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return theta (C, D) -> (C,), the sum of log_lik over all data."""
        ...

    def full_value_and_grad(self, data: Rows) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return theta (C, D) -> that sum (C,) and its gradient (C, D)."""
        ...

    def multiplies_chains(self, data: Rows) -> bool:
        """Return whether log_lik of all data is mostly their product with all chains' points."""
        ...

    def nodes(self, data: Rows) -> tuple[Rows, Tensor]:
        """Return a few rows and weights, with which sums over all data of smooth functions of log_lik are exact."""
        ...

    def bound(self, data: Rows) -> Callable[[Tensor, Tensor], Tensor]:
        """Return (theta, theta') -> (C,), the largest absolute difference of log_lik."""
        ...

    def taylor(self, theta: Tensor, reference: Tensor, rows: Rows, order: int) -> Tensor:
        """Return the Taylor polynomial of log_lik about the reference (D,), without its constant, (C, m)."""
        ...

    def log_lik_size(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the sum of the absolute summands of each log-likelihood, (C, m): what rounding is relative to.

        Default: its absolute value. For log-likelihoods that are small differences of large numbers.
        """
        ...

    def replayable(self) -> bool:
        """Return whether log_lik and log_prior are operations on tensors alone, which a recording can repeat."""
        ...

    def in_float64(self, rows: Rows) -> Rows:
        """Return the rows as log_lik computes with them in float64; default: fields of floating point converted."""
        ...


class CompiledForms(Protocol):
    """Pieces of compiled CPU loops, see `mhrun.native`; a model has any of them."""

    def native(self, data: Rows, *, full: bool) -> NativeModel | None:
        """Return the pieces of a loop, which needs sums over all data if `full`."""
        ...

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds | None:
        """Return those of a kernel that thins; None without them for this kind."""
        ...

    def native_lower_bound(self, data: Rows, sums: Any, *, tuned: bool) -> NativeLowerBound | None:
        """Return those of a firefly kernel."""
        ...


# ---------------------------------------------------------------------------------------------------------- defaults


def predicts_classes(model: object) -> TypeGuard[HasPredictions]:
    """Return whether a model predicts classes."""
    return offers(model, HasPredictions) and (not offers(model, HasClassifierFlag) or model.is_classifier)


def batch_norms_of(model: object) -> Sequence[str]:
    """Return the layers by which a datum's likelihood depends on its minibatch; empty if there are none."""
    return model.batch_norms if offers(model, HasBatchNorms) else ()


def blocks_of(model: object) -> Sequence[ParameterBlock]:
    """Return the blocks of theta that the model declares; empty if it declares none."""
    return model.blocks if offers(model, HasBlocks) else ()


def bound_kinds_of(model: object) -> Sequence[str]:
    """Return the kinds of terms that a model bounds; empty if it has no bounds."""
    return model.bound_kinds if offers(model, HasBounds) else ()


def declared_fields(model: object) -> Mapping[str, Field]:
    """Return the fields that a model declares whatever the data are; empty if it declares none."""
    return model.fields or {} if offers(model, HasFields) else {}


def prior_summary_of(model: object) -> str | None:
    """Return the prior of a model in a line; None if it does not describe it."""
    return model.prior_summary if offers(model, HasPriorSummary) else None
