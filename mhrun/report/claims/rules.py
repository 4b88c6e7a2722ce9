"""The rules of claims: whether a number satisfies one, how close it comes, and the rule in words."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from mhrun.errors import UserError, nearest
from mhrun.numbers import is_number

_ROUNDING = 8 * sys.float_info.epsilon  # relative difference of numbers that are taken as equal
_TOLERANCES = {"at_most", "standard_errors"}  # of `near`
_CONDITIONS = {"equals", "below", "above", "between", "near", *_TOLERANCES}


def check_rule(rule: Any, where: str) -> None:
    """Refuse a rule that no number satisfies, that says nothing or that cannot be read.

    Raises:
        UserError: with `where`, the claim.
    """
    if not isinstance(rule, Mapping):
        raise UserError(
            f"claim {where}: the rule must be a group of conditions, such as {{below: 0.1}}, not {rule!r}."
        )
    for key, value in rule.items():
        if key not in _CONDITIONS:
            raise UserError(f"claim {where}: there is no rule '{key}'.{nearest(str(key), _CONDITIONS)}")
        numbers = value if key == "between" and isinstance(value, list) else [value]
        if len(numbers) != 1 + (key == "between") or not all(is_number(number) for number in numbers):
            raise UserError(
                f"claim {where}: {key} = {value!r} must be {'[low, high]' if key == 'between' else 'a number'}."
            )
    if not (_CONDITIONS - _TOLERANCES) & set(rule) or ("near" in rule and not _TOLERANCES & set(rule)):
        raise UserError(f"claim {where}: a rule needs equals, below, above, between, or near with at_most.")
    if (tolerance := next(iter(sorted(_TOLERANCES & set(rule))), None)) and "near" not in rule:
        raise UserError(f"claim {where}: {tolerance} requires near.")
    low, high = _limits(rule)
    if low > high or (low == high and {"above", "below"} & set(rule)):
        raise UserError(f"claim {where}: no number satisfies {describe_rule(rule)}.")


def _limits(rule: Mapping[str, Any]) -> tuple[float, float]:
    """Return the least and the largest number that satisfy a rule, standard errors left out."""
    near, tolerance = rule.get("near", 0.0), rule.get("at_most", math.inf)
    between = rule.get("between", (-math.inf, math.inf))
    lows = (rule.get("above", -math.inf), rule.get("equals", -math.inf), between[0], near - tolerance)
    highs = (rule.get("below", math.inf), rule.get("equals", math.inf), between[1], near + tolerance)
    return max(lows), min(highs)


def satisfied(rule: Mapping[str, Any], value: float, se: float | None) -> bool:
    """Return whether a value with its standard error satisfies all conditions of a rule.

    - ``equals: x``, ``below: x``, ``above: x``, ``between: [low, high]``
    - ``near: x`` with ``at_most: d`` (absolute difference) and/or ``standard_errors: k``

    Numbers that differ by rounding, at most 8 units in the last place of the largest that a condition has, are equal:
    1.4 is within 0.4 of 1.8, though 1.8 - 1.4 > 0.4 in floating point, and is not below 1.4.
    """
    checks = []
    if "equals" in rule:
        checks.append(_nearly_equal(value, rule["equals"]))
    if "below" in rule:
        checks.append(value < rule["below"] and not _nearly_equal(value, rule["below"]))
    if "above" in rule:
        checks.append(value > rule["above"] and not _nearly_equal(value, rule["above"]))
    if "between" in rule:
        low, high = rule["between"]
        checks.append(low <= value <= high or _nearly_equal(value, low) or _nearly_equal(value, high))
    if "near" in rule:
        distance = abs(value - rule["near"])
        largest = max(abs(value), abs(rule["near"]))
        if "at_most" in rule:
            checks.append(distance <= rule["at_most"] or _nearly_equal(distance, rule["at_most"], largest))
        if "standard_errors" in rule:
            limit = math.nan if se is None else rule["standard_errors"] * se
            checks.append(distance <= limit or _nearly_equal(distance, limit, largest))
    return all(checks)


def is_noisy(rule: Mapping[str, Any], se: float | None) -> bool:
    """Return whether a standard error exceeds the tolerance of a rule: `at_most`, or half the width of `between`."""
    low, high = rule.get("between", (-math.inf, math.inf))
    return se is not None and se > min(rule.get("at_most", math.inf), (high - low) / 2)


CLOSE = "within a standard error of the limit"
"""What a verdict is called whose number might as well be on the other side, see `is_close`."""


def is_close(rule: Mapping[str, Any], value: float | None, se: float | None) -> bool:
    """Return whether a number is less than a standard error from a limit of a rule, so that chance decides."""
    if value is None or not se:
        return False
    limits = [rule[key] for key in ("below", "above") if key in rule] + list(rule.get("between", ()))
    if "near" in rule and "at_most" in rule:
        limits += [rule["near"] - rule["at_most"], rule["near"] + rule["at_most"]]
    return any(abs(value - limit) < se for limit in limits)


def _nearly_equal(one: float, two: float, largest: float = 0.0) -> bool:
    """Return whether two numbers differ by no more than rounding of numbers as large as `largest` or themselves."""
    gap = abs(one - two)
    return math.isfinite(gap) and gap <= _ROUNDING * max(abs(one), abs(two), largest)


def describe_rule(rule: Mapping[str, Any]) -> str:
    """Return a rule in words."""
    parts = []
    for key, value in rule.items():
        if key == "between":
            parts.append(f"between {value[0]:g} and {value[1]:g}")
        elif key == "near":
            parts.append(f"{value:g}")
        elif key == "at_most":
            parts.append(f"within {value:g}")
        elif key == "standard_errors":
            parts.append(f"within {value:g} standard errors")
        else:
            parts.append(f"{key} {value:g}" if key != "equals" else f"exactly {value:g}")
    return ", ".join(parts)
