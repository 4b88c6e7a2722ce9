"""TunaMH: exact minibatch Metropolis-Hastings with a tunable minibatch."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeThinning, piece
from mhrun.rules.thinning import Thinning


class TunaMH(Thinning):
    """Thinning with a = chi B and kappa_i = a b_i + (b_i - |t_i|) / 2 (Zhang, Cooper & De Sa 2020, Algorithm 1).

    t_i is the term of datum i divided by T, b_i its bound and B the sum of all b_i; c_i M and C M in the paper.
    A step reads chi B^2 + B data on average: a number of arrivals drawn from Poisson(chi B^2 + B), datum i with
    probability b_i / B, kept with probability (chi b_i B + (b_i - t_i) / 2) / (chi b_i B + b_i). Then

        accept iff log u < offset + sum over the data kept of 2 artanh(t_i / (b_i (1 + 2 chi B))).

    The target is invariant for every chi. A larger chi reads more data and accepts more often.

    Args:
        chi: chi > 0.
        at_most: most arrivals expected in a step that is not decided on all data; None: n.

    Raises:
        Refusal: `chi` is not positive and finite, or `at_most` is not positive.
    """

    lifts = True

    def __init__(self, chi: float = 1e-5, at_most: float | None = None) -> None:
        super().__init__(at_most)
        if not 0 < chi < math.inf:
            raise Refusal(f"chi = {chi:g} must be positive and finite.")
        self.chi = float(chi)

    def share(self, total: Tensor) -> Tensor:
        """Return chi B (C,)."""
        return self.chi * total

    def thinning(self) -> NativeThinning:
        """Return the form of this rule in a compiled loop."""
        return self._native((self.chi,), _share)


@piece
def _share(args: Any, total: Any) -> Any:
    return args[0] * total
