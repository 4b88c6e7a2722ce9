"""Settings that messages advise mean the same names when they are pasted into a shell."""

from __future__ import annotations

import shlex

import pytest
import yaml

from mhrun.cli.configuration.overrides import parsed
from mhrun.data.advice import list_setting


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["income"], "exclude=[income]"),
        (["a.b-c", "_d2"], "exclude=[a.b-c,_d2]"),
        ([-999, "unknown"], "exclude=[-999,unknown]"),
        (["Unnamed: 0"], """'exclude=["Unnamed: 0"]'"""),
    ],
)
def test_only_what_needs_quotes_has_them(names, text):
    assert list_setting("exclude", names) == text


@pytest.mark.parametrize(
    "names",
    [
        ["Unnamed: 0"],
        ["a b", "c,d"],
        ["it's"],
        ['3" pipe'],
        ["x[0]", "{y}"],
        ["2020", "1e3", "nan"],
        ["no", "null"],
        ["größe"],
        ["$HOME", "*", "?", "-", "#1", "!x"],
        [-999, "unknown", "-999"],
    ],
)
def test_an_advised_setting_is_read_as_the_names_that_it_names(names):
    """By a shell, and then by init, which reads YAML, or by a run, which reads overrides."""
    (argument,) = shlex.split(list_setting("exclude", names))
    assert yaml.safe_load(argument.partition("=")[2]) == names
    assert parsed([argument])[0].value() == names
