"""The statistics that a step reports, and how they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from mhrun.exchanges import NEVER

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Info(NamedTuple):
    """What one step of any kernel reports, each (C,). Traces are allocated from this declaration."""

    accepted: Tensor  # bool: the candidate was accepted; with a dynamics, the chain moved
    log_ratio: Tensor  # log acceptance ratio; NaN with a dynamics
    log_ratio_var: Tensor  # estimated variance of log_ratio over minibatches; NaN with a dynamics
    batch_size: Tensor  # data used for the decision or the gradient, as papers count them
    # The three counts are the algorithm's: a faster exact form of the model does not lower them.
    n_lik: Tensor  # per-datum log-likelihoods evaluated in this step
    # the part of n_lik spent on full-data statistics, which papers leave out of their counts
    n_lik_overhead: Tensor
    n_grad: Tensor  # per-datum gradients evaluated in this step
    diverging: Tensor  # bool: a value was not finite, or a trajectory unstable, and the step was rejected
    # Fields that only some kernels set; None stands for the value in INFO_DEFAULTS.
    exchange: Tensor | None = None  # int8, of ladders: 0 none proposed, 1 rejected, 2 accepted
    valid: Tensor | None = None  # bool: theta is a valid draw
    log_ratio_skew: Tensor | None = None  # skewness of the terms used / sqrt(their number); 0 with all data
    violations: Tensor | None = None  # terms that exceeded the model's bound; a run stops at the first


INFO_DEFAULTS: dict[str, float] = {
    "exchange": NEVER,
    "valid": 1,
    "log_ratio_skew": math.nan,
    "violations": 0,
}

INFO_DTYPES: dict[str, str] = {
    "accepted": "bool",
    "log_ratio": "float32",
    "log_ratio_var": "float32",
    "batch_size": "int32",
    "n_lik": "int64",
    "n_lik_overhead": "int64",
    "n_grad": "int64",
    "diverging": "bool",
    "exchange": "int8",
    "valid": "bool",
    "log_ratio_skew": "float32",
    "violations": "int32",
}

EVALUATIONS = ("n_lik", "n_lik_overhead", "n_grad")
"""The fields of `Info` that count evaluations: of a ladder they are added up."""

Record = Mapping[str, "npt.NDArray[np.generic]"]
"""The trace of some steps: each field of `Info` (C, K), and ``theta`` (C, draws, D) at the stored steps.

A compiled loop returns theta at every step.
"""
