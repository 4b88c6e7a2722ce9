"""The methods of a calibration and the data sets that they run on, the same in every process that makes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mhrun.cli.configuration.compose import compose_config
from mhrun.errors import UserError

if TYPE_CHECKING:
    from mhrun.check.calibration import Simulated
    from mhrun.engine.method import Method

_STEPS = 5000  # most steps, and most of warmup, unless the command line sets them


class Setting(NamedTuple):
    """What a calibration was called with."""

    overrides: tuple[str, ...]  # of the experiment
    folders: tuple[Path, ...]
    replications: int
    n: int | None  # data in a set; None: those of the experiment, at most `most`
    most: int


class Study(NamedTuple):
    """The methods, and the data sets of each."""

    setting: Setting
    experiment: str
    seed: int
    jobs: int | None  # runtime.jobs
    methods: dict[str, Method]
    simulations: dict[str, Simulated]  # by method; methods with one target share one
    counts: dict[str, dict[str, int]]  # by method: warmup and steps


def study_of(setting: Setting) -> Study:
    """Return the methods of an experiment, and simulated data sets for each.

    Raises:
        UserError: the experiment is refused, or a model cannot be simulated.
    """
    config = compose_config(setting.overrides, setting.folders, compare=False, check=True) | {"device": "cpu"}
    import torch

    from mhrun.check.calibration import refuses, simulated
    from mhrun.data import Dataset
    from mhrun.engine.assemble import methods_of

    torch.set_num_threads(1)
    methods, seed = methods_of(config), int(config["seed"])
    keys = {override.partition("=")[0] for override in setting.overrides}
    by_target: dict[int, Simulated] = {}
    simulations, counts = {}, {}
    for method in methods:
        target, shape = method.target, method.shape
        if (reason := refuses(target.model)) is not None:
            raise UserError(f"{method.name}: {reason}")
        if id(target) not in by_target:
            n = setting.n or min(setting.most, target.n)
            data = Dataset({name: value[:n] for name, value in target.data.fields.items()})
            by_target[id(target)] = simulated(target.model, data, setting.replications, shape.chains, seed)
        drawn = by_target[id(target)]
        simulations[method.name] = drawn._replace(data=dataclasses.replace(drawn.data, times=shape.chains))
        counts[method.name] = {
            key: value if key in keys else min(value, _STEPS)
            for key, value in (("warmup", shape.warmup), ("steps", shape.steps))
        }
    jobs = config["runtime"]["jobs"]
    named = {method.name: method for method in methods}
    return Study(setting, str(config["experiment"]), seed, jobs, named, simulations, counts)
