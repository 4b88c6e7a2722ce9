"""Effective sample size and R-hat of Vehtari et al. (2021), and the effective sample size of a single chain.

The numbers are those of ArviZ. They are computed here because ArviZ goes through the lags of an autocorrelation one by
one, and sorts the draws anew for each statistic: a report on a gigabyte of draws would take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import scipy  # which imports its subpackages on first use

from mhrun.array_types import FloatArray
from mhrun.cores import usable_cores

ChainDraws = npt.NDArray[np.float64]
"""Draws of chains (C, S), or (C, S, D) of several coordinates."""
T = TypeVar("T")
_REMEMBERED = 1024
_LAGS = 512  # autocovariances that are computed first
_VALUES = 1 << 18  # numbers in the blocks that are transformed at once
_TAILS = (0.05, 0.95)  # the quantiles whose effective sample sizes are those of the tails
_SQUARABLE = (1e-100, 1e100)  # sizes of numbers whose squares are far from the limits of float64
_THINNED = 5000  # draws of a chain that R-hat is computed from, unless neighbours are negatively correlated
_COUNTED = 4  # coordinates whose distinct values are counted: a move changes all of them
_PARALLEL = 100_000  # draws from which coordinates are diagnosed in threads

LEAST_DRAWS = 10
"""Draws of each chain without which R-hat and effective sample sizes are undefined: of fewer, the estimate of the
autocorrelation has no lags, and the effective sample size would be N log10 N whatever the N draws are."""

EXCESS = 0.25  # relative excess of a variance by gradient noise, above which draws are too wide
SHIFT = 0.3  # bias of a mean by steps, in posterior standard deviations, above which draws are off
FIRST_ORDER = 2.0  # of that, above which an expansion in the step size says neither its size nor its sign
RHAT, ESS = 1.01, 400.0
"""Above this R-hat, and below this effective sample size, a run warns (Vehtari et al. 2021)."""
SETTLED = 1.1
"""Up to this R-hat, draws can be compared with others or with the model, though they may be too few to be reported."""

COORDINATES = 64
"""Of a wide model, so many coordinates, evenly spaced, are compared and listed."""

_DIAGNOSED, _NUMBERS = 1_000, 12_000_000


def is_apart(rhat: float) -> bool:
    """Return whether an R-hat is above 1.01 in the three decimals that reports show; a NaN is not."""
    return round(rhat, 3) > RHAT


class Diagnosis(NamedTuple):
    """What the draws of one quantity are worth, and their quantiles; NaN where a statistic is undefined."""

    rhat: float
    ess: float  # bulk
    ess_tail: float
    mcse: float  # of the mean
    quantiles: tuple[float, float, float]  # 5 %, 50 %, 95 %


def worth(draws: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return the least bulk and tail effective sample size and the largest R-hat over coordinates, of draws (C, S, D).

    NaN if that of one coordinate is: a coordinate that never moved is the worst.
    """
    by_coordinate = diagnoses(draws)
    return {
        "rhat": float(np.max([coordinate.rhat for coordinate in by_coordinate])),
        "ess": float(np.min([coordinate.ess for coordinate in by_coordinate])),
        "ess_tail": float(np.min([coordinate.ess_tail for coordinate in by_coordinate])),
    }


def few_points(draws: npt.NDArray[np.float64], ess: float) -> int | None:
    """Return how many distinct points draws (C, S, D) have, if that is less than half of their effective sample size.

    Autocorrelations do not show that a chain comes back to the same few points, as by jumps to stored ones between
    which no other move is accepted. None: there are more. An ESS above the number of draws counts as that number:
    it is arbitrarily large for trajectories that end on the other side of the mean.
    """
    if not math.isfinite(ess):
        return None
    counts = [
        sum(len(np.unique(chain[:, d])) for chain in draws)
        for d in some_coordinates(draws.shape[-1], _COUNTED)
    ]
    most = max(counts, default=0)
    return most if most < min(ess, draws[..., 0].size) / 2 else None


def valid_of_each(draws: ChainDraws, valid: npt.NDArray[np.bool_]) -> ChainDraws:
    """Return the valid draws of each chain, as many as the chain with the fewest has.

    Args:
        draws: (C, S, D).
        valid: which of them follow the target (C, S).

    Returns:
        The first valid draws of each chain, (C, least count of valid draws, D).
    """
    if (valid == valid[0]).all():
        return draws if valid.all() else draws[:, valid[0]]
    least = int(valid.sum(axis=1).min())
    return np.stack([chain[kept][:least] for chain, kept in zip(draws, valid, strict=True)])


def diagnoses(draws: ChainDraws) -> list[Diagnosis]:
    """Return the diagnosis of each coordinate of draws (C, S, D)."""
    columns = (draws[..., d] for d in range(draws.shape[-1]))
    if draws[..., 0].size < _PARALLEL:
        return [diagnosis(column) for column in columns]
    with ThreadPoolExecutor(usable_cores()) as pool:  # NumPy sorts and SciPy transforms without Python's lock
        return list(pool.map(diagnosis, columns))


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


def diagnosed_coordinates(dim: int, chains: int, steps: int) -> int:
    """Return how many of D coordinates are diagnosed: all up to 1,000, or 64 where draws (C, S) are many.

    The worst of a few among hundreds says little of the others: of a multilevel model it is often the spread of the
    effects, a single number.
    """
    return min(dim, max(COORDINATES, min(_DIAGNOSED, _NUMBERS // max(1, chains * steps))))


def some_coordinates(dim: int, most: int = COORDINATES) -> npt.NDArray[np.int64]:
    """Return the indices of at most so many of D coordinates, evenly spaced."""
    return np.arange(dim) if dim <= most else np.linspace(0, dim - 1, most).astype(np.int64)


class _Quantity:
    """The draws (C, S) of one quantity and its statistics, each computed once.

    Metrics, tables and sections of a report want statistics of the same draws, which are recognised by their content.
    """

    _remembered: ClassVar[dict[Any, dict[str, Any]]] = {}  # statistics by name, of the draws of each content

    def __init__(self, draws: FloatArray) -> None:
        self.draws = np.ascontiguousarray(draws, dtype=np.float64)
        content = blake2b(self.draws.data, digest_size=16).digest(), self.draws.shape
        if content not in self._remembered and len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._found = self._remembered.setdefault(content, {})
        low, high = (float(self.draws.min()), float(self.draws.max())) if self.draws.size else (0.0, 0.0)
        # NaN and infinity are extremes.
        self.is_valid = bool(low < high and np.isfinite([low, high]).all() and draws.shape[1] >= LEAST_DRAWS)

    def _once(self, name: str, compute: Callable[[], T]) -> T:
        if name not in self._found:
            self._found[name] = compute()
        value: T = self._found[name]
        return value

    def bulk(self) -> float:
        """ESS of the normal scores of the draws."""
        return self._once("bulk", lambda: _ess(_scores(_split(self.draws))))

    def quantiles(self) -> ChainDraws:
        """Those at 5 %, 50 % and 95 %."""
        return self._once("quantiles", lambda: np.quantile(self.draws, (_TAILS[0], 0.5, _TAILS[1])))

    def tail(self) -> float:
        """The lesser ESS of the 5 % and the 95 % quantile."""
        ends = self.quantiles()[[0, -1]]
        return self._once("tail", lambda: min(_ess(_split(self.draws <= end)) for end in ends))

    def mean(self) -> float:
        """ESS of the mean."""
        return self._once("mean", lambda: _ess(_split(self.draws)))

    def mcse(self) -> float:
        """Monte Carlo standard error of the mean."""
        return self._once("mcse", self._mcse)

    def _mcse(self) -> float:
        scale = _scale(self.draws)
        return float(scale * (self.draws / scale).std(ddof=1) / np.sqrt(self.mean()))

    def rhat(self, most: int) -> float:
        """R-hat of at most so many draws of each chain, the larger of those of the draws and of their distances.

        Of one chain it compares the halves.
        """
        return self._once(f"rhat {most}", lambda: self._rhat(most))

    def _rhat(self, limit: int) -> float:
        every = -(-self.draws.shape[1] // limit)
        if every > 1 and _alternates(self.draws):
            every = 1
        thinned = _split(self.draws[:, ::every])
        if thinned.shape[1] < 2 or np.ptp(thinned) == 0:
            return float("nan")
        return max(_rhat(_scores(thinned)), _rhat(_scores(np.abs(thinned - np.median(thinned)))))


def _scale(draws: ChainDraws) -> float:
    """Return a divisor for draws whose squares would over- or underflow: the largest absolute value; else 1."""
    largest = float(np.abs(draws).max())
    return 1.0 if _SQUARABLE[0] < largest < _SQUARABLE[1] else largest


def _alternates(draws: ChainDraws) -> bool:
    """Return whether neighbouring draws are negatively correlated: a thinned chain has a worse mean then."""
    gaps = draws / _scale(draws)
    gaps = gaps - gaps.mean(axis=1, keepdims=True)
    return bool((gaps[:, 1:] * gaps[:, :-1]).sum() < 0)


def _split(draws: npt.NDArray[Any]) -> ChainDraws:
    """Return the halves of chains (C, S) as chains (2 C, S // 2); the middle draw of an odd number is left out."""
    half = draws.shape[1] // 2
    return np.vstack((draws[:, :half], draws[:, -half:])).astype(np.float64, copy=False)


def _scores(draws: ChainDraws) -> ChainDraws:
    """Return the normal scores of the ranks of draws among all of them, equal ones sharing their mean rank."""
    flat = draws.ravel()
    order = flat.argsort()
    ordered = flat[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    del ordered  # of millions of draws, each of these arrays is large
    times: Any = 1
    scores = np.flatnonzero(is_first).astype(np.float64)  # ranks from 0 of the first of equal ones
    if len(scores) < len(flat):
        times = np.diff(scores, append=len(flat))
    scores += 0.5 * (times + 1)
    scores -= 0.375  # Blom 1958
    scores /= len(flat) + 0.25
    scipy.special.ndtri(scores, out=scores)
    restored = np.empty_like(flat)
    restored[order] = scores if len(scores) == len(flat) else scores.repeat(times.astype(np.int64))
    return restored.reshape(draws.shape)


def _rhat(draws: ChainDraws) -> float:
    """Return the ratio of the pooled standard deviation of chains (C, S) and that within them."""
    size = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean()
    between = size * draws.mean(axis=1).var(ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.sqrt((between / within + size - 1) / size))


def _ess(draws: ChainDraws) -> float:
    """Return the effective sample size of chains (C, S) (Vehtari et al. 2021, equation 13)."""
    chains, size = draws.shape
    if draws.min() == draws.max():
        return float(draws.size)
    if (scale := _scale(draws)) != 1:
        draws = draws / scale
    between = draws.mean(axis=1).var(ddof=1) if chains > 1 else 0.0
    lags, time = _LAGS, None
    while time is None:
        lags = min(lags, size)
        cov = _autocovariance(draws, lags)
        within = cov[0] * size / (size - 1.0)
        time = _geyer(1.0 - (within - cov) / (cov[0] + between), complete=lags == size)
        lags *= 16
    return draws.size / max(time, 1 / float(np.log10(draws.size)))


def _autocovariance(draws: ChainDraws, lags: int) -> ChainDraws:
    """Return the autocovariances (K,), divisor S, of draws (C, S) at lags 0..K-1, K <= S, averaged over chains.

    Exact to rounding: a block of at least K draws meets itself and the block behind it, by Fourier transforms that fit
    in the cache. Behind a block is half a turn further on the circle of twice its length: the sign of odd frequencies.
    """
    chains, size = draws.shape
    block = int(scipy.fft.next_fast_len(lags, real=True))
    blocks = -(-size // block)
    if blocks == 1 and chains * block <= _VALUES:  # short chains, all at once
        waves = scipy.fft.rfft(draws - draws.mean(axis=1, keepdims=True), 2 * block)
        power = np.einsum("cf,cf->f", waves.conj(), waves).real
        return scipy.fft.irfft(power, 2 * block)[:lags] / (chains * size)
    batch = max(1, _VALUES // (2 * block))
    same_block, next_block = np.zeros(block + 1), np.zeros(block + 1, complex)
    padded = np.zeros((blocks, block))
    for chain in draws:
        np.subtract(chain, chain.mean(), out=padded.reshape(-1)[:size])
        for first in range(0, blocks, batch):
            waves = scipy.fft.rfft(padded[first : first + batch + 1], 2 * block)
            same_block += np.einsum("bf,bf->f", waves[:batch].conj(), waves[:batch]).real
            next_block += np.einsum("bf,bf->f", waves[:-1].conj(), waves[1:])
    next_block[1::2] *= -1
    products: ChainDraws = scipy.fft.irfft(same_block + next_block, 2 * block)[:lags]
    return products / (chains * size)


def _geyer(rho: npt.NDArray[np.float64], *, complete: bool) -> float | None:
    """Return the autocorrelation time -1 + 2 sum_k rho_k of autocorrelations (K,), K >= 4, rho_0 being 1.

    Without `complete`, which says that these are all lags, the result is None if more of them are needed.

    Pairs rho_2k + rho_2k+1 are summed up to the first that is not positive, each at most as large as the one before it
    (Geyer 1992); of the first that is left out an even rho counts once if it is positive (Vehtari et al. 2021).
    """
    rho = np.concatenate(([1.0], rho[1:]))
    pairs = rho[0:-1:2] + rho[1::2]
    last = (len(rho) - 3) // 2  # ArviZ looks no further
    stops = np.flatnonzero(pairs[:last] <= 0)
    if not len(stops) and not complete:
        return None
    last = int(stops[0]) if len(stops) else last
    last_term = rho[2 * last] if pairs[last] >= 0 else max(rho[2 * last], 0.0)
    return float(-1.0 + 2.0 * np.minimum.accumulate(pairs[:last]).sum() + last_term)


def diagnosis(draws: FloatArray) -> Diagnosis:
    """Return the statistics of draws (C, S) of one quantity; NaN for no, constant or non-finite draws."""
    nan = float("nan")
    if not draws.size:
        return Diagnosis(nan, nan, nan, nan, (nan, nan, nan))
    quantity = _Quantity(draws)
    low, middle, high = (float(q) for q in quantity.quantiles())
    if not quantity.is_valid:
        return Diagnosis(nan, nan, nan, nan, (low, middle, high))
    with np.errstate(over="ignore", invalid="ignore"):  # the square of a draw may be infinite
        statistics = quantity.rhat(_THINNED), quantity.bulk(), quantity.tail(), quantity.mcse()
    return Diagnosis(*statistics, (low, middle, high))


def ess(draws: FloatArray, method: str = "bulk") -> float:
    """Return the effective sample size of draws (C, S) (Vehtari et al. 2021).

    `method` is bulk, tail or mean. Constant or non-finite draws give NaN, and so do fewer than 10 of each chain. Draws
    of several quantities (C, S, D) have one for each, from a call for each: ``ess(draws[..., d])``.
    """
    quantity = _Quantity(draws)
    sizes = {"bulk": quantity.bulk, "tail": quantity.tail, "mean": quantity.mean}
    return sizes[method]() if quantity.is_valid else float("nan")


def mcse(draws: FloatArray) -> float:
    """Return the Monte Carlo standard error of the mean of draws (C, S); NaN where it is undefined."""
    quantity = _Quantity(draws)
    return quantity.mcse() if quantity.is_valid else float("nan")


def rhat(draws: FloatArray, most: int = _THINNED) -> float:
    """Return the rank-normalised split R-hat of draws (C, S); NaN if it is undefined, as for few draws.

    Of one chain it compares the two halves, which cannot show a mode that the chain never visited.

    Longer chains are thinned to `most` draws, which hardly changes R-hat and saves the time of ranking; not those whose
    neighbouring draws are negatively correlated, whose means thinning makes worse.
    """
    quantity = _Quantity(draws)
    return quantity.rhat(most) if quantity.is_valid else float("nan")


def ess_of_chain(draws: FloatArray) -> FloatArray:
    """Return n / (1 + 2 sum_k rho_k) of single chains, draws (..., n) -> (...): what papers usually call ESS.

    The autocorrelations rho_k are about the mean of each chain. They are summed by pairs as long as the sums are
    positive, and no pair counts more than the one before it (Geyer's initial monotone sequence, 1992). The result is at
    most n, even for negatively correlated draws. Constant or non-finite draws give NaN, and so do none.
    """
    n = draws.shape[-1]
    if n == 0:
        return np.full(draws.shape[:-1], np.nan)
    deviations = draws - draws.mean(axis=-1, keepdims=True)
    transform = np.fft.rfft(deviations, 1 << (2 * n - 1).bit_length(), axis=-1)
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
