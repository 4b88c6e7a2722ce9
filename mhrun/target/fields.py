"""Checks that the data have the fields that a model reads."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mhrun.data import Dataset
from mhrun.data.sizes import SIZES
from mhrun.errors import UserError
from mhrun.models.function import FunctionModel
from mhrun.models.weights import Weights
from mhrun.native import native_form
from mhrun.target.labels import other_labels
from mhrun.types import Field, Model
from mhrun.types.capabilities import HasFields, ReadsPixels, offers

_BLOCK = 1 << 22  # values checked at once: a memory-mapped field may be larger than memory


def unfit(model: Model, data: Dataset) -> str | None:
    """Return why a model cannot be used with these data, in one line, or None.

    Checks the model's declared ``fields`` (see `mhrun.types.Model`): their names, row shapes, real numbers, and the
    values of labels, or those of ``fields_of(data)``. A model with neither accepts any data.
    """
    if reason := ambiguous_bytes(model, data) or other_labels(model, data):
        return reason
    try:
        fields = fields_read(model, data)
    except UserError as error:
        return str(error)
    if isinstance(model, FunctionModel) and model.family == "binomial" and "trials" not in data.fields:
        return "family = binomial requires the field trials of the data; of a table, set data.trials=COLUMN."
    if fields is None:
        return None
    name = type(model).__name__
    if reason := _unread(model, data, fields) or _lacking(name, data, fields):
        return reason
    for field, need in fields.items():
        if reason := _unfit_field(name, field, need, data.fields[field]):
            return reason
    for field, need in fields.items():
        if need.at_most and (above := _above(data.fields[field], data.fields[need.at_most])) is not None:
            return f"{name} needs {field} to be at most {need.at_most}; the data have {above}."
    return None


def _unread(model: Model, data: Dataset, fields: Mapping[str, Field]) -> str | None:
    """Return which fields of a table a regression would leave unread, though they change its model; or None."""
    if not isinstance(model, Weights):
        return None
    name = type(model).__name__
    for field, size in SIZES.items():
        if field in data.fields and field not in fields:
            return f"{name} has no {field}; leave it out of the data, or take a {size.family} regression."
    if groups := data.facts.get("groups"):
        return (
            f"{name} has no effects of groups ({', '.join(groups)}); leave them out of the data, or take a function: "
            "mhrun init DIR --data FILE --outcome COLUMN groups=[...] writes one."
        )
    return None


def _lacking(name: str, data: Dataset, fields: Mapping[str, Field]) -> str | None:
    """Return which fields a model of this name needs, if the data lack any; or None."""
    if all(field in data.fields for field in fields):
        return None
    *others, last = fields
    phrase = f"the fields {', '.join(others)} and {last}" if others else f"the field {last}"
    sizes = [field for field in SIZES if field in fields and field not in data.fields]
    remedy = f"; of a table, set data.{sizes[0]}=COLUMN" if sizes else ""
    return f"{name} needs {phrase}; the data have {', '.join(data.fields)}{remedy}."


def _unfit_field(name: str, field: str, need: Field, values: Tensor) -> str | None:
    """Return why a field (n, ...) is not what a model of this name needs: its shape, type or values; or None."""
    row = tuple(values.shape[1:])
    if need.row is not None and row != need.row:
        change = _resized(name, need.setting, row)
        if need.values == "classes" and row == (need.classes,):
            change = f"; if they are one-hot, give {field}.argmax(1)"
        elif row == (1,) and need.row == ():
            change = f"; give {field}[:, 0]"
        return (
            f"{name} needs {field} with {describe_row(need.row)}; the data have {describe_row(row)}{change}."
        )
    if values.is_complex():
        return f"{name} needs {field} of real numbers; the data have {values.dtype}."
    if need.values and (wrong := wrong_value(need, values)) is not None:
        remedy = f" {need.remedy}" if need.remedy else ""
        if need.values == "classes" and values.min() == 1 and values.max() == need.classes:
            remedy = f" Classes are counted from 0: give {field} - 1."
        return f"{name} needs {field} {described_values(need)}; the data have {wrong}.{remedy}"
    return None


def _resized(name: str, setting: str | None, row: tuple[int, ...]) -> str:
    """Return how to set the size of a model for rows of this shape; empty if no setting has it."""
    if not setting:
        return ""
    if len(row) != 1:
        return f"; set {setting}"
    size = setting.removeprefix("model.")
    return f"; set {setting} to {row[0]}" + (
        f", in Python {name}({size}={row[0]})" if size.isidentifier() else ""
    )


def fields_read(model: Model, data: Dataset) -> Mapping[str, Field] | None:
    """Return the model's requirements on the fields that it reads of these data; None if it declares none.

    Raises:
        UserError: a field that may be a misspelt one.
    """
    # log_lik of a subclass may read other fields
    if (of_data := native_form(model, "fields_of", "log_lik")) is not None:
        fields: Mapping[str, Field] = of_data(data.fields)
        return fields
    if offers(model, HasFields) and native_form(model, "fields", "log_lik") is not None:
        return model.fields
    return None


def ambiguous_bytes(model: Model, data: Dataset, setting: str = "data.pixels") -> str | None:
    """Return why a model that reads bytes as pixels cannot read bytes that were not declared as pixels, or None.

    `setting` is the one of a configuration that declares them.
    """
    if "x" not in data.plain_bytes or not (offers(model, ReadsPixels) and model.reads_pixels):
        return None
    return (
        f"x holds bytes (uint8), which are pixels to {type(model).__name__}, k for k/255. For pixels set "
        f"{setting}=true, or give mhrun.Dataset.of(data, pixels=True) in Python; store plain numbers as another type, "
        "such as int16 or float32."
    )


def describe_row(row: tuple[int, ...]) -> str:
    """Return the shape of a datum's part of a field, in words."""
    return f"rows of shape {row}" if row else "one number per datum"


def described_values(need: Field) -> str:
    """Return what the values of a field must be, in words."""
    return {
        "signs": "to be labels +1 and -1",
        "classes": f"to be classes, whole numbers from 0 to {need.classes - 1}",
        "counts": "to be counts, whole numbers from 0 on",
        "positive": "to be positive",
        "zeros": "to be zeros, as it is a density without data: choose data=no_data",
    }[need.values]


def wrong_value(need: Field, values: Tensor) -> str | None:
    """Describe the first value that violates the requirement, with its row; None if there is none."""
    rows = max(1, _BLOCK // max(1, values[:1].numel()))
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        if need.values == "signs":
            bad = (part != 1) & (part != -1)
        elif need.values == "zeros":
            bad = part != 0
        elif need.values == "positive":
            bad = ~(part > 0)
        elif need.values == "counts":
            bad = ~((part >= 0) & (part == part.double().floor()))
        else:
            bad = (
                (part < 0)
                | (part >= need.classes)
                | (part.frac() != 0 if part.is_floating_point() else False)
            )
        if bool(bad.any()):
            row = start + int(bad.nonzero()[0, 0])
            return f"{float(part[bad][0]):g} in row {row:,} (counted from 0)"
    return None


def _above(values: Tensor, most: Tensor) -> str | None:
    """Describe the first value that exceeds that of another field, with its row; None if there is none."""
    rows = (values > most).nonzero()[:, 0]
    if len(rows) == 0:
        return None
    row = int(rows[0])
    return f"{float(values[row]):g} of {float(most[row]):g} in row {row:,} (counted from 0)"
