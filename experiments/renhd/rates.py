"""Section 4.2 of Luo et al. (2020): how often replicas of a network exchange, and what an exchange reads."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.report.tables import shown

from ..shared.measures import Metrics, value
from .replicas import largest_dim

Array = npt.NDArray[np.floating]


def exchanges(run: Run, method: str) -> Array:
    """Return whether rungs j and j + 1 exchanged after each round (R - 1, S): 1 or 0, NaN if none was offered."""
    with run.trace(method) as trace:
        coded = trace["sample_stats"]["exchange"].to_numpy()  # (R, S)
    even = coded[0] > 0
    found = np.full((len(coded) - 1, coded.shape[1]), np.nan)
    for j in range(len(found)):
        offered = even == (j % 2 == 0)
        found[j, offered] = coded[j, offered] == 2
    return found


def read(run: Run, method: str) -> Array:
    """Return the share of all data that a chain reads for each of its exchanges (E,)."""
    with run.trace(method) as trace:
        stats = trace["sample_stats"]
        coded, total = stats["exchange"].to_numpy(), stats["n_lik"].to_numpy()
    each = np.diff(total, axis=1, prepend=0)
    found: Array = each[coded > 0] / run.target.n
    return found


def friction(run: Run) -> float:
    """Return c / T of the hottest rung."""
    config = run.config
    return float(config["c"] / config["ratio"] ** (config["rungs"] - 1))


def metrics(run: Run) -> Metrics:
    """Return rates early and late, what an exchange reads, and the dimension that a rate stands for."""
    found: Metrics = {}
    for method in run.methods:
        made = exchanges(run, method)
        third = max(1, made.shape[1] // 3)
        for name, part in (("early", made[:, :third]), ("late", made[:, -third:]), ("all", made)):
            found[f"{method}.{name}"] = _share(part)
        found[f"{method}.read"] = float(read(run, method).mean())
        rate = value(found[f"{method}.late"])
        known = rate > 0.005  # below, no ladder of this size tells rates apart
        found[f"{method}.dimension"] = float(largest_dim(rate, run.config["ratio"])) if known else math.nan
        looks = run.evaluation(method)
        hottest = looks["thermostat"].to_numpy()[-1] if "thermostat" in looks else np.array([math.nan])
        found[f"{method}.swing"] = float(np.sqrt(np.mean((hottest - friction(run)) ** 2)))
        errors = run.evaluation(method)["error"].to_numpy()
        found[f"{method}.coldest"], found[f"{method}.hottest"] = float(errors[0, -1]), float(errors[-1, -1])
    return found


def _share(made: Array) -> Estimate:
    """Return the share that was made, with the standard error of as many independent exchanges."""
    seen = made[np.isfinite(made)]
    share = float(seen.mean()) if len(seen) else math.nan
    return Estimate(share, math.sqrt(share * (1 - share) / max(1, len(seen))))


def table(run: Run) -> pd.DataFrame:
    """Share of the exchanges that are made, first and last third of the rounds, and what an exchange reads.

    As if harmonic: the dimension in which two harmonic replicas in equilibrium, at this ratio of temperatures,
    exchange at the late rate. Thermostat: its root mean square distance from c / T on the hottest rung, over the looks.
    Error: of the last state on the test images, per cent.
    """
    columns = {
        "early": "early",
        "late": "late",
        "share of all data read": "read",
        "as if harmonic in": "dimension",
        "thermostat": "swing",
        "error at T = 1": "coldest",
        "error on the hottest rung": "hottest",
    }
    return run.by_method(run.once(metrics), columns)


def figure(run: Run) -> Figure:
    """Share of the exchanges that are made, in tenths of the run, and by pairs of rungs in its last third.

    Grey: what the paper reports of its networks.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 2.9), sharey=True, layout="constrained")
    for method, colour in zip(run.methods, COLOURS, strict=False):
        made = exchanges(run, method)
        parts = np.array_split(np.arange(made.shape[1]), min(10, made.shape[1]))
        along = [np.nanmean(made[:, part]) for part in parts]
        left.plot(
            [part.mean() + 1 for part in parts],
            along,
            "o-",
            color=colour,
            markersize=3,
            label=run.label(method),
        )
        late = made[:, -max(1, made.shape[1] // 3) :]
        seen = np.isfinite(late).any(axis=1)
        right.plot(
            np.arange(len(late))[seen] + 0.5, np.nanmean(late[seen], axis=1), "o-", color=colour, markersize=3
        )
    for axis in (left, right):
        axis.axhspan(0.3, 0.4, color="0.85", zorder=0)
    left.set(xlabel="rounds", ylabel="exchanges made", ylim=(0, 1))
    left.legend()
    right.set(xlabel="between rungs j and j + 1")
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    if "renhd" not in run.methods:
        return []
    found, config, n = run.once(metrics), run.config, run.target.n
    dim = run.target.dim
    return [
        "The paper has a recurrent network of about 90,000 weights on Fashion-MNIST; here a perceptron of "
        f"{dim:,}, with the same tau, M, e, c and N, on {n:,} images.",
        f"An exchange reads {value(found['renhd.read']):.0%} of the data: the variance of its log-ratio is below "
        f"0.2 only when nearly all are read. With 256 of 60,000 images at tau = {config['ratio']:g} that would "
        "need a variance of a log-likelihood difference below 5e-7.",
        "Two replicas in equilibrium exchange at 0.3 in 50 to 70 dimensions of a harmonic potential and "
        "practically never in 10^4 (appendix F; experiment compensation), and RELD's never do. RENHD's friction "
        f"is c / T, {friction(run):.3f} on the hottest rung, so that little holds its thermostat still: over the "
        f"looks it is {shown(found['renhd.swing'])} away from that. Exchanges at a rate like the paper's are then "
        "no sign of rungs in equilibrium.",
    ]
