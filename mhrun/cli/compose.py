"""From words to a resolved configuration, through Hydra, with errors for people."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra import initialize_config_dir
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun import units
from mhrun.cli.file_settings import check_runtime_of_files
from mhrun.cli.hydra_settings import LAUNCHER, check_node, is_of_hydra
from mhrun.cli.loader import Loader
from mhrun.cli.own import NAME, is_own, own_words
from mhrun.cli.places import endless_defaults, experiments
from mhrun.cli.resolution import bounded, decoded, environment, name_part, power
from mhrun.cli.settings import OF_A_METHOD, check_known, check_settings
from mhrun.cli.unread import check_read, taken_settings
from mhrun.cli.words import parsed
from mhrun.errors import UserError, nearest
from mhrun.names import checked_name
from mhrun.paths import CONF
from mhrun.store.identity import COUNTS, departures
from mhrun.store.sources import sources

_CHOICES = 8  # parts of a group that a message names


def version_base() -> dict[str, str]:
    """Return the argument that Hydra 1.3 wants and later versions do not."""
    major, minor = (int(part) for part in hydra.__version__.split(".")[:2])
    return {"version_base": "1.3"} if (major, minor) < (1, 4) else {}


def register_resolvers() -> None:
    """Teach OmegaConf the arithmetic that configurations use."""
    resolvers: dict[str, Callable[..., Any]] = {
        "times": lambda a, b: a * b,
        "power": power,
        "batch_size": units.batch_size,
        "mint_temperature": units.mint_temperature,
        "learning_rate": units.step_from_learning_rate,
        "learning_rate_steps": units.learning_rate_steps,
        "ladder": units.ladder,
        "over_rungs": units.over_rungs,
        "batch_sizes": units.batch_sizes,
        "batch_temperatures": units.batch_temperatures,
        "first_axis": units.first_axis,
    }
    for name, function in resolvers.items():
        OmegaConf.register_new_resolver(name, _of_numbers(function), replace=True)
    OmegaConf.register_new_resolver("learning_rates", units.steps_from_learning_rates, replace=True)
    OmegaConf.register_new_resolver("name_part", name_part, replace=True)
    OmegaConf.register_new_resolver("oc.env", environment, replace=True)
    OmegaConf.register_new_resolver("oc.decode", decoded, replace=True)
    OmegaConf.register_new_resolver("oc.create", _no_create, replace=True)


def _no_create(text: Any) -> Any:
    raise UserError("oc.create is not one of mhrun's resolvers; write the values themselves.")


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(function).parameters)

    def checked(*values: Any) -> Any:
        for name, value in zip(names, values, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(
                    f"{name} = {value!r} must be a number."
                    if len(name) > 1
                    else f"{value!r} must be a number."
                )
        return function(*values)

    return checked


def compose_config(
    words: Sequence[str], folders: Sequence[Path] = (), *, compare: bool = True, check: bool = False
) -> dict[str, Any]:
    """Return the resolved configuration of these overrides, as plain dictionaries.

    Args:
        words: overrides.
        folders: the user's.
        compare: note what it has other than the settings of the paper.
        check: refuse overrides that nothing reads.

    Raises:
        UserError: an override that means nothing, or a setting that has no meaning.
    """
    register_resolvers()
    try:
        if own := is_own(words):
            words, lines = own_words(words, lambda overrides: resolved(composed(overrides, folders), NAME))
            for line in lines if compare else ():
                print(f"mhrun: {line}", file=sys.stderr)
        config = composed(words, folders)
        plain = resolved(config, NAME if own else config.hydra.runtime.choices.get("experiment"))
        if check:
            check_read(words, config, lambda overrides: composed(overrides, folders))
        check_runtime_of_files(plain["runtime"], words)
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, words, folders) from error
    return compared(plain, reference_of(plain, folders)) if compare else plain


def reference_of(config: Mapping[str, Any], folders: Sequence[Path] = ()) -> dict[str, Any] | None:
    """Return the configuration at which the experiment's claims are judged: its own, at scale=paper."""
    if not (config.get("report") or {}).get("paper"):
        return None
    return (_reference if folders else _kept_reference)(str(config["experiment"]), tuple(folders))


def _reference(experiment: str, folders: tuple[Path, ...]) -> dict[str, Any]:
    return resolved(composed([f"experiment={experiment}", "scale=paper"], folders), experiment)


_kept_reference = lru_cache(maxsize=None)(
    _reference
)  # of our own files, which a sweep would read for each job


def compared(config: dict[str, Any], reference: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the configuration with a note of what it has other than its reference."""
    changes = None if reference is None else departures(config, reference)
    return config | {"runtime": config["runtime"] | {"departures": changes}}


def resolved(config: DictConfig, experiment: str | None) -> dict[str, Any]:
    """Return a composed configuration as plain dictionaries, with the name of its experiment filled in.

    Raises:
        UserError: no experiment was named, or a value that must be given was not.
    """
    if experiment is None:
        raise UserError("No experiment is named; use mhrun experiment=NAME (mhrun list shows the names).")
    checked_name(experiment, "the experiment")
    plain = OmegaConf.create({key: value for key, value in config.items_ex(resolve=False) if key != "hydra"})
    plain.experiment = experiment
    try:
        unresolved = OmegaConf.to_container(plain, resolve=False)
        if isinstance(config.get("experiment"), DictConfig):
            raise UserError(f"experiment/{experiment}.yaml lacks its first line: # @package _global_")
        check_settings(unresolved, is_resolved=False)
        check_known(unresolved)
        with bounded():
            if _has_missing(unresolved) and (missing := sorted(map(str, OmegaConf.missing_keys(plain)))):
                raise UserError(f"{', '.join(missing)} must be given; add {missing[0]}=VALUE.")
            settings: dict[str, Any] = OmegaConf.to_container(plain, resolve=True)  # type: ignore[assignment]
        check_settings(settings)
    except RecursionError as error:
        raise UserError("these settings are too deep: groups, lists or ${...} in one another.") from error
    except (OmegaConfBaseException, UserError) as error:
        if (ours := cause(error)) is error:
            raise
        if ours is not None:
            raise ours from error
        if found := re.search(r"Interpolation key 'scales\.([^'.]+)", str(error)):
            raise UserError(
                f"There is no scale '{found[1]}'; choose {', '.join(plain.scales) or 'none'}."
                f"{nearest(found[1], map(str, plain.scales))}"
            ) from error
        if found := re.search(r"Interpolation key '([\w.]+)' not found", str(error)):
            by = re.search(r"full_key: ([\w.]+)", str(error))
            raise UserError(
                f"'{found[1]}'{f', which {by[1]} takes,' if by else ''} is not given; add +{found[1]}=VALUE."
            ) from error
        raise UserError(_first_line(error)) from error
    digests = sources(settings)
    return settings | {"sources": digests} if digests else settings


def _has_missing(node: Any) -> bool:
    """Return whether a value is ??? in settings that are not resolved, which `OmegaConf.missing_keys` resolves."""
    if isinstance(node, dict):
        return any(map(_has_missing, node.values()))
    return any(map(_has_missing, node)) if isinstance(node, list) else node == "???"


def search_path(folders: Sequence[Path]) -> list[str]:
    """Return the override that lets Hydra find what is in the user's folders, through `ProjectSource`."""
    quoted = (str(folder.resolve()).replace("'", "\\'") for folder in folders)
    places = ",".join(f"'mhrun://{folder}'" for folder in quoted)
    return [f"hydra.searchpath=[{places}]"] if folders else []


def composed(
    words: Sequence[str], folders: Sequence[Path] = (), name: str = "config", *, multirun: bool = False
) -> DictConfig:
    """Return the configuration of these overrides as Hydra has it, not yet resolved.

    Args:
        words: overrides.
        folders: the user's.
        name: the primary configuration.
        multirun: as Hydra's own sweeper has it for all jobs, where some words have several values.

    Raises:
        UserError: words or files that cannot be put together, or a file that sets what of Hydra's does not count.
        HydraException: other words that Hydra cannot put together; `explained` makes a line of it.
    """
    overrides = parsed(words)
    for override in overrides:
        _check_choice(override, folders)
    of_hydra = [is_of_hydra(override) for override in overrides]
    hydra_words = [word for word, is_hydra in zip(words, of_hydra, strict=True) if is_hydra]
    task = [word for word, is_hydra in zip(words, of_hydra, strict=True) if not is_hydra]
    place = search_path(folders)
    config = _composed(words, place, name, folders, multirun)
    node: Any = OmegaConf.to_container(config.hydra, resolve=False)
    launcher = node["runtime"]["choices"].get(LAUNCHER)
    if not isinstance(launcher, str):
        raise UserError("hydra/launcher is the name of a launcher, such as basic or joblib.")
    try:
        plain = _plain_hydra(
            name, launcher, tuple(word for word in hydra_words if not word.startswith(LAUNCHER))
        )
    except HydraException as error:
        raise explained(error, words, ()) from error
    check_node(node, plain, [*hydra_words, *place], task)
    return config


def _check_choice(override: Override, folders: Sequence[Path]) -> None:
    """Refuse an override that gives a value, which is no name, where the name of a part is due.

    Raises:
        UserError: ``monitor={every: 10}`` or ``data=null``, for example.
    """
    group, line = str(override.key_or_group), override.input_line or ""
    names = sorted(p.stem for place in [CONF, *folders] for p in (place / group).glob("*.yaml"))
    if not names or override.is_delete() or override.is_sweep_override():
        return
    value = override.value()
    if isinstance(value, str | list):
        return
    key, _, text = line.lstrip("+").partition("=")
    choices = f"{', '.join(names[:_CHOICES])}{', ...' * (len(names) > _CHOICES)}"
    settings = (
        [f"{override.package or group}.{name}=VALUE" for name in value] if isinstance(value, dict) else []
    )
    add = "" if group == "experiment" else f", or +{key}=NAME where there is none yet"
    also = f", and set {', '.join(settings)}" if settings else ""
    raise UserError(f"{key} = {text} names no {group}: choose one of {choices} with {key}=NAME{add}{also}.")


def _composed(
    words: Sequence[str], place: Sequence[str], name: str, folders: Sequence[Path], multirun: bool
) -> DictConfig:
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), "mhrun", **version_base()):
            mode = RunMode.MULTIRUN if multirun else RunMode.RUN
            return Loader(create_config_search_path(str(CONF))).load_configuration(
                name, [*words, *place], mode, from_shell=False
            )
    except RecursionError as error:
        raise UserError(endless_defaults(words, folders)) from error
    except (HydraException, OmegaConfBaseException) as error:
        if isinstance(error.__context__, RecursionError):
            raise UserError(endless_defaults(words, folders)) from error
        raise
    except (TypeError, AssertionError) as error:  # a group that is set to numbers
        raise UserError(
            "these settings cannot be put together: a group, such as data or model, takes the name of one of its "
            "files (data=mixture)."
        ) from error
    except (ValueError, KeyError, AttributeError, IndexError, OSError, yaml.YAMLError) as error:
        # What Hydra raises of settings of a kind that it does not expect, such as a group that is set to nothing.
        raise UserError(f"these settings cannot be put together: {_first_line(error)}") from error


@lru_cache(maxsize=64)
def _plain_hydra(name: str, launcher: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Return Hydra's settings without any file of the user's."""
    config = _composed([f"{LAUNCHER}={launcher}", *words], (), name, (), False)
    settings: Any = OmegaConf.to_container(config.hydra, resolve=False)
    return dict(settings)


def cause(error: BaseException) -> UserError | None:
    """Return the error of ours that a library's error is wrapped around; the innermost, as libraries add lines."""
    innermost: UserError | None = None
    link: BaseException | None = error
    visited = set[int]()
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        innermost = link if isinstance(link, UserError) else innermost
        link = link.__cause__ or link.__context__
    return innermost


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


_INSTALLED = {"joblib": "hydra-joblib-launcher", "submitit": "hydra-submitit-launcher", "ray": "ray"}


def explained(
    error: Exception, words: Sequence[str], folders: Sequence[Path], name: str = "config"
) -> UserError:
    """Return what Hydra could not do with some words for the configuration `name`, in one line for people."""
    if (ours := cause(error)) is not None:
        return ours
    text = " ".join(str(error).split())
    if (found := re.search(r"[Cc]ould not (?:find|load) '?experiment/([^'.\s]+)", text)) or (
        found := re.search(r"In 'config': Could not find 'experiment/([^']+)'", text)
    ):
        return UserError(
            f"There is no experiment '{found[1]}'.{nearest(found[1], experiments(folders))} "
            f"mhrun list shows the experiments{'' if folders else '; one of a project needs --project FOLDER'}."
        )
    if (found := re.search(r"(?:Multiple values for \S*|^\S*)@methods\.(\w+)\.", text)) and (
        word := next((w for w in words if f"@methods.{found[1]}=" in w), None)
    ):
        method, choice = found[1], word.rpartition("=")[2]
        return UserError(
            f"There is a method '{method}' already; set its parts (methods.{method}.KEY=VALUE), or add another one: "
            f"+method@methods.{method}_2={choice}."
        )
    if found := re.search(r"Could not find '([^']+)'", text):
        group, _, choice = found[1].rpartition("/")
        if needs := _INSTALLED.get(choice.split("_")[0]) if group == "hydra/launcher" else None:
            return UserError(f"The launcher '{choice}' is not installed; pip install {needs}.")
        choices = [p.stem for place in [CONF, *folders] for p in (place / group).glob("*.yaml")]
        if group == "hydra/launcher":
            choices += ["basic", "joblib", "submitit_local"]  # of Hydra, and of what is installed beside it
        if not choices:
            groups = sorted(
                {p.name for place in [CONF, *folders] for p in place.glob("[!_.]*") if p.is_dir()}
            )
            return UserError(
                f"There is no group '{group}' of {choice!r}.{nearest(group, groups)} The groups are "
                f"{', '.join(groups)}."
            )
        return UserError(
            f"There is no {group} '{choice}'.{nearest(choice, choices)} There are: {', '.join(sorted(choices))}."
        )
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^=']+)=(.*?)'(?= |$)", text):
        key, values = found[1], found[2]
        list_hint = "" if "(" in values else f"; one list is {key}=[{values}]"
        return UserError(f"{key} is given several values; mhrun -m runs each of them{list_hint}.")
    if found := re.search(r"Error merging override \+*([^=\s]+)=(.*)", text):
        return UserError(
            f"{found[1]}={found[2]} does not fit: '{found[1]}' is a group of settings; set one of them "
            f"({found[1]}.KEY=VALUE). --cfg job shows them."
        )
    if found := re.search(r"Could not delete from config\. '([^']+)' does not exist", text):
        return UserError(f"~{found[1]} removes nothing: {_members(found[1], words, folders, name)}")
    for word in words:
        key = word.lstrip("+~").split("=", 1)[0]
        if "@" in key and f"To append to your default list use +{word}" in text:
            return UserError(f"{word} replaces a part that is not there; to add it, write +{word}.")
        if key and re.search(rf"(?:override|key|Key)[^']*'{re.escape(key)}'", text):
            return UserError(f"There is no setting '{key}'.{_nearest_key(key, words, folders, name)}")
    return UserError(_first_line(error))


def _nearest_key(key: str, words: Sequence[str], folders: Sequence[Path], name: str) -> str:
    """Return the setting that a misspelt key most likely means: all of it, or its last part."""
    # With the methods that the words add and without those that they remove
    of_methods = ("experiment=", "+method@", "~methods.")
    experiment_words = [word for word in words if word.startswith(of_methods) and name == "config"]
    try:
        config = OmegaConf.to_container(composed(experiment_words, folders, name), resolve=False)
    except (HydraException, OmegaConfBaseException, UserError):
        return ""
    keys = [k for k in _keys(config) if not k.startswith("hydra")]  # type: ignore[arg-type]
    if key in keys and any(word.startswith(f"+{key}=") for word in words) and not _is_group(config, key):
        return f" It is there already: write {key}=VALUE, without the +."
    if key in keys:  # a group of parts, of which the experiment has chosen none
        return f" If you mean to add a part, write +{key}=NAME."
    leaf = key.rpartition(".")[2]
    if name == "check" and (setting := _of_a_part(key, words, folders)):
        return f" Did you mean '{setting}'?"
    same_leaf = [k for k in keys if k.rpartition(".")[2] == leaf]
    if (method_setting := _of_methods(key)) is not None:
        method = key.split(".")[1]
        methods = [str(member) for member in config.get("methods") or {}]  # type: ignore[union-attr]
        if methods and method not in methods:
            return f"{nearest(method, methods)} The methods are {', '.join(methods)}."
        if method_setting in COUNTS:
            return f" All methods have the experiment's {method_setting}; for one with another, write +{key}=VALUE."
        if of_others := [k for k in same_leaf if _of_methods(k) == method_setting]:
            return f" '{of_others[0]}' is one; to set it here too, write +{key}=VALUE."
        if "." not in method_setting and (
            close := difflib.get_close_matches(method_setting, OF_A_METHOD, 1, 0.6)
        ):
            same_leaf = [f"+methods.{method}.{close[0]}"]
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == key.rpartition(".")[0]}
    close_siblings = [siblings[k] for k in difflib.get_close_matches(leaf, siblings, 1, 0.6)]
    candidates = [k for k in keys if not key.startswith(f"{k}.")]
    close = close_siblings or same_leaf or difflib.get_close_matches(key, candidates, 1, 0.6)
    shows = "mhrun experiment=NAME --cfg job shows them all."
    if name == "check":
        shows = (
            "check has checks, seed, chains, step_size, n, m and effective, and what a part has as rule.KEY."
        )
    return f" Did you mean '{close[0]}'?" if close else f" {shows}"


def _of_a_part(key: str, words: Sequence[str], folders: Sequence[Path]) -> str:
    """Return the word that sets `key` of a part that the words of a check name, empty if no part takes it."""
    value = next(
        (word.partition("=")[2] for word in words if word.lstrip("+").startswith(f"{key}=")), "VALUE"
    )
    for word in words:
        part = word.partition("=")[0]
        if part not in ("rule", "pairing", "proposal", "dynamics", "method"):
            continue
        try:
            node: Any = OmegaConf.to_container(composed([word], folders, "check"), resolve=False)
        except (HydraException, OmegaConfBaseException, UserError):
            continue
        for path, takes in taken_settings(node[part], part):
            if key in takes:
                is_set = f"{path}.{key}" in _keys(node)
                return f"{'' if is_set else '+'}{path}.{key}={value}"
    return ""


def _of_methods(key: str) -> str | None:
    """Return what a key sets of a method, without the method's name; None if it is not of a method."""
    group, _, rest = key.partition(".")
    _, _, setting = rest.partition(".")
    return setting if group == "methods" and setting else None


def _members(key: str, words: Sequence[str], folders: Sequence[Path], name: str) -> str:
    """Return what the group of a key has, where the key itself is not in it."""
    experiment_words = [word for word in words if word.startswith("experiment=") and name == "config"]
    group, _, leaf = key.rpartition(".")
    try:
        config: Any = OmegaConf.to_container(composed(experiment_words, folders, name), resolve=False)
        for part in group.split(".") if group else []:
            config = config[part]
        members = [str(member) for member in config]
    except (HydraException, OmegaConfBaseException, UserError, KeyError, TypeError):
        return f"there is no '{key}'."
    return f"{group or 'the configuration'} has {', '.join(members)}.{nearest(leaf, members)}"


def _is_group(config: Any, key: str) -> bool:
    """Return whether a key of a configuration holds settings, or nothing yet."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config is None or isinstance(config, Mapping)


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")
