"""Minibatch energy estimates at several minibatch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.target.gradients import likelihoods
from mhrun.target.reference import low_energy


class Energies:
    """Estimates of h = -log posterior, from a minibatch of the size of the chain's rung (exact where that is n).

    Args:
        sizes: minibatch sizes, one per rung.
        anchor: reference point (D,) of the differences; None for one near a mode, see `low_energy`.
        differences: estimate h by h(anchor) - (n/m) sum_i (l_i(theta) - l_i(anchor)) instead of
            -(n/m) sum_i l_i(theta).
        gradients: whether gradients are needed as well.
    """

    def __init__(
        self, sizes: Sequence[int], anchor: Sequence[float] | None, differences: bool, gradients: bool
    ) -> None:
        self.sizes = tuple(int(m) for m in sizes)
        self.anchor = None if anchor is None else torch.as_tensor(list(anchor), dtype=torch.float64)
        self.differences = differences
        self.gradients = gradients
        self._memo: tuple[Target, Tensor, float, float] | None = None

    def _anchored(self, target: Target) -> tuple[Tensor, float, float]:
        """Return the anchor (D,), H_0 and the log-likelihood of all data there.

        Raises:
            Refusal: no anchor was given, and none found; or H_0 is not finite.
        """
        if self._memo is None or self._memo[0] is not target:
            point = (_low_energy_point(target) if self.anchor is None else self.anchor).to(target.device)
            total = float(target.full_log_lik(point[None]))
            lowest = -total - float(target.model.log_prior(point[None]))
            if not math.isfinite(lowest):
                raise Refusal(
                    f"the anchor has an energy of {lowest:g}, which must be finite; give another anchor."
                )
            self._memo = target, point, lowest, total
        return self._memo[1:]

    def lowest(self, target: Target) -> tuple[float, float]:
        """Return H_0 and the log-likelihood of all data at the anchor."""
        return self._anchored(target)[1:]

    def point(self, target: Target) -> Tensor:
        """Return the anchor (D,)."""
        return self._anchored(target)[0]

    def each(self, chains: int, device: torch.device) -> Tensor:
        """Return the minibatch size of each chain (C,)."""
        return torch.tensor(self.sizes, device=device).repeat(chains // len(self.sizes))

    def batch(self, target: Target, draws: Draws) -> Tensor | None:
        """Return the indices of this step's largest minibatch of each chain; smaller ones are its prefixes.

        None if all chains read all data.
        """
        m = max((m for m in self.sizes if m < target.n), default=0)
        return target.batches.draw(draws, m) if m else None

    def of(
        self,
        target: Target,
        theta: Tensor,
        index: Tensor | None,
        grad_temperature: Tensor | None,
        reference: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return energy (R,), the gradient of -h (R, D) and log-likelihoods (R, m).

        `grad_temperature` (R,) is given if the gradient is needed, `reference` (R,) if differences are: the sums of the
        log-likelihoods at the anchor over the minibatches (`at_anchor`). With index None all data are used, and
        per-datum log-likelihoods are not returned.
        """
        if index is None:
            evaluation = target.evaluate_full(theta, grad_temperature)
            return -evaluation.log_lik_mean * target.n - evaluation.log_prior, evaluation.grad, None  # type: ignore[operator]
        evaluation = target.evaluate(theta, index, grad_temperature)
        assert evaluation.log_lik is not None
        total = evaluation.log_lik.double().sum(1)
        return (
            self._scaled(target, total, reference, evaluation.log_prior, index.shape[1]),
            evaluation.grad,
            evaluation.log_lik,
        )

    def at_anchor(self, target: Target, index: Tensor) -> Tensor | None:
        """Return the sums (R,) of the log-likelihoods at the anchor over minibatches (R, m), None if not needed."""
        if not self.differences:
            return None
        point = self.point(target).expand(len(index), -1)
        return target.model.log_lik(point, target.data.rows(index)).double().sum(1)

    def references(self, target: Target, batch: Tensor | None, rows: Tensor) -> dict[int, Tensor | None]:
        """Return the sums at the anchor (R,) by minibatch size, over the minibatches (C, m) of the chosen chains."""
        return {
            m: self.at_anchor(target, batch[at, :m])
            for m, at in self._chains_by_size(rows)
            if batch is not None and m < target.n
        }

    def _chains_by_size(self, rows: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield each minibatch size that some of the chains chosen by `rows` (C,) have, and those chains (R,)."""
        sizes = self.each(len(rows), rows.device)
        for m in sorted(set(self.sizes)):
            at = (rows & (sizes == m)).nonzero()[:, 0]
            if len(at):
                yield m, at

    def _scaled(
        self, target: Target, total: Tensor, reference: Tensor | None, log_prior: Tensor, m: int
    ) -> Tensor:
        """Return the energy (R,) estimated from sums (R,) of log-likelihoods over minibatches (R, m)."""
        if reference is None:
            return -total * (target.n / m) - log_prior
        return -(total - reference) * (target.n / m) - self.lowest(target)[1] - log_prior

    def by_size(
        self,
        target: Target,
        theta: Tensor,
        batch: Tensor | None,
        grad_temperature: Tensor,
        rows: Tensor,
        references: dict[int, Tensor | None],
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Return energies (C,), gradients of -h (C, D) and log-likelihoods by minibatch size, for the chosen chains.

        `batch` is (C, m) or None, `grad_temperature` (C,) the temperatures, `rows` (C,) selects the chains, and
        `references` are the sums at the anchor for these chains.
        """
        energy = torch.full((len(theta),), torch.nan, dtype=torch.float64, device=theta.device)
        grad, log_liks = torch.zeros_like(theta), {}
        for m, at in self._chains_by_size(rows):
            index = None if m == target.n else batch[at, :m]  # type: ignore[index]
            part_energy, pull, log_lik = self.of(
                target, theta[at], index, grad_temperature[at] if self.gradients else None, references.get(m)
            )
            energy[at] = part_energy
            if pull is not None:
                grad[at] = pull
            if log_lik is not None:
                log_liks[m] = log_lik
        return energy, grad, log_liks

    def topped(self, target: Target, theta: Tensor, energy: Tensor, index: Tensor, known: int) -> Tensor:
        """Return energies (P,): `energy`, estimated from the first `known` data, then extended by `index` (P, m)."""
        log_prior = target.model.log_prior(theta).double()
        total = likelihoods(target.model.log_lik(theta, target.data.rows(index))).double().sum(1)
        base = 0.0
        reference = self.at_anchor(target, index)
        if reference is not None:
            total, base = total - reference, self.lowest(target)[1]
        before = -(energy + log_prior + base) * (known / target.n)
        return -(before + total) * (target.n / (known + index.shape[1])) - base - log_prior

    def noise(
        self,
        target: Target,
        one: dict[int, Tensor],
        two: dict[int, Tensor],
        local: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        """Return the estimated variance of the log-ratio over minibatches (C,): 0 for all data, NaN without a move."""
        var = torch.where(local, 0.0, torch.nan).double()
        for m, first in one.items():
            at = (local & (self.each(len(local), local.device) == m)).nonzero()[:, 0]
            spread = (two[m].double() - first).var(1) if m > 1 else torch.full_like(var[at], torch.nan)
            var[at] = (target.n / temperature[at]) ** 2 * spread / m * target.batches.error_share(m)
        return var


def _low_energy_point(target: Target) -> Tensor:
    """Return a point (D,) with an energy that hardly any other is below.

    Raises:
        Refusal: the search for it failed.
    """
    try:
        return low_energy(target.model, target.data)
    except UserError as error:
        raise Refusal(
            "no mode of the posterior was found; give kernel.anchor a point of low energy: below that of the anchor "
            "the densities of the rungs are flat."
        ) from error
