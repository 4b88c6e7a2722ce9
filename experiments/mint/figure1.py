"""Figure 1 of Li & Wong (2017): a mixture of Gaussians with tied means, section 4.1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mhrun.diagnostics.chains import worth
from mhrun.diagnostics.grid import chi_squared, monte_carlo_distance, total_variation
from mhrun.diagnostics.modes import hits, nearest, ratio
from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.metrics import value as value_of
from mhrun.report.plots import few_ticks, finished, legend_right, levels, panels
from mhrun.report.vocabulary import COLOURS, GREYS, Array, Axes, Figure, Run, Style, cached, method_styles

from ..shared.exact import Stationary, Truth

RADIUS = 0.01  # the paper's ball about a mode
WIDE = 0.1  # the same with a hundred times the hits
FEAT = 3.0  # nats between the modes below which a chain covers both without trying
_HIGHEST = 2.5  # ratio of the modes at the upper edge of its figure
_LOOKS: dict[float, Style] = {
    WIDE: {"linewidth": 0.8, "alpha": 0.7, "marker": "s", "markersize": 3, "markerfacecolor": "none"},
    RADIUS: {"linewidth": 1.6, "alpha": 1.0, "marker": "o", "markersize": 3.5},
}
_ENOUGH = 25  # effective draws in the fullest cell of a histogram: its count is off by a fifth
_NO_TEMPERED = "No method of this run samples a tempered density."


@cached
def truth(run: Run) -> Truth:
    """Return the truth of a run."""
    return Truth(run.target)


def temperature(run: Run, method: str) -> float:
    """Return the temperature that a method samples at: of a ladder, that of its coldest rung."""
    return run.samples(method).temperature


def is_tempered(run: Run, method: str) -> bool:
    """Return whether a method samples the tempered density, where the modes are connected."""
    return run.samples(method).tempered


def density_of(run: Run, method: str) -> str:
    """Return the name of the density that a method samples."""
    return "tempered" if is_tempered(run, method) else "posterior"


def stationary(run: Run, method: str) -> Stationary | None:
    """Return the stationary distribution of a method, or None if it is unknown or cannot be tabulated."""
    law = run.samples(method)
    if law.distribution is None:
        return None
    return truth(run).stationary(law.distribution, law.temperature, law.m or 0)


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable.by_method(run, _metrics)
    if "mint_stored" in run.methods and (m := run.samples("mint_stored").m) is not None:
        t = temperature(run, "mint_stored")
        densities = (
            truth(run).stationary("stored", t, m, cells=40),
            truth(run).stationary("tempered", t, cells=40),
        )
        if densities[0] is not None and densities[1] is not None:
            distance = total_variation(densities[0].probability[None], densities[1].probability)
            table.add("law", {"tv_stored_tempered": distance})
    ratios = {
        "posterior_ratio": _posterior_ratio(run, 1.0),
        "tempered_ratio": _posterior_ratio(run, hottest(run)),
    }
    table.add("law", ratios)
    return table


def _metrics(run: Run, method: str) -> Metrics:
    """The metrics of one method; what has no meaning for it is left out."""
    draws, modes, tempered = run.draws(method), truth(run).modes, is_tempered(run, method)
    # A chain that has left the numbers, or jumps about the plane, is in no mode, though it may look frozen.
    lost = run.methods[method]["diverging"] > 0 or not np.isfinite(draws).all()
    visited = [len(np.unique(row)) for row in nearest(draws, modes)]
    of_draws = worth(draws)
    numbers: Metrics = {
        "ess": of_draws["ess"],
        "rhat": of_draws["rhat"],
        "modes_visited_most": float("nan") if lost else float(max(visited)),
        "upper_share": estimate((draws[:, :, 1] > 0).mean(axis=1)),
    }
    if run.methods[method]["n_accept_tests"]:
        numbers["accept_rate"] = run.methods[method]["accept_rate"]
    reached = hitting_steps(draws, run.draw_steps(method), modes, RADIUS)
    numbers |= {"hit_share": float(np.isfinite(reached).mean()), "hit_both": estimate(reached)}
    if tempered:
        for name, radius in (("mode_ratio", RADIUS), ("mode_ratio_wide", WIDE)):
            numbers[name] = ratio(*(hits(draws, mode, radius).sum(axis=1) for mode in modes))
    if (density := truth(run).stationary("tempered", temperature(run, method))) is not None:
        shares = density.shares(draws)
        numbers["tv"] = total_variation(shares, density.probability)
        numbers["tv_noise"] = monte_carlo_distance(shares, density.probability)
        numbers["tv_single_chain"] = float(
            np.mean([total_variation(r[None], density.probability) for r in shares])
        )
        if tempered:
            numbers["chi2"] = chi_squared(shares, density.probability)
    if (law := stationary(run, method)) is not None:
        shares = law.shares(draws)
        numbers["tv_own"] = total_variation(shares, law.probability)
        if tempered:
            numbers["chi2_own"] = chi_squared(shares, law.probability)
    return numbers


def hitting_steps(draws: Array, steps: npt.NDArray[np.int64], modes: Array, radius: float) -> Array:
    """Return the step at which each chain has first been within `radius` of every mode, NaN where it never is: (C,).

    Of the kept draws (C, S, 2), which were drawn at `steps` (S,).
    """
    inside = np.stack([hits(draws, mode, radius) for mode in modes])  # (M, C, S)
    first = np.where(inside.any(axis=2), steps[inside.argmax(axis=2)], np.nan)
    last: Array = first.max(axis=0)
    return last


def density(run: Run) -> Figure | str:
    """Draws over the exact tempered density (Figure 1, left)."""
    shown = [method for method in run.methods if is_tempered(run, method)]
    if not shown:
        return _NO_TEMPERED
    figure, axes = panels(len(shown), size=(3.3, 3.3), share="", xlabel=r"$\theta_1$")
    for axis, method in zip(axes, shown, strict=True):
        draws, colour = run.draws(method), method_styles(run.methods)[method]["color"]
        spikes, has_lines = _density_over(axis, run, method, colour)
        thinned = draws.reshape(-1, 2)[:: max(1, draws.size // 2 // 2000)]
        size, alpha = (1.5, 0.35) if has_lines else (3.0, 0.5)
        axis.plot(*thinned.T, ".", color=colour, markersize=size, alpha=alpha, markeredgewidth=0)
        axis.plot(*truth(run).modes.T, "x", color="black", markersize=5)
        axis.set_title(run.label(method))
        if not spikes:
            axis.set(xlim=(-3.2, 3.2), ylim=(-4, 4))
    axes[0].set_ylabel(r"$\theta_2$")
    return finished(figure)


def _density_over(axis: Axes, run: Run, method: str, colour: str) -> tuple[bool, bool]:
    """Draw the density, and the histogram of the draws where they are enough for one.

    Returns:
        Whether the density is two spikes, each drawn near, and whether the histogram is drawn.
    """
    t = temperature(run, method)
    density = truth(run).stationary("tempered", t)
    if density is None:
        return False, False
    spikes = len(density.grids) > 1
    if not spikes:
        density = truth(run).stationary("tempered", t, cells=80) or density
    exact = density.maps(density.probability)
    ess = value_of(run.cached(metrics)[f"{method}.ess"])
    is_enough = bool(ess * density.probability[:-1].max() >= _ENOUGH)
    sampled = density.maps(density.shares(run.draws(method)).mean(axis=0)) if is_enough else []
    levels = max(values.max() for _, _, values in exact) * np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.9])
    shades = GREYS(np.linspace(0.15, 0.6, len(levels)))
    for x, y, values in exact:
        axis.contourf(x, y, values.T, levels=[*levels, 2 * levels[-1]], colors=shades)
    for x, y, values in sampled:
        if values.max() > levels[0]:  # else there is no line to draw
            axis.contour(x, y, values.T, levels=levels, colors=colour, linewidths=0.9)
    if spikes:
        edges = np.array([[[g.x[0], g.y[0]], [g.x[-1], g.y[-1]]] for g in density.grids])
        low, high = edges.min(axis=(0, 1)), edges.max(axis=(0, 1))
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    return spikes, is_enough


def mode_ratio(run: Run) -> Figure | str:
    """The estimated ratio of the two modes against iterations (Figure 1, right).

    A ratio above the frame is an arrow at its upper edge, with the largest number beside it.
    """
    shown = [method for method in run.methods if is_tempered(run, method)]
    if not shown:
        return _NO_TEMPERED
    figure, axes = panels(
        len(shown), size=(3.3, 3.0), xscale="log", xlabel="iterations per chain", ylim=(0, _HIGHEST)
    )
    for axis, method in zip(axes, shown, strict=True):
        colour = method_styles(run.methods)[method]["color"]
        draws, at = run.draws(method), run.draw_steps(method)
        count = draws.shape[1]
        first = min(max(100, count // 200), max(1, count // 4))  # a short run begins early
        ends = np.unique(np.geomspace(first, count, 24).astype(int))
        empty = []  # radii without a number
        for radius, look in _LOOKS.items():
            counts = [_counts_until(hits(draws, mode, radius), ends) for mode in truth(run).modes]
            ratios = [ratio(one, two) for one, two in zip(counts[0].T, counts[1].T, strict=True)]
            value, se = np.array(ratios).T
            style: Style = {"color": colour, **look}
            axis.plot(at[ends - 1], value, **style)
            if radius == RADIUS:
                axis.errorbar(at[ends - 1], value, se, color=colour, linewidth=0, elinewidth=1, capsize=1.5)
            else:
                axis.fill_between(at[ends - 1], value - se, value + se, color=colour, alpha=0.15, linewidth=0)
            _arrows_above(axis, at[ends - 1], value, style)
            if not np.isfinite(value).any():
                empty.append(f"{radius:g}")
        if empty:
            text = f"no draws within {' or '.join(empty)} of the second mode yet"
            axis.text(0.5, 1.02, text, transform=axis.transAxes, ha="center", fontsize=7)
        exact = _posterior_ratio(run, temperature(run, method))
        levels(axis, exact)
        axis.set_title(run.label(method), pad=15)
        axis.set_xlim(0.9 * at[ends[0] - 1], 1.1 * at[ends[-1] - 1])
        if ends[-1] < 30 * ends[0]:  # too short a stretch for powers of ten
            axis.set_xticks([], minor=True)
            axis.set_xticks(at[ends[[0, -1]] - 1], [f"{step:,}" for step in at[ends[[0, -1]] - 1]])
    chains = {run.methods[method]["chains"] for method in shown}
    suffix = f" ({chains.pop()} chains)" if len(chains) == 1 and chains != {1} else ""
    axes[0].set_ylabel(f"ratio of the modes{suffix}")
    for radius, look in _LOOKS.items():  # of all panels, whose colours differ
        axes[-1].plot([], [], label=f"radius {radius:g}", color="0.35", **look)
    legend_right(axes[-1], handlelength=3.2)
    return figure


def _arrows_above(axis: Axes, at: Array, value: Array, style: Style) -> None:
    """Mark values above the frame by arrows at its upper edge, the largest with its number."""
    above = np.flatnonzero(value > _HIGHEST)
    if not len(above):
        return
    look: Style = {"color": style["color"], "alpha": style["alpha"], "linestyle": "none"}
    look["markerfacecolor"] = style.get("markerfacecolor")
    axis.plot(at[above], np.full(len(above), 0.97 * _HIGHEST), marker="^", markersize=4, **look)
    largest = above[np.argmax(value[above])]
    axis.annotate(
        f"{value[largest]:.3g}",
        (at[largest], 0.97 * _HIGHEST),
        xytext=(0, -4),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7,
        color=style["color"],
    )


def one_mode(run: Run) -> Figure | str:
    """Every sampler of the posterior at temperature 1 stays where it began."""
    cold = [method for method in run.methods if not is_tempered(run, method)]
    if not cold:
        return "No method of this run samples the posterior at temperature 1."
    shown = [method for method in run.methods if method == "mint" and method not in cold] + cold
    labels: Style = {"xlabel": "iteration", "ylabel": r"$\theta_2$", "ylim": (-4.5, 4.5)}
    figure, axes = panels(len(shown), size=(2.6, 2.8), **labels)
    for axis, method in zip(axes, shown, strict=True):
        draws = run.draws(method)
        stride = max(1, draws.shape[1] // 400)
        steps = run.draw_steps(method)[::stride]
        for c in range(len(draws)) if method in cold else range(1):
            colour = COLOURS[c % 2] if method in cold else COLOURS[0]
            axis.plot(steps, draws[c, ::stride, 1], color=colour, linewidth=0.6, alpha=0.7)
        axis.set_title(run.label(method))
        few_ticks(axis)
    return figure


def hottest(run: Run) -> float:
    """Return the highest temperature that a method of the run samples at."""
    return max(temperature(run, method) for method in run.methods)


def dip(run: Run) -> float:
    """Return the drop in nats from the lower mode to the highest pass between the modes."""
    log_density = truth(run).log_tempered(hottest(run))
    # The pass is on the line of symmetry, theta2 = 0, where the components are one.
    line = np.stack([np.linspace(-1, 2, 3001), np.zeros(3001)], axis=1)
    return float(log_density(truth(run).modes).min() - log_density(line).max())


def _posterior_ratio(run: Run, at: float) -> float:
    first, second = truth(run).log_tempered(at)(truth(run).modes)
    return float(np.exp(first - second))


def _counts_until(inside: npt.NDArray[np.bool_], steps: npt.NDArray[np.int64]) -> Array:
    edges = np.concatenate([[0], steps[:-1]])
    return (
        np.add.reduceat(inside[:, : steps[-1]].astype(np.int64), edges, axis=1).cumsum(axis=1).astype(float)
    )


def noisy_methods(run: Run) -> dict[str, float]:
    """Return the standard deviation that minibatches put on the log-ratio of each method that has one."""
    noise = {method: run.methods[method].get("log_ratio_noise_sd") for method in run.methods}
    return {method: sd for method, sd in noise.items() if sd}
