"""The status of a run as evidence: a preview, or verdicts at the paper's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mhrun.paths import CONF
from mhrun.report.claims import Judged
from mhrun.report.recorded import recorded_results
from mhrun.report.verdicts import COUNTED, NOT_REPRODUCED, count


class Evidence(NamedTuple):
    """The status of a run as evidence."""

    kind: str  # "verdict", "preview" (another scale), "changed" (other settings), or "" without claims
    text: str
    recorded: str  # for a run without verdicts: the repository's result at paper scale
    command: str  # for a run without verdicts: the command that gives them
    failed: list[str]  # claims that are not reproduced, one line each
    departures: list[str]  # settings that differ from the paper's


def evidence_of(config: Mapping[str, Any], judged: Sequence[Judged], kind: str = "experiments") -> Evidence:
    """Return the status of a run, or of a sweep.

    Args:
        config: of the run, or of one of the sweep's.
        judged: its claims.
        kind: ``experiments`` or ``sweeps``: the group of its claims in claims.yaml.
    """
    counted = [claim for claim in judged if claim.verdict in COUNTED]
    departures = list((config.get("runtime") or {}).get("departures") or [])
    known = (config.get("runtime") or {}).get("departures") is not None
    experiment, scale = str(config["experiment"]), str(config["scale"])
    # The claims of a sweep contain the paper's values.
    command = f"mhrun experiment={experiment} scale=paper" if kind == "experiments" else ""
    if not counted:
        is_bundled = (
            CONF / "experiment" / f"{experiment}.yaml"
        ).is_file()  # a user's experiment has no paper
        if scale == "paper" or "paper" not in (config.get("scales") or {}) or not is_bundled:
            return Evidence("", "", "", "", [], departures)
        return Evidence("preview", "Preview: a smaller run than at scale=paper.", "", command, [], departures)
    reproduced, total = count(claim.verdict for claim in counted)
    failed = [f"{claim.quantity} ({claim.id})" for claim in counted if claim.verdict == NOT_REPRODUCED]
    if reproduced or failed:
        missing = total - reproduced - len(failed)
        rest = f" {missing} have no number in this run." if missing else ""
        return Evidence("verdict", f"{reproduced} of {total} claims reproduced.{rest}", "", "", failed, [])
    checked = [claim for claim in counted if claim.holds is not None]
    noisy = sum(claim.noisy for claim in checked)
    passed = sum(bool(claim.holds) and not claim.noisy for claim in checked)
    checks = f"{passed} of {len(checked)} checks hold"
    if noisy:
        checks += f", {noisy} {'is' if noisy == 1 else 'are'} too noisy to tell"
    recorded = _recorded(str((config.get("report") or {}).get("paper")), experiment, kind)
    if scale != "paper":
        name, why = "preview", f"Preview: {checks}; no verdict at {scale} scale."
    else:
        name = "changed"
        why = f"{checks}; no verdict, as settings are not the paper's."
        if not known:
            why = f"{checks}; no verdict, as settings could not be compared."
    if not checked:
        start = "Preview: no" if name == "preview" else "No"
        why = f"{start} claim can be judged: this run lacks the methods or numbers that they need."
    return Evidence(name, why, recorded, command, [], departures)


def _recorded(paper: str, experiment: str, kind: str) -> str:
    """Return the committed result of a run at the paper's settings, in words; empty without one."""
    result = recorded_results(paper).get((kind, experiment))
    reproduced, total = result.counts if result else (0, 0)
    return f"At paper scale: {reproduced} of {total} reproduced." if total else ""
