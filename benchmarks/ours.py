"""This project's engine: traces and statistics written to disk, as in a run.

Arguments: cores, problem (a name in PROBLEMS), number of data, native (on or off), storage (memory or file;
of the mixture of MINT).
"""

from __future__ import annotations

import sys

import worker

if __name__ == "__main__":
    worker.pin_to(int(sys.argv[1]))

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import problem
import problem_dynamics as dynamics
import problem_growing as growing
import problem_logistic as logistic
import problem_network as network
import torch

import mhrun
from mhrun import compiled
from mhrun.data.no_data import NoData
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD as SGLD
from mhrun.dynamics.sgnht import SGNHT
from mhrun.engine.method import Method
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.kernels import ReplicaExchange, Unadjusted
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.models.logistic import Logistic
from mhrun.models.perceptron import Perceptron
from mhrun.native.indices import independent
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.thinned import Thinned
from mhrun.parts import Kernel, Pairing, Rule
from mhrun.proposals.langevin import LangevinProposal
from mhrun.rules.compensated import Compensated
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.rules.tunamh import TunaMH
from mhrun.schedules import Plan
from mhrun.store.netcdf import Shape, open_trace

RUNGS, EVERY = 8, 40  # of ladders: chains of each, steps between two exchanges


class Work(NamedTuple):
    """A problem as the engine wants it."""

    target: mhrun.Target
    kernel: Kernel
    step_size: float
    temperature: float
    thin: int | None = 1  # theta is kept of every thin-th step
    dtype: torch.dtype = torch.float64
    ratio: float = 1.0  # of the temperatures of a ladder's neighbours


def _walk(pairing: Pairing, rule: Rule) -> Kernel:
    return mhrun.MetropolisHastings(mhrun.RandomWalk(), pairing, rule)


def mint(n: int, storage: str, m: int = problem.M, replacement: bool = True) -> Work:
    """Return MINT on the tied mixture."""
    data = mhrun.MixtureSample(n, (0.0, 1.0), 2.0, storage=storage).load()
    if storage == "file":  # the page cache is warm, as it is after the first minutes of a run
        data.fields["x"].sum()
    target = mhrun.Target(mhrun.TiedMeans(), data, replacement=replacement)
    kernel = _walk(mhrun.Shared(m), mhrun.Metropolis())
    return Work(target, kernel, problem.STEP_SIZE, problem.temperature(n))


def mh_minibatch(n: int, storage: str) -> Work:
    """Return MHminibatch on the tied mixture."""
    data = mhrun.Dataset.of(growing.mixture(n).astype("float32"))
    target = mhrun.Target(mhrun.TiedMeans(), data, temper="likelihood")
    rule = MHMinibatch(growing.M, growing.SIGMA, "paper")
    return Work(target, _walk(Growing(), rule), growing.STEP_SIZE, growing.temperature(n))


def mh_minibatch_with(n: int, storage: str) -> Work:
    """Return MHminibatch with independent indices in its loop, which settings cannot choose."""
    compiled.growing.filler = lambda n, grows: independent
    return mh_minibatch(n, storage)


def tuna_mh(n: int, storage: str) -> Work:
    """Return TunaMH on the tied mixture."""
    data = mhrun.Dataset.of(growing.mixture(n).astype("float32"))
    target = mhrun.Target(mhrun.TiedMeans(), data, temper="likelihood")
    kernel = _walk(Thinned(), TunaMH(growing.CHI))
    return Work(target, kernel, growing.STEP_SIZE, growing.temperature(n))


def mint_logistic(n: int, storage: str) -> Work:
    """Return MINT on logistic regression."""
    kernel = _walk(mhrun.Shared(logistic.M), mhrun.Metropolis())
    return Work(_logistic(n), kernel, logistic.STEP_SIZE, logistic.TEMPERATURE, None)


def metropolis_logistic(n: int, storage: str) -> Work:
    """Return Metropolis on all data of logistic regression."""
    kernel = _walk(mhrun.Full(), mhrun.Metropolis())
    return Work(_logistic(n), kernel, logistic.FULL_STEP_SIZE, 1.0, None)


def _logistic(n: int) -> mhrun.Target:
    x, y = logistic.images(n)
    model = Logistic(logistic.DIM, start="zeros")
    return mhrun.Target(model, mhrun.Dataset.of({"x": x, "y": y}, pixels=True), replacement=True)


def mint_network(n: int, storage: str) -> Work:
    """Return MINT with a Langevin proposal on a network."""
    kernel = mhrun.MetropolisHastings(LangevinProposal(), mhrun.Shared(network.M), mhrun.Metropolis())
    return Work(_network(n), kernel, network.RATE / n, n / network.C, None, torch.float32)


def _network(n: int) -> mhrun.Target:
    x, y = network.images(n)
    return mhrun.Target(
        Perceptron(network.LAYERS), mhrun.Dataset.of({"x": x, "y": y}, pixels=True), replacement=True
    )


MOVES = {
    "sgld": SGLD(),
    "sghmc": SGHMC(dynamics.FRICTION),
    "sgnht": SGNHT(dynamics.FRICTION),
}


def _on_mixture(name: str) -> Callable[[int, str], Work]:
    def made(n: int, storage: str) -> Work:
        model = GaussianMixture(dynamics.CENTRES, dynamics.VARIANCE)
        target = mhrun.Target(model, NoData().load(), gradient_noise=1.0)
        return Work(target, Unadjusted(MOVES[name], 1), dynamics.STEP["mixture"], 1.0)

    return made


def _on_network(name: str) -> Callable[[int, str], Work]:
    def made(n: int, storage: str) -> Work:
        kernel = Unadjusted(MOVES[name], network.M)
        return Work(_network(n), kernel, dynamics.STEP["network"], 1.0, None, torch.float32)

    return made


def _ladder(
    target: mhrun.Target, move: Kernel, scoring: Pairing, step_size: float, ratio: float, **kept: Any
) -> Work:
    rule = (
        Compensated(0.2, "series")
        if isinstance(scoring, mhrun.Shared) and target.n == 1
        else mhrun.Metropolis()
    )
    kernel = ReplicaExchange(move, scoring, rule, RUNGS, every=EVERY) if kept.pop("together") else move
    return Work(target, kernel, step_size, 1.0, kept.get("thin", 1), kept.get("dtype", torch.float64), ratio)


def _of_rungs(together: bool) -> dict[str, Callable[[int, str], Work]]:
    """Return ladders, or the same rungs as chains that never meet."""

    def mixture(n: int, storage: str) -> Work:
        model = GaussianMixture([[0, 0], [4, 4], [-4, 4], [-4, -4], [4, -4]], 0.25)
        target = mhrun.Target(model, NoData().load(), gradient_noise=0.25, energy_noise=0.25)
        move = Unadjusted(SGNHT(0.05, refresh=EVERY), 1)
        return _ladder(target, move, mhrun.Shared(1), 0.0025, 1.5, together=together, thin=EVERY)

    def logistic_all(n: int, storage: str) -> Work:
        move = _walk(Full(), mhrun.Metropolis())
        return _ladder(
            _logistic(n), move, Full(), logistic.FULL_STEP_SIZE, 1.2, together=together, thin=EVERY
        )

    def network_784(n: int, storage: str) -> Work:
        move = Unadjusted(SGNHT(0.1, refresh=EVERY), network.M)
        step = dynamics.STEP["network"]
        kept = {"thin": None, "dtype": torch.float32}
        return _ladder(_network(n), move, mhrun.Shared(network.M), step, 1.2, together=together, **kept)

    return {"mixture": mixture, "logistic": logistic_all, "network": network_784}


_MADE = (mint, mh_minibatch, mh_minibatch_with, tuna_mh, mint_logistic, metropolis_logistic, mint_network)
PROBLEMS = {made.__name__: made for made in _MADE}
PROBLEMS |= {
    f"mint_{m}{suffix}": partial(mint, m=m, replacement=replacement)
    for m in (100, 1000)
    for suffix, replacement in (("", False), ("_with", True))
}
PROBLEMS |= {f"{name}_mixture": _on_mixture(name) for name in MOVES}
PROBLEMS |= {f"{name}_network": _on_network(name) for name in MOVES}
PROBLEMS |= {f"ladder_{name}": made for name, made in _of_rungs(True).items()}
PROBLEMS |= {f"rungs_{name}": made for name, made in _of_rungs(False).items()}


def _near(folder: Path) -> float:
    """Return the share of draws near a centre, in place of an acceptance rate."""
    with open_trace(folder) as trace:
        theta = trace["posterior"]["theta"].to_numpy()[:, ::10, None]
    gaps = ((theta - np.array(dynamics.CENTRES)) ** 2).sum(-1)
    return float((gaps < dynamics.NEAR**2).any(-1).mean())


def runner(
    problem: Work, name: str, folder: Path, executor: str, cores: int
) -> Callable[[int, int, int], worker.Found]:
    """Return (chains, steps, seed) -> what a run found that wrote its trace to disk."""

    def work(chains: int, steps: int, seed: int) -> worker.Found:
        place = folder / f"{chains}-{steps}-{seed}"
        rungs = [problem.temperature * problem.ratio ** (c % RUNGS) for c in range(chains)]
        fixed = mhrun.Fixed(step_size=problem.step_size, temperature=rungs)
        names = problem.target.model.names if problem.thin else ()
        shape, plan = Shape(chains, names, 0, steps, problem.thin, 1), Plan({"all": fixed}, chains, 0, steps)
        method = Method(name, problem.kernel, problem.target, plan, shape, seed, problem.dtype)
        summary = run_method(method, place, Settings(executor, cores), Silent(), lambda: False, {})
        means = {"accepted": "sum_accepted", "batch": "sum_batch_size"}
        totals = summary["totals"]
        found = {key: float(sum(totals[total])) / (chains * steps) for key, total in means.items()}

        def accepted() -> float:
            drawn = name.split("_")[0] in MOVES and name.endswith("_mixture")
            share = _near(place) if drawn else found["accepted"]
            shutil.rmtree(place)
            return share

        return found | {"accepted": accepted}

    return work


def main(cores: int, name: str, n: int, executor: str, storage: str) -> None:
    torch.set_num_threads(cores)
    folder = Path(tempfile.mkdtemp(prefix="mhrun-bench-"))
    try:
        worker.serve(runner(PROBLEMS[name](n, storage), name, folder, executor, cores))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
