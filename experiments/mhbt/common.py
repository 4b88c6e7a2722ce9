"""What the reports of this paper share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhrun.report.run import Run

from ..shared.measures import Metrics

RSGLD_CODE = (
    "The RSGLD code is that of github.com/TYCODE-STANFORD/RSGLD. The paper does not name it; the name of the account "
    "and the constants fit the first author and the text."
)


def table(
    run: Run, found: Metrics, columns: Mapping[str, str], methods: Iterable[str] | None = None
) -> pd.DataFrame:
    """Return a table as `Run.by_method` does, where not every method has every metric."""
    rows = {
        run.label(method): {heading: found.get(f"{method}.{name}") for heading, name in columns.items()}
        for method in (run.methods if methods is None else methods)
        if method in run.methods
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def legend_beside(figure: Figure, axes: Iterable[Axes]) -> None:
    """Draw one legend for all panels, to their right."""
    found: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.tight_layout()
    figure.legend(list(found.values()), list(found), loc="center left", bbox_to_anchor=(1, 0.5))
