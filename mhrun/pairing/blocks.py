"""Each point on a minibatch in blocks, of which a candidate replaces one."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.numbers import whole_number
from mhrun.parts import ESTIMATES, Pairing
from mhrun.random import Draws, Purpose
from mhrun.target import Target
from mhrun.types import Difference, Evaluation


class Blocks(Pairing):
    """The log-likelihood of a point is estimated on m data u, drawn with replacement and kept with the point.

    l(theta, u) = Q(theta) + (n/m) sum over i in u of r_i(theta), with the surrogate's sum Q and remainders r_i; without
    a surrogate Q = 0 and r_i is the log-likelihood. The candidate's u' is u with one of its G blocks drawn anew, so
    that the two estimates have a correlation of about 1 - 1/G (block pseudo-marginal, Tran et al. 2016; Quiroz et al.
    2019). The pairing is reversible in u: the stationary distribution of (theta, u) is that of
    `mhrun.rules.pseudo_marginal.PseudoMarginal`.

    Args:
        m: size of u.
        blocks: G, at most m. Blocks have the size m / G, rounded up, and are as few as cover u; the last overlaps the
            one before if it must.

    Raises:
        Refusal: an invalid setting.
    """

    offers = ESTIMATES
    keeps_batch = True
    keeps_index = True

    m: int

    def __init__(self, m: int, blocks: int = 50) -> None:
        self.m, blocks = whole_number("m", m, least=1), whole_number("blocks", blocks, least=1)
        self.size = -(-self.m // min(blocks, self.m))
        self.blocks = -(-self.m // self.size)

    def refuses(self, target: Target) -> str | None:
        """Return why the target is incompatible, or None."""
        if target.common_batch:
            return "each chain keeps its own minibatch: common_batch=false."
        if target.transforms is not None:
            return "a minibatch that is kept needs fixed data: leave out the transforms of the data."
        return None

    def reads(self, target: Target) -> int:
        """Return the evaluations of a step: those of the candidate on its m data."""
        return self.m * target.differences.per_remainder

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the evaluation at the starting points, each on a first minibatch."""
        return self._evaluated(target, theta, draws.index(target.n, self.m, replacement=True))

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the evaluation from when the point was proposed."""
        return kept

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Difference]:
        """Evaluate the candidate on the origin's minibatch with one block drawn anew."""
        assert origin.batch is not None
        assert origin.log_lik_mean is not None
        assert origin.log_lik_var is not None
        size = self.size
        block = (self.blocks * draws.uniform(Purpose.MINIBATCH, use=1)).long()
        first = (size * block).clamp_max(self.m - size)
        place = first[:, None] + torch.arange(size, device=theta.device)
        index = origin.batch.scatter(1, place, draws.index(target.n, size, replacement=True))
        candidate = self._evaluated(target, theta, index)
        assert candidate.log_lik_mean is not None
        assert candidate.log_lik_var is not None
        mean = candidate.log_lik_mean - origin.log_lik_mean
        before, after = origin.log_lik_var / self.m, candidate.log_lik_var / self.m
        difference = Difference(
            mean,
            candidate.log_lik_var + origin.log_lik_var,
            torch.full_like(mean, self.m, dtype=torch.int64),
            before + after,
            known=target.differences.known(origin.theta, theta),
            error_change=after - before,
        )
        return candidate, difference

    def _evaluated(self, target: Target, theta: Tensor, index: Tensor) -> Evaluation:
        terms = target.differences.remainders(theta, index)
        # m = 1: a single datum has no sample variance, unless it is all
        single = 0.0 if target.n == 1 else torch.nan
        var = terms.var(-1) if self.m > 1 else torch.full_like(terms[:, 0], single)
        return target.prior(theta)._replace(
            log_lik_mean=terms.mean(-1),
            log_lik_var=var,
            batch=index,
            n_lik=self.m * target.differences.per_remainder,
        )
