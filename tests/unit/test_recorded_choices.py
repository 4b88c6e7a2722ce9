"""What a method began with is read again once it has steps, by a run and by the trial before it."""

from __future__ import annotations

from mhrun.engine.choices import Choices, record_choices, recorded_choices


def test_choices_count_from_the_first_block_on(tmp_path):
    """A run that was stopped before its first steps may go on with another executor."""
    choices = Choices("compiled", 2)
    record_choices(tmp_path, choices)
    assert recorded_choices(tmp_path) == Choices()
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "000000000001.npz").write_bytes(b"")
    assert recorded_choices(tmp_path) == choices
    record_choices(tmp_path, Choices("torch", 1, "bound"))
    assert recorded_choices(tmp_path) == Choices("torch", 1, "bound")
