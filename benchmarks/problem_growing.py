"""The work of the contenders that grow their minibatches: MHminibatch (Seita et al. 2017, Algorithm 1, section 6.1).

Every step proposes theta + step size * z and reads m data at a time, until the log-ratio D estimated from them
has a variance below sigma^2 = 1; then it accepts if D + N(0, 1 - variance) + X > 0, with X drawn from a table
of the correction's quantiles that is the same for all. The prior is not tempered. Ours draws the data of a step
without repeats, the others draw independent uniform indices: the few hundred of 10^6 that a step reads are the
same to nearly every digit.

TunaMH (Zhang, Cooper & De Sa 2020, Algorithm 1) on the same target reads single data at Poisson arrivals, in proportion
to the same bounds for all.
"""

from __future__ import annotations

import numpy as np
from problem import VARIANCE

N = 1_000_000
M = 50
SIGMA = 1.0
STEP_SIZE = 0.15
EFFECTIVE = 100  # n / K
# Of the pilot design: the share of sigma^2 planned for, the ratio of the sizes
NOISE_SHARE, GROWTH = 0.8, 1.05
CHI = 0.003  # of TunaMH
ARRIVALS = 32  # that the peer reads at a time; with 16 it takes as long, with 64 longer


def temperature(n: int) -> float:
    return n / EFFECTIVE


def mixture(n: int) -> np.ndarray:
    """Return n draws of 1/2 N(0, 2) + 1/2 N(1, 2)."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 2, n) + np.sqrt(VARIANCE) * rng.standard_normal(n)
