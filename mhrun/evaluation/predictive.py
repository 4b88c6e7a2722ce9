"""How well the chains predict the classes of other data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.target import Source, Target

_HELD = 1 << 25  # inputs that are held at once


class Predictive:
    """Errors in per cent and mean negative log-likelihoods in nats on test data, every `every` steps, of

    - ``error``, ``nll``: the current parameters;
    - ``error_of_mean``, ``nll_of_mean``: the mean of all parameters so far (Li & Wong 2017, section 4.3);
    - ``error_of_ensemble``, ``nll_of_ensemble``: the mean of the class probabilities of the snapshots so far, which is
      the posterior predictive where the chain samples the posterior (snapshots: Li & Wong 2017, CMINT).

    Each chain is told of for itself. Ties of two classes count as the lower one. Parameters that predict no number are
    told as NaN.

    Args:
        data: the test data, with the fields of the model.
        every: steps between two looks.
        average: parameters are averaged over every so many steps; None for no mean.
        collect: a snapshot is taken every so many steps; None for no ensemble.
        after: steps before the first that is averaged or collected.

    Raises:
        Refusal: counts that have no meaning.
    """  # noqa: D415

    def __init__(
        self,
        data: Dataset | Source | Mapping[str, Any],
        every: int,
        average: int | None = None,
        collect: int | None = None,
        after: int = 0,
    ) -> None:
        for name, count in (("every", every), ("average", average), ("collect", collect)):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise Refusal(f"{name} = {count!r} must be a whole number of steps, at least 1.")
        if after < 0:
            raise Refusal(f"after = {after} must be at least 0.")
        self._source = Dataset.of(data) if isinstance(data, Mapping) else data
        self.every = every
        self.average = average
        self.collect = collect
        self.after = after

    @cached_property
    def data(self) -> Dataset:
        """The test data."""
        return self._source if isinstance(self._source, Dataset) else self._source.load()

    def refuses(self, target: Target) -> str | None:
        """Refuse a model that does not predict classes."""
        if not hasattr(target.model, "predict") or not getattr(target.model, "tells_classes", True):
            return f"it needs a model that predicts classes, which {type(target.model).__name__} does not."
        return None

    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return a mean of nothing and an ensemble of none."""
        memory: dict[str, Tensor] = {}
        if self.average:
            memory["mean"] = torch.zeros(chains, target.dim, device=target.device)
        if self.collect:
            nowhere = torch.zeros(1, target.dim, device=target.device)
            classes = target.model.predict(nowhere, self._data(target).part(0, 1)).shape[-1]  # type: ignore[attr-defined]
            shape = chains, self.data.n, classes
            memory["probability"] = torch.zeros(shape, dtype=torch.float64, device=target.device)
        return memory

    def horizon(self, step: int) -> int:
        """Return the steps to the next one that is looked at."""
        wait = self.every - (step - 1) % self.every
        for period in (self.average, self.collect):
            if period is not None:
                at = max(step, self.after + 1)
                wait = min(wait, at - step + (-at) % period + 1)
        return wait

    def tells(self, step: int) -> bool:
        """Say whether this step ends a stretch of `every`."""
        return step % self.every == 0

    def look(
        self, target: Target, memory: Mapping[str, Tensor], step: int, theta: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Average, collect, and tell where it is time."""
        new, told, tells = dict(memory), {}, self.tells(step)
        averaged, collected = self._count(self.average, step), self._count(self.collect, step)
        if self.average and averaged and step % self.average == 0:
            new["mean"] = memory["mean"] + (theta - memory["mean"]) / averaged
        keeps = bool(self.collect and collected and step % self.collect == 0)
        if keeps or tells:
            told = self._of(target, theta, into=new["probability"] if keeps else None)
        if not tells:
            return new, {}
        # What is not there yet is told too, as NaN: every look has the same numbers.
        none = torch.full((len(theta),), torch.nan, device=theta.device)
        if self.average:
            found = self._of(target, new["mean"]) if averaged else {"error": none, "nll": none}
            told |= {f"{name}_of_mean": value for name, value in found.items()}
        if self.collect:
            log_p = (new["probability"] / max(1, collected)).log()
            wrong, loss = _missed(log_p, self._data(target).fields["y"]) if collected else (none, none)
            told |= {"error_of_ensemble": wrong, "nll_of_ensemble": loss}
        return new, told

    def _count(self, period: int | None, step: int) -> int:
        """Return how many steps were taken in by now."""
        return 0 if period is None or step <= self.after else step // period - self.after // period

    def _of(self, target: Target, theta: Tensor, into: Tensor | None = None) -> dict[str, Tensor]:
        """Return error and loss of parameters (C, D); their probabilities are added to `into` (C, n, K)."""
        data, parts = self._data(target), []
        size = max(1, _HELD // (len(theta) * max(1, data.fields["x"][0].numel())))
        for start in range(0, data.n, size):
            rows = data.part(start, min(start + size, data.n))
            parts.append(target.model.predict(theta, rows))  # type: ignore[attr-defined]
        log_p = torch.cat(parts, dim=1)
        if into is not None:
            into += log_p.double().exp()
        wrong, loss = _missed(log_p, data.fields["y"])
        return {"error": wrong, "nll": loss}

    def _data(self, target: Target) -> Dataset:
        """Return the test data where the chains are."""
        return self.data.to(target.device)


def _missed(log_p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the error in per cent and the mean of -log p_y over the data, each (C,); NaN where a p is NaN."""
    loss = -log_p.gather(-1, y.long().expand(log_p.shape[:2])[..., None])[..., 0].mean(-1)
    wrong = 100 * (log_p.argmax(-1) != y).to(loss.dtype).mean(-1)
    return wrong.masked_fill(loss.isnan(), torch.nan), loss
