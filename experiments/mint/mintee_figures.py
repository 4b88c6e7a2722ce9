"""Figures of MINTEE (Li & Wong 2017, Figures 4, 6 and 7)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.colors import BoundaryNorm
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import EngFormatter

from mhrun.exchanges import MADE
from mhrun.report.plots import few_ticks, finished, panels
from mhrun.report.vocabulary import COLOURS, Axes, Figure, Run, Style, plt

from . import mintee as measured
from . import mintee_ladders as ladders
from .mintee import CELLS, picked
from .mintee_ladders import sampled, shown


def histograms(run: Run) -> Figure:
    """Histograms of the draws at T = 1: the first coordinate (Figure 4, left), and all fifty."""
    draws = run.draws(shown(run)).reshape(-1, run.target.dim)
    table = np.stack([np.histogram(draws[:, d], CELLS, density=True)[0] for d in range(run.target.dim)])
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), width_ratios=(1, 1.25))
    left.stairs(table.mean(axis=0), CELLS, color=COLOURS[7], fill=True, alpha=0.5, label="all coordinates")
    left.stairs(table[0], CELLS, color=COLOURS[0], linewidth=1.3, label="the first")
    left.set(
        xlabel=r"$\theta_j$", ylabel="density", yscale="log", ylim=(1e-4, 30), xlim=(CELLS[0], CELLS[-1])
    )
    left.legend(loc="upper right")
    with np.errstate(divide="ignore"):
        logs = np.log10(table)
    mesh = right.pcolormesh(
        CELLS, np.arange(run.target.dim + 1) + 0.5, np.where(np.isfinite(logs), logs, np.nan),
        cmap="viridis", vmin=-4, vmax=0.5,
    )  # fmt: skip
    right.set(xlabel=r"$\theta_j$", ylabel="coordinate j")
    right.grid(False)
    bar = figure.colorbar(mesh, ax=right, extend="min")
    bar.set_label(r"$\log_{10}$ density")
    figure.tight_layout()
    return figure


def embedding(run: Run) -> Figure:
    """A t-SNE embedding of draws at T = 1 (Figure 4, middle): each cluster with the number of its large coordinate."""
    from sklearn.manifold import TSNE

    points, mode = picked(run)
    perplexity = min(run.config["perplexity"], (len(points) - 1) / 3)
    flat = TSNE(perplexity=perplexity, random_state=0, init="pca").fit_transform(points)
    figure, axis = plt.subplots(figsize=(5.2, 5.0))
    axis.scatter(
        flat[:, 0], flat[:, 1], c=mode, cmap="hsv", vmin=0, vmax=run.target.dim, s=7, alpha=0.8, linewidths=0
    )
    for j in np.unique(mode):
        middle, top = np.median(flat[mode == j], axis=0), flat[mode == j, 1].max()
        position: dict[str, Any] = {
            "xytext": (0, 2),
            "textcoords": "offset points",
            "ha": "center",
            "fontsize": 7,
        }
        axis.annotate(str(j + 1), (middle[0], top), **position)
    axis.set(xticks=[], yticks=[], title=f"modes in {len(points):,} draws: {len(np.unique(mode))}")
    return figure


def elbow(run: Run) -> Figure:
    """The objective of k-means against the number of clusters (Figure 4, right)."""
    bend, labels = run.cached(measured.elbow), Style(xlabel="clusters C", ylabel="objective per draw")
    figure, (axis,) = panels(1, size=(4.6, 3.0), ylim=(0, 1.08 * bend.objective.max()), **labels)
    axis.plot(bend.clusters, bend.objective, color=COLOURS[0], marker=".", markersize=3, linewidth=1)
    largest, meet = f"largest second difference, {bend.best}", f"two lines meet, {bend.knee:.1f}"
    axis.axvline(bend.best, color=COLOURS[1], linestyle="--", linewidth=1, label=largest)
    axis.axvline(bend.knee, color=COLOURS[2], linestyle=":", linewidth=1.4, label=meet)
    axis.legend(loc="lower left")
    return figure


def weights(run: Run) -> Figure:
    """The share of each mode at T = 1, with one standard error from what differs between ladders; line: 1/50."""
    names = sampled(run)
    labels: Style = {"xlabel": "mode", "ylabel": "share", "xlim": (0, run.target.dim + 1)}
    figure, axes = panels(len(names), columns=1, size=(7.2, 1.55), share="x", **labels)
    for axis, name, colour in zip(axes, names, COLOURS, strict=False):
        by_ladder = measured.shares(run, name)
        error = by_ladder.std(axis=0, ddof=1) / math.sqrt(len(by_ladder)) if len(by_ladder) > 1 else None
        at = np.arange(1, by_ladder.shape[1] + 1)
        axis.errorbar(at, by_ladder.mean(axis=0), error, color=colour, fmt="o", markersize=2.5, elinewidth=1)
        axis.axhline(1 / by_ladder.shape[1], color="black", linestyle="--", linewidth=0.8)
        axis.set_title(run.label(name), fontsize=9, loc="left")
        axis.set_ylim(0, None)
    return finished(figure)


def visits(run: Run) -> Figure:
    """In which mode the first chain at T = 1 is, along the run: a dot for each of at most 1,500 draws."""
    names = sampled(run)
    labels: Style = {"xlabel": "step", "ylabel": "mode", "ylim": (0, run.target.dim + 1)}
    figure, axes = panels(len(names), size=(2.6, 2.9), **labels)
    for axis, name, colour in zip(axes, names, COLOURS, strict=False):
        mode = run.draws(name)[0].argmax(-1) + 1
        stride = max(1, len(mode) // 1500)
        axis.plot(run.draw_steps(name)[::stride], mode[::stride], ".", color=colour, markersize=1.5)
        axis.set_title(_wrapped(run.label(name)), fontsize=9)
        few_ticks(axis)
    return finished(figure)


def _wrapped(label: str) -> str:
    return label.replace(", ", ",\n")


def ladder(run: Run) -> Figure:
    """The ladder of Figure 7, from this run: when each rung begins, what it reads, how many jumps into it are made."""
    method = shown(run)
    rungs, offers = ladders.ladder_of(run, method), ladders.jumps(run, method)
    kernel, summary = run.config["methods"][method]["kernel"], run.methods[method]
    total, count = summary["warmup"] + summary["steps"], len(rungs.sizes)
    figure, axis = plt.subplots(figsize=(7.4, 3.4))
    for rung, (t, m) in enumerate(zip(rungs.temperatures, rungs.sizes, strict=True)):
        start, y = (count - 1 - rung) * kernel["stagger"], rung
        burn = min(kernel["burn"], total - start)
        axis.barh(y, burn, left=start, height=0.5, color=COLOURS[5], alpha=0.45, linewidth=0)
        axis.barh(
            y, total - start - burn, left=start + burn, height=0.5, color=COLOURS[0], alpha=0.85, linewidth=0
        )
        axis.text(-0.01 * total, y, f"T = {t:.4g},  m = {m:,}", ha="right", va="center", fontsize=8)
        if offers[rung][0]:
            x = start + 0.5 * (total - start) if rung else 0.965 * total
            arrow = FancyArrowPatch(
                (x, y + 0.75), (x, y + 0.25), arrowstyle="-|>", mutation_scale=9, color=COLOURS[1]
            )
            axis.add_patch(arrow)
            share = f"{100 * offers[rung][1].value:.2g} %"
            axis.text(
                x - 0.012 * total, y + 0.5, share, color=COLOURS[1], fontsize=8, ha="right", va="center"
            )
    axis.set(xlabel="step", xlim=(0, total), ylim=(-0.6, count - 0.4), yticks=[])
    axis.spines["left"].set_visible(False)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.grid(axis="y", visible=False)
    figure.tight_layout()
    return figure


def jump(run: Run) -> Figure | str:
    """Two jumps of the chain at T = 1 between modes (Figure 6), from a stretch of which every step is kept."""
    name = "closeup"
    if name not in run.methods:
        return "This run kept no stretch of single steps."
    theta, exchange = ladders.rung_draws(run, name)[0, 0], ladders.rung_stat(run, name, "exchange")[0, 0]
    mode, base = theta.argmax(-1), ladders.lowest(run)
    jump_steps = np.flatnonzero((exchange[1:] == MADE) & (mode[1:] != mode[:-1])) + 1
    shown_jumps = [int(jump_steps[0])] if len(jump_steps) else []
    # The second is the next that leaves the mode of the first for another place than that of the stretch before it.
    shown_jumps += [int(k) for k in jump_steps[1:] if mode[k - 1] == mode[jump_steps[0]]][:1]
    first, last = (shown_jumps[0], shown_jumps[-1]) if shown_jumps else (min(30, len(theta) - 1),) * 2
    a, b = int(mode[first - 1]), int(mode[first])
    b = b if b != a else (a + 1) % run.target.dim
    start, stop = max(0, first - 40), min(len(theta), last + 40)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.5))
    _plane(run, left, figure, a, b)
    left.plot(theta[start:stop, a], theta[start:stop, b], ".", color=COLOURS[5], markersize=2.5)
    for k in shown_jumps:
        ends = tuple(theta[k - 1, [a, b]]), tuple(theta[k, [a, b]])
        bend = "arc3,rad=0.2"
        arrow = FancyArrowPatch(
            *ends, arrowstyle="-|>", mutation_scale=13, color=COLOURS[1], connectionstyle=bend
        )
        arrow.set_linewidth(1.4)
        left.add_patch(arrow)
    energy = ladders.energies(run, theta[start:stop]) - base
    levels = ladders.ladder_of(run, name).levels
    assert levels is not None
    for level in levels - base:
        if level < 1.3 * energy.max():
            right.axhline(level, color="black", linewidth=0.6, linestyle=":")
    right.plot(np.arange(start, stop), energy, color=COLOURS[7], linewidth=1)
    for k in shown_jumps:
        before, after = energy[k - 1 - start], energy[k - start]
        right.plot([k - 1, k], [before, after], color=COLOURS[1], linewidth=1.4)
        right.plot(k - 1, before, "o", markerfacecolor="white", color=COLOURS[1], markersize=5)
        right.plot(k, after, "o", color=COLOURS[1], markersize=5)
        setting = f"mode {mode[k - 1] + 1}\nto {mode[k] + 1}"
        position = {"xytext": (k, 1.18 * energy.max()), "ha": "center", "fontsize": 8, "color": COLOURS[1]}
        right.annotate(
            setting, (k, max(before, after)), arrowprops={"arrowstyle": "-", "alpha": 0.3}, **position
        )
    right.set(xlabel="step", ylabel="energy above that of theta* (nats)", ylim=(0, 1.4 * energy.max()))
    figure.tight_layout()
    return figure


def _plane(run: Run, axis: Axes, figure: Figure, a: int, b: int) -> None:
    """Draw the energy on the plane of two coordinates, all others at 0."""
    grid = np.linspace(-0.7, 2.6, 90)
    plane = np.zeros((len(grid) ** 2, run.target.dim))
    plane[:, a], plane[:, b] = (part.ravel() for part in np.meshgrid(grid, grid))
    height = (ladders.energies(run, plane) - ladders.lowest(run)).clip(0).reshape(len(grid), -1)
    levels = [0, 5, 16, 50, 150, 437, 1000, 2000, 4000]
    norm = BoundaryNorm(levels, 256, extend="max")
    contours = axis.contourf(grid, grid, height, levels=levels, cmap="Greys_r", extend="max", norm=norm)
    figure.colorbar(contours, ax=axis, label="energy above that of theta* (nats)")
    axis.set(xlabel=rf"$\theta_{{{a + 1}}}$", ylabel=rf"$\theta_{{{b + 1}}}$")
    axis.grid(False)


def travel(run: Run) -> Figure:
    """How many independent draws of modes each rung's shares are worth, all ladders together, along the ladder."""
    figure, axis = plt.subplots(figsize=(4.8, 3.1))
    for name, colour in zip((m for m in sampled(run) if run.rungs(m) > 1), COLOURS, strict=False):
        temperatures, effective = ladders.ladder_of(run, name).temperatures, []
        for rung in range(len(temperatures)):
            mode = ladders.rung_draws(run, name)[:, rung].argmax(-1)
            by_ladder = np.stack([np.bincount(row, minlength=run.target.dim) / len(row) for row in mode])
            effective.append(measured.uniformity(by_ladder).effective)
        axis.plot(
            temperatures,
            effective,
            marker="o",
            markersize=3,
            color=colour,
            linewidth=1.2,
            label=run.label(name),
        )
    axis.set(xscale="log", yscale="log", xlabel="temperature", ylabel="independent visits")
    axis.set_xticks(temperatures, [f"{t:.3g}" for t in temperatures])
    axis.set_xticks([], minor=True)
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
