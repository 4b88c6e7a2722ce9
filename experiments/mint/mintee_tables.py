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
    ladder, ring_shares, rows = ladder_of(run, shown(run)), run.cached(rings), {}
    names = [
        "< H1",
        *(f"[H{j}, H{j + 1})" for j in range(1, len(ladder.sizes) - 1)),
        f">= H{len(ladder.sizes) - 1}",
    ]
    for rung, (t, m) in enumerate(zip(ladder.temperatures, ladder.sizes, strict=True)):
        if rung < len(PAPER):
            row = PAPER[rung]
            rows[f"rung {rung}, paper"] = {"T": row[0], "m": row[1], **dict(zip(names, row[2], strict=False))}
        for label, part in (("minibatch energies", ring_shares.noisy), ("exact energies", ring_shares.exact)):
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
        ladder, draws, offers = ladder_of(run, method), rung_draws(run, method), jumps(run, method)
        local, base = moved(run, method), lowest(run)
        for rung, t in enumerate(ladder.temperatures):
            mode = draws[:, rung].argmax(-1)
            by_ladder = np.stack([np.bincount(row, minlength=run.target.dim) / len(row) for row in mode])
            theta = draws[:, rung].reshape(-1, run.target.dim)
            theta = theta[:: max(1, len(theta) // ENERGIES)]
            rows[f"{run.label(method)}, {rung}"] = {
                "T": t,
                "m": ladder.sizes[rung],
                "local": local[rung],
                "offered": offers[rung][0] or None,
                "jumps": offers[rung][1] if offers[rung][0] else None,
                "modes": int((by_ladder.sum(axis=0) > 0).sum()),
                "visits": uniformity(by_ladder).effective,
                "energy / T": float((energies(run, theta) - base).mean() / t),
            }
    return by_rows(rows).dropna(axis=1, how="all")  # one ladder says nothing of visits
