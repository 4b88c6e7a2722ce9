"""Centred or non-centred group effects in a model of ``mhrun init``, chosen from the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from mhrun.array_types import Float64Array
from mhrun.data.dataset import Dataset
from mhrun.errors import UserError, nearest

CENTRED, NONCENTRED = "centred", "noncentred"
# Variance between groups, over the squared standard error of a group's mean, from which the effects are nearly
# independent of their spread a posteriori. Without any effect, three groups exceed it with probability 0.7 %.
_MIN_VARIANCE_RATIO = 4.0
_NEWTON_STEPS = 10  # of Newton's method, for the regression without groups
_PRIOR_PRECISION = 1e-2  # of a weight a priori, so that this regression exists for separable data
_MAX_FEATURES = 200  # features up to which groups are compared at equal features


def is_centred(form: str | None, kind: str, data: Dataset, column: str) -> bool:
    """Return whether the effects of a column are parameters themselves: the user's choice, or by the data.

    Raises:
        UserError: there is no such form.
    """
    if form not in (None, CENTRED, NONCENTRED):
        raise UserError(
            f"form={form} is unknown; choose {CENTRED} or {NONCENTRED}.{nearest(str(form), [CENTRED, NONCENTRED])}"
        )
    return differ_clearly(kind, data, column) if form is None else form == CENTRED


def differ_clearly(kind: str, data: Dataset, column: str) -> bool:
    """Return whether the groups of a column differ by clearly more than the standard errors of their means.

    With the residuals r and the information v of each datum in a regression without groups, the effect of a group is
    b_g = sum r / sum v, one step of Newton's method, with variance s_g^2 = phi / sum v; phi is the dispersion within
    groups. The variance between groups is the moment estimator of DerSimonian and Laird (1986); of equal groups it is
    that of the analysis of variance.
    """
    fields = {name: field.double().numpy() for name, field in data.fields.items()}
    codes, n = fields[column].astype(np.int64), len(fields[column])
    x = fields.get("x")
    x = np.empty((n, 0)) if x is None or x.shape[1] > _MAX_FEATURES else x
    sizes = fields.get("exposure", fields.get("trials", np.ones(n)))
    residuals, information = _without_groups(kind, fields["y"], x, sizes)
    weights: Float64Array = np.bincount(codes, information).astype(np.float64)
    count = len(weights)
    if n <= count or count < 2 or not (weights > 0).all():
        return False
    effects: Float64Array = np.bincount(codes, residuals) / weights
    within = residuals - information * effects[codes]
    dispersion = float((within**2 / information).sum()) / (n - count)
    weights /= dispersion if kind == "linear" else max(dispersion, 1.0)
    mean = np.average(effects, weights=weights)
    excess = float((weights * (effects - mean) ** 2).sum()) - (count - 1)
    between = excess / float(weights.sum() - (weights**2).sum() / weights.sum())
    return between > _MIN_VARIANCE_RATIO * float(np.median(1 / weights))


def _without_groups(
    kind: str, y: Float64Array, x: Float64Array, sizes: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Return the residuals and the information of each datum in the regression without groups (n,).

    `sizes` are exposures or trials (n,).
    """
    design = np.column_stack([np.ones(len(y)), x])
    weights = np.zeros(design.shape[1])
    y = (y > 0).astype(float) if kind == "logistic" else y
    if kind == "Poisson":
        weights[0] = np.log(max(y.sum(), 0.5) / sizes.sum())
    for _ in range(_NEWTON_STEPS):
        mean, information = _moments(kind, design @ weights, sizes)
        precision = design.T @ (information[:, None] * design) + _PRIOR_PRECISION * np.eye(len(weights))
        weights = weights + np.linalg.solve(precision, design.T @ (y - mean) - _PRIOR_PRECISION * weights)
    mean, information = _moments(kind, design @ weights, sizes)
    return y - mean, information


def _moments(kind: str, predictor: Float64Array, sizes: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return mean and information of each datum at its linear predictor (n,)."""
    if kind == "linear":
        return predictor, np.ones_like(predictor)
    bounded: Any = predictor.clip(-30.0, 30.0)  # a step that is too long may overflow
    if kind in ("logistic", "binomial"):
        chance = 1 / (1 + np.exp(-bounded))
        return sizes * chance, (sizes * chance * (1 - chance)).clip(1e-12)
    mean = sizes * np.exp(bounded)
    return mean, mean.clip(1e-12)
