"""Networks as points in weight space: section 5.3's Figure 3(a) and (b), and the likelihoods of the samples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from itertools import cycle, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from mhrun.build import build
from mhrun.data import Dataset
from mhrun.diagnostics.cycles import harmonic
from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.types import Rows

from ..shared.measures import Metrics, estimate

Array = npt.NDArray[np.floating]

CYCLICAL = ("csgld", "csghmc", "csgld_t1", "csghmc_t1", "csghmc_heavy")
TRADITIONAL = ("sgld", "sghmc", "sgld_t1", "sghmc_t1")
SHOWN = ("csgld", "csghmc", "sgld", "sghmc")
SAMPLES = 12  # of each method in Figure 3(a)
ENDS = 4  # samples that are joined by lines in Figure 3(b)
POINTS = 21  # on a line
IMAGES = 2000  # test images that the points of a line are tried on, at most
_NETWORKS, _ROWS = 8, 2000  # that are evaluated at once


class Weights(NamedTuple):
    """What is computed once from the networks of one method; C seeds, S = 12 of its samples in time order."""

    gaps: Array  # (C, S (S - 1) / 2), Euclidean distances, in the order of scipy's pdist
    lines: Array  # (C, 3, 21), test error in per cent along the lines between four of the samples
    strangers: Array  # (C - 1, 21), the same between the last samples of two seeds
    losses: Array  # (C, S), mean training loss in nats


def chosen(samples: int, count: int) -> npt.NDArray[np.int64]:
    """Return `count` of the indices 0..samples - 1, evenly, the last with them; all if there are no more."""
    count = min(samples, count)
    return samples * np.arange(1, count + 1) // count - 1


def examined(run: Run) -> dict[str, Weights]:
    """Return what is computed from the networks of each method that kept some."""
    found = {}
    test = _test_images(run)
    for method in (*CYCLICAL, *TRADITIONAL):
        if method not in run.methods or not keeps(run, method):
            continue
        draws = run.draws(method).astype(np.float32)  # they are no finer: the state is float32
        some = draws[:, chosen(draws.shape[1], SAMPLES)]
        ends = draws[:, chosen(draws.shape[1], ENDS)]  # of 12 from four cycles, the last of each
        found[method] = Weights(
            gaps=np.stack([pdist(of_seed.astype(np.float64)) for of_seed in some]),
            lines=np.stack([lines(run, of_seed, test) for of_seed in ends]),
            strangers=lines(run, draws[:, -1], test),
            losses=_losses(run, some),
        )
    return found


def keeps(run: Run, method: str) -> bool:
    """Say whether a method keeps its networks in the trace."""
    thin = run.config["methods"][method].get("thin")
    return (run.config["thin"] if thin is None else thin) is not None


def cluster_ratio(gaps: Array, groups: npt.NDArray[np.integer]) -> tuple[float, float, float]:
    """Return the least distance between two groups, the largest within one, and the first over the second.

    Args:
        gaps: distances of S points as pdist has them, (S (S - 1) / 2,).
        groups: which group each point is in, (S,).
    """
    one, two = np.triu_indices(len(groups), 1)
    apart = groups[one] != groups[two]
    between, within = float(gaps[apart].min()), float(gaps[~apart].max())
    return between, within, between / within


def split_ratio(gaps: Array) -> float:
    """Return the ratio of `cluster_ratio` for the best split of the points in two.

    Where any split has a ratio above 1, it is that of single linkage.
    """
    groups = fcluster(linkage(gaps, "single"), 2, "maxclust")
    return cluster_ratio(gaps, groups)[2]


def scaled(gaps: Array) -> tuple[Array, float]:
    """Return points in the plane (S, 2) whose distances are like `gaps`, and the share of the squares that they keep.

    Classical multidimensional scaling (Torgerson 1952).
    """
    square = squareform(gaps) ** 2
    centre = np.eye(len(square)) - 1 / len(square)
    values, vectors = np.linalg.eigh(-0.5 * centre @ square @ centre)
    kept = values[::-1][:2].clip(min=0)
    return vectors[:, ::-1][:, :2] * np.sqrt(kept), float(kept.sum() / values.clip(min=0).sum())


def lines(run: Run, ends: Array, test: Dataset) -> Array:
    """Return the test error in per cent (K - 1, 21) along the straight lines between K networks (K, D)."""
    if len(ends) < 2:
        return np.zeros((0, POINTS))
    t = np.linspace(0, 1, POINTS, dtype=np.float32)[:, None]
    points = [(1 - t) * a + t * b for a, b in pairwise(ends)]
    flat = torch.from_numpy(np.concatenate(points))
    found = []
    with torch.no_grad():
        for part in flat.split(_NETWORKS):
            log_p = run.target.model.predict(part, test.part(0, test.n))  # type: ignore[attr-defined]
            found.append((log_p.argmax(-1) != test.fields["y"]).double().mean(-1))
    return 100 * torch.cat(found).numpy().reshape(len(points), POINTS)


def rise(errors: Array) -> Array:
    """Return by how much the errors (..., 21) along a line are above the higher of its ends at most, (...)."""
    higher: Array = errors[..., [0, -1]].max(axis=-1)
    return errors.max(axis=-1) - higher


def metrics(run: Run) -> Metrics:
    """What Figure 3's claims speak of, on these networks."""
    found: Metrics = {}
    cycles = int(run.config["cycles"])
    for method, of in run.once(examined).items():
        climbs = rise(of.lines)
        if method in CYCLICAL:
            groups = np.repeat(np.arange(cycles), SAMPLES // cycles)
            between, within, ratio = np.array([cluster_ratio(gaps, groups) for gaps in of.gaps]).T
            found[f"{method}.between"], found[f"{method}.within"] = estimate(between), estimate(within)
            found[f"{method}.cluster_ratio"] = estimate(ratio)
            found[f"{method}.cluster_ratio_least"] = float(ratio.min())
            weights = [harmonic(np.split(-run.target.n * seed, cycles)).weights.max() for seed in of.losses]
            found[f"{method}.largest_weight"] = estimate(np.array(weights))
            by_cycle = of.losses.reshape(len(of.losses), cycles, -1)
            found[f"{method}.nats_within"] = estimate(run.target.n * np.ptp(by_cycle, axis=2).max(axis=1))
            found[f"{method}.nats_last"] = estimate(run.target.n * np.ptp(by_cycle[:, -2:].mean(2), axis=1))
        split = np.array([split_ratio(gaps) for gaps in of.gaps])
        found[f"{method}.split_ratio"] = estimate(split)
        found[f"{method}.split_ratio_most"] = float(split.max())
        found[f"{method}.farthest"] = estimate(of.gaps.max(axis=1))
        found[f"{method}.rise"] = estimate(climbs.mean(axis=1))
        found[f"{method}.rise_least"] = float(climbs.min())
        found[f"{method}.rise_most"] = float(climbs.max())
        found[f"{method}.rise_seeds"] = (
            float(rise(of.strangers).mean()) if len(of.strangers) else float("nan")
        )
        found[f"{method}.in_plane"] = estimate(np.array([scaled(gaps)[1] for gaps in of.gaps]))
        spread = np.ptp(of.losses, axis=1)
        found[f"{method}.loss"] = estimate(of.losses.mean(axis=1))
        found[f"{method}.loss_spread"] = estimate(spread)
        found[f"{method}.nats_spread"] = estimate(run.target.n * spread)
    return found


def _table(run: Run, columns: Mapping[str, str]) -> pd.DataFrame:
    found = run.once(metrics)
    rows = {
        run.label(method): {heading: found.get(f"{method}.{name}") for heading, name in columns.items()}
        for method in run.once(examined)
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def spread_table(run: Run) -> pd.DataFrame:
    """How far twelve samples are apart, and what is between them (Figure 3 a and b, on these networks).

    Euclidean distances of all weights and biases, three samples of each of four cycles or twelve of the twenty.
    "Ratio": least distance between two cycles over the largest within one. "Split": that ratio for the best split in
    two, whatever the cycles. "Rise": percentage points that the test error on a straight line, between the last
    samples of neighbouring cycles or between four of the twenty, is above its higher end at most; "two seeds": the
    same between the last samples of two trainings, which have nothing in common. "In the plane": share of the squared
    distances that the figure shows. Means over seeds with standard errors.
    """
    columns = {
        "between cycles": "between",
        "within": "within",
        "ratio": "cluster_ratio",
        "ratio, least": "cluster_ratio_least",
        "split": "split_ratio",
        "split, most": "split_ratio_most",
        "farthest": "farthest",
        "rise": "rise",
        "rise, least": "rise_least",
        "rise, most": "rise_most",
        "rise, two seeds": "rise_seeds",
        "in the plane": "in_plane",
    }
    return _table(run, columns)


def likelihood_table(run: Run) -> pd.DataFrame:
    """The training loss of the samples, in nats for each datum, and what follows for weights of the cycles (eq. 4).

    Of twelve samples. "Spread": largest minus least of a training, for each datum and for all n; "in a cycle": the
    same of the samples of one, the most; "last cycles": the means of the last two, apart. "Largest weight": what the
    harmonic means of the likelihoods give to the cycle that gets most; alike they would be a quarter each. Means over
    seeds with standard errors.
    """
    columns = {
        "loss": "loss",
        "spread": "loss_spread",
        "spread, all data": "nats_spread",
        "in a cycle, all data": "nats_within",
        "last cycles, all data": "nats_last",
        "largest weight": "largest_weight",
    }
    return _table(run, columns)


_MARKERS = "os^D"


def scaling_figure(run: Run) -> Figure:
    """Twelve networks of each method in the plane, by classical scaling of their Euclidean distances (Figure 3a).

    The first seed, all panels at one scale. Cyclical methods: a colour and a shape for each cycle, "ratio": least
    distance between two cycles over the largest within one. SGLD and SGHMC: darker is later; "split": that ratio for
    the best split in two.
    """
    rows = _panels(run)
    figure, axes = plt.subplots(
        len(rows), 4, figsize=(9.6, 0.6 + 1.65 * len(rows)), sharex=True, sharey=True, squeeze=False
    )
    cycles = int(run.config["cycles"])
    gaps = {method: of.gaps[0] for method, of in run.once(examined).items()}
    x, y = 1.25 * np.array([np.abs(scaled(of)[0]).max(axis=0) for of in gaps.values()]).max(axis=0)
    for axis, method in zip(axes.flat, itertools.chain(*rows), strict=True):
        if method in gaps:
            _scatter(axis, scaled(gaps[method])[0], cycles if method in CYCLICAL else None)
            axis.set_title(f"{run.label(method)}: {_apart(gaps[method], method, cycles)}", fontsize=9)
        axis.set(xlim=(-x, x), ylim=(-y, y), aspect=1)
    for axis in axes[-1]:
        axis.set_xlabel("distance in weight space")
    for axis in axes[:, 0]:
        axis.set_ylabel("distance")
    marks = [
        Line2D([], [], linestyle="", marker=_MARKERS[i % 4], color=COLOURS[i % 4]) for i in range(cycles)
    ]
    figure.tight_layout()
    names = [f"cycle {i + 1}" for i in range(cycles)]
    figure.legend(marks, names, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _panels(run: Run) -> list[tuple[str, ...]]:
    """Return the rows of methods of Figure 3's panels: a row for each temperature that is there."""
    kept = run.once(examined)
    rows = [tuple(method + end for method in SHOWN) for end in ("", "_t1")]
    return [row for row in rows if set(row) & set(kept)]


def _apart(gaps: Array, method: str, cycles: int) -> str:
    if method not in CYCLICAL:
        return f"split {split_ratio(gaps):.2g}"
    return f"ratio {cluster_ratio(gaps, np.repeat(np.arange(cycles), SAMPLES // cycles))[2]:.2g}"


def _scatter(axis: Axes, points: Array, cycles: int | None) -> None:
    """Draw points (S, 2), by cycle or, without cycles, by their place in time."""
    if cycles is None:
        shades = plt.get_cmap("Greys")(np.linspace(0.35, 1, len(points)))
        axis.scatter(points[:, 0], points[:, 1], s=26, color=shades, linewidth=0, zorder=3)
        return
    for part, marker, colour in zip(
        np.split(points, cycles), cycle(_MARKERS), cycle(COLOURS[:4]), strict=False
    ):
        axis.scatter(part[:, 0], part[:, 1], 26, colour, marker=marker, alpha=0.75, linewidth=0, zorder=3)


def lines_figure(run: Run) -> Figure:
    """Test error along straight lines between networks (Figure 3b).

    Between the last samples of neighbouring cycles, and between four samples of SGLD and SGHMC; thin: single seeds,
    thick: their mean. Dotted: between the last samples of two seeds, trainings that have nothing in common.
    """
    rows = _panels(run)
    figure, axes = plt.subplots(
        len(rows), 4, figsize=(9.6, 0.6 + 2.1 * len(rows)), sharex=True, sharey=True, squeeze=False
    )
    kept, t = run.once(examined), np.linspace(0, 1, POINTS)
    for axis, method in zip(axes.flat, itertools.chain(*rows), strict=True):
        if method not in kept:
            continue
        for i, errors in enumerate(kept[method].lines.swapaxes(0, 1)):
            axis.plot(t, errors.T, color=COLOURS[i], linewidth=0.6, alpha=0.5)
            axis.plot(t, errors.mean(axis=0), color=COLOURS[i], linewidth=1.6)
        if len(kept[method].strangers):
            axis.plot(t, kept[method].strangers.mean(axis=0), ":", color="black", linewidth=1.3)
        axis.set_title(run.label(method))
        logarithmic(axis)
    for axis in axes[-1]:
        axis.set_xlabel("place on the line")
    for axis in axes[:, 0]:
        axis.set_ylabel("test error (%)")
    marks = [Line2D([], [], color=COLOURS[i], linewidth=1.6) for i in range(ENDS - 1)]
    marks.append(Line2D([], [], color="black", linestyle=":"))
    figure.tight_layout()
    names = [*(f"{i + 1} to {i + 2}" for i in range(ENDS - 1)), "two seeds"]
    figure.legend(marks, names, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def logarithmic(axis: Axes) -> None:
    """Make the upright axis logarithmic, with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(NullLocator())


def _test_images(run: Run) -> Dataset:
    """Return the first test images of this run's evaluation, at most 2,000."""
    _ = run.target  # which knows where data are looked for
    whole: Dataset = build(run.config["evaluation"]["data"], "evaluation.data").load()
    return Dataset({name: field[:IMAGES] for name, field in whole.fields.items()})


def _losses(run: Run, draws: Array) -> Array:
    """Return the mean training loss in nats (C, S) of networks (C, S, D)."""
    target, parts = run.target, []
    flat = torch.from_numpy(draws.reshape(-1, draws.shape[-1]))
    with torch.no_grad():
        for part in flat.split(_NETWORKS):
            total = torch.zeros(len(part), dtype=torch.float64)
            for start in range(0, target.n, _ROWS):
                rows: Rows = target.data.part(start, min(start + _ROWS, target.n))
                total -= target.model.log_lik(part, rows).sum(-1, dtype=torch.float64)
            parts.append(total / target.n)
    return torch.cat(parts).numpy().reshape(draws.shape[:2])
