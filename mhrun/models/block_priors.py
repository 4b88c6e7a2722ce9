"""Normal priors of a network's parameters, one variance for all or one for each block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.numbers import is_number
from mhrun.types import ParameterBlock


def block_variances(setting: Any, blocks: Sequence[ParameterBlock]) -> dict[str, float | None]:
    """Return the prior variance of each block of theta; None: flat.

    Args:
        setting: a variance for all blocks, None, or a mapping of patterns (``*.bias``, ``0.weight``) to variances; the
            first pattern that matches the name of a block decides.
        blocks: the blocks.

    Raises:
        Refusal: a variance that is not positive, a pattern that matches no block, or a block that none matches.
    """
    if not isinstance(setting, Mapping):
        return {block.name: _variance(setting, "prior_variance") for block in blocks}
    patterns = {str(key): _variance(value, f"prior_variance of {key}") for key, value in setting.items()}
    names = [block.name for block in blocks]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise Refusal(
                f"prior_variance: no parameter is called '{pattern}'; there are: {', '.join(names)}."
            )
    variances = {}
    for name in names:
        matches = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        if not matches:
            raise Refusal(
                f"prior_variance has none for {name}; add '*' with a variance, or with null for a flat prior."
            )
        variances[name] = patterns[matches[0]]
    return variances


def precisions(variances: Mapping[str, float | None], blocks: Sequence[ParameterBlock]) -> float | Tensor:
    """Return 1 / variance: one number if all blocks have the same, otherwise (D,); 0 where the prior is flat."""
    by_block = [0.0 if variances[b.name] is None else 1.0 / float(variances[b.name] or 1.0) for b in blocks]
    if len(set(by_block)) == 1:
        return by_block[0]
    sizes = torch.tensor([block.stop - block.start for block in blocks])
    return torch.tensor(by_block, dtype=torch.float64).repeat_interleave(sizes)


def describe_variances(variances: Mapping[str, float | None]) -> str:
    """Return the prior in a line, for run metadata: ``N(0, 1) for every parameter``."""
    texts = {name: "flat" if v is None else f"N(0, {v:g})" for name, v in variances.items()}
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
