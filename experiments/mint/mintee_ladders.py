"""The ladders of MINTEE: rungs, energies, jumps and energy rings (Li & Wong 2017, section 5.3, Appendix D)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mhrun.exchanges import MADE
from mhrun.random import Draws, Streams, derive_key
from mhrun.report.vocabulary import Array, Estimate, Run

ENERGIES = 600  # draws of a rung whose energies are computed


class Ladder(NamedTuple):
    """What a method's chains are: rungs cold to hot."""

    temperatures: list[float]
    sizes: list[int]
    levels: Array | None  # H_0, ..., H_{K-1}, where it has rings


def ladder_of(run: Run, method: str) -> Ladder:
    """Return temperatures, minibatch sizes and levels of a method's rungs."""
    node, n = run.config["methods"][method], run.target.n
    rungs = run.rungs(method)
    setting = (node["schedules"].get("temperature") or {}).get("temperature", 1.0)
    temperatures = [float(t) for t in (setting if isinstance(setting, list) else [setting] * rungs)][:rungs]
    sizes = [int(m) for m in node["kernel"].get("sizes") or [n] * rungs]
    levels = None
    if "spacing" in node["kernel"]:
        steps = node["kernel"]["spacing"] * np.cumsum([0.0, *temperatures[:-1]])
        levels = lowest(run) + steps
    return Ladder(temperatures, sizes, levels)


def truth(run: Run) -> Array:
    """Return theta* = (2, 0, ..., 0)."""
    point = np.zeros(run.target.dim)
    point[0] = 2.0
    return point


def lowest(run: Run) -> float:
    """Return H_0, the energy of theta*."""
    return float(energies(run, truth(run)[None])[0])


def energies(run: Run, theta: Array) -> Array:
    """Return h (P,) of points (P, D), from all data."""
    parts = [-run.target.full_log_lik(torch.from_numpy(part)).numpy() for part in np.array_split(theta, 8)]
    return np.concatenate(parts)


def rung_draws(run: Run, method: str) -> Array:
    """Return the kept draws of every rung (ladders, rungs, S, D)."""
    with run.trace(method) as trace:
        theta = trace["posterior"]["theta"].to_numpy()
    return np.asarray(theta.reshape(-1, run.rungs(method), *theta.shape[1:]))


def rung_stat(run: Run, method: str, name: str) -> npt.NDArray[Any]:
    """Return a statistic after burn-in of every rung (ladders, rungs, S)."""
    with run.trace(method) as trace:
        values = trace["sample_stats"][name].to_numpy()
    return np.asarray(values.reshape(-1, run.rungs(method), values.shape[-1]))


def shown(run: Run) -> str:
    """Return the method that the figures are of."""
    return str(run.config["shown"])


def sampled(run: Run) -> list[str]:
    """Return the methods that are judged as samplers of the posterior: a close-up is none."""
    return [method for method in run.methods if method != "closeup"]


def jumps(run: Run, method: str) -> list[tuple[int, Estimate]]:
    """Return, for each rung, how many kept steps offered a jump or an exchange, and the share that was made."""
    exchange = rung_stat(run, method, "exchange")
    offers = []
    for rung in range(exchange.shape[1]):
        offered, made = (exchange[:, rung] > 0).sum(), (exchange[:, rung] == MADE).sum()
        p = made / offered if offered else math.nan
        offers.append(
            (int(offered), Estimate(float(p), math.sqrt(p * (1 - p) / offered) if offered else math.nan))
        )
    return offers


def moved(run: Run, method: str) -> list[float]:
    """Return the share of local moves that each rung accepts."""
    exchange, accepted = rung_stat(run, method, "exchange"), rung_stat(run, method, "accepted")
    if "sizes" not in run.config["methods"][method]["kernel"]:  # a swap is beside a move, not in its place
        exchange = np.zeros_like(exchange)
    local = exchange == 0
    return [float(accepted[:, r][local[:, r]].mean()) for r in range(exchange.shape[1])]


class Rings(NamedTuple):
    """Shares of a rung's draws in each ring, and their mean energy above H_0."""

    exact: Array  # (rungs, rungs) energies from all data
    noisy: Array  # the same from a minibatch of the rung's own size
    mean: Array  # (rungs,)
    noise: Array  # (rungs,) sd of the minibatch energy about the exact one
    gap: Array  # (rungs,) mean of the minibatch energy above H_0


def rings(run: Run) -> Rings:
    """Return the rings of the method that is shown."""
    method = shown(run)
    ladder, draws = ladder_of(run, method), rung_draws(run, method)
    assert ladder.levels is not None
    n, edges = run.target.n, np.append(ladder.levels, math.inf)
    edges[0] = -math.inf  # ring 0 is all below H_1
    streams = Streams(derive_key(int(run.config["seed"]), "rings"), 1)
    columns: list[list[Any]] = [[] for _ in Rings._fields]
    for rung, m in enumerate(ladder.sizes):
        theta = draws[:, rung].reshape(-1, run.target.dim)
        theta = theta[:: max(1, len(theta) // ENERGIES)][:ENERGIES]
        h = energies(run, theta)
        noisy = h if m == n else _on_minibatches(run, theta, m, streams, rung)
        for column, energy in ((0, h), (1, noisy)):
            columns[column].append(np.histogram(energy, edges)[0] / len(energy))
        columns[2].append(h.mean() - ladder.levels[0])
        columns[3].append((noisy - h).std())
        columns[4].append(noisy.mean() - ladder.levels[0])
    return Rings(*(np.array(part) for part in columns))


def _on_minibatches(run: Run, theta: Array, m: int, streams: Streams, rung: int) -> Array:
    """Return -(n/m) sum_i l_i (P,), each point on a fresh minibatch of m."""
    target, out = run.target, []
    for k, point in enumerate(torch.from_numpy(theta)):
        index = Draws(streams, rung * len(theta) + k + 1, ahead=1).index(target.n, m, replacement=False)
        log_lik = target.model.log_lik(point[None], target.data.rows(index))
        out.append(-float(log_lik.sum()) * target.n / m)
    return np.array(out)
