"""Ten small posteriors with the defaults of `mhrun.sample`, beside other methods, Pyro's and NumPyro's NUTS: a table.

    python benchmarks/ten_posteriors.py [--only normal,linear] [--methods default,mala,mcmc,nuts,numpyro] [--steps 2000]

Columns: the least bulk or tail effective sample size, R-hat, seconds of CPU time of one process (its pilot, burn-in,
warm-up and compilation included), effective draws per second, the same without compilation, the largest difference from
the reference means and standard deviations in Monte Carlo errors, and how many warnings came. The references are in
tests/posteriors.json.

``nuts`` is Pyro's, where it is installed: one chain on the same log density (`mhrun.Target`), so that both evaluate the
same code. ``numpyro`` is NumPyro's, on its own form of the same models (numpyro_posteriors.py): 4 chains with 1,000
steps of warm-up and 1,000 that count, unless --steps is given. It needs the environment of the peers (.venv-peers, made
if it is not there).
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
import warnings
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from contenders import PEER, Contender, make_peers
from problem_posteriors import POSTERIORS, Posterior

import mhrun
from mhrun.diagnostics.chains import mcse, worth
from mhrun.engine.call.user_model import user_model
from mhrun.random import Draws, Streams
from mhrun.store.netcdf import flat_draws
from mhrun.target import Target

REFERENCE = Path(__file__).resolve().parent.parent / "tests" / "posteriors.json"


class Result(NamedTuple):
    """What a method found on a posterior."""

    ess: float
    rhat: float
    seconds: float
    off: float  # largest difference from the reference, in Monte Carlo errors
    lines: list[str]  # warnings
    compiling: float = 0.0  # seconds of them


def difference(name: str, names: list[str], draws: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of means and sds of draws (C, S, P) from the reference, in Monte Carlo errors."""
    known = json.loads(REFERENCE.read_text(encoding="utf-8"))[name]["names"]
    largest = 0.0
    for k, each in enumerate(names):
        mean, sd, mean_error, sd_error = known[each]
        column = draws[..., k]
        largest = max(
            largest,
            abs(column.mean() - mean) / np.hypot(mcse(column), mean_error),
            abs(column.std() - sd) / np.hypot(mcse((column - mean) ** 2) / (2 * sd), sd_error),
        )
    return float(largest)


def sampled(name: str, posterior: Posterior, kernel: mhrun.Kernel | None, **settings: Any) -> Result:
    """Run `mhrun.sample`."""
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught, redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        trace = mhrun.sample(posterior.model, posterior.data, kernel, **posterior.settings, **settings)
    seconds = time.process_time() - began
    draws = flat_draws(trace["posterior"])
    names = user_model(posterior.model, posterior.data, **posterior.settings).model.names
    return result(name, list(names), draws, seconds, [str(each.message) for each in caught])


def result(
    name: str, names: list[str], draws: np.ndarray[Any, Any], seconds: float, lines: list[str]
) -> Result:
    """Return the result of draws (C, S, P)."""
    found = worth(draws)
    ess = min(found["ess"], found["ess_tail"])
    return Result(ess, found["rhat"], seconds, difference(name, names, draws), lines)


def nuts(name: str, posterior: Posterior, steps: int) -> Result | None:
    """Run Pyro's NUTS, half as many warm-up steps and one chain; None if Pyro is not installed."""
    try:
        from pyro.infer import MCMC, NUTS
    except ImportError:
        return None
    given = user_model(posterior.model, posterior.data, **posterior.settings)
    target = Target(given.model, given.data)
    first = given.model.init(1, Draws(Streams(0, 1), 0)).double()

    def potential(values: dict[str, torch.Tensor]) -> torch.Tensor:
        theta = values["theta"][None]
        rows = {field: value[None] for field, value in target.data.fields.items()}
        return -(given.model.log_lik(theta, rows).sum() + given.model.log_prior(theta).sum())

    torch.manual_seed(0)
    began = time.process_time()
    mcmc = MCMC(
        NUTS(potential_fn=potential, full_mass=True),
        num_samples=steps,
        warmup_steps=steps // 2,
        initial_params={"theta": first[0]},
        disable_progbar=True,
    )
    mcmc.run()
    seconds = time.process_time() - began
    theta = mcmc.get_samples()["theta"]
    named = getattr(given.model, "parameters", None)
    draws = (theta if named is None else named.flat(theta)).detach().numpy()[None]
    return result(name, list(given.model.names), draws, seconds, [])


class NumPyro:
    """NumPyro's NUTS, in a process of the peers' environment."""

    def __init__(self) -> None:
        make_peers()
        self.contender = Contender(PEER, "numpyro_posteriors.py", 1)

    def run(self, name: str, posterior: Posterior, steps: int | None) -> Result:
        """Run 4 chains, of 1,000 steps each after as many of warm-up if `steps` is None."""
        with tempfile.TemporaryDirectory() as folder:
            data, draws = Path(folder) / "data.npz", Path(folder) / "draws.npz"
            np.savez(data, **posterior.data)
            counts = {"chains": 4, "steps": steps or 1000, "warmup": steps or 1000, "seed": 0}
            found = self.contender.ask({"name": name, "data": str(data), "draws": str(draws)} | counts)
            with np.load(draws) as file:
                values = {each: file[each] for each in file.files}
        names = user_model(posterior.model, posterior.data, **posterior.settings).model.names
        blocks = dict.fromkeys(each.partition("[")[0] for each in names)
        flat = [values[block].reshape(*values[block].shape[:2], -1) for block in blocks]
        lines = [f"{found['diverging']} trajectories diverged."] if found["diverging"] else []
        seconds = found["compilation"] + found["sampling"]
        return result(name, list(names), np.concatenate(flat, -1), seconds, lines)._replace(
            compiling=found["compilation"]
        )


def kernel_of(method: str) -> mhrun.Kernel | None:
    """Return a kernel by its name; None for the default."""
    proposals = {"mala": mhrun.LangevinProposal, "mcmc": mhrun.RandomWalk, "hmc": mhrun.HamiltonianProposal}
    if method == "default":
        return None
    return mhrun.MetropolisHastings(proposals[method](), mhrun.Full(), mhrun.Metropolis())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(POSTERIORS))
    parser.add_argument("--methods", default="default,mala,nuts,numpyro")
    parser.add_argument("--steps", type=int, default=None)
    given = parser.parse_args()
    settings = {} if given.steps is None else {"steps": given.steps, "warmup": given.steps // 4}
    torch.set_num_threads(1)
    methods = given.methods.split(",")
    numpyro = NumPyro() if "numpyro" in methods else None
    print(
        f"{'posterior':13s}{'method':9s}{'ESS':>7s}{'R-hat':>7s}{'CPU s':>8s}{'ESS/s':>8s}{'compiled':>10s}"
        f"{'off':>6s}  warnings",
        flush=True,
    )
    for name in given.only.split(","):
        posterior = POSTERIORS[name]()
        for method in methods:
            found: Result | None
            if method == "numpyro":
                assert numpyro is not None
                found = numpyro.run(name, posterior, given.steps)
            elif method == "nuts":
                found = nuts(name, posterior, given.steps or 1000)
            else:
                found = sampled(name, posterior, kernel_of(method), **settings)
            if found is not None:
                rate, compiled = found.ess / found.seconds, found.ess / (found.seconds - found.compiling)
                print(
                    f"{name:13s}{method:9s}{found.ess:7.0f}{found.rhat:7.3f}{found.seconds:8.1f}{rate:8.0f}"
                    f"{compiled:10.0f}{found.off:6.1f}  {len(found.lines)}",
                    flush=True,
                )
                for line in found.lines:
                    print(f"    {line}", flush=True)


if __name__ == "__main__":
    main()
