"""What the README shows runs as it stands."""

from __future__ import annotations

import re
import shlex

import pytest

from mhrun.cli.compose import compose_config
from mhrun.cli.main import taken_apart
from mhrun.paths import PACKAGE

README = PACKAGE.parent / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is in the repository only")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text() if README.exists() else "", re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) == pytest.approx(3.0, abs=0.1)


def commands():
    lines = "\n".join(blocks("bash")).splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.startswith("mhrun ")]


@pytest.mark.parametrize("line", commands())
def test_commands_mean_something(line):
    arguments = shlex.split(line)[1:]
    if "--config-dir" in arguments or arguments[0].startswith("--"):
        return  # a folder of the reader's own; options alone
    words = taken_apart(arguments)
    if words.command != "run":
        return
    first = [word.partition(",")[0] if words.multirun else word for word in words.rest]
    assert compose_config(first)["experiment"] == "gmm_tied_means"
