"""Figure 2(b) to (f) of Wu, Wang & Wong (2020): mixtures with tied means, on which MHBT travels between two modes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mhrun.diagnostics.grid import monte_carlo_distance, total_variation
from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import few_ticks, finished, label_edges, levels, panels
from mhrun.report.vocabulary import COLOURS, GREYS, Array, Figure, Run

from ..shared.exact import Truth

SCATTER = ("mhbt_1", "mhbt_2")  # whose draws are compared with the density, and shown over it
PANELS = {  # Figure 2, d to f, and f at a higher temperature: what is shown, and beside what
    r"$\theta_2 = 0.5$, c = 20": ("mhbt_half", "full_half"),
    r"$\theta_2 = 2$, c = 20": ("mhbt_2", "full_2"),
    r"$\theta_2 = 4$, c = 20": ("mhbt_4", "full_4"),
    r"$\theta_2 = 4$, c = 10": ("mhbt_4_c10", "full_4"),
}
FAR = 12.0  # |theta2| beyond which a chain is not between the modes, but where one component is left without data
PER = 100_000  # steps that crossings are counted for, the paper's run


def shift(run: Run, method: str) -> float:
    """Return the true theta2 of a method's data; the true theta1 is 0."""
    node = run.config["methods"][method].get("data") or run.config["data"]
    low, high = node["means"]
    return float(high - low)


def temperature(run: Run, method: str) -> float:
    """Return the temperature that a method samples at."""
    return float(run.config["methods"][method]["schedules"]["temperature"]["temperature"])


def truth(run: Run, method: str) -> Truth:
    """Return what is known of a method's target by quadrature."""
    truths = run.cached(_truths)
    key = shift(run, method)
    if key not in truths:
        truths[key] = Truth(run.target_of(method))
    return truths[key]


def _truths(run: Run) -> dict[float, Truth]:
    return {}


def barrier(run: Run, method: str) -> float:
    """Return the drop in nats from the lower mode to the highest pass between the modes, at a method's temperature."""
    log_density, modes = truth(run, method).log_tempered(temperature(run, method)), truth(run, method).modes
    middle = shift(run, method) / 2
    # The pass is on the line of symmetry, theta2 = 0, where the components are one.
    line = np.stack([middle + np.linspace(-2, 2, 2001), np.zeros(2001)], axis=1)
    return float(log_density(modes).min() - log_density(line).max())


def cores(draws: Array, shift: float) -> npt.NDArray[np.int8]:
    """Return in which core draws (C, S, 2) are: 1 or -1 if theta2 is beyond half of that of a mode, else 0: (C, S)."""
    return np.sign(draws[..., 1]).astype(np.int8) * (np.abs(draws[..., 1]) > shift / 2)


def crossings(core: npt.NDArray[np.int8]) -> int:
    """Return how often a chain (S,) comes from one core to the other."""
    visited = core[core != 0]
    return int(np.count_nonzero(np.diff(visited)))


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    return MetricTable.by_method(run, _metrics)


def _metrics(run: Run, method: str) -> Metrics:
    summary, thin = run.methods[method], int(run.methods[method]["thin"])
    core = cores(run.draws(method), shift(run, method))
    steps = core.shape[1] * thin
    stretch = max(1, min(PER, steps) // thin)
    stretches = [row[i : i + stretch] for row in core for i in range(0, core.shape[1] - stretch + 1, stretch)]
    expected_modes = np.array(
        [[shift(run, method) * share for share in place] for place in ((0, 1), (1, -1))]
    )
    numbers: Metrics = {
        "accept_rate": summary["accept_rate"],
        "step": float(np.mean(summary["step_size_by_chain"])),
        "crossings": estimate(np.array([crossings(row) for row in core]) * PER / steps),
        "visited_most": float(max(len(np.unique(row[row != 0])) for row in core)),
        "both": float(np.mean([len(np.unique(row[row != 0])) == 2 for row in stretches])),
        "both_long": float(np.mean([len(np.unique(row[row != 0])) == 2 for row in core])),
        "far": float((np.abs(run.draws(method)[..., 1]) > FAR).mean()),
        "barrier": barrier(run, method),
        "mode_error": float(np.linalg.norm(truth(run, method).modes - expected_modes, axis=1).max()),
    }
    if method in SCATTER:
        numbers |= _distances(run, method)
    return numbers


def _distances(run: Run, method: str) -> Metrics:
    at, t = truth(run, method), temperature(run, method)
    tempered = at.stationary("tempered", t, cells=40)
    stored = at.stationary("stored", t, int(run.config["m"]), cells=40)
    if tempered is None or stored is None:
        return {}
    shares = tempered.shares(run.draws(method))
    return {
        "tv": total_variation(shares, tempered.probability),
        "tv_one": estimate(np.array([total_variation(row[None], tempered.probability) for row in shares])),
        "tv_noise": monte_carlo_distance(shares, tempered.probability),
        "tv_own": total_variation(shares, stored.probability),
        "tv_law": total_variation(stored.probability[None], tempered.probability),
    }


def scatter(run: Run) -> Figure:
    """Draws of MHBT, and the tempered log posterior (Figure 2, b and c)."""
    shown = [method for method in SCATTER if method in run.methods]
    figure, axes = panels(2 * max(1, len(shown)), columns=2, size=(3.7, 3.2), share="xy")
    x, y = np.linspace(-3.5, 4.5, 121), np.linspace(-5, 5, 151)
    places = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    for left, right, method, colour in zip(axes[::2], axes[1::2], shown, COLOURS, strict=False):
        draws = run.draws(method)[0]
        left.plot(*draws[:: max(1, len(draws) // 20_000)].T, ".", color=colour, markersize=1.5, alpha=0.15)
        logs = truth(run, method).log_tempered(temperature(run, method))(places).reshape(121, 151)
        drop, nats = (logs - logs.max()).T, np.arange(-6.0, 0.26, 0.5)
        right.contourf(x, y, drop, levels=nats, cmap=GREYS, alpha=0.6)
        right.contour(x, y, drop, levels=nats, colors="black", linewidths=0.5, linestyles="solid")
        for axis in (left, right):
            axis.plot(*truth(run, method).modes.T, "x", color="black", markersize=7, markeredgewidth=1.6)
        left.set(title=run.label(method), xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
        right.set_title("log posterior / T")
    label_edges(axes, 2, r"$\theta_1$", r"$\theta_2$")
    return finished(figure)


def traces(run: Run) -> Figure:
    """Trajectories of theta2 (Figure 2, d to f)."""
    shown = {title: pair for title, pair in PANELS.items() if pair[0] in run.methods}
    figure, axes = panels(len(shown), size=(2.8, 2.9), share="", xlabel="iteration")
    for axis, (title, (minibatch, full)) in zip(axes, shown.items(), strict=False):
        for method, chains in ((minibatch, 1), (full, 2)):
            if method not in run.methods:
                continue
            draws, thin = run.draws(method), int(run.methods[method]["thin"])
            count = min(draws.shape[1], PER // thin)
            stride = max(1, count // 2000)
            at = thin * np.arange(1, count + 1)[::stride]
            for c in range(min(chains, len(draws))):
                colour, width = (COLOURS[0], 0.5) if method == minibatch else (COLOURS[1 + c], 1.4)
                axis.plot(at, draws[c, :count:stride, 1], color=colour, linewidth=width)
        levels(axis, *truth(run, minibatch).modes[:, 1], linewidth=0.7)
        axis.set_title(title)
        few_ticks(axis)
    axes[0].set_ylabel(r"$\theta_2$")
    return finished(figure)
