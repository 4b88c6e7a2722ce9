"""Our own contender of the benchmarks still runs; speeds are for `make bench`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mhrun.paths import PACKAGE

SCRIPT = PACKAGE.parent / "benchmarks" / "ours.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="the benchmarks are in the repository only")
def test_our_contender_answers():
    question = json.dumps({"chains": 2, "steps": 30, "seed": 1}) + "\n"
    words = [sys.executable, str(SCRIPT), "1", "10000", "off", "memory"]
    done = subprocess.run(words, input=question, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert 0 < answer["accepted"] < 1
    assert answer["wall"] > 0
