"""Checks that labels of parameters match the columns and groups of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mhrun.data import Dataset
from mhrun.data.table_facts import weight_names
from mhrun.models.parameters import parameters_of
from mhrun.models.weights import Weights
from mhrun.names import group_name
from mhrun.types import Model


def other_labels(model: Model, data: Dataset) -> str | None:
    """Return why parameters would have the names of other columns or groups of a table, in one line, or None."""
    return _of_groups(model, data) or _of_columns(model, data.facts)


def _of_groups(model: Model, data: Dataset) -> str | None:
    """Return why effects would have the names of other groups, or None: codes are places among the table's values."""
    if (parameters := parameters_of(model)) is None:
        return None
    for column, levels in data.facts.get("groups", {}).items():
        name = group_name(column)
        for axis in (axis for parameter in parameters.all for axis in parameter.axes):
            if axis.name not in (column, name, f"{name}_group") or axis.labels is None:
                continue
            labels = [str(label) for label in axis.labels]
            if labels != levels:
                place = next(
                    (k for k, pair in enumerate(zip(labels, levels, strict=False)) if pair[0] != pair[1]),
                    min(len(labels), len(levels)),
                )
                label, level = (
                    repr(values[place]) if place < len(values) else "none" for values in (labels, levels)
                )
                return (
                    f"the labels of {axis.name} in parameters are not the values of the column '{column}': number "
                    f"{place + 1} is {label}, and in the table {level}. Effects would have the names of other groups; "
                    "write the labels anew, as mhrun init does."
                )
    return None


def _of_columns(model: Model, facts: Mapping[str, Any]) -> str | None:
    """Return why coefficients would have the names of other columns, or None.

    Other names are no such names: those are columns of the table, and indicators of its categories.
    """
    if not facts.get("columns"):
        return None
    columns = weight_names(facts)
    for place, labels in _labels(model, columns, facts):
        for label, column in zip(labels, columns[-len(labels) :], strict=True):
            if label != column and _is_another(label, column, facts):
                return (
                    f"{place} has '{label}' where the column of x is '{column}': coefficients would have the names of "
                    f"other columns. Give it these names, in this order: {', '.join(columns)}."
                )
    return None


def _labels(
    model: Model, columns: Sequence[str], facts: Mapping[str, Any]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield where labels are, and those for all columns of x, or for all but the constant one."""
    if isinstance(model, Weights):
        names, classes = list(model.names), [str(level) for level in facts.get("classes") or ()]
        if len(names) == len(columns):
            yield "model.names", names
        elif len(names) == len(columns) * len(classes):  # a weight of each class: age[low]
            for k, level in enumerate(classes):
                of_class = names[k * len(columns) : (k + 1) * len(columns)]
                yield (
                    f"model.names, for the class {level},",
                    [name.removesuffix(f"[{level}]") for name in of_class],
                )
    parameters = parameters_of(model)
    sizes = {len(columns), len(columns) - (columns[0] in ("intercept", "1"))}
    for axis in () if parameters is None else (axis for p in parameters.all for axis in p.axes):
        labels = [str(label) for label in axis.labels or ()]
        # Which axis is that of x is not declared: one all of whose labels are names of features.
        known = all(_is_another(label, "", facts) or label in columns for label in labels)
        if len(labels) in sizes and known and labels not in facts.get("groups", {}).values():
            yield f"dims: {{{axis.name}: [...]}}", labels


def _is_another(label: str, column: str, facts: Mapping[str, Any]) -> bool:
    """Return whether a label for a column is another column of the table, or an indicator of one of its categories."""
    category, equals, _ = label.partition("=")
    is_indicator = bool(equals) and category in facts["baselines"]
    return is_indicator or (label in facts["features"] and label != column.partition("=")[0])
