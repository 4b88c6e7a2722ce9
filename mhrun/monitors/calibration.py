"""Calibration of the class probabilities of chains and of their ensembles."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.diagnostics.calibration import brier, calibration_error, temperature_scaled
from mhrun.errors import Refusal
from mhrun.monitors.periodic import or_nan
from mhrun.monitors.predictive import Predictive, of_ensemble
from mhrun.numbers import whole_number
from mhrun.target import Source, Target


class Calibration(Predictive):
    """The metrics of `Predictive`, and scores of the class probabilities of the current networks and of the ensembles:

    - ``brier``, ``ece``, ``ece_mass``: Brier score, and expected calibration error with 15 bins of equal width and of
      equal mass; ``brier_of_ensemble``, ... of the ensemble;
    - ``nll_scaled_of_ensemble``, ``ece_scaled_of_ensemble``: of the ensemble after temperature scaling, by
      cross-validation on the two halves of the test data (`mhrun.diagnostics.calibration.temperature_scaled`);
    - ``mutual_information``: entropy of the mean prediction less mean entropy of the predictions of the snapshots, in
      nats (mean over the test data);
    - ``error_of_group``, ``nll_of_group``, ``ece_of_group``: of the ensembles of `group` consecutive chains together,
      the same value for each of these chains (parallel chains; Zhang et al. 2020, Table 3). On ladders, of the chains
      on the same rung of `group` consecutive ladders.

    Args:
        data: the test data, with the fields of the model.
        every: steps between two rows of metrics.
        average: see `Predictive`.
        collect: see `Predictive`.
        after: see `Predictive`.
        group: chains of one temperature that are one ensemble together; None for no such metrics. Where neither
            `collect` nor a schedule chooses snapshots, they are taken when metrics are.

    Raises:
        Refusal: an invalid setting.
    """  # noqa: D415

    def __init__(
        self,
        data: Dataset | Source | Any,
        every: int,
        average: int | None = None,
        collect: int | None = None,
        after: int = 0,
        group: int | None = None,
    ) -> None:
        super().__init__(data, every, average, collect, after)
        self.group = None if group is None else whole_number("group", group, least=1)
        self._rungs, self.together = 1, self.group or 1
        self._collects_as_it_emits = False

    def bind(
        self,
        collected: npt.NDArray[np.int64] | None,
        warmup: int = 0,
        total: int | None = None,
        rungs: int = 1,
    ) -> Self:
        """Return this monitor with its snapshots, see `Periodic.bind`; groups have some in any case."""
        given = copy.copy(self)
        given.collect = None if self._collects_as_it_emits else self.collect  # of another number of steps
        bound = super(Calibration, given).bind(collected, warmup, total, rungs=rungs)
        bound._rungs, bound.together = rungs, (self.group or 1) * rungs
        bound._collects_as_it_emits = self.group is not None and given.collect is None and collected is None
        if bound._collects_as_it_emits:
            bound.collect = self.every
        return bound

    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return ensembles of none.

        Raises:
            Refusal: the chains are not a whole number of groups.
        """
        if self.group and chains % self.together:
            ladders = f", which are {self.group} ladders of {self._rungs} rungs" if self._rungs > 1 else ""
            raise Refusal(
                f"{chains} chains are not a whole number of groups of {self.together}{ladders}; set chains, or "
                "monitor.group."
            )
        return super().start(target, chains)

    def no_snapshots(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return sums of no snapshots: of class probabilities, and of the entropies ``entropy`` (C, n)."""
        entropy = torch.zeros(chains, self.data.n, dtype=torch.float64, device=target.device)
        return super().no_snapshots(target, chains) | {"entropy": entropy}

    def with_snapshot(
        self, target: Target, memory: Mapping[str, Tensor], theta: Tensor, evaluation: Tensor, share: Tensor
    ) -> dict[str, Tensor]:
        """Return the sums of `no_snapshots` after one more snapshot."""
        kept = super().with_snapshot(target, memory, theta, evaluation, share)
        entropy = torch.special.entr(evaluation.double().exp()).sum(-1)
        return kept | {"entropy": memory["entropy"] + torch.where(share[:, None] > 0, entropy, 0.0)}

    def further_metrics(
        self, target: Target, memory: Mapping[str, Tensor], evaluation: Tensor
    ) -> dict[str, Tensor]:
        """Return the scores of the current networks, of the ensembles and of the groups."""
        metrics = self._scores(target, evaluation.double().exp(), "")
        if not self.collects:
            return metrics
        count = memory["collected"]
        mean = of_ensemble(memory, "probability")
        of_all = self._scores(target, mean, "_of_ensemble")
        spread = torch.special.entr(mean).sum(-1) - memory["entropy"] / count.clamp_min(1)[:, None]
        of_all["mutual_information"] = spread.mean(-1)
        if self.data.n > 1:
            y = self.on(target.device, self.data).fields["y"]
            scaled = temperature_scaled(mean.log(), y)
            of_all |= {"nll_scaled_of_ensemble": scaled.nll, "ece_scaled_of_ensemble": scaled.ece}
        metrics |= {name: or_nan(value, count) for name, value in of_all.items()}
        return metrics | (self._of_groups(target, memory) if self.group else {})

    def _scores(self, target: Target, p: Tensor, end: str) -> dict[str, Tensor]:
        y = self.on(target.device, self.data).fields["y"]
        scores = {
            "brier": brier(p, y),
            "ece": calibration_error(p, y),
            "ece_mass": calibration_error(p, y, equal_mass=True),
        }
        broken = p.isnan().any(-1).any(-1)
        return {f"{name}{end}": value.masked_fill(broken, torch.nan) for name, value in scores.items()}

    def _of_groups(self, target: Target, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the groups' ensembles, each group's value for all of its chains."""
        assert self.group is not None
        counts = self._in_groups(memory["collected"])
        found = {}
        for name, value in self.metrics_of_groups(target, memory, counts).items():
            by_rung = or_nan(value, counts).unflatten(0, (-1, 1, self._rungs))
            found[f"{name}_of_group"] = by_rung.expand(-1, self.group, -1).flatten()
        return found

    def metrics_of_groups(
        self, target: Target, memory: Mapping[str, Tensor], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return metrics (G,) of the ensembles of the G groups, which have `counts` (G,) snapshots."""
        p = self.of_groups(memory, "probability", counts)
        y = self.on(target.device, self.data).fields["y"]
        return self.scores(target, p.log()) | {"ece": calibration_error(p, y)}

    def of_groups(self, memory: Mapping[str, Tensor], name: str, counts: Tensor) -> Tensor:
        """Return the mean class probabilities (G, n, K) of the groups' snapshots so far."""
        return self._in_groups(memory[name]) / counts.clamp_min(1)[:, None, None]

    def _in_groups(self, values: Tensor) -> Tensor:
        """Return sums over the chains of each group: (C, ...) -> (G, ...), the rungs of its ladders side by side."""
        assert self.group is not None
        return values.unflatten(0, (-1, self.group, self._rungs)).sum(1).flatten(0, 1)
