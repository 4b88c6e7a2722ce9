"""A setting that is one of a few words: what is not a word is refused with the words that are allowed."""

from __future__ import annotations

import inspect
from typing import Literal, Optional

import pytest
import yaml

from mhrun.build import build, call, literal_values, trusted_object
from mhrun.data.table import Table
from mhrun.errors import UserError
from mhrun.monitors import Monitor
from mhrun.paths import CONF

GROUPS = ("data", "dynamics", "model", "pairing", "prior", "proposal", "rule", "schedule")


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "null"), (True, "true"), (3, "3"), (["sign"], "['sign']"), (0.5, "0.5")]
)
def test_the_allowed_values_are_listed(value, shown):
    with pytest.raises(UserError) as error:
        build({"_target_": "mhrun.data.table.Table", "file": "a.csv", "outcome": value}, "data")
    assert str(error.value) == f"data: outcome = {shown} must be one of number, sign, class."


def test_a_value_that_is_not_allowed_is_left_to_the_part():
    with pytest.raises(UserError, match="outcome = 'sing' is unknown; choose number, sign, class"):
        call(Table, {"file": "a.csv", "outcome": "sing"}, "Table")


def test_every_part_accepts_the_values_that_it_lists():
    """The default is one of them, or null where the annotation has it."""
    found = 0
    for group in GROUPS:
        for path in (CONF / group).glob("*.yaml"):
            name = (yaml.safe_load(path.read_text()) or {}).get("_target_")
            if name is None:
                continue
            part = trusted_object(name)
            for key, parameter in inspect.signature(part).parameters.items():
                if words := literal_values(parameter.annotation):
                    found += 1
                    allowed = [*words, *[None] * parameter.annotation.endswith("| None")]
                    assert parameter.default in allowed, (name, key)
                    with pytest.raises(UserError, match=f"{key} = 7 must be one of {', '.join(words)}"):
                        call(part, {key: 7}, name)
    assert found > 20


class Eager:
    """A part of a file whose annotations are no texts."""

    def __init__(self, mode, share=None, size=1, kind=None):
        pass

    __init__.__annotations__ = {  # noqa: RUF012
        "mode": Literal["a", "b"],
        "share": Optional[float],  # noqa: UP045
        "size": int,
        "kind": Optional[Literal["c"]],  # noqa: UP045
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": 3}, "mode = 3 must be one of a, b."),
        ({"mode": "a", "share": "half"}, "share = 'half' must be a number."),
        ({"mode": "a", "size": 1.5}, "size = 1.5 must be a whole number."),
        ({"mode": "a", "kind": 1}, "kind = 1 must be one of c."),
    ],
)
def test_annotations_that_are_no_texts_are_checked_too(given, message):
    with pytest.raises(UserError, match=message):
        call(Eager, given, "Eager")
    assert call(Eager, {"mode": "b", "share": None, "size": 1e3, "kind": None}, "Eager")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "predictive",
            "watched: monitor = predictive is a name, not a part; write monitor@watched.monitor=predictive",
        ),
        ({"every": 3}, "watched: monitor names no part; give it a _target_"),
    ],
)
def test_a_monitor_is_a_part(value, message):
    def watched(monitor: Monitor) -> Monitor:
        return monitor

    with pytest.raises(UserError, match=message):
        call(watched, {"monitor": value}, "watched", "watched")
