"""The sections that the report of every run has after the experiment's own: posterior, chains, marginals, work."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from mhrun.diagnostics.chains import diagnosis
from mhrun.report.coordinates import SHOWN, Summarised, coordinates_of, draws_of
from mhrun.report.densities import Curve, axis_ends, axis_height, smoothed_density
from mhrun.report.history import acceptance_history, batch_sizes, step_size_history
from mhrun.report.monitored import monitor
from mhrun.report.plots import finished, label_edges, legend_right, narrow_ticks, panels
from mhrun.report.run import Run
from mhrun.report.style import COLOURS, styles_of
from mhrun.report.tables import quoted
from mhrun.store.identity import parts_of

_LETTERS, _NARROWEST = 15, 66  # of a line above a figure, for each inch of it, and at least
METHODS = 8  # that a figure shows; the table has all
_TOO_MANY = f"a figure has {METHODS} methods at most"
_MARGINALS, _PAIRED = 9, 4  # coordinates
_COLUMNS = 3  # of marginals
_TARGETS = 3  # of marginals: models and data sets
_CHAINS = 16  # whose traces a panel shows
_POINTS = 300  # of a trace
_CLOUD = 400  # points of a panel of pairs, of all methods together
_BINS = 20  # of ranks
_RANKED = 100_000  # draws of a chain that are ranked, at most
_OPEN: dict[str, Any] = {
    "markersize": 2.8,
    "markerfacecolor": "none",
    "markeredgewidth": 0.6,
    "alpha": 0.8,
}

EXPLAINED = {
    "mean": "Mean of the draws of all chains",
    "sd": "Standard deviation of the draws of all chains",
    "5 %": "Quantile: 5 % of the draws are below",
    "median": "Half of the draws are below",
    "95 %": "Quantile: 95 % of the draws are below",
    "MCSE": "Monte Carlo standard error of the mean, in the units of the parameter",
    "ESS": "Bulk effective sample size of all chains together",
    "tail ESS": "Effective sample size for the 5 % and 95 % quantiles",
    "R-hat": "Rank-normalised split R-hat; above 1.01 chains have not converged",
}


def posterior(run: Run) -> pd.DataFrame | str:
    """Posterior of each parameter by method.

    MCSE is the Monte Carlo standard error of the mean. Of a model with more than 12 parameters 12 are here: small
    parameters beside large ones, such as an intercept, and those with the largest R-hat. For all,
    mhrun.load(run).trace(method) opens the trace, of which arviz_stats.summary makes such a table.
    """
    summaries = run.cached(coordinates_of)
    limit = SHOWN if len(summaries) <= METHODS else 2
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for method, summary in summaries.items():
        coordinates = summary.coordinates
        if len(coordinates) > limit:
            coordinates = sorted(coordinates, key=lambda c: -np.nan_to_num(c.rhat, nan=np.inf))[:limit]
        for c in coordinates:
            low, middle, high = c.quantiles
            numbers = (c.mean, c.sd, low, middle, high, c.mcse, c.ess, c.ess_tail, c.rhat)
            rows[run.label(method), c.name] = dict(zip(EXPLAINED, numbers, strict=True))
    if not rows:
        return _nothing(run)
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(EXPLAINED))
    frame.index = pd.MultiIndex.from_tuples(list(rows), names=["method", "parameter"])
    return frame


def pilots(run: Run) -> pd.DataFrame | str:
    """Settings that pilot runs found.

    The step size is in posterior standard deviations where there is a scale. Chains begin where the pilot left them;
    what it evaluated is in the counts of the methods.
    """
    rows = {}
    for method, summary in run.methods.items():
        if pilot := summary.get("pilot"):
            rows[run.label(method)] = {
                "step size": pilot["step_size"],
                "minibatch": pilot.get("m"),
                "scale": pilot.get("scale", "none"),
                "condition number": pilot.get("condition"),
                "likelihoods": float(pilot["n_lik"]),
                "gradients": float(pilot["n_grad"]),
                "why": pilot["why"].strip(),
            }
    return pd.DataFrame.from_dict(rows, orient="index") if rows else "No method left a setting to a pilot."


def marginals(run: Run) -> Figure | str:
    """Marginal posteriors of the methods over each other.

    Densities of the draws of all chains, smoothed. Methods that sample the same distribution have the same curve; a few
    per cent of a standard deviation do not show: mhrun compare measures them. Each model and each data set has its own
    rows of panels. Axes have room for most methods: curves far wider, narrower or elsewhere leave them.
    """
    targets = [_first(methods, METHODS) for methods in _by_target(run)[:_TARGETS]]
    if not targets:
        return _nothing(run)
    limit = _MARGINALS if len(targets) == 1 else _COLUMNS
    names = [_common(summaries)[:limit] for summaries in targets]
    columns = min(_COLUMNS, max(map(len, names)))
    places = -(-max(map(len, names)) // columns) * columns  # of a target
    figure, axes = panels(places * len(targets), columns=columns, size=(2.6, 2.0), share="")
    for number, (summaries, shown) in enumerate(zip(targets, names, strict=True)):
        of_target = axes[number * places : (number + 1) * places]
        _draw_marginals(run, of_target, summaries, shown)
        label_edges(of_target, columns, y="density")
    drawn = {method for summaries in targets for method in summaries}
    several = f"a figure has {_TARGETS} data sets or models, with {METHODS} methods each, at most"
    why = _TOO_MANY if len(targets) == 1 else several
    _headline(figure, _chosen(targets, names), _absent(run, drawn, why))
    finished(figure)
    for number, shown in enumerate(names):
        legend_right(axes[number * places + min(columns, len(shown)) - 1])
    return figure


def _chosen(targets: Sequence[Mapping[str, Summarised]], names: Sequence[Sequence[str]]) -> str:
    """Return a line on how many of the parameters of each target are drawn; empty if all are."""
    counts = [
        max(len(_common(summaries)), *(summary.of for summary in summaries.values())) for summaries in targets
    ]
    some = [f"{len(shown)} of {of:,}" for shown, of in zip(names, counts, strict=True) if of > len(shown)]
    return f"{', '.join(dict.fromkeys(some))} parameters: those with the largest R-hat" if some else ""


def _draw_marginals(
    run: Run, axes: Sequence[Axes], summaries: Mapping[str, Summarised], names: Sequence[str]
) -> None:
    """Draw the densities of each parameter into a panel, and remove the panels that are left."""
    styles = styles_of(run)
    curves: dict[str, list[Curve]] = {name: [] for name in names}
    for method, summary in summaries.items():
        draws = draws_of(run, method, summary)
        for axis, name in zip(axes, names, strict=False):
            if (index := _place(summary, name)) is not None:
                values = draws[..., index]
                curves[name].append(smoothed_density(values.ravel(), diagnosis(values).ess))
                axis.plot(*curves[name][-1], label=run.label(method), linewidth=1.2, **_line(styles[method]))
    for axis, name in zip(axes, names, strict=False):
        axis.set(
            xlabel=name,
            yticks=[],
            xlim=axis_ends([x for x, _ in curves[name]]),
            ylim=(0, axis_height(curves[name])),
        )
        narrow_ticks(axis.xaxis)
    for axis in axes[len(names) :]:
        axis.remove()


def chains(run: Run) -> Figure | str:
    """Chains of each method at the parameter with its largest R-hat: trace and ranks.

    Left: one line for each chain; chains that agree overlap. Right: how often each chain has the draws of each rank
    among all chains, over what chance gives; chains that agree are flat at 1. Of more than 16 chains, 16 at equal
    distances are drawn; ranks are among all.
    """
    summaries = _with_draws(run)
    if not summaries:
        return _nothing(run)
    figure, axes = panels(2 * len(summaries), columns=2, size=(3.6, 1.5), share="")
    for row, (method, summary) in enumerate(summaries.items()):
        index = summary.worst
        draws, name = draws_of(run, method, summary)[..., index], summary.coordinates[index].name
        trace, rank = axes[2 * row], axes[2 * row + 1]
        stride = max(1, draws.shape[1] // _POINTS)
        selected = np.unique(np.linspace(0, len(draws) - 1, min(len(draws), _CHAINS)).round().astype(int))
        for k, (c, share) in enumerate(zip(selected, rank_shares(draws, selected), strict=True)):
            colour = COLOURS[k % len(COLOURS)]
            trace.plot(np.arange(0, draws.shape[1], stride), draws[c, ::stride], linewidth=0.5, color=colour)
            edges = np.linspace(0, 1, len(share) + 1)
            rank.stairs(share, edges, baseline=None, color=colour, linewidth=1.0)
        rank.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
        rank.set(ylim=(0, max(2.0, rank.get_ylim()[1])), ylabel="share, relative")
        shown = f", {len(selected)} of {len(draws):,} chains" if len(selected) < len(draws) else ""
        trace.set_title(f"{run.label(method)}: {name}{shown}", fontsize=8, loc="left")
        narrow_ticks(trace.xaxis, count=5)
        if row == len(summaries) - 1:
            trace.set_xlabel("draw")
            rank.set_xlabel("rank among all chains")
    _headline(figure, _absent(run, summaries))
    return finished(figure)


def pairs(run: Run) -> Figure | str:
    """Pairs of parameters, draws of each method.

    Some 400 draws, the same number of each of four methods at most, which have their own marks. Narrow ridges are
    strong correlations, which random walks and Langevin moves without preconditioning cross slowly. Draws of a method
    that are far wider than most, or far away, leave the axes.
    """
    targets = _by_target(run)
    summaries = _first(targets[0], _PAIRED) if targets else {}
    names = _common(summaries)[:_PAIRED]
    if len(names) < 2:
        return "There is one parameter: it has no pairs." if summaries else _nothing(run)
    styles = styles_of(run)
    count = _CLOUD // len(summaries)
    points = {method: _points(draws_of(run, method, summary), count) for method, summary in summaries.items()}
    across = len(names) - 1
    figure, axes = panels(
        across * across, columns=across, size=(2.2, 2.0) if across > 1 else (3.2, 2.8), share=""
    )
    for number, axis in enumerate(axes):
        row, column = divmod(number, across)
        if column > row:
            axis.remove()
            continue
        x, y = names[column], names[row + 1]
        for method, summary in summaries.items():
            first, second = _place(summary, x), _place(summary, y)
            if first is not None and second is not None:
                cloud = points[method]
                look = styles[method] | _OPEN | {"linestyle": "", "label": run.label(method)}
                axis.plot(cloud[:, first], cloud[:, second], **look)
        axis.set(xlim=axis_ends([np.asarray(line.get_xdata(), float) for line in axis.lines]))
        axis.set(ylim=axis_ends([np.asarray(line.get_ydata(), float) for line in axis.lines]))
        narrow_ticks(axis.xaxis, axis.yaxis, count=2, labelsize=7)
        if row == across - 1:
            axis.set_xlabel(x)
        if column == 0:
            axis.set_ylabel(y)
    _headline(figure, _absent(run, summaries, f"{_PAIRED} methods of one target at most"))
    return finished(figure, legend="right", markerscale=2)


def work(run: Run) -> Figure | str:
    """Acceptance, step sizes and minibatches.

    Acceptance rate in windows over the whole run (burn-in shaded, to the left of 0), step sizes while they are adapted,
    and how often a minibatch has each size, where it varies; left of 1 the steps that read no data.
    """
    methods = list(run.methods)[:METHODS]
    curves: dict[str, dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = {
        "acceptance": {m: h for m in methods if (h := acceptance_history(run, m)) is not None},
        "step size": {m: h for m in methods if (h := step_size_history(run, m)) is not None},
        "share of steps": {m: h for m in methods if (h := batch_sizes(run, m)) is not None},
    }
    curves = {quantity: by_method for quantity, by_method in curves.items() if by_method}
    if not curves:
        return "No method has an acceptance test, adapts its step size or has minibatches of several sizes."
    styles = styles_of(run)
    figure, axes = panels(len(curves), size=(3.2, 2.4), share="")
    for axis, (quantity, by_method) in zip(axes, curves.items(), strict=True):
        for method, (x, y) in by_method.items():
            line = {"linewidth": 1.2, "label": run.label(method), **_line(styles[method])}
            if quantity == "share of steps":
                axis.stairs(y, x, label=line["label"], color=line["color"], linewidth=1.2)
            else:
                axis.plot(x, y, **line)
        axis.set(xlabel="minibatch size" if quantity == "share of steps" else "step", ylabel=quantity)
        if quantity != "share of steps" and (burn_in := min(x.min() for x, _ in by_method.values())) < 0:
            axis.axvspan(burn_in, 0, color="0.92", linewidth=0, zorder=0)
            axis.set_xlabel("step (burn-in shaded)")
        axis.locator_params(axis="x", nbins=4)  # step numbers are long
        if quantity == "acceptance":
            axis.set_ylim(0, 1)
        elif quantity == "step size":
            sizes = np.concatenate([y for _, y in by_method.values()])
            if sizes.max() > 10 * sizes.min() > 0:  # a logarithmic axis of less has unreadable labels
                axis.set_yscale("log")
        elif max(x[-1] / max(1, x[0]) for x, _ in by_method.values()) > 10:
            axis.set_xscale("symlog", linthresh=1)  # 0: steps that read no data
            axis.set_xlim(left=min(x[0] for x, _ in by_method.values()))
            axis.xaxis.set_minor_formatter(NullFormatter())
    if left := list(run.methods)[METHODS:]:
        _headline(figure, _not_drawn(run, left, _TOO_MANY))
    return finished(figure, legend="right")


TABLES: Mapping[str, Callable[[Run], pd.DataFrame | str]] = {
    "monitor": monitor,
    "posterior": posterior,
    "pilots": pilots,
}
FIGURES: Mapping[str, Callable[[Run], Figure | str]] = {
    "marginals": marginals,
    "chains": chains,
    "pairs": pairs,
    "work": work,
}
"""The sections by name; an experiment's own table or figure of the same name takes the place of one."""


def _with_draws(run: Run) -> dict[str, Summarised]:
    return _first({m: a for m, a in run.cached(coordinates_of).items() if a.coordinates}, METHODS)


def _by_target(run: Run) -> list[dict[str, Summarised]]:
    """Return the methods with draws by model and data: elsewhere a name is that of another parameter."""
    targets: dict[str, dict[str, Summarised]] = {}
    for method, summary in run.cached(coordinates_of).items():
        if summary.coordinates:
            parts = parts_of(run.config, method)
            key = json.dumps([parts["model"], parts["data"]], sort_keys=True)
            targets.setdefault(key, {})[method] = summary
    return list(targets.values())


def _first(summaries: Mapping[str, Summarised], count: int) -> dict[str, Summarised]:
    return dict(islice(summaries.items(), count))


def _headline(figure: Figure, *lines: str) -> None:
    """Write lines above the panels, wider than a narrow figure; those that are empty are left out."""
    width = max(_NARROWEST, int(_LETTERS * figure.get_figwidth()))
    if text := "\n".join(textwrap.fill(line, width) for line in lines if line):
        figure.suptitle(text, fontsize=8)


def _absent(run: Run, drawn: Collection[str], otherwise: str = _TOO_MANY) -> str:
    """Return a line on the methods that a figure leaves out, and why; empty if it has all.

    Args:
        run: whose figure.
        drawn: the methods that it has.
        otherwise: why methods with draws are left out.
    """
    reasons: dict[str, list[str]] = {}
    for method, summary in run.cached(coordinates_of).items():
        if method not in drawn:
            reasons.setdefault(summary.why.rstrip(".") or otherwise, []).append(method)
    return "; ".join(_not_drawn(run, methods, reason) for reason, methods in reasons.items())


def _not_drawn(run: Run, methods: Iterable[str], reason: str) -> str:
    return f"not drawn: {', '.join(quoted(run.label(method)) for method in methods)} ({reason})"


def _nothing(run: Run) -> str:
    reason = next(
        (summary.why for summary in run.cached(coordinates_of).values() if summary.why), "there is no method."
    )
    return f"No method has draws to show: {reason}"


def _common(summaries: Mapping[str, Summarised]) -> list[str]:
    """Return the names of parameters in the order of their largest R-hat over methods, worst first."""
    worst: dict[str, float] = {}
    for summary in summaries.values():
        for c in summary.coordinates:
            worst[c.name] = max(worst.get(c.name, 0.0), float(np.nan_to_num(c.rhat, nan=np.inf)))
    few = len(worst) <= _MARGINALS
    return list(worst) if few else sorted(worst, key=lambda name: -worst[name])


def _place(summary: Summarised, name: str) -> int | None:
    """Return the place of a coordinate among those that are summarised, or None if it is not."""
    return next((k for k, c in enumerate(summary.coordinates) if c.name == name), None)


def _line(style: Mapping[str, Any]) -> dict[str, Any]:
    return {key: style[key] for key in ("color", "linestyle")}


def rank_shares(draws: npt.NDArray[np.float64], selected: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return how often selected chains have the draws of each bin of ranks, over what chance gives (selected, bins)."""
    draws = draws[:, :: -(-draws.shape[1] // _RANKED)]
    chains, count = draws.shape
    order = draws.ravel().argsort(kind="stable")
    ranks = np.empty(draws.size, np.int64)
    ranks[order] = np.arange(draws.size)
    bins = min(_BINS, max(2, count // 10))
    places = (ranks.reshape(chains, count) * bins) // draws.size
    return np.stack([np.bincount(row, minlength=bins) for row in places[selected]]) * bins / count


def _points(draws: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Return about so many draws of all chains together (points, coordinates)."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat[:: max(1, len(flat) // count)].copy()
