"""Classes as the outcome of a torch module: their likelihoods, and the probabilities that outputs give them.

A likelihood is ``(outputs, rows) -> (m,)``, and log-probabilities are ``outputs -> (m, K)``, with the module's outputs
(m, ...) at one point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from mhrun.build import trusted_object
from mhrun.errors import Refusal, UserError, nearest
from mhrun.models.module_evaluation import Likelihood
from mhrun.types import Rows

_NEARLY, _NEARLY_1 = 1e-4, 1e-3

LogProbs = Callable[[Tensor], Tensor]


def categorical(outputs: Tensor, rows: Rows) -> Tensor:
    """Return log p_y, p the softmax of the outputs (m, K) and y (m,) the class."""
    return torch.log_softmax(outputs, -1).gather(-1, _classes(rows).long()[:, None])[:, 0]


def bernoulli(outputs: Tensor, rows: Rows) -> Tensor:
    """Return log p if y is 1 and log(1 - p) if it is 0, p the sigmoid of the outputs (m, 1) or (m,)."""
    z = _logits(outputs)
    return F.logsigmoid(torch.where(_classes(rows) > 0, z, -z))


def softmax(outputs: Tensor) -> Tensor:
    """Return log-probabilities (m, K), the softmax of the outputs (m, K)."""
    return torch.log_softmax(outputs, -1)


def sigmoid(outputs: Tensor) -> Tensor:
    """Return log-probabilities (m, 2) of 0 and 1; that of 1 is the sigmoid of the outputs (m, 1) or (m,)."""
    z = _logits(outputs)
    return torch.stack([F.logsigmoid(-z), F.logsigmoid(z)], -1)


LOG_PROBS: Mapping[str, LogProbs] = {"softmax": softmax, "sigmoid": sigmoid}
LIKELIHOODS: Mapping[str, tuple[Likelihood, LogProbs]] = {
    "categorical": (categorical, softmax),
    "bernoulli": (bernoulli, sigmoid),
}


def outcome(
    likelihood: str | Likelihood, log_probs: str | LogProbs | None
) -> tuple[Likelihood, LogProbs | None]:
    """Return the functions that two settings of a `ModuleModel` name or are.

    Raises:
        Refusal: an unknown name, what is no function, or log-probabilities beside a likelihood that has its own.
        UserError: the name of a function that is not there, or not trusted.
    """
    if isinstance(log_probs, str):
        if "." in log_probs:
            log_probs = trusted_object(log_probs, "log_probs")
        elif log_probs not in LOG_PROBS:
            raise Refusal(
                f"there are no log_probs '{log_probs}'; give softmax, sigmoid or a function."
                f"{nearest(log_probs, LOG_PROBS)}"
            )
        else:
            log_probs = LOG_PROBS[log_probs]
    if log_probs is not None and not callable(log_probs):
        raise Refusal(f"log_probs = {log_probs!r} must be softmax, sigmoid or a function.")
    if isinstance(likelihood, str) and "." in likelihood:
        likelihood = trusted_object(likelihood, "likelihood")
    if not isinstance(likelihood, str):
        if not callable(likelihood):
            raise Refusal(f"likelihood = {likelihood!r} must be categorical, bernoulli or a function.")
        return likelihood, log_probs
    if likelihood not in LIKELIHOODS:
        raise Refusal(
            f"there is no likelihood '{likelihood}'; give categorical, bernoulli or a function."
            f"{nearest(likelihood, LIKELIHOODS)}"
        )
    if log_probs is not None:
        raise Refusal(f"{likelihood} has its own class probabilities; leave out log_probs.")
    return LIKELIHOODS[likelihood]


def checked_log_probs(log_probs: LogProbs, outputs: Tensor) -> Tensor:
    """Return the log-probabilities of classes that outputs (m, ...) give.

    Raises:
        UserError: a user's function returns another shape than (m, K).
    """
    if log_probs in LOG_PROBS.values():
        _check_outputs(log_probs, outputs)
        return log_probs(outputs)
    found: object = log_probs(outputs)
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(outputs):
        raise UserError(
            "log_probs must return the log-probability of each class for each datum, a tensor "
            f"({len(outputs)}, K)."
        )
    if bool((found.exp().sum(-1) - 1).abs().nan_to_num().max() > _NEARLY_1):
        raise UserError(
            "log_probs must return log-probabilities, and those of a datum make "
            f"{float(found.exp().sum(-1)[0]):.3g} in place of 1; return log_softmax(outputs, -1), or the log of "
            "probabilities."
        )
    return found


def _check_outputs(log_probs: LogProbs, outputs: Tensor) -> None:
    """Refuse a number of outputs (m, ...) that softmax or sigmoid cannot be meant for."""
    if log_probs is softmax and outputs.dim() == 2 and outputs.shape[-1] == 1:
        raise UserError(
            "log_probs = softmax takes an output for each class, and the module has one; give sigmoid."
        )
    if log_probs is sigmoid and outputs.dim() == 2 and outputs.shape[-1] > 1:
        raise UserError(
            f"log_probs = sigmoid takes one output, and the module has {outputs.shape[-1]}; give softmax."
        )


def number_of_classes(likelihood: str, outputs: Tensor, remedy: str) -> int | None:
    """Return K, from outputs (1, m, ...) of a few data; None where they have a shape that the likelihood will refuse.

    Raises:
        Refusal: a number of outputs that is of the other likelihood.
    """
    if likelihood == "bernoulli":
        if outputs.dim() == 3 and outputs.shape[-1] > 1:
            raise Refusal(
                f"the module has {outputs.shape[-1]} outputs, and bernoulli takes one; give likelihood = categorical."
            )
        return 2 if outputs.shape[2:].numel() == 1 else None
    if outputs.dim() != 3:
        return None
    if outputs.shape[-1] == 1:
        raise Refusal(
            "the module has one output, and categorical takes one for each class; give likelihood = bernoulli for "
            f"classes 0 and 1. {remedy}"
        )
    return outputs.shape[-1]


def are_probabilities(likelihood: str, outputs: Tensor) -> bool:
    """Return whether outputs (1, m, ...) at theta = 0 are probabilities, where logits are expected.

    Logits are 0 there, or a constant that is no parameter.
    """
    if likelihood == "bernoulli":
        return bool((outputs == 0.5).all())
    return bool((outputs >= 0).all()) and bool(((outputs.sum(-1) - 1).abs() < _NEARLY).all())


def _classes(rows: Rows) -> Tensor:
    if "y" not in rows:
        raise UserError(
            f"the class of a datum is the field y, and the data have {', '.join(rows)}; rename it y."
        )
    return rows["y"]


def _logits(outputs: Tensor) -> Tensor:
    return outputs[..., 0] if outputs.dim() > 1 else outputs
