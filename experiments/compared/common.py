"""What a test costs and how wrong its decisions are, on any posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.special import expit

from mhrun.build import build
from mhrun.diagnostics.grid import Estimate
from mhrun.kernels import MetropolisHastings
from mhrun.random import Streams, derive_key
from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.types import Controls, Verdict

Array = npt.NDArray[Any]
Metrics = dict[str, Estimate | float]

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


def pairs_of(run: Run, method: str) -> tuple[Array, Array]:
    """Return points (P, D) that a method drew, and points that the proposal of this run leads to from them."""
    count, draws = int(run.config["pairs"]), run.draws(method)
    late = draws[:, draws.shape[1] // 2 :]  # whatever burn-in there was
    flat = late[:, :: max(1, late.shape[1] // count)].reshape(-1, draws.shape[2])
    origins = flat[np.linspace(0, len(flat) - 1, count).astype(int)]
    node = run.config["methods"][method]
    kernel = build(node["kernel"], f"methods.{method}.kernel")
    moves = Streams(derive_key(0, "pairs"), count).at(1)
    start = run.target.prior(torch.from_numpy(origins))
    return origins, kernel.proposal.sample(start, _controls(node, count), moves).numpy()


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


def evaluations(run: Run, method: str) -> Array:
    """Return the log-likelihoods of single data evaluated by all chains up to each kept draw (S,)."""
    return run.at_draws(method, "n_lik").sum(axis=0).astype(float)


def moments_to_tell(draws: int) -> Array:
    """Return numbers of draws, evenly spaced in their logarithm, that distances are told at."""
    return np.unique(np.geomspace(min(20, draws), draws, 14).astype(int))


def of_method(run: Run, method: str, told: Tried, least_ess: float, spread: float) -> Metrics:
    """Return what the table has of a method; `spread` is its last distance."""
    noted = run.methods[method]
    decisions = noted["chains"] * (noted["warmup"] + noted["steps"])
    after = noted["likelihood_evals"] * noted["steps"] / (noted["warmup"] + noted["steps"])
    found: Metrics = {
        "size": noted["minibatch_size_mean"],
        "aside": noted["aside_evals"] / 2 / decisions,
        "per_decision": noted["likelihood_evals"] / decisions,
        "accept_rate": noted["accept_rate"],
        "wrong": told.wrong,
        "worst": told.worst,
        "bias": told.bias,
        "promised": promised(run, method),
        "distance": spread,
        "ess": least_ess,
        "ess_per_million": least_ess / after * 1e6,
    }
    return {f"{method}.{name}": number for name, number in found.items()}


COLUMNS = {
    "data": "size",
    "besides": "aside",
    "evaluations": "per_decision",
    "acceptance": "accept_rate",
    "wrong by": "wrong",
    "at most": "worst",
    "promised": "promised",
    "distance": "distance",
    "ESS": "ess",
    "ESS per million": "ess_per_million",
}


def distance_figure(run: Run, curves: dict[str, tuple[Array, Array]], label: str) -> Figure:
    """Draw each method's distance (K,) against its evaluations (K,)."""
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    for (method, (spent, distances)), (colour, marker) in zip(curves.items(), _looks(), strict=False):
        axis.plot(
            spent, distances, color=colour, marker=marker, markersize=3, linewidth=1, label=run.label(method)
        )
    axis.set(xscale="log", yscale="log", xlabel="log-likelihoods of single data evaluated", ylabel=label)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def decisions_figure(run: Run, found: Metrics, methods: list[str]) -> Figure:
    """Draw each test's wrong decisions against its evaluations per decision."""
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    for method, (colour, marker) in zip(methods, _looks(), strict=False):
        wrong = found[f"{method}.wrong"]
        assert isinstance(wrong, Estimate)
        if np.isnan(wrong.value):
            continue
        y = max(wrong.value, _FLOOR)
        size, all_of_it = (float(found[f"{method}.{name}"]) for name in ("size", "per_decision"))  # type: ignore[arg-type]
        counted = min(2 * size, all_of_it)
        axis.plot([counted, all_of_it], [y, y], color=colour, linewidth=0.8)
        axis.plot([all_of_it] * 2, [y, wrong.value + 2 * wrong.se], color=colour, linewidth=0.8)
        axis.plot(counted, y, marker, color=colour, markerfacecolor="none", markersize=6)
        axis.plot(all_of_it, y, marker, color=colour, markersize=6, label=run.label(method), linestyle="")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="log-likelihoods evaluated per decision",
        ylabel="error of the acceptance probability",
    )
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


_FLOOR = 1e-3  # below this an error is not told from chance


def efficiency_figure(run: Run, found: Metrics, methods: list[str]) -> Figure:
    """Draw each test's effective sample size per million evaluations."""
    figure, axis = plt.subplots(figsize=(6.0, 0.32 * len(methods) + 0.9))
    ordered = sorted(methods, key=lambda method: float(found[f"{method}.ess_per_million"]))  # type: ignore[arg-type]
    values = [float(found[f"{method}.ess_per_million"]) for method in ordered]  # type: ignore[arg-type]
    axis.plot(values, [run.label(method) for method in ordered], "o", color=COLOURS[0])
    axis.set(xscale="log", xlabel="effective sample size per million log-likelihoods evaluated")
    return figure


def table(run: Run, found: Metrics, methods: list[str]) -> pd.DataFrame:
    """Return the table of `COLUMNS`, a row for each method."""
    return run.by_method(found, COLUMNS).loc[[run.label(method) for method in methods]]


def _looks() -> list[tuple[str, str]]:
    return [(COLOURS[i % len(COLOURS)], _MARKERS[i % len(_MARKERS)]) for i in range(24)]
