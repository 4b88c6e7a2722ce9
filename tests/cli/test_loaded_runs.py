"""``mhrun.load``: a run of the command line from Python, with predictions for raw rows of its table."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import mhrun
from mhrun.cli.main import run
from mhrun.data.table import Table
from mhrun.errors import UserError
from mhrun.store.folder import RunFolder

FEW = ["scale=smoke", "runtime.report=false", "steps=30", "warmup=60"]


@pytest.fixture
def clean(tmp_path, monkeypatch):
    """A folder of its own; what the command line trusts is forgotten, as in another process."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield monkeypatch
    sys.path[:] = path
    for name in ("sick_model", "size_model"):
        sys.modules.pop(name, None)


def forget(monkeypatch):
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")


def table(name, outcome):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.normal(50, 10, 80), "city": rng.choice(["a", "b", "c"], 80)})
    frame.assign(y=outcome(rng, frame)).to_csv(name, index=False)
    return frame


@pytest.mark.slow
def test_a_logistic_run_predicts_raw_rows(clean):
    table("sick.csv", lambda rng, f: rng.integers(0, 2, 80))
    assert run(["init", "mine", "--data", "sick.csv", "categorical=city"]) == 0
    methods = ["~methods.smh2", "~methods.mint", "~methods.sgld"]
    assert run(["--project", "mine", "sick", *FEW, *methods]) == 0
    forget(clean)
    found = mhrun.load("outputs/sick/latest", project="mine")
    assert found.methods == ["mcmc"]
    new = pd.DataFrame({"city": ["b", "a"], "unused": "x", "age": [60.0, 45.0]})
    probability = found.predict("mcmc", new)
    mean, sd = found.data.facts["scales"]["age"]
    x = np.array([[1, (60 - mean) / sd, 1, 0], [1, (45 - mean) / sd, 0, 0]])
    theta = found.trace("mcmc")["posterior"]["theta"].to_numpy().reshape(-1, 4)
    assert probability.to_numpy() == pytest.approx((1 / (1 + np.exp(-theta @ x.T))).mean(0))
    assert found.predict("mcmc", {"age": 60.0, "city": "b"}, each=True).shape == (4, 30, 1)  # thin=2
    outcomes = found.predict("mcmc", new.iloc[[0] * 50], each=True, outcomes=True).to_numpy()
    assert set(np.unique(outcomes)) == {0.0, 1.0}  # as in the table
    assert abs(outcomes.mean() - float(probability[0])) < 4 * (0.25 / outcomes.size) ** 0.5
    score = found.log_score("mcmc", new.assign(y=[1, 0])).to_numpy()
    assert score == pytest.approx(np.log([float(probability[0]), 1 - float(probability[1])]))
    with pytest.raises(UserError, match="the new rows: there is no column 'y'"):
        found.log_score("mcmc", new)
    with pytest.raises(UserError, match="column 'y' has 2, which the table does not have: 0, 1"):
        found.log_score("mcmc", new.assign(y=[1, 2]))
    assert os.environ["MHRUN_TRUST"] == os.environ["MHRUN_FOLDERS"] == ""  # nothing is trusted for longer
    for rows, message in (
        ({"age": 60.0}, "the new rows: there is no column 'city'"),
        ({"age": 60.0, "city": "d"}, "column 'city' has 'd', which the table does not have: 'a', 'b', 'c'"),
        ({"age": [60.0, np.nan], "city": "a"}, "column 'age' lacks a value in 1 row, first in data row 2\\."),
        (np.ones((2, 2)), "New rows of sick.csv are a DataFrame"),
    ):
        with pytest.raises(UserError, match=message):
            found.predict("mcmc", rows)
    with pytest.raises(UserError, match="no method 'mint'; it has mcmc"):
        found.trace("mint")
    Path("sick.csv").unlink()
    with pytest.raises(UserError, match="project=DIR"):
        assert mhrun.load(found.path).data  # its table is in the project
    with open("mine/sick.csv", "a") as file:
        file.write("50.0,a,1\n")
    with pytest.raises(UserError, match=r"'sick\.csv' is not as it was when the run was made"):
        assert mhrun.load(found.path, project="mine").model
    with pytest.raises(UserError, match="is not a run"):
        mhrun.load("outputs/sick")


@pytest.mark.slow
def test_a_function_model_is_trusted_by_its_project_only_and_predicts_in_the_units_of_the_table(clean):
    table("size.csv", lambda rng, f: 1000 + 10 * f["age"] + rng.normal(size=80))
    assert run(["init", "mine", "--data", "size.csv", "features=[age]"]) == 0
    assert run(["--project", "mine", "size", *FEW, "~methods.sgld"]) == 0
    forget(clean)
    found = mhrun.load(Path("outputs/size/latest"), project="mine")
    new = {"age": [40.0, 60.0]}

    def mean(theta, batch):
        return theta.intercept + batch.x @ theta.weights

    facts = found.data.facts
    standard = found.predict("mcmc", new, mean, original_units=False)
    assert found.predict("mcmc", new, mean).to_numpy() == pytest.approx(
        standard.to_numpy() * facts["target_sd"] + facts["target_mean"]
    )
    assert found.predict("mcmc", new, each=True).equals(found.predict("mcmc", new, mean, each=True))
    # The density of y in its own units, not of what was standardised.
    posterior = found.trace("mcmc")["posterior"].to_dataset()
    scale = posterior["scale"].to_numpy().reshape(-1, 1) * facts["target_sd"]
    each_mean = found.predict("mcmc", new, mean, each=True).to_numpy().reshape(-1, 2)
    y = [1410.0, 1590.0]
    density = stats.norm.pdf(y, each_mean, scale).mean(0)
    assert found.log_score("mcmc", new | {"y": y}).to_numpy() == pytest.approx(np.log(density))
    outcomes = found.predict("mcmc", new, each=True, seed=1, outcomes=True)
    assert outcomes.shape == (4, 30, 2)
    assert outcomes.std() > found.predict("mcmc", new, mean, each=True).std("draw").max()
    assert torch.allclose(
        found.rows(new).fields["x"][:, 0],
        (torch.tensor([40.0, 60.0], dtype=torch.float64) - facts["scales"]["age"][0])
        / facts["scales"]["age"][1],
    )
    sys.modules.pop("size_model", None)
    with pytest.raises(UserError, match="project"):
        assert mhrun.load(found.path).model
    assert "size_model" not in sys.modules  # no code of the project was executed


@pytest.mark.slow
def test_classes_of_a_table_have_its_values(clean):
    table("kind.csv", lambda rng, f: rng.choice(["red", "blue", "green"], 80))
    assert run(["init", "mine", "--data", "kind.csv", "features=[age]"]) == 0
    assert run(["--project", "mine", "kind", *FEW, "~methods.sgld", "~methods.smh2", "~methods.mint"]) == 0
    found, new = mhrun.load("outputs/kind/latest", project="mine"), {"age": [40.0, 60.0]}
    method = found.methods[0]
    chances = found.predict(method, new)
    assert chances.dims == ("datum", "class")
    assert list(chances["class"].values) == found.data.facts["classes"] == ["blue", "green", "red"]
    assert set(np.unique(found.predict(method, new, outcomes=True, each=True))) <= {0, 1, 2}
    with pytest.raises(UserError, match="the mean of classes is no class"):
        found.predict(method, new, outcomes=True)


def test_new_rows_of_a_run_on_arrays_are_a_file_or_bytes_that_are_pixels(clean):
    rng = np.random.default_rng(2)
    images, y = rng.integers(0, 256, (60, 3), dtype=np.uint8), rng.choice([-1.0, 1.0], 60)
    np.savez("old.npz", x=images, y=y)
    np.savez("new.npz", x=images[:4], y=y[:4])
    settings = ["data=npz", "data.file=old.npz", "data.pixels=true", "model=logistic", "model.dim=3"]
    assert run([*settings, "+method@methods.mcmc=mcmc", "steps=30", "warmup=60", "runtime.report=false"]) == 0
    found = mhrun.load("outputs/own/latest")
    chances = found.predict("mcmc", "new.npz")
    assert (chances == found.predict("mcmc", {"x": images[:4]})).all()
    theta = found.trace("mcmc")["posterior"]["theta"].to_numpy().reshape(-1, 3)
    exact = 1 / (1 + np.exp(-(images[:4] / 255) @ theta.T))
    assert chances.to_numpy() == pytest.approx(exact.mean(1), rel=1e-5)
    assert found.log_score("mcmc", "new.npz").sizes == {"datum": 4}


def test_the_tables_own_rows_are_prepared_as_they_were(tmp_path):
    frame = table(tmp_path / "t.csv", lambda rng, f: rng.normal(size=80))
    for settings in ({"intercept": True, "test_share": 0.25}, {"standardise": False}):
        data = Table(str(tmp_path / "t.csv"), "y", categorical=["city"], **settings)
        kept = data._for_training(80)
        assert torch.equal(data.prepared(frame[kept]).fields["x"], data.load().fields["x"])
        assert torch.equal(data.prepared(str(tmp_path / "t.csv")).fields["x"][kept], data.load().fields["x"])


@pytest.mark.slow
def test_projects_from_tables_of_one_name_are_distinguished(clean, capsys):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.normal(size=60), "y": rng.integers(0, 2, 60)})
    frame.to_csv("rows.csv", index=False)
    for name, settings, methods in (
        ("first", [], ["~methods.smh2", "~methods.mint", "~methods.sgld"]),
        ("second", ["model=linear"], ["~methods.mcmc"]),
    ):
        assert run(["init", name, "--data", "rows.csv", *settings]) == 0
        assert run(["--project", name, "rows", *FEW, *methods]) == 0
        forget(clean)
    assert RunFolder(Path("outputs/rows/latest").resolve()).projects() == [Path("second").resolve()]
    capsys.readouterr()
    assert run(["compare", "rows:mcmc"]) == 2
    error = capsys.readouterr().err
    assert "is of project second and has no method 'mcmc'; it has sgld." in error
    assert "of project first has mcmc: add --project first, or give the folder." in error
    assert run(["compare", "--project", "first", "rows", "--reference", "rows:mcmc"]) == 0
    forget(clean)
    with pytest.raises(
        UserError, match="is a run of project second, not of first; give load project='second'"
    ):
        mhrun.load("outputs/rows/latest", project="first")
    assert mhrun.load("outputs/rows/latest", project="second").model
    forget(clean)
    shutil.copytree("second", "copy")
    clean.setattr(sys, "path", [place for place in sys.path if not place.endswith(("first", "second"))])
    sys.modules.pop("rows_model", None)
    assert mhrun.load("outputs/rows/latest", project="copy").model
    capsys.readouterr()
    assert run(["--project", "first", "list", "rows"]) == 0
    listed = capsys.readouterr().out
    for name in ("first", "second"):
        assert f"project {name} " in listed


@pytest.mark.slow
def test_settings_that_were_changed_after_a_run_are_refused(clean, capsys):
    """Its draws are of other settings, with which predictions would be made."""
    table("kept.csv", lambda rng, f: rng.normal(size=80))
    assert run(["init", "mine", "--data", "kept.csv", "features=[age]"]) == 0
    command = ["--project", "mine", "kept", *FEW, "~methods.sgld"]
    assert run(command) == 0
    place = Path("outputs/kept/latest").resolve()
    shutil.copytree(place, "copied")
    before = (place / "config.yaml").read_text()
    assert "standardise_target: true" in before
    for folder in (place, Path("copied")):
        (folder / "config.yaml").write_text(
            before.replace("standardise_target: true", "standardise_target: false")
        )
        with pytest.raises(UserError, match=r"config\.yaml was changed after the run"):
            mhrun.load(folder, project="mine")
    assert run(["report", str(place)]) != 0
    assert "was changed after the run, whose draws are of other settings" in capsys.readouterr().err
    assert run(command) == 0  # writes the file anew
    assert mhrun.load(place, project="mine").config["data"]["standardise_target"] is True
