"""A model, data or a rule of the user's that lacks something, or returns something else, gets one line."""

from __future__ import annotations

import sys

import pytest

from mhrun.cli.main import run

PARTS = """
import torch
from mhrun import Dataset
from mhrun.parts import Rule
from mhrun.random import Purpose

class Nameless:
    dim = 1
    def init(self, chains, draws):
        return torch.ones(chains, 1, dtype=torch.float64)
    def log_prior(self, theta):
        return -theta[:, 0]
    def log_lik(self, theta, rows):
        return theta.log() - theta * rows["x"]

class Model(Nameless):
    names = ("rate",)

class WidePrior(Model):
    def log_prior(self, theta):
        return -theta

class NumberPrior(Model):
    def log_prior(self, theta):
        return 0.0

class Uncounted:
    def __init__(self, n):
        self.count = n
    def load(self):
        return Dataset({"x": torch.ones(self.count, dtype=torch.float64)})

class Data(Uncounted):
    def __init__(self, n):
        self.n = self.count = n

class Plain(Data):
    def load(self):
        return {"x": torch.ones(self.n)}

class Longer(Data):
    def __init__(self, n):
        self.n, self.count = n, n + 1

class Twice(Rule):
    def decide(self, contest, draws):
        awake = draws.uniform(Purpose.ACCEPT) > 0.5
        return contest.to_verdict(awake & (draws.uniform(Purpose.ACCEPT).log() < contest.log_ratio))
"""

EXPERIMENT = """# @package _global_
defaults: [/data: own, /model: own, /method@methods.mcmc: mcmc, _self_]
title: incomplete
m: 10
chains: 2
warmup: 50
steps: 20
methods: {mcmc: {schedules: {step_size: {start: 0.05}}}}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("incomplete", None)


def of_class(name):
    """Return the YAML file of a part."""
    return f"_target_: incomplete.{name}\n" + "n: 50\n" * (name in ("Uncounted", "Data", "Plain", "Longer"))


@pytest.mark.parametrize(
    ("model", "data", "arguments", "message"),
    [
        (
            "Nameless",
            "Data",
            [],
            "Nameless has no names; a model part has dim, names, init, log_prior, log_lik",
        ),
        ("Data", "Data", [], "model: Data is not a model part; choose one of conf/model"),
        (
            "WidePrior",
            "Data",
            [],
            "log_prior of WidePrior must return a tensor (C,), here (2,), and returned (2, 1)",
        ),
        ("NumberPrior", "Data", [], "must return a tensor (C,), here (2,), and returned a float"),
        ("Model", "Uncounted", [], "data: Uncounted has no n; a data part has n, load"),
        ("Model", "Model", [], "data: Model is not a data part; choose one of conf/data"),
        ("Model", "Plain", [], "load of Plain must return a mhrun.Dataset, and returned a dict"),
        ("Model", "Longer", [], "load of Longer returned 51 data, and its n is 50; they must be equal"),
        (
            *("Model", "Data", ["methods.mcmc.kernel.rule._target_=incomplete.Twice"]),
            "numbers for Purpose.ACCEPT are drawn twice in one step: give each draw another `use`, such as use=1",
        ),
    ],
)
def test_a_part_that_lacks_something_gets_one_line(capsys, tmp_path, model, data, arguments, message):
    (tmp_path / "incomplete.py").write_text(PARTS)
    for group, text in (("experiment", EXPERIMENT), ("model", of_class(model)), ("data", of_class(data))):
        (tmp_path / group).mkdir()
        (tmp_path / group / "own.yaml").write_text(text)
    assert (
        run(["--project", ".", "experiment=own", "runtime.report=false", "executor=torch", *arguments]) == 2
    )
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert "bug in mhrun" not in error
