"""Steps of the built-in regressions in compiled loops beside the same steps in torch: a table.

    python benchmarks/regressions.py [--n 20000] [--dim 6]

Microseconds of a step of 4 chains on one core, the least of three rounds, and how many times as long it takes in torch.
Compilation is not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

import mhrun
from mhrun.data import Dataset
from mhrun.engine.execution.executors import choose_executor
from mhrun.engine.method import Method
from mhrun.parts import Kernel, Pairing, Rule
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape
from mhrun.target import Target
from mhrun.target.reference import find_reference
from mhrun.types import Model

CHAINS, ROUNDS, CLASSES = 4, 3, 3
SECONDS = 0.5  # of a round, at least
MANY = 1 << 30  # steps
MINT_LANGEVIN, MALA = "MINT, Langevin, m = 1,000", "MALA"
LEAPFROG_STEPS = 10
HMC = f"HMC, {LEAPFROG_STEPS} leapfrog steps"


def data_and_models(n: int, dim: int) -> dict[str, tuple[Model, Dataset]]:
    """Return the regressions with simulated data, by name."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(n, dim)), 0.3 * rng.normal(size=(CLASSES, dim))
    eta, trials = x @ weights[0], np.full(n, 9.0)
    chance = 1 / (1 + np.exp(-eta))
    outcomes = {
        "logistic": {"y": np.where(rng.random(n) < chance, 1.0, -1.0)},
        "robust": {"y": eta + rng.standard_t(4, n)},
        "Poisson": {"y": rng.poisson(np.exp(eta)).astype(float)},
        "binomial": {"y": rng.binomial(9, chance).astype(float), "trials": trials},
        "softmax, 3 classes": {"y": np.argmax(x @ weights.T + rng.gumbel(size=(n, CLASSES)), 1)},
    }
    models: dict[str, Model] = {
        "logistic": mhrun.Logistic(dim, 4.0),
        "robust": mhrun.RobustRegression(dim, prior_variance=4.0),
        "Poisson": mhrun.PoissonRegression(dim, 4.0),
        "binomial": mhrun.BinomialRegression(dim, 4.0),
        "softmax, 3 classes": mhrun.SoftmaxRegression(dim, CLASSES, 4.0),
    }
    return {name: (models[name], Dataset.of({"x": x, **fields})) for name, fields in outcomes.items()}


def walk(pairing: Pairing, rule: Rule) -> Kernel:
    """Return a random walk with a pairing and a rule."""
    return mhrun.MetropolisHastings(mhrun.RandomWalk(), pairing, rule)


def langevin(pairing: Pairing) -> Kernel:
    """Return Langevin moves with a pairing and Metropolis's rule."""
    return mhrun.MetropolisHastings(mhrun.LangevinProposal(), pairing, mhrun.Metropolis())


def trajectories() -> Kernel:
    """Return Hamiltonian Monte Carlo on all data."""
    return mhrun.MetropolisHastings(
        mhrun.HamiltonianProposal(LEAPFROG_STEPS), mhrun.Full(), mhrun.Metropolis()
    )


# Of each: its kernel and its surrogate, and whether it is at T = n / 100, where minibatches suffice, or at T = 1.
METHODS: dict[str, tuple[Callable[[], Kernel], str, bool]] = {
    "MINT, m = 1,000": (lambda: walk(mhrun.Shared(1000), mhrun.Metropolis()), "none", True),
    "MHminibatch": (lambda: walk(mhrun.Growing(), mhrun.MHMinibatch(100)), "none", True),
    MINT_LANGEVIN: (lambda: langevin(mhrun.Shared(1000)), "none", True),
    MALA: (lambda: langevin(mhrun.Full()), "none", False),
    HMC: (trajectories, "none", False),
    "SMH-2": (lambda: walk(mhrun.Thinned(), mhrun.SMH()), "taylor2", False),
    "zig-zag": (mhrun.ZigZag, "taylor2", False),
    "FlyMC": (lambda: mhrun.Firefly(mhrun.RandomWalk()), "lower_bound", False),
}


def made(name: str, model: Model, data: Dataset) -> Method | None:
    """Return a method of a regression whose chains begin at the mode; None if it has no lower bounds."""
    kernel, surrogate, is_hot = METHODS[name]
    if surrogate == "lower_bound" and not hasattr(model, "lower_bound"):
        return None
    target = Target(model, data, surrogate=surrogate)
    temperature = data.n / 100 if is_hot else 1.0
    step_size = {"zig-zag": 1.0, MINT_LANGEVIN: 0.5 / data.n, MALA: 0.5 / data.n}.get(
        name, (temperature / data.n) ** 0.5
    )
    plan = Plan({"all": mhrun.Fixed(step_size=step_size, temperature=temperature)}, CHAINS, 0, MANY)
    mode = find_reference(model, data).theta
    return Method(
        name,
        kernel(),
        target,
        plan,
        Shape(CHAINS, model.names, 0, MANY, 1, 1),
        1,
        starts=lambda chains, _: mode.repeat(chains, 1),
    )


def microseconds(method: Method, executor: str) -> float:
    """Return the time of a step, the least of some rounds."""
    runner = choose_executor(method, executor, None, 1)
    state, first, count, times = method.first_state(), 1, 20, []
    for _ in range(ROUNDS + 2):  # the first compiles, the second has the speed of the others
        controls = method.plan.controls(method.plan.start(), first, count)
        began = time.perf_counter()
        state, _ = runner.advance(state, first, controls)
        times.append(1e6 * (time.perf_counter() - began) / count)
        first += count
        if len(times) == 2:
            count = max(count, int(SECONDS * 1e6 / times[-1]))
    return min(times[2:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=6)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(f"| | {' | '.join(METHODS)} |\n|---|{'--:|' * len(METHODS)}")
    for family, (model, data) in data_and_models(chosen.n, chosen.dim).items():
        cells = []
        for name in METHODS:
            method = made(name, model, data)
            if method is None:
                cells.append("–")
                continue
            compiled, plain = (microseconds(method, executor) for executor in ("compiled", "torch"))
            cells.append(f"{compiled:,.{0 if compiled > 100 else 1}f} ({plain / compiled:,.0f})")
        print(f"| {family} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
