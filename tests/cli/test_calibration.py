"""Simulation-based calibration from the command line: a right model holds, wrong ones fail. False alarms: 1e-4."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
import torch
from scipy.stats import norm

from mhrun.check.calibration import Replicates, bars, calibrated, simulated, unseen_width
from mhrun.check.results import FAILS, by_uniforms
from mhrun.cli.check import replications
from mhrun.cli.main import run
from mhrun.data import Dataset
from mhrun.durations import describe_duration
from mhrun.engine.pilot import pilot
from mhrun.errors import UserError
from mhrun.models.function import FunctionModel
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.target import Target

ON = Target.on
MODEL = """
import torch
from torch.distributions import Normal

def log_lik(theta, rows):
    return Normal(theta.slope * rows.x[:, 0], theta.sigma).log_prob(rows.y)

def log_prior(theta):
    return theta.slope

def simulate(theta, rows):
    return {"y": Normal(theta.slope * rows.x[:, 0], theta.sigma).sample()}

def too_wide(theta, rows):
    return {"y": Normal(theta.slope * rows.x[:, 0], 2 * theta.sigma).sample()}

def wrong_field(theta, rows):
    return {"z": rows.y}

def wrong_shape(theta, rows):
    return {"y": rows.y[:3]}
"""
FILES = {
    "own.py": MODEL,
    "conf/model/line.yaml": "defaults: [user_function, _self_]\nlog_lik: own.log_lik\nsimulate: own.simulate\n"
    "parameters:\n  slope: Normal(0, 1)\n  sigma: Gamma(4, 4)\n",
    "conf/data/rows.yaml": "defaults: [table, _self_]\nfile: rows.csv\ntarget: y\n",
    "conf/experiment/mine.yaml": "# @package _global_\n"
    "defaults: [/data: rows, /model: line, /method@methods.full: mcmc]\n"
    "chains: 3\nsteps: 300\nwarmup: 300\nmethods: {full: {schedules: {step_size: {start: 0.3}}}}\n",
}


def test_a_long_calibration_reports_the_time_left(monkeypatch, capsys):
    now = iter([0.0, 3.0, 6.0, 15.0, 120.0])
    monkeypatch.setattr(replications.time, "monotonic", lambda: next(now))
    sets = replications._Sets("full", 40)
    for count in (1, 2, 5, 40):
        sets.done(count, jobs=3)
    assert capsys.readouterr().err.splitlines() == [
        f"mhrun: full: 1 of 40 data sets, about {describe_duration(117.0 / 3)} left, in 3 processes",
        f"mhrun: full: 5 of 40 data sets, about {describe_duration(105.0)} left",
    ]


@pytest.fixture
def project(tmp_path, monkeypatch, rng):
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    table = "x,y\n" + "".join(f"{a:.3f},{b:.3f}\n" for a, b in rng.normal(size=(20, 2)))
    (tmp_path / "rows.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("own", None)


def checked(capsys, *arguments):
    experiment = (
        [] if any(argument.startswith("experiment=") for argument in arguments) else ["experiment=mine"]
    )
    status = run(["check", "--project", ".", "--json", *experiment, "replications=80", *arguments])
    printed = capsys.readouterr()
    assert status in (0, 1), printed.err
    return status, json.loads(printed.out)["checks"]


BUILT_IN = """# @package _global_
defaults: [/data: counts, /model: poisson_regression, /method@methods.full: mcmc]
model: {dim: 3, prior_variance: 0.25}
methods: {full: {schedules: {step_size: {start: 0.3}}}}
chains: 3
steps: 150
warmup: 50
"""


@pytest.mark.slow
@pytest.mark.parametrize("m", [10, 20])
def test_a_dynamics_is_run_on_all_data_sets_at_once(project, capsys, m):
    """With one chain for each; noise of gradients and biases of means are those of one data set."""
    (project / "conf/experiment/low.yaml").write_text(
        "# @package _global_\ndefaults: [/data: rows, /model: line, /method@methods.low: sgld]\n"
        f"chains: 1\nsteps: 2000\nwarmup: 300\nmethods: {{low: {{kernel: {{m: {m}}}, schedules: "
        "{step_size: {start: 0.003, end: 0.0029}}}}\n"
    )
    _, (found,) = checked(capsys, "experiment=low", "steps=400", "warmup=100")
    assert found["check"] == "low"


@pytest.mark.slow
def test_a_built_in_regression_is_calibrated_and_wrong_outcomes_are_found(project, capsys, rng, monkeypatch):
    """Weights from the prior, counts from the model. Counts of another distribution fail."""
    (project / "conf/experiment/counted.yaml").write_text(BUILT_IN)
    (project / "conf/data/counts.yaml").write_text(
        "defaults: [table, _self_]\nfile: counts.csv\ntarget: k\noutcome: number\nintercept: true\n"
    )
    rows = [
        f"{a:.3f},{b:.3f},{k}\n"
        for a, b, k in zip(*rng.normal(size=(2, 30)), rng.poisson(1.0, 30), strict=True)
    ]
    (project / "counts.csv").write_text("a,b,k\n" + "".join(rows))
    status, (found,) = checked(capsys, "experiment=counted")
    assert status == 0, found
    assert found["outcome"] == "holds"
    assert len(found["ranks"]) == 4  # three weights and the log-likelihood
    simulate = PoissonRegression.simulate
    monkeypatch.setattr(
        PoissonRegression, "simulate", lambda model, theta, rows: {"y": 2 * simulate(model, theta, rows)["y"]}
    )
    status, (found,) = checked(capsys, "experiment=counted")
    assert status == 1
    assert found["outcome"] == "fails"


CLASS = """
import torch


class LogRate:
    dim = 1
    names = ("log_rate",)

    def init(self, chains, draws):
        return torch.zeros(chains, 1, dtype=torch.float64)

    def log_prior(self, theta):  # the rate is Exponential(1)
        return theta[:, 0] - theta[:, 0].exp()

    def log_lik(self, theta, rows):
        return theta - theta.exp() * rows["y"]

    def sample_prior(self, count):
        return torch.empty(count, 1).exponential_().log()

    def simulate(self, theta, rows):
        return {"y": torch.empty_like(rows["y"]).exponential_() / theta.exp()}


class Short(LogRate):
    def sample_prior(self, count):
        return torch.zeros(count)


class Silent:
    dim, names = LogRate.dim, LogRate.names
    init, log_prior, log_lik = LogRate.init, LogRate.log_prior, LogRate.log_lik
"""


@pytest.mark.slow
def test_a_model_class_is_drawn_from_by_its_methods(project, capsys):
    (project / "own.py").write_text(CLASS)
    (project / "conf/model/line.yaml").write_text("_target_: own.LogRate\n")
    (project / "rows.csv").write_text("x,y\n1,0.3\n2,1.5\n")
    arguments = ["methods.full.schedules.step_size.start=1.5", "steps=200", "warmup=100", "replications=20"]
    status, (found,) = checked(capsys, *arguments)
    assert (status, found["outcome"]) == (0, "holds"), found
    for name, message in (
        (
            "Short",
            r"sample_prior\(20\) must return finite numbers of shape \(20, 1\), and returned shape \(20,\)",
        ),
        ("Silent", r"Silent has no sample_prior\(count\) and no simulate\(theta, rows\)"),
    ):
        arguments[-1] = f"model._target_=own.{name}"
        assert run(["check", "--project", ".", "experiment=mine", "replications=20", *arguments]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error), error
        assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("jacobian", "outcome"), [(1, "holds"), (0, "fails")])
def test_draws_under_the_density_of_the_rate_in_place_of_its_logarithm_fail(rng, jacobian, outcome):
    """The posterior of the rate is Gamma(n + 1, 1 + sum y); without the Jacobian it is Gamma(n, 1 + sum y)."""
    scope: dict[str, type] = {}
    exec(CLASS, scope)
    model, n, sets = scope["LogRate"](), 2, 1_000
    given = simulated(model, Dataset.of({"y": np.ones(n)}), sets, 1, 0)
    y = given.data.part(0, n)["y"].numpy()
    rate = rng.gamma(n + jacobian, 1 / (1 + y.sum(1))[:, None, None], (sets, 1, 40))
    found = calibrated("exact", model, given, np.log(rate)[..., None], lambda draws: float(draws.size), 1, 0)
    assert found.result.outcome == outcome, found.result


@pytest.mark.slow
def test_a_right_model_holds(project, capsys):
    status, (found,) = checked(capsys)
    assert status == 0, found["detail"]
    assert found["outcome"] == "holds"
    assert set(found["ranks"]) == {"slope", "sigma", "log-likelihood"}
    assert all(sum(counts) == 80 for counts in found["ranks"].values())


@pytest.mark.slow
def test_a_model_that_its_data_do_not_follow_fails(project, capsys):
    status, (found,) = checked(capsys, "model.simulate=own.too_wide")
    assert status == 1
    assert found["outcome"] == "fails"
    assert found["p_of_quantities"]["sigma"] < 1e-10
    counts = found["ranks"]["sigma"]
    assert counts[0] > 60  # the true scale is below the draws


@pytest.mark.slow
def test_a_sequential_test_is_run_on_one_data_set_after_another(project, capsys, monkeypatch):
    """Its chains read other data than each other in a step."""
    (project / "conf/experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults: [/data: rows, /model: line, /method@methods.one: mhminibatch]\n"
        "chains: 3\nsteps: 40\nwarmup: 100\nm: 10\ntemperature: 1.0\n"
        "methods: {one: {schedules: {step_size: {start: 0.3}}}}\n"
    )
    monkeypatch.setattr("mhrun.cli.check.calibrate._FEWEST_DATA_SETS", 3)
    status, (found,) = checked(capsys, "replications=3")
    assert found["outcome"] in ("holds", "does not apply")
    assert status == 0


@pytest.mark.slow
def test_data_sets_that_are_run_concurrently_have_the_same_draws(project, capsys, monkeypatch):
    """So with a pilot, too; an error in a process is printed as one line."""
    monkeypatch.setattr("mhrun.cli.check.calibrate._FEWEST_DATA_SETS", 3)
    arguments = ["methods.full.schedules.step_size.start=auto", "replications=5", "steps=200", "warmup=200"]
    alone, beside = (checked(capsys, *arguments, f"runtime.jobs={jobs}") for jobs in (1, 2))
    assert alone == beside
    assert alone[1][0]["ranks"]
    broken = "    if multiprocessing.parent_process(): raise ValueError('the sky fell')\n    return "
    (project / "own.py").write_text("import multiprocessing\n" + MODEL.replace("    return ", broken, 1))
    sys.modules.pop("own")
    assert run(["check", "--project", ".", "experiment=mine", *arguments, "runtime.jobs=2"]) == 2
    assert "the sky fell" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_method_keeps_the_settings_of_its_target(project, capsys, monkeypatch):
    """Control variates belong to the target: without them another method would be calibrated."""
    (project / "conf/experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults: [/data: rows, /model: line, /method@methods.one: sgld_cv]\n"
        "chains: 2\nsteps: 40\nwarmup: 20\nm: 5\nmethods: {one: {schedules: {step_size: {step_size: 1e-3}}}}\n"
    )
    monkeypatch.setattr("mhrun.cli.check.calibrate._FEWEST_DATA_SETS", 3)
    surrogates = []
    monkeypatch.setattr(Target, "on", lambda *given: surrogates.append(ON(*given).surrogate) or ON(*given))
    checked(capsys, "replications=3")
    assert len(surrogates) == 3
    assert None not in surrogates


@pytest.mark.slow
def test_settings_that_are_left_to_a_pilot_are_found_for_each_data_set(project, capsys, monkeypatch):
    monkeypatch.setattr("mhrun.cli.check.calibrate._FEWEST_DATA_SETS", 3)
    found_by_pilots = []
    monkeypatch.setattr(
        "mhrun.engine.pilot.run.pilot", lambda method: found_by_pilots.append(1) or pilot(method)
    )
    arguments = ["methods.full.schedules.step_size.start=auto", "replications=3", "steps=100", "warmup=200"]
    status, (found,) = checked(capsys, *arguments)
    assert len(found_by_pilots) == 3
    assert status == 0
    assert found["outcome"] in ("holds", "does not apply")


@pytest.mark.slow
def test_what_is_printed_has_a_histogram_for_each_quantity(project, capsys):
    assert (
        run(["check", "--project", ".", "experiment=mine", "replications=2e1", "steps=100", "warmup=100"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "calibration of mine" in printed
    assert "no method fails" in printed
    assert bars([1, 1, 1, 1]) == "▅▅▅▅"
    assert bars([8, 0, 0, 0]) == "█▁▁▁"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.simulate=null"], "does not say how data are drawn; give it simulate"),
        (["model.parameters.slope=1"], "slope has no declared prior to draw from"),
        (["model.log_prior=own.log_prior"], "log_prior cannot be drawn from"),
        (["model.simulate=own.wrong_field"], "simulate returned 'z'; the data have x, y"),
        (["model.simulate=own.wrong_shape"], r"must return y of shape \(20,\), and returned \(3,\)"),
        (["replications=3"], "replications = 3 must be a whole number, at least 20"),
        (["n=²"], "'n=²' cannot be read as an override"),
        (["n=1.5"], "n = 1.5 must be a whole number, at least 1"),
        (["n=3,4"], "n = '3,4' must be a whole number, at least 1"),
    ],
)
def test_models_that_cannot_be_drawn_from_are_refused_in_one_line(project, capsys, arguments, message):
    assert run(["check", "--project", ".", "experiment=mine", *arguments]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_an_error_of_the_stated_size_is_seen_half_of_the_time(rng):
    """Of 100 data sets and three parameters, the draws of one of which are too wide."""
    size, seen = 1 + unseen_width(100, 4), 0
    for _ in range(60):
        u = norm.cdf(rng.standard_normal((100, 4)) / [size, 1, 1, 1])
        pairs = np.hstack([np.column_stack((v, np.abs(2 * v - 1))) for v in u.T])
        seen += by_uniforms("ranks", pairs, "", 1e-4).outcome == FAILS
    assert 10 <= seen <= 50  # of 60: outside with a probability below 1e-6 if it is a half


def test_replicates_are_read_by_their_chains():
    y = torch.arange(6.0)
    data = Replicates({"x": 10 * y, "y": y}, drawn={"y": torch.stack((y + 100, y + 200))}, times=2)
    shared = data.rows(torch.tensor([[1, 3]]))
    assert shared["y"].tolist() == [[101, 103], [101, 103], [201, 203], [201, 203]]
    assert shared["x"].tolist() == [[10, 30]] * 4
    own = data.rows(torch.tensor([[0], [1], [2], [3]]))
    assert own["y"].tolist() == [[100], [101], [202], [203]]
    assert data.part(1, 3)["y"].tolist() == [[101, 102]] * 2 + [[201, 202]] * 2
    assert data.part(1, 3)["x"].shape == (4, 2)
    assert data.one(1).fields["y"].tolist() == (y + 200).tolist()
    assert isinstance(data, Dataset)


def test_a_prior_that_cannot_be_drawn_is_no_start_at_zero(rng):
    """A draw for calibration is of the prior or refused: not the point where chains would begin."""
    model = FunctionModel(
        lambda theta, batch: batch.x,
        parameters={"s": {"shape": 1, "prior": "Normal(0, 1)", "constraint": "greater_than(40)"}},
    )
    assert np.isfinite(model.draw_prior(2, 0).numpy()).all()
    with pytest.raises(UserError, match="no draw of its prior is above 40"):
        model.draw_prior(2, 0, strict=True)
