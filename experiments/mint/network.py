"""Section 4.3 and appendix C of Li & Wong (2017): MINT and CMINT on a network, MNIST (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, estimate, value

Array = npt.NDArray[np.floating]

# What the paper predicts with: the current parameters, the mean of all so far, or the mean of the probabilities.
CURRENT, MEAN, ENSEMBLE = "", "_of_mean", "_of_ensemble"
ESTIMATES: Mapping[str, str] = {
    "sgd": CURRENT,
    "sgd_momentum": CURRENT,
    "sgld": ENSEMBLE,
    "sghmc": ENSEMBLE,
    "mint": MEAN,
    "cmint": ENSEMBLE,
    "mint_noq": MEAN,
    "cmint_noq": ENSEMBLE,
    "mint_moving": MEAN,
    "cmint_moving": ENSEMBLE,
    "rmsprop": CURRENT,
    "adam": CURRENT,
    "adagrad": CURRENT,
}
RIVALS = ("sgd", "sgd_momentum", "sgld", "sghmc")
READINGS: Mapping[str, tuple[str, str]] = {  # MINT and CMINT, by what is read into the paper's one sentence
    "densities in the test": ("mint", "cmint"),
    "no densities": ("mint_noq", "cmint_noq"),
    "no densities, fresh minibatches": ("mint_moving", "cmint_moving"),
}


def readings(run: Run) -> dict[str, tuple[str, str]]:
    """Return the readings of which this run has MINT or CMINT; one without methods if it has none of any."""
    found = {name: pair for name, pair in READINGS.items() if set(pair) & set(run.methods)}
    return found or {"without MINT": ("", "")}


def looked(run: Run, method: str, name: str) -> Array | None:
    """Return what was told of each chain at each look (C, L), or None if it was not told of this method."""
    told = run.evaluation(method)
    return np.asarray(told[name].to_numpy(), dtype=float) if name in told else None


def epochs(run: Run, method: str) -> Array:
    """Return the passes through the data up to each look (L,)."""
    told = np.asarray(run.evaluation(method)["step"].to_numpy(), dtype=float)
    return (told if told.ndim == 1 else told[0]) / float(run.config["epoch"])


def errors(run: Run, method: str) -> Array:
    """Return the errors on the test images in per cent, by the estimate that the paper uses: (C, L)."""
    found = looked(run, method, f"error{ESTIMATES[method]}")
    assert found is not None
    return found


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {}
    there = [method for method in ESTIMATES if method in run.methods]
    final = {method: errors(run, method)[:, -1] for method in there}
    for method in there:
        found[f"{method}.final"] = estimate(final[method])
        for number in ("error", "nll"):
            for kind in (CURRENT, MEAN, ENSEMBLE):
                values = looked(run, method, number + kind)
                if values is not None:
                    found[f"{method}.{number}{kind}"] = estimate(values[:, -1])
        if run.methods[method]["n_accept_tests"]:
            found[f"{method}.accept_rate"] = run.methods[method]["accept_rate"]
    if {"sghmc", "sgd_momentum"} <= set(there):
        found["sghmc.over.sgd_momentum"] = estimate(final["sghmc"] - final["sgd_momentum"])
    for mint, cmint in READINGS.values():
        for method in (mint, cmint):
            for other in (*RIVALS, mint):
                if method != other and {method, other} <= set(there):
                    # No two methods share random numbers: chains are paired in no more than their number.
                    found[f"{method}.over.{other}"] = estimate(final[method] - final[other])
        if cmint in there:
            ends = round_ends(run, cmint)
            found[f"{cmint}.end_least"] = float(ends.mean(axis=0).min())
            found[f"{cmint}.end_last"] = estimate(ends[:, -1])
        others = [found[f"{cmint}.over.{other}"] for other in (*RIVALS, mint) if {cmint, other} <= set(there)]
        if len(others) == len(RIVALS) + 1:
            found[f"{cmint}.over_best"] = max(others, key=value)
    return found


def round_ends(run: Run, method: str) -> Array:
    """Return the acceptance in the last epoch of each round of CMINT, (C, rounds)."""
    accepted = looked(run, method, "accepted_rate")
    assert accepted is not None
    length = round(run.config["cycle"] / run.config["epoch"])
    return accepted[:, length - 1 :: length]


def error_table(run: Run) -> pd.DataFrame:
    """Errors on the test images at the end (Figure 3), in per cent, and mean negative log-likelihoods in nats.

    Means over trainings with standard errors. "Figure 3": by the estimate that the paper uses, the current parameters
    of the optimisers, the posterior predictive of SGLD and SGHMC, the mean of all parameters of MINT, the ensemble of
    the snapshots of CMINT. Beside it all estimates: SGLD, SGHMC and MINT collect after each epoch, CMINT after each
    round.
    """
    found = run.once(metrics)
    columns = {
        "Figure 3": "final",
        "current": "error",
        "mean of parameters": "error_of_mean",
        "ensemble": "error_of_ensemble",
        "nll, current": "nll",
        "nll, mean": "nll_of_mean",
        "nll, ensemble": "nll_of_ensemble",
        "acceptance": "accept_rate",
    }
    rows = {
        run.label(method): {heading: found.get(f"{method}.{name}") for heading, name in columns.items()}
        for method in ESTIMATES
        if method in run.methods
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def differences(run: Run) -> pd.DataFrame:
    """By how many percentage points MINT and CMINT are off the others (Figure 3); below zero they are better.

    In each reading. Means over trainings with standard errors.
    """
    found = run.once(metrics)
    mine = [method for pair in READINGS.values() for method in pair if method in run.methods]
    rows = {
        run.label(other): {run.label(method): found.get(f"{method}.over.{other}") for method in mine}
        for other in (*RIVALS, *(mint for mint, _ in READINGS.values()))
        if any(f"{method}.over.{other}" in found for method in mine)
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def rounds(run: Run) -> pd.DataFrame:
    """Acceptance in the last epoch of each round of CMINT (section 4.3).

    Means over trainings with standard errors.
    """
    rows = {}
    for _, method in READINGS.values():
        if method in run.methods:
            ends = round_ends(run, method)
            rows[run.label(method)] = {f"round {i}": estimate(end) for i, end in enumerate(ends.T, 1)}
    return pd.DataFrame.from_dict(rows, orient="index")


def error_figure(run: Run) -> Figure:
    """Errors on the test images against passes through the data (Figure 3).

    Means over trainings, with one standard error, by the estimate that the paper uses; dashed: CMINT at the end. A
    panel for each reading of MINT: its proposal densities enter the test, with the noise of the tempered target; they
    do not, with SGLD's noise; they do not, with noise sqrt(2 eta) / n and a fresh minibatch for each point.
    """
    there = readings(run)
    figure, grid = plt.subplots(
        1, len(there), figsize=(0.8 + 3.9 * len(there), 3.4), sharey=True, squeeze=False
    )
    axes = grid[0]
    for axis, (reading, (mint, cmint)) in zip(axes, there.items(), strict=True):
        for method, colour in zip((*RIVALS, mint), COLOURS, strict=False):
            if method in run.methods:
                curve(axis, run, method, colour)
        if cmint in run.methods:
            level = float(errors(run, cmint)[:, -1].mean())
            axis.axhline(level, color=COLOURS[5], linestyle="--", linewidth=1.2)
        axis.set(xlabel="passes through the data", title=reading)
        logarithmic(axis)
    axes[0].set_ylabel("error on test images (%)")
    names = [*(run.label(method) for method in RIVALS if method in run.methods), "MINT", "CMINT"]
    figure.tight_layout()
    figure.legend(axes[0].get_lines(), names, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def logarithmic(axis: Axes) -> None:
    """Make the upright axis logarithmic, with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(NullLocator())


def curve(axis: Axes, run: Run, method: str, colour: str) -> None:
    """Draw a method's mean error over trainings against passes through the data, with one standard error."""
    by_chain, x = errors(run, method), epochs(run, method)
    there = np.isfinite(by_chain).all(axis=0)  # an ensemble has no member for a while
    by_chain, x = by_chain[:, there], x[there]
    mean = by_chain.mean(axis=0)
    error = by_chain.std(axis=0) / np.sqrt(max(1, len(by_chain) - 1))
    axis.plot(x, mean, color=colour, linewidth=1.2)
    axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def rounds_figure(run: Run) -> Figure:
    """Acceptance and step size over the rounds of CMINT, and errors of its parameters and of its ensemble.

    Means over trainings, by epoch. Learning rates on the mean log-likelihood; dotted: where rounds end.
    """
    there = readings(run)
    size = 0.8 + 4.4 * len(there), 5.6
    figure, axes = plt.subplots(3, len(there), figsize=size, sharex=True, sharey="row", squeeze=False)
    length = round(run.config["cycle"] / run.config["epoch"])
    for column, (reading, (_, method)) in zip(axes.T, there.items(), strict=True):
        if method not in run.methods:
            continue
        x = epochs(run, method)
        for axis, names in zip(
            column, (("accepted_rate",), ("step_size",), ("error", "error_of_ensemble")), strict=True
        ):
            for name, colour in zip(names, COLOURS, strict=False):
                values = looked(run, method, name)
                assert values is not None
                if name == "step_size":
                    values = values * run.config["data"]["n"]
                label = {"error": "current", "error_of_ensemble": "ensemble"}.get(name)
                axis.plot(x, values.mean(axis=0), color=colour, linewidth=1.2, label=label)
            for end in range(length, round(x[-1]), length):
                axis.axvline(end, color="grey", linestyle=":", linewidth=0.8)
        column[0].set(title=f"CMINT, {reading}", ylim=(-0.03, 1.03))
        column[2].set_xlabel("passes through the data")
        for axis in column[1:]:
            logarithmic(axis)
    for axis, name in zip(axes[:, 0], ("acceptance", "learning rate", "test error (%)"), strict=True):
        axis.set_ylabel(name)
    if axes[2][-1].get_legend_handles_labels()[0]:
        axes[2][-1].legend()
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found, n = run.once(metrics), run.config["data"]["n"]
    worth = n / float(run.config["temperature"])
    there = readings(run)
    told = [
        "The paper prints neither the noise of MINT's Langevin proposal, nor whether its densities enter the test, nor "
        "whether the two points share a minibatch. Three readings are judged, each by claims of its own: densities in "
        "the test, with noise sqrt(2 eta / c) (mint_network); no densities, with SGLD's noise sqrt(2 eta / n) "
        "(mint_network); no densities, noise sqrt(2 eta) / n and a fresh minibatch for each point, as in equation 5 of "
        "Wu, Wang & Wong (2020) (mint_network_moving).",
    ]
    if {"mint", "cmint"} & set(run.methods):
        told.append(
            f"At T = n / m^0.99 the data count for c = {worth:.0f}, the network has {run.target.dim:,} parameters and "
            "the prior is flat. A Metropolis-Hastings chain with that target is far from where the data are fitted, "
            f"and drifts: its parameters miss {_number(found, 'mint.error')} % at the end, their mean "
            f"{_number(found, 'mint.error_of_mean')} %, the mean of their probabilities "
            f"{_number(found, 'mint.error_of_ensemble')} %. With both points on one minibatch and the densities in the "
            "test, SGLD's noise is never accepted."
        )
    if {"mint_noq", "cmint_noq"} & set(run.methods):
        told.append(
            "Without densities and with both points on one minibatch, SGLD's noise is accepted from the first step on: "
            "MINT is then SGLD with a flat prior."
        )
    if {"mint_moving", "cmint_moving"} & set(run.methods):
        told.append(
            "With a fresh minibatch for each point the test compares two noisy losses. It accepts about half of the "
            "moves at first and nearly all once the training loss is small. It is no Metropolis-Hastings test of a "
            "stated target: no stationary distribution is known."
        )
    told += [
        f"Acceptance of CMINT in the last epoch of its last round, {reading}: {_number(found, f'{cmint}.end_last', 3)}."
        for reading, (_, cmint) in there.items()
        if cmint in run.methods
    ]
    told += [
        "A round begins at twice the step that the one before ended with: ten falls to 0.9 and a doubling make it "
        f"{2 * 0.9**10:.2f} of the step of the round before. The paper does not say where the first begins; here it "
        "is MINT's, 0.22.",
        "Weights begin as He et al. (2015) have them, biases at 0, pixels are within 0 and 1; the optimisers read the "
        "data in passes, the samplers at random. SGHMC's friction, 0.01, is that of the code of Chen, Fox & Guestrin "
        "(2014). In the Gibbs step the shape is 2 + (number of parameters) / 2, as the prior asks for; the paper "
        "leaves it at 2.",
    ]
    chains, images = run.config["chains"], run.config["evaluation"]["data"]["n"]
    share = value(found["sgd.final"]) / 100 if "sgd.final" in found else float("nan")
    told.append(
        f"{chains} training{'s' * (chains != 1)} of each method, with random numbers of its own; the paper does not "
        "say how many it had. Standard errors are of trainings; that of an error rate by the choice of the "
        f"{images:,} test images is {100 * np.sqrt(share * (1 - share) / images):.2f} percentage points for SGD, less "
        "for differences, as all methods have the same images."
    )
    return told


def _number(found: Metrics, name: str, digits: int = 1) -> str:
    number: Estimate | float = found.get(name, float("nan"))
    return f"{value(number):.{digits}f}"
