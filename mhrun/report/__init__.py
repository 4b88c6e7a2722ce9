"""The report reads run folders, judges claims and draws figures. It never samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhrun.report.run import Run
    from mhrun.report.summary import Summary
    from mhrun.store.folder import RunFolder


def summary_of(run: Run | RunFolder) -> Summary:
    """Return the summary of a complete run: finding, status, warnings and a table of its methods.

    The page of a run and the terminal show the same. See `mhrun.report.summary.Summary`.

    Raises:
        UserError: the run's results are damaged.
    """
    from mhrun.report.summary import summary_of as found

    return found(run)
