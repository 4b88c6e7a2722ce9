"""MHminibatch as usually written in JAX: a `while_loop` in one chain's step, `vmap` over chains, `lax.scan`, `jit`.

Returns per step what our traces hold: theta, acceptance, log-ratio, its variance, minibatch size. Arguments:
cores, number of data, the file with the correction's quantiles.
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(int(sys.argv[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_mint import log_lik, log_prior  # noqa: E402
from problem_growing import SIGMA, STEP_SIZE, M, mixture, temperature  # noqa: E402


def main(n: int, table: str) -> None:
    x = jnp.asarray(mixture(n), jnp.float32)
    with np.load(table) as file:
        probabilities, points = (jnp.asarray(file[name], jnp.float32) for name in ("probabilities", "points"))
    scale = n / temperature(n)

    def step(theta, key):
        for_batch, for_proposal, for_noise, for_correction = jax.random.split(key, 4)
        candidate = theta + STEP_SIZE * jax.random.normal(for_proposal, (2,))

        def unsure(found):
            size, _one, _two, var = found
            return (var >= SIGMA**2) & (size < n)

        def read_more(found):
            size, one, two, _var = found
            rows = x[jax.random.randint(jax.random.fold_in(for_batch, size), (M,), 0, n)]
            d = log_lik(candidate, rows) - log_lik(theta, rows)
            size, one, two = size + M, one + d.sum(), two + (d * d).sum()
            return size, one, two, scale**2 * (two / size - (one / size) ** 2) / size

        size, one, _two, var = jax.lax.while_loop(unsure, read_more, (0, 0.0, 0.0, jnp.inf))
        log_ratio = scale * one / size + log_prior(candidate) - log_prior(theta)
        noise = jnp.sqrt(jnp.maximum(SIGMA**2 - var, 0)) * jax.random.normal(for_noise)
        noise += jnp.interp(jax.random.uniform(for_correction), probabilities, points)
        accepted = log_ratio + noise > 0
        theta = jnp.where(accepted, candidate, theta)
        return theta, (theta, accepted, log_ratio, var, size)

    @jax.jit
    def run(theta, keys):
        return jax.lax.scan(jax.vmap(step), theta, keys)

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        keys = jax.random.split(jax.random.key(seed), (steps, chains))
        _, trace = jax.block_until_ready(run(jnp.tile(jnp.array([0.0, 1.0]), (chains, 1)), keys))
        return {"accepted": float(trace[1].mean()), "batch": float(trace[4].mean())}

    worker.serve(work)


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3])
