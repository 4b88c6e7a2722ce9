"""The status of a run as evidence: a preview, or verdicts at the paper's settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mhrun.paths import CONF
from mhrun.report.check_commands import project_of
from mhrun.report.claims.judge import Judged
from mhrun.report.claims.recorded import recorded_results
from mhrun.report.claims.verdicts import COUNTED, JUDGED, NOT_REPRODUCED, count

_NAMED = 3  # claims without a number that are named; the rest are counted


class Evidence(NamedTuple):
    """The status of a run as evidence; "" is a run without claims, and of nothing smaller than the paper's."""

    kind: Literal["verdict", "preview", "changed", ""] = ""  # preview: another scale; changed: other settings
    text: str = ""
    recorded: str = ""  # for a run without verdicts: the repository's result at paper scale
    command: str = ""  # for a run without verdicts: the command that gives them
    failed: Sequence[str] = ()  # claims that are not reproduced, one line each
    departures: Sequence[str] = ()  # settings that differ from the paper's


def evidence_of(config: Mapping[str, Any], judged: Sequence[Judged], kind: str = "experiments") -> Evidence:
    """Return the status of a run, or of a sweep.

    Args:
        config: of the run, or of one of the sweep's.
        judged: its claims.
        kind: ``experiments`` or ``sweeps``: the group of its claims in claims.yaml.
    """
    counted = [claim for claim in judged if claim.verdict in COUNTED]
    if any(claim.verdict in JUDGED for claim in counted):
        return _of_verdicts(counted)
    experiment, scale = str(config["experiment"]), str(config["scale"])
    # The claims of a sweep contain the paper's values.
    words = ["mhrun", *project_of(experiment), f"experiment={experiment}", "scale=paper"]
    command = shlex.join(words) if kind == "experiments" else ""
    departures = (config.get("runtime") or {}).get("departures")
    if not counted:
        if not _is_below_paper(config):
            return Evidence(departures=departures or ())
        text = "Preview: a smaller run than at scale=paper."
        return Evidence("preview", text, command=command, departures=departures or ())
    checks = _checks(counted)
    if not checks:
        text = "no claim can be judged: this run lacks the methods or numbers that they need."
        text = f"Preview: {text}" if scale != "paper" else text.capitalize()
    elif scale != "paper":
        text = f"Preview: {checks}; no verdict at {scale} scale."
    elif departures is None:
        text = f"{checks}; no verdict, as settings could not be compared."
    else:
        text = f"{checks}; no verdict, as settings are not the paper's."
    recorded = _recorded(str((config.get("report") or {}).get("paper")), experiment, kind)
    status: Literal["preview", "changed"] = "changed" if scale == "paper" else "preview"
    return Evidence(status, text, recorded, command, departures=departures or ())


def _of_verdicts(counted: Sequence[Judged]) -> Evidence:
    """Return the status of a run of whose claims some have a verdict."""
    reproduced, total = count(claim.verdict for claim in counted)
    failed = [f"{claim.quantity} ({claim.id})" for claim in counted if claim.verdict == NOT_REPRODUCED]
    rest = _without_number([claim for claim in counted if claim.verdict not in JUDGED])
    return Evidence("verdict", f"{reproduced} of {total} claims reproduced.{rest}", failed=failed)


def _without_number(claims: Sequence[Judged]) -> str:
    """Return a sentence on claims that a run at the paper's settings has no number for, the first with metrics."""
    if not claims:
        return ""
    named = "; ".join(f"{claim.id} ({claim.why})" for claim in claims[:_NAMED])
    rest = f"; and {len(claims) - _NAMED} more" if len(claims) > _NAMED else ""
    return f" {len(claims)} {'has' if len(claims) == 1 else 'have'} no number: {named}{rest}."


def _is_below_paper(config: Mapping[str, Any]) -> bool:
    """Return whether an experiment of this package ran at a smaller scale than the paper's."""
    # A user's experiment has no paper.
    is_bundled = (CONF / "experiment" / f"{config['experiment']}.yaml").is_file()
    return is_bundled and config["scale"] != "paper" and "paper" in (config.get("scales") or {})


def _checks(counted: Sequence[Judged]) -> str:
    """Return how many claims without a verdict hold by their numbers, as text; empty if none has a number."""
    checked = [claim for claim in counted if claim.holds is not None]
    if not checked:
        return ""
    noisy = sum(claim.noisy for claim in checked)
    passed = sum(bool(claim.holds) and not claim.noisy for claim in checked)
    rest = f", {noisy} {'is' if noisy == 1 else 'are'} too noisy to tell" if noisy else ""
    return f"{passed} of {len(checked)} checks hold{rest}"


def _recorded(paper: str, experiment: str, kind: str) -> str:
    """Return the committed result of a run at the paper's settings, as text; empty without one."""
    result = recorded_results(paper).get((kind, experiment))
    reproduced, total = result.counts if result else (0, 0)
    return f"At paper scale: {reproduced} of {total} reproduced." if total else ""
