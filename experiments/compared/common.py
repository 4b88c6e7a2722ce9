"""What a test costs, how wrong its decisions are, and how wrong what is estimated with it, on any posterior."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.special import expit

from mhrun.build import build
from mhrun.diagnostics.chains import ess_of_chain
from mhrun.diagnostics.grid import Estimate
from mhrun.kernels import MetropolisHastings
from mhrun.random import Streams, derive_key
from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.types import Controls, Verdict

Array = npt.NDArray[Any]
Metrics = dict[str, Estimate | float]

MOST = 2e8  # log-likelihoods evaluated to see how wrong the decisions of a test are
LEVELS = (0.1, 0.01)  # of the mean square error, in units of the posterior variance
LOOKS = 14  # numbers of draws that errors are computed at
_AT_ONCE = 512  # decisions
_MARKERS = "osD^v<>PX*hd"


class Tried(NamedTuple):
    """Decisions that were tried on pairs of points (P,)."""

    exact: Array  # probability to accept, from all data
    found: Array  # share that was accepted
    repeats: int

    @property
    def wrong(self) -> Estimate:
        """The root mean square error of the acceptance probability, without what chance adds to it."""
        noise = self.found * (1 - self.found) / max(1, self.repeats - 1)
        if np.isnan(self.found).any():
            return Estimate(float("nan"), float("nan"))
        square = max(0.0, float(np.mean((self.found - self.exact) ** 2 - noise)))
        chance = np.maximum(noise, self.exact * (1 - self.exact) / self.repeats)
        off = np.maximum(0.0, (self.found - self.exact) ** 2 - chance)
        # Of the mean square, for these pairs; that others might have been chosen is not in it.
        error = float(np.sqrt(np.sum(2 * chance**2 + 4 * off * chance))) / len(noise)
        return Estimate(square**0.5, min(error**0.5, error / (2 * square**0.5)) if square else error**0.5)

    @property
    def worst(self) -> float:
        """The largest error, chance and all."""
        return float(np.abs(self.found - self.exact).max())

    @property
    def bias(self) -> Estimate:
        """The mean of found less exact, with its standard error."""
        error = np.sqrt(np.sum(self.exact * (1 - self.exact)) / self.repeats) / len(self.exact)
        return Estimate(float(np.mean(self.found - self.exact)), float(error))


def tried(run: Run, method: str, origins: Array, candidates: Array, repeats: int) -> Tried:
    """Have the acceptance test of a method decide again and again on the same pairs of points (P, D).

    NaN for a pairing that stores minibatches: those of its chain are selected by acceptance, and fresh ones would say
    nothing of it.
    """
    pairing = str(run.config["methods"][method]["kernel"]["pairing"]["_target_"])
    if pairing.endswith(".Stored"):
        return Tried(np.full(len(origins), np.nan), np.full(len(origins), np.nan), repeats)
    node, target = run.config["methods"][method], run.target
    kernel: MetropolisHastings = build(node["kernel"], f"methods.{method}.kernel")
    here, there = torch.from_numpy(origins), torch.from_numpy(candidates)
    together = max(1, min(repeats, _AT_ONCE // len(here)))
    wide = [points.repeat(together, 1) for points in (here, there)]
    draws = Streams(derive_key(int(run.config["seed"]), f"tried/{method}"), len(wide[0])).at(0)
    controls = _controls(node, len(wide[0]))
    rounds = -(-repeats // together)
    accepted = torch.zeros(len(here), dtype=torch.float64)
    for k in range(rounds):
        draws.step = 2 * k + 1
        kept = kernel.pairing.start(target, wide[0], draws)
        draws.step = 2 * k + 2
        origin = kernel.pairing.current(target, kept, draws)
        _, contest = kernel.contest(target, origin, wide[1], controls, draws)
        verdict: Verdict = kernel.rule.decide(contest, draws)
        accepted += verdict.accepted.reshape(together, -1).double().sum(0)
    target.spent()
    gain = target.full_log_lik(there) - target.full_log_lik(here)
    log_ratio = (contest.offset[: len(here)] + contest.scale[: len(here)] * gain / target.n).numpy()
    smooth = type(kernel.rule).__name__ in ("Barker", "MHMinibatch")
    exact = expit(log_ratio) if smooth else np.exp(np.minimum(0.0, log_ratio))
    return Tried(exact, (accepted / (rounds * together)).numpy(), rounds * together)


def _controls(node: dict[str, Any], chains: int) -> Controls:
    full = torch.ones(chains, dtype=torch.float64)
    step, temperature = (float(node["schedules"][key][key]) for key in ("step_size", "temperature"))
    return Controls(step * full, temperature * full, temperature * full)


def pairs_of(run: Run, exact: str, method: str) -> tuple[Array, Array]:
    """Return points (P, D) that an exact method drew, and points that the proposal of another leads to from them."""
    count, draws = int(run.config["pairs"]), run.draws(exact)
    late = draws[:, draws.shape[1] // 2 :]  # whatever burn-in there was
    flat = late[:, :: max(1, late.shape[1] // count)].reshape(-1, draws.shape[2])
    origins = flat[np.linspace(0, len(flat) - 1, count).astype(int)]
    node = run.config["methods"][method]
    kernel = build(node["kernel"], f"methods.{method}.kernel")
    moves = Streams(derive_key(0, "pairs"), count).at(1)
    start = run.target.prior(torch.from_numpy(origins))
    return origins, kernel.proposal.sample(start, _controls(node, count), moves).numpy()


def repeats_of(run: Run, method: str, pairs: int) -> int:
    """Return how often decisions on some pairs are repeated: fewer times of a test that reads much."""
    asked = int(run.config["repeats"])
    noted = run.methods[method]
    each = noted["likelihood_evals"] / (noted["chains"] * (noted["warmup"] + noted["steps"]))
    return max(min(asked, 100), min(asked, int(MOST / (each * pairs))))


def promised(run: Run, method: str) -> float:
    """Return the error of a decision that a test promises at most; NaN where it promises none."""
    rule = run.config["methods"][method]["kernel"]["rule"]
    name = str(rule["_target_"]).rpartition(".")[2]
    if name == "MHSubLhd":
        return float(rule["delta"])
    if name == "Austere" and rule.get("design") != "given":
        return float(rule["bound"])
    exact = run.config["methods"][method]["kernel"]["pairing"]["_target_"].endswith(".Full")
    return 0.0 if exact else float("nan")


class Course(NamedTuple):
    """How the estimates of a method come closer to the truth."""

    spent: Array  # (K,) log-likelihoods of single data evaluated by one chain, on average
    error: Array  # (K,) mean square error of the estimates of one chain
    se: Array  # (K,) its standard error over chains


def course(run: Run, method: str, draws: Array, truth: Array, spread: Array) -> Course:
    """Return the mean square error of running means of functions (C, S, F) against evaluations.

    Args:
        run: whose.
        method: of the run.
        draws: values of the functions at the kept draws.
        truth: their exact means (F,).
        spread: standard deviations (F,) that errors are divided by.
    """
    at = looks(draws.shape[1])
    sums = np.cumsum(draws, axis=1)[:, at - 1] / at[:, None]
    square = (((sums - truth) / spread) ** 2).mean(axis=2)
    spent = run.at_draws(method, "n_lik").astype(float).mean(axis=0)[at - 1]
    return Course(spent, square.mean(axis=0), square.std(axis=0, ddof=1) / np.sqrt(len(square)))


def looks(draws: int) -> Array:
    """Return numbers of draws, evenly spaced in their logarithm."""
    return np.unique(np.geomspace(min(20, draws), draws, LOOKS).astype(int))


def cost_of(found: Course, level: float) -> Estimate:
    """Return the evaluations at which the error first comes to a level; NaN if it never does.

    Between the looks by straight lines in logarithms. The standard error is that of an error that falls as one over
    cost.
    """
    below = np.flatnonzero(found.error <= level)
    if not len(below):
        return Estimate(float("nan"), float("nan"))
    i = int(below[0])
    noise = float(found.se[i] / found.error[i])
    if i == 0:
        return Estimate(float(found.spent[0]), float(found.spent[0]) * noise)
    x, y = np.log(found.spent[i - 1 : i + 1]), np.log(found.error[i - 1 : i + 1])
    cost = float(np.exp(x[1] + (np.log(level) - y[1]) * (x[1] - x[0]) / (y[1] - y[0])))
    return Estimate(cost, cost * noise)


def effective(draws: Array) -> Estimate:
    """Return the effective sample size of all chains for the worst of some functions (C, S, F).

    The sum over chains of what each has about its own mean; its standard error is from the differences between chains.
    """
    sizes = np.stack([ess_of_chain(draws[:, :, f]) for f in range(draws.shape[2])], axis=1)
    worst = sizes[:, int(np.argmin(sizes.sum(axis=0)))]
    count = len(worst)
    error = float(worst.std(ddof=1) * np.sqrt(count)) if count > 1 else float("nan")
    return Estimate(float(worst.sum()), error)


def tests(run: Run) -> Mapping[str, list[str]]:
    """Return the methods of each test, which differ in their step size: ``<test>_s<k>``."""
    found: dict[str, list[str]] = {}
    for method in run.methods:
        found.setdefault(re.sub(r"_s\d+$", "", method), []).append(method)
    return found


def step_of(run: Run, method: str) -> float:
    """Return the step size of a method."""
    return float(run.config["methods"][method]["schedules"]["step_size"]["step_size"])


def name_of(run: Run, method: str) -> str:
    """Return the name of a method's test for people."""
    return run.label(method).rpartition(", step ")[0] or run.label(method)


def best(run: Run, found: Metrics) -> list[str]:
    """Return the method of each test whose step size gives it most effective draws per evaluation."""
    return [
        max(methods, key=lambda m: _number(found, f"{m}.ess_per_million")) for methods in tests(run).values()
    ]


def of_method(run: Run, method: str, draws: Array) -> Metrics:
    """Return what is known of a method without deciding again; draws are of functions (C, S, F)."""
    noted = run.methods[method]
    decisions = noted["chains"] * (noted["warmup"] + noted["steps"])
    after = noted["likelihood_evals"] * noted["steps"] / (noted["warmup"] + noted["steps"])
    size = effective(draws)
    found: Metrics = {
        "step": step_of(run, method),
        "size": noted["minibatch_size_mean"],
        "aside": noted["aside_evals"] / 2 / decisions,
        "per_decision": noted["likelihood_evals"] / decisions,
        "accept_rate": noted["accept_rate"],
        "ess": size,
        "ess_per_million": Estimate(size.value / after * 1e6, size.se / after * 1e6),
        "seconds": noted["wall_s"],
        "seconds_each": noted["wall_s"] / size.value if size.value > 0 else float("nan"),
    }
    return {f"{method}.{name}": number for name, number in found.items()}


def of_decisions(run: Run, method: str, told: Tried) -> Metrics:
    """Return how wrong the decisions of a method are."""
    found: Metrics = {
        "wrong": told.wrong,
        "worst": told.worst,
        "bias": told.bias,
        "promised": promised(run, method),
    }
    return {f"{method}.{name}": number for name, number in found.items()}


def of_errors(run: Run, courses: Mapping[str, Course], chosen: list[str]) -> Metrics:
    """Return what each chosen method spends until its error is at `LEVELS`, its last error and what it spent in all."""
    found: Metrics = {}
    for method in chosen:
        each = courses[method]
        found |= {f"{method}.cost{level:g}": cost_of(each, level) for level in LEVELS}
        found[f"{method}.last"] = Estimate(float(each.error[-1]), float(each.se[-1]))
        found[f"{method}.spent"] = float(each.spent[-1])
    return found


COLUMNS = {
    "step": "step",
    **{f"to {level:g}": f"cost{level:g}" for level in LEVELS},
    "last error": "last",
    "after": "spent",
    "data": "size",
    "besides": "aside",
    "evaluations": "per_decision",
    "acceptance": "accept_rate",
    "wrong by": "wrong",
    "bias": "bias",
    "promised": "promised",
    "ESS": "ess",
    "ESS per million": "ess_per_million",
}
OF_STEPS = {
    "step": "step",
    "evaluations": "per_decision",
    "acceptance": "accept_rate",
    "ESS": "ess",
    "ESS per million": "ess_per_million",
}


def error_figure(
    run: Run, courses: Mapping[str, Course], chosen: list[str], label: str, floor: float = 0.0
) -> Figure:
    """Draw each chosen method's mean square error against its evaluations; a floor is drawn where the truth has one."""
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    for method in chosen:
        colour, marker, line = _look(run, method)
        found = courses[method]
        axis.plot(
            found.spent,
            found.error,
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=3,
            linewidth=1.2,
            label=f"{name_of(run, method)} ({step_of(run, method):g})",
        )
        axis.fill_between(
            found.spent,
            np.maximum(found.error - 2 * found.se, found.error / 4),
            found.error + 2 * found.se,
            color=colour,
            alpha=0.12,
            linewidth=0,
        )
    if floor > 0:
        axis.axhline(floor, color="grey", linewidth=3, alpha=0.4)
    axis.set(
        xscale="log", yscale="log", xlabel="log-likelihoods of single data evaluated, a chain", ylabel=label
    )
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.legend(
        fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="test (step size)", title_fontsize=7
    )
    return figure


def decisions_figure(run: Run, found: Metrics, methods: list[str]) -> Figure:
    """Draw each test's wrong decisions against its evaluations per decision."""
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    for method in methods:
        colour, marker, _line = _look(run, method)
        wrong = found[f"{method}.wrong"]
        assert isinstance(wrong, Estimate)
        if np.isnan(wrong.value):
            continue
        y = max(wrong.value, _FLOOR)
        size, all_of_it = (float(found[f"{method}.{name}"]) for name in ("size", "per_decision"))  # type: ignore[arg-type]
        counted = min(2 * size, all_of_it)
        axis.plot([counted, all_of_it], [y, y], color=colour, linewidth=0.8)
        low = max(_FLOOR, wrong.value - 2 * wrong.se)
        axis.plot([all_of_it] * 2, [low, max(y, wrong.value + 2 * wrong.se)], color=colour, linewidth=0.8)
        axis.plot(counted, y, marker, color=colour, markerfacecolor="none", markersize=6)
        axis.plot(all_of_it, y, marker, color=colour, markersize=6, label=name_of(run, method), linestyle="")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="log-likelihoods evaluated per decision",
        ylabel="error of the acceptance probability",
    )
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


_FLOOR = 1e-3  # below this an error is not told from chance


def efficiency_figure(run: Run, found: Metrics) -> Figure:
    """Draw each test's effective sample size per million evaluations against its step size."""
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    for methods in tests(run).values():
        if f"{methods[0]}.ess_per_million" not in found:
            continue
        colour, marker, line = _look(run, methods[0])
        numbers = [found[f"{method}.ess_per_million"] for method in methods]
        values = [_number(found, f"{method}.ess_per_million") for method in methods]
        axis.errorbar(
            [step_of(run, method) for method in methods],
            values,
            yerr=[2 * each.se if isinstance(each, Estimate) else float("nan") for each in numbers],
            color=colour,
            marker=marker,
            linestyle=line,
            markersize=4,
            linewidth=1.2,
            label=name_of(run, methods[0]),
        )
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="step size",
        ylabel="effective draws per million\nlog-likelihoods evaluated",
    )
    at = sorted({step_of(run, method) for methods in tests(run).values() for method in methods})
    axis.set_xticks(at, [f"{step:g}" for step in at])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def table(run: Run, found: Metrics, methods: list[str], columns: Mapping[str, str]) -> pd.DataFrame:
    """Return the table of some columns, a row for each method."""
    rows = {
        run.label(method): {heading: found[f"{method}.{name}"] for heading, name in columns.items()}
        for method in methods
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _look(run: Run, method: str) -> tuple[str, str, str]:
    """Return colour, marker and line of a method: one colour for each of eight tests, then other markers and lines."""
    place = list(tests(run)).index(re.sub(r"_s\d+$", "", method))
    return (
        COLOURS[place % len(COLOURS)],
        _MARKERS[place % len(_MARKERS)],
        "--" if place >= len(COLOURS) else "-",
    )


def _number(found: Metrics, name: str) -> float:
    each = found[name]
    number = each.value if isinstance(each, Estimate) else float(each)
    return number if np.isfinite(number) else -np.inf
