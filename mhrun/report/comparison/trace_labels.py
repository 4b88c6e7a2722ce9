"""Labels of the draws of several traces: coordinates with equal labels are compared, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import xarray as xr

from mhrun.errors import UserError

_SHOWN = 6  # labels that a message has


class Labelled(NamedTuple):
    """A variable of several traces, with the labels that all have."""

    arrays: dict[Any, xr.DataArray]  # trace -> (chain, draw, ...)
    warnings: list[str]


def with_common_labels(variable: str, arrays: Mapping[Any, xr.DataArray]) -> Labelled:
    """Return a variable (chain, draw, ...) of several traces with the labels that all have, in the order of the first.

    Dimensions without labels, or numbered from 0 or 1 where no other trace has such numbers as labels, are compared by
    position, and so are those that have no label in common with the first. Warnings say what is left out, or that
    labels differ.

    Args:
        variable: its name, for messages.
        arrays: of each trace; the first may have dimensions in another order.

    Raises:
        UserError: some traces have different labels, and another has none by which it could be matched.
    """
    found, warnings = dict(arrays), list[str]()
    first = next(iter(found.values()))
    for place, dim in enumerate(first.dims[2:], start=2):
        dims = {key: _dim(array, first, place) for key, array in found.items()}
        known = _known({key: _labels(found[key], name) for key, name in dims.items() if name is not None})
        if len(known) < 2:
            continue
        labels_of_first = next(iter(known.values()))
        foreign = [key for key, labels in known.items() if not set(labels) & set(labels_of_first)]
        if foreign and len({len(labels) for labels in known.values()}) == 1:
            shown = "; ".join(f"{key} has {_shown(labels)}" for key, labels in known.items())
            warnings.append(
                f"The labels of {variable} along {dim} differ, and it is compared by position: {shown}. Rename those "
                "that are the same."
            )
        matched = {key: labels for key, labels in known.items() if key not in foreign}
        common = [label for label in labels_of_first if all(label in labels for labels in matched.values())]
        extra = {key: [label for label in labels if label not in common] for key, labels in matched.items()}
        if any(extra.values()):
            shown = "; ".join(f"{_shown(labels)} of {key}" for key, labels in extra.items() if labels)
            if len(matched) < len(found):
                others = ", ".join(str(key) for key in found if key not in matched)
                raise UserError(
                    f"{variable} has labels along {dim} that are not in all traces ({shown}), and {others} none of "
                    "these labels, so that nothing says which are the same. Label all traces alike."
                )
            warnings.append(
                f"Labels of {variable} along {dim} that are not in all traces are not compared: {shown}."
            )
        for key, labels in matched.items():
            if labels != common:
                found[key] = found[key].isel({dims[key]: [labels.index(label) for label in common]})
    return Labelled(found, warnings)


def _known(labelled: Mapping[Any, list[Any] | None]) -> dict[Any, list[Any]]:
    """Return the labels of those that have some: numbers in order count as labels where another has some of them."""
    given = {key: labels for key, labels in labelled.items() if labels is not None}
    named = {label for labels in given.values() if not _is_numbered(labels) for label in labels}
    return {key: labels for key, labels in given.items() if not _is_numbered(labels) or named & set(labels)}


def _is_numbered(labels: Sequence[Any]) -> bool:
    count = len(labels)
    if any(isinstance(label, bool) for label in labels):
        return False
    return list(labels) in (list(range(count)), list(range(1, count + 1)))


def _dim(array: xr.DataArray, first: xr.DataArray, place: int) -> Any:
    """Return the dimension of an array that is that of the first: by name, else by place; None if there is none."""
    if set(array.dims) == set(first.dims):
        return first.dims[place]
    return array.dims[place] if array.ndim == first.ndim else None


def _labels(array: xr.DataArray, dim: Any) -> list[Any] | None:
    """Return the labels along a dimension; None if there are none, or they are not unique."""
    if dim not in array.coords:
        return None
    values = array[dim].to_numpy()
    if values.dtype.kind == "M":  # whatever their unit
        values = values.astype("datetime64[ns]").astype(str)
    labels = [str(label) if label != label else label for label in values.tolist()]  # a NaN equals none
    return labels if len(set(labels)) == len(labels) else None


def _shown(labels: Sequence[Any]) -> str:
    more = len(labels) - _SHOWN
    return ", ".join(map(str, labels[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
