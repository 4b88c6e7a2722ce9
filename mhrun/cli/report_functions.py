"""Finds the functions that a report names, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mhrun.cli.configuration.settings import OF_A_REPORT

_NO_FUNCTIONS = ("paper", "finding", "sweep", "colours")


def check_report(config: Mapping[str, Any]) -> None:
    """Find the functions of the report of a run, and of that of a sweep; their modules are imported.

    Args:
        config: resolved.

    Raises:
        UserError: one does not exist, or cannot be imported.
    """
    spec = config.get("report") or {}
    if any(spec.get(key) for key in OF_A_REPORT if key not in _NO_FUNCTIONS):
        from mhrun.report.build import check_functions

        check_functions(spec)
