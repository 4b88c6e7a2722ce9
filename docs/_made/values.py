"""Numbers of the results, as pages quote them.

A comment at the end of a page has the passages with their values in braces,

    <!-- values:
    distance of MINT is {claim mint gmm_tied_means f1l-close} from
    -->

and `make docs-refresh` rewrites the numbers in the page (refresh.py). What can be quoted:

    claim PAPER EXPERIMENT ID       our number for a claim; sweeps: PAPER sweeps/EXPERIMENT ID
    metric EXPERIMENT NAME          a metric of a report, such as mint.tv
    method EXPERIMENT METHOD NAME   a count of a method, such as likelihood_evals
    ratio VALUE VALUE               of two of these, without their errors: ratio metric E A metric E B
    cost EXPERIMENT METHOD          likelihoods and gradients of single data for each effective draw
    count EXPERIMENT                "5 of 6": claims of an experiment that are reproduced
    total WORD                      of the five papers: reproduced, not_reproduced, not_run, not_judged, claims
    total_exact WORD                the same of the papers on exact sampling
    there WORD                      how many there are in the repository: methods, experiments, papers, exact_papers
    revised                         reproduced claims whose rule was changed after the number was known

and then how it is written: nothing (about three figures, and the standard error), a format (`.2f`, `,.0f`), `percent`,
`verdict`, `paper` (the paper's own number) or `run` (which run it is of).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import claims
import parts

from mhrun.diagnostics.grid import Estimate
from mhrun.numbers import in_figures
from mhrun.report.claims.verdicts import NOT_AT_SCALE, NOT_JUDGED, NOT_REPRODUCED, REPRODUCED, count
from mhrun.report.tables import shown
from mhrun.store.identity import RESULTS_VERSION

MISSING = "not run yet"
NONE = "–"  # a metric that the run has, and that is not a number: an error level that was never reached
METRICS = parts.ROOT / "docs" / "results" / "metrics"
_TOTALS = {
    "reproduced": REPRODUCED,
    "not_reproduced": NOT_REPRODUCED,
    "not_run": NOT_AT_SCALE,
    "not_judged": NOT_JUDGED,
}
_ARGUMENTS = {
    "claim": 3,
    "metric": 2,
    "method": 3,
    "cost": 2,
    "count": 1,
    "total": 1,
    "total_exact": 1,
    "there": 1,
    "revised": 0,
}


class UnknownValue(ValueError):
    """A page quotes a number that cannot exist."""


def quoted(spec: str) -> str:
    """Return the text of a value, `MISSING` where no run of this results version has it.

    Raises:
        UnknownValue: There is no such claim, total or kind of value.
    """
    kind, *words = spec.split()
    if kind == "ratio":
        return _ratio(words)
    if kind not in _ARGUMENTS or len(words) not in (_ARGUMENTS[kind], _ARGUMENTS[kind] + 1):
        raise UnknownValue(f"'{spec}' is no value; see docs/_made/values.py.")
    words, form = words[: _ARGUMENTS[kind]], "".join(words[_ARGUMENTS[kind] :])
    if kind == "claim":
        paper, experiment, name = words
        return _claim(paper, experiment, name, form)
    makers: dict[str, Callable[..., Any]] = {"metric": _metric, "cost": _cost, "method": _method}
    makers["revised"] = _revised
    makers |= {"count": _count, "total": _total, "there": _there}
    makers["total_exact"] = lambda word: _total(word, claims.EXACT)
    return _written(makers[kind](*words), form)


@cache
def measured(experiment: str) -> dict[str, Any]:
    """Return the metrics and the methods' counts of an experiment's paper-scale run; nothing without a current one."""
    path = METRICS / f"{experiment}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if found.get("results_version") == RESULTS_VERSION else {}


def _ratio(words: list[str]) -> str:
    """Return the ratio of two metrics or counts, to two figures."""
    first = _ARGUMENTS.get("".join(words[:1]), 0) + 1
    halves = words[:first], words[first:]
    values = []
    for half in halves:
        kind = half[0] if half else ""
        if kind not in ("metric", "method") or len(half) != _ARGUMENTS[kind] + 1:
            raise UnknownValue(f"'ratio {' '.join(words)}' is no ratio of two metrics or counts.")
        values.append(_metric(*half[1:]) if kind == "metric" else _method(*half[1:]))
    if None in values or NONE in values:
        return MISSING
    ratio = float(f"{_number(values[0]) / _number(values[1]):.2g}")
    return f"{ratio:g}" if abs(ratio) < 1000 else shown(ratio)


def _claim(paper: str, experiment: str, name: str, form: str) -> str:
    kind, _, title = experiment.rpartition("/")
    rows = claims.rows(paper, kind or "experiments", title)
    if name not in rows:
        raise UnknownValue(f"experiments/{paper}/claims.yaml has no claim '{name}' of {experiment}.")
    row = rows[name]
    if form == "verdict":
        return str(row["verdict"])
    if form == "paper":
        return shown(row["paper"])
    if form == "run":
        return str(row["run"] or MISSING)
    ours = row["ours"]
    return _written(None if ours is None else ours if row["se"] is None else Estimate(ours, row["se"]), form)


def _metric(experiment: str, name: str) -> Any:
    metrics = measured(experiment).get("metrics", {})
    value = metrics.get(name)
    if name in metrics and (value is None or (isinstance(value, list) and value[0] is None)):
        return NONE
    return Estimate(*value) if isinstance(value, list) else value


def _method(experiment: str, method: str, name: str) -> Any:
    return measured(experiment).get("methods", {}).get(method, {}).get(name)


def _cost(experiment: str, method: str) -> Any:
    ess, parts = _metric(experiment, f"{method}.ess"), ("likelihood_evals", "gradient_evals")
    counts = [_method(experiment, method, name) for name in parts]
    if ess is None or None in counts:
        return None
    return float(f"{sum(counts) / _number(ess):.2g}")


def _count(experiment: str) -> Any:
    verdicts = [row["verdict"] for row in claims.rows_of_experiment(experiment)]
    if not verdicts or all(verdict == NOT_AT_SCALE for verdict in verdicts):
        return None
    return "{} of {}".format(*count(verdicts))


def _total(word: str, group: str = claims.SEED) -> Any:
    found = claims.totals(group)
    if word == "claims":
        return sum(found[verdict] for verdict in _TOTALS.values())
    if word not in _TOTALS:
        raise UnknownValue(f"'{word}' is no total; there is {', '.join([*_TOTALS, 'claims'])}.")
    return found[_TOTALS[word]]


def _revised() -> int:
    """Return how many reproduced claims of the five papers have a rule that was revised."""
    found = 0
    for paper in claims.papers(claims.SEED):
        for kind, experiment, _, _ in claims.sections(paper):
            rows = claims.rows(paper, kind, experiment).values()
            found += sum(row["verdict"] == REPRODUCED and bool(row.get("revised")) for row in rows)
    return found


def _there(word: str) -> Any:
    counts = {"methods": len(parts.names("method")), "experiments": len(parts.names("experiment"))}
    counts |= {"papers": len(claims.papers(claims.SEED)), "exact_papers": len(claims.papers(claims.EXACT))}
    if word not in counts:
        raise UnknownValue(f"'{word}' is not counted; there is {', '.join(counts)}.")
    return counts[word]


def _written(value: Any, form: str) -> str:
    if value is None:
        return MISSING
    if not form or isinstance(value, str):
        return shown(value)
    if form == "percent":
        return f"{_plain(100 * _number(value))} %"
    if not re.fullmatch(r",?\.\d+[efg]", form):
        raise UnknownValue(f"'{form}' is no way to write a number.")
    if form.endswith("e"):
        return in_figures(_number(value), int(form[-2]) + 1)
    return f"{_number(value):{form}}"


def _number(value: Any) -> float:
    return float(value.value if isinstance(value, Estimate) else value)


def _plain(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 1 else f"{value:.2g}"
