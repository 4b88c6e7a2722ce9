"""The first line of a table: names of columns, and files without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhrun.data.table_file import read_table
from mhrun.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5,-1.2,1\n0.1,0.3,0\n", "its first line has 0.5 and other numbers, not the names of the columns"),
        ("5.1,3.5,red\n4.9,3.0,blue\n", "its first line has 5.1"),
        ("1,1,2\n3,4,5\n", "several columns named '1'; rename them, or write a line of names first"),
    ],
)
def test_a_file_without_names_is_refused(text, message):
    Path("t.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_table(Path("t.csv"), None)


def test_names_may_be_whole_numbers():
    Path("t.csv").write_text("0,1,2.5,y\n1,2,3,4\n")
    assert list(read_table(Path("t.csv"), None).columns) == ["0", "1", "2.5", "y"]
