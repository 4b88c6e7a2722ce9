"""Cosine cycles say step sizes, noise and what is collected; a trace holds that and no more, through a stop too."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import StopAfter, assert_same_bits, contents

from mhrun.cli.configuration.compose import compose_config
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, Refusal, UserError
from mhrun.report.run import Run
from mhrun.schedules import Plan
from mhrun.schedules.cosine import Cosine
from mhrun.schedules.fixed import Fixed


def loop(total, start, cycles, explore, samples, apart):
    """Return step sizes, which steps sample and which are collected, step by step (Zhang et al. 2020, Algorithm 1)."""
    length = math.ceil(total / cycles)
    sizes, samples_now, collected = [], [], []
    for k in range(1, total + 1):
        r = ((k - 1) % length) / length
        sizes.append(start / 2 * (math.cos(math.pi * r) + 1))
        samples_now.append(r >= explore)
        end = min(total, ((k - 1) // length + 1) * length)
        last = samples is None or ((end - k) % apart == 0 and (end - k) // apart < samples)
        if r >= explore and last and (end - k) % apart == 0:
            collected.append(k)
    return np.array(sizes), np.array(samples_now), collected


@pytest.mark.parametrize(
    ("total", "cycles", "explore", "samples", "apart"),
    [
        (100, 4, 0.8, None, 1),
        (103, 4, 0.5, None, 3),
        (100, 4, 0.0, 3, 2),
        (5000, 30, 0.25, None, 1),
        (1000, 1, 0.94, 3, 20),
        (200, 7, 0.7, 1, 5),
        (60, 3, 0.15, None, 1),
    ],
)
def test_cycles_are_those_of_a_loop(total, cycles, explore, samples, apart):
    schedule = Cosine(0.09, cycles, explore, 0.0, 0.7, samples, apart).bind(0, total)
    sizes, sampling, collected = loop(total, 0.09, cycles, explore, samples, apart)
    value = schedule.values({}, 1, total)
    assert value["step_size"][:, 0].numpy() == pytest.approx(sizes)
    assert value["noise_temperature"][:, 0].tolist() == np.where(sampling, 0.7, 0.0).tolist()
    assert schedule.collected().tolist() == collected
    assert schedule.cycle_of(np.array([1, total])).tolist() == [0, cycles - 1]
    for first, count in ((1, 1), (7, 13), (total, 1)):  # however steps are cut, bit for bit
        part = schedule.values({}, first, count)
        assert all(torch.equal(part[name], value[name][first - 1 : first - 1 + count]) for name in value)


def test_chains_may_begin_cycles_at_step_sizes_of_their_own():
    value = Cosine([0.1, 0.4], 2, 0.5).bind(0, 10).values({}, 1, 10)["step_size"]
    assert value.shape == (10, 2)
    assert (value[:, 1] / value[:, 0]).tolist() == pytest.approx([4.0] * 10)


def test_cycles_with_an_open_start_begin_at_four_times_the_step_sizes_found():
    schedule = Cosine("auto", 2).filled(torch.tensor([0.1, 0.3]), None).bind(0, 10)
    assert schedule.values({}, 1, 1)["step_size"].tolist() == [pytest.approx([0.4, 1.2])]


def test_a_plan_collects_after_burn_in_and_thins_what_is_collected():
    plan = Plan({"a": Cosine(0.1, 4, 0.5)}, 2, 20, 80)
    assert plan.collected.tolist() == [*range(21, 26), *range(39, 51), *range(64, 76), *range(89, 101)]
    assert plan.kept(5) == (25, 43, 48, 66, 71, 89, 94, 99)
    assert plan.kept(None) is None
    assert Plan({"a": Fixed(step_size=1.0)}, 2, 0, 10).kept(3) == 3
    for thin in (0, 42):
        with pytest.raises(
            Refusal, match="none of the 41 draws that a chain collects; give the method thin = 1"
        ):
            plan.kept(thin)
    with pytest.raises(Refusal, match="which draws are collected"):
        plan.kept((40, 41))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cosine(0.0, 4), "start > 0"),
        (lambda: Cosine(0.1, 0), "cycles = 0 must be a whole number, at least 1"),
        (lambda: Cosine(0.1, 4, 1.0), "explore < 1"),
        (lambda: Cosine(0.1, 4, sampling=-1.0), "at least 0"),
        (lambda: Cosine(0.1, 4, samples=0), "samples = 0 must be a whole number, at least 1"),
        (lambda: Cosine(0.1, 4, apart=0), "apart = 0 must be a whole number, at least 1"),
        (lambda: Cosine(0.1, 4, 0.8, samples=3).bind(0, 40), "too few for the draws"),
        (lambda: Cosine(0.1, 4, 0.5, samples=3, apart=3).bind(0, 40), "too few for the draws"),
        (
            lambda: Cosine(0.1, 30, 0.8).bind(0, 1000),
            "28 explore, and the last has 14, .* steps that 30 divides",
        ),
        (lambda: Cosine(0.1, 4).bind(0, 5), "3 cycles have them all. Choose 3 cycles"),
        (lambda: Plan({"a": Cosine(0.1, 4, 0.5)}, 2, 60, 40), "2 of 4 cycles lie in the 60 steps of burn-in"),
        (lambda: Plan({"a": Cosine(0.1, 1, samples=1), "b": Cosine(0.1, 1)}, 1, 0, 9), "both set"),
    ],
)
def test_cycles_without_meaning_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def test_some_cycles_may_be_burn_in():
    plan = Plan({"a": Cosine(0.1, 10, 0.5)}, 2, 30, 70)
    assert plan.lost_cycles == "3 of 10 cycles lie in the 30 steps of burn-in, whose draws do not count"
    assert plan.collected is not None
    assert plan.collected.min() > 30
    assert not Plan({"a": Cosine(0.1, 10, 0.5)}, 2, 0, 100).lost_cycles


OVERRIDES = [
    "experiment=gmm_tied_means",
    "scale=smoke",
    "data.n=500",
    "m=20",
    "lam=0.1",
    "runtime.threads=1",
    "runtime.report=false",
    "warmup=0",
    *(f"~methods.{name}" for name in ("mint", "mint_stored", "tempered_mcmc", "mcmc", "sgld", "sghmc")),
    "+method@methods.csghmc=csghmc",
    "+step_size=1e-6",
    "methods.csghmc.schedules.step_size.cycles=5",
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("executor", [pytest.param("compiled", marks=pytest.mark.slow), "torch"])
def test_a_trace_holds_what_is_collected_through_a_stop(tmp_path, executor):
    base = compose_config([*OVERRIDES, f"executor={executor}", "thin=2"])

    def config(place, **how):
        return {**base, "runtime": {**base["runtime"], "outputs": str(tmp_path / place), **how}}

    folder = run_experiment(config("whole"), Silent())
    run, wanted = Run(folder), contents(folder, "csghmc")
    total = config("whole")["warmup"] + config("whole")["steps"]
    collected = Cosine(1e-6, 5).bind(0, total).collected()
    collected = collected[collected > config("whole")["warmup"]][1::2]
    assert run.draws("csghmc").shape == (config("whole")["chains"], len(collected), 2)
    assert (run.draw_steps("csghmc") + config("whole")["warmup"]).tolist() == collected.tolist()
    assert run.methods["csghmc"]["thin"] == "collected"
    assert run.valid("csghmc").all()
    with pytest.raises(Interrupted):
        run_experiment(config("stopped", block_seconds=0), StopAfter(2))
    again = run_experiment(config("stopped"), Silent())
    assert_same_bits(contents(again, "csghmc"), wanted)


def test_steps_and_cycles_cannot_both_say_what_is_kept(tmp_path):
    with pytest.raises(UserError, match="csghmc: a schedule says which draws are collected"):
        run_experiment(compose_config([*OVERRIDES, "thin=[1,10]", f"runtime.outputs={tmp_path}"]), Silent())


@pytest.mark.long
def test_the_step_of_a_draw_is_a_coordinate(tmp_path):
    """ArviZ takes whatever else is in the group for a quantity, with chains and draws."""
    folder = run_experiment(
        compose_config([*OVERRIDES, f"runtime.outputs={tmp_path}"], compare=False), Silent()
    )
    with Run(folder).trace("csghmc") as trace:
        assert set(trace["posterior"].data_vars) == {"theta"}
        assert trace["posterior"]["step"].dims == ("draw",)


def test_sampling_noise_has_the_temperature_of_the_target_by_default():
    schedules = {"a": Cosine(0.1, 2, 0.5), "b": Fixed(temperature=[3.0, 5.0])}
    noise = Plan(schedules, 2, 0, 8).controls({}, 1, 8).noise_temperature
    assert noise.tolist() == [[0.0, 0.0]] * 2 + [[3.0, 5.0]] * 2 + [[0.0, 0.0]] * 2 + [[3.0, 5.0]] * 2


def test_moves_that_need_noise_refuse_a_schedule_that_lets_it_go(tmp_path):
    base = [word for word in OVERRIDES if "csghmc" not in word] + [f"runtime.outputs={tmp_path}"]
    for method, dynamics in (("csgld", "tact_hmc"), ("mint_langevin", None)):
        words = [*base, f"+method@methods.x={method}"]
        if dynamics:
            words += [f"dynamics@methods.x.kernel.dynamics={dynamics}"]
        else:
            words += ["schedule@methods.x.schedules.step_size=cosine"]
        with pytest.raises(UserError, match="x: its schedules set the noise temperature to 0"):
            run_experiment(
                compose_config([*words, "methods.x.schedules.step_size.cycles=4"], compare=False), Silent()
            )


class Noting(Silent):
    def __init__(self):
        self.notes = []

    def note(self, message):
        self.notes.append(message)


@pytest.mark.long
def test_chains_that_stop_are_reported_and_are_no_draws(tmp_path):
    base = [word for word in OVERRIDES if "csghmc" not in word] + [f"runtime.outputs={tmp_path}", "thin=5"]
    watcher = Noting()
    words = [
        *base,
        "+method@methods.x=sgnht",
        "methods.x.schedules.step_size.step_size=[1e-6,1e-6,1e100,1e-6]",
    ]
    run = Run(run_experiment(compose_config(words, compare=False), watcher))
    assert any(note.startswith("x: 1 of 4 chains became non-finite") for note in watcher.notes)
    assert run.valid("x").all(1).tolist() == [True, True, False, True]  # at statistics of every fifth step
    assert run.draws("x", marked=True).shape[0] == 4
    with pytest.raises(UserError, match="of its draws are valid"):
        run.draws("x")


@pytest.mark.long
def test_draws_that_are_none_are_marked_in_the_trace(tmp_path):
    words = [word for word in OVERRIDES if "csghmc" not in word]
    words += ["+method@methods.tact=tact_hmc", f"runtime.outputs={tmp_path}", "thin=3", "thin_stats=1"]
    run = Run(run_experiment(compose_config([*words, "steps=300"]), Silent()))
    valid = run.valid("tact")
    assert valid.shape == run.draws("tact", marked=True).shape[:2] == (4, 100)
    with pytest.raises(UserError, match="of its draws are valid"):
        run.draws("tact")
    assert 0 < valid.mean() < 1
    assert (valid == run.stat("tact", "valid")[:, 2::3]).all()


@pytest.mark.parametrize(
    "setting", [{"cycles": 2.5}, {"cycles": 2, "samples": 1.5}, {"cycles": 2, "apart": 2.5}]
)
def test_counts_of_cycles_are_whole_numbers(setting):
    with pytest.raises(Refusal, match=r"(cycles|samples|apart) = \d\.5 must be a whole number, at least 1"):
        Cosine(1e-4, **setting)
