"""``mhrun init``: creates a small project, ready to run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mhrun.cli.exit_status import OK
from mhrun.errors import UserError, cut
from mhrun.paths import STARTERS
from mhrun.store.projects import check_separator


def start_project(arguments: Sequence[str]) -> int:
    """Write a small project into a new folder, and print how to run it.

    Raises:
        UserError: no folder is named, it is not empty or cannot be created, or the table does not fit.
    """
    network = "--network" in arguments
    rest, options = _options([argument for argument in arguments if argument != "--network"])
    if options and not network:
        return _start_from_table(rest, options)
    if options:
        raise UserError(
            "--network and --data are different projects; give one of them. A network reads arrays: "
            "mhrun init DIR --network, then put yours in place of train.npz and test.npz."
        )
    if len(rest) != 1 or "=" in rest[0]:
        raise UserError(
            "mhrun init needs one folder: mhrun init DIR [--network | --data FILE --outcome COLUMN]."
            + _no_folder(rest)
        )
    folder = Path(rest[0])
    check_separator(folder, f"mhrun init {rest[0]}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"'{folder}' is not empty; choose another folder.")
    template = STARTERS / ("network" if network else "regression")
    try:
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        if network:
            _write_digits(folder)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be created: {error.strerror or error}.") from error
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"wrote   {path}")
    print(f"run it  mhrun --project {shlex.quote(str(folder))} {'digits' if network else 'robust'}")
    return OK


def _no_folder(arguments: Sequence[str]) -> str:
    """Return what may have been meant for the folder: a name with a =, which is read as a setting."""
    named = next((argument for argument in arguments if "=" in argument), None)
    if named is None or any("=" not in argument for argument in arguments):
        return ""
    return f" '{cut(named)}' has a = and is read as a setting, not as a folder."


def _write_digits(folder: Path) -> None:
    """Write scikit-learn's handwritten digits, 1,000 for training and 797 for tests."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)  # (1797, 64), grey values from 0 to 16
    x, y = (images / 16).astype("float32").reshape(-1, 1, 8, 8), labels.astype("int64")
    for name, rows in (("train", slice(1000)), ("test", slice(1000, None))):
        np.savez_compressed(folder / f"{name}.npz", x=x[rows], y=y[rows])


def _options(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the other arguments, and the values of --data and --outcome."""
    rest, options = [], {}
    waiting = list(arguments)
    while waiting:
        argument, equals, value = waiting.pop(0).partition("=")
        if argument not in ("--data", "--outcome"):
            rest.append(f"{argument}{equals}{value}")
            continue
        if not equals and not waiting:
            raise UserError(
                f"{argument} needs a value: {argument} {'FILE' if argument == '--data' else 'COLUMN'}."
            )
        options[argument] = value if equals else waiting.pop(0)
    return rest, options


def _start_from_table(arguments: Sequence[str], options: Mapping[str, str]) -> int:
    """Write the project for a table, and print what was chosen and how to run it."""
    from mhrun.cli.init.table import project_of, write_project

    folders = [argument for argument in arguments if "=" not in argument]
    if len(folders) != 1 or "--data" not in options:
        raise UserError(
            "mhrun init needs a folder and a table: mhrun init DIR --data FILE --outcome COLUMN."
            + _no_folder(arguments)
        )
    folder, table = Path(folders[0]), Path(options["--data"])
    check_separator(folder, f"mhrun init {folder}")
    if table.is_dir():
        raise UserError(f"--data {table}: this is a folder; give the file of a table.")
    if not table.is_file():
        raise UserError(f"--data {table}: there is no such file.")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file; choose another folder.")
    project = project_of(
        table, options.get("--outcome"), [argument for argument in arguments if "=" in argument]
    )
    for path in write_project(folder, table, project):
        print(f"wrote   {path}")
    for line in project.lines:
        print(line)
    print(f"run it  mhrun --project {shlex.quote(str(folder))} {project.name}")
    if project.reference is not None:
        print(f"judge   mhrun compare {project.name} --reference {project.name}:{project.reference}")
    return OK
