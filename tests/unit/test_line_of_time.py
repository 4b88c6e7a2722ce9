"""Where the time of a short run went."""

from __future__ import annotations

import pytest

from mhrun.cli import progress
from mhrun.cli.progress import Clocked, Notes
from mhrun.cli.running import line_of_time


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        (
            (40.0, 4.0, 10.0),
            "time    40 s: steps 4 s, report 10 s, the rest 26 s: data, pilots, and compilation",
        ),
        ((40.0, 20.0, 10.0), ""),  # the methods took half of it
        ((4.0, 1.0, 2.0), ""),
        ((40.0,), ""),  # the run existed
        ((40.0, 15.0, 30.0), "time    40 s: steps 15 s, report 30 s, the rest 0 s"),
    ],
)
def test_a_line_where_the_methods_took_less_than_half_of_the_time(seconds, line):
    found = line_of_time(*seconds)
    assert found.startswith(line)
    assert bool(found) == bool(line)


def test_the_seconds_of_steps_are_those_of_this_command(monkeypatch):
    """Of methods that run beside each other they count once, and those of an earlier command, which resumed, not."""
    now = [10.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    clocked = Clocked(Notes("job:"))
    clocked.begin("a", 500, 1000, "torch")
    now[0] = 12.0
    clocked.begin("b", 0, 1000, "torch")
    now[0] = 15.0
    clocked.end("a")
    now[0] = 16.0
    clocked.end("b")
    now[0] = 20.0
    assert clocked.seconds == 6.0
    clocked.begin("c", 0, 1000, "torch")
    now[0] = 21.5
    assert clocked.seconds == 7.5
