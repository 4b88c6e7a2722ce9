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
    `at_most`: another field, whose values these must not exceed.
    """

    row: tuple[int, ...] | None = ()  # shape of a row, () for a scalar; None for any shape
    values: str = ""
    classes: int = 0
    setting: str = ""  # the model's setting that determines the shape, for error messages
    remedy: str = ""  # a sentence after the message on wrong values
    at_most: str = ""


class DataShape(NamedTuple):
    """What the sizes of a model may follow from, see `mhrun.target.from_data`."""

    features: int | None  # columns of ``x`` (n, features); None if it is no matrix
    columns: Sequence[str] | None  # their names; None if they have none
    classes: Sequence[str] | None  # of ``y``; None if it has none


@runtime_checkable
class Model(Protocol):
    """A log-prior and a per-datum log-likelihood.

    What a model may offer besides, such as faster exact forms and predictions, is in `mhrun.types.capabilities`.
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
