"""Warnings about the draws of a run, as its page and the terminal show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mhrun.kernels.stationary import OPTIMISER
from mhrun.report.convergence import convergence_warnings, single_chain_warnings
from mhrun.report.efficiency import has_stopped, named, unconverged
from mhrun.report.run import Run


def report_warnings(run: Run, diagnostics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return warnings about the draws of a run, one line each: R-hat, ESS, divergences, engine warnings.

    Optimisers get no R-hat or ESS: their steps are not draws.
    """
    diagnostics = {m: diagnosis for m, diagnosis in diagnostics.items() if run.kind(m) != OPTIMISER}
    lines = convergence_warnings(diagnostics, run.label)
    lines += _tail_warnings(run, diagnostics)
    if few := {
        m: diagnosis["few_points"] for m, diagnosis in diagnostics.items() if "few_points" in diagnosis
    }:
        lines.append(
            f"Few of the draws are distinct: {_named(run, list(few), few)}. Chains come back to the same points, as by "
            "jumps between which no other move is accepted, and their ESS says little. Lower the step size."
        )
    single = [m for m in diagnostics if run.methods[m]["chains"] == run.methods[m]["rungs"]]
    lines += single_chain_warnings(single, run.label)
    unknown = {
        m: str(diagnosis["why"]).rstrip(".")
        for m, diagnosis in diagnostics.items()
        if "why" in diagnosis and run.methods[m]["thin"] is not None and not has_stopped(run.methods[m])
    }
    lines += [f"R-hat and ESS are unknown: {run.label(m)}: {reason}." for m, reason in unknown.items()]
    if any(
        diagnosis.get("judged") == "weights" and unconverged(diagnosis) for diagnosis in diagnostics.values()
    ):
        lines.append(
            "Hidden units of a network can be exchanged without a change of its predictions, so that R-hat and ESS of "
            "weights say little, and its predictions could not be computed. Judge a monitor's errors."
        )
    stuck = [m for m, diagnosis in diagnostics.items() if _is_stuck(diagnosis)]
    if stuck:
        lines.append(f"ESS and R-hat are undefined: {_named(run, stuck)}. A coordinate never moves.")
    lines += [*_acceptance_warnings(run), *_target_warnings(run)]
    # Of methods with an acceptance test the engine says what it is.
    diverging = {
        m: summary["diverging"]
        for m, summary in run.methods.items()
        if summary["diverging"] and not summary.get("n_accept_tests")
    }
    if diverging:
        lines.append(f"Divergent steps: {_named(run, list(diverging), diverging)}. Lower the step size.")
    lines += _fit_warnings(run)
    lines += [str(line) for summary in run.methods.values() for line in summary.get("warnings") or []]
    return lines


def _tail_warnings(run: Run, diagnostics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each parameter whose tail is heavy, with the index that it has in each method's draws."""
    indices: dict[str, dict[str, float]] = {}
    for m, diagnosis in diagnostics.items():
        if "heavy_tail" in diagnosis:
            name, index = diagnosis["heavy_tail"]
            indices.setdefault(name, {})[m] = index
    return [
        f"The tail of {name} is heavy: {_named(run, list(of), of)}, with its index in brackets; from 0.5 on there is "
        "no variance, and from 1 on no mean. Report quantiles, or choose a prior with a lighter tail."
        for name, of in indices.items()
    ]


def _acceptance_warnings(run: Run) -> list[str]:
    """Return a line for methods with too many rejections and one for too few, each with the range of the first."""
    lines = []
    rates: dict[str, float] = {
        m: summary["accept_rate"] for m, summary in run.methods.items() if summary.get("accept_range")
    }
    ranges = {m: run.methods[m]["accept_range"] for m, rate in rates.items() if rate}
    reasons = {m: _reason(summary) for m, summary in run.methods.items()}
    low = {m: rates[m] for m, (least, _) in ranges.items() if rates[m] < least and reasons[m] != "unsettled"}
    high = {m: rates[m] for m, (_, most) in ranges.items() if rates[m] > most and reasons[m] is None}
    for rates_off, level, remedy in ((low, "low", "Lower"), (high, "high", "Raise")):
        if rates_off:
            worst = sorted(rates_off, key=lambda m: rates_off[m], reverse=level == "high")
            span = "{:.2f} to {:.2f}".format(*ranges[worst[0]])
            lines.append(
                f"Acceptance is {level}: {_named(run, worst, rates_off)}; efficient rates are {span}. "
                f"{remedy} the step size."
            )
    return lines


def _reason(summary: Mapping[str, Any]) -> str | None:
    """Return what explains an acceptance rate, or None; see `mhrun.engine.warnings.run.explained_acceptance`."""
    return summary.get("explained_acceptance")


def _target_warnings(run: Run) -> list[str]:
    """Return a line for methods that sample at a temperature above 1, and one for those below 1."""
    all_samples = {m: run.samples(m) for m in run.methods}
    lines = []
    if tempered := {m: of.temperature for m, of in all_samples.items() if of.tempered}:
        lines.append(
            f"Not the posterior: {_named(run, list(tempered), tempered)} sample{'s' * (len(tempered) == 1)} the target "
            "at the temperature T in brackets, with standard deviations up to sqrt(T) times as large."
        )
    if cold := {m: of.temperature for m, of in all_samples.items() if of.is_cold}:
        lines.append(
            f"Colder than the posterior: {_named(run, list(cold), cold)} sample{'s' * (len(cold) == 1)} the target "
            "at the temperature T in brackets, with standard deviations down to sqrt(T) times as large."
        )
    return lines


def _fit_warnings(run: Run) -> list[str]:
    """Return failed checks of the model's fit, each with the methods whose draws show it."""
    methods: dict[str, list[str]] = {}
    for m, summary in run.methods.items():
        for line in summary.get("fit_warnings") or []:
            methods.setdefault(line, []).append(m)
    return [f"{_named(run, shown_by)}: {line}." for line, shown_by in methods.items()]


def _is_stuck(diagnosis: Mapping[str, Any]) -> bool:
    size = diagnosis.get("ess", 0.0)
    return bool(diagnosis.get("draws")) and (size is None or math.isnan(size))


def _named(run: Run, methods: Sequence[str], numbers: Mapping[str, float] | None = None) -> str:
    return named(methods, run.label, numbers)
