"""Data sets come whole and as they should be or not at all, whatever a server, a kill or a hostile file does."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import multiprocessing
import os
import threading
import time
import tracemalloc

import pytest

from mhrun.cli.fetching import fetch
from mhrun.cli.main import run
from mhrun.data import files
from mhrun.errors import UserError

PLAIN = {name: os.urandom(1) + name.encode() * 20_000 for name in ("one.gz", "two.gz")}
FILES = {name: gzip.compress(content) for name, content in PLAIN.items()}


class Server(http.server.BaseHTTPRequestHandler):
    """Serves FILES under /good/; under /breaks/ the half of them, under /other/ something else, /slow/ on a word."""

    requests: list[str] = []  # noqa: RUF012
    go = threading.Event()

    def do_GET(self):
        self.requests.append(self.path)
        kind, name = self.path.strip("/").split("/")
        content = FILES.get(name)
        if content is None or kind not in ("good", "breaks", "other", "slow"):
            self.send_error(404)
            return
        body = gzip.compress(b"something else") if kind == "other" else content
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "slow":
            self.wfile.write(body[:10])
            self.wfile.flush()
            self.go.wait(20)
            body = body[10:]
        self.wfile.write(body[: len(body) // 2] if kind == "breaks" else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A catalogue of one data set; returns a function that says which mirrors it has."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Server.requests.clear()
    Server.go.clear()
    known = tuple(files.RemoteFile(n, hashlib.sha256(c).hexdigest()) for n, c in PLAIN.items())
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MHRUN_DATA_DIR", str(tmp_path / "data"))

    def mirrors(*kinds):
        places = tuple(f"http://127.0.0.1:{server.server_port}/{kind}/" for kind in kinds)
        monkeypatch.setitem(files.CATALOGUE, "ours", files.RemoteSet("ours", places, known))
        return tmp_path / "data" / "ours"

    yield mirrors
    Server.go.set()
    server.shutdown()
    server.server_close()


def there(place):
    return sorted(path.name for path in place.iterdir() if path.name != ".lock")


def test_a_mirror_that_breaks_off_or_lies_is_passed_over(served, capsys):
    place = served("breaks", "other", "none", "good")
    assert fetch(["ours"]) == 0
    assert {path.name: path.read_bytes() for path in place.glob("*.gz")} == FILES
    assert there(place) == sorted(FILES)  # nothing half is left
    assert len(Server.requests) == 8
    assert fetch(["ours"]) == 0
    assert len(Server.requests) == 8  # what is there is not fetched again
    assert capsys.readouterr().err.count("downloading") == 8


def test_without_a_good_mirror_names_and_digests_are_reported(served, capsys):
    place = served("breaks", "other")
    assert run(["fetch", "ours"]) == 2
    err = capsys.readouterr().err
    assert "unexpected content" in err
    assert f"Put into {place}" in err
    for name, content in PLAIN.items():
        assert f"{name}  SHA-256 of its uncompressed content: {hashlib.sha256(content).hexdigest()}" in err
    assert "Traceback" not in err
    assert there(place) == []
    # What the user puts there counts, compressed by whomever; only the other is reported.
    (place / "one.gz").write_bytes(gzip.compress(PLAIN["one.gz"], 1))
    assert run(["fetch", "ours"]) == 2
    err = capsys.readouterr().err
    assert "two.gz  SHA-256" in err
    assert "one.gz  SHA-256" not in err


def test_what_a_killed_download_left_is_removed(served):
    place = served("good")
    (place / ".partial-dead").mkdir(parents=True)
    (place / ".partial-dead" / "one.gz").write_bytes(FILES["one.gz"][:100])
    assert fetch(["ours"]) == 0
    assert there(place) == sorted(FILES)


def test_two_at_once_download_once(served):
    place = served("slow")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=fetch, args=(["ours"],)) for _ in range(2)]
    for child in children:
        child.start()
    while not Server.requests:
        assert any(child.is_alive() for child in children), [child.exitcode for child in children]
        time.sleep(0.01)
    Server.go.set()
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert there(place) == sorted(FILES)
    assert len(Server.requests) == 2


def test_a_folder_that_cannot_be_written_is_reported(served, tmp_path, capsys):
    served("good")
    (tmp_path / "data").write_text("a file")
    assert run(["fetch", "ours"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "flip", "bomb", "empty", "other", "no gzip"])
def test_a_damaged_or_hostile_file_is_refused_and_stays(served, monkeypatch, damage):
    """A bomb of 64 MB in 64 kB is not read to its end."""
    monkeypatch.setattr(files, "_MAX_BYTES", 1 << 20)
    place = served("good")
    files.ensure("ours", place.parent)
    good = FILES["one.gz"]
    hostile = {
        "cut": good[:-9],
        "flip": good[:60] + bytes([good[60] ^ 0x40]) + good[61:],
        "bomb": gzip.compress(bytes(64 << 20)),
        "empty": b"",
        "other": gzip.compress(b"x"),
        "no gzip": b"no gzip at all",
    }[damage]
    (place / "one.gz").write_bytes(hostile)
    assert files.state("ours", place.parent) == "damaged"
    tracemalloc.start()
    for read in (lambda: files.content("ours", "one.gz"), lambda: files.ensure("ours", place.parent)):
        with pytest.raises(UserError, match="has unexpected content"):
            read()
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert (place / "one.gz").read_bytes() == hostile  # the user's file is not touched
