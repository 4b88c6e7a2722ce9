"""What a comparison says: its finding, its table, doubts about the reference, and settings that differ."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from mhrun.cli.comparing import merged_by_method
from mhrun.report.comparison.compare import Comparison
from mhrun.report.comparison.notes import better, doubts, small_errors
from mhrun.report.comparison.page import finding, table
from mhrun.report.comparison.rows import Row, unlike


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({}, ""),
        ({"a": (1.3, 5.0), "b": (1.2, 4.0)}, "No method has converged: R-hat is 1.200 at least."),
        ({"a": (1.0, 5.0)}, "a has 5 effective draws per million evaluations."),
        (
            {"a": (1.0, 5.0), "b": (1.2, 9.0)},
            "a has 5 effective draws per million evaluations, and no other method has converged; not converged, "
            "but with more: b has 9 (R-hat 1.200).",
        ),
        (
            {"a": (1.0, 5.0), "b": (1.0, 9.0), "c": (1.0, 3.0)},
            "b has 9 effective draws per million evaluations, 1.800 times as many as the next of 3 "
            "that have converged.",
        ),
    ],
)
def test_the_finding_names_the_most_efficient_method_that_converged(rows, sentence):
    rows = {name: {"rhat": rhat, "ess_per_million": rate} for name, (rhat, rate) in rows.items()}
    assert finding(Comparison(rows, {}, [], None)) == sentence


def test_a_method_that_another_run_lacks_is_one_setting():
    others = [{"methods": {"mcmc": {}}}, {"methods": {"mcmc": {}, "smh2": {}}}]
    settings = {
        "methods.smh2.kernel.rule": 1,
        "seed": 3,
        "methods.smh2.target": 2,
        "methods.mcmc.kernel.m": None,
    }
    found = {"with smh2": None, "seed": 3, "methods.mcmc.kernel.m": "null"}
    assert merged_by_method(settings, others) == found


@pytest.mark.parametrize(
    ("schedules", "rungs", "same"),
    [
        ({"step_size": {"start": 0.1}}, 1, True),  # no temperature is a temperature of 1
        ({"temperature": {"temperature": 1}}, 1, True),
        ({"temperature": {"temperature": [1.0, 1.0, 1.0, 1.0]}}, 1, True),
        # The draws are of the coldest rung.
        ({"temperature": {"temperature": [1.0, 2.0, 1.0, 2.0]}}, 2, True),
        ({"temperature": {"temperature": [1.0, 2.0, 1.0, 2.0]}}, 1, False),
        ({"temperature": {"temperature": 2.0}}, 1, False),
        ({"temperature": {"at": [10], "temperature": [2.0, 1.0]}}, 2, False),
    ],
)
def test_the_temperature_of_draws_is_distinguished_only_where_it_differs(schedules, rungs, same):
    methods = {"one": {"schedules": {"temperature": {"temperature": 1.0}}}, "other": {"schedules": schedules}}
    config = {"model": {}, "data": {}, "target": {}, "methods": methods}
    run = SimpleNamespace(config=config, rungs=lambda name: rungs if name == "other" else 1)
    one, other = (Row(run, name, name) for name in methods)
    assert unlike(one, other) == ([] if same else ["temperature"])


@pytest.mark.parametrize(
    ("rhat", "line"),
    [
        (1.9, "R-hat 1.900: its chains have not converged, so that distances from it do not measure"),
        (1.05, "R-hat 1.050, above 1.01: a part of each distance may be its error"),
        (math.nan, "has no R-hat"),
    ],
)
def test_a_reference_that_has_not_converged_is_marked(rhat, line):
    assert line in doubts("a: mcmc", rhat)[0]
    assert doubts("a: mcmc", 1.005) == []


def test_a_better_reference_is_named():
    rows = {
        "mcmc": {"rhat": 1.02, "ess": 500.0, "target": "exact"},
        "sgld": {"rhat": 1.0, "ess": 5000.0, "target": "approximate"},
        "hmc": {"rhat": 1.001, "ess": 900.0, "target": "exact"},
        "mala": {"rhat": 1.0005, "ess": 90.0, "target": "exact"},
    }
    assert better(rows, "mcmc") == " Take hmc as the reference: it is exact, and its R-hat is 1.001."
    assert better(rows, "hmc") == ""
    assert "error. Take hmc" in doubts("mcmc", 1.02, better(rows, "mcmc"))[0]


def test_settings_of_the_computation_make_no_other_target():
    """SMH and MH-SS have a surrogate in their settings of the target, whose density is the same."""
    method = {"schedules": {}}
    config = {"model": {}, "data": {}, "target": {"temper": "posterior"}}
    config["methods"] = {
        "mcmc": method,
        "smh2": method | {"target": {"temper": "posterior", "surrogate": "taylor2"}},
        "cold": method | {"target": {"temper": "likelihood"}},
    }
    run = SimpleNamespace(config=config, rungs=lambda name: 1)
    mcmc, smh2, cold = (Row(run, name, name) for name in config["methods"])
    assert unlike(mcmc, smh2) == []
    assert unlike(mcmc, cold) == ["target"]


def test_the_efficiency_of_a_method_that_is_too_short_is_left_out_of_the_table():
    row = {"ess_per_million": 5.0, "ess_per_second": 2.0}
    rows = {"a": row | {"rhat": 1.0, "ess": 500.0}, "b": row | {"rhat": 1.02, "ess": 500.0}}
    frame = table(Comparison(rows | {"c": row | {"rhat": 1.0, "ess": 100.0}}, {}, [], None))
    assert [x is None for x in frame["ESS per second"]] == [False, True, True]
    assert [x is None for x in frame["ESS per 10^6 evaluations"]] == [False, True, True]


def test_the_finding_begins_with_the_verdicts():
    rows = {
        "a": {"rhat": 1.0, "ess_per_million": 5.0, "verdict": "reference"},
        "b": {"rhat": 1.0, "ess_per_million": 4.0, "verdict": "agrees"},
        "c": {"rhat": 1.2, "ess_per_million": 4.0, "verdict": "cannot tell"},
    }
    sentence = finding(Comparison(rows, {}, [], "a"))
    assert sentence.startswith(
        "1 method (b) agrees with a (to 0.25 sd); no verdict on 1 method (c) against a. a has 5 effective"
    )


def test_the_most_efficient_method_is_compared_with_those_that_are_right():
    row = {"rhat": 1.0, "ess": 900.0, "target": "exact"}
    rows = {
        "a": row | {"ess_per_million": 100.0, "verdict": "reference"},
        "b": row | {"ess_per_million": 50.0, "verdict": "differs", "target": "approximate"},
        "c": row | {"ess_per_million": 400.0, "verdict": "differs (short run)", "target": "approximate"},
        "d": row | {"ess_per_million": 20.0, "verdict": "agrees", "target": "approximate"},
    }
    sentence = finding(Comparison(rows, {}, [], "a"))
    assert "1 method (c) differs from a in a short run" in sentence
    assert (
        "a has 100 effective draws per million evaluations, 5 times as many as the next of 2 that are exact or agree."
        in sentence
    )
    for about in rows.values():
        del about["verdict"]
    assert (
        finding(Comparison(rows, {}, [], None))
        == "a has 100 effective draws per million evaluations, the only exact method that converged."
    )


def test_a_method_that_is_exact_by_declaration_is_compared_as_an_exact_one():
    common = {"rhat": 1.0, "ess": 900, "evaluations": 1e6}
    rows = {
        "a": {"target": "exact (declared)", "ess_per_million": 100, **common},
        "b": {"target": "approximate", "ess_per_million": 500, **common},
    }
    assert finding(Comparison(rows, {}, [], None)).endswith(
        "the only exact (declared) method that converged."
    )
    assert "Take a as the reference: it is exact (declared), and its R-hat" in better(rows, "b")
    rows["c"] = {"target": "exact", "ess_per_million": 50, **common, "rhat": 1.005}
    assert "Take c as the reference: it is exact, and its R-hat" in better(rows, "b")


def test_an_approximate_method_that_agrees_is_named_with_its_expected_error():
    class Run:
        def kind(self, method):
            return {"hmc": "exact"}.get(method, "approximate")

        def expected_error(self, method):
            return {"sgld_cv": "sd up to 5% too large by its settings if the posterior is normal"}.get(
                method, ""
            )

    rows = [Row(Run(), name, f"own: {name}") for name in ("hmc", "sgld_cv", "mint", "sgld")]
    verdicts = {"hmc": "agrees", "sgld_cv": "agrees", "mint": "agrees", "sgld": "differs"}
    found = {f"own: {name}": {"verdict": verdict} for name, verdict in verdicts.items()}
    (line,) = small_errors(found, rows, 0.1)
    assert line == (
        "Approximate, though they agree: own: sgld_cv (sd up to 5% too large by its settings if the "
        "posterior is normal), own: mint. A verdict "
        "does not see differences far below 0.1 sd."
    )
    assert small_errors(found, rows[::3], 0.1) == []
