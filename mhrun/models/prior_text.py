"""Priors and constraints written as text: read as data, never evaluated."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from mhrun.errors import Refusal, nearest
from mhrun.models.ordered import ordered

PRIORS = (
    "Beta",
    "Cauchy",
    "Chi2",
    "Dirichlet",
    "Exponential",
    "FisherSnedecor",
    "Gamma",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "Kumaraswamy",
    "LKJCholesky",
    "Laplace",
    "LogNormal",
    "MultivariateNormal",
    "Normal",
    "Pareto",
    "StudentT",
    "Uniform",
    "Weibull",
)
"""The continuous distributions of `torch.distributions` that a text may name."""

_WHOLE = ("dim",)  # arguments that are whole numbers
_PLAIN = {
    "real": constraints.real,
    "positive": constraints.positive,
    "unit_interval": constraints.unit_interval,
    "simplex": constraints.simplex,
    "ordered": ordered,
}
_BOUNDED = {
    "greater_than": constraints.greater_than,
    "less_than": constraints.less_than,
    "interval": constraints.interval,
}


def prior_of(text: str, where: str) -> td.Distribution:
    """Return the distribution that a text such as ``HalfNormal(1.0)`` names.

    The text is one call of a distribution of `PRIORS`; its arguments are numbers and lists of numbers. Numbers become
    float64.

    Args:
        text: the expression.
        where: the setting, for messages.

    Raises:
        Refusal: another name, an argument that is not a number, or numbers that the distribution does not take.
    """
    name, positional, keyed = _call(text, where)
    if name not in PRIORS:
        discrete = getattr(td, name, None)
        if isinstance(discrete, type) and issubclass(discrete, td.Distribution):
            raise Refusal(
                f"{where}: {name} is not a continuous distribution that a text can name; choose one of "
                f"{', '.join(PRIORS)}."
            )
        raise Refusal(
            f"{where}: there is no distribution '{name}'.{nearest(name, PRIORS)} There are: {', '.join(PRIORS)}."
        )
    kind: Callable[..., td.Distribution] = getattr(td, name)
    try:
        signature = inspect.signature(kind)
        own = [p for name, p in signature.parameters.items() if name != "validate_args"]
        arguments = signature.replace(parameters=own).bind(*positional, **keyed).arguments
        numbers = {key: _value(key, value) for key, value in arguments.items()}
        _check(kind, numbers)
        return kind(**numbers, validate_args=True)
    except (TypeError, ValueError, RuntimeError) as error:
        # torch's RuntimeError is about sizes that do not match
        reason = (
            "its arguments have sizes that do not fit together" if type(error) is RuntimeError else str(error)
        )
        reason = " ".join(reason.split()).rstrip(".")[:160]
        raise Refusal(f"{where} = {text}: {reason}; see torch.distributions.{name}.") from error


def constraint_of(text: str, where: str) -> Constraint:
    """Return the constraint that a text names: one of `positive`, `interval(0, 2)` and the like.

    Raises:
        Refusal: there is no such constraint.
    """
    names = [*_PLAIN, *(f"{name}(...)" for name in _BOUNDED)]
    name = text.strip()
    if name in _PLAIN:
        constraint: Constraint = _PLAIN[name]
        return constraint
    if name.partition("(")[0] in _BOUNDED:
        name, bounds, keyed = _call(text, where)
        count = 2 if name == "interval" else 1
        if keyed or len(bounds) != count or not all(isinstance(b, float) for b in bounds):
            raise Refusal(f"{where} = {text} must have {count} bound{'s' * (count > 1)}, plain numbers.")
        if count == 2 and not bounds[0] < bounds[1]:
            raise Refusal(f"{where} = {text}: the first bound must be below the second.")
        return _BOUNDED[name](*bounds)
    raise Refusal(f"{where} = {text} is not a constraint; there are: {', '.join(names)}.")


def _call(text: str, where: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return name, arguments and keyword arguments of a call whose arguments are numbers and lists of them."""
    if text.count("(") != text.count(")"):
        if text.count("(") < text.count(")"):
            raise Refusal(f"{where} = {text} has a closing bracket too many.")
        raise Refusal(
            f"{where} = {text} lacks a closing bracket: add it, or put the whole in quotes where it is cut at a comma, "
            f"'{text.split('(')[0]}(...)'."
        )
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refusal(f"{where} = {text!r} is not a distribution; write one such as Normal(0, 1).") from error
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise Refusal(f"{where} = {text} is not a distribution; write one such as Normal(0, 1).")
    if any(keyword.arg is None for keyword in node.keywords):
        raise Refusal(f"{where} = {text}: arguments are numbers and lists of numbers.")
    return (
        node.func.id,
        [_number(value, text, where) for value in node.args],
        {str(keyword.arg): _number(keyword.value, text, where) for keyword in node.keywords},
    )


def _number(node: ast.expr, text: str, where: str) -> Any:
    """Return a number, or a list of numbers, as floats."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isinf(number):
                raise Refusal(f"{where} = {text}: a number is too large.")
            return number
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _number(operand, text, where)
            if isinstance(value, float):
                return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_number(element, text, where) for element in elements]
    raise Refusal(
        f"{where} = {text}: '{ast.unparse(node)}' is not a number; arguments are numbers and lists of them."
    )


class _Broken(ValueError):
    """A condition of a distribution that an argument breaks."""


def _value(key: str, value: Any) -> int | Tensor:
    """Return an argument as a whole number or a tensor."""
    if key in _WHOLE:
        if not isinstance(value, float) or not value.is_integer() or value < 2:
            raise _Broken(f"{key} must be a whole number, at least 2")
        return int(value)
    try:
        return torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise _Broken(f"the lists in {key} must have one length") from error


def _check(kind: Any, numbers: Mapping[str, Any]) -> None:
    """Check the conditions of a distribution on its arguments; messages do not name torch's classes."""
    for key, value in numbers.items():
        condition = kind.arg_constraints.get(key) if isinstance(kind.arg_constraints, Mapping) else None
        if key in _WHOLE or condition is None or constraints.is_dependent(condition):
            continue
        if value.dim() < condition.event_dim:
            raise _Broken(
                f"{key} must be a {'list' if condition.event_dim == 1 else 'matrix, such as [[1, 0], [0, 1]]'}"
            )
        single = condition.base_constraint if isinstance(condition, constraints.independent) else condition
        if not bool((fits := single.check(value)).all()):
            found = f", not {float(value[~fits][0]):g}" if fits.shape == value.shape else ""
            raise _Broken(f"{key} must be {_WORDS.get(type(single), 'a finite number')}{found}")
    if kind is td.Uniform and not bool((numbers["low"] < numbers["high"]).all()):
        raise _Broken("low must be below high")


_WORDS = {
    type(constraints.positive): "positive",
    type(constraints.positive_definite): "symmetric and positive definite",
    type(constraints.lower_cholesky): "lower triangular with a positive diagonal",
}
