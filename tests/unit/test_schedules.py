"""Schedules say what they should at each step, and only learn in burn-in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from mhrun.errors import Refusal
from mhrun.schedules import Plan
from mhrun.schedules.banded import Banded
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.polynomial import Polynomial
from mhrun.schedules.stairs import Stairs
from mhrun.schedules.switched import Switched
from mhrun.schedules.tuned import Tuned


def test_constants_may_differ_between_chains():
    plan = Plan(
        {"a": Fixed(step_size=0.5, noise_temperature=0.0), "b": Fixed(temperature=[1.0, 2.0, 4.0])}, 3, 0, 10
    )
    controls = plan.controls(plan.start(), 7, 2)
    assert controls.step_size.tolist() == [[0.5] * 3] * 2
    assert controls.temperature.tolist() == [[1.0, 2.0, 4.0]] * 2
    assert controls.noise_temperature.tolist() == [[0.0] * 3] * 2


def test_noise_has_the_temperature_of_the_target_by_default():
    controls = Plan({"a": Fixed(step_size=1.0, temperature=3.0)}, 2, 0, 10).controls({}, 1, 1)
    assert controls.noise_temperature.tolist() == [[3.0, 3.0]]


def test_the_polynomial_meets_its_ends_and_its_exponent():
    schedule = Polynomial(start=1e-3, end=1e-5, exponent=0.55).bind(400, 600)
    whole = schedule.values({}, 1, 1000)["step_size"][:, 0]
    assert float(whole[0]) == pytest.approx(1e-3)
    assert float(whole[-1]) == pytest.approx(1e-5)
    # a (b + t)^-0.55: the power -1/0.55 of it is a straight line in t.
    line = whole.numpy() ** (-1 / 0.55)
    assert np.abs(np.diff(line, 2)).max() < 1e-6 * line.max()


def test_a_polynomial_with_equal_ends_is_constant():
    sizes = Polynomial(1e-3, end=1e-3).bind(10, 90).values({}, 1, 100)["step_size"]
    assert sizes.eq(1e-3).all()


def test_chains_may_each_have_a_polynomial_of_their_own():
    sizes = Polynomial([0.1, 0.3], end=None, exponent=0.55).bind(10, 90).values({}, 1, 100)["step_size"]
    assert sizes.shape == (100, 2)
    assert sizes[:, 1] == pytest.approx(0.3 * np.arange(1, 101) ** -0.55)
    assert sizes[:, :1].equal(Polynomial(0.1, None).bind(10, 90).values({}, 1, 100)["step_size"])


def test_a_decay_that_is_slow_at_first():
    sizes = Polynomial(0.1, end=None, exponent=0.55, b=50).bind(10, 90).values({}, 1, 100)["step_size"][:, 0]
    assert float(sizes[0]) == pytest.approx(0.1)
    assert sizes == pytest.approx(0.1 * ((50 + np.arange(1, 101)) / 51) ** -0.55)


def test_step_sizes_are_the_same_to_the_bit_however_steps_are_cut(rng):
    schedule = Polynomial(start=1e-3, end=1e-5).bind(0, 10_000)
    whole = schedule.values({}, 1, 10_000)["step_size"]
    for _ in range(20):
        cuts = [1, *sorted(rng.choice(np.arange(2, 10_001), 300, replace=False).tolist()), 10_001]
        parts = [schedule.values({}, a, b - a)["step_size"] for a, b in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


def test_stairs_that_neither_grow_nor_fall_last_for_any_number_of_steps():
    """Each factor alone, 2^1500 and 2^-1500, is beyond the numbers of float64."""
    schedule = Stairs(0.1, every=10, cycle=70, decay=2 ** (-1 / 7), rise=2.0)
    late = schedule.values({}, 70 * 1500 + 1, 71)["step_size"][:, 0].numpy()
    assert np.allclose(late[[0, 9, 10, 69, 70]], 0.1 * 2 ** -(np.array([0, 0, 1, 6, 0]) / 7), rtol=1e-11)


def test_the_lowest_temperatures_are_those_of_all_steps():
    fixed = {"a": Fixed(step_size=0.1)}
    assert Plan(fixed, 2, 0, 10).lowest() == (1.0, 1.0)
    middle = Switched([5000, 5001], temperature=[9.0, 3.0, 9.0])
    assert Plan(fixed | {"b": middle}, 2, 4000, 4000).lowest() == (3.0, 3.0)
    noise = Switched([4999, 5000], noise_temperature=[1.0, 0.0, 1.0])
    assert Plan(fixed | {"b": noise}, 2, 4000, 4000).lowest() == (1.0, 0.0)
    hot = Fixed(temperature=[5.0, 2.0])
    assert Plan(fixed | {"b": hot}, 2, 0, 10).lowest() == (2.0, 2.0)


def test_a_value_holds_up_to_the_step_that_it_changes_after():
    schedule = Switched([3, 4, 2000], step_size=[0.5, 0.25, 4.0, 1.0], noise_temperature=[1, 0, 0, 2])
    assert schedule.quantities == ("step_size", "noise_temperature")
    found = schedule.bind(10, 5000).values({}, 1, 2002)
    steps = np.arange(1, 2003)
    stretch = np.select([steps <= 3, steps <= 4, steps <= 2000], [0, 1, 2], 3)
    assert found["step_size"][:, 0].tolist() == np.array([0.5, 0.25, 4.0, 1.0])[stretch].tolist()
    assert found["noise_temperature"][:, 0].tolist() == np.array([1.0, 0, 0, 2])[stretch].tolist()
    assert found["step_size"].dtype == torch.float64
    for first in (1, 3, 4, 5, 2000, 2001):  # however steps are cut
        part = schedule.values({}, first, 2)["step_size"]
        assert torch.equal(part, found["step_size"][first - 1 : first + 1])


def test_a_last_stretch_is_collected_evenly():
    schedule = Switched([7], noise_temperature=[0.0, 1.0], samples=4)
    assert schedule.bind(0, 27).collected().tolist() == [12, 17, 22, 27]
    assert schedule.bind(2, 15).collected().tolist() == [9, 12, 14, 17]  # ten steps among four
    assert Switched([7], noise_temperature=[0.0, 1.0]).bind(0, 27).collected() is None
    sizes = Switched([3, 5], step_size=[1.0, 0.2, 0.04])
    plan = Plan({"a": sizes, "b": schedule}, 2, 0, 27)
    assert plan.kept(1) == (12, 17, 22, 27)
    assert plan.kept(2) == (17, 27)
    assert plan.kept(None) is None
    assert Plan({"a": sizes}, 2, 0, 27).collected is None
    with pytest.raises(Refusal, match="more than the 3 steps after step 7"):
        schedule.bind(0, 10)
    with pytest.raises(Refusal, match="at least 1"):
        Switched([7], noise_temperature=[0.0, 1.0], samples=0)
    with pytest.raises(Refusal, match="two schedules choose"):
        Plan({"a": Switched([3], step_size=[1.0, 0.2], samples=2), "b": schedule}, 2, 0, 27)


def test_a_plan_takes_each_quantity_from_its_own_schedule():
    """Burn-in counts among the steps; the noise follows the temperature that drops."""
    plan = Plan(
        {"a": Switched([12], temperature=[100.0, 1.0]), "b": Switched([11, 13], step_size=[3.0, 2.0, 1.0])},
        2, 10, 10,
    )  # fmt: skip
    assert not plan.adapts
    memory = plan.learn(plan.start(), 1, torch.ones(10, 2, dtype=torch.bool))
    controls = plan.controls(memory, 10, 5)
    assert controls.temperature.tolist() == [[t, t] for t in (100, 100, 100, 1, 1)]
    assert controls.noise_temperature.tolist() == controls.temperature.tolist()
    assert controls.step_size.tolist() == [[e, e] for e in (3, 3, 2, 2, 1)]


def test_a_decay_with_open_ends_is_from_twice_the_least_step_size_found_to_half_of_it():
    found = Polynomial("auto", "auto").filled(torch.tensor([0.3, 0.2]), None).bind(0, 100)
    sizes = found.values({}, 1, 100)["step_size"]
    assert sizes.shape == (100, 1)
    assert sizes[[0, -1], 0].tolist() == pytest.approx([0.4, 0.1])


def test_a_banded_step_size_changes_at_the_end_of_a_window_of_a_rung_that_adapts():
    """The hotter rung adapts in steps 1 to 20, the colder one in 31 to 50."""
    schedule = Banded(0.1, window=10, length=20, rungs=2, stagger=30).bind(60, 0)
    steps = (1, 4, 10, 11, 20, 21, 25, 30, 31, 50, 51)
    assert [schedule.steps_until_update(k) for k in steps] == [10, 7, 1, 10, 1, 10, 6, 1, 10, 1, None]


def accept_with(step_size, rng):
    """A sampler whose acceptance is exp(-step size / 20)."""
    return torch.from_numpy(rng.random(step_size.shape) < np.exp(-step_size.numpy() / 20))


@pytest.mark.parametrize("start", [0.2, 20.0, 600.0])
def test_tuning_finds_the_acceptance_and_then_holds_still(rng, start):
    plan = Plan({"s": Tuned(start, 0.30, window=50)}, 16, 4000, 10_000)
    memory, step = plan.start(), 1
    while step <= 4000:
        size = plan.steps_until_update(step)
        assert size is not None
        accepted = accept_with(plan.controls(memory, step, size).step_size, rng)
        for part in torch.split(accepted, 17):  # however the steps are cut
            memory = plan.learn(memory, step, part)
            step += len(part)
    tuned = plan.controls(memory, step, 1).step_size[0]
    assert np.exp(-tuned.numpy() / 20) == pytest.approx(0.30, abs=0.05)
    # The mean of 16 chains has an sd of 0.002; with a window before the second half of burn-in it would be 0.273.
    assert np.exp(-tuned.numpy() / 20).mean() == pytest.approx(0.30, abs=0.012)
    assert plan.steps_until_update(step) is None
    after = plan.learn(memory, step, torch.ones(500, 16, dtype=torch.bool))
    assert torch.equal(plan.controls(after, 5000, 1).step_size[0], tuned)


def test_chains_are_tuned_each_for_itself(rng):
    schedule = Tuned(1.0, 0.5, window=10).bind(100, 0)
    memory = schedule.start(2)
    accepted = torch.zeros(10, 2, dtype=torch.bool)
    accepted[:, 1] = True
    memory = schedule.learn(memory, 1, accepted)
    low, high = memory["log_step"].tolist()
    assert low < 0 < high


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(step_size=-1), "positive"),
        (lambda: Fixed(temperature=0), "positive"),
        (lambda: Fixed(noise_temperature=-1), "at least 0"),
        (lambda: Fixed(temperature=float("inf")), "temperature = inf must be a finite number"),
        (lambda: Fixed(temperature="abc"), "temperature = 'abc' must be a number, or one for each chain"),
        (lambda: Fixed(temperature=[1.0, "abc"]), r"temperature = \[1.0, 'abc'\] must be a number"),
        (lambda: Fixed(step_size="abc"), "step_size = 'abc' must be a number, one for each chain, or auto"),
        (lambda: Fixed(temperature={"a": 1}), "must be a number, or one for each chain"),
        (lambda: Fixed(step_size=[0.1, True]), "step_size = True must be a number, not true or false"),
        (lambda: Tuned(float("inf"), 0.3), "positive and finite"),
        (lambda: Banded(float("inf")), "positive and finite"),
        (lambda: Tuned(-1.0, 0.3), "positive"),
        (lambda: Tuned(1.0, 1.3), "between 0 and 1"),
        (lambda: Plan({"a": Tuned(1.0, 0.3)}, 1, 49, 1000), "too short to tune"),
        (lambda: Polynomial(1e-5, 1e-3), "goes down"),
        (lambda: Polynomial(1e-3, 1e-5, exponent=0), "positive"),
        (lambda: Polynomial([1e-3, 1e-2], 1e-5), "end=null"),
        (lambda: Polynomial(1e-3, 1e-6, exponent=0.005).bind(0, 100), "exponent = 0.005 is too small"),
        (lambda: Polynomial(1e-3, 1e-5, b=10), "two ends fix b"),
        (lambda: Polynomial(1e-3, None, b=-1), "0 or positive"),
        (lambda: Plan({"a": Fixed(step_size=1), "b": Fixed(step_size=2)}, 1, 0, 1), "both set step_size"),
        (lambda: Plan({"a": Fixed(temperature=1)}, 1, 0, 1), "no schedule sets step_size"),
        (lambda: Plan({"a": Fixed(step_size=[1.0, 2.0])}, 3, 0, 1), "2 values for 3 chains"),
        (lambda: Switched([], step_size=[1.0]), "whole numbers of steps"),
        (lambda: Switched([0], step_size=[1.0, 2.0]), "whole numbers of steps"),
        (lambda: Switched([2.5], step_size=[1.0, 2.0]), "whole numbers of steps"),
        (lambda: Switched([[5]], step_size=[1.0, 2.0]), "whole numbers of steps"),
        (lambda: Switched([5, 5], step_size=[1.0, 2.0, 3.0]), "increasing order"),
        (lambda: Switched([5, 4], step_size=[1.0, 2.0, 3.0]), "increasing order"),
        (lambda: Switched([5], step_size=[1.0]), "step_size has 1 values; 1 changes need 2"),
        (lambda: Switched([5], temperature=[1.0, 2.0, 3.0]), "temperature has 3 values"),
        (lambda: Switched([5], temperature=[1.0, 0.0]), "temperature = .* must be positive"),
        (lambda: Switched([5], step_size=[float("nan"), 1.0]), "step_size = nan must be a finite number"),
        (lambda: Switched([5], noise_temperature=[1.0, -1.0]), "noise_temperature = .* must be at least 0"),
        (lambda: Plan({"a": Switched([12], step_size=[1.0, 2.0])}, 1, 4, 8), "after the last of 12 steps"),
        (lambda: Plan({"a": Switched([5], temperature=[1.0, 2.0])}, 1, 0, 9), "no schedule sets step_size"),
        (
            lambda: Plan({"a": Fixed(step_size=1), "b": Switched([5], step_size=[1, 2])}, 1, 0, 9),
            "both set step_size",
        ),
    ],
)
def test_meaningless_settings_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def test_a_schedule_that_sets_nothing_is_refused():
    with pytest.raises(Refusal, match="schedule 'other' sets nothing"):
        Plan({"step_size": Fixed(step_size=1.0), "other": Switched([3])}, 2, 0, 10)


def stairs(start, every, cycle, decay, rise, steps):
    """CMINT's step sizes (Li & Wong 2017): times 0.90 every r epochs, times 2 every R epochs, in a loop."""
    size, found = start, []
    for step in range(1, steps + 1):
        found.append(size)
        if step % every == 0:
            size *= decay
        if step % cycle == 0:
            size *= rise
    return found


@pytest.mark.parametrize(
    ("every", "cycle", "decay", "rise"),
    [(5, 50, 0.9, 2.0), (7, 7, 0.5, 1.0), (3, 12, 1.0, 3.0), (1, 1, 0.9, 1.1)],
)
def test_stairs_are_the_paper_s(every, cycle, decay, rise):
    found = Stairs(0.22, every, cycle, decay, rise).values({}, 1, 520)["step_size"]
    assert found.dtype == torch.float64
    assert found[:, 0].tolist() == pytest.approx(stairs(0.22, every, cycle, decay, rise, 520), rel=1e-12)


def test_a_round_of_cmint_begins_at_seven_tenths_of_the_last():
    found = Stairs(0.22, 5, 50).values({}, 1, 500)["step_size"][:, 0]
    assert found[::50].tolist() == pytest.approx([0.22 * (2 * 0.9**10) ** k for k in range(10)])


def test_stairs_are_the_same_to_the_bit_however_they_are_cut(rng):
    """Also far down, where a vectorised power rounds by its place in an array."""
    schedule = Stairs(0.1, 2, 20, 0.93, 1.9)
    whole = schedule.values({}, 1, 9000)["step_size"]
    for _ in range(10):
        cuts = [1, *sorted(rng.choice(np.arange(2, 9001), 300, replace=False).tolist()), 9001]
        parts = [schedule.values({}, a, b - a)["step_size"] for a, b in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


def test_each_chain_has_stairs_of_its_own():
    plan = Plan({"s": Stairs([0.5, 0.1, 2.0], 4, 8)}, 3, 4, 20)
    found = plan.controls(plan.start(), 5, 10).step_size
    for chain, start in enumerate((0.5, 0.1, 2.0)):
        assert found[:, chain].tolist() == pytest.approx(stairs(start, 4, 8, 0.9, 2.0, 14)[4:])
    with pytest.raises(Refusal, match="2 values for 3 chains"):
        Plan({"s": Stairs([0.5, 0.1], 4, 8)}, 3, 4, 20)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.0, 1, 1), "start > 0"),
        (([0.1, -1.0], 1, 1), "start > 0"),
        ((float("nan"), 1, 1), "start = nan must be a finite number"),
        ((1.0, 5, 50, 1.1), "0 < decay <= 1"),
        ((1.0, 5, 50, 0.0), "0 < decay <= 1"),
        ((1.0, 5, 50, 0.9, 0.9), "rise >= 1"),
        ((1.0, 5, 12), "cycle = 12 must be a multiple of every = 5"),
        ((1.0, 0, 12), "at least 1"),
        ((1.0, 5, 0), "cycle = 0"),
    ],
)
def test_stairs_without_meaning_are_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        Stairs(*settings)


def test_a_step_size_may_be_a_whole_number_however_large():
    """Found by fuzzing: such a number went past what torch takes."""
    for schedule in (Tuned(10**30, 0.3).bind(100, 1), Banded(10**30).bind(1000, 1)):
        assert torch.isfinite(next(iter(schedule.start(2).values()))).all()
