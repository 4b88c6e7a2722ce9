"""Decisions of MHminibatch and of Barker's rule, again and again, on terms whose distribution is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from mhrun.random import Draws, Streams, derive_key
from mhrun.report.vocabulary import Estimate, Run
from mhrun.rules.barker import Barker
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.types import Contest, Difference

AT_ONCE = 20_000  # decisions
NEEDED = 2.0  # first minibatches that MHminibatch needs until the variance of its estimate is 1
BALANCED = (1.0, 2.0, 3.0)  # log-ratios that detailed balance is checked at


class _Exponential:
    """A supply of independent exponential terms of mean 0 and variance 1."""

    def __init__(self, chains: int, seed: int) -> None:
        self.n = 10**6  # as good as no end for minibatches of some hundreds
        self.replacement = True  # independent terms have no finite population
        self.n_lik_overhead = torch.zeros(chains, dtype=torch.int64)
        self.known: Tensor | None = None
        self._rng = np.random.default_rng(seed)

    def terms(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Return new terms (R, stop - start)."""
        return torch.from_numpy(self._rng.standard_exponential((len(rows), stop - start)) - 1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return 0 and 1."""
        return torch.zeros(len(self.n_lik_overhead)).double(), torch.ones(len(self.n_lik_overhead)).double()

    def evaluated(self, size: Tensor) -> Tensor:
        """Return 0 (C,): there is no likelihood."""
        return torch.zeros_like(size)

    def largest(self) -> Tensor:
        """Return infinity."""
        return torch.full((len(self.n_lik_overhead),), torch.inf, dtype=torch.float64)


def decided(run: Run) -> dict[str, dict[int, Estimate]]:
    """Return the largest error of the acceptance probability of MHminibatch over three log-ratios, for each rule and m.

    The rule itself decides, again and again, on exponential terms of which 2 m are needed on average, so that the
    second look decides half of the time.
    """
    return {
        name: {int(m): _decided(run, dict(options), int(m)) for m in run.config["firsts"]}
        for name, options in run.config["rules"].items()
    }


def _decided(run: Run, options: dict[str, Any], m: int) -> Estimate:
    rule, count = MHMinibatch(m, **options), int(run.config["decisions"])
    errors = []
    for i, gap in enumerate((-1.0, 0.0, 1.0)):
        accepted, done = 0, 0
        draws = Draws(Streams(derive_key(int(run.config["seed"]), f"lemmas/{m}/{i}"), min(AT_ONCE, count)), 0)
        while done < count:
            chains = min(AT_ONCE, count)
            draws.step = done // chains + 1
            full = torch.ones(chains, dtype=torch.float64)
            supply = _Exponential(chains, hash((m, i, done)) % 2**32)
            contest = Contest(None, np.sqrt(NEEDED * m) * full, gap * full, supply)
            accepted += int(rule.decide(contest, draws).accepted.sum())
            done += chains
        rate, right = accepted / done, float(expit(gap))
        errors.append(Estimate(abs(rate - right), float(np.sqrt(right * (1 - right) / done))))
    return max(errors, key=lambda number: number.value)


def barker(run: Run) -> tuple[Estimate, float]:
    """Return how often Barker's rule accepts at log-ratio 0, and how far it is from detailed balance.

    The second: the largest of |a(s) - exp(s) a(-s)| over its standard error.
    """
    count = 20 * int(run.config["decisions"])
    draws = Draws(Streams(derive_key(int(run.config["seed"]), "lemmas/barker"), count), 1)

    def share(log_ratio: float, step: int) -> float:
        draws.step = step
        zero, one = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
        contest = Contest(Difference(log_ratio * one, zero, one.long(), zero), one, zero)
        return float(Barker().decide(contest, draws).accepted.double().mean())

    half, worst = share(0.0, 1), 0.0
    for k, s in enumerate(BALANCED):
        up, down = share(s, 2 * k + 2), share(-s, 2 * k + 3)
        a = expit(s)
        error = np.sqrt((a * (1 - a)) * (1 + np.exp(2 * s)) / count)
        worst = max(worst, abs(up - np.exp(s) * down) / error)
    return Estimate(half, 0.5 / np.sqrt(count)), float(worst)
