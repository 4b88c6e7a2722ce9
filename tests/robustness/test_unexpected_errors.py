"""An unexpected exception ends in one line, with the details in a file."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mhrun.cli import main
from mhrun.cli.exit_status import BUG
from mhrun.errors import UserError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MHRUN_DEBUG", raising=False)


def ends(capsys, monkeypatch, raising):
    """Return the exit status and the one line of a command that ends in an exception."""
    monkeypatch.setattr(main, "dispatch", raising)
    status = main.run(["list"])
    lines = capsys.readouterr().err.strip().split("\n")
    assert len(lines) == 1, lines
    return status, lines[0]


def of_mhrun(_):
    from mhrun.store.folder import RunFolder

    RunFolder.of({})  # a KeyError in store/folder.py


def of_user(tmp_path, code):
    path = tmp_path / "mine.py"
    path.write_text(f"import math\n\n\ndef log_lik(words):\n    {code}\n")
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["log_lik"]


def test_a_bug_is_one_line_that_names_the_file_of_the_details(capsys, monkeypatch, tmp_path):
    status, line = ends(capsys, monkeypatch, of_mhrun)
    assert status == BUG == 70
    assert line.startswith("mhrun: this is a bug in mhrun: KeyError: 'experiment' (folder.py, line ")
    (details,) = (tmp_path / "cache/mhrun/crashes").iterdir()
    assert f"The details are in {details}." in line
    assert "Traceback" in details.read_text()
    assert 'folder.py", line' in details.read_text()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("math.fsum(3)", "TypeError: 'int' object is not iterable"),
        ("raise KeyError('\\udc80' + chr(27))", "KeyError: '\\udc80\\x1b'"),
        ("raise ValueError", "ValueError"),
        ("__import__('sys').exit(0)", "it calls sys.exit(0)"),
        ("import json; json.loads('{')", "JSONDecodeError: Expecting property name"),
    ],
)
def test_an_exception_in_user_code_is_named_with_its_line(capsys, monkeypatch, tmp_path, code, expected):
    status, line = ends(capsys, monkeypatch, of_user(tmp_path, code))
    assert status == main.MISTAKE
    assert line.startswith(f"mhrun: your code cannot be run: {expected}")
    assert "(mine.py, line 5)" in line
    assert line.isprintable()


def test_an_exception_that_cannot_be_shown(capsys, monkeypatch, tmp_path):
    code = "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()"
    status, line = ends(capsys, monkeypatch, of_user(tmp_path, code))
    assert status == main.MISTAKE
    assert line.startswith("mhrun: your code cannot be run: Odd (mine.py")


def test_details_that_cannot_be_written(capsys, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file")
    status, line = ends(capsys, monkeypatch, of_mhrun)
    assert status == BUG
    assert "The details could not be written; MHRUN_DEBUG=1 shows them." in line


def test_the_traceback_is_shown_to_who_wants_it(capsys, monkeypatch):
    def mistaken(_):
        raise UserError("no such thing")

    monkeypatch.setenv("MHRUN_DEBUG", "1")
    monkeypatch.setattr(main, "dispatch", mistaken)
    assert main.run(["list"]) == main.MISTAKE
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("mhrun: no such thing\n")


def test_details_are_kept_of_the_latest_only(capsys, monkeypatch, tmp_path):
    place = tmp_path / "cache/mhrun/crashes"
    place.mkdir(parents=True)
    for k in range(30):
        (place / f"2000010{k % 10}-{k:06d}-1.txt").touch()
    ends(capsys, monkeypatch, of_mhrun)
    assert len(list(place.iterdir())) == 20


@pytest.mark.slow
def test_jobs_of_a_sweep_that_end_in_one(capsys, monkeypatch, tmp_path):
    """They end no other job; of the user's own code one is not a bug."""
    exits = of_user(tmp_path, "import sys; sys.exit(0)")
    monkeypatch.setattr(
        "mhrun.cli.sweep.job.compute", lambda config, _: exits(0) if config["seed"] == 1 else of_mhrun(0)
    )
    words = ["-m", "experiment=mhbt_gaussian", "scale=smoke", "runtime.report=false", "seed=1,2"]
    assert main.run(words) == BUG
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "2 of 2 jobs failed" in err
    assert err.count("it calls sys.exit(0)") == err.count("this is a bug in mhrun: KeyError") == 2
    jobs = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("outputs/*/sweeps/*/jobs/*.json"))]
    assert [job["bug"] for job in jobs] == [False, True]


def test_arguments_in_another_encoding(monkeypatch, capsys):
    """In the locale C without Python's UTF-8 mode, letters come as surrogates."""
    word = "title='Größe'"
    monkeypatch.setattr(sys, "argv", ["mhrun", "experiment=worst_case", word, "--cfg", "job"])
    assert main._as_utf8(word.encode().decode("ascii", "surrogateescape")) == word
    with pytest.raises(SystemExit) as stop:
        main.main()
    assert stop.value.code == 0
    assert "Gr" in capsys.readouterr().out
    assert main.run(["experiment=worst_case", "title=Größe", "--cfg", "job"]) == main.MISTAKE
    assert "put the value in quotes: \"title='Größe'\"" in capsys.readouterr().err
    assert main.run(["experiment=worst_case", "title=\udc80", "--cfg", "job"]) == main.MISTAKE
    assert "is not UTF-8" in capsys.readouterr().err


def test_a_table_whose_reader_has_gone_is_no_bug():
    """As in `mhrun check ... | head`: rich makes an exit of a closed pipe."""
    program = (
        "import sys\n"
        "from rich.console import Console\n"
        "from mhrun.cli import main\n"
        "def shown(words):\n"
        "    sys.stdin.readline()  # until the reader has gone\n"
        "    Console().print('many words')\n"
        "main.dispatch = shown\n"
        "sys.exit(main.run(['list']))\n"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as process:
        process.stdout.close()
        process.stdin.write("now\n")
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
