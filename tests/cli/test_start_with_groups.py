"""``mhrun init DIR --data FILE groups=[...]``: multilevel regressions, and the names of their parameters."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import yaml
from starting import numbers, own_folder, table

import mhrun
from mhrun.build import build
from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.main import run
from mhrun.models.named_tensors import Named
from mhrun.models.parameters import Parameters


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    yield from own_folder(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("outcome", "arguments", "rows", "forms"),
    [
        ("number", [], 60, ("", "theta.rater_sd * ")),  # schools differ, raters do not
        ("flag", [], 1_200, ("theta.school_sd * ", "theta.rater_sd * ")),  # many data, and no differences
        ("count", ["model=poisson", "exposure=days"], 60, ("", "theta.rater_sd * ")),
        ("flag", ["form=centred"], 60, ("", "")),
        ("number", ["form=noncentred"], 60, ("theta.school_sd * ", "theta.rater_sd * ")),
    ],
)
def test_groups_give_a_multilevel_regression(capsys, outcome, arguments, rows, forms):
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
    arguments = ["--data", "my rows.csv", "--outcome", "y", "groups=[school,rater]", *arguments]
    assert run(["init", "mine", *arguments]) == 0
    out = capsys.readouterr().out
    assert "intercepts by school and rater" in out
    assert "units   groups: 2 of school, 20 of rater" in out
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    model = config["model"]
    assert model["parameters"]["rater_effects"]["dims"]["rater"][1] == "r 1"
    chosen = any(argument.startswith("form=") for argument in arguments)
    assert ("writes the other form with form=" in Path("mine/conf/model/my_rows.yaml").read_text()) != chosen
    code = Path("mine/my_rows_model.py").read_text()
    for form, column in zip(forms, ("school", "rater"), strict=True):
        assert f'        + {form}theta.{column}_effects[rows["{column}"]]\n' in code
        assert ("prior" in model["parameters"][f"{column}_effects"]) == bool(form)
        assert (f"Normal(0.0, theta.{column}_sd).log_prob(theta.{column}_effects)" in code) != bool(form)
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
    means = {
        "number": lambda: eta,
        "flag": lambda: scipy.special.expit(eta),
        "count": lambda: rows["exposure"] * np.exp(eta),
    }
    assert model["mean"] == "my_rows_model.mean_outcome"
    found = written["mean_outcome"](named, Named(fields))
    np.testing.assert_allclose(found, means[outcome](), rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_a_form_without_meaning_is_refused(capsys, arguments, message):
    table(y=numbers, school=np.arange(60) % 2)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", *arguments]) == 2
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
    arguments = [
        "--data",
        "my rows.csv",
        "--outcome",
        "y",
        "groups=['my \"own\": group', '1']",
        "features=[age]",
    ]
    assert run(["init", "mine", *arguments]) == 0
    parameters = compose_config(["experiment=my_rows"], [Path("mine/conf")], compare=False)["model"][
        "parameters"
    ]
    assert parameters["my_own_group_effects"]["dims"] == {"my_own_group": ["0", "1", "2", "3"]}
    assert Parameters(parameters).dim == 1 + 1 + (1 + 4) + (1 + 3) + 1


def test_groups_have_the_names_of_the_table(capsys):
    """Codes are places among the sorted values: labels that are given would be those of other groups' effects."""
    groups = ["12E5", "1e3", "B7", "yes", "007"] * 12
    frame = table(y=numbers, group=groups)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "groups=group"]) == 0
    few = ["scale=smoke", "runtime.report=false", "steps=20", "warmup=50", "~methods.sgld"]
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    labels = ["007", "12E5", "1e3", "B7", "yes"]
    assert config["model"]["parameters"]["group_effects"]["dims"]["group"] == labels
    given = f"model.parameters.group_effects.dims.group={json.dumps(labels)}"
    frame.assign(group=["Z" if group == "007" else group for group in groups]).to_csv(
        "mine/my rows.csv", index=False
    )
    capsys.readouterr()
    assert run(["--project", "mine", "my_rows", "scale=smoke", "--cfg", "job"]) == 0
    model = yaml.safe_load(capsys.readouterr().out)["model"]
    assert model["parameters"]["group_effects"]["dims"]["group"] == [*labels[1:], "Z"]
    assert run(["--project", "mine", "my_rows", *few, given]) == 2
    assert (
        "labels of group in parameters are not the values of the column 'group': number 1 is '007', and in the "
        "table '12E5'. Effects would have the names of other groups"
    ) in capsys.readouterr().err


@pytest.mark.parametrize("value", ["${seed}", "???"])
def test_a_group_that_a_configuration_would_replace_is_refused(capsys, value):
    table(y=numbers, group=[value, "a", "b"] * 20)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "groups=group"]) == 2
    assert f"'{value}' cannot be named in a configuration" in capsys.readouterr().err


def test_columns_of_groups_have_parameters_of_their_own(capsys):
    """Names that collapse to one, those of other parameters, and a backslash, which a docstring would read."""
    columns = ["a b", "a-b", "a_b_group", "scale", "chain", "a_b_sd", "corp\\user"]
    table(y=numbers, **{name: np.arange(60) % (k + 2) for k, name in enumerate(columns)})
    arguments = ["--data", "my rows.csv", "--outcome", "y", f"groups={json.dumps(columns)}"]
    assert run(["init", "mine", *arguments]) == 0
    parameters = compose_config(["experiment=my_rows"], [Path("mine/conf")], compare=False)["model"][
        "parameters"
    ]
    assert Parameters(parameters).dim == 1 + 2 + sum(1 + k + 2 for k in range(len(columns))) + 1
    written = dict[str, Any]()
    exec(Path("mine/my_rows_model.py").read_text(), written)
    assert "corp\\user" in written["__doc__"]


def test_groups_alone_and_a_model_without_them(capsys):
    table(y=lambda rng, rows: rng.choice(list("abc"), rows), school=np.arange(60) % 5)
    arguments = ["--data", "my rows.csv", "--outcome", "y", "groups=school"]
    assert run(["init", "mine", *arguments]) == 2
    assert (
        "groups requires model=linear, logistic, poisson, binomial, not softmax." in capsys.readouterr().err
    )
    assert (
        run(["init", "mine", "--data", "my rows.csv", "--outcome", "age", "groups=school", "exclude=[bmi,y]"])
        == 0
    )
    assert "weights" not in Path("mine/my_rows_model.py").read_text()
    assert "60 rows, groups of school" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 1.0])
def test_counts_with_more_variance_than_mean_within_groups_are_named(capsys, size):
    """Poisson and negative binomial ones, in groups that differ; by `init`, and after a run of its model."""
    rng = np.random.default_rng(5)
    mean = np.repeat([1.0, 3.0, 9.0, 4.0], 150)
    rate = mean if size is None else mean * rng.gamma(size, 1 / size, 600)
    table(600, y=rng.poisson(rate), school=np.repeat(list("abcd"), 150))
    arguments = ["--data", "my rows.csv", "--outcome", "y", "model=poisson", "groups=school"]
    assert run(["init", "mine", *arguments]) == 0
    assert ("times their mean" in capsys.readouterr().out) == (size is not None)
    few = ["~methods.sgld", "methods.hmc.steps=300", "methods.hmc.warmup=100", "runtime.report=false"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", *few]) == 0
    summary = json.loads(Path("outputs/my_rows/latest/summary.json").read_text())
    lines = summary["methods"]["hmc"]["fit_warnings"]
    assert ["times their mean" in line for line in lines] == [True] * (size is not None)
