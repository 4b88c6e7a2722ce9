"""Schedules of one's own are checked as a plan is made, with what is wrong and where."""

from __future__ import annotations

import pytest
import torch

import mhrun
from mhrun.errors import Refusal
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.plan import Plan, Stateless
from mhrun.schedules.tuned import Tuned


class Own(Stateless):
    quantities = ("step_size",)

    def __init__(self, values):
        self.compute = values

    def values(self, memory, first_step, steps):
        return self.compute(torch.arange(first_step, first_step + steps, dtype=torch.float64))


def sizes(values):
    return {"step_size": values[:, None]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda t: sizes(0.1 / torch.arange(1.0, len(t) + 1)), "depend on how steps are divided into blocks"),
        (
            lambda t: sizes(torch.where(t > 50, torch.nan, 0.05 + 0 * t)),
            "step_size is nan at step 51; it must be",
        ),
        (
            lambda t: sizes(0.0205 - 0.001 * t),
            "step_size is -0.0005 at step 21; it must be positive and finite",
        ),
        (
            lambda t: {"step_size": 0 * t + 0.1},
            r"step_size of 90 steps of 3 chains has the shape \(90,\); it must",
        ),
        (
            lambda t: {"step_size": torch.ones(len(t), 2)},
            r"has the shape \(90, 2\); it must be \(90 or 1, 3 or 1\)",
        ),
        (lambda t: {"step_size": torch.ones(2, 3)}, r"has the shape \(2, 3\)"),
        (lambda t: {"step_size": 0.1}, "of 3 chains has float"),
        (
            lambda t: {"stepsize": 0 * t[:, None] + 1},
            "return stepsize, and its quantities are step_size; they must",
        ),
        (
            lambda t: sizes(t) | {"temperature": t[:, None]},
            "return step_size, temperature, and its quantities are step_size",
        ),
        (lambda t: 0.1, "return float, and its quantities are step_size"),
        (lambda t: sizes(1 / t.undefined), "failed at step 1: AttributeError: .*py, line "),
    ],
)
def test_a_wrong_schedule_is_refused(values, message):
    with pytest.raises(Refusal, match=f"schedule 'a': values of Own.*{message}"):
        Plan({"a": Own(values)}, 3, 10, 80)


@pytest.mark.parametrize(
    ("temperature", "message"),
    [(0.0, "temperature is 0 at step 1; it must be positive"), (float("inf"), "temperature is inf")],
)
def test_a_wrong_temperature_is_refused(temperature, message):
    class Hot(Own):
        quantities = ("temperature",)

    hot = Hot(lambda t: {"temperature": torch.full((1, 1), temperature)})
    with pytest.raises(Refusal, match=message):
        Plan({"b": hot, "a": Fixed(step_size=0.1)}, 3, 10, 80)


def test_a_fault_is_found_at_any_step():
    late = Own(lambda t: sizes(torch.where(t > 70_000, -1.0, 0.1 + 0 * t)))
    with pytest.raises(Refusal, match="step_size is -1 at step 70001; it must be positive"):
        Plan({"a": late}, 2, 0, 100_000)

    class Noise(Own):
        quantities = ("noise_temperature",)

    noise = Noise(lambda t: {"noise_temperature": torch.where(t == 3, -1.0, torch.nan + 0 * t)[:, None]})
    with pytest.raises(Refusal, match="noise_temperature is -1 at step 3; it must be at least 0"):
        Plan({"a": Fixed(step_size=0.1), "b": noise}, 2, 0, 9)


def test_rounding_of_float32_is_no_fault():
    plan = Plan({"a": Own(lambda t: sizes(0.1 * (1 + t.float()) ** -0.55))}, 2, 0, 100_000)
    assert plan.total == 100_000


class Adaptive(Tuned):
    """Knows its values for one window, as `Tuned` does."""

    def values(self, memory, first_step, steps):
        assert first_step + steps - 1 <= 50 or first_step > 100, "not known yet"
        return super().values(memory, first_step, steps)


def test_an_adaptive_schedule_is_evaluated_at_known_values_only():
    assert Plan({"a": Adaptive(0.1, 0.3)}, 2, 100, 400).lowest() == (1.0, 1.0)


def test_a_correct_schedule_is_taken_however_long():
    class Noise(Own):
        quantities = ("step_size", "noise_temperature")

    def values(t):
        return {
            "step_size": 1 / (1 + t[:, None] / torch.tensor([1.0, 2.0])),
            "noise_temperature": torch.full((1, 1), torch.nan),
        }

    plan = Plan({"a": Noise(values)}, 2, 0, 200_000)
    assert (
        plan.controls({}, 1, 3).step_size.tolist()
        == values(torch.arange(1.0, 4.0, dtype=torch.float64))["step_size"].tolist()
    )
    assert Plan({"a": Own(sizes)}, 1, 0, 1).total == 1


def test_python_gets_the_line_too():
    with pytest.raises(Refusal, match="values of Own return stepsize"):
        mhrun.sample(
            lambda theta: -0.5 * (theta**2).sum(),
            None,
            start=[0.0],
            step_size=Own(lambda t: {"stepsize": t}),
            steps=9,
        )
