"""Settings of a table as messages advise them, to be pasted into a shell."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable

import yaml

_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


def list_setting(key: str, values: Iterable[object]) -> str:
    """Return a list of names or numbers as an argument of a command line: key=[a,b].

    Names that YAML would read as something else, such as ``Unnamed: 0``, 2020 or no, are in double quotes, and an
    argument that a shell would split is in single ones.
    """
    argument = f"{key}=[{','.join(map(_in_list, values))}]"
    return argument if re.fullmatch(r"[\w.=,\[\]-]*", argument, re.ASCII) else shlex.quote(argument)


def _in_list(value: object) -> str:
    """Return a value in a list of YAML, which Hydra reads alike, but for backslashes."""
    if not isinstance(value, str):
        return f"{value:.16g}"
    is_plain = _PLAIN.fullmatch(value) is not None and yaml.safe_load(value) == value
    return (
        value if is_plain and value.lower() not in ("inf", "nan") else json.dumps(value, ensure_ascii=False)
    )
