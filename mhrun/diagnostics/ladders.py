"""Swap rates and round trips on a ladder of temperatures, from the outcomes of the exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError
from mhrun.exchanges import MADE
from mhrun.numbers import whole_number
from mhrun.types.info import EVALUATIONS

if TYPE_CHECKING:
    import xarray as xr

RUNGS = "rungs"  # attributes of the trace of a ladder: the number of rungs
TEMPERATURES = "temperatures"  # the temperature of each
EXCHANGE_RATES = "exchange_rates"  # and the share of accepted exchanges of each pair of neighbours


class ReplicaFlow(NamedTuple):
    """How the replicas of L ladders with R rungs moved."""

    offered: npt.NDArray[np.int64]  # (L, R - 1), exchanges of rungs j and j + 1
    made: npt.NDArray[np.int64]  # (L, R - 1)
    # (L,), round trips of a replica from the coldest rung to the hottest and back
    round_trips: npt.NDArray[np.int64]
    replica: npt.NDArray[np.int16]  # (L, S), the replica on the coldest rung after each exchange

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """Share of the proposed exchanges that were accepted, (L, R - 1)."""
        with np.errstate(invalid="ignore"):
            rates: npt.NDArray[np.float64] = self.made / self.offered
        return rates


def replica_flow(exchange: npt.NDArray[np.integer]) -> ReplicaFlow:
    """Follow the replicas through exchanges (L, R, S), coded as in `mhrun.exchanges` on both of their rungs.

    At each of the S times an exchange is proposed to the even pairs (0, 1), (2, 3), ... or to the odd ones: to the even
    ones if the coldest rung took part, because its only neighbour is rung 1.
    """
    ladders, rungs, times = exchange.shape
    pairs = np.zeros((ladders, rungs - 1, times), np.int8)  # as rungs j and j + 1 have it
    even = exchange[:, 0] > 0  # (L, S)
    for j in range(rungs - 1):
        pairs[:, j] = np.where(even == (j % 2 == 0), exchange[:, j], 0)
    replicas = np.tile(np.arange(rungs), (ladders, 1))  # the replica on each rung
    # The end that a replica visited last: 1 cold, 2 hot after cold.
    last = np.zeros((ladders, rungs), np.int8)
    last[:, 0] = 1
    trips = np.zeros(ladders, np.int64)
    coldest = np.empty((ladders, times), np.int16)
    rows = np.arange(ladders)
    for k in range(times):
        swap = pairs[:, :, k] == MADE
        if swap.any():
            ladder, low = swap.nonzero()
            replicas[ladder, low], replicas[ladder, low + 1] = (
                replicas[ladder, low + 1],
                replicas[ladder, low].copy(),
            )
            hot, cold = replicas[:, -1], replicas[:, 0]
            last[rows, hot] = np.where(last[rows, hot] == 1, 2, last[rows, hot])
            trips += last[rows, cold] == 2
            last[rows, cold] = 1
        coldest[:, k] = replicas[:, 0]
    return ReplicaFlow((pairs > 0).sum(-1), (pairs == MADE).sum(-1), trips, coldest)


class ExchangeRates(NamedTuple):
    """Exchanges of the pairs of rungs (j, j + 1), over all ladders."""

    proposed: npt.NDArray[np.int64]  # (R - 1,)
    made: npt.NDArray[np.int64]  # (R - 1,)

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """The share that was accepted, (R - 1,); NaN where none was proposed."""
        with np.errstate(invalid="ignore"):
            rates: npt.NDArray[np.float64] = self.made / self.proposed
        return rates


def exchange_rates(totals: Mapping[str, Any], rungs: int) -> ExchangeRates | None:
    """Return the exchanges of each pair of rungs from the totals of a method; None if there are none.

    Rung 0 takes part in the exchanges of its one pair, and rung j in those of the pairs (j - 1, j) and (j, j + 1).
    """
    if "sum_exchanges_proposed" not in totals:
        return None
    of_pairs = []
    for name in ("proposed", "made"):
        of_rungs = np.asarray(totals[f"sum_exchanges_{name}"]).reshape(-1, rungs).sum(0)
        signs = (-1.0) ** np.arange(rungs)
        of_pairs.append((signs * np.cumsum(signs * of_rungs))[:-1].astype(np.int64))
    return ExchangeRates(*of_pairs)


def rung(trace: xr.DataTree, number: int = 0) -> xr.DataTree:
    """Return the chains of one rung of each ladder in a trace, numbered from 0. Rung 0 is the coldest.

    Its counts of evaluations are those of the whole ladder, without which the rung would not have these draws. A trace
    without ladders has one rung.

    Raises:
        UserError: there is no such rung, or chains of a ladder are not there.
    """
    rungs, number = int(trace.attrs.get(RUNGS, 1)), whole_number("rung", number)
    if not 0 <= number < rungs:
        raise UserError(f"rung = {number} is not one of the {rungs} rungs, 0 to {rungs - 1}.")
    if rungs == 1:
        return trace
    groups = {}
    for group in trace.subtree:
        data = group.to_dataset(inherit=False)
        if "chain" in data.dims:
            if data.sizes["chain"] % rungs:
                raise UserError(
                    f"{data.sizes['chain']} chains are not a whole number of ladders of {rungs} rungs; take the rung "
                    "of the whole trace, and then some of its chains."
                )
            ladders = {name: _of_ladders(data[name], rungs) for name in EVALUATIONS if name in data}
            data = data.isel(chain=slice(number, None, rungs)).assign(ladders)
            data = data.assign_coords(chain=np.arange(data.sizes["chain"]))
        groups[group.path] = data
    rung_trace = type(trace).from_dict(groups, name=trace.name)
    del rung_trace.attrs[RUNGS]
    temperatures = rung_trace.attrs.pop(TEMPERATURES, None)
    if temperatures is not None:
        rung_trace.attrs["temperature"] = float(temperatures[number])
    elif number:  # the attribute is the temperature of the coldest
        rung_trace.attrs.pop("temperature", None)
    return rung_trace


def _of_ladders(counts: xr.DataArray, rungs: int) -> xr.DataArray:
    """Return the sums of counts (chain, ...) over the rungs of each ladder, a chain of which has all of them."""
    sums = counts.drop_vars("chain", errors="ignore").coarsen(chain=rungs).sum()
    return sums.astype(counts.dtype).assign_attrs(counts.attrs)
