"""The draws that a comparison is made of: all of them or those of equal cost, or predictions of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from mhrun.diagnostics.chains import LEAST_DRAWS, ChainDraws
from mhrun.errors import UserError
from mhrun.report.comparison.rows import Row, undamaged
from mhrun.report.efficiency import costs, named, predicted, valid_draws
from mhrun.report.tables import shown
from mhrun.target.function_space import Predictions, that_vary


class ComparedDraws(NamedTuple):
    """The draws of each method, with their coordinate names and notes."""

    by_name: Mapping[str, ChainDraws | str]  # (C, S, coordinates), or a line on why there are none
    counts: Mapping[str, int]  # of valid draws of a chain, of which these are the first
    shares: Mapping[str, float]  # of them that are compared
    coordinates: Sequence[str] | None  # names of predictions; None: they are parameters
    thinned: frozenset[str]  # methods of which predictions were computed at some of the draws
    notes: Sequence[str]

    @property
    def available(self) -> dict[str, ChainDraws]:
        """The draws of the methods that have them."""
        return {name: draws for name, draws in self.by_name.items() if not isinstance(draws, str)}

    @property
    def missing(self) -> dict[str, str]:
        """Why the other methods have none."""
        return {name: draws for name, draws in self.by_name.items() if isinstance(draws, str)}


def compared_draws(rows: Sequence[Row], reference: Row | None, evaluations: float | None) -> ComparedDraws:
    """Read what is compared.

    Args:
        rows: the methods.
        reference: whose draws are all kept.
        evaluations: see `mhrun.report.comparison.compare.compare`.
    """
    notes = list[str]()
    everything = [*rows, *([reference] if reference else [])]
    by_name: dict[str, ChainDraws | str] = {}
    for row in everything:
        if row.name not in by_name:
            by_name[row.name] = undamaged(row, partial(valid_draws, row.run, row.method))
    counts = {name: draws.shape[1] for name, draws in by_name.items() if not isinstance(draws, str)}
    shares = dict.fromkeys(by_name, 1.0)
    if evaluations is not None:
        cut = [row for row in rows if reference is None or row.name != reference.name]
        shares |= {row.name: _share(row, evaluations) for row in cut}
        by_name |= {row.name: _first(by_name[row.name], shares[row.name], evaluations) for row in cut}
        notes += _at_equal_cost(cut, evaluations, reference)
    coordinates: list[str] | None = None
    thinned = frozenset[str]()
    if all(row.run.methods[row.method].get("network") for row in rows):
        predictions, coordinates, line = _predicted(everything, by_name)
        thinned = frozenset(
            name for name, draws in predictions.items() if len(draws[0]) < len(by_name[name][0])
        )
        by_name |= predictions
        notes.append(line)
    return ComparedDraws(by_name, counts, shares, coordinates, thinned, notes)


def least_evaluations(rows: Sequence[Row], reference: Row | None) -> float:
    """Return the evaluations after burn-in of the method with draws that has the least, the reference aside."""
    evaluations = [
        costs(row.run, row.method)["evaluations"]
        for row in rows
        if row.run.methods[row.method]["thin"] is not None
        and (reference is None or row.name != reference.name)
    ]
    return min(evaluations, default=0.0)


def _share(row: Row, evaluations: float) -> float:
    """Return the share of the draws of a method that so many evaluations pay for."""
    total = costs(row.run, row.method)["evaluations"]
    return min(1.0, evaluations / total) if total else 1.0


def _predicted(
    rows: Sequence[Row], all_draws: Mapping[str, ChainDraws | str]
) -> tuple[dict[str, ChainDraws], list[str] | None, str]:
    """Return predictions of the networks that have draws, a name for each, and a line on what is compared.

    Nothing and None if those of one of them cannot be computed: then weights are compared.
    """
    by_name: dict[str, Predictions] = {}
    try:
        data = rows[0].run.target_of(rows[0].method).data  # of one for all: others may have other rows
        for row in {row.name: row for row in rows}.values():
            if not isinstance(draws := all_draws[row.name], str):
                by_name[row.name] = predicted(row.run, row.method, draws, data)
        kept = that_vary(*by_name.values()) if by_name else np.arange(0)
    except UserError as error:
        line = f"Weights of networks are compared, which say little: predictions cannot be computed. {error}"
        return {}, None, line
    line = "Networks are compared by what they predict at some of the data, not by their weights."
    names = next(iter(by_name.values())).names if by_name else []
    values = {name: of_method.values[..., kept] for name, of_method in by_name.items()}
    return values, [names[coordinate] for coordinate in kept], line


def _first(draws: ChainDraws | str, share: float, evaluations: float) -> ChainDraws | str:
    """Return the first draws of each chain, this share of them; a line if there are too few."""
    if isinstance(draws, str):
        return draws
    kept = draws[:, : int(share * draws.shape[1] + 1e-9)]
    if kept.shape[1] < LEAST_DRAWS:
        return f"{shown(evaluations)} evaluations are fewer than {LEAST_DRAWS} draws of each chain."
    return kept


def _at_equal_cost(rows: Sequence[Row], evaluations: float, reference: Row | None) -> list[str]:
    """Return lines on what is compared: the first draws of each method, and which methods have cost less."""
    text = f"Each method with the first draws that {shown(evaluations)} evaluations after burn-in pay for"
    lines = [f"{text}, and the reference with all." if reference else f"{text}."]
    least = [row.name for row in rows if _share(row, evaluations) == 1.0]
    if least:
        lines.append(f"All draws of {named(least)}, which cost no more.")
    return lines
