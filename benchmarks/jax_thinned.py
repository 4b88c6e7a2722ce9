"""TunaMH as usually written in JAX: arrivals in blocks by a `while_loop`, `vmap` over chains, `lax.scan`, `jit`.

Returns per step what our traces hold: theta, acceptance, log-ratio, number of arrivals. Arguments: cores, number of
data, the file with the bounds' weights, their alias table and their centre.
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(int(sys.argv[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_mint import log_lik, log_prior  # noqa: E402
from problem import VARIANCE  # noqa: E402
from problem_growing import ARRIVALS, CHI, STEP_SIZE, mixture, temperature  # noqa: E402


def main(n: int, table: str) -> None:
    x = jnp.asarray(mixture(n), jnp.float32)
    with np.load(table) as file:
        weights, cut = (jnp.asarray(file[name], jnp.float32) for name in ("weights", "cut"))
        other = jnp.asarray(file["other"], jnp.int32)
        centre, half = float(file["centre"]), float(file["half"])
    t, sum_of_weights = temperature(n), float(weights.sum())

    def width(theta, candidate):
        one, two = (jnp.array([point[0], point[0] + point[1]]) for point in (theta, candidate))
        reach = jnp.maximum(jnp.abs(one - centre).max(), jnp.abs(two - centre).max())
        return jnp.abs(two - one).max() * jnp.maximum(reach, half) / VARIANCE

    def step(theta, key):
        for_proposal, for_number, for_data, for_accept = jax.random.split(key, 4)
        candidate = theta + STEP_SIZE * jax.random.normal(for_proposal, (2,))
        each = width(theta, candidate) / t  # a datum's bound over its weight
        total = each * sum_of_weights
        extra = CHI * total
        number = jax.random.poisson(for_number, extra * total + total)

        def more(found):
            return found[0] < number

        def read(found):
            seen, score = found
            place, coin, keep = jax.random.uniform(jax.random.fold_in(for_data, seen), (3, ARRIVALS))
            first = jnp.minimum((place * n).astype(jnp.int32), n - 1)
            index = jnp.where(coin < cut[first], first, other[first])
            rows, bound = x[index], weights[index] * each
            term = (log_lik(candidate, rows) - log_lik(theta, rows)) / t
            share = (extra * bound + 0.5 * (bound - term)) / (extra * bound + bound)
            kept = (keep < share) & (seen + jnp.arange(ARRIVALS) < number)
            score += jnp.where(kept, 2 * jnp.arctanh(term / (bound * (1 + 2 * extra))), 0.0).sum()
            return seen + ARRIVALS, score

        _, score = jax.lax.while_loop(more, read, (0, 0.0))
        log_ratio = score + (log_prior(candidate) - log_prior(theta))
        accepted = jnp.log(jax.random.uniform(for_accept)) < log_ratio
        theta = jnp.where(accepted, candidate, theta)
        return theta, (theta, accepted, log_ratio, number)

    @jax.jit
    def run(theta, keys):
        return jax.lax.scan(jax.vmap(step), theta, keys)

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        keys = jax.random.split(jax.random.key(seed), (steps, chains))
        _, trace = jax.block_until_ready(run(jnp.tile(jnp.array([0.0, 1.0]), (chains, 1)), keys))
        return {"accepted": float(trace[1].mean()), "batch": float(trace[3].mean())}

    worker.serve(work)


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3])
