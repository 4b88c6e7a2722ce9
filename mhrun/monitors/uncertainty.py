"""Predictive uncertainty on classes that the model was not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.diagnostics.calibration import auroc, false_positives
from mhrun.errors import Refusal
from mhrun.monitors.calibration import Calibration
from mhrun.monitors.periodic import as_source, loaded, or_nan
from mhrun.monitors.predictive import of_ensemble, with_probabilities
from mhrun.target import Source, Target


class Uncertainty(Calibration):
    """The metrics of `Calibration`, and the entropy of the ensemble's class probabilities, in nats, inside and outside:

    - ``entropy_inside``, ``entropy_outside``: its mean on the test data, and on data of other classes;
    - ``outside_below_0.1``, ...: the share of the outside data whose entropy is at most that (Zhang et al. 2020,
      Figure 4), at 0.1, 0.2, ... up to the log of the number of classes;
    - ``auroc``: the probability that an outside datum has a higher entropy than an inside one, ties counting half;
    - ``fpr95``: the share of the outside data whose entropy is at most that of 95 % of the inside data;
    - ``confident_outside``: the share of the outside data, in per cent, assigned to a class with a probability above
      `sure`; all of these are errors. ``confident_errors``: the share of the test data assigned to a wrong class so;
    - ``auroc_of_group``, ``fpr95_of_group``: of the ensembles of `group` consecutive chains together.

    Args:
        data: the test data, of the classes of the training data.
        outside: data of other classes, with the same field ``x``.
        every: steps between two rows of metrics.
        average: see `Predictive`.
        collect: steps between two snapshots, for a method whose schedule does not choose them.
        after: see `Predictive`.
        sure: the probability above which a prediction counts as confident.
        group: chains that are one ensemble together; None for no such metrics.

    Raises:
        Refusal: no ensemble, or an invalid setting.
    """  # noqa: D415

    def __init__(
        self,
        data: Dataset | Source | Any,
        outside: Dataset | Source | Any,
        every: int,
        average: int | None = None,
        collect: int | None = None,
        after: int = 0,
        sure: float = 0.9,
        group: int | None = None,
    ) -> None:
        super().__init__(data, every, average, collect, after, group)
        if not 0 < sure < 1:
            raise Refusal(f"sure = {sure:g} is a probability; it must lie between 0 and 1.")
        self._other = as_source(outside)
        self.sure = sure

    @cached_property
    def outside(self) -> Dataset:
        """The data of other classes; a field ``y``, which models read and nothing depends on, is 0 if there is none."""
        data = loaded(self._other)
        if "y" in data.fields:
            return data
        return replace(data, fields={**data.fields, "y": torch.zeros(data.n, dtype=torch.int64)})

    def refuses(self, target: Target) -> str | None:
        """Return that there is no ensemble, or that the model predicts no classes, or None."""
        if not self.collects:
            return "it needs an ensemble: set collect=, or choose a schedule that collects draws."
        return super().refuses(target)

    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return empty ensembles.

        Raises:
            Refusal: the outside data have another shape than the inside data.
        """
        if "x" not in self.outside.fields:
            raise Refusal("the monitor's `outside` has no field 'x'.")
        near, far = (tuple(data.fields["x"].shape[1:]) for data in (self.data, self.outside))
        if near != far:
            raise Refusal(
                f"a datum of the monitor's `outside` has the shape {far}, and one of its data {near}."
            )
        return super().start(target, chains)

    def no_snapshots(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return the sums of `Calibration`, and of class probabilities on the outside data, ``outside`` (C, n, K)."""
        return super().no_snapshots(target, chains) | {"outside": self.nothing(target, chains, self.outside)}

    def with_snapshot(
        self, target: Target, memory: Mapping[str, Tensor], theta: Tensor, evaluation: Tensor, share: Tensor
    ) -> dict[str, Tensor]:
        """Return the sums of `no_snapshots` after one more snapshot."""
        kept = super().with_snapshot(target, memory, theta, evaluation, share)
        outside = self.predictions(target, theta, self.outside)
        return kept | {"outside": with_probabilities(memory["outside"], outside, share)}

    def further_metrics(
        self, target: Target, memory: Mapping[str, Tensor], evaluation: Tensor
    ) -> dict[str, Tensor]:
        """Return the scores of `Calibration`, and the metrics of the ensembles on both data sets."""
        metrics = self._entropies(target, memory)
        return super().further_metrics(target, memory, evaluation) | {
            name: or_nan(value, memory["collected"]) for name, value in metrics.items()
        }

    def metrics_of_groups(
        self, target: Target, memory: Mapping[str, Tensor], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return the metrics (G,) of `Calibration`, and AUROC and FPR95 of the groups' ensembles."""
        near, far = (_entropy(self.of_groups(memory, name, counts)) for name in ("probability", "outside"))
        return super().metrics_of_groups(target, memory, counts) | _separation(near, far)

    def _entropies(self, target: Target, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        inside, outside = (of_ensemble(memory, name) for name in ("probability", "outside"))
        near, far = _entropy(inside), _entropy(outside)
        missed = inside.argmax(-1) != self.on(target.device, self.data).fields["y"]
        metrics = {
            "entropy_inside": near.mean(-1),
            "entropy_outside": far.mean(-1),
            **_separation(near, far),
            "confident_outside": 100 * (outside.amax(-1) > self.sure).double().mean(-1),
            "confident_errors": 100 * (missed & (inside.amax(-1) > self.sure)).double().mean(-1),
        }
        most = float(np.log(inside.shape[-1]))
        for level in np.arange(1, int(10 * most) + 1) / 10:
            metrics[f"outside_below_{level:.1f}"] = (far <= level).double().mean(-1)
        return metrics


def _entropy(probability: Tensor) -> Tensor:
    """(C, n, K) -> (C, n), in nats."""
    return torch.special.entr(probability).sum(-1)


def _separation(near: Tensor, far: Tensor) -> dict[str, Tensor]:
    """Return AUROC and FPR95, each (C,), of the entropies of inside data (C, n) and outside data (C, n')."""
    return {"auroc": auroc(far, near), "fpr95": false_positives(far, near)}
