"""Data outside of the support of `torch.distributions`, for functions and modules."""

import re

import pytest
import torch
from torch import distributions as D
from torch import nn

import mhrun
from mhrun import UserError

X = torch.linspace(-1, 1, 700, dtype=torch.float64)[:, None]


def with_one(values, bad):
    values = values.clone().double()
    values[633] = bad
    return values


SIGNS, COUNTS = (X[:, 0] > 0).double(), torch.arange(700) % 4
CASES = {
    "a label of -1": (
        lambda o: D.Bernoulli(logits=o),
        with_one(SIGNS, -1.0),
        "Bernoulli, Boolean(), in row 633",
    ),
    "half a count": (
        lambda o: D.Poisson(o.exp()),
        with_one(COUNTS, 0.5),
        "Poisson, IntegerGreaterThan(lower_bound=0)",
    ),
    "a negative time": (
        lambda o: D.Exponential(o.exp()),
        with_one(COUNTS, -2.0),
        "Exponential, GreaterThanEq",
    ),
    "no link": (
        lambda o: D.Bernoulli(probs=o + 3),
        SIGNS,
        "probs of Bernoulli must be Interval(lower_bound=0.0",
    ),
}
KERNEL = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
SETTINGS = {"step_size": 0.1, "steps": 20, "warmup": 0}


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_functions_are_refused(name, validated, monkeypatch):
    """Also where distributions are not validated, as after an import of torch's compiler."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", validated)
    distribution, y, words = CASES[name]

    def log_lik(theta, rows):
        return distribution(rows.x[:, 0] * theta[0]).log_prob(rows.y)

    with pytest.raises(UserError, match=re.escape(words)):
        mhrun.sample(log_lik, {"x": X, "y": y}, KERNEL, start=[0.1], **SETTINGS)


@pytest.mark.parametrize("evaluation", ["bound", "vmapped"])
@pytest.mark.parametrize("name", CASES)
def test_modules_are_refused(name, evaluation):
    distribution, y, words = CASES[name]

    def log_lik(outputs, rows):
        return distribution(outputs[:, 0]).log_prob(rows["y"])

    model = mhrun.ModuleModel(nn.Linear(1, 1), likelihood=log_lik, prior_variance=1.0, evaluation=evaluation)
    with pytest.raises(UserError, match=re.escape(words)):
        mhrun.sample(model, {"x": X, "y": y}, KERNEL, **SETTINGS)
