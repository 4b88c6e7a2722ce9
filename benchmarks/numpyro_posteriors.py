"""NUTS of NumPyro on the ten posteriors, each written as a NumPyro model, in float64 on one core.

Argument: cores. A request has the name of the posterior, an .npz of its data, an .npz to write its draws to, the
numbers of warm-up steps, steps and chains, and a seed. The answer has seconds of CPU time of tracing and compilation,
and of sampling, warm-up included. NUTS has NumPyro's default settings.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import worker

worker.pin_to(int(sys.argv[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from jax.nn import log_sigmoid  # noqa: E402
from numpyro.distributions import constraints  # noqa: E402
from numpyro.infer import NUTS  # noqa: E402

HIDDEN = 3


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    numpyro.sample("obs", dist.Normal(mu, sigma), obs=y)


def linear(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    slopes = numpyro.sample("slopes", dist.Normal(0, 5).expand([4]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    numpyro.sample("obs", dist.Normal(intercept + x @ slopes, sigma), obs=y)


def robust(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("obs", dist.StudentT(4.0, intercept + x @ slopes, sigma), obs=y)


def logistic(x, y):
    weights = numpyro.sample("weights", dist.Normal(0, 3).expand([5]).to_event(1))
    numpyro.factor("obs", log_sigmoid(y * (x @ weights)).sum())


def poisson(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([3]).to_event(1))
    numpyro.sample("obs", dist.Poisson(jnp.exp(intercept + x @ slopes)), obs=y)


def hierarchical(y, sd, school):
    """Centred, as the posterior of the benchmark is."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    effects = numpyro.sample("effects", dist.Normal(mu, tau).expand([8]).to_event(1))
    numpyro.sample("obs", dist.Normal(effects[school], sd), obs=y)


def mixture(y):
    weight = numpyro.sample("weight", dist.Beta(2, 2))
    means = numpyro.sample("means", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("prior", dist.Normal(0, 3).log_prob(means).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    logs = jnp.log(jnp.stack([weight, 1 - weight]))
    each = dist.Normal(means, sigma).log_prob(y[:, None]) + logs
    numpyro.factor("obs", jax.nn.logsumexp(each, -1).sum())


def ordered(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 3))
    cuts = numpyro.sample("cuts", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
    numpyro.factor("prior", dist.Normal(0, 3).log_prob(cuts).sum())
    numpyro.sample("obs", dist.OrderedLogistic(slope * x, cuts), obs=y.astype(int))


def simplex(y):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(5)))
    numpyro.sample("obs", dist.Categorical(weights), obs=y)


def network(x, y):
    def normals(name, *shape):
        return numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))

    w, b = normals("one.weight", HIDDEN, 2), normals("one.bias", HIDDEN)
    v, c = normals("two.weight", 2, HIDDEN), normals("two.bias", 2)
    numpyro.sample("obs", dist.Categorical(logits=jnp.tanh(x @ w.T + b) @ v.T + c), obs=y)


MODELS: dict[str, Callable[..., None]] = {
    made.__name__: made
    for made in (normal, linear, robust, logistic, poisson, hierarchical, mixture, ordered, simplex, network)
}


def compiled(model: Callable[[], None], warmup: int, steps: int, chains: int, seed: int) -> tuple[Any, Any]:
    """Return a key for each chain, and the compiled function that runs the chains, one after the other."""
    kernel = NUTS(model)
    keys = jax.random.split(jax.random.key(seed), chains)

    def run_chain(key):
        state = kernel.init(key, warmup, init_params=None, model_args=(), model_kwargs={})
        state = jax.lax.fori_loop(0, warmup, lambda _, state: kernel.sample(state, (), {}), state)

        def step(state, _):
            state = kernel.sample(state, (), {})
            return state, (state.z, state.diverging, state.num_steps)

        _, (points, diverging, gradients) = jax.lax.scan(step, state, length=steps)
        return jax.vmap(kernel.postprocess_fn((), {}))(points), diverging.sum(), gradients.sum()

    return keys, jax.jit(lambda keys: jax.lax.map(run_chain, keys)).lower(keys).compile()


def main() -> None:
    numpyro.enable_x64()
    for line in sys.stdin:
        request = json.loads(line)
        with np.load(request["data"]) as file:
            data = {name: jnp.asarray(file[name]) for name in file.files}
        began = time.process_time()
        model = partial(MODELS[request["name"]], **data)
        keys, run = compiled(
            *(model, request["warmup"], request["steps"], request["chains"], request["seed"])
        )
        between = time.process_time()
        found, diverging, gradients = jax.block_until_ready(run(keys))
        answer = {
            "compilation": between - began,
            "sampling": time.process_time() - between,
            "diverging": int(diverging.sum()),
            "gradients": int(gradients.sum()),
        }
        np.savez(request["draws"], **{name: np.asarray(values) for name, values in found.items()})
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
