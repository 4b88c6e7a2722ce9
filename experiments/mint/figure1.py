"""Figure 1 of Li & Wong (2017): a mixture of Gaussians with tied means, section 4.1."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from mhrun.diagnostics.chains import ess, rhat
from mhrun.diagnostics.grid import Estimate, chi_squared, monte_carlo_distance, total_variation
from mhrun.diagnostics.modes import hits, nearest, ratio
from mhrun.report.run import Run
from mhrun.report.style import COLOURS, GREYS

from ..shared.exact import Law, Truth

Array = npt.NDArray[np.floating]

RADIUS = 0.01  # the paper's ball about a mode
WIDE = 0.1  # the same with a hundred times the hits
_FEAT = 3.0  # nats between the modes below which a chain covers both without trying
_NO_TEMPERED = "No method of this run samples a tempered density."


def truth(run: Run) -> Truth:
    """Return the truth of a run, computed once."""
    return run.once(_truth)


def _truth(run: Run) -> Truth:
    return Truth(run.target)


def temperature(run: Run, method: str) -> float:
    """Return the temperature that a method samples at: of a ladder, that of its coldest rung."""
    schedules = run.config["methods"][method]["schedules"]
    said = schedules.get("temperature", {}).get("temperature", 1.0)
    return float(said[0] if isinstance(said, list) else said)


def is_tempered(run: Run, method: str) -> bool:
    """Say whether a method samples the tempered density, where the modes are connected."""
    return temperature(run, method) > 1


def own_law(run: Run, method: str) -> Law | None:
    """Return the law that a method's chain has, where it is known."""
    kernel = run.config["methods"][method]["kernel"]
    rule = kernel.get("rule", {}).get("_target_", "")
    pairing = kernel.get("pairing", {}).get("_target_", "")
    if (m := stored(run, method)) is not None and rule.endswith((".Metropolis", ".Barker")):
        return truth(run).law("stored", temperature(run, method), m)
    if pairing.endswith(".Full") and rule.endswith((".Metropolis", ".Barker")):
        return truth(run).law("tempered", temperature(run, method))
    return None


def stored(run: Run, method: str) -> int | None:
    """Return the size of the minibatches that a method's chain stores, or None if it stores none."""
    pairing = run.config["methods"][method]["kernel"].get("pairing", {})
    return int(pairing["m"]) if pairing.get("_target_", "").endswith(".Stored") else None


def metrics(run: Run) -> dict[str, Estimate | float]:
    """Everything of this experiment that a claim or a table speaks of."""
    found: dict[str, Estimate | float] = {}
    for method in run.methods:
        found |= {f"{method}.{name}": value for name, value in _metrics(run, method).items()}
    if "mint_stored" in run.methods and (m := stored(run, "mint_stored")) is not None:
        t = temperature(run, "mint_stored")
        laws = truth(run).law("stored", t, m, cells=40), truth(run).law("tempered", t, cells=40)
        if laws[0] is not None and laws[1] is not None:
            found["law.tv_stored_tempered"] = total_variation(laws[0].probability[None], laws[1].probability)
    found["law.posterior_ratio"] = _posterior_ratio(run, 1.0)
    found["law.tempered_ratio"] = _posterior_ratio(run, _hottest(run))
    return found


def _metrics(run: Run, method: str) -> dict[str, Estimate | float]:
    """The metrics of one method; what has no meaning for it is left out."""
    draws, modes, tempered = run.draws(method), truth(run).modes, is_tempered(run, method)
    # A chain that has left the numbers, or jumps about the plane, is in no mode, though it may look frozen.
    lost = run.methods[method]["diverging"] > 0 or not np.isfinite(draws).all()
    visited = [len(np.unique(row)) for row in nearest(draws, modes)]
    found: dict[str, Estimate | float] = {
        "ess": float(np.min([ess(draws[:, :, d]) for d in range(2)])),
        "rhat": float(np.max([rhat(draws[:, :, d]) for d in range(2)])),
        "modes_visited_most": float("nan") if lost else float(max(visited)),
        "upper_share": _mean_and_error((draws[:, :, 1] > 0).mean(axis=1)),
    }
    if run.methods[method]["n_accept_tests"]:
        found["accept_rate"] = run.methods[method]["accept_rate"]
    reached = hitting_steps(draws, run.draw_steps(method), modes, RADIUS)
    found["hit_share"] = float(np.isfinite(reached).mean())
    found["hit_both"] = _mean_and_error(reached)
    if tempered:
        for name, radius in (("mode_ratio", RADIUS), ("mode_ratio_wide", WIDE)):
            found[name] = ratio(*(hits(draws, mode, radius).sum(axis=1) for mode in modes))
    if (law := truth(run).law("tempered", temperature(run, method))) is not None:
        shares = law.shares(draws)
        found["tv"] = total_variation(shares, law.probability)
        found["tv_noise"] = monte_carlo_distance(shares)
        found["tv_single_chain"] = float(np.mean([total_variation(r[None], law.probability) for r in shares]))
        if tempered:
            found["chi2"] = chi_squared(shares, law.probability)
    if (own := own_law(run, method)) is not None:
        shares = own.shares(draws)
        found["tv_own"] = total_variation(shares, own.probability)
        if tempered:
            found["chi2_own"] = chi_squared(shares, own.probability)
    return found


def hitting_steps(draws: Array, steps: npt.NDArray[np.int64], modes: Array, radius: float) -> Array:
    """Return the step at which each chain has first been within `radius` of every mode, NaN where it never is: (C,).

    Of the kept draws (C, S, 2), which were drawn at `steps` (S,).
    """
    inside = np.stack([hits(draws, mode, radius) for mode in modes])  # (M, C, S)
    first = np.where(inside.any(axis=2), steps[inside.argmax(axis=2)], np.nan)
    last: Array = first.max(axis=0)
    return last


def distances(run: Run) -> pd.DataFrame:
    """How far each sampler is from its density, by quadrature.

    TV is the total variation distance between the histogram of all draws and the exact cell probabilities
    (40 x 40 cells on [-4, 4]^2, or 30 x 30 about each mode where the density is two spikes, as the posterior
    is); beside it, what Monte Carlo error alone would show, from the spread over chains. TV of one chain
    tells whether a chain alone finds the density. Chi-squared is estimated without bias from pairs of chains.
    "Own law" is the law that the chain is known to have; for the shared minibatch there is none.
    """
    found = run.once(metrics)
    rows = {}
    for method in run.methods:

        def get(name: str, method: str = method) -> Estimate | float | None:
            return found.get(f"{method}.{name}")

        rows[run.label(method)] = {
            "density": "tempered" if is_tempered(run, method) else "posterior",
            "TV": get("tv"),
            "TV by chance": get("tv_noise"),
            "TV of one chain": get("tv_single_chain"),
            "chi-squared": get("chi2"),
            "TV, own law": get("tv_own"),
            "chi-squared, own law": get("chi2_own"),
            "ESS": get("ess"),
            "R-hat": get("rhat"),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def modes(run: Run) -> pd.DataFrame:
    """What each sampler says of the two modes.

    The ratio of the draws within 0.01 (the paper's radius) and within 0.1 of the two modes, as a ratio of
    summed counts with a jackknife error over chains; the share of draws with theta2 > 0; the most
    modes that any one chain visited; the share of chains that have been within 0.01 of both modes, and the mean
    iterations until then, if all have.
    """
    found = run.once(metrics)
    names = {
        "mode ratio, radius 0.01": "mode_ratio",
        "mode ratio, radius 0.1": "mode_ratio_wide",
        "share with theta2 > 0": "upper_share",
        "modes visited by one chain": "modes_visited_most",
        "chains that hit both": "hit_share",
        "iterations until both are hit": "hit_both",
        "acceptance": "accept_rate",
    }
    return run.by_method(found, names)


def density(run: Run) -> Figure | str:
    """Draws over the exact tempered density (Figure 1, left).

    Grey: the exact density by quadrature. Coloured lines: the histogram of all draws, at the same levels;
    dots: some of the draws. Crosses: the two modes of the posterior.
    """
    shown = [method for method in run.methods if is_tempered(run, method)]
    if not shown:
        return _NO_TEMPERED
    figure, axes = plt.subplots(1, len(shown), figsize=(3.3 * len(shown), 3.3), squeeze=False)
    for axis, method, colour in zip(axes[0], shown, cycle(COLOURS), strict=False):
        draws = run.draws(method)
        spikes = _law_over(axis, run, method, colour)
        some = draws.reshape(-1, 2)[:: max(1, draws.size // 2 // 2000)]
        axis.plot(*some.T, ".", color=colour, markersize=1.5, alpha=0.35, markeredgewidth=0)
        axis.plot(*truth(run).modes.T, "x", color="black", markersize=5)
        axis.set(title=run.label(method), xlabel=r"$\theta_1$")
        if not spikes:
            axis.set(xlim=(-3.2, 3.2), ylim=(-4, 4))
    axes[0][0].set_ylabel(r"$\theta_2$")
    figure.tight_layout()
    return figure


def _law_over(axis: Axes, run: Run, method: str, colour: str) -> bool:
    """Draw the density and the histogram of the draws; say whether the density is two spikes, each drawn near."""
    t = temperature(run, method)
    law = truth(run).law("tempered", t)
    if law is None:
        return False
    spikes = len(law.grids) > 1
    if not spikes:
        law = truth(run).law("tempered", t, cells=80) or law
    exact, seen = (law.maps(p) for p in (law.probability, law.shares(run.draws(method)).mean(axis=0)))
    levels = max(values.max() for _, _, values in exact) * np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.9])
    shades = GREYS(np.linspace(0.15, 0.6, len(levels)))
    for x, y, values in exact:
        axis.contourf(x, y, values.T, levels=[*levels, 2 * levels[-1]], colors=shades)
    for x, y, values in seen:
        if values.max() > levels[0]:  # else there is no line to draw
            axis.contour(x, y, values.T, levels=levels, colors=colour, linewidths=0.9)
    if spikes:
        edges = np.array([[[g.x[0], g.y[0]], [g.x[-1], g.y[-1]]] for g in law.grids])
        low, high = edges.min(axis=(0, 1)), edges.max(axis=(0, 1))
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    return spikes


def mode_ratio(run: Run) -> Figure | str:
    """The estimated ratio of the two modes against iterations (Figure 1, right).

    The count of draws within 0.01 of (0, 1) over that of (1, -1), summed over the chains, with one
    standard error; thin: within 0.1. Dashed: the true ratio of the tempered density.
    """
    shown = [method for method in run.methods if is_tempered(run, method)]
    if not shown:
        return _NO_TEMPERED
    figure, axes = plt.subplots(1, len(shown), figsize=(3.3 * len(shown), 3.0), sharey=True, squeeze=False)
    for axis, method, colour in zip(axes[0], shown, cycle(COLOURS), strict=False):
        draws, at = run.draws(method), run.draw_steps(method)
        count = draws.shape[1]
        first = min(max(100, count // 200), max(1, count // 4))  # a short run begins early
        ends = np.unique(np.geomspace(first, count, 24).astype(int))
        for radius, width in ((WIDE, 0.8), (RADIUS, 1.6)):
            counts = [_counts_until(hits(draws, mode, radius), ends) for mode in truth(run).modes]
            seen = [ratio(one, two) for one, two in zip(counts[0].T, counts[1].T, strict=True)]
            value, se = np.array(seen).T
            bold = radius == RADIUS
            style = {"color": colour, "linewidth": width, "alpha": 1 if bold else 0.55}
            axis.plot(at[ends - 1], value, label=f"radius {radius:g}", **style)
            if bold:
                axis.errorbar(at[ends - 1], value, se, color=colour, linewidth=0, elinewidth=1, capsize=1.5)
        true = _posterior_ratio(run, temperature(run, method))
        axis.axhline(true, color="black", linestyle="--", linewidth=1)
        # The limits are said, not found: a short run may have no draw near a mode, and so no ratio.
        axis.set(xscale="log", xlabel="iterations per chain", title=run.label(method), ylim=(0, 2.5))
        axis.set_xlim(0.9 * at[ends[0] - 1], 1.1 * at[ends[-1] - 1])
        if ends[-1] < 30 * ends[0]:  # too short a stretch for powers of ten
            axis.set_xticks([], minor=True)
            axis.set_xticks(at[ends[[0, -1]] - 1], [f"{step:,}" for step in at[ends[[0, -1]] - 1]])
    chains = {run.methods[method]["chains"] for method in shown}
    each = f" ({chains.pop()} chains)" if len(chains) == 1 and chains != {1} else ""
    axes[0][0].set_ylabel(f"ratio of the modes{each}")
    axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def one_mode(run: Run) -> Figure | str:
    """Every sampler of the posterior at temperature 1 stays where it began.

    theta2 against iterations, one line per chain; chains begin in turn at (0, 1) and at (1, -1).
    MINT beside them, at its own temperature.
    """
    cold = [method for method in run.methods if not is_tempered(run, method)]
    if not cold:
        return "No method of this run samples the posterior at temperature 1."
    shown = [method for method in run.methods if method == "mint" and method not in cold] + cold
    figure, axes = plt.subplots(1, len(shown), figsize=(2.6 * len(shown), 2.8), sharey=True, squeeze=False)
    for axis, method in zip(axes[0], shown, strict=True):
        draws = run.draws(method)
        every = max(1, draws.shape[1] // 400)
        steps = run.draw_steps(method)[::every]
        for c in range(len(draws)) if method in cold else range(1):
            colour = COLOURS[c % 2] if method in cold else COLOURS[0]
            axis.plot(steps, draws[c, ::every, 1], color=colour, linewidth=0.6, alpha=0.7)
        axis.set(title=run.label(method), xlabel="iteration", ylim=(-4.5, 4.5))
        axis.xaxis.set_major_locator(MaxNLocator(3))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0][0].set_ylabel(r"$\theta_2$")
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    lines = _of_heat(run) if _hottest(run) > 1 else []
    if {"mint", "mint_stored"} & set(run.methods):
        lines.append(
            "MINT's algorithm as printed scores both points on one fresh minibatch (`mint`); its derivation in "
            "section 3.2 keeps the current point's minibatch (`mint_stored`). They are two chains. The stored one "
            "has a known law, about exp(c mu + (c sigma)^2 (1 - (m-1)/(n-1)) / 2m) and here computed with all "
            "cumulants; the shared one has none in closed form: minibatch noise in the log-ratio makes it a little "
            "flatter than the tempered density."
        )
    if isinstance(hit := found.get("mint.hit_both"), Estimate):
        lines.append(
            "Figure 1's caption speaks of the average hitting time; its text and its dashed line are the ratio of the "
            "modes, which is drawn here. A chain of MINT has been within 0.01 of both modes after "
            f"{hit.value:,.0f} iterations on average."
            if np.isfinite(hit.value)
            else "Not every chain of MINT came within 0.01 of both modes."
        )
    lines += [
        f"The printed ratio 1.00 is that of the likelihood, which is the same at both modes. The prior is not: "
        f"the posterior's ratio at T = 1 is {found['law.posterior_ratio']:.4f}, and the tempered density's, which is "
        f"what is sampled, {found['law.tempered_ratio']:.6f} (temper={run.target.temper}).",
        "Full-batch likelihood evaluations are counted as the algorithm makes them, n for each step; they were "
        "computed from some hundred weighted nodes, exact to rounding (`mhrun.models.compressed`).",
    ]
    noisy = [m for m in run.methods if run.methods[m].get("log_ratio_noise_sd")]
    if noisy:
        spread = ", ".join(f"{run.methods[m]['log_ratio_noise_sd']:.2f} for {run.label(m)}" for m in noisy)
        lines.append(
            f"Standard deviation of the log-ratio from minibatch noise, root mean square over steps: {spread}."
        )
    return lines


def _of_heat(run: Run) -> list[str]:
    """What the highest temperature of a run makes of the density."""
    hottest, dip = _hottest(run), _dip(run)
    lines = [
        f"The tempered density is worth c = n/T = {run.target.n / hottest:.4g} data. Between the two modes it dips "
        f"by {dip:.2g} nats"
        + (
            " only: that is hot, so that covering both modes is no feat at this setting; "
            "a sweep over lam shows where it becomes one."
            if dip < _FEAT
            else "."
        )
    ]
    law = truth(run).law("tempered", hottest)
    if law is None:
        lines.append("It does not end within reach of the quadrature, so that no distance from it is told.")
    elif law.probability[-1] > 0.001:
        lines.append(
            f"{law.probability[-1]:.1%} of it lies outside [-4, 4]^2, most of that far out: where one component "
            "has all the data, only the prior holds the other, and at this temperature hardly does. Chains as "
            "short as these need not come there, and their distance from it is then at least that."
        )
    return lines


def _hottest(run: Run) -> float:
    return max(temperature(run, method) for method in run.methods)


def _dip(run: Run) -> float:
    """Return the drop in nats from the lower mode to the highest pass between the modes."""
    log_density = truth(run).log_tempered(_hottest(run))
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


def _mean_and_error(by_chain: Array) -> Estimate:
    chains = len(by_chain)
    return Estimate(
        float(by_chain.mean()), float(by_chain.std(ddof=1) / np.sqrt(chains)) if chains > 1 else float("nan")
    )
