"""A call of `mhrun.sample`: its method, what identifies it, and the attributes of its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mhrun.engine.assemble import assembled
from mhrun.engine.call.chosen import Chosen
from mhrun.engine.method import Method, model_attributes
from mhrun.engine.starts import Starts
from mhrun.monitors import Monitor
from mhrun.target.precision import FP32

_ARGUMENTS = {"step_size": "step_size/acceptance"}  # of a schedule


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call whose kernel, target and schedules are chosen. Only its steps are open.

    Attributes without a comment are arguments of `mhrun.sample` as they were given.
    """

    model: Any  # as it was given; of a torch module the `Model`
    fields: Mapping[str, Any]  # of the data
    log_prior: Callable[[Any], torch.Tensor] | None
    start: Any
    parameters: Mapping[str, Any] | None
    chosen: Chosen
    starts: Starts | None  # starting points; None: those of the model
    thin: int | None
    seed: int
    dtype: torch.dtype
    monitor: Monitor | None
    precondition: str | None

    def method(self, steps: int) -> Method:
        """Return the method of the call with so many steps after burn-in.

        Raises:
            UserError: parts that do not fit together, or invalid settings.
        """
        chosen = self.chosen
        counts = {
            "chains": chosen.chains,
            "warmup": chosen.warmup,
            "steps": steps,
            "thin": self.thin,
            "thin_stats": None,
            "seed": self.seed,
        }
        return assembled(
            "sample",
            chosen.kernel,
            chosen.target,
            chosen.schedules,
            counts,
            dtype=self.dtype,
            starts=self.starts,
            monitor=self.monitor,
            precondition=self.precondition,
        )

    def identity(self, method: Method) -> dict[str, Any]:
        """Return what makes this call another one than that of a folder, but for its steps."""
        target, shape = self.chosen.target, method.shape
        return {
            "model": self.model,
            "data": (self.fields, target.data.transforms),
            "log_prior": self.log_prior,
            "kernel": self.chosen.kernel,
            "surrogate": self.chosen.surrogate,
            "temper": target.temper,
            "replacement": target.replacement,
            "precision": target.precision.gradients,
            **{_ARGUMENTS.get(name, name): schedule for name, schedule in method.plan.schedules.items()},
            "precondition": method.precondition,
            "start": self.start,
            "parameters": (self.parameters, shape.parameters, shape.layout),
            "chains": shape.chains,
            "warmup": shape.warmup,
            "thin": (shape.thin, shape.thin_stats),
            "seed": method.seed,
            "dtype": str(self.dtype),
            "monitor": self.monitor,
            # Devices round differently, and a GPU has many normals from another generator (`Streams.many_normals`).
            "device": target.device.type,
        }

    def attributes(self, method: Method) -> dict[str, Any]:
        """Return the attributes of the trace."""
        attributes: dict[str, Any] = {"seed": method.seed} | model_attributes(self.chosen.target)
        if self.chosen.target.precision.gradients != FP32:
            attributes["arithmetic"] = method.arithmetic
        return attributes
