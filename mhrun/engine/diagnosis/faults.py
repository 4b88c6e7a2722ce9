"""Faults: draws of a dynamics that follow a wrong distribution, which R-hat and ESS do not show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhrun.diagnostics.chains import EXCESS, FIRST_ORDER, SHIFT
from mhrun.engine.diagnosis.mixing import UNSETTLED
from mhrun.engine.diagnosis.outside import OUTSIDE
from mhrun.numbers import rounded


def fault_of(found: Mapping[str, Any]) -> str:
    """Return in a few words what is wrong with the draws of a method, by its diagnosis; empty if nothing is.

    Each has a warning too (`mhrun.engine.warnings.run`). What noise does to chains that have not settled is
    no fault yet.

    Args:
        found: what `run_method` returned.
    """
    if share := found.get(OUTSIDE):
        return f"{100 * share:.2g} % where the density is 0"
    excess = 0.0 if found.get(UNSETTLED) else found.get("excess_variance") or 0.0
    if ratio := max(found.get("variance_ratio") or 0.0, 1 + excess if excess > EXCESS else 0.0):
        return f"variances up to {rounded(ratio)} times as large"
    if least := found.get("narrow_ratio"):
        return f"variances as low as {rounded(max(least, 0.0))} times the right ones"
    size = abs(float((found.get("mean_bias") or {}).get("size") or 0.0))
    if size > FIRST_ORDER:
        return f"a mean off by more than {FIRST_ORDER:g} standard deviations"
    return f"a mean off by about {rounded(size)} standard deviations" if size > SHIFT else ""
