"""Judges a paper's claims by their rules."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mhrun import yaml_file
from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError, nearest, reason
from mhrun.paths import CONF, EXPERIMENTS, claims_path, user_folders
from mhrun.report.claims.rules import check_rule, describe_rule, is_close, is_noisy, satisfied
from mhrun.report.claims.verdicts import (
    FAILED,
    JUDGED,
    NO_NUMBER,
    NOT_AT_SCALE,
    NOT_JUDGED,
    NOT_REPRODUCED,
    PASSED,
    REPRODUCED,
    UNCHECKED,
)
from mhrun.report.metrics import Metric, short_address

_NAMED = 3  # settings that are named; the rest are counted
_REQUIRED = {"id", "artefact", "quantity", "paper", "metric", "rule"}
_OPTIONAL = {"note", "self_check", "revised", "not_judged"}
_OF_AN_EXPERIMENT = {"claims", "not_judged"}
_GROUPS = {"experiments": _OF_AN_EXPERIMENT, "sweeps": {*_OF_AN_EXPERIMENT, "over"}}


class Judged(NamedTuple):
    """A claim with our result."""

    id: str
    artefact: str
    quantity: str
    paper: Any
    ours: float | None
    se: float | None
    rule: str
    holds: bool | None  # whether our number satisfies the rule, whatever the settings; None without a number
    verdict: str
    why: str
    note: str
    revised: str = ""  # how the rule was changed after the number was known; empty if it was not
    # Whether the standard error exceeds the rule's tolerance, so that the rule can tell nothing
    noisy: bool = False
    close: bool = False  # whether our number is within a standard error of a limit of the rule

    @property
    def estimate(self) -> Estimate | float | None:
        """Our number, with its standard error if it has one; None if the run has no number for the claim."""
        return self.ours if self.ours is None or self.se is None else Estimate(self.ours, self.se)


def judge_all(config: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[Judged]:
    """Judge every claim of a run's experiment.

    A claim gets a verdict only from a run with the paper's settings and scale. For other runs the result is whether the
    rule holds, which is a hint and not a verdict. See `claims_of` for claims that never get one.

    Raises:
        UserError: a claim cannot be read.
    """
    declared = _claims_of_paper(config)
    if declared is None:
        return []
    departure = _other_settings(config)
    node = declared["experiments"].get(config["experiment"]) or {}
    return [judge_claim(claim, departure, metrics) for claim in claims_of(node)]


def claims_of(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the claims of an experiment or a sweep from its paper's claims.yaml.

    Each is a mapping of ``id, artefact, quantity, paper, metric, rule``, and optionally:

    - ``note``: a remark for readers.
    - ``self_check: true``: the number beside ours is our own or holds by construction. Shown but not counted.
    - ``revised``: how the rule was changed after our number was known. Shown as a mark.
    - ``not_judged``: why the experiment cannot judge the claim, as when its model is another than the paper's. The
      same key beside ``claims`` holds for all of them.

    Raises:
        UserError: a key is missing or unknown, or a rule is invalid.
    """
    checked_claims = []
    claims = node.get("claims") or []
    if not isinstance(claims, list) or not all(isinstance(claim, Mapping) for claim in claims):
        raise UserError("`claims` must be a list: each claim begins with '- id: NAME'.")
    for claim in claims:
        name = claim.get("id", "?")
        if missing := sorted(_REQUIRED - set(claim)):
            raise UserError(f"claim {name}: '{missing[0]}' is missing.")
        for key in sorted(set(claim) - _REQUIRED - _OPTIONAL):
            raise UserError(f"claim {name}: there is no key '{key}'.{nearest(key, _REQUIRED | _OPTIONAL)}")
        check_rule(claim["rule"], name)
        checked_claims.append({"not_judged": node.get("not_judged", "")} | claim)
    return checked_claims


def without_run(claim: Mapping[str, Any]) -> str:
    """Return the verdict on a claim for which no run at the paper's settings has a number."""
    if claim.get("not_judged"):
        return NOT_JUDGED
    return UNCHECKED if claim.get("self_check") else NOT_AT_SCALE


def judge_sweep(
    config: Mapping[str, Any], swept: Mapping[str, set[Any]], paper_run: bool, metrics: Mapping[str, Metric]
) -> list[Judged]:
    """Judge every claim on the sweeps of an experiment.

    A claim gets a verdict only from a complete sweep over the paper's values, one run of which has the paper's
    settings; the jobs of a sweep differ only in the swept settings.

    Args:
        config: of one of the runs.
        swept: key -> the values that the runs have.
        paper_run: whether one of the runs has the paper's settings.
        metrics: of the sweep.

    Raises:
        UserError: a claim cannot be read.
    """
    declared = _claims_of_paper(config) or {}
    node = (declared.get("sweeps") or {}).get(config["experiment"]) or {}
    paper_sweep = {key: set(values) for key, values in (node.get("over") or {}).items()}
    departure = ""
    if swept != paper_sweep:
        settings = ", ".join(
            f"{key} = {','.join(map(str, sorted(values, key=str)))}" for key, values in paper_sweep.items()
        )
        departure = f"another sweep than the paper's, {settings}"
    elif not paper_run:
        departure = "other settings than the paper's"
    return [judge_claim(claim, departure, metrics) for claim in claims_of(node)]


def paper_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return title, authors, year and place of the paper that a run reproduces; None if it reproduces none."""
    declared = _claims_of_paper(config)
    return None if declared is None else dict(declared["paper"])


def claims_file(config: Mapping[str, Any]) -> Path | None:
    """Return the path of the claims of the run's paper, which may not be there, or None without a paper."""
    paper = (config.get("report") or {}).get("paper")
    return (claims_path(str(paper)) or EXPERIMENTS / str(paper) / "claims.yaml") if paper else None


def _claims_of_paper(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the claims of an experiment's paper, or None if it has no paper."""
    path = claims_file(config)
    return None if path is None else read_claims(path)


def read_claims(path: Path) -> dict[str, Any]:
    """Return the content of a claims.yaml: ``paper``, ``experiments`` and perhaps ``sweeps``, by experiment.

    Raises:
        UserError: it cannot be read, a group is missing or unknown, or there is no experiment of a name.
    """
    try:
        declared = yaml_file.loads_trusted(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"the claims of {path.parent.name} cannot be read: {reason(error)}; fix {path}."
        ) from error
    if not isinstance(declared, dict) or not {"paper", "experiments"} <= set(declared):
        raise UserError(f"the claims of {path.parent.name} need `paper` and `experiments`; fix {path}.")

    def check(name: Any, allowed: Collection[str], complaint: str) -> None:
        if name not in allowed:
            hint = nearest(str(name), allowed)
            raise UserError(f"the claims of {path.parent.name}: {complaint}.{hint} Mend {path}.")

    roots = [CONF, *(place for folder in user_folders() for place in (folder, folder / "conf"))]
    experiments = {file.stem for root in roots for file in (root / "experiment").glob("*.yaml")}
    for key in declared:
        check(key, {"paper", *_GROUPS}, f"there is no group '{key}'")
    for group, keys in _GROUPS.items():
        for name, node in (declared.get(group) or {}).items():
            check(name, experiments, f"{group}.{name} is not an experiment")
            for key in node or {}:
                check(key, keys, f"{group}.{name} has no key '{key}'")
    return declared


def _other_settings(config: Mapping[str, Any]) -> str:
    """Return why the settings are not the paper's, or an empty string."""
    departures = (config.get("runtime") or {}).get("departures")
    if departures is None:
        return "settings could not be compared"
    if not departures:
        return ""
    lines = [re.sub(r"^(scale = \S+).*", r"\1", line) for line in departures[:_NAMED]]
    if len(departures) > _NAMED:
        lines.append(f"and {len(departures) - _NAMED} more")
    return f"other settings than the paper's: {', '.join(lines)}"


def judge_claim(claim: Mapping[str, Any], departure: str, metrics: Mapping[str, Metric]) -> Judged:
    """Return a claim with the number of a run and its verdict.

    Args:
        claim: see `claims_of`.
        departure: why the run can give no verdict, such as settings that are not the paper's; empty if it can.
        metrics: short address -> number.
    """
    name = short_address(claim["metric"], f"claim {claim['id']}")
    metric = metrics.get(name)
    value = metric.value if isinstance(metric, Estimate) else metric
    se = metric.se if isinstance(metric, Estimate) else None
    missing, infinite, holds = "", "", None
    if value is None:  # is not judged
        missing = f"this run has no {name}.{nearest(name, metrics)}".rstrip(".")
    elif not math.isfinite(value):  # NaN satisfies no rule
        infinite, holds = f"{name} is not a finite number", False
    elif "standard_errors" in claim["rule"] and (se is None or math.isnan(se)):
        missing = f"{name} has no standard error, as Estimate(value, se) has"
    else:
        holds = satisfied(claim["rule"], value, se)
    verdict = without_run(claim)
    if claim.get("not_judged"):
        why = claim["not_judged"]
    elif departure:
        why = missing or departure
    elif missing:
        verdict, why = (verdict if claim.get("self_check") else NO_NUMBER), missing
    else:
        yes, no = (PASSED, FAILED) if claim.get("self_check") else (REPRODUCED, NOT_REPRODUCED)
        verdict, why = (yes if holds else no), infinite
    return Judged(
        id=claim["id"],
        artefact=claim["artefact"],
        quantity=claim["quantity"],
        paper=claim["paper"],
        ours=value,
        se=se,
        rule=describe_rule(claim["rule"]),
        holds=holds,
        verdict=verdict,
        why=why,
        note=claim.get("note", ""),
        revised=claim.get("revised", ""),
        noisy=is_noisy(claim["rule"], se),
        close=verdict in JUDGED and is_close(claim["rule"], value, se),
    )
