"""The summary of a run for its page and the terminal: a sentence, a status, warnings and a table of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.kernels.stationary import APPROXIMATE, DECLARED, EXACT, OPTIMISER
from mhrun.report.check_commands import check_commands
from mhrun.report.claims.evidence import Evidence, evidence_of
from mhrun.report.claims.judge import Judged
from mhrun.report.declared import OF_METHODS, measure_of
from mhrun.report.efficiency import diagnosed, is_apart, runners_up, unconverged
from mhrun.report.marks import FAULTY, SHORT, marked, notes
from mhrun.report.metrics import from_json
from mhrun.report.report_warnings import report_warnings
from mhrun.report.run import Run
from mhrun.report.tables import quoted, shown
from mhrun.store.folder import RunFolder

TARGET = (
    "target",
    "exact: draws follow the target at T. exact (declared): they do if a part of your own is what it declares, which "
    "mhrun check judges. approximate: they follow another distribution, by minibatch noise or by the discretisation of "
    "a dynamics, or a rule of your own does not declare that it keeps_ratio; compare them with an exact method. "
    "optimiser: it has no noise",
)
TEMPERATURE = ("T", OF_METHODS["draws_temperature"])
COLUMNS = {
    "ess": (
        "ESS",
        "Bulk effective sample size after burn-in, all chains together, of the coordinate where it is least; networks "
        "are judged by what they predict at 32 of the data",
    ),
    "rhat": (
        "R-hat",
        "Rank-normalised split R-hat of the coordinate where it is largest, likewise; above 1.01 chains have not "
        "converged",
    ),
    "evaluations": (
        "evaluations",
        "Log-likelihoods (or gradients) of one datum at one point, all chains together, after burn-in; counted as the "
        "algorithm reads data, also where a compressed sum is faster",
    ),
    "setup": (
        "set-up",
        "Log-likelihoods and gradients before the draws, not in evaluations: search for a mode, pilot and burn-in",
    ),
    "ess_per_million": (
        "ESS per 10^6",
        "Effective sample size for each million evaluations; – for methods that are too short to judge, or whose draws "
        "are of another distribution",
    ),
    "ess_per_second": (
        "ESS per s",
        "Effective sample size for each second of wall time of all chains after burn-in: it depends on the machine "
        "and on what else it does, evaluations do not; – likewise",
    ),
}
_LISTED = 4  # approximate methods that a line names
NAMED = 5
"""Numbers that a table of methods shows of those that an experiment names for sweeps."""
OF_MONITOR = "What the monitor found at the end of the run, mean over chains"
FLOOR = (
    "noise floor",
    "What Monte Carlo error alone gives on average: an exact method is above it about half of the time, and hardly "
    "ever three times as far",
)


class Summary(NamedTuple):
    """What a run found."""

    title: str
    scale: str  # in one line: "smoke scale · 4 chains x 400 steps"
    finding: str  # one sentence, or empty
    status: Evidence
    warnings: list[str]
    methods: pd.DataFrame  # a row for each method, under its label; empty columns are left out
    explained: dict[str, str]  # heading of a column of `methods` -> its meaning
    flags: dict[str, list[str]]  # label of a method -> which marks of `mhrun.report.marks` it has
    approximate: str  # a line on the approximate methods that have converged; empty without any
    declared: str  # a line on the methods that are exact if a part of the user's is; empty without any

    @property
    def footnotes(self) -> list[str]:
        """The lines below the table of methods."""
        return [line for line in (*self.notes, self.approximate, self.declared) if line]

    @property
    def notes(self) -> list[str]:
        """What the marks behind labels are."""
        return notes(flag for flags in self.flags.values() for flag in flags)


_CLEARLY = 1.2  # ratio of two rates that is worth a sentence


def summary_of(run: Run | RunFolder) -> Summary:
    """Return what a complete run found.

    Uses the report's results in summary.json. For a run without a report it reads the draws, and distances are missing.

    Raises:
        UserError: the run's results are damaged.
    """
    run = run if isinstance(run, Run) else Run(run)
    judged = [Judged(**claim) for claim in run.summary.get("claims") or []]
    return summarised(
        run,
        from_json(run.summary.get("metrics") or {}),
        judged,
        known_diagnostics(run),
        str((run.summary.get("diagnostics") or {}).get("finding") or ""),
    )


def known_diagnostics(run: Run) -> dict[str, dict[str, Any]]:
    """Return diagnostics of the draws of each method, from an earlier report of the same draws or computed.

    See `mhrun.report.efficiency.efficiency`.
    """
    stored = run.summary.get("diagnostics") or {}
    if stored.get("finished") == run.summary.get("finished") and stored.get("methods"):
        by_method: dict[str, dict[str, Any]] = stored["methods"]
        return by_method
    return diagnosed(run)


def summarised(
    run: Run,
    metrics: Mapping[str, Any],
    judged: Sequence[Judged],
    diagnostics: Mapping[str, Mapping[str, Any]],
    finding: str = "",
) -> Summary:
    """Return the summary of a run from its parts.

    Args:
        run: the run.
        metrics: of the report, by short address.
        judged: its claims.
        diagnostics: as `diagnosed` returns them.
        finding: the experiment's sentence; if empty, `default_finding`.
    """
    frame, explained = methods_table(run, metrics, diagnostics)
    return Summary(
        title=str(run.config.get("title") or run.config["experiment"]),
        scale=scale_in_words(run),
        finding=finding or default_finding(run, diagnostics),
        status=evidence_of(run.config, judged),
        warnings=report_warnings(run, diagnostics),
        methods=frame,
        explained=explained,
        flags={run.label(m): flags_of(results, diagnostics.get(m, {})) for m, results in run.methods.items()},
        approximate=approximate_methods(run, diagnostics),
        declared=_declared(run),
    )


def flags_of(results: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> list[str]:
    """Return the marks that a method has.

    Args:
        results: in the summary of its run.
        diagnosis: of its draws, as `diagnosed` returns them.
    """
    return [SHORT] * unconverged(diagnosis) + [FAULTY] * bool(results.get("fault"))


def _declared(run: Run) -> str:
    """Return a line with the command that tests what makes a method exact, where a part of the user's declares it."""
    commands = dict.fromkeys(
        command
        for method in run.methods
        if run.describe_kind(method) == DECLARED
        for command in check_commands(run.config["methods"][method]["kernel"])
    )
    return f"{DECLARED}: {'; '.join(commands)} test{'s' * (len(commands) == 1)} whether it is" * bool(
        commands
    )


def approximate_methods(run: Run, diagnostics: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line on the approximate methods that converged: R-hat does not see that their distribution is another.

    It has the error that the pilot's settings aim at, and the command that compares them with an exact method.
    """
    converged = [
        m for m in run.methods if diagnostics.get(m, {}).get("rhat") and not unconverged(diagnostics[m])
    ]
    texts = []
    for method in (m for m in converged if run.kind(m) == APPROXIMATE):
        expected = run.expected_error(method)
        texts.append(quoted(run.label(method)) + f" ({expected})" * bool(expected))
    if not texts:
        return ""
    exact = max(
        (m for m in converged if run.kind(m) == EXACT),
        key=lambda m: (not run.samples(m).declared, diagnostics[m].get("ess") or 0.0),
        default=None,
    )
    name = run.config["experiment"]
    advice = (
        f"with {run.label(exact)}: mhrun compare {name} --reference {name}:{exact}"
        if exact
        else "with an exact method"
    )
    rest = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return (
        f"approximate: R-hat and ESS do not show how far off {', '.join(texts[:_LISTED])}{rest} "
        f"{'is' if len(texts) == 1 else 'are'}; compare {advice}"
    )


def marked_methods(found: Summary) -> pd.DataFrame:
    """Return the table of methods with marks behind their labels."""
    return found.methods.rename(index=lambda label: marked(label, found.flags.get(label, ())))


def scale_in_words(run: Run) -> str:
    """Return the scale of a run, its chains and its steps in one line."""
    parts = [f"{run.config['scale']} scale"]
    counts = {(summary["chains"], summary["steps"]) for summary in run.methods.values()}
    chains, steps = ({count[i] for count in counts} for i in (0, 1))
    if counts:
        texts = [_range(chains, "chain"), _range(steps, "step")]
        parts.append(" × ".join(texts))
    if len(run.methods) > 1:
        parts.append(f"{len(run.methods):,} methods")
    return " · ".join(parts)


def _range(numbers: set[int], noun: str) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,} {noun}{'s' * (low != 1)}" if low == high else f"{low:,} to {high:,} {noun}s"


def methods_table(
    run: Run, metrics: Mapping[str, Any], diagnostics: Mapping[str, Mapping[str, Any]]
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return a row for each method: kind, T, ESS, R-hat, evaluations, and the experiment's measure if it declares one.

    Also returns the meaning of each heading.
    """
    explained = dict([TARGET, TEMPERATURE, *COLUMNS.values()])
    warm = any(run.samples(method).temperature != 1 for method in run.methods)
    measure = measure_of(run.config)
    rows: dict[str, dict[str, Any]] = {}
    for method in run.methods:
        diagnosis = diagnostics.get(method, {})
        row: dict[str, Any] = {TARGET[0]: run.describe_kind(method)}
        if warm:
            row[TEMPERATURE[0]] = None if row[TARGET[0]] == OPTIMISER else run.samples(method).temperature
        row |= {heading: diagnosis.get(key) for key, (heading, _) in COLUMNS.items()}
        if flags_of(run.methods[method], diagnosis):
            row |= dict.fromkeys(COLUMNS[key][0] for key in ("ess_per_million", "ess_per_second"))
        if measure is not None:
            explained[measure.heading] = measure.caption
            row[measure.heading] = metrics.get(f"{method}.{measure.metric}")
            if measure.floor:
                explained[FLOOR[0]] = FLOOR[1]
                row[FLOOR[0]] = metrics.get(f"{method}.{measure.floor}")
        for name in named_for_sweeps(run.config):
            explained[name] = OF_MONITOR
            row[name] = metrics.get(f"{method}.{name}")
        rows[run.label(method)] = row
    frame = pd.DataFrame.from_dict(rows, orient="index").astype(object)
    columns = [name for name in frame.columns if any(_is_there(v) for v in frame[name])]
    return frame[columns], {name: explained[name] for name in columns}


def named_for_sweeps(config: Mapping[str, Any]) -> list[str]:
    """Return the first numbers of monitors that an experiment names for sweeps if it computes no metrics."""
    report = config.get("report") or {}
    return [] if report.get("metrics") else list(report.get("sweep") or [])[:NAMED]


def _is_there(value: Any) -> bool:
    number = value.value if isinstance(value, Estimate) else value
    return number is not None and not (isinstance(number, float) and math.isnan(number))


def _fastest(
    run: Run, diagnostics: Mapping[str, Mapping[str, Any]], compared: Sequence[str], best: str
) -> str:
    """Return a sentence on the method with the most effective draws per second, if another has clearly fewer."""
    rates = {m: diagnostics[m].get("ess_per_second") for m in compared}
    speeds = {m: rate for m, rate in rates.items() if rate is not None and not math.isnan(rate)}
    if best not in speeds or speeds[fastest := max(speeds, key=speeds.__getitem__)] < _CLEARLY * speeds[best]:
        return ""
    return f" Per second {run.label(fastest)} has the most, {shown(speeds[fastest])} against {shown(speeds[best])}."


def default_finding(run: Run, diagnostics: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence for any run: the most efficient converged method, or that none has converged.

    It is an exact method, if one has converged; approximate ones are named. Methods that have not converged and have
    more effective draws are named with their R-hat, and those with a fault with what it is
    (`mhrun.engine.diagnosis.faults`).
    """
    sizes = {m: diagnosis["ess"] for m, diagnosis in diagnostics.items() if _is_there(diagnosis.get("ess"))}
    if not sizes:
        return ""
    faults = {m: str(fault) for m in sizes if (fault := run.methods[m].get("fault"))}
    right = _best_of(run, diagnostics, {m: size for m, size in sizes.items() if m not in faults})
    wrong = ", ".join(f"{quoted(run.label(m))} ({fault})" for m, fault in faults.items())
    return " ".join(filter(None, (right, f"Draws of a wrong distribution: {wrong}." * bool(wrong))))


def _best_of(run: Run, diagnostics: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, float]) -> str:
    """Return the sentence on the methods of `sizes`, which has their effective draws."""
    if not sizes:
        return ""
    rhats = {m: float(diagnostics[m]["rhat"]) for m in sizes if _is_there(diagnostics[m].get("rhat"))}
    if len(sizes) == 1:
        ((method, size),) = sizes.items()
        rhat = f" and an R-hat of {shown(rhats[method])}" if rhats else ""
        return f"{run.label(method)} has {shown(size)} effective draws{rhat}."
    converged = [m for m, rhat in rhats.items() if not is_apart(rhat)]
    if rhats and not converged:
        return _none_converged(run, rhats)
    rates = {
        m: diagnostics[m]["ess_per_million"] for m in sizes if _is_there(diagnostics[m]["ess_per_million"])
    }
    if rated := [m for m in converged or sizes if m in rates]:
        return _most_efficient(run, diagnostics, rated, rates, rhats)
    best = max(sizes, key=lambda m: sizes[m])
    return f"{run.label(best)} has the most effective draws: {shown(sizes[best])}."


def _none_converged(run: Run, rhats: Mapping[str, float]) -> str:
    """Return that no method has converged, with the least and the largest R-hat."""
    low, high = min(rhats, key=lambda m: rhats[m]), max(rhats, key=lambda m: rhats[m])
    span = f"from {shown(rhats[low])} ({run.label(low)}) to {shown(rhats[high])} ({run.label(high)})"
    return f"No method has converged: R-hat is {span if low != high else shown(rhats[low])}."


def _most_efficient(
    run: Run,
    diagnostics: Mapping[str, Mapping[str, Any]],
    rated: Sequence[str],
    rates: Mapping[str, float],
    rhats: Mapping[str, float],
) -> str:
    """Return the method with the most effective draws per million evaluations, among the exact ones if there are any.

    Args:
        run: the run.
        diagnostics: of its methods.
        rated: methods to choose from: those that converged, or all if no R-hat is known.
        rates: effective draws per million evaluations of all methods that have some.
        rhats: R-hat of the methods of which it is known.
    """
    exact = [m for m in rated if run.kind(m) == EXACT]
    compared = exact or rated
    best = max(compared, key=lambda m: rates[m])
    sentence = f"{run.label(best)} has {shown(rates[best])} effective draws per million evaluations"
    diagnosis = diagnostics[best]
    if (setup := diagnosis.get("setup") or 0) > diagnosis["evaluations"]:
        whole = 1e6 * diagnosis["ess"] / (diagnosis["evaluations"] + setup)
        sentence += f" after its set-up ({shown(whole)} with it)"
    if len(compared) > 1:
        kinds = " or ".join(sorted({run.describe_kind(m) for m in exact}))
        kind = f"{kinds} " if 0 < len(exact) < len(rated) else ""
        sentence += f", most of the {len(compared)} {kind}methods" + " that converged" * bool(rhats)
    elif len(rated) == 1 < len(rhats):
        sentence += ", and no other method has converged"
    sentence += (
        f"{runners_up(rates[best], rates, rhats, run.label)}.{_fastest(run, diagnostics, compared, best)}"
    )
    if approximate := [quoted(run.label(m)) for m in rated if m not in compared]:
        sentence += f" Approximate, and to be compared with it: {', '.join(approximate)}."
    return sentence
