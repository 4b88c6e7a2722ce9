"""One named parameter: its shape, prior and constraint from a setting, and its unconstrained coordinates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform, VonMises, biject_to, constraints
from torch.distributions.constraints import Constraint

from mhrun.errors import Refusal, nearest
from mhrun.models.axes import Axis, axes_of, check_shape, shape_from
from mhrun.models.lkj import with_correct_draws
from mhrun.models.ordered import Ordered, OrderedTransform
from mhrun.models.prior_text import constraint_of, prior_of
from mhrun.numbers import is_whole

_TAKEN = ("chain", "draw", "step")
_SETTINGS = ("shape", "prior", "constraint", "dims")
_MAX_SHOWN = 4  # numbers of a setting of a prior; of more its shape is shown
_TRIED = 200  # points on which a constraint is compared with the support of its prior


class Parameter(NamedTuple):
    """One named parameter, `text` being its prior in words."""

    name: str
    shape: tuple[int, ...]  # in the user's coordinates; () for a number
    prior: Distribution | None  # of this shape; None: flat, or part of the model's log_prior
    transform: Transform | None  # from the unconstrained coordinates; None where they are the user's
    free: tuple[int, ...]  # shape in the unconstrained coordinates
    constraint: Constraint
    text: str
    # One for each dimension of `shape`, or none: then traces call them NAME_dim_0, ...
    axes: tuple[Axis, ...] = ()

    @property
    def dimensions(self) -> tuple[Axis, ...]:
        """Its axes in traces."""
        return self.axes or tuple(Axis(f"{self.name}_dim_{k}", None) for k in range(len(self.shape)))


def describe_constraint(constraint: Constraint) -> str:
    """Return a constraint in words, for messages."""
    if isinstance(constraint, constraints.independent):
        return describe_constraint(constraint.base_constraint)
    for kind, words in (
        (constraints.interval, "between {lower_bound:g} and {upper_bound:g}"),
        (constraints.half_open_interval, "between {lower_bound:g} and {upper_bound:g}"),
        (constraints.greater_than, "above {lower_bound:g}"),
        (constraints.greater_than_eq, "above {lower_bound:g}"),
        (constraints.less_than, "below {upper_bound:g}"),
    ):
        if isinstance(constraint, kind):
            bounds = {k: v for k, v in vars(constraint).items() if k.endswith("_bound")}
            if all(isinstance(v, int | float) or v.numel() == 1 for v in bounds.values()):
                bounds = {k: float(v) for k, v in bounds.items()}
                return "positive" if bounds == {"lower_bound": 0.0} else words.format(**bounds)
            return "within its bounds"
    return {
        "Simplex": "a simplex (positive, with sum 1)",
        "Ordered": "increasing",
        "Real": "a finite number",
        "PositiveDefinite": "positive definite",
        "LowerCholesky": "lower triangular with a positive diagonal",
        "CorrCholesky": "a Cholesky factor of correlations",
    }.get(type(constraint).__name__.strip("_"), f"in {constraint}")


def is_bounded(constraint: Constraint) -> bool:
    """Return whether a number with this constraint has bounds on both sides, and so all moments."""
    if isinstance(constraint, constraints.independent):
        return is_bounded(constraint.base_constraint)
    kinds = (type(constraints.simplex), type(constraints.corr_cholesky))
    return isinstance(constraint, (constraints.interval, constraints.half_open_interval, *kinds))


def parameter_of(name: Any, setting: Any) -> Parameter:
    """Return one parameter from its setting.

    Raises:
        Refusal: a name, a key or a value that is invalid.
    """
    where = f"parameters.{name}"
    if str(name) in _TAKEN:
        raise Refusal(f"{where}: traces already have a dimension '{name}'; choose another name.")
    if not str(name).isidentifier():
        raise Refusal(f"{where}: '{name}' is not a name; use letters, digits and _, beginning with a letter.")
    if isinstance(setting, str | Distribution):
        setting = {"prior": setting}
    elif not isinstance(setting, Mapping):
        setting = {"shape": setting}
    if isinstance(setting.get("prior"), str) and setting["prior"].count("(") != setting["prior"].count(")"):
        _prior(setting["prior"], where)  # explains it: its other half is an unknown key
    for key in setting:
        if key not in _SETTINGS:
            raise Refusal(
                f"{where} has no '{key}'.{nearest(str(key), _SETTINGS)} It takes shape, prior, constraint and dims."
            )
    axes = () if setting.get("dims") is None else axes_of(setting["dims"], f"{where}.dims")
    prior_setting = setting.get("prior")
    prior = _prior(prior_setting, where, setting.get("constraint"))
    text = (
        "flat"
        if prior is None
        else prior_setting
        if isinstance(prior_setting, str)
        else _describe_prior(prior)
    )
    sizes = setting.get("shape") if setting.get("shape") is not None else shape_from(axes)
    shape = _shape(where, sizes, labelled=sizes is not setting.get("shape")) if sizes is not None else None
    if shape is None and prior is None:
        raise Refusal(f"{where} needs a shape or a prior, such as {{shape: 1, prior: HalfNormal(1.0)}}.")
    if prior is not None:
        prior, shape = _fitted(prior, shape, where)
    assert shape is not None
    constraint = _constraint(setting.get("constraint"), prior, where)
    transform, free = _transform(constraint, shape, prior, where)
    if axes:
        check_shape(axes, shape, f"{where}.dims")
    parameter = Parameter(str(name), shape, prior, transform, free, constraint, text, axes)
    _check(parameter, where)
    return parameter


def _describe_prior(prior: Distribution) -> str:
    """Return a distribution as ``Normal(loc=0, scale=1)``; arrays are shown by their shape."""
    keys = [key for key in prior.arg_constraints if key in vars(prior)] or list(prior.arg_constraints)
    values = {key: getattr(prior, key) for key in keys}
    numbers = ", ".join(
        f"{key}={_shown(value)}" if value.numel() <= _MAX_SHOWN else f"{key}: {list(value.shape)}"
        for key, value in values.items()
        if isinstance(value, Tensor)
    )
    return f"{type(prior).__name__}({numbers})"


def _prior(setting: Any, where: str, constraint: Any = None) -> Distribution | None:
    """Return the prior that a setting declares, or None if it declares none."""
    if setting is None:
        return None
    if isinstance(setting, str):
        setting = prior_of(setting, f"{where}.prior")
    if not isinstance(setting, Distribution):
        raise Refusal(
            f"{where}.prior = {setting!r} is not a distribution; give one of torch.distributions, or its text, such as "
            "Normal(0, 1)."
        )
    try:
        discrete = setting.support.is_discrete  # type: ignore[union-attr]
    except (NotImplementedError, AttributeError) as error:
        raise Refusal(f"{where}.prior: {type(setting).__name__} has no support.") from error
    if isinstance(setting, VonMises) and constraint is None:
        raise Refusal(
            f"{where}.prior: VonMises is a density on a circle, and would be periodic on the real line; give a "
            "constraint of one period, such as interval(-3.14159, 3.14159)."
        )
    if discrete:
        raise Refusal(
            f"{where}.prior: {type(setting).__name__} is of whole numbers, and parameters are continuous; sum such a "
            "parameter out of the likelihood."
        )
    return _quiet(setting)


def _shape(where: str, setting: Any, *, labelled: bool = False) -> tuple[int, ...]:
    if isinstance(setting, type) and issubclass(setting, Distribution):
        name = setting.__name__
        raise Refusal(
            f"{where}: {name} is a class; give a distribution, such as {name}(...) with its parameters."
        )
    sizes = setting if isinstance(setting, list | tuple) else [setting]
    if not isinstance(setting, list | tuple | int | float | str | bool):
        raise Refusal(
            f"{where} is of type {type(setting).__name__}, neither a size nor a prior; a prior is a distribution of "
            "torch.distributions, or its text, such as Normal(0, 1)."
        )
    if not all(is_whole(k) and k >= 1 for k in sizes):
        raise Refusal(f"{where} = {setting!r} is not a size; give 1 for a number, k or [k, l] for more.")
    return () if setting == 1 and not labelled else tuple(map(int, sizes))


def _fitted(
    prior: Distribution, shape: tuple[int, ...] | None, where: str
) -> tuple[Distribution, tuple[int, ...]]:
    """Return a prior for a whole parameter, and its shape."""
    event, draw_shape = tuple(prior.event_shape), tuple(prior.batch_shape + prior.event_shape)
    if shape is None:
        return prior, draw_shape
    batch = shape[: len(shape) - len(event)]
    if event and (len(shape) < len(event) or shape[len(batch) :] != event):
        raise Refusal(
            f"{where}: a draw of the prior has shape {list(draw_shape)}, which does not fit shape = {list(shape)}."
        )
    try:
        return (prior if tuple(prior.batch_shape) == batch else prior.expand(batch)), shape
    except (RuntimeError, NotImplementedError) as error:
        raise Refusal(
            f"{where}: a draw of the prior has shape {list(draw_shape)}, which does not fit shape = {list(shape)}."
        ) from error


def _constraint(setting: Any, prior: Distribution | None, where: str) -> Constraint:
    if isinstance(setting, str):
        setting = constraint_of(setting, f"{where}.constraint")
    if setting is None:
        support: Any = constraints.real if prior is None else prior.support
        while isinstance(support, constraints.MixtureSameFamilyConstraint):
            support = _of_one_component(support.base_constraint, where)
        constraint: Constraint = support
        return constraint
    if not isinstance(setting, Constraint):
        raise Refusal(
            f"{where}.constraint = {setting!r} is not a constraint; give one such as positive, unit_interval, simplex, "
            "ordered or interval(0, 2)."
        )
    return setting


def _of_one_component(constraint: Constraint, where: str) -> Constraint:
    """Return the constraint of a mixture from that of its components, whose bounds have an axis of components."""
    axis = -1 - constraint.event_dim

    def of_one(bound: Tensor) -> Tensor:
        if bound.dim() < -axis:
            return bound
        first = bound.select(axis, 0)
        if not bool((bound == first.unsqueeze(axis)).all()):
            raise Refusal(
                f"{where}.prior: the components of the mixture have different bounds, such as {_shown(first)} and "
                f"{_shown(bound[bound != first.unsqueeze(axis)])}; give components that all have the same."
            )
        return first

    of_mixture: Constraint = changed(constraint, of_one)
    return of_mixture


def _transform(
    constraint: Constraint, shape: tuple[int, ...], prior: Distribution | None, where: str
) -> tuple[Transform | None, tuple[int, ...]]:
    """Return the transform from unconstrained coordinates to a constraint, None for real numbers, and their shape."""
    base = constraint.base_constraint if isinstance(constraint, constraints.independent) else constraint
    if isinstance(base, type(constraints.real)):
        return None, shape
    try:
        of_prior = isinstance(constraint, Ordered)
        transform = OrderedTransform.for_prior(prior) if of_prior else biject_to(constraint)
        # Numbers that are constrained one by one keep their shape; inverse_shape imports sympy, for half a second.
        free = tuple(transform.inverse_shape(torch.Size(shape))) if constraint.event_dim else shape
    except NotImplementedError as error:
        raise Refusal(
            f"{where}: there is no transform to {constraint}; choose real, positive, unit_interval, simplex, ordered "
            "or an interval."
        ) from error
    except (ValueError, RuntimeError, IndexError) as error:
        raise Refusal(f"{where}: shape {list(shape)} cannot be {describe_constraint(constraint)}.") from error
    if constraint.event_dim and shape[-1] < 2:
        raise Refusal(f"{where}: {describe_constraint(constraint)} needs at least 2 numbers; set shape.")
    return transform, free


def _check(p: Parameter, where: str) -> None:
    """Refuse a constraint that lets a parameter leave the support of its prior."""
    generator = torch.Generator().manual_seed(0)
    free = 2.0 * torch.randn(_TRIED, *p.free, generator=generator, dtype=torch.float64)
    value = free if p.transform is None else p.transform(free)
    if tuple(value.shape[1:]) != p.shape:
        raise Refusal(f"{where}: shape {list(p.shape)} cannot be {describe_constraint(p.constraint)}.")
    if p.prior is None:
        return
    support: Constraint = p.prior.support  # type: ignore[assignment]
    if not bool(support.check(value).all()):
        raise Refusal(
            f"{where}: the prior's values are {describe_constraint(support)}, and the constraint requires "
            f"values {describe_constraint(p.constraint)}; give one within the prior's values, such as interval(a, b), "
            "leave it out, or choose another prior."
        )
    try:
        density = p.prior.log_prob(value)
    except RuntimeError as error:  # some of torch's mix types
        raise Refusal(
            f"{where}: {type(p.prior).__name__}.log_prob fails with numbers of float64, which parameters are: {error}."
        ) from error
    if bool(density.isnan().any()):  # as torch has the support of some transformed distributions
        raise Refusal(
            f"{where}: the prior has no density at some values; give a constraint, such as positive."
        )


def draw_inside(p: Parameter) -> Tensor | None:
    """Return a draw (*shape) of the prior within the constraint, or None where a thousand draws are outside.

    Numbers that are independent and constrained one by one are redrawn one by one. Increasing ones with one
    distribution are a draw in order.
    """
    prior = p.prior
    assert prior is not None
    single = not prior.event_shape and not p.constraint.event_dim
    sorts = isinstance(p.constraint, Ordered) and _has_one_distribution(prior)

    def drawn() -> Tensor:
        value = prior.sample().double()
        return value.sort(-1).values if sorts else value

    value = drawn()
    for _ in range(1000):
        free = value if p.transform is None else p.transform.inv(value)
        fits = p.constraint.check(value)
        if bool(fits.all()) and bool(free.isfinite().all()):
            return value
        value = torch.where(fits & free.isfinite(), value, drawn()) if single else drawn()
    return None


def _has_one_distribution(prior: Distribution) -> bool:
    """Return whether the numbers of a draw along its last dimension are independent with one distribution."""
    if prior.event_shape:
        return False
    settings = [getattr(prior, name, None) for name in prior.arg_constraints]
    return bool(prior.arg_constraints) and all(
        isinstance(value, Tensor) and (not value.dim() or bool((value == value[..., :1]).all()))
        for value in settings
    )


def unconstrained(p: Parameter, value: Tensor, where: str) -> Tensor:
    """Return the unconstrained coordinates of a value (..., *shape).

    Raises:
        Refusal: the constraint excludes it.
    """
    if not bool(p.constraint.check(value).all()) or not bool(value.isfinite().all()):
        raise Refusal(
            f"{where} of {p.name} = {_shown(value)} is not {describe_constraint(p.constraint)}; choose another."
        )
    free: Tensor = value if p.transform is None else p.transform.inv(value)
    if not bool(free.isfinite().all()):
        raise Refusal(
            f"{where} of {p.name} = {_shown(value)} is on the edge of what it may be; choose a value inside."
        )
    return free


def log_jacobian_of(p: Parameter, free: Tensor) -> Tensor:
    """Return log |dT/du| (C,) of one parameter at its unconstrained coordinates (C, *free)."""
    assert p.transform is not None
    value = p.transform.log_abs_det_jacobian(free, p.transform(free))
    return value.reshape(len(free), -1).sum(-1).to(free.dtype)


def _quiet(prior: Distribution) -> Distribution:
    """Return a prior in float64 whose log_prob takes any number: chains may propose values outside its support."""
    return with_correct_draws(changed(prior, lambda t: t.double() if t.is_floating_point() else t))


def changed(thing: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a distribution, transform or constraint with `change` applied to each of its tensors."""
    return _changed(thing, change, {})


def _changed(thing: Any, change: Callable[[Tensor], Tensor], copies: dict[int, Any]) -> Any:
    """Return a copy; `copies` has those of objects met before, as a transform and its inverse refer to each other."""
    if isinstance(thing, Tensor):
        return change(thing)
    if type(thing) in (list, tuple):
        return type(thing)(_changed(part, change, copies) for part in thing)
    if not isinstance(thing, Distribution | Transform | Constraint):
        return thing
    if id(thing) in copies:
        return copies[id(thing)]
    copied = copies[id(thing)] = copy.copy(thing)
    for key, value in vars(thing).items():
        copied.__dict__[key] = _changed(value, change, copies)
    if isinstance(copied, Distribution):
        copied._validate_args = False
    return copied


def _shown(value: Tensor) -> str:
    numbers = value.reshape(-1)[:4].tolist()
    text = ", ".join(f"{number:g}" for number in numbers) + ", ..." * (value.numel() > 4)
    return f"[{text}]" if value.dim() else text
