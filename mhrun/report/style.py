"""The style of figures: eight colours, then line styles and markers; a method looks the same everywhere."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import colormaps

if TYPE_CHECKING:
    from mhrun.report.run import Run

# Okabe & Ito (2008): distinguishable with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
GREYS = colormaps["Greys"]
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")

# Fixed colours of families of methods; other methods take the free ones.
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


def method_styles(
    methods: Iterable[str], colours: Mapping[str, Iterable[str]] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the line style of each method: ``color``, ``linestyle`` and ``marker``.

    The first eight methods have different colours, with fixed ones for families such as MINT. The next eight repeat
    them with another line style. Up to 32 methods look different, and up to eight that share a colour
    on purpose: they have different line styles and markers.

    Args:
        methods: all methods of a run, in its order, which makes styles consistent within a report.
        colours: the methods that share a colour, by the name that it is chosen for: ``{"sgld": ["sgld_a", "sgld_b"]}``.
    """
    shared = {method: name for name, group in (colours or {}).items() for method in group}
    names = {method: shared.get(method, method) for method in methods}
    indices, styles = _colours(list(dict.fromkeys(names.values()))), {}
    times: Counter[int] = Counter()  # that a colour has been used
    for method, name in names.items():
        index = indices[name]
        turn = times[index]
        line, mark = LINES[turn % len(LINES)], MARKERS[(index + turn) % len(MARKERS)]
        styles[method] = {"color": COLOURS[index], "linestyle": line, "marker": mark}
        times[index] += 1
    return styles


def styles_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return the line style of each method of a run, with the colours that its experiment declares to be shared.

    See `method_styles`; an experiment declares them as ``report.colours``.
    """
    return method_styles(run.methods, shared_colours(run.config))


def shared_colours(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the methods that share a colour, by the name that it is chosen for: ``report.colours``."""
    return dict((config.get("report") or {}).get("colours") or {})


def _colours(names: Sequence[str]) -> dict[str, int]:
    """Return the colour of each name; eight names have all eight, and the next eight repeat them."""
    found: dict[str, int] = {}
    for start in range(0, len(names), len(COLOURS)):
        group = names[start : start + len(COLOURS)]
        family_colours: dict[str, int] = {}
        for name in group:
            colour = next((c for f, c in _FAMILIES.items() if name == f or name.startswith(f"{f}_")), None)
            if colour is not None and colour not in family_colours.values():
                family_colours[name] = colour
        free = iter([c for c in range(len(COLOURS)) if c not in family_colours.values()])
        found |= {name: family_colours[name] if name in family_colours else next(free) for name in group}
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


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a message of Matplotlib is not of a font that it ships; its cache of fonts may be out of date."""
    return not re.match(r"findfont: Font family \['?(STIX|DejaVu|cm\w+10)", record.getMessage())


@contextmanager
def style() -> Iterator[None]:
    """Set the style of all figures; no display is needed."""
    backend, logger = mpl.get_backend(), logging.getLogger("matplotlib.font_manager")
    mpl.use("agg")
    logger.addFilter(_is_news)
    try:
        with mpl.rc_context(_SETTINGS):  # type: ignore[arg-type]
            yield
    finally:
        logger.removeFilter(_is_news)
        mpl.use(backend)
