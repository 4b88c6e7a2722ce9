"""The axes of a parameter: the dimensions that it has in traces, and the labels along them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mhrun.errors import Refusal
from mhrun.numbers import is_number

_TAKEN = ("chain", "draw", "step", "parameter")  # dimensions of traces

Label = str | int | float


def is_axis(name: str) -> bool:
    """Return whether an axis may have this name."""
    return name.isidentifier() and name not in _TAKEN


class Axis(NamedTuple):
    """One axis of a parameter, or of several that share it: a dimension of traces with a coordinate."""

    name: str
    labels: tuple[Label, ...] | None  # None: 0, 1, ...


def axes_of(setting: Any, where: str) -> tuple[Axis, ...]:
    """Return axes from a setting: a name, a list of names, or a mapping name -> labels, or None for 0, 1, ...

    Raises:
        Refusal: an invalid name or invalid labels.
    """
    if isinstance(setting, str):
        setting = [setting]
    if isinstance(setting, Mapping):
        named = {str(name): _labels(labels, f"{where}.{name}") for name, labels in setting.items()}
    elif isinstance(setting, list | tuple) and all(isinstance(name, str) for name in setting):
        named = dict.fromkeys(setting)
        if len(named) < len(setting):
            raise Refusal(f"{where} = {list(setting)!r} has a name twice.")
    else:
        raise Refusal(
            f"{where} = {setting!r} must name the axes, such as feature, [row, column], or "
            "{feature: [age, income]} with labels."
        )
    for name in named:
        if not name.isidentifier():
            raise Refusal(
                f"{where}: '{name}' is not a name; use letters, digits and _, beginning with a letter."
            )
        if name in _TAKEN:
            raise Refusal(f"{where}: traces already have a dimension '{name}'; choose another name.")
    return tuple(Axis(name, labels) for name, labels in named.items())


def _labels(setting: Any, where: str) -> tuple[Label, ...] | None:
    """Return the labels of an axis, or None if the setting has none."""
    if setting is None:
        return None
    if not isinstance(setting, list | tuple) or not setting:
        raise Refusal(f"{where} = {setting!r} must be a list of labels.")
    if not all(isinstance(label, str) or is_number(label) for label in setting):
        raise Refusal(
            f"{where} = {list(setting)!r} must be names or numbers; quote words such as yes and no."
        )
    if len(set(map(str, setting))) < len(setting):
        raise Refusal(f"{where} = {list(setting)!r} has a label twice.")
    return (
        tuple(setting) if not any(isinstance(label, str) for label in setting) else tuple(map(str, setting))
    )


def shape_from(axes: tuple[Axis, ...]) -> list[int] | None:
    """Return the shape that labels give, or None if an axis has none."""
    sizes = [len(axis.labels) for axis in axes if axis.labels is not None]
    return sizes if axes and len(sizes) == len(axes) else None


def check_shape(axes: tuple[Axis, ...], shape: tuple[int, ...], where: str) -> None:
    """Refuse axes that do not fit a parameter's shape."""
    if len(axes) != len(shape):
        raise Refusal(
            f"{where} has {len(axes)} names, and the parameter's shape is {list(shape)}; name each axis."
        )
    for axis, size in zip(axes, shape, strict=True):
        if axis.labels is not None and len(axis.labels) != size:
            raise Refusal(f"{where}.{axis.name} has {len(axis.labels)} labels for {size} numbers.")


def check_shared(parameters: Iterable[tuple[str, tuple[Axis, ...], tuple[int, ...]]]) -> None:
    """Refuse parameters, name, axes and shape of each, that give one axis different sizes or labels."""
    first_uses: dict[str, tuple[str, int, tuple[Label, ...] | None]] = {}
    names = []
    for parameter, axes, shape in parameters:
        names.append(parameter)
        for axis, size in zip(axes, shape, strict=False):
            first, *size_and_labels = first_uses.setdefault(axis.name, (parameter, size, axis.labels))
            if size_and_labels != [size, axis.labels]:
                raise Refusal(
                    f"parameters.{parameter}.dims: '{axis.name}' has other labels or another size than in '{first}'; "
                    "give both the same, or choose another name."
                )
    if shared := [name for name in first_uses if name in names]:
        raise Refusal(
            f"parameters: '{shared[0]}' is a parameter and an axis; choose another name for one of them."
        )
