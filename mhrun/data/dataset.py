"""Data as named tensors with one leading dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.data.frames import check_indices, columns_of, is_frame, is_series, matrix
from mhrun.data.mapping import soon, writable
from mhrun.data.transforms import Transforms
from mhrun.errors import UserError, reason
from mhrun.types import Rows


@dataclass(frozen=True)
class Dataset:
    """Named fields, each (n, ...). Fields may be memory-mapped: rows are read when they are needed.

    Bytes (uint8) of `x` are pixels to `mhrun.Logistic` and to networks, k for k/255, and numbers to all other models.
    Plain arrays do not say which they are, and these models refuse them.

    Args:
        fields: name -> tensor (n, ...).
        description: in a line, for reports.
        facts: what a loader knows of the data, such as the means of columns.
        transforms: of the data in minibatches, such as flips of images.
        plain_bytes: fields of bytes that may be pixels or numbers, see `of`.

    Raises:
        UserError: no field, or fields of different lengths.
    """

    fields: dict[str, Tensor]
    description: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    transforms: Transforms | None = None
    plain_bytes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in self.fields.items():
            if value.dim() == 0:
                raise UserError(f"Field '{name}' is a single number; a data set needs one row per datum.")
        lengths = {name: len(value) for name, value in self.fields.items()}
        if not lengths or 0 in lengths.values():
            raise UserError("A data set needs at least one field with at least one row.")
        if len(set(lengths.values())) > 1:
            raise UserError(f"The fields of a data set must have one length, not {lengths}.")
        if self.transforms is not None:
            self.transforms.check(self.fields)

    @property
    def differs_by_chain(self) -> bool:
        """Whether each chain has other values: then only as many points as there are chains can be evaluated."""
        return False

    @classmethod
    def of(cls, data: Any, *, pixels: bool = False) -> Dataset:
        """Make a data set from an array, a tensor, a mapping of names to them, or a pandas DataFrame.

        A single array becomes the field ``x``. Each column of a DataFrame becomes a field; a DataFrame in a mapping
        becomes a field (n, k) of its k columns. float64 is kept; data are copied only if necessary.

        Args:
            data: the arrays; a data set is returned as it is.
            pixels: whether bytes (uint8) are pixels, k for k/255, to models that read images. Without it these models
                refuse them.

        Raises:
            UserError: arrays without names, or data that are no arrays.
        """
        if isinstance(data, Dataset):
            return data
        if is_frame(data):
            data = columns_of(data)
        if isinstance(data, tuple | list) and any(isinstance(part, Tensor | np.ndarray) for part in data):
            raise UserError(
                f"data of {len(data)} arrays need names, such as {{'x': inputs, 'y': outcomes}}; a tuple has none."
            )
        if isinstance(data, torch.utils.data.Dataset | torch.utils.data.DataLoader):
            raise UserError(
                f"a {type(data).__name__} has no names for its tensors; give the tensors themselves, such as "
                "{'x': inputs, 'y': outcomes}: mhrun draws minibatches from them."
            )
        fields = data if isinstance(data, Mapping) else {"x": data}
        check_indices(fields)
        tensors = {name: _tensor(name, value) for name, value in fields.items()}
        plain = [name for name, value in tensors.items() if value.dtype == torch.uint8 and not pixels]
        return cls(tensors, plain_bytes=tuple(plain))

    def __repr__(self) -> str:
        """Return names, shapes and types of the fields, and what the data are: no numbers."""
        fields = ", ".join(
            f"{name} {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
            for name, value in self.fields.items()
        )
        return f"Dataset({fields})" + f": {self.description}" * bool(self.description)

    @property
    def n(self) -> int:
        """The number of data."""
        return len(next(iter(self.fields.values())))

    @property
    def device(self) -> torch.device:
        """The device of the data."""
        return next(iter(self.fields.values())).device

    def rows(self, index: Tensor) -> Rows:
        """Return the data at `index` (C or 1, m): field name -> (C or 1, m, ...)."""
        if self.transforms is not None:
            return self.transforms.rows(self.fields, index)
        flat = index.reshape(-1)
        # index_select, not value[index]: four times faster on a CPU.
        return {
            k: v.index_select(0, flat).reshape(*index.shape, *v.shape[1:]) for k, v in self.fields.items()
        }

    def part(self, start: int, stop: int) -> Rows:
        """Return the rows start..stop, shared by all chains: field name -> (1, stop - start, ...)."""
        for value in self.fields.values():
            row = value.stride(0) * value.element_size()
            soon(value.data_ptr(), start * row, min(stop, self.n) * row)
        return {name: value[start:stop][None] for name, value in self.fields.items()}

    def to(self, device: torch.device | str) -> Dataset:
        """Return the data on another device."""
        if torch.device(device) == self.device:
            return self
        fields = {name: value.to(device) for name, value in self.fields.items()}
        return Dataset(fields, self.description, self.facts, self.transforms, self.plain_bytes)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.dim() == 0:
            raise UserError(f"Field '{name}' is a single number; a data set needs one row per datum.")
        return value
    if is_frame(value) or is_series(value):
        value = matrix(value, name)
    if np.ma.is_masked(value):
        raise UserError(f"Field '{name}' has masked values; fill them, or leave their rows out.")
    try:
        # A map stays a map: NumPy's asarray would lose its file.
        array = value if isinstance(value, np.memmap) else np.asarray(value)
    except ValueError as error:
        raise UserError(f"Field '{name}' is not an array: {reason(error)}") from error
    if array.dtype.kind not in "biufc":
        raise UserError(f"Field '{name}' holds {_in_words(array)}; a data set holds numbers.")
    if array.ndim == 0:
        raise UserError(f"Field '{name}' is a single number; a data set needs one row per datum.")
    array = known(array, f"Field '{name}'")
    if not array.flags.writeable:  # torch needs a writable array, though nothing here writes
        array = writable(array)
    try:
        return torch.from_numpy(array)
    except ValueError:  # strides that torch does not support, such as negative ones
        return torch.from_numpy(np.ascontiguousarray(array))


_AS_IS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def as_is(kind: np.dtype[Any]) -> bool:
    """Return whether torch can use and index numbers of this type without a copy."""
    return kind.isnative and (kind.name in _AS_IS or kind.name in ("complex64", "complex128"))


def known(array: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """Return an array of a type that torch supports: itself if possible.

    Raises:
        UserError: it holds integers that are too large.
    """
    if as_is(array.dtype):
        return array
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise UserError(f"{what} holds {array.max()}, which does not fit into a signed 64-bit integer.")
    return array.astype({"f": np.float64, "c": np.complex128}.get(array.dtype.kind, np.int64))


def _in_words(array: npt.NDArray[Any]) -> str:
    """Return what an array holds that is not of numbers, with the first of them and what to do."""
    for place, value in np.ndenumerate(array):
        row = place[0] if place else 0
        if isinstance(value, str):
            kind = "text" if array.dtype.kind in "US" else "values that are not numbers"
            return f"{kind} ('{value}' in row {row}, counted from 0), which pandas.factorize turns into codes"
        if value is None:
            return f"None in row {row} (counted from 0): leave out its row, or fill it"
    return f"{array.dtype} values"
