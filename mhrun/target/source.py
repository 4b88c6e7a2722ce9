"""What a target has its data from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from mhrun.data import Dataset
from mhrun.data.transforms import Transforms
from mhrun.errors import UserError


@runtime_checkable
class Source(Protocol):
    """Data whose number is known before they are loaded."""

    n: int

    def load(self) -> Dataset:
        """Return the data."""
        ...


def load(source: Source) -> Dataset:
    """Return the data of a source.

    Raises:
        UserError: they are no `Dataset`, or not as many as the source says.
    """
    loaded: object = source.load()
    name = type(source).__name__
    if not isinstance(loaded, Dataset):
        raise UserError(
            f"load of {name} must return a mhrun.Dataset, and returned a {type(loaded).__name__}."
        )
    if loaded.n != source.n:
        raise UserError(
            f"load of {name} returned {loaded.n:,} data, and its n is {source.n:,}; they must be equal."
        )
    return loaded


@runtime_checkable
class HasTransforms(Protocol):
    """Data or a source whose minibatches may differ from the stored data, see `mhrun.data.transforms`."""

    transforms: Transforms | None
