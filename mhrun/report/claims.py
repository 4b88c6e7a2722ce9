"""Judging a paper's claims by rules that are written beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError, nearest
from mhrun.paths import EXPERIMENTS

REPRODUCED, NOT_REPRODUCED, NOT_AT_SCALE = "reproduced", "not reproduced", "not run at paper scale"

Metric = Estimate | float


class Judged(NamedTuple):
    """A claim with what we found."""

    id: str
    artefact: str
    quantity: str
    paper: Any
    ours: float | None
    se: float | None
    rule: str
    holds: bool | None  # whether our number satisfies the rule, whatever the scale; None: there is no number
    verdict: str
    why: str
    note: str

    @property
    def estimate(self) -> Estimate | float | None:
        """Our number, with its standard error where it has one."""
        return self.ours if self.ours is None or self.se is None else Estimate(self.ours, self.se)


def judge_all(config: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[Judged]:
    """Judge every claim of a run's experiment.

    A claim gets a verdict only from a run at the paper's scale and with the paper's settings; from any
    other it says whether the rule holds, which is a hint and no verdict.

    Raises:
        UserError: a claim that cannot be read.
    """
    paper = (config.get("report") or {}).get("paper")
    if not paper:
        return []
    book = yaml.safe_load((EXPERIMENTS / paper / "claims.yaml").read_text())
    entry = book["experiments"].get(config["experiment"], {})
    differing = _differing(config, entry.get("settings", {}))
    return [_judge(claim, config["scale"], differing, metrics) for claim in entry.get("claims", [])]


def paper_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return title, authors, year and place of the paper that a run reproduces."""
    paper = (config.get("report") or {}).get("paper")
    if not paper:
        return None
    book = yaml.safe_load((EXPERIMENTS / paper / "claims.yaml").read_text())
    found: dict[str, Any] = book["paper"]
    return found


def _judge(
    claim: Mapping[str, Any], scale: str, differing: list[str], metrics: Mapping[str, Metric]
) -> Judged:
    found = metrics.get(claim["metric"])
    value = found.value if isinstance(found, Estimate) else found
    se = found.se if isinstance(found, Estimate) else None
    holds = None
    if value is not None and math.isfinite(value):
        holds = satisfied(claim["rule"], value, se, claim["id"])
    if holds is None:
        verdict, why = NOT_AT_SCALE, f"this run has no {claim['metric']}"
    elif differing:
        verdict, why = NOT_AT_SCALE, f"other settings than the paper's: {', '.join(differing)}"
    elif scale not in claim.get("scales", ["paper"]):
        verdict, why = NOT_AT_SCALE, f"scale = {scale}"
    else:
        verdict, why = (REPRODUCED if holds else NOT_REPRODUCED), ""
    return Judged(
        id=claim["id"],
        artefact=claim["artefact"],
        quantity=claim["quantity"],
        paper=claim["paper"],
        ours=value,
        se=se,
        rule=in_words(claim["rule"]),
        holds=holds,
        verdict=verdict,
        why=why,
        note=claim.get("note", ""),
    )


def satisfied(rule: Mapping[str, Any], value: float, se: float | None, where: str = "") -> bool:
    """Say whether a value with its standard error satisfies a rule; every condition in it must hold.

    - ``equals: x``, ``below: x``, ``above: x``, ``between: [low, high]``
    - ``near: x`` with ``at_most: d`` (absolute difference) and/or ``standard_errors: k``

    Raises:
        UserError: a rule that is not one of these.
    """
    known = {"equals", "below", "above", "between", "near", "at_most", "standard_errors"}
    for key in rule:
        if key not in known:
            raise UserError(f"claim {where}: there is no rule '{key}'.{nearest(key, known)}")
    if not known - {"at_most", "standard_errors"} & set(rule) or (
        "near" in rule and not {"at_most", "standard_errors"} & set(rule)
    ):
        raise UserError(f"claim {where}: a rule needs equals, below, above, between, or near with at_most.")
    checks = []
    if "equals" in rule:
        checks.append(value == rule["equals"])
    if "below" in rule:
        checks.append(value < rule["below"])
    if "above" in rule:
        checks.append(value > rule["above"])
    if "between" in rule:
        checks.append(rule["between"][0] <= value <= rule["between"][1])
    if "near" in rule:
        distance = abs(value - rule["near"])
        if "at_most" in rule:
            checks.append(distance <= rule["at_most"])
        if "standard_errors" in rule:
            checks.append(se is not None and distance <= rule["standard_errors"] * se)
    return all(checks)


def in_words(rule: Mapping[str, Any]) -> str:
    """Return a rule as a person would write it."""
    parts = []
    for key, value in rule.items():
        if key == "between":
            parts.append(f"between {value[0]:g} and {value[1]:g}")
        elif key == "near":
            parts.append(f"{value:g}")
        elif key == "at_most":
            parts.append(f"within {value:g}")
        elif key == "standard_errors":
            parts.append(f"within {value:g} standard errors")
        else:
            parts.append(f"{key} {value:g}" if key != "equals" else f"exactly {value:g}")
    return ", ".join(parts)


def _differing(config: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    found = []
    for path, wanted in settings.items():
        node: Any = config
        for part in path.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        same = math.isclose(node, wanted, rel_tol=1e-9) if isinstance(node, int | float) else node == wanted
        if not same:
            found.append(f"{path} = {node} (paper: {wanted})")
    return found
