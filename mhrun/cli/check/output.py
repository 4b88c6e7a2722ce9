"""Output of ``mhrun check``: a table, a conclusion, or JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhrun.cli.check.calibration_output import coloured
from mhrun.numbers import scientific

if TYPE_CHECKING:
    from rich.table import Table

    from mhrun.check.results import CheckResult
    from mhrun.check.subject import Subject

_HEADINGS = ("check", "verdict", "what was found")
_OF_RULES = (
    "A rule that takes no account of minibatch noise is biased with minibatches: that is not judged. One that is meant "
    "to be right with them has exact = True or corrects_noise = True on its class: then a bias fails."
)
_OF_KERNELS = (
    "The bias with minibatches is not judged. A kernel that is meant to be right with them declares the target as its "
    'stationary distribution, stationary = {"distribution": "tempered", "m": None}: then a bias fails.'
)


def show_table(results: Sequence[CheckResult], subject: Subject, seconds: float) -> None:
    """Print the results as a table, plain columns into a pipe, and a conclusion."""
    from rich.console import Console

    from mhrun.check.declared import denials

    title = f"mhrun check {subject.name}".replace("[", r"\[")
    screen = sys.stdout.isatty()
    console = Console(width=None if screen else 10_000)
    console.print(f"[bold]{title}[/]", highlight=False)  # a table would pad it
    if screen:
        console.print(_table(_merged(results)))
    else:  # into a file or a pipe go plain columns, a line for each check
        rows = [_HEADINGS, *(result[:3] for result in _merged(results))]
        widths = [max(len(row[k]) for row in rows) for k in range(2)]
        for check, outcome, detail in rows:
            print(f"{check:<{widths[0]}}  {outcome:<{widths[1]}}  {detail}")
    conclusion = _conclusion(results, subject, seconds)
    for line in (*conclusion, *subject.notes, *_not_run(subject), *denials(subject, results)):
        console.print(line, highlight=False)
    if _biased(results, subject) and subject.kind != "dynamics":
        has_rule = subject.make(subject.n, subject.m).rule is not None
        console.print(_OF_RULES if has_rule else _OF_KERNELS, highlight=False)


def _table(results: Sequence[CheckResult]) -> Table:
    from rich.table import Table

    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading)
    for result in results:
        table.add_row(result.check, coloured(result.outcome), result.detail.replace("[", r"\["))
    return table


def _conclusion(results: Sequence[CheckResult], subject: Subject, seconds: float) -> list[str]:
    """Return what failed, and how often that happens by chance, which is beside the point if all of it crashed."""
    from mhrun.check.results import FAILS, FALSE_ALARMS, NO_POWER

    failed = [result for result in results if result.outcome == FAILS]
    lists = {
        f"{len(failed)} fail": [result.check for result in failed],
        "No power": [result.check for result in results if result.outcome == NO_POWER],
        "Biased": _biased(results, subject),
    }
    # Names contain commas.
    sentences = [f"{heading}: {'; '.join(names)}." for heading, names in lists.items() if names]
    found = " ".join(sentences if failed else ["no check fails.", *sentences])
    if failed and all(result.crashed for result in failed):
        return [f"{found} {seconds:.0f} s. Seed {subject.seed}."]
    chance = f"A correct kernel fails this page with probability {scientific(FALSE_ALARMS, 1)}."
    return [f"{found} {seconds:.0f} s. {chance} Seed {subject.seed}.", _unseen(results, subject)]


def _not_run(subject: Subject) -> list[str]:
    """Return a line for each period of which no run has more than one step: nothing shows whether those are right."""
    return [
        f"Steps with a period of {period:,} were run {'once' if steps else '0 times'} in a run at most, so that they "
        "are not judged: check with a shorter period."
        for period, steps in subject.unseen_periods.items()
    ]


def _biased(results: Sequence[CheckResult], subject: Subject) -> list[str]:
    """Return the checks that measured a bias; biases of proposals do not count."""
    from mhrun.check.results import MEASURED

    if subject.kind == "proposal":
        return []
    return [v.check for v in results if v.outcome == MEASURED and ": biased (" in v.detail]


def _merged(results: Sequence[CheckResult]) -> list[CheckResult]:
    """Return results to print: one for all checks that raised the same error, in the place of the first."""
    counts = Counter(result.detail for result in results if result.crashed)
    printed: dict[tuple[str, str], CheckResult] = {}
    for result in results:
        count = counts[result.detail] if result.crashed else 1
        name = f"{count} checks" if count > 1 else result.check
        printed.setdefault((name, result.detail), result._replace(check=name))
    return list(printed.values())


def _unseen(results: Sequence[CheckResult], subject: Subject) -> str:
    """Return what errors the checks do not see: of the variance where they judge it, or in standard errors."""
    from mhrun.check.results import HOLDS, NO_POWER, NONE, Z

    # The standard errors of what fails are those of a wrong distribution.
    limits = [v.unseen for v in results if v.unseen is not None and v.outcome == HOLDS]
    setting = f"chains={25 * subject.chains}"
    if all(v.outcome in (NO_POWER, NONE) for v in results):
        return "No check had power: nothing is known of the distribution."
    if not limits:
        return f"An error within {Z:.1f} standard errors (±) passes unseen; with {setting} they are a fifth as large."
    low, high = f"{100 * min(limits):.2g}", f"{100 * max(limits):.2g}"
    size = f"{low} %" if low == high else f"{low} to {high} %, depending on the target,"
    return (
        f"A variance that is off by less than {size} passes unseen; with {setting} a fifth of that is seen."
    )


def show_json(results: Sequence[CheckResult], subject: Subject, seconds: float) -> None:
    """Print the results as JSON."""
    from mhrun import __version__
    from mhrun.check.results import FAILS, FALSE_ALARMS, NO_POWER

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and value - value != 0 else value

    content: Mapping[str, Any] = {
        "checked": subject.name,
        "version": __version__,
        "seed": subject.seed,
        "false_alarms": FALSE_ALARMS,
        "seconds": round(seconds, 1),
        "fails": sum(result.outcome == FAILS for result in results),
        "periods_not_judged": list(subject.unseen_periods),
        "notes": list(subject.notes),
        "no_power": sum(result.outcome == NO_POWER for result in results),
        "checks": [{key: finite(value) for key, value in result._asdict().items()} for result in results],
    }
    print(json.dumps(content, indent=2))
