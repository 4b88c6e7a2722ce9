"""Priors of a network's parameters: the same for all, or one for each block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from mhrun.errors import Refusal
from mhrun.models.autograd import log_prior_grad
from mhrun.models.parameter import changed
from mhrun.models.prior_text import prior_of
from mhrun.native.vectors import square_sum
from mhrun.numbers import is_number
from mhrun.types import ParameterBlock

T = TypeVar("T")


class BlockPrior(Protocol):
    """The prior of theta (C, D)."""

    summary: str
    """In a line, for run metadata: ``N(0, 1) for every parameter``."""

    def log_prob(self, theta: Tensor) -> Tensor:
        """Return the log density (C,), summed in float64; of a normal prior without its constant."""

    def grad(self, theta: Tensor) -> Tensor | None:
        """Return the gradient (C, D) of the log density; None if the prior is flat."""

    def common_precision(self) -> float | None:
        """Return the precision of a normal prior that all parameters have; 0 if it is flat, None for any other."""


def prior_of_blocks(prior: Any, variance: Any, blocks: Sequence[ParameterBlock]) -> BlockPrior:
    """Return the prior that two settings of a model give.

    Args:
        prior: a distribution of every parameter, as an object or as text (``StudentT(4, 0, 1)``), or a mapping of
            patterns (``*.bias``, ``0.weight``) to such, or to None for a flat prior; the first pattern that matches the
            name of a block decides. None: the prior is normal, or flat.
        variance: of a normal prior of every parameter, None, or a mapping of patterns to such.
        blocks: the blocks.

    Raises:
        Refusal: both settings, a variance that is not positive, a distribution of another kind, a pattern that matches
            no block, or a block that none matches.
    """
    if prior is None:
        return _Normal(_matched(variance, blocks, "prior_variance", _variance), blocks)
    if variance is not None:
        raise Refusal("prior and prior_variance both give the prior; leave one out.")
    found = _matched(prior, blocks, "prior", _distribution)
    if all(each is None or _is_normal(each) for each in found.values()):
        variances = {name: None if each is None else float(each.variance) for name, each in found.items()}
        return _Normal(variances, blocks)
    return _Independent(found, blocks)


class _Normal:
    """N(0, variance) of each parameter."""

    def __init__(self, variances: Mapping[str, float | None], blocks: Sequence[ParameterBlock]) -> None:
        self.summary = _line({name: "flat" if v is None else f"N(0, {v:g})" for name, v in variances.items()})
        by_block = [0.0 if (v := variances[b.name]) is None else 1.0 / v for b in blocks]
        sizes = torch.tensor([block.stop - block.start for block in blocks])
        self._precision: float | Tensor = by_block[0]
        if len(set(by_block)) > 1:
            self._precision = torch.tensor(by_block, dtype=torch.float64).repeat_interleave(sizes)

    def log_prob(self, theta: Tensor) -> Tensor:
        if isinstance(self._precision, Tensor):
            return -0.5 * (theta.square() * self._precision.to(theta)).sum(-1, dtype=torch.float64)
        if not self._precision:
            return theta.new_zeros(len(theta), dtype=torch.float64)
        return -0.5 * self._precision * square_sum(theta)

    def grad(self, theta: Tensor) -> Tensor | None:
        if isinstance(self._precision, Tensor):
            return theta * -self._precision.to(theta)
        return theta * -self._precision if self._precision else None

    def common_precision(self) -> float | None:
        return None if isinstance(self._precision, Tensor) else self._precision


class _Independent:
    """Any distribution of each parameter; neighbouring blocks of one distribution are evaluated together."""

    def __init__(
        self, distributions: Mapping[str, Distribution | None], blocks: Sequence[ParameterBlock]
    ) -> None:
        self.summary = _line({name: "flat" if d is None else repr(d) for name, d in distributions.items()})
        self._parts: list[tuple[int, int, Distribution]] = []
        for _, group in groupby(blocks, key=lambda block: repr(distributions[block.name])):
            together = list(group)
            distribution = distributions[together[0].name]
            if distribution is not None:
                self._parts.append((together[0].start, together[-1].stop, distribution))

    def log_prob(self, theta: Tensor) -> Tensor:
        total = theta.new_zeros(len(theta), dtype=torch.float64)
        for start, stop, distribution in self._parts:
            total = total + distribution.log_prob(theta[:, start:stop]).sum(-1, dtype=torch.float64)
        return total

    def grad(self, theta: Tensor) -> Tensor | None:
        return log_prior_grad(self.log_prob, theta)

    def common_precision(self) -> float | None:
        return None


def _matched(
    setting: Any, blocks: Sequence[ParameterBlock], name: str, read: Callable[[Any, str], T]
) -> dict[str, T]:
    """Return what a setting, one value or a mapping of patterns, gives each block."""
    if not isinstance(setting, Mapping):
        return {block.name: read(setting, name) for block in blocks}
    patterns = {str(key): read(value, f"{name} of {key}") for key, value in setting.items()}
    names = [block.name for block in blocks]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise Refusal(f"{name}: no parameter is called '{pattern}'; there are: {', '.join(names)}.")
    found = {}
    for block in names:
        matches = [pattern for pattern in patterns if fnmatchcase(block, pattern)]
        if not matches:
            raise Refusal(f"{name} has none for {block}; add '*' with one, or with null for a flat prior.")
        found[block] = patterns[matches[0]]
    return found


def _line(texts: Mapping[str, str]) -> str:
    if len(set(texts.values())) == 1:
        return f"{next(iter(texts.values()))} for every parameter"
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def _variance(value: Any, what: str) -> float | None:
    """Return the variance of a prior, or None if it is flat."""
    if value is None:
        return None
    if not is_number(value) or not 0 < value < float("inf"):
        raise Refusal(
            f"ModuleModel needs a positive prior_variance, or null for a flat prior; {what} = {value!r}."
        )
    return float(value)


def _distribution(value: Any, what: str) -> Distribution | None:
    """Return the distribution of one parameter, in float64 and unvalidated, or None if its prior is flat."""
    if value is None:
        return None
    found = prior_of(value, what) if isinstance(value, str) else value
    if not isinstance(found, Distribution):
        raise Refusal(
            f"{what} = {value!r} must be a distribution of torch, its text, or null for a flat prior."
        )
    if found.batch_shape or found.event_shape:
        raise Refusal(f"{what}: {type(found).__name__} must be of one number; each parameter has its own.")
    if found.support is not constraints.real:
        raise Refusal(
            f"{what}: {type(found).__name__} is not of all real numbers, as a module's parameters are."
        )
    # Torch makes float32 of the numbers of a distribution.
    quiet: Distribution = changed(found, lambda t: t.double() if t.is_floating_point() else t)
    return quiet


def _is_normal(distribution: Distribution) -> bool:
    """Return whether a distribution is a normal one with mean 0."""
    return type(distribution) is Normal and float(distribution.loc) == 0
