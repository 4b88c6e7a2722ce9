"""The results and ranks of a calibration, as tables or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mhrun.numbers import scientific

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mhrun.check.calibration import MethodCalibration
    from mhrun.cli.check.calibration_study import Study

_SHOWN = 12  # quantities whose histograms are printed, the least uniform first


def coloured(outcome: str) -> str:
    """Return the outcome of a check in its colour."""
    from mhrun.check.results import FAILS, HOLDS, MEASURED, NO_POWER

    colours = {HOLDS: "green", FAILS: "bold red", NO_POWER: "bold red", MEASURED: "yellow"}
    return f"[{colours.get(outcome, 'dim')}]{outcome}[/]"


def print_table(study: Study, calibrations: Mapping[str, MethodCalibration], seconds: float) -> None:
    """Print the results and the ranks as tables, and what could have been seen."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    _print_results(console, study.experiment, calibrations)
    for name, calibration in calibrations.items():
        if calibration.histograms:
            _print_ranks(console, name, calibration)
    _print_conclusion(console, study, calibrations, seconds)


def _print_results(console: Console, experiment: str, calibrations: Mapping[str, MethodCalibration]) -> None:
    table = _table(f"calibration of {experiment}", "method", "verdict", "what was found")
    for name, calibration in calibrations.items():
        table.add_row(name, coloured(calibration.result.outcome), calibration.result.detail)
    console.print(table)


def _print_ranks(console: Console, name: str, calibration: MethodCalibration) -> None:
    """Print histograms of the ranks of a method's quantities, the least uniform first."""
    from mhrun.check.calibration import bars

    table = _table(f"ranks of {name}", "quantity", "ranks", "counts", "p")
    for quantity in sorted(calibration.p, key=calibration.p.__getitem__)[:_SHOWN]:
        counts, p = calibration.histograms[quantity], calibration.p[quantity]
        table.add_row(quantity.replace("[", r"\["), bars(counts), " ".join(map(str, counts)), f"{p:.2g}")
    console.print(table)
    if len(calibration.p) > _SHOWN:
        console.print(f"and {len(calibration.p) - _SHOWN} more, nearer to uniform.", highlight=False)


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading)
    return table


def _print_conclusion(
    console: Console, study: Study, calibrations: Mapping[str, MethodCalibration], seconds: float
) -> None:
    """Print which methods fail, and which errors the study could not have seen."""
    from mhrun.check.calibration import unseen_width
    from mhrun.check.results import FAILS, FALSE_ALARMS, HOLDS

    failed = [name for name, calibration in calibrations.items() if calibration.result.outcome == FAILS]
    judged = sum(calibration.result.outcome in (HOLDS, FAILS) for calibration in calibrations.values())
    conclusion = "no method fails"
    if failed:
        conclusion = (
            f"{len(failed)} fail: {', '.join(failed)}. Model, simulate and method do not agree: ∪ draws too narrow, "
            "∩ too wide, a tilt is bias"
        )
    elif judged < len(calibrations):
        conclusion += f", {len(calibrations) - judged} not judged"
    simulations = next(iter(study.simulations.values()))
    console.print(
        f"{conclusion}. {seconds:.0f} s; {simulations.data.n:,} data in a set; methods that are right have a failure "
        f"with probability {scientific(FALSE_ALARMS, 1)}; seed {study.seed}.",
        highlight=False,
    )
    quantities = max((len(calibration.p) for calibration in calibrations.values()), default=0)
    if judged > len(failed) and quantities:
        replications = len(simulations.truth)
        console.print(
            f"What passes unseen half of the time with {replications} data sets: a standard deviation that is off by "
            f"{unseen_width(replications, quantities):.0%}. Four times the replications halve it. Smaller errors "
            "are seen by mhrun check rule= or method=, and by mhrun compare.",
            highlight=False,
        )


def print_json(study: Study, calibrations: Mapping[str, MethodCalibration], seconds: float) -> None:
    """Print them as JSON."""
    from mhrun import __version__
    from mhrun.check.results import FAILS, FALSE_ALARMS

    content = {
        "checked": f"experiment={study.experiment}",
        "version": __version__,
        "seed": study.seed,
        "false_alarms": FALSE_ALARMS,
        "seconds": round(seconds, 1),
        "fails": sum(calibration.result.outcome == FAILS for calibration in calibrations.values()),
        "checks": [
            {
                **calibration.result._asdict(),
                "ranks": calibration.histograms,
                "p_of_quantities": calibration.p,
            }
            for calibration in calibrations.values()
        ],
    }
    print(json.dumps(content, indent=2))
