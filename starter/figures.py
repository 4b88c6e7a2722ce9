"""A table and a figure of the report: functions of a run."""

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
            rows[run.label(method), name] = {
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
        low, middle, high = (
            pd.DataFrame(run.draws(method)[..., at].reshape(-1, len(columns))).quantile(q)
            for q in (0.05, 0.5, 0.95)
        )
        y = [k + 0.25 * i for k in range(len(columns))]
        axes.errorbar(
            middle, y, xerr=[middle - low, high - middle], fmt="o", markersize=3, label=run.label(method)
        )
    axes.axvline(0, color="grey", linewidth=0.5)
    axes.set_yticks(range(len(columns)), columns)
    axes.set_xlabel("standard deviations of the progression per standard deviation of the feature")
    axes.legend()
    return figure
