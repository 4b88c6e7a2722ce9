"""Methods of which a run found that their draws are of another distribution: R-hat and ESS do not show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhrun.diagnostics.chains import EXCESS, FIRST_ORDER, SHIFT
from mhrun.report.tables import shown

FAULT_MARK = "‡"
"""Follows the label of a method with a fault; see `fault_of`."""
FAULT_NOTE = f"{FAULT_MARK} draws are of another distribution, see the warnings"


def fault_of(results: Mapping[str, Any]) -> str:
    """Return in a few words what is wrong with the draws of a method; empty if nothing is known to be.

    Args:
        results: of the method, in the summary of its run.
    """
    if share := results.get("outside"):
        return f"{100 * share:.2g} % outside of the prior"
    excess = 0.0 if results.get("unsettled_rhat") else results.get("excess_variance") or 0.0
    if ratio := max(results.get("variance_ratio") or 0.0, 1 + excess if excess > EXCESS else 0.0):
        return f"variances up to {shown(ratio)} times as large"
    size = abs(float((results.get("mean_bias") or {}).get("size") or 0.0))
    if size > FIRST_ORDER:
        return f"a mean off by more than {FIRST_ORDER:g} standard deviations"
    return f"a mean off by about {shown(size)} standard deviations" if size > SHIFT else ""
