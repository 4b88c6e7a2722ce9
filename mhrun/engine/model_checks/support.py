"""Refuses data outside the support of a model's `torch.distributions`, before a run.

During a run their arguments are not validated (`mhrun.models.explained.unvalidated`), and some densities are finite for
values that they exclude: that of a Bernoulli outcome of -1 has no bound.
"""

from __future__ import annotations

import re
import time

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.models.explained import validated
from mhrun.target import Target
from mhrun.types.capabilities import HasLogLikOfOne, offers

_MAX_SECONDS, _MAX_DATA = 0.5, 65_536  # for which data are looked at, and of these
_FIRST_DATA = 256  # data of the first evaluation; each further one has twice as many
_VALUE = re.compile(r"within the support \((.+?)\) of the distribution (\w+)")
_PARAMETER = re.compile(
    r"Expected parameter (\w+) .*?of distribution (\w+)\(.*?satisfy the constraint (.+?), but", re.DOTALL
)


@torch.no_grad()
def check_support(target: Target, theta: Tensor) -> None:
    """Check the data, and the parameters of the distributions at theta (1, D), by one chain's log-likelihood.

    At most 65,536 data, evenly over all, are looked at, or as many as half a second allows.

    Raises:
        Refusal: a value is outside of the support of its distribution, or a parameter out of its range.
    """
    model = target.model
    if not offers(model, HasLogLikOfOne):
        return
    index = np.linspace(0, target.n - 1, min(target.n, _MAX_DATA)).astype(np.int64)

    def fault(places: np.ndarray) -> str | None:
        rows = target.data.rows(torch.from_numpy(places)[None].to(target.data.device))
        try:
            model.log_lik_of_one(theta, rows)
        except ValueError as error:
            return str(error)
        return None

    began, start, size = time.monotonic(), 0, _FIRST_DATA
    while start < len(index) and time.monotonic() - began < _MAX_SECONDS:
        part = index[start : start + size]
        try:
            with validated():
                message = fault(part)
        except Exception:
            # The function cannot be called outside of vmap; any other error comes again in the run.
            return
        if message is not None and (text := _describe_error(message)):
            with validated():
                while len(part) > 1:
                    half = part[: len(part) // 2]
                    part = half if fault(half) is not None else part[len(part) // 2 :]
            raise Refusal(text.format(row=f"{int(part[0]):,} (counted from 0)"))
        start, size = start + size, 2 * size


def _describe_error(message: str) -> str:
    """Return a line on an argument of a distribution that torch refuses, with a place for the row; empty for others."""
    if found := _VALUE.search(message):
        hint = " Labels of -1 and 1 become 0 and 1 by (y + 1) / 2." if found[1].startswith("Boolean") else ""
        return (
            f"log_lik: a value of the data is outside of the support of {found[2]}, {found[1]}, in row {{row}}. "
            f"Correct the data, or take another distribution.{hint}"
        )
    if found := _PARAMETER.search(message):
        return (
            f"log_lik: {found[1]} of {found[2]} must be {found[3]}, and is not at the starting point, first in row "
            "{row}. Take a function that keeps it there, such as exp, softplus or sigmoid, or start elsewhere."
        )
    return ""
