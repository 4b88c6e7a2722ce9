"""Figures of lines, points and bars as inline SVG, with values on hover and the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FuncFormatter
from matplotlib.transforms import Bbox

from mhrun.report.tables import shown

LARGEST = 150_000  # characters: larger figures become PNG
_POINTS, _OF_LINE = 1200, 60  # points with values on hover: of a figure, of one line
_XLINK = "{http://www.w3.org/1999/xlink}href"
_MARK = "hover"
# Black becomes the text colour and white the page's colour, for dark pages.
_COLOURS = (
    (re.compile(r"#000000\b|\bblack\b"), "currentColor"),
    (re.compile(r"#ffffff\b|\bwhite\b"), "var(--page)"),
)


class _Points(NamedTuple):
    """Points of a line, with values."""

    axis: Axes
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    titles: list[str]


def inline_svg(figure: Figure, name: str, frame: Bbox | None = None) -> str | None:
    """Return a figure as an ``<svg>`` element for a page; None if it shows densities or is too large.

    Points and bars have a ``<title>`` with their values, which browsers show on hover. Text is escaped, ids begin with
    `name`, and nothing is loaded from elsewhere.

    Args:
        figure: drawn already; invisible points are added to it.
        name: of the figure, unique on its page.
        frame: the part of it to show, in inches; None: all of it with its text.
    """
    if any(_is_density(axis) for axis in figure.axes):
        return None
    bars = _mark_bars(figure)
    points = list(_points_of(figure))[: _POINTS // 10]
    for number, group in enumerate(points):
        style: dict[str, Any] = {
            "marker": "o",
            "markersize": 9,
            "linestyle": "none",
            "alpha": 0,
            "color": "black",
        }
        (line,) = group.axis.plot(
            group.x, group.y, scalex=False, scaley=False, label=f"_{_MARK}", gid=f"{_MARK}-{number}", **style
        )
        line.set_in_layout(False)
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "path.simplify_threshold": 0.3}):
        figure.savefig(buffer, format="svg", bbox_inches=frame, transparent=True, metadata={"Date": None})
    if len(buffer.getvalue()) > 3 * LARGEST:
        return None
    text = _for_page(buffer.getvalue(), name, [group.titles for group in points], bars)
    return text if len(text) <= LARGEST else None


def _is_density(axis: Axes) -> bool:
    """Return whether a panel has an image, contours or a cloud of points."""
    limit = 3000
    return (
        bool(axis.images)
        or any(isinstance(artist, QuadMesh | ContourSet) for artist in axis.collections)
        or any(
            isinstance(artist, PathCollection) and len(np.asarray(artist.get_offsets())) > limit
            for artist in axis.collections
        )
        or any(
            isinstance(artist, PolyCollection) and len(artist.get_paths()) > limit
            for artist in axis.collections
        )
        or any(
            line.get_linestyle() in ("None", "none", "") and len(line.get_xdata()) > limit  # type: ignore[arg-type]
            for line in axis.lines
        )
    )


def _points_of(figure: Figure) -> Iterator[_Points]:
    """Yield the points of all lines, thinned for long ones."""
    for axis in figure.axes:
        names, errors, caps = _errorbars(axis)
        for line in list(axis.lines):
            if id(line) in caps or line.get_transform() != axis.transData or not line.get_visible():
                continue
            x, y = (
                np.asarray(v, dtype=float) for v in (line.get_xdata(orig=False), line.get_ydata(orig=False))
            )
            if len(x) < 2 and line.get_marker() in ("None", "none", "", None):
                continue
            indices = np.flatnonzero(_within(axis, x, y))
            indices = indices[
                np.unique(np.linspace(0, len(indices) - 1, min(_OF_LINE, len(indices))).astype(int))
            ]
            if not len(indices):
                continue
            label = names.get(id(line), str(line.get_label()))
            ends = errors.get(id(line))
            titles = [
                _title(axis, label, x[i], y[i], None if ends is None or i >= len(ends) else ends[i])
                for i in indices
            ]
            yield _Points(axis, x[indices], y[indices], titles)


def _errorbars(axis: Axes) -> tuple[dict[int, str], dict[int, list[float]], set[int]]:
    """Return label and errors of the lines that have error bars, and the lines that are the bars' ends."""
    names: dict[int, str] = {}
    errors: dict[int, list[float]] = {}
    caps: set[int] = set()
    for container in axis.containers:
        if not isinstance(container, ErrorbarContainer):
            continue
        parts: Any = container.lines  # there is no line if the style of points is "none"
        line, ends, bars = parts
        caps |= {id(end) for end in ends}
        if line is None:
            continue
        names[id(line)] = str(container.get_label())
        if container.has_yerr and not container.has_xerr and bars:
            segments = [np.asarray(segment) for segment in bars[0].get_segments()]
            errors[id(line)] = [float(np.ptp(s[:, 1])) / 2 if len(s) else float("nan") for s in segments]
    return names, errors, caps


def _within(axis: Axes, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    (left, right), (low, high) = (sorted(limits) for limits in (axis.get_xlim(), axis.get_ylim()))
    with np.errstate(invalid="ignore"):
        inside = (x >= left) & (x <= right) & (y >= low) & (y <= high) & np.isfinite(x) & np.isfinite(y)
    mask: npt.NDArray[np.bool_] = inside
    return mask


def _title(axis: Axes, label: str, x: float, y: float, error: float | None) -> str:
    value = shown(float(y)) + (f" ± {shown(float(error))}" if error else "")
    position = f"{_plain(axis.get_xlabel()) or 'x'} = {_tick(axis, float(x))}"
    return f"{'' if label.startswith('_') else label + ': '}{value} ({position})"


def _tick(axis: Axes, x: float) -> str:
    """Return a position on the x axis, named by its tick if ticks are words."""
    formatter = axis.xaxis.get_major_formatter()
    if isinstance(formatter, FixedFormatter | FuncFormatter) or axis.xaxis.have_units():
        labels = [
            t.get_text() for at, t in zip(axis.get_xticks(), axis.get_xticklabels(), strict=False) if at == x
        ]
        if labels and labels[0]:
            return _plain(labels[0])
    return shown(x)


def _plain(text: str) -> str:
    """Return a label without mathematical markup."""
    return re.sub(r"[${}\\]", "", text).replace("\n", " ").strip()


def _mark_bars(figure: Figure) -> dict[str, str]:
    """Give each bar an id, and return the text of each."""
    texts: dict[str, str] = {}
    for axis in figure.axes:
        for container in axis.containers:
            if not isinstance(container, BarContainer) or len(container.patches) > _POINTS // 4:
                continue
            label = str(container.get_label())
            for bar in container.patches:
                across = container.orientation == "horizontal"
                value = bar.get_width() if across else bar.get_height()
                gid = f"{_MARK}-bar-{len(texts)}"
                bar.set_gid(gid)
                start = "" if label.startswith("_") else f"{label}: "
                middle = bar.get_x() + bar.get_width() / 2
                position = f" ({_plain(axis.get_xlabel()) or 'x'} = {_tick(axis, float(middle))})"
                texts[gid] = start + shown(float(value)) + position * (not across)
    return texts


def _for_page(content: bytes, name: str, titles: list[list[str]], bars: dict[str, str]) -> str:
    """Return SVG as an element of a page: no namespaces, unique ids, titles, and the page's colours."""
    root = ElementTree.fromstring(content)
    for parent in list(root.iter()):
        for child in list(parent):
            if str(child.tag).endswith(("}metadata", "}style")):  # the style is that of the page
                parent.remove(child)
    for group in list(root.iter()):
        gid = group.get("id", "")
        if gid.startswith(f"{_MARK}-bar-") and gid in bars:
            _add_title(group, bars[gid])
        elif gid.startswith(f"{_MARK}-"):
            _label_points(group, titles[int(gid.rpartition("-")[2])])
    for element in root.iter():
        element.tag = str(element.tag).rpartition("}")[2]
        for key in list(element.attrib):
            value = element.attrib.pop(key)
            if key == "id":
                value = f"{name}-{value}"
            elif key == _XLINK:
                key, value = "href", value.replace("#", f"#{name}-", 1)
            value = value.replace("url(#", f"url(#{name}-")
            if key in ("style", "fill", "stroke"):
                for colour, replacement in _COLOURS:
                    value = colour.sub(replacement, value)
            element.set(key.rpartition("}")[2], value)
        if element.tag == "text" and "fill" not in element.get("style", ""):
            element.set("style", f"{element.get('style', '')}; fill: currentColor".lstrip("; "))
    width = float(root.attrib.pop("width").removesuffix("pt")) * 96 / 72
    root.attrib.pop("height")
    root.attrib = {
        "class": "plot",
        "role": "img",
        "style": f"--wide: {width:.0f}px",
        **{key: value for key, value in root.attrib.items() if key == "viewBox"},
    }
    return re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode"))


def _label_points(group: ElementTree.Element, titles: list[str]) -> None:
    points = [element for element in group.iter() if str(element.tag).endswith("}use")]
    if len(points) == len(titles):  # otherwise some were not drawn, and it is unknown which
        for element, title in zip(points, titles, strict=True):
            _add_title(element, title)


def _add_title(element: ElementTree.Element, text: str) -> None:
    title = ElementTree.Element("title")
    title.text = text
    element.insert(0, title)
