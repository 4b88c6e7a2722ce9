"""What of ``runtime`` a configuration file may set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhrun.errors import UserError


def check_runtime_of_files(runtime: Mapping[str, Any], words: Sequence[str]) -> None:
    """Refuse what only the command line may say: a file may have come from somebody else.

    A file may name a folder of outputs inside the working directory. It may not begin runs anew, which removes results.

    Args:
        runtime: the resolved node.
        words: the overrides of the command line; what they set is not checked.

    Raises:
        UserError: a file sets `force`, or outputs elsewhere.
    """
    keys = {word.lstrip("+").partition("=")[0] for word in words}
    force, outputs = runtime["force"], runtime["outputs"]
    if force and not keys & {"runtime", "runtime.force"}:
        raise UserError(
            "a configuration file sets runtime.force, which removes results; remove it there, or say "
            "runtime.force=true on the command line."
        )
    if outputs != "outputs" and not keys & {"runtime", "runtime.outputs"}:
        here = Path.cwd().resolve()
        try:
            inside = Path(outputs).resolve().is_relative_to(here)
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            raise UserError(
                f"a configuration file sets runtime.outputs = {outputs[:80]!r}, which is outside of {here}; remove it "
                "there, or say runtime.outputs=FOLDER on the command line."
            )
