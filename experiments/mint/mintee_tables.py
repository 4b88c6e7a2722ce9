"""Tables and notes of MINTEE (Li & Wong 2017, section 5.3, Appendix D)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from mhrun.report.vocabulary import Run, by_rows

from .mintee import PAPER, uniformity
from .mintee_ladders import (
    ENERGIES,
    energies,
    jumps,
    ladder_of,
    lowest,
    moved,
    rings,
    rung_draws,
    sampled,
    shown,
)


def table3(run: Run) -> pd.DataFrame:
    """Table 3: per cent of the samples of each rung in each energy ring, printed and here."""
    found, seen, rows = ladder_of(run, shown(run)), run.cached(rings), {}
    names = [
        "< H1",
        *(f"[H{j}, H{j + 1})" for j in range(1, len(found.sizes) - 1)),
        f">= H{len(found.sizes) - 1}",
    ]
    for rung, (t, m) in enumerate(zip(found.temperatures, found.sizes, strict=True)):
        if rung < len(PAPER):
            row = PAPER[rung]
            rows[f"rung {rung}, paper"] = {"T": row[0], "m": row[1], **dict(zip(names, row[2], strict=False))}
        for label, part in (("minibatch energies", seen.noisy), ("exact energies", seen.exact)):
            rows[f"rung {rung}, {label}"] = {
                "T": t,
                "m": m,
                **dict(zip(names, 100 * part[rung], strict=True)),
            }
    return by_rows(rows)


def rungs(run: Run) -> pd.DataFrame:
    """Each rung: what it reads, accepts and visits."""
    rows = {}
    for method in (m for m in sampled(run) if run.rungs(m) > 1):
        found, draws, offers = ladder_of(run, method), rung_draws(run, method), jumps(run, method)
        local, base = moved(run, method), lowest(run)
        for rung, t in enumerate(found.temperatures):
            mode = draws[:, rung].argmax(-1)
            seen = np.stack([np.bincount(row, minlength=run.target.dim) / len(row) for row in mode])
            some = draws[:, rung].reshape(-1, run.target.dim)
            some = some[:: max(1, len(some) // ENERGIES)]
            rows[f"{run.label(method)}, {rung}"] = {
                "T": t,
                "m": found.sizes[rung],
                "local": local[rung],
                "offered": offers[rung][0] or None,
                "jumps": offers[rung][1] if offers[rung][0] else None,
                "modes": int((seen.sum(axis=0) > 0).sum()),
                "visits": uniformity(seen).effective,
                "energy / T": float((energies(run, some) - base).mean() / t),
            }
    return by_rows(rows).dropna(axis=1, how="all")  # one ladder says nothing of visits
