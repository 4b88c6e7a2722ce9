"""``mhrun init DIR --data FILE``: a table that does not fit gets one line, and what may be a mistake is named."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from starting import flags, numbers, own_folder, table

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.main import run
from mhrun.errors import UserError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    yield from own_folder(tmp_path, monkeypatch)


@pytest.mark.slow
def test_what_is_no_category_is_not_proposed_as_one(capsys):
    """A date in each row is no category; nor does a table of many features get a method that cannot run."""
    when = pd.date_range("2020-01-01", periods=60).strftime("%Y-%m-%d")
    table(when=when, y=flags)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 2
    err = capsys.readouterr().err
    assert "column 'when' holds dates ('2020-01-01', " in err
    assert (
        "no numbers; leave it out with exclude=[when], or add a column of numbers for it, such as the days"
        in err
    )
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


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"y": flags}, ["--outcome", "z"], "my rows.csv has no column 'z'"),
        ({"y": flags}, ["--outcome", "agee"], "Did you mean 'age'?"),
        ({"y": 1}, [], "column 'y' (the last, as --outcome names none) has no two values"),
        ({"y": 1}, ["--outcome", "y"], "column 'y' has no two values"),
        (
            {"when": "3.4.2021 10:15", "y": flags},
            [],
            "holds dates ('3.4.2021 10:15'), no numbers; set categorical=[when], or leave it out",
        ),
        (
            {"host": "10.10.10.10", "y": flags},
            [],
            "column 'host' holds '10.10.10.10', no numbers; set categorical",
        ),
        (
            {"m": lambda rng, rows: [10**24 + k for k in range(rows)], "y": flags},
            [],
            "column 'm' holds '100000",
        ),
        (
            {"y": [f"c{k}" for k in range(60)]},
            [],
            "column 'y' (the last, as --outcome names none) holds 60 categories ('c0', 'c1', 'c10', 'c11', ...); "
            "an outcome is at most 20",
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
        ({"y": flags}, ["offset=age"], "An offset is the logarithm of an exposure: write exposure=COLUMN"),
        ({"y": flags}, ["features=[age"], "write lists as features=[a,b]"),
        ({"y": flags}, ["baselines=no"], "baselines=no cannot be read; write baselines.COLUMN=VALUE."),
        ({"y": flags}, ["baselines.age=1"], "baselines: 'age' is not in categorical = []; add it."),
        ({"y": flags}, ["missing=keep"], "missing = 'keep' is unknown; choose refuse or drop"),
        ({"y": flags}, ["other"], "needs a folder and a table"),
        (
            {"y": flags},
            ["model=poison"],
            "model=poison is unknown; choose logistic, linear, softmax, poisson, binomial. Did you",
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
def test_a_table_that_does_not_fit_gets_one_line(capsys, columns, arguments, message):
    table(**columns)
    assert run(["init", "mine", "--data", "my rows.csv", *arguments]) == 2
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
    assert re.search(r"        3 of \d+ rows lack a value and are left out \(age: 3\)\n", out)
    assert (
        "number has a different whole number in each row: if it is a label, exclude=[number] leaves it out"
        in out
    )
    assert "code has 3 values, whole numbers: if they are labels, categorical=[code]" in out
    assert "age has" not in out


def test_advice_can_be_pasted(capsys):
    """Whatever the names of columns; a name that is read as a mapping is shown in quotes."""
    odd = ["Unnamed: 0", 'it\'s [1], "2"', "2020"]
    table(**{name: lambda rng, rows: np.arange(rows) for name in odd}, y=flags)
    start = ["init", "mine", "--data", "my rows.csv", "--outcome", "y"]
    assert run(start) == 0
    labels = re.findall(r"if it is a label, (.*) leaves it out\n", capsys.readouterr().out)
    names = [yaml.safe_load(shlex.split(text)[0].removeprefix("exclude="))[0] for text in labels]
    assert names == odd
    assert run(["init", "other", *start[2:], *shlex.split(labels[0])]) == 0
    assert "'Unnamed: 0'" not in Path("other/conf/data/my_rows.yaml").read_text()
    capsys.readouterr()
    assert run(["init", "third", *start[2:], "exclude=[Unnamed: 0]"]) == 2
    assert """put a name with a colon in quotes: 'exclude=["Unnamed: 0"]'""" in capsys.readouterr().err


@pytest.mark.slow
def test_codes_of_missing_values_are_named(capsys):
    """They make the standard deviation; a rare category and a heavy tail are no such columns."""
    table(
        y=flags,
        income=lambda rng, rows: np.where(np.arange(rows) % 60 == 7, -99_999, rng.normal(30, 5, rows)),
        rare=lambda rng, rows: (np.arange(rows) == 5) * 1.0,
        tail=lambda rng, rows: rng.lognormal(0, 1.5, rows),
        rows=300,
    )
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "far from all others" in line)
    assert line.strip().startswith("income has values far from all others, up to -99999, 8 sd from its mean")
    advice = re.search("missing values, (.*) leaves their rows out", line)[1].split()
    assert advice == ["missing_values.income=[-99999]", "missing=drop"]
    assert run(["init", "other", "--data", "my rows.csv", "--outcome", "y", *advice]) == 0
    assert "5 of 300 rows lack a value and are left out (income: 5)" in capsys.readouterr().out
    few = ["scale=smoke", "steps=40", "warmup=60", "runtime.report=false"]
    few += ["~methods.mint", "~methods.sgld"]
    assert run(["--project", "other", "my_rows", *few]) == 0
    assert "data: 5 of 300 rows lack a value and are left out (income: 5)." in capsys.readouterr().err
    log = next(Path("outputs/my_rows").glob("*/log.txt")).read_text()
    assert "data: 5 of 300 rows lack a value and are left out (income: 5)" in log


@pytest.mark.parametrize("outcome", ["y", "income"])
@pytest.mark.parametrize("has_gap", [False, True])
def test_a_text_among_numbers_may_stand_for_a_missing_value(capsys, outcome, has_gap):
    """As a feature and as the outcome, and where other cells are empty: the settings that make it one are printed."""
    income = np.random.default_rng(0).normal(30, 5, 300).round(3).astype(str).astype(object)
    income[[3, 100]] = "unknown"
    table(
        300,
        y=flags,
        income=income,
        rest=lambda rng, rows: np.where(np.arange(rows) < has_gap, np.nan, rng.normal(size=rows)),
    )
    start = ["init", "mine", "--data", "my rows.csv", "--outcome", outcome]
    assert run(start) == 2
    assert "missing_values.income=[unknown]" in capsys.readouterr().err
    assert run(["init", "other", *start[2:], "missing_values.income=[unknown]", "missing=drop"]) == 0
    capsys.readouterr()
    assert run([*start, "missing_values=unknown", "missing=drop"]) == 0
    assert f"{2 + has_gap} of 300 rows lack a value and are left out" in capsys.readouterr().out
    written = yaml.safe_load(Path("mine/conf/data/my_rows.yaml").read_text())
    assert written["missing_values"] == ["unknown"]
    with pytest.raises(UserError, match="are not numbers"):
        compose_config(["experiment=my_rows", "data.missing_values=[]"], [Path("mine/conf")], compare=False)


def test_a_class_may_stand_for_a_missing_value(capsys):
    table(y=["yes", "no", "unknown"] * 20)
    start = ["init", "mine", "--data", "my rows.csv", "--outcome", "y"]
    assert run([*start, "missing_values=[unknown]", "missing=drop"]) == 0
    assert "logistic regression of y = 'yes' against 'no': 40 rows" in capsys.readouterr().out


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


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, pytest.param(0.7, marks=pytest.mark.slow)])
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "--data", "none.csv"], "--data none.csv: there is no such file"),
        (["mine", "--data", "."], "--data .: this is a folder; give the file of a table."),
        (["mine", "--data"], "--data needs a value"),
        (["mine", "--outcome", "y"], "needs a folder and a table"),
        (["mine", "--dta", "x"], "Did you mean '--data'?"),
    ],
)
def test_arguments_that_are_refused(capsys, arguments, message):
    assert run(["init", *arguments]) == 2
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


def test_a_text_that_is_read_as_a_missing_value_is_named(capsys):
    """NA is Namibia here."""
    table(y=numbers, country=["NA", "DE", "FR"] * 20)
    arguments = ["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=country"]
    message = (
        "The text 'NA' in country is read as a missing value: write another one in the file if it is none"
    )
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
    assert run([*arguments, "missing=drop"]) == 0
    assert message in capsys.readouterr().out


def test_a_column_that_is_called_as_an_indicator_is_to_be_renamed(capsys):
    table(y=flags, kind=lambda rng, rows: rng.choice(["a", "b"], rows), **{"kind=b": numbers})
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=kind"]) == 2
    assert "'kind=b' is a column, and the indicator of a value of 'kind'; rename" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.05, 0.95, "take a scale without ends, such as the log odds"),
        (0.0, 1.0, "take a scale without ends, in a model of your own"),
        (0.05, 1.2, None),
    ],
)
def test_an_outcome_that_may_be_a_proportion_is_named(capsys, low, high, words):
    values = np.random.default_rng(0).uniform(low, high, 60)
    values[:2] = low, high
    table(y=values, age=lambda rng, rows: rng.normal(size=rows))
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "between 0 and 1" in line]
    assert [words in line for line in lines] == [True] * (words is not None)
