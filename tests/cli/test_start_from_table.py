"""``mhrun init DIR --data FILE``: the model fits the columns, and a table that does not fit gets one line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import yaml

import mhrun
from mhrun.build import build
from mhrun.cli.compose import compose_config
from mhrun.cli.main import run
from mhrun.models.function import Named
from mhrun.models.parameters import Parameters


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("my_rows_model", None)


def table(rows=60, **columns):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(rows, 2)), columns=["age", "bmi"])
    frame = frame.assign(
        **{name: value(rng, rows) if callable(value) else value for name, value in columns.items()}
    )
    frame.to_csv("my rows.csv", index=False)
    return frame


def flags(rng, rows):
    return rng.integers(0, 2, rows)


def numbers(rng, rows):
    return rng.normal(size=rows)


def test_two_values_give_a_logistic_regression(capsys):
    table(
        ill=lambda rng, rows: rng.choice(["yes", "no"], rows),
        city=lambda rng, rows: rng.choice(["a", "b", "c"], rows),
    )
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "ill", "categorical=city"]) == 0
    said = capsys.readouterr().out
    assert (
        "model   logistic regression of ill = 'yes' against 'no': 60 rows, 2 columns and 1 category" in said
    )
    assert "a coefficient is for one sd\nunits   baseline: city = a\n" in said
    assert "priors  each weight and the intercept Normal(0, sd 3.16)" in said
    assert "run it  mhrun --project mine my_rows" in said
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    assert list(config["methods"]) == ["mcmc", "smh2", "mint", "mhminibatch", "sgld"]
    assert config["model"] | {"start_sd": 0} == {
        "_target_": "mhrun.models.logistic.Logistic",
        "dim": 5,
        "prior_variance": 10.0,
        "start": "zeros",
        "start_sd": 0,
        "names": ["intercept", "age", "bmi", "city=b", "city=c"],
    }
    data = config["data"]
    assert (data["target"], data["outcome"], data["features"]) == ("ill", "sign", ["age", "bmi"])
    loaded = build(data | {"file": "mine/my rows.csv"}, "data").load()
    assert loaded.facts["columns"] == ["1", "age", "bmi", "city=b", "city=c"]
    assert Path("mine/my rows.csv").read_bytes() == Path("my rows.csv").read_bytes()
    assert (
        run(["init", "mine", "--data", "my rows.csv", "--outcome", "ill", "categorical=city"]) == 2
    )  # nothing is overwritten
    assert "is there already" in capsys.readouterr().err


def test_a_baseline_is_chosen_by_its_column(capsys):
    """Words that YAML reads as something else, in the column's name and in the value."""
    table(y=flags, **{"is: it": lambda rng, rows: rng.choice(["no", "yes"], rows)})
    words = ["--data", "my rows.csv", "--outcome", "y", "categorical=['is: it']"]
    assert run(["init", "mine", *words, "baselines.is: it=yes"]) == 0
    assert "units   baseline: is: it = yes\n" in capsys.readouterr().out
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    assert config["model"]["names"] == ["intercept", "age", "bmi", "is: it=no"]
    assert (
        build(config["data"] | {"file": "mine/my rows.csv"}, "data").load().facts["columns"][-1]
        == "is: it=no"
    )


def test_a_project_may_begin_in_the_folder_of_its_table_and_runs(capsys):
    """The outcome is the last column; a name that mhrun has is not taken."""
    table(y=flags)
    Path("my rows.csv").rename("table.csv")
    assert run(["init", ".", "--data=table.csv"]) == 0
    assert "run it  mhrun --project . my_table" in capsys.readouterr().out
    few = ["steps=40", "warmup=60", "~methods.mint", "~methods.mhminibatch", "~methods.sgld", "~methods.smh2"]
    assert run(["--project", ".", "my_table", "scale=smoke", "runtime.report=false", *few]) == 0


def test_numbers_give_a_linear_regression_with_a_scale(capsys):
    table(y=lambda rng, rows: rng.normal(size=rows))
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    said = capsys.readouterr().out
    assert "priors  intercept and weights Normal(0, 1), scale HalfNormal(1)" in said
    assert "methods mcmc (exact); sgld (approximate: judge them)" in said
    model = yaml.safe_load(Path("mine/conf/model/my_rows.yaml").read_text())
    assert list(model["parameters"]) == ["intercept", "weights", "scale"]
    assert model["parameters"]["weights"]["dims"] == {"feature": ["age", "bmi"]}
    few = ["steps=40", "warmup=20", "~methods.mcmc"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", "runtime.report=false", *few]) == 0


def test_counts_give_a_poisson_regression_if_it_is_chosen(capsys):
    table(y=lambda rng, rows: rng.poisson(1.5, rows), city=lambda rng, rows: rng.choice(["a", "b"], rows))
    words = ["--data", "my rows.csv", "--outcome", "y", "categorical=[city]"]
    assert run(["init", "plain", *words]) == 0
    said = capsys.readouterr().out
    assert "model   linear regression of y" in said
    assert "y may be a count: model=poisson is a Poisson regression" in said
    assert run(["init", "mine", *words, "model=poisson"]) == 0
    said = capsys.readouterr().out
    assert "model   Poisson regression of y, from 0 to " in said
    assert "may be a count" not in said
    assert "methods mcmc, smh2 (exact)" in said
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    assert config["model"]["_target_"] == "mhrun.models.poisson_regression.PoissonRegression"
    assert config["model"]["names"] == ["intercept", "age", "bmi", "city=b"]
    assert (config["data"]["outcome"], config["data"]["intercept"]) == ("number", True)
    few = ["steps=40", "warmup=60", "~methods.mint", "~methods.mhminibatch", "~methods.sgld", "~methods.smh2"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", "runtime.report=false", *few]) == 0


def test_counts_with_an_exposure(capsys):
    """The rate is 0.5 a day, whatever the days; a fit without exposure would find 0.5 times their mean."""
    days = np.random.default_rng(4).uniform(1, 30, 400).round(1)
    table(rows=400, y=lambda rng, rows: rng.poisson(0.5 * days), days=days)
    words = ["--data", "my rows.csv", "--outcome", "y", "exposure=days"]
    assert run(["init", "mine", *words]) == 2
    assert "exposure=days goes with counts: add model=poisson." in capsys.readouterr().err
    assert run(["init", "mine", *words, "model=poisson"]) == 0
    said = capsys.readouterr().out
    assert "for each days: 400 rows, 2 columns" in said
    assert "times their mean" not in said  # as it would be without the exposure
    few = [
        "steps=300",
        "warmup=100",
        "runtime.report=false",
        *(f"~methods.{m}" for m in ("mint", "mhminibatch", "sgld")),
    ]
    assert run(["--project", "mine", "my_rows", "scale=smoke", *few, "~methods.smh2"]) == 0
    found = mhrun.load("outputs/my_rows/latest", project="mine")
    with found.trace("mcmc") as trace:
        rate = float(np.exp(trace["posterior"]["theta"][..., 0]).mean())
    assert rate == pytest.approx(0.5, rel=0.1)


def test_what_is_no_category_is_not_proposed_as_one(capsys):
    """A date in each row is no category; nor does a table of many features get a method that cannot run."""
    when = pd.date_range("2020-01-01", periods=60).strftime("%Y-%m-%d")
    table(when=when, y=flags)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 2
    assert "no numbers; leave it out with exclude=[" in capsys.readouterr().err
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=[when]"]) == 2
    assert "'when' has 60 values in 60 rows, too many for categories" in capsys.readouterr().err
    wide = pd.DataFrame(np.random.default_rng(2).normal(size=(300, 1_005))).add_prefix("x")
    wide.assign(y=np.arange(300) % 2).to_csv("my rows.csv", index=False)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    assert "methods mala (exact)" in capsys.readouterr().out
    few = [
        "steps=9",
        "warmup=50",
        "runtime.report=false",
        "~methods.mint",
        "~methods.mhminibatch",
        "~methods.sgld",
    ]
    assert run(["--project", "mine", "my_rows", "scale=smoke", *few]) == 0, capsys.readouterr().err


def test_categories_give_a_softmax_regression(capsys):
    table(kind=lambda rng, rows: rng.choice(["oak", "ash", "elm"], rows))
    assert run(["init", "mine", "--data", "my rows.csv"]) == 0
    said = capsys.readouterr().out
    assert "model   softmax regression of kind, 3 classes ('ash', 'elm', 'oak'): 60 rows, 2 columns" in said
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    model = config["model"]
    assert (model["features"], model["classes"], config["data"]["outcome"]) == (3, 3, "class")
    assert model["names"][:4] == ["intercept[ash]", "age[ash]", "bmi[ash]", "intercept[elm]"]
    assert list(config["methods"]) == ["mcmc", "smh2", "mint", "mhminibatch", "sgld"]
    few = ["steps=40", "warmup=60", "~methods.mint", "~methods.mhminibatch", "~methods.sgld", "~methods.smh2"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", "runtime.report=false", *few]) == 0


def test_numbers_without_zero_are_no_counts(capsys):
    table(y=lambda rng, rows: rng.integers(1, 9, rows))
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    assert "may be a count" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "words", "message"),
    [
        ({"y": flags}, ["--outcome", "z"], "my rows.csv has no column 'z'"),
        ({"y": flags}, ["--outcome", "agee"], "Did you mean 'age'?"),
        ({"y": 1}, [], "column 'y' has no two values"),
        (
            {"y": [f"c{k}" for k in range(60)]},
            [],
            "column 'y' holds 60 categories ('c0', 'c1', 'c10', 'c11', ...); an outcome is at most 20",
        ),
        ({"y": lambda rng, rows: rng.normal(size=rows)}, ["model=softmax"], "is for at most 20 classes"),
        (
            {"city": "Paris", "y": flags},
            [],
            "column 'city' holds 'Paris', no numbers; set categorical=[city]",
        ),
        ({"one": 1.0, "y": flags}, [], "column 'one' is 1 in every row"),
        ({"gap": np.nan, "y": flags}, [], "missing=drop"),
        (
            {"y": flags},
            ["featurs=[age]"],
            "'featurs=[age]' is not a setting of the table here. Did you mean 'features'?",
        ),
        ({"y": flags}, ["features=[age"], "write lists as features=[a,b]"),
        ({"y": flags}, ["baselines=no"], "baselines=no cannot be read; write baselines.COLUMN=VALUE."),
        ({"y": flags}, ["baselines.age=1"], "baselines: 'age' is not in categorical = []; add it."),
        ({"y": flags}, ["missing=keep"], "missing = 'keep' is unknown; choose refuse, drop"),
        ({"y": flags}, ["other"], "needs a folder and a table"),
        (
            {"y": flags},
            ["model=poison"],
            "model=poison is unknown; choose logistic, linear, softmax, poisson. Did you",
        ),
        ({"y": lambda rng, rows: rng.normal(size=rows)}, ["model=poisson"], "'y' holds other numbers"),
        ({"y": lambda rng, rows: rng.normal(size=rows)}, ["model=logistic"], "is for two values"),
        ({"y": lambda rng, rows: rng.choice(["a", "b"], rows)}, ["model=linear"], "holds 'a' and 'b'"),
        ({"${seed}": "Paris", "y": flags}, [], "column '${seed}' cannot be named in a configuration"),
        (
            {"y": flags},
            ["categorical=[${seed}]"],
            "categorical '[${seed}]' cannot be named in a configuration",
        ),
        (
            {"y": lambda rng, rows: rng.choice(["a", "${b}"], rows)},
            ["--outcome", "y"],
            "my rows.csv: the value '${b}' cannot be named in a configuration",
        ),
        (
            {"y": flags, "c": lambda rng, rows: rng.choice(["A", "a${b"], rows)},
            ["--outcome", "y", "categorical=[c]"],
            "my rows.csv: the value 'c=a${b' cannot be named in a configuration",
        ),
    ],
)
def test_a_table_that_does_not_fit_gets_one_line(capsys, columns, words, message):
    table(**columns)
    assert run(["init", "mine", "--data", "my rows.csv", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not Path("mine").exists()


def test_what_may_be_a_mistake_in_a_table_is_named(capsys):
    """Rows without a value, a number for each row, and whole numbers that may be labels; both obstacles at once."""
    table(
        y=lambda rng, rows: rng.normal(size=rows),
        number=lambda rng, rows: np.arange(rows),
        code=lambda rng, rows: rng.integers(1, 4, rows),
        town=lambda rng, rows: rng.choice(["a", "b"], rows),
        age=lambda rng, rows: np.where(np.arange(rows) < 3, np.nan, rng.normal(40, 5, rows)),
    )
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 2
    err = capsys.readouterr().err
    assert "missing=drop leaves them out. There is text in town: categorical=[town]." in err
    assert (
        run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "missing=drop", "categorical=[town]"])
        == 0
    )
    out = capsys.readouterr().out
    assert re.search(r"        3 of \d+ rows lack a value and are left out\n", out)
    assert (
        "number is another whole number in each row: if it is a label, exclude=[number] leaves it out" in out
    )
    assert "code has 3 values, whole numbers: if they are labels, categorical=[code]" in out
    assert "age has" not in out


def test_numbers_in_a_small_unit_are_no_whole_numbers(capsys):
    table(
        y=lambda rng, rows: rng.normal(size=rows),
        length=lambda rng, rows: rng.normal(3e-9, 1e-9, rows),
        level=lambda rng, rows: rng.choice([1e-7, 2e-7, 5e-7], rows),
        year=lambda rng, rows: rng.choice([1990, 2000, 2010], rows),
    )
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    out = capsys.readouterr().out
    assert "length" not in out.split("whole number")[0].splitlines()[-1]
    assert "level has" not in out
    assert "year has 3 values, whole numbers" in out


def test_features_that_others_determine_are_named(capsys):
    """y is far from any; weight is mass in other units with noise, and total is exactly a sum."""
    rng = np.random.default_rng(3)
    mass, left, right = rng.normal(70, 9, (3, 400))
    table(400, mass=mass, weight=2.2 * mass + rng.normal(0, 0.5, 400), y=flags)
    assert run(["init", "one", "--data", "my rows.csv", "--outcome", "y"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"        (mass, weight|weight, mass) are nearly determined by other features", out)
    table(400, left=left, right=right, total=left + right, y=flags)
    assert run(["init", "two", "--data", "my rows.csv", "--outcome", "y"]) == 0
    named = re.search(r"        (\w+, \w+, \w+) are nearly", capsys.readouterr().out).group(1)
    assert set(named.split(", ")) == {"left", "right", "total"}
    table(400, mass=mass, near=mass + rng.normal(0, 2, 400), y=flags)  # a correlation of 0.98 is not named
    assert run(["init", "three", "--data", "my rows.csv", "--outcome", "y"]) == 0
    assert "nearly determined" not in capsys.readouterr().out


def test_fewer_rows_than_weights_are_named(capsys):
    rng = np.random.default_rng(4)
    table(12, **{f"f{j}": rng.normal(size=12) for j in range(15)}, y=[0, 1] * 6)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    assert "17 features and only 12 rows: the prior decides on some weights" in capsys.readouterr().out


@pytest.mark.parametrize("size", [None, 0.7])
def test_counts_with_more_variance_than_mean_are_named(capsys, size):
    """Poisson counts, with rates that depend on a feature, and negative binomial ones; before a run and after it."""
    rng = np.random.default_rng(5)
    frame = table(800, y=0)
    mean = np.exp(0.5 + 0.8 * frame.age)
    rate = mean if size is None else mean * rng.gamma(size, 1 / size, 800)
    frame.assign(y=rng.poisson(rate)).to_csv("my rows.csv", index=False)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "model=poisson"]) == 0
    out = capsys.readouterr().out
    named = re.search(r"variance is about (\S+) times their mean", out)
    assert (named is None) == (size is None)
    if named:
        assert 2 < float(named.group(1)) < 9
    few = [f"~methods.{m}" for m in ("smh2", "mint", "mhminibatch", "sgld")]
    few += ["steps=2000", "warmup=200", "runtime.report=false"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", *few]) == 0
    summary = json.loads(Path("outputs/my_rows/latest/summary.json").read_text())
    lines = summary["methods"]["mcmc"]["fit_warnings"]
    assert ["times their mean" in line for line in lines] == [True] * (size is not None)


def test_few_whole_numbers_may_be_classes(capsys):
    table(kind=lambda rng, rows: rng.integers(0, 3, rows))
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "kind"]) == 0
    assert "kind has 3 values: model=softmax if they are classes" in capsys.readouterr().out
    assert run(["init", "own", "--data", "my rows.csv", "--outcome", "kind", "model=linear"]) == 0
    assert "model=softmax" not in capsys.readouterr().out


@pytest.mark.parametrize(("features", "reference"), [(9, "mcmc"), (10, "hmc")])
def test_hmc_is_the_reference_where_a_random_walk_is_too_short(capsys, features, reference):
    rng = np.random.default_rng(6)
    table(80, **{f"f{j}": rng.normal(size=80) for j in range(features - 2)}, y=flags)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    out = capsys.readouterr().out
    assert f"methods {reference}, smh2 (exact); mint" in out
    assert f"--reference my_rows:{reference}" in out
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    assert next(iter(config["methods"])) == reference
    counts = {name: (node.get("steps"), node.get("thin")) for name, node in config["methods"].items()}
    assert config["thin"] == 1
    # A step of HMC is a trajectory, so that it has fewer of them.
    assert counts == dict.fromkeys(counts, (None, None)) | (
        {"hmc": (100, None), "sgld": (600, None)} if reference == "hmc" else {}
    )


@pytest.mark.parametrize(
    ("outcome", "rows", "features", "methods"),
    [
        (flags, 80, 3, ["mcmc", "smh2", "mint", "mhminibatch", "sgld"]),
        (flags, 80, 60, ["hmc", "mint", "mhminibatch", "sgld"]),
        (flags, 700, 3, ["mcmc", "smh2", "mint", "mhminibatch", "sgld_cv"]),
        (flags, 3000, 3, ["smh2", "zig_zag", "sgld_cv"]),
        (flags, 3000, 60, ["zig_zag", "sgld_cv"]),
        (flags, 3000, 70, ["mh_ss", "sgld_cv"]),
        (flags, 1800, 60, ["zig_zag", "sgld_cv"]),  # as many numbers as 2,160 rows of 50
        (numbers, 80, 3, ["mcmc", "sgld"]),
        (numbers, 700, 12, ["hmc", "sgld_cv"]),
        (numbers, 3000, 3, ["hmc", "sgld_cv"]),
    ],
)
def test_methods_by_rows_and_parameters(capsys, monkeypatch, outcome, rows, features, methods):
    """Of more rows plain SGLD has too few effective draws, and random walks on all data take too long."""
    monkeypatch.setattr("mhrun.cli.starting_table._NOISY", 500)
    monkeypatch.setattr("mhrun.cli.starting_table._FULL", 2000)
    monkeypatch.setattr("mhrun.cli.starting_table._WORK", 100_000)
    rng = np.random.default_rng(7)
    table(rows, **{f"f{j}": rng.normal(size=rows) for j in range(features - 2)}, y=outcome)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    assert ("hmc reads all data" in capsys.readouterr().out) == (rows == 3000 and "hmc" in methods)
    config = compose_config(["experiment=my_rows"], [Path("mine/conf")], compare=False)
    assert list(config["methods"]) == methods
    if "mh_ss" in methods:
        assert config["methods"]["mh_ss"]["steps"] == 4 * config["steps"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine", "--data", "none.csv"], "--data none.csv: there is no such file"),
        (["mine", "--data"], "--data needs a value"),
        (["mine", "--outcome", "y"], "needs a folder and a table"),
        (["mine", "--dta", "x"], "Did you mean '--data'?"),
    ],
)
def test_words_that_are_refused(capsys, words, message):
    assert run(["init", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_all_columns_that_are_no_features_are_named_at_once_and_can_be_excluded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "constant": 3.0, "city": ["x", "y"] * 20})
    frame["when"] = [f"2020-01-{1 + i % 28:02d}T{i:02d}" for i in range(40)]
    frame["y"] = rng.normal(size=40)
    frame.to_csv("t.csv", index=False)
    assert run(["init", "p", "--data", "t.csv"]) == 2
    error = capsys.readouterr().err
    assert "t.csv: 3 columns are no features: column 'constant' is 3 in every row" in error
    assert "leave it out with exclude=[constant]. column 'city' holds" in error
    assert "set categorical=[city], or leave it out with exclude=[city]. column 'when' holds" in error
    assert run(["init", "p", "--data", "t.csv", "exclude=[constant,when]", "categorical=[city]"]) == 0
    (written,) = (tmp_path / "p").rglob("conf/data/*.yaml")
    settings = yaml.safe_load(written.read_text())
    assert settings["features"] == ["a"]
    assert "exclude" not in settings
    assert run(["init", "q", "--data", "t.csv", "exclude=[consant]"]) == 2
    assert "has no column 'consant'. Did you mean 'constant'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "words", "rows", "forms"),
    [
        ("number", [], 60, ("", "theta.rater_sd * ")),  # schools differ, raters do not
        ("flag", [], 1_200, ("theta.school_sd * ", "theta.rater_sd * ")),  # many data, and no differences
        ("count", ["model=poisson", "exposure=days"], 60, ("", "theta.rater_sd * ")),
        ("flag", ["form=centred"], 60, ("", "")),
        ("number", ["form=noncentred"], 60, ("theta.school_sd * ", "theta.rater_sd * ")),
    ],
)
def test_groups_give_a_multilevel_regression(capsys, outcome, words, rows, forms):
    """Effects are themselves parameters where groups differ clearly, else standardised, or as the user chooses."""
    outcomes = {
        "number": lambda rng, rows: 4.0 * (np.arange(rows) % 2) + rng.normal(size=rows),
        "flag": lambda rng, rows: rng.choice(["yes", "no"], rows),
        "count": lambda rng, rows: rng.poisson(1.5 + 8.0 * (np.arange(rows) % 2)),
    }
    table(
        rows,
        y=outcomes[outcome],
        days=lambda rng, rows: rng.uniform(1, 2, rows),
        school=np.arange(rows) % 2,
        rater=[f"r {i // 2 % 20}" for i in range(rows)],
    )
    words = ["--data", "my rows.csv", "--outcome", "y", "groups=[school,rater]", *words]
    assert run(["init", "mine", *words]) == 0
    said = capsys.readouterr().out
    assert "intercepts by school and rater" in said
    assert "units   groups: 2 of school, 20 of rater" in said
    model = yaml.safe_load(Path("mine/conf/model/my_rows.yaml").read_text())
    assert model["parameters"]["rater_effects"]["dims"]["rater"][1] == "r 1"
    chosen = any(word.startswith("form=") for word in words)
    assert ("writes the other form with form=" in Path("mine/conf/model/my_rows.yaml").read_text()) != chosen
    code = Path("mine/my_rows_model.py").read_text()
    for form, column in zip(forms, ("school", "rater"), strict=True):
        assert f'        + {form}theta.{column}_effects[rows["{column}"]]\n' in code
        assert ("prior" in model["parameters"][f"{column}_effects"]) == bool(form)
        assert (f"Normal(0.0, theta.{column}_sd).log_prob(theta.{column}_effects)" in code) != bool(form)
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    fields = build(config["data"] | {"file": "mine/my rows.csv"}, "data").load().fields
    written = dict[str, Any]()
    exec(code, written)
    rng = np.random.default_rng(0)
    theta = {"intercept": 0.3, "weights": rng.normal(size=fields["x"].shape[1]), "scale": 0.7}
    theta |= {"school_sd": 0.5, "school_effects": rng.normal(size=2)}
    theta |= {"rater_sd": 1.5, "rater_effects": rng.normal(size=20)}
    rows = {name: field.numpy() for name, field in fields.items()}
    school, rater = (
        theta[f"{column}_effects"][rows[column]] * (theta[f"{column}_sd"] if form else 1)
        for form, column in zip(forms, ("school", "rater"), strict=True)
    )
    eta = 0.3 + school + rater + rows["x"] @ theta["weights"]
    expected = {
        "number": lambda: scipy.stats.norm.logpdf(rows["y"], eta, 0.7),
        "flag": lambda: -np.logaddexp(0, -rows["y"] * eta),
        "count": lambda: scipy.stats.poisson.logpmf(rows["y"], rows["exposure"] * np.exp(eta)),
    }[outcome]()
    named = SimpleNamespace(
        **{name: torch.as_tensor(value, dtype=torch.float64) for name, value in theta.items()}
    )
    np.testing.assert_allclose(written["log_lik"](named, Named(fields)), expected, rtol=1e-9)
    assert written["simulate"](named, Named(fields))["y"].shape == rows["y"].shape


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["groups=school", "form=centered"],
            "form=centered is unknown; choose centred or noncentred. Did you mean",
        ),
        (
            ["exclude=school", "form=centred"],
            "form=centred is that of the effects of groups: add groups=COLUMN.",
        ),
    ],
)
def test_a_form_without_meaning_is_refused(capsys, words, message):
    table(y=numbers, school=np.arange(60) % 2)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_multilevel_regression_runs_and_predicts(capsys):
    table(400, y=numbers, school=[f"school {i % 4}" for i in range(400)])
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "groups=school"]) == 0
    few = ["steps=20", "warmup=50", "~methods.sgld"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", "runtime.report=false", *few]) == 0
    (folder,) = {
        path.parent for path in Path("outputs/my_rows").glob("*/config.yaml") if not path.parent.is_symlink()
    }
    loaded = mhrun.load(folder, project="mine")
    assert list(loaded.trace("hmc")["posterior"].school.values[:2]) == ["school 0", "school 1"]
    assert np.isfinite(loaded.predict("hmc", {"age": 0.0, "bmi": 1.0, "school": "school 3"})).all()
    with pytest.raises(mhrun.UserError, match="has 'school 99', which the table does not have"):
        loaded.predict("hmc", {"age": 0.0, "bmi": 1.0, "school": "school 99"})


def test_a_column_of_groups_may_have_any_name(capsys):
    """Text that YAML and Python read as something else."""
    table(y=numbers, **{'my "own": group': np.arange(60) % 4, "1": np.arange(60) % 3})
    words = ["--data", "my rows.csv", "--outcome", "y", "groups=['my \"own\": group', '1']", "features=[age]"]
    assert run(["init", "mine", *words]) == 0
    assert (
        "dims:\n      my_own_group: ['0', '1', '2', '3']" in Path("mine/conf/model/my_rows.yaml").read_text()
    )
    parameters = yaml.safe_load(Path("mine/conf/model/my_rows.yaml").read_text())["parameters"]
    assert Parameters(parameters).dim == 1 + 1 + (1 + 4) + (1 + 3) + 1


def test_groups_have_the_names_of_the_table(capsys):
    """Codes are places among the sorted values: with another table each effect would be another group's."""
    groups = ["12E5", "1e3", "B7", "yes", "007"] * 12
    frame = table(y=numbers, group=groups)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "groups=group"]) == 0
    few = ["scale=smoke", "runtime.report=false", "steps=20", "warmup=50", "~methods.sgld"]
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    labels = ["007", "12E5", "1e3", "B7", "yes"]
    assert config["model"]["parameters"]["group_effects"]["dims"]["group"] == labels
    frame.assign(group=["Z" if group == "007" else group for group in groups]).to_csv(
        "mine/my rows.csv", index=False
    )
    capsys.readouterr()
    assert run(["--project", "mine", "my_rows", *few]) == 2
    assert (
        "labels of group in parameters are not the values of the column 'group': number 1 is '007', and in the "
        "table '12E5'. Effects would have the names of other groups"
    ) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "outcome", "named", "column"),
    [
        ("+data.baselines={kind:c}", numbers, "kind=b", "kind=a"),
        ("data.features=[bmi,age]", numbers, "age", "bmi"),
        ("data.features=[bmi,age]", ["low", "high", "none"] * 20, "age", "bmi"),
    ],
)
def test_coefficients_have_the_names_of_the_table(capsys, word, outcome, named, column):
    """Another baseline, or another order of the features, would leave each name with another coefficient."""
    table(y=outcome, kind=["a", "b", "c"] * 20)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=kind"]) == 0
    few = ["scale=smoke", "runtime.report=false", "steps=20", "warmup=50", "~methods.sgld"]
    capsys.readouterr()
    assert run(["--project", "mine", "my_rows", *few, word]) == 2
    error = capsys.readouterr().err
    assert f"has '{named}' where the column of x is '{column}'" in error
    assert "coefficients would have the names of other columns" in error


def test_a_weight_of_each_class_is_that_of_its_column(capsys):
    """Names of classes may have brackets, and values of categories equality signs."""
    table(y=["lo[1]", "hi=2", "a"] * 20, kind=["u", "v", "w=x", "u", "v"] * 12)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=kind"]) == 0
    few = ["scale=smoke", "runtime.report=false", "steps=20", "warmup=50", "~methods.sgld"]
    assert run(["--project", "mine", "my_rows", *few]) == 0


def test_a_text_that_is_read_as_a_missing_value_is_named(capsys):
    """NA is Namibia here."""
    table(y=numbers, country=["NA", "DE", "FR"] * 20)
    words = ["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=country"]
    said = "The text 'NA' in country is read as a missing value: write another one in the file if it is none"
    assert run(words) == 2
    assert said in capsys.readouterr().err
    assert run([*words, "missing=drop"]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("value", ["${seed}", "???"])
def test_a_group_that_a_configuration_would_replace_is_refused(capsys, value):
    table(y=numbers, group=[value, "a", "b"] * 20)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "groups=group"]) == 2
    assert f"'{value}' cannot be named in a configuration" in capsys.readouterr().err


def test_columns_of_groups_have_parameters_of_their_own(capsys):
    """Names that collapse to one, those of other parameters, and a backslash, which a docstring would read."""
    columns = ["a b", "a-b", "a_b_group", "scale", "chain", "a_b_sd", "corp\\user"]
    table(y=numbers, **{name: np.arange(60) % (k + 2) for k, name in enumerate(columns)})
    words = ["--data", "my rows.csv", "--outcome", "y", f"groups={json.dumps(columns)}"]
    assert run(["init", "mine", *words]) == 0
    parameters = yaml.safe_load(Path("mine/conf/model/my_rows.yaml").read_text())["parameters"]
    assert Parameters(parameters).dim == 1 + 2 + sum(1 + k + 2 for k in range(len(columns))) + 1
    written = dict[str, Any]()
    exec(Path("mine/my_rows_model.py").read_text(), written)
    assert "corp\\user" in written["__doc__"]


def test_a_column_that_is_called_as_an_indicator_is_to_be_renamed(capsys):
    table(y=flags, kind=lambda rng, rows: rng.choice(["a", "b"], rows), **{"kind=b": numbers})
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=kind"]) == 2
    assert "'kind=b' is a column, and the indicator of a value of 'kind'; rename" in capsys.readouterr().err


def test_groups_alone_and_a_model_without_them(capsys):
    table(y=lambda rng, rows: rng.choice(list("abc"), rows), school=np.arange(60) % 5)
    words = ["--data", "my rows.csv", "--outcome", "y", "groups=school"]
    assert run(["init", "mine", *words]) == 2
    assert "groups goes with model=linear, logistic, poisson, not with softmax." in capsys.readouterr().err
    assert (
        run(["init", "mine", "--data", "my rows.csv", "--outcome", "age", "groups=school", "exclude=[bmi,y]"])
        == 0
    )
    assert "weights" not in Path("mine/my_rows_model.py").read_text()
    assert "60 rows, groups of school" in capsys.readouterr().out
