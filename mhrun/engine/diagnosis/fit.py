"""Posterior predictive checks of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import torch

from mhrun.diagnostics.chains import SETTLED, diagnoses
from mhrun.diagnostics.ladders import rung
from mhrun.engine.method import Method
from mhrun.kernels.stationary import samples
from mhrun.native import native_form
from mhrun.store.draws import validity
from mhrun.store.netcdf import flat_draws
from mhrun.types import Model
from mhrun.types.capabilities import HasFitFlag, JudgesFit, offers

if TYPE_CHECKING:
    import xarray as xr


def judges_fit(model: Model) -> TypeGuard[JudgesFit]:
    """Return whether a model has checks of its fit."""
    if offers(model, HasFitFlag) and not model.checks_fit:
        return False
    return offers(model, JudgesFit) and native_form(model, "fit_warnings", "log_lik") is not None


def fit_warnings(method: Method, trace: xr.DataTree) -> list[str]:
    """Return the failed checks of the model's fit, by the draws.

    Draws of another target, or of chains that have not converged, contradict the data by themselves: there is no line.
    """
    model, data = method.target.model, method.target.data
    distribution = samples(method.kernel, method.plan)
    if (
        not judges_fit(model)
        or distribution.tempered
        or distribution.is_cold
        or "posterior" not in trace.children
    ):
        return []
    cold = rung(trace)
    kept = [of[valid] for of, valid in zip(flat_draws(cold["posterior"]), validity(cold), strict=True)]
    draws = np.stack([chain[: min(map(len, kept))] for chain in kept])
    rhats = np.array([diagnosis.rhat for diagnosis in diagnoses(draws)])
    if not (rhats <= SETTLED).all():  # NaN neither
        return []
    flat = torch.from_numpy(draws.reshape(-1, draws.shape[-1]).astype(np.float64)).to(data.device)
    return model.fit_warnings(flat, data.fields)
