"""Statistics of each chain, accumulated while a method runs, for its summary, warnings and rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mhrun.array_types import Array
from mhrun.exchanges import MADE, REFUSED
from mhrun.store.netcdf import Shape
from mhrun.types.info import EVALUATIONS

_SUMMED = ("accepted", "batch_size", "diverging")
_AVERAGED = ("log_ratio_var",)  # over the steps where it is finite
_SIZES = ("size_change", "size_change_squared")  # of minibatches that are not all data
SKEW_EDGES = np.geomspace(1e-3, 1.0, 31)  # of the bins that |log_ratio_skew| is counted in


class Totals(Mapping[str, Array]):
    """Totals of the steps that were added, name -> (C,) or, of a histogram, (bins,).

    Evaluations are counted over all steps, and once more up to the end of burn-in (``warmup_...``). All else is summed
    over the steps after burn-in, in which step sizes are tuned. No total depends on how the steps were divided into
    calls of `add`, bit for bit.

    Args:
        shape: dimensions of the trace.
        n: number of data, for counting the steps that read all of them.
    """

    def __init__(self, shape: Shape, n: int) -> None:
        self._shape, self._n = shape, n
        self._totals: dict[str, Array] = {name: np.zeros(shape.chains, np.int64) for name in EVALUATIONS}
        for name in EVALUATIONS:
            self._totals[f"warmup_{name}"] = np.zeros(shape.chains)
        for name in (*_SUMMED, *_AVERAGED, *_SIZES, "all_data", "invalid"):
            self._totals[f"sum_{name}"] = np.zeros(shape.chains)
        self._totals["first_batch_size"] = np.full(shape.chains, np.nan)  # what the changes are from
        for name in _AVERAGED:
            self._totals[f"count_{name}"] = np.zeros(shape.chains)
        self._totals |= {f"sum_{name}": np.zeros(shape.chains) for name in ("skew_squared", "skew_noise")}
        self._totals["count_log_ratio_skew"] = np.zeros(len(SKEW_EDGES) + 1)  # decisions in each bin

    def __getitem__(self, name: str) -> Array:
        return self._totals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._totals)

    def __len__(self) -> int:
        return len(self._totals)

    def restore(self, totals: Mapping[str, Array]) -> None:
        """Replace the totals by those of an interrupted run."""
        self._totals |= totals

    def counts(self) -> dict[str, Array]:
        """Return copies of the counts of evaluations so far, name -> (C,)."""
        return {name: self._totals[name].copy() for name in EVALUATIONS}

    def add(self, first_step: int, record: Mapping[str, Array]) -> dict[str, Array]:
        """Add the steps from `first_step` on, each field (C, K).

        Returns:
            The counts of evaluations after each of the steps, name -> (C, K).
        """
        last = last_of_burn_in(self._shape, first_step, record["accepted"].shape[1])
        counts = {}
        for name in EVALUATIONS:
            counts[name] = self._totals[name][:, None] + np.cumsum(record[name], axis=1, dtype=np.int64)
            self._totals[name] = counts[name][:, -1].copy()
            if last is not None:
                self._totals[f"warmup_{name}"] = counts[name][:, last].astype(np.float64)
        after_burn_in = slice(max(0, self._shape.warmup + 1 - first_step), None)
        for name in _SUMMED:
            self._totals[f"sum_{name}"] += record[name][:, after_burn_in].sum(axis=1, dtype=np.float64)
        for name in _AVERAGED:
            values = record[name][:, after_burn_in]
            finite = np.isfinite(values)
            self._carry(f"sum_{name}", np.where(finite, values, 0.0))
            self._totals[f"count_{name}"] += finite.sum(axis=1)
        size = record["batch_size"][:, after_burn_in]
        self._add_sizes(size)
        if "valid" in record:
            self._totals["sum_invalid"] += (~record["valid"][:, after_burn_in].astype(bool)).sum(axis=1)
        if "exchange" in record and not is_constant(record["exchange"]):
            self._add_exchanges(record["exchange"][:, after_burn_in])
        if "log_ratio_skew" in record and not is_constant(record["log_ratio_skew"]):
            self._add_skewness(record["log_ratio_skew"][:, after_burn_in], size)
        return counts

    def _carry(self, total: str, values: Array) -> None:
        """Add values (C, K) to a total one by one, so that rounding does not depend on the blocks."""
        carried = np.column_stack((self._totals[total], values.astype(np.float64)))
        self._totals[total] = np.cumsum(carried, axis=1)[:, -1].copy()

    def _add_sizes(self, size: Array) -> None:
        """Add the minibatch sizes of decisions (C, K), see `mhrun.engine.diagnosis.batch_sizes`."""
        first, on_part = self._totals["first_batch_size"], size != self._n
        if (new := np.isnan(first) & on_part.any(axis=1)).any():
            first[new] = size[new, on_part[new].argmax(axis=1)]
        change = np.where(on_part, size - first[:, None], 0.0)
        self._carry("sum_size_change", change)
        self._carry("sum_size_change_squared", np.square(change))
        self._totals["sum_all_data"] += (~on_part).sum(axis=1)

    def _add_exchanges(self, exchange: Array) -> None:
        """Add the outcomes of exchanges (C, K), as in `mhrun.exchanges`. Their totals begin with the first ones."""
        for name, codes in (("exchanges_proposed", (REFUSED, MADE)), ("exchanges_made", (MADE,))):
            before = self._totals.setdefault(f"sum_{name}", np.zeros(self._shape.chains))
            self._totals[f"sum_{name}"] = before + np.isin(exchange, codes).sum(axis=1)

    def _add_skewness(self, skew: Array, size: Array) -> None:
        """Add the skewness of decisions (C, K): its squares, and those expected by chance, 6 / size^2.

        The size includes the pilot's data, which do not enter the skewness; part of the chance term then remains.
        """
        finite = np.isfinite(skew)
        noise = np.where(finite & (skew != 0), 6.0 / np.maximum(size, 1).astype(np.float64) ** 2, 0.0)
        self._carry("sum_skew_squared", np.square(np.where(finite, skew, 0.0), dtype=np.float64))
        self._carry("sum_skew_noise", noise)
        bins = np.searchsorted(SKEW_EDGES, np.abs(skew[finite]))
        self._totals["count_log_ratio_skew"] += np.bincount(bins, minlength=len(SKEW_EDGES) + 1)


def last_of_burn_in(shape: Shape, first_step: int, count: int) -> int | None:
    """Return the place of the last step of burn-in among `count` steps from `first_step` on, or None."""
    return shape.warmup - first_step if first_step <= shape.warmup < first_step + count else None


def is_constant(values: Array) -> bool:
    """Return whether an array (C, K) is one broadcast number, with strides of 0, as compiled loops return constants."""
    return bool(values.ndim == 2 and not any(values.strides) and values.size)
