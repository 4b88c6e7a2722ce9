"""Table 1 of Zhang et al. (2020): effective sample sizes of cyclical samplers on Bayesian logistic regression."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mhrun.build import build
from mhrun.diagnostics.chains import ess, ess_of_chain
from mhrun.diagnostics.cycles import combined, equal, harmonic
from mhrun.report import declared
from mhrun.report.metrics import Metrics, estimate, value
from mhrun.report.plots import finished, levels, panels, points
from mhrun.report.vocabulary import Array, Estimate, Figure, Run, by_rows, styles_of

from .exact import Posterior, log_lik, posterior, signed_rows

SETS: Mapping[str, str] = {"australian": "Australian", "german": "German", "heart": "Heart"}
SAMPLERS: Mapping[str, str] = {
    "sgld": "SGLD",
    "csgld": "cSGLD",
    "fixed_sgld": "SGLD, constant",
    "sghmc": "SGHMC",
    "csghmc": "cSGHMC",
    "fixed_sghmc": "SGHMC, constant",
}
PAPER: Mapping[str, Mapping[str, int]] = declared.printed("csgmcmc.logistic")
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


def cyclical(run: Run) -> list[str]:
    """Return the methods that have cycles."""
    return [method for method, sampler, _ in methods(run) if sampler.startswith("c")]


def _sets(run: Run) -> list[str]:
    return list(dict.fromkeys(data for _, _, data in methods(run)))


def _method_on(run: Run, data: str) -> str:
    return next(method for method, _, dataset in methods(run) if dataset == data)


def of_draws(draws: Array, truth: Posterior) -> tuple[Metrics, Array]:
    """Return what draws (C, S, D) are worth and how far they are off, and the median effective size by chain (C,).

    ``ess``: median over coordinates of n / (1 + 2 sum rho), a chain at a time; ``ess_least``: of the worst coordinate.
    ``mean_error``: of the mean over all chains, in posterior standard deviations, of the worst coordinate, and
    ``mean_error_rms``; ``chance``: what chance alone would make of the latter. ``variance``: over that of the
    posterior, mean over coordinates; ``variance_worst``: of the coordinate that is furthest off.
    """
    by_coordinate = ess_of_chain(draws.transpose(0, 2, 1))  # (C, D)
    middle = draws.mean(axis=(0, 1))
    errors = (middle - truth.mean) / truth.sd
    variance = np.square(draws - middle).mean(axis=1) / truth.sd**2  # (C, D)
    pooled = variance.mean(axis=0)
    size = np.median(by_coordinate, axis=1)
    numbers: Metrics = {
        "ess": estimate(size),
        "ess_least": estimate(by_coordinate.min(axis=1)),
        "mean_error": float(np.abs(errors).max()),
        "mean_error_rms": float(np.sqrt(np.mean(errors**2))),
        "chance": float(np.sqrt(np.mean(pooled / by_coordinate.sum(axis=0)))),
        "variance": estimate(variance.mean(axis=1)),
        "variance_worst": float(pooled[np.abs(np.log(pooled)).argmax()]),
    }
    return numbers, size


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    numbers: Metrics = {}
    sizes: dict[str, Array] = {}
    for method, sampler, data in methods(run):
        truth, summary, draws = run.cached(truths)[data], run.methods[method], run.draws(method)
        of_method, sizes[method] = of_draws(draws, truth)
        columns = [draws[:, :, d] for d in range(draws.shape[2])]
        per_chain = {
            f"{kind}_ess": float(np.median([ess(c, kind) for c in columns])) / len(draws)
            for kind in ("bulk", "tail")
        }
        gradients = summary["gradient_evals"] / summary["chains"]
        of_method |= per_chain | {
            "draws": float(draws.shape[1]),
            "gradients": float(gradients),
            "gradients_each": gradients / value(of_method["ess"]),
        }
        if sampler.startswith("c"):
            of_method |= _weighted(run, method, truth)
        numbers |= {f"{method}.{name}": number for name, number in of_method.items()}
    weights = [value(numbers[f"{method}.weight_most"]) for method, s, _ in methods(run) if s.startswith("c")]
    if weights:
        numbers["cycles.weight_most"] = float(np.mean(weights))
        numbers["cycles.alike"] = 1 / float(run.config["cycles"])
    return numbers | _pairs(numbers, sizes)


def _pairs(numbers: Metrics, sizes: Mapping[str, Array]) -> Metrics:
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
                gain = Estimate(float(np.exp(ratio.value)), float(np.exp(ratio.value) * ratio.se))
                cost = value(numbers[f"{one}.gradients"]) / value(numbers[f"{two}.gradients"])
                pairs[f"{one}.over_{other}"] = gain
                pairs[f"{one}.over_{other}_per_gradient"] = Estimate(gain.value / cost, gain.se / cost)
                lead = estimate(sizes[one] - sizes[two])
                kept.append(lead.value >= -ERRORS * lead.se)
        if kept:
            pairs[f"{name}.kept"] = float(sum(kept))
    return pairs


def cycle_of_draws(run: Run, method: str) -> npt.NDArray[np.int64]:
    """Return the cycle, from 0 on, that each kept draw is of: (S,)."""
    node, summary = run.config["methods"][method], run.methods[method]
    schedule: Any = build(node["schedules"]["step_size"], method)
    placed = schedule.bind(summary["warmup"], summary["steps"])
    cycles: npt.NDArray[np.int64] = placed.cycle_of(run.draw_steps(method) + summary["warmup"])
    return cycles


def _weighted(run: Run, method: str, truth: Posterior) -> Metrics:
    """Return what becomes of posterior means if cycles are weighted by harmonic means, and what speaks against it.

    Errors are root mean squares over coordinates, in posterior standard deviations, of single chains.
    """
    draws, cycle = run.draws(method), cycle_of_draws(run, method)
    signed = signed_rows(run.target_of(method))
    parts = [cycle == c for c in np.unique(cycle)]
    errors: dict[str, list[float]] = {"error_draws": [], "error_equal": [], "error_weighted": []}
    rows = []
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
        rows.append(weights)
    numbers: Metrics = {name: estimate(np.array(of_chain)) for name, of_chain in errors.items()}
    return numbers | {
        "weight_most": estimate(np.array([row.weights.max() for row in rows])),
        "sample_most": float(np.median([row.largest_share for row in rows])),
        "weight_error": float(np.median([row.relative_error for row in rows])),
        "tail": float(np.median([row.tail for row in rows])),
        "evidence_off": estimate(np.array([row.log_estimate.mean() for row in rows]) - truth.log_evidence),
        "doubted": float(np.mean([bool(row.doubts) for row in rows])),
    }


def table1(run: Run) -> pd.DataFrame:
    """Median effective sample sizes (Table 1): the paper's beside ours."""
    numbers = run.cached(metrics)
    rows: dict[str, dict[str, Any]] = {}
    for method, sampler, data in methods(run):
        row = rows.setdefault(SAMPLERS[sampler], {})
        row[f"{SETS[data]}, paper"] = PAPER.get(sampler, {}).get(data)
        row[SETS[data]] = numbers[f"{method}.ess"]
    return by_rows(rows)


def pairs(run: Run) -> pd.DataFrame:
    """Effective sample size of a cyclical sampler over that of the traditional one."""
    numbers = run.cached(metrics)
    rows: dict[str, dict[str, Any]] = {}
    for sampler, data in itertools.product(("sgld", "sghmc"), SETS):
        method = f"c{sampler}_{data}"
        if method in run.methods:
            row: dict[str, Any] = {"paper": PAPER[f"c{sampler}"][data] / PAPER[sampler][data]}
            for rival, over, suffix in (
                (sampler, "decaying", ""),
                (f"fixed_{sampler}", "constant", ", over constant"),
            ):
                row[f"over {over}"] = numbers.get(f"{method}.over_{rival}")
                row[f"per gradient{suffix}"] = numbers.get(f"{method}.over_{rival}_per_gradient")
            rows[run.label(method)] = row
    return by_rows(rows)


def sizes(run: Run) -> Figure:
    """Effective sample sizes beside the paper's, and what they cost (Table 1)."""
    sets, numbers = _sets(run), run.cached(metrics)
    columns, looks = len(sets), styles_of(run)
    figure, axes = panels(3 * columns, columns=columns, size=(3.1, 2.2), share="x row")
    for column, data in enumerate(sets):
        column_axes = axes[column::columns]
        shown = [sampler for sampler in SAMPLERS if f"{sampler}_{data}" in run.methods]
        for axis, name in zip(column_axes, ("ess", "mean_error_rms", "variance"), strict=True):
            for place, sampler in enumerate(shown):
                method = f"{sampler}_{data}"
                number, colour = numbers[f"{method}.{name}"], looks[method]["color"]
                points(axis, [place], [number], errors=2, color=colour, capsize=3, markersize=5)
        paper = {place: PAPER[s][data] for place, s in enumerate(shown) if s in PAPER}
        column_axes[0].plot(
            list(paper), list(paper.values()), "x", color="black", markersize=6, label="paper"
        )
        column_axes[0].set(title=SETS[data], yscale="log")
        levels(column_axes[1], 0.1)
        levels(column_axes[2], 1.0)
        column_axes[2].set_xticks(range(len(shown)), [SAMPLERS[s] for s in shown], rotation=45, ha="right")
    words = ("effective sample size", "error of means / sd", "variance ratio")
    for place, word in enumerate(words):  # after all is drawn: a limit that is set no longer grows
        axes[place * columns].set_ylabel(word)
        axes[place * columns].set_ylim(bottom=0.0 if place else None)
    figure.align_ylabels(axes[::columns])
    return finished(figure, legend="right")


def implied(run: Run, data: str, size: float) -> float:
    """Return the variance over the posterior's that SGLD has with an effective sample size of `size`, small steps.

    Where the curvature is L, draws are as many as a L / 2 of them when independent, and minibatches heat by
    a L (n/m - 1) / 2, as the covariance of a gradient is its curvature: so the two are tied, whatever a and L are.
    """
    m, n = int(run.config["sets"][data]["m"]), run.target_of(_method_on(run, data)).n
    return 1 + (n / m - 1) * size / SAMPLES


def equal_steps(run: Run) -> bool:
    """Return whether all samplers of a data set begin at the same a_0."""
    return all(len(set(sizes.values())) == 1 for sizes in run.config["step_sizes"].values())


def minibatched(run: Run) -> list[str]:
    """Return the data sets whose minibatches are fewer than all data."""
    sets = run.config["sets"]
    return [d for d in _sets(run) if int(sets[d]["m"]) < run.target_of(_method_on(run, d)).n]
