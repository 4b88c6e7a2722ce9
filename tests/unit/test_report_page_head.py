"""The head of a report's page: what was found, and what is doubtful about it."""

import re

from mhrun.report.claims.evidence import Evidence
from mhrun.report.page import template


def head_of(n_failed, has_notes):
    failed = [f"claim {i}" for i in range(n_failed)]
    status = Evidence("verdict", f"0 of {n_failed} claims reproduced.", failed=failed)
    markup = str(template("head.html.j2").module.status_line(status, has_notes))  # type: ignore[attr-defined]
    return re.sub(r"\s+", " ", markup)


def test_of_many_claims_the_first_are_shown_and_the_rest_is_one_click_away():
    markup = head_of(14, has_notes=True)
    assert markup.count("not reproduced") == 3
    assert '<a href="#claims">11 more</a>' in markup
    assert '<a href="#notes">' in markup


def test_a_few_claims_are_all_shown():
    markup = head_of(4, has_notes=False)
    assert markup.count("not reproduced") == 4
    assert "<a" not in markup
    assert "<br> <a" not in head_of(0, has_notes=True)
