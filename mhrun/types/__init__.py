"""Types shared by all packages.

Letters: C chains, D parameters, m minibatch size, n observations (data), K steps of a block. Every tensor of
a step has the leading dimension C. Trials, the rungs of a ladder, replicas and seeds are all chains.
"""

from __future__ import annotations

from mhrun.types.capabilities import blocks_of, prior_summary_of
from mhrun.types.decision import (
    BOUND_KINDS,
    Arrivals,
    Bounds,
    Contest,
    Difference,
    Events,
    Reference,
    Supply,
    Verdict,
)
from mhrun.types.info import INFO_DEFAULTS, INFO_DTYPES, Info, Record
from mhrun.types.model import DataShape, Field, Model, ParameterBlock, Rows
from mhrun.types.state import BUFFER, Controls, Evaluation, State, Trajectory, choose

__all__ = [
    "BOUND_KINDS",
    "BUFFER",
    "INFO_DEFAULTS",
    "INFO_DTYPES",
    "Arrivals",
    "Bounds",
    "Contest",
    "Controls",
    "DataShape",
    "Difference",
    "Evaluation",
    "Events",
    "Field",
    "Info",
    "Model",
    "ParameterBlock",
    "Record",
    "Reference",
    "Rows",
    "State",
    "Supply",
    "Trajectory",
    "Verdict",
    "blocks_of",
    "choose",
    "prior_summary_of",
]
