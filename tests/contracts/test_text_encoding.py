"""Text files are read and written as UTF-8, whatever the encoding of the locale is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from mhrun.paths import PACKAGE

_METHODS = ("open", "read_text", "write_text", "fdopen", "TextIOWrapper", "NamedTemporaryFile")
_NO_TEXT = ("os.open", "Image.open", "tarfile.open", "archive.open")


def calls_without_encoding(code: str) -> list[str]:
    """Return the calls in a source that open a text file in the encoding of the locale."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _METHODS or (name != "open" and isinstance(node.func, ast.Name)):
            continue
        words = [str(part.value) for part in node.args if isinstance(part, ast.Constant)]
        is_binary = name != "write_text" and any("b" in word and set(word) <= set("rwaxb+") for word in words)
        has_encoding = any(keyword.arg == "encoding" for keyword in node.keywords)
        if not (is_binary or has_encoding or ast.unparse(node.func) in _NO_TEXT):
            found.append(ast.unparse(node))
    return found


def test_calls_without_an_encoding_are_found():
    code = "\n".join(
        [
            "open(path)",
            "open(path, 'rb')",
            "gzip.open(path, 'rt')",
            "path.read_text()",
            "path.read_text(encoding='utf-8')",
            "path.write_text('b')",
            "os.open(path, flags)",
        ]
    )
    assert calls_without_encoding(code) == [
        "open(path)",
        "gzip.open(path, 'rt')",
        "path.read_text()",
        "path.write_text('b')",
    ]


@pytest.mark.parametrize("folder", ["mhrun", "hydra_plugins", "experiments", "benchmarks", "docs/_made"])
def test_every_text_file_is_opened_with_an_encoding(folder):
    files = sorted((PACKAGE.parent / folder).rglob("*.py"))
    found = [call for file in files for call in calls_without_encoding(file.read_text(encoding="utf-8"))]
    assert files
    assert found == []


def in_ascii(*words):
    """Return the end of a process of Python whose locale has ASCII."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )


def test_a_locale_that_cannot_name_a_file_is_reported():
    """Arguments are UTF-8 in configurations; a file of such a name is not found then."""
    ended = in_ascii("-m", "mhrun", "--project", "größe", "list")
    first, second = ended.stderr.splitlines()
    assert first == "mhrun: the locale reads names of files as ascii; if they are UTF-8, set PYTHONUTF8=1."
    assert second.startswith(r"mhrun: --project gr\xf6\xdfe: there is no such folder")
    assert in_ascii("-m", "mhrun", "--version").stderr == ""


@pytest.mark.long
def test_files_with_characters_beyond_ascii_are_read_in_a_locale_of_ascii():
    code = (
        "from mhrun.report.claims.judge import read_claims; from mhrun.report.fresh import source\n"
        "from mhrun.paths import claims_path\n"
        "print(sum(character > '\\x7f' for character in source('mint.figure1')) > 0)\n"
        "print(bool(read_claims(claims_path('mint'))))"
    )
    ended = in_ascii("-c", code)
    assert (ended.stdout, ended.stderr) == ("True\nTrue\n", "")
