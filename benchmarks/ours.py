"""MINT on the tied mixture, by this project's engine: traces and statistics written to disk, as in a run.

Arguments: cores, number of data, native (on or off), storage (memory or file).
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(int(sys.argv[1]))

import shutil  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from problem import STEP_SIZE, M, temperature  # noqa: E402

import mhrun  # noqa: E402
from mhrun.engine.chains import Settings, Silent, run_method  # noqa: E402
from mhrun.engine.method import Method  # noqa: E402
from mhrun.schedules import Plan  # noqa: E402
from mhrun.store.netcdf import Shape  # noqa: E402


def main(cores: int, n: int, native: str, storage: str) -> None:
    torch.set_num_threads(cores)
    data = mhrun.MixtureSample(n, (0.0, 1.0), 2.0, storage=storage).load()
    if storage == "file":  # the page cache is warm, as it is after the first minutes of a run
        data.fields["x"].sum()
    target = mhrun.Target(mhrun.TiedMeans(), data, replacement=True)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(M), mhrun.Metropolis())
    fixed = mhrun.Fixed(step_size=STEP_SIZE, temperature=temperature(n))
    folder = Path(tempfile.mkdtemp(prefix="mhrun-bench-"))

    def work(chains: int, steps: int, seed: int) -> float:
        place = folder / f"{chains}-{steps}-{seed}"
        shape = Shape(chains, ("theta1", "theta2"), 0, steps, 1)
        method = Method("mint", kernel, target, Plan({"all": fixed}, chains, 0, steps), shape, seed)
        noted = run_method(method, place, Settings(native, cores), Silent(), lambda: False, {})
        shutil.rmtree(place)
        return float(sum(noted["totals"]["sum_accepted"])) / (chains * steps)

    try:
        worker.serve(work)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
