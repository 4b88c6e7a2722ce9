"""Settings of a model that follow from its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from starting import flags, numbers, own_folder, table

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.main import run
from mhrun.data.arrays import Npz
from mhrun.errors import UserError

FEW = ["scale=smoke", "runtime.report=false", "steps=20", "warmup=50"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from own_folder(tmp_path, monkeypatch)


def start(*arguments: str) -> None:
    """Begin a project with the table, by `mhrun init`."""
    assert run(["init", "mine", "--data", "my rows.csv", "--outcome", "y", *arguments]) == 0


def model_of(*overrides: str) -> dict[str, Any]:
    """Return the model of the project, composed with these overrides."""
    config = compose_config(
        ["experiment=my_rows", "scale=smoke", *overrides], [Path("mine/conf")], compare=False
    )
    model: dict[str, Any] = config["model"]
    return model


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["model=poisson"]])
def test_weights_are_those_of_the_columns(extra: Sequence[str]) -> None:
    """Another choice of features is one setting."""
    table(y=(lambda rng, rows: rng.poisson(2.0, rows)) if extra else flags, kind=["a", "b", "c"] * 20)
    start("categorical=kind", *extra)
    names = ["intercept", "age", "bmi", "kind=b", "kind=c"]
    assert (model_of()["dim"], model_of()["names"]) == (5, names)
    few = model_of("data.features=[bmi]", "data.intercept=false")
    assert (few["dim"], few["names"]) == (3, [names[2], *names[3:]])
    other = model_of("+data.baselines={kind:b}")
    assert other["names"][3:] == ["kind=a", "kind=c"]
    named = model_of("data.features=[bmi]", "data.categorical=[]", "+model.names=[first,second]")
    assert (named["dim"], named["names"]) == (2, ["first", "second"])
    assert run(["--project", "mine", "my_rows", *FEW, "data.features=[bmi]", "~methods.sgld"]) == 0


def test_a_softmax_regression_has_weights_of_each_class() -> None:
    table(y=["u", "v", "w"] * 20)
    start()
    model = model_of("data.features=[age]")
    assert (model["features"], model["classes"]) == (2, 3)
    assert model["names"] == [f"{column}[{level}]" for level in "uvw" for column in ("intercept", "age")]


def test_axes_of_parameters_have_the_labels_of_the_data() -> None:
    table(y=numbers, school=[3, 1, 2] * 20)
    start("groups=school")
    parameters = model_of("data.features=[bmi]")["parameters"]
    assert parameters["weights"]["dims"] == {"feature": ["bmi"]}
    assert parameters["school_effects"]["dims"] == {"school": ["1", "2", "3"]}
    with pytest.raises(UserError, match=r"dims.feature = z must be a list of labels, or a field of the data"):
        model_of("model.parameters.weights.dims.feature=z")
    with pytest.raises(UserError, match=r"dims.feature = schol .* columns of data.groups = \[school\]"):
        model_of("model.parameters.weights.dims.feature=schol")
    with pytest.raises(UserError, match=r"dims.feature = y must be .* y if there are classes"):
        model_of("model.parameters.weights.dims.feature=y")


def test_a_name_that_a_configuration_would_read_as_a_reference_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first row of a table is no part of the configuration: ``${env:SECRET}`` there is a name."""
    monkeypatch.setenv("SECRET", "42")
    table(y=flags)
    start()
    file = Path("mine/my rows.csv")
    Path("my rows.csv").unlink()
    file.write_text(file.read_text().replace("age", "${env:SECRET}", 1))
    with pytest.raises(UserError, match=r"'\$\{env:SECRET\}' cannot be named in a configuration"):
        model_of("data.file='mine/my rows.csv'", "data.features=null")


@pytest.mark.parametrize(
    ("model", "y", "sizes"),
    [
        ("logistic", np.array([1.0, -1.0] * 20), {"dim": 3}),
        ("robust_regression", np.arange(40.0), {"dim": 3}),
        ("poisson_regression", np.arange(40), {"dim": 3}),
        ("softmax_regression", np.array([0, 1, 2, 3] * 10), {"features": 3, "classes": 4}),
    ],
)
def test_arrays_have_columns_without_names(model: str, y: np.ndarray, sizes: dict[str, int]) -> None:
    """Without an experiment: data and a model alone; a setting that refers to a size has its value."""
    rng = np.random.default_rng(0)
    np.savez("rows.npz", x=rng.normal(size=(40, 3)), y=y)
    given, size = (
        ["data=npz", "data.file=rows.npz", f"model={model}", "model.prior_variance=1"],
        next(iter(sizes)),
    )
    config = compose_config([*given, "+method@methods.mcmc=mcmc", f'steps="${{times:10,${{model.{size}}}}}"'])
    assert {size: config["model"][size] for size in sizes} == sizes
    assert config["model"].get("names") is None
    assert config["steps"] == 30
    with pytest.raises(UserError, match=r"needs x with rows of shape \(2,\)"):
        compose_config([*given, f"model.{size}=2"])
    assert run([*given, "+method@methods.mcmc=mcmc", "steps=20", "warmup=50", "runtime.report=false"]) == 0


def test_a_method_has_the_sizes_of_its_own_data() -> None:
    rng = np.random.default_rng(0)
    for name, dim in (("rows", 3), ("other", 2)):
        np.savez(f"{name}.npz", x=rng.normal(size=(40, dim)), y=np.array([1.0, -1.0] * 20))
    given = [
        "data=npz",
        "data.file=rows.npz",
        "model=logistic",
        "model.prior_variance=1",
        "+method@methods.mcmc=mcmc",
    ]
    own = [
        "+data@methods.mcmc.data=npz",
        "methods.mcmc.data.file=other.npz",
        "+model@methods.mcmc.model=logistic",
    ]
    config = compose_config([*given, *own])
    assert (config["model"]["dim"], config["methods"]["mcmc"]["model"]["dim"]) == (3, 2)
    shared = compose_config([*given, *own[:2]])
    assert (shared["model"]["dim"], shared["methods"]["mcmc"]["model"]) == (3, shared["model"] | {"dim": 2})


def test_data_are_read_once_for_all_jobs_until_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    load = Npz.load
    monkeypatch.setattr(Npz, "load", lambda self: reads.append(self) or load(self))
    given = ["+data=npz", "data.file=rows.npz", "+model=logistic", "+method@methods.mcmc=mcmc"]
    for dim in (3, 2):
        np.savez("rows.npz", x=np.zeros((40, dim)), y=np.array([1.0, -1.0] * 20))
        reads.clear()
        for seed in range(4):
            config = compose_config([*given, f"seed={seed}"], is_complete=True)
            assert config["model"]["dim"] == dim
        assert len(reads) == 1


def test_counts_are_no_classes() -> None:
    """The number of columns alone is read: the names of 10^12 classes would not fit into memory."""
    np.savez("rows.npz", x=np.zeros((40, 2)), y=np.arange(40) * 10**12)
    given = ["data=npz", "data.file=rows.npz", "model=poisson_regression", "+method@methods.mcmc=mcmc"]
    assert compose_config(given)["model"]["dim"] == 2


def test_data_without_columns_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("rows.npz", x=np.zeros(40), y=np.array([1.0, -1.0] * 20))
    given = ["data=npz", "data.file=rows.npz", "steps=20", "warmup=50"]
    assert run([*given, "model=logistic"]) == 2
    assert (
        "model.dim = null is the number of columns of x, which must be a matrix (n, D), and it is float64 (40,)"
        in (capsys.readouterr().err)
    )
    for y in (np.zeros(40), np.array([1, 2] * 20)):
        np.savez("rows.npz", x=np.zeros((40, 2)), y=y)
        assert run([*given, "model=softmax_regression"]) == 2
        assert (
            f"model.classes = null is the number of classes of y, which must be integers 0 to K - 1, each of them, and "
            f"it is {y.dtype} (40,) from {y.min():g} to {y.max():g}; give a number"
        ) in capsys.readouterr().err


def test_a_class_of_the_user_may_have_sizes_of_the_data() -> None:
    for folder in ("ours", "ours/conf/model", "ours/conf/data"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    Path("ours/wide.py").write_text(
        "from mhrun import Logistic\n\n\n"
        "class Wide(Logistic):\n"
        "    @classmethod\n"
        "    def settings_of(cls, data):\n"
        '        return {"dim": data.features, "names": [f"b{k}" for k in range(data.features)]}\n'
    )
    Path("ours/conf/model/wide.yaml").write_text("_target_: wide.Wide\ndim: null\nprior_variance: 1.0\n")
    np.savez("ours/rows.npz", x=np.zeros((40, 2)), y=np.array([1.0, -1.0] * 20))
    few = ["+method@methods.mcmc=mcmc", "steps=20", "warmup=50", "runtime.report=false"]
    assert run(["--project", "ours", "data=npz", "data.file=rows.npz", "model=wide", *few]) == 0


def test_a_sweep_of_data_and_a_model_resolves_the_ladder_of_a_method() -> None:
    """It is the first composition of the process: nothing else has registered the resolvers."""
    rng = np.random.default_rng(0)
    np.savez("rows.npz", x=rng.normal(size=(40, 3)), y=np.array([1.0, -1.0] * 20))
    given = ["data=npz", "data.file=rows.npz", "model=logistic", "model.prior_variance=1"]
    given += ["+method@methods.pt=parallel_tempering", "chains=8", "steps=20", "warmup=100"]
    if OmegaConf.has_resolver("ladder"):
        OmegaConf.clear_resolver("ladder")
    assert run(["-m", *given, "seed=1,2", "runtime.report=false"]) == 0
