"""Identity of calls from Python."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import inspect
import logging
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mhrun.errors import UserError
from mhrun.ownership import is_bundled, is_library
from mhrun.paths import PACKAGE

_PLACE = re.compile(r" at 0x[0-9A-Fa-f]+")  # the address of an object in memory
_MEMO = "_memo"  # the attribute in which a part of this package caches values
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_LABELS = ("columns", "index", "name", "dims", "coords", "dtype", "dtypes", "categories")
# The function inside a compiler's or a cache's wrapper
_WITHIN = "__wrapped__", "py_func", "_torchdynamo_orig_callable"


def fingerprint(*things: Any) -> str:
    """Return a digest of objects by content: numbers, arrays, attributes of objects, and code.

    For a user's function the digest covers its code, its defaults, its closure, and the globals that it names; for an
    object of a user's class, its methods. What a library defines enters by name. The same program gives the same digest
    in another process, but not necessarily with other versions.

    Raises:
        UserError: objects are nested too deeply.
    """
    taker = _Taker()
    try:
        taker.take(things)
    except RecursionError:
        raise UserError(
            "the parts of this call are nested too deeply to be compared; leave folder= out."
        ) from None
    return taker.digest.hexdigest()


class _Taker:
    """Adds objects to a digest, each once, because an object may contain itself."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=12)
        self._seen: dict[int, tuple[int, Any]] = {}  # kept alive, so that no address is reused

    def take(self, thing: Any) -> None:
        """Add an object of any kind."""
        self._add_text(type(thing).__qualname__)
        if thing is None or isinstance(thing, str | bytes | int | float | complex):
            self._add_text(repr(thing))
        elif isinstance(thing, types.ModuleType) and not _is_library_module(thing):
            self._module(thing)
        elif isinstance(thing, types.ModuleType | types.BuiltinFunctionType | np.ufunc | logging.Logger):
            self._add_text(_name(thing))
            if isinstance(owner := getattr(thing, "__self__", None), torch.Tensor | np.ndarray):
                self.take(owner)
        elif isinstance(thing, torch.Tensor | np.ndarray | np.generic):
            self._array(thing)
        elif isinstance(thing, Mapping):
            self._all([pair for item in thing.items() for pair in item])
        elif isinstance(thing, list | tuple):
            self._all(thing)
        elif isinstance(thing, set | frozenset):
            self._all(sorted(thing, key=repr))
        elif id(thing) in self._seen:
            self._add_text(f"again {self._seen[id(thing)][0]}")
        else:
            self._seen[id(thing)] = len(self._seen), thing
            self._object(thing)

    def _add_text(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def _all(self, things: Iterable[Any]) -> None:
        things = list(things)
        self._add_text(str(len(things)))
        for thing in things:
            self.take(thing)

    def _array(self, thing: Any) -> None:
        if isinstance(thing, np.ma.MaskedArray):
            self._array(np.ma.getmaskarray(thing))
            thing = thing.data
        if isinstance(thing, torch.Tensor):
            thing = thing.detach().cpu()
            self._add_text(str(thing.dtype))
            thing = thing.to_dense() if thing.layout != torch.strided else thing
            thing = thing.view(torch.int16) if thing.dtype == torch.bfloat16 else thing
        array = np.asarray(thing)
        self._add_text(f"{array.dtype}{array.shape}")
        if array.dtype.hasobject:
            self._all(array.reshape(-1).tolist())
            return
        # In the order in memory: the array may be mapped and larger than memory.
        self.digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _module(self, module: types.ModuleType) -> None:
        """Add the source of a user's module, and of the user's modules that it imports."""
        self._add_text(_name(module))
        if id(module) in self._seen:
            return
        self._seen[id(module)] = len(self._seen), module
        path = getattr(module, "__file__", None)
        if path is not None and Path(path).is_file():
            self.digest.update(Path(path).read_bytes())
        values = [vars(module)[name] for name in sorted(vars(module))]
        owners = [v if isinstance(v, types.ModuleType) else sys.modules.get(_owner(v)) for v in values]
        for owner in owners:
            if owner is not None and owner is not module and not _is_library_module(owner):
                self._module(owner)

    def _object(self, thing: Any) -> None:
        if isinstance(thing, types.MethodType):
            self._all((thing.__func__, thing.__self__))
        elif isinstance(thing, functools.partial):
            self._all((thing.func, thing.args, thing.keywords))
        elif wrapped := [vars(thing)[name] for name in _WITHIN if _wraps(thing, name)]:
            self.take(wrapped[0])
        elif isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, staticmethod | classmethod):
            self.take(thing.__func__)
        elif isinstance(thing, property | cached_property):
            self._all([getattr(thing, name, None) for name in ("fget", "fset", "func")])
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, torch.Generator):
            self.take(thing.get_state())
        elif isinstance(thing, np.random.Generator):
            self.take(thing.bit_generator.state)
        elif hasattr(thing, "__array__"):
            self._labels(thing)
            self._array(np.asarray(thing))
        else:
            self._class(type(thing))
            attributes = getattr(thing, "__dict__", None)
            slots = [name for base in type(thing).__mro__ for name in _slots(base) if hasattr(thing, name)]
            if attributes is None and not slots:
                self._add_text(_PLACE.sub("", repr(thing)))
                return
            # The value of a cached property is not a setting: it appears with the first use.
            self.take({name: value for name, value in (attributes or {}).items() if not _kept(thing, name)})
            self.take({name: getattr(thing, name) for name in slots})

    def _labels(self, thing: Any) -> None:
        """Add what a table or an array has beside its values: names, labels, types."""
        for name in _LABELS:
            label = getattr(thing, name, None)
            self._add_text(name)
            if isinstance(label, Mapping):  # coordinates, each of which has them too
                self.take({str(key): np.asarray(values) for key, values in label.items()})
            elif hasattr(label, "__array__"):
                self._array(np.asarray(label))
            else:
                self._add_text(str(label))

    def _function(self, function: types.FunctionType) -> None:
        self._code(function.__code__)
        self._all((function.__defaults__, function.__kwdefaults__))
        self._all([_content(cell) for cell in function.__closure__ or ()])
        if not _of_library(function):
            namespace = function.__globals__
            self.take({name: namespace[name] for name in _globals(function.__code__) if name in namespace})
            if modules := _imported(function):
                self._all(modules)

    def _code(self, code: types.CodeType) -> None:
        self.digest.update(code.co_code)
        self._all(code.co_names)
        consts = [const for const in code.co_consts if not isinstance(const, types.CodeType)]
        self._all(consts)
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._code(const)

    def _class(self, kind: type) -> None:
        self._add_text(_name(kind))
        if _of_library(kind):
            return
        self._all(kind.__bases__)
        self.take({k: v for k, v in vars(kind).items() if not (k.startswith("__") and _omitted(k, v))})


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _globals(code: types.CodeType) -> list[str]:
    """Return the globals that code names, including those of nested code."""
    return _arguments(code, _GLOBAL)


def _imported(function: types.FunctionType) -> list[types.ModuleType]:
    """Return the user's modules that a function imports in its body; one that cannot be imported is left out."""
    found = []
    for name in _arguments(function.__code__, ("IMPORT_NAME",)):
        relative = f"{function.__globals__.get('__package__') or ''}.{name}"
        for full in (name, relative):
            module = sys.modules.get(full)
            if module is None:
                with suppress(Exception):  # its function will say what is wrong
                    spec = importlib.util.find_spec(full)
                    if spec is not None and spec.origin and not _is_library_file(spec.origin):
                        module = importlib.import_module(full)
            if module is not None and not _is_library_module(module):
                found.append(module)
                break
    return found


def _arguments(code: types.CodeType, operations: Sequence[str]) -> list[str]:
    """Return the names that some operations of code have, including those of nested code."""
    names = {str(i.argval) for i in dis.get_instructions(code) if i.opname in operations}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= set(_arguments(const, operations))
    return sorted(names)


def _name(thing: Any) -> str:
    return (
        f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"
    )


def _of_library(thing: Any) -> bool:
    """Return whether a class or function belongs to a library, including this one, and not to the user."""
    return _is_library_module(sys.modules.get(_owner(thing)), _owner(thing))


def _owner(thing: Any) -> str:
    """Return the name of the module that defines a class or function."""
    return str(getattr(thing, "__module__", None) or "")


def _is_library_module(module: types.ModuleType | None, name: str | None = None) -> bool:
    """Return whether a module belongs to a library, including this one, and not to the user."""
    name = module.__name__ if module is not None and name is None else str(name)
    if name == "__main__":  # also where a library runs the program, as python -m cProfile does
        return False
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    return _is_library_file(getattr(module, "__file__", None) or "")


def _is_library_file(file: str) -> bool:
    return is_library(file) or Path(file).is_relative_to(PACKAGE)


def _omitted(name: str, value: Any) -> bool:
    """Return whether a double-underscore attribute of a class is not the user's code."""
    return not isinstance(value, types.FunctionType) or name == "__annotate__"


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return tuple(
        name
        for name in ((names,) if isinstance(names, str) else names)
        if name not in ("__dict__", "__weakref__")
    )


def _wraps(thing: Any, name: str) -> bool:
    # The function wrapped by a user's decorator is in its closure; the decorator's code counts too.
    plain = isinstance(thing, types.FunctionType) and name == "__wrapped__"
    return name in getattr(thing, "__dict__", {}) and not plain and not isinstance(thing, type)


def _kept(thing: Any, name: str) -> bool:
    """Return whether an attribute is the value of a cached property of any library."""
    if name == _MEMO and any(map(is_bundled, type(thing).__mro__)):
        return True
    attribute = inspect.getattr_static(type(thing), name, None)
    code = isinstance(attribute, types.FunctionType | staticmethod | classmethod)
    return hasattr(attribute, "__get__") and not hasattr(attribute, "__set__") and not code
