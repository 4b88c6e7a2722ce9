"""Comparison of traces from Python, of this library or another, as ``mhrun compare`` compares runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from mhrun.diagnostics.chains import LEAST_DRAWS, ChainDraws, worth
from mhrun.diagnostics.distances import Shifts, energy_distance, shifts
from mhrun.errors import UserError, nearest
from mhrun.keywords import known_keywords
from mhrun.numbers import is_number
from mhrun.report.comparison.agreement import REFERENCE, UNKNOWN, judge
from mhrun.report.comparison.trace_draws import UserTrace, aligned, read
from mhrun.report.convergence import single_chain_warnings
from mhrun.report.efficiency import named
from mhrun.report.tables import shown
from mhrun.store.netcdf import KIND, LAYERS, N_DATA, TEMPER, TEMPERATURE

_WORTH = ("rhat", "ess", "ess_tail")
_VERDICT = ("verdict", "why")
_DISTANCES = ("mean_off", "mean_off_se", "sd_ratio", "sd_ratio_se", "energy_distance", "energy_distance_se")
_COST = (*_WORTH, "chains", "draws", "evaluations", "ess_per_million")
_MILLION = 1e6


@known_keywords({"ref": "It is called reference here.", "tol": "It is called tolerance here."})
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
        UserError: no variable is in all traces, a variable has another shape, or an argument is invalid.
    """
    if tolerance is not None and not (is_number(tolerance) and 0 < tolerance < math.inf):
        raise UserError(f"tolerance = {tolerance!r} must be a positive number of standard deviations.")
    given, name = _named_traces(traces, reference)
    found = {key: read(key, trace) for key, trace in given.items()}
    names, draws, unmatched = aligned(found)
    worths = {
        key: worth(values) if values.size else dict.fromkeys(_WORTH, math.nan)
        for key, values in draws.items()
    }
    rows: dict[Any, dict[str, Any]] = {}
    rule = ""
    if name is not None:
        if why := _unusable(draws[name]):
            raise UserError(f"The reference{'' if name == REFERENCE else f' {name}'} cannot be used: {why}")
        rows, rule = _against(name, found, draws, names, worths, tolerance)
    for key, values in draws.items():
        rows.setdefault(key, {})
        rows[key] |= {"target": found[key].attributes.get(KIND)} | {
            measure: worths[key][measure] for measure in _WORTH
        }
        rows[key] |= {
            "chains": values.shape[0],
            "draws": values.shape[1],
            "evaluations": math.nan if found[key].evaluations is None else found[key].evaluations,
        }
        cost = found[key].evaluations
        rows[key]["ess_per_million"] = worths[key]["ess"] * _MILLION / cost if cost else math.nan
    columns = [
        *(_VERDICT if name is not None else ()),
        "target",
        *(_DISTANCES if name is not None else ()),
        *_COST,
    ]
    frame = pd.DataFrame.from_dict(rows, orient="index").reindex(index=list(draws), columns=columns)
    frame.attrs["rule"] = rule
    lines = [line for trace in found.values() for line in trace.warnings]
    lines += unmatched + single_chain_warnings([key for key, values in draws.items() if len(values) == 1])
    for line in [*lines, *_network_warnings(found)]:
        warnings.warn(line, UserWarning, stacklevel=3)  # the caller, behind the decorator
    return frame


def _network_warnings(found: Mapping[Any, UserTrace]) -> list[str]:
    """Return a line on traces of the weights of networks."""
    if not (layers := [key for key, trace in found.items() if LAYERS in trace.attributes]):
        return []
    return [
        f"{named(layers)}: weights of a network differ by symmetries that no prediction shows; compare "
        "mhrun.predict(trace, model, x, each=True) instead."
    ]


def _named_traces(traces: Any, reference: Any) -> tuple[dict[Any, Any], Any]:
    """Return all traces by name, the reference among them, and its name."""
    is_one = not isinstance(traces, Mapping) or isinstance(traces, xr.DataTree | xr.Dataset)
    given = {"draws": traces} if is_one else dict(traces)
    if not given:
        raise UserError("compare needs traces: {'sgld': trace, 'hmc': another}.")
    if any(isinstance(value, np.ndarray | list) for value in given.values()):
        raise UserError(
            "compare takes traces by name, and arrays as a mapping for each: {'numpyro': {'beta': draws}}, with draws "
            "(chain, draw, ...)."
        )
    if reference is None or (isinstance(reference, Hashable) and reference in given):
        return given, reference
    if isinstance(reference, str):
        if Path(reference).is_file():
            raise UserError(
                f"reference = '{reference}' is a file; open it first: reference=xarray.open_datatree('{reference}')."
            )
        raise UserError(
            f"reference = '{reference}' is not one of the traces, {', '.join(map(str, given))}."
            f"{nearest(reference, map(str, given))}"
        )
    if (same := next((key for key, trace in given.items() if trace is reference), None)) is not None:
        return given, same
    if REFERENCE in given:
        raise UserError(f"A trace is named '{REFERENCE}' and another is the reference; name it otherwise.")
    return {**given, REFERENCE: reference}, REFERENCE


def _unusable(draws: ChainDraws) -> str:
    """Return why draws (C, S, D) cannot be compared; empty if they can."""
    steps = draws.shape[1]
    if steps < LEAST_DRAWS:
        return f"it has {steps} valid draws of one chain, and {LEAST_DRAWS} of each are needed."
    return "" if np.isfinite(draws).all() else "some of its draws are no finite numbers."


def _against(
    reference: str,
    found: Mapping[str, UserTrace],
    draws: Mapping[str, ChainDraws],
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
    verdicts = judge(shift, names, worths, reference, worths[reference], another, tolerance)
    rows: dict[str, dict[str, Any]] = {reference: {"verdict": REFERENCE, "why": ""}}
    rows |= {key: {"verdict": UNKNOWN, "why": why} for key, why in reasons.items()}
    for key, verdict in verdicts.by_method.items():
        mean, spread = shift[key].worst()
        energy = energy_distance(draws[key], draws[reference])
        rows[key] = {"verdict": verdict.label, "why": verdict.why}
        for column, estimate in (("mean_off", mean), ("sd_ratio", spread), ("energy_distance", energy)):
            rows[key] |= {column: estimate.value, f"{column}_se": estimate.se}
    return rows, verdicts.rule


def _another(target: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Return what makes the target of a trace another than the reference's, as far as their attributes say so."""

    def differ(key: str) -> bool:
        return key in target and key in reference and target[key] != reference[key]

    lines = []
    own, base = (float(attributes.get(TEMPERATURE, 1.0)) for attributes in (target, reference))
    if own != base:
        lines.append(f"T = {shown(own)} (reference: {shown(base)})")
    elif own != 1 and differ(TEMPER):
        lines.append(f"T acts on the {target[TEMPER]} (reference: on the {reference[TEMPER]})")
    if differ(N_DATA):
        lines.append(f"{int(target[N_DATA]):,} data (reference: {int(reference[N_DATA]):,})")
    if differ("prior"):
        lines.append("another prior")
    return lines
