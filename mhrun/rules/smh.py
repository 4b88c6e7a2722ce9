"""SMH: scalable Metropolis-Hastings, a factorised acceptance probability."""

from __future__ import annotations

from torch import Tensor

from mhrun.native import NativeThinning, no_share
from mhrun.rules.thinning import Thinning


class SMH(Thinning):
    """Accept with probability min(1, exp(offset)) prod_i min(1, exp(t_i)) (Cornish et al. 2019).

    t_i is the term of datum i divided by T. Thinning with kappa_i = 0: arrivals at datum i at the rate b_i >= |t_i|,
    each of which rejects with probability max(-t_i, 0) / b_i. Data are read until the first that rejects, and none if
    the offset does. With ``target.surrogate=taylor1`` or ``taylor2`` it is SMH-1 or SMH-2: the number of data read no
    longer grows with n where the posterior concentrates. Without a surrogate the
    product is far below the ratio of the target for many data, and almost no move is accepted.

    Args:
        at_most: most arrivals expected in a step that is not decided on all data; None: n.

    Raises:
        Refusal: `at_most` is not positive.
    """

    def share(self, total: Tensor) -> Tensor:
        """Return 0 (C,)."""
        return total * 0.0

    @property
    def only_lowers(self) -> bool:
        """True: an arrival that is kept rejects."""
        return True

    def thinning(self) -> NativeThinning:
        """Return the form of this rule in a compiled loop."""
        return self._native((), no_share)
