"""Figures of the compensation density of Luo et al. (2020)."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from mhrun.report.plots import finished, levels, panels
from mhrun.report.vocabulary import COLOURS, Figure, Run, Style
from mhrun.rules.correction import correction
from mhrun.rules.series import most_terms, truncated

from . import compensation as shown


def spectrum(run: Run) -> Figure:
    """The quotient of the spectra, the kernel and their product (Figure 1, left)."""
    variance, lam = run.config["variance"], run.config["lam"]
    figure, (left, right) = panels(2, size=(4.1, 3.1), share="", xlabel=r"frequency $\omega$")
    for axis, limit in ((left, 12.0), (right, 32.0)):
        w = np.linspace(1e-6, limit, 2000)
        logs = shown.log_quotient(w, variance), shown.log_quotient(w, 2 * variance), -(w**4) / lam**2
        drawn = (
            ("quotient", logs[0], COLOURS[1], "-", 2.6),
            ("quotient, twice the variance", logs[1], COLOURS[1], "--", 1.2),
            ("kernel", logs[2], COLOURS[4], "-", 1.2),
            ("kernel times quotient", logs[0] + logs[2], COLOURS[0], "-", 1.2),
        )
        for name, log, colour, line, width in drawn:
            height = np.exp(np.where(log < 30, log, np.nan))
            axis.plot(w, height, line, color=colour, linewidth=width, label=name)
        axis.set_xlim(0, limit)
    left.set(ylim=(0, 1.05), ylabel="spectrum")
    right.set(yscale="log", ylim=(1e-12, 1e3))
    for turn in (shown.turning_point(variance), shown.turning_point(2 * variance)):
        right.axvline(turn, color=COLOURS[1], linestyle=":", linewidth=1)
        right.text(turn + 0.4, 1e-11, f"{turn:.1f}", color=COLOURS[1])
    left.legend(loc="upper right")
    return finished(figure)


def reconstruction(run: Run) -> Figure:
    """The logistic density and the density (18) with normal noise (Figure 1, right), and what is between them."""
    config, z = run.config, np.linspace(-10, 10, 801)
    logistic = special.expit(z) * special.expit(-z)
    densities = [
        shown.reconstructed(reading, config["variance"], z) for reading in shown.readings(config).values()
    ]
    figure, (left, right) = panels(2, size=(4.1, 3.0), share="", xlabel="z")
    left.plot(z, densities[0], color=COLOURS[4], linewidth=2.4, label="reconstruction (18)")
    left.plot(z, logistic, "--", color=COLOURS[0], linewidth=1.2, label="logistic")
    left.set_ylabel("density")
    left.legend()
    labels = (rf"$\lambda = {config['lam']:g}$ (18)", r"$\lambda = \infty$")
    for density, colour, label in zip(densities, (COLOURS[4], COLOURS[2]), labels, strict=True):
        right.plot(z, 1e3 * (density - logistic), color=colour, linewidth=1.2, label=label)
    right.set_ylabel(r"difference $\times\,10^3$")
    right.legend(loc="lower right")
    return finished(figure)


def errors(run: Run) -> Figure:
    """The largest distance of the acceptance from Barker's, by the number of terms, for three sigma*^2."""
    config = run.config
    panel_style: Style = {"yscale": "log", "xlabel": "terms", "xlim": (0.5, 10.5), "xticks": range(2, 11, 2)}
    figure, axes = panels(
        len(config["variances"]), size=(2.87, 3.0), ylabel="error of the acceptance", **panel_style
    )
    widths = dict(zip((5.0, 10.0, 50.0, math.inf), (COLOURS[k] for k in (1, 4, 2, 0)), strict=True))
    for axis, variance in zip(axes, config["variances"], strict=True):
        for lam, colour in widths.items():
            terms = np.arange(1, min(most_terms(variance, lam), 10) + 1)
            distances = [shown.error(truncated(variance, lam, int(n)), variance) for n in terms]
            label = r"$\lambda = \infty$" if math.isinf(lam) else rf"$\lambda = {lam:g}$"
            axis.plot(terms, distances, ".-", color=colour, linewidth=1.1, markersize=5, label=label)
        paper_error = shown.solved_error(correction("paper", math.sqrt(variance), None, config["half_width"]))
        levels(axis, paper_error, line=":", linewidth=1, label="Seita et al.")
        if variance == config["variance"]:
            printed = shown.error(shown.readings(config)["printed"], variance)
            axis.plot(config["terms"], printed, "o", color="black", fillstyle="none", markersize=9)
        axis.set_title(rf"$\sigma_*^2 = {variance:g}$")
    return finished(figure, legend="right", axes=axes[:1])


def acceptance(run: Run) -> Figure:
    """The acceptance of a noise-aware exchange less Barker's probability (Theorem 2), sigma*^2 = 0.2, three terms."""
    config, drawn, z = run.config, run.cached(shown.simulated), np.linspace(-6, 6, 481)
    labels: Style = {"xlabel": r"log-ratio $\Delta E$", "ylabel": r"acceptance less Barker's, $\times\,10^3$"}
    figure, (axis,) = panels(1, size=(5.8, 3.2), xlim=(-6, 6), **labels)
    p = special.expit(shown.GAPS)
    bars = 1e3 * np.sqrt(p * (1 - p) / config["draws"])
    for (name, reading), colour in zip(shown.readings(config).items(), (COLOURS[4], COLOURS[0]), strict=True):
        label = rf"$\lambda = {config['lam']:g}$ (18)" if name == "printed" else r"$\lambda = \infty$"
        exact = special.expit(-z) - reading.convolved_cdf(-z, config["variance"])
        axis.plot(z, 1e3 * exact, color=colour, linewidth=1.2, label=label)
        style: Style = {"fmt": ".", "color": colour, "markersize": 4, "linewidth": 0.7}
        axis.errorbar(shown.GAPS, 1e3 * drawn[name][:-1], bars, **style)
    levels(axis, 0, line="-")
    axis.legend()
    return figure
