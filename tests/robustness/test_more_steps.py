"""A run with more steps goes on where one with fewer ended, and has the bits of one that was made at once."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from kit import FEW, StopAfter, assert_same_bits, config, contents, short_run

import mhrun
from mhrun.engine.assemble import methods_of
from mhrun.engine.experiment import run_experiment
from mhrun.engine.longer import reason_to_begin_anew
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.schedules import Plan
from mhrun.schedules.cosine import Cosine
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.plan import Stateless
from mhrun.schedules.polynomial import Polynomial
from mhrun.schedules.switched import Switched
from mhrun.schedules.tuned import Tuned
from mhrun.store.identity import method_digest
from mhrun.store.longer import begin_longer

SHORT, LONG = "steps=130", "steps=400"
METHODS = ("mint", "sghmc")


class Noting(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun: dict[str, int] = {}

    def begin(self, method, step, total, executor):
        self.begun[method] = step

    def note(self, message):
        self.notes.append(message)


def ran(outputs, *overrides):
    watcher = Noting()
    return run_experiment(config(outputs, *FEW, "warmup=50", *overrides), watcher), watcher


@pytest.fixture(scope="module", params=["torch", pytest.param("compiled", marks=pytest.mark.slow)])
def whole(request, tmp_path_factory):
    """What a run of all steps has, and the executor that it was made with."""
    executor = f"executor={request.param}"
    folder, _ = ran(tmp_path_factory.mktemp("whole"), LONG, executor)
    return executor, {name: contents(folder, name) for name in METHODS}


def assert_is(folder, expected):
    for name in METHODS:
        assert_same_bits(contents(folder, name), expected[name])
        left = {path.name for path in folder.method(name).iterdir()}
        assert left == {"trace.nc", "done.json", "executor.json", "last.npz"}
    assert not folder.damage()


@pytest.mark.slow
def test_a_run_goes_on_from_the_longest_shorter_one(whole, outputs):
    executor, expected = whole
    shorter, _ = ran(outputs, SHORT, executor)
    ran(outputs, "steps=60", executor)
    before = {name: contents(shorter, name) for name in METHODS}
    folder, watcher = ran(outputs, LONG, executor)
    assert watcher.begun == {"mint": 180, "sghmc": 0}  # whose step size falls until the last step
    assert watcher.notes[:1] == [f"mint: goes on after step 180, where run {shorter.digest} ended"]
    for name in METHODS:
        assert_same_bits(contents(shorter, name), before[name])
    assert_is(folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "begins"), [("auto", 0), ("torch", 180)])
def test_a_long_run_does_not_go_on_in_torch_where_compilation_pays(outputs, monkeypatch, executor, begins):
    """A short run is made in torch, and its executor kept: going on would take longer than beginning anew."""
    ran(outputs, SHORT, f"executor={executor}")
    monkeypatch.setattr("mhrun.engine.longer.prefers_compiled", lambda method: True)
    _, watcher = ran(outputs, LONG, f"executor={executor}")
    assert watcher.begun["mint"] == begins


@pytest.mark.slow
def test_it_goes_on_twice_and_after_a_stop(whole, outputs):
    executor, expected = whole
    ran(outputs, "steps=60", executor)
    ran(outputs, SHORT, executor)
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *FEW, "warmup=50", LONG, executor), StopAfter(1))
    folder, watcher = ran(outputs, LONG, executor)
    assert watcher.begun["mint"] > 180
    assert_is(folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    ["thin=7", *(pytest.param(x, marks=pytest.mark.slow) for x in ("thin=null", "thin_stats=3", "thin=[9,80]"))],
)  # fmt: skip
def test_what_is_kept_goes_on(tmp_path, kept):
    ran(tmp_path / "parts", SHORT, kept)
    folder, watcher = ran(tmp_path / "parts", LONG, kept)
    assert watcher.begun["mint"] == 180
    whole, _ = ran(tmp_path / "whole", LONG, kept)
    for name in METHODS:
        assert_same_bits(contents(folder, name), contents(whole, name))


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        *((x, False) for x in ("seed=3", "warmup=60", "+methods.mint.warmup=60", "chains=2", "thin=2", "lam=0.3")),
        *((x, True) for x in (SHORT, "+methods.mint.steps=70", "methods.sghmc.kernel.m=7")),
    ],
)  # fmt: skip
def test_the_digest_without_steps_covers_all_else(tmp_path, changed, same):
    one, other = (
        method_digest(config(tmp_path, *FEW, LONG, *more), "mint", any_steps=True)
        for more in ((), (changed,))
    )
    assert (one == other) is same


@pytest.mark.slow
def test_a_run_that_is_forced_or_shorter_begins_anew(tmp_path):
    ran(tmp_path, SHORT)
    for settings in ((LONG, "runtime.force=true"), ("steps=100",)):
        assert ran(tmp_path, *settings)[1].begun["mint"] == 0


@pytest.mark.parametrize("damaged", ["last.npz", "trace.nc", "executor.json"])
def test_nothing_goes_on_from_what_is_damaged(whole, outputs, damaged):
    executor, expected = whole
    shorter, _ = ran(outputs, SHORT, executor)
    for name in METHODS:
        path = shorter.method(name) / damaged
        content = bytearray(path.read_bytes())
        content[len(content) // 2 :] = b"\0" * (len(content) - len(content) // 2)
        path.write_bytes(content)
    folder, watcher = ran(outputs, LONG, executor)
    assert watcher.begun["mint"] == (180 if damaged == "executor.json" else 0)
    assert_is(folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_beginning_that_is_damaged_later_is_computed_again(whole, outputs, damage):
    executor, expected = whole
    ran(outputs, SHORT, executor)
    with pytest.raises(Interrupted):
        run_experiment(config(outputs, *FEW, "warmup=50", LONG, executor), StopAfter(1))
    (path,) = outputs.glob("*/*/methods/mint/blocks/shorter.nc")
    content = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(content[:-1] + b"x")
    folder, watcher = ran(outputs, LONG, executor)
    assert watcher.begun["mint"] == 0
    assert any("is damaged or out of place" in note for note in watcher.notes)
    assert_is(folder, expected)


def test_a_kill_while_a_beginning_is_made_leaves_nothing_that_counts(tmp_path, monkeypatch):
    shorter, _ = ran(tmp_path, SHORT)

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    source, target = shorter.method("mint"), tmp_path / "new"
    for place in ("link", "write_whole"):
        monkeypatch.setattr(f"mhrun.store.longer.{place}", killed)
        with pytest.raises(Killed):
            begin_longer(target, source, 180)
        assert not target.exists()
        with pytest.raises(Killed):
            begin_longer(source, source, 180)
        assert not (source / "blocks").exists()
        monkeypatch.undo()
    assert begin_longer(target, source, 180)
    assert (target / "blocks" / "shorter.nc").samefile(source / "trace.nc")


# --- Which methods can go on --------------------------------------------------------------------------------


class Step(Stateless):
    """Depends on the number of steps where the change is counted from the end."""

    def __init__(self, at, values=(1e-3, 5e-4), quantity="step_size") -> None:
        self.at, self.total, self.both, self.quantities = at, 1, values, (quantity,)

    def bind(self, warmup, steps):
        placed = Step(self.at, self.both, *self.quantities)
        placed.total = warmup + steps
        return placed

    def values(self, memory, first_step, steps):
        step = torch.arange(first_step, first_step + steps, dtype=torch.float64)[:, None]
        late = step > (self.at if self.at > 0 else self.total + self.at)
        return {self.quantities[0]: torch.where(late, self.both[1], self.both[0]).double()}


class OwnTuning(Tuned):
    """Another class than the one of this package."""


DEPENDS = "its schedule 'step_size' depends on the number of steps"


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (lambda: Fixed(step_size=0.1), None),
        (lambda: Tuned(0.1, 0.3), None),
        (lambda: OwnTuning(0.1, 0.3), DEPENDS),  # nobody knows what it adapts by
        (lambda: Polynomial(0.1, None), None),
        (lambda: Polynomial(0.1, 0.01), DEPENDS),
        (lambda: Cosine(0.1, cycles=4, exploring=1.0), DEPENDS),
        (lambda: Switched([60], step_size=[0.1, 0.2]), None),
        (lambda: Switched([60], step_size=[0.1, 0.2], samples=4), "a schedule chooses which draws are collected"),
        (lambda: Switched([250], step_size=[0.1, 0.2]), "comes after the last of 180 steps"),
        (lambda: Step(20), None),
        (lambda: Step(-20), DEPENDS),
    ],
)  # fmt: skip
def test_the_first_steps_are_the_same_unless_a_schedule_depends_on_their_number(method, schedule, reason):
    plan = Plan({"step_size": schedule()}, method.shape.chains, 50, 400)
    found = reason_to_begin_anew(replace(method, plan=plan), 130)
    assert (found is None) if reason is None else reason in found


def test_a_pilot_sees_the_temperature_of_the_last_step(method):
    for temperatures, same in (([5.0, 5.0], True), ([5.0, 2.0], False)):
        schedules = {"step_size": Tuned("auto", 0.3), "temperature": Step(200, temperatures, "temperature")}
        plan = Plan(schedules, method.shape.chains, 50, 400)
        found = reason_to_begin_anew(replace(method, plan=plan), 130)
        assert (found is None) is same


@pytest.fixture(scope="module")
def method(tmp_path_factory):
    few = (*FEW, "~methods.sghmc", "warmup=50", LONG)
    return methods_of(config(tmp_path_factory.mktemp("method"), *few))[0]


def sampled(schedule, steps, folder):
    kernel = mhrun.Unadjusted(mhrun.SGLD(), m=10)
    x = torch.linspace(-1, 1, 100, dtype=torch.float64)
    return mhrun.sample(
        mhrun.GaussianMean(), x, kernel, step_size=schedule, steps=steps, warmup=0, seed=2, folder=folder
    ).load()


@short_run
@pytest.mark.parametrize("schedule", [Cosine(1e-3, cycles=2), Step(-10)])
def test_a_schedule_that_depends_on_it_is_refused_from_python(tmp_path, schedule):
    sampled(schedule, 40, tmp_path)
    with pytest.raises(UserError, match="other values of: step_size/acceptance"):
        sampled(schedule, 80, tmp_path)


@short_run
@pytest.mark.parametrize(("every", "goes_on"), [(10, True), (7, False)])
def test_a_monitor_goes_on_where_its_rows_are_the_same(tmp_path, every, goes_on):
    data = {"x": np.linspace(-1, 1, 40).reshape(20, 2), "y": np.arange(20) % 3}
    monitor = mhrun.Predictive(data, every=every, average=2, collect=5)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())

    def sample(steps, folder):
        return mhrun.sample(
            mhrun.SoftmaxRegression(2, 3, 2.0), data, kernel, step_size=0.1, steps=steps, warmup=20, seed=2,
            monitor=monitor, folder=folder,
        ).load()  # fmt: skip

    sample(40, tmp_path / "parts")
    if not goes_on:
        with pytest.raises(UserError, match="its monitor is due after step 60 only with the smaller number"):
            sample(100, tmp_path / "parts")
        return
    assert_same(sample(100, tmp_path / "parts"), sample(100, tmp_path / "whole"))


# --- From Python --------------------------------------------------------------------------------------------


def assert_same(one, two):
    assert one.groups == two.groups
    for group in one.groups:
        for name in one[group].data_vars:
            if name != "wall_s":
                xr.testing.assert_identical(one[group][name].drop_attrs(), two[group][name].drop_attrs())


@short_run
def test_the_same_call_with_more_steps_goes_on(tmp_path):
    """A pilot, named parameters within bounds, and a schedule of one's own."""
    torch.manual_seed(0)
    x = 3 + torch.randn(200, dtype=torch.float64)

    def log_lik(p, batch):
        return torch.distributions.Normal(p["mean"], p["sd"]).log_prob(batch)

    def sample(steps, folder):
        priors = {"mean": "Normal(0, 10)", "sd": "HalfNormal(3)"}
        return mhrun.sample(
            log_lik, x, parameters=priors, steps=steps, warmup=50, seed=2, folder=folder
        ).load()

    first = sample(30, tmp_path / "parts")
    more = sample(90, tmp_path / "parts")
    assert_same(more, sample(90, tmp_path / "whole"))
    assert_same(more, sample(90, tmp_path / "parts"))
    assert (first["posterior"]["sd"].values == more["posterior"]["sd"].values[:, :30]).all()
    with pytest.raises(UserError, match="other values of: steps"):
        sample(60, tmp_path / "parts")


@short_run
def test_the_state_that_is_missing_is_named(tmp_path):
    sampled(1e-3, 40, tmp_path)
    (tmp_path / "last.npz").unlink()
    with pytest.raises(UserError, match="does not have the state after step 40"):
        sampled(1e-3, 80, tmp_path)
    assert sampled(1e-3, 40, tmp_path)["posterior"].sizes["draw"] == 40


@short_run
def test_a_kill_between_the_new_record_and_the_first_step_is_no_matter(tmp_path):
    first = sampled(1e-3, 40, tmp_path / "parts")
    assert begin_longer(tmp_path / "parts", tmp_path / "parts", 40)
    assert_same(sampled(1e-3, 40, tmp_path / "parts"), first)  # the old call still has its trace
    assert not (tmp_path / "parts" / "blocks").exists()
    assert begin_longer(tmp_path / "parts", tmp_path / "parts", 40)
    more = sampled(1e-3, 80, tmp_path / "parts")
    assert_same(more, sampled(1e-3, 80, tmp_path / "whole"))
    record = json.loads((tmp_path / "parts" / "call.json").read_text())
    assert record["steps"] == 80
