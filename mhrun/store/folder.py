"""The folder of one run: ``<outputs>/<experiment>/<digest>/``."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import yaml

from mhrun import yaml_file
from mhrun.errors import UserError
from mhrun.names import checked_name
from mhrun.store.checksums import read_sealed, write_sealed
from mhrun.store.files import explain, read_json, unreadable, write_text
from mhrun.store.identity import FORMAT, digest

COMPLETE = "complete"
_MOST_VALUES = 10_000_000  # of a resolved configuration, which may have lists with a value for each chain
_POINTER = re.compile(r"[0-9a-f]{6,64}\n?")
_MOST_BYTES = 1 << 28  # of the same


class RunFolder:
    """Where a run keeps everything: config.yaml, summary.json, log.txt, methods/, report/."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RunFolder:
        """Return the folder of a resolved configuration; it need not exist.

        Raises:
            UserError: the experiment's name is none and could lead elsewhere.
        """
        name = checked_name(config["experiment"], "the experiment")
        return cls(Path(config["runtime"]["outputs"]) / name / digest(config))

    @property
    def digest(self) -> str:
        """The name of the run."""
        return self.path.name

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        return self.path.parent.name

    @property
    def report(self) -> Path:
        """Where the report is."""
        return self.path / "report"

    @property
    def log(self) -> Path:
        """The log."""
        return self.path / "log.txt"

    def method(self, name: str) -> Path:
        """Return where a method's trace is.

        Raises:
            UserError: the name is none and could lead elsewhere.
        """
        return self.path / "methods" / checked_name(name, "the method")

    def create(self, config: Mapping[str, Any]) -> None:
        """Make the folder and write the configuration; the folder should be held.

        Where the run is there already, what changes no number of it may have changed: titles, labels, what
        the report shows.

        Raises:
            UserError: the place cannot be written, or leads elsewhere.
        """
        self.make()
        if not self.has(config):
            write_text(self.path / "config.yaml", _dumped(config))

    def make(self) -> None:
        """Make the folder if it is not there.

        Raises:
            UserError: the place cannot be written, or leads elsewhere.
        """
        if self.path.is_symlink():
            raise UserError(
                f"{self.path} leads elsewhere, and a run writes and removes files there; move it away."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, self.path) from error

    def has(self, config: Mapping[str, Any]) -> bool:
        """Return whether the folder has this configuration, to the letter.

        Raises:
            UserError: its configuration is there and cannot be read.
        """
        target, text = self.path / "config.yaml", _dumped(config).encode()
        try:
            if target.exists() and not target.is_file():
                raise UserError(f"'{target}' cannot be read: it is not a file; remove it.")
            with open(target, "rb") as file:
                return file.read(len(text) + 1) == text
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise unreadable(error, target) from error

    def check(self) -> None:
        """Make sure that what is there may be gone on with.

        Raises:
            UserError: it was written in another layout, is of other settings than its name says, or leads elsewhere.
        """
        anew = "move it away, or begin anew with runtime.force=true."
        if (reason := self.other_layout()) is not None:
            raise UserError(f"{self.path} {reason}; {anew}")
        try:
            there = digest(self.config())
        except TypeError:  # such as a date, which is no setting
            there = "(not to be read)"
        except (FileNotFoundError, NotADirectoryError):  # `make` says what is wrong with the place
            there = self.digest
        except UserError:
            there = "(not to be read)"
        if there != self.digest:
            raise UserError(f"{self.path} holds a run of other settings ({there}); {anew}")
        for place in (
            self.path / "methods",
            *self.path.glob("methods/*"),
            *self.path.glob("methods/*/blocks"),
        ):
            if place.is_symlink():
                raise UserError(f"{place} leads elsewhere, and a run writes and removes files there; {anew}")

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration that the run was made with.

        Raises:
            FileNotFoundError, NotADirectoryError: there is none.
            UserError: it cannot be read, or is damaged.
        """
        path = self.path / "config.yaml"
        path.lstat()  # raises if there is none
        text = yaml_file.read(path, _MOST_BYTES)
        try:
            yaml_file.check(text, str(path), _MOST_VALUES)
            loaded = yaml.safe_load(text)
        except (ValueError, RecursionError, yaml.YAMLError):
            loaded = None
        parts = ("methods", "runtime", "model", "data", "target")
        whole = isinstance(loaded, dict) and all(isinstance(loaded.get(part), dict) for part in parts)
        if not whole or not all(isinstance(method, dict) for method in loaded["methods"].values()):
            raise UserError(f"'{path}' is damaged; the same command writes it again.")
        return loaded

    def summary(self) -> dict[str, Any] | None:
        """Return the summary, or None when there is none, or it is not as a run wrote it.

        Raises:
            UserError: it is there and cannot be read.
        """
        found = read_sealed(self.path / "summary.json")
        return found if found is not None and _is_summary(found) else None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace the summary; it has a checksum of its own content."""
        write_sealed(self.path / "summary.json", summary)

    def has_damaged_summary(self) -> bool:
        """Return whether there is a summary that was cut or changed."""
        return self.summary() is None and (self.path / "summary.json").exists()

    def other_layout(self) -> str | None:
        """Return by which version of mhrun the folder was written, where its layout is not the present one, or None."""
        summary = self.summary() or {}
        layout = summary.get("format", FORMAT)
        if layout == FORMAT:
            return None
        versions = summary.get("versions")
        version = str(versions.get("mhrun", "")) if isinstance(versions, Mapping) else ""
        return f"was written by {f'mhrun {version}' if version else 'another version'} (layout {layout}, now {FORMAT})"

    def incomplete(self) -> str | None:
        """Return why there are no results to read, and what to do, or None."""
        if (reason := self.other_layout()) is not None:
            return f"{self.path} {reason}; run its experiment again."
        if not self.is_complete():
            return f"{self.path} is not complete; run the same command again to finish it."
        return None

    def is_complete(self) -> bool:
        """Return whether every method has run to its end, in the present layout."""
        summary = self.summary()
        return summary is not None and summary.get("status") == COMPLETE and summary.get("format") == FORMAT

    def damage(self) -> dict[str, str]:
        """Return what is wrong with the results of a complete run, method -> in a few words; of another nothing.

        All traces are read for their checksums: a second for each 1 to 2 GB.

        Raises:
            UserError: a file is there and cannot be read.
        """
        from mhrun.store.blocks import damage  # brings NumPy and torch, which `mhrun list` does without

        if not self.is_complete():
            return {}
        methods = (self.summary() or {}).get("methods") or {}
        found = {str(name): damage(self.method(str(name))) for name in methods}
        return {name: why for name, why in found.items() if why is not None}

    def check_results(self) -> None:
        """Make sure that the results of a complete run are what was written.

        Raises:
            UserError: they are not.
        """
        for name, why in self.damage().items():
            raise UserError(
                f"{self.path}: {name}: {why}; run the same command again to have it computed anew."
            )

    def point_latest(self) -> None:
        """Let ``<outputs>/<experiment>/latest`` lead here."""
        link = self.path.parent / "latest"
        if not link.is_symlink() and link.exists() and not _is_pointer(link):  # something of the user's
            return
        partial = link.with_name(f".latest-{os.getpid()}")
        try:
            partial.unlink(missing_ok=True)
            partial.symlink_to(self.path.name, target_is_directory=True)
            os.replace(partial, link)
        except OSError:  # no symbolic links here: a file with the name does
            with suppress(OSError, UserError):  # it is for people: a run goes on without it
                partial.unlink(missing_ok=True)
                if not link.is_dir():
                    write_text(link, self.path.name + "\n")

    @contextmanager
    def held(self, waiting: Callable[[str], None]) -> Iterator[None]:
        """Hold the folder for this process. If another has it, say so through `waiting`, and wait.

        The operating system lets go of the lock when its holder dies, however it dies.

        Raises:
            UserError: the folder cannot be written.
        """
        lock = filelock.FileLock(self.path / ".lock")
        owner = self.path / ".owner"
        try:
            if (self.path / ".lock").is_symlink():  # older versions of filelock empty what it leads to
                (self.path / ".lock").unlink(missing_ok=True)
            lock.acquire(timeout=0)
        except filelock.Timeout:
            who = read_json(owner) or {}
            waiting(
                f"This run is being computed already (process {who.get('pid', '?')} on {who.get('host', '?')}, "
                f"since {who.get('since', '?')}). Waiting for it; Ctrl-C to stop waiting."
            )
            lock.acquire()
        except OSError as error:
            raise explain(error, self.path / ".lock") from error
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        try:
            with suppress(UserError):  # it is for people who wait
                write_text(owner, json.dumps(about))
            yield
        finally:
            with suppress(OSError):
                owner.unlink(missing_ok=True)
            lock.release()


def _dumped(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def _is_pointer(path: Path) -> bool:
    """Return whether a file holds the name of a run, as `point_latest` writes it where there are no links."""
    try:
        return path.is_file() and path.stat().st_size < 100 and bool(_POINTER.fullmatch(path.read_text()))
    except (OSError, ValueError):
        return False


def _is_summary(found: Mapping[str, Any]) -> bool:
    """Say whether a JSON object has the form of a summary: what is there of it is of its kind."""
    methods, claims = found.get("methods", {}), found.get("claims", [])
    return (
        isinstance(methods, dict)
        and all(isinstance(about, dict) for about in methods.values())
        and isinstance(claims, list)
        and all(isinstance(claim, dict) and isinstance(claim.get("verdict"), str) for claim in claims)
        and isinstance(found.get("metrics", {}), dict)
        and isinstance(found.get("sources", []), list)
        and all(isinstance(found.get(name, {}), dict) for name in ("versions", "machine"))
        and all(isinstance(found.get(name, ""), str) for name in ("scale", "status", "started", "finished"))
    )


def runs(outputs: Path, experiment: str | None = None) -> list[RunFolder]:
    """Return all run folders with a configuration, oldest first."""
    pattern = f"{experiment or '*'}/*/config.yaml"
    found = [p for p in outputs.glob(pattern) if not p.parent.is_symlink()]
    return [RunFolder(p.parent) for p in sorted(found, key=lambda p: p.stat().st_mtime)]


def sweeps(outputs: Path) -> list[Path]:
    """Return all sweep folders; a link is none, as reports write and remove files there."""
    found = (p for p in outputs.glob("*/sweeps/*/jobs") if p.is_dir())
    return sorted(p.parent for p in found if not any(q.is_symlink() for q in (p, p.parent, p.parent.parent)))
