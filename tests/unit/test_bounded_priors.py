"""Priors with a bound and on simplices, at coordinates where their values round to an end."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.distributions import (
    Beta,
    Chi2,
    Dirichlet,
    FisherSnedecor,
    Gamma,
    Independent,
    InverseGamma,
    Kumaraswamy,
    LogNormal,
    Pareto,
    Uniform,
    Weibull,
)

import mhrun

U = np.array([-300.0, -100, -40, -37, -30, -5, -0.3, 0, 0.3, 5, 30, 37, 40, 100, 300])


def log_sigmoid(u):
    return -np.logaddexp(0, -u)


def beta(a, b):
    return a * log_sigmoid(U) + b * log_sigmoid(-U) - special.betaln(a, b)


def kumaraswamy(a, b):
    log_power = a * log_sigmoid(U)
    return np.log(a * b) + log_power + (b - 1) * np.log(-np.expm1(log_power)) + log_sigmoid(-U)


def of(prior, u):
    """Return the log density (C,) of a prior at unconstrained coordinates, and its gradient."""
    theta = torch.tensor(u, dtype=torch.float64).reshape(len(u), -1).requires_grad_()
    value = mhrun.Parameters({"x": prior}).log_prior(theta)
    (grad,) = torch.autograd.grad(value.sum(), theta)
    return value.detach().numpy(), grad.numpy()


@pytest.mark.parametrize(
    ("prior", "expected"),
    [(Beta(a, b), beta(a, b)) for a, b in ((0.05, 0.05), (0.5, 0.5), (1.0, 1.0), (2.0, 3.0))]
    + [(Kumaraswamy(a, b), kumaraswamy(a, b)) for a, b in ((0.3, 0.1), (2.0, 2.0))]
    + [(Dirichlet(torch.tensor([a, b])), beta(a, b)) for a, b in ((0.05, 0.05), (0.1, 2.0))],
)
def test_densities_are_those_of_the_logit(prior, expected):
    value, grad = of(prior, U)
    assert value == pytest.approx(expected, rel=2e-7, abs=2e-7)  # concentrations are rounded to float32
    assert np.isfinite(grad).all()


def wide(*numbers):
    return tuple(torch.tensor(number, dtype=torch.float64) for number in numbers)


V = np.array([-2000.0, -800, -750, -20, -1, 0, 1, 5])  # exp(-750) is 0


def gamma(a, b):
    return lambda v: a * np.log(b) - special.gammaln(a) + a * v - b * np.exp(v)


def weibull(scale, power):
    return lambda v: np.log(power) + power * (v - np.log(scale)) - np.exp(power * (v - np.log(scale)))


def fisher(a, b):
    constant = a / 2 * np.log(a / b) - special.betaln(a / 2, b / 2)
    return lambda v: constant + a / 2 * v - (a + b) / 2 * np.log1p(a / b * np.exp(v))


POSITIVE = {
    "gamma": (Gamma(*wide(0.001, 0.002)), gamma(0.001, 0.002)),
    "chi2": (Chi2(*wide(0.1)), gamma(0.05, 0.5)),
    "log-normal": (LogNormal(*wide(1.0, 100.0)), stats.norm(1.0, 100.0).logpdf),
    "weibull": (Weibull(*wide(2.0, 0.01)), weibull(2.0, 0.01)),
    "F": (FisherSnedecor(*wide(0.1, 0.3)), fisher(0.1, 0.3)),
}


@pytest.mark.parametrize("name", POSITIVE)
def test_densities_are_those_of_the_logarithm(name):
    """With the factor x of the transform; where x rounds to 0, too."""
    prior, expected = POSITIVE[name]
    value, grad = of(prior, V)
    assert value == pytest.approx(expected(V), rel=1e-9)
    assert np.isfinite(grad).all()


def test_the_inverse_of_a_gamma_variable_rounds_to_infinity():
    value, grad = of(InverseGamma(*wide(0.001, 0.002)), -V)
    assert value == pytest.approx(POSITIVE["gamma"][1](V), rel=1e-9)
    assert np.isfinite(grad).all()


def test_priors_of_several_parameters_are_those_of_each():
    """Expanded, and declared independent, where values round to 0 too."""
    one, _ = of(Gamma(*wide(0.001, 0.002)), V)
    several = Gamma(*wide(0.001, 0.002)).expand([3])
    for prior in (several, Independent(several, 1)):
        assert of(prior, np.repeat(V[:, None], 3, 1))[0] == pytest.approx(3 * one)
    corners = Dirichlet(torch.full((2, 2), 0.05, dtype=torch.float64))
    value, _ = of(Independent(corners, 1), np.repeat(U[:, None], 2, 1))
    assert value == pytest.approx(2 * beta(0.05, 0.05))


@pytest.mark.parametrize(
    "prior",
    [Uniform(*wide([0.0, 0.0], [1.0, 3.0])), Pareto(*wide([1.0, 2.0], [3.0, 3.0]))],
    ids=["uniform", "pareto"],
)
def test_bounds_of_each_parameter_are_those_of_torch(prior):
    u = torch.tensor([[0.3, -1.2], [2.0, 0.7]], dtype=torch.float64)
    transform = torch.distributions.biject_to(prior.support)
    x = transform(u)
    expected = (prior.log_prob(x) + transform.log_abs_det_jacobian(u, x)).sum(-1)
    assert of(prior, u.numpy())[0] == pytest.approx(expected.numpy())


@pytest.mark.parametrize("dim", [2, 4])
def test_a_simplex_of_more_is_that_of_its_logarithms(dim, rng):
    """Its values sum to 1 in logarithms, and the density is exact where one of them is 1e-200."""
    alpha = rng.uniform(0.05, 3.0, dim + 1)
    u = np.concatenate([rng.normal(0.0, 2.0, (20, dim)), rng.normal(0.0, 200.0, (20, dim))])
    v = u - np.log(np.arange(dim, 0, -1))
    left = np.concatenate([np.zeros((40, 1)), np.cumsum(log_sigmoid(-v), 1)], 1)
    log_x = np.concatenate([log_sigmoid(v) + left[:, :-1], left[:, -1:]], 1)
    assert special.logsumexp(log_x, axis=1) == pytest.approx(np.zeros(40), abs=1e-12)
    # d x_k / d u_k = x_k sigmoid(-v_k), and the matrix of derivatives is lower triangular
    jacobian = (log_x[:, :-1] + log_sigmoid(-v)).sum(1)
    constant = special.gammaln(alpha.sum()) - special.gammaln(alpha).sum()
    expected = ((alpha - 1) * log_x).sum(1) + jacobian + constant
    value, _ = of(Dirichlet(torch.tensor(alpha)), u)
    assert value == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "prior",
    [
        *(Beta(2.0, 3.0), Kumaraswamy(2.0, 3.0), Dirichlet(torch.tensor([1.0, 2.0, 0.5]))),
        *(Gamma(2.0, 3.0), Chi2(3.0), InverseGamma(2.0, 3.0), LogNormal(0.3, 0.8), Weibull(2.0, 1.5)),
        FisherSnedecor(3.0, 5.0),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_inside_they_are_those_of_torch(prior):
    shape = (6, *prior.batch_shape, 2) if prior.event_shape else (6,)
    u = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    transform = torch.distributions.biject_to(prior.support)
    x = transform(u)
    expected = prior.log_prob(x) + transform.log_abs_det_jacobian(u, x)
    assert of(prior, u.numpy())[0] == pytest.approx(expected.numpy(), rel=1e-6)


def test_a_shape_and_a_derived_class():
    class Other(Beta):
        def log_prob(self, value):
            return 0 * value

    shaped = of({"prior": Beta(0.5, 2.0), "shape": [2, 3]}, np.tile(U[:, None], (1, 6)))[0]
    assert shaped == pytest.approx(6 * beta(0.5, 2.0), rel=1e-6)
    assert of(Other(0.5, 0.5), U[4:11])[0] == pytest.approx((log_sigmoid(U) + log_sigmoid(-U))[4:11])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_vague_gamma_prior_keeps_no_chain_at_zero():
    """Of Gamma(0.001, 0.001) half is below the smallest number, and chains that came there stayed for ever."""
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    trace = mhrun.sample(
        lambda theta, batch: torch.zeros_like(batch),
        torch.zeros(1, dtype=torch.float64),
        kernel,
        parameters={"x": Gamma(*wide(0.001, 0.001))},
        step_size=2000.0,
        steps=4_000,
        chains=20,
        seed=1,
        progress=False,
    )
    x = trace["posterior"]["x"].to_numpy()
    lowest = np.log(np.finfo(float).tiny)
    below = (x <= np.finfo(float).tiny).mean()
    # log P(x < e^v) = 0.001 (v + log 0.001) - log Gamma(1.001) for small e^v
    expected = np.exp(0.001 * (lowest + np.log(0.001)) - special.gammaln(1.001))
    # 0.025: five standard errors of 80,000 draws, of which 10,000 count.
    assert below == pytest.approx(expected, abs=0.025)
    assert (x[:, -200:] > 0).any(1).all()


@pytest.mark.slow
def test_draws_have_the_mass_at_both_ends():
    """Of the mass of Beta(0.05, 0.05) 8 % is beyond the largest number below 1; without it the mean is 0.455."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            lambda theta, batch: torch.zeros_like(batch),
            torch.zeros(1, dtype=torch.float64),
            parameters={"x": Beta(0.05, 0.05)},
            steps=6_000,
            progress=False,
        )
    x = trace["posterior"]["x"].to_numpy()
    error = x.std() / mhrun.diagnostics.chains.ess(x) ** 0.5
    assert abs(x.mean() - 0.5) < 4 * error < 0.04
