"""What a user should know of a method that is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mhrun.engine.method import Method

_MUCH = 0.1  # share of decisions on all data from which on a user is told


def warnings_of(method: Method, noted: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each thing, from what was noted at the method's end."""
    totals, shape = noted["totals"], method.shape
    all_data = float(np.sum(totals["sum_all_data"])) / (shape.chains * shape.steps)
    if method.kernel.grows and all_data >= _MUCH:
        yield (
            f"{method.name}: {all_data:.0%} of its decisions read all {method.target.n:,} data, so that "
            "its minibatches save little; a lower step size or a higher temperature needs fewer data."
        )
    stopped = int((np.asarray(totals["sum_diverging"]) > 0).sum())
    if stopped and not method.kernel.decides:
        yield (
            f"{method.name}: {stopped} of {shape.chains} chains left the finite numbers and stopped where they "
            "were; a lower step size keeps them."
        )
    elif stopped == shape.chains and np.sum(totals["sum_accepted"]) == 0:
        yield f"{method.name}: no chain ever moved, as log-likelihoods are no finite numbers where it begins."
    if (share := valid_share(method, noted)) < 1 and not stopped:
        yield (
            f"{method.name}: {share:.1%} of its draws are of its target's law; the trace marks them as valid "
            "(sample_stats)."
        )


def valid_share(method: Method, noted: Mapping[str, Any]) -> float:
    """Return the share of the steps after burn-in that leave a draw of the target's law."""
    invalid = float(np.sum(noted["totals"].get("sum_invalid", 0.0)))
    return 1 - invalid / (method.shape.chains * method.shape.steps)
