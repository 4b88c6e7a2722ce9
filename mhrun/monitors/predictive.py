"""Predictions of classes on other data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.monitors.periodic import Periodic
from mhrun.target import Target
from mhrun.types.capabilities import HasClassifierFlag, offers, predicts_classes


class Predictive(Periodic[Tensor]):
    """Errors in per cent and mean negative log-likelihoods in nats on test data, every `every` steps and last, of

    - ``error``, ``nll``: the current parameters;
    - ``error_of_mean``, ``nll_of_mean``: the mean of all parameters so far (Li & Wong 2017, section 4.3);
    - ``error_of_ensemble``, ``nll_of_ensemble``: the mean of the class probabilities of the snapshots so far, which is
      the posterior predictive where the chain samples the posterior (snapshots: Li & Wong 2017, CMINT).

    For models of classes; `HeldOut` is for all others. Metrics are per chain. Ties of two classes count as the lower
    one. Parameters whose predictions are not finite are reported as NaN. Steps of burn-in enter no mean and no
    ensemble. If a schedule chooses the draws to collect, those are the snapshots, and `collect` and `after` have no
    effect.

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

    def refuses(self, target: Target) -> str | None:
        """Return that the model predicts no classes, or None."""
        if not predicts_classes(target.model):
            own = offers(target.model, HasClassifierFlag)
            return (
                f"it needs a model that predicts classes, which {type(target.model).__name__} does not"
                f"{' without log_probs' * own}; held_out, mhrun.HeldOut in Python, scores test data of any model."
            )
        return None

    def check_data(self, target: Target, chains: int) -> None:
        """Refuse test data without classes, with unknown classes, or of another shape than the target's data."""
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
        assert predicts_classes(target.model)
        classes = target.model.predict(nowhere, self.on(target.device, data).part(0, 1)).shape[-1]
        return torch.zeros(chains, data.n, classes, dtype=torch.float64, device=target.device)

    def no_snapshots(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return the sums of class probabilities of no snapshots, ``probability`` (C, n, K)."""
        return {"probability": self.nothing(target, chains, self.data)}

    def evaluated(self, target: Target, theta: Tensor) -> Tensor:
        """Return log-probabilities (C, n, K) of the classes of the test data."""
        return self.predictions(target, theta, self.data)

    def with_snapshot(
        self, target: Target, memory: Mapping[str, Tensor], theta: Tensor, evaluation: Tensor, share: Tensor
    ) -> dict[str, Tensor]:
        """Return the sums of class probabilities after one more snapshot."""
        return {"probability": with_probabilities(memory["probability"], evaluation, share)}

    def scores(self, target: Target, evaluation: Tensor) -> dict[str, Tensor]:
        """Return the error in per cent and the mean of -log p_y over the test data, each (C,); NaN if any p is NaN."""
        y = self.on(target.device, self.data).fields["y"]
        index = y.long().expand(evaluation.shape[:2])[..., None]
        loss = -evaluation.gather(-1, index)[..., 0].mean(-1)
        wrong = 100 * (evaluation.argmax(-1) != y).to(loss.dtype).mean(-1)
        return {"error": wrong.masked_fill(loss.isnan(), torch.nan), "nll": loss}

    def ensemble_scores(self, target: Target, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return error and negative log-likelihood of the snapshots' mean class probabilities, each (C,)."""
        return self.scores(target, of_ensemble(memory, "probability").log())

    def predictions(self, target: Target, theta: Tensor, data: Dataset) -> Tensor:
        """Return log-probabilities (C, n, K) of the classes of some data."""
        model, parts = target.model, self.parts(target, len(theta), data)
        assert predicts_classes(model)
        return torch.cat([model.predict(theta, rows) for rows in parts], dim=1)


def with_probabilities(total: Tensor, log_p: Tensor, share: Tensor) -> Tensor:
    """Return sums (C, n, K), increased by the class probabilities of the chains whose share (C,) is 1."""
    # Not share * p: 0 times a NaN prediction is NaN.
    return total + torch.where(share[:, None, None] > 0, log_p.double().exp(), 0.0)


def of_ensemble(memory: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the mean class probabilities (C, n, K) of the snapshots so far."""
    return memory[name] / memory["collected"].clamp_min(1)[:, None, None]
