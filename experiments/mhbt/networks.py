"""Section 3.2 of Wu, Wang & Wong (2020): RSGLD, SGD and SGLD on a network, MNIST (Table 1, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..mint.network import logarithmic, looked
from ..shared.measures import Metrics, value
from .common import RSGLD_CODE

Array = npt.NDArray[np.floating]

# Table 1: errors on the test images in per cent, of 30 trainings at each learning rate.
PAPER_RATES = (0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
PAPER_MEDIANS: Mapping[str, Sequence[float]] = {
    "rsgld": (2.01, 1.82, 1.72, 1.75, 1.73, 1.75, 1.7, 1.68, 1.66, 1.71),
    "sgd": (1.81, 1.78, 1.73, 1.75, 1.75, 1.76, 1.85, 89.7, 89.7, 89.8),
    "sgld": (1.81, 1.78, 1.73, 1.72, 1.75, 1.8, 1.84, 89.7, 89.9, 89.8),
}
PAPER_SDS: Mapping[str, Sequence[float]] = {
    "rsgld": (0.03, 0.03, 0.03, 0.03, 0.04, 0.13, 0.18, 0.33, 11.4, 26.9),
    "sgd": (0.02, 0.02, 0.03, 0.03, 0.06, 16.1, 42.1, 44.4, 33.4, 24.0),
    "sgld": (0.02, 0.02, 0.03, 0.03, 0.07, 33.3, 42.1, 43.3, 26.9, 37.9),
}
GRIDS = ("rsgld", "sgd", "sgld", "sgd_lazy", "sgd_half", "rsgld_printed")  # methods with all learning rates
SINGLE = ("rmsprop", "adam")  # and with one
REVERSIBLE = ("rsgld", "rsgld_printed")
SHORT = "rsgld_printed"  # is given a few epochs only
SMALL, LARGE, TALL = 0.1, 0.4, 0.3  # learning rates that claims speak of: up to, from, from
FAILED = 50.0  # per cent: a training whose best epoch is no better has failed
BAND = (0.2, 0.4)  # that the width of backward moves is to keep acceptance in
LATE = 0.1  # share of the epochs that are the last ones


def rates(run: Run) -> list[float]:
    """Return the learning rates."""
    return [float(rate) for rate in run.config["rates"]]


def errors(run: Run, method: str) -> Array:
    """Return the errors on the test images in per cent, (R, trainings, L)."""
    found = looked(run, method, "error")
    assert found is not None
    return found.reshape(1 if method in SINGLE else len(rates(run)), -1, found.shape[1])


def passes(run: Run, method: str) -> Array:
    """Return the passes through the data up to each look (L,)."""
    steps = np.asarray(run.evaluation(method)["step"].to_numpy(), dtype=float)
    return steps * float(run.config["m"]) / float(run.config["data"]["n"])


def best(run: Run, method: str) -> Array:
    """Return the error of the best epoch of each training, (R, trainings): this selects on the test images."""
    found: Array = errors(run, method).min(axis=2)
    return found


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of; errors are those of the best epoch."""
    found: Metrics = {}
    for method in run.methods:
        if method in GRIDS:
            found |= _of_grid(run, method)
        elif method in SINGLE:
            by_training = best(run, method)[0]
            found[f"{method}.best_median"] = float(np.median(by_training))
            found[f"{method}.lowest"] = float(by_training.min())
            found[f"{method}.last_of_best"] = float(np.median(errors(run, method)[0, :, -1]))
    for method in REVERSIBLE:
        if method in run.methods:
            found |= _of_backward(run, method)
            found |= _compared(run, method)
    if {"sgd", "sgld"} <= set(run.methods):
        gaps = [
            abs(value(found[f"sgd.median_{rate:g}"]) - value(found[f"sgld.median_{rate:g}"]))
            for rate in rates(run)
            if rate <= SMALL
        ]
        found["sgld.off_sgd"] = max(gaps, default=float("nan"))
    return found


def _of_grid(run: Run, method: str) -> Metrics:
    grid, by_training = np.array(rates(run)), best(run, method)
    median, last = np.median(by_training, axis=1), np.median(errors(run, method)[:, :, -1], axis=1)
    sd = by_training.std(axis=1, ddof=1) if by_training.shape[1] > 1 else np.full(len(grid), np.nan)
    failed, lowest = (by_training > FAILED).sum(axis=1), by_training.min(axis=1)
    found: Metrics = {}
    for i, rate in enumerate(grid):
        found[f"{method}.median_{rate:g}"] = float(median[i])
        found[f"{method}.sd_{rate:g}"] = float(sd[i])
        found[f"{method}.failed_{rate:g}"] = float(failed[i])
        found[f"{method}.lowest_{rate:g}"] = float(lowest[i])
        found[f"{method}.last_{rate:g}"] = float(last[i])
    printed = PAPER_MEDIANS.get("rsgld" if method == SHORT else method)
    if printed is not None:
        off = [
            abs(median[i] - printed[PAPER_RATES.index(rate)])
            for i, rate in enumerate(grid)
            if rate <= SMALL and rate in PAPER_RATES
        ]
        found[f"{method}.off_paper"] = float(max(off, default=np.nan))
    large = median[grid >= LARGE]
    found[f"{method}.large_most"] = float(large.max()) if len(large) else float("nan")
    found[f"{method}.large_least"] = float(large.min()) if len(large) else float("nan")
    found[f"{method}.best_median"] = float(median.min())
    found[f"{method}.best_rate"] = float(grid[median.argmin()])
    found[f"{method}.lowest"] = float(lowest.min())
    found[f"{method}.lowest_rate"] = float(grid[lowest.argmin()])
    found[f"{method}.last_of_best"] = float(last[median.argmin()])
    found[f"{method}.sd_rises"] = _rank_correlation(grid, sd)
    return found


def _rank_correlation(x: Array, y: Array) -> float:
    """Return Spearman's rank correlation; NaN where one of them does not vary."""
    if len(x) < 2 or not np.isfinite(y).all() or np.ptp(y) == 0:
        return float("nan")
    return float(stats.spearmanr(x, y).statistic)


def _of_backward(run: Run, method: str) -> Metrics:
    told = told_of_moves(run, method)
    late = max(1, round(LATE * told["beta"].shape[1]))
    beta, accepted = told["beta"][:, -1], told["accepted"][:, -late:].mean(axis=1)
    gap = np.nanmean(told["forward"]) - np.nanmean(told["backward"])
    return {
        f"{method}.beta": float(np.median(beta)),
        f"{method}.beta_most": float(beta.max()),
        f"{method}.forward": float(np.nanmean(told["forward"])),
        f"{method}.backward": float(np.nanmean(told["backward"])),
        f"{method}.forward_lead": float(gap),
        f"{method}.accept_late": float(np.round(np.median(accepted), 6)),  # not 1e-116
        f"{method}.accept_rate": run.methods[method]["accept_rate"],
    }


def told_of_moves(run: Run, method: str) -> dict[str, Array]:
    """Return beta and the mean acceptance probabilities of each epoch, all and by direction, each (C, L)."""
    raw = {
        name: looked(run, method, name) for name in ("backward", "accepted", "accepted_forward", "forward")
    }
    given = {name: values for name, values in raw.items() if values is not None}
    steps = float(run.config["epoch"])
    with np.errstate(invalid="ignore", divide="ignore"):  # an epoch may have had no move of one direction
        return {
            "beta": given["backward"],
            "accepted": given["accepted"] / steps,
            "forward": given["accepted_forward"] / given["forward"],
            "backward": (given["accepted"] - given["accepted_forward"]) / (steps - given["forward"]),
        }


def _compared(run: Run, method: str) -> Metrics:
    """Compare a reading of RSGLD with SGD and SGLD."""
    grid, others = rates(run), [name for name in ("sgd", "sgld") if name in run.methods]
    if not others:
        return {}
    mine = best(run, method)
    theirs = np.stack([best(run, name) for name in others])
    median, rivals = np.median(mine, axis=1), np.median(theirs, axis=2)
    lowest, least = mine.min(axis=1), theirs.min(axis=(0, 2))
    slow = [i for i, rate in enumerate(grid) if rate <= 0.02]
    tall = [i for i, rate in enumerate(grid) if rate >= TALL]
    final = [
        float(np.median(errors(run, name)[best_rate(run, name), :, -1]))
        for name in (*others, *SINGLE)
        if name in run.methods
    ]
    mine_final = float(np.median(errors(run, method)[best_rate(run, method), :, -1]))
    return {
        # By how much RSGLD is worse than SGD at the small rates, where it is at least so.
        f"{method}.slower": min((float(median[i] - rivals[0][i]) for i in slow), default=float("nan")),
        f"{method}.over_best": float(median.min() - rivals.min()),
        f"{method}.below_at_large": float(sum(lowest[i] < least[i] for i in tall)),
        f"{method}.at_large": float(len(tall)),
        f"{method}.final_over_best": mine_final - min(final),
    }


def best_rate(run: Run, method: str) -> int:
    """Return the place of the learning rate with the lowest median of best epochs."""
    return int(np.median(best(run, method), axis=1).argmin())


# --- Tables -------------------------------------------------------------------------------------------------


def _by_rate(run: Run, name: str, printed: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    found = run.once(metrics)
    rows: dict[str, dict[str, float | None]] = {}
    for method in GRIDS:
        if method not in run.methods:
            continue
        if method in printed:
            row = dict(zip(PAPER_RATES, printed[method], strict=True))
            rows[f"{run.label(method)}, paper"] = {f"{rate:g}": row.get(rate) for rate in rates(run)}
        rows[run.label(method)] = {
            f"{rate:g}": value(found[f"{method}.{name}_{rate:g}"]) for rate in rates(run)
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def medians(run: Run) -> pd.DataFrame:
    """Medians over trainings of the error of the best epoch, in per cent, by learning rate (Table 1).

    The best epoch of the 500 is what the RSGLD code keeps; it selects on the test images.
    """
    return _by_rate(run, "median", PAPER_MEDIANS)


def spreads(run: Run) -> pd.DataFrame:
    """Standard deviations over trainings of the error of the best epoch, by learning rate (Table 1)."""
    return _by_rate(run, "sd", PAPER_SDS)


def failures(run: Run) -> pd.DataFrame:
    """Trainings that failed, by learning rate: no epoch with an error of 50 % or less.

    The paper gives no counts; its standard deviations at 0.3 to 0.5 are those of about 10, 17 and 25 of 30 for SGD.
    """
    return _by_rate(run, "failed", {})


def best_table(run: Run) -> pd.DataFrame:
    """Each method at the learning rate with its lowest median (Figure 3), and what RSGLD did.

    Median of the best epoch and of the last one; the lowest error of any training; of RSGLD acceptance in the last
    tenth of the epochs, mean acceptance probabilities of forward and of backward moves, and beta at the end.
    """
    names = {
        "learning rate": "best_rate",
        "median, best epoch": "best_median",
        "median, last epoch": "last_of_best",
        "lowest": "lowest",
        "acceptance, late": "accept_late",
        "forward": "forward",
        "backward": "backward",
        "beta": "beta",
    }
    found = run.once(metrics)
    rows = {
        run.label(method): {heading: found.get(f"{method}.{name}") for heading, name in names.items()}
        for method in (*GRIDS, *SINGLE)
        if method in run.methods
    }
    return pd.DataFrame.from_dict(rows, orient="index")


# --- Figures ------------------------------------------------------------------------------------------------


def rates_figure(run: Run) -> Figure:
    """Errors against the learning rate (Table 1, Figure 3a).

    Of the best epoch. Left: medians over trainings; crosses are the paper's. Middle: share of trainings that failed.
    Right: the lowest of all trainings. Dashed: comparators that the paper does not have.
    """
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 3.1))
    for method, colour in zip(GRIDS, COLOURS, strict=False):
        if method not in run.methods or method == SHORT:
            continue
        x, by_training = rates(run), best(run, method)
        line = "-" if method in PAPER_MEDIANS else "--"
        style = {"color": colour, "linestyle": line, "linewidth": 1.3, "marker": "o", "markersize": 3}
        axes[0].plot(x, np.median(by_training, axis=1), **style, label=run.label(method))
        axes[1].plot(x, (by_training > FAILED).mean(axis=1), **style)
        axes[2].plot(x, by_training.min(axis=1), **style)
        if method in PAPER_MEDIANS:
            axes[0].plot(PAPER_RATES, PAPER_MEDIANS[method], "x", color=colour, markersize=5, alpha=0.7)
    for axis, title in zip(
        axes, ("median error (%)", "share of failed trainings", "lowest error (%)"), strict=True
    ):
        axis.set(title=title, xlabel=r"learning rate $\epsilon$")
    axes[1].set_ylim(-0.03, 1.03)
    for axis in (axes[0], axes[2]):
        logarithmic(axis)
    figure.tight_layout()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def trajectories(run: Run) -> Figure:
    """Errors of the first training of each method against passes through the data (Figure 3b).

    At the learning rate with the method's lowest median.
    """
    figure, axis = plt.subplots(figsize=(5.4, 3.4))
    for method, colour in zip(("rsgld", "sgd", "sgld", *SINGLE), COLOURS, strict=False):
        if method in run.methods:
            place = 0 if method in SINGLE else best_rate(run, method)
            name = run.label(method) if method in SINGLE else f"{run.label(method)}, {rates(run)[place]:g}"
            axis.plot(
                passes(run, method), errors(run, method)[place, 0], color=colour, linewidth=1.2, label=name
            )
    axis.set(xlabel="passes through the data", ylabel="error on test images (%)")
    logarithmic(axis)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def backward(run: Run) -> Figure:
    """The width of backward moves and acceptance, epoch by epoch (section 3.2).

    Medians over trainings; a line for each learning rate, darker for a larger one. Top: RSGLD with the test of the
    RSGLD code; bottom: with the test as printed. Dashed: the acceptance from which on beta changes.
    """
    shown = [method for method in REVERSIBLE if method in run.methods]
    figure, axes = plt.subplots(len(shown), 3, figsize=(10.2, 2.5 * len(shown)), squeeze=False)
    for row, method in zip(axes, shown, strict=True):
        told, x = told_of_moves(run, method), passes(run, method)
        _paths(row[0], run, x, told["beta"], COLOURS[0])
        row[0].set(ylabel=r"$\beta$", title=run.label(method))
        if told["beta"].max() > 2 * told["beta"].min():
            logarithmic(row[0])
        _paths(row[1], run, x, told["accepted"], COLOURS[0])
        for level in BAND:
            row[1].axhline(level, color="black", linewidth=0.7, linestyle="--", alpha=0.5)
        row[1].set(title="acceptance")
        _paths(row[2], run, x, told["forward"], COLOURS[1], "forward")
        _paths(row[2], run, x, told["backward"], COLOURS[2], "backward")
        row[2].set(title="by direction")
        for axis in row[1:]:
            axis.set_ylim(-0.03, 1.03)
    for axis in axes[-1]:
        axis.set_xlabel("passes through the data")
    figure.tight_layout()
    figure.legend(*axes[0][2].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _paths(axis: Axes, run: Run, x: Array, values: Array, colour: str, name: str | None = None) -> None:
    grid = rates(run)
    for i, by_training in enumerate(values.reshape(len(grid), -1, values.shape[1])):
        shade, last = 0.25 + 0.75 * (i + 1) / len(grid), i == len(grid) - 1
        middle = np.median(by_training, axis=0)
        axis.plot(x, middle, color=colour, alpha=shade, linewidth=1.2, label=name if last else None)


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    config, found = run.config, run.once(metrics)
    coded = config["model"]["likelihood"] == "clipped_binary"
    n, m, c = config["data"]["n"], config["m"], config["c"]
    loss = (
        "The loss is that of the RSGLD code, no likelihood of the class: the sum over the ten outputs of y log p + "
        "(1 - y) log(1 - p), p clipped to [1e-10, 0.9999999], in float32; weights begin with sd 0.03 and biases with "
        "sd 1. The loss of the text has its own run, rsgld_mnist_softmax."
        if coded
        else "The loss is that of the text, softmax cross-entropy, and all parameters begin with sd 0.03. The loss and "
        "the starts of the RSGLD code have their own run, rsgld_mnist."
    )
    told = [
        loss,
        "RSGLD has the test of the RSGLD code: the current point gets the minibatch of the last proposal, accepted "
        "or not, and the proposal's density leaves out its factor beta^-d. With the test as printed "
        f"({run.label(SHORT)}) it does not move: {_percent(found, f'{SHORT}.accept_rate')} accepted in "
        f"{_epochs(run, SHORT)} epochs, after which it was stopped. Its claims are judged on these.",
        "With the factor left out and beta large, the log of a forward move's proposal ratio is about (A / beta)^2 / 2 "
        "times 4 |g_I|^2 - |g_J - g_I|^2, A = n sqrt(eps / 2): a step is taken where the gradient changes by less than "
        "twice its length, whatever the likelihood says, and a backward one hardly ever. Forward moves have "
        f"{_percent(found, 'rsgld.forward')} acceptance on average, backward ones {_percent(found, 'rsgld.backward')}; "
        "RSGLD is then SGD that leaves out every other step and those that overshoot, and a chain whose first steps "
        "overshoot stays where it begins. So SGD that leaves out half of its steps at random, and SGD at half the "
        "rate, stand beside it.",
        f"The noise is the printed one, sqrt(2 eps)/n, {np.sqrt(0.2) / n:.1g} per weight at 0.1: SGLD is SGD.",
        f"c_n = {c:g} and m = {m:g}: the paper's Remark 1 wants c_n below sqrt(m), and Theorem 2 d c_n^2 log(c_n) / m "
        f"small, which is {run.target.dim * c**2 * np.log(c) / m:.1e}.",
        "Each training has a start and minibatches of its own; in the RSGLD code all may share one start. RSGLD "
        "reads two minibatches a step and those of its trials besides: the table of methods has the gradients.",
        RSGLD_CODE,
    ]
    return told


def _percent(found: Metrics, name: str) -> str:
    return f"{100 * value(found.get(name, float('nan'))):.1f} %"


def _epochs(run: Run, method: str) -> str:
    return f"{run.methods[method]['steps'] / float(run.config['epoch']):g}" if method in run.methods else "no"


# --- Across values of c -------------------------------------------------------------------------------------


def sweep_metrics(runs: Sequence[Run]) -> Metrics:
    """By how much RSGLD's medians differ between values of c_n, at the learning rate where they differ most."""
    found = [run.once(metrics) for run in runs]
    spread = [
        np.ptp([value(each[f"rsgld.median_{rate:g}"]) for each in found])
        for rate in rates(runs[0])
        if all(f"rsgld.median_{rate:g}" in each for each in found)
    ]
    return {"rsgld.spread": float(max(spread, default=np.nan))}
