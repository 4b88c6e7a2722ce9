"""The work that all contenders do: MINT with a random walk (Li & Wong 2017, section 4.1).

Every step draws m independent uniform indices, proposes theta + step size * z, and accepts by the
difference of the mean log-likelihoods over the minibatch, times n/T, and of the log prior, over T.
"""

from __future__ import annotations

M = 1000
VARIANCE = 2.0
PRIOR_VARIANCES = (10.0, 1.0)
STEP_SIZE = 0.6
EFFECTIVE = 31.6  # c = n/T: the same at every n, so that the chains do the same at every n


def temperature(n: int) -> float:
    return n / EFFECTIVE
