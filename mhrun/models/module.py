"""Any torch module as a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from mhrun.build import blame
from mhrun.errors import Refusal, UserError
from mhrun.models.returned import returned
from mhrun.random import Draws, derive_key
from mhrun.types import Block, Rows

Likelihood = Callable[[Tensor, Rows], Tensor]


def categorical(outputs: Tensor, rows: Rows) -> Tensor:
    """Return log p_y, p the softmax of the outputs (m, K) and y (m,) the class."""
    return torch.log_softmax(outputs, -1).gather(-1, rows["y"].long()[:, None])[:, 0]


class ModuleModel:
    """A `torch.nn.Module` as a model; theta concatenates its parameters in the order of `named_parameters`.

    All chains are evaluated together by `torch.func.vmap`; one pass gives log-likelihood and gradient. Buffers are
    constant, and the module is in evaluation mode: dropout is off.

    Args:
        module: takes ``x`` of a minibatch (m, ...) and returns outputs (m, ...).
        likelihood: ``categorical``, of the class ``y`` given outputs (m, K); or a function ``(outputs, rows) -> (m,)``
            of the log-likelihood of each datum, where `rows` are the fields of the minibatch (m, ...).
        prior_variance: prior variance of every parameter, N(0, variance); flat if None.

    Raises:
        Refusal: a module without parameters, or an invalid setting.
    """

    def __init__(
        self,
        module: nn.Module,
        likelihood: str | Likelihood = "categorical",
        prior_variance: float | None = None,
    ) -> None:
        if isinstance(likelihood, str) and likelihood != "categorical":
            raise Refusal(f"there is no likelihood '{likelihood}'; give categorical or a function.")
        if prior_variance is not None and prior_variance <= 0:
            raise Refusal("ModuleModel needs a positive prior_variance, or null.")
        self._module = copy.deepcopy(module).eval()
        # Initial parameters are redrawn for each chain, so two modules that differ only in them are the same model.
        for part in self._module.modules():
            if callable(getattr(part, "reset_parameters", None)):
                for parameter in part.parameters(recurse=False):
                    parameter.detach().zero_()
        self._likelihood: Likelihood = categorical if isinstance(likelihood, str) else likelihood
        self.tells_classes = isinstance(likelihood, str)
        self.precision = 0.0 if prior_variance is None else 1.0 / prior_variance
        self._shapes = {name: p.shape for name, p in self._module.named_parameters()}
        if not self._shapes:
            raise Refusal("the module has no parameters.")
        ends = torch.tensor([shape.numel() for shape in self._shapes.values()]).cumsum(0).tolist()
        self.blocks: Sequence[Block] = [
            Block(name, end - shape.numel(), end, len(shape) > 1)
            for (name, shape), end in zip(self._shapes.items(), ends, strict=True)
        ]
        self.dim = int(ends[-1])

    @property
    def names(self) -> Sequence[str]:
        """A name for each parameter."""
        return tuple(f"{b.name}[{i}]" for b in self.blocks for i in range(b.stop - b.start))

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return initial parameters (C, D), drawn for each chain by the module's `reset_parameters`."""
        rows = []
        with torch.random.fork_rng():
            for chain in range(chains):
                torch.manual_seed(derive_key(draws.streams.key, f"module/{chain}") >> 1)
                begun = copy.deepcopy(self._module)
                for part in begun.modules():
                    if callable(reset := getattr(part, "reset_parameters", None)):
                        reset()
                rows.append(torch.cat([p.detach().reshape(-1) for p in begun.parameters()]))
        return torch.stack(rows).to(draws.device)

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,)."""
        if not self.precision:
            return theta.new_zeros(len(theta))
        return -0.5 * self.precision * theta.square().sum(-1)

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and rows (C or 1, m, ...) -> (C, m)."""
        fields, over = _per_chain(rows, len(theta))
        with _explained(rows):
            found = vmap(self._single, in_dims=(0, over))(theta, fields)
        return _of_each(found, theta, rows)

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return log-likelihoods (C, m) and the gradient (C, D) of their mean."""

        def mean(one: Tensor, fields: Rows) -> tuple[Tensor, Tensor]:
            values = self._single(one, fields)
            return values.mean(), values

        fields, over = _per_chain(rows, len(theta))
        with _explained(rows):
            grad, (_, log_lik) = vmap(grad_and_value(mean, has_aux=True), in_dims=(0, over))(theta, fields)
        return _of_each(log_lik, theta, rows), grad

    def predict(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the log-probability of each class, (C, m, K).

        Raises:
            UserError: the likelihood is not categorical.
        """
        if not self.tells_classes:
            raise UserError("this model has a custom likelihood and predicts no classes.")
        fields, over = _per_chain(rows, len(theta))
        with _explained(rows):
            outputs = vmap(lambda one, fields: self._outputs(one, fields), in_dims=(0, over))(theta, fields)
        found: Tensor = torch.log_softmax(outputs, -1)
        return found

    def _single(self, theta: Tensor, fields: Rows) -> Tensor:
        return self._likelihood(self._outputs(theta, fields), fields)

    def _outputs(self, theta: Tensor, fields: Rows) -> Tensor:
        named = {b.name: theta[b.start : b.stop].view(self._shapes[b.name]) for b in self.blocks}
        for name, value in self._module.named_buffers():
            named[name] = value.to(theta.device, theta.dtype if value.is_floating_point() else value.dtype)
        x = fields["x"]
        x = x.to(theta.dtype) / 255 if x.dtype == torch.uint8 else x.to(theta.dtype)
        outputs: Tensor = functional_call(self._module, named, (x,))
        return outputs


@contextmanager
def _explained(rows: Rows) -> Iterator[None]:
    """Convert an error of the module or its likelihood into one line with the shapes of the data."""
    try:
        yield
    except (RuntimeError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if "alloc" in str(error) and "memory" in str(error):  # the command line reports this in detail
            raise
        shapes = ", ".join(f"{name} {tuple(field.shape[2:])}" for name, field in rows.items())
        raise UserError(
            f"the data do not go through the module or its likelihood: {blame(error)}; a datum is {shapes}."
        ) from error


def _of_each(found: Tensor, theta: Tensor, rows: Rows) -> Tensor:
    """Return log-likelihoods, which must be (C, m)."""
    return returned(found, (len(theta), next(iter(rows.values())).shape[1]), "the likelihood")


def _per_chain(rows: Rows, chains: int) -> tuple[Rows, int | None]:
    """Return the rows in the form that vmap needs, and the dimension over which it maps."""
    if len(next(iter(rows.values()))) == 1 and chains > 1:
        return {name: field[0] for name, field in rows.items()}, None
    return dict(rows), 0
