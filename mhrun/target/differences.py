"""Differences of the log-likelihood between two points, the input of acceptance tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.random import Draws, Purpose
from mhrun.target.all_data import AllData
from mhrun.target.batches import Batches, moments
from mhrun.target.gradients import likelihoods
from mhrun.target.surrogate import Surrogate
from mhrun.types import Difference, Evaluation, Model


class Differences:
    """Mean differences log p(x | candidate) - log p(x | origin), on minibatches or all data, with their errors.

    The summand of a datum is a *term*. With a surrogate it is the difference of the datum's remainders, and `known` is
    the rest.

    Args:
        model: the log-likelihood.
        read: returns the data; called on first use.
        all_data: sums over all data.
        batches: the errors of minibatch means.
        surrogate: control variate of the terms, or None.
        noise: variance of normal noise added to the energy at each of the two points of a replica exchange.
    """

    def __init__(
        self,
        model: Model,
        read: Callable[[], Dataset],
        all_data: AllData,
        batches: Batches,
        surrogate: Surrogate | None,
        noise: float,
    ) -> None:
        self._model = model
        self._read = read
        self._all = all_data
        self._batches = batches
        self._surrogate = surrogate
        self._noise = noise

    def between(self, origin: Tensor, candidate: Tensor, index: Tensor) -> Difference:
        """Return the difference of two points (C, D) on the minibatch `index` (C, m)."""
        m = index.shape[-1]
        if self._surrogate is not None:
            mean, var = moments(self.terms(origin, candidate, index))
        else:
            rows = self._read().rows(index)
            at_candidate = likelihoods(self._model.log_lik(candidate, rows))
            mean, var = moments(at_candidate - self._model.log_lik(origin, rows))
        known_mean = self.known(origin, candidate)
        return Difference(
            mean, var, _sizes(m, mean), self._batches.error(var, m), self.per_term * m, known_mean
        )

    def paired(self, origin: Evaluation, candidate: Evaluation) -> Difference:
        """Return the difference of two evaluations on one minibatch, from its per-datum terms."""
        assert origin.log_lik is not None
        assert candidate.log_lik is not None
        terms = candidate.log_lik.double() - origin.log_lik
        m = origin.log_lik.shape[-1]
        if self._surrogate is not None:
            assert origin.rows is not None
            terms = terms - self._surrogate.terms(candidate.theta, origin.rows)
            terms = terms + self._surrogate.terms(origin.theta, origin.rows)
        mean, var = moments(terms)
        known_mean, n_lik = self.known(origin.theta, candidate.theta), (self.per_term - 2) * m
        return Difference(mean, var, _sizes(m, mean), self._batches.error(var, m), n_lik, known_mean)

    def unpaired(self, origin: Evaluation, candidate: Evaluation, m: int) -> Difference:
        """Return the difference of two evaluations on independent minibatches of m, or on all data if m = n."""
        assert origin.log_lik_mean is not None
        assert origin.log_lik_var is not None
        assert candidate.log_lik_mean is not None
        assert candidate.log_lik_var is not None
        mean = candidate.log_lik_mean - origin.log_lik_mean
        var = candidate.log_lik_var + origin.log_lik_var
        return Difference(mean, var, _sizes(m, mean), self._batches.error(var, m))

    def terms(self, origin: Tensor, candidate: Tensor, index: Tensor) -> Tensor:
        """Return log p(x | candidate) - log p(x | origin) for each datum of `index` (R, k).

        With a surrogate: the difference of the remainders, see `known`.
        """
        return self._all.terms(origin, candidate, self._read().rows(index))

    def remainders(self, theta: Tensor, index: Tensor) -> Tensor:
        """Return the log-likelihoods l_i(theta) of the minibatch `index` (C, m), (C, m), float64.

        With a surrogate: those of the remainders, r_i(theta) = l_i(theta) - l_i(ref) - t_i(theta) + t_i(ref). Their sum
        over all data plus `Surrogate.total` is the log-likelihood up to a constant.
        """
        rows = self._read().rows(index)
        if self._surrogate is None:
            return likelihoods(self._model.log_lik(theta, rows)).double()
        reference = self._surrogate.reference.theta.repeat(len(theta), 1)
        return self._all.terms(reference, theta, rows)

    @property
    def per_remainder(self) -> int:
        """How many evaluations a remainder costs: one, and that of the expansion with a surrogate."""
        return 1 if self._surrogate is None else 2

    @property
    def per_term(self) -> int:
        """How many evaluations a term costs: at both points, and one of the expansion with a surrogate."""
        return 2 if self._surrogate is None else 3

    def known(self, origin: Tensor, candidate: Tensor) -> Tensor | None:
        """Return the mean over all data of the surrogate's part of the difference, (C,); None without a surrogate.

        The mean difference of the log-likelihoods is this plus the mean of the terms.
        """
        if self._surrogate is None:
            return None
        return (self._surrogate.total(candidate) - self._surrogate.total(origin)) / self._read().n

    def full_mean(self, origin: Tensor, candidate: Tensor) -> Tensor:
        """Return the mean of the terms over all data (C,)."""
        mean = (self._all.log_lik(candidate) - self._all.log_lik(origin)) / self._read().n
        known_mean = self.known(origin, candidate)
        return mean if known_mean is None else mean - known_mean

    def full_moments(self, origin: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (divisor n) of the terms over all data, each (C,)."""
        return self._all.moments(origin, candidate)

    def full_largest(self, origin: Tensor, candidate: Tensor) -> Tensor:
        """Return the largest absolute term over all data (C,): exact, or the model's bound."""
        return self._all.largest(origin, candidate)

    def add_noise(self, difference: Difference, draws: Draws) -> Difference:
        """Return a difference of two energies, divided by n, with the target's noise (`energy_noise`) on each."""
        variance = 2 * self._noise / self._read().n ** 2
        z = draws.normal(Purpose.EXCHANGE, 1)[:, 0]
        return difference._replace(
            mean=difference.mean + variance**0.5 * z, error=difference.error + variance
        )


def _sizes(m: int, like: Tensor) -> Tensor:
    return torch.full_like(like, m, dtype=torch.int64)
