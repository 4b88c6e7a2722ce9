"""The draws of a trace that count, and functions of them, some draws at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.array_types import Array
from mhrun.diagnostics.ladders import rung
from mhrun.errors import UserError
from mhrun.numbers import whole_number
from mhrun.store.draws import in_order_of_run, stopped_chains, validity

if TYPE_CHECKING:
    import xarray as xr


_HELD = 1 << 22  # values of parameters and outputs that are held at once


class Kept(NamedTuple):
    """The draws of a trace over which a mean is taken."""

    trace: xr.DataTree  # of a ladder, that of its coldest rung; in the order of the run
    valid: npt.NDArray[np.bool_]  # (C, S), of every so many draws
    every: int


def valid_draws(trace: Any, every: int) -> Kept:
    """Return the draws of a trace that count.

    Raises:
        UserError: it has none.
    """
    import xarray as xr

    if not isinstance(trace, xr.DataTree) or "posterior" not in trace.children:
        raise UserError(
            "a prediction needs a trace with draws, as mhrun.sample returns it; thin=None keeps none."
        )
    if lacking := [name for name in ("chain", "draw") if name not in trace["posterior"].sizes]:
        raise UserError(
            f"the posterior has no dimension {lacking[0]}; keep it where you select: isel({lacking[0]}=[0])."
        )
    every = whole_number("every", every, least=1)
    trace = rung(trace).copy()
    trace["posterior"].dataset = in_order_of_run(trace["posterior"].to_dataset())
    stopped = stopped_chains(trace)
    valid = (validity(trace) & ~stopped[:, None])[:, ::every]
    if not valid.any():
        reason = "its chains stopped" if stopped.any() else "sample_stats['valid'] is False at each"
        raise UserError(f"no draw of the trace is valid; {reason}.")
    if stopped.any():
        warnings.warn(
            f"{stopped.sum()} of {len(stopped)} chains stopped at a value that was not finite, and are left out.",
            UserWarning,
            stacklevel=5,  # the caller of predict, whose decorators are between
        )
    return Kept(trace, valid, every)


def evaluated(
    kept: Kept, quantity: Callable[[Any], Tensor], n: int
) -> Iterator[tuple[int, Array, npt.NDArray[np.bool_]]]:
    """Yield f of some draws at a time (B, n, ...), with the place of the first and which are valid (B, 1, ...)."""
    chains, draws = kept.valid.shape
    for start, values in _in_parts(quantity, chains * draws, kept.trace, kept.every):
        if values.shape[1:2] != (n,):
            raise UserError(
                f"a draw has predictions {values.shape[1:]} for {n:,} data; give one row per datum, x[None] "
                "if x is a single one."
            )
        valid = kept.valid.reshape(-1)[start : start + len(values)].reshape(-1, *[1] * (values.ndim - 1))
        yield start, values, valid


def each_draw(kept: Kept, quantity: Callable[[Any], Tensor], n: int, names: Sequence[str]) -> xr.DataArray:
    """Return f at each draw, (chain, draw, datum, ...); NaN at those that are not valid."""
    import xarray as xr

    chains, draws = kept.valid.shape
    whole: Array | None = None
    for start, values, valid in evaluated(kept, quantity, n):
        if whole is None:
            whole = np.empty((chains * draws, *values.shape[1:]))
        whole[start : start + len(values)] = np.where(valid, values, np.nan)
    assert whole is not None
    return xr.DataArray(
        whole.reshape(chains, draws, *whole.shape[1:]),
        dims=["chain", "draw", "datum", *dimensions(names, whole.ndim - 2)],
        coords={
            name: coordinate[:: kept.every if name == "draw" else 1]
            for name, coordinate in kept.trace["posterior"].coords.items()
            if name in ("chain", "draw")
        },
    )


def dimensions(names: Sequence[str], count: int) -> list[str]:
    """Return the names of so many dimensions of f for a datum, of which the first may have some."""
    return [*names, *(f"output_dim_{k}" for k in range(count - len(names)))]


def _in_parts(
    quantity: Callable[[Any], Tensor], count: int, trace: xr.DataTree, every: int
) -> Iterator[tuple[int, Array]]:
    """Yield f at a few draws at a time, with the place of the first."""
    posterior = trace["posterior"].to_dataset()
    if "parameters" in posterior.attrs:
        names = posterior.attrs["parameters"].split()
        arrays: dict[str, Array] = {
            name: posterior[name].to_numpy()[:, ::every].reshape(count, *posterior[name].shape[2:])
            for name in names
        }
    else:
        arrays = {"": posterior["theta"].to_numpy()[:, ::every].reshape(count, -1)}
    start, size = 0, 1  # the first shows the size of one
    while start < count:
        part = {name: torch.from_numpy(a[start : start + size].copy()) for name, a in arrays.items()}
        predictions = quantity(part.get("", part)).double().cpu().numpy()
        yield start, predictions
        start += len(predictions)
        size = max(
            1, min(1024, _HELD // max(1, predictions[0].size + sum(p[0].numel() for p in part.values())))
        )
