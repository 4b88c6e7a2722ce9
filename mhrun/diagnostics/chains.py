"""Effective sample size and R-hat as ArviZ computes them, and the effective sample size of a single chain."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from hashlib import blake2b
from typing import Any, Concatenate, ParamSpec

import numpy as np
import numpy.typing as npt
import scipy  # which imports its subpackages on first use

Array = npt.NDArray[np.floating]
P = ParamSpec("P")
_REMEMBERED = 1024
_LAGS = 4096  # autocovariances that are computed first
_VALUES = 1 << 20  # of the blocks that are transformed at once

RHAT, ESS = 1.01, 400.0
"""Above this R-hat, and below this effective sample size, a run warns (Vehtari et al. 2021)."""

COORDINATES = 64
"""Of a wide model, so many coordinates, evenly spaced, are diagnosed."""


def is_apart(rhat: float) -> bool:
    """Return whether an R-hat is above 1.01 in the three decimals that reports show; a NaN is not."""
    return round(rhat, 3) > RHAT


def _once(function: Callable[Concatenate[Array, P], float]) -> Callable[Concatenate[Array, P], float]:
    """Compute a statistic of draws once: metrics, tables and sections of a report want those of the same draws."""
    known: dict[Any, float] = {}

    @wraps(function)
    def remembered(draws: Array, /, *args: P.args, **more: P.kwargs) -> float:
        content = blake2b(np.ascontiguousarray(draws).data, digest_size=16).digest()
        key = (content, draws.shape, draws.dtype.str, args, tuple(sorted(more.items())))
        if key not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = function(draws, *args, **more)
        return known[key]

    return remembered


def worth(draws: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return the least bulk and tail effective sample size and the largest R-hat over coordinates, of draws (C, S, D).

    NaN if that of one coordinate is: a coordinate that never moved is the worst.
    """
    columns = [draws[..., d] for d in range(draws.shape[-1])]
    return {
        "rhat": float(np.max([rhat(column) for column in columns])),
        "ess": float(np.min([ess(column) for column in columns])),
        "ess_tail": float(np.min([ess(column, "tail") for column in columns])),
    }


def worth_of_predictions(predictions: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return `worth` in function space, of predictions (C, S, ...) at each draw: those of ``mhrun.predict(each=True)``.

    The weights of a network differ from chain to chain by symmetries that no prediction shows; R-hat and effective
    sample sizes of predictions do not (Izmailov, Vikram, Hoffman & Wilson 2021, section 4). At most 64 outputs, evenly
    spaced, are diagnosed; constant ones are left out.
    """
    flat = predictions.reshape(*predictions.shape[:2], -1)
    flat = flat[..., np.ptp(flat, axis=(0, 1)) > 0]
    if not flat.shape[-1]:
        return dict.fromkeys(("rhat", "ess", "ess_tail"), float("nan"))
    return worth(flat[..., some_coordinates(flat.shape[-1])])


def some_coordinates(dim: int, most: int = COORDINATES) -> npt.NDArray[np.int64]:
    """Return the indices of at most so many of D coordinates, evenly spaced."""
    return np.arange(dim) if dim <= most else np.linspace(0, dim - 1, most).astype(np.int64)


@cache
def _arviz() -> Any:
    """ArviZ's statistics of arrays, with Geyer's sequence in a few passes over as many lags as it needs.

    ArviZ transforms whole chains and goes through all lags one by one, which takes seconds for chains that hardly mix
    (100,000 draws have as many lags) and for long ones.
    """
    from arviz_stats.base.array import array_stats

    class Stats(type(array_stats)):  # type: ignore[misc]
        """The same numbers, to rounding."""

        def _ess(self, ary: Array, relative: bool = False) -> float:
            ary = np.asarray(ary, dtype=float)
            size, (chains, draws) = ary.size, ary.shape
            if np.ptp(ary) < np.finfo(float).resolution:
                return float(size)
            between = np.var(ary.mean(axis=1), ddof=1) if chains > 1 else 0.0
            lags, time = _LAGS, None
            while time is None:
                lags = min(lags, draws)
                cov = _autocovariance(ary, lags)
                within = cov[0] * draws / (draws - 1.0)
                rho = 1.0 - (within - cov) / (cov[0] + between)
                time = _geyer(rho, whole=lags == draws)
                lags *= 16
            return (1 if relative else size) / max(time, 1 / np.log10(size))

    return Stats()


def _autocovariance(draws: Array, lags: int) -> npt.NDArray[np.float64]:
    """Return the autocovariances (K,), divisor S, of draws (C, S) at lags 0..K-1, K <= S, averaged over chains.

    Exact to rounding: a block of draws meets itself and the K draws behind it, by a Fourier transform that fits in the
    cache.
    """
    chains, size = draws.shape
    block = min(max(3 * lags, 1024), size)
    width = int(scipy.fft.next_fast_len(block + lags, real=True))
    blocks, found = -(-size // block), np.zeros(width // 2 + 1, complex)
    many = max(1, _VALUES // width)
    for chain in draws:
        padded = np.zeros(blocks * block + lags)
        np.subtract(chain, chain.mean(), out=padded[:size])
        windows = np.lib.stride_tricks.sliding_window_view(padded, block + lags)[::block]
        for first in range(0, blocks, many):
            whole = windows[first : first + many]
            ahead = scipy.fft.rfft(whole, width)
            here = scipy.fft.rfft(whole[:, :block], width)
            found += np.einsum("bf,bf->f", here.conj(), ahead)
    products: npt.NDArray[np.float64] = scipy.fft.irfft(found, width)[:lags]
    return products / (chains * size)


def _geyer(rho: npt.NDArray[np.float64], *, whole: bool = True) -> float | None:
    """Return the autocorrelation time -1 + 2 sum_k rho_k of autocorrelations (K,), K >= 4, rho_0 being 1.

    Without `whole`, which says that these are all lags, the result is None if more of them are needed.

    Pairs rho_2k + rho_2k+1 are summed up to the first that is not positive, each at most as large as the one before it
    (Geyer 1992); of the first that is left out an even rho counts once if it is positive (Vehtari et al. 2021).
    """
    rho = np.concatenate(([1.0], rho[1:]))
    pairs = rho[0:-1:2] + rho[1::2]
    last = (len(rho) - 3) // 2  # ArviZ looks no further
    stops = np.flatnonzero(pairs[:last] <= 0)
    if not len(stops) and not whole:
        return None
    last = int(stops[0]) if len(stops) else last
    rest = rho[2 * last] if pairs[last] >= 0 else max(rho[2 * last], 0.0)
    return float(-1.0 + 2.0 * np.minimum.accumulate(pairs[:last]).sum() + rest)


@_once
def ess(draws: Array, method: str = "bulk") -> float:
    """Return the effective sample size of draws (C, S) (Vehtari et al. 2021).

    `method` is one of ArviZ's: bulk, tail, mean. Constant or non-finite draws give NaN.
    """
    if not np.isfinite(draws).all() or np.ptp(draws) == 0 or draws.shape[1] < 4:
        return float("nan")
    tails = {"prob": (0.05, 0.95)} if method == "tail" else {}  # the quantiles that Vehtari et al. take
    return float(_arviz().ess(draws, method=method, **tails))


@_once
def mcse(draws: Array) -> float:
    """Return the Monte Carlo standard error of the mean of draws (C, S); NaN where it is undefined."""
    if not np.isfinite(draws).all() or np.ptp(draws) == 0 or draws.shape[1] < 4:
        return float("nan")
    return float(_arviz().mcse(draws, method="mean"))


@_once
def rhat(draws: Array, most: int = 5000) -> float:
    """Return the rank-normalised split R-hat of draws (C, S); NaN if it is undefined, as for one chain.

    Longer chains are thinned to `most` draws, which hardly changes R-hat and saves the time of ranking.
    """
    from arviz_stats.base.array import array_stats

    if len(draws) < 2 or not np.isfinite(draws).all() or np.ptp(draws) == 0 or draws.shape[1] < 4:
        return float("nan")
    return float(array_stats.rhat(draws[:, :: -(-draws.shape[1] // most)]))


def ess_of_chain(draws: Array) -> Array:
    """Return n / (1 + 2 sum_k rho_k) of single chains, draws (..., n) -> (...): what papers usually call ESS.

    The autocorrelations rho_k are about the mean of each chain. They are summed by pairs as long as the sums are
    positive, and no pair counts more than the one before it (Geyer's initial monotone sequence, 1992). The result is at
    most n, even for negatively correlated draws. Constant or non-finite draws give NaN.
    """
    n = draws.shape[-1]
    off = draws - draws.mean(axis=-1, keepdims=True)
    transform = np.fft.rfft(off, 1 << (2 * n - 1).bit_length(), axis=-1)
    cov = np.fft.irfft(np.abs(transform) ** 2, axis=-1)[..., : n // 2 * 2] / n
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = cov / cov[..., :1]
    pairs = rho[..., 0::2] + rho[..., 1::2]  # rho_0 = 1 is in the first
    positive = np.logical_and.accumulate(pairs > 0, axis=-1)
    falling = np.where(positive, np.minimum.accumulate(pairs, axis=-1), 0.0)
    length = 2 * falling.sum(axis=-1) - 1
    defined = np.isfinite(draws).all(axis=-1) & (np.ptp(draws, axis=-1) > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, n / np.maximum(length, 1.0), np.nan)
