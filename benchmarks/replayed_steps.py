"""Steps of Hamiltonian Monte Carlo on a regression that are replayed beside plain ones: a table.

    python benchmarks/replayed_steps.py [--leapfrog 1,3,10,30,100] [--steps 200]

CPU milliseconds of a step of 4 chains, in turn, the least of three rounds; and the milliseconds of a recording. The
functions of the model are replayed in both, see own_function.py.
"""

from __future__ import annotations

import argparse
import time

import torch
from problem_posteriors import POSTERIORS

import mhrun
from mhrun.engine.call.user_model import user_model
from mhrun.engine.execution.replay import ReplayedSteps
from mhrun.engine.execution.steps import PlainSteps
from mhrun.engine.method import Method
from mhrun.proposals.hamiltonian import HamiltonianProposal
from mhrun.random import Draws
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape

CHAINS, ROUNDS, WARM = 4, 3, 45  # a recording is made after 30 steps, and 3 more are compared
POSTERIOR, STEP_SIZE = "logistic", 0.02


class Chains:
    """Chains that make steps in torch.

    Args:
        method: whose steps they are.
        kind: of steps.
    """

    def __init__(self, method: Method, kind: type[PlainSteps | ReplayedSteps]) -> None:
        self._draws = Draws(method.streams(compiled=True), 1)
        self._steps = kind(method.kernel, method.target, self._draws)
        self._state, self._step = method.first_state(), 0
        self._controls = method.plan.controls(method.plan.start(), 1, 1).each(lambda control: control[0])

    def seconds(self, steps: int) -> float:
        """Return the CPU time of some steps."""
        began = time.process_time()
        for _ in range(steps):
            self._step += 1
            self._draws.step = self._step
            self._state, _ = self._steps(self._state, self._controls)
        return time.process_time() - began


def method(leapfrog_steps: int) -> Method:
    """Return HMC on the regression."""
    posterior = POSTERIORS[POSTERIOR]()
    given = user_model(posterior.model, posterior.data, **posterior.settings)
    kernel = mhrun.MetropolisHastings(HamiltonianProposal(leapfrog_steps), mhrun.Full(), mhrun.Metropolis())
    plan = Plan({"all": mhrun.Fixed(step_size=STEP_SIZE, temperature=1.0)}, CHAINS, 0, 10_000)
    shape = Shape(CHAINS, given.model.names, 0, 10_000, 1, 1)
    return Method(POSTERIOR, kernel, mhrun.Target(given.model, given.data), plan, shape, 1, torch.float64)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--leapfrog", default="1,3,10,30,100")
    parser.add_argument("--steps", type=int, default=200)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print("| leapfrog steps | plain | replayed | plain / replayed | recording |\n|--:|--:|--:|--:|--:|")
    for count in map(int, chosen.leapfrog.split(",")):
        one = method(count)
        plain, replayed = Chains(one, PlainSteps), Chains(one, ReplayedSteps)
        plain.seconds(WARM)
        recording = replayed.seconds(WARM)
        costs = [(plain.seconds(chosen.steps), replayed.seconds(chosen.steps)) for _ in range(ROUNDS)]
        called, repeated = (min(costs_of) / chosen.steps * 1e3 for costs_of in zip(*costs, strict=True))
        recording = 1e3 * recording - WARM * called
        ratio = called / repeated
        print(f"| {count} | {called:.2f} | {repeated:.2f} | {ratio:.1f} | {recording:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
