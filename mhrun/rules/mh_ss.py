"""MH-SS: Metropolis-Hastings with scalable subsampling."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeThinning, piece
from mhrun.rules.thinning import Thinning


class MHSS(Thinning):
    """Thinning with kappa_i = gamma b_i and one final test (after Prado, Nemeth & Sherlock 2024).

    b_i is the bound of datum i's term divided by T. A step reads (1 + gamma) B data on average, B the sum of all b_i.
    A larger gamma reads more data and accepts more often; gamma = 0 is SMH. Made for ``target.surrogate=taylor1`` or
    ``taylor2``, with which B no longer grows with n where the posterior concentrates.

    Args:
        gamma: at least 0.
        at_most: most arrivals expected in a step that is not decided on all data; None: n.

    Raises:
        Refusal: `gamma` is negative or not finite, or `at_most` is not positive.
    """

    def __init__(self, gamma: float = 0.1, at_most: float | None = None) -> None:
        super().__init__(at_most)
        if not 0 <= gamma < math.inf:
            raise Refusal(f"gamma = {gamma:g} must be at least 0 and finite.")
        self.gamma = float(gamma)

    def share(self, total: Tensor) -> Tensor:
        """Return gamma (C,)."""
        return total * 0.0 + self.gamma

    @property
    def only_lowers(self) -> bool:
        """Whether an arrival that is kept rejects: gamma = 0."""
        return self.gamma == 0

    def thinning(self) -> NativeThinning:
        """Return the form of this rule in a compiled loop."""
        return self._native((self.gamma,), _share)


@piece
def _share(args: Any, total: Any) -> Any:
    return args[0]
