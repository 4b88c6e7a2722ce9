"""What the README shows runs as it stands."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter

import pytest
import torch
from kit import short_run

from mhrun.cli.compose import compose_config
from mhrun.cli.main import taken_apart
from mhrun.paths import PACKAGE

README = PACKAGE.parent / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is in the repository only")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text() if README.exists() else "", re.DOTALL)


FIVE = ("csgmcmc", "mhbt", "mhminibatch", "mint", "renhd")
EXACT = ("flymc", "mh_ss", "smh", "tunamh")  # counted apart
# What the code prints: the mean of a posterior.
PRINTED = ((2.9, 3.1),)


@short_run
@pytest.mark.parametrize(("code", "between"), tuple(zip(blocks("python"), PRINTED, strict=False)))
def test_python_runs(code, between, capsys):
    torch.manual_seed(0)
    exec(compile(code, "README.md", "exec"), {})
    printed = [float(word) for word in capsys.readouterr().out.strip("[]\n").split()]
    assert printed
    assert all(between[0] < number < between[1] for number in printed)


def test_it_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_totals_are_those_of_the_result_files():
    """Counted here from the files themselves, without the code that writes the README."""
    rows = re.findall(
        r"^\| \[.+?\]\(docs/papers/(\w+)\.md\).*?\| (\d+) \| (\d+) \| (\d+) \|$", README.read_text(), re.M
    )
    assert {row[0] for row in rows} == set(FIVE)
    for total, there, papers in (("total", "papers", FIVE), ("total_exact", "exact_papers", EXACT)):
        verdicts = Counter(
            claim["verdict"]
            for paper in papers
            for experiments in json.loads((README.parent / f"docs/results/{paper}.json").read_text()).values()
            for result in experiments.values()
            for claim in result["claims"]
        )
        shown = dict(re.findall(rf"<!-- value: {total} (\w+) -->(\d+)<!-- /value -->", README.read_text()))
        assert int(shown["reproduced"]) == verdicts["reproduced"]
        assert int(shown["not_reproduced"]) == verdicts["not reproduced"]
        assert int(re.search(rf"there {there} -->(\d+)<", README.read_text())[1]) == len(papers)
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
    words = taken_apart(arguments)
    if words.command != "run":
        return
    first = [word.partition(",")[0] if words.multirun else word for word in words.rest]
    assert f"experiment={compose_config(first)['experiment']}" in first
