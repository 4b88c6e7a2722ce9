"""Table 1 of Luo et al. (2020): eight methods on networks whose labels are permuted anew in each pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from mhrun.report import declared
from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.vocabulary import Array, Estimate, Run, by_rows, monitored

from .rates import exchanges, predicted, read, share

METHODS = ("adam", "sgd_momentum", "sgld", "reld", "sghmc", "sgnht", "tact_hmc", "renhd")  # as in Table 1
OPTIMISERS, LADDERS = METHODS[:2], ("reld", "renhd")
UNTEMPERED = ("adam", "sgd_momentum", "sgld", "sghmc", "sgnht")
LEVELS: Mapping[str, str] = {"p0": "no label permuted", "p20": "20 % permuted", "p30": "30 % permuted"}

# Table 1, by the experiment's key `printed`.
PRINTED: Mapping[str, Mapping[str, Sequence[float]]] = declared.printed("renhd.networks")


def printed(run: Run) -> Mapping[str, Sequence[float]]:
    """Return the accuracies of Table 1 for this experiment, method -> values by share of permuted labels."""
    return PRINTED[run.config["printed"]]


def there(run: Run) -> list[str]:
    """Return those of the methods that the run has at each share of permuted labels."""
    return [name for name in METHODS if all(f"{name}_{level}" in run.methods for level in LEVELS)]


def coldest(run: Run, method: str, name: str) -> Array:
    """Return a monitor's metric at T = 1, of each run of a method at each run of the monitor (R, L)."""
    return monitored(run, method, name)[:: run.rungs(method)]


def estimated(method: str) -> str:
    """Return the end of the names of Table 1's metrics: the last network's of optimisers, else the ensemble's."""
    return "" if method.startswith(OPTIMISERS) else "_of_ensemble"


def accuracies(run: Run, method: str) -> Array:
    """Return the test accuracy in per cent of each run of a method at the end (R,); of those that have one, if any."""
    return last(run, method, f"error{estimated(method)}", lambda error: 100 - error)


def last(run: Run, method: str, name: str, of: Callable[[Array], Array] = np.asarray) -> Array:
    """Return a function of the last values of a metric, of the runs that have one (R,); one NaN if none has.

    A run of TACT-HMC has no ensemble if x was away from 0 whenever a network was to be collected.
    """
    values = of(coldest(run, method, name)[:, -1])
    finite = values[np.isfinite(values)]
    return finite if len(finite) else values[:1]


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables.

    Differences are of mean accuracies in points: ``over.OTHER`` of a method and a share of permuted labels with its
    standard error, ``sigmas_over.OTHER`` of a method the smallest over the shares in standard errors.
    """
    table = MetricTable.by_method(run, _of_method)
    names = there(run)
    means = {name: _means(run, name) for name in names}
    for one, other in _pairs(names):
        gaps = [_gap(run, f"{one}_{level}", f"{other}_{level}") for level in LEVELS]
        for level, gap in zip(LEVELS, gaps, strict=True):
            table.add(f"{one}_{level}", {f"over.{other}": gap})
        table.add(one, {f"sigmas_over.{other}": min(_sigmas(gap) for gap in gaps)})
        table.add(one, {f"levels_over.{other}": float(sum(gap.value > 0 for gap in gaps))})
    if {"reld", "sgld"} <= set(names):
        table.add("reld", {"off_sgld": float(np.abs(means["reld"] - means["sgld"]).max())})
    rivals = [means[name] for name in UNTEMPERED if name in names]
    if "renhd" in names and rivals:
        lead = means["renhd"] - np.max(rivals, axis=0)
        table.add("renhd", {"lead_rises": float((np.diff(lead) > 0).sum())})
        for level, number in zip(LEVELS, lead, strict=True):
            table.add(f"renhd_{level}", {"lead": float(number)})
    slow = [means[name] for name in OPTIMISERS if name in names]
    if slow and len(slow) < len(names):
        least = np.min([means[name] for name in names if name not in OPTIMISERS], axis=0)
        table.add("samplers", {"over_optimisers": float((least - np.max(slow, axis=0)).min())})
    for name in ("renhd", "sgnht"):
        if {name, "tact_hmc"} <= set(names):
            costs = [
                _step_seconds(run, name, level) / _step_seconds(run, "tact_hmc", level) for level in LEVELS
            ]
            table.add(name, {"cheaper": float(1 - np.mean(costs))})
    return table


def _means(run: Run, name: str) -> Array:
    return np.array([accuracies(run, f"{name}_{level}").mean() for level in LEVELS])


def _pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of methods that claims and tables compare, the better one in Table 1 first."""
    yield from (("renhd", name) for name in METHODS[:-1] if {"renhd", name} <= set(names))
    for pair in (("tact_hmc", "sgnht"), ("sgnht", "sghmc"), ("reld", "sgld")):
        if set(pair) <= set(names):
            yield pair


def _gap(run: Run, one: str, other: str) -> Estimate:
    """Return the difference of two methods' mean accuracies; their runs share no random numbers."""
    first, second = estimate(accuracies(run, one)), estimate(accuracies(run, other))
    return Estimate(first.value - second.value, math.hypot(first.se, second.se))


def _sigmas(gap: Estimate) -> float:
    return gap.value / gap.se if gap.se > 0 else math.nan


def _step_seconds(run: Run, name: str, level: str) -> float:
    summary = run.methods[f"{name}_{level}"]
    return float(summary["wall_s"]) / (summary["steps"] * summary["chains"])


def _of_method(run: Run, method: str) -> Metrics:
    end = estimated(method)
    numbers: Metrics = {"accuracy": estimate(accuracies(run, method))}
    for name in ("nll", "brier", "ece"):
        numbers[name] = estimate(last(run, method, f"{name}{end}"))
    numbers["accuracy_alone"] = estimate(last(run, method, "error", lambda error: 100 - error))
    name, _, level = method.rpartition("_")
    if name not in METHODS:
        return numbers
    numbers["step_ms"] = 1000 * _step_seconds(run, name, level)
    numbers["hours"] = float(run.methods[method]["wall_s"]) / 3600
    if name in LADDERS:
        swaps = exchanges(run, method)
        errors, rungs = monitored(run, method, "error"), run.rungs(method)
        numbers |= {
            "exchanged": share(swaps),
            "exchanged_late": share(swaps[:, -late(swaps) :]),
            "read": float(read(run, method).mean()),
            "predicted": predicted(run),
            "accuracy_hottest": estimate(100 - errors[rungs - 1 :: rungs, -1]),
        }
    return numbers


def late(made: Array) -> int:
    """Return the number of columns that are the last third."""
    return max(1, made.shape[1] // 3)


def ladders(run: Run) -> list[str]:
    """Return the methods with exchanges, in the order of the run."""
    return [method for method in run.methods if method.startswith(LADDERS)]


# --- Tables -------------------------------------------------------------------------------------------------


def named(run: Run, name: str) -> str:
    """Return the label of a method without its share of permuted labels."""
    return run.label(f"{name}_p0").split(",")[0]


def accuracy_table(run: Run) -> pd.DataFrame:
    """Test accuracies in per cent, by the share of permuted labels (Table 1)."""
    numbers, rows = run.cached(metrics), {}
    paper = printed(run)
    for name in there(run):
        rows[named(run, name)] = {
            head: number
            for place, (level, words) in enumerate(LEVELS.items())
            for head, number in (
                (words, numbers[f"{name}_{level}.accuracy"]),
                (f"paper, {words.split()[0]} %" if place else "paper, none", f"{paper[name][place]:.2f}"),
            )
        }
    return by_rows(rows)


def difference_table(run: Run) -> pd.DataFrame:
    """Differences of accuracies in the text and in Table 1 of the paper, in points."""
    numbers = run.cached(metrics)
    return by_rows(
        {
            f"{named(run, one)} over {named(run, other)}": {
                words: numbers.get(f"{one}_{level}.over.{other}") for level, words in LEVELS.items()
            }
            for one, other in _pairs(there(run))
        }
    )


def cost_table(run: Run) -> pd.DataFrame:
    """Milliseconds of a step of one chain, means over the shares of permuted labels (section 4.2)."""
    numbers, rows = run.cached(metrics), {}
    names = there(run)
    costs = {name: np.mean([value(numbers[f"{name}_{level}.step_ms"]) for level in LEVELS]) for name in names}
    for name in names:
        rows[named(run, name)] = {
            "ms": float(costs[name]),
            "over TACT-HMC": float(costs[name] / costs["tact_hmc"]) if "tact_hmc" in costs else math.nan,
            "chains": int(run.methods[f"{name}_p0"]["chains"]),
        }
    return by_rows(rows)
