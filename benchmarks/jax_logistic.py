"""Logistic regression in JAX: MINT as usually written, or Metropolis on all data by BlackJAX; pixels are float32.

Arguments: cores, problem (mint or metropolis), number of data.
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(int(sys.argv[1]))

import blackjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.nn import log_sigmoid  # noqa: E402
from problem_logistic import DIM, FULL_STEP_SIZE, STEP_SIZE, TEMPERATURE, M, images  # noqa: E402


def mint(x, y):
    """Return the first states of so many chains, and what moves a chain."""
    n = len(x)

    def step(theta, key):
        for_batch, for_proposal, for_accept = jax.random.split(key, 3)
        index = jax.random.randint(for_batch, (M,), 0, n)
        candidate = theta + STEP_SIZE * jax.random.normal(for_proposal, (DIM,))
        rows, signs = x[index], y[index]
        d = log_sigmoid(signs * (rows @ candidate)) - log_sigmoid(signs * (rows @ theta))
        log_ratio = n / TEMPERATURE * d.mean()
        accepted = jnp.log(jax.random.uniform(for_accept)) < log_ratio
        theta = jnp.where(accepted, candidate, theta)
        return theta, (accepted, log_ratio, (n / TEMPERATURE) ** 2 * d.var(ddof=1) / M)

    return (lambda chains: jnp.zeros((chains, DIM))), step


def metropolis(x, y):
    """Return the same of BlackJAX's random walk."""

    def log_density(theta):
        return log_sigmoid(y * (x @ theta)).sum()

    sd = jnp.full(DIM, FULL_STEP_SIZE)
    walk = blackjax.additive_step_random_walk.normal_random_walk(log_density, sd)

    def step(state, key):
        state, info = walk.step(key, state)
        return state, (info.is_accepted, info.acceptance_rate, state.logdensity)

    return (lambda chains: jax.vmap(walk.init)(jnp.zeros((chains, DIM)))), step


def main(problem: str, n: int) -> None:
    pixels, labels = images(n)
    first, step = {"mint": mint, "metropolis": metropolis}[problem](
        jnp.asarray(pixels, jnp.float32) / 255, jnp.asarray(labels, jnp.float32)
    )

    @jax.jit
    def run(states, keys):
        return jax.lax.scan(jax.vmap(step), states, keys)

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        keys = jax.random.split(jax.random.key(seed), (steps, chains))
        _, trace = jax.block_until_ready(run(first(chains), keys))
        return {"accepted": float(trace[0].mean())}

    worker.serve(work)


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[3]))
