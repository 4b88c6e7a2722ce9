"""Refuses chains that begin where the log-likelihood is not finite: which chain, which datum, which parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from mhrun.data.sizes import SIZES
from mhrun.errors import Refusal
from mhrun.models.parameters import parameters_of
from mhrun.target import Target
from mhrun.types import Model

_READ = 1 << 16  # rows that are searched for NaN at a time
_EVALUATED = 1 << 10  # rows whose log-likelihoods are searched at a time: those of a network take memory
_NUMBERS, _MOST_SEARCHED = (
    1 << 20,
    1 << 26,
)  # numbers of a field that are searched for others than finite ones
_SHOWN = 4  # parameters in a message
_LARGE_FEATURE = 1e3  # value from which features are named: exp of a predictor overflows at weights near 1
_ROUNDED = 1e-3  # of a mean and a standard deviation
_STANDARDISED = (
    "{} is standardised, so that it has negative values (with standardise: false in the file of the data it keeps its "
    "units); "
)
_NO_FEATURES = ("y", *SIZES)


def check_start(target: Target, theta: Tensor, log_lik: Tensor) -> None:
    """Check that log-likelihoods are finite where chains begin.

    Args:
        target: their target.
        theta: starting points (C, D).
        log_lik: log-likelihoods there (C, ...), of some data or their mean.

    Raises:
        Refusal: one is not finite, with the first datum for which it is not; or the data hold NaN.
    """
    bad = ~log_lik.reshape(len(log_lik), -1).isfinite().all(-1)
    if not bool(bad.any()):
        return
    for name, field in target.data.fields.items():
        if line := _not_a_number(name, field):
            raise Refusal(line)
    chain = int(bad.nonzero()[0])
    point = theta[chain : chain + 1]
    chains = (
        f"{int(bad.sum())} of {len(log_lik)} chains begin" if len(log_lik) > 1 else "the first chain begins"
    )
    raise Refusal(
        f"{chains} where the log-likelihood is not finite: chain {chain} has "
        f"{_first_datum(target, point)} at {_values(target.model, point[0])}; {_cause(target.data.fields)}choose other "
        "starting points, or fix the model there."
    )


def rows_not_finite(fields: Mapping[str, Tensor], chains: int) -> Tensor:
    """Return the first few data (K,) that have NaN or an infinity: a model may be defined there, or may not.

    `chains` is at how many points they will be evaluated. Fields of very many numbers are not searched.
    """
    found = []
    for field in fields.values():
        if not field.is_floating_point() or not 0 < field.numel() <= _MOST_SEARCHED:
            continue
        read = max(1, _NUMBERS // field[0].numel())
        for start in range(0, len(field), read):
            part = field[start : start + read]
            bad = ~part.reshape(len(part), -1).isfinite().all(1)
            if bool(bad.any()):
                most = max(1, _EVALUATED // (chains * len(fields)))
                found.append(start + bad.nonzero()[:most, 0])
                break
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


def _first_datum(target: Target, point: Tensor) -> str:
    """Return in words the first log-likelihood that is not finite at a point (1, D), and its row."""
    data = target.data
    for start in range(0, data.n, _EVALUATED):
        index = torch.arange(start, min(start + _EVALUATED, data.n), device=data.device)[None]
        with torch.no_grad():
            log_lik = target.model.log_lik(point, data.rows(index))[0]
        if len(places := (~log_lik.isfinite()).nonzero()):
            first = int(places[0])
            return f"{float(log_lik[first]):g} in row {start + first:,} (counted from 0)"
    return "a sum that overflows"


def _values(model: Model, theta: Tensor) -> str:
    """Return some parameters of a point (D,) in words, of every name if there are few: any may be the cause."""
    parameters = parameters_of(model)
    values = theta if parameters is None else parameters.flat(theta)
    names = list(model.names)
    before, ranks = Counter[str](), []
    for name in names:
        ranks.append(before[of := name.partition("[")[0]])
        before[of] += 1
    shown = sorted(sorted(range(len(names)), key=ranks.__getitem__)[:_SHOWN])
    texts = [f"{names[d]} = {values[d]:.3g}" for d in shown]
    return ", ".join(texts) + f" and {len(values) - _SHOWN:,} more" * (len(values) > _SHOWN)


def _cause(fields: Mapping[str, Tensor]) -> str:
    """Return the features with the largest values, or a field with infinite ones, and a remedy, in words."""
    for infinite, field in fields.items():
        if field.is_floating_point() and bool(field.isinf().any()):
            return f"{infinite} has infinite values: leave out their rows, or fill them, "
    features = {
        name: field
        for name, field in fields.items()
        if name not in _NO_FEATURES and field.is_floating_point() and field.numel()
    }
    largest = {name: max(map(abs, map(float, field.aminmax()))) for name, field in features.items()}
    name = max(largest, key=lambda name: largest[name], default=None)
    if name is None or largest[name] < _LARGE_FEATURE:
        negative = next((name for name, field in features.items() if _is_standardised(field)), None)
        return "" if negative is None else _STANDARDISED.format(negative)
    return f"{name} has values up to {largest[name]:.2g}: standardise them, "


def _is_standardised(field: Tensor) -> bool:
    """Return whether the columns of a field (n, D) have mean 0 and standard deviation 1 for the most part."""
    rows = field[:_READ].double()
    if rows.dim() != 2 or not rows.numel() or len(rows) < len(field):
        return False
    near = (rows.mean(0).abs() < _ROUNDED) & ((rows.std(0, correction=0) - 1).abs() < _ROUNDED)
    return bool(near.double().mean() >= 0.5)


def _not_a_number(name: str, field: Tensor) -> str:
    """Return a line on the NaN of a field of the data (n, ...), empty if it has none."""
    if not field.is_floating_point():
        return ""
    lacking, first = 0, None
    for start in range(0, len(field), _READ):  # a field may be a map of a file that is larger than memory
        nans = (
            field[start : start + _READ].isnan().flatten(1).sum(1)
            if field.dim() > 1
            else (field[start : start + _READ].isnan())
        )
        lacking += int(nans.sum())
        if first is None and bool(nans.any()):
            first = start + int(nans.nonzero()[0])
    if first is None:
        return ""
    rows = f"in row {first:,}" if lacking == 1 else f"the first in row {first:,}"
    return f"field {name} has {lacking:,} NaN ({rows}, counted from 0); leave out its rows, or fill them."
