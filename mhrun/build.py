"""Builds objects from configuration, from trusted names only.

The key ``_target_`` of a node names a class or function and its other keys are the arguments, as in Hydra. Only names
that are *defined in* a trusted place are allowed: the classes of parts in this package (`mhrun.kinds`), and the
packages that the user names with ``--trust``, ``--project`` or in the environment (``MHRUN_TRUST``). A configuration
cannot extend this list, because it may come from someone else. Names that are merely imported by a trusted module
(``mhrun.paths.os``) are refused, and so is the rest of this package: its command line could trust others.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

from mhrun.errors import UserError, is_of_launcher, nearest
from mhrun.kinds import OF_A_PART, PACKAGES
from mhrun.numbers import is_number, is_whole, whole_number
from mhrun.ownership import blame, is_bundled
from mhrun.paths import import_from_folders
from mhrun.yaml_file import scalar_text

T = TypeVar("T")

TRUST = "MHRUN_TRUST"
"""The environment variable that names the user's trusted packages, with commas between them."""


def trusted() -> tuple[str, ...]:
    """Return the packages whose classes and functions a configuration may name."""
    names = (name.strip() for name in os.environ.get(TRUST, "").split(","))
    return ("mhrun", *(name for name in names if name))


def build(node: Any, where: str = "") -> Any:
    """Return `node` with every ``_target_`` in it called, innermost first.

    Args:
        node: plain dictionaries, lists and values.
        where: the path of the node, for messages.

    Raises:
        UserError: a target that is unknown or not trusted, or arguments it does not take.
    """
    if isinstance(node, Mapping):
        inner = {
            str(key): build(value, f"{where}.{key}".lstrip("."))
            for key, value in node.items()
            if key != "_target_"
        }
        if "_target_" not in node:
            return inner
        name = str(node["_target_"])
        return call(trusted_object(name, where), inner, name, where)
    if isinstance(node, list | tuple):
        return [build(value, f"{where}[{i}]") for i, value in enumerate(node)]
    return node


def trusted_object(name: str, where: str = "") -> Any:
    """Return the class or function called `name`, defined in a trusted package.

    Raises:
        UserError: it does not exist, or is not trusted.
    """
    allowed = trusted()
    at = f"{where}: " if where else ""
    if not _within(name, allowed):
        raise UserError(
            f"{at}{name!r} is not in a trusted package ({', '.join(allowed)}); "
            "if you trust it, pass --project DIR where it is in a project of yours, else --trust PACKAGE."
            f"{nearest(name.partition('.')[0], allowed)}"
        )
    module_name, _, attribute = name.rpartition(".")
    if not _in_packages(name):
        raise UserError(
            f"{at}there is no part '{name}'; those of this package are in mhrun.{', mhrun.'.join(PACKAGES.values())}."
        )
    # For names of mhrun no folder is searched: a file there could be taken for a missing library.
    if not name.startswith("mhrun."):
        import_from_folders()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{at}there is no '{name}' ({error}).") from error
    except (Exception, SystemExit) as error:  # the user's file, as it is read
        if is_of_launcher(error):
            raise
        raise UserError(f"{at}'{module_name}' cannot be imported: {blame(error)}.") from error
    part = getattr(module, attribute, None)
    if part is None or attribute.startswith("_"):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{at}there is no '{name}'.{nearest(attribute, public)}")
    home = f"{getattr(part, '__module__', '')}."
    is_part = _in_packages(home) and (isinstance(part, type) or not home.startswith("mhrun."))
    if not _within(home, allowed) or not callable(part) or not is_part:
        raise UserError(f"{at}'{name}' is not defined in a trusted package ({', '.join(allowed)}).")
    return part


def _in_packages(name: str) -> bool:
    """Return whether a name of this package is that of a kind of part; names of other packages are not restricted."""
    words = name.split(".")
    return words[0] != "mhrun" or words[1] in PACKAGES.values()


def _within(name: str, packages: Sequence[str]) -> bool:
    return any(name.startswith(f"{package}.") for package in packages)


def call(function: Callable[..., T], arguments: Mapping[str, Any], name: str, where: str = "") -> T:
    """Return ``function(**arguments)``, after checking the arguments.

    An argument annotated with int, float, bool or str must have that type; 1e3 counts as an int.

    Raises:
        UserError: an argument is unknown, missing or invalid.
    """
    at = f"{where}: " if where else ""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError) as error:  # a class that derives from a built-in one
        raise UserError(f"{at}{name} is not a part.") from error
    checked = {}
    for key, value in arguments.items():
        if key not in parameters:
            raise UserError(f"{at}{name} takes no '{key}'.{nearest(key, parameters)}")
        checked[key] = _as(parameters[key].annotation, value, f"{at}{key}")
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and key not in arguments
    ]
    if missing:
        raise UserError(f"{at}{name} needs {', '.join(missing)}.")
    try:
        part = function(**checked)
    except (TypeError, ValueError, IndexError, ArithmeticError, MemoryError) as error:
        message = str(error) or type(error).__name__
        raise UserError(f"{at}{name} cannot be made of these settings: {message}") from error
    check_attributes(part, at)
    return part


def check_attributes(part: Any, at: str = "") -> None:
    """Refuse a part of the user's with an attribute that hides a method of its base class, or a misspelt declaration.

    Of any part: a number with a fraction, or a text, where its constructor takes a whole number.

    Raises:
        UserError: ``self.start = ...`` in a schedule, say, or ``keep_ratio = True`` in a rule, or ``pilot=2.5``.
    """
    cls = type(part)
    _check_whole(part, at)
    if is_bundled(cls):
        return
    for name in getattr(part, "__dict__", {}):
        for base in cls.__mro__:
            if is_bundled(base) and inspect.isfunction(vars(base).get(name)):
                raise UserError(
                    f"{at}{cls.__name__} sets self.{name}, which is a method of {base.__name__}; choose another "
                    "attribute name."
                )
    _check_declared(part, at)
    bundled = [base for base in cls.__mro__ if is_bundled(base)]
    declarations = [
        name
        for base in bundled
        for name in {**vars(base), **vars(base).get("__annotations__", {})}
        if not name.startswith("_") and not callable(vars(base).get(name))
    ]
    for base in cls.__mro__:
        if base in bundled or base.__module__ in ("builtins", "abc", "typing"):
            continue
        for name, value in vars(base).items():
            if (
                name.startswith("_")
                or name in declarations
                or not isinstance(value, bool | int | float | str | tuple)
            ):
                continue
            if close := difflib.get_close_matches(name, declarations, 1, _MISSPELT):
                raise UserError(
                    f"{at}{base.__name__} declares {name}, which {bundled[0].__name__} does not have; did you mean "
                    f"{close[0]}?"
                )


_DECLARED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (is_whole, "a whole number"),
    "float": (is_number, "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "None": (lambda value: value is None, "None"),
}


def _check_declared(part: Any, at: str) -> None:
    """Refuse a value of another type than the base class declares, such as ``exact = "yes"``."""
    cls = type(part)
    of_user = [vars(base) for base in cls.__mro__ if not is_bundled(base)] + [getattr(part, "__dict__", {})]
    for base in cls.__mro__:
        if not is_bundled(base):
            continue
        for name, annotation in vars(base).get("__annotations__", {}).items():
            kinds = _as_text(annotation).split(" | ")
            if not any(name in names for names in of_user) or not set(kinds) <= set(_DECLARED):
                continue
            value = getattr(part, name)
            if not any(_DECLARED[kind][0](value) for kind in kinds):
                forms = " or ".join(_DECLARED[kind][1] for kind in kinds)
                raise UserError(f"{at}{cls.__name__}.{name} = {value!r} must be {forms}.")


def _check_whole(part: Any, at: str) -> None:
    """Refuse an attribute with a fraction, or a text, of the name of a whole number that the constructor takes."""
    if not isinstance(type(part).__init__, FunctionType):
        return
    own = getattr(part, "__dict__", {})  # a property may load data
    for name, parameter in inspect.signature(type(part).__init__).parameters.items():
        kinds, value = set(_as_text(parameter.annotation).split(" | ")), own.get(name)
        takes_whole = "int" in kinds and not kinds & {"float", "str", "Any"}
        if takes_whole and isinstance(value, float | str) and not is_whole(value):
            raise UserError(f"{at}{type(part).__name__}: {name} = {value!r} must be a whole number.")


_MISSPELT = 0.85  # similarity of a misspelt declaration
_LITERAL = re.compile(r"Literal\[([^\]]*)\]")
_OPTIONAL = re.compile(r"Optional\[(.*)\]")
_TYPING = re.compile(r"\b(?:typing|t)\.")
_BASES = [kind.title() for kind in PACKAGES if kind != "data"]


def _as(annotation: Any, value: Any, setting: str) -> Any:
    """Return a value converted to its annotation; only plain types are checked.

    A text that is not among the values of a `Literal` is left to the part, which suggests the nearest one.
    """
    kind = _as_text(annotation)
    if choices := literal_values(kind):
        if isinstance(value, str) or (value is None and "None" in kind.rpartition("]")[2]):
            return value
        raise UserError(f"{setting} = {scalar_text(value)} must be one of {', '.join(choices)}.")
    kinds = kind.split(" | ")
    if kinds[0] in ("int", "float") and "str" in kinds[1:]:  # a number or auto, or a name
        if value == "auto" or (isinstance(value, str) and kinds[0] == "float"):
            return value
        kinds.remove("str")
    kind, _, optional = " | ".join(kinds).partition(" | ")
    if (optional and optional != "None") or (value is None and optional):
        return value
    if kind == "int":
        return whole_number(setting, value)
    if kind in _BASES and (value is None or isinstance(value, dict | list | str | int | float)):
        place, group = setting.replace(": ", "."), kind.lower()
        if isinstance(value, str) and group in OF_A_PART and value.isidentifier():
            raise UserError(f"{setting} = {value} is a name, not a part; write {group}@{place}={value}.")
        raise UserError(no_part(setting, f"+{group}@{place}=NAME" if group in OF_A_PART else ""))
    plain = {
        "float": (is_number(value), "a number"),
        "bool": (isinstance(value, bool), "true or false"),
        "str": (isinstance(value, str), "a word"),
    }
    fits, description = plain.get(kind, (True, ""))
    if not fits:
        raise UserError(f"{setting} = {value!r} must be {description}.")
    return value


def no_part(setting: str, override: str) -> str:
    """Return that a setting names no part, and the override that chooses one of a folder of conf/."""
    folder = override.removeprefix("+").partition("@")[0]
    choice = f"choose one of conf/{folder} with {override}" if folder else "choose one of conf/"
    return f"{setting} names no part; give it a _target_, or {choice}."


def _as_text(annotation: Any) -> str:
    """Return an annotation as text, which it is in a file with ``from __future__ import annotations``."""
    if isinstance(annotation, type):
        return annotation.__name__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = _TYPING.sub("", text)
    return f"{found[1]} | None" if (found := _OPTIONAL.fullmatch(text)) else text


def literal_values(annotation: str) -> tuple[str, ...]:
    """Return the values of a `Literal`."""
    found = _LITERAL.match(annotation)
    return tuple(map(str, ast.literal_eval(f"[{found[1]}]"))) if found else ()
