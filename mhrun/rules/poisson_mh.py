"""PoissonMH: exact minibatch Metropolis-Hastings with a fixed excess rate."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeThinning, piece
from mhrun.rules.thinning import Thinning


class PoissonMH(Thinning):
    """Thinning with a = rate / B and kappa_i = a b_i + (b_i - |t_i|) / 2 (after Zhang & De Sa 2019).

    A step reads rate + B data on average, where B is the sum of the bounds b_i on the terms divided by T. Zhang & De Sa
    (2019) bound each energy over the whole space, so that their counts depend on one point only; here the bounds are
    those of the difference between the two points, as for TunaMH, which exist for unbounded energies too. TunaMH's rate
    chi B^2 adapts to the length of the move; this one is constant.

    Args:
        rate: expected number of data read in addition to B, positive.
        at_most: most arrivals expected in a step that is not decided on all data; None: n.

    Raises:
        Refusal: `rate` is not positive and finite, or `at_most` is not positive.
    """

    lifts = True

    def __init__(self, rate: float = 100.0, at_most: float | None = None) -> None:
        super().__init__(at_most)
        if not 0 < rate < math.inf:
            raise Refusal(f"rate = {rate:g} must be positive and finite.")
        self.rate = float(rate)

    def share(self, total: Tensor) -> Tensor:
        """Return rate / B (C,); 0 if nothing is to be read."""
        return (self.rate / total).masked_fill(total == 0, 0.0)

    def thinning(self) -> NativeThinning:
        """Return the form of this rule in a compiled loop."""
        return self._native((self.rate,), _share)


@piece
def _share(args: Any, total: Any) -> Any:
    return args[0] / total if total > 0 else 0.0
