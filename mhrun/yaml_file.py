"""Untrusted YAML: checked before it is loaded, with the line of each mistake.

The events of the parser are checked one by one, without recursion and before any object is made: depth, repeated keys,
tags, and the size that aliases expand to. Nine lines of aliases can stand for 10^9 values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, if libyaml is there
_UNFINISHED = -1
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
    check(text, name, most_values, SAFE_LOADER)
    try:
        return yaml.load(text, Loader=SAFE_LOADER)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"'{name}' cannot be read: {' '.join(str(error).split())}.") from error


def loads_trusted(text: str) -> Any:
    """Return the content of a text of this package as plain objects, without the checks of `loads`.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, Loader=SAFE_LOADER)


def scalar_text(value: Any) -> str:
    """Return a value as YAML writes it: null, true, false, or its text."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


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


def check(
    text: str, name: str, most_values: int = MOST_VALUES, loader: type[yaml.SafeLoader] = yaml.SafeLoader
) -> None:
    """Check a YAML text.

    Args:
        text: the YAML.
        name: what messages call it: a path.
        most_values: most values and keys, with every alias written out.
        loader: that will load the text. libyaml and the parser in Python differ in what they accept, such as a byte
            order mark within a text, so that a check by one says nothing of what the other loads.

    Raises:
        UserError: it is not YAML; it has several documents, a repeated key or anchor, a key that is not a plain
            value, a tag (``!foo``, ``!!python/...``, ``!!binary``), more than `DEEPEST` levels, an alias of what it
            is in, or more values than `most_values`.
    """
    try:
        try:
            _check_events(text, name, most_values, loader)
        except yaml.YAMLError:
            _check_events(text, name, most_values, yaml.SafeLoader)  # whose messages are the better ones
            raise
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


def _check_events(text: str, name: str, most_values: int, loader: type[yaml.SafeLoader]) -> None:
    checker, parser = _Checker(name, most_values), loader(text)
    try:
        while parser.check_event():
            checker.check(parser.get_event())
    finally:
        parser.dispose()


class _Open:
    """A list or a group whose end has not come yet."""

    def __init__(self, anchor: str | None, is_map: bool) -> None:
        self.anchor = anchor
        self.size = 1  # values in it, itself included
        self.keys: dict[str, int] | None = {} if is_map else None  # key -> line
        self.at_key = is_map


class _Checker:
    """Checks the events of a text one after the other.

    Args:
        name: what messages call the text.
        most_values: most values and keys, with every alias written out.
    """

    def __init__(self, name: str, most_values: int) -> None:
        self._name = name
        self._most_values = most_values
        self._sizes: dict[str, int] = {}  # of anchors; `_UNFINISHED` of what has not ended
        self._enclosing: list[_Open] = []
        self._documents = 0
        self._scalars = yaml.SafeLoader("")

    def check(self, event: yaml.Event) -> None:
        """Check the next event.

        Raises:
            UserError: it is not allowed.
        """
        line = _line(event)
        anchor = event.anchor if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) else None
        if anchor in self._sizes:
            raise self._refusal(line, f"the anchor &{anchor} is there already; give it another name.")
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._refusal(line, "a second document (---) begins; a configuration is one document.")
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            finished = self._enclosing.pop()
            self._count(finished.size, line, finished.anchor)
        elif isinstance(event, yaml.AliasEvent):
            assert event.anchor is not None
            self._count(self._size_of(event.anchor, line), line, None)
        elif isinstance(event, yaml.ScalarEvent):
            self._check_scalar(event, line)
            self._count(1, line, event.anchor)

    def _refusal(self, line: int, message: str) -> UserError:
        return UserError(f"'{self._name}', line {line}: {message}")

    @property
    def _keys(self) -> dict[str, int] | None:
        """The keys of the group whose next value is a key, with their lines; None where none is expected."""
        return self._enclosing[-1].keys if self._enclosing and self._enclosing[-1].at_key else None

    def _begin(self, event: yaml.CollectionStartEvent, line: int) -> None:
        """Enter a list or a group."""
        if event.tag is not None and event.tag not in _PLAIN_TAGS:
            raise self._refusal(line, f"the tag {_tag(event.tag)} is not allowed; write plain values.")
        if self._keys is not None:
            raise self._refusal(line, "a key is a list or a group; a key is one word.")
        if len(self._enclosing) >= DEEPEST:
            raise self._refusal(line, f"more than {DEEPEST} lists or groups in one another.")
        if event.anchor is not None:
            self._sizes[event.anchor] = _UNFINISHED
        self._enclosing.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))

    def _size_of(self, anchor: str, line: int) -> int:
        """Return how many values an alias stands for."""
        if anchor not in self._sizes:
            raise self._refusal(line, f"the alias *{anchor} has no anchor &{anchor} before it.")
        if self._sizes[anchor] == _UNFINISHED:
            raise self._refusal(line, f"*{anchor} is inside &{anchor} and would never end.")
        if self._keys is not None:
            raise self._refusal(line, f"the key *{anchor} is an alias; write the key.")
        return self._sizes[anchor]

    def _count(self, size: int, line: int, anchor: str | None) -> None:
        """Add a finished value to what it is in."""
        if anchor is not None:
            self._sizes[anchor] = size
        if self._enclosing:
            inside = self._enclosing[-1]
            inside.size += size
            if inside.keys is not None:
                inside.at_key = not inside.at_key
            size = max(size, inside.size)
        if size > self._most_values:
            raise self._refusal(
                line, f"more than {self._most_values:,} values, with its aliases written out."
            )

    def _check_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        """Check a value, and that it is a new key where it is one."""
        tag, value = event.tag, event.value
        if tag is not None and tag not in _PLAIN_TAGS and tag != "!":
            raise self._refusal(line, f"the tag {_tag(tag)} is not allowed; write plain values.")
        if found := _UNUSABLE.search(value):
            raise self._refusal(line, f"the character U+{ord(found[0]):04X} cannot be used; remove it.")
        if "${" in value and len(value) > _LONGEST_REFERENCE:
            raise self._refusal(
                line, f"a value with ${{...}} has more than {_LONGEST_REFERENCE:,} characters."
            )
        self._check_readable(event, line)
        if (keys := self._keys) is not None:
            if value in keys:
                raise self._refusal(line, f"the key '{value}' is there already, in line {keys[value]}.")
            keys[value] = line

    def _check_readable(self, event: yaml.ScalarEvent, line: int) -> None:
        """Check that a number or another plain value can be read as what it looks like."""
        tag, value = event.tag, event.value
        if tag is None or tag == "!":
            tag = self._scalars.resolve(yaml.ScalarNode, value, event.implicit)
        if tag.rpartition(":")[2] in ("str", "timestamp", "merge", "value"):
            return  # a time is a word to configurations
        if len(value) > _LONGEST_DIGITS and tag.endswith(":int"):
            raise self._refusal(line, f"a whole number of {len(value):,} digits; use 1e9 for a large one.")
        try:
            self._scalars.construct_object(yaml.ScalarNode(tag, value))
        except (ValueError, KeyError, OverflowError, yaml.YAMLError) as error:
            raise self._refusal(
                line, f"'{cut(value, 40)}' cannot be read as a value; put it in quotes if it is a word."
            ) from error


def _line(event: yaml.Event) -> int:
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def texts_of(node: Any) -> Iterator[str]:
    """Yield every text among the values of a configuration, which are mappings, lists and tuples of such."""
    if isinstance(node, Mapping | list | tuple):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from texts_of(value)
    elif isinstance(node, str):
        yield node
