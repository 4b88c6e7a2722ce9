"""MINT with a Langevin proposal on a network in JAX, as usually written: vmap over chains, scan over steps, float32.

Arguments: cores, number of data.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import worker

worker.pin_to(int(sys.argv[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402
from problem_network import LAYERS, RATE, C, M, images  # noqa: E402


def main(n: int) -> None:
    pixels, classes = images(n)
    x, y = jnp.asarray(pixels, jnp.float32) / 255, jnp.asarray(classes)
    shapes = [(jnp.zeros((inputs, outputs)), jnp.zeros(outputs)) for inputs, outputs in pairwise(LAYERS)]
    unravel = ravel_pytree(shapes)[1]
    spread = (2 * RATE / C) ** 0.5

    def mean_log_lik(theta, rows, labels):
        (one, first), (two, second) = unravel(theta)
        outputs = jax.nn.relu(rows @ one + first) @ two + second
        log_p = jax.nn.log_softmax(outputs)
        terms = jnp.take_along_axis(log_p, labels[:, None], 1)[:, 0]
        return terms.mean(), terms

    scored = jax.value_and_grad(mean_log_lik, has_aux=True)

    def step(theta, key):
        for_batch, for_proposal, for_accept = jax.random.split(key, 3)
        index = jax.random.randint(for_batch, (M,), 0, n)
        rows, labels = x[index], y[index]
        (mean, terms), grad = scored(theta, rows, labels)
        z = jax.random.normal(for_proposal, theta.shape)
        candidate = theta + RATE * grad + spread * z
        (there, found), back = scored(candidate, rows, labels)
        gap = theta - candidate - RATE * back
        log_ratio = C * (there - mean) + 0.5 * (z @ z) - 0.5 * (gap @ gap) / spread**2
        accepted = jnp.log(jax.random.uniform(for_accept)) < log_ratio
        noise = C**2 * (found - terms).var(ddof=1) / M
        return jnp.where(accepted, candidate, theta), (accepted, log_ratio, noise)

    def first(key):
        parts = jax.random.split(key, len(shapes))
        made = [
            (jax.random.normal(k, w.shape) * (2 / len(w)) ** 0.5, b)
            for k, (w, b) in zip(parts, shapes, strict=True)
        ]
        return ravel_pytree(made)[0]

    @jax.jit
    def run(states, keys):
        return jax.lax.scan(jax.vmap(step), states, keys)

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        begin, go = jax.random.split(jax.random.key(seed))
        states = jax.vmap(first)(jax.random.split(begin, chains))
        keys = jax.random.split(go, (steps, chains))
        _, trace = jax.block_until_ready(run(states, keys))
        return {"accepted": float(trace[0].mean())}

    worker.serve(work)


if __name__ == "__main__":
    main(int(sys.argv[2]))
