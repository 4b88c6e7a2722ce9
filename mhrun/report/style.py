"""How figures look: eight colours at most, then line styles and markers; a method has one look everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib import colormaps

# Okabe & Ito (2008): distinguishable with any colour vision, and in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
GREYS = colormaps["Greys"]
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")

# The colour that a family of methods has in every report; methods of other families take what is free.
_FAMILIES = {
    "mint": 0,
    "mhbt": 0,
    "renhd": 0,
    "mhminibatch": 1,
    "sgnht": 1,
    "austere": 2,
    "sghmc": 2,
    "mhsublhd": 3,
    "barker": 4,
    "sgld": 5,
    "mcmc": 6,
    "metropolis": 6,
    "full": 6,
    "sgd": 7,
}


def method_styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how the lines of each method are drawn: ``color``, ``linestyle`` and ``marker``.

    The first eight methods have a colour each, a family such as MINT its own; the next eight have them again with
    another line style. No two of 32 methods look the same.

    Args:
        methods: all methods of a run, in its order, so that a method looks the same in all figures of a report.
    """
    names, found = list(methods), {}
    for turn, start in enumerate(range(0, len(names), len(COLOURS))):
        some = names[start : start + len(COLOURS)]
        taken: dict[str, int] = {}
        for name in some:
            colour = next((c for f, c in _FAMILIES.items() if name == f or name.startswith(f"{f}_")), None)
            if colour is not None and colour not in taken.values():
                taken[name] = colour
        free = iter([c for c in range(len(COLOURS)) if c not in taken.values()])
        for name in some:
            place = taken[name] if name in taken else next(free)
            line, mark = LINES[turn % len(LINES)], MARKERS[(place + turn) % len(MARKERS)]
            found[name] = {"color": COLOURS[place], "linestyle": line, "marker": mark}
    return found


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
