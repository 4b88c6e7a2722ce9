"""Runs of a model on data without an experiment: the settings of conf/config.yaml and a default method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from mhrun.ownership import is_bundled

if TYPE_CHECKING:
    from mhrun.target import Target

NAME = "own"
"""The name of the experiment of such a run."""


def is_own(overrides: Sequence[str]) -> bool:
    """Return whether these overrides choose data and a model, and no experiment."""
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    return "experiment" not in keys and {"data", "model"} <= set(keys)


def own_overrides(
    overrides: Sequence[str], compose: Callable[[Sequence[str]], Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return the overrides of such a run, with a default method if none is named, and lines to print.

    Args:
        overrides: as they were given.
        compose: returns the resolved configuration of some overrides.

    Raises:
        UserError: data that cannot be loaded, or invalid settings.
    """
    overrides = added(overrides)
    config = compose(overrides)
    found, lines = _found(_deciding(config), bool(config["methods"]))
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    return [*overrides, *(each for each in found if _quantity(each) not in given)], list(lines)


def _quantity(override: str) -> str:
    """Return the last part of the key of an override: that of the experiment's setting, such as steps."""
    return override.partition("=")[0].rpartition(".")[2]


def added(overrides: Sequence[str]) -> list[str]:
    """Return overrides that add data and a model, which `overrides` choose: there are none to be replaced."""
    return [
        f"+{override}" if override.startswith(("data=", "model=")) else override for override in overrides
    ]


def _deciding(config: Mapping[str, Any]) -> str:
    """Return the settings of which a target is made, as JSON."""
    settings = {name: config[name] for name in ("data", "model", "target", "device", "precision")}
    settings |= {"runtime": {"data_dir": config["runtime"]["data_dir"]}}
    return json.dumps(settings, sort_keys=True, default=str)


@cache  # the jobs of a sweep have few targets, whose data may take seconds to read
def _found(settings: str, has_methods: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return overrides that a target's settings, in JSON, lack, and lines to print."""
    from mhrun.target import target_of

    config = json.loads(settings)
    target = target_of(config)
    lines = _intercept(target)
    if has_methods:
        return (), tuple(lines)
    from mhrun.engine.defaults import HMC, LEAPFROG_STEPS, default_counts, default_of, is_unscaled

    surrogate = config["target"]["surrogate"]
    name, reason, _ = default_of(target, None if surrogate == "none" else surrogate)
    steps, warmup = default_counts(name, target.dim)
    method = [
        f"+method@methods.{name}={name}",
        f"+methods.{name}.steps={steps}",
        f"+methods.{name}.warmup={warmup}",
    ]
    if name == HMC and is_unscaled(target):
        method.append(f"methods.{HMC}.kernel.proposal.leapfrog_steps={LEAPFROG_STEPS}")
    return tuple(method), (*lines, f"no method was named: {reason}.")


def _intercept(target: Target) -> list[str]:
    """Return a line if a regression of the package has a weight for each column of a table, and none is constant."""
    if not (is_bundled(target.model) and hasattr(target.model, "settings_of")):
        return []
    facts = target.data.facts
    columns = facts.get("columns") or []
    if not columns or facts.get("intercept") or "target_mean" in facts or "x" not in target.data.fields:
        return []
    x = target.data.fields["x"]
    if bool((x == x[:1]).all(0).any()):
        return []
    return ["the regression has no intercept: x has no column of ones. data.intercept=true adds one."]
