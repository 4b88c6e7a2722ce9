"""Data as named tensors with one leading dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.data.mapping import writable
from mhrun.errors import UserError
from mhrun.types import Rows


@dataclass(frozen=True)
class Dataset:
    """Named fields, each (n, ...). Fields may be memory-mapped: rows are read when they are asked for.

    Raises:
        UserError: no field, or fields of different lengths.
    """

    fields: dict[str, Tensor]
    description: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: len(value) for name, value in self.fields.items()}
        if not lengths or 0 in lengths.values():
            raise UserError("A data set needs at least one field with at least one row.")
        if len(set(lengths.values())) > 1:
            raise UserError(f"The fields of a data set must have one length, not {lengths}.")

    @classmethod
    def of(cls, data: Any) -> Dataset:
        """Make a data set of an array, a tensor, or a mapping of names to them.

        A single array becomes the field ``x``. float64 is kept; nothing is copied that need not be.
        """
        if isinstance(data, Dataset):
            return data
        fields = data if isinstance(data, Mapping) else {"x": data}
        return cls({name: _tensor(name, value) for name, value in fields.items()})

    @property
    def n(self) -> int:
        """How many data there are."""
        return len(next(iter(self.fields.values())))

    @property
    def device(self) -> torch.device:
        """Where the data are."""
        return next(iter(self.fields.values())).device

    def rows(self, index: Tensor) -> Rows:
        """Return the data at `index` (C or 1, m): field name -> (C or 1, m, ...)."""
        flat = index.reshape(-1)
        # index_select, not value[index]: four times faster on a CPU.
        return {
            k: v.index_select(0, flat).reshape(*index.shape, *v.shape[1:]) for k, v in self.fields.items()
        }

    def part(self, start: int, stop: int) -> Rows:
        """Return the rows start..stop, shared by all chains: field name -> (1, stop - start, ...)."""
        return {name: value[start:stop][None] for name, value in self.fields.items()}

    def to(self, device: torch.device | str) -> Dataset:
        """Return the data on another device."""
        if torch.device(device) == self.device:
            return self
        moved = {name: value.to(device) for name, value in self.fields.items()}
        return Dataset(moved, self.description, self.facts)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "USV":
        raise UserError(f"Field '{name}' holds {array.dtype} values; a data set holds numbers.")
    if array.ndim == 0:
        raise UserError(f"Field '{name}' is a single number; a data set needs one row per datum.")
    if not array.flags.writeable:  # torch wants to be able to write, though nothing here does
        array = writable(array)
    return torch.from_numpy(array)
