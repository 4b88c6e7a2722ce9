"""Small regressions on which pilots are tried, and what a pilot found."""

from __future__ import annotations

import json
import warnings

import numpy as np
import torch

import mhrun
from mhrun.engine.landscape.curvature import hessian
from mhrun.engine.landscape.modes import find_modes
from mhrun.engine.landscape.surface import Surface
from mhrun.models.logistic import Logistic
from mhrun.target import Target

N, D = 2_000, 4
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, D)) * np.array([0.3, 1.0, 2.0, 5.0])
Y = np.where(RNG.random(N) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.3, 0.1]))), 1.0, -1.0)
COUNTS = np.random.default_rng(4).poisson(np.exp(0.3 + 0.5 * X[:, 1]))


def logistic(theta, batch):
    return torch.nn.functional.logsigmoid(batch["y"] * (batch["x"] @ theta))


def poisson(theta, batch):
    rate = theta[0] + theta[1] * batch["x"][:, 1]
    return batch["k"] * rate - rate.exp()


def prior(theta):
    return -0.5 * theta.square().sum() / 10


DATA = {"x": X, "y": Y}
MODELS = {
    "logistic": (logistic, DATA, [0.0] * D),
    "poisson": (poisson, {"x": X, "k": COUNTS.astype(float)}, [0.0, 0.0]),
    "normal": (lambda theta, batch: -0.5 * (batch["x"][:, 0] - theta[0]) ** 2, {"x": X}, [3.0]),
}


def full(proposal=None, rule=None):
    return mhrun.MetropolisHastings(proposal or mhrun.RandomWalk(), mhrun.Full(), rule or mhrun.Metropolis())


def run(kernel, model="logistic", **settings):
    log_lik, data, start = MODELS[model]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mhrun.sample(
            log_lik,
            data,
            kernel,
            log_prior=prior,
            **({"start": start, "steps": 300, "warmup": 300} | settings),
        )


def found(trace):
    return json.loads(trace.attrs["pilot"])


def of_logistic(kernel, **settings):
    """Return the trace of a kernel on the logistic regression, without warnings of its few steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mhrun.sample(Logistic(D, prior_variance=10.0), DATA, kernel, **settings)


def exact_variances():
    """Return the variances (D,) of the normal approximation at the mode of that regression."""
    surface = Surface(Target(Logistic(D, prior_variance=10.0), mhrun.Dataset.of(DATA)), 1.0, 0)
    mode = find_modes(surface, torch.zeros(1, D, dtype=torch.float64)).theta[0]
    return torch.linalg.inv(hessian(surface, mode)).diagonal().numpy()
