"""Section 5.4 of Zhang et al. (2020): what networks that have learnt digits say of letters (Figure 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, estimate, value
from . import ensembles, weights

Array = npt.NDArray[np.floating]

OPTIMISERS = ("sgd", "sgd_momentum")
SNAPSHOTS = ("snapshot_sgd", "snapshot_sgd_momentum")
TRADITIONAL = ("sgld", "sghmc")
CYCLICAL = ("csgld", "csghmc")
EIGHT = tuple(m for family in zip(OPTIMISERS, SNAPSHOTS, TRADITIONAL, CYCLICAL, strict=True) for m in family)
READINGS: Mapping[str, str] = {"": "T = 1/n", "_t1": "T = 1"}  # ending of the samplers' names -> their noise
LEVELS = (0.1, 0.5, 1.0)  # entropies at which curves are compared
TOLD = (
    "entropy_inside",
    "entropy_outside",
    "auroc",
    "confident_outside",
    "confident_errors",
    *(f"outside_below_{level:.1f}" for level in LEVELS),
)


def readings(run: Run) -> dict[str, str]:
    """Return the readings that have a sampler here: ending of the names -> noise."""
    return {
        end: reading
        for end, reading in READINGS.items()
        if {method + end for method in (*TRADITIONAL, *CYCLICAL)} & set(run.methods)
    }


def last(run: Run, method: str, name: str) -> Array:
    """Return what the last look told of the chains (C,)."""
    return np.asarray(run.evaluation(method)[name].to_numpy()[:, -1], dtype=float)


def curve(run: Run, method: str) -> tuple[Array, Array]:
    """Return entropies (L,) and the shares of the letters that have no more (C, L), 0 and log 10 with them."""
    told = run.evaluation(method)
    levels = sorted(float(m[1]) for name in told if (m := re.fullmatch(r"outside_below_([\d.]+)", str(name))))
    shares = np.stack([told[f"outside_below_{x:.1f}"].to_numpy()[:, -1] for x in levels], axis=1)
    ends = np.zeros((len(shares), 1)), np.ones((len(shares), 1))
    return np.array([0.0, *levels, np.log(10)]), np.concatenate([ends[0], shares, ends[1]], axis=1)


def pairs(there: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the pairs of methods that Figure 4's order speaks of, the one of higher entropies first."""
    found = []
    for i, end in product(range(2), READINGS):
        cyclical, traditional = CYCLICAL[i] + end, TRADITIONAL[i] + end
        found += [(cyclical, other) for other in (OPTIMISERS[i], SNAPSHOTS[i], traditional)]
        found.append((traditional, OPTIMISERS[i]))
        found.append((traditional, SNAPSHOTS[i]))  # of which the paper says nothing clearly
    return [pair for pair in found if set(pair) <= set(there)]


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {}
    entropy: dict[str, Array] = {}
    for method in run.methods:
        entropy[method] = last(run, method, "entropy_outside")
        found |= {f"{method}.{name}": estimate(last(run, method, name)) for name in TOLD}
        found[f"{method}.error"] = estimate(last(run, method, "error_of_ensemble"))
        found[f"{method}.nll"] = estimate(last(run, method, "nll_of_ensemble"))
        found[f"{method}.error_alone"] = estimate(last(run, method, "error"))
    for one, two in pairs(run.methods):
        # No two methods share random numbers: seeds are paired in no more than their number.
        found[f"{one}.seeds_over.{two}"] = float((entropy[one] > entropy[two]).mean())
        found[f"{one}.entropy_over.{two}"] = estimate(entropy[one] - entropy[two])
        names = [f"outside_below_{level:.1f}" for level in LEVELS]
        lower = [value(found[f"{one}.{name}"]) < value(found[f"{two}.{name}"]) for name in names]
        found[f"{one}.lower_than.{two}"] = float(sum(lower))
    for end in READINGS:
        mine = [method + end for method in CYCLICAL]
        others = [*OPTIMISERS, *SNAPSHOTS, *(method + end for method in TRADITIONAL)]
        if {*mine, *others} <= set(entropy):
            lowest = min(entropy[method].mean() for method in mine)
            found[f"cyclical{end}.entropy_lead"] = float(
                lowest - max(entropy[method].mean() for method in others)
            )
        for method in TRADITIONAL:
            early, late = f"{method}_early{end}", method + end
            if {early, late} <= set(run.methods):
                differences = [last(run, name, "error_of_ensemble") for name in (early, late)]
                found[f"{early}.error_over.{late}"] = estimate(differences[0] - differences[1])
    return found | run.once(weights.metrics) | run.once(ensembles.metrics)


def uncertainty_table(run: Run) -> pd.DataFrame:
    """Errors on the digits, and how sure the ensembles are of digits and of letters (Figure 4).

    Errors and confident ones in per cent, likelihoods and entropies in nats (2.303 at most). "Alone": the last network.
    "Confident": a class with a probability above 0.9, wrong ones of the digits, any of the letters. "AUROC": the chance
    that a letter has a higher entropy than a digit. One network of the optimisers, four of Snapshot, twelve of the
    cyclical methods, twenty of SGLD and SGHMC. Means over seeds with standard errors.
    """
    columns = {
        "error": "error",
        "alone": "error_alone",
        "nll": "nll",
        "entropy, digits": "entropy_inside",
        "entropy, letters": "entropy_outside",
        "AUROC": "auroc",
        "confident, digits": "confident_errors",
        "confident, letters": "confident_outside",
    }
    return run.by_method(run.once(metrics), columns)


def below_table(run: Run) -> pd.DataFrame:
    """The share of the letters whose entropy is at most 0.1, 0.5 and 1 nats (Figure 4).

    Means over seeds with standard errors.
    """
    columns = {f"at most {level:g}": f"outside_below_{level:.1f}" for level in LEVELS}
    return run.by_method(run.once(metrics), columns)


def order_table(run: Run) -> pd.DataFrame:
    """Figure 4's order: the method of the row is said to have higher entropies than that of the column after it.

    "Over": mean entropy on the letters above the other's, nats, with a standard error over seeds. "Seeds": share of the
    seeds on which it is. "Lower at": at how many of the entropies 0.1, 0.5 and 1 its curve is below. What SGLD and
    SGHMC are beside Snapshot is not clear from the paper.
    """
    found = run.once(metrics)
    rows = {
        f"{run.label(one)} over {run.label(two)}": {
            "over": found[f"{one}.entropy_over.{two}"],
            "seeds": found[f"{one}.seeds_over.{two}"],
            "lower at": found[f"{one}.lower_than.{two}"],
        }
        for one, two in pairs(run.methods)
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def noise_table(run: Run) -> pd.DataFrame:
    """Errors of SGLD and SGHMC with noise from the first step on and after 75 % of the steps, per cent (section 5.3).

    Of ensembles of twenty networks from the last quarter. Means over seeds with standard errors.
    """
    found = run.once(metrics)
    rows = {}
    for method, (end, reading) in product(TRADITIONAL, READINGS.items()):
        early, late = f"{method}_early{end}", method + end
        if {early, late} <= set(run.methods):
            rows[f"{method.upper()}, {reading}"] = {
                "from the first step": found[f"{early}.error"],
                "after 75 %": found[f"{late}.error"],
                "difference": found[f"{early}.error_over.{late}"],
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def noise_figure(run: Run) -> Figure:
    """Test errors of SGLD and SGHMC with noise from the first step on and after 75 % of the steps (section 5.3).

    Of ensembles of twenty networks from the last quarter; means over seeds with standard errors.
    """
    found, there = run.once(metrics), readings(run)
    figure, axes = plt.subplots(1, len(there), figsize=(3.8 * len(there), 2.6), squeeze=False)
    for axis, (end, reading) in zip(axes[0], there.items(), strict=True):
        for place, (method, colour) in enumerate(zip(TRADITIONAL, COLOURS, strict=False)):
            for name, fill, words in (
                (f"{method}_early{end}", "white", "noise from the first step"),
                (method + end, colour, "noise after 75 %"),
            ):
                number = found.get(f"{name}.error")
                if isinstance(number, Estimate):
                    axis.errorbar(
                        number.value,
                        -place + (0.12 if fill == "white" else -0.12),
                        xerr=np.nan_to_num(number.se),
                        fmt="o",
                        color=colour,
                        markerfacecolor=fill,
                        capsize=2,
                        label=f"{method.upper()}, {words}",
                    )
        axis.set(xlabel="test error (%)", title=f"noise at {reading}", ylim=(-1.5, 0.5))
        axis.set_yticks([0, -1], [method.upper() for method in TRADITIONAL])
    figure.tight_layout()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def convergence_table(run: Run) -> pd.DataFrame:
    """Test error of the last network, per cent, after each quarter of the steps, and its mean training loss, nats.

    Cyclical methods and Snapshot are at the end of a cycle then. "Training loss": of the networks that are collected,
    where they are kept. Means over seeds with standard errors.
    """
    found, rows = run.once(metrics), {}
    for method in run.methods:
        told = np.asarray(run.evaluation(method)["error"].to_numpy(), dtype=float)
        row: dict[str, Estimate | float | None] = {
            f"{100 * (i + 1) // told.shape[1]} %": estimate(errors) for i, errors in enumerate(told.T)
        }
        if any(f"{other}.loss" in found for other in run.methods):
            row["training loss"] = found.get(f"{method}.loss")
        rows[run.label(method)] = row
    return pd.DataFrame.from_dict(rows, orient="index")


_FAMILIES = (OPTIMISERS, SNAPSHOTS, TRADITIONAL, CYCLICAL)
_SHADES = (COLOURS[7], COLOURS[2], COLOURS[0], COLOURS[1])


def entropy_figure(run: Run) -> Figure:
    """Empirical distribution of the predictive entropy on letters, of networks that have learnt digits (Figure 4).

    Means over seeds with standard errors; lower is better. Solid: without momentum (SGD, SGLD), dashed: with it
    (SGD-M, SGHMC). Above: the temperature of the samplers' noise, 1/n in the authors' code and 1 in the text.
    """
    there = readings(run)
    figure, axes = plt.subplots(1, len(there), figsize=(4.6 * len(there), 3.6), sharey=True, squeeze=False)
    for axis, (end, reading) in zip(axes[0], there.items(), strict=True):
        for family, colour in zip(_FAMILIES, _SHADES, strict=True):
            for method, style in zip(family, ("-", "--"), strict=True):
                name = method + end if family in (TRADITIONAL, CYCLICAL) else method
                if name in run.methods:
                    label = run.label(method) if method in run.methods else method
                    _curve(axis, *curve(run, name), colour, style, label)
        axis.set(
            xlabel="entropy on letters (nats)", title=f"noise at {reading}", xlim=(0, np.log(10)), ylim=(0, 1)
        )
    axes[0][0].set_ylabel("share of the letters")
    figure.tight_layout()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _curve(axis: Axes, x: Array, shares: Array, colour: str, style: str, label: str) -> None:
    mean = shares.mean(axis=0)
    error = shares.std(axis=0) / np.sqrt(max(1, len(shares) - 1))
    axis.plot(x, mean, style, color=colour, linewidth=1.4, label=label)
    axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    config, found = run.config, run.once(metrics)
    n, layers = config["data"]["n"], "-".join(str(units) for units in config["model"]["layers"])

    def of(name: str, digits: int = 2) -> str:
        return f"{value(found.get(name)):,.{digits}f}"

    lines = [
        "The paper says neither how wide its network is, nor its learning rate, nor how long it trains ("
        '"until convergence"), nor which letters are meant. Here: '
        f"{layers}, one Gaussian prior for weights and biases, pixels within 0 and 1, {passes(run):.0f} passes, "
        f"minibatches of {config['m']}, learning rate {config['rate']:g} ({config['rate_momentum']:g} with momentum "
        "0.9), and the recipes of section 5.3 for CIFAR.",
        "Noise of the authors' code has T = 1/n, that of the text T = 1. T = 1/n is the posterior to the power "
        f"n = {n:,}.",
        "alpha = 0.9 in the code makes SGHMC's momentum 0.1, so that it is all but SGLD.",
        "SGLD's and SGHMC's step sizes fall to a fifth at 30, 60 and 80 % of all steps, and the optimisers' too; the "
        "paper does not say how they fall.",
        f"{config['chains']} seeds. No two methods share random numbers, so that seeds are paired in name alone.",
    ]
    for end, reading in readings(run).items():
        if f"csgld{end}.within" not in found or f"csghmc{end}.within" not in found:
            continue
        lines += [
            f"{reading}: samples of a cycle of cSGLD are {of(f'csgld{end}.within')} apart at most, those of different "
            f"cycles {of(f'csgld{end}.between')} at least. Where samples of a cycle are one network, twelve are four, "
            "and cSGLD is a Snapshot ensemble with other random numbers.",
            "Clusters need not be modes. Between two trainings of cSGLD the test error rises by "
            f"{of(f'csgld{end}.rise_seeds', 1)} points on the straight line, between neighbouring cycles of one by "
            f"{of(f'csgld{end}.rise_most')} at most (cSGHMC: {of(f'csghmc{end}.rise_seeds', 1)} and "
            f"{of(f'csghmc{end}.rise_most')}). The paper's spikes are of ResNet-18 on CIFAR-100.",
            "Samples that are alike for each datum need not be for all: training losses of cSGLD differ by "
            f"{of(f'csgld{end}.loss_spread', 4)} nats for each datum and {of(f'csgld{end}.nats_spread', 0)} for all, "
            f"by {of(f'csgld{end}.nats_last', 1)} between the last two cycles. Harmonic means would give one cycle "
            f"{of(f'csgld{end}.largest_weight')} of the weight; near 1, equal weights are a choice and do not stand "
            "for eq. 4's.",
        ]
    return lines


def passes(run: Run) -> float:
    """Return the passes through the training data of a method."""
    config = run.config
    return int(config["steps"]) / (int(config["data"]["n"]) // int(config["m"]))
