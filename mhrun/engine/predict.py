"""The posterior predictive of a trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.data.frames import is_frame
from mhrun.diagnostics.ladders import rung
from mhrun.errors import UserError
from mhrun.models.explained import explained
from mhrun.models.function import FunctionModel
from mhrun.models.module import ModuleModel
from mhrun.models.named_tensors import Named
from mhrun.models.parameters import parameters_of
from mhrun.numbers import is_whole, whole_number
from mhrun.store.draws import in_order_of_run, stopped_chains, validity
from mhrun.store.netcdf import FIELDS, LAYERS, flat_draws
from mhrun.target.fields import ambiguous_bytes, describe_row
from mhrun.types import Model, Rows
from mhrun.types.capabilities import HasOutcomeMean, declared_fields, offers, predicts_classes

if TYPE_CHECKING:
    import xarray as xr

Array = npt.NDArray[Any]
_HELD = 1 << 22  # values of parameters and outputs that are held at once
_REPEATED = 32  # calls for one draw, which all give the same unless there are random numbers in the function


@torch.no_grad()
def predict(
    trace: xr.DataTree,
    model: Model | torch.nn.Module | Callable[..., Tensor],
    x: Any,
    *,
    every: int = 1,
    each: bool = False,
    seed: int = 0,
) -> xr.DataArray:
    """Return (1/S) sum_s f(theta_s, x_i), the mean of a prediction f over the draws theta_s, for each new datum x_i.

    Args:
        trace: what `mhrun.sample` returned, or a trace that was opened from disk.
        model: what f is: of a model of classes, the probability of each class; of a logistic, Poisson or robust
            regression, the mean of the outcome (logistic: the probability of +1); of a `FunctionModel`, its `mean`; of
            a torch module with a ``likelihood=``, the module's outputs; a function ``(theta, batch) -> (m, ...)`` is f
            itself, with theta and batch as a log-likelihood has them.
        x: the new data: an array, a mapping of arrays, a pandas DataFrame or a `Dataset`; with the field ``exposure``
            if a Poisson regression was fitted with one.
        every: use every so many draws only.
        each: return f at each draw, not the mean; draws that are left out are NaN.
        seed: of the random numbers of a function that samples, such as ``StudentT(...).sample()``: new data of each
            draw, for prediction intervals. The state of torch's own generators is kept.

    Returns:
        (datum, ...): (datum, class) for classes; with `each`, (chain, draw, datum, ...). The mean is over the draws of
        all chains, but those that ``sample_stats["valid"]`` excludes and those of chains that stopped at a value that
        was not finite, which the last steps of the trace show; of a ladder, the draws of its coldest rung.

    Raises:
        UserError: a trace without draws, a model that predicts nothing, or data that do not fit.
    """
    import xarray as xr

    if not isinstance(trace, xr.DataTree) or "posterior" not in trace.children:
        raise UserError("predict needs a trace with draws, as mhrun.sample returns it; thin=None keeps none.")
    if lacking := [name for name in ("chain", "draw") if name not in trace["posterior"].sizes]:
        raise UserError(
            f"the posterior has no dimension {lacking[0]}; keep it where you select: isel({lacking[0]}=[0])."
        )
    every = whole_number("every", every, least=1)
    if not is_whole(seed) or not 0 <= seed < 1 << 63:
        raise UserError(f"seed = {seed!r} must be a whole number from 0 to 2^63 - 1.")
    trace = rung(trace).copy()
    trace["posterior"].dataset = in_order_of_run(trace["posterior"].to_dataset())
    data = Dataset.of(x)
    if isinstance(model, Model) and (reason := ambiguous_bytes(model, data)) is not None:
        raise UserError(reason)
    stopped = stopped_chains(trace)
    valid = (validity(trace) & ~stopped[:, None])[:, ::every]
    if not valid.any():
        reason = "its chains stopped" if stopped.any() else "sample_stats has 'valid' for each"
        raise UserError(f"no draw of the trace is valid; {reason}.")
    if stopped.any():
        warnings.warn(
            f"{stopped.sum()} of {len(stopped)} chains stopped at a value that was not finite, and are left out.",
            UserWarning,
            stacklevel=3,  # the decorator is between
        )
    quantity, names = _quantity(trace, model, x, data)
    chains, draws = valid.shape
    prediction: Array | None = None
    with _seeded(int(seed)):
        for start, values in _in_parts(quantity, chains * draws, trace, every):
            if values.shape[1:2] != (data.n,):
                raise UserError(
                    f"a draw has predictions {values.shape[1:]} for {data.n:,} data; give one row per datum, x[None] "
                    "if x is a single one."
                )
            kept = valid.reshape(-1)[start : start + len(values)].reshape(-1, *[1] * (values.ndim - 1))
            values = np.where(kept, values, np.nan if each else 0.0)
            if each:
                if prediction is None:
                    prediction = np.empty((chains * draws, *values.shape[1:]))
                prediction[start : start + len(values)] = values
            else:
                prediction = values.sum(0) + (0.0 if prediction is None else prediction)
    assert prediction is not None
    dims = [*names, *(f"output_dim_{k}" for k in range(prediction.ndim - 1 - each - len(names)))]
    if each:
        return xr.DataArray(
            prediction.reshape(chains, draws, *prediction.shape[1:]),
            dims=["chain", "draw", "datum", *dims],
            coords={
                name: coordinate[:: every if name == "draw" else 1]
                for name, coordinate in trace["posterior"].coords.items()
                if name in ("chain", "draw")
            },
        )
    return xr.DataArray(prediction / int(valid.sum()), dims=["datum", *dims])


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators, and restore their states afterwards."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(cuda)):
        torch.manual_seed(seed)
        yield


def _quantity(
    trace: xr.DataTree, model: Any, x: Any, data: Dataset
) -> tuple[Callable[[Any], Tensor], list[str]]:
    """Return f over many draws at once, and the names of its first dimensions after the data's."""
    if isinstance(model, torch.nn.Module) and not isinstance(model, Model):
        model = ModuleModel(model)
    rows = data.part(0, data.n)
    single = not (isinstance(x, Mapping | Dataset) or is_frame(x))
    if isinstance(model, Model):
        size = flat_draws(trace["posterior"]).shape[-1]
        if size != len(model.names):
            raise UserError(
                f"{type(model).__name__} has {len(model.names):,} parameters and a draw of the trace has {size:,}; "
                "give the model that was sampled."
            )
        if isinstance(model, ModuleModel):
            _check_module(trace, model)
            _check_rows(model, data)
        if isinstance(model, ModuleModel) and not model.is_classifier:
            return lambda theta: model.outputs(theta, rows), []
        has_names = parameters_of(model) is not None
        if predicts_classes(model) and not has_names:
            _check_rows(model, data)
            return lambda theta: model.predict(theta, rows).exp(), ["class"]
        if offers(model, HasOutcomeMean):
            _check_rows(model, data)
            _check_fields(trace, data)
            return lambda theta: model.outcome_mean(theta, rows), []
        if isinstance(model, FunctionModel) and model.mean is not None:
            return _of_function(model.mean, _fields(rows), data.n, single=single), []
        example = "theta.slopes" if has_names else "theta"
        raise UserError(
            f"{type(model).__name__} does not say what it predicts; give a function of parameters and rows, such as "
            f"lambda theta, rows: rows.x @ {example}."
        )
    if not callable(model):
        raise UserError(f"model = {model!r} must be a Model, a torch module or a function (theta, batch).")
    return _of_function(model, _fields(rows), data.n, single=single), []


def _fields(rows: Rows) -> dict[str, Tensor]:
    """Return the fields (n, ...) of rows (1, n, ...)."""
    return {name: field[0] for name, field in rows.items()}


def _of_function(
    function: Callable[..., Any], fields: Mapping[str, Tensor], n: int, *, single: bool
) -> Callable[[Any], Tensor]:
    """Return a user's function of theta and a batch over many draws at once; one by one if vmap cannot.

    Neither can a function that draws random numbers outside of torch: all draws of a batch would share them. Repeated
    calls for the first draw show it. Each call has copies, so that a function may change what it is given in place.

    Args:
        function: of the parameters of a draw and the batch.
        fields: of the batch (n, ...).
        n: number of data.
        single: whether the batch is the field ``x`` alone.
    """
    vectorised, is_first = True, True

    def of_draw(theta: Any) -> Tensor:
        batch = {name: field.clone() for name, field in fields.items()}
        point = (
            Named({name: value.clone() for name, value in theta.items()})
            if isinstance(theta, dict)
            else theta.clone()
        )
        prediction: Tensor = function(point, batch["x"] if single else Named(batch))
        return prediction

    def of_draws(theta: Any) -> Tensor:
        """Return f for a batch of draws: a tensor (B, D), or parameters by name."""
        nonlocal vectorised, is_first
        with explained("the prediction", fields):
            if vectorised:
                try:
                    prediction = torch.func.vmap(of_draw)(theta)
                    if is_first:
                        is_first, first = False, next(_one_by_one(theta))
                        each = [of_draw(first) for _ in range(_REPEATED)]
                        vectorised = all(
                            torch.allclose(one, each[0], 0.0, 0.0, equal_nan=True) for one in each
                        )
                except Exception:  # what vmap lacks; the function's own errors come again below
                    vectorised = False
            if not vectorised:
                each = [of_draw(draw) for draw in _one_by_one(theta)]
                if not all(isinstance(one, Tensor) for one in each):
                    raise UserError(
                        f"the prediction must return a tensor, and returned a {type(each[0]).__name__}; use torch "
                        "operations throughout, or torch.as_tensor of what is returned."
                    )
                prediction = torch.stack(each)
        if not isinstance(prediction, Tensor) or prediction.shape[1:2] != (n,):
            raise UserError(f"the prediction must return one row per datum, a tensor ({n}, ...).")
        return prediction

    return of_draws


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


def _check_rows(model: object, data: Dataset) -> None:
    """Refuse new data that a model cannot read, or with a number that is not finite; the outcome may lack."""
    for name, need in declared_fields(model).items():
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
        if field.is_floating_point() and (count := int((~field.isfinite()).sum())):
            raise UserError(
                f"{name} of the new data has {count:,} values that are not finite; leave their rows out."
            )


def _check_fields(trace: xr.DataTree, data: Dataset) -> None:
    """Refuse new data without a field that the model was fitted with, such as an exposure; the outcome may lack."""
    needed = [name for name in trace.attrs.get(FIELDS, "").split() if name != "y"]
    if lacking := [name for name in needed if name not in data.fields]:
        raise UserError(_lacking(lacking[0], needed))


def _lacking(name: str, needed: Sequence[str]) -> str:
    """Return that new data have no field of a name, as a line that says what is needed."""
    mapping = ", ".join(f"'{each}': ..." for each in needed)
    return f"the new data have no {name}, which the model was fitted with; give predict {{{mapping}}}."


def _one_by_one(theta: Any) -> Iterator[Any]:
    """Yield the draws of a batch: a tensor (B, D), or parameters by name."""
    if not isinstance(theta, dict):
        yield from theta
        return
    for draw in zip(*theta.values(), strict=True):
        yield dict(zip(theta, draw, strict=True))


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
