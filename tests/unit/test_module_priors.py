"""Priors of a module's parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from significance import assert_mean
from torch import nn
from torch.distributions import HalfNormal, Laplace, MultivariateNormal, Normal, StudentT

import mhrun
from mhrun.errors import Refusal
from mhrun.models.module import ModuleModel

NET = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2, bias=False))  # 6 weights, 2 biases, 4 weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("prior", "parts", "summary"),
    [
        ("Laplace(0, 2)", [stats.laplace(0, 2)] * 3, "Laplace(loc: 0.0, scale: 2.0) for every parameter"),
        (
            StudentT(4.0, 0.5, 2.0),
            [stats.t(4, 0.5, 2)] * 3,
            "StudentT(df: 4.0, loc: 0.5, scale: 2.0) for every",
        ),
        (
            {"0.bias": None, "0.*": "Cauchy(0, 1)", "*": Normal(0.0, 3.0)},
            [stats.cauchy(0, 1), None, stats.norm(0, 3)],
            "0.weight: Cauchy(loc: 0.0, scale: 1.0); 0.bias: flat; 2.weight: Normal(loc: 0.0, scale: 3.0)",
        ),
        (
            {"0.bias": None, "*": Normal(1.0, 3.0)},
            [stats.norm(1, 3), None, stats.norm(1, 3)],
            "0.weight: Normal",
        ),
    ],
)
def test_log_priors_are_those_of_scipy(rng, prior, parts, summary, dtype):
    model = ModuleModel(NET, prior=prior)
    theta = rng.normal(0, 2, (5, 12))
    blocks = theta[:, :6], theta[:, 6:8], theta[:, 8:]
    wanted = sum(
        part.logpdf(block).sum(1) for part, block in zip(parts, blocks, strict=True) if part is not None
    )
    point = torch.from_numpy(theta).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    assert model.log_prior(point).numpy() == pytest.approx(wanted, rel=tolerance)
    assert model.log_prior(point).dtype == torch.float64
    step = 1e-5
    grad = np.zeros_like(theta)
    for part, block, out in zip(parts, blocks, (grad[:, :6], grad[:, 6:8], grad[:, 8:]), strict=True):
        if part is not None:
            out[:] = (part.logpdf(block + step) - part.logpdf(block - step)) / (2 * step)
    assert model.log_prior_grad(point).numpy() == pytest.approx(grad, rel=1e-4, abs=1e-4)
    assert model.prior_precision() is None
    assert model.prior_summary.startswith(summary)


@pytest.mark.parametrize(
    ("prior", "variance"),
    [
        (Normal(0.0, 2.0), 4.0),
        ("Normal(0, 0.5)", 0.25),
        ({"*.bias": "Normal(0, 3)", "*": Normal(0.0, 1.0)}, {"*.bias": 9.0, "*": 1.0}),
        ({"*.bias": None, "*": Normal(0.0, 1.0)}, {"*.bias": None, "*": 1.0}),
    ],
)
def test_a_normal_prior_about_0_is_that_of_a_variance(rng, prior, variance):
    one, other = ModuleModel(NET, prior=prior), ModuleModel(NET, prior_variance=variance)
    theta = torch.from_numpy(rng.normal(size=(3, 12)))
    assert torch.equal(one.log_prior(theta), other.log_prior(theta))
    assert torch.equal(one.log_prior_grad(theta), other.log_prior_grad(theta))
    assert one.prior_precision() == other.prior_precision()
    assert one.prior_summary == other.prior_summary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior": "Laplace(0, 1)", "prior_variance": 1.0}, "both give the prior"),
        ({"prior": HalfNormal(1.0)}, "HalfNormal is not of all real numbers"),
        ({"prior": MultivariateNormal(torch.zeros(2), torch.eye(2))}, "must be of one number"),
        ({"prior": Laplace(torch.zeros(2), 1.0)}, "Laplace must be of one number"),
        ({"prior": 1.0}, "prior = 1.0 must be a distribution of torch, its text"),
        ({"prior": "Laplac(0, 1)"}, "Did you mean 'Laplace'"),
        (
            {"prior": {"1.weight": None, "*": None}},
            "prior: no parameter is called '1.weight'; there are: 0.weight",
        ),
        ({"prior": {"*.bias": None}}, "prior has none for 0.weight"),
    ],
)
def test_what_is_no_prior_of_a_module_is_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        ModuleModel(NET, **settings)


@pytest.mark.parametrize("moves", ["HMC", "MINT"])
def test_draws_have_the_posterior_of_such_a_prior(rng, moves):
    """A weight with a Laplace prior, from the last draws of many chains, and by quadrature."""
    x, y = rng.normal(size=(12, 1)), rng.normal(0.6, 1.0, 12)

    def log_lik(outputs, rows):
        return -0.5 * (rows["y"] - outputs[:, 0]) ** 2

    kernel = {
        "HMC": mhrun.MetropolisHastings(mhrun.HamiltonianProposal(3), mhrun.Full(), mhrun.Metropolis()),
        # On all data.
        "MINT": mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(12), mhrun.Metropolis()),
    }[moves]
    trace = mhrun.sample(
        ModuleModel(nn.Linear(1, 1, bias=False), log_lik, prior="Laplace(0, 0.2)", evaluation="vmapped"),
        {"x": x, "y": y},
        kernel,
        start=np.zeros(1),
        step_size=0.2 if moves == "HMC" else 0.5,
        chains=1000,
        steps=40,
        warmup=0,
        thin=40,
    )
    draws = trace["posterior"]["theta"].to_numpy()[:, -1, 0]

    def density(weight):
        return np.exp(-0.5 * ((y - weight * x[:, 0]) ** 2).sum() + 6 - abs(weight) / 0.2)

    mass = [integrate.quad(lambda s, k=k: density(s) * s**k, -4, 4, points=[0.0])[0] for k in range(3)]
    assert_mean(draws, mass[1] / mass[0], "mean")
    assert_mean(draws**2, mass[2] / mass[0], "second moment")
