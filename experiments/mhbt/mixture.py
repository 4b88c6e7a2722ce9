"""Figure 2(b) to (f) of Wu, Wang & Wong (2020): mixtures with tied means, on which MHBT travels between two modes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from mhrun.diagnostics.grid import monte_carlo_distance, total_variation
from mhrun.report.run import Run
from mhrun.report.style import COLOURS, GREYS

from ..shared.exact import Truth
from ..shared.measures import Metrics, estimate
from .common import table

Array = npt.NDArray[np.floating]

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
    known = run.once(_truths)
    key = shift(run, method)
    if key not in known:
        known[key] = Truth(run.target_of(method))
    return known[key]


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
    """Say in which core draws (C, S, 2) are: 1 or -1 if theta2 is beyond half of that of a mode, else 0: (C, S)."""
    return np.sign(draws[..., 1]).astype(np.int8) * (np.abs(draws[..., 1]) > shift / 2)


def crossings(core: npt.NDArray[np.int8]) -> int:
    """Return how often a chain (S,) comes from one core to the other."""
    visited = core[core != 0]
    return int(np.count_nonzero(np.diff(visited)))


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {}
    for method in run.methods:
        found |= {f"{method}.{name}": value for name, value in _metrics(run, method).items()}
    return found


def _metrics(run: Run, method: str) -> Metrics:
    noted, thin = run.methods[method], int(run.methods[method]["thin"])
    core = cores(run.draws(method), shift(run, method))
    steps = core.shape[1] * thin
    stretch = max(1, min(PER, steps) // thin)
    stretches = [row[i : i + stretch] for row in core for i in range(0, core.shape[1] - stretch + 1, stretch)]
    wanted = np.array([[shift(run, method) * share for share in place] for place in ((0, 1), (1, -1))])
    found: Metrics = {
        "accept_rate": noted["accept_rate"],
        "step": float(np.mean(noted["step_size_by_chain"])),
        "crossings": estimate(np.array([crossings(row) for row in core]) * PER / steps),
        "visited_most": float(max(len(np.unique(row[row != 0])) for row in core)),
        "both": float(np.mean([len(np.unique(row[row != 0])) == 2 for row in stretches])),
        "both_long": float(np.mean([len(np.unique(row[row != 0])) == 2 for row in core])),
        "far": float((np.abs(run.draws(method)[..., 1]) > FAR).mean()),
        "barrier": barrier(run, method),
        "mode_error": float(np.linalg.norm(truth(run, method).modes - wanted, axis=1).max()),
    }
    if method in SCATTER:
        found |= _distances(run, method)
    return found


def _distances(run: Run, method: str) -> Metrics:
    at, t = truth(run, method), temperature(run, method)
    tempered, own = at.law("tempered", t, cells=40), at.law("stored", t, int(run.config["m"]), cells=40)
    if tempered is None or own is None:
        return {}
    shares = tempered.shares(run.draws(method))
    return {
        "tv": total_variation(shares, tempered.probability),
        "tv_one": estimate(np.array([total_variation(row[None], tempered.probability) for row in shares])),
        "tv_noise": monte_carlo_distance(shares),
        "tv_own": total_variation(shares, own.probability),
        "tv_law": total_variation(own.probability[None], tempered.probability),
    }


def travel(run: Run) -> pd.DataFrame:
    """How the chains travel between the two modes (Figure 2, d to f).

    A crossing leads from one core to the other (theta2 beyond half of that of the one mode, and of the other): per
    100,000 steps, with its standard error over chains. "Both": the share of stretches of 100,000 steps (or of shorter
    runs) in which both cores are visited; "whole run": the share of chains that visit both in all their steps.
    "Barrier": how far the density falls between the modes at the temperature of the method, in nats, by quadrature.
    "Far off": the share of draws with |theta2| above 12.
    """
    names = {
        "barrier": "barrier",
        "crossings": "crossings",
        "both": "both",
        "both, whole run": "both_long",
        "modes visited": "visited_most",
        "far off": "far",
        "acceptance": "accept_rate",
        "step": "step",
    }
    return run.by_method(run.once(metrics), names)


def distances(run: Run) -> pd.DataFrame:
    """How far the draws are from the tempered posterior (Figure 2, b and c).

    Total variation distance of 40 x 40 cells on [-4, 4]^2, with one for the outside: of all draws; of one chain; what
    Monte Carlo error alone would show; from the law that the chain is known to have; and of that law.
    """
    columns = {
        "TV": "tv",
        "TV of one chain": "tv_one",
        "TV by chance": "tv_noise",
        "TV, own law": "tv_own",
        "TV of its own law": "tv_law",
    }
    return table(run, run.once(metrics), columns, SCATTER)


def scatter(run: Run) -> Figure:
    """Draws of MHBT, and the tempered log posterior (Figure 2, b and c).

    Left: the draws of the first chain. Right: log posterior / T by quadrature, a line for every 0.5 nats below its
    maximum; crosses: its modes. Above: theta = (0, 1), as in the example that the text cites; below: (0, 2).
    """
    shown = [method for method in SCATTER if method in run.methods]
    figure, axes = plt.subplots(
        max(1, len(shown)),
        2,
        figsize=(7.4, 3.2 * max(1, len(shown))),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    x, y = np.linspace(-3.5, 4.5, 121), np.linspace(-5, 5, 151)
    places = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    for row, method, colour in zip(axes, shown, COLOURS, strict=False):
        draws = run.draws(method)[0]
        row[0].plot(*draws[:: max(1, len(draws) // 20_000)].T, ".", color=colour, markersize=1.5, alpha=0.15)
        logs = truth(run, method).log_tempered(temperature(run, method))(places).reshape(121, 151)
        levels = np.arange(-6.0, 0.26, 0.5)
        row[1].contourf(x, y, (logs - logs.max()).T, levels=levels, cmap=GREYS, alpha=0.6)
        row[1].contour(
            x, y, (logs - logs.max()).T, levels=levels, colors="black", linewidths=0.5, linestyles="solid"
        )
        for axis in row:
            axis.plot(*truth(run, method).modes.T, "x", color="black", markersize=7, markeredgewidth=1.6)
        row[0].set(ylabel=r"$\theta_2$", title=run.label(method), xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
        row[1].set_title("log posterior / T")
    for axis in axes[-1]:
        axis.set_xlabel(r"$\theta_1$")
    figure.tight_layout()
    return figure


def traces(run: Run) -> Figure:
    """Trajectories of theta2 (Figure 2, d to f).

    Blue: the first chain of MHBT. Orange and green: two chains of the full batch at temperature 1, one begun in each
    mode. Dashed: theta2 at the two modes.
    """
    shown = {title: pair for title, pair in PANELS.items() if pair[0] in run.methods}
    figure, axes = plt.subplots(1, max(1, len(shown)), figsize=(2.8 * max(1, len(shown)), 2.9), squeeze=False)
    for axis, (title, (mine, full)) in zip(axes[0], shown.items(), strict=False):
        for method, chains in ((mine, 1), (full, 2)):
            if method not in run.methods:
                continue
            draws, thin = run.draws(method), int(run.methods[method]["thin"])
            kept = min(draws.shape[1], PER // thin)
            every = max(1, kept // 2000)
            at = thin * np.arange(1, kept + 1)[::every]
            for c in range(min(chains, len(draws))):
                colour = COLOURS[0] if method == mine else COLOURS[1 + c]
                axis.plot(
                    at, draws[c, :kept:every, 1], color=colour, linewidth=0.5 if method == mine else 1.4
                )
        for mode in truth(run, mine).modes:
            axis.axhline(mode[1], color="black", linewidth=0.7, linestyle="--")
        axis.set(title=title, xlabel="iteration")
        axis.xaxis.set_major_locator(MaxNLocator(3))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0][0].set_ylabel(r"$\theta_2$")
    figure.tight_layout()
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    dips = {
        method: barrier(run, method) for method in ("mhbt_1", "mhbt_2", "mhbt_4") if method in run.methods
    }
    lines = [
        f"{run.label(method)}: the tempered density falls by {dip:.2g} nats between its modes."
        for method, dip in dips.items()
    ]
    return [
        "The true theta of Figure 2(b) and (c) is not printed. With (0, 1), as in the example that the text cites, the "
        "tempered density at c = 20 is one long ridge; with (0, 2) two modes are visible.",
        *lines,
        "The barrier at theta2 = 4 is about c/2 nats, 10 at c = 20: at the printed acceptance of 0.3 a run of 100,000 "
        "steps of MHBT mostly stays in one mode too. It travels with a wider step (at a lower acceptance), or with "
        "c = 10 or 5, values that the text calls similar.",
        "At c = 5 chains leave the modes for long times: where |theta2| is large one component has no data, and only "
        "the prior, tempered with the likelihood, holds it.",
        "MHBT here is Algorithm 1 as printed, with stored minibatches and the prior tempered with the likelihood; its "
        "law is known, and is told apart from Monte Carlo error in the table of distances. The full batch is at "
        "temperature 1, as in the text, so that the comparison is one of temperatures.",
    ]
