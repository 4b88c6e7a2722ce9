"""The report: claims judged by their rules, tables in four kinds, figures that show something."""

from __future__ import annotations

import json
import re

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from runs import compute

from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError
from mhrun.report.build import build_report
from mhrun.report.claims import in_words, judge_all, satisfied
from mhrun.report.tables import markdown, shown, write_table
from mhrun.store.folder import RunFolder


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
    ],
)
def test_rules(rule, value, se, holds):
    assert satisfied(rule, value, se) == holds
    assert in_words(rule)


@pytest.mark.parametrize("rule", [{}, {"bellow": 1}, {"near": 1}, {"at_most": 1}])
def test_rules_that_say_nothing_are_refused(rule):
    with pytest.raises(UserError, match="claim x"):
        satisfied(rule, 1.0, None, "x")


PAPER = {
    "experiment": "gmm_tied_means",
    "scale": "paper",
    "report": {"paper": "mint"},
    "data": {"n": 1000000},
    "tau": 0.5,
    "lam": 0.25,
    "m": 1000,
    "target": {"temper": "posterior"},
}


def verdicts(config, metrics):
    return {claim.id: claim for claim in judge_all(config, metrics)}


def test_verdicts_are_given_at_the_papers_scale_and_settings_only():
    metrics = {"mint.tv": 0.01, "mint_stored.tv": 0.06, "mint.mode_ratio": Estimate(1.02, 0.05)}
    found = verdicts(PAPER, metrics)
    assert found["f1l-close"].verdict == "reproduced"
    assert found["f1l-close-stored"].verdict == "not reproduced"
    assert found["f1r-ratio"].verdict == "reproduced"
    assert found["f1r-sgld"].verdict == "not run at paper scale"  # there is no number
    quick = verdicts(PAPER | {"scale": "quick"}, metrics)
    assert quick["f1l-close"].verdict == "not run at paper scale"
    assert quick["f1l-close"].holds
    assert not quick["f1l-close-stored"].holds
    other = verdicts(PAPER | {"lam": 0.35}, metrics)
    assert "lam = 0.35 (paper: 0.25)" in other["f1l-close"].why
    nothing = verdicts(PAPER, {"mint.tv": float("nan")})
    assert nothing["f1l-close"].holds is None


def test_values_for_people():
    assert shown(Estimate(1.02345, 0.0512)) == "1.023 ± 0.051"
    assert shown(Estimate(1.0, float("nan"))) == "1"
    assert shown(0.01234) == "0.0123"
    assert shown(1.0004) == "1.000"
    assert shown(2.1e12) == "2,100,000,000,000"
    assert shown(None) == "–"
    assert shown(float("nan")) == "–"
    assert shown(True) == "yes"
    assert shown(12345) == "12,345"


def test_tables_in_every_kind(tmp_path):
    frame = pd.DataFrame({"a|b": [Estimate(1.5, 0.1), None], "c": [0.25, 1e6]}, index=["x_1", "y & z"])
    write_table(frame, tmp_path / "t")
    csv = pd.read_csv(tmp_path / "t.csv", index_col=0)
    assert csv.loc["x_1", "a|b"] == 1.5
    assert csv.loc["x_1", "a|b (se)"] == 0.1
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    latex = (tmp_path / "t.tex").read_text()
    assert r"x\_1" in latex
    assert r"y \& z" in latex
    assert r"$\pm$" in latex
    assert markdown(pd.DataFrame({"a": ["1"]}, index=["i"])).startswith("|")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = compute(tmp_path_factory.mktemp("reported"))
    build_report(folder)
    return folder


def test_the_report_has_everything(reported):
    for name in ("density", "mode_ratio", "one_mode"):
        pixels = matplotlib.image.imread(reported.report / f"{name}.png")
        assert pixels.shape[0] > 200
        assert np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0).shape[0] > 50
        assert (reported.report / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in ("methods", "claims", "distances", "modes"):
        for kind in ("csv", "md", "tex"):
            assert (reported.report / f"{name}.{kind}").stat().st_size > 50
    page = (reported.report / "index.html").read_text()
    assert page.count("<img") == 3
    assert "http://" not in page
    assert "https://" not in page
    for claim in judge_all(reported.config(), {}):
        assert claim.id in page


def test_numbers_and_verdicts_go_into_the_summary(reported):
    summary = json.loads((reported.path / "summary.json").read_text())
    assert {"id", "paper", "ours", "verdict"} <= set(summary["claims"][0])
    assert summary["metrics"]["mint.accept_rate"] == summary["methods"]["mint"]["accept_rate"]
    assert summary["metrics"]["sgld.modes_visited_most"] == 1
    assert set(summary["metrics"]["mint.chi2"]) == {"value", "se"}
    assert all(claim["verdict"] == "not run at paper scale" for claim in summary["claims"])


def test_a_report_made_again_is_the_same(reported):
    before = {
        p.name: p.read_bytes() for p in reported.report.iterdir() if p.suffix in (".csv", ".md", ".png")
    }
    build_report(RunFolder(reported.path))
    assert {name: (reported.report / name).read_bytes() for name in before} == before


def test_text_from_a_configuration_is_escaped(outputs):
    folder = compute(outputs, "title='<script>alert(1)</script>'")
    page = build_report(folder).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_an_incomplete_run_has_no_report(tmp_path):
    with pytest.raises(UserError, match="not complete"):
        build_report(RunFolder(tmp_path))
