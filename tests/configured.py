"""The parts of conf/, built as an experiment would build them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import yaml

from mhrun.build import build
from mhrun.cli.configuration.compose import compose_config
from mhrun.paths import CONF


def parts(group):
    return sorted(path.stem for path in CONF.glob(f"{group}/*.yaml"))


STEPS = {"every": 5, "cycle": 10, "cycles": 4}  # settings that are whole numbers


def filled(path, node, first):
    """Return overrides for the settings of a part that have no default."""
    missing = [key for key in node if node[key] == "???"]
    return [f"{path}.{key}={STEPS.get(key, 10.0**-i)}" for i, key in enumerate(missing, first)]


@cache
def composed_part(group, name):
    """Return the settings of a part as an experiment would compose them."""
    given = filled("probe", yaml.safe_load((CONF / group / f"{name}.yaml").read_text()), 2)
    overrides = [
        "experiment=gmm_tied_means",
        "scale=smoke",
        "m=7",
        "lam=0.1",
        "+step_size=0.01",
        f"+{group}@probe={name}",
    ]
    return compose_config([*overrides, *given], compare=False)["probe"]


def part(group, name):
    """Return a part that is built anew for each test."""
    return build(deepcopy(composed_part(group, name)))
