"""Networks as points in weight space: section 5.3's Figure 3(a) and (b), and the likelihoods of the samples."""

from __future__ import annotations

from itertools import chain, cycle, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from mhrun.build import build
from mhrun.data import Dataset
from mhrun.diagnostics.cycles import harmonic
from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import finished, logarithmic, panels
from mhrun.report.vocabulary import COLOURS, Array, Axes, Figure, Run, Style, plt
from mhrun.types import Rows

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
    by_method, data = {}, test_data(run)
    test = Dataset({name: field[:IMAGES] for name, field in data.fields.items()})
    for method in (*CYCLICAL, *TRADITIONAL):
        if method not in run.methods or not keeps(run, method):
            continue
        draws = run.draws(method).astype(np.float32)  # they are no finer: the state is float32
        sampled = draws[:, chosen(draws.shape[1], SAMPLES)]
        ends = draws[:, chosen(draws.shape[1], ENDS)]  # of 12 from four cycles, the last of each
        by_method[method] = Weights(
            gaps=np.stack([pdist(of_seed.astype(np.float64)) for of_seed in sampled]),
            lines=np.stack([lines(run, of_seed, test) for of_seed in ends]),
            strangers=lines(run, draws[:, -1], test),
            losses=_losses(run, sampled),
        )
    return by_method


def keeps(run: Run, method: str) -> bool:
    """Return whether a method keeps its networks in the trace."""
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
    leading = values[::-1][:2].clip(min=0)
    return vectors[:, ::-1][:, :2] * np.sqrt(leading), float(leading.sum() / values.clip(min=0).sum())


def lines(run: Run, ends: Array, test: Dataset) -> Array:
    """Return the test error in per cent (K - 1, 21) along the straight lines between K networks (K, D)."""
    if len(ends) < 2:
        return np.zeros((0, POINTS))
    t = np.linspace(0, 1, POINTS, dtype=np.float32)[:, None]
    points = [(1 - t) * a + t * b for a, b in pairwise(ends)]
    flat = torch.from_numpy(np.concatenate(points))
    errors = []
    with torch.no_grad():
        for part in flat.split(_NETWORKS):
            log_p = run.target.model.predict(part, test.part(0, test.n))  # type: ignore[attr-defined]
            errors.append((log_p.argmax(-1) != test.fields["y"]).double().mean(-1))
    return 100 * torch.cat(errors).numpy().reshape(len(points), POINTS)


def rise(errors: Array) -> Array:
    """Return by how much the errors (..., 21) along a line are above the higher of its ends at most, (...)."""
    higher: Array = errors[..., [0, -1]].max(axis=-1)
    return errors.max(axis=-1) - higher


def metrics(run: Run) -> Metrics:
    """Return the metrics of Figure 3's claims, on these networks."""
    table = MetricTable()
    for method, geometry in run.cached(examined).items():
        if method in CYCLICAL:
            table.add(method, _of_cycles(run, geometry))
        table.add(method, _of_all(run, geometry))
    return table


def _of_cycles(run: Run, geometry: Weights) -> Metrics:
    cycles, n = int(run.config["cycles"]), run.target.n
    groups = np.repeat(np.arange(cycles), SAMPLES // cycles)
    between, within, ratio = np.array([cluster_ratio(gaps, groups) for gaps in geometry.gaps]).T
    weights = [harmonic(np.split(-n * seed, cycles)).weights.max() for seed in geometry.losses]
    by_cycle = geometry.losses.reshape(len(geometry.losses), cycles, -1)
    return {
        "between": estimate(between),
        "within": estimate(within),
        "cluster_ratio": estimate(ratio),
        "cluster_ratio_least": float(ratio.min()),
        "largest_weight": estimate(np.array(weights)),
        "nats_within": estimate(n * np.ptp(by_cycle, axis=2).max(axis=1)),
        "nats_last": estimate(n * np.ptp(by_cycle[:, -2:].mean(2), axis=1)),
    }


def _of_all(run: Run, geometry: Weights) -> Metrics:
    climbs, spread = rise(geometry.lines), np.ptp(geometry.losses, axis=1)
    split = np.array([split_ratio(gaps) for gaps in geometry.gaps])
    return {
        "split_ratio": estimate(split),
        "split_ratio_most": float(split.max()),
        "farthest": estimate(geometry.gaps.max(axis=1)),
        "rise": estimate(climbs.mean(axis=1)),
        "rise_least": float(climbs.min()),
        "rise_most": float(climbs.max()),
        "rise_seeds": float(rise(geometry.strangers).mean()) if len(geometry.strangers) else float("nan"),
        "in_plane": estimate(np.array([scaled(gaps)[1] for gaps in geometry.gaps])),
        "loss": estimate(geometry.losses.mean(axis=1)),
        "loss_spread": estimate(spread),
        "nats_spread": estimate(run.target.n * spread),
    }


_MARKERS = "os^D"


def scaling_figure(run: Run) -> Figure:
    """Twelve networks of each method in the plane, by classical scaling of their Euclidean distances (Figure 3a)."""
    rows, cycles = _panels(run), int(run.config["cycles"])
    gaps = {method: geometry.gaps[0] for method, geometry in run.cached(examined).items()}
    x, y = 1.25 * np.array([np.abs(scaled(gap)[0]).max(axis=0) for gap in gaps.values()]).max(axis=0)
    panel_style: Style = {"xlim": (-x, x), "ylim": (-y, y), "aspect": 1, "xlabel": "distance in weight space"}
    size = (2.4, 1.65 + 0.6 / len(rows))
    figure, axes = panels(4 * len(rows), columns=4, size=size, share="xy", ylabel="distance", **panel_style)
    for axis, method in zip(axes, chain(*rows), strict=True):
        if method in gaps:
            _scatter(axis, scaled(gaps[method])[0], cycles if method in CYCLICAL else None)
            axis.set_title(f"{run.label(method)}: {_apart(gaps[method], method, cycles)}", fontsize=9)
    for i in range(cycles):
        style: Style = {"marker": _MARKERS[i % 4], "color": COLOURS[i % 4], "label": f"cycle {i + 1}"}
        axes[0].plot([], [], linestyle="", **style)
    return finished(figure, legend="right")


def _panels(run: Run) -> list[tuple[str, ...]]:
    """Return the rows of methods of Figure 3's panels: a row for each temperature that is there."""
    by_method = run.cached(examined)
    rows = [tuple(method + end for method in SHOWN) for end in ("", "_t1")]
    return [row for row in rows if set(row) & set(by_method)]


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
    """Test error along straight lines between networks (Figure 3b)."""
    rows, by_method, t = _panels(run), run.cached(examined), np.linspace(0, 1, POINTS)
    labels: Style = {"xlabel": "place on the line", "ylabel": "test error (%)"}
    size = (2.4, 2.1 + 0.6 / len(rows))
    figure, axes = panels(4 * len(rows), columns=4, size=size, share="xy", **labels)
    for axis, method in zip(axes, chain(*rows), strict=True):
        if method not in by_method:
            continue
        for i, errors in enumerate(by_method[method].lines.swapaxes(0, 1)):
            axis.plot(t, errors.T, color=COLOURS[i], linewidth=0.6, alpha=0.5)
            axis.plot(t, errors.mean(axis=0), color=COLOURS[i], linewidth=1.6, label=f"{i + 1} to {i + 2}")
        if len(by_method[method].strangers):
            strangers = by_method[method].strangers.mean(axis=0)
            axis.plot(t, strangers, ":", color="black", linewidth=1.3, label="two seeds")
        axis.set_title(run.label(method))
        logarithmic(axis, (1, 2, 5))
    return finished(figure, legend="right")


def test_data(run: Run) -> Dataset:
    """Return the test images of a run's monitor."""
    _ = run.target  # which knows where data are looked for
    data: Dataset = build(run.config["monitor"]["data"], "monitor.data").load()
    return data


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
