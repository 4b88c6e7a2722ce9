"""Figures of the compensation density of Luo et al. (2020)."""

from __future__ import annotations

import math

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy import special

from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.rules.correction import correction
from mhrun.rules.series import most_terms, truncated

from . import compensation as shown


def spectrum(run: Run) -> Figure:
    """The quotient of the spectra, the kernel and their product (Figure 1, left).

    Left, the axis of the paper; right, further out and in logarithms. Dotted: where the quotient turns. The caption has
    it at 7; dashed, the quotient with a normal variable of twice the variance turns at 7.5.
    """
    config = run.config
    variance, lam = config["variance"], config["lam"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.1))
    for axis, limit in ((left, 12.0), (right, 32.0)):
        w = np.linspace(1e-6, limit, 2000)
        lines = {
            "quotient": (shown.log_quotient(w, variance), COLOURS[1], "-"),
            "quotient, twice the variance": (shown.log_quotient(w, 2 * variance), COLOURS[1], "--"),
            "kernel": (-(w**4) / lam**2, COLOURS[4], "-"),
            "kernel times quotient": (shown.log_quotient(w, variance) - w**4 / lam**2, COLOURS[0], "-"),
        }
        for name, (logs, colour, line) in lines.items():
            height = np.exp(np.where(logs < 30, logs, np.nan))
            width = 2.6 if name == "quotient" else 1.2
            axis.plot(w, height, line, color=colour, linewidth=width, label=name)
        axis.set(xlim=(0, limit), xlabel=r"frequency $\omega$")
    left.set(ylim=(0, 1.05), ylabel="spectrum")
    right.set(yscale="log", ylim=(1e-12, 1e3))
    for v in (variance, 2 * variance):
        right.axvline(shown.turning_point(v), color=COLOURS[1], linestyle=":", linewidth=1)
        right.text(shown.turning_point(v) + 0.4, 1e-11, f"{shown.turning_point(v):.1f}", color=COLOURS[1])
    left.legend(loc="upper right")
    figure.tight_layout()
    return figure


def reconstruction(run: Run) -> Figure:
    """The logistic density and the density (18) with normal noise (Figure 1, right), and what is between them.

    Below: reconstruction less logistic density, as printed and in the limit of infinite bandwidth, three terms.
    """
    config = run.config
    z = np.linspace(-10, 10, 801)
    logistic = special.expit(z) * special.expit(-z)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.0))
    both = {
        name: shown.reconstructed(found, config["variance"], z)
        for name, found in shown.readings(config).items()
    }
    left.plot(z, both["printed"], color=COLOURS[4], linewidth=2.4, label="reconstruction (18)")
    left.plot(z, logistic, "--", color=COLOURS[0], linewidth=1.2, label="logistic")
    left.set(xlabel="z", ylabel="density")
    left.legend()
    for (name, density), colour in zip(both.items(), (COLOURS[4], COLOURS[2]), strict=True):
        label = rf"$\lambda = {config['lam']:g}$ (18)" if name == "printed" else r"$\lambda = \infty$"
        right.plot(z, 1e3 * (density - logistic), color=colour, linewidth=1.2, label=label)
    right.set(xlabel="z", ylabel=r"difference $\times\,10^3$")
    right.legend(loc="lower right")
    figure.tight_layout()
    return figure


def errors(run: Run) -> Figure:
    """The largest distance of the acceptance from Barker's, by the number of terms, for three sigma*^2.

    Lines end where the terms of the series begin to grow. Dotted: Seita et al.'s numerical correction (G = 4000,
    lambda 10); the circle is the choice of Luo et al.
    """
    config = run.config
    figure, axes = plt.subplots(1, len(config["variances"]), figsize=(8.6, 3.0), sharey=True)
    for axis, variance in zip(np.atleast_1d(axes), config["variances"], strict=True):
        for lam, colour in (
            (5.0, COLOURS[1]),
            (10.0, COLOURS[4]),
            (50.0, COLOURS[2]),
            (math.inf, COLOURS[0]),
        ):
            terms = np.arange(1, min(most_terms(variance, lam), 10) + 1)
            found = [shown.error(truncated(variance, lam, int(n)), variance) for n in terms]
            label = r"$\lambda = \infty$" if math.isinf(lam) else rf"$\lambda = {lam:g}$"
            axis.plot(terms, found, ".-", color=colour, linewidth=1.1, markersize=5, label=label)
        axis.axhline(
            shown.solved_error(correction("paper", math.sqrt(variance), None, config["half_width"])),
            color="black",
            linestyle=":",
            linewidth=1,
            label="Seita et al.",
        )
        if variance == config["variance"]:
            printed = shown.error(shown.readings(config)["printed"], variance)
            axis.plot(config["terms"], printed, "o", color="black", fillstyle="none", markersize=9)
        axis.set(yscale="log", xlabel="terms", xlim=(0.5, 10.5), title=rf"$\sigma_*^2 = {variance:g}$")
        axis.set_xticks(range(2, 11, 2))
    first = np.atleast_1d(axes)[0]
    first.set_ylabel("error of the acceptance")
    figure.tight_layout()
    figure.legend(*first.get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def acceptance(run: Run) -> Figure:
    """The acceptance of a noise-aware exchange less Barker's probability (Theorem 2), sigma*^2 = 0.2, three terms.

    Lines: by quadrature. Points: the share of accepted exchanges by the rule's own draws, with standard errors; the
    same uniforms and normal variables for both densities and all log-ratios, so that neighbours err alike.
    """
    config, drawn = run.config, run.once(shown.simulated)
    variance = config["variance"]
    figure, axis = plt.subplots(figsize=(5.8, 3.2))
    for (name, found), colour in zip(shown.readings(config).items(), (COLOURS[4], COLOURS[0]), strict=True):
        label = rf"$\lambda = {config['lam']:g}$ (18)" if name == "printed" else r"$\lambda = \infty$"
        z = np.linspace(-6, 6, 481)
        exact = special.expit(-z) - found.convolved_cdf(-z, variance)
        axis.plot(z, 1e3 * exact, color=colour, linewidth=1.2, label=label)
        p = special.expit(shown.LOOKED_AT)
        bars = 1e3 * np.sqrt(p * (1 - p) / config["draws"])
        axis.errorbar(
            shown.LOOKED_AT, 1e3 * drawn[name][:-1], bars, fmt=".", color=colour, markersize=4, linewidth=0.7
        )
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set(xlabel=r"log-ratio $\Delta E$", ylabel=r"acceptance less Barker's, $\times\,10^3$", xlim=(-6, 6))
    axis.legend()
    return figure
