"""Converts the arguments of a call from Python to a model, a data set and starting points."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.data.frames import is_frame
from mhrun.data.no_data import NoData
from mhrun.engine.starts import Starts, starts_of
from mhrun.errors import UserError
from mhrun.models.function import FunctionModel
from mhrun.models.function_checks import check_arguments
from mhrun.models.module import ModuleModel
from mhrun.models.parameters import parameters_of, start_values
from mhrun.types import Model


class Given(NamedTuple):
    """A model on its data."""

    model: Model
    data: Dataset
    points: Any  # where chains begin, a list of points as `starts_of` takes them; None: where the model has them begin

    def starts(self, chains: int) -> Starts | None:
        """Return the starting points of so many chains; None: those of the model.

        Raises:
            UserError: there are neither as many nor one, or they are no points of the model.
        """
        if self.points is None:
            return None
        if len(self.points) not in (1, chains):
            raise UserError(
                f"start has {len(self.points)} rows for {chains} chains; give one row, or one per chain."
            )
        return starts_of(self.points, self.model.dim, "start", parameters_of(self.model))


def user_model(
    model: Any,
    data: Any,
    *,
    start: Any = None,
    log_prior: Callable[[Any], Tensor] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Given:
    """Return model, data and starting points of a call of `mhrun.sample`, whose arguments these are.

    Raises:
        UserError: arguments that do not go together, in one line with the remedy.
    """
    density = data is None
    rows = NoData().load() if density else Dataset.of(data)
    if isinstance(model, torch.nn.Module) and not isinstance(model, Model):
        model = ModuleModel(model)
    if isinstance(model, Model):
        for name, value in (("log_prior", log_prior), ("parameters", parameters)):
            if value is not None:
                raise UserError(f"{name}= requires a function as the model; {_remedy(model)}.")
        # What a function reads elsewhere may have changed since the last call.
        prepared = model.anew() if isinstance(model, FunctionModel) else model
        return Given(prepared, rows, _of_model(model, start))
    if not callable(model):
        raise UserError(f"model = {model!r} must be a Model, a torch module or a function.")
    function = _density(model) if density else model
    single = not (density or isinstance(data, Mapping | Dataset) or is_frame(data))
    if parameters is not None:
        function_model = FunctionModel(function, start, log_prior, single=single, parameters=parameters)
        return Given(function_model, rows, None)
    if start is None:
        raise UserError(
            "sample needs start=, where chains begin, or parameters= with priors, when the model is a function: "
            "parameters={'slope': torch.distributions.Normal(0.0, 1.0)}."
        )
    if isinstance(start, Mapping):
        raise UserError("start= by name requires parameters=; give its sizes or priors there.")
    points = _points(start)
    return Given(
        FunctionModel(function, points, log_prior, single=single), rows, torch.atleast_2d(points).tolist()
    )


def _remedy(model: Model) -> str:
    if isinstance(model, ModuleModel):
        return "give a module its prior with mhrun.ModuleModel(module, prior_variance=1.0)"
    return f"{type(model).__name__} has its own"


def _of_model(model: Model, start: Any) -> Any:
    """Return starting points of a model, in the coordinates of its names."""
    if start is None:
        return None
    if isinstance(model, ModuleModel) and (states := _states(start)):
        return [model.theta_of(state).tolist() for state in states]
    parameters = parameters_of(model)
    if parameters is None or not isinstance(start, Mapping):
        return torch.atleast_2d(_points(start)).tolist()
    starts = start_values(start, parameters)
    if lacking := [name for name in parameters.shapes if name not in starts]:
        raise UserError(f"start lacks {', '.join(lacking)}; give a value for each parameter.")
    chains = max(len(v) if v.dim() > len(parameters.shapes[k]) else 1 for k, v in starts.items())
    expanded = {
        k: v if v.dim() > len(parameters.shapes[k]) else v.expand(chains, *v.shape) for k, v in starts.items()
    }
    return torch.cat([value.reshape(chains, -1) for value in expanded.values()], -1).tolist()


def _states(start: Any) -> list[Any]:
    """Return the modules or state dicts of `start`, one or one for each chain; none if it is something else."""
    states = start if isinstance(start, list | tuple) else [start]
    return list(states) if all(isinstance(state, torch.nn.Module | Mapping) for state in states) else []


def _points(start: Any) -> Tensor:
    """Return where chains begin, (D,) or (C, D)."""
    try:
        values = start if isinstance(start, Tensor) or not hasattr(start, "__array__") else np.asarray(start)
        points = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"start = {reprlib.repr(start)} must be numbers, (D,) or (C, D).") from error
    if not points.numel():
        raise UserError("start = [] has no parameter; give at least one number.")
    return points


def _density(log_density: Callable[[Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Return a log density as the log-likelihood of a single datum, which it ignores."""
    check_arguments("the model", log_density, "theta", hint=": a log density, as there are no data")

    def log_lik(theta: Any, batch: Any) -> Tensor:
        value = log_density(theta)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise UserError(
                f"the log density must return one number, and returned a tensor of shape {tuple(value.shape)}; "
                "sum its terms."
            )
        return value.expand(len(batch["x"]))

    return log_lik
