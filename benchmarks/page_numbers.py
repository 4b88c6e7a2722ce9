"""Numbers that pages quote and that no experiment makes: ``python benchmarks/page_numbers.py``, two minutes.

1. MHminibatch's error of the acceptance probability on skewed terms (docs/algorithms/mhminibatch.md).
2. SGHMC that moves by the old momentum, on the 25 Gaussians (docs/algorithms/sghmc.md, docs/speed.md).
3. The depth of the two modes of Li & Wong's mixture at c = 31.6 (docs/algorithms/mint.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from problem_dynamics import CENTRES, FRICTION, NEAR, STEP, VARIANCE
from scipy.special import expit

from mhrun.build import build
from mhrun.cli.configuration.compose import compose_config
from mhrun.random import Draws, Streams, derive_key
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.target import Target
from mhrun.types import Contest

M, NEEDED, TOGETHER, TIMES = 50, 85, 20_000, 20
GAPS = (-2.0, -1.0, 0.0, 1.0, 2.0)


class Skewed:
    """A supply of independent terms of mean 0 and variance 1: gamma distributed, or normal."""

    def __init__(self, skewness: float, rng: np.random.Generator) -> None:
        self.n, self.replacement, self.known = 10**6, True, None
        self.n_lik_overhead = torch.zeros(TOGETHER, dtype=torch.int64)
        self._skewness, self._rng = skewness, rng

    def evaluated(self, size: Any) -> Any:
        """Return 0: there is no likelihood."""
        return torch.zeros_like(size)

    def terms(self, rows: Any, start: int, stop: int) -> Any:
        """Return new terms (R, stop - start)."""
        shape = (len(rows), stop - start)
        if self._skewness == 0:
            return torch.from_numpy(self._rng.standard_normal(shape))
        k = 4 / self._skewness**2
        return torch.from_numpy((self._rng.standard_gamma(k, shape) - k) / k**0.5)


def error(skewness: float) -> tuple[float, float]:
    """Return the largest error of the acceptance probability over five log-ratios, and its standard error."""
    rule, found = MHMinibatch(M), []
    for i, gap in enumerate(GAPS):
        supply, accepted = Skewed(skewness, np.random.default_rng(17 * i + int(skewness))), 0
        draws = Draws(Streams(derive_key(1, f"{skewness}/{i}"), TOGETHER), 0)
        one = torch.ones(TOGETHER, dtype=torch.float64)
        for step in range(TIMES):
            draws.step = step + 1
            # The variance of the log-ratio on M NEEDED / M data is what the test needs.
            verdict = rule.decide(Contest(None, (0.8 * NEEDED) ** 0.5 * one, gap * one, supply), draws)
            accepted += int(verdict.accepted.sum())
        found.append(abs(accepted / (TIMES * TOGETHER) - float(expit(gap))))
    return max(found), 0.5 / (TIMES * TOGETHER) ** 0.5


def near(moves_by_new: bool, steps: int = 20_000, chains: int = 500) -> float:
    """Return the share of SGHMC's draws within NEAR of a centre of the 25 Gaussians."""
    rng, centres, step = np.random.default_rng(1), np.array(CENTRES), STEP["mixture"]
    theta = centres[rng.integers(0, len(centres), chains)] + VARIANCE**0.5 * rng.standard_normal((chains, 2))
    momentum, seen = step**0.5 * rng.standard_normal((chains, 2)), []
    for k in range(steps):
        off = theta[:, None] - centres
        weights = np.exp(-0.5 * ((off**2).sum(-1) - (off**2).sum(-1).min(1, keepdims=True)) / VARIANCE)
        gradient = -(weights[..., None] * off).sum(1) / weights.sum(1, keepdims=True) / VARIANCE
        gradient += rng.standard_normal((chains, 2))  # its noise, as in the benchmark
        noise = rng.standard_normal((chains, 2))
        before = momentum
        momentum = (1 - FRICTION) * momentum + step * gradient + (2 * FRICTION * step) ** 0.5 * noise
        theta = theta + (momentum if moves_by_new else before)
        if k % 100 == 99 and k > steps // 10:
            seen.append((np.abs(theta[:, None] - centres) ** 2).sum(-1).min(1) < NEAR**2)
    return float(np.mean(seen))


def depth() -> float:
    """Return the log density of gmm_tied_means at its mode (0, 1) less that half way to the other; n / T = 31.6."""
    config = compose_config(["experiment=gmm_tied_means", "scale=paper"], compare=False)
    target = Target(build(config["model"], "model"), build(config["data"], "data"))
    places = torch.tensor([[0.0, 1.0], [0.5, 0.0]], dtype=torch.float64)
    mode, between = target.log_density(places, target.n / 31.6).tolist()
    return float(mode - between)


def main() -> None:
    print(f"MHminibatch, m = {M}, about {NEEDED} data needed: largest error of the acceptance probability")
    for skewness in (0, 1, 2, 4):
        print("  skewness {}: {:.4f} ± {:.4f}".format(skewness, *error(skewness)))
    exact = 1 - np.exp(-(NEAR**2) / (2 * VARIANCE))
    print(f"SGHMC on the 25 Gaussians: within {NEAR} of a centre, exact {exact:.1%}")
    print(f"  theta moves by the new momentum {near(True):.1%}, by the old {near(False):.1%}")
    print(f"gmm_tied_means at c = 31.6: the modes are {depth():.2f} nats deep")


if __name__ == "__main__":
    main()
