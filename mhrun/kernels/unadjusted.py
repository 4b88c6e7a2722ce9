"""A dynamics without an acceptance test."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from mhrun.build import check_attributes
from mhrun.errors import Refusal, UserError
from mhrun.kernels.preconditioned import UNSCALED_NOISE, PreconditionedDynamics
from mhrun.parts import AUTO, Bias, Dynamics, Kernel, checked_minibatch_size
from mhrun.priors import Prior
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.target.gradients import likelihoods
from mhrun.types import BUFFER, Controls, Evaluation, Info, State
from mhrun.types.scale import Scale


class Unadjusted(Kernel):
    """Each step draws a minibatch of `m`, computes its gradient and moves by the dynamics.

    A chain with a non-finite value stops at its last finite point, and all its later steps are marked as diverging. The
    other chains continue.

    With a surrogate of the target, a minibatch's gradient has it as control variate, see `PosteriorGradients.reduced`.
    With SGLD and ``taylor1`` this is SGLD-CV (Baker et al. 2019).

    Args:
        dynamics: the transition of theta.
        m: minibatch size; None for all data; "auto": a pilot chooses it.
        passes: take minibatches as consecutive pieces of all data in a random order, drawn anew for each pass, as
            optimisers do; the remaining n mod m data of a pass are skipped.
        prior: an additional prior of this method; the model's prior applies too.

    Raises:
        Refusal: an object that does not derive from `mhrun.parts.Dynamics`.
    """

    keeps_buffers = True
    dynamics: Dynamics

    @property
    def optimises(self) -> bool:  # type: ignore[override]
        """Whether the dynamics is an optimiser."""
        return self.dynamics.optimises

    @property
    def needs_noise(self) -> bool:
        """Whether the dynamics is undefined at a noise temperature of 0."""
        return self.dynamics.needs_noise

    def __init__(
        self, dynamics: Dynamics, m: int | str | None, passes: bool = False, prior: Prior | None = None
    ) -> None:
        if not isinstance(dynamics, Dynamics):
            raise Refusal(
                f"{type(dynamics).__name__} of {type(dynamics).__module__} is not a kind of dynamics; those are in "
                "mhrun.dynamics, and a new one derives from mhrun.parts.Dynamics."
            )
        check_attributes(dynamics)
        if not isinstance(dynamics.bias, Bias):
            raise Refusal(
                f"bias of {type(dynamics).__name__} is {dynamics.bias!r}; declare bias = mhrun.Bias(noise=...)."
            )
        self.dynamics = dynamics
        self.m = None if m is None else checked_minibatch_size(m)
        if m == AUTO:
            self.m_is_open = True
        self.passes = passes
        self.prior = prior

    def with_m(self, m: int) -> Self:
        """Return a copy with this minibatch size."""
        changed = copy.copy(self)
        changed.m, changed.m_is_open = m, False
        return changed

    def with_scale(self, scale: Scale) -> Self:
        """Return a copy whose dynamics moves in scaled coordinates.

        Raises:
            Refusal: a dynamics that takes a known gradient noise off.
        """
        if self.dynamics.known_noise:
            raise Refusal(UNSCALED_NOISE)
        changed = copy.copy(self)
        changed.dynamics = PreconditionedDynamics(self.dynamics, scale)
        return changed

    def refuses(self, target: Target) -> str | None:
        """Return why a minibatch of m cannot be drawn, or None."""
        if self.passes and (self.m is None or self.m > target.n or target.replacement or target.common_batch):
            return "passes=true needs m <= n, replacement=false and common_batch=false."
        if self.prior is not None and self.dynamics.energies:
            return f"{type(self.dynamics).__name__} needs energies, which the method's own prior does not provide."
        if self.prior is not None and target.temper == "likelihood":
            return (
                "temper=likelihood keeps the model's prior at every temperature, but not the method's own; give the "
                "model that prior, or choose temper=posterior."
            )
        if self.prior is not None and (reason := self.prior.refuses(target)):
            return reason
        if self.m is None and target.has_buffers:
            return "layers that keep statistics of minibatches (BatchNorm) need minibatches; set m."
        if target.surrogate is not None and target.has_buffers:
            return (
                "the log-likelihood with layers that keep statistics of minibatches (BatchNorm) has no fixed "
                "derivatives for a surrogate; choose surrogate=none (target.surrogate in a configuration)."
            )
        return target.batches.refuses(self.m, is_open=self.m_is_open) if self.m is not None else None

    def refuses_ladder(self) -> str | None:
        """Return why it cannot move the rungs of a ladder, or None: exchanges use the model's prior only."""
        if self.prior is not None:
            return (
                f"{type(self).__name__} defines its own prior, which the ratio of an exchange would leave out; "
                "give the model that prior."
            )
        return super().refuses_ladder()

    @property
    def pass_size(self) -> int | None:
        """The minibatch size; None where all data are read, or a pilot is to choose it."""
        return None if self.m_is_open else self.m

    def reads(self, target: Target) -> int:
        """Return the minibatch size."""
        return self.m if self.m is not None else target.n

    def _gradients_of(self, target: Target) -> int:
        """Return the per-datum gradients of a step."""
        return target.n if self.m is None else target.gradients.per_datum * self.m

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the initial state at theta (C, D)."""
        stopped = torch.zeros(len(theta), dtype=torch.bool, device=theta.device)
        aux = self.dynamics.start(theta, draws) | {"stopped": stopped} | target.first_buffers(theta)
        return State(target.prior(theta), aux | (self.prior.start(target, theta) if self.prior else {}))

    def separate_gradients(self) -> float:
        """Return 0 for a dynamics of energies, which come from the pass of the gradient, else 1."""
        return 0.0 if self.dynamics.energies else 1.0

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain by one step."""
        aux = dict(state.aux)
        stopped = aux.pop("stopped")
        before = {name: aux.pop(name) for name in state.aux if name.startswith(BUFFER)}
        after = before
        theta = state.evaluation.theta
        index = None
        if self.m is not None:
            index = target.batches.piece(draws, self.m) if self.passes else target.batches.draw(draws, self.m)
        n_lik = 0
        if before:
            assert index is not None
            grad, log_lik, after = target.gradients.train(theta, index, controls.temperature, before)
            if self.dynamics.energies:
                aux["log_density"] = self._energy(target, target.prior(theta), log_lik, controls.temperature)
                n_lik = self.reads(target)
        elif self.dynamics.energies:
            grad, aux["log_density"] = self._with_energy(target, theta, index, controls.temperature)
            n_lik = self.reads(target)
        elif index is None:
            grad = target.gradients.full(theta, controls.temperature)
        else:
            grad = target.gradients.reduced(theta, index, controls.temperature)
        grad = target.gradients.add_noise(grad, draws)
        if self.prior is not None:
            grad = self.prior.add_gradient(target, theta, grad, aux)
        updated, aux, stopped = self.move(theta, grad, aux | {"stopped": stopped}, controls, draws)
        aux.pop("log_density", None)
        if self.prior is not None:
            aux = self.prior.resample(target, updated, aux, draws)
        nan = torch.full_like(controls.step_size, torch.nan)
        info = Info(
            accepted=~stopped,
            log_ratio=nan,
            log_ratio_var=nan,
            batch_size=torch.full_like(stopped, self.reads(target), dtype=torch.int32),
            n_lik=torch.full_like(stopped, n_lik, dtype=torch.int64),
            n_lik_overhead=torch.zeros_like(stopped, dtype=torch.int64),
            n_grad=torch.full_like(stopped, self._gradients_of(target), dtype=torch.int64),
            diverging=stopped,
            valid=~stopped & aux["valid"] if self.dynamics.marks_valid else ~stopped,
        )
        buffers = {name: _where(stopped, value, after[name]) for name, value in before.items()}
        return State(target.prior(updated), aux | {"stopped": stopped} | buffers), info

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the next theta (C, D), aux without ``stopped``, and which chains have stopped (C,).

        Raises:
            UserError: the dynamics returns no pair, a theta of another shape or type, or not all of its aux.
        """
        aux = dict(aux)
        stopped = aux.pop("stopped")
        moved = self.dynamics.move(theta, grad, aux, controls, draws)
        if not (isinstance(moved, tuple) and len(moved) == 2):
            raise UserError(
                f"{type(self.dynamics).__name__}.move must return the next theta and aux, a pair."
            )
        updated, aux_moved = moved
        if updated.shape != theta.shape:
            raise UserError(
                f"{type(self.dynamics).__name__}.move returned a theta of shape {tuple(updated.shape)}, not (C, D) = "
                f"{tuple(theta.shape)}."
            )
        if updated.dtype != theta.dtype:
            raise UserError(
                f"{type(self.dynamics).__name__}.move returned a theta of {updated.dtype}, not {theta.dtype}."
            )
        lost = sorted(aux.keys() - aux_moved.keys() - {"log_density"})
        # What a hyperprior keeps is not the dynamics', and a new name is refused before the run.
        if lost and self.prior is None and aux_moved.keys() <= aux.keys():
            raise UserError(
                f"{type(self.dynamics).__name__}.move returned no aux['{lost[0]}'], which would keep its value: return "
                "all auxiliary variables that move receives."
            )
        stopped = stopped | ~updated.isfinite().all(-1)
        return torch.where(stopped[:, None], theta, updated), aux | aux_moved, stopped

    @staticmethod
    def _with_energy(
        target: Target, theta: Tensor, index: Tensor | None, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient (C, D) and the value (C,) of the log posterior, from one minibatch or all data."""
        if index is not None:
            log_lik, grad = target.gradients.log_lik_and_reduced(theta, index, temperature)
            return grad, Unadjusted._energy(target, target.prior(theta), likelihoods(log_lik), temperature)
        point = target.evaluate_full(theta, temperature)
        assert point.grad is not None
        return point.grad, Unadjusted._energy(target, point, point.log_lik_mean, temperature)

    @staticmethod
    def _energy(target: Target, point: Evaluation, log_lik: Tensor | None, temperature: Tensor) -> Tensor:
        """Return the log posterior (C,), from the mean log-likelihood (C,) or its terms (C, m)."""
        assert log_lik is not None
        mean = log_lik.double().mean(-1) if log_lik.dim() == 2 else log_lik
        return target.value(mean, point.log_prior, temperature)


def _where(stopped: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return the buffers (C, ...) of chains that have stopped, and the new ones of the others."""
    return torch.where(stopped.reshape(-1, *[1] * (before.dim() - 1)), before, after)
