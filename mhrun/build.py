"""From configuration to objects, for trusted names only.

A node with the key ``_target_`` names a class or function and its other keys are the arguments, as in
Hydra. Only what is *defined in* a trusted package can be named: this one, and those the user lists
under ``runtime.trust``. A name that merely passes through a trusted module (``mhrun.paths.os``) is refused.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from mhrun.errors import UserError, nearest


def build(node: Any, trusted: Sequence[str] = (), where: str = "") -> Any:
    """Return `node` with every ``_target_`` in it called, innermost first.

    Args:
        node: plain dictionaries, lists and values.
        trusted: packages allowed besides this one.
        where: the path of the node, for messages.

    Raises:
        UserError: a target that is unknown or not trusted, or arguments it does not take.
    """
    if isinstance(node, Mapping):
        inner = {
            str(key): build(value, trusted, f"{where}.{key}".lstrip("."))
            for key, value in node.items()
            if key != "_target_"
        }
        return _call(str(node["_target_"]), inner, trusted, where) if "_target_" in node else inner
    if isinstance(node, list | tuple):
        return [build(value, trusted, f"{where}[{i}]") for i, value in enumerate(node)]
    return node


def trusted_object(name: str, trusted: Sequence[str] = (), where: str = "") -> Any:
    """Return the class or function called `name`, defined in a trusted package.

    Raises:
        UserError: it is not there, or not trusted.
    """
    allowed = ("mhrun", *trusted)
    at = f"{where}: " if where else ""
    if not _within(name, allowed):
        raise UserError(
            f"{at}'{name}' is not in a trusted package ({', '.join(allowed)}); "
            "if you trust it, add its package: 'runtime.trust=[name]'."
        )
    module_name, _, attribute = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{at}there is no '{name}' ({error}).") from error
    found = getattr(module, attribute, None)
    if found is None or attribute.startswith("_"):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{at}there is no '{name}'.{nearest(attribute, public)}")
    if not _within(f"{getattr(found, '__module__', '')}.", allowed) or not callable(found):
        raise UserError(f"{at}'{name}' is not defined in a trusted package ({', '.join(allowed)}).")
    return found


def _within(name: str, packages: Sequence[str]) -> bool:
    return any(name.startswith(f"{package}.") for package in packages)


def _call(name: str, arguments: dict[str, Any], trusted: Sequence[str], where: str) -> Any:
    function = trusted_object(name, trusted, where)
    parameters = inspect.signature(function).parameters
    at = f"{where}: " if where else ""
    for key in arguments:
        if key not in parameters:
            raise UserError(f"{at}{name} takes no '{key}'.{nearest(key, parameters)}")
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and key not in arguments
    ]
    if missing:
        raise UserError(f"{at}{name} needs {', '.join(missing)}.")
    return function(**arguments)
