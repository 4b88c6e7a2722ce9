"""Calls that go on until their draws have an effective sample size."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch

import mhrun
from mhrun.diagnostics.chains import diagnoses
from mhrun.engine.call.until import More, Precision, Until, precision_of
from mhrun.engine.diagnosis.judged_draws import JudgedDraws
from mhrun.errors import UserError

SCALES = torch.tensor([1.0, 1.5], dtype=torch.float64)
METROPOLIS = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())


def normal(theta):
    return -0.5 * (theta / SCALES).square().sum()


def call(kernel=METROPOLIS, density=normal, **settings):
    """Return the trace of a call, and its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            density,
            None,
            kernel,
            **{"start": [0.0, 0.0], "step_size": 2.0, "steps": 100, "warmup": 50} | settings,
        )
    return trace, [str(one.message) for one in found]


def draws(trace):
    return trace["posterior"]["theta"].to_numpy()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_call_has_the_draws_of_one_with_as_many_steps(executor, capsys):
    trace, lines = call(ess=200, executor=executor)
    assert not any("ess =" in line or "ESS" in line for line in lines)
    steps = draws(trace).shape[1]
    assert 100 < steps < 3200
    by_coordinate = diagnoses(draws(trace))
    assert min(min(one.ess, one.ess_tail) for one in by_coordinate) >= 200
    assert max(one.rhat for one in by_coordinate) < 1.01
    turns = [line for line in capsys.readouterr().err.splitlines() if "going on to" in line]
    assert turns[0].startswith("mhrun: ESS is ")
    assert "after 100 steps; going on to" in turns[0]
    assert turns[-1].endswith(f"to {steps:,}.")
    again, _ = call(steps=steps, executor=executor)
    assert np.array_equal(draws(again), draws(trace))


@pytest.mark.slow
def test_a_compiled_loop_goes_on():
    data = {"x": np.linspace(-1.0, 1.0, 30)[:, None], "y": np.repeat([1.0, -1.0], 15)}
    settings = {"step_size": 1.0, "warmup": 50, "executor": "compiled"}
    trace = mhrun.sample(mhrun.Logistic(1), data, METROPOLIS, steps=100, ess=400, **settings)
    steps = trace["posterior"].sizes["draw"]
    assert steps > 200
    assert trace["posterior"].equals(
        mhrun.sample(mhrun.Logistic(1), data, METROPOLIS, steps=steps, **settings)["posterior"]
    )


@pytest.mark.slow
def test_the_folder_of_a_call_goes_on_with_another_size(tmp_path):
    """The first call's steps are kept: the same call returns them, and one that wants more goes on from them."""
    first = draws(call(ess=100, folder=tmp_path)[0]).copy()
    again = draws(call(ess=100, folder=tmp_path)[0]).copy()
    assert np.array_equal(first, again)
    more = draws(call(ess=1_500, max_steps=20_000, folder=tmp_path)[0]).copy()
    assert more.shape[1] > first.shape[1]
    assert np.array_equal(more[:, : first.shape[1]], first)
    assert json.loads((tmp_path / "call.json").read_text())["steps"] == more.shape[1]
    with pytest.raises(UserError, match="with other values of: steps"):
        call(folder=tmp_path)
    with pytest.raises(UserError, match="with other values of: seed"):
        call(ess=400, folder=tmp_path, seed=1)


def test_a_call_ends_with_the_largest_number_of_steps():
    trace, lines = call(ess=5_000, max_steps=250)
    assert draws(trace).shape[1] == 250
    (line,) = [
        line
        for line in lines
        if line.startswith("ess = 5,000 with R-hat below 1.01 is not reached in 250 steps")
    ]
    assert "Raise max_steps" in line


def test_chains_in_two_modes_go_on_to_the_end():
    """Their ESS would do within each; R-hat shows that they do not agree."""

    def modes(theta):
        return torch.logaddexp(*(-0.5 * (theta - center).square().sum() for center in (-20.0, 20.0)))

    start = [[-20.0, -20.0], [20.0, 20.0]]
    trace, lines = call(density=modes, start=start, chains=2, step_size=1.5, ess=2, max_steps=400)
    assert draws(trace).shape[1] == 400
    assert any("ess = 2 with R-hat below 1.01 is not reached" in line and "R-hat" in line for line in lines)


@pytest.mark.slow
def test_a_run_that_pays_for_compilation_begins_anew(monkeypatch, tmp_path):
    """Its first steps were in torch, and are done again."""
    monkeypatch.setattr("mhrun.engine.longer.prefers_compiled", lambda method: method.shape.steps > 150)
    trace, _ = call(ess=200, folder=tmp_path)
    assert np.array_equal(draws(call(steps=draws(trace).shape[1])[0]), draws(trace))


def test_a_state_that_is_not_kept_cannot_go_on(monkeypatch):
    monkeypatch.setattr("mhrun.store.blocks._MAX_KEPT_STATE", 0)
    trace, lines = call(ess=400)
    assert draws(trace).shape[1] == 100
    assert any("is not reached in 100 steps" in line and "Raise steps" in line for line in lines)


def test_a_chain_that_stopped_does_not_go_on():
    trace, _ = call(mhrun.Unadjusted(mhrun.SGLD(), m=1), step_size=1e3, ess=400, chains=2)
    assert draws(trace).shape[1] == 100


@pytest.mark.slow
def test_a_network_goes_on_until_its_predictions_are_precise():
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            net,
            {"x": x, "y": (x[:, 0] > 0).long()},
            mhrun.Unadjusted(mhrun.SGHMC(), m=20),
            step_size=1e-3,
            steps=50,
            warmup=50,
            chains=2,
            ess=50,
            max_steps=130,
        )
    assert trace["posterior"].sizes["draw"] in (100, 130)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"ess": 0}, "ess = 0 must be a positive number"),
        ({"ess": "400"}, "ess = '400' must be a positive number"),
        ({"max_steps": 200}, "max_steps = 200 limits a call with ess="),
        ({"ess": 400, "max_steps": 99}, "max_steps = 99 must be a whole number, at least 100"),
        ({"ess": 400, "thin": None}, "thin=None keeps none"),
        (
            {"ess": 400, "step_size": mhrun.Cosine(1.0, cycles=2)},
            "'step_size' depends on the number of steps",
        ),
        ({"ess": 400, "kernel": mhrun.Unadjusted(mhrun.Momentum(), m=1)}, "an optimiser has none"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings, line):
    with pytest.raises(UserError, match=line):
        call(**settings)


@pytest.mark.parametrize(
    ("ess", "rhat", "steps"),
    [
        (400.0, 1.005, None),  # it does
        (200.0, 1.005, 2_400),  # 1.2 times what it seems to need
        (390.0, 1.005, 1_500),  # no less than half as many again
        (10.0, 1.005, 4_000),  # no more than four times as many
        (10.0, 1.5, 2_000),  # an ESS that says little
        (500.0, 1.5, 2_000),
        (0.0, math.nan, 2_000),  # unknown
    ],
)
def test_the_next_number_of_steps(ess, rhat, steps):
    found = Until(400.0, 10_000).next_steps(1_000, Precision(ess, rhat))
    assert found == steps
    assert Until(400.0, 1_200).next_steps(1_000, Precision(ess, rhat)) == (None if steps is None else 1_200)
    assert Until(400.0, 1_000).next_steps(1_000, Precision(ess, rhat)) is None


def test_draws_of_no_coordinate_have_no_precision():
    """As of a network none of whose predictions varies."""
    assert precision_of(JudgedDraws(np.zeros((4, 100, 0)), [], [])).ess == 0
    assert precision_of(None).ess == 0


def test_a_line_has_what_was_found():
    assert More(Precision(56.7, 1.065), 200, 4_000).in_words() == (
        "ESS is 56.7, R-hat 1.065 after 200 steps; going on to 4,000."
    )
