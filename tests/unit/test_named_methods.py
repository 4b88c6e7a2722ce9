"""Methods of the command line by name, as the kernel of `mhrun.sample`."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import mhrun
from mhrun.cli.configuration.compose import compose_config
from mhrun.engine.method_file import method_file, method_names, references
from mhrun.errors import UserError
from mhrun.schedules.cosine import Cosine

GIVEN = {"m": 50, "rungs": 3, "ratio": 4.0, "step_size": 0.01}
COUNTS = {"chains": 12, "warmup": 100, "steps": 200}


def log_lik(theta, x):
    return -0.5 * (x - theta[0]) ** 2


def sampled(kernel, **settings):
    x = torch.linspace(-1, 3, 200, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mhrun.sample(
            log_lik, x, kernel, **{"start": [1.0], "steps": 30, "warmup": 20, "progress": False} | settings
        )


@pytest.mark.parametrize("name", method_names())
def test_kernel_and_schedules_are_those_of_the_command_line(name):
    """With each setting that a file reads, as Hydra composes it."""
    read = references(method_file(name))
    given = {key: value for key, value in GIVEN.items() if key in read}
    of_schedules = {f"{path}={value}" for path, value in (("every", 5), ("cycle", 20)) if name == "cmint"}
    config = compose_config(
        [
            "experiment=gmm_tied_means",
            f"+method@methods.it={name}",
            *(f"{key}={value}" for key, value in COUNTS.items()),
            *(f"++{key}={value}" for key, value in given.items()),
            *(f"methods.it.schedules.step_size.{override}" for override in of_schedules),
            "~temperature",
            *(["~m"] if "m" not in given else []),
        ]
    )
    expected = config["methods"]["it"]
    settings = {key: value for key, value in given.items() if key != "step_size"}
    method = mhrun.method(name, **settings)
    of_run = COUNTS | {"data": {"n": config["data"]["n"]}, "target": {"temper": config["target"]["temper"]}}
    of_run |= {"step_size": given["step_size"]} if "step_size" in given else {}
    assert method.resolved("kernel", of_run) == expected["kernel"]
    for quantity, node in expected["schedules"].items():
        if name != "cmint" or quantity != "step_size":
            assert method.resolved(f"schedules.{quantity}", of_run) == node
    assert method.surrogate == (expected.get("target") or {}).get("surrogate", "none")


PRINTED = [
    "hmc",
    "zig_zag",
    "sgld_cv",
    "csghmc",
    "sgld",
    "mhminibatch_released",
    "renhd",
    "reld",
    "parallel_tempering",
]


@pytest.mark.parametrize("name", PRINTED)
def test_a_printed_method_is_what_sample_is_given_to_run_it(name):
    def settings(part):
        own = getattr(part, "__dict__", {})
        return {k: settings(v) if hasattr(v, "__dict__") else repr(v) for k, v in own.items()}

    method = mhrun.method(name)
    kernel, arguments = eval(
        f"given({method})", {"mhrun": mhrun, "given": lambda kernel, **given: (kernel, given)}
    )
    of_run = {"warmup": 10, "steps": 10, "chains": 4, "data": {"n": 100}}
    for found, expected in (
        (kernel, method.kernel(of_run)),
        (arguments["step_size"], method.schedules(of_run, {})["step_size"]),
    ):
        assert (type(found), settings(found)) == (type(expected), settings(expected))
    surrogates = {"zig_zag": "taylor2", "sgld_cv": "taylor1"}
    assert arguments.get("surrogate") == surrogates.get(name)
    has_ladder = name in ("renhd", "reld", "parallel_tempering")
    assert arguments.get("temperature") == ([1.0, 2.0, 4.0, 8.0] if has_ladder else None)


def test_what_the_data_decide_is_open_in_a_printed_method():
    assert "n=..." in str(mhrun.method("adam", m=20))
    assert "trains=..." in str(mhrun.method("planar_flow", m=20))
    assert str(mhrun.method("cmint")).endswith("step_size=mhrun.Stairs(start=..., every=..., cycle=...)")
    assert 'lam=float("inf")' in str(mhrun.method("renhd"))


def test_draws_are_those_of_the_kernel_that_is_named():
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Growing(), mhrun.MHMinibatch(m=20, sigma=1.0))
    schedules = {"step_size": mhrun.Tuned("auto", 0.3), "temperature": 4.0}
    by_parts = sampled(kernel, warmup=100, **schedules)
    by_name = sampled(mhrun.method("mhminibatch", m=20), warmup=100, temperature=4.0)
    assert torch.equal(
        *(torch.from_numpy(trace["posterior"]["theta"].values) for trace in (by_parts, by_name))
    )


def test_an_argument_comes_before_what_a_method_has_even_where_it_is_what_others_have():
    """Without a surrogate, SGLD-CV is SGLD."""
    plain = sampled(mhrun.Unadjusted(mhrun.SGLD(), m=20), step_size=1e-3)
    named = sampled(mhrun.method("sgld_cv", m=20), surrogate="none", step_size=1e-3)
    assert (named["posterior"]["theta"].values == plain["posterior"]["theta"].values).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"step_size": 0.3},
        {"step_size": mhrun.Fixed(0.3)},
        {"step_size": 0.3, "acceptance": 0.7},
        {"acceptance": 0.7},
    ],
)
@pytest.mark.parametrize(
    ("name", "proposal"), [("mint", mhrun.RandomWalk), ("mint_langevin", mhrun.LangevinProposal)]
)
def test_a_step_size_or_an_acceptance_rate_comes_before_the_schedule_of_a_method(name, proposal, given):
    """Of one that is tuned, and of one that is constant."""
    kernel = mhrun.MetropolisHastings(proposal(), mhrun.Shared(m=20), mhrun.Metropolis())
    by_parts, by_name, own = (
        sampled(one, warmup=60, **settings)["posterior"]["theta"].values
        for one, settings in (
            (kernel, given),
            (mhrun.method(name, m=20), given),
            (mhrun.method(name, m=20), {}),
        )
    )
    assert (by_name == by_parts).all()
    assert not (by_name == own).all()


def test_a_constant_step_size_in_place_of_cycles_has_a_burn_in():
    trace = sampled(mhrun.method("csgld", m=20), step_size=mhrun.Fixed(1e-4), warmup=None)
    assert (trace["warmup_posterior"].sizes["draw"], trace["posterior"].sizes["draw"]) == (1_000, 30)


def test_a_name_alone_is_a_method_without_settings(tmp_path):
    """It goes on from the trace of the other spelling."""
    short = sampled("sgld_cv", folder=tmp_path, steps=10)
    longer = sampled(mhrun.method("sgld_cv"), folder=tmp_path, steps=40)
    theta = longer["posterior"]["theta"].values
    assert theta.shape[:2] == (4, 40)
    assert (theta[:, :10] == short["posterior"]["theta"].values).all()


@pytest.mark.slow
def test_a_ladder_has_the_temperatures_of_its_file():
    trace = sampled("parallel_tempering")
    assert trace.attrs["temperatures"].tolist() == [1.0, 2.0, 4.0, 8.0]
    assert trace["posterior"].sizes["chain"] == 16
    method = mhrun.method("parallel_tempering", rungs=np.int64(2), ratio=torch.tensor(3.0))
    trace = sampled(method, chains=np.int64(4))
    assert trace.attrs["temperatures"].tolist() == [1.0, 3.0]
    trace = sampled(mhrun.method("parallel_tempering", rungs=2), temperature=[1.0, 5.0])
    assert trace.attrs["temperatures"].tolist() == [1.0, 5.0]
    trace = sampled(mhrun.method("parallel_tempering", rungs=3), temperature=[1.0, 1.0, 2.0])
    assert trace.attrs["temperatures"].tolist() == [1.0, 1.0, 2.0]


def test_cycles_begin_at_the_first_step_and_at_the_step_size_given(monkeypatch):
    made, bind = [], Cosine.bind

    def spied(schedule, warmup, steps):
        made.append((float(schedule.first), schedule.cycles, warmup))
        return bind(schedule, warmup, steps)

    monkeypatch.setattr(Cosine, "bind", spied)
    trace = sampled(mhrun.method("csghmc", cycles=2), step_size=0.01, steps=50, warmup=None)
    assert set(made) == {(0.01, 2, 0)}
    assert trace["posterior"].sizes["draw"] == 10
    made.clear()
    sampled(mhrun.Unadjusted(mhrun.SGLD(), m=20), step_size=Cosine(0.01, 2), steps=50, warmup=None)
    assert {warmup for _, _, warmup in made} == {0}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            lambda: mhrun.method("mhminibach"),
            r"mhrun has no method 'mhminibach'. Did you mean 'mhminibatch'\?",
        ),
        (lambda: mhrun.method("../hmc"), "mhrun has no method"),
        (lambda: mhrun.method("mint", q=3), "mint has no setting q; it has m. print"),
        (lambda: mhrun.method("hmc", step_size=3), "it has none. step_size= and temperature= are arguments"),
        (lambda: mhrun.method("mint", m="${data.n}"), r"m = '\${data.n}' must be a number or auto"),
        (lambda: mhrun.method("mint", m=np.array([50])), r"m = array\(\[50\]\) must be a number or auto"),
        (
            lambda: mhrun.method("parallel_tempering", ratio=1.0),
            r"^parallel_tempering.schedules.temperature: A ladder needs ratio > 1",
        ),
        (lambda: mhrun.method("renhd", ratio="x"), r"^renhd: ratio = 'x' must be a number\.$"),
        (lambda: mhrun.method("mintee", rungs=4), r"mintee needs ratio: mhrun.method\('mintee', ratio=...\)"),
        (
            lambda: sampled("cmint"),
            r"cmint leaves every and cycle of its step_size open: .*mhrun.Stairs\(...\)",
        ),
        (lambda: sampled(mhrun.method("adam", m=20)), "no rule finds the step size of Adam; give a number"),
        (lambda: sampled("hmc", chains="4"), "chains = '4' must be a whole number"),
        (lambda: sampled("mint", step_size=-1.0), "step_size = -1.0 must be positive"),
        (lambda: sampled("reld", temperature=2.0), "the 4 rungs of its ladder all have the temperature 2"),
        (lambda: sampled("reld", temperature=1), "the 4 rungs of its ladder all have the temperature 1"),
        (
            lambda: sampled("renhd", temperature=[1, 2, 3, 4]),
            r"sets other parts of its rungs by their temperatures: give mhrun.method\('renhd', ratio=..., rungs=...\)",
        ),
        (
            lambda: sampled("reld", chains=6),
            r"^reld.schedules.temperature: A ladder needs .* multiple of rungs, not 2, 4 and 6\.$",
        ),
        (lambda: mhrun.method("HMC"), "Did you mean 'hmc'"),
    ],
)
def test_mistakes_have_an_answer(how, message):
    with pytest.raises(UserError, match=message):
        how()
