"""Predictions of each method on a small network beside those of Hamiltonian Monte Carlo on all data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.build import build
from mhrun.diagnostics.calibration import brier, calibration_error
from mhrun.diagnostics.chains import worth_of_predictions
from mhrun.errors import UserError
from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.plots import THIN, finished, logarithmic, logarithmic_across, panels, points
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, Style, method_styles

TRUTH = "hmc"
_HELD = 200  # networks that are evaluated together


class Score(NamedTuple):
    """How far a prediction is from the truth's."""

    agreement: float  # share of the test data with the same most probable class
    tv: float  # mean over the test data of the total variation distance


def monitored_data(run: Run) -> Mapping[str, torch.Tensor]:
    """Return the test data."""
    fields: Mapping[str, torch.Tensor] = build(run.config["test"], "test").load().fields
    return fields


def predictions(run: Run) -> dict[str, Array]:
    """Return the class probabilities of each method's networks on the test data (C, S, n, K), float32.

    Of an optimiser, the last network alone.

    Raises:
        UserError: the run has no chains of HMC to compare with.
    """
    if TRUTH not in run.methods or run.methods[TRUTH]["chains"] < 2:
        raise UserError(f"this report needs the method {TRUTH}, with two chains or more: it is the truth.")
    rows, by_method = run.cached(monitored_data), {}
    model: Any = run.target.model
    rows = {name: field[None] for name, field in rows.items()}
    for method in run.methods:
        draws = run.draws(method)
        if is_optimiser(run, method):
            draws = draws[:, -1:]
        theta = torch.from_numpy(np.ascontiguousarray(draws.reshape(-1, draws.shape[-1]))).float()
        parts = [model.predict(part, rows).exp() for part in theta.split(_HELD)]
        by_method[method] = torch.cat(parts).numpy().reshape(*draws.shape[:2], -1, parts[0].shape[-1])
    return by_method


def is_optimiser(run: Run, method: str) -> bool:
    """Return whether a method has no stationary distribution: its last networks are an ensemble."""
    target = str(run.config["methods"][method]["kernel"].get("dynamics", {}).get("_target_", ""))
    return target.endswith("Momentum")


def samplers(run: Run) -> list[str]:
    """Return the methods that are not optimisers."""
    return [method for method in run.methods if not is_optimiser(run, method)]


def score(found: Array, truth: Array) -> Score:
    """Return agreement and total variation of class probabilities (n, K) with the truth's (n, K).

    Izmailov, Vikram, Hoffman & Wilson (2021), section 5: the share of data with the same most probable class, and the
    mean of sum_k |p_k - q_k| / 2.
    """
    agreement = float((found.argmax(-1) == truth.argmax(-1)).mean())
    return Score(agreement, float(0.5 * np.abs(found - truth).sum(-1).mean()))


def passes(run: Run, method: str) -> float:
    """Return the gradients, or likelihoods if more, of single data after burn-in, over n and the number of chains."""
    summary = run.methods[method]
    spent = summary["after_burn_in"]
    return float(max(spent["n_grad"], spent["n_lik"])) / (run.target.n * summary["chains"])


def metrics(run: Run) -> Metrics:
    """Return the metrics of the tables.

    ``agreement``, ``tv``: of all chains of a method together, with HMC; of HMC, of its second half of chains with its
    first: the reference's own error. ``agreement_one``, ``tv_one``: of one chain. ``rhat``, ``ess``: of predictions.
    """
    table = MetricTable()
    by_method = run.cached(predictions)
    truth = by_method[TRUTH]
    y = run.cached(monitored_data)["y"]
    for method, probabilities in by_method.items():
        pooled, single = probabilities.mean(axis=(0, 1)), probabilities.mean(axis=1)
        if method == TRUTH:
            half = len(probabilities) // 2
            of_all = score(probabilities[half:].mean(axis=(0, 1)), probabilities[:half].mean(axis=(0, 1)))
            of_one = [score(p, np.delete(single, c, axis=0).mean(axis=0)) for c, p in enumerate(single)]
        else:
            mean = truth.mean(axis=(0, 1))
            of_all, of_one = score(pooled, mean), [score(p, mean) for p in single]
        table.add(method, of_all._asdict())
        table.add(
            method, {f"{name}_one": estimate([s._asdict()[name] for s in of_one]) for name in Score._fields}
        )
        table.add(method, _quality(pooled, single, y))
        table.add(
            method,
            {
                "passes": passes(run, method),
                "networks": float(probabilities.shape[0] * probabilities.shape[1]),
            },
        )
        if not is_optimiser(run, method):
            table.add(
                method,
                {
                    k: v
                    for k, v in worth_of_predictions(probabilities.astype(float)).items()
                    if k != "ess_tail"
                },
            )
        if run.methods[method]["n_accept_tests"]:
            table.add(method, {"accept_rate": run.methods[method]["accept_rate"]})
    return table


def _quality(pooled: Array, single: Array, y: torch.Tensor) -> Metrics:
    """Return error (per cent), likelihood and calibration of the mean prediction of all chains, and of one chain's."""
    p, chains = torch.from_numpy(pooled)[None].double(), torch.from_numpy(single).double()
    numbers: Metrics = {}
    for end, predicted in (("", p), ("_one", chains)):
        of_label = predicted.gather(-1, y.long().expand(predicted.shape[:2])[..., None])[..., 0]
        scores = {
            "error": 100 * (predicted.argmax(-1) != y).double().mean(-1),
            "nll": -of_label.log().mean(-1),
            "brier": brier(predicted, y),
            "ece": calibration_error(predicted, y),
        }
        numbers |= {f"{name}{end}": estimate(v) if end else float(v[0]) for name, v in scores.items()}
    return numbers


def convergence(run: Run) -> dict[str, tuple[Array, Array]]:
    """Return passes through the data and the total variation from HMC of the networks up to there, each (S,).

    Of methods with several networks; of HMC's first half of chains, from the second.
    """
    curves, by_method = {}, run.cached(predictions)
    truth = by_method[TRUTH].mean(axis=(0, 1))
    for method, probabilities in by_method.items():
        steps = probabilities.shape[1]
        if steps < 2:
            continue
        mean = truth
        if method == TRUTH:
            mean = probabilities[len(probabilities) // 2 :].mean(axis=(0, 1))
            probabilities = probabilities[: len(probabilities) // 2]
        running_mean = probabilities.mean(axis=0).cumsum(axis=0) / np.arange(1, steps + 1)[:, None, None]
        places = np.unique(np.geomspace(1, steps, 20).astype(int)) - 1
        tv = np.array([score(running_mean[k], mean).tv for k in places])
        at = run.draw_steps(method)[-steps:][places] / run.methods[method]["steps"]
        curves[method] = passes(run, method) * at, tv
    return curves


# --- Figures ------------------------------------------------------------------------------------------------


def truth_figure(run: Run) -> Figure:
    """Agreement and total variation with HMC's predictions, and the negative log-likelihood of the test labels."""
    numbers, methods = run.cached(metrics), list(run.methods)
    rows = -np.arange(len(methods))
    shown = {"agreement": "agreement with HMC", "tv": "total variation from HMC", "nll": "NLL (nats)"}
    figure, axes = panels(len(shown), size=(2.9, 3.4))
    for axis, (name, title) in zip(axes, shown.items(), strict=True):
        for end, fill in (("_one", "white"), ("", COLOURS[0])):
            for row, method in zip(rows, methods, strict=True):
                style: Style = {"color": COLOURS[0], "markerfacecolor": fill, "markersize": 5}
                points(axis, [row], [numbers[f"{method}.{name}{end}"]], upright=False, **style)
        if f"{TRUTH}.{name}" in numbers:
            axis.axvline(value(numbers[f"{TRUTH}.{name}"]), linestyle="--", **THIN)
        axis.set(xlabel=title, yticks=rows)
    logarithmic_across(axes[1])
    axes[0].set_yticklabels([run.label(method) for method in methods])
    return finished(figure)


def convergence_figure(run: Run) -> Figure:
    """Total variation from HMC's predictions against passes through the data, of the networks collected so far."""
    labels: Style = {"xlabel": "passes of a chain after burn-in", "ylabel": "total variation from HMC"}
    figure, (axis,) = panels(1, size=(5.4, 3.6), xscale="log", **labels)
    looks = method_styles(run.methods)
    for method, (x, tv) in run.cached(convergence).items():
        style: Style = looks[method] | {"linewidth": 1.2, "markersize": 3}
        axis.plot(x, tv, label=run.label(method), **style)
    for method in run.methods:
        if is_optimiser(run, method):
            last = value(run.cached(metrics)[f"{method}.tv"])
            axis.plot(
                [passes(run, method)], [last], label=run.label(method), **(looks[method] | {"linestyle": ""})
            )
    logarithmic(axis)
    return finished(figure, legend="right")
