"""Named parameters with shapes, priors and constraints, and the unconstrained coordinates in which chains move."""

from __future__ import annotations

import itertools
import math
import numbers
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError
from mhrun.models.axes import Axis, check_shared
from mhrun.models.bounded_priors import density_of
from mhrun.models.parameter import (
    Parameter,
    changed,
    describe_constraint,
    draw_inside,
    is_bounded,
    log_jacobian_of,
    parameter_of,
    unconstrained,
)
from mhrun.types import Model
from mhrun.types.capabilities import HasParameters, offers


class Parameters:
    """Parameters x = T(u): the user's coordinates x, and unconstrained coordinates u, in which chains move.

    T is `torch.distributions.biject_to` of each parameter's constraint, and the log-prior of u is
    log p(T(u)) + log |dT/du|. A vector theta has the unconstrained coordinates of all parameters, in their order. A
    simplex of K numbers has K - 1 of them; a number that is unconstrained has one, which is itself. A temperature T
    tempers the density of u, the Jacobian included.

    Args:
        settings: name -> a size (1 is a number, k a vector, [k, l] a matrix); a `torch.distributions.Distribution`, or
            its text, such as ``HalfNormal(1.0)``, which is the prior; or a mapping of `shape`, `prior`, `dims` (names
            of the axes in traces, or name -> labels, see `mhrun.models.axes`) and `constraint`
            (`real`, `positive`, `unit_interval`, `simplex`, `ordered`, ``interval(a, b)``, ``greater_than(a)``,
            ``less_than(b)``, or a `torch.distributions.constraints.Constraint`). Without `constraint` it is the
            support of the prior; a narrower one truncates the prior, whose density is then known up to a factor.

    Raises:
        Refusal: invalid settings, or a prior, constraint and shape that do not go together.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if not isinstance(settings, Mapping):
            raise Refusal(
                f"parameters = {settings!r} must be names with sizes, such as slopes: 3, or with priors, such as "
                "scale: HalfNormal(1.0)."
            )
        if not settings:
            raise Refusal("a model needs at least one parameter.")
        self.all = tuple(parameter_of(name, setting) for name, setting in settings.items())
        self.shapes = {p.name: p.shape for p in self.all}
        self.dimensions = {p.name: p.dimensions for p in self.all}  # of traces
        check_shared((p.name, p.axes, p.shape) for p in self.all)
        self.names: Sequence[str] = [name for p in self.all for name in flat_names(p.name, p.shape, p.axes)]
        self.size = len(self.names)  # numbers in the user's coordinates
        self._sizes = [math.prod(p.free) for p in self.all]
        self.dim = sum(self._sizes)
        self._memo: dict[torch.device, tuple[Parameter, ...]] = {}

    @property
    def is_plain(self) -> bool:
        """Whether the unconstrained coordinates are the user's."""
        return all(p.transform is None for p in self.all)

    @cached_property
    def constant(self) -> tuple[int, ...]:
        """Places of the user's coordinates that no theta changes: those of a Cholesky factor above its diagonal."""
        if self.is_plain:
            return ()
        one = torch.linspace(-0.9, 1.1, self.dim, dtype=torch.float64)
        first, second = self.flat(torch.stack([one, -2.0 - one]))  # which are nowhere equal
        return tuple((first == second).nonzero().flatten().tolist())

    @property
    def prior_summary(self) -> str:
        """The priors in a line, for run metadata."""
        return "; ".join(f"{p.name}: {p.text}" for p in self.all)

    @property
    def without_prior(self) -> list[str]:
        """Names of the parameters without a prior."""
        return [p.name for p in self.all if p.prior is None]

    def values(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, each (..., *shape), from theta (..., D)."""
        return {p.name: self._value(p, free) for p, free in self._parts(theta)}

    def flat(self, theta: Tensor) -> Tensor:
        """Return the user's coordinates (..., P), in the order of `names`, from theta (..., D)."""
        if self.is_plain:
            return theta
        lead = theta.shape[:-1]
        return torch.cat([value.reshape(*lead, -1) for value in self.values(theta).values()], -1)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return parameters by name, each (..., *shape), from user's coordinates (..., P)."""
        parts = flat.split([math.prod(p.shape) for p in self.all], -1)
        return {
            p.name: part.reshape((*flat.shape[:-1], *p.shape))
            for p, part in zip(self.all, parts, strict=True)
        }

    def theta(self, values: Mapping[str, Tensor], where: str = "start") -> Tensor:
        """Return theta (..., D) at values (..., *shape) of all parameters.

        Raises:
            Refusal: a value that its constraint excludes.
        """
        parts = []
        for p in self.all:
            free = unconstrained(p, values[p.name].double(), where)
            lead = free.shape[: free.dim() - len(p.free)]
            parts.append(free.reshape(*lead, -1))
        return torch.cat(parts, -1)

    def check(self, values: Mapping[str, Tensor], where: str = "start") -> None:
        """Refuse values of some parameters that their constraints exclude."""
        for p in self.all:
            if p.name in values:
                unconstrained(p, values[p.name].double(), where)

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return the sum of the declared log-priors and log |dT/du|, (C,), at theta (C, D)."""
        total = theta.new_zeros(len(theta))
        for p, free in self._parts(theta):
            if (density := density_of(p.prior, p.transform)) is not None:
                total = total + density(free).reshape(len(theta), -1).sum(-1)
                continue
            if p.transform is not None:
                total = total + log_jacobian_of(p, free)
            if p.prior is not None:
                total = total + p.prior.log_prob(self._value(p, free)).reshape(len(theta), -1).sum(-1)
        return total

    def sample(self, *, strict: bool = False) -> dict[str, Tensor]:
        """Return one draw of each parameter from its prior, by torch's generator.

        Without a prior, or where no draw is within the constraint, it is at u = 0; if `strict`, that is refused.

        Raises:
            Refusal: if `strict`, a parameter cannot be drawn.
        """
        drawn = {}
        for p in self.all:
            if p.prior is not None and (value := draw_inside(p)) is not None:
                drawn[p.name] = value
            elif strict:
                raise Refusal(
                    f"parameters.{p.name} cannot be drawn: "
                    + (
                        "it has no prior."
                        if p.prior is None
                        else f"no draw of its prior is {describe_constraint(p.constraint)}."
                    )
                )
            else:
                zero = torch.zeros(p.free, dtype=torch.float64)
                drawn[p.name] = zero if p.transform is None else p.transform(zero)
        return drawn

    def _parts(self, theta: Tensor) -> Iterator[tuple[Parameter, Tensor]]:
        lead = theta.shape[:-1]
        for p, part in zip(self._on(theta.device), theta.split(self._sizes, -1), strict=True):
            yield p, part.reshape((*lead, *p.free))

    @staticmethod
    def _value(p: Parameter, free: Tensor) -> Tensor:
        if p.transform is None:
            return free
        value: Tensor = p.transform(free)
        return value.to(free.dtype)

    def _on(self, device: torch.device) -> tuple[Parameter, ...]:
        """Return the parameters with the numbers of their priors on a device."""
        if device.type == "cpu":
            return self.all
        if device not in self._memo:
            self._memo[device] = tuple(
                p._replace(
                    prior=changed(p.prior, lambda t: t.to(device)),
                    transform=changed(p.transform, lambda t: t.to(device)),
                )
                for p in self.all
            )
        return self._memo[device]


def parameters_of(model: object) -> Parameters | None:
    """Return the named parameters of a model whose theta has unconstrained coordinates; None of any other."""
    if offers(model, HasParameters) and isinstance(model.parameters, Parameters):
        return model.parameters
    return None


def coordinate_names(model: Model) -> Sequence[str]:
    """Return a name for each coordinate of theta (D), that of its parameter where a constraint has fewer numbers."""
    parameters = parameters_of(model)
    if parameters is None or parameters.is_plain:
        return model.names
    names: list[str] = []
    for p in parameters.all:
        same = p.free == p.shape
        names += flat_names(p.name, p.shape, p.axes) if same else [p.name] * math.prod(p.free)
    return names


def numbers_of(model: Model, theta: Sequence[float]) -> dict[str, float]:
    """Return the numbers of a draw by name, within the constraints of the parameters, at a point theta (D,)."""
    parameters, point = parameters_of(model), torch.tensor([list(theta)], dtype=torch.float64)
    flat = point if parameters is None else parameters.flat(point)
    return dict(zip(model.names, flat[0].tolist(), strict=True))


def constant_coordinates(model: object) -> tuple[int, ...]:
    """Return the places of the draws' coordinates that never change, see `Parameters.constant`."""
    parameters = parameters_of(model)
    return () if parameters is None else parameters.constant


def bounded_names(model: Model) -> set[str]:
    """Return the names of the draws' numbers that have bounds on both sides, such as probabilities."""
    parameters = parameters_of(model)
    bounded = [] if parameters is None else [p for p in parameters.all if is_bounded(p.constraint)]
    return {name for p in bounded for name in flat_names(p.name, p.shape, p.axes)}


def flat_names(key: str, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> Iterator[str]:
    """Yield the names of the numbers of a parameter: ``scale``, ``slopes[0]`` or with labels ``slopes[age]``."""
    if not shape:
        yield key
        return
    labels = [axis.labels for axis in axes] or [None] * len(shape)
    ranges = [range(size) if names is None else names for size, names in zip(shape, labels, strict=True)]
    for index in itertools.product(*ranges):
        yield f"{key}[{','.join(map(str, index))}]"


def start_values(setting: Any, parameters: Parameters) -> dict[str, Tensor]:
    """Return given start values by name, (*shape) or (C, *shape), in the user's coordinates.

    Args:
        setting: a number for all parameters; or name -> a number, or values of the parameter's shape, or one for each
            chain.
        parameters: the parameters.

    Raises:
        Refusal: an unknown name, or values that do not fit.
    """
    if not isinstance(setting, Mapping | numbers.Real):
        raise UserError(
            f"with parameters=, start is a number, or a mapping name -> values: {', '.join(parameters.shapes)}."
        )
    if isinstance(setting, Mapping) and (unknown := set(map(str, setting)) - set(parameters.shapes)):
        raise Refusal(
            f"start.{sorted(unknown)[0]} is not a parameter; there are: {', '.join(parameters.shapes)}."
        )
    starts = setting if isinstance(setting, Mapping) else dict.fromkeys(parameters.shapes, setting)
    values = {}
    for name, value in starts.items():
        shape = parameters.shapes[str(name)]
        try:
            part = torch.as_tensor(getattr(value, "values", value), dtype=torch.float64)  # also of xarray
            values[str(name)] = part if part.dim() == len(shape) + 1 else part.expand(shape)
            if part.dim() == len(shape) + 1 and tuple(part.shape[1:]) != shape:
                raise ValueError(part.shape)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"start of {name} = {reprlib.repr(value)} does not fit its size {shape}."
            ) from error
    return values
