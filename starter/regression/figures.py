"""A table and a figure of the report: functions of a run."""

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from mhrun.diagnostics.chains import ess, rhat


def parameters(run):
    """Mean and standard deviation of each parameter, how many independent draws they are worth, and R-hat."""
    rows = {}
    for method in run.methods:
        draws = run.draws(method)
        for d, name in enumerate(run.target.model.names):
            one = draws[..., d]
            rows[f"{run.label(method)}: {name}"] = {
                "mean": one.mean(),
                "sd": one.std(),
                "ESS": ess(one),
                "R-hat": rhat(one),
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def slopes(run):
    """What moves the progression: 90 % of the posterior of each slope, by method."""
    columns = run.target.data.facts["columns"]
    at = [name.startswith("slopes") for name in run.target.model.names]
    figure, axes = plt.subplots(figsize=(5, 3.2))
    for i, method in enumerate(run.methods):
        draws = run.draws(method)[..., at].reshape(-1, len(columns))
        low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
        y = np.arange(len(columns)) + 0.25 * i
        reach = [middle - low, high - middle]
        axes.errorbar(middle, y, xerr=reach, fmt="o", markersize=3, label=run.label(method))
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(columns)), columns)
    axes.set_xlabel("sd of the progression per sd of the feature")
    axes.legend()
    return figure
