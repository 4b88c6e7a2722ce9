"""The results at paper scale in docs/results of a checkout. Imports no torch, as lists read them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from mhrun.paths import ROOT
from mhrun.report.claims.verdicts import count
from mhrun.store.identity import RESULTS_VERSION

RESULTS = ROOT / "docs" / "results"
"""The folder of a checkout with the verdicts of runs at the papers' scale."""


class RecordedResult(NamedTuple):
    """The recorded result of an experiment or a sweep."""

    run: str
    finished: str  # a date
    claims: dict[str, tuple[str, float | None]]  # claim -> verdict and number

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of reproduced claims and of all that count."""
        return count(verdict for verdict, _ in self.claims.values())


def recorded_results(paper: str) -> dict[tuple[str, str], RecordedResult]:
    """Return the recorded results of a paper: (``experiments`` or ``sweeps``, experiment) -> result.

    There are none where mhrun was installed without them, nor of another `RESULTS_VERSION`.
    """
    try:
        groups = json.loads((RESULTS / f"{paper}.json").read_text(encoding="utf-8"))
        return {
            (kind, experiment): _recorded(entry)
            for kind, entries in groups.items()
            for experiment, entry in entries.items()
            if entry["results_version"] == RESULTS_VERSION
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _recorded(entry: dict[str, Any]) -> RecordedResult:
    claims = {str(claim["id"]): (str(claim["verdict"]), claim.get("ours")) for claim in entry["claims"]}
    return RecordedResult(str(entry.get("run", "")), str(entry.get("finished", "")), claims)
