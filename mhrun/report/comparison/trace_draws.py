"""The draws of a trace, of this library or another, with their coordinates in one order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from mhrun.diagnostics.chains import ChainDraws, some_coordinates, valid_of_each
from mhrun.diagnostics.ladders import rung
from mhrun.errors import UserError
from mhrun.models.axes import Axis
from mhrun.models.parameters import flat_names
from mhrun.report.comparison.trace_labels import with_common_labels
from mhrun.report.efficiency import passes
from mhrun.store.draws import stopped_chains, validity
from mhrun.store.netcdf import SEPARATE, THIN_STATS, WARMUP

# Relative differences of draws of a constant, as the diagonal of a correlation matrix, by the bytes of a number
_ROUNDING = {4: 2.0**-20, 8: 2.0**-36}
_PREDICTIONS = "prediction"  # the name of the quantity of an array without one


class UserTrace(NamedTuple):
    """What a user calls a trace."""

    variables: dict[str, xr.DataArray]  # (chain, draw, ...)
    valid: npt.NDArray[np.bool_] | None  # (C, S); None: all
    attributes: Mapping[str, Any]
    evaluations: float | None
    warnings: Sequence[str] = ()


def read(key: Any, trace: Any) -> UserTrace:
    """Return the variables of a trace, of the coldest rung if it has several.

    Raises:
        UserError: it is no trace, has no variable of numbers, or all its chains stopped.
    """
    source = _source(key, trace)
    variables = {
        str(name): array.transpose("chain", "draw", ...)
        for name, array in source.posterior.data_vars.items()
        if {"chain", "draw"} <= set(array.dims) and array.dtype.kind in "fiub"
    }
    if not variables:
        raise UserError(f"{key} has no variable of numbers (chain, draw, ...).")
    valid = source.valid
    if isinstance(trace, xr.DataArray):  # predictions at invalid draws are NaN
        (array,) = variables.values()
        valid = ~np.isnan(array.to_numpy().reshape(*array.shape[:2], -1)).all(-1)
    return UserTrace(variables, valid, source.attributes, source.evaluations, source.warnings)


class _Source(NamedTuple):
    """What a trace of any type holds."""

    posterior: xr.Dataset
    valid: npt.NDArray[np.bool_] | None = None  # (C, S), of a trace of this library
    attributes: Mapping[str, Any] = {}
    evaluations: float | None = None
    warnings: Sequence[str] = ()


def _source(key: Any, trace: Any) -> _Source:
    """Return the posterior of a trace and what it records.

    Raises:
        UserError: it is no trace, or all its chains stopped.
    """
    if isinstance(trace, xr.DataTree) and "posterior" in trace.children:
        return _of_tree(key, trace)
    if isinstance(trace, xr.Dataset):
        return _Source(trace)
    if isinstance(trace, xr.DataArray):
        return _Source(trace.to_dataset(name=trace.name or _PREDICTIONS))
    if isinstance(getattr(trace, "posterior", None), xr.Dataset):  # InferenceData of older ArviZ
        return _Source(trace.posterior)
    if isinstance(trace, Mapping) and trace and not isinstance(trace, xr.DataTree):
        return _Source(_dataset(key, trace))
    what = "a trace without draws" if isinstance(trace, xr.DataTree) else f"a {type(trace).__name__}"
    raise UserError(
        f"{key} is {what}; compare takes traces with the group posterior, mappings variable -> array "
        "(chain, draw, ...), and DataArrays of predictions."
    )


def _of_tree(key: Any, trace: xr.DataTree) -> _Source:
    """Return the coldest rung of a trace; of one of this library, without the chains that stopped."""
    cold = rung(trace)
    posterior = cold["posterior"].to_dataset()
    attributes = {str(name): value for name, value in trace.attrs.items()}
    if WARMUP not in attributes:  # of another library
        return _Source(posterior, attributes=attributes)
    valid, evaluations = validity(cold), _evaluations(trace)
    stopped = stopped_chains(cold)
    if stopped.all():
        raise UserError(
            f"All chains of {key} stopped at a value that was not finite; lower the step size, and sample again."
        )
    warnings: list[str] = []
    if stopped.any():
        warnings = _stopped_warnings(key, stopped)
        valid, posterior = valid[~stopped], posterior.isel(chain=~stopped)
    return _Source(posterior, valid, attributes, evaluations, warnings)


def _stopped_warnings(key: Any, stopped: npt.NDArray[np.bool_]) -> list[str]:
    """Return a line on chains that are left out."""
    return [
        f"{stopped.sum()} of {len(stopped)} chains of {key} stopped at a value that was not finite, and are left out."
    ]


def _dataset(key: Any, arrays: Mapping[Any, Any]) -> xr.Dataset:
    """Return arrays (chain, draw, ...) as a dataset."""
    variables: dict[str, Any] = {}
    for name, values in arrays.items():
        if isinstance(values, xr.DataArray):
            variables[str(name)] = values
            continue
        array = np.asarray(values)
        if array.ndim < 2 or array.dtype.kind not in "fiub":
            raise UserError(
                f"{key}: {name} is {array.dtype} of shape {array.shape}; draws are numbers (chain, draw, ...)."
            )
        if 0 in array.shape[:2]:
            raise UserError(f"{key}: {name} of shape {array.shape}, (chain, draw, ...), has no draws.")
        dims = ["chain", "draw", *(f"{name}_dim_{k}" for k in range(array.ndim - 2))]
        variables[str(name)] = xr.DataArray(array, dims=dims)
    shapes = {(array.sizes.get("chain"), array.sizes.get("draw")) for array in variables.values()}
    if len(shapes) > 1:
        raise UserError(f"{key}: its variables have different chains and draws: {sorted(shapes)}.")
    unnamed = [str(name) for name, values in arrays.items() if not isinstance(values, xr.DataArray)]
    _check_order(key, {name: variables[name] for name in unnamed})
    return xr.Dataset(variables)


def _check_order(key: Any, unnamed: Mapping[str, xr.DataArray]) -> None:
    """Refuse arrays without names of dimensions that are more likely (draw, chain, ...), as emcee returns them."""
    for name, array in unnamed.items():
        if array.shape[0] > array.shape[1]:
            one_chain = ""
            if array.ndim == 2:
                count, dim = array.shape
                one_chain = f" If it is one chain of {count:,} draws of {dim:,} parameters, pass draws[None]."
            raise UserError(
                f"{key}: {name} of shape {array.shape} is, as (chain, draw, ...), {array.shape[0]:,} chains of "
                f"{array.shape[1]:,} draws. Swap the first two axes, draws.swapaxes(0, 1); or, if it is right, name "
                f"them: xarray.DataArray(draws, dims=('chain', 'draw', ...)).{one_chain}"
            )


def _names(variable: str, array: xr.DataArray) -> list[str]:
    """Return the names of the numbers of a variable (chain, draw, ...)."""
    if variable == "theta" and array.dims[2:] == ("parameter",) and "parameter" in array.coords:
        return [str(name) for name in array["parameter"].to_numpy()]
    axes = [
        Axis(str(dim), tuple(array[dim].to_numpy().tolist()) if dim in array.coords else None)
        for dim in array.dims[2:]
    ]
    return list(flat_names(variable, array.shape[2:], tuple(axes)))


def _evaluations(trace: xr.DataTree) -> float | None:
    """Return the evaluations after burn-in of all chains of a trace of this library; None if they are not known.

    Counts are cumulative. Those at the end of burn-in are not kept where statistics are of some steps only, nor in a
    trace whose first draws were cut off.
    """
    if SEPARATE not in trace.attrs or "sample_stats" not in trace.children:
        return None
    warmup, thin = int(trace.attrs[WARMUP]), int(trace.attrs[THIN_STATS])
    after: Any = trace["sample_stats"]
    before: Any = trace.children.get("warmup_sample_stats")
    kept = before.sizes["draw"] if before is not None else 0
    if warmup % thin or kept != warmup // thin or not after.sizes["draw"] or int(after["draw"][0]) != 0:
        return None
    n_lik, n_grad = (
        float(after[name].to_numpy()[:, -1].sum())
        - (float(before[name].to_numpy()[:, -1].sum()) if before is not None and kept else 0.0)
        for name in ("n_lik", "n_grad")
    )
    return float(passes(n_lik, n_grad, float(trace.attrs[SEPARATE])))


class Aligned(NamedTuple):
    """Draws of the coordinates that are compared."""

    names: list[str]  # of the D coordinates
    draws: dict[Any, ChainDraws]  # trace -> valid draws (C, S, D)
    warnings: list[str]


def aligned(found: Mapping[Any, UserTrace]) -> Aligned:
    """Return the coordinates that are in all traces.

    Raises:
        UserError: no variable is in all traces, or one has another shape.
    """
    first_key, first = next(iter(found.items()))
    shared = [name for name in first.variables if all(name in trace.variables for trace in found.values())]
    if not shared:
        listed = "; ".join(
            f"{key} has {', '.join(list(trace.variables)[:6])}" for key, trace in found.items()
        )
        raise UserError(f"The traces have no variable in common: {listed}. Rename those that are the same.")
    labelled = {
        name: with_common_labels(name, {key: trace.variables[name] for key, trace in found.items()})
        for name in shared
    }
    variables = {name: of_traces.arrays for name, of_traces in labelled.items()}
    warnings = _left_out_warnings(found, shared)
    warnings += [line for of_traces in labelled.values() for line in of_traces.warnings]
    names = [name for variable in shared for name in _names(variable, variables[variable][first_key])]
    chosen = some_coordinates(len(names))
    columns: dict[Any, list[ChainDraws]] = {key: [] for key in found}
    rounding: dict[Any, list[float]] = {key: [] for key in found}
    start = 0
    for variable in shared:
        expected = variables[variable][first_key]
        count = int(np.prod(expected.shape[2:], dtype=np.int64))
        places = chosen[(chosen >= start) & (chosen < start + count)] - start
        for key, trace in found.items():
            array = _as_expected(variables[variable][key], expected, variable, key, first_key)
            rounding[key] += [_rounding(array.dtype)] * len(places)
            flat = array.to_numpy().reshape(*array.shape[:2], count)[..., places].astype(np.float64)
            columns[key].append(flat if trace.valid is None else valid_of_each(flat, trace.valid))
        start += count
    draws = {key: np.concatenate(of_variables, axis=-1) for key, of_variables in columns.items()}
    if empty := [key for key, values in draws.items() if not values.size]:
        raise UserError(f"{empty[0]} has no valid draws; there is nothing to compare.")
    coarsest = [max(of_traces) for of_traces in zip(*rounding.values(), strict=True)]
    kept = [
        d
        for d, relative in enumerate(coarsest)
        if not _is_constant([values[..., d] for values in draws.values()], relative)
    ]
    if not kept:
        raise UserError("All draws of all traces are equal, but for rounding; there is nothing to compare.")
    dropped = sorted(set(range(len(coarsest))) - set(kept))
    warnings += _rounded_warnings(
        {
            key: [names[chosen[d]] for d in dropped if not _is_constant([values[..., d]], rounding[key][d])]
            for key, values in draws.items()
        }
    )
    kept_draws = {key: values[..., kept] for key, values in draws.items()}
    return Aligned([names[chosen[d]] for d in kept], kept_draws, warnings)


def _rounded_warnings(known: Mapping[Any, Sequence[str]]) -> list[str]:
    """Return a line on coordinates that differ within a trace by less than another trace's numbers resolve."""
    return [
        f"{', '.join(names[:6])}{', ...' * (len(names) > 6)} of {key} differ by less than the float32 numbers of "
        "another trace resolve, and are not compared; keep draws in float64, or subtract their mean before."
        for key, names in known.items()
        if names
    ]


def _left_out_warnings(found: Mapping[Any, UserTrace], shared: Sequence[str]) -> list[str]:
    """Return a line on the variables that are not in all traces."""
    left_out = {key: [v for v in trace.variables if v not in shared] for key, trace in found.items()}
    listed = [f"{', '.join(names[:6])} of {key}" for key, names in left_out.items() if names]
    return [f"Not in all traces, and not compared: {'; '.join(listed)}."] if listed else []


def _as_expected(
    array: xr.DataArray, expected: xr.DataArray, variable: str, key: Any, first_key: Any
) -> xr.DataArray:
    """Return a variable with dimensions in the order of the expected one.

    Raises:
        UserError: it has another shape.
    """
    if math.prod(array.shape[2:]) == math.prod(expected.shape[2:]) == 1:
        return array  # a number, or a vector of one
    if set(array.dims) == set(expected.dims):
        array = array.transpose(*expected.dims)
    if array.shape[2:] != expected.shape[2:]:
        raise UserError(
            f"{variable} is {expected.shape[2:]} in {first_key} and {array.shape[2:]} in {key}; compare draws of one "
            "model."
        )
    return array


def _rounding(dtype: np.dtype[Any]) -> float:
    """Return the relative differences of draws of a constant in this type; 0 of whole numbers."""
    return _ROUNDING.get(dtype.itemsize, _ROUNDING[4]) if dtype.kind == "f" else 0.0


def _is_constant(columns: Sequence[npt.NDArray[np.float64]], relative: float) -> bool:
    """Return whether all draws of a coordinate are equal, but for rounding; no infinite ones are."""
    ends = [float(end) for column in columns if column.size for end in (column.min(), column.max())]
    return all(map(math.isfinite, ends)) and (
        not ends or max(ends) - min(ends) <= relative * max(map(abs, ends))
    )
