"""Restrictions on the ``runtime`` settings of configuration files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhrun.errors import UserError


def check_runtime_of_files(runtime: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse settings that only the command line may have, because a file may come from someone else.

    A file may set a folder of outputs inside the working directory. It may not restart runs, which removes results.

    Args:
        runtime: the resolved node.
        overrides: the overrides of the command line, whose settings are not checked.

    Raises:
        UserError: a file sets `force`, or outputs elsewhere.
    """
    keys = {override.lstrip("+").partition("=")[0] for override in overrides}
    force, outputs = runtime["force"], runtime["outputs"]
    if force and not keys & {"runtime", "runtime.force"}:
        raise UserError(
            "a configuration file sets runtime.force, which removes results; remove it there, or pass "
            "runtime.force=true on the command line."
        )
    if outputs != "outputs" and not keys & {"runtime", "runtime.outputs"}:
        cwd = Path.cwd().resolve()
        try:
            is_inside = Path(outputs).resolve().is_relative_to(cwd)
        except (OSError, RuntimeError, ValueError):
            is_inside = False
        if not is_inside:
            raise UserError(
                f"a configuration file sets runtime.outputs = {outputs[:80]!r}, which is outside {cwd}; remove it "
                "there, or give runtime.outputs=FOLDER on the command line."
            )
