"""Identity of runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mhrun.store.sources import names_of_sources

FORMAT = 3
"""Version of the layout of run folders and traces; 1 is that of mhrun 0.1, 2 that of development versions of 0.2."""

RESULTS_VERSION = 2
"""Raised when a distribution or a random number changes on purpose: runs of different versions are different runs.

1. Version 0.1.0.
2. Minibatches without replacement are exactly uniform (they were pseudo-random permutations), and tests that estimate
   the noise of such a minibatch know that it vanishes as the minibatch becomes all data. Refreshed momenta of the
   symmetric splitting get half a kick.
"""

# Settings that may differ from a paper's without making it another experiment.
_FREE = ("seed", "device", "executor", "data.storage", "data.seed")
# Settings that change no computed number, but for rounding with another number of threads: places and presentation.
_COSMETIC = ("runtime", "report", "scales", "title", "reproduces")
COUNTS = ("chains", "warmup", "steps", "thin", "thin_stats")  # of an experiment, or of one of its methods
CONSTANTS = ("step_size", "temperature", "noise_temperature")  # schedules of a method that may be numbers
PARTS = ("model", "data", "target")  # of an experiment, which a method may replace, see `parts_of`
_SHARED = ("seed", "dtype", "precision", "device", "executor")  # of an experiment, for all of its methods


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a resolved configuration that determines the numbers."""
    decisive = {key: value for key, value in config.items() if key not in _COSMETIC}
    decisive["methods"] = {
        name: {key: value for key, value in method.items() if key != "label"}
        for name, method in (config.get("methods") or {}).items()
    }
    return decisive


def parts_of(config: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the model, the data and the target's settings of a method.

    A method's model and data replace the experiment's. Its settings of the target are added to the experiment's, and
    override those of the same name.
    """
    node = config["methods"][method]
    parts = {part: node.get(part) or config.get(part) for part in PARTS}
    shared_target, own_target = config.get("target"), node.get("target")
    if isinstance(shared_target, Mapping) and isinstance(own_target, Mapping):
        parts["target"] = {**shared_target, **own_target}
    return parts


def digest(config: Mapping[str, Any]) -> str:
    """Return the name of the run of this configuration: twelve hexadecimal digits.

    1e5 and 100000 are one number; another version of the layout or of the random numbers is another run.
    """
    settings = identity(config)
    for name, node in settings["methods"].items():
        target = parts_of(config, name)["target"]
        if node.pop("target", None) and target != config.get("target"):
            node["target"] = target
    return _digest(settings)


def _digest(content: Mapping[str, Any]) -> str:
    decisive = {"format": FORMAT, "results": RESULTS_VERSION} | _plain(content)
    text = json.dumps(decisive, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def method_digest(config: Mapping[str, Any], name: str, *, any_steps: bool = False) -> str:
    """Return the digest of a method's computation: twelve hexadecimal digits.

    With `any_steps` it does not depend on the number of steps after burn-in.

    Two runs in which it is the same have the same trace of that method, bit for bit: its name (which its random numbers
    depend on), kernel, schedules, starts and counts, its model, data, target and monitor, seed, number type, device,
    executor, and those of the user's own files that it uses.
    """
    settings = identity(config)
    node = settings["methods"][name]
    content = parts_of(settings, name)
    content |= {key: settings.get(key) if node.get(key) is None else node[key] for key in COUNTS}
    content["monitor"] = {**(settings.get("monitor") or {}), **(node.get("monitor") or {})}
    content |= {key: settings.get(key) for key in _SHARED}
    content["sources"] = _sources_of(settings, name)
    content["method"] = {key: value for key, value in node.items() if key not in content}
    if any_steps:
        del content["steps"]
    return _digest({"name": name, **content})


def _sources_of(settings: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """Return the digests of the user's files that a method uses, or None if the run uses none."""
    if not (recorded := settings.get("sources")):
        return None
    parts = parts_of(settings, name)
    names = names_of_sources({**settings, **parts, "methods": {name: settings["methods"][name]}})
    return {file: digest for file, digest in recorded.items() if file in names}


def departures(config: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Return how a configuration differs from `reference`, one line per setting.

    Settings that do not concern the algorithm are left out, and so are methods that only one of them has.
    """
    settings, reference_settings = (dict(_leaves(_plain(identity(one)))) for one in (config, reference))
    common = set(config["methods"]) & set(reference["methods"])
    lines = []
    for path in sorted({**settings, **reference_settings}, key=lambda path: (path != "scale", path)):
        first, _, rest = path.partition(".")
        if (
            path in _FREE
            or first == "sources"
            or (first == "methods" and rest.partition(".")[0] not in common)
        ):
            continue
        value, paper = settings.get(path, "absent"), reference_settings.get(path, "absent")
        if value != paper:
            lines.append(f"{path} = {value}" + ("" if path == "scale" else f" (paper: {paper})"))
    return lines


def differences(config: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a configuration that at least one other does not share: path -> value.

    Settings that change no number are left out. Those of the experiment come before those of its parts.
    """
    settings = dict(_leaves(_plain(identity(config))))
    paths = set()
    for other in others:
        other_settings = dict(_leaves(_plain(identity(other))))
        paths |= {path for path, value in settings.items() if other_settings.get(path, "absent") != value}
    paths = {path for path in paths if path.partition(".")[0] not in ("scale", "sources")}
    return {path: settings[path] for path in sorted(paths, key=lambda path: (path.count("."), path))}


def distinguishing(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each configuration the settings that distinguish it from the others: path -> value.

    Settings that change no number are left out, and so are those that follow from the scale, and settings of parts
    that follow from ones that are returned, as ``methods.sgld.kernel.m`` from ``m``. Of a setting that some of the
    configurations lack, only the others have a value. ``methods`` is the list of their names; ``data`` and ``model``
    are the names of their classes.
    """
    leaves = [
        {
            "methods": list(config.get("methods") or {}),
            **{part: name for part in ("data", "model") if (name := _class_name(config.get(part)))},
            **{
                path: value
                for path, value in _leaves(_plain(identity(config)))
                if path not in ("data._target_", "model._target_")
            },
        }
        for config in configs
    ]
    scales = [(_hashable(settings.get("scale")),) for settings in leaves]
    # What explains other settings: not a seed, which may differ in each
    known: list[tuple[str, ...]] = list(scales)
    found: list[dict[str, Any]] = [{} for _ in configs]
    paths = {path for settings in leaves for path in settings if path.partition(".")[0] != "sources"}
    for path in sorted(paths, key=lambda path: (path.count("."), path)):
        values = [_hashable(settings.get(path, "absent")) for settings in leaves]
        given = known if "." in path else [()] * len(leaves) if path == "seed" else scales
        if len(set(zip(given, values, strict=True))) == len(set(given)):  # one value for each: it follows
            continue
        if path != "seed":
            known = [(*one, value) for one, value in zip(known, values, strict=True)]
        for settings, shown in zip(leaves, found, strict=True):
            if path in settings:
                shown[path] = settings[path]
    return found


def _class_name(part: Any) -> str:
    """Return the name of the class of a part in a configuration, without its module; empty if there is none."""
    return str(part.get("_target_") or "").rpartition(".")[2] if isinstance(part, Mapping) else ""


def _hashable(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node
