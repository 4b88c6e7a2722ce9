"""The verdicts on claims. Imports nothing, as lists of runs use them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

REPRODUCED, NOT_REPRODUCED, NOT_AT_SCALE = "reproduced", "not reproduced", "not run at paper scale"
NO_NUMBER, NOT_JUDGED = "no number", "not judged"
PASSED, FAILED, UNCHECKED = "self-check passed", "self-check failed", "self-check not run"
JUDGED = (REPRODUCED, NOT_REPRODUCED)
"""The verdicts on claims for which a run at the paper's settings has a number."""
COUNTED = (*JUDGED, NOT_AT_SCALE, NO_NUMBER)
"""The verdicts on a paper's claims. Self-checks, and claims that our experiment cannot judge, get none.

`NO_NUMBER`: a run at the paper's settings lacks the number, or the standard error that the rule needs.
"""
CLASSES = {REPRODUCED: "good", NOT_REPRODUCED: "bad", FAILED: "bad"}
"""The classes of verdicts on HTML pages; all others are "soft"."""


def count(verdicts: Iterable[str], among: Collection[str] = COUNTED) -> tuple[int, int]:
    """Return the numbers of reproduced claims and of all with a verdict in `among`."""
    counted = [verdict for verdict in verdicts if verdict in among]
    return counted.count(REPRODUCED), len(counted)
