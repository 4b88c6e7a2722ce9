"""Composes overrides to a resolved configuration, with errors in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun.cli.configuration.composition import composed
from mhrun.cli.configuration.data_settings import fill_in
from mhrun.cli.configuration.file_settings import check_runtime_of_files
from mhrun.cli.configuration.hydra_errors import explained
from mhrun.cli.configuration.replaced import check_replaced
from mhrun.cli.configuration.resolution import bounded
from mhrun.cli.configuration.resolvers import register_resolvers
from mhrun.cli.configuration.settings import check_known, check_settings
from mhrun.cli.configuration.unread import check_read
from mhrun.cli.configuration.without_experiment import NAME, is_own, own_overrides
from mhrun.errors import UserError, cause, nearest, reason
from mhrun.messages import say
from mhrun.names import checked_name
from mhrun.numbers import is_number
from mhrun.paths import EXPERIMENTS, claims_path
from mhrun.store.identity import CONSTANTS, departures
from mhrun.store.sources import sources


def compose_config(
    overrides: Sequence[str],
    folders: Sequence[Path] = (),
    *,
    compare: bool = True,
    check: bool = False,
    is_complete: bool = False,
) -> dict[str, Any]:
    """Return the resolved configuration of these overrides, as plain dictionaries.

    Args:
        overrides: of the command line.
        folders: the user's.
        compare: note what it has other than the settings of the paper.
        check: refuse overrides that nothing reads.
        is_complete: whether data and a model without an experiment have their default method, see
            `with_default_method`.

    Raises:
        UserError: an invalid override or setting.
    """
    register_resolvers()
    try:
        if (own := is_own(overrides)) and not is_complete:
            overrides, lines = with_default_method(overrides, folders)
            for line in lines if compare else ():
                say(line)
        config = composed(overrides, folders)
        _check_schedules(config, overrides)
        plain = resolved(config, NAME if own else config.hydra.runtime.choices.get("experiment"))
        check_replaced(plain, overrides)
        if check:
            check_read(overrides, config, lambda overrides: composed(overrides, folders))
            _check_paper(plain)
        check_runtime_of_files(plain["runtime"], overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, overrides, folders) from error
    return compared(plain, reference_of(plain, folders)) if compare else plain


def with_default_method(overrides: Sequence[str], folders: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Return `own_overrides` of data and a model without an experiment.

    Raises:
        UserError: data that cannot be loaded, invalid settings, or overrides that cannot be composed.
    """
    register_resolvers()
    try:
        return own_overrides(overrides, lambda overrides: resolved(composed(overrides, folders), NAME))
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, overrides, folders) from error


def _check_paper(config: Mapping[str, Any]) -> None:
    """Refuse a paper that has no claims: a run would end without a verdict."""
    paper = (config.get("report") or {}).get("paper")
    if paper and claims_path(str(paper)) is None:
        known = sorted(path.parent.name for path in EXPERIMENTS.glob("*/claims.yaml"))
        raise UserError(
            f"report.paper = '{paper}' has no claims: write experiments/{paper}/claims.yaml in your project "
            f"(--project), or leave it out.{nearest(str(paper), known)}"
        )


def reference_of(config: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any] | None:
    """Return the configuration at which the experiment's claims are judged: its own, at scale=paper.

    None for an experiment of no paper.
    """
    if not (config.get("report") or {}).get("paper"):
        return None
    return (_reference if folders else _kept_reference)(str(config["experiment"]), tuple(folders))


def _reference(experiment: str, folders: tuple[Path, ...]) -> dict[str, Any]:
    return resolved(composed([f"experiment={experiment}", "scale=paper"], folders), experiment)


# References in bundled files, which a sweep would read for each job.
_kept_reference = lru_cache(maxsize=None)(_reference)


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
        check_settings(unresolved, is_resolved=False)
        check_known(unresolved)
        with bounded():
            if _has_missing(unresolved) and (missing := sorted(map(str, OmegaConf.missing_keys(plain)))):
                raise UserError(f"{', '.join(missing)} must be given; add {missing[0]}=VALUE.")
            fill_in(plain)
            settings: dict[str, Any] = OmegaConf.to_container(plain, resolve=True)  # type: ignore[assignment]
        check_settings(settings)
        _fill_in_constants(settings)
    except RecursionError as error:
        raise UserError("these settings are too deep: groups, lists or ${...} in one another.") from error
    except (OmegaConfBaseException, UserError) as error:
        if (user_error := cause(error)) is error:
            raise
        if user_error is not None:
            raise user_error from error
        raise UserError(_of_a_reference(str(error), plain) or reason(error)) from error
    digests = sources(settings)
    return settings | {"sources": digests} if digests else settings


def _check_schedules(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse a schedule on the command line where the experiment has a number, which would be taken instead.

    Raises:
        UserError: there is one.
    """
    for override in overrides:
        place, equals, _ = override.lstrip("+").partition("@")[2].partition("=")
        if override.lstrip("+").startswith("schedule@") and equals:
            value = OmegaConf.select(config, place, throw_on_missing=False)
            if value is not None and not isinstance(value, DictConfig):
                raise UserError(
                    f"{override}: the experiment gives {place} = {value}, which would be taken instead. Give a number "
                    f"({place}=VALUE), or the experiment's file a schedule."
                )


def _fill_in_constants(settings: Mapping[str, Any]) -> None:
    """Put a constant schedule in the place of a number, as ``methods.sgld.schedules.step_size=1e-4`` gives it."""
    for method in settings["methods"].values():
        schedules = method.get("schedules") or {}
        for quantity in CONSTANTS:
            value = schedules.get(quantity)
            if is_number(value) or (quantity == "step_size" and value == "auto"):
                schedules[quantity] = {"_target_": "mhrun.schedules.fixed.Fixed", quantity: value}


def _of_a_reference(text: str, config: DictConfig) -> str | None:
    """Return which ``${...}`` names nothing, from the text of an error of OmegaConf, or None."""
    by = found[1] if (found := re.search(r"full_key: ([\w.]+)", text)) else ""
    if "Recursive interpolation" in text:
        return f"{by}: its ${{...}} leads back to itself."
    scales = [str(name) for name in config.get("scales") or ()]
    unresolved: Any = OmegaConf.to_container(config, resolve=False)
    if unresolved.get("scale") in (None, "") and ("'scales." in text or "${scale}" in text):
        return f"scale is empty; choose {', '.join(scales) or 'none'}."
    if found := re.search(r"Interpolation key 'scales\.([^'.]+)(?:\.([^'.]+))?", text):
        scale, setting = found[1], found[2]
        if scale not in scales:
            return (
                f"There is no scale '{scale}'; choose {', '.join(scales) or 'none'}.{nearest(scale, scales)}"
            )
        settings = [str(name) for name in config.scales[scale] or ()]
        return (
            f"{by} is scales.{scale}.{setting}, which is not given; scales.{scale} has "
            f"{', '.join(settings) or 'no setting'}.{_misspelt(setting, settings)}"
        )
    if found := re.search(r"Interpolation key '([\w.]+)' not found", text):
        if by and found[1] == "data.n":
            return f"{by} is computed from data.n, and the number of these data is no setting; give {by} a value."
        return f"'{found[1]}'{f', which {by} takes,' if by else ''} is not given; add +{found[1]}=VALUE."
    return None


def _misspelt(setting: str, given: Sequence[str]) -> str:
    """Return that one of the given names may be meant, of which either can be misspelt; empty if none is near."""
    close = difflib.get_close_matches(setting, given, n=1, cutoff=0.6)
    return f" Write '{setting}' and '{close[0]}' alike." if close else ""


def _has_missing(node: Any) -> bool:
    """Return whether a value is ??? in settings that are not resolved, which `OmegaConf.missing_keys` resolves."""
    if isinstance(node, dict):
        return any(map(_has_missing, node.values()))
    return any(map(_has_missing, node)) if isinstance(node, list) else node == "???"
