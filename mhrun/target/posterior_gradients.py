"""Gradients of the log posterior, from a minibatch or from all data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.random import Draws, Purpose
from mhrun.target.all_data import AllData
from mhrun.target.gradients import Gradients
from mhrun.target.surrogate import Surrogate
from mhrun.types import Evaluation


def prior_power(temper: str, temperature: Tensor) -> Tensor:
    """Return the exponent of the prior at these temperatures (C,): 1/T if it is tempered, else 1."""
    return 1.0 / temperature if temper == "posterior" else torch.ones_like(temperature)


class PosteriorGradients:
    """Gradients (C, D) of the log posterior of all data at theta (C, D).

    If only the likelihood is tempered, the prior's gradient is multiplied by T. A dynamics with noise at temperature T
    then has the target as its small-step limit.

    Args:
        model_gradients: gradients of the log-likelihood and the log-prior.
        read: returns the data; called on first use.
        all_data: sums over all data.
        surrogate: control variate of the minibatch gradient, or None.
        temper: what the temperature applies to: posterior or likelihood.
        noise: variance of normal noise added to each coordinate of the gradients of a dynamics.
    """

    def __init__(
        self,
        model_gradients: Gradients,
        read: Callable[[], Dataset],
        all_data: AllData,
        surrogate: Surrogate | None,
        *,
        temper: str,
        noise: float,
    ) -> None:
        self._model_gradients = model_gradients
        self._read = read
        self._all = all_data
        self._surrogate = surrogate
        self._temper = temper
        self._noise = noise

    def minibatch(self, theta: Tensor, index: Tensor, temperature: Tensor) -> Tensor:
        """Return the gradient (C, D), estimated on the minibatch `index` (C or 1, m)."""
        _, grad = self._model_gradients.log_lik_and_grad(theta, self._read().rows(index))
        return self.scaled(grad, theta[:, : grad.shape[1]], temperature)

    def reduced(self, theta: Tensor, index: Tensor, temperature: Tensor) -> Tensor:
        """Return `minibatch` (C, D) with the surrogate as a control variate; the same without a surrogate."""
        return self.log_lik_and_reduced(theta, index, temperature)[1]

    def log_lik_and_reduced(self, theta: Tensor, index: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) on the minibatch `index` (C or 1, m), and `reduced` (C, D).

        With remainders r_i = l_i - t_i the gradient is sum_all grad t_i + n mean_I grad r_i + that of the prior: the
        mean over minibatches is that of `minibatch`, the variance is that of grad r_i.
        """
        rows = self._read().rows(index)
        log_lik, grad = self._model_gradients.log_lik_and_grad(theta, rows)
        if self._surrogate is not None:
            grad = grad - self._surrogate.gradient_error(theta, rows).to(grad)
        return log_lik, self.scaled(grad, theta[:, : grad.shape[1]], temperature)

    @property
    def per_datum(self) -> int:
        """How many gradients a datum of `reduced` costs: one, and that of the expansion with a surrogate."""
        return 1 if self._surrogate is None else 2

    def train(
        self, theta: Tensor, index: Tensor, temperature: Tensor, buffers: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return `minibatch` (C, D) in training mode, the log-likelihoods (C, m), and the buffers afterwards."""
        log_lik, grad, after = self._model_gradients.train(theta, buffers, self._read().rows(index))
        return self.scaled(grad, theta, temperature), log_lik, after

    def full(self, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return the gradient (C, D) from all data, at n gradients a chain."""
        _, grad = self._all.value_and_grad(theta)
        return self.add_prior(grad, theta, temperature)

    def added_to(self, point: Evaluation, temperature: Tensor | None) -> Evaluation:
        """Return the point with its gradient at this temperature (C,), on the data of its evaluation.

        Without a temperature none is needed, and the point is returned as it is.
        """
        if temperature is None:
            return point
        if point.grad is not None:
            return self.retempered(point, temperature)
        if point.batch is None:
            grad, size = self.full(point.theta, temperature), self._read().n
        else:
            grad, size = self.minibatch(point.theta, point.batch, temperature), point.batch.shape[-1]
        return point._replace(
            grad=grad, grad_temperature=self.kept_temperature(temperature), n_grad=point.n_grad + size
        )

    def kept_temperature(self, temperature: Tensor | None) -> Tensor | None:
        """Return the temperature that an evaluation keeps with its gradient; None if the gradient is for any."""
        return None if self._temper == "posterior" else temperature

    def mean_log_lik(self, theta: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) on the minibatch `index` (C, m), and the gradient (C, D) of their mean."""
        return self._model_gradients.log_lik_and_grad(theta, self._read().rows(index))

    def scaled(self, grad: Tensor, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return the gradient (C, D) of the log posterior from that of a minibatch's mean log-likelihood; in place."""
        factor = self._prior_factor(temperature)
        return self._model_gradients.scaled_with_prior(grad, self._read().n, theta, factor)

    def add_prior(self, grad: Tensor, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return grad + T * prior_power(T) * (gradient of the log-prior), (C, D)."""
        return self._model_gradients.add_prior(grad, theta, self._prior_factor(temperature))

    def _prior_factor(self, temperature: Tensor) -> Tensor:
        """Return T * prior_power(T) (C,)."""
        return torch.ones_like(temperature) if self._temper == "posterior" else temperature

    def retempered(self, point: Evaluation, temperature: Tensor) -> Evaluation:
        """Return a point with the gradient that it keeps as one at another temperature (C,).

        A kept gradient contains T times that of the log-prior if the likelihood alone is tempered. Where the
        temperature is the same, so are the bits.
        """
        before = point.grad_temperature
        if point.grad is None or before is None:
            return point
        grad = self._model_gradients.add_prior(point.grad.clone(), point.theta, temperature - before)
        grad = torch.where((temperature == before)[:, None], point.grad, grad)
        return point._replace(grad=grad, grad_temperature=temperature)

    def add_noise(self, grad: Tensor, draws: Draws) -> Tensor:
        """Return the gradient (C, D) plus the target's noise (`gradient_noise`) in each coordinate; in place."""
        if not self._noise:
            return grad
        z = draws.normal(Purpose.GRADIENT, grad.shape[1], dtype=grad.dtype)
        return grad.add_(z, alpha=self._noise**0.5)
