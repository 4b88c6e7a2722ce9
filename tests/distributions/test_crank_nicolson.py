"""The preconditioned Crank-Nicolson proposal. False alarms: see `significance`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kit import KEY, controls, follow
from scipy import stats
from significance import assert_mean, differs_in_mean

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.native import Draw, StepControls
from mhrun.pairing.full import Full
from mhrun.proposals.crank_nicolson import CrankNicolson
from mhrun.random import Draws, Streams
from mhrun.rules.barker import Barker
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.types import Evaluation


def at(theta):
    return Evaluation(torch.from_numpy(theta), torch.zeros(len(theta)))


@pytest.mark.parametrize("step", [1e-3, 0.3, 1.0])
@pytest.mark.parametrize("sd", [0.2, 1.0, 3.0])
def test_it_is_reversible_for_the_prior(rng, sd, step):
    """log q(a -> b) - log q(b -> a) = log prior(b) - log prior(a), whatever the points; no false alarms."""
    proposal, control = CrankNicolson(sd), controls(step, chains=500)
    b = rng.normal(size=(500, 3)) * 2 * sd
    a = math.sqrt(1 - step**2) * b + step * sd * rng.normal(size=(500, 3)) * 2
    there = proposal.log_density(at(a), torch.from_numpy(b), control)
    back = proposal.log_density(at(b), torch.from_numpy(a), control)
    prior = stats.norm(scale=sd).logpdf(b).sum(1) - stats.norm(scale=sd).logpdf(a).sum(1)
    assert (there - back).numpy() == pytest.approx(prior, abs=1e-12)
    # The difference is that of its own densities.
    keep, spread = math.sqrt(1 - step**2), step * sd
    own = stats.norm(keep * a, spread).logpdf(b).sum(1) - stats.norm(keep * b, spread).logpdf(a).sum(1)
    assert (there - back).numpy() == pytest.approx(own, abs=1e-9 / step**2)


@pytest.mark.parametrize("step", [0.0, 1e-8, 1e-3])
def test_its_ratio_has_no_rounding_error_at_small_steps(rng, step):
    """In float32 and many dimensions; two gaps divided by the step were subtracted before."""
    a = torch.from_numpy(rng.normal(size=(50, 10_000))).float()
    z = torch.from_numpy(rng.normal(size=a.shape)).float()
    b = math.sqrt(1 - step**2) * a + step * z
    proposal, control = CrankNicolson(1.0), controls(step, chains=50)
    there = proposal.log_density(Evaluation(a, torch.zeros(50)), b, control)
    back = proposal.log_density(Evaluation(b, torch.zeros(50)), a, control)
    exact = 0.5 * (a.double() ** 2 - b.double() ** 2).sum(1)
    assert torch.allclose(there - back, exact, rtol=0.0, atol=1e-10)


def test_its_moves_have_their_density_and_a_step_beyond_one_is_one(rng):
    theta = np.tile([[1.0, -2.0]], (40_000, 1))

    def move(step):
        draws = Draws(Streams(KEY, len(theta)), 1)
        return CrankNicolson(1.5).sample(at(theta), controls(step, chains=len(theta)), draws).numpy()

    for step in (0.6, 1.0):
        moved = move(step)
        for d in range(2):
            centred = moved[:, d] - math.sqrt(1 - step**2) * theta[0, d]
            assert_mean(centred, 0.0)
            assert_mean(centred**2, (1.5 * step) ** 2)
    assert np.array_equal(move(7.0), moved)
    wide = controls(7.0, chains=len(theta))
    density = CrankNicolson(1.5).log_density(at(theta), torch.from_numpy(moved), wide)
    assert density.numpy() == pytest.approx(-0.5 * (moved**2).sum(1) / 1.5**2)


@pytest.mark.parametrize("step", [0.4, 1.0, 3.0])
def test_the_pieces_of_the_loop_are_the_plain_ones(rng, step):
    proposal, control = CrankNicolson(0.7), controls(step, chains=5)
    form, origin = proposal.native(), rng.normal(size=(5, 6))
    to = proposal.sample(at(origin), control, Draws(Streams(KEY, 5), 9))
    expected = proposal.log_density(Evaluation(to, torch.zeros(5)), torch.from_numpy(origin), control)
    expected = expected - proposal.log_density(at(origin), to, control)
    key = tuple(np.uint64(word) for word in (KEY & 0xFFFFFFFF, KEY >> 32))
    out = np.empty(6)
    for c in range(5):
        with np.errstate(over="ignore"):
            draw = Draw(key, np.uint64(9), np.uint64(c))
            form.propose(form.args, origin[c], StepControls(step, step), draw, out)
        assert out == pytest.approx(to[c].numpy(), abs=1e-12)
        assert form.log_ratio(form.args, origin[c], out) == pytest.approx(float(expected[c]))


# A prior that counts, far from the data: c = n/T = 3 data of mean 1.6 against N(0, 0.8^2).
N, WEIGHT, SD = 60, 3.0, 0.8
X = np.random.default_rng(8).normal(1.6, 1.0, N)
PRECISION = WEIGHT + 1 / SD**2
MEAN = WEIGHT * X.mean() / PRECISION


def assert_posterior(theta):
    """The draws (C, S) of independent chains have the posterior's mean and variance."""
    assert_mean(theta.mean(1), MEAN, "mean")
    assert_mean(((theta - MEAN) ** 2).mean(1), 1 / PRECISION, "variance")
    assert differs_in_mean(theta.mean(1), MEAN + 0.05)
    assert differs_in_mean(((theta - MEAN) ** 2).mean(1), 1.1 / PRECISION)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "step"),
    [
        pytest.param(Metropolis(), 0.9, id="metropolis"),
        pytest.param(Barker(), 2.0, id="barker", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("executor", ["plain", "compiled"])
def test_a_chain_has_the_posterior(rule, step, executor):
    target = Target(GaussianMean(SD**2), Dataset.of(X), temper="likelihood")
    kernel = MetropolisHastings(CrankNicolson(SD), Full(), rule)
    if executor == "plain":
        theta, infos = follow(kernel, target, controls(step, N / WEIGHT, chains=4000), 60, chains=4000)
        assert_posterior(theta[20:, :, 0].T.numpy())
        assert (infos[0].n_lik == N).all()
        return
    draws = Draws(Streams(KEY, 400), 0)
    start = kernel.start(target, target.model.init(400, draws), draws)
    steps = controls(step, N / WEIGHT, chains=400, steps=1000)
    _, record = compile_loop(kernel, target, KEY, 1).advance(start, 1, steps)
    assert_posterior(record["theta"][:, 50:, 0])


def test_a_prior_of_no_width_is_refused():
    for sd in (0.0, -1.0):
        with pytest.raises(Refusal, match="must be positive"):
            CrankNicolson(sd)
