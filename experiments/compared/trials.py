"""How wrong the decisions of an acceptance test are: tried again and again on pairs of points of a posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit

from mhrun.build import build
from mhrun.kernels import MetropolisHastings
from mhrun.pairing.full import Full
from mhrun.pairing.stored import Stored
from mhrun.random import Streams, derive_key
from mhrun.report.metrics import Metrics, MetricTable
from mhrun.report.vocabulary import Array, Estimate, Run
from mhrun.rules.austere import Austere
from mhrun.rules.barker import Barker
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.subsampling import MHSubLhd
from mhrun.types import Controls, Verdict

MOST = 2e8  # log-likelihoods evaluated to see how wrong the decisions of a test are
_AT_ONCE = 512  # decisions


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
    node, target = run.config["methods"][method], run.target
    kernel: MetropolisHastings = build(node["kernel"], f"methods.{method}.kernel")
    if isinstance(kernel.pairing, Stored):
        return Tried(np.full(len(origins), np.nan), np.full(len(origins), np.nan), repeats)
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
    gain = target.full_log_lik(there) - target.full_log_lik(here)
    log_ratio = (contest.offset[: len(here)] + contest.scale[: len(here)] * gain / target.n).numpy()
    smooth = isinstance(kernel.rule, Barker | MHMinibatch)
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
    requested = int(run.config["repeats"])
    summary = run.methods[method]
    each = summary["likelihood_evals"] / (summary["chains"] * (summary["warmup"] + summary["steps"]))
    return max(min(requested, 100), min(requested, int(MOST / (each * pairs))))


def promised(run: Run, method: str) -> float:
    """Return the error of a decision that a test promises at most; NaN where it promises none."""
    kernel: MetropolisHastings = build(run.config["methods"][method]["kernel"], f"methods.{method}.kernel")
    if isinstance(kernel.rule, MHSubLhd):
        return kernel.rule.delta
    if isinstance(kernel.rule, Austere) and kernel.rule.design != "given" and kernel.rule.bound is not None:
        return kernel.rule.bound
    return 0.0 if isinstance(kernel.pairing, Full) else float("nan")


def of_decisions(run: Run, method: str, text: Tried) -> Metrics:
    """Return how wrong the decisions of a method are."""
    return {"wrong": text.wrong, "worst": text.worst, "bias": text.bias, "promised": promised(run, method)}


def of_all_decisions(run: Run, base: str, chosen: list[str]) -> MetricTable:
    """Return how wrong the decisions of some methods are, on pairs of points that begin where `base` draws."""
    found = MetricTable()
    for method in chosen:
        pairs = pairs_of(run, base, method)
        text = tried(run, method, *pairs, repeats_of(run, method, len(pairs[0])))
        found.add(method, of_decisions(run, method, text))
    return found
