"""The Metropolis-Hastings step as one compiled loop over chains and steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mhrun.compiled.growing import GrowingLoop
from mhrun.compiled.loop import Loop, register
from mhrun.compiled.loop_inputs import LoopInputs
from mhrun.kernels import MetropolisHastings
from mhrun.native import (
    FULL,
    SHARED,
    STORED,
    NativeModel,
    NativePairing,
    NativeProposal,
    Piece,
    native_form,
    piece,
)
from mhrun.native.philox import ACCEPT, MINIBATCH, Workspaces, filler, split_key, uniform
from mhrun.target import Target
from mhrun.types import Controls, Evaluation, Record, State

u64 = np.uint64
_bodies: dict[tuple[Piece, ...], Piece] = {}


class MetropolisLoop:
    """See `MetropolisHastings`: the same step and the same random numbers, compiled."""

    def __init__(
        self,
        model: NativeModel,
        proposal: NativeProposal,
        pairing: NativePairing,
        threshold: Piece,
        target: Target,
        key: int,
        threads: int,
    ) -> None:
        self._model = model
        self._proposal = proposal
        self.mode = pairing.mode
        self._m = target.n if pairing.m is None else pairing.m
        self._target = target
        self._key = key
        self._threads = threads
        self.largest = 0 if self.mode == FULL else self._m  # minibatch
        self._work = Workspaces(target.n, self.largest, replacement=target.replacement)
        pieces = (
            filler(target.n, target.replacement),
            proposal.propose,
            proposal.log_ratio,
            threshold,
            model.log_prior,
            model.difference,
            model.moments,
            model.total,
        )
        if pieces not in _bodies:
            _bodies[pieces] = piece(_loop(*pieces))
        self.body = _bodies[pieces]

    @classmethod
    def of(cls, kernel: MetropolisHastings, target: Target, key: int, threads: int) -> MetropolisLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        forms = (
            native_form(kernel.proposal, "native", "sample", "log_density"),
            native_form(kernel.pairing, "native", "start", "current", "compare"),
            native_form(kernel.rule, "native", "decide"),
        )
        moving, scoring, threshold = (form() if form is not None else None for form in forms)
        if moving is None or scoring is None or threshold is None:
            return None
        model = target.native(full=scoring.mode == FULL)
        if model is None:
            return None
        return cls(model, moving, scoring, threshold, target, key, threads)

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C)."""
        return self.prepare(state, first_step, controls).run(self.body, self._threads, self._work)

    def prepare(self, state: State, first_step: int, controls: Controls) -> LoopInputs:
        """Lay out what the loop works on in the K steps from `first_step` on."""
        steps, chains = controls.step_size.shape
        kept = state.evaluation
        theta = kept.theta.double().numpy().copy()
        # What the pairing keeps of the current point: log prior, mean and variance of the log-likelihood.
        empty = torch.zeros(chains)
        fields = (kept.log_prior, kept.log_lik_mean, kept.log_lik_var)
        cache = np.stack([(empty if f is None else f).double().numpy() for f in fields], axis=1)
        n = self._target.n
        record: dict[str, npt.NDArray[Any]] = {
            "theta": np.empty((chains, steps, theta.shape[1])),
            "accepted": np.empty((chains, steps), np.bool_),
            "log_ratio": np.empty((chains, steps), np.float32),
            "log_ratio_var": np.empty((chains, steps), np.float32),
            "diverging": np.empty((chains, steps), np.bool_),
        }
        args = (
            *(u64(first_step), self.mode, self._m, u64(n)),
            split_key(self._key),
            *(theta, cache),
            controls.step_size.numpy(),
            (n / controls.temperature).numpy(),
            self._target.prior_power(controls.temperature).numpy(),
            float(self._target.error_share(self._m)) if self.mode != FULL else 0.0,
            *(self._model.args, self._proposal.args),
            *record.values(),
        )

        def finish() -> tuple[State, Record]:
            return self._finished(theta, cache, record)

        return LoopInputs(args, steps, (theta, cache), np.zeros(chains, np.bool_), record["theta"], finish)

    def _finished(
        self,
        theta: npt.NDArray[np.float64],
        cache: npt.NDArray[np.float64],
        record: dict[str, npt.NDArray[Any]],
    ) -> tuple[State, Record]:
        evaluations = {SHARED: 2 * self._m, STORED: self._m, FULL: self._target.n}[self.mode]
        for name, dtype, value in (
            ("batch_size", np.int32, self._m),
            ("n_lik", np.int64, evaluations),
            ("n_lik_overhead", np.int64, 0),
            ("n_grad", np.int64, 0),
        ):
            record[name] = np.broadcast_to(dtype(value), record["accepted"].shape)
        mean, var = (None, None) if self.mode == SHARED else (cache[:, 1].copy(), cache[:, 2].copy())
        tensors = (None if a is None else torch.from_numpy(a) for a in (theta, cache[:, 0].copy(), mean, var))
        return State(Evaluation(*tensors), {}), record  # type: ignore[arg-type]


def _loop(
    fill: Piece,
    propose: Piece,
    proposal_ratio: Piece,
    threshold: Piece,
    log_prior: Piece,
    difference: Piece,
    moments: Piece,
    total: Piece,
) -> Piece:
    def loop(
        first_chain: Any,
        last_chain: Any,
        first: Any,  # of the K steps that this call does
        last: Any,
        work: Any,
        first_step: Any,
        mode: Any,
        m: Any,
        n: Any,
        key: Any,
        theta: Any,  # (C, D), in and out
        cache: Any,  # (C, 3), in and out
        step_size: Any,  # (K, C)
        scale: Any,  # (K, C) n / T
        prior_power: Any,  # (K, C)
        error_share: Any,  # of the variance of a minibatch's mean
        model: Any,
        proposal: Any,
        out_theta: Any,
        out_accepted: Any,
        out_log_ratio: Any,
        out_var: Any,
        out_diverging: Any,
    ) -> None:
        # Element by element: a slice assignment here keeps LLVM from vectorising the loops of the pieces.
        dim = theta.shape[1]
        index = np.empty(m + 1 if mode != FULL else 1, np.int64)
        candidate = np.empty(dim)
        for c in range(first_chain, last_chain):
            current = theta[c]
            chain = u64(c)
            for k in range(first, last):
                step = first_step + u64(k)
                propose(proposal, current, step_size[k, c], key, step, chain, candidate)
                prior = log_prior(model, candidate)
                mean, var = 0.0, 0.0
                if mode == FULL:  # full: the current point's sum is kept
                    mean = total(model, candidate) / np.float64(n)
                    gain, spread = mean - cache[c, 1], 0.0
                else:
                    fill(index, m, n, step, chain, key, MINIBATCH, 0, work)
                    if mode == STORED:  # stored: each point has a minibatch of its own
                        one, two = moments(model, index, m, candidate)
                        mean = one / m
                        var = max(two - one * mean, 0.0) / max(m - 1, 1)
                        gain, spread = mean - cache[c, 1], var + cache[c, 2]
                    else:  # shared: both on this one
                        one, two = difference(model, index, m, current, candidate)
                        gain = one / m
                        spread = max(two - one * gain, 0.0) / max(m - 1, 1)
                offset = prior_power[k, c] * (prior - cache[c, 0])
                offset += proposal_ratio(proposal, current, candidate)
                log_ratio = offset + scale[k, c] * gain
                accept = threshold(uniform(ACCEPT, step, chain, key)) < log_ratio
                if accept:
                    cache[c, 0], cache[c, 1], cache[c, 2] = prior, mean, var
                    for d in range(dim):
                        theta[c, d] = candidate[d]
                for d in range(dim):
                    out_theta[c, k, d] = theta[c, d]
                out_accepted[c, k] = accept
                out_log_ratio[c, k] = log_ratio
                # All data leave no error; of fewer, one datum alone has no variance.
                error = spread / m * error_share if m > 1 else np.nan
                out_var[c, k] = scale[k, c] ** 2 * error if error_share > 0 else 0.0
                out_diverging[c, k] = log_ratio != log_ratio

    return loop


def metropolis_loop(kernel: MetropolisHastings, target: Target, key: int, threads: int) -> Loop | None:
    """Return the loop of a kernel, or None if one of its parts has no compiled form."""
    if kernel.rule.wants_terms:
        return GrowingLoop.of(kernel, target, key, threads)
    return MetropolisLoop.of(kernel, target, key, threads)


register(MetropolisHastings, metropolis_loop)
