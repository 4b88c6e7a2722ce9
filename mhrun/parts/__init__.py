"""Base classes of the parts of a kernel, and the attributes that each part declares.

A part derives from its base class and inherits the defaults of undeclared attributes. Whether parts go together is
decided by these attributes, so that a user's part can replace any of these. A kernel has those of its parts that there
are; a pilot fills in those of mhrun's own kernels, which it knows by their class.
"""

from __future__ import annotations

from mhrun.parts.auto import AUTO, checked_minibatch_size
from mhrun.parts.dynamics import Bias, Dynamics
from mhrun.parts.kernel import Kernel
from mhrun.parts.pairing import ARRIVALS, DIFFERENCE, ESTIMATES, SUPPLY, Pairing
from mhrun.parts.proposal import Proposal, TrajectoryProposal
from mhrun.parts.rule import Rule

PARTS = (Kernel, Proposal, Pairing, Rule, Dynamics)
"""The base classes."""

__all__ = [
    "ARRIVALS",
    "AUTO",
    "DIFFERENCE",
    "ESTIMATES",
    "PARTS",
    "SUPPLY",
    "Bias",
    "Dynamics",
    "Kernel",
    "Pairing",
    "Proposal",
    "Rule",
    "TrajectoryProposal",
    "checked_minibatch_size",
]
