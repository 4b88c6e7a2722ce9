"""MHminibatch as usually written in NumPy: a loop over chains, steps and minibatches.

Arguments: cores, number of data, the file with the correction's quantiles.
"""

from __future__ import annotations

import sys

import worker

worker.pin_to(int(sys.argv[1]))

import numpy as np  # noqa: E402
from problem import PRIOR_VARIANCES, VARIANCE  # noqa: E402
from problem_growing import SIGMA, STEP_SIZE, M, mixture, temperature  # noqa: E402


def log_prior(theta):
    return -0.5 * (theta[0] ** 2 / PRIOR_VARIANCES[0] + theta[1] ** 2 / PRIOR_VARIANCES[1])


def log_lik(theta, x):
    near = -0.5 * (x - theta[0]) ** 2 / VARIANCE
    far = -0.5 * (x - theta[0] - theta[1]) ** 2 / VARIANCE
    return np.logaddexp(near, far)


def main(n: int, table: str) -> None:
    x = mixture(n)
    with np.load(table) as file:
        probabilities, points = file["probabilities"], file["points"]
    scale = n / temperature(n)

    def chain(steps, rng):
        theta = np.array([0.0, 1.0])
        draws = np.empty((steps, 2))
        accepted, log_ratio, var, size = np.empty(steps, bool), *np.empty((3, steps))
        for k in range(steps):
            candidate = theta + STEP_SIZE * rng.standard_normal(2)
            d = np.empty(0)
            while len(d) == 0 or (var[k] >= SIGMA**2 and len(d) < n):
                rows = x[rng.integers(0, n, M)]
                d = np.append(d, log_lik(candidate, rows) - log_lik(theta, rows))
                var[k] = scale**2 * d.var() / len(d)
            log_ratio[k] = scale * d.mean() + log_prior(candidate) - log_prior(theta)
            noise = np.sqrt(max(SIGMA**2 - var[k], 0.0)) * rng.standard_normal()
            noise += np.interp(rng.random(), probabilities, points)
            accepted[k] = log_ratio[k] + noise > 0
            if accepted[k]:
                theta = candidate
            draws[k], size[k] = theta, len(d)
        return draws, accepted, log_ratio, var, size

    def work(chains: int, steps: int, seed: int) -> dict[str, float]:
        traces = [chain(steps, np.random.default_rng([seed, c])) for c in range(chains)]
        mean = [float(np.mean([trace[i] for trace in traces])) for i in (1, 4)]
        return {"accepted": mean[0], "batch": mean[1]}

    worker.serve(work)


if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3])
