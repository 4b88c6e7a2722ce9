"""One table and one figure across the runs of a sweep."""

from __future__ import annotations

import io
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate
from mhrun.report.build import FORMATS
from mhrun.report.page import FigureOnPage, TableOnPage, template
from mhrun.report.style import COLOURS, style
from mhrun.report.tables import write_table
from mhrun.store.files import read_json, write_text, write_whole
from mhrun.store.folder import RunFolder

_LINES = ("-", "--", ":", "-.")


def jobs_of(place: Path) -> list[dict[str, Any]]:
    """Return what the jobs of a sweep left, in order."""
    found = [read_json(path) for path in sorted((place / "jobs").glob("*.json"))]
    return [job for job in found if job is not None]


def build_sweep_report(place: Path) -> Path:
    """Write the sweep's table and figure and return its page."""
    jobs = jobs_of(place)
    frame = sweep_table(jobs)
    write_table(frame.set_index(frame.columns[0]), place / "sweep")
    keys = [str(c) for c in frame.columns[: list(frame.columns).index("method")]]
    with style():
        figure = sweep_figure(frame, keys)
        drawn = {}
        for kind in FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind)
            drawn[kind] = buffer.getvalue()
            write_whole(place / f"sweep.{kind}", lambda file, data=drawn[kind]: file.write(data))  # type: ignore[misc]
        plt.close(figure)
    sweep = read_json(place / "sweep.json") or {}
    page = template("sweep.html.j2").render(
        title=f"{sweep.get('experiment', '')}: {' '.join(sweep.get('overrides', []))}",
        table=TableOnPage("sweep", "", frame),
        figure=FigureOnPage("sweep", "", drawn["png"]),
        jobs=jobs,
    )
    write_text(place / "index.html", page)
    return place / "index.html"


def sweep_table(jobs: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a row per job and method: what was swept, then the metrics that the experiment names."""
    rows = []
    for job in jobs:
        if job["status"] != "done":
            continue
        folder = RunFolder(Path(job["folder"]))
        summary, config = folder.summary(), folder.config()
        if summary is None:
            continue
        swept = dict(_pair(word) for word in job["overrides"])
        wanted = (config.get("report") or {}).get("sweep") or ["accept_rate"]
        for name, method in summary["methods"].items():
            metrics = {key: _metric(summary, name, key) for key in wanted}
            rows.append(swept | {"method": method["label"]} | metrics | {"run": folder.digest})
    return pd.DataFrame(rows)


def sweep_figure(frame: pd.DataFrame, keys: list[str]) -> Figure:
    """Draw each metric against the first key swept; colours are methods, line styles the other keys."""
    metrics = [
        c for c in frame.columns if c not in (*keys, "method", "run") and frame[c].map(_number).notna().any()
    ]
    columns = min(3, max(1, len(metrics)))
    rows = -(-len(metrics) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.7 * rows), squeeze=False)
    others = frame[keys[1:]].apply(lambda row: ", ".join(f"{k} = {v}" for k, v in row.items()), axis=1)
    others = others if len(keys) > 1 else pd.Series([""] * len(frame), index=frame.index)
    for axis, metric in zip(axes.flat, metrics, strict=False):
        for colour, method in zip(cycle(COLOURS), frame["method"].unique(), strict=False):
            for line, other in zip(cycle(_LINES), others.unique(), strict=False):
                part = frame[(frame["method"] == method) & (others == other)]
                value = part[metric].map(_number).to_numpy(dtype=float)
                if np.isfinite(value).any():
                    error = (
                        part[metric]
                        .map(lambda v: v.se if isinstance(v, Estimate) else 0.0)
                        .to_numpy(dtype=float)
                    )
                    label = f"{method} {f'({other})' if other else ''}"
                    axis.errorbar(part[keys[0]], value, np.nan_to_num(error), fmt=line, marker="o", markersize=3,
                                  color=colour, linewidth=1, capsize=2, label=label)  # fmt: skip
        axis.set(xlabel=keys[0], title=metric)
    for axis in axes.flat[len(metrics) :]:
        axis.remove()
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _pair(word: str) -> tuple[str, Any]:
    key, _, text = word.lstrip("+").partition("=")
    try:
        return key, float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return key, text


def _metric(summary: dict[str, Any], method: str, key: str) -> Any:
    found = summary["metrics"].get(f"{method}.{key}", summary["methods"][method].get(key))
    if isinstance(found, dict):
        return Estimate(*(float("nan") if found[part] is None else found[part] for part in ("value", "se")))
    return found


def _number(value: Any) -> float:
    if isinstance(value, Estimate):
        return value.value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
