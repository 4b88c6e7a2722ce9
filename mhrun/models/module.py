"""Any torch module as a model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.modules.conv import _ConvNd

from mhrun.errors import Refusal, UserError, nearest
from mhrun.models.block_priors import prior_of_blocks
from mhrun.models.explained import converted
from mhrun.models.module_classes import (
    LIKELIHOODS,
    LogProbs,
    are_probabilities,
    checked_log_probs,
    number_of_classes,
    outcome,
)
from mhrun.models.module_copy import initialised, prepared, reset, theta_of_state, warn_of_layers
from mhrun.models.module_evaluation import BOUND, COMPILED, VMAPPED, Likelihood
from mhrun.models.module_evaluators import Evaluators
from mhrun.models.module_points import flat_parameters, initial_buffers, split_points
from mhrun.ownership import blame
from mhrun.random import Draws, derive_key
from mhrun.types import BUFFER, Field, ParameterBlock, Rows

_TRIED = 16  # data whose outputs are checked
_MAX_VMAP = 100_000  # parameters above which a network takes longer by vmap than point after point
_REGRESSION = "For another outcome, such as that of a regression, give likelihood= a function."

EVALUATIONS = ("auto", BOUND, VMAPPED, COMPILED)
STARTS = ("fresh", "module")


@dataclass
class _Memo:
    """What a model remembers of earlier calls."""

    evaluators: Evaluators
    warned: bool = False  # that outputs are probabilities


class ModuleModel:
    """A `torch.nn.Module` as a model; theta concatenates its parameters in the order of `named_parameters`.

    Buffers that training mode changes, such as BatchNorm's running statistics, are part of the state of each chain:
    they follow theta through exchanges, checkpoints and traces. A dynamics evaluates these layers in training mode, on
    the statistics of its minibatch. Predictions and exchanges of replicas use the running statistics. A layer that was
    put into evaluation mode (``layer.eval()``) keeps its buffers constant. All other layers are in evaluation mode.

    A parameter with ``requires_grad=False`` is a constant, such as those of a pretrained backbone.

    Dropout is off, with a warning: a datum's likelihood must be a function of theta.

    Points are (C, D), or (C, width) with the buffers after the parameters, as in traces. At (C, D) the initial buffers
    are used.

    Args:
        module: takes ``x`` of a minibatch (m, ...) and returns outputs (m, ...). Or a function without arguments that
            makes the module: each chain then begins with a new module.
        likelihood: ``categorical``, of the class ``y`` given outputs (m, K), or ``bernoulli``, of y = 0 or 1 given one
            output; or a function ``(outputs, rows) -> (m,)`` of the log-likelihood of each datum, where `rows` are the
            fields of the minibatch (m, ...), or in a configuration its name, such as ``mine.log_lik``.
        prior_variance: prior variance of every parameter, N(0, variance); flat if None. Or name -> variance (None:
            flat), block by block: names are those of `named_parameters` and may have wildcards, and the first
            that matches decides, such as ``{"*.bias": 10.0, "*": 1.0}``. Run metadata name the prior.
        evaluation: ``bound``: a module whose parameters are views of theta, chain after chain; ``vmapped``: all chains
            at once by `torch.func.vmap`; ``compiled``: a compiled loop over the chains, for a fully connected network
            (linear layers with biases, and ReLU, tanh or sigmoid between them) with the likelihood ``categorical``, on
            a CPU; ``auto``: whichever is fastest, measured as a run starts and stored with it.
        log_probs: log-probabilities (m, K) of classes that the outputs (m, ...) of a model with a likelihood of your
            own give, for predictions, monitors and reports: ``softmax``, ``sigmoid`` (of one output, of the classes 0
            and 1) or a function. None: it predicts no classes.
        start: where chains begin: ``fresh``, each at parameters that the layers draw as they do when they are made;
            ``module``, all at those of `module`, such as trained ones that it has loaded.
        prior: in place of `prior_variance`, a distribution of every parameter, of `torch.distributions` or as text,
            such as ``Laplace(0, 1)`` or ``StudentT(4, 0, 1)``; or name -> distribution (None: flat), block by block.

    Raises:
        Refusal: a module without parameters, or an invalid setting.
    """

    reads_pixels = True

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        likelihood: str | Likelihood = "categorical",
        prior_variance: float | Mapping[str, float | None] | None = None,
        evaluation: Literal["auto", "bound", "vmapped", "compiled"] = "auto",
        log_probs: str | LogProbs | None = None,
        start: Literal["fresh", "module"] = "fresh",
        prior: str | Distribution | Mapping[str, str | Distribution | None] | None = None,
    ) -> None:
        self._likelihood, self._log_probs = outcome(likelihood, log_probs)
        if evaluation not in EVALUATIONS:
            raise Refusal(
                f"there is no evaluation '{evaluation}'; choose {', '.join(EVALUATIONS)}."
                f"{nearest(evaluation, EVALUATIONS)}"
            )
        self._make = None if isinstance(module, nn.Module) else module
        self._prepared = prepared(module if isinstance(module, nn.Module) else _made(module, 0))
        if start not in STARTS:
            raise Refusal(f"there is no start '{start}'; choose {', '.join(STARTS)}.{nearest(start, STARTS)}")
        self._begins_as_module = start == "module" and self._make is None
        if not self._begins_as_module:
            # Parameters that are drawn for each chain: two modules that differ only in them are the same model.
            drawn = self._prepared.module.parameters() if self._make else initialised(self._prepared.module)
            for parameter in drawn:
                parameter.detach().zero_()
        warn_of_layers(self._prepared)
        self.is_classifier = self._log_probs is not None
        # whose data are checked
        self._of_classes = likelihood if isinstance(likelihood, str) and likelihood in LIKELIHOODS else None
        self.evaluation = evaluation
        has_loop = likelihood == "categorical"
        evaluators = Evaluators(self._prepared, self._likelihood, evaluation, has_loop=has_loop)
        if evaluation == COMPILED and evaluators.network is None:
            raise Refusal(
                "evaluation=compiled is for a fully connected network, of linear layers with biases and ReLU, tanh or "
                "sigmoid between them in the order of its parameters, with likelihood=categorical; choose auto."
            )
        self._memo = _Memo(evaluators)  # no setting: `mhrun.store.fingerprint` skips attributes of this name
        shapes = {name: p.shape for name, p in self._prepared.module.named_parameters()}
        ends = torch.tensor([shape.numel() for shape in shapes.values()]).cumsum(0).tolist()
        self.blocks: Sequence[ParameterBlock] = [
            ParameterBlock(name, end - shape.numel(), end, len(shape) > 1)
            for (name, shape), end in zip(shapes.items(), ends, strict=True)
        ]
        self.dim = int(ends[-1])
        self._prior = prior_of_blocks(prior, prior_variance, self.blocks)
        self.prior_summary = self._prior.summary
        self.width = self.dim + sum(buffer.value.numel() for buffer in self._prepared.buffers)

    takes_autocast = True
    """Whether its log-likelihoods and gradients can be computed under `torch.autocast`."""

    @property
    def layers(self) -> str:
        """The module as torch prints it."""
        return str(self._prepared.module)

    @property
    def names(self) -> Sequence[str]:
        """A name for each parameter, then for each number of the buffers."""
        sizes = [(b.name, b.stop - b.start) for b in self.blocks]
        sizes += [(b.name, b.value.numel()) for b in self._prepared.buffers]
        return tuple(f"{name}[{i}]" for name, size in sizes for i in range(size))

    @property
    def buffer_names(self) -> Sequence[str]:
        """The buffers that are part of a chain's state."""
        return tuple(buffer.name for buffer in self._prepared.buffers)

    @property
    def batch_norms(self) -> Sequence[str]:
        """The layers of torch that keep or use statistics of minibatches, such as BatchNorm in training mode."""
        return self._prepared.batch_norms

    def fields_of(self, data: Rows) -> Mapping[str, Field]:
        """Return the required fields of a categorical or Bernoulli likelihood.

        Raises:
            Refusal: no classes, or a number of outputs that is not theirs.
        """
        if self._of_classes is None or "x" not in data:
            return {}
        if "y" not in data:
            raise Refusal(f"a classifier needs the classes y; the data have {', '.join(data)}. {_REGRESSION}")
        rows = {name: field[:_TRIED][None] for name, field in data.items()}
        with torch.no_grad():
            outputs = self.outputs(torch.zeros(1, self.dim, device=data["x"].device), rows)
        classes = number_of_classes(self._of_classes, outputs, _REGRESSION)
        if classes is None:
            return {}
        if are_probabilities(self._of_classes, outputs) and not self._memo.warned:
            self._memo.warned = True
            activation = "softmax" if self._of_classes == "categorical" else "sigmoid"
            warnings.warn(
                f"the module's outputs are probabilities, and the likelihood takes their {activation}; remove the "
                f"module's own {activation}.",
                UserWarning,
                stacklevel=2,
            )
        return {"x": Field(None), "y": Field((), "classes", classes, remedy=_REGRESSION)}

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return initial parameters (C, D), drawn for each chain by the module's `reset_parameters`, or the module's.

        A parameter that no layer initialises begins at its value in `module` plus normal noise; see `reset`.
        """
        if self._begins_as_module:
            return flat_parameters(self._prepared.module).repeat(chains, 1).to(draws.device)
        seeds = [derive_key(draws.streams.key, f"module/{chain}") >> 1 for chain in range(chains)]
        return torch.stack([flat_parameters(self._new_module(seed)) for seed in seeds]).to(draws.device)

    def _new_module(self, seed: int) -> nn.Module:
        """Return a module with new parameters, by the user's function or by the initialisers of its layers."""
        if self._make is not None:
            return prepared(_made(self._make, seed)).module
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = prepared(self._prepared.module).module
            with torch.no_grad():
                reset(module)
        return module

    def first_buffers(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the initial buffers of each chain of theta (C, D), name -> (C, ...); floating ones as theta."""
        initial = initial_buffers(self._prepared.buffers, theta)
        return {BUFFER + name: value for name, value in initial.items()}

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) or (C, width) -> (C,), summed in float64."""
        return self._prior.log_prob(theta[:, : self.dim])

    def prior_precision(self) -> float | None:
        """Return the precision of a normal prior that all parameters have; 0 if it is flat, None for any other."""
        return self._prior.common_precision()

    def log_prior_grad(self, theta: Tensor) -> Tensor | None:
        """Return the gradient (C, D) of the log prior; None if it is flat."""
        return self._prior.grad(theta)

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) or (C, width) and rows (C or 1, m, ...) -> (C, m), in evaluation mode."""
        theta, buffers = self._split(theta)
        with _explained(rows):
            return self._memo.evaluators.current.log_lik(theta, buffers, rows)

    def log_lik_of_one(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return `log_lik` at theta (1, D) by the module itself, with its own errors."""
        return self._memo.evaluators.bound.log_lik(*self._split(theta), rows)

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return log-likelihoods (C, m) and the gradient (C, D) of their mean, in training mode."""
        theta, buffers = self._split(theta)
        with _explained(rows):
            return self._memo.evaluators.current.train(theta, buffers, rows)[:2]

    def train(
        self, theta: Tensor, buffers: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-likelihoods (C, m), the gradient (C, D) of their mean, and the buffers after this minibatch."""
        module_buffers = {name.removeprefix(BUFFER): value for name, value in buffers.items()}
        with _explained(rows):
            log_lik, grad, after = self._memo.evaluators.current.train(theta, module_buffers, rows)
        return log_lik, grad, {BUFFER + name: value for name, value in after.items()}

    def outputs(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the module's outputs (C, m, ...), in evaluation mode."""
        theta, buffers = self._split(theta)
        with _explained(rows):
            return self._memo.evaluators.current.outputs(theta, buffers, rows)

    def outputs_at_many(self, theta: Tensor, rows: Rows) -> Tensor:
        """As `outputs`, of many points at once where `torch.func.vmap` can and is faster.

        Of few rows, as the activations of all points are in memory together. Convolutions of many points are grouped
        ones, which take longer than one after another.
        """
        if self.dim > _MAX_VMAP or any(isinstance(part, _ConvNd) for part in self._prepared.module.modules()):
            return self.outputs(theta, rows)
        point, buffers = self._split(theta)
        try:
            return self._memo.evaluators.vmapped.outputs(point, buffers, rows)
        except Exception:  # what vmap lacks; the module's own errors come again below
            return self.outputs(theta, rows)

    def applied(self, function: Likelihood, theta: Tensor, rows: Rows) -> Tensor:
        """Return a function of the outputs, called as the likelihood is, for each chain: (C, m, ...)."""
        outputs = self.outputs(theta, rows)
        fields = [{name: field[c % len(field)] for name, field in rows.items()} for c in range(len(theta))]
        with _explained(rows):
            return torch.stack([function(of_chain, f) for of_chain, f in zip(outputs, fields, strict=True)])

    def predict(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the log-probability of each class, (C, m, K), in evaluation mode.

        Raises:
            UserError: the model has a likelihood of the user's and no `log_probs`, or these return another shape.
        """
        return self.log_probs(self.outputs(theta, rows))

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Return the log-probability of each class, (C, m, K), that outputs (C, m, ...) give.

        Raises:
            UserError: the model has a likelihood without classes.
        """
        if self._log_probs is None:
            raise UserError(
                "this model has a likelihood of your own and predicts no classes: give it log_probs, such as softmax; "
                "`outputs` has the module's own."
            )
        found = [checked_log_probs(self._log_probs, of_chain) for of_chain in outputs]
        return torch.stack(found)

    def module_at(self, theta: Tensor) -> nn.Module:
        """Return a copy of the module with parameters theta (D,) or (width,), buffers included, in evaluation mode."""
        (point,), buffers = self._split(theta[None])
        module = copy.deepcopy(self._prepared.module).to(theta.device, theta.dtype).eval()
        with torch.no_grad():
            nn.utils.vector_to_parameters(point, module.parameters())
            for name, value in buffers.items():
                module.get_buffer(name).copy_(value[0])
        return module

    def theta_of(self, state: nn.Module | Mapping[str, Tensor]) -> Tensor:
        """Return the parameters (D,), float64, of a module or of its state dict; see `module_at`.

        Buffers, such as BatchNorm's running statistics, begin as those of this model's module.

        Raises:
            UserError: a parameter is missing or has another shape, or a buffer is not that of this model's module.
        """
        return theta_of_state(self._prepared.module, [block.name for block in self.blocks], state)

    def values_per_datum(self, rows: Rows) -> int:
        """Return how many values a forward pass keeps for the gradient of one datum, from two small passes.

        In evaluation mode, on two and three data if `rows` has so many; the likelihood adds little and is not called.
        """

        def first() -> tuple[Tensor, dict[str, Tensor]]:
            theta = flat_parameters(self._prepared.module)[None]
            return self._split(theta.to(next(iter(rows.values())).device))

        with _explained(rows):
            return self._memo.evaluators.values_per_datum(rows, first)

    @property
    def has_compiled_loop(self) -> bool:
        """Whether ``compiled`` is an evaluation of this module."""
        return self._memo.evaluators.network is not None

    def select_evaluation(self, name: str | None) -> None:
        """Use ``bound``, ``vmapped`` or ``compiled`` from now on; None for the default."""
        self._memo.evaluators.selected = name

    def _split(self, point: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return theta (C, D) and the buffers of points (C, D) or (C, width)."""
        return split_points(self._prepared.buffers, self.dim, point)


def _made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return the module that a user's function makes, with torch's generator seeded.

    Raises:
        Refusal: it returns no module.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: object = make() if callable(make) else make
    if not isinstance(module, nn.Module):
        raise Refusal(
            f"module must be a torch module or a function that makes one, not {type(module).__name__}."
        )
    return module


def _explained(rows: Rows) -> AbstractContextManager[None]:
    """Convert an error of the module or its likelihood into one line with the shapes of the data."""

    def line(error: Exception) -> str:
        shapes = ", ".join(f"{name} {tuple(field.shape[2:])}" for name, field in rows.items())
        return (
            f"the data do not go through the module or its likelihood: {blame(error)}; a datum is {shapes}."
        )

    return converted(line)
