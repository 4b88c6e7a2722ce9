"""Warnings about the draws of a trace."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mhrun.diagnostics.chains import ESS
from mhrun.engine.call.until import Until
from mhrun.engine.diagnosis.diagnose import Diagnosis
from mhrun.engine.diagnosis.judged_draws import judged_draws
from mhrun.engine.method import Method
from mhrun.engine.warnings.draws import draws_warnings
from mhrun.engine.warnings.run import warnings_of

if TYPE_CHECKING:
    import xarray as xr


def warn_of_trace(
    method: Method, summary: Mapping[str, Any], trace: xr.DataTree, until: Until | None
) -> None:
    """Warn of everything that makes the draws doubtful; `until` is how precise they should be."""
    lines = warnings_of(method, summary)
    lines += Diagnosis(method, lines.append).of_fit_by(trace) or []
    if (judged := judged_draws(method, trace)) is not None:
        enough = ESS if until is None else min(ESS, until.ess)
        lines += draws_warnings(method, summary, judged.values, judged.names, enough)
        lines += judged.notes
    if until is not None:
        lines += until.ess_warnings(method, judged)
    for line in lines:
        warnings.warn(line.removeprefix("sample: "), UserWarning, stacklevel=4)  # the caller of sample
