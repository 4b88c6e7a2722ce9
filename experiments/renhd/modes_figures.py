"""Figure 2 of Luo et al. (2020), and how replicas travel."""

from __future__ import annotations

from textwrap import fill

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm

from mhrun.diagnostics.grid import Grid
from mhrun.report.plots import finished, legend_below, panels
from mhrun.report.vocabulary import Array, Axes, Figure, Run, Style, method_styles

from ..shared.plane import centres, collected, density, mixture_density, variance
from .modes import metrics, mode_shares, nearest, travels

SIDE, CELLS = 6.6, 176
SHOWN = 400  # draws of a trajectory
STRIP = 400  # rounds of a replica's way


def densities(run: Run) -> Figure:
    """Densities of the target and of each method's first chain (Figure 2), all in the same colours."""
    grid = Grid.of((-SIDE, -SIDE), (SIDE, SIDE), CELLS)
    target = mixture_density(centres(run), variance(run), grid)
    norm = LogNorm(target.max() / 300, 5 * target.max())
    shades = colormaps["Blues"].with_extremes(under="white", bad="white")
    panels: list[tuple[str, Array, Array | None]] = [("target", target, None)]
    for method in run.methods:
        draws = collected(run, method)[0]
        found = mode_shares(nearest(run, draws), len(centres(run)))
        panels.append((run.label(method), density(draws, grid), found))
    figure, axes = _panels(len(panels))
    for axis, (name, values, label) in zip(axes, panels, strict=True):
        mesh = axis.pcolormesh(grid.x, grid.y, values.T, norm=norm, cmap=shades, rasterized=True)
        axis.set_title(fill(name, 20), fontsize=8)
        if label is not None:
            for (x, y), share in zip(centres(run), label, strict=True):
                axis.annotate(f"{share:.2f}", (x, y - 2.1), ha="center", va="center", fontsize=7)
    bar = figure.colorbar(
        mesh, ax=axes, shrink=0.8, pad=0.01, extend="both", aspect=20 * -(-len(panels) // 5)
    )
    bar.set_label("density")
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    panel_style: Style = {"aspect": "equal", "xlim": (-SIDE, SIDE), "ylim": (-SIDE, SIDE)}
    panel_style |= {"xticks": (-4, 0, 4), "yticks": (-4, 0, 4)}
    figure, axes = panels(count, columns=5, size=(1.9, 2.1), share="xy", **panel_style)
    figure.set_layout_engine("constrained")
    for axis in axes:
        axis.grid(visible=False)
    return figure, axes


def trajectories(run: Run) -> Figure:
    """The last 400 draws of each method's first chain, joined in their order (Figure 2, below)."""
    figure, axes = _panels(len(run.methods))
    around = np.linspace(0, 2 * np.pi, 60)
    for (method, style), axis in zip(method_styles(run.methods).items(), axes, strict=True):
        colour = style["color"]
        draws = collected(run, method)[0][-SHOWN:]
        for x, y in centres(run):
            spread = 2 * np.sqrt(variance(run))
            axis.plot(x + spread * np.cos(around), y + spread * np.sin(around), color="0.6", linewidth=0.6)
        axis.plot(*draws.T, color=colour, linewidth=0.3, alpha=0.7)
        axis.plot(*draws.T, ".", color=colour, markersize=1.5)
        changes = int((np.diff(nearest(run, draws)) != 0).sum())
        axis.set_title(f"{fill(run.label(method), 20)}\n{changes} changes of mode", fontsize=8)
    return figure


def ladder(run: Run) -> Figure | str:
    """Swap rates of neighbours, and which replica is on the coldest rung of the first ladder in its last rounds."""
    flows = run.cached(travels)
    if not flows:
        return "No method of this run has a ladder."
    shown = list(flows)[:5]
    figure, (left, right) = panels(2, size=(4.6, 0.2 * len(flows) + 2.6), share="")
    looks = method_styles(run.methods)
    for method in flows:
        rates = flows[method].rates.mean(axis=0)
        at = np.arange(len(rates)) + 0.5
        left.plot(at, rates, markersize=3, label=run.label(method), **looks[method])
    top = max(float(np.nanmax(f.rates.mean(axis=0))) for f in flows.values())
    left.set(xlabel="between rungs j and j + 1", ylabel="swap rate", ylim=(0, 1.25 * top))
    legend_below(left, 1, 0.25)
    replicas = np.stack([flows[method].replica[0, -STRIP:] for method in shown])
    shades = colormaps["viridis"].resampled(max(run.rungs(method) for method in shown))
    right.imshow(replicas, aspect="auto", interpolation="nearest", cmap=shades, rasterized=True)
    trips = {m: run.cached(metrics).number(f"{m}.rounds_per_trip") for m in shown}
    labels = [f"{run.label(m)}\n{rounds:,.0f} rounds a trip" for m, rounds in trips.items()]
    right.set_yticks(range(len(shown)), labels, fontsize=7)
    right.set(xlabel="rounds", title="replica at temperature 1")
    right.grid(visible=False)
    return finished(figure)
