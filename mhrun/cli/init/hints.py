"""Hints of ``mhrun init`` on tables that may mislead a regression."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import torch

from mhrun.data.advice import list_setting
from mhrun.data.dataset import Dataset
from mhrun.data.table_facts import describe_missing, features_of, left_out
from mhrun.models.dispersion import dispersion_warnings

_MAX_LABELS = 10  # values of a feature up to which they may be labels
_MAX_INFLATION = 100.0  # of the variance of a weight by other features; it is named above, at R^2 > 0.99
_NAMED = 3  # features of a line
_BULK = (0.1, 0.9)  # quantiles of a feature
_MIN_BULK_SD = 0.1  # standard deviations of the feature between them, below which a few far values make these
_ROUNDED = 1e-6  # by what an outcome in its own units may be off
_MAX_CORRELATED = 2_000  # features up to which their correlations are computed
_GROUPS = 1_000  # by which counts are judged
_TOLERANCE = 1e-10  # of a gradient of the mean loss, which is small where events are rare; Newton's method is quadratic
_ROWS = 100_000  # of which relations between columns are computed


def hints_of(data: Dataset, kind: str) -> Iterator[str]:
    """Yield lines on what may mislead: rows left out, labels, codes of missing values, collinearity, overdispersion.

    Args:
        data: the table as the regression reads it.
        kind: the kind of regression, of `mhrun.cli.init.models.RegressionTemplate`.
    """
    if line := left_out(data.facts):
        yield line
        if texts := data.facts["dropped_texts"]:
            yield describe_missing(texts).strip().rstrip(".")
    if "x" in data.fields:  # which groups alone are not
        yield from _whole_numbers(data)
        yield from _far_values(data)
        yield from _collinear(data)
    if kind == "linear":
        yield from _proportions(data)
    if kind in ("Poisson", "binomial"):
        yield from _overdispersed(data, kind)


def _whole_numbers(data: Dataset) -> Iterator[str]:
    """Yield a line on each feature whose whole numbers may be labels: of rows, or of a few categories."""
    x = data.fields["x"].numpy()
    for place, name in enumerate(data.facts["columns"]):
        if name not in data.facts["scales"]:
            continue
        mean, sd = data.facts["scales"][name]
        values = np.unique(x[:, place] * sd + mean)
        # Values come back from the standardised feature: rounding is relative to both of its moments.
        rounding = 1e-6 * min(1.0, sd) + 1e-12 * abs(mean)
        if not np.allclose(values, values.round(), rtol=0, atol=rounding):
            continue
        if len(values) == data.n:
            yield (
                f"{name} has a different whole number in each row: if it is a label, {list_setting('exclude', [name])} "
                "leaves it out"
            )
        elif 2 < len(values) <= _MAX_LABELS:
            yield (
                f"{name} has {len(values)} values, whole numbers: if they are labels, "
                f"{list_setting('categorical', [name])}"
            )


def _far_values(data: Dataset) -> Iterator[str]:
    """Yield a line on each feature whose standard deviation a few values make, as codes of missing values do."""
    x = _some_rows(data, "x")
    for place, name in enumerate(data.facts["columns"]):
        if name not in data.facts["scales"]:
            continue
        low, high = np.quantile(x[:, place], _BULK)
        if not 0 < high - low < _MIN_BULK_SD:  # 0: a rare category
            continue
        far = float(data.fields["x"][:, place].abs().max())
        sign = 1.0 if float(data.fields["x"][:, place].max()) >= far else -1.0
        mean, sd = data.facts["scales"][name]
        value = f"{sign * far * sd + mean:.10g}"  # the standardised one is rounded
        setting = "remove them"
        if float(value).is_integer():  # as codes are
            setting = (
                f"{list_setting(f'missing_values.{name}', [float(value)])} missing=drop leaves their rows out"
            )
        yield (
            f"{name} has values far from all others, up to {value}, {far:.0f} sd from its mean: if they stand for "
            f"missing values, {setting}; the prior of its weight is narrow for all other rows"
        )


def _collinear(data: Dataset) -> Iterator[str]:
    """Yield a line on features that others nearly determine: R_j^2 = 1 - 1 / [C^-1]_jj, of their correlations C."""
    names = features_of(data.facts)
    if data.n <= len(names) + 1:
        features = f"{len(names):,} feature{'s' * (len(names) > 1)}"
        yield f"{features} and only {data.n:,} rows: the prior decides on some weights"
        return
    if not 1 < len(names) <= _MAX_CORRELATED:
        return
    x = _some_rows(data, "x")[:, -len(names) :]
    sizes, vectors = np.linalg.eigh(np.corrcoef(x, rowvar=False))
    # Data in float32 have zero eigenvalues of this size.
    inflation = (vectors**2 / np.maximum(sizes, 1e-12)).sum(axis=1)
    worst = [j for j in np.argsort(-inflation) if inflation[j] > _MAX_INFLATION]
    if worst:
        shown_names = ", ".join(names[j] for j in worst[:_NAMED]) + ", ..." * (len(worst) > _NAMED)
        verb, share = ("is", "its") if len(worst) == 1 else ("are", "their")
        yield (
            f"{shown_names} {verb} nearly determined by other features (R^2 above {1 - 1 / _MAX_INFLATION:g}): {share} "
            "single weights are hardly known; exclude=[...] leaves some out"
        )


def _proportions(data: Dataset) -> Iterator[str]:
    """Yield a line on an outcome whose values are all between 0 and 1, which a normal regression does not keep to."""
    y = _some_rows(data, "y")
    y = y * data.facts.get("target_sd", 1.0) + data.facts.get("target_mean", 0.0)
    if ((y >= -_ROUNDED) & (y <= 1 + _ROUNDED)).all():
        inside = ((y > _ROUNDED) & (y < 1 - _ROUNDED)).all()
        scale = "such as the log odds" if inside else "in a model of your own (Beta)"
        yield (
            f"the outcome is between 0 and 1: predictions may be outside; take a scale without ends, {scale}. Of "
            "successes out of trials give their number, with model=binomial trials=COLUMN"
        )


def _overdispersed(data: Dataset, kind: str) -> Iterator[str]:
    """Yield a line on counts whose variance is above the model's, by Pearson's statistic of a maximum-likelihood fit.

    With groups, each has an effect without a prior. Given their sum, the counts of a group are multinomial, so that the
    statistic of its k rows has mean k - 1, however few and small they are. Groups of zeros, and those where all trials
    are successes, are left out: any effect that is low or high enough fits them.
    """
    from sklearn.exceptions import ConvergenceWarning

    y = _some_rows(data, "y")
    x = _some_rows(data, "x") if "x" in data.fields else np.empty((len(y), 0))
    size_field = "trials" if kind == "binomial" else "exposure"
    sizes = _some_rows(data, size_field) if size_field in data.fields else np.ones(len(y))
    parameters = x.shape[1]
    if groups := [_some_rows(data, name).astype(np.int64) for name in data.facts.get("groups", {})]:
        kept = _informative(groups, [y, sizes - y] if kind == "binomial" else [y])
        if not kept.any():
            return
        y, sizes = y[kept], sizes[kept]
        x, parameters = _with_indicators(x[kept], [codes[kept] for codes in groups])
    if len(y) <= parameters or not y.any() or (kind == "binomial" and not (sizes - y).any()):
        return
    fit = _binomial_means if kind == "binomial" else _poisson_means
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)  # another solver then takes over
        mean = torch.from_numpy(fit(x, y, sizes, has_groups=bool(groups)))
    trials = torch.from_numpy(sizes) if kind == "binomial" else None
    yield from dispersion_warnings(torch.from_numpy(y), mean, parameters, trials)


def _poisson_means(x: Any, y: np.ndarray, exposure: np.ndarray, *, has_groups: bool) -> np.ndarray:
    """Return the fitted means of counts (n,)."""
    from sklearn.linear_model import PoissonRegressor

    alpha = 1e-7 if has_groups else 1e-8
    rates = PoissonRegressor(
        fit_intercept=False, alpha=alpha, solver="newton-cholesky", tol=_TOLERANCE, max_iter=300
    )
    mean: np.ndarray = exposure * rates.fit(x, y / exposure, sample_weight=exposure).predict(x)
    return mean


def _binomial_means(x: Any, y: np.ndarray, trials: np.ndarray, *, has_groups: bool) -> np.ndarray:
    """Return the fitted means of successes (n,): a row of Bernoulli trials is two weighted ones."""
    from sklearn.linear_model import LogisticRegression

    stack = scipy.sparse.vstack if has_groups else np.vstack
    labels, weights = np.repeat([1, 0], len(y)), np.concatenate([y, trials - y])
    model = LogisticRegression(
        C=1e8, fit_intercept=False, solver="newton-cholesky", tol=_TOLERANCE, max_iter=300
    )
    mean: np.ndarray = trials * model.fit(stack([x, x]), labels, sample_weight=weights).predict_proba(x)[:, 1]
    return mean


def _informative(groups: Sequence[np.ndarray], counts: Sequence[np.ndarray]) -> np.ndarray:
    """Return which rows are in groups with a sum of each of the counts (n,) above 0, of its first groups if many."""
    kept: np.ndarray = np.all([codes < _GROUPS // len(groups) for codes in groups], axis=0)
    left = -1
    while left != (left := kept.sum()):  # without a row, a group of another column may have zeros only
        for codes in groups:
            for count in counts:
                kept &= np.bincount(codes, count * kept)[codes] > 0
    return kept


def _with_indicators(x: np.ndarray, groups: Sequence[np.ndarray]) -> tuple[scipy.sparse.csr_array, int]:
    """Return features and an indicator of each group (n, D), sparse, and the rank.

    Features of groups, such as the size of a school, add nothing to it, nor does one group of a second column.
    """
    places = [np.unique(codes, return_inverse=True)[1] for codes in groups]
    indicators = [scipy.sparse.csr_array((np.ones(len(x)), (np.arange(len(x)), at))) for at in places]
    design = scipy.sparse.csr_array(scipy.sparse.hstack([x, *indicators]))
    return design, int(np.linalg.matrix_rank((design.T @ design).toarray(), hermitian=True))


def _some_rows(data: Dataset, name: str) -> np.ndarray:
    """Return a field in float64, evenly spaced rows of a large table."""
    stride = -(-data.n // _ROWS)
    rows: np.ndarray = data.fields[name].numpy()[::stride].astype(np.float64)
    return rows
