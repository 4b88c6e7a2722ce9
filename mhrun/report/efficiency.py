"""Efficiency of a method: effective sample size and R-hat of its draws, evaluations and seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.data import Dataset
from mhrun.diagnostics.chains import (
    COORDINATES,
    ESS,
    LEAST_DRAWS,
    RHAT,
    ChainDraws,
    diagnosed_coordinates,
    few_points,
    is_apart,
    some_coordinates,
    valid_of_each,
    worth,
)
from mhrun.diagnostics.tails import heaviest
from mhrun.errors import UserError
from mhrun.kernels.stationary import OPTIMISER
from mhrun.report.run import Run
from mhrun.report.tables import quoted, shown
from mhrun.store.pilot_facts import PilotFacts
from mhrun.target.function_space import Predictions, predictions, that_vary

__all__ = [
    "COORDINATES",
    "ESS",
    "RHAT",
    "costs",
    "diagnosed",
    "efficiency",
    "has_stopped",
    "is_apart",
    "named",
    "runners_up",
    "unconverged",
    "valid_draws",
    "worth",
]


_ELEMENTS = 4e7  # numbers of one method that a report diagnoses at most, which takes some ten seconds
_MILLION = 1e6
_NOT_FINITE = "some draws are no finite numbers."
_NAMED = 4  # methods that a warning names; the rest are counted
_RIVALS = 2  # methods that a finding names beside the best


def valid_draws(run: Run, method: str, most: float = np.inf, *, many: bool = False) -> ChainDraws | str:
    """Return the valid draws (C, S, D) of a method, or a line on why there are none.

    Chains with more valid draws than another are cut to its length. Of chains with different temperatures, those with
    the lowest are returned.

    Args:
        run: the run.
        method: its name.
        most: numbers to be returned at most, as long as one coordinate is: fewer coordinates where draws are many.
        many: whether more than 64 coordinates are returned, see `diagnosed_coordinates`.
    """
    draws = _valid(run, method)
    if isinstance(draws, str):
        return draws
    width = int(min(COORDINATES, max(1.0, most / (draws.shape[0] * draws.shape[1]))))
    if many and width == COORDINATES:
        width = diagnosed_coordinates(draws.shape[-1], *draws.shape[:2])
    if draws.shape[-1] > width or run.methods[method].get("constant"):
        draws = draws[..., columns_of(run, method, draws.shape[-1], width)]
    return draws if np.isfinite(draws).all() else _NOT_FINITE


def predicted(run: Run, method: str, draws: ChainDraws, data: Dataset | None = None) -> Predictions:
    """Return what a network predicts at its valid draws, see `predictions`.

    Args:
        run: the run.
        method: its name; a network's.
        draws: the first of its valid draws, or all (C, S, some coordinates).
        data: the inputs; those of the method if None.

    Raises:
        UserError: the data or the module are not there, have changed since the run or are not trusted, or the network
            is too costly to evaluate.
    """
    if run.changed_files:
        raise UserError(f"'{run.changed_files[0]}' is not as it was when the run was made.")
    weights, target = _valid(run, method), run.target_of(method)
    assert not isinstance(weights, str), weights
    return predictions(target.model, target.data if data is None else data, weights[:, : draws.shape[1]])


def _valid(run: Run, method: str) -> ChainDraws | str:
    """Return all coordinates of the valid draws of the coldest chains, or a line on why there are none."""
    if run.methods[method]["thin"] is None:
        return "no draws were kept (thin=null)."
    if has_stopped(run.methods[method]):
        return "chains became non-finite and stopped."
    draws, cold = run.draws(method, marked=True), run.is_coldest(method)
    if not cold.all():
        draws = draws[cold]
    if run.methods[method].get("valid_share", 1.0) < 1.0:
        draws = valid_of_each(draws, run.valid(method)[cold])
    if draws.shape[1] < LEAST_DRAWS:
        count = draws.shape[1]
        return f"{count} valid draw{'s' * (count != 1)} of one chain; {LEAST_DRAWS} of each are needed."
    return draws


def columns_of(run: Run, method: str, dim: int, most: int) -> npt.NDArray[np.int64]:
    """Return which of the D coordinates of a method's draws are read: at most so many, and none that is constant."""
    # Such as what is above the diagonal of a Cholesky factor.
    free = np.setdiff1d(np.arange(dim), np.array(run.methods[method].get("constant") or (), np.int64))
    chosen: npt.NDArray[np.int64] = free[some_coordinates(len(free), most)]
    return chosen


def has_stopped(about: Mapping[str, Any]) -> bool:
    """Return whether chains of a method became non-finite and stayed where they were, from its summary.

    Those of a dynamics do; a method with an acceptance test rejects such a step and goes on.
    """
    return bool(about.get("diverging")) and not about.get("n_accept_tests")


def costs(run: Run, method: str) -> dict[str, float]:
    """Return evaluations and seconds of all chains together after burn-in, and the evaluations before, ``setup``.

    An evaluation is a log-likelihood of one datum at one point, or its gradient, or both from one pass. Before the
    draws come the search for a mode, the pilot and burn-in.
    """
    summary = run.methods[method]
    counts, separate = summary["after_burn_in"], summary["separate_gradients"]
    pilot: PilotFacts = summary.get("pilot") or PilotFacts()
    n_lik = summary["likelihood_evals"] - pilot.get("n_lik", 0) - counts["n_lik"]
    n_grad = summary["gradient_evals"] - pilot.get("n_grad", 0) - counts["n_grad"]
    setup = (
        passes(n_lik, n_grad, separate)
        + pilot_passes(pilot, separate)
        + (summary.get("reference_n_grad") or 0)
    )
    return {
        "evaluations": passes(counts["n_lik"], counts["n_grad"], separate),
        "setup": max(0.0, float(setup)),
        "seconds": counts["wall_s"],
    }


def pilot_passes(pilot: PilotFacts | None, separate: float) -> float:
    """Return the evaluations of a pilot: a method that evaluates points with their gradients has both from one pass.

    Args:
        pilot: what it found; None if there was none.
        separate: see `passes`.
    """
    pilot = pilot or {}
    counts = float(pilot.get("n_lik", 0)), float(pilot.get("n_grad", 0))
    return sum(counts) if separate == 1 else max(counts)


def passes(n_lik: Any, n_grad: Any, separate: float) -> Any:
    """Return the evaluations behind counts of log-likelihoods and gradients.

    Args:
        n_lik: log-likelihoods.
        n_grad: gradients.
        separate: the method's share of gradients from separate passes, `Kernel.separate_gradients`.
    """
    return n_lik + separate * n_grad


def efficiency(run: Run, method: str, draws: ChainDraws | None, share: float = 1.0) -> dict[str, Any]:
    """Return worth and cost of a method, None where it has no draws: see `worth` and `costs`.

    Args:
        run: the run.
        method: its name.
        draws: valid draws of the method.
        share: of all its draws that these are, which cost that share of its evaluations and seconds.
    """
    summary, cost = run.methods[method], costs(run, method)
    cost |= {key: share * cost[key] for key in ("evaluations", "seconds")}
    record: dict[str, Any] = {
        "chains": summary["chains"],
        "draws": None,
        "rhat": None,
        "ess": None,
        "ess_tail": None,
        "ess_per_million": None,
        "ess_per_second": None,
        "acceptance": summary["accept_rate"] if summary["n_accept_tests"] else None,
        "data_per_step": summary["minibatch_size_mean"],
    } | cost
    if draws is not None:
        record |= {"draws": draws.shape[1]} | worth(draws)
        record["ess_per_million"] = _over(record["ess"] * _MILLION, cost["evaluations"])
        record["ess_per_second"] = _over(record["ess"], cost["seconds"])
    return record


def diagnosed(run: Run) -> dict[str, dict[str, Any]]:
    """Return `efficiency` of each method of a run; ``why`` says why one has no effective sample size.

    Networks are judged by their predictions; ``judged`` says whether that was possible: predictions, or weights.
    """
    records = {}
    for method in run.methods:
        is_optimiser = run.kind(method) == OPTIMISER
        draws = (
            "an optimiser has no draws." if is_optimiser else valid_draws(run, method, _ELEMENTS, many=True)
        )
        if isinstance(draws, str):
            records[method] = efficiency(run, method, None) | {"why": draws}
        else:
            judge = _of_network if run.methods[method].get("network") else _of_parameters
            records[method] = judge(run, method, draws)
    return records


def _of_parameters(run: Run, method: str, draws: ChainDraws) -> dict[str, Any]:
    """Return `efficiency`, and what neither R-hat nor ESS show.

    As ``heavy_tail`` the name and the index of one, and as ``few_points`` how many of the draws are distinct, see
    `few_points`.
    """
    record = efficiency(run, method, draws)
    if (points := few_points(draws, record["ess"])) is not None:
        record["few_points"] = points
    if record["ess"] >= ESS and not is_apart(record["rhat"]):
        names = run.parameter_names(method)
        if len(names) != draws.shape[-1]:
            names = [names[column] for column in columns_of(run, method, len(names), draws.shape[-1])]
        if (heavy := heaviest(draws)) is not None:
            record["heavy_tail"] = (names[heavy[0]], heavy[1])
    return record


def _of_network(run: Run, method: str, draws: ChainDraws) -> dict[str, Any]:
    """Return `efficiency` of the predictions of a network, or of its weights without them."""
    try:
        found, what = predicted(run, method, draws), "predictions"
        judged = found.values[..., that_vary(found)]
    except UserError:
        judged, what = draws, "weights"
    record = efficiency(run, method, judged) | {"draws": draws.shape[1], "judged": what}
    if judged.shape[1] < draws.shape[1]:  # the effective sample size is of some of the draws: a lower bound
        record |= {"ess_per_million": None, "ess_per_second": None}
    return record


def unconverged(about: Mapping[str, Any]) -> bool:
    """Return whether draws are too few or too far apart to be judged: R-hat above 1.01, or ESS below 400 or undefined.

    Args:
        about: the keys ``rhat`` and ``ess`` of `efficiency`; a method without draws is not judged, and not marked.
    """
    rhat, size = about.get("rhat"), about.get("ess")
    return size is not None and (not size >= ESS or (rhat is not None and is_apart(rhat)))


def _over(value: float, divisor: float) -> float | None:
    """Return the quotient, or None if the divisor is 0."""
    return value / divisor if divisor else None


def named(
    keys: Iterable[str], label: Callable[[str], str] = str, numbers: Mapping[str, float] | None = None
) -> str:
    """Return a few methods in one line, each with its number in brackets; those beyond the fourth are counted."""
    texts = [quoted(label(key)) + (f" ({shown(numbers[key])})" if numbers else "") for key in keys]
    rest = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


def runners_up(
    best: float, rates: Mapping[str, float], rhats: Mapping[str, float], label: Callable[[str], str] = str
) -> str:
    """Return the end of a finding: methods with more effective draws than the best converged one, with their R-hat.

    Args:
        best: effective draws per million evaluations of the best method that has converged.
        rates: the same of each method.
        rhats: R-hat of each method.
        label: name -> label.
    """
    rivals = [name for name, rate in rates.items() if rate > best and is_apart(rhats.get(name, np.nan))]
    rivals.sort(key=lambda name: rhats[name])
    parts = [
        f"{quoted(label(name))} has {shown(rates[name])} (R-hat {shown(rhats[name])})"
        for name in rivals[:_RIVALS]
    ]
    if not parts:
        return ""
    return f"; not converged, but with more: {', '.join(parts)}" + (
        f" and {len(rivals) - _RIVALS:,} more" if len(rivals) > _RIVALS else ""
    )
