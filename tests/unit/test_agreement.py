"""The verdicts of a comparison: agrees, differs, cannot tell, another distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mhrun.diagnostics.chains import worth
from mhrun.diagnostics.distances import Shifts, evenly_spaced, shifts
from mhrun.report.comparison.agreement import (
    FALSE_ALARM,
    RELEVANT,
    agreement,
    critical_value,
    is_usable,
    judge,
    problems_of,
    rule_of,
    short_limit_of,
)

NAMES = ["a", "b"]
LIMIT = critical_value(4)
LONG = {"rhat": 1.0, "ess": 9_000.0}


def shift(mean=(0.0, 0.0), mean_se=0.03, spread=(1.0, 1.0), spread_se=0.02):
    return Shifts(np.array(mean), np.full(2, mean_se), np.array(spread), np.full(2, spread_se))


def test_half_of_a_spread_is_further_off_than_three_fifths_more():
    assert shift(spread=(0.5, 1.6)).worst()[1].value == 0.5


def test_the_points_of_a_distance_are_spread_over_the_whole_chain():
    assert evenly_spaced(np.arange(8192.0), 2).tolist() == list(range(0, 8192, 4))


def test_with_a_tolerance_only_what_is_beyond_it_matters():
    """Errors of 0.03 show no difference of 0.05; smaller ones show that one of 0.05 is within 0.1."""
    assert agreement(shift(), NAMES, LIMIT, [], [], tolerance=0.05).label == "cannot tell"
    precise = shift(mean=(0.0, 0.05), mean_se=0.01, spread_se=0.01)
    assert agreement(precise, NAMES, LIMIT, [], []).label == "differs"
    assert agreement(precise, NAMES, LIMIT, [], [], tolerance=0.1) == ("agrees", "")
    far = shift(mean=(0.0, 0.08), mean_se=0.01, spread_se=0.01)  # 0.08 and its error may be more than 0.1
    assert agreement(far, NAMES, LIMIT, [], [], tolerance=0.1).label == "differs"
    assert agreement(shift(spread=(0.85, 1.0)), NAMES, LIMIT, [], [], tolerance=0.3) == ("agrees", "")
    text = rule_of(1, 2, LIMIT, "r", tolerance=0.1)
    assert "every difference is below 0.1 sd" in text
    assert "0.25" not in text


@pytest.mark.parametrize(
    ("found", "word", "why"),
    [
        (shift(), "agrees", ""),
        (shift(mean=(0.0, 0.09)), "agrees", ""),  # three errors: within the limit for four quantities
        (shift(mean=(0.0, -0.3)), "differs", "the mean of b is off by -0.30 sd, 10.0 Monte Carlo errors"),
        (shift(spread=(0.8, 1.0)), "differs", "the sd of a is 0.80 times as large, 8.9 Monte Carlo errors"),
        (
            shift(mean=(0.1, 0.0), mean_se=0.2),
            "cannot tell",
            "too few draws: the mean of a could be off by 0.60 sd unseen",
        ),
        (shift(mean_se=math.nan), "cannot tell", "the mean of a has no Monte Carlo error"),
        (shift(mean=(2.0, 0.0), mean_se=0.2), "differs", "the mean of a is off by 2.00 sd"),
    ],
)
def test_a_verdict_compares_means_and_standard_deviations(found, word, why):
    verdict = agreement(found, NAMES, LIMIT, [], [])
    assert (verdict.label, verdict.why[: len(why)]) == (word, why)


def test_errors_that_cannot_be_trusted_give_no_verdict_and_another_target_is_named_first():
    far = shift(mean=(5.0, 0.0))
    assert agreement(far, NAMES, LIMIT, ["R-hat 1.300"], []) == ("cannot tell", "R-hat 1.300")
    assert agreement(far, NAMES, LIMIT, ["R-hat 1.300"], ["T = 5"]) == ("another distribution", "T = 5")
    assert problems_of({"rhat": 1.3, "ess": 12.0}, "reference: ") == [
        "reference: R-hat 1.300",
        "reference: ESS 12",
    ]
    assert problems_of({"rhat": math.nan, "ess": 900.0}) == ["R-hat is undefined"]
    assert problems_of({"rhat": None, "ess": None}) == ["R-hat is undefined"]
    assert problems_of({"rhat": 1.009, "ess": 400.0}) == []


def test_a_very_large_difference_of_a_short_run_counts():
    short = {"rhat": 1.024, "ess": 9_000.0}

    def of(found, worth, another=()):
        return judge({"a": found}, NAMES, {"a": worth}, "r", LONG, {"a": another})

    far, near = shift(spread=(0.763, 1.0), spread_se=0.021), shift(spread=(0.9, 1.0), spread_se=0.021)
    verdicts = of(far, short)
    assert verdicts.judged == 0
    assert verdicts.by_method["a"].label == "differs (short run)"
    assert verdicts.by_method["a"].why == (
        "the sd of a is 0.76 times as large, 9.8 Monte Carlo errors, in spite of R-hat 1.024"
    )
    assert "more than 6.0 Monte Carlo errors" in verdicts.rule
    assert of(near, short).by_method["a"] == ("cannot tell", "R-hat 1.024")
    worthless = {"rhat": 1.2, "ess": 9_000.0}  # its errors are
    assert of(far, worthless).by_method["a"].label == "cannot tell"
    of_short_reference = judge({"a": far}, NAMES, {"a": LONG}, "r", worthless, {})
    assert of_short_reference.by_method["a"] == ("cannot tell", "reference: R-hat 1.200")
    assert of(far, short, ["T = 5"]).by_method["a"].label == "another distribution"
    assert [
        is_usable({"rhat": r, "ess": e}) for r, e in ((1.1, 100.0), (1.11, 900.0), (1.0, 90.0), (None, 500.0))
    ] == [
        True,
        False,
        False,
        False,
    ]
    assert short_limit_of(2) == 6
    assert short_limit_of(1000) > 6.5


def test_short_runs_of_one_distribution_do_not_differ():
    """Pairs of AR(1) chains with some 160 effective draws each, R-hat up to 1.1; the seed is fixed."""
    rng = np.random.default_rng(11)
    rho, kept = 0.95, 0
    noise = rng.normal(size=(1600, 8, 30)) * math.sqrt(1 - rho**2)
    for t in range(1, len(noise)):
        noise[t] += rho * noise[t - 1]
    draws = noise.transpose(1, 0, 2)
    for d in range(draws.shape[-1]):
        one, other = draws[:4, :, d : d + 1], draws[4:, :, d : d + 1]
        kept += is_usable(worth(one)) and is_usable(worth(other))
        verdicts = judge({"m": shifts(one, other)}, ["x"], {"m": worth(one)}, "r", worth(other), {})
        assert verdicts.by_method["m"].label == "cannot tell"
    assert kept > 5


def test_the_false_alarm_probability_is_shared_by_the_methods_that_can_be_judged():
    moved = {"good": shift(), "bad": shift(), "hot": shift()}
    worths = dict.fromkeys(moved, LONG)
    verdicts = judge(
        moved, NAMES, worths | {"bad": {"rhat": 1.0, "ess": 3.0}}, "a: mcmc", LONG, {"hot": ["T = 5"]}
    )
    assert (verdicts.judged, verdicts.limit) == (1, LIMIT)
    words = [verdict.label for verdict in verdicts.by_method.values()]
    assert words == ["agrees", "cannot tell", "another distribution"]
    assert judge(moved, NAMES, worths, "a: mcmc", LONG, {}).limit == pytest.approx(critical_value(12))
    assert "2 coordinates of 1 method against a: mcmc" in verdicts.rule
    assert f"the probability of any such verdict is at most {FALSE_ALARM:g}" in rule_of(
        1, 2, LIMIT, "a: mcmc"
    )


@pytest.mark.parametrize(
    ("mean", "sd", "word"), [(0.0, 1.0, "agrees"), (RELEVANT, 1.0, "differs"), (0.0, 1.25, "differs")]
)
def test_draws_of_correlated_chains_get_the_right_verdict(mean, sd, word):
    """AR(1) chains of about 2,600 effective draws; the seed is fixed, and a false alarm has a probability of 0.01."""
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(1200, 8, 2))
    for t in range(1, len(noise)):
        noise[t] = 0.5 * noise[t - 1] + math.sqrt(0.75) * noise[t]
    draws = noise.transpose(1, 0, 2)
    found = shifts(mean + sd * draws[:4], draws[4:])
    assert agreement(found, NAMES, LIMIT, [], []).label == word


@pytest.mark.parametrize(
    ("name", "verdict", "least"),
    [
        ("cauchy", "cannot tell", 100),
        ("t2", "cannot tell", 85),
        ("t4", "agrees", 95),
        ("lognormal", "agrees", 95),
    ],
)
def test_tails_without_a_variance_are_not_compared(rng, name, verdict, least):
    """Of 100 pairs of one distribution; a Cauchy's means differed in 29 of 100, by errors that mean nothing."""
    draw = {
        "cauchy": lambda: rng.standard_cauchy((4, 1_000, 1)),
        "t2": lambda: rng.standard_t(2, (4, 1_000, 1)),
        "t4": lambda: rng.standard_t(4, (4, 1_000, 1)),
        "lognormal": lambda: np.exp(0.5 * rng.normal(size=(4, 1_000, 1))),
    }[name]
    words = [agreement(shifts(draw(), draw()), ["a"], critical_value(2), [], []).label for _ in range(100)]
    assert words.count(verdict) >= least
    assert words.count("differs") <= 4  # of 100 with probability 0.01: 5 or more with probability 0.003


def test_heavy_tails_hide_no_other_difference_and_light_ones_differ_from_heavy_ones(rng):
    both = np.concatenate([rng.standard_cauchy((4, 1_000, 1)), rng.normal(size=(4, 1_000, 1))], -1)
    moved = np.concatenate([rng.standard_cauchy((4, 1_000, 1)), rng.normal(1.0, size=(4, 1_000, 1))], -1)
    found = agreement(shifts(moved, both), NAMES, LIMIT, [], [])
    assert found.label == "differs"
    assert "the mean of b" in found.why
    assert not shifts(both[..., ::-1], both).heavy.any()  # each coordinate has one side without them


def test_a_chain_that_stands_still_at_an_extreme_has_no_tail_index(rng):
    """One of four is frozen beyond all others' draws, so that all draws of the upper tail are equal."""
    stuck = rng.normal(size=(4, 500, 1))
    stuck[0] = 6.0
    found = shifts(stuck, rng.normal(size=(4, 500, 1)))
    assert np.isfinite(found.mean).all()
    assert not found.heavy.any()
    assert not shifts(np.arange(4.0)[:, None, None] + np.zeros((4, 500, 1)), stuck).heavy.any()
