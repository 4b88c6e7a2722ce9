"""Findings of sweeps, means over seeds, and equal settings."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from mhrun.diagnostics.grid import Estimate
from mhrun.report.declared import column_headings
from mhrun.report.sweep.build import job_warnings
from mhrun.report.sweep.text import SHORT, over_seeds, sweep_finding, sweep_warnings


def test_the_sentence_of_a_sweep_has_the_range_of_the_measure():
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2] * 3,
            "method": ["A", "A", "B", "B", "C", "C"],
            "tv": [Estimate(0.3, 0.01), Estimate(0.2, 0.01), 0.1, 0.4, 0.5, 0.5],
            "run": ["r"] * 6,
            SHORT: [False, True, False, False, True, True],
        }
    )
    config = {"report": {"metrics": "mint.figure1.metrics"}}
    assert sweep_finding(config, frame, ["lam"]) == (
        "Distance: B from 0.100 (lam = 0.1) to 0.400 (lam = 0.2); A from 0.200 ± 0.010 † (lam = 0.2) to 0.300 ± 0.010 "
        "(lam = 0.1)."
    )  # C is the same everywhere
    assert sweep_finding({}, frame, ["lam"]) == ""
    lines = sweep_warnings(frame, [("lam=0.1", ["a: noise"]), ("lam=0.2", [])])
    assert lines == [
        "R-hat above 1.01 or ESS below 400, too short to judge (†, open marks): A (1 of 2 jobs), C (2 of 2 jobs).",
        "lam=0.1: a: noise",
    ]


@pytest.mark.parametrize(
    ("values", "floors", "is_noise"),
    [
        ([0.054, 0.0675], [0.05, 0.06], True),  # two exact runs
        ([0.054, 0.2], [0.05, 0.06], False),
        ([Estimate(0.3, 0.1), Estimate(0.2, 0.1)], None, True),
        ([Estimate(0.3, 0.01), Estimate(0.2, 0.01)], None, False),
        ([0.3, 0.2], None, False),  # exact numbers
    ],
)
def test_a_range_within_monte_carlo_error_is_no_finding(values, floors, is_noise):
    frame = pd.DataFrame({"lam": [0.1, 0.2], "method": "A", "tv": values, SHORT: False})
    if floors:
        frame["tv_noise"] = floors
    found = sweep_finding({"report": {"metrics": "mint.figure1.metrics"}}, frame, ["lam"])
    assert ("no difference between settings beyond Monte Carlo error for A" in found) == is_noise
    assert ("A from" in found) != is_noise


def test_a_swept_seed_is_averaged_over():
    """The mean and the standard deviation over seeds, a row for each other setting; short if any seed is."""
    frame = pd.DataFrame(
        {
            "seed": [1, 1, 2, 2, 3, 3],
            "lam": [0.1, 0.2] * 3,
            "method": "A",
            "tv": [0.1, Estimate(0.4, 9.0), 0.2, 0.5, 0.3, None],
            "rhat": [None] * 6,
            "run": list("abcdef"),
            SHORT: [False, False, True, False, False, False],
        }
    )
    found, keys = over_seeds(frame, ["seed", "lam"])
    assert keys == ["lam"]
    assert found.columns.tolist() == ["lam", "method", "seeds", "tv", "rhat", SHORT]
    assert found["seeds"].tolist() == [3, 3]
    assert found["tv"].tolist() == [
        pytest.approx(Estimate(0.2, 0.1)),
        pytest.approx(Estimate(0.45, 0.05 * 2**0.5)),
    ]
    assert found["rhat"].tolist() == [None, None]
    assert found[SHORT].tolist() == [True, False]
    assert over_seeds(frame, ["lam"])[0] is frame
    config = {"report": {"metrics": "mint.figure1.metrics"}}
    assert sweep_finding(config, found, keys).endswith(
        "Distance: whether settings differ cannot be judged for A † (0.200 to 0.450; too short)."
    )


@pytest.mark.parametrize(
    ("short", "seeds", "words"),
    [
        (True, 4, "Distance: whether settings differ cannot be judged for A † (0.100 to 0.150; too short)."),
        (
            False,
            2,
            "Distance: whether settings differ cannot be judged for A (0.100 to 0.150; fewer than 3 seeds).",
        ),
        (
            False,
            4,
            "Distance: no difference between settings beyond Monte Carlo error for A (0.100 to 0.150; one above 0.262 "
            "would show).",
        ),
    ],
)
def test_equal_settings_are_a_finding_where_a_difference_would_show(short, seeds, words):
    """Not with draws that are too short, nor with two seeds; else the sentence has the critical value of the t-test."""
    assert pytest.approx(0.262, abs=1e-3) == 3.707 * 0.1 / 2**0.5  # t(6) at 0.5 %
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2],
            "method": "A",
            "tv": [Estimate(0.1, 0.1), Estimate(0.15, 0.1)],
            "seeds": seeds,
            SHORT: [False, short],
        }
    )
    assert sweep_finding({"report": {"metrics": "mint.figure1.metrics"}}, frame, ["lam"]) == words


@pytest.mark.parametrize(
    ("means", "deviation", "floors", "is_noise"),
    [
        (
            (0.114, 0.174),
            0.009,
            (0.11, 0.13),
            False,
        ),  # below the sum of the floors, and beyond what seeds differ by
        ((0.114, 0.134), 0.009, (0.11, 0.13), True),
        ((0.114, 0.174), 0.009, (0.08, 0.14), True),  # no more than the floors differ by
    ],
)
def test_over_seeds_noise_is_judged_by_the_spread_between_seeds(means, deviation, floors, is_noise):
    frame = pd.DataFrame(
        {
            "lam": [0.1, 0.2],
            "method": "A",
            "tv": [Estimate(mean, deviation) for mean in means],
            "tv_noise": [Estimate(floor, 0.001) for floor in floors],
            "seeds": 4,
            SHORT: False,
        }
    )
    found = sweep_finding({"report": {"metrics": "mint.figure1.metrics"}}, frame, ["lam"])
    assert ("no difference between settings" in found) == is_noise


def test_headings_of_a_sweep_are_those_of_the_experiment():
    config = {"report": {"metrics": "mint.figure1.metrics"}}
    found = column_headings(config, ["lam", "method", "accept_rate", "tv", "mint.tv", "own"])
    assert found == {
        **{name: name for name in ("lam", "method", "own")},
        "accept_rate": "acceptance",
        "tv": "distance",
        "mint.tv": "mint: distance",
    }


def test_warnings_that_are_alike_in_several_jobs_are_shown_once():
    def job(number, *lines):
        summary = {"methods": {"a": {"warnings": list(lines)}}}
        folder = SimpleNamespace(summary=lambda: summary)
        return SimpleNamespace(number=number, has_run=True, overrides=[f"m={number}"], folder=folder)

    noise = [
        "a: the noise has sd 1.07 (m = 100).",
        "a: the noise has sd 2 (m = 10).",
        "a: noise has sd 3e-5.",
    ]
    jobs = [
        job(0, noise[0], noise[2]),
        job(1),
        job(2, noise[1]),
        job(3, noise[0], "a: of 4 chains, 2 stopped."),
    ]
    assert list(job_warnings(jobs)) == [
        ("m=0", [f"{noise[0]} (Likewise in 2 more jobs.)", noise[2]]),
        ("m=1", []),
        ("m=2", []),
        ("m=3", ["a: of 4 chains, 2 stopped."]),
    ]
