"""How figures look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib import colormaps

# Okabe & Ito (2008): distinguishable with any colour vision, and in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
GREYS = colormaps["Greys"]

_SETTINGS: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """Set the style of all figures; no display is needed."""
    backend = mpl.get_backend()
    mpl.use("agg")
    try:
        with mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]
            yield
    finally:
        mpl.use(backend)
