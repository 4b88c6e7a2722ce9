"""Which settings are numbers, and whole ones; how numbers are shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mhrun.diagnostics.grid import Estimate, number_of
from mhrun.errors import Refusal
from mhrun.numbers import in_figures, is_number, is_whole, scientific, whole_number


@pytest.mark.parametrize(
    ("value", "number", "whole"),
    [
        (3, True, True),
        (1e6, True, True),
        (np.int32(3), True, True),
        (np.float32(2.0), True, True),
        (0.5, True, False),
        (math.nan, True, False),
        (math.inf, True, False),
        (True, False, False),
        (np.bool_(True), False, False),
        ("3", False, False),
        (None, False, False),
        (3 + 0j, False, False),
        ([3], False, False),
        (torch.tensor(3), False, False),
    ],
)
def test_kinds_of_values(value, number, whole):
    assert is_number(value) is number
    assert is_whole(value) is whole


def test_a_whole_number_is_an_int_of_python():
    assert type(whole_number("m", np.int64(4), least=4)) is int
    assert type(whole_number("m", 1e6)) is int
    assert whole_number("m", -3) == -3


@pytest.mark.parametrize(
    ("value", "settings", "text"),
    [
        (0, {"least": 1}, "m = 0 must be a whole number, at least 1."),
        (2.5, {"other": "auto"}, "m = 2.5 must be a whole number, or auto."),
        (True, {"least": 1, "other": "null"}, "m = True must be a whole number, at least 1, or null."),
    ],
)
def test_text_of_other_values(value, settings, text):
    with pytest.raises(Refusal) as refused:
        whole_number("m", value, **settings)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("value", "plain", "exponent"),
    [
        (0.31234, "0.31", "3.1e-1"),
        (48, "48", "4.8e1"),
        (1_730, "1,700", "1.7e3"),
        (481_000.0, "4.8e5", "4.8e5"),
        (1e9, "1e9", "1e9"),
        (-3.04e-5, "-3e-5", "-3e-5"),
        (0.0, "0", "0e0"),
        (math.inf, "inf", "inf"),
    ],
)
def test_numbers_are_shown_without_zeros_that_say_nothing(value, plain, exponent):
    assert in_figures(value, 2) == plain
    assert scientific(value, 2) == exponent


def test_the_number_of_a_value():
    assert number_of(Estimate(2.0, 0.1)) == 2.0
    assert number_of(np.float32(3.0)) == 3.0
    assert math.isnan(number_of(None))
    assert math.isnan(number_of("none"))
