"""A model defined by two user functions that a configuration names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mhrun.build import blame, trusted_object
from mhrun.errors import Refusal, UserError
from mhrun.models.returned import returned, unchanged
from mhrun.random import Draws, Purpose
from mhrun.types import Rows


class UserFunction:
    """A log-likelihood and a log-prior, each a function of one chain's parameters, vectorised by `torch.func.vmap`.

    The functions use plain torch, including `torch.distributions`. Gradients are computed by automatic differentiation.
    Parameters are float64.

    Args:
        log_lik: the dotted name of a function ``(theta, rows) -> (m,)``, the log-likelihood of each datum. ``rows.x``,
            or ``rows["x"]``, is the field x of a minibatch (m, ...), and likewise for every field of the data.
        log_prior: the dotted name of a function ``theta -> ()``; flat if None.
        parameters: name -> size: 1 for a number (), k for a vector (k,), [k, l] for a matrix (k, l). The functions
            access them by name, ``theta.slopes`` or ``theta["slopes"]``.
        dim: D, instead of `parameters`: theta is then a tensor (D,).
        start: starting values: a number for all parameters, or name -> a number or a list.
        start_sd: standard deviation of normal noise added to the start, independent for each chain.

    Raises:
        UserError: a function that does not exist or is not trusted; or, when called, fails or does not return the
            log-likelihood of each datum.
    """

    def __init__(
        self,
        log_lik: str,
        log_prior: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        dim: int | None = None,
        start: Any = 0.0,
        start_sd: float = 0.0,
    ) -> None:
        if (parameters is None) == (dim is None):
            raise Refusal("UserFunction needs parameters (name: size), or dim instead.")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise Refusal(f"parameters = {parameters!r} must be names with sizes, such as slopes: 3.")
        if dim is not None and dim < 1:
            raise Refusal("a model needs at least one parameter.")
        self._log_lik: Callable[..., Tensor] = trusted_object(log_lik, "log_lik")
        self._log_prior = None if log_prior is None else trusted_object(log_prior, "log_prior")
        self._shapes = None if parameters is None else {str(k): _shape(k, v) for k, v in parameters.items()}
        shapes: dict[str, tuple[int, ...]] = {"theta": (dim or 0,)} if self._shapes is None else self._shapes
        self.names: Sequence[str] = [name for key, shape in shapes.items() for name in _named(key, shape)]
        self.dim = len(self.names)
        if self.dim < 1:
            raise Refusal("a model needs at least one parameter.")
        self.start = _start(start, shapes)
        self.start_sd = float(start_sd)

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        start = self.start.to(draws.device).repeat(chains, 1)
        return start + self.start_sd * draws.normal(Purpose.INIT, self.dim) if self.start_sd else start

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,)."""
        if self._log_prior is None:
            return theta.new_zeros(len(theta))
        prior = self._log_prior
        with _explained("log_prior", {"theta": theta[0]}):
            found = torch.func.vmap(lambda one: prior(self._of(one)))(theta)
        return returned(found, (len(theta),), "log_prior")

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and rows (C or 1, m, ...) -> (C, m)."""
        first = next(iter(rows.values()))
        shared = len(first) == 1
        fields = {name: field[0] for name, field in rows.items()} if shared else dict(rows)

        def one(point: Tensor, batch: dict[str, Tensor]) -> Tensor:
            return self._log_lik(self._of(point), Named(batch))

        given = {"theta": theta[0], **{name: field[0] for name, field in rows.items()}}
        with _explained("log_lik", given), unchanged(rows, "log_lik"):
            found = torch.func.vmap(one, in_dims=(0, None if shared else 0))(theta, fields)
        return returned(found, (len(theta), first.shape[1]), "log_lik")

    def _of(self, theta: Tensor) -> Any:
        """Return one chain's parameters by name, or as a tensor if they are unnamed."""
        if self._shapes is None:
            return theta
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        parts = zip(self._shapes.items(), theta.split(sizes), strict=True)
        return Named({name: part.reshape(shape) for (name, shape), part in parts})


class Named(dict[str, Tensor]):
    """Tensors by name, as items and as attributes; a name equal to that of a dict method hides the method."""

    def __getattribute__(self, name: str) -> Any:
        return self[name] if dict.__contains__(self, name) else super().__getattribute__(name)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(f"there is no '{name}' here, but {', '.join(self)}") from error


def _shape(name: Any, setting: Any) -> tuple[int, ...]:
    sizes = setting if isinstance(setting, list | tuple) else [setting]
    if not str(name).isidentifier() or not all(
        isinstance(k, int) and not isinstance(k, bool) and k >= 1 for k in sizes
    ):
        raise Refusal(
            f"parameters.{name} = {setting!r} is no size; give 1 for a number, k or [k, l] for more."
        )
    return () if setting == 1 else tuple(sizes)


def _named(key: str, shape: tuple[int, ...]) -> Iterator[str]:
    if not shape:
        yield key
    for place in (
        torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, max(1, len(shape))) if shape else ()
    ):
        yield f"{key}[{','.join(str(int(i)) for i in place)}]"


def _start(setting: Any, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
    if isinstance(setting, Mapping) and (unknown := set(setting) - set(shapes)):
        raise Refusal(f"start.{sorted(unknown)[0]} is no parameter; there are: {', '.join(shapes)}.")
    parts = []
    for name, shape in shapes.items():
        value = setting.get(name, 0.0) if isinstance(setting, Mapping) else setting
        try:
            part = torch.as_tensor(value, dtype=torch.float64).expand(shape)
        except (TypeError, ValueError, RuntimeError) as error:
            raise Refusal(f"start of {name} = {value!r} does not fit its size {shape}.") from error
        parts.append(part.reshape(-1))
    return torch.cat(parts)


@contextmanager
def _explained(what: str, given: Mapping[str, Tensor]) -> Iterator[None]:
    """Convert an error of a user's function into one line with its location and the shapes of its arguments."""
    checks = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution._validate_args = False  # validation reads values, which vmap cannot
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items())
        # A lone surrogate, which file names can contain, cannot be encoded.
        reason = blame(error).encode(errors="backslashreplace").decode()
        raise UserError(f"{what} failed: {reason}; it had {shapes}.") from error
    finally:
        torch.distributions.Distribution._validate_args = checks
