"""What the README shows runs as it stands."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections import Counter

import pytest

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.parsing import parse_command_line
from mhrun.paths import PACKAGE

README = PACKAGE.parent / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is in the repository only")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text() if README.exists() else "", re.DOTALL)


FIVE = ("csgmcmc", "mhbt", "mhminibatch", "mint", "renhd")
EXACT = ("flymc", "mh_ss", "smh", "tunamh")  # counted apart


def numbers(text):
    return [float(word) for word in re.findall(r"\d+\.\d+", text)]


def test_python_prints_what_is_shown_and_does_not_warn(capsys):
    ((code, shown),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, "README.md", "exec"), {})
    printed = numbers(capsys.readouterr().out)
    assert printed == pytest.approx(numbers(shown), abs=1.01e-3)


def test_it_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_totals_are_those_of_the_result_files():
    """Counted here from the files themselves, without the code that writes the README."""
    rows = re.findall(
        r"^\| \[.+?\]\(docs/papers/(\w+)\.md\).*?\| (\d+) \| (\d+) \| (\d+) \|$", README.read_text(), re.M
    )
    assert {row[0] for row in rows} == set(FIVE)
    for sentence, papers in (
        (r"(\d+) papers re-run.+?(\d+) reproduced.+?(\d+) not reproduced", FIVE),
        (r"(\d+) papers on exact sampling.+?(\d+) reproduced, (\d+) not\.", EXACT),
    ):
        verdicts = Counter(
            claim["verdict"]
            for paper in papers
            for experiments in json.loads((README.parent / f"docs/results/{paper}.json").read_text()).values()
            for result in experiments.values()
            for claim in result["claims"]
        )
        shown = re.search(sentence, README.read_text(), re.DOTALL)
        assert [int(number) for number in shown.groups()] == [
            len(papers),
            verdicts["reproduced"],
            verdicts["not reproduced"],
        ]
        if papers == FIVE:
            assert sum(int(row[1]) for row in rows) == verdicts["reproduced"]
            assert sum(int(row[2]) for row in rows) == verdicts["not reproduced"]


def commands():
    lines = "\n".join(blocks("bash")).splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.startswith("mhrun ")]


@pytest.mark.parametrize("line", commands())
def test_commands_mean_something(line):
    arguments = shlex.split(line)[1:]
    if {"--config-dir", "--project"} & set(arguments) or arguments[0].startswith("--"):
        return  # a folder of the reader's own; options alone
    words = parse_command_line(arguments)
    if words.command != "run":
        return
    first = [word.partition(",")[0] if words.multirun else word for word in words.rest]
    assert f"experiment={compose_config(first)['experiment']}" in first
