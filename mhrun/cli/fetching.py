"""``mhrun fetch``: download and verify data sets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mhrun.cli.exit_status import OK
from mhrun.cli.places import folder_and_names


def fetch(arguments: Sequence[str]) -> int:
    """Fetch the named data sets, or list all."""
    from mhrun.data.files import CATALOGUE, data_dir, ensure, state

    folder, names = folder_and_names("runtime.data_dir", arguments)
    place = data_dir(folder)
    if not names:
        print(f"data folder  {place}")
        for name, entry in CATALOGUE.items():
            print(f"{name:15}{state(name, place):9}{entry.title}")
        return OK
    for name in names:
        print(f"{name}  {ensure(name, place, lambda line: print(line, file=sys.stderr))}")
    return OK
