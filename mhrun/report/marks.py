"""Marks behind the labels of methods in tables, and the notes below that explain them."""

from __future__ import annotations

from collections.abc import Iterable

from mhrun.diagnostics.chains import ESS, RHAT

SHORT, FAULTY = "too short", "faulty"
"""Columns of a sweep's table: methods that are too short to judge, and those with a fault.

Faults are from `mhrun.engine.diagnosis.faults`.
"""
MARKS = {SHORT: "†", FAULTY: "§"}
NOTES = {
    SHORT: f"{MARKS[SHORT]} too short to judge: R-hat above {RHAT:g} or ESS below {ESS:g}",
    FAULTY: f"{MARKS[FAULTY]} draws follow a wrong distribution, see the warnings",
}


def marked(label: str, flags: Iterable[str]) -> str:
    """Return a label with the marks of what is the case of its method, of `SHORT` and `FAULTY`."""
    present = set(flags)
    return " ".join([label, *(mark for flag, mark in MARKS.items() if flag in present)])


def notes(flags: Iterable[str]) -> list[str]:
    """Return the notes on the marks that a table has."""
    present = set(flags)
    return [note for flag, note in NOTES.items() if flag in present]
