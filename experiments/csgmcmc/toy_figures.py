"""Figures 2 and 5 of Zhang et al. (2020), and Table 4 as a figure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.patches import Circle

from mhrun.diagnostics.grid import Grid
from mhrun.report.metrics import value
from mhrun.report.plots import finished, panels, points
from mhrun.report.vocabulary import COLOURS, Array, Axes, Figure, Run, Style, plt

from ..shared.coverage import covered
from ..shared.plane import centres, collected, density, mixture_density, variance
from .toy import ENOUGH, RADIUS, READINGS, ROWS, metrics, of_runs, tallies, together

SIDE, CELLS = 5.0, 200  # of the densities: half the side, cells a side
_PAPERS = [f"{reading}_{row.method}" for reading in READINGS for row in ROWS[:2]]


def densities(run: Run, *, parallel: bool) -> Figure | str:
    """Draw densities of the target and of one chain, or of all chains of the first parallel run."""
    chains = together(run) if parallel else 1
    shown = [method for method in _PAPERS if method in run.methods]
    if not shown:
        return "No method of the paper is in this run."
    grid = Grid.of((-SIDE, -SIDE), (SIDE, SIDE), CELLS)
    target = mixture_density(centres(run), variance(run), grid)
    norm = LogNorm(target.max() / 100, 5 * target.max())
    rows = [[m for m in shown if m.startswith(reading)] for reading in READINGS]
    rows = [row for row in rows if row]
    figure = plt.figure(figsize=(8.8, 2.05 * len(rows) + 0.3), layout="constrained")
    space = figure.add_gridspec(len(rows), 4)
    large = figure.add_subplot(space[:, :2] if len(rows) > 1 else space[:, :1])
    mesh = _panel(large, target, norm, grid)
    large.set_title("target")
    _circles(large, centres(run), np.ones(len(centres(run)), bool))
    for i, row in enumerate(rows):
        for j, method in enumerate(row):
            axis = figure.add_subplot(space[i, 2 + j])
            _panel(axis, density(np.concatenate(collected(run, method)[:chains]), grid), norm, grid)
            near = run.cached(tallies)[method].within[RADIUS][:chains].sum(axis=0) > ENOUGH
            _circles(axis, centres(run), near)
            axis.set_title(f"{run.label(method)}: {near.sum()} of {len(near)}", fontsize=9)
            axis.tick_params(labelleft=j == 0, labelbottom=i == len(rows) - 1)
    bar = figure.colorbar(mesh, ax=figure.axes, shrink=0.7, pad=0.01, extend="both")
    bar.set_label("density")
    return figure


def _panel(axis: Axes, values: Array, norm: LogNorm, grid: Grid) -> QuadMesh:
    shades = colormaps["Blues"].with_extremes(under="white", bad="white")
    mesh = axis.pcolormesh(grid.x, grid.y, values.T, norm=norm, cmap=shades, rasterized=True)
    axis.set(aspect="equal", xlim=(-SIDE, SIDE), ylim=(-SIDE, SIDE), xticks=(-4, 0, 4), yticks=(-4, 0, 4))
    axis.grid(visible=False)
    return mesh


def _circles(axis: Axes, places: Array, full: npt.NDArray[np.bool_]) -> None:
    for (x, y), is_covered in zip(places, full, strict=True):
        line: Style = {"color": "black"} if is_covered else {"color": COLOURS[1], "linestyle": ":"}
        axis.add_patch(Circle((x, y), RADIUS, fill=False, linewidth=0.7 if is_covered else 0.8, **line))


def coverage(run: Run) -> Figure:
    """Modes covered in each run (Table 4), beside the paper's numbers."""
    numbers, black = run.cached(metrics), Style(color="black")
    figure, (axis,) = panels(
        1, size=(6.6, 3.4), ylabel="modes covered, of 25", ylim=(0, 26.5), xlim=(-0.3, 3.75)
    )
    square: Style = {"color": "black", "fmt": "s", "markersize": 6}
    for i, row in enumerate(ROWS):
        points(axis, [i], [row.exchanged], **square)
        if row.printed != row.exchanged:
            points(axis, [i], [row.printed], markerfacecolor="white", **square)
        for j, reading in enumerate(READINGS):
            if (counts := run.cached(tallies).get(f"{reading}_{row.method}")) is None:
                continue
            near = of_runs(counts.within[RADIUS], together(run))[row.metric.removeprefix("modes_")]
            modes, at = covered(near, ENOUGH), i + (0.22, 0.44)[j]
            spread = at + np.linspace(-0.05, 0.05, len(modes))
            axis.plot(spread, modes, "o", color=COLOURS[j], markersize=3, alpha=0.5, markeredgewidth=0)
            axis.plot([at - 0.08, at + 0.08], [modes.mean()] * 2, color=COLOURS[j], linewidth=2)
    for place, name in ((1, "theory.modes_one"), (3, "theory.modes_four")):
        axis.plot([place - 0.2, place + 0.56], [value(numbers[name])] * 2, "--", linewidth=0.9, **black)
    axis.set_xticks(range(len(ROWS)), [row.label for row in ROWS])
    marks: list[tuple[str, str, Style]] = [("s", "paper, as printed", black | {"markerfacecolor": "white"})]
    marks.append(("s", "paper, two rows exchanged", black))
    marks += [
        ("o-", f"here, settings of the {r}", {"color": c}) for r, c in zip(READINGS, COLOURS, strict=False)
    ]
    marks.append(("--", "cycles that end anywhere", black))
    for mark, name, style in marks:
        axis.plot([], [], mark, label=name, **style)
    return finished(figure, legend="right")
