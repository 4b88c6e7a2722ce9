"""The user's Python and data files on which a run depends.

Their digests are part of the run's identity: after a change of a file the same settings are another run. The version of
this package is recorded but not part of the identity.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from mhrun.build import trusted
from mhrun.errors import UserError
from mhrun.paths import import_from_folders, located
from mhrun.yaml_file import texts_of

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
_COSMETIC = ("runtime", "report")
_WHOLE = 1 << 28  # bytes up to which a data file is read whole for its digest, in at most a second
_SAMPLES, _SAMPLE = 256, 1 << 16  # pieces of a larger file, and bytes of each


def sources(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the user's files named by a resolved configuration, name -> digest.

    Python files are those of the trusted modules that settings name, and what these import from their folder; report
    functions are left out, as they change no number. Data files are those that a data set calls ``file`` or ``files``,
    and those that a setting of the model names, such as a checkpoint of its network. The digest of a data file above
    256 MB covers its size, the time of its last change, and 256 pieces of it.

    Raises:
        UserError: a data file does not exist.
    """
    digests = {
        shown: digest_of_data(path) if is_data else _digest_of_code(path)
        for shown, path, is_data in _used(config)
    }
    return dict(sorted(digests.items()))


def changed_files(config: Mapping[str, Any]) -> list[str]:
    """Return the user's files that are no longer as a run's configuration recorded them; see `sources`.

    Raises:
        UserError: a data file does not exist.
    """
    recorded = config.get("sources") or {}
    return [name for name, digest in sources(config).items() if recorded.get(name, digest) != digest]


def names_of_sources(config: Mapping[str, Any]) -> set[str]:
    """Return the names of the files that `sources` finds, without reading data."""
    return {shown for shown, _, _ in _used(config)}


def _used(config: Mapping[str, Any]) -> Iterator[tuple[str, Path, bool]]:
    """Yield the name and the path of each of the user's files, and whether it is a data file."""
    decisive = {key: value for key, value in config.items() if key not in _COSMETIC}
    packages = trusted()[1:]
    for name in sorted({text for text in texts_of(decisive) if _DOTTED.fullmatch(text)}):
        if name.split(".")[0] in packages:
            for path, shown in _closure(name.rpartition(".")[0]).items():
                yield shown, path, False
    parts = [decisive, *(decisive.get("methods") or {}).values()]
    for node in (part.get(key) for part in parts for key in ("data", "monitor")):
        for file_name in _files_of(node):
            yield file_name, located(file_name), True
    for node in (part.get("model") for part in parts):
        for file_name in sorted(set(texts_of(node))):
            if Path(file_name).suffix and not file_name.startswith("mhrun."):  # a class of this package
                with suppress(UserError):  # any other text with a dot
                    yield file_name, located(file_name), True


def digest_of_data(path: Path) -> str:
    """Return a digest of a data file; see `sources` for large ones.

    Raises:
        UserError: it cannot be read.
    """
    size, digest = path.stat().st_size, hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            if size <= _WHOLE:
                while part := stream.read(1 << 20):
                    digest.update(part)
            else:
                digest.update(f"{size} {path.stat().st_mtime_ns}".encode())
                for piece in range(_SAMPLES):
                    stream.seek(piece * (size - _SAMPLE) // (_SAMPLES - 1))
                    digest.update(stream.read(_SAMPLE))
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    return digest.hexdigest()[:12]


def _files_of(node: Any) -> Iterator[str]:
    """Yield the files of a data set, and of the data sets that it contains."""
    if isinstance(node, list | tuple):
        for value in node:
            yield from _files_of(value)
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        if key == "file" and isinstance(value, str):
            yield value
        elif key == "files" and isinstance(value, Mapping | list | tuple):
            for member in value.values() if isinstance(value, Mapping) else value:
                yield from (member,) if isinstance(member, str) else _files_of(member)
        else:
            yield from _files_of(value)


@cache
def _digest_of_code(path: Path) -> str:
    """Return the digest of a file as this process first found it, because that is the code it runs."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@cache
def _closure(module: str) -> dict[Path, str]:
    """Return the files of a module and of what it imports from the folder of its package, path -> relative path."""
    import_from_folders()
    top = module.split(".")[0]
    spec = importlib.util.find_spec(top)  # of a top-level name: nothing is imported
    if spec is None:
        return {}
    if spec.origin and os.path.isfile(spec.origin):
        origin = Path(spec.origin)
        roots = [origin.parent.parent if origin.name == "__init__.py" else origin.parent]
    else:  # a folder of modules without an __init__.py, which may be in several places
        roots = [Path(folder).parent for folder in spec.submodule_search_locations or ()]
    files: dict[Path, str] = {}
    for root in roots:
        waiting, done = [module], set[str]()
        while waiting:
            name = waiting.pop()
            done.add(name)
            for path in _paths(root, name):
                if path not in files:
                    shown = files[path] = path.relative_to(root).as_posix()
                    # Of the file itself: a name may go on to what is in it.
                    waiting += set(_imports(path, shown.rpartition("/")[0].replace("/", "."))) - done
    return files


def _paths(root: Path, module: str) -> Iterator[Path]:
    """Yield the files under `root` that importing a module reads."""
    folder = root
    for part in module.split("."):
        folder = folder / part
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        elif folder.with_suffix(".py").is_file():
            yield folder.with_suffix(".py")
            return


def _imports(path: Path, package: str) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it; `package` resolves its relative imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return  # importing it will report the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
