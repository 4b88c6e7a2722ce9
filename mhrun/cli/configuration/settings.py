"""Checks of the settings of a whole configuration; parts check their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Any

from mhrun.errors import UserError, cut, nearest
from mhrun.names import checked_name
from mhrun.numbers import is_number
from mhrun.store.identity import COUNTS

_KINDS: dict[str, tuple[type | UnionType, str]] = {
    "seed": (int, "a whole number"),
    "data": (dict, "a group of settings; choose one, such as data=mixture"),
    "model": (dict, "a group of settings; choose one, such as model=tied_means"),
    "target": (dict, "a group of settings"),
    "methods": (dict, "a group of methods; leave it out, or add a method with +method@methods.NAME=NAME"),
    "monitor": (dict, "a group of settings; choose one, such as monitor=predictive"),
    "scales": (dict, "a group of scales, each a group of settings"),
    "report": (dict, "a group of settings"),
    "report.sweep": (list | None, "a list of metrics, such as [accept_rate]"),
    "report.colours": (dict | None, "the methods that share a colour, such as {sgld: [sgld_a, sgld_b]}"),
    "runtime": (dict, "a group of settings"),
    "runtime.outputs": (str, "a folder"),
    "runtime.force": (bool, "true or false"),
    "runtime.report": (bool, "true or false"),
    "runtime.data_dir": (str | None, "a folder, or null"),
}
_NAMED = ("tables", "figures", "sweep_tables", "sweep_figures")  # of the report; each is a file

# Settings that every configuration has unless an override removes them.
_ALWAYS = ("scale", "device", "dtype", "executor", "chains", "warmup", "steps", "thin", "thin_stats")
_ALWAYS_RUNTIME = ("threads", "jobs", "block_seconds")

# What a method may have: its parts, what replaces the experiment's, and its own counts.
OF_A_METHOD = (
    "label", "kernel", "schedules", "starts", "precondition", "monitor", "data", "model", "target", *COUNTS
)  # fmt: skip
OF_A_REPORT = (
    "paper", "metrics", "figures", "tables", "notes", "finding", "colours",
    "sweep", "sweep_metrics", "sweep_figures", "sweep_tables", "sweep_notes",
)  # fmt: skip
_OF_RUNTIME = (*_ALWAYS_RUNTIME, "outputs", "data_dir", "force", "report", "departures")


def check_settings(config: Any, *, is_resolved: bool = True) -> None:
    """Check the settings that belong to no part: runtime, names of methods, figures and tables, required groups.

    Args:
        config: the configuration.
        is_resolved: whether no number is a ${...} any more.

    Raises:
        UserError: one is missing, or of the wrong kind.
    """
    _check_there(config)
    _check_kinds(config, is_resolved)
    _check_runtime(config["runtime"])
    _check_names(config)
    _check_colours(config["report"].get("colours"), is_resolved)
    _check_sweep(config["report"].get("sweep"))
    _check_groups(config)
    _check_keys(config)


def check_known(written: Any) -> None:
    """Refuse settings of a method, of the report and of the runtime that nothing reads.

    Args:
        written: the configuration, not resolved: a setting that a ${...} refers to is read.

    Raises:
        UserError: there is one.
    """
    text = str(written)
    nodes: list[tuple[str, Any, tuple[str, ...]]] = [
        (f"methods.{name}", node, OF_A_METHOD) for name, node in written["methods"].items()
    ]
    nodes += [("report", written["report"], OF_A_REPORT), ("runtime", written["runtime"], _OF_RUNTIME)]
    for where, node, allowed in nodes:
        for key in map(str, node):
            # ${where.key} or ${.key}
            refers = rf"\$\{{[^}}]*(?<!\w)(?:{re.escape(where)})?\.{re.escape(key)}\b"
            if key not in allowed and not re.search(refers, text):
                raise UserError(
                    f"{where}.{key} is a setting that nothing reads.{nearest(key, allowed)} "
                    f"{where} may have {', '.join(sorted(set(allowed) - {'departures'}))}."
                )


def _check_keys(node: Any, where: str = "") -> None:
    """Refuse keys that YAML reads as a number or a truth value: ``{0: 1}``, ``{on: 1}``."""
    members = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, value in members:
        if isinstance(node, Mapping) and not isinstance(key, str):
            raise UserError(
                f"{where or 'the configuration'}: the key {key!r} must be text; put it in quotes."
            )
        _check_keys(value, f"{where}.{key}" if where else str(key))


def _check_there(config: Mapping[str, Any]) -> None:
    """Refuse a configuration without a setting that every configuration has."""
    for where, node, keys in (("", config, _ALWAYS), ("runtime.", config.get("runtime"), _ALWAYS_RUNTIME)):
        for key in keys:
            if isinstance(node, dict) and key not in node:
                raise UserError(f"{where}{key} cannot be left out; give it a value, or leave it as it is.")


def _check_kinds(config: Mapping[str, Any], is_resolved: bool) -> None:
    """Refuse settings of the wrong type."""
    for path, (kind, description) in _KINDS.items():
        node: Any = config
        for key in path.split("."):
            node = node.get(key)
        if not is_resolved and _refers(node):
            continue
        if not isinstance(node, kind) or (kind is int and isinstance(node, bool)):
            raise UserError(f"{path} = {_short(node)} must be {description}.")


def _check_names(config: Mapping[str, Any]) -> None:
    """Refuse names that cannot be those of folders and files, and two that differ in capitals alone."""
    groups = {"the method": config["methods"]}
    for group in _NAMED:
        if isinstance(config["report"].get(group), dict):
            groups[f"report.{group}:"] = config["report"][group]
    for what, group in groups.items():
        names: dict[str, str] = {}
        for name in group:
            twin = names.setdefault(checked_name(name, what).lower(), name)
            if twin != name:
                raise UserError(
                    f"{what} {name} has the files of {twin} where capitals make no difference; rename one."
                )


def _check_sweep(metrics: Any) -> None:
    """Refuse metrics of a sweep that YAML reads as something else than a name: ``[off, bias]``."""
    for metric in metrics if isinstance(metrics, list) else ():
        if not isinstance(metric, str):
            raise UserError(
                f"report.sweep = {_short(metrics)} must be a list of names of metrics, and {metric!r} is none; put a "
                "name that YAML reads as a number or a truth value, such as off, in quotes."
            )


def _check_colours(colours: Any, is_resolved: bool) -> None:
    """Refuse shared colours that are no lists of methods, and a method with two."""
    first: dict[Any, str] = {}
    for name, methods in colours.items() if isinstance(colours, dict) else ():
        if not is_resolved and _refers(methods):
            continue
        if not isinstance(methods, list) or not all(isinstance(method, str) for method in methods):
            raise UserError(f"report.colours.{name} = {_short(methods)} must be a list of methods.")
        for method in methods:
            if (other := first.setdefault(method, name)) != name:
                raise UserError(
                    f"report.colours: {method} has two colours, {other} and {name}; leave one out."
                )


def _check_groups(config: Mapping[str, Any]) -> None:
    """Refuse an experiment without data or a model, and methods without a kernel or schedules."""
    for name in ("data", "model"):
        has_own = [
            isinstance(method, dict) and bool(method.get(name)) for method in config["methods"].values()
        ]
        is_needed = not all(has_own) if has_own else not config["report"]
        if is_needed and "_target_" not in config[name]:
            raise UserError(f"the experiment has no {name}; choose one in its defaults (/{name}: NAME).")
    for name, method in config["methods"].items():
        for part in ("kernel", "schedules"):
            if not isinstance(method, dict) or not isinstance(method.get(part), dict):
                raise UserError(f"methods.{name} has no {part}; begin from a method in conf/method.")


def _check_runtime(runtime: Mapping[str, Any]) -> None:
    """Refuse invalid threads, jobs and block_seconds, even if the run exists already."""
    for name in ("threads", "jobs"):
        count = runtime[name]
        if (
            not (isinstance(count, int) and is_number(count) and count > 0)
            and count is not None
            and not _refers(count)
        ):
            raise UserError(f"runtime.{name} = {_short(count)} must be a whole number, at least 1, or null.")
    seconds = runtime["block_seconds"]
    if not _refers(seconds) and not (is_number(seconds) and 0 <= seconds < float("inf")):
        raise UserError(f"runtime.block_seconds = {_short(seconds)} must be a number, at least 0.")


def _refers(value: Any) -> bool:
    """Return whether a value is a ${...} that is not resolved yet."""
    return isinstance(value, str) and "${" in value


def _short(value: Any) -> str:
    return cut("null" if value is None else repr(value))
