"""Users without a home folder, paths that name the home of nobody, and folders that no project can have."""

from __future__ import annotations

import os
import pwd
import shlex
import sys

import numpy as np
import pytest

from mhrun import paths
from mhrun.cli import crash, main
from mhrun.data.files import data_dir

NOBODY = "~nobody-of-this-name/runs"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _homeless(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    for name in ("HOME", "MHRUN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    paths._temporary_cache_dir.cache_clear()
    yield
    paths._temporary_cache_dir.cache_clear()


@pytest.mark.usefixtures("_homeless")
def test_without_a_home_folder_the_cache_is_a_temporary_one(capsys):
    """As in a container whose user is a number that it does not know."""
    folder = paths.cache_dir()
    assert folder == paths.cache_dir()
    assert os.access(folder.parent, os.W_OK)
    assert data_dir() == folder / "data"
    assert capsys.readouterr().err.count("MHRUN_CACHE_DIR=FOLDER") == 1


@pytest.mark.usefixtures("_homeless")
def test_details_of_a_crash_are_not_written_where_they_would_be_removed():
    assert crash.crash_of(ValueError("x")).line.endswith(
        "The details could not be written; MHRUN_DEBUG=1 shows them."
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        (f"--project {NOBODY} list", main.MISTAKE, "there is no such folder"),
        (f"compare gmm_tied_means runtime.outputs={NOBODY}", main.MISTAKE, "is not a run"),
        (f"gmm_tied_means scale=smoke --dry-run \"runtime.outputs='{NOBODY}'\"", 0, ""),
    ],
)
def test_the_home_of_nobody_is_an_ordinary_path(capsys, line, status, message):
    assert main.run(shlex.split(line)) == status
    assert message in capsys.readouterr().err


def test_a_project_is_not_created_where_it_could_not_be_run(tmp_path, capsys):
    """The environment separates folders by a colon."""
    np.savetxt(
        "rows.csv", np.random.default_rng(0).normal(size=(50, 2)), delimiter=",", header="x,y", comments=""
    )
    folder = f"a{os.pathsep}b/own"
    assert main.run(["init", folder]) == main.MISTAKE
    assert main.run(["init", folder, "--data", "rows.csv", "--outcome", "y"]) == main.MISTAKE
    assert capsys.readouterr().err.count(f"its path has a '{os.pathsep}'; rename the folder") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_folder_that_is_read_as_a_setting_is_named(capsys):
    np.savetxt("rows.csv", np.zeros((5, 2)), delimiter=",", header="x,y", comments="")
    for line in (["a=b/own"], ["a=b/own", "--data", "rows.csv", "--outcome", "y"]):
        assert main.run(["init", *line]) == main.MISTAKE
        assert "'a=b/own' has a = and is read as a setting, not as a folder." in capsys.readouterr().err
    assert main.run(["init", "one", "two"]) == main.MISTAKE
    assert "is read as a setting" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="has no names of users in paths")
def test_home_folders_are_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.expanded("~/runs") == tmp_path / "runs"
    assert paths.lasting_cache_dir() is not None


@pytest.mark.parametrize(
    "line",
    [
        "init {}",
        "init own --data {}",
        "--project {} list",
        "compare {}",
        "report {}",
        "report runtime.outputs={}",
    ],
)
def test_a_name_that_is_too_long_is_a_mistake(capsys, line):
    """`Path.is_file` raises an error for such a name, where other names that do not exist give False."""
    assert main.run(line.format("y" * 300).split()) == main.MISTAKE
    message = capsys.readouterr().err
    assert "File name too long; choose a shorter name." in message
    assert message.count("\n") == 1
    assert len(message) < 400
