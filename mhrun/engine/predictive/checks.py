"""Checks of the model and the data of a prediction against the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch

from mhrun.data import Dataset
from mhrun.data.frames import is_frame
from mhrun.data.sizes import SIZES
from mhrun.errors import UserError
from mhrun.models.module import ModuleModel
from mhrun.models.weights import Weights
from mhrun.native import native_form
from mhrun.store.netcdf import FIELDS, LAYERS, flat_draws
from mhrun.target.fields import describe_row, described_values, wrong_value
from mhrun.types import Model
from mhrun.types.capabilities import declared_fields

if TYPE_CHECKING:
    import xarray as xr


def checked_model(model: Any, trace: xr.DataTree) -> Model | Callable[..., Any]:
    """Return the model of a call, a torch module as a `ModuleModel`, or the function that was given.

    Raises:
        UserError: it is none of these, or a model that was not sampled: with other parameters, or other layers.
    """
    if isinstance(model, torch.nn.Module) and not isinstance(model, Model):
        model = ModuleModel(model)
    if isinstance(model, Model):
        _check_size(trace, model)
        if isinstance(model, ModuleModel):
            _check_module(trace, model)
        return model
    if not callable(model):
        raise UserError(f"model = {model!r} must be a Model, a torch module or a function (theta, batch).")
    function: Callable[..., Any] = model
    return function


def is_single(data: Any) -> bool:
    """Return whether data that were given are the field ``x`` alone, which a function gets as a tensor."""
    return not (isinstance(data, Mapping | Dataset) or is_frame(data))


def _check_size(trace: xr.DataTree, model: Model) -> None:
    """Refuse a model with another number of parameters than the one that was sampled."""
    size = flat_draws(trace["posterior"]).shape[-1]
    if size != len(model.names):
        raise UserError(
            f"{type(model).__name__} has {len(model.names):,} parameters and a draw of the trace has {size:,}; "
            "give the model that was sampled."
        )


def _check_module(trace: xr.DataTree, model: ModuleModel) -> None:
    """Refuse another module than the one that was sampled, though it has as many parameters.

    The trace keeps the layers as text, and the names of the parameters.
    """
    sampled = trace.attrs.get(LAYERS)
    if sampled is not None and model.layers != sampled:
        lines = zip_longest(str(sampled).splitlines(), model.layers.splitlines(), fillvalue="nothing")
        old, new = next((old.strip(), new.strip()) for old, new in lines if old != new)
        raise UserError(
            f"the module that was sampled has {old} where this one has {new}; give the same module."
        )
    theta = trace["posterior"].get("theta")
    if theta is None or "parameter" not in theta.coords:
        return
    names = [str(name) for name in theta.coords["parameter"].values]
    for old, new in zip(names, map(str, model.names), strict=True):
        if old != new:
            raise UserError(
                f"the module that was sampled has the parameter {old} where this one has {new}; give the same module."
            )


def check_rows(model: object, data: Dataset) -> None:
    """Refuse new data that a model cannot read, or with a number that is not finite; the outcome may lack."""
    needs = dict(declared_fields(model))
    of_data = native_form(model, "fields_of", "log_lik") if isinstance(model, Weights) else None
    if of_data is not None:  # of a regression, which the outcome is not needed for
        needs |= of_data(data.fields)
    for name, need in needs.items():
        if name == "y":
            continue
        if name not in data.fields:
            raise UserError(_lacking(name, [name]))
        field = data.fields[name]
        if need.row is not None and tuple(field.shape[1:]) != need.row:
            raise UserError(
                f"{type(model).__name__} needs {name} with {describe_row(need.row)}; the new data have "
                f"{describe_row(tuple(field.shape[1:]))}."
            )
        if need.values and (wrong := wrong_value(need, field)) is not None:
            raise UserError(
                f"{type(model).__name__} needs {name} {described_values(need)}; the new data have {wrong}."
            )
        if field.is_floating_point() and (count := int((~field.isfinite()).sum())):
            raise UserError(
                f"{name} of the new data has {count:,} values that are not finite; leave their rows out."
            )


def check_fields(trace: xr.DataTree, data: Dataset, *, outcome: bool = False) -> None:
    """Refuse new data without a field that the model was fitted with, or with an exposure that it did not have."""
    needed = [name for name in trace.attrs.get(FIELDS, "").split() if name != "y" or outcome]
    if lacking := [name for name in needed if name not in data.fields]:
        raise UserError(_lacking(lacking[0], needed))
    if needed and (unknown := [name for name in SIZES if name in data.fields and name not in needed]):
        raise UserError(
            f"the new data have {unknown[0]}, without which the model was fitted, and which would change what it "
            "predicts; leave it out of them, or fit it with."
        )


def _lacking(name: str, needed: Sequence[str]) -> str:
    """Return that new data have no field of a name, as a line that says what is needed."""
    mapping = ", ".join(f"'{each}': ..." for each in needed)
    return f"the new data have no {name}, which the model was fitted with; give {{{mapping}}}."
