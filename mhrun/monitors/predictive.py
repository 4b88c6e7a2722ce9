"""Predictive performance on other data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.monitors import Monitor
from mhrun.numbers import whole_number
from mhrun.target import Source, Target
from mhrun.target.fields import ambiguous_bytes

_HELD = 1 << 25  # inputs that are held at once


class Predictive(Monitor):
    """Errors in per cent and mean negative log-likelihoods in nats on test data, every `every` steps and last, of

    - ``error``, ``nll``: the current parameters;
    - ``error_of_mean``, ``nll_of_mean``: the mean of all parameters so far (Li & Wong 2017, section 4.3);
    - ``error_of_ensemble``, ``nll_of_ensemble``: the mean of the class probabilities of the snapshots so far, which is
      the posterior predictive where the chain samples the posterior (snapshots: Li & Wong 2017, CMINT).

    Metrics are per chain. Ties of two classes count as the lower one. Parameters whose predictions are not finite are
    reported as NaN. Steps of burn-in enter no mean and no ensemble. If a schedule chooses the draws to collect, those
    are the snapshots, and `collect` and `after` have no effect.

    Args:
        data: the test data, with the fields of the model.
        every: steps between two rows of metrics; the last step has one, too.
        average: steps between two parameters that enter the mean; None for no mean.
        collect: steps between two snapshots; None for no ensemble.
        after: steps before averaging and collecting begin, those of burn-in included; they begin no sooner than burn-in
            ends.

    Raises:
        Refusal: an invalid count.
    """  # noqa: D415

    def __init__(
        self,
        data: Dataset | Source | Mapping[str, Any],
        every: int,
        average: int | None = None,
        collect: int | None = None,
        after: int = 0,
    ) -> None:
        if after < 0:
            raise Refusal(f"after = {after} must be at least 0.")
        self._source = Dataset.of(data) if isinstance(data, Mapping) else data
        self.every = whole_number("every", every, least=1)
        self.average = None if average is None else whole_number("average", average, least=1)
        self.collect = None if collect is None else whole_number("collect", collect, least=1)
        self.after = after
        self._memo: dict[tuple[int, str], tuple[Dataset, Dataset]] = {}
        self._steps: npt.NDArray[np.int64] | None = None
        self._last: int | None = None

    def bind(
        self, collected: npt.NDArray[np.int64] | None, warmup: int = 0, total: int | None = None
    ) -> Self:
        """Return this monitor with snapshots at these steps, if a schedule chooses them, or after burn-in.

        Raises:
            Refusal: no step takes a snapshot of those that are wanted.
        """
        first = max(self.after, warmup)
        takes = self.collect if collected is None and total is not None else None
        if takes is not None and (total or 0) // takes * takes <= first:
            raise Refusal(
                f"collect = {takes:,} takes no snapshot between step {first:,}, before which there are none, and the "
                f"last step, {total:,}; make it smaller."
            )
        placed = copy.copy(self)
        placed._steps, placed._last = collected, total
        placed.after = first
        return placed

    @cached_property
    def data(self) -> Dataset:
        """The test data."""
        return self._source if isinstance(self._source, Dataset) else self._source.load()

    @property
    def collects(self) -> bool:
        """Whether there is an ensemble."""
        return self.collect is not None or self._steps is not None

    def on(self, device: torch.device, data: Dataset) -> Dataset:
        """Return data on the chains' device, to which they are moved once."""
        key = id(data), str(device)
        if key not in self._memo:
            # With the data themselves: they stay in memory, so that no other data get their id.
            self._memo[key] = data, data.to(device)
        return self._memo[key][1]

    def refuses(self, target: Target) -> str | None:
        """Refuse a model that does not predict classes."""
        if not hasattr(target.model, "predict") or not getattr(target.model, "tells_classes", True):
            return f"it needs a model that predicts classes, which {type(target.model).__name__} does not."
        return None

    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return an empty mean and an empty ensemble.

        Raises:
            Refusal: the test data do not fit the model.
        """
        self._fit(target)
        memory: dict[str, Tensor] = {}
        if self.average:
            memory["mean"] = torch.zeros(chains, target.width, device=target.device)
            memory["averaged"] = torch.zeros(chains, device=target.device)
        if self.collects:
            memory["probability"] = self.nothing(target, chains, self.data)
            memory["collected"] = torch.zeros(chains, device=target.device)
        return memory

    def _fit(self, target: Target) -> None:
        """Refuse test data without classes, with unknown classes, or of another shape than the target's data."""
        if (reason := ambiguous_bytes(target.model, self.data)) is not None:
            raise Refusal(f"the monitor's data: {reason}")
        test_fields, train_fields = self.data.fields, target.data.fields
        for name in ("x", "y"):
            if name not in test_fields:
                raise Refusal(
                    f"the monitor's data have no field '{name}'; they have {', '.join(test_fields)}."
                )
        shapes = [tuple(fields["x"].shape[1:]) for fields in (test_fields, train_fields) if "x" in fields]
        if len(set(shapes)) > 1:
            raise Refusal(
                f"a datum of the monitor's data has the shape {shapes[0]}, and of the target's {shapes[1]}."
            )
        classes = self.nothing(target, 0, self.data).shape[-1]
        y = test_fields["y"]
        if y.ndim != 1 or bool(((y != y.long()) | (y < 0) | (y >= classes)).any()):
            raise Refusal(f"y of the monitor's data must be classes, whole numbers from 0 to {classes - 1}.")

    def nothing(self, target: Target, chains: int, data: Dataset) -> Tensor:
        """Return zeros (C, n, K), float64, to which class probabilities of some data are added."""
        nowhere = torch.zeros(1, target.dim, device=target.device)
        classes = target.model.predict(nowhere, self.on(target.device, data).part(0, 1)).shape[-1]  # type: ignore[attr-defined]
        return torch.zeros(chains, data.n, classes, dtype=torch.float64, device=target.device)

    def steps_until_due(self, step: int) -> int:
        """Return the number of steps until the next one it observes."""
        wait = self.every - (step - 1) % self.every
        if self._last is not None and step <= self._last:
            wait = min(wait, self._last - step + 1)
        for period in (self.average, None if self._steps is not None else self.collect):
            if period is not None:
                at = max(step, self.after + 1)
                wait = min(wait, at - step + (-at) % period + 1)
        if self._steps is not None:
            ahead = int(np.searchsorted(self._steps, step))
            if ahead < len(self._steps):
                wait = min(wait, int(self._steps[ahead]) - step + 1)
        return wait

    def emits(self, step: int) -> bool:
        """Return whether metrics are emitted after this step: every `every` steps, and after the last."""
        return step % self.every == 0 or step == self._last

    def takes_snapshot(self, step: int) -> bool:
        """Return whether a snapshot is taken after this step."""
        if self._steps is not None:
            at = int(np.searchsorted(self._steps, step))
            return at < len(self._steps) and int(self._steps[at]) == step
        return self.collect is not None and step > self.after and step % self.collect == 0

    def observe(
        self,
        target: Target,
        memory: Mapping[str, Tensor],
        step: int,
        theta: Tensor,
        valid: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Update averages and snapshots; return the metrics where they are due."""
        new, metrics, emits, snapshot = dict(memory), {}, self.emits(step), self.takes_snapshot(step)
        share = torch.ones(len(theta), device=theta.device) if valid is None else valid.float()
        if self.average and step > self.after and step % self.average == 0:
            new["averaged"] = memory["averaged"] + share
            weight = (share / new["averaged"].clamp_min(1))[:, None]
            new["mean"] = memory["mean"] + torch.where(weight > 0, weight * (theta - memory["mean"]), 0.0)
        if snapshot:
            new["collected"] = memory["collected"] + share
        if snapshot or emits:
            log_p = self.predictions(target, theta, self.data)
            if snapshot:
                new["probability"] = self.with_snapshot(memory["probability"], log_p, share)
                new |= self.own_snapshot(target, memory, theta, log_p, share)
            metrics = self._missed(target, log_p)
        if not emits:
            return new, {}
        # Metrics that are not available yet are NaN, so that every row has the same metrics.
        if self.average:
            none = torch.full_like(share, torch.nan)
            scores = {"error": none, "nll": none}
            if step > self.after:
                scores = self._missed(target, self.predictions(target, new["mean"], self.data))
            metrics |= {f"{name}_of_mean": or_nan(value, new["averaged"]) for name, value in scores.items()}
        if self.collects:
            scores = self._missed(target, self.of_ensemble(new, "probability").log())
            metrics |= {
                f"{name}_of_ensemble": or_nan(value, new["collected"]) for name, value in scores.items()
            }
        return new, metrics | self.own_metrics(target, new, log_p)

    def own_snapshot(
        self, target: Target, memory: Mapping[str, Tensor], theta: Tensor, log_p: Tensor, share: Tensor
    ) -> dict[str, Tensor]:
        """Return what a subclass keeps in its memory of a snapshot; nothing here.

        Args:
            target: the target.
            memory: before the snapshot.
            theta: the parameters (C, D).
            log_p: their log-probabilities (C, n, K) on the test data.
            share: 1 for chains whose parameters are a snapshot, else 0, (C,).
        """
        return {}

    def own_metrics(self, target: Target, memory: Mapping[str, Tensor], log_p: Tensor) -> dict[str, Tensor]:
        """Return the further metrics (C,) of a subclass; none here.

        Args:
            target: the target.
            memory: after this step.
            log_p: log-probabilities (C, n, K) of the current parameters on the test data.
        """
        return {}

    @staticmethod
    def with_snapshot(total: Tensor, log_p: Tensor, share: Tensor) -> Tensor:
        """Return sums (C, n, K), increased by the class probabilities of the chains whose share (C,) is 1."""
        # Not share * p: 0 times a NaN prediction is NaN.
        return total + torch.where(share[:, None, None] > 0, log_p.double().exp(), 0.0)

    @staticmethod
    def of_ensemble(memory: Mapping[str, Tensor], name: str) -> Tensor:
        """Return the mean class probabilities (C, n, K) of the snapshots so far."""
        return memory[name] / memory["collected"].clamp_min(1)[:, None, None]

    def predictions(self, target: Target, theta: Tensor, data: Dataset) -> Tensor:
        """Return log-probabilities (C, n, K) of the classes of some data."""
        data, parts = self.on(target.device, data), []
        per_datum = max(1, data.fields["x"][0].numel())
        if (measured := getattr(target.model, "values_per_datum", None)) is not None:  # activations
            per_datum = max(per_datum, measured(data.part(0, min(3, data.n))))
        size = max(1, _HELD // (len(theta) * per_datum))
        for start in range(0, data.n, size):
            rows = data.part(start, min(start + size, data.n))
            parts.append(target.model.predict(theta, rows))  # type: ignore[attr-defined]
        return torch.cat(parts, dim=1)

    def _missed(self, target: Target, log_p: Tensor) -> dict[str, Tensor]:
        """Return the error in per cent and the mean of -log p_y over the test data, each (C,); NaN if any p is NaN."""
        y = self.on(target.device, self.data).fields["y"]
        loss = -log_p.gather(-1, y.long().expand(log_p.shape[:2])[..., None])[..., 0].mean(-1)
        wrong = 100 * (log_p.argmax(-1) != y).to(loss.dtype).mean(-1)
        return {"error": wrong.masked_fill(loss.isnan(), torch.nan), "nll": loss}


def or_nan(value: Tensor, count: Tensor) -> Tensor:
    """Return a value (C,), with NaN for chains whose count is 0."""
    return value.masked_fill(count == 0, torch.nan)
