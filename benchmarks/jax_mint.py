"""The same work as usually written in JAX: one chain's step, `vmap` over chains, `lax.scan` over steps, `jit`.

Returns per step what our traces hold: theta, acceptance, log-ratio and its variance. Argument: cores.
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(int(sys.argv[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from problem import PRIOR_VARIANCES, STEP_SIZE, VARIANCE, M, temperature  # noqa: E402


def log_prior(theta):
    return -0.5 * (theta[0] ** 2 / PRIOR_VARIANCES[0] + theta[1] ** 2 / PRIOR_VARIANCES[1])


def log_lik(theta, x):
    near = -0.5 * (x - theta[0]) ** 2 / VARIANCE
    far = -0.5 * (x - theta[0] - theta[1]) ** 2 / VARIANCE
    return jnp.logaddexp(near, far)


def main(n: int) -> None:
    rng = np.random.default_rng(0)
    means = rng.integers(0, 2, n)
    x = jnp.asarray(means + np.sqrt(VARIANCE) * rng.standard_normal(n), jnp.float32)
    t = temperature(n)

    def step(theta, key):
        for_batch, for_proposal, for_accept = jax.random.split(key, 3)
        index = jax.random.randint(for_batch, (M,), 0, n)
        candidate = theta + STEP_SIZE * jax.random.normal(for_proposal, (2,))
        rows = x[index]
        d = log_lik(candidate, rows) - log_lik(theta, rows)
        log_ratio = n / t * d.mean() + (log_prior(candidate) - log_prior(theta)) / t
        accepted = jnp.log(jax.random.uniform(for_accept)) < log_ratio
        theta = jnp.where(accepted, candidate, theta)
        return theta, (theta, accepted, log_ratio, (n / t) ** 2 * d.var(ddof=1) / M)

    @jax.jit
    def run(theta, keys):
        return jax.lax.scan(jax.vmap(step), theta, keys)

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        keys = jax.random.split(jax.random.key(seed), (steps, chains))
        _, trace = jax.block_until_ready(run(jnp.tile(jnp.array([0.0, 1.0]), (chains, 1)), keys))
        return {"accepted": float(trace[1].mean())}

    worker.serve(work)


if __name__ == "__main__":
    main(int(sys.argv[2]))
