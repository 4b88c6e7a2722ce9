"""Comparison of traces from Python, of this library or another: what ``mhrun compare`` does with runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from mhrun.diagnostics.chains import LEAST_DRAWS, some_coordinates, valid_of_each, worth
from mhrun.diagnostics.distances import Shifts, energy_distance, shifts
from mhrun.diagnostics.ladders import rung
from mhrun.errors import UserError, nearest
from mhrun.models.axes import Axis
from mhrun.models.parameters import flat_names
from mhrun.numbers import is_number
from mhrun.report.agreement import REFERENCE, UNKNOWN, judge
from mhrun.report.efficiency import named, passes
from mhrun.report.tables import shown
from mhrun.store.draws import validity
from mhrun.store.netcdf import KIND, LAYERS, N_DATA, SEPARATE, TEMPERATURE

Draws = npt.NDArray[np.float64]

_WORTH = ("rhat", "ess", "ess_tail")
_VERDICT = ("verdict", "why")
_DISTANCES = ("mean_off", "mean_off_se", "sd_ratio", "sd_ratio_se", "energy_distance", "energy_distance_se")
_COST = (*_WORTH, "chains", "draws", "evaluations", "ess_per_million")
_MILLION = 1e6
_REFERENCE = "reference"  # the name of a reference that is not one of the traces
_PREDICTIONS = "prediction"  # the name of the quantity of an array without one


def compare(
    traces: Mapping[str, Any] | Any, reference: Any = None, *, tolerance: float | None = None
) -> pd.DataFrame:
    """Compare draws: effective sample sizes, costs, and whether means and standard deviations agree with a reference's.

    The verdicts and their rule are those of ``mhrun compare``. Draws may come from `mhrun.sample`, from a run of the
    command line (``mhrun.load(run).trace(method)``), or from another library: a long run of NUTS is a good reference.
    Variables are matched by their names, and the numbers of a vector by their labels, or else by their order.

    Args:
        traces: name -> draws, each a DataTree or InferenceData with the group ``posterior``; or a mapping variable ->
            array (chain, draw, ...); or predictions, a DataArray (chain, draw, ...) of ``mhrun.predict(each=True)``,
            by which networks are compared. One trace alone is named ``draws``.
        reference: the name of one of the traces, or draws beside them; None: no verdicts and no distances.
        tolerance: difference that does not matter, in standard deviations of the reference: draws agree if all means
            and standard deviations are within it, Monte Carlo error included. None: draws differ where a difference is
            significant, and agree where none is and one of 0.25 would have been seen.

    Returns:
        A row for each trace; ``attrs["rule"]`` is the rule of the verdicts. Against a reference, the columns are
        ``verdict`` (agrees, differs, cannot tell, differs (short run), another distribution, reference) and ``why``;
        ``mean_off``, the mean that is furthest off, in standard deviations of the reference; ``sd_ratio``, the standard
        deviation that is furthest off, over the reference's; ``energy_distance``, 0 where distributions agree and free
        of bias; and their standard errors with ``_se``. Always there are ``target`` (exact or approximate, where the
        trace says so); ``rhat``, ``ess`` and ``ess_tail`` of the coordinate where each is worst; ``chains`` and
        ``draws``, the valid ones of each chain; and of traces of this library ``evaluations``, log-likelihoods and
        gradients of single data after burn-in, and ``ess_per_million`` of them. At most 64 coordinates are compared,
        evenly over all; those that are constant are left out.

    Raises:
        UserError: no variable is in all traces, a variable has another shape, or an argument that has no meaning.
    """
    if tolerance is not None and not (is_number(tolerance) and 0 < tolerance < math.inf):
        raise UserError(f"tolerance = {tolerance!r} must be a positive number of standard deviations.")
    given, name = _named_traces(traces, reference)
    found = {key: _read(key, trace) for key, trace in given.items()}
    names, draws = _aligned(found)
    worths = {
        key: worth(values) if values.size else dict.fromkeys(_WORTH, math.nan)
        for key, values in draws.items()
    }
    rows: dict[str, dict[str, Any]] = {}
    if name is not None:
        if why := _unusable(draws[name]):
            raise UserError(f"{name} is no reference: {why}")
        rows, rule = _against(name, found, draws, names, worths, tolerance)
    for key, values in draws.items():
        rows.setdefault(key, {"target": found[key].attributes.get(KIND)})
        rows[key] |= {measure: worths[key][measure] for measure in _WORTH}
        rows[key] |= {
            "chains": values.shape[0],
            "draws": values.shape[1],
            "evaluations": found[key].evaluations,
        }
        cost = found[key].evaluations
        rows[key]["ess_per_million"] = worths[key]["ess"] * _MILLION / cost if cost else None
    columns = [
        *(_VERDICT if name is not None else ()),
        "target",
        *(_DISTANCES if name is not None else ()),
        *_COST,
    ]
    frame = pd.DataFrame.from_dict(rows, orient="index").reindex(index=list(draws), columns=columns)
    frame.attrs["rule"] = rule if name is not None else ""
    if layers := [key for key, trace in found.items() if LAYERS in trace.attributes]:
        warnings.warn(
            f"{named(layers)}: weights of a network differ by symmetries that no prediction shows; compare "
            "mhrun.predict(trace, model, x, each=True) instead.",
            UserWarning,
            stacklevel=2,
        )
    return frame


class _Trace(NamedTuple):
    """The valid draws of a trace, variable by variable."""

    values: dict[str, Draws]  # variable -> (C, S, P)
    names: dict[str, list[str]]  # variable -> a name for each of its P numbers
    attributes: Mapping[str, Any]
    evaluations: float | None


def _named_traces(traces: Any, reference: Any) -> tuple[dict[str, Any], str | None]:
    """Return all traces by name, the reference among them, and its name."""
    given = (
        dict(traces)
        if isinstance(traces, Mapping) and not isinstance(traces, xr.DataTree)
        else {"draws": traces}
    )
    if not given:
        raise UserError("compare needs traces: {'sgld': trace, 'hmc': another}.")
    if any(isinstance(value, np.ndarray | list) for value in given.values()):
        raise UserError(
            "compare takes traces by name, and arrays as a mapping for each: {'numpyro': {'beta': draws}}, with draws "
            "(chain, draw, ...)."
        )
    if reference is None:
        return given, None
    if isinstance(reference, str):
        if reference not in given:
            raise UserError(
                f"reference = '{reference}' is not one of the traces, {', '.join(given)}.{nearest(reference, given)}"
            )
        return given, reference
    if (same := next((key for key, trace in given.items() if trace is reference), None)) is not None:
        return given, same
    if _REFERENCE in given:
        raise UserError("A trace is named 'reference' and another is the reference; name it otherwise.")
    return {**given, _REFERENCE: reference}, _REFERENCE


def _read(key: str, trace: Any) -> _Trace:
    """Return the valid draws of what a user calls a trace, of the coldest rung if it has several."""
    valid: npt.NDArray[np.bool_] | None = None
    attributes: dict[str, Any] = {}
    evaluations: float | None = None
    if isinstance(trace, xr.DataTree) and "posterior" in trace.children:
        cold = rung(trace)
        posterior, valid = cold["posterior"].to_dataset(), validity(cold)
        attributes = {str(name): value for name, value in trace.attrs.items()}
        evaluations = _evaluations(trace)
    else:
        if isinstance(trace, xr.DataArray):
            posterior = trace.to_dataset(name=trace.name or _PREDICTIONS)
        elif isinstance(getattr(trace, "posterior", None), xr.Dataset):  # InferenceData of older ArviZ
            posterior = trace.posterior
        elif isinstance(trace, Mapping) and trace:
            posterior = _dataset(key, trace)
        else:
            what = "a trace without draws" if isinstance(trace, xr.DataTree) else f"a {type(trace).__name__}"
            raise UserError(
                f"{key} is {what}; compare takes traces with the group posterior, mappings variable -> array "
                "(chain, draw, ...), and DataArrays of predictions."
            )
    values: dict[str, Draws] = {}
    names: dict[str, list[str]] = {}
    for variable, array in posterior.data_vars.items():
        if not {"chain", "draw"} <= set(array.dims):
            continue
        array = array.transpose("chain", "draw", ...)
        numbers = np.asarray(array.to_numpy(), np.float64)
        flat = numbers.reshape(*numbers.shape[:2], -1)
        if isinstance(trace, xr.DataArray):  # predictions at invalid draws are NaN
            valid = np.asarray(~np.isnan(flat).all(-1))
        values[str(variable)] = flat if valid is None else valid_of_each(flat, valid)
        names[str(variable)] = _names(str(variable), array)
    if not values:
        raise UserError(f"{key} has no variable (chain, draw, ...).")
    return _Trace(values, names, attributes, evaluations)


def _dataset(key: str, arrays: Mapping[Any, Any]) -> xr.Dataset:
    """Return arrays (chain, draw, ...) as a dataset."""
    variables = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        if array.ndim < 2 or array.dtype.kind not in "fiub":
            raise UserError(
                f"{key}: {name} is {array.dtype} of shape {array.shape}; draws are numbers (chain, draw, ...)."
            )
        dims = ["chain", "draw", *(f"{name}_dim_{k}" for k in range(array.ndim - 2))]
        variables[str(name)] = (dims, array)
    shapes = {array.shape[:2] for _, array in variables.values()}
    if len(shapes) > 1:
        raise UserError(f"{key}: its variables have different chains and draws: {sorted(shapes)}.")
    return xr.Dataset(variables)


def _names(variable: str, array: xr.DataArray) -> list[str]:
    """Return the names of the numbers of a variable (chain, draw, ...)."""
    if variable == "theta" and array.dims[2:] == ("parameter",):
        return [str(name) for name in array["parameter"].to_numpy()]
    axes = [
        Axis(str(dim), tuple(array[dim].to_numpy().tolist()) if dim in array.coords else None)
        for dim in array.dims[2:]
    ]
    return list(flat_names(variable, array.shape[2:], tuple(axes)))


def _evaluations(trace: xr.DataTree) -> float | None:
    """Return the evaluations after burn-in of all chains of a trace of this library; None if it has no counts."""
    if SEPARATE not in trace.attrs or "sample_stats" not in trace.children:
        return None
    n_lik, n_grad = (
        sum(
            sign * float(trace[group][name].to_numpy()[:, -1].sum())  # counts are cumulative
            for group, sign in (("sample_stats", 1.0), ("warmup_sample_stats", -1.0))
            if group in trace.children and trace[group].sizes["draw"]
        )
        for name in ("n_lik", "n_grad")
    )
    return float(passes(n_lik, n_grad, float(trace.attrs[SEPARATE])))


def _aligned(found: Mapping[str, _Trace]) -> tuple[list[str], dict[str, Draws]]:
    """Return names of the compared coordinates, and the draws (C, S, D) of each trace in their order.

    Raises:
        UserError: no variable is in all traces, or one has another shape.
    """
    first_key, first = next(iter(found.items()))
    shared = [
        variable for variable in first.values if all(variable in trace.values for trace in found.values())
    ]
    if not shared:
        variables = "; ".join(
            f"{key} has {', '.join(list(trace.values)[:6])}" for key, trace in found.items()
        )
        raise UserError(
            f"The traces have no variable in common: {variables}. Rename those that are the same."
        )
    left_out = {key: [v for v in trace.values if v not in shared] for key, trace in found.items()}
    if lines := [f"{', '.join(names[:6])} of {key}" for key, names in left_out.items() if names]:
        warnings.warn(f"Not in all traces, and not compared: {'; '.join(lines)}.", UserWarning, stacklevel=3)
    columns: dict[str, list[Draws]] = {key: [] for key in found}
    for variable in shared:
        expected = first.names[variable]
        for key, trace in found.items():
            names, values = trace.names[variable], trace.values[variable]
            if len(names) != len(expected):
                raise UserError(
                    f"{variable} has {len(expected):,} numbers in {first_key} and {len(names):,} in {key}; compare "
                    "draws of one model."
                )
            if names != expected and sorted(names) == sorted(expected):  # another order of the same labels
                values = values[..., [names.index(name) for name in expected]]
            columns[key].append(values)
    names = [name for variable in shared for name in first.names[variable]]
    draws = {key: np.concatenate(of_variables, axis=-1) for key, of_variables in columns.items()}
    varies = [
        d
        for d in range(len(names))
        if any(values.size and np.ptp(values[..., d]) != 0 for values in draws.values())
        or len({float(values[0, 0, d]) for values in draws.values() if values.size}) > 1
    ]
    if not varies:
        raise UserError("All draws of all traces are equal; there is nothing to compare.")
    kept = [varies[place] for place in some_coordinates(len(varies))]
    return [names[d] for d in kept], {key: values[..., kept] for key, values in draws.items()}


def _unusable(draws: Draws) -> str:
    """Return why draws (C, S, D) cannot be compared; empty if they can."""
    if draws.shape[1] < LEAST_DRAWS:
        return f"it has {draws.shape[1]} valid draws of one chain, and {LEAST_DRAWS} of each are needed."
    return "" if np.isfinite(draws).all() else "some of its draws are no finite numbers."


def _against(
    reference: str,
    found: Mapping[str, _Trace],
    draws: Mapping[str, Draws],
    names: Sequence[str],
    worths: Mapping[str, Mapping[str, float]],
    tolerance: float | None,
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return verdict and distances of each trace, and the rule of the verdicts."""
    others = [key for key in draws if key != reference]
    reasons = {key: why for key in others if (why := _unusable(draws[key]))}
    shift: dict[str, Shifts] = {
        key: shifts(draws[key], draws[reference]) for key in others if key not in reasons
    }
    another = {key: _another(found[key].attributes, found[reference].attributes) for key in shift}
    verdicts, rule = judge(shift, names, worths, reference, worths[reference], another, tolerance)
    rows: dict[str, dict[str, Any]] = {reference: {"verdict": REFERENCE, "why": ""}}
    rows |= {key: {"verdict": UNKNOWN, "why": why} for key, why in reasons.items()}
    for key, verdict in verdicts.items():
        mean, spread = shift[key].worst()
        energy = energy_distance(draws[key], draws[reference])
        rows[key] = {"verdict": verdict.word, "why": verdict.why}
        for column, estimate in (("mean_off", mean), ("sd_ratio", spread), ("energy_distance", energy)):
            rows[key] |= {column: estimate.value, f"{column}_se": estimate.se}
    for key, row in rows.items():
        row["target"] = found[key].attributes.get(KIND)
    return rows, rule


def _another(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return what makes the target of a trace another than the reference's, as far as their attributes say so."""
    lines = []
    if TEMPERATURE in mine and float(mine[TEMPERATURE]) != (base := float(theirs.get(TEMPERATURE, 1.0))):
        lines.append(f"T = {shown(float(mine[TEMPERATURE]))} (reference: {shown(base)})")
    if N_DATA in mine and N_DATA in theirs and mine[N_DATA] != theirs[N_DATA]:
        lines.append(f"{int(mine[N_DATA]):,} data (reference: {int(theirs[N_DATA]):,})")
    if "prior" in mine and "prior" in theirs and mine["prior"] != theirs["prior"]:
        lines.append("another prior")
    return lines
