"""Base of monitors on test data: when they run, the mean of the parameters, and snapshots."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.data.frames import is_frame
from mhrun.errors import Refusal
from mhrun.monitors import Monitor
from mhrun.numbers import whole_number
from mhrun.target import Source, Target
from mhrun.target.fields import ambiguous_bytes
from mhrun.types.capabilities import MeasuresMemory, offers

_HELD = 1 << 25  # inputs that are held at once

Computed = TypeVar("Computed")
"""The result of a model on the test data at each chain's parameters, such as log-probabilities of classes (C, n, K)."""


class Periodic(Monitor, Generic[Computed]):
    """Evaluates test data every `every` steps and last: the current parameters, their mean so far, and an ensemble.

    Steps of burn-in enter no mean and no ensemble. If a schedule chooses the draws to collect, those are the snapshots
    of the ensemble, and `collect` and `after` have no effect. Parameters that give NaN are NaN in metrics.

    A subclass says what is evaluated (`evaluated`), what is kept of a snapshot (`no_snapshots`, `with_snapshot`), and
    the metrics of one evaluation (`scores`) and of an ensemble (`ensemble_scores`).

    Args:
        data: the test data, with the fields of the model.
        every: steps between two rows of metrics; the last step has one, too.
        average: steps between two parameters that enter the mean; None for no mean.
        collect: steps between two snapshots; None for no ensemble.
        after: steps before averaging and collecting begin, those of burn-in included; they begin no sooner than burn-in
            ends.

    Raises:
        Refusal: an invalid count.
    """

    def __init__(
        self,
        data: Dataset | Source | Any,
        every: int,
        average: int | None = None,
        collect: int | None = None,
        after: int = 0,
    ) -> None:
        self._source = as_source(data)
        self.every = whole_number("every", every, least=1)
        self.average = None if average is None else whole_number("average", average, least=1)
        self.collect = None if collect is None else whole_number("collect", collect, least=1)
        self.after = whole_number("after", after, least=0)
        self._memo: dict[tuple[int, str], tuple[Dataset, Dataset]] = {}
        self._steps: npt.NDArray[np.int64] | None = None
        self._last: int | None = None

    def bind(
        self,
        collected: npt.NDArray[np.int64] | None,
        warmup: int = 0,
        total: int | None = None,
        rungs: int = 1,
    ) -> Self:
        """Return this monitor with snapshots at these steps, if a schedule chooses them, or after burn-in.

        Raises:
            Refusal: no step takes a snapshot of those that are wanted.
        """
        first = max(self.after, warmup)
        takes = self.collect if collected is None and total is not None else None
        if takes is not None and (total or 0) // takes * takes <= first:
            remedy = "make it smaller" if first < (total or 0) else "make after smaller, or raise steps"
            raise Refusal(
                f"collect = {takes:,} takes no snapshot between step {first:,}, before which there are none, and the "
                f"last step, {total:,}; {remedy}."
            )
        placed = copy.copy(self)
        placed._steps, placed._last = collected, total
        placed.after = first
        return placed

    @cached_property
    def data(self) -> Dataset:
        """The test data."""
        return loaded(self._source)

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

    # ---------------------------------------------------------------------------------------- what a subclass says

    @abstractmethod
    def check_data(self, target: Target, chains: int) -> None:
        """Refuse test data that do not fit the model, besides bytes that may be pixels or not."""

    @abstractmethod
    def evaluated(self, target: Target, theta: Tensor) -> Computed:
        """Evaluate the test data at theta (C, D)."""

    @abstractmethod
    def scores(self, target: Target, evaluation: Computed) -> dict[str, Tensor]:
        """Return the metrics of an evaluation, name -> (C,)."""

    @abstractmethod
    def no_snapshots(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return the initial accumulators over snapshots, name -> (C, ...)."""

    @abstractmethod
    def with_snapshot(
        self, target: Target, memory: Mapping[str, Tensor], theta: Tensor, evaluation: Computed, share: Tensor
    ) -> dict[str, Tensor]:
        """Return the accumulators after one more snapshot.

        Args:
            target: the target.
            memory: before the snapshot.
            theta: the parameters (C, D).
            evaluation: of the test data at theta.
            share: 1 for chains whose parameters are a snapshot, else 0, (C,).
        """

    @abstractmethod
    def ensemble_scores(self, target: Target, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the ensembles of the snapshots so far, (C,), as `scores` names them."""

    def further_metrics(
        self, target: Target, memory: Mapping[str, Tensor], evaluation: Computed
    ) -> dict[str, Tensor]:
        """Return metrics (C,) besides those of `scores` and `ensemble_scores`; none here.

        Args:
            target: the target.
            memory: after this step.
            evaluation: of the test data at the current parameters.
        """
        return {}

    # ------------------------------------------------------------------------------------------------ what it does

    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return an empty mean and an empty ensemble.

        Raises:
            Refusal: the test data do not fit the model.
        """
        if (reason := ambiguous_bytes(target.model, self.data, "monitor.data.pixels")) is not None:
            raise Refusal(f"the monitor's data: {reason}")
        self.check_data(target, chains)
        memory: dict[str, Tensor] = {}
        if self.average:
            memory["mean"] = torch.zeros(chains, target.width, device=target.device)
            memory["averaged"] = torch.zeros(chains, dtype=torch.float64, device=target.device)
        if self.collects:
            memory |= self.no_snapshots(target, chains)
            memory["collected"] = torch.zeros(chains, dtype=torch.float64, device=target.device)
        return memory

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
        """Update the mean and the snapshots; return the metrics where they are due."""
        new, metrics, emits, snapshot = dict(memory), {}, self.emits(step), self.takes_snapshot(step)
        share = torch.ones(len(theta), device=theta.device) if valid is None else valid.float()
        if self.average and step > self.after and step % self.average == 0:
            new["averaged"] = memory["averaged"] + share
            weight = (share / new["averaged"].clamp_min(1)).to(theta.dtype)[:, None]
            new["mean"] = memory["mean"] + torch.where(weight > 0, weight * (theta - memory["mean"]), 0.0)
        if snapshot:
            new["collected"] = memory["collected"] + share
        if snapshot or emits:
            evaluation = self.evaluated(target, theta)
            if snapshot:
                new |= self.with_snapshot(target, memory, theta, evaluation, share)
            metrics = self.scores(target, evaluation)
        if not emits:
            return new, {}
        # Metrics that are not available yet are NaN, so that every row has the same metrics.
        if self.average:
            scores = {name: torch.full_like(share, torch.nan) for name in metrics}
            if step > self.after:
                scores = self.scores(target, self.evaluated(target, new["mean"].to(theta.dtype)))
            metrics |= {f"{name}_of_mean": or_nan(value, new["averaged"]) for name, value in scores.items()}
        if self.collects:
            scores = self.ensemble_scores(target, new)
            metrics |= {
                f"{name}_of_ensemble": or_nan(value, new["collected"]) for name, value in scores.items()
            }
        return new, metrics | self.further_metrics(target, new, evaluation)

    def parts(self, target: Target, chains: int, data: Dataset) -> list[Mapping[str, Tensor]]:
        """Return the rows (1, m, ...) of some data in parts of which a model may hold everything in memory."""
        data = self.on(target.device, data)
        per_datum = max(1, *(field[0].numel() for field in data.fields.values()))
        if offers(target.model, MeasuresMemory):  # activations
            per_datum = max(per_datum, target.model.values_per_datum(data.part(0, min(3, data.n))))
        size = max(1, _HELD // (chains * per_datum))
        return [data.part(start, min(start + size, data.n)) for start in range(0, data.n, size)]


def as_source(data: Any) -> Dataset | Source:
    """Return data that are loaded when they are needed, or a data set of arrays; a table's columns are no methods."""
    return data if not is_frame(data) and isinstance(data, Source) else Dataset.of(data)


def loaded(source: Dataset | Source) -> Dataset:
    """Return the data of a source."""
    return source if isinstance(source, Dataset) else source.load()


def or_nan(value: Tensor, count: Tensor) -> Tensor:
    """Return a value (C,), with NaN for chains whose count is 0."""
    return value.masked_fill(count == 0, torch.nan)
