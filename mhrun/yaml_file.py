"""YAML that somebody else may have written: checked before it is loaded, with the line of each mistake.

The events of the parser are checked one by one, without recursion and before any object is made: depth, repeated keys,
tags, and the size that aliases expand to. Nine lines of aliases can stand for 10^9 values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mhrun.errors import UserError, cut

MOST_BYTES = 1 << 20
"""Most bytes of a configuration."""
MOST_VALUES = 100_000
"""Most values and keys that a configuration may expand to through its aliases."""
DEEPEST = 50
"""Most levels of lists and groups in one another."""
_LONGEST_DIGITS = 400  # of a whole number; Python itself reads 4,300
_LONGEST_REFERENCE = 10_000  # characters of a value with ${...}
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")
)
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")  # in no file name, and in no UTF-8


def load(path: Path, most_bytes: int = MOST_BYTES, most_values: int = MOST_VALUES) -> Any:
    """Return the content of a YAML file as plain objects.

    Raises:
        UserError: it cannot be read, or `check` refuses it; in one line with the line's number.
    """
    return loads(read(path, most_bytes), str(path), most_values)


def loads(text: str, name: str, most_values: int = MOST_VALUES) -> Any:
    """Return the content of a YAML text as plain objects; messages call it `name`.

    Raises:
        UserError: `check` refuses it; in one line with the line's number.
    """
    check(text, name, most_values)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"'{name}' cannot be read: {' '.join(str(error).split())}.") from error


def loads_ours(text: str) -> Any:
    """Return the content of a text of this package as plain objects, read by libyaml where it is installed.

    Ten times as fast as `loads`, and without its checks.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, Loader=_FAST)


def read(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file.

    Raises:
        UserError: it is not there, not to be read, too large, or not UTF-8.
    """
    try:
        if not path.is_file() and path.exists():
            raise UserError(f"'{path}' is not a file.")
        with open(path, "rb") as stream:
            raw = stream.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if len(raw) > most_bytes:
        raise UserError(f"'{path}' has more than {most_bytes / 2**20:g} MB, too much for a configuration.")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(
            f"'{path}', line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; save it as UTF-8."
        ) from error


def check(text: str, name: str, most_values: int = MOST_VALUES) -> None:
    """Check a YAML text.

    Args:
        text: the YAML.
        name: what messages call it: a path.
        most_values: most values and keys, with every alias written out.

    Raises:
        UserError: it is not YAML; it has several documents, a repeated key or anchor, a key that is not a plain
            value, a tag (``!foo``, ``!!python/...``, ``!!binary``), more than `DEEPEST` levels, an alias of what it
            is in, or more values than `most_values`.
    """
    try:
        _check(text, name, most_values)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise UserError(
            f"'{name}', line {line}: the character U+{code:04X} is not allowed in YAML; remove it."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = " ".join(str(error.problem or error.context).split())
        if "'\\t'" in problem:
            problem = "a tab; indent with spaces"
        raise UserError(f"'{name}'{where}: {problem}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"'{name}' is not YAML: {' '.join(str(error).split())}.") from error


class _Open:
    """A list or a group whose end has not come yet."""

    def __init__(self, anchor: str | None, is_map: bool) -> None:
        self.anchor = anchor
        self.size = 1  # values in it, itself included
        self.keys: dict[str, int] | None = {} if is_map else None  # key -> line
        self.at_key = is_map


def _check(text: str, name: str, most_values: int) -> None:
    sizes: dict[str, int] = {}  # of anchors
    enclosing: list[_Open] = []
    documents = 0
    scalars = yaml.SafeLoader("")

    def refuse(line: int, message: str) -> UserError:
        return UserError(f"'{name}', line {line}: {message}")

    def count(size: int, line: int, anchor: str | None) -> None:
        """Add a finished value to what it is in."""
        if anchor is not None:
            sizes[anchor] = size
        if enclosing:
            enclosing[-1].size += size
            if enclosing[-1].keys is not None:
                enclosing[-1].at_key = not enclosing[-1].at_key
        if size > most_values or (enclosing and enclosing[-1].size > most_values):
            raise refuse(line, f"more than {most_values:,} values, with its aliases written out.")

    for event in _events(text):
        line = _line(event)
        anchor = event.anchor if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) else None
        if anchor in sizes:
            raise refuse(line, f"the anchor &{anchor} is there already; give it another name.")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise refuse(line, "a second document (---) begins; a configuration is one document.")
        elif isinstance(event, yaml.CollectionStartEvent):
            if event.tag is not None and event.tag not in _PLAIN_TAGS:
                raise refuse(line, f"the tag {_tag(event.tag)} is not allowed; write plain values.")
            if enclosing and enclosing[-1].at_key:
                raise refuse(line, "a key is a list or a group; a key is one word.")
            if len(enclosing) >= DEEPEST:
                raise refuse(line, f"more than {DEEPEST} lists or groups in one another.")
            if event.anchor is not None:
                sizes[event.anchor] = -1  # open
            enclosing.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.CollectionEndEvent):
            finished = enclosing.pop()
            count(finished.size, line, finished.anchor)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise refuse(line, f"the alias *{event.anchor} has no anchor &{event.anchor} before it.")
            if sizes[event.anchor] < 0:
                raise refuse(line, f"*{event.anchor} is inside &{event.anchor} and would never end.")
            if enclosing and enclosing[-1].at_key:
                raise refuse(line, f"the key *{event.anchor} is an alias; write the key.")
            count(sizes[event.anchor], line, None)
        elif isinstance(event, yaml.ScalarEvent):
            if event.tag is not None and event.tag not in _PLAIN_TAGS and event.tag != "!":
                raise refuse(line, f"the tag {_tag(event.tag)} is not allowed; write plain values.")
            _check_scalar(event, scalars, refuse)
            if enclosing and enclosing[-1].at_key:
                keys = enclosing[-1].keys
                assert keys is not None
                if event.value in keys:
                    raise refuse(
                        line, f"the key '{event.value}' is there already, in line {keys[event.value]}."
                    )
                keys[event.value] = line
            count(1, line, event.anchor)


def _events(text: str) -> Iterator[yaml.Event]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


def _line(event: yaml.Event) -> int:
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _check_scalar(event: yaml.ScalarEvent, loader: yaml.SafeLoader, refuse: Any) -> None:
    line, value = _line(event), event.value
    if found := _UNUSABLE.search(value):
        raise refuse(line, f"the character U+{ord(found[0]):04X} cannot be used; remove it.")
    if "${" in value and len(value) > _LONGEST_REFERENCE:
        raise refuse(line, f"a value with ${{...}} has more than {_LONGEST_REFERENCE:,} characters.")
    tag = event.tag
    if tag is None or tag == "!":
        tag = loader.resolve(yaml.ScalarNode, value, event.implicit)
    if tag.rpartition(":")[2] in ("str", "timestamp", "merge", "value"):
        return  # a time is a word to configurations
    if len(value) > _LONGEST_DIGITS and tag.endswith(":int"):
        raise refuse(line, f"a whole number of {len(value):,} digits; use 1e9 for a large one.")
    try:
        loader.construct_object(yaml.ScalarNode(tag, value))
    except (ValueError, KeyError, OverflowError, yaml.YAMLError) as error:
        raise refuse(
            line, f"'{cut(value, 40)}' cannot be read as a value; put it in quotes if it is a word."
        ) from error


def _tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
