"""How good the class probabilities of chains and of their ensembles are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.diagnostics.calibration import brier, calibration_error
from mhrun.errors import Refusal
from mhrun.monitors.predictive import Predictive
from mhrun.target import Source, Target


class Calibration(Predictive):
    """The metrics of `Predictive`, and scores of the class probabilities of the current networks and of the ensembles:

    - ``brier``, ``ece``, ``ece_mass``: Brier score, and expected calibration error with 15 bins of equal width and of
      equal mass; ``brier_of_ensemble``, ... of the ensemble;
    - ``mutual_information``: entropy of the mean prediction less mean entropy of the predictions of the snapshots, in
      nats (mean over the test data);
    - ``error_of_group``, ``nll_of_group``, ``ece_of_group``: of the ensembles of `group` consecutive chains together,
      the same value for each of these chains (parallel chains; Zhang et al. 2020, Table 3).

    Args:
        data: the test data, with the fields of the model.
        every: steps between two rows of metrics.
        average: see `Predictive`.
        collect: see `Predictive`.
        after: see `Predictive`.
        group: chains that are one ensemble together; None for no such metrics.

    Raises:
        Refusal: a setting that has no meaning.
    """  # noqa: D415

    def __init__(
        self,
        data: Dataset | Source | Mapping[str, Any],
        every: int,
        average: int | None = None,
        collect: int | None = None,
        after: int = 0,
        group: int | None = None,
    ) -> None:
        super().__init__(data, every, average, collect, after)
        if group is not None and group < 1:
            raise Refusal(f"group = {group} must be a number of chains, at least 1, or null.")
        self.group = group

    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return ensembles of none.

        Raises:
            Refusal: the chains are no whole number of groups.
        """
        if self.group and chains % self.group:
            raise Refusal(
                f"{chains} chains are no whole number of groups of {self.group}; set monitor.group."
            )
        memory = super().start(target, chains)
        if self.collects:
            memory["entropy"] = torch.zeros(chains, self.data.n, dtype=torch.float64, device=target.device)
        return memory

    def observe(
        self,
        target: Target,
        memory: Mapping[str, Tensor],
        step: int,
        theta: Tensor,
        valid: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Update averages and snapshots; return the metrics where they are due."""
        new, metrics = super().observe(target, memory, step, theta, valid)
        snapshot, emits = self.takes_snapshot(step), self.emits(step)
        if not snapshot and not emits:
            return new, metrics
        p = self.predictions(target, theta, self.data).double().exp()
        if snapshot:
            share = torch.ones(len(theta), device=theta.device) if valid is None else valid.float()
            new["entropy"] = memory["entropy"] + torch.where(
                share[:, None] > 0, torch.special.entr(p).sum(-1), 0.0
            )
        if emits:
            metrics |= self._scores(target, p, "")
            if self.collects:
                none = new["collected"] == 0
                mean = self.of_ensemble(new, "probability")
                of_all = self._scores(target, mean, "_of_ensemble")
                spread = (
                    torch.special.entr(mean).sum(-1) - new["entropy"] / new["collected"].clamp_min(1)[:, None]
                )
                of_all["mutual_information"] = spread.mean(-1)
                metrics |= {name: value.masked_fill(none, torch.nan) for name, value in of_all.items()}
            if self.collects and self.group:
                metrics |= self._of_groups(target, new)
        return new, metrics

    def _scores(self, target: Target, p: Tensor, end: str) -> dict[str, Tensor]:
        y = self.on(target.device, self.data).fields["y"]
        found = {
            "brier": brier(p, y),
            "ece": calibration_error(p, y),
            "ece_mass": calibration_error(p, y, equal_mass=True),
        }
        broken = p.isnan().any(-1).any(-1)
        return {f"{name}{end}": value.masked_fill(broken, torch.nan) for name, value in found.items()}

    def _of_groups(self, target: Target, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self.group is not None
        sums = memory["probability"].unflatten(0, (-1, self.group)).sum(1)
        counts = memory["collected"].unflatten(0, (-1, self.group)).sum(1)
        p = sums / counts.clamp_min(1)[:, None, None]
        y = self.on(target.device, self.data).fields["y"]
        found = self._missed(target, p.log()) | {"ece": calibration_error(p, y)}
        return {
            f"{name}_of_group": value.masked_fill(counts == 0, torch.nan).repeat_interleave(self.group)
            for name, value in found.items()
        }
