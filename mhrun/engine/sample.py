"""The engine from Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mhrun.data import Dataset
from mhrun.engine.chains import Settings, Silent, run_method
from mhrun.engine.method import Method
from mhrun.errors import UserError
from mhrun.models.function import FunctionModel
from mhrun.schedules import Plan, Schedule
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.tuned import Tuned
from mhrun.store.netcdf import Shape, open_trace
from mhrun.target import Target
from mhrun.types import Kernel, Model

if TYPE_CHECKING:
    import xarray as xr


def sample(
    model: Model | Callable[..., torch.Tensor],
    data: Any,
    kernel: Kernel,
    *,
    step_size: float | Schedule,
    steps: int = 10_000,
    warmup: int = 1_000,
    chains: int = 4,
    temperature: float = 1.0,
    start: Any = None,
    log_prior: Callable[[torch.Tensor], torch.Tensor] | None = None,
    acceptance: float | None = None,
    temper: str = "posterior",
    replacement: bool = False,
    seed: int = 0,
    thin: int = 1,
    device: str = "cpu",
    native: str = "auto",
    folder: str | Path | None = None,
) -> xr.DataTree:
    """Sample with any kernel and return the trace, as ArviZ and xarray open it.

    Args:
        model: a `Model`, or a function ``(theta (D,), batch) -> (m,)`` that returns the log-likelihood of
            each datum; `batch` holds the rows of a minibatch, as the data were given: one tensor, or a
            mapping of them.
        data: an array, a mapping of arrays with one length, or a `Dataset`.
        kernel: how the chains move.
        step_size: a number, or a schedule that governs the step size.
        steps: steps that count; every chain does them.
        warmup: steps of burn-in before them.
        chains: how many chains C, run together.
        temperature: T of the target.
        start: where chains begin, (D,) or (C, D); needed with a function.
        log_prior: ``theta (D,) -> ()``, with a function; flat if None.
        acceptance: tune the step size in burn-in to this acceptance rate, from `step_size` on.
        temper: what T acts on: posterior or likelihood.
        replacement: draw minibatches with replacement.
        seed: of all random numbers.
        thin: keep every thin-th step.
        device: cpu or cuda.
        native: compiled loops where there are some: auto (long runs), on or off.
        folder: where to keep the trace; a call with the same folder goes on from what is there. None
            keeps it in memory.

    Returns:
        A DataTree with the groups ``posterior`` and ``sample_stats`` (and ``warmup_...``).

    Raises:
        UserError: parts that do not go together, or settings that have no meaning.
    """
    rows = Dataset.of(data)
    if isinstance(model, Model):
        if log_prior is not None:
            raise UserError("log_prior= goes with a function; a Model has its own.")
        whole: Model = model
    else:
        if start is None:
            raise UserError("sample needs start=, where chains begin, when the model is a function.")
        single = not isinstance(data, Mapping | Dataset)
        whole = FunctionModel(model, start, log_prior=log_prior, single=single)
    schedules: dict[str, Schedule] = {"temperature": Fixed(temperature=temperature)}
    if not isinstance(step_size, int | float):
        schedules["step_size"] = step_size
    elif acceptance is None:
        schedules["step_size"] = Fixed(step_size=step_size)
    else:
        schedules["step_size"] = Tuned(step_size, acceptance, warmup)
    target = Target(whole, rows, temper=temper, replacement=replacement, device=device)
    points = None if start is None else torch.atleast_2d(torch.as_tensor(start, dtype=torch.float64))
    shape = Shape(chains, target.model.names, warmup, steps, thin)
    method = Method("sample", kernel, target, Plan(schedules, chains), shape, seed, starts=points)
    method.check()
    settings = Settings(native=native)
    if folder is not None:
        run_method(method, Path(folder), settings, Silent(), lambda: False, {"seed": seed})
        return open_trace(Path(folder))
    with tempfile.TemporaryDirectory(prefix="mhrun-") as place:
        run_method(method, Path(place), settings, Silent(), lambda: False, {"seed": seed})
        with open_trace(Path(place)) as trace:
            return trace.load()
