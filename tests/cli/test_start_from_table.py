"""``mhrun init DIR --data FILE``: the model and the methods fit the columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from starting import flags, numbers, own_folder, table

import mhrun
from mhrun.build import build
from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.main import run
from mhrun.errors import UserError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    yield from own_folder(tmp_path, monkeypatch)


def test_two_values_give_a_logistic_regression(capsys):
    table(
        ill=lambda rng, rows: rng.choice(["yes", "no"], rows),
        city=lambda rng, rows: rng.choice(["a", "b", "c"], rows),
    )
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "ill", "categorical=city"]) == 0
    out = capsys.readouterr().out
    assert "model   logistic regression of ill = 'yes' against 'no': 60 rows, 2 columns and 1 category" in out
    assert "a coefficient is for one sd\nunits   baseline: city = a\n" in out
    assert "priors  each weight and the intercept Normal(0, sd 3.16)" in out
    assert "run it  mhrun --project mine my_rows" in out
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    assert list(config["methods"]) == ["mcmc", "smh2", "mint", "sgld"]
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
    # Nothing is overwritten
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "ill", "categorical=city"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_baseline_is_chosen_by_its_column(capsys):
    """Words that YAML reads as something else, in the column's name and in the value."""
    table(y=flags, **{"is: it": lambda rng, rows: rng.choice(["no", "yes"], rows)})
    arguments = ["--data", "my rows.csv", "--outcome", "y", "categorical=['is: it']"]
    assert run(["init", "mine", *arguments, "baselines.is: it=yes"]) == 0
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
    few = ["steps=40", "warmup=60", "~methods.mint", "~methods.sgld", "~methods.smh2"]
    assert run(["--project", ".", "my_table", "scale=smoke", "runtime.report=false", *few]) == 0


@pytest.mark.slow
def test_numbers_give_a_linear_regression_with_a_scale(capsys):
    table(y=lambda rng, rows: rng.normal(size=rows))
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    out = capsys.readouterr().out
    assert "priors  intercept and weights Normal(0, 1), scale HalfNormal(1)" in out
    assert "methods mcmc (exact); sgld (approximate: judge them)" in out
    config = compose_config(["experiment=my_rows"], [Path("mine/conf")], compare=False)
    parameters = config["model"]["parameters"]
    assert list(parameters) == ["intercept", "weights", "scale"]
    assert parameters["weights"]["dims"] == {"feature": ["age", "bmi"]}
    few = ["steps=40", "warmup=20", "~methods.mcmc"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", "runtime.report=false", *few]) == 0


@pytest.mark.slow
def test_counts_give_a_poisson_regression_if_it_is_chosen(capsys):
    table(y=lambda rng, rows: rng.poisson(1.5, rows), city=lambda rng, rows: rng.choice(["a", "b"], rows))
    arguments = ["--data", "my rows.csv", "--outcome", "y", "categorical=[city]"]
    assert run(["init", "plain", *arguments]) == 0
    out = capsys.readouterr().out
    assert "model   linear regression of y" in out
    assert "y may be a count: model=poisson is a Poisson regression" in out
    assert run(["init", "mine", *arguments, "model=poisson"]) == 0
    out = capsys.readouterr().out
    assert "model   Poisson regression of y, from 0 to " in out
    assert "may be a count" not in out
    assert "methods mcmc, smh2 (exact)" in out
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    assert config["model"]["_target_"] == "mhrun.models.poisson_regression.PoissonRegression"
    assert config["model"]["names"] == ["intercept", "age", "bmi", "city=b"]
    assert (config["data"]["outcome"], config["data"]["intercept"]) == ("number", True)
    few = ["steps=40", "warmup=60", "~methods.mint", "~methods.sgld", "~methods.smh2"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", "runtime.report=false", *few]) == 0


def test_successes_out_of_trials(capsys):
    """Of 400 rows with 0 to 19 trials; the run predicts expected successes of new rows."""
    rng = np.random.default_rng(4)
    attempts = rng.integers(0, 20, 400)
    table(rows=400, wins=lambda rng, rows: rng.binomial(attempts, 0.3), attempts=attempts)
    arguments = ["--data", "my rows.csv", "--outcome", "wins"]
    assert run(["init", "mine", *arguments, "trials=attempts"]) == 2
    assert "trials=attempts requires counts of successes: add model=binomial." in capsys.readouterr().err
    assert run(["init", "mine", *arguments, "model=binomial"]) == 2
    assert "model=binomial requires trials=COLUMN" in capsys.readouterr().err
    arguments += ["model=binomial", "trials=attempts"]
    assert run(["init", "mine", *arguments]) == 0
    out = capsys.readouterr().out
    assert "model   binomial regression of wins out of attempts (" in out
    assert "400 rows, 2 columns" in out
    assert "times that of a binomial" not in out
    few = ["steps=300", "warmup=100", "runtime.report=false", "~methods.mint", "~methods.smh2"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", *few]) == 0
    loaded = mhrun.load("outputs/my_rows/latest", project="mine")
    expected = loaded.predict("mcmc", {"age": [0.0, 0.0], "bmi": [0.0, 0.0], "attempts": [10, 100]})
    assert float(expected[1]) == pytest.approx(10 * float(expected[0]))
    assert float(expected[1]) == pytest.approx(30, abs=10)  # of 3,800 trials in all, and 400 draws
    with pytest.raises(
        UserError, match="there is no column 'attempts', the trials, which successes are out of"
    ):
        loaded.predict("mcmc", {"age": [0.0], "bmi": [0.0]})


@pytest.mark.parametrize("groups", [[], ["groups=school"]])
@pytest.mark.parametrize(
    ("wins", "message"),
    [
        (np.arange(40) % 5, "'wins' is 4 where the trials 'attempts' are 3, and above them in 8 rows."),
        (np.arange(40) % 3 - 1, "'wins' holds other numbers, such as -1."),
        (np.arange(40) % 4 / 3, "such as 0.333333. Multiply a proportion by the trials."),
    ],
)
def test_an_outcome_that_is_no_number_of_successes_is_refused(wins, message, groups, capsys):
    table(rows=40, wins=wins, attempts=np.full(40, 3), **({"school": np.arange(40) % 6} if groups else {}))
    arguments = ["--data", "my rows.csv", "--outcome", "wins", "model=binomial", "trials=attempts", *groups]
    assert run(["init", "mine", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_success_in_any_trial_is_an_outcome(capsys):
    """The likelihood is informative and the prior proper. Text in the column of trials is named as such."""
    attempts = np.arange(60) % 7
    table(wins=np.zeros(60, int), attempts=attempts)
    arguments = ["init", "mine", "--data", "my rows.csv", "--outcome", "wins"]
    assert run([*arguments, "model=binomial", "trials=attempts"]) == 0
    assert f"wins out of attempts (0 of {attempts.sum()})" in capsys.readouterr().out
    assert run([*arguments, "trials=attempts"]) == 2
    assert "has no two values" in capsys.readouterr().err
    table(wins=np.arange(60) % 2, attempts=["many"] * 60)
    assert run([*arguments, "model=binomial", "trials=attempts"]) == 2
    assert "the number of trials 'attempts' holds 'many'; it must be a number." in capsys.readouterr().err


@pytest.mark.parametrize("model", ["model=binomial trials=people", "model=poisson exposure=people"])
def test_rare_events_among_many_are_not_overdispersed(model, capsys):
    """A rate of 1 in 1,000 of populations near a million, whose gradients of the mean loss are tiny."""
    rng = np.random.default_rng(6)
    people = rng.integers(200_000, 2_000_000, 100)
    table(rows=100, deaths=lambda rng, rows: rng.binomial(people, 1e-3), people=people)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "deaths", *model.split()]) == 0
    assert "times" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "lines"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("groups", [[], ["groups=school"]])
def test_successes_that_vary_too_much_are_named(noise, lines, groups, capsys):
    """Within schools too, whose chances differ by more than the features explain."""
    rng = np.random.default_rng(5)
    school = rng.integers(0, 12, 600)
    chance = 1 / (1 + np.exp(-rng.normal(0, 1, 12)[school] * bool(groups)))
    if noise:
        chance = rng.beta(4 * chance, 4 * (1 - chance))
    settings = {"school": school} if groups else {}
    table(rows=600, wins=lambda rng, rows: rng.binomial(20, chance), attempts=np.full(600, 20), **settings)
    arguments = ["--data", "my rows.csv", "--outcome", "wins", "model=binomial", "trials=attempts", *groups]
    assert run(["init", "mine", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.count("times that of a binomial distribution") == lines
    if not groups:
        return
    assert "), intercepts by school: 600 rows" in out
    text = Path("mine/my_rows_model.py").read_text()
    assert "Binomial(rows.trials, logits=mean).log_prob(rows.y)" in text
    assert "family: binomial" in Path("mine/conf/model/my_rows.yaml").read_text()
    few = ["steps=30", "warmup=20", "runtime.report=false"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", *few]) == 0


@pytest.mark.slow
def test_counts_with_an_exposure(capsys):
    """The rate is 0.5 a day, whatever the days; a fit without exposure would find 0.5 times their mean."""
    days = np.random.default_rng(4).uniform(1, 30, 400).round(1)
    table(rows=400, y=lambda rng, rows: rng.poisson(0.5 * days), days=days)
    arguments = ["--data", "my rows.csv", "--outcome", "y", "exposure=days"]
    assert run(["init", "mine", *arguments]) == 2
    assert "exposure=days requires counts: add model=poisson." in capsys.readouterr().err
    assert run(["init", "mine", *arguments, "model=poisson"]) == 0
    out = capsys.readouterr().out
    assert "for each days: 400 rows, 2 columns" in out
    assert "times their mean" not in out  # as it would be without the exposure
    few = [
        "steps=300",
        "warmup=100",
        "runtime.report=false",
        *(f"~methods.{m}" for m in ("mint", "sgld")),
    ]
    assert run(["--project", "mine", "my_rows", "scale=smoke", *few, "~methods.smh2"]) == 0
    found = mhrun.load("outputs/my_rows/latest", project="mine")
    with found.trace("mcmc") as trace:
        rate = float(np.exp(trace["posterior"]["theta"][..., 0]).mean())
    assert rate == pytest.approx(0.5, rel=0.1)


@pytest.mark.slow
def test_categories_give_a_softmax_regression(capsys):
    table(kind=lambda rng, rows: rng.choice(["oak", "ash", "elm"], rows))
    assert run(["init", "mine", "--data", "my rows.csv"]) == 0
    out = capsys.readouterr().out
    assert "model   softmax regression of kind, 3 classes ('ash', 'elm', 'oak'): 60 rows, 2 columns" in out
    config = compose_config(["experiment=my_rows", "scale=smoke"], [Path("mine/conf")], compare=False)
    model = config["model"]
    assert (model["features"], model["classes"], config["data"]["outcome"]) == (3, 3, "class")
    assert model["names"][:4] == ["intercept[ash]", "age[ash]", "bmi[ash]", "intercept[elm]"]
    assert list(config["methods"]) == ["mcmc", "smh2", "mint", "sgld"]
    few = ["steps=40", "warmup=60", "~methods.mint", "~methods.sgld", "~methods.smh2"]
    assert run(["--project", "mine", "my_rows", "scale=smoke", "runtime.report=false", *few]) == 0


def test_numbers_without_zero_are_no_counts(capsys):
    table(y=lambda rng, rows: rng.integers(1, 9, rows))
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    assert "may be a count" not in capsys.readouterr().out


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
        (flags, 80, 3, ["mcmc", "smh2", "mint", "sgld"]),
        (flags, 80, 60, ["hmc", "mint", "sgld"]),
        (flags, 700, 3, ["mcmc", "smh2", "mint", "mhminibatch", "sgld_cv"]),
        (flags, 3000, 3, ["mh_ss", "zig_zag", "sgld_cv"]),
        (flags, 3000, 60, ["mh_ss", "zig_zag", "sgld_cv"]),
        (flags, 3000, 70, ["mh_ss", "sgld_cv"]),
        (flags, 1800, 60, ["mh_ss", "zig_zag", "sgld_cv"]),  # as many numbers as 2,160 rows of 50
        (numbers, 80, 3, ["mcmc", "sgld"]),
        (numbers, 700, 12, ["hmc", "sgld_cv"]),
        (numbers, 3000, 3, ["hmc", "sgld_cv"]),
    ],
)
def test_methods_by_rows_and_parameters(capsys, monkeypatch, outcome, rows, features, methods):
    """Of more rows plain SGLD has too few effective draws, and random walks on all data take too long."""
    monkeypatch.setattr("mhrun.cli.init.methods._MOST_SGLD_ROWS", 500)
    monkeypatch.setattr("mhrun.cli.init.methods._MOST_FULL_ROWS", 2000)
    monkeypatch.setattr("mhrun.cli.init.methods._MOST_FULL_NUMBERS", 100_000)
    rng = np.random.default_rng(7)
    table(rows, **{f"f{j}": rng.normal(size=rows) for j in range(features - 2)}, y=outcome)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y"]) == 0
    assert ("hmc reads all data" in capsys.readouterr().out) == (rows == 3000 and "hmc" in methods)
    config = compose_config(["experiment=my_rows"], [Path("mine/conf")], compare=False)
    assert list(config["methods"]) == methods
    if "mh_ss" in methods:
        assert config["methods"]["mh_ss"]["steps"] == 4 * config["steps"]


@pytest.mark.parametrize(
    ("argument", "outcome", "named", "column"),
    [
        ("+data.baselines={kind:c}", numbers, "kind=b", "kind=a"),
        ("data.features=[bmi,age]", numbers, "age", "bmi"),
        ("data.features=[bmi,age]", ["low", "high", "none"] * 20, "age", "bmi"),
    ],
)
def test_coefficients_have_the_names_of_the_table(capsys, argument, outcome, named, column):
    """Names that are given would be those of other coefficients, with another baseline or order of the features."""
    table(y=outcome, kind=["a", "b", "c"] * 20)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=kind"]) == 0
    model = compose_config(["experiment=my_rows"], [Path("mine/conf")], compare=False)["model"]
    file = Path("mine/conf/model/my_rows.yaml")
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | model, sort_keys=False))
    few = ["scale=smoke", "runtime.report=false", "steps=20", "warmup=50", "~methods.sgld"]
    capsys.readouterr()
    assert run(["--project", "mine", "my_rows", *few, argument]) == 2
    error = capsys.readouterr().err
    assert f"has '{named}' where the column of x is '{column}'" in error
    assert "coefficients would have the names of other columns" in error


@pytest.mark.slow
def test_a_weight_of_each_class_is_that_of_its_column(capsys):
    """Names of classes may have brackets, and values of categories equality signs."""
    table(y=["lo[1]", "hi=2", "a"] * 20, kind=["u", "v", "w=x", "u", "v"] * 12)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "categorical=kind"]) == 0
    few = ["scale=smoke", "runtime.report=false", "steps=20", "warmup=50", "~methods.sgld"]
    assert run(["--project", "mine", "my_rows", *few]) == 0


@pytest.mark.parametrize(
    ("values", "arguments", "line"),
    [
        (["well", "sick"], [], "logistic regression of y = 'well' against 'sick'"),
        (["well", "sick"], ["baselines.y=well"], "logistic regression of y = 'sick' against 'well'"),
        ([0, 1], ["baselines.y=1"], "logistic regression of y = 0 against 1"),
        (
            ["well", "sick"],
            ["baselines.y=well", "groups=school"],
            "regression of y = 'sick', intercepts by school",
        ),
        (["a", "b", "c"], ["baselines.y=c"], "softmax regression of y, 3 classes ('c', 'a', 'b')"),
    ],
)
def test_the_value_of_an_outcome_that_is_0_can_be_chosen(capsys, values, arguments, line):
    table(y=lambda rng, rows: rng.choice(values, rows), school=np.arange(60) % 3)
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", *arguments]) == 0
    assert line in capsys.readouterr().out
    written = yaml.safe_load(Path("mine/conf/data/my_rows.yaml").read_text())
    chosen = [argument.partition("=")[2] for argument in arguments if "baselines" in argument]
    assert [str(value) for value in written.get("baselines", {}).values()] == chosen
    config = compose_config(["experiment=my_rows"], [Path("mine/conf")], compare=False)
    data = build(config["data"] | {"file": "mine/my rows.csv"}, "data").load()
    found = data.facts["classes"][0] if "classes" in data.facts else data.facts["positive"]
    assert (str(found) in chosen) == ("classes" in data.facts)


def test_an_outcome_of_numbers_has_no_baseline(capsys):
    table(y=lambda rng, rows: rng.normal(size=rows))
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", "baselines.y=1"]) == 2
    assert "'y' is a target of numbers, which has no baseline; leave it out." in capsys.readouterr().err
