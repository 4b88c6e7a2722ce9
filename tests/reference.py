"""The papers' formulas in plain Python loops, written from the papers and not from our code."""

from __future__ import annotations

import math


def normal_log_density(x: float, mean: float, variance: float) -> float:
    return -0.5 * math.log(2 * math.pi * variance) - (x - mean) ** 2 / (2 * variance)


def tied_log_lik(x: float, theta1: float, theta2: float, variance: float = 2.0) -> float:
    """log(1/2 N(x; theta1, v) + 1/2 N(x; theta1 + theta2, v)), Li & Wong 2017, section 4.1."""
    near = normal_log_density(x, theta1, variance)
    far = normal_log_density(x, theta1 + theta2, variance)
    top = max(near, far)
    return math.log(0.5) + top + math.log(math.exp(near - top) + math.exp(far - top))


def tied_log_prior(theta1: float, theta2: float) -> float:
    """theta1 ~ N(0, 10), theta2 ~ N(0, 1), without the constant."""
    return -(theta1**2) / 20 - theta2**2 / 2


def mint_shared_log_ratio(batch, theta, proposal, c, prior_power) -> float:
    """log r of Algorithm 1: c [muhat(theta') - muhat(theta)] on one minibatch, and the prior's part."""
    total = 0.0
    for x in batch:
        total += tied_log_lik(x, *proposal) - tied_log_lik(x, *theta)
    return c * total / len(batch) + prior_power * (tied_log_prior(*proposal) - tied_log_prior(*theta))


def mint_stored_log_ratio(batch_old, batch_new, theta, proposal, c, prior_power) -> float:
    """log r of section 3.2: each point on its own minibatch."""
    old = sum(tied_log_lik(x, *theta) for x in batch_old) / len(batch_old)
    new = sum(tied_log_lik(x, *proposal) for x in batch_new) / len(batch_new)
    return c * (new - old) + prior_power * (tied_log_prior(*proposal) - tied_log_prior(*theta))
