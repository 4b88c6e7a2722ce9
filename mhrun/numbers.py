"""Numbers: those that are allowed in settings, and how they are shown."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, TypeGuard

from mhrun.errors import Refusal


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a real number, also NaN, infinite, or one of NumPy's, and not true or false."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_number_text(text: str) -> bool:
    """Return whether Python reads a text as a number, also NaN or infinity."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number, also one like 1e6, and not true or false."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, Integral) or bool(value % 1 == 0)  # NaN for infinity


def whole_number(name: str, value: Any, least: int | None = None, *, other: str = "") -> int:
    """Return a setting as a whole number.

    Args:
        name: of the setting, for the message.
        value: of the setting.
        least: that it may be; None: any.
        other: what else the caller takes, for the message, such as ``auto``.

    Raises:
        Refusal: it is not a whole number, or less than `least`.
    """
    if is_whole(value) and (least is None or value >= least):
        return int(value)
    bound = "" if least is None else f", at least {least}"
    raise Refusal(f"{name} = {value!r} must be a whole number{bound}{f', or {other}' if other else ''}.")


def rounded(value: float) -> str:
    """Return a number with three figures, or as a whole one: 0.301, 31,623."""
    return in_figures(value, 3) if value < 999.5 else f"{value:,.0f}"


def in_figures(value: float, figures: int) -> str:
    """Return a number with so many figures at most, large and small ones with an exponent: 0.31, 480, 4.8e5."""
    text = f"{value:.{figures}g}"
    if "e" not in text:
        return text
    return f"{float(text):,.0f}" if 1 <= abs(float(text)) < 1e4 else scientific(value, figures)


def scientific(value: float, figures: int) -> str:
    """Return a number with an exponent and so many figures at most, without zeros that say nothing: 1.2e9, 1e-4."""
    mantissa, mark, exponent = f"{value:.{figures - 1}e}".partition("e")
    if not mark:  # NaN, or infinite
        return mantissa
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
