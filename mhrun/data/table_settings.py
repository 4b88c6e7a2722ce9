"""Checks of the settings of a table that need none of its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mhrun.errors import Refusal


def check_split(test_share: float, part: str, seed: int) -> None:
    """Refuse a split into training and test rows that leaves none for a part.

    Raises:
        Refusal: it does, or the seed is negative.
    """
    if not 0 <= test_share < 1 or (part == "test" and test_share == 0):
        raise Refusal(f"test_share = {test_share:g} leaves no rows for part = '{part}'.")
    if seed < 0:
        raise Refusal(f"seed = {seed} of the split must not be negative.")


def check_excluded(exclude: Sequence[str], features: Sequence[str] | None) -> None:
    """Refuse columns that are excluded from features which are named.

    Raises:
        Refusal: there are both.
    """
    if features is not None and exclude:
        raise Refusal(
            f"exclude = [{', '.join(exclude)}] requires features = null; leave them out of features."
        )


def check_baselines(
    baselines: Mapping[str, Any],
    categorical: Collection[str],
    target: str | None,
    outcome: str,
    positive: Any,
) -> None:
    """Refuse a baseline of a column that has none, or of a target whose values another setting orders.

    Raises:
        Refusal: there is one.
    """
    if target is not None and target in baselines:
        if outcome == "number":
            raise Refusal(
                f"baselines: '{target}' is a target of numbers, which has no baseline; leave it out."
            )
        if positive is not None:
            raise Refusal(f"positive and baselines both order the values of '{target}'; give one of them.")
    if unknown := [name for name in baselines if name not in (*categorical, target)]:
        raise Refusal(
            f"baselines: '{unknown[0]}' is not in categorical = [{', '.join(categorical)}]; add it."
        )
