"""The engine from Python, and data from files."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import re
import subprocess
import sys
import warnings

import arviz_base
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from kit import short_run
from significance import assert_mean

import mhrun
from mhrun.data import Dataset
from mhrun.data.files import CATALOGUE, RemoteFile, RemoteSet, ensure, state
from mhrun.data.mixture import MixtureSample
from mhrun.errors import Refusal, UserError
from mhrun.schedules.plan import Stateless


def gaussian(theta, x):
    return -0.5 * (x - theta[0]) ** 2


def metropolis(pairing):
    return mhrun.MetropolisHastings(mhrun.RandomWalk(), pairing, mhrun.Metropolis())


@pytest.mark.long
def test_a_function_is_enough(rng):
    x = rng.normal(2.0, 1.0, 50)
    trace = mhrun.sample(
        gaussian,
        x,
        metropolis(mhrun.Full()),
        start=[0.0],
        step_size=0.5,
        acceptance=0.4,
        steps=1500,
        warmup=500,
        chains=40,
    )
    draws = trace["posterior"]["theta"].to_numpy()[:, :, 0]
    assert draws.shape == (40, 1500)
    assert_mean(draws.mean(axis=1), x.mean(), "posterior mean")
    assert_mean(((draws - x.mean()) ** 2).mean(axis=1), 1 / 50, "posterior variance")
    assert float(trace["sample_stats"]["accepted"].mean()) == pytest.approx(0.4, abs=0.05)
    assert arviz_base.extract(trace).sizes["sample"] == 60_000


@short_run
@pytest.mark.long
def test_a_mapping_of_fields_a_prior_and_a_dynamics(rng):
    x, y = rng.normal(size=(2, 80))

    def log_lik(theta, batch):
        return -0.5 * (batch["y"] - theta[0] * batch["x"]) ** 2

    trace = mhrun.sample(
        log_lik,
        {"x": x, "y": y},
        mhrun.Unadjusted(mhrun.SGLD(), m=20),
        log_prior=lambda theta: -0.5 * theta[0] ** 2,
        start=[0.0],
        step_size=1e-4,
        steps=300,
        warmup=200,
        chains=30,
    )
    mean = float(trace["posterior"]["theta"].mean())
    assert mean == pytest.approx((x @ y) / (x @ x + 1), abs=0.1)


@short_run
@pytest.mark.long
def test_a_folder_keeps_the_trace_and_is_found_again(tmp_path, rng):
    settings = {"start": [0.0], "step_size": 0.3, "steps": 50, "warmup": 0, "folder": tmp_path / "kept"}
    x = rng.normal(size=20)
    one = mhrun.sample(gaussian, x, metropolis(mhrun.Shared(5)), **settings)
    two = mhrun.sample(gaussian, x, metropolis(mhrun.Shared(5)), **settings)
    assert np.array_equal(one["posterior"]["theta"], two["posterior"]["theta"])
    assert "warmup_posterior" not in one.children


@short_run
def test_a_folder_is_of_one_call(tmp_path, rng):
    x = rng.normal(size=50)
    call = {"start": [0.0], "step_size": 0.3, "steps": 60, "warmup": 0, "folder": tmp_path / "kept"}
    first = mhrun.sample(gaussian, x, metropolis(mhrun.Shared(20)), **call)["posterior"]["theta"].to_numpy()
    again = mhrun.sample(gaussian, x, metropolis(mhrun.Shared(20)), **call)["posterior"]["theta"].to_numpy()
    assert (first == again).all()
    for differing, data, kernel, change in (
        ("data", x + 1, metropolis(mhrun.Shared(20)), {}),
        ("kernel", x, metropolis(mhrun.Shared(21)), {}),
        ("kernel", x, metropolis(mhrun.Stored(20)), {}),
        ("seed", x, metropolis(mhrun.Shared(20)), {"seed": 1}),
        ("steps", x, metropolis(mhrun.Shared(20)), {"steps": 30}),
        ("step_size/acceptance", x, metropolis(mhrun.Shared(20)), {"step_size": 0.2}),
        ("temperature, seed", x, metropolis(mhrun.Shared(20)), {"temperature": 2.0, "seed": 2}),
        ("temperature", x, metropolis(mhrun.Shared(20)), {"temperature": Anneal(2.0)}),
    ):
        words = f"holds the trace of another call, with other values of: {differing}. Choose"
        with pytest.raises(UserError, match=re.escape(words)):
            mhrun.sample(gaussian, data, kernel, **(call | change))
    with pytest.raises(UserError, match="other values of: model"):
        mhrun.sample(lambda theta, b: -((b - theta[0]) ** 2), x, metropolis(mhrun.Shared(20)), **call)


@short_run
def test_a_trace_of_another_origin_is_not_taken_for_a_calls_own(tmp_path, rng):
    """Such as that of a method of a run, which has no note of a call."""
    x, call = rng.normal(size=20), {"start": [0.0], "step_size": 0.3, "warmup": 0, "folder": tmp_path}
    mhrun.sample(gaussian, x, metropolis(mhrun.Shared(5)), steps=20, **call)
    (tmp_path / "call.json").unlink()
    with pytest.raises(UserError, match="another call"):
        mhrun.sample(gaussian, x, metropolis(mhrun.Shared(5)), steps=30, **call)


@pytest.mark.long
def test_a_module_is_the_same_in_another_process(tmp_path, rng):
    """A script makes its network with other numbers each time; each chain draws its own."""
    data = {"x": torch.from_numpy(rng.normal(size=(20, 2))), "y": torch.arange(20) % 2}
    traces = [
        mhrun.sample(
            torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)),
            data,
            mhrun.Unadjusted(mhrun.SGLD(), m=5),
            step_size=1e-3,
            steps=3,
            warmup=0,
            device=torch.device("cpu"),
            folder=folder,
        )["posterior"]["theta"].to_numpy()
        for folder in (tmp_path / "a", tmp_path / "a", tmp_path / "b")
    ]
    assert (traces[0] == traces[1]).all()
    assert (traces[0] == traces[2]).all()
    assert np.abs(traces[0][:, 0]).max() > 0.1


def test_tuning_needs_an_acceptance_test_and_a_burn_in(rng):
    x = rng.normal(size=50)
    for step_size in (0.1, "auto"):
        with pytest.raises(Refusal, match="no acceptance test"):
            mhrun.sample(
                *(gaussian, x, mhrun.Unadjusted(mhrun.SGLD(), 10)),
                start=[0.0],
                step_size=step_size,
                acceptance=0.3,
            )
    with pytest.raises(Refusal, match="too short to tune"):
        mhrun.sample(
            gaussian, x, metropolis(mhrun.Full()), start=[0.0], step_size=0.1, acceptance=0.3, warmup=9
        )


@short_run
@pytest.mark.long
def test_a_likelihood_of_zero_is_a_rejection_and_hides_nothing(rng, tmp_path):
    x = rng.uniform(-1, 1, 200)

    def bounded(theta, batch):
        return torch.where((batch - theta[0]).abs() < 1.5, 0.0, -torch.inf)

    model = mhrun.FunctionModel(bounded, [0.0], single=True)
    trace = mhrun.sample(model, {"x": x}, metropolis(mhrun.Shared(20)), step_size=0.6, steps=400, warmup=0,
                         folder=tmp_path)  # fmt: skip
    draws = trace["posterior"]["theta"].to_numpy()
    accepted = trace["sample_stats"]["accepted"].to_numpy()
    assert 0.1 < accepted.mean() < 0.9
    assert np.isneginf(trace["sample_stats"]["log_ratio"].to_numpy()).any()
    assert np.abs(draws).max() < 2.5
    summary = json.loads((tmp_path / "done.json").read_text())["totals"]
    assert sum(summary["count_log_ratio_var"]) < 1600
    assert np.isfinite(summary["sum_log_ratio_var"]).all()


def test_a_start_outside_the_prior_is_refused(rng):
    x = rng.normal(size=50)
    with pytest.raises(Refusal, match="chain 0 starts where the prior is 0"):
        mhrun.sample(gaussian, x, metropolis(mhrun.Full()), start=[2.0], step_size=0.1,
                     log_prior=lambda theta: torch.where(theta[0] < 1, 0.0, -torch.inf))  # fmt: skip


@short_run
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [list, np.asarray, pd.Series, xr.DataArray, torch.tensor])
def test_a_start_may_be_of_any_kind_of_array(kind):
    kernel, call = metropolis(mhrun.Full()), {"step_size": 0.3, "steps": 20, "warmup": 0}
    trace = mhrun.sample(lambda theta: -theta.square().sum(), None, kernel, start=kind([0.5, 3.0]), **call)
    first = trace["posterior"]["theta"][:, 0].to_numpy()
    assert np.abs(first - [0.5, 3.0]).max() < 3


class Anneal(Stateless):
    """A temperature of `hot` in burn-in, and of 1 afterwards."""

    quantities = ("temperature",)

    def __init__(self, hot):
        self.hot = hot

    def bind(self, warmup, steps):
        placed = copy.copy(self)
        placed.warmup = warmup
        return placed

    def values(self, memory, first_step, steps):
        before = torch.arange(first_step, first_step + steps) <= self.warmup
        return {"temperature": torch.where(before, self.hot, 1.0).double()[:, None]}


@pytest.mark.filterwarnings("ignore:R-hat|ESS")
def test_the_temperature_may_follow_a_schedule():
    """Burn-in at T = 400, and draws at T = 1 of a normal distribution with a standard deviation of 1."""
    kernel = mhrun.MetropolisHastings(mhrun.HamiltonianProposal(5), mhrun.Full(), mhrun.Metropolis())
    trace = mhrun.sample(
        lambda theta: -0.5 * theta.square().sum(),
        None,
        kernel,
        start=[0.0, 0.0],
        step_size=0.4,
        chains=60,
        steps=60,
        warmup=30,
        temperature=Anneal(400.0),
    )
    assert 15 < float(trace["warmup_posterior"]["theta"][:, 10:].std()) < 25
    assert 0.9 < float(trace["posterior"]["theta"][:, 20:].std()) < 1.1
    assert "approximate" not in str(trace.attrs)


@pytest.mark.filterwarnings("ignore:R-hat|ESS|tuning")
def test_a_temperature_that_changes_while_draws_are_kept_is_warned_of():
    class Falling(Anneal):
        def values(self, memory, first_step, steps):
            before = torch.arange(first_step, first_step + steps) <= self.warmup + 20
            return {"temperature": torch.where(before, self.hot, 1.0).double()[:, None]}

    call = {"start": [0.0], "step_size": 1.0, "steps": 60, "warmup": 30}
    line = (
        "its temperature changes while draws are kept, and is 1 at the last step: draws are of no one target"
    )
    with pytest.warns(UserWarning, match=line):
        mhrun.sample(lambda theta: -0.5 * theta.square().sum(), None, temperature=Falling(4.0), **call)


@short_run
@pytest.mark.usefixtures("either_code")
def test_a_model_object_and_the_compiled_loop(mixture):
    settings = {"step_size": 1.0, "temperature": 500.0, "steps": 60, "warmup": 10, "chains": 3}
    kernel = metropolis(mhrun.Stored(100))
    fast = mhrun.sample(mhrun.TiedMeans(), mixture, kernel, executor="compiled", **settings)
    plain = mhrun.sample(mhrun.TiedMeans(), mixture, kernel, executor="torch", **settings)
    assert fast["posterior"]["parameter"].values.tolist() == ["theta1", "theta2"]
    assert np.allclose(fast["posterior"]["theta"], plain["posterior"]["theta"], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": None}, "needs start="),
        ({"step_size": -1.0}, "must be positive"),
        ({"kernel": metropolis(mhrun.Shared(500))}, "more than the n = 20"),
        ({"chains": 0}, "at least 1"),
        ({"temperature": 0.0}, "must be positive"),
        ({"step_size": True}, "step_size = True must be a number, auto, or a schedule"),
        ({"step_size": float("inf")}, "step_size = inf must be positive and finite, or auto"),
        (
            {"temperature": float("inf")},
            "temperature = inf must be positive and finite; 1 is the posterior's",
        ),
        ({"temperature": float("nan")}, "temperature = nan must be positive and finite"),
        ({"temperature": True}, "temperature = True must be a number"),
        ({"temperature": [True]}, r"temperature = \[True\] must be a number"),
        ({"threads": True}, "threads = True must be a whole number"),
        ({"seed": None}, "seed = None must be a whole number"),
        ({"seed": 2**70}, "must be a whole number"),  # which the trace could not note at the end
        ({"thin": 2.5}, "thin = 2.5 must be a whole number"),
        ({"step_size": "small"}, "a number, auto, or a schedule"),
        ({"start": "here"}, "must be numbers"),
        ({"start": []}, "at least one number"),
        ({"start": [[0.0]] * 3}, "3 rows for 4 chains"),
        ({"model": "normal"}, "must be a Model, a torch module or a function"),
        ({"device": "gpu"}, "device = 'gpu' is not available"),
        ({"monitor": 3}, "int is not a monitor"),
        ({"folder": __file__}, "cannot be made"),
    ],
)
def test_mistakes_in_python_are_reported_in_one_line(rng, change, message):
    settings = {
        "model": gaussian,
        "kernel": metropolis(mhrun.Shared(5)),
        "start": [0.0],
        "step_size": 0.3,
        "steps": 20,
    }
    settings |= {"warmup": 0} | change
    model, kernel = settings.pop("model"), settings.pop("kernel")
    with pytest.raises(UserError, match=message):
        mhrun.sample(model, rng.normal(size=20), kernel, **settings)


@pytest.mark.long
def test_importing_the_package_is_light():
    code = "import sys, mhrun; mhrun.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'sampel'"):
        mhrun.sampel  # noqa: B018
    assert "sample" in dir(mhrun)


# --- Data -------------------------------------------------------------------------------------------------


def test_data_on_disk_are_the_data_in_memory():
    settings = {"n": 1_500_000, "means": (0.0, 1.0), "variance": 2.0, "seed": 4}
    memory = MixtureSample(**settings).load().fields["x"]
    file = MixtureSample(**settings, storage="file").load().fields["x"]
    assert torch.equal(memory, file)
    assert torch.equal(MixtureSample(**settings, storage="file").load().fields["x"], file)
    # More data begin with the same ones only up to the last whole chunk.
    assert torch.equal(MixtureSample(**(settings | {"n": 1_000_000})).load().fields["x"], memory[:1_000_000])


def test_mixture_draws_have_their_moments(rng):
    x = MixtureSample(400_000, (0.0, 1.0), 2.0).load().fields["x"].double().numpy()
    assert_mean(x.reshape(400, -1).mean(1), 0.5)
    assert_mean(((x - 0.5) ** 2).reshape(400, -1).mean(1), 2.25)
    with pytest.raises(Refusal, match="memory or file"):
        MixtureSample(10, (0.0,), storage="tape")


def test_read_only_and_mapped_arrays_are_taken_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10.0))
    mapped = Dataset.of(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert mapped.rows(torch.tensor([[3, 1]]))["x"].tolist() == [[3.0, 1.0]]
    fixed = np.arange(4.0)
    fixed.flags.writeable = False
    assert Dataset.of(fixed).n == 4


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A catalogue with one small file, and a publisher in a folder."""
    content = b"some digits"
    published = tmp_path / "published"
    published.mkdir()
    (published / "digits.gz").write_bytes(gzip.compress(content))
    entry = RemoteSet(
        "Tiny",
        ("file://nowhere/", f"{published}/"),
        (RemoteFile("digits.gz", hashlib.sha256(content).hexdigest()),),
    )
    monkeypatch.setitem(CATALOGUE, "tiny", entry)

    def copy(self, url, output_file, pooch):
        with open(url, "rb") as source, open(output_file, "wb") as target:
            target.write(source.read())

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", copy)
    return published


def test_downloads_are_verified_and_come_from_the_mirror_that_has_them(tiny, tmp_path):
    urls = []
    assert state("tiny", tmp_path) == "absent"
    folder = ensure("tiny", tmp_path, urls.append)
    assert len(urls) == 2
    assert state("tiny", tmp_path) == "here"
    ensure("tiny", tmp_path, urls.append)
    assert len(urls) == 2
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "digits.gz"]
    # Compressed by somebody else, the same content counts.
    (folder / "digits.gz").write_bytes(gzip.compress(b"some digits", compresslevel=1))
    assert state("tiny", tmp_path) == "here"


def test_wrong_content_is_refused(tiny, tmp_path):
    (tiny / "digits.gz").write_bytes(gzip.compress(b"other digits"))
    with pytest.raises(UserError, match="unexpected content"):
        ensure("tiny", tmp_path)
    assert not (tmp_path / "tiny" / "digits.gz").exists()
    (tmp_path / "tiny" / "digits.gz").write_bytes(b"not gzip at all")
    assert state("tiny", tmp_path) == "damaged"
    with pytest.raises(UserError, match="delete it and fetch it again"):
        ensure("tiny", tmp_path)


def test_offline_the_message_names_the_file_and_the_folder(tiny, tmp_path):
    (tiny / "digits.gz").unlink()
    message = r"Put into .*tiny:\n  digits\.gz  SHA-256 of its uncompressed content: [0-9a-f]{64}$"
    with pytest.raises(UserError, match=message):
        ensure("tiny", tmp_path)


@pytest.mark.slow
@short_run
def test_a_long_call_reports_progress(monkeypatch, capsys, tmp_path):
    def call(**more):
        mhrun.sample(
            lambda theta, rows: -0.5 * (rows - theta) ** 2,
            torch.zeros(20),
            mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
            start=[0.0],
            step_size=0.1,
            steps=1000,
            warmup=0,
            executor="torch",
            **more,
        )
        return capsys.readouterr().err

    monkeypatch.setattr("mhrun.engine.call.progress._EVERY", 3600.0)
    assert "left" not in call()  # it takes less time than passes between two lines
    monkeypatch.setattr("mhrun.engine.call.progress._EVERY", 0.0)
    assert re.search(r"mhrun: step [\d,]+ of 1,000 \(\d+%\), \d+ s left", call())
    monkeypatch.setattr("mhrun.engine.call.progress._UNSAVED_SECONDS", -1.0)
    assert call().count("with folder= a run that ends early is kept") == 1
    assert "folder=" not in call(folder=str(tmp_path / "kept"))
    assert call(progress=False) == ""


@pytest.mark.parametrize(
    ("kernel", "settings"),
    [
        (None, {}),
        (mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()), {}),
        (mhrun.Unadjusted(mhrun.SGLD(), m=20), {"surrogate": "taylor1", "step_size": 1e-3}),
        (mhrun.Unadjusted(mhrun.SGHMC(), m="auto"), {}),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_each_chain_may_have_a_start_whatever_the_method(kernel, settings, named):
    """Searches for a mode and pilots go out from the first."""
    x = torch.linspace(-1.0, 3.0, 200)
    prior = torch.distributions.Normal(0.0, 3.0)
    starts = [0.5, 1.0, 1.5, 2.0]

    def log_lik(theta, batch):
        return -0.5 * (batch - (theta.mean if named else theta[0])) ** 2

    given = (
        {"parameters": {"mean": prior}, "start": {"mean": starts}}
        if named
        else {"start": [[value] for value in starts], "log_prior": lambda theta: prior.log_prob(theta[0])}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(log_lik, x, kernel, **given, **settings, steps=60, warmup=60)
    draws = trace["posterior"]["mean" if named else "theta"]
    assert draws.sizes["chain"] == 4
    assert abs(float(draws.mean()) - 1) < 0.5
