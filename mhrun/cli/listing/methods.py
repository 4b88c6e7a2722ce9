"""``mhrun list methods``: the methods, each in a line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from mhrun import yaml_file
from mhrun.cli.listing.run_status import columns
from mhrun.errors import cut
from mhrun.names import is_name
from mhrun.paths import CONF

METHODS = "methods"
"""What `mhrun list` is given for them."""

_END = """\
+method@methods.NAME=NAME adds one to an experiment on the command line.
mhrun.sample(model, data, "NAME") runs one of mhrun's from Python.
"""


def show_methods(folders: Sequence[Path]) -> None:
    """Print the methods of mhrun and of projects, with the comments at the head of their files."""
    files = {path.stem: path for place in (CONF, *folders) for path in (place / "method").glob("*.yaml")}
    names = sorted(filter(is_name, files))
    width = max(map(len, names))
    for name in names:
        print(cut(f"{name:<{width}}  {_head(files[name])}", columns()))
    print("\n" + _END, end="")


def _head(path: Path) -> str:
    """Return the comment at the head of a file."""
    lines = takewhile(lambda line: line.startswith("#"), yaml_file.read(path).splitlines())
    return " ".join(line.lstrip("# ") for line in lines)
