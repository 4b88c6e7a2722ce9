"""Settings of a model that follow from its data: numbers of columns and classes, and their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mhrun.build import build, trusted_object
from mhrun.data import Dataset
from mhrun.data.table_facts import weight_names
from mhrun.errors import UserError
from mhrun.target.source import load
from mhrun.types import DataShape
from mhrun.types.capabilities import HasDataSettings, offers

_SIZES = ("dim", "features", "classes")


def settings_from_data(
    model: Mapping[str, Any], data: Callable[[], Dataset], where: str = "model"
) -> dict[str, Any]:
    """Return the settings of a model that follow from its data, by their path in the node, such as ``dim`` -> 5.

    - ``dim``, ``features`` and ``classes``, where they are null and the model's class has ``settings_of``, a class
      method that returns them for a `DataShape`; and then ``names``, if they are null.
    - ``parameters.NAME.dims.AXIS``, where it is the name of a field: ``x`` stands for the names of its columns, ``y``
      for the classes, and a column of groups for its values.

    Args:
        model: the node of a resolved configuration.
        data: loads the data; called if a setting follows from them.
        where: path of the node, for messages.

    Raises:
        UserError: the data do not have what a setting stands for, or cannot be loaded.
    """
    found: dict[str, Any] = {}
    null = [size for size in _SIZES if size in model and model[size] is None]
    part = trusted_object(str(model.get("_target_")), where) if null else None
    if offers(part, HasDataSettings):
        known = part.settings_of(shape_of(data(), has_classes="classes" in null))
        for size in (size for size in null if size in known):
            if known[size] is None:
                raise UserError(f"{where}.{size} = null is {_lacking(size, data())}; give a number.")
            found[size] = known[size]
        if found and model.get("names") is None and known.get("names") is not None:
            found["names"] = list(known["names"])
    return found | {path: _labels(field, data(), f"{where}.{path}") for path, field in _axes(model)}


def data_of(node: Mapping[str, Any]) -> Dataset:
    """Return the data of a configuration's node.

    Raises:
        UserError: data that cannot be loaded.
    """
    source = build(node, "data")
    return source if isinstance(source, Dataset) else load(source)


def shape_of(data: Dataset, *, has_classes: bool) -> DataShape:
    """Return the columns of ``x`` of these data, and the classes of ``y`` if it has some: all of 0 to K - 1.

    Raises:
        UserError: two columns have one name.
    """
    x, facts = data.fields.get("x"), data.facts
    features = x.shape[1] if x is not None and x.dim() == 2 else None
    columns = weight_names(facts) if facts.get("columns") and "intercept" in facts else ()
    if repeated := [name for name, times in Counter(columns).items() if times > 1]:
        raise UserError(
            f"x has the column '{repeated[0]}' twice: a column of the table, and the indicator of a value; rename the "
            "column, or leave one out."
        )
    classes = facts.get("classes") or _classes(data) if has_classes else None
    return DataShape(
        features,
        tuple(columns) if features is not None and len(columns) == features else None,
        None if classes is None else tuple(map(str, classes)),
    )


def _classes(data: Dataset) -> Sequence[int] | None:
    """Return 0 to K - 1 if these are the values of ``y``."""
    y = data.fields.get("y")
    if y is None or y.dim() != 1 or y.is_floating_point():
        return None
    values = y.unique()
    known = range(len(values))
    return known if values.tolist() == list(known) else None


def _lacking(size: str, data: Dataset) -> str:
    """Return what a size stands for, and what the data have in its place."""
    field, need, what = (
        ("y", "integers 0 to K - 1, each of them", "classes")
        if size == "classes"
        else ("x", "a matrix (n, D)", "columns")
    )
    value = data.fields.get(field)
    there = "the data have none"
    if value is not None:
        of = f" from {value.min():g} to {value.max():g}" if field == "y" and value.numel() else ""
        there = f"it is {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}{of}"
    return f"the number of {what} of {field}, which must be {need}, and {there}"


def _axes(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path of each axis of a parameter whose labels are a text, the name of a field, with that name."""
    parameters = model.get("parameters")
    for name, setting in parameters.items() if isinstance(parameters, Mapping) else ():
        axes = setting.get("dims") if isinstance(setting, Mapping) else None
        for axis, labels in axes.items() if isinstance(axes, Mapping) else ():
            if isinstance(labels, str):
                yield f"parameters.{name}.dims.{axis}", labels


def _labels(field: str, data: Dataset, where: str) -> list[Any]:
    """Return the labels of an axis that a field of the data has."""
    shape = shape_of(data, has_classes=field == "y")
    columns = shape.columns or (None if shape.features is None else range(shape.features))
    labels: dict[str, Sequence[Any]] = dict(data.facts.get("groups") or {})
    labels |= {name: known for name, known in (("x", columns), ("y", shape.classes)) if known is not None}
    if field not in labels:
        groups = ", ".join(data.facts.get("groups") or {})
        raise UserError(
            f"{where} = {field} must be a list of labels, or a field of the data that has them: x if there are "
            f"features, y if there are classes, and the columns of data.groups = [{groups}]. Change the data, or take "
            "another model."
        )
    return list(labels[field])
