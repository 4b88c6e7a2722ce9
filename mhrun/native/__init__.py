"""Compiled CPU loops: the same samplers as the plain torch path, compiled by numba.

A *piece* is a plain Python function of scalars and NumPy arrays, marked with `@piece`: an index draw, a model's
log-likelihood difference, a proposal, a rule. `mhrun.compiled` combines pieces into a loop over chains and steps, and
`compiled` turns that into machine code. Pieces remain ordinary functions, which can be called and tested without numba;
numba is imported only when a loop is compiled.
"""

from mhrun.native.compiler import (
    Piece,
    available,
    compiled,
    compiled_once,
    over_chains,
    piece,
    piece_once,
    routine,
)
from mhrun.native.forms import (
    ACCEPT,
    FULL,
    GROWING,
    REJECT,
    SHARED,
    STORED,
    THINNED,
    UNDECIDED,
    Draw,
    NativeBounds,
    NativeDecision,
    NativeDynamics,
    NativeLowerBound,
    NativeModel,
    NativePairing,
    NativeProposal,
    NativeSums,
    NativeTest,
    NativeThinning,
    Seen,
    SequentialTest,
    StepControls,
    native_form,
    no_share,
)

__all__ = [
    "ACCEPT",
    "FULL",
    "GROWING",
    "REJECT",
    "SHARED",
    "STORED",
    "THINNED",
    "UNDECIDED",
    "Draw",
    "NativeBounds",
    "NativeDecision",
    "NativeDynamics",
    "NativeLowerBound",
    "NativeModel",
    "NativePairing",
    "NativeProposal",
    "NativeSums",
    "NativeTest",
    "NativeThinning",
    "Piece",
    "Seen",
    "SequentialTest",
    "StepControls",
    "available",
    "compiled",
    "compiled_once",
    "native_form",
    "no_share",
    "over_chains",
    "piece",
    "piece_once",
    "routine",
]
