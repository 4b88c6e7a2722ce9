"""A user's function called in torch beside its replayed recording, on the ten posteriors: a table.

    python benchmarks/own_function.py [--only normal,linear] [--calls 300]

Microseconds of CPU time for the log-likelihood of all data and the log-prior, each with its gradient, of 4 chains, in
turn; the least of five rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from problem_posteriors import POSTERIORS, Posterior

from mhrun.engine.call.user_model import user_model
from mhrun.models import recorded
from mhrun.models.function import FunctionModel
from mhrun.target import Target

CHAINS, ROUNDS = 4, 5


def work(posterior: Posterior) -> Callable[[], object] | None:
    """Return what is measured; None for a model that is not one of functions."""
    given = user_model(posterior.model, posterior.data, **posterior.settings)
    model = given.model
    if not isinstance(model, FunctionModel):
        return None
    rows = {name: field[None] for name, field in Target(model, given.data).data.fields.items()}
    theta = torch.linspace(-0.1, 0.1, CHAINS * model.dim, dtype=torch.float64).reshape(CHAINS, model.dim)
    return lambda: (
        model.log_lik_and_grad(theta, rows),
        model.log_prior(theta),
        model.log_prior_autograd(theta),
    )


def microseconds(once: Callable[[], object], calls: int) -> float:
    """Return the CPU time of a call."""
    began = time.process_time()
    for _ in range(calls):
        once()
    return (time.process_time() - began) / calls * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(POSTERIORS))
    parser.add_argument("--calls", type=int, default=300)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    replayable = recorded._must_be_seen
    print("| posterior | called | replayed | called / replayed |\n|---|--:|--:|--:|")
    for name in chosen.only.split(","):
        once = work(POSTERIORS[name]())
        if once is None:
            continue
        microseconds(once, 120)  # which are recorded
        called, replayed = [], []
        for _ in range(ROUNDS):
            replayed.append(microseconds(once, chosen.calls))
            recorded._must_be_seen = lambda tensors: True
            called.append(microseconds(once, chosen.calls // 4))
            recorded._must_be_seen = replayable
        ours, theirs = min(replayed), min(called)
        print(f"| {name} | {theirs:,.0f} | {ours:,.0f} | {theirs / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
