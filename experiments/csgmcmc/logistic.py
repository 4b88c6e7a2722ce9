"""Table 1 of Zhang et al. (2020): effective sample sizes of cyclical samplers on Bayesian logistic regression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhrun.build import build
from mhrun.diagnostics.chains import ess, ess_of_chain
from mhrun.diagnostics.cycles import combined, equal, harmonic
from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, estimate, value
from .exact import Posterior, log_lik, posterior, signed_rows

Array = npt.NDArray[np.floating]

SETS: Mapping[str, str] = {"australian": "Australian", "german": "German", "heart": "Heart"}
SAMPLERS: Mapping[str, str] = {
    "sgld": "SGLD",
    "csgld": "cSGLD",
    "fixed_sgld": "SGLD, constant",
    "sghmc": "SGHMC",
    "csghmc": "cSGHMC",
    "fixed_sghmc": "SGHMC, constant",
}
PAPER: Mapping[str, Mapping[str, int]] = {
    "sgld": {"australian": 1676, "german": 492, "heart": 2199},
    "csgld": {"australian": 2138, "german": 978, "heart": 2541},
    "sghmc": {"australian": 1317, "german": 2007, "heart": 5000},
    "csghmc": {"australian": 4707, "german": 2436, "heart": 5000},
}
SAMPLES = 5000  # of the paper
ERRORS = 2.0  # standard errors that a pair may be short of the order


def truths(run: Run) -> dict[str, Posterior]:
    """Return the posterior of each data set."""
    return {data: posterior(run.target_of(_method_on(run, data))) for data in _sets(run)}


def methods(run: Run) -> Iterator[tuple[str, str, str]]:
    """Yield the methods that are there: name, sampler, data set."""
    for data in SETS:
        for sampler in SAMPLERS:
            if f"{sampler}_{data}" in run.methods:
                yield f"{sampler}_{data}", sampler, data


def _sets(run: Run) -> list[str]:
    return list(dict.fromkeys(data for _, _, data in methods(run)))


def _method_on(run: Run, data: str) -> str:
    return next(method for method, _, of in methods(run) if of == data)


def of_draws(draws: Array, truth: Posterior) -> tuple[Metrics, Array]:
    """Return what draws (C, S, D) are worth and how far they are off, and the median effective size by chain (C,).

    ``ess``: median over coordinates of n / (1 + 2 sum rho), a chain at a time; ``ess_least``: of the worst coordinate.
    ``mean_error``: of the mean over all chains, in posterior standard deviations, of the worst coordinate, and
    ``mean_error_rms``; ``chance``: what chance alone would make of the latter. ``variance``: over that of the
    posterior, mean over coordinates; ``variance_worst``: of the coordinate that is furthest off.
    """
    by_coordinate = ess_of_chain(draws.transpose(0, 2, 1))  # (C, D)
    middle = draws.mean(axis=(0, 1))
    off = (middle - truth.mean) / truth.sd
    variance = np.square(draws - middle).mean(axis=1) / truth.sd**2  # (C, D)
    of_all = variance.mean(axis=0)
    size = np.median(by_coordinate, axis=1)
    found: Metrics = {
        "ess": estimate(size),
        "ess_least": estimate(by_coordinate.min(axis=1)),
        "mean_error": float(np.abs(off).max()),
        "mean_error_rms": float(np.sqrt(np.mean(off**2))),
        "chance": float(np.sqrt(np.mean(of_all / by_coordinate.sum(axis=0)))),
        "variance": estimate(variance.mean(axis=1)),
        "variance_worst": float(of_all[np.abs(np.log(of_all)).argmax()]),
    }
    return found, size


def metrics(run: Run) -> Metrics:
    """Everything that a claim or a table speaks of."""
    found: Metrics = {}
    sizes: dict[str, Array] = {}
    for method, sampler, data in methods(run):
        truth, noted, draws = run.once(truths)[data], run.methods[method], run.draws(method)
        more, sizes[method] = of_draws(draws, truth)
        columns = [draws[:, :, d] for d in range(draws.shape[2])]
        per_chain = {
            f"{kind}_ess": float(np.median([ess(c, kind) for c in columns])) / len(draws)
            for kind in ("bulk", "tail")
        }
        gradients = noted["gradient_evals"] / noted["chains"]
        more |= per_chain | {
            "draws": float(draws.shape[1]),
            "gradients": float(gradients),
            "gradients_each": gradients / value(more["ess"]),
        }
        if sampler.startswith("c"):
            more |= _weighted(run, method, truth)
        found |= {f"{method}.{name}": number for name, number in more.items()}
    weights = [value(found[f"{method}.weight_most"]) for method, s, _ in methods(run) if s.startswith("c")]
    if weights:
        found["cycles.weight_most"] = float(np.mean(weights))
        found["cycles.alike"] = 1 / float(run.config["cycles"])
    return found | _pairs(found, sizes)


def _pairs(found: Metrics, sizes: Mapping[str, Array]) -> Metrics:
    """Return cyclical over traditional, by pairs of chains of one seed, and how many of the six pairs keep the order.

    A pair keeps it if the cyclical one's mean is above the other's, or below by at most two standard errors of the
    differences.
    """
    pairs: Metrics = {}
    for rival, name in (("", "order"), ("fixed_", "order_constant")):
        kept = []
        for cyclical, other in (("csgld", f"{rival}sgld"), ("csghmc", f"{rival}sghmc")):
            for data in SETS:
                one, two = f"{cyclical}_{data}", f"{other}_{data}"
                if one not in sizes or two not in sizes:
                    continue
                ratio = estimate(np.log(sizes[one] / sizes[two]))
                over = Estimate(float(np.exp(ratio.value)), float(np.exp(ratio.value) * ratio.se))
                cost = value(found[f"{one}.gradients"]) / value(found[f"{two}.gradients"])
                pairs[f"{one}.over_{other}"] = over
                pairs[f"{one}.over_{other}_per_gradient"] = Estimate(over.value / cost, over.se / cost)
                ahead = estimate(sizes[one] - sizes[two])
                kept.append(ahead.value >= -ERRORS * ahead.se)
        if kept:
            pairs[f"{name}.kept"] = float(sum(kept))
    return pairs


def cycle_of_draws(run: Run, method: str) -> npt.NDArray[np.int64]:
    """Return the cycle, from 0 on, that each kept draw is of: (S,)."""
    node, noted = run.config["methods"][method], run.methods[method]
    schedule: Any = build(node["schedules"]["step_size"], method)
    placed = schedule.over(noted["warmup"], noted["steps"])
    found: npt.NDArray[np.int64] = placed.cycle(run.draw_steps(method) + noted["warmup"])
    return found


def _weighted(run: Run, method: str, truth: Posterior) -> Metrics:
    """Return what becomes of posterior means if cycles are weighted by harmonic means, and what speaks against it.

    Errors are root mean squares over coordinates, in posterior standard deviations, of single chains.
    """
    draws, cycle = run.draws(method), cycle_of_draws(run, method)
    signed = signed_rows(run.target_of(method))
    parts = [cycle == c for c in np.unique(cycle)]
    errors: dict[str, list[float]] = {"error_draws": [], "error_equal": [], "error_weighted": []}
    told = []
    for chain in draws:
        by_cycle = [chain[part] for part in parts]
        weights = harmonic([log_lik(signed, theta) for theta in by_cycle])
        means = (
            chain.mean(axis=0),
            combined(by_cycle, equal(len(parts))),
            combined(by_cycle, weights.weights),
        )
        for name, mean in zip(errors, means, strict=True):
            errors[name].append(float(np.sqrt(np.mean(np.square((mean - truth.mean) / truth.sd)))))
        told.append(weights)
    found: Metrics = {name: estimate(np.array(of_chain)) for name, of_chain in errors.items()}
    return found | {
        "weight_most": estimate(np.array([each.weights.max() for each in told])),
        "sample_most": float(np.median([each.largest_share for each in told])),
        "weight_error": float(np.median([each.relative_error for each in told])),
        "tail": float(np.median([each.tail for each in told])),
        "evidence_off": estimate(np.array([each.log_estimate.mean() for each in told]) - truth.log_evidence),
        "doubted": float(np.mean([bool(each.doubts) for each in told])),
    }


def table1(run: Run) -> pd.DataFrame:
    """Median effective sample sizes (Table 1): the paper's beside ours.

    Of n / (1 + 2 sum rho) over coordinates, for each chain of 5000 draws; mean over chains with its standard error.
    Draws of the exploring stage of a cycle are no samples and not among them. The paper has no constant step sizes.
    """
    found = run.once(metrics)
    rows: dict[str, dict[str, Any]] = {}
    for method, sampler, data in methods(run):
        row = rows.setdefault(SAMPLERS[sampler], {})
        row[f"{SETS[data]}, paper"] = PAPER.get(sampler, {}).get(data)
        row[SETS[data]] = found[f"{method}.ess"]
    return pd.DataFrame.from_dict(rows, orient="index")


def pairs(run: Run) -> pd.DataFrame:
    """Effective sample size of a cyclical sampler over that of the traditional one.

    Geometric mean over pairs of chains of one seed, with its standard error; with a decaying step size, as the paper
    has it, and with a constant one. "Per gradient": at equal numbers of gradients,
    as a cycle explores for a quarter of its steps.
    """
    found = run.once(metrics)
    rows: dict[str, dict[str, Any]] = {}
    for sampler in ("sgld", "sghmc"):
        for data in SETS:
            method = f"c{sampler}_{data}"
            if method not in run.methods:
                continue
            rows[run.label(method)] = {
                "paper": PAPER[f"c{sampler}"][data] / PAPER[sampler][data],
                "over decaying": found.get(f"{method}.over_{sampler}"),
                "per gradient": found.get(f"{method}.over_{sampler}_per_gradient"),
                "over constant": found.get(f"{method}.over_fixed_{sampler}"),
                "per gradient, over constant": found.get(f"{method}.over_fixed_{sampler}_per_gradient"),
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def accuracy(run: Run) -> pd.DataFrame:
    """What the draws are worth, and how far they are from the posterior.

    Effective sample sizes of a chain (median over coordinates; of the worst coordinate; ArviZ's bulk and tail, all
    chains together, per chain); gradients (of one datum) for each effective draw, with burn-in and exploring stages.
    Error of the means over all chains in posterior standard deviations (worst coordinate; root mean square, and what
    chance makes of that); variance over that of the posterior (mean, and worst coordinate).
    """
    names = {
        "ESS": "ess",
        "worst": "ess_least",
        "bulk": "bulk_ess",
        "tail": "tail_ess",
        "gradients each": "gradients_each",
        "error of means": "mean_error",
        "rms": "mean_error_rms",
        "by chance": "chance",
        "variance": "variance",
        "worst variance": "variance_worst",
    }
    return run.by_method(run.once(metrics), names)


def cycles(run: Run) -> pd.DataFrame:
    """Samples of cycles put together: with equal weights, and with weights by harmonic means (equation 4).

    Error of the posterior means of a chain (root mean square over coordinates, posterior standard deviations): all
    draws alike, all cycles alike, cycles weighted. Of the weights: the largest; the share that the worst sample makes
    up of a cycle's estimate, its relative standard error and the index of the tail of 1/p (medians; from 0.5 on there
    is no variance, from 1 on no mean); the estimate of the log evidence less the true one, which in one mode is the
    same for all cycles; and the share of chains whose weights are not to be trusted.
    """
    columns = {
        "draws alike": "error_draws",
        "cycles alike": "error_equal",
        "weighted": "error_weighted",
        "largest weight": "weight_most",
        "worst sample": "sample_most",
        "relative error": "weight_error",
        "tail of 1/p": "tail",
        "log evidence off": "evidence_off",
        "not to be trusted": "doubted",
    }
    found = run.once(metrics)
    rows = {
        run.label(method): {heading: found.get(f"{method}.{name}") for heading, name in columns.items()}
        for method, sampler, _ in methods(run)
        if sampler.startswith("c")
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def sizes(run: Run) -> Figure:
    """Effective sample sizes beside the paper's, and what they cost (Table 1).

    Top: median effective sample size, mean over chains with two standard errors; crosses: the paper's. Middle: error of
    the posterior means, root mean square over coordinates, in posterior standard deviations; dashed: what step sizes
    were chosen within. Bottom: variance of the draws over that of the posterior, mean over coordinates; dashed: as it
    should be.
    """
    there = _sets(run)
    figure, axes = plt.subplots(
        3, len(there), figsize=(3.1 * len(there) + 0.6, 6.6), sharex=True, sharey="row", squeeze=False
    )
    found = run.once(metrics)
    for column, data in enumerate(there):
        shown = [sampler for sampler in SAMPLERS if f"{sampler}_{data}" in run.methods]
        for place, sampler in enumerate(shown):
            _bars(axes[:, column], place, found, f"{sampler}_{data}", PAPER.get(sampler, {}).get(data))
        axes[0][column].set(title=SETS[data], yscale="log")
        axes[1][column].axhline(0.1, color="black", linestyle="--", linewidth=0.8)
        axes[2][column].axhline(1.0, color="black", linestyle="--", linewidth=0.8)
        axes[2][column].set_xticks(range(len(shown)), [SAMPLERS[s] for s in shown], rotation=45, ha="right")
    for row in axes[1:]:  # after all is drawn: rows share their axis, and a limit that is set no longer grows
        row[0].set_ylim(bottom=0.0)
    for row, words in zip(
        axes, ("effective sample size", "error of means / sd", "variance ratio"), strict=True
    ):
        row[0].set_ylabel(words)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.align_ylabels(axes[:, 0])
    figure.tight_layout()
    if handles:  # beside the titles, where no point is
        figure.legend(handles[:1], names[:1], loc="upper right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
    return figure


def _bars(column: npt.NDArray[Any], place: int, found: Metrics, method: str, paper: int | None) -> None:
    colour = COLOURS[place % len(COLOURS)]
    names = ("ess", "mean_error_rms", "variance")
    axes: list[Axes] = list(column)
    for axis, name in zip(axes, names, strict=True):
        number = found[f"{method}.{name}"]
        error = 2 * number.se if isinstance(number, Estimate) else 0.0
        axis.errorbar(
            place, value(number), yerr=np.nan_to_num(error), fmt="o", color=colour, capsize=3, markersize=5
        )
    if paper:
        axes[0].plot(place, paper, "x", color="black", markersize=6, label="paper")


def implied(run: Run, data: str, size: float) -> float:
    """Return the variance over the posterior's that SGLD has with an effective sample size of `size`, small steps.

    Where the curvature is L, draws are as many as a L / 2 of them when independent, and minibatches heat by
    a L (n/m - 1) / 2, as the covariance of a gradient is its curvature: so the two are tied, whatever a and L are.
    """
    m, n = int(run.config["sets"][data]["m"]), run.target_of(_method_on(run, data)).n
    return 1 + (n / m - 1) * size / SAMPLES


def equal_steps(run: Run) -> bool:
    """Say whether all samplers of a data set begin at the same a_0."""
    return all(len(set(sizes.values())) == 1 for sizes in run.config["step_sizes"].values())


def _step_sizes(run: Run) -> str:
    if not equal_steps(run):
        return "Step sizes are those of logistic_ess_grid."
    sizes = ", ".join(
        f"{next(iter(s.values())):g} ({SETS[data]})" for data, s in run.config["step_sizes"].items()
    )
    return f"All samplers of a data set begin at the same a_0, ours: {sizes}."


def _how(run: Run) -> str:
    return "from the same a_0" if equal_steps(run) else "each at its best of one grid"


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found, known = run.once(metrics), run.once(truths)
    config = run.config
    sizes = " and ".join(dict.fromkeys(str(config["sets"][data]["m"]) for data in known))
    lines = [
        "The text says 5000 samples after 1000 iterations and which data. Our choices: standardised covariates, prior "
        f"N(0, 100 I), minibatches of {sizes}, {config['cycles']} cycles with exploring stages of "
        f"{config['explore']:g}, friction {config['friction']:g}, start at 0, and for SGLD and SGHMC the decay "
        "a k^-0.55 of the paper's Figure 1. " + _step_sizes(run) + " A cyclical sampler runs "
        "until it has 5000 draws of sampling stages, a quarter more steps than the others have.",
        "The posterior is known by importance sampling about its mode, worth "
        + ", ".join(f"{truth.draws:,.0f} ({SETS[data]})" for data, truth in known.items())
        + " independent draws.",
    ]
    told = [
        f"{SAMPLERS[sampler]} on {SETS[data]} {PAPER[sampler][data]:,}: {implied(run, data, PAPER[sampler][data]):.1f}"
        for sampler, data in (("sgld", "australian"), ("sgld", "german"), ("csgld", "heart"))
        if data in known
    ]
    if told and any(
        int(config["sets"][data]["m"]) < run.target_of(_method_on(run, data)).n for data in known
    ):
        lines.append(
            "Effective sample size and bias are tied: for small steps the variance is too large by the share "
            "(n/m - 1) ESS / S of S draws, whatever the step size, as the gradient's own noise heats. With these "
            f"minibatches the paper's sizes would have these variance ratios: {'; '.join(told)}. Sizes "
            "like the paper's at the posterior's own variance take larger minibatches (see logistic_ess_full); the "
            "paper says neither which it has, nor how far its draws are from the posterior."
        )
    for name, words in (("order", "decaying"), ("order_constant", "constant")):
        if f"{name}.kept" in found:
            lines.append(
                f"Against {words} step sizes, {_how(run)}, the cyclical sampler's effective size is "
                f"not below the other's in {value(found[f'{name}.kept']):.0f} of {2 * len(known)} pairs."
            )
    weighted = [method for method, sampler, _ in methods(run) if sampler.startswith("c")]
    if weighted:
        doubted = [value(found[f"{method}.doubted"]) for method in weighted]
        tails = [value(found[f"{method}.tail"]) for method in weighted]
        off = [value(found[f"{method}.evidence_off"]) for method in weighted]
        lines.append(
            "Weights of cycles by harmonic means (equation 4) estimate Z_i / prior(Theta_i), not Z_i, and are not to "
            f"be trusted in {100 * np.mean(doubted):.0f} % of chains: 1/p has tails of index "
            f"{min(tails):.2f} to {max(tails):.2f}, and log evidences come out {min(off):+.1f} to {max(off):+.1f} off. "
            "With one mode all cycles should weigh alike."
        )
    return lines
