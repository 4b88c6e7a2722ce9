"""Features, units and weight names from the recorded facts of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

_LISTED = 12  # columns whose units a line has


def describe_units(facts: Mapping[str, Any]) -> list[str]:
    """Return lines on the units of a table: means and standard deviations, and baselines of categories."""
    lines = []
    if "target_sd" in facts:
        name, mean, sd = facts["target"], facts["target_mean"], facts["target_sd"]
        lines.append(
            f"outcome standardised: {name} (mean {mean:.4g}, sd {sd:.4g}); parameters are in units of one sd of {name}"
        )
    if scales := facts.get("scales"):
        parts = [f"{name} (mean {mean:.4g}, sd {sd:.4g})" for name, (mean, sd) in scales.items()]
        rest = f" and {len(parts) - _LISTED:,} more" if len(parts) > _LISTED else ""
        lines.append(f"standardised: {', '.join(parts[:_LISTED])}{rest}; a coefficient is for one sd")
    if baselines := facts.get("baselines"):
        parts = [f"{name} = {value}" for name, value in baselines.items()]
        lines.append(f"baseline{'s' * (len(parts) > 1)}: {', '.join(parts)}")
    if groups := facts.get("groups"):
        lines.append(f"groups: {', '.join(f'{len(levels):,} of {name}' for name, levels in groups.items())}")
    return lines


def describe_missing(texts: Mapping[str, str]) -> str:
    """Return a sentence on texts of columns (column -> text) that are read as missing values; without any, nothing."""
    if not texts:
        return ""
    listing = ", ".join(f"'{text}' in {column}" for column, text in texts.items())
    return f" The text {listing} is read as a missing value: write another one in the file if it is none."


def missing_counts(table: pd.DataFrame) -> dict[str, int]:
    """Return the number of missing values of each column that has some."""
    return {str(column): int(count) for column, count in table.isna().sum().items() if count}


def listed_counts(counts: Mapping[str, int]) -> str:
    """Return the numbers of missing values of the first few columns in words."""
    return ", ".join(f"{c}: {k:,}" for c, k in list(counts.items())[:_LISTED]) + ", ..." * (
        len(counts) > _LISTED
    )


def left_out(facts: Mapping[str, Any]) -> str | None:
    """Return how many rows of a table lack a value and are left out, and in which columns; None if none are."""
    if not (dropped := facts.get("dropped")):
        return None
    return f"{dropped:,} of {facts['rows']:,} rows lack a value and are left out ({listed_counts(facts['missing'])})"


def features_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the columns of x but the constant, from the facts of a table's data."""
    return [str(name) for name in facts["columns"][bool(facts["intercept"]) :]]


def weight_names(facts: Mapping[str, Any]) -> list[str]:
    """Return names for the weights of a regression: the columns of x, of which the constant is the intercept."""
    features = features_of(facts)
    free = ("intercept", "1", *(f"intercept_{k}" for k in range(1, len(features) + 1)))
    constant = next(name for name in free if name not in features)
    return [constant] * bool(facts["intercept"]) + features
