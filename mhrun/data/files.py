"""Files of public data sets: taken from the data folder or downloaded, and always verified.

Digests are those of the *uncompressed* content, so that compression does not matter. Those of tables are of the
numbers, so that the order of rows and the notation do not matter. Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

import filelock

from mhrun.errors import UserError, nearest
from mhrun.paths import cache_dir, expanded


class RemoteFile(NamedTuple):
    """One file of a data set."""

    name: str  # in the folder <data_dir>/<data set>
    sha256: str  # SHA-256 of the uncompressed content; of a table, in `canonical` form
    folder: str = ""  # folder of the mirror, ending in a slash
    table: bool = False  # whether it is a table of numbers
    archive: bool = False  # whether it is a compressed archive, whose digest is that of the file itself


class RemoteSet(NamedTuple):
    """A data set and its download addresses."""

    title: str
    mirrors: tuple[str, ...]  # a download is address + folder of the file + name
    files: tuple[RemoteFile, ...]


def _idx(*digests: str) -> tuple[RemoteFile, ...]:
    """Return the files of MNIST's format, training images first; with two digests, the test images only."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    chosen = names[-len(digests) :]
    return tuple(RemoteFile(f"{n}-ubyte.gz", digest) for n, digest in zip(chosen, digests, strict=True))


CATALOGUE: dict[str, RemoteSet] = {
    "mnist": RemoteSet(
        "MNIST, 70,000 handwritten digits (LeCun, Cortes & Burges)",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        _idx(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "fashion-mnist": RemoteSet(
        "Fashion-MNIST, 70,000 articles of clothing (Xiao, Rasul & Vollgraf 2017)",
        (
            "https://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        _idx(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    "cifar10": RemoteSet(
        "CIFAR-10, 60,000 colour images of ten classes, binary version (Krizhevsky 2009)",
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            RemoteFile(
                "cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                archive=True,
            ),
        ),
    ),
    "cifar100": RemoteSet(
        "CIFAR-100, 60,000 colour images of a hundred classes, binary version (Krizhevsky 2009)",
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            RemoteFile(
                "cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                archive=True,
            ),
        ),
    ),
    "notmnist": RemoteSet(
        "notMNIST, 10,000 letters A to J from many fonts, as MNIST's test files (Bulatov 2011; D. Flanagan)",
        ("https://github.com/davidflanagan/notMNIST-to-MNIST/raw/master/",),
        _idx(
            "8e7f38ae95cc8f48e0986175ffc9137e5007ebcf3d8fdf6656c904eb9dab198b",
            "5f8e6012f2ce730700d8d05fca098bc47f71d25b890e4bec7ac5ebfd614a4001",
        ),
    ),
    "uci": RemoteSet(
        "Australian, German and Heart of Statlog: small sets with two classes (UCI Machine Learning Repository)",
        ("https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/",),
        (
            RemoteFile(
                "australian.dat",
                "551ffb306858c890ba448213248b9cd61340d746b2df8dc3c26d889ff9bd1575",
                "australian/",
                table=True,
            ),
            RemoteFile(
                "german.data-numeric",
                "b21a87a1015571223393eb91257d046ddc749d671bec7b2c62cb9a55f794bf7d",
                "german/",
                table=True,
            ),
            RemoteFile(
                "heart.dat",
                "73d6a774e40b2cc7a10a12dd7028e46ea9ca7f5d15ff12129e6e08effd70838a",
                "heart/",
                table=True,
            ),
        ),
    ),
}


_MAX_BYTES = 1 << 30  # of uncompressed content: more than any file above has, less than a decompression bomb

_chosen: str | None = None


def look_in(folder: str | None) -> None:
    """Set the folder of data sets for this process; None: the default of `data_dir`.

    The place changes no number, so it is not a setting of a data set, which would enter the run's identity.
    """
    global _chosen
    _chosen = folder


def data_dir(setting: str | None = None) -> Path:
    """Return the data folder: the setting, or that of `look_in`, or $MHRUN_DATA_DIR, or one in the cache folder."""
    chosen = setting or _chosen or os.environ.get("MHRUN_DATA_DIR")
    return expanded(chosen) if chosen else cache_dir() / "data"


def state(name: str, folder: Path) -> str:
    """Return ``here``, ``absent`` or ``damaged``."""
    checks = [_content_is(folder / name / file.name, file) for file in CATALOGUE[name].files]
    if all(checks):
        return "here"
    return "damaged" if any(f is False for f in checks) else "absent"


def ensure(name: str, folder: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of a data set, with all files verified; missing files are downloaded.

    Raises:
        UserError: the data set is unknown, a file is damaged, or the download fails.
    """
    if name not in CATALOGUE:
        raise UserError(f"There is no data set '{name}'.{nearest(name, CATALOGUE)} mhrun fetch lists them.")
    targets = [(file, folder / name / file.name) for file in CATALOGUE[name].files]
    checks = [_content_is(target, file) for file, target in targets]
    for (_, target), check in zip(targets, checks, strict=True):
        if check is False:
            raise _damaged(target)
    if None in checks:
        _fetch(name, folder / name, say)
    return folder / name


def _fetch(name: str, folder: Path, say: Callable[[str], None]) -> None:
    """Download the missing files of a data set, after waiting for another process that does so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            for old in folder.glob(".partial-*"):  # from a killed process: a living one would hold the lock
                shutil.rmtree(old, ignore_errors=True)
            for file in CATALOGUE[name].files:
                if not (folder / file.name).is_file() and (reason := _download(name, file, folder, say)):
                    raise _missing(name, folder, reason)
    except OSError as error:
        raise UserError(
            f"The data folder {folder} cannot be written ({error.strerror}); set MHRUN_DATA_DIR."
        ) from error


def _missing(name: str, folder: Path, reason: str) -> UserError:
    """Return instructions for a machine without internet: the missing files and their digests."""
    lines = [
        f"  {file.name}  SHA-256 of {_what(file)}: {file.sha256}"
        for file in CATALOGUE[name].files
        if not (folder / file.name).is_file()
    ]
    return UserError(
        f"{name} cannot be downloaded ({reason}). Offline? Put into {folder}:\n" + "\n".join(lines)
    )


def _what(file: RemoteFile) -> str:
    if file.archive:
        return "the file"
    return "its sorted rows" if file.table else "its uncompressed content"


def canonical(table: bytes) -> bytes:
    """Return rows of numbers in canonical form: sorted, each number as Python writes the float64.

    Raises:
        ValueError: it holds something other than numbers.
    """
    rows = (
        " ".join(repr(float(word)) for word in line.split()) for line in table.decode("ascii").splitlines()
    )
    return "".join(f"{row}\n" for row in sorted(rows) if row).encode()


def content(name: str, file: str) -> bytes:
    """Return the uncompressed content of a data set's file in the data folder, verified; nothing is downloaded.

    A table is returned in `canonical` form, so that its bits do not depend on the source.

    Raises:
        UserError: the file is missing, damaged, or cannot be read.
    """
    path = data_dir() / name / file
    remote = {remote.name: remote for remote in CATALOGUE[name].files}[file]
    try:
        with _opened(path, remote) as stream:
            payload = _content(stream)
    except FileNotFoundError as error:
        raise UserError(
            f"There is no {path}: get it with 'mhrun fetch {name}', or give the folder of the "
            "data sets with runtime.data_dir=FOLDER or MHRUN_DATA_DIR."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise _damaged(path) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    try:
        payload = canonical(payload) if remote.table else payload
    except ValueError as error:
        raise _damaged(path) from error
    if hashlib.sha256(payload).hexdigest() != remote.sha256:
        raise _damaged(path)
    return payload


def _opened(path: Path, remote: RemoteFile) -> IO[bytes] | gzip.GzipFile:
    packed = path.suffix == ".gz" and not remote.archive
    return gzip.open(path, "rb") if packed else open(path, "rb")


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} has unexpected content (SHA-256); delete it and fetch it again.")


def _download(name: str, file: RemoteFile, folder: Path, say: Callable[[str], None]) -> str:
    """Download a file from the first mirror that provides it; return why all failed, or an empty string."""
    import pooch

    reasons = []
    for mirror in CATALOGUE[name].mirrors:
        address = f"{mirror}{file.folder}{file.name}"
        say(f"downloading {address}")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as partial:
            part = Path(partial) / file.name
            try:
                pooch.HTTPDownloader(timeout=30)(address, str(part), None)
            except Exception as error:
                reasons.append(f"{mirror}: {type(error).__name__}")
                continue
            if not _content_is(part, file):
                reasons.append(f"{mirror}: unexpected content")
                continue
            os.replace(part, folder / file.name)
            return ""
    return f"{file.name}: {'; '.join(reasons) or 'no mirror is known'}"


def _content(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    """Return the whole content of a stream.

    Raises:
        ValueError: it is longer than any file of a data set.
    """
    payload = stream.read(_MAX_BYTES + 1)
    if len(payload) > _MAX_BYTES:
        raise ValueError("more than any file of a data set")
    return payload


def _content_is(path: Path, remote: RemoteFile) -> bool | None:
    """Return whether the content of a file has its digest; None if there is no file."""
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    try:
        with _opened(path, remote) as stream:
            if remote.table:
                digest.update(canonical(_content(stream)))
            length = 0
            while part := stream.read(1 << 20):
                digest.update(part)
                if (length := length + len(part)) > _MAX_BYTES:
                    return False
    except (OSError, EOFError, zlib.error, ValueError):
        return False
    return digest.hexdigest() == remote.sha256
