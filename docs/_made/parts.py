"""What pages say of parts and methods, read from the configuration and the docstrings, so that it cannot go stale."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import griffe
import hydra
import yaml
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
# The groups of configuration whose files name one class each, and what a part of the group does.
GROUPS = {
    "proposal": "Draws a candidate and returns its proposal log-density.",
    "pairing": "Chooses the data on which the two points of an acceptance test are evaluated.",
    "rule": "Accepts or rejects the candidate, given the log-ratio.",
    "dynamics": "Moves without an acceptance test.",
    "schedule": "Sets the step size, the temperatures and the draws that are collected, step by step.",
    "prior": "A prior of a method's own, beside the model's.",
    "monitor": "Metrics computed while the chains run.",
    "model": "A prior, and the log-likelihood of single data.",
    "data": "Data sets.",
}


class Knob(NamedTuple):
    """A setting of a part."""

    name: str
    value: Any  # as the configuration has it, or the class
    meaning: str


def names(group: str) -> list[str]:
    """Return the names that a group of configuration offers."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def first_comment(group: str, name: str) -> str:
    """Return the description of a configuration file: the comment at its head."""
    lines = []
    for line in (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def composed(group: str, name: str) -> dict[str, Any]:
    """Return a file of a group with its defaults, as Hydra composes it; references stay unresolved."""
    return dict(_composed(group)[name])


@cache
def _composed(group: str) -> dict[str, Any]:
    """Return all files of a group. Composing ten at once is faster than one by one, and than all together."""
    found: dict[str, Any] = {}
    every = names(group)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        for first in range(0, len(every), 10):
            words = [f"+{group}@found.{name}={name}" for name in every[first : first + 10]]
            config = hydra.compose(overrides=words)
            found.update(OmegaConf.to_container(config.found, resolve=False))  # type: ignore[arg-type]
    return found


@cache
def every_method() -> dict[str, Any]:
    """Return the configurations of all methods in one experiment, with settings where they need some."""
    from mhrun.cli.configuration.compose import compose_config

    known = {
        "rungs": 2,
        "ratio": 2.0,
        "c": 0.1,
        "every": 5,
        "epoch": 50,
        "m": 10,
        "step_size": 0.1,
        "chi": 0.1,
    }
    words = [f"+method@methods.{name}={name}" for name in names("method")]
    words += [f"+{key}={value}" for key, value in known.items()]
    words += [f"methods.cmint.schedules.step_size.{key}=4" for key in ("cycle", "every")]
    config = compose_config(["data=gaussian", "model=gaussian_mean", "data.n=100", *words], compare=False)
    return dict(config["methods"])


@cache
def kinds() -> dict[str, str]:
    """Return whether each method is exact, approximate or an optimiser, as its kernel declares it."""
    from mhrun.build import build
    from mhrun.kernels.stationary import Samples

    found = {}
    for name, method in every_method().items():
        kernel = build(method["kernel"], name)
        about = kernel.stationary or {"distribution": None, "m": None}
        found[name] = Samples(about["distribution"], about["m"], 1.0, False, kernel.optimises).kind
    return found


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the node of everything with a ``_target_``, from the outside in."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from nodes(value, f"{path}.{key}".lstrip("."))


def knobs(node: Mapping[str, Any]) -> list[Knob]:
    """Return the settings of a node: those of its file first, then those that only its class has."""
    described = meanings(str(node["_target_"]))
    parameters = {p.name: p for p in of_package(str(node["_target_"])).parameters if p.name != "self"}
    found = [
        Knob(key, value, described.get(key, ""))
        for key, value in node.items()
        if key != "_target_" and not (isinstance(value, Mapping) and "_target_" in value)
    ]
    there = set(node)
    for name, parameter in parameters.items():
        if name not in there and parameter.default is not None:
            found.append(Knob(name, yaml.safe_load(_plain(str(parameter.default))), described.get(name, "")))
    return found


def summary(target: str) -> str:
    """Return the first line of a class's docstring."""
    docstring = of_package(target).docstring
    return docstring.value.split("\n")[0] if docstring else ""


@cache
def meanings(target: str, kind: Any = griffe.DocstringSectionKind.parameters) -> dict[str, str]:
    """Return the descriptions of the arguments of a class, or of its attributes, from its docstring."""
    docstring = of_package(target).docstring
    sections = docstring.parse("google") if docstring else []
    return {
        argument.name: " ".join(argument.description.split())
        for section in sections
        if section.kind is kind
        for argument in section.value
    }


def info_fields() -> list[tuple[str, str]]:
    """Return the statistics of a step with their descriptions in `mhrun.types`."""
    return [(name, comment) for name, _, comment in fields("Info") if comment]


def fields(name: str) -> list[tuple[str, str, str]]:
    """Return the fields of a named tuple of `mhrun.types`: name, type, and the comment beside it or above."""
    value = meanings(f"mhrun.types.{name}", griffe.DocstringSectionKind.attributes)
    return [
        (node.target.id, ast.unparse(node.annotation), comment or value.get(node.target.id, ""))
        for node, comment in _annotated(of_package(f"mhrun.types.{name}"))
    ]


def _annotated(found: Any) -> Iterator[tuple[Any, str]]:
    """Yield the annotated assignments of a class body, each with the comment beside it or above."""
    source = textwrap.dedent(found.source)
    tree, lines = ast.parse(source).body[0], source.splitlines()
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above, own = lines[node.lineno - 2].strip(), lines[node.lineno - 1 : node.end_lineno]
            comment = " ".join(line.partition("# ")[2] for line in own).strip()
            yield node, comment or above.removeprefix("# ") * above.startswith("# ")


def members(name: str, only: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Return what a class of `mhrun.types` has, each with its first paragraph: properties, methods as they are called.

    A name with a dot is of another module, ``random.Draws``; its attributes with a comment are shown with their
    defaults. `only` names the members wanted.
    """
    found = of_package(f"mhrun.{name if '.' in name else f'types.{name}'}")
    declared = {node.target.id: (node, comment) for node, comment in _annotated(found) if "." in name}
    rows = []
    for key, member in found.members.items():
        node, comment = declared.get(key, (None, ""))
        if key.startswith("_") or not (member.docstring or comment) or (only and key not in only):
            continue
        if comment:
            text = comment[0].upper() + comment[1:]
            key = f"{key} = {ast.unparse(node.value)}" if node.value is not None else key
        elif member.is_function:
            arguments = [part.name for part in member.parameters if part.name not in ("self", "cls")]
            key = f"{key}({', '.join(arguments)})"
        elif "property" not in member.labels:
            continue
        if not comment:
            required = any(str(mark.value) == "abstractmethod" for mark in getattr(member, "decorators", ()))
            text = "Required. " * required + " ".join(member.docstring.value.partition("\n\n")[0].split())
        rows.append((key, text))
    return rows


def targets(group: str) -> list[str]:
    """Return the classes that the files of a group name; of "kernel", those of all methods."""
    if group == "kernel":
        found = (composed("method", name)["kernel"]["_target_"] for name in names("method"))
    else:
        found = (composed(group, name).get("_target_", "") for name in names(group))
    return [target for target in dict.fromkeys(map(str, found)) if target]


def floors() -> list[list[tuple[str, str]]]:
    """Return the packages by layer, the highest first, each with its description."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[(room.strip(), _first_line(room.strip())) for room in layer.split("|")] for layer in layers]


def _first_line(room: str) -> str:
    module = _package()[room]
    return module.docstring.value.split("\n")[0] if module.docstring else ""


@cache
def _package() -> Any:
    return griffe.load("mhrun", search_paths=[ROOT], allow_inspection=False)


def of_package(target: str) -> Any:
    """Return a class or a function of the package, read without importing it."""
    try:
        found = _package()[target.removeprefix("mhrun.")]
    except KeyError as error:
        raise LookupError(f"A file of conf/ names '{target}', and there is no such class.") from error
    return found.final_target if found.is_alias else found


def _plain(text: str) -> str:
    """Return a Python literal as YAML has it."""
    return {"None": "null", "True": "true", "False": "false"}.get(text, text)


@cache
def experiment(name: str) -> dict[str, Any]:
    """Return the file of an experiment as it stands, without what it takes from others."""
    return dict(yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")) or {})
