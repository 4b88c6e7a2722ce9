"""The commands that test parts of the user's own as a run had them."""

from __future__ import annotations

import pytest

from mhrun.report.check_commands import check_commands


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a package and a file."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "single.py").touch()
    monkeypatch.setenv("MHRUN_FOLDERS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_command_has_the_settings_that_the_run_had(project):
    inner = {"_target_": "theirs.walk.Walk", "scale": None}
    kernel = {"_target_": "theirs.cycle.Cycle", "first": inner, "m": 50, "name": "true", "share": 1e-7}
    assert list(check_commands(kernel)) == [
        "mhrun check --project . theirs.cycle.Cycle 'first={_target_: theirs.walk.Walk, scale: null}' m=50 "
        "'name='\"'\"'true'\"'\"'' share=1.0e-07"
    ]
    parts = {"_target_": "mhrun.kernels.MetropolisHastings", "rule": {"_target_": "single.Mine"}, "m": 3}
    assert list(check_commands(parts | {"proposal": inner})) == [
        "mhrun check --project . single.Mine",
        "mhrun check --project . theirs.walk.Walk scale=null",
    ]
    assert list(check_commands({"_target_": "mhrun.kernels.Unadjusted", "m": 3})) == []


@pytest.mark.parametrize("m", [None, "auto", 5000])
def test_a_minibatch_that_a_check_cannot_have_is_left_to_it(project, m):
    assert list(check_commands({"_target_": "single.Mine", "m": m})) == [
        "mhrun check --project . single.Mine"
    ]


def test_a_part_is_found_in_its_project_or_package(project, monkeypatch):
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    assert list(check_commands({"_target_": "single.Mine"})) == [
        f"mhrun check --project {project} single.Mine"
    ]
    assert list(check_commands({"_target_": "torch.Mine"})) == ["mhrun check --trust torch torch.Mine"]
    assert list(check_commands({"_target_": "nowhere_else.Mine"})) == [
        "mhrun check --project DIR nowhere_else.Mine"
    ]
