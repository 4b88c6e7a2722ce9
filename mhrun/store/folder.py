"""The folder of one run: ``<outputs>/<experiment>/<digest>/``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import Any

import filelock
import yaml

from mhrun import __version__, yaml_file
from mhrun.errors import UserError
from mhrun.names import checked_name
from mhrun.paths import expanded
from mhrun.store.checksums import read_sealed, write_sealed
from mhrun.store.files import explain, read_json, unreadable, write_text
from mhrun.store.identity import FORMAT, RESULTS_VERSION, digest
from mhrun.store.locks import acquire, held

COMPLETE = "complete"
# Of a resolved configuration, which may have lists with a value for each chain.
_MOST_VALUES, _MOST_BYTES = 10_000_000, 1 << 28
_POINTER = re.compile(r"[0-9a-f]{6,64}\n?")


class RunFolder:
    """The folder of a run: config.yaml, summary.json, log.txt, methods/, report/."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RunFolder:
        """Return the folder of a resolved configuration, which need not exist.

        Raises:
            UserError: the experiment's name is invalid and could lead elsewhere.
        """
        name = checked_name(config["experiment"], "the experiment")
        return cls(expanded(config["runtime"]["outputs"]) / name / digest(config))

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
        """The folder of the report."""
        return self.path / "report"

    @property
    def log(self) -> Path:
        """The path of the log."""
        return self.path / "log.txt"

    def method(self, name: str) -> Path:
        """Return the folder of a method's trace.

        Raises:
            UserError: the name is invalid and could lead elsewhere.
        """
        return self.path / "methods" / checked_name(name, "the method")

    def create(self, config: Mapping[str, Any]) -> None:
        """Create the folder and write the configuration; the folder should be locked.

        If the run exists, settings that change no number may differ: titles, labels, contents of the report.

        Raises:
            UserError: the folder cannot be written, or leads elsewhere.
        """
        self.make()
        if not self.has(config):
            write_text(self.path / "config.yaml", _dumped(config))

    def make(self) -> None:
        """Create the folder if it does not exist.

        Raises:
            UserError: the folder cannot be written, or leads elsewhere.
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
        """Return whether the folder has exactly this configuration.

        Raises:
            UserError: its configuration exists and cannot be read.
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
        """Check that the run in the folder may be continued.

        Raises:
            UserError: it has another layout or other settings than its name, or leads elsewhere.
        """
        remedy = "move it away, or start again with runtime.force=true."
        if (reason := self.other_layout()) is not None:
            raise UserError(f"{self.path} {reason}; {remedy}")
        try:
            recorded = digest(self.config())
        except TypeError:  # such as a date, which is not a valid setting
            recorded = "(unreadable)"
        except (FileNotFoundError, NotADirectoryError):  # `make` reports what is wrong with the folder
            recorded = self.digest
        except UserError:
            recorded = "(unreadable)"
        if recorded != self.digest:
            raise UserError(f"{self.path} holds a run of other settings ({recorded}); {remedy}")
        for folder in (
            self.path / "methods",
            *self.path.glob("methods/*"),
            *self.path.glob("methods/*/blocks"),
        ):
            if folder.is_symlink():
                raise UserError(
                    f"{folder} leads elsewhere, and a run writes and removes files there; {remedy}"
                )

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration that the run was made with.

        Raises:
            FileNotFoundError, NotADirectoryError: it does not exist.
            UserError: it cannot be read, or is damaged.
        """
        path = self.path / "config.yaml"
        path.lstat()  # raises if it does not exist
        text = yaml_file.read(path, _MOST_BYTES)
        try:
            yaml_file.check(text, str(path), _MOST_VALUES, yaml_file.SAFE_LOADER)
            loaded = yaml.load(text, Loader=yaml_file.SAFE_LOADER)
        except (ValueError, RecursionError, yaml.YAMLError):
            loaded = None
        parts = ("methods", "runtime", "model", "data", "target")
        complete = isinstance(loaded, dict) and all(isinstance(loaded.get(part), dict) for part in parts)
        if not complete or not all(isinstance(method, dict) for method in loaded["methods"].values()):
            raise UserError(f"'{path}' is damaged; the same command writes it again.")
        return loaded

    def summary(self) -> dict[str, Any] | None:
        """Return the summary, or None if it is missing or was changed.

        Raises:
            UserError: it is there and cannot be read.
        """
        record = read_sealed(self.path / "summary.json")
        return record if record is not None and _is_summary(record) else None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace the summary, with a checksum of its content."""
        write_sealed(self.path / "summary.json", summary)

    def has_damaged_summary(self) -> bool:
        """Return whether the summary was truncated or changed."""
        return self.summary() is None and (self.path / "summary.json").exists()

    def projects(self) -> list[Path]:
        """Return the folders of the user's that the run was made with, empty without any or if they are unknown."""
        return [Path(folder) for folder in (self.summary() or {}).get("projects", [])]

    def other_layout(self) -> str | None:
        """Return the version of mhrun that wrote the folder if its layout differs from the present one, else None."""
        summary = read_json(self.path / "summary.json") or {}  # other layouts may have no checksum
        layout = summary.get("format", FORMAT)
        if layout == FORMAT or not isinstance(layout, int):
            return None
        versions = summary.get("versions")
        version = str(versions.get("mhrun", "")) if isinstance(versions, Mapping) else ""
        writer = f"mhrun {version}" if version else "another version"
        if version == __version__:
            writer = f"an earlier development version of {writer}"
        return f"was written by {writer} (layout {layout}, now {FORMAT})"

    def incomplete(self) -> str | None:
        """Return why the results cannot be read and what to do, or None."""
        if (reason := self.other_layout()) is not None:
            return f"{self.path} {reason}; run its experiment again."
        if not self.is_complete():
            lacks = "" if (self.path / "summary.json").is_file() else " (it has no summary.json)"
            return (
                f"{self.path} is not complete{lacks}; run the same command again to finish it or, if it is a copy, "
                "copy the run again."
            )
        if self.has_other_settings():
            return (
                f"{self.path / 'config.yaml'} was changed after the run, whose draws are of other settings; run its "
                "command again, which writes the file anew."
            )
        return None

    def has_other_settings(self) -> bool:
        """Return whether the configuration is not the one with which the run was made, by the summary's digest.

        Raises:
            UserError: the configuration cannot be read.
        """
        summary = self.summary() or {}
        if summary.get("results_version") != RESULTS_VERSION:  # its digest was another for the same settings
            return False
        try:
            return digest(self.config()) != summary.get("digest")
        except (TypeError, KeyError, AttributeError):  # such as a date, which is no valid setting
            return True

    def is_complete(self) -> bool:
        """Return whether every method is complete, in the present layout, and the configuration is there."""
        summary = self.summary()
        if summary is None or not (self.path / "config.yaml").is_file():
            return False
        return summary.get("status") == COMPLETE and summary.get("format") == FORMAT

    def damage(self) -> dict[str, str]:
        """Return what is wrong with the results of a complete run, method -> short description; else nothing.

        Reads all traces for their checksums: a second for each 1 to 2 GB.

        Raises:
            UserError: a file is there and cannot be read.
        """
        from mhrun.store.blocks import damage  # imports NumPy and torch, which `mhrun list` does not need

        if not self.is_complete():
            return {}
        methods = (self.summary() or {}).get("methods") or {}
        reasons = {str(name): damage(self.method(str(name))) for name in methods}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def check_results(self) -> None:
        """Check that the results of a complete run are unchanged.

        Raises:
            UserError: they have changed.
        """
        for name, reason in self.damage().items():
            raise UserError(f"{self.path}: {name}: {reason}; run the same command again to recompute it.")

    def point_latest(self) -> None:
        """Point ``<outputs>/<experiment>/latest`` to this folder."""
        link = self.path.parent / "latest"
        if not link.is_symlink() and link.exists() and not _is_pointer(link):  # a file of the user's
            return
        partial = link.with_name(f".latest-{os.getpid()}")
        try:
            partial.unlink(missing_ok=True)
            partial.symlink_to(self.path.name, target_is_directory=True)
            os.replace(partial, link)
        except OSError:  # no symbolic links on this system: write a file with the name
            with suppress(OSError, UserError):  # only a convenience: the run continues without it
                partial.unlink(missing_ok=True)
                if not link.is_dir():
                    write_text(link, self.path.name + "\n")

    @contextmanager
    def held(self, waiting: Callable[[str], None]) -> Iterator[None]:
        """Lock the folder for this process. If another process holds it, report that through `waiting`, and wait.

        Raises:
            UserError: the folder cannot be written.
        """
        with held(self.path, "run", waiting):
            for leftover in self.path.glob(".worker-*.lock"):  # of a process that was killed: they end soon
                if not leftover.is_symlink():
                    with suppress(OSError), filelock.FileLock(leftover):
                        pass
            yield

    @contextmanager
    def worker_lock(self, number: int) -> Iterator[None]:
        """Lock the folder for a worker process of the one that holds it: `held` waits for both.

        Raises:
            UserError: the folder cannot be written.
        """
        lock = filelock.FileLock(self.path / f".worker-{number}.lock")
        acquire(lock)
        try:
            yield
        finally:
            lock.release()


def _dumped(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def _is_pointer(path: Path) -> bool:
    """Return whether a file holds the name of a run, as `point_latest` writes it on systems without links."""
    try:
        return (
            path.is_file()
            and path.stat().st_size < 100
            and bool(_POINTER.fullmatch(path.read_text(encoding="utf-8")))
        )
    except (OSError, ValueError):
        return False


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _is_summary(record: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has the form of a summary: all entries have the expected types."""
    methods, claims = record.get("methods", {}), record.get("claims", [])
    return (
        isinstance(methods, dict)
        and all(isinstance(method, dict) for method in methods.values())
        and isinstance(claims, list)
        and all(isinstance(claim, dict) and isinstance(claim.get("verdict"), str) for claim in claims)
        and isinstance(record.get("metrics", {}), dict)
        and isinstance(record.get("sources", []), list)
        and _is_texts(record.get("projects", []))
        and all(isinstance(record.get(name, {}), dict) for name in ("versions", "machine"))
        and all(
            isinstance(record.get(name, ""), str)
            for name in ("scale", "status", "started", "finished", "error")
        )
    )


def runs(outputs: Path, experiment: str | None = None) -> list[RunFolder]:
    """Return all run folders with a configuration, oldest first; folders that are deleted meanwhile are left out."""
    pattern = f"{experiment or '*'}/*/config.yaml"
    dated: list[tuple[float, Path]] = []
    for name in sorted(glob(pattern, root_dir=outputs)):  # unlike Path.glob, it passes over deleted folders
        path = outputs / name
        with suppress(FileNotFoundError):
            if not path.parent.is_symlink():
                dated.append((path.lstat().st_mtime, path))  # a link may lead in a circle
    return [RunFolder(path.parent) for _, path in sorted(dated, key=lambda pair: pair[0])]


def sweeps(outputs: Path) -> list[Path]:
    """Return all sweep folders; links are ignored, because reports write and remove files there."""
    folders = (p for p in outputs.glob("*/sweeps/*/jobs") if p.is_dir())
    return sorted(
        p.parent for p in folders if not any(q.is_symlink() for q in (p, p.parent, p.parent.parent))
    )
