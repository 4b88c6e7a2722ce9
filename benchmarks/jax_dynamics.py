"""BlackJAX's SGLD, SGHMC and SGNHT: its diffusions in a scan over steps, vmap over chains, float32.

Arguments: cores, target (mixture or network), algorithm.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import worker

worker.pin_to(int(sys.argv[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from blackjax.sgmcmc import diffusions  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402
from problem_dynamics import CENTRES, FRICTION, NEAR, STEP, VARIANCE  # noqa: E402
from problem_network import LAYERS, M, N, images  # noqa: E402


def mixture():
    """Return a gradient with noise, and where chains begin."""
    centres = jnp.array(CENTRES)

    def log_density(theta):
        return jax.nn.logsumexp(-((theta - centres) ** 2).sum(-1) / (2 * VARIANCE))

    def gradient(theta, key):
        return jax.grad(log_density)(theta) + jax.random.normal(key, (2,))

    return gradient, lambda key: jax.random.uniform(key, (2,), minval=-4, maxval=4)


def network():
    """Return the gradient of the log-likelihood of all images from a few, and where chains begin."""
    pixels, classes = images(N)
    x, y = jnp.asarray(pixels, jnp.float32) / 255, jnp.asarray(classes)
    unravel = ravel_pytree([(jnp.zeros((i, o)), jnp.zeros(o)) for i, o in pairwise(LAYERS)])[1]

    def log_lik(theta, rows, labels):
        (one, first), (two, second) = unravel(theta)
        log_p = jax.nn.log_softmax(jax.nn.relu(rows @ one + first) @ two + second)
        return N * jnp.take_along_axis(log_p, labels[:, None], 1).mean()

    def gradient(theta, key):
        index = jax.random.randint(key, (M,), 0, N)
        return jax.grad(log_lik)(theta, x[index], y[index])

    def first(key):
        keys = jax.random.split(key, 2)
        made = [
            (jax.random.normal(k, (i, o)) * (2 / i) ** 0.5, jnp.zeros(o))
            for k, (i, o) in zip(keys, pairwise(LAYERS), strict=True)
        ]
        return ravel_pytree(made)[0]

    return gradient, first


def main(target: str, algorithm: str) -> None:
    gradient, first = {"mixture": mixture, "network": network}[target]()
    keeps, e = target == "mixture", STEP[target]
    h = e**0.5
    known = {"sgld": diffusions.overdamped_langevin}
    move = known[algorithm]() if algorithm in known else getattr(diffusions, algorithm)(FRICTION / h)

    def step(state, key):
        for_gradient, for_noise = jax.random.split(key)
        theta, momentum, xi = state
        grad = gradient(theta, for_gradient)
        if algorithm == "sgld":
            theta = move(for_noise, theta, grad, e)
        elif algorithm == "sghmc":
            theta, momentum = move(for_noise, theta, momentum, grad, h)
        else:
            theta, momentum, xi = move(for_noise, theta, momentum, xi, grad, h)
        return (theta, momentum, xi), theta if keeps else None

    @jax.jit
    def run(states, keys):
        return jax.lax.scan(jax.vmap(step), states, keys)

    def work(chains: int, steps: int, seed: int) -> worker.Found:
        begin, go = jax.random.split(jax.random.key(seed))
        theta = jax.vmap(first)(jax.random.split(begin, chains))
        states = (theta, jnp.zeros_like(theta), jnp.full(chains, FRICTION / h))
        _, trace = jax.block_until_ready(run(states, jax.random.split(go, (steps, chains))))
        if not keeps:
            return {"accepted": 1.0}

        def accepted() -> float:
            near = ((trace[::10, :, None] - jnp.array(CENTRES)) ** 2).sum(-1) < NEAR**2
            return float(near.any(-1).mean())

        return {"accepted": accepted}

    worker.serve(work)


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3])
