"""Labels of the draws of several traces: what has the same label is compared, in whatever order."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

_SHOWN = 6  # labels that a message has


def with_common_labels(variable: str, arrays: Mapping[Any, xr.DataArray]) -> dict[Any, xr.DataArray]:
    """Return a variable (chain, draw, ...) of several traces with the labels that all have, in the order of the first.

    Dimensions without labels, or numbered from 0 or 1, are compared by position, and so are those that have no label in
    common. A warning names what is left out, or that labels differ.

    Args:
        variable: its name, for the warning.
        arrays: of each trace; the first may have dimensions in another order.
    """
    found = dict(arrays)
    first = next(iter(found.values()))
    for place, dim in enumerate(first.dims[2:], start=2):
        dims = {key: _dim(array, first, place) for key, array in found.items()}
        labelled = {key: _labels(found[key], name) for key, name in dims.items() if name is not None}
        known = {key: labels for key, labels in labelled.items() if labels is not None}
        if len(known) < 2:
            continue
        orders = list(known.values())
        common = [label for label in orders[0] if all(label in labels for labels in orders[1:])]
        extra = {key: [label for label in labels if label not in common] for key, labels in known.items()}
        if not common:
            shown = "; ".join(f"{key} has {_shown(labels)}" for key, labels in known.items())
            warnings.warn(
                f"The labels of {variable} along {dim} differ, and it is compared by position: {shown}. Rename those "
                "that are the same.",
                UserWarning,
                stacklevel=4,
            )
            continue
        if len(known) < len(found) and any(extra.values()):
            continue  # those without labels have all; shapes are compared later
        if any(extra.values()):
            shown = "; ".join(f"{_shown(labels)} of {key}" for key, labels in extra.items() if labels)
            warnings.warn(
                f"Labels of {variable} along {dim} that are not in all traces are not compared: {shown}.",
                UserWarning,
                stacklevel=4,
            )
        for key, labels in known.items():
            if labels != common:
                found[key] = found[key].isel({dims[key]: [labels.index(label) for label in common]})
    return found


def _dim(array: xr.DataArray, first: xr.DataArray, place: int) -> Any:
    """Return the dimension of an array that is that of the first: by name, else by place; None if there is none."""
    if set(array.dims) == set(first.dims):
        return first.dims[place]
    return array.dims[place] if array.ndim == first.ndim else None


def _labels(array: xr.DataArray, dim: Any) -> list[Any] | None:
    """Return the labels along a dimension; None if there are none, or they are numbers in order, or not unique."""
    if dim not in array.coords:
        return None
    labels = array[dim].to_numpy().tolist()
    count = len(labels)
    if labels in (list(range(count)), list(range(1, count + 1))) or len(set(labels)) < count:
        return None
    return list(labels)


def _shown(labels: Sequence[Any]) -> str:
    more = len(labels) - _SHOWN
    return ", ".join(map(str, labels[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
