"""Theorem 1 of Luo et al. (2020): the stationary distribution of position, momenta and thermostat, by simulation.

With a step dt, e = dt^2, c = C dt and b = B dt (eq. 20), where B dt is half the variance that the noise of the gradient
adds to the momenta in a step: V = 2 B / dt for each coordinate of a gradient. Theorem 1, with the constant noise of
eq. 19 and the thermostat of Algorithm 2, whose inertia is that of eq. 3 times d, has

    theta ~ exp(-U / T),   v = p dt ~ N(0, e T),   s = xi dt ~ N((b + c) / T, e T / d),   independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from mhrun.compiled import compile_loop
from mhrun.data.no_data import NoData
from mhrun.dynamics.sgnht import SGNHT
from mhrun.errors import UserError
from mhrun.kernels import Unadjusted
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.random import Draws, Streams, derive_key
from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import finished, legend_below, levels, panels, points
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, Style, by_rows
from mhrun.target import Target
from mhrun.types import Controls

GROUPS = 20  # of chains, that standard errors come from
AT_ONCE = 500  # steps of a compiled call: their positions are kept meanwhile


class Snapshots(NamedTuple):
    """States of independent chains, some relaxation times apart."""

    theta: Array  # (C, S, d)
    momentum: Array  # (C, S, d)
    thermostat: Array  # (C, S)


class Setting(NamedTuple):
    """A harmonic potential of this curvature, noise, and a step."""

    dt: float
    C: float
    B: float
    temperature: float
    dim: int
    curvature: float
    refresh: float | None = None  # time between two refreshments of the momenta


def setting(config: Mapping[str, Any], dt: float, ratio: float) -> Setting:
    """Return the setting with C = ratio B and the step dt."""
    C = config["C"]
    return Setting(dt, C, C / ratio, 1.0, config["dim"], config["curvature"])


def hottest(config: Mapping[str, Any], dt: float) -> Setting:
    """Return the setting of the hottest rung of the experiment five_modes, in one of its modes."""
    rung = config["rung"]
    B = rung["gradient_noise"] * rung["dt"] / 2
    return Setting(dt, rung["C"], B, rung["temperature"], 2, config["curvature"], rung["refresh"])


def simulated(case: Setting, chains: int, snapshots: int) -> Snapshots:
    """Return snapshots of chains in equilibrium, by the compiled loop of Algorithm 2's dynamics.

    Raises:
        UserError: there is no compiled loop here.
    """
    e = case.dt**2
    spacing, burn = _steps(case, 3.0), _steps(case, 10.0)
    refresh = None if case.refresh is None else round(case.refresh / case.dt)
    dynamics = SGNHT(case.C * case.dt / case.temperature, refresh=refresh)
    model = GaussianMixture([[0.0] * case.dim], 1 / case.curvature)
    target = Target(model, NoData().load(), gradient_noise=2 * case.B / case.dt)
    key = derive_key(0, f"law {case}")
    kernel = Unadjusted(dynamics, 1)
    loop = compile_loop(kernel, target, key, 1)
    if loop is None:
        raise UserError("This experiment needs numba, which is not there: pip install numba.")
    draws = Draws(Streams(key, chains), 0)
    state = kernel.start(target, model.init(chains, draws), draws)
    done, records = 0, []
    for steps in (burn, *[spacing] * (snapshots - 1)):
        for first in range(0, steps, AT_ONCE):
            count = min(AT_ONCE, steps - first)
            t = torch.full((count, chains), case.temperature, dtype=torch.float64)
            state, _ = loop.advance(state, done + 1, Controls(torch.full_like(t, e), t, t))
            done += count
        records.append(
            (
                state.evaluation.theta.numpy().copy(),
                state.aux["momentum"].numpy().copy(),
                state.aux["thermostat"].numpy().copy(),
            )
        )
    theta, momentum, thermostat = (np.stack(parts, axis=1) for parts in zip(*records, strict=True))
    return Snapshots(theta, momentum, thermostat)


def _steps(case: Setting, times: float) -> int:
    """Return the steps in so many relaxation times of the slowest of position, momenta and thermostat."""
    xi = (case.C + case.B) / case.temperature
    momenta = 2 / xi if case.refresh is None else min(2 / xi, 2 * case.refresh)
    return max(1, round(times * max(momenta, xi / case.curvature, xi / (2 * case.temperature)) / case.dt))


def measured(case: Setting, found: Snapshots) -> Metrics:
    """Return moments of the snapshots over those of Theorem 1; standard errors are over groups of chains."""
    variance = case.dt**2 * case.temperature
    s_mean, s_var = (case.C + case.B) * case.dt / case.temperature, variance / case.dim
    parts = [
        Snapshots(*part) for part in zip(*(np.array_split(array, GROUPS) for array in found), strict=True)
    ]

    def over(statistic: Any) -> Any:
        return estimate(np.array([statistic(part) for part in parts]))

    return {
        "theta_variance": over(lambda p: (p.theta**2).mean() * case.curvature / case.temperature),
        "p_variance": over(lambda p: (p.momentum**2).mean() / variance),
        "p_kurtosis": over(lambda p: (p.momentum**4).mean() / (p.momentum**2).mean() ** 2 / 3),
        "xi_mean": over(lambda p: p.thermostat.mean() / s_mean),
        "xi_variance": over(lambda p: p.thermostat.var() / s_var),
        "correlation": over(
            lambda p: np.corrcoef(p.thermostat.ravel(), (p.momentum**2).mean(-1).ravel())[0, 1]
        ),
    }


def uneven(config: Mapping[str, Any], ratio: float) -> tuple[float, float]:
    """Return the variances of quiet and of noisy coordinates, over the exact, where half of them have all the noise.

    C = ratio B with B the mean over coordinates: noisy ones have 2 B. The thermostat is one number, (C + B) / T, so
    that a coordinate with noise B_i has the temperature T (C + B_i) / (C + B).
    """
    node = config["uneven"]
    dt, dim, chains, C = node["dt"], node["dim"], node["chains"], config["C"]
    B = C / ratio
    case = Setting(dt, C, B, 1.0, dim, config["curvature"])
    noise = np.sqrt(2 * np.where(np.arange(dim) % 2, 2 * B, 0.0) / dt)
    rng, e, c = np.random.default_rng(config["seed"]), dt**2, C * dt
    theta, v, s = np.zeros((chains, dim)), np.zeros((chains, dim)), np.full(chains, c)
    burn, spacing, total = _steps(case, 10.0), _steps(case, 1.0), np.zeros(dim)
    count = 0
    for k in range(1, burn + node["snapshots"] * spacing + 1):
        gradient = noise * rng.standard_normal((chains, dim)) - case.curvature * theta
        v += e * gradient - s[:, None] * v + math.sqrt(2 * c * e) * rng.standard_normal((chains, dim))
        theta += v
        s += np.square(v).mean(axis=1) - e
        if k > burn and (k - burn) % spacing == 0:
            total += np.square(theta).mean(axis=0)
            count += 1
    relative = total / count * case.curvature
    return float(relative[::2].mean()), float(relative[1::2].mean())


def everything(run: Run) -> dict[str, Metrics]:
    """Return what was measured in each setting, by a readable name."""
    config = run.config
    by_setting = {}
    for ratio in config["ratios"]:
        for dt in config["steps_dt"]:
            case = setting(config, dt, ratio)
            name = f"C = {ratio:g} B, dt = {dt:g}"
            by_setting[name] = measured(case, simulated(case, config["trajectories"], config["snapshots"]))
    for dt in config["rung"]["steps_dt"]:
        case = hottest(config, dt)
        name = f"hottest of five modes, dt = {dt:g}"
        by_setting[name] = measured(case, simulated(case, config["trajectories"], config["snapshots"]))
    return by_setting


def temperatures(run: Run) -> dict[float, tuple[float, float]]:
    """Return the variances of quiet and noisy coordinates for each C / B."""
    return {ratio: uneven(run.config, ratio) for ratio in run.config["uneven"]["ratios"]}


def predicted(ratio: float) -> tuple[float, float]:
    """Return the temperatures of quiet and noisy coordinates at C = ratio B."""
    return ratio / (ratio + 1), (ratio + 2) / (ratio + 1)


def metrics(run: Run) -> Metrics:
    """Return the moments at the finest step with C = 10 B, the hottest rung's, and the widths of uneven noise."""
    config, by_setting, named = run.config, run.cached(everything), MetricTable()
    finest, rung = min(config["steps_dt"]), config["rung"]["steps_dt"]
    for ratio in config["ratios"]:
        named.add(f"ratio_{ratio:g}", by_setting[f"C = {ratio:g} B, dt = {finest:g}"])
    for name, dt in (("hottest", max(rung)), ("hottest_finest", min(rung))):
        named.add(name, by_setting[f"hottest of five modes, dt = {dt:g}"])
    for ratio, (quiet, noisy) in run.cached(temperatures).items():
        named.add(f"uneven_{ratio:g}", {"wider": noisy / quiet})
    return named


def widths(run: Run) -> pd.DataFrame:
    """Variance of theta over the exact where half of the coordinates have all the gradient noise."""
    rows = {}
    for ratio, (quiet, noisy) in run.cached(temperatures).items():
        low, high = predicted(ratio)
        row = {"quiet": quiet, "predicted": low, "noisy": noisy, "predicted, noisy": high}
        rows[f"C = {ratio:g} B"] = row
    return by_rows(rows)


def figure(run: Run) -> Figure:
    """Left: moments over those of Theorem 1 against the step, C = 10 B. Right: what C > 10 B is for."""
    by_setting, ratio = run.cached(everything), max(run.config["ratios"])
    figure, (left, right) = panels(2, size=(4.2, 3.1), share="")
    shown = {
        "theta_variance": r"variance of $\theta$",
        "p_kurtosis": "kurtosis of momenta",
        "xi_mean": "mean of thermostat",
        "xi_variance": "variance of thermostat",
    }
    steps = sorted(run.config["steps_dt"])
    for i, ((name, label), colour, marker) in enumerate(zip(shown.items(), COLOURS, "osD^", strict=False)):
        shift = 0.012 * (i - 1.5) * max(steps)  # so that the bars can be told apart
        numbers = [by_setting[f"C = {ratio:g} B, dt = {dt:g}"][name] for dt in steps]
        style: Style = {"fmt": marker + "-", "linewidth": 1, "color": colour, "label": label, "capsize": 0}
        points(left, [dt + shift for dt in steps], numbers, errors=2, **style)
    levels(left, 1, line="-")
    left.set(xlabel=r"step $\Delta t$", ylabel="over Theorem 1", xlim=(0, None))
    ratios, at = np.geomspace(0.5, 100, 80), run.cached(temperatures)
    for i, (label, colour, marker) in enumerate(zip(("quiet", "noisy"), COLOURS, "os", strict=False)):
        right.plot(ratios, [predicted(x)[i] for x in ratios], color=colour, linewidth=1)
        style = {"color": colour, "markersize": 4, "label": f"{label} coordinates"}
        right.plot(list(at), [pair[i] for pair in at.values()], marker, **style)
    right.axvline(10, color="black", linestyle=":", linewidth=0.9)
    right.set(xscale="log", xlabel="C / B", ylabel=r"variance of $\theta$ over exact")
    for axis in (left, right):
        legend_below(axis, drop=0.2)
    return finished(figure)
