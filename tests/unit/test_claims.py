"""Claims are judged by the rules that are written beside them."""

from __future__ import annotations

import re

import pytest

from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError
from mhrun.paths import EXPERIMENTS
from mhrun.report.claims.judge import claims_of, judge_all, judge_claim, read_claims
from mhrun.report.claims.rules import check_rule, describe_rule, is_close, is_noisy, satisfied
from mhrun.report.claims.verdicts import JUDGED, NOT_AT_SCALE, count


@pytest.mark.parametrize(
    ("rule", "value", "se", "holds"),
    [
        ({"equals": 1}, 1.0, None, True),
        ({"equals": 1}, 2.0, None, False),
        ({"below": 0.02}, 0.0199, None, True),
        ({"below": 0.02}, 0.02, None, False),
        ({"above": 3}, 3.1, None, True),
        ({"between": [0.4, 0.6]}, 0.6, None, True),
        ({"between": [0.4, 0.6]}, 0.61, None, False),
        ({"near": 1, "at_most": 0.2}, 1.2, None, True),
        ({"near": 1, "at_most": 0.2}, 0.79, None, False),
        ({"near": 1, "standard_errors": 3}, 1.29, 0.1, True),
        ({"near": 1, "standard_errors": 3}, 1.31, 0.1, False),
        ({"near": 1, "standard_errors": 3}, 1.0, None, False),
        ({"near": 1, "at_most": 0.2, "standard_errors": 3}, 1.25, 0.1, False),
        # 1.8 - 1.4 is 0.4 but for rounding, and so on.
        ({"near": 1.8, "at_most": 0.4}, 1.4, None, True),
        ({"near": 1.8, "at_most": 0.4}, 1.4 - 1e-12, None, False),
        ({"near": 1.8, "standard_errors": 4}, 1.4, 0.1, True),
        ({"equals": 0.3}, 0.1 + 0.2, None, True),
        ({"below": 0.1 + 0.2}, 0.3, None, False),
        ({"above": 0.3}, 0.1 + 0.2, None, False),
        ({"between": [0, 0.3]}, 0.1 + 0.2, None, True),
        ({"between": [0.1 + 0.2, 1]}, 0.3, None, True),
        ({"equals": 0.3}, float("inf"), None, False),
    ],
)
def test_rules(rule, value, se, holds):
    assert satisfied(rule, value, se) == holds
    assert describe_rule(rule)


def test_a_standard_error_beyond_the_tolerance_is_noise():
    assert is_noisy({"near": 1, "at_most": 0.2}, 0.51)
    assert is_noisy({"between": [0.4, 0.6]}, 0.11)
    assert not is_noisy({"near": 1, "at_most": 0.2}, 0.19)
    assert not is_noisy({"near": 1, "standard_errors": 3}, 9.0)
    assert not is_noisy({"below": 1}, 9.0)
    assert not is_noisy({"near": 1, "at_most": 0.2}, None)


def test_a_number_within_a_standard_error_of_a_limit_is_close():
    """Chance decides such a verdict: 0.99001 +- 0.00046 is above 0.99."""
    assert is_close({"above": 0.99}, 0.99001, 0.00046)
    assert not is_close({"above": 0.99}, 0.991, 0.00046)
    assert is_close({"below": 1}, 1.01, 0.02)
    assert is_close({"between": [0.3, 0.4]}, 0.405, 0.01)
    assert not is_close({"between": [0.3, 0.4]}, 0.35, 0.01)
    assert is_close({"near": 3, "at_most": 0.5}, 2.49, 0.02)
    assert not is_close({"near": 3, "standard_errors": 2}, 2.49, 0.02)
    assert not is_close({"above": 0.99}, 0.99001, None)
    assert not is_close({"above": 0.99}, None, None)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "a rule needs equals"),
        ({"near": 1}, "a rule needs equals"),
        ({"at_most": 1}, "a rule needs equals"),
        ({"below": 1, "at_most": 1}, "at_most requires near"),
        ({"bellow": 1}, "there is no rule 'bellow'. Did you mean 'below'?"),
        ({"below": [0.1]}, "below = [0.1] must be a number"),
        ({"above": "1"}, "above = '1' must be a number"),
        ({"equals": True}, "equals = True must be a number"),
        ({"between": 3}, "between = 3 must be [low, high]"),
        ({"between": [1, 2, 3]}, "between = [1, 2, 3] must be [low, high]"),
        ("below 1", "the rule must be a group of conditions"),
        ({"above": 2, "below": 1}, "no number satisfies above 2, below 1"),
        ({"above": 1, "below": 1}, "no number satisfies"),
        ({"between": [0.6, 0.4]}, "no number satisfies between 0.6 and 0.4"),
        ({"near": 1, "at_most": -0.1}, "no number satisfies 1, within -0.1"),
        ({"near": 1, "at_most": 0.1, "above": 1.2}, "no number satisfies"),
    ],
)
def test_rules_that_say_nothing_or_cannot_hold_are_refused(rule, message):
    with pytest.raises(UserError, match=re.escape(f"claim x: {message}")):
        check_rule(rule, "x")


PAPER = {
    "experiment": "gmm_tied_means",
    "report": {"paper": "mint"},
    "runtime": {"departures": []},
}


def verdicts(metrics, departures=()):
    runtime = {} if departures is None else {"departures": list(departures)}
    return {claim.id: claim for claim in judge_all(PAPER | {"runtime": runtime}, metrics)}


METRICS = {"mint.tv": 0.01, "mint_stored.tv": 0.06, "mint.mode_ratio": Estimate(1.02, 0.05)}


def test_verdicts_at_the_papers_settings():
    found = verdicts(METRICS)
    assert found["f1l-close"].verdict == "reproduced"
    assert found["f1l-close-stored"].verdict == "not reproduced"
    assert found["f1r-ratio"].verdict == "reproduced"
    assert not found["f1r-ratio"].why


@pytest.mark.parametrize(
    ("departures", "why"),
    [
        (["lam = 0.35 (paper: 0.25)"], "other settings than the paper's: lam = 0.35 (paper: 0.25)"),
        (["scale = quick (paper: paper)"], "other settings than the paper's: scale = quick"),
        (
            ["scale = quick", "a = 1 (paper: 2)", "b = 1 (paper: 2)", "c = 1 (paper: 2)", "d = 0 (paper: 2)"],
            "other settings than the paper's: scale = quick, a = 1 (paper: 2), b = 1 (paper: 2), and 2 more",
        ),
        (None, "settings could not be compared"),
    ],
)
def test_no_verdict_at_other_settings(departures, why):
    """Any setting counts, not some that a list names."""
    found = verdicts(METRICS, departures)
    judged = {claim.verdict for claim in found.values() if claim.id != "f1r-hit"}  # which is never judged
    assert judged == {"not run at paper scale", "self-check not run"}
    assert found["f1l-close"].why == why
    assert found["f1l-close"].holds
    assert not found["f1l-close-stored"].holds


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        (1.0, "no number"),
        (Estimate(1.0, float("nan")), "no number"),
        (Estimate(1.0, 0.1), "reproduced"),
        (Estimate(2.0, 0.1), "not reproduced"),
    ],
)
def test_a_rule_in_standard_errors_needs_one(number, verdict):
    """Without it nothing is known, neither that the claim holds nor that it does not."""
    claim = {
        "id": "ratio",
        "artefact": "Figure 1",
        "quantity": "ratio",
        "paper": 1.0,
        "metric": "mint.ratio",
        "rule": {"near": 1.0, "standard_errors": 3},
    }
    judged = judge_claim(claim, "", {"mint.ratio": number})
    assert judged.verdict == verdict
    assert (judged.why == "mint.ratio has no standard error, as Estimate(value, se) has") == (
        verdict == "no number"
    )
    misspelt = judge_claim(claim | {"metric": "mint.ratios"}, "", {"mint.ratio": number})
    assert misspelt.why == "this run has no mint.ratios. Did you mean 'mint.ratio'?"


def test_a_number_that_is_missing_and_one_that_is_none():
    left_out = verdicts(METRICS)["f1r-sgld"]
    assert left_out.verdict == "no number"
    assert left_out.why == "this run has no sgld.modes_visited_most"
    assert left_out.holds is None
    for value in (float("nan"), float("inf"), Estimate(float("nan"), 0.1)):
        broken = verdicts(METRICS | {"mint.tv": value})["f1l-close"]
        assert broken.verdict == "not reproduced"
        assert broken.why == "mint.tv is not a finite number"
        assert broken.holds is False


BOOK = """
paper: {key: p, title: T, authors: A, year: 2020, where: W}
experiments:
  of_the_paper:
    claims:
      - {id: one, artefact: a, quantity: q, paper: 1, metric: x, rule: {below: 1}}
      - {id: own, artefact: a, quantity: q, paper: 1, metric: x, rule: {below: 1}, self_check: true}
      - {id: wrong, artefact: a, quantity: q, paper: 1, metric: x, rule: {above: 1}, self_check: true}
      - {id: late, artefact: a, quantity: q, paper: 1, metric: x, rule: {above: 1}, revised: it was above 2}
      - {id: other, artefact: a, quantity: q, paper: 1, metric: x, rule: {below: 1}, not_judged: another model}
  of_our_own:
    not_judged: own settings
    claims:
      - {id: one, artefact: a, quantity: q, paper: 1, metric: x, rule: {below: 1}}
  wrong:
    claims:
      - {id: one, artefact: a, quantity: q, paper: 1, metric: x, rule: {below: 1}, selfcheck: true}
"""


@pytest.fixture
def book(tmp_path, monkeypatch):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "claims.yaml").write_text(BOOK)
    monkeypatch.setattr("mhrun.report.claims.judge.EXPERIMENTS", tmp_path)
    monkeypatch.setattr("mhrun.report.claims.judge.CONF", tmp_path)
    (tmp_path / "experiment").mkdir()
    for name in ("of_the_paper", "of_our_own", "wrong"):
        (tmp_path / "experiment" / f"{name}.yaml").touch()

    def judged(experiment, departures=()):
        config = {
            "experiment": experiment,
            "report": {"paper": "p"},
            "runtime": {"departures": list(departures)},
        }
        return {claim.id: claim for claim in judge_all(config, {"x": 0.5})}

    return judged


def test_self_checks_and_what_cannot_be_judged_are_not_counted(book):
    found = book("of_the_paper")
    assert {name: claim.verdict for name, claim in found.items()} == {
        "one": "reproduced",
        "own": "self-check passed",
        "wrong": "self-check failed",
        "late": "not reproduced",
        "other": "not judged",
    }
    verdicts = [claim.verdict for claim in found.values()]
    assert count(verdicts) == count(verdicts, among=JUDGED) == (1, 2)
    assert count([*verdicts, NOT_AT_SCALE]) == (1, 3)
    assert count([*verdicts, NOT_AT_SCALE], among=JUDGED) == (1, 2)
    assert found["late"].revised == "it was above 2"
    assert found["other"].why == "another model"
    assert found["other"].holds is True
    elsewhere = book("of_the_paper", ["scale = quick"])
    assert elsewhere["own"].verdict == "self-check not run"
    assert elsewhere["other"].verdict == "not judged"


def test_an_experiment_with_settings_of_its_own_gives_no_verdict(book):
    assert [claim.verdict for claim in book("of_our_own").values()] == ["not judged"]


def test_keys_of_claims_are_checked(book):
    with pytest.raises(UserError, match=r"claim one: there is no key 'selfcheck'.*self_check"):
        book("wrong")


def test_claims_on_an_experiment_that_does_not_exist_are_refused_in_one_line(book, tmp_path):
    (tmp_path / "experiment" / "of_our_own.yaml").rename(tmp_path / "experiment" / "of_our_owm.yaml")
    with pytest.raises(UserError) as refusal:
        book("of_the_paper")
    (line,) = str(refusal.value).splitlines()
    assert "experiments.of_our_own is not an experiment. Did you mean 'of_our_owm'? Mend " in line
    path = tmp_path / "p" / "claims.yaml"
    path.write_text("paper: {}\nexperiments: {}\nsweeps: {of_thepaper: {}}\n")
    with pytest.raises(
        UserError, match=r"sweeps\.of_thepaper is not an experiment\. Did you mean 'of_the_paper'\?"
    ):
        read_claims(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep: {wrong: {}}", r"there is no group 'sweep'\. Did you mean 'sweeps'\? Mend "),
        ("sweeps: {wrong: {claim: []}}", r"sweeps\.wrong has no key 'claim'\. Did you mean 'claims'\? Mend "),
    ],
)
def test_groups_and_keys_that_nothing_reads_are_refused(book, tmp_path, text, message):
    path = tmp_path / "p" / "claims.yaml"
    path.write_text(f"paper: {{}}\nexperiments: {{wrong: {{over: {{}}}}}}\n{text}\n")
    with pytest.raises(UserError, match=r"experiments\.wrong has no key 'over'|there is no group"):
        read_claims(path)
    path.write_text(f"paper: {{}}\nexperiments: {{}}\n{text}\n")
    with pytest.raises(UserError, match=message):
        read_claims(path)


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*/claims.yaml")), ids=lambda path: path.parent.name)
def test_the_claims_of_every_paper_can_be_read(path):
    declared = read_claims(path)
    for group in ("experiments", "sweeps"):
        for name, node in (declared.get(group) or {}).items():
            claims = claims_of(node)
            for claim in claims:
                check_rule(claim["rule"], claim["id"])
            assert len({claim["id"] for claim in claims}) == len(claims), f"{group}.{name}"


@pytest.mark.parametrize("claims", [{"id": "c"}, ["c"], "c"])
def test_claims_that_are_no_list_of_mappings_are_refused_in_one_line(claims):
    with pytest.raises(UserError, match=r"`claims` must be a list: each claim begins with '- id: NAME'\."):
        claims_of({"claims": claims})
    assert claims_of({"claims": None}) == []
