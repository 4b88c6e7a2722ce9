"""Whose code something is: a line of an error is that of the user's code, not that of a library in a project."""

from __future__ import annotations

import json
import os

import pytest
import torch

from mhrun.cli.crash import crash_of
from mhrun.ownership import blame, is_bundled, is_library, is_own_file
from mhrun.paths import EXPERIMENTS, FOLDERS, PACKAGE


@pytest.fixture(autouse=True)
def _no_projects(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDERS, "")
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path / "cache"))


def function_in(path, code, **names):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"def function():\n    {code}\n")
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["function"]


def test_files_of_each():
    assert is_own_file(str(PACKAGE / "build.py"))
    assert is_own_file(str(EXPERIMENTS / "shared" / "any.py"))
    assert is_library(json.__file__)
    assert is_library(torch.__file__)
    assert is_library("<string>")
    for path in (str(PACKAGE / "build.py"), "/home/someone/model.py", ""):
        assert not is_library(path)
    assert not is_bundled(torch.nn.Module)


def test_a_project_may_be_installed_and_libraries_may_be_in_a_project(monkeypatch, tmp_path):
    project = tmp_path / "site-packages" / "mine"
    monkeypatch.setenv(FOLDERS, os.pathsep.join([str(project), str(tmp_path / "project")]))
    assert not is_library(str(project / "model.py"))
    assert is_library(str(tmp_path / "site-packages" / "other.py"))
    assert is_library(str(tmp_path / "project" / ".venv" / "site-packages" / "other.py"))
    assert not is_library(str(tmp_path / "project" / "model.py"))


@pytest.mark.parametrize("within", ["lib/site-packages", "project/.venv/site-packages"])
def test_both_lines_on_an_error_name_the_line_of_the_project(monkeypatch, tmp_path, within):
    monkeypatch.setenv(FOLDERS, str(tmp_path / "project"))
    fails = function_in(tmp_path / within / "library.py", "import json; json.loads('{')")
    helps = function_in(tmp_path / "shared" / "helper.py", "fails()", fails=fails)
    model = function_in(tmp_path / "project" / "model.py", "helps()", helps=helps)
    with pytest.raises(json.JSONDecodeError) as caught:
        model()
    assert blame(caught.value).endswith("(model.py, line 2)")
    assert crash_of(caught.value).of_user
    assert "(model.py, line 2)" in crash_of(caught.value).line
