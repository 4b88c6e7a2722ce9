"""The verdicts and ranks of a calibration, as tables or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhrun.check.calibration import MethodCalibration
    from mhrun.cli.calibration_study import Study


STYLES = {
    "holds": "green",
    "fails": "bold red",
    "no power": "bold red",
    "measured": "yellow",
    "does not apply": "dim",
}
_SHOWN = 12  # quantities whose histograms are printed, the least uniform first


def print_table(study: Study, calibrations: Mapping[str, MethodCalibration], seconds: float) -> None:
    """Print the verdicts and the ranks as tables, and what could have been seen."""
    from rich.console import Console
    from rich.table import Table

    from mhrun.check.calibration import bars, unseen_width
    from mhrun.check.results import FALSE_ALARMS

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=f"calibration of {study.experiment}", title_justify="left", title_style="bold")
    for heading in ("method", "verdict", "what was found"):
        table.add_column(heading)
    for name, calibration in calibrations.items():
        table.add_row(
            name,
            f"[{STYLES[calibration.verdict.outcome]}]{calibration.verdict.outcome}[/]",
            calibration.verdict.detail,
        )
    console.print(table)
    for name, calibration in calibrations.items():
        if not calibration.histograms:
            continue
        ranks = Table(title=f"ranks of {name}", title_justify="left", title_style="bold")
        for heading in ("quantity", "ranks", "counts", "p"):
            ranks.add_column(heading)
        for quantity in sorted(calibration.p, key=calibration.p.__getitem__)[:_SHOWN]:
            counts = calibration.histograms[quantity]
            row = (
                quantity.replace("[", r"\["),
                bars(counts),
                " ".join(map(str, counts)),
                f"{calibration.p[quantity]:.2g}",
            )
            ranks.add_row(*row)
        console.print(ranks)
        if len(calibration.p) > _SHOWN:
            console.print(f"and {len(calibration.p) - _SHOWN} more, nearer to uniform.", highlight=False)
    failed = [name for name, calibration in calibrations.items() if calibration.verdict.outcome == "fails"]
    judged = sum(calibration.verdict.outcome in ("holds", "fails") for calibration in calibrations.values())
    conclusion = (
        f"{len(failed)} fail: {', '.join(failed)}. Model, simulate and method do not agree: ∪ draws too narrow, "
        "∩ too wide, a tilt is bias"
        if failed
        else f"no method fails, {len(calibrations) - judged} not judged"
        if judged < len(calibrations)
        else "no method fails"
    )
    n = next(iter(study.simulations.values())).data.n
    console.print(
        f"{conclusion}. {seconds:.0f} s; {n:,} data in a set; methods that are right have a failure with probability "
        f"{FALSE_ALARMS:g}; seed {study.seed}.",
        highlight=False,
    )
    quantities = max((len(calibration.p) for calibration in calibrations.values()), default=0)
    if judged > len(failed) and quantities:
        replications = len(next(iter(study.simulations.values())).truth)
        console.print(
            f"What passes unseen half of the time with {replications} data sets: a standard deviation that is off by "
            f"{unseen_width(replications, quantities):.0%}. Four times the replications halve it. Smaller errors "
            "are seen by mhrun check rule= or method=, and by mhrun compare.",
            highlight=False,
        )


def print_json(study: Study, calibrations: Mapping[str, MethodCalibration], seconds: float) -> None:
    """Print them as JSON."""
    from mhrun import __version__
    from mhrun.check.results import FALSE_ALARMS

    content = {
        "checked": f"experiment={study.experiment}",
        "version": __version__,
        "seed": study.seed,
        "false_alarms": FALSE_ALARMS,
        "seconds": round(seconds, 1),
        "fails": sum(calibration.verdict.outcome == "fails" for calibration in calibrations.values()),
        "checks": [
            {
                **calibration.verdict._asdict(),
                "ranks": calibration.histograms,
                "p_of_quantities": calibration.p,
            }
            for calibration in calibrations.values()
        ],
    }
    print(json.dumps(content, indent=2))
