"""How well any model predicts other data: log predictive density and root mean squared error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from mhrun.build import trusted_object
from mhrun.data import Dataset
from mhrun.data.no_data import has_no_data
from mhrun.errors import Refusal, UserError
from mhrun.monitors.periodic import Periodic
from mhrun.random import Draws, Streams
from mhrun.target import Source, Target
from mhrun.target.fields import fields_read, unfit
from mhrun.types import Model, Rows
from mhrun.types.capabilities import AppliesFunctions, HasOutcomeMean, declared_fields, offers

Mean = Callable[[Any, Any], Tensor]


class _Values(NamedTuple):
    """Test data at the parameters of each chain."""

    log_lik: Tensor  # (C, n), float64
    mean: Tensor | None  # of the outcome, (C, n, K), float64; None where the model does not say


class HeldOut(Periodic[_Values]):
    """Negative log predictive densities in nats per datum, and root mean squared errors, on test data y_1..n, of

    - ``nll``, ``rmse``: the current parameters, nll = -(1/n) sum_i log p(y_i | theta);
    - ``nll_of_mean``, ``rmse_of_mean``: the mean of all parameters so far;
    - ``nll_of_ensemble``, ``rmse_of_ensemble``: the S snapshots so far, nll = -(1/n) sum_i log (1/S) sum_s
      p(y_i | theta_s), and the error of the mean over snapshots of the outcome's mean. Where the chain samples the
      posterior these are of the posterior predictive.

    For every model with data; p is the model's likelihood, with the constants that it has. Errors are there for a model
    that has a mean of a numerical outcome, a Poisson or robust regression, and where `mean` is given. Metrics are per
    chain. Steps of burn-in enter no mean and no ensemble. If a schedule chooses the draws to collect, those are the
    snapshots, and `collect` and `after` have no effect.

    Args:
        data: the test data, with the fields of the model.
        every: steps between two rows of metrics; the last step has one, too.
        average: steps between two parameters that enter the mean; None for no mean.
        collect: steps between two snapshots; None for no ensemble.
        after: steps before averaging and collecting begin, those of burn-in included; they begin no sooner than burn-in
            ends.
        mean: the mean of the outcome of each datum, (m,) or (m, K), called as the likelihood is: ``(outputs, rows)``
            for a torch module, ``(theta, batch)`` for a function. In a configuration the dotted name of a function.
        outcome: the field with the outcomes, in the units of `mean`.

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
        mean: Mean | str | None = None,
        outcome: str = "y",
    ) -> None:
        super().__init__(data, every, average, collect, after)
        self._mean: Mean | None = trusted_object(mean, "mean") if isinstance(mean, str) else mean
        if self._mean is not None and not callable(self._mean):
            raise Refusal(f"mean = {mean!r} must be a function, such as lambda outputs, rows: outputs[:, 0].")
        self.outcome = outcome

    def refuses(self, target: Target) -> str | None:
        """Return that it is a density without data, or that the model cannot evaluate `mean`, or None."""
        fields = declared_fields(target.model)
        if has_no_data(target.data) or any(field.values == "zeros" for field in fields.values()):
            return f"it needs a model of data, and {type(target.model).__name__} is a density without data."
        if self._mean is not None and not offers(target.model, AppliesFunctions):
            return (
                f"mean is for torch modules and functions; {type(target.model).__name__} has its own or none."
            )
        return None

    def check_data(self, target: Target, chains: int) -> None:
        """Refuse test data that the model cannot read, or whose outcomes do not have the shape of their means."""
        if (reason := unfit(target.model, self.data)) is not None:
            raise Refusal(f"the monitor's data: {reason}")
        for name, field in target.data.fields.items():
            other = self.data.fields.get(name)
            if other is None and name in (fields_read(target.model, target.data) or ()):
                raise Refusal(f"the monitor's data have no {name}, which the model was fitted with.")
            if other is not None and other.shape[1:] != field.shape[1:]:
                raise Refusal(
                    f"a datum of the monitor's data has {name} of the shape {tuple(other.shape[1:])}, and of the "
                    f"target's {tuple(field.shape[1:])}."
                )
        self._try(target, chains)

    def _try(self, target: Target, chains: int) -> None:
        """Refuse what fails at the test data, in both types that parameters may have, before a run begins."""
        failures, start = [], _start(target, chains)
        for kind in (torch.float64, torch.float32):
            try:
                self.evaluated(target, start.to(target.device, kind))
            except (UserError, RuntimeError) as error:
                failures.append(error)
            else:
                return
        raise Refusal(f"the monitor's data: {failures[0]}") from failures[0]

    def evaluated(self, target: Target, theta: Tensor) -> _Values:
        """Return log-likelihoods (C, n) and means of the outcome (C, n, K) of the test data."""
        parts = [self._at(target, theta, rows) for rows in self.parts(target, len(theta), self.data)]
        means = [part.mean for part in parts if part.mean is not None]
        log_lik = torch.cat([part.log_lik for part in parts], dim=1)
        return _Values(log_lik, torch.cat(means, dim=1) if means else None)

    def _at(self, target: Target, theta: Tensor, rows: Rows) -> _Values:
        """Evaluate rows (1, m, ...) at theta (C, D)."""
        model, mean = target.model, None
        if self._mean is not None:
            assert offers(model, AppliesFunctions)
            mean = model.applied(self._mean, theta, rows)
        elif _predicts_number(model):
            mean = model.outcome_mean(theta, rows)
        if mean is not None:
            mean = self._shaped(mean.double(), rows)
        return _Values(model.log_lik(theta, rows).double(), mean)

    def _shaped(self, mean: Tensor, rows: Rows) -> Tensor:
        """Return means as (C, m, K), of as many numbers K as an outcome has."""
        if self.outcome not in rows:
            raise Refusal(
                f"there is no outcome '{self.outcome}', but {', '.join(rows)}; set outcome to the field's name."
            )
        y = rows[self.outcome]
        mean = mean.reshape(*mean.shape[:2], -1)
        size = math.prod(y.shape[2:])
        if mean.shape[1:] != (y.shape[1], size):
            raise Refusal(
                f"the mean of {y.shape[1]:,} outcomes of shape {tuple(y.shape[2:])} has the shape "
                f"{tuple(mean.shape[1:])}; it must have one number for each of theirs."
            )
        return mean

    def scores(self, target: Target, evaluation: _Values) -> dict[str, Tensor]:
        """Return the mean of -log p, and the root mean squared error of the outcome's mean, each (C,)."""
        scores = {"nll": -evaluation.log_lik.mean(-1)}
        if evaluation.mean is not None:
            y = self.on(target.device, self.data).fields[self.outcome].double()
            gap = evaluation.mean - y.reshape(1, len(y), -1)
            scores["rmse"] = gap.square().mean((-1, -2)).sqrt()
        return scores

    def no_snapshots(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return log sums of densities, ``log_density`` (C, n), and sums of means, ``outcome`` (C, n, K), of none."""
        empty = torch.zeros(chains, self.data.n, dtype=torch.float64, device=target.device)
        kept = {"log_density": torch.full_like(empty, -torch.inf)}
        if self._mean is not None or _predicts_number(target.model):
            kept["outcome"] = empty[..., None].repeat(1, 1, self.data.fields[self.outcome][0].numel())
        return kept

    def with_snapshot(
        self, target: Target, memory: Mapping[str, Tensor], theta: Tensor, evaluation: _Values, share: Tensor
    ) -> dict[str, Tensor]:
        """Return the sums of `no_snapshots` after one more snapshot."""
        taken = share[:, None] > 0
        before = memory["log_density"]
        kept = {"log_density": torch.where(taken, torch.logaddexp(before, evaluation.log_lik), before)}
        if evaluation.mean is not None:
            kept["outcome"] = memory["outcome"] + torch.where(taken[..., None], evaluation.mean, 0.0)
        return kept

    def ensemble_scores(self, target: Target, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the scores of the mixture of the snapshots' densities, and of the mean of their means, each (C,)."""
        count = memory["collected"].double().clamp_min(1)
        log_density = memory["log_density"] - count.log()[:, None]
        mean = memory["outcome"] / count[:, None, None] if "outcome" in memory else None
        return self.scores(target, _Values(log_density, mean))


def _predicts_number(model: Model) -> TypeGuard[HasOutcomeMean]:
    """Return whether a model has a mean of its outcome, which is a number and not a label."""
    fields = declared_fields(model)
    is_label = "y" in fields and fields["y"].values == "signs"
    return offers(model, HasOutcomeMean) and not is_label


def _start(target: Target, chains: int) -> Tensor:
    """Return a starting point (1, D) of the model; zeros if it has none."""
    for count in (1, chains):  # one is quick, but starts may be given for all
        try:
            return target.model.init(count, Draws(Streams(0, count, target.device), 0))[:1]
        except UserError:
            continue
    return torch.zeros(1, target.dim)
