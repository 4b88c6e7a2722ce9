"""Conversions between the papers' parametrisations and that of mhrun.

In mhrun, `step_size` multiplies the gradient of the full-data log posterior, and injected noise has
variance ``2 * step_size * noise_temperature``. Temperature T means the density to the power 1/T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mhrun.errors import Refusal

MOST_IN_LIST = 100_000
"""The maximal length of a computed list, with one value per chain, rung or coordinate."""


def _checked_length(name: str, length: float) -> int:
    """Return the length of a list to be computed.

    Raises:
        Refusal: it is not a whole number, negative, or more than `MOST_IN_LIST`.
    """
    if not 0 <= length <= MOST_IN_LIST or length != int(length):
        raise Refusal(f"{name} = {repr(length)[:40]} must be a whole number, at most {MOST_IN_LIST:,}.")
    return int(length)


def batch_size(n: int, tau: float) -> int:
    """Return m = n^tau, the minibatch size of MINT (Li & Wong 2017, section 3.2), to the nearest integer.

    Raises:
        Refusal: tau is outside (0, 1], or there are no data.
    """
    if n < 1:
        raise Refusal(f"n = {n} must be at least 1.")
    if not 0 < tau <= 1:
        raise Refusal(f"tau = {tau:g} must lie in (0, 1]: it sets the minibatch size m = n^tau.")
    return max(1, round(n**tau))


def mint_temperature(n: int, lam: float, m: int) -> float:
    """Return T = n^(1 - lambda), the temperature of MINT (Li & Wong 2017, section 3.2).

    `m` is the minibatch size, which fixes tau = log m / log n; the paper needs lambda < tau.

    Raises:
        Refusal: lambda is negative, or not below tau; or m is not between 1 and n.
    """
    if not m >= 1:
        raise Refusal(f"m = {m} must be at least 1.")
    if m > n:
        raise Refusal(f"m = {m} is more than the n = {n} data there are; choose m <= n (tau <= 1).")
    tau = math.log(m) / math.log(n) if n > 1 else 1.0
    if lam < 0:
        raise Refusal(f"lam = {lam:g} must not be negative: the temperature is T = n^(1 - lam).")
    if lam >= tau:
        raise Refusal(
            f"lam = {lam:g} must be below tau = {tau:.4g} (m = {m}): MINT needs lambda < tau, "
            "or minibatch noise swamps the ratio. Lower lam or raise tau."
        )
    return float(n ** (1.0 - lam))


def step_from_learning_rate(learning_rate: float, n: int) -> float:
    """Return mhrun's step size for a learning rate that multiplies the gradient of the *mean* log-likelihood.

    Raises:
        Refusal: there are no data.
    """
    if n < 1:
        raise Refusal(f"n = {n} must be at least 1.")
    if not 0 < learning_rate < math.inf:
        raise Refusal(f"a learning rate of {learning_rate:g} must be positive and finite.")
    return learning_rate / n


def steps_from_learning_rates(rates: Sequence[float], chains: int, n: int) -> list[float]:
    """Return mhrun's step sizes, one per chain; each learning rate gets the same number of consecutive chains.

    Raises:
        Refusal: the number of chains is not a multiple of the number of rates.
    """
    chains = _checked_length("chains", chains)
    per_rate, remainder = divmod(chains, len(rates)) if len(rates) else (0, 1)
    if remainder or not per_rate:
        raise Refusal(f"{chains} chains is not a multiple of {len(rates)} learning rates.")
    return [step_from_learning_rate(float(rate), n) for rate in rates for _ in range(per_rate)]


def learning_rate_steps(lowest: float, highest: float, count: int, n: int) -> list[float]:
    """Return mhrun's step sizes for `count` learning rates at equal ratios, both ends included.

    Raises:
        Refusal: an invalid grid.
    """
    if not 0 < lowest < highest or count < 2 or count != int(count):
        raise Refusal(
            f"{count} learning rates from {lowest:g} to {highest:g} are not a grid: choose 0 < lowest < highest and at "
            "least 2."
        )
    count = _checked_length("count", count)
    ratio = (highest / lowest) ** (1 / (count - 1))
    return [step_from_learning_rate(lowest * ratio**k, n) for k in range(count)]


def ladder(ratio: float, rungs: int, chains: int) -> list[float]:
    """Return a temperature for each chain: ratio^rung, where chain c is rung c mod rungs of a ladder.

    Raises:
        Refusal: an invalid ladder.
    """
    if not (ratio > 1 and rungs >= 2 and rungs == int(rungs)) or chains % rungs:
        raise Refusal(
            f"A ladder needs ratio > 1, rungs >= 2 and chains that are a multiple of rungs, not {ratio:g}, {rungs} and "
            f"{chains}."
        )
    return [_raised(ratio, chain % rungs) for chain in range(_checked_length("chains", chains))]


def _raised(ratio: float, rung: float) -> float:
    """Return the temperature of a rung.

    Raises:
        Refusal: it overflows.
    """
    try:
        return float(float(ratio) ** rung)
    except OverflowError as error:
        raise Refusal(
            f"the temperature of {rung:g} rungs with a ratio of {ratio:g} overflows; choose fewer."
        ) from error


def over_rungs(ratio: float, rungs: int, scale: float, power: float, plus: float) -> list[float]:
    """Return plus + scale * T^power for each rung of a ladder of temperatures T = ratio^rung.

    Raises:
        Refusal: an invalid ladder.
    """
    return [float(plus + scale * t**power) for t in ladder(ratio, rungs, rungs)]


def batch_sizes(n: int, smallest: float, growth: float, rungs: int) -> list[int]:
    """Return the minibatch size of each rung of a ladder, from the coldest, which reads all n, to the hottest.

    The others have floor(smallest growth^j), j = 0 for the hottest (Li & Wong 2017, Table 3).

    Raises:
        Refusal: an invalid ladder.
    """
    if not (growth > 1 and smallest >= 1 and rungs >= 2 and rungs == int(rungs)):
        raise Refusal(
            f"a ladder of minibatches needs growth > 1, smallest >= 1 and rungs >= 2, not {growth:g}, {smallest:g} "
            f"and {rungs}."
        )
    rungs = _checked_length("rungs", rungs)
    if not math.log(smallest) + (rungs - 2) * math.log(growth) < math.log(1e18):
        raise Refusal(
            f"minibatches grow beyond 10^18 over {rungs:,} rungs with a growth of {growth:g}; choose fewer rungs or a "
            "lower growth."
        )
    sizes = [int(smallest * growth**j) for j in reversed(range(rungs - 1))]
    if sizes[0] > n:
        raise Refusal(
            f"minibatches grow to {sizes[0]}, beyond the n = {n} data; choose fewer rungs or a lower growth."
        )
    return [int(n), *sizes]


def batch_temperatures(
    n: int, smallest: float, growth: float, rungs: int, alpha: float, chains: int
) -> list[float]:
    """Return the temperature of each chain of the ladders of `batch_sizes`: n / m^alpha, and 1 where all data are read.

    Raises:
        Refusal: an invalid ladder, or the number of chains is not a multiple of its rungs.
    """
    sizes = batch_sizes(n, smallest, growth, rungs)
    if chains % len(sizes):
        raise Refusal(f"{chains} chains is not a multiple of {len(sizes)} rungs.")
    temperatures = [1.0, *(n / m**alpha for m in sizes[1:])]
    return [float(temperatures[chain % len(sizes)]) for chain in range(_checked_length("chains", chains))]


def first_axis(length: float, dimension: int) -> list[float]:
    """Return the point at this distance along the first axis.

    Raises:
        Refusal: fewer than one dimension.
    """
    if dimension < 1:
        raise Refusal(f"dimension = {dimension} must be at least 1.")
    return [float(length)] + [0.0] * (_checked_length("dimension", dimension) - 1)
