"""Pilots of ladders: a step size for each rung."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from regressions import D, N, exact_variances, found, full, of_logistic

import mhrun

pytestmark = pytest.mark.long


def two_modes(theta):
    """A mixture of N(-5, 1) with weight 0.3 and N(5, 1) with weight 0.7, in the first of two coordinates."""
    modes = torch.stack([-0.5 * (theta[0] + 5) ** 2 + np.log(0.3), -0.5 * (theta[0] - 5) ** 2 + np.log(0.7)])
    return modes.logsumexp(0) - 0.5 * theta[1] ** 2 / 9


RUNG_TEMPERATURES = [1.0, 4.0, 16.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "proposal", [mhrun.RandomWalk(), pytest.param(mhrun.LangevinProposal(), marks=pytest.mark.slow)]
)
def test_a_ladder_gets_a_step_size_for_each_rung_and_finds_both_modes(proposal, capsys):
    """With 24 ladders the share of a mode has a standard error of about 0.02; without exchanges it would be 0 or 1."""
    ladder = mhrun.ReplicaExchange(full(proposal), mhrun.Full(), mhrun.Metropolis(), rungs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            two_modes, None, ladder, start=[5.0, 0.0], temperature=RUNG_TEMPERATURES, chains=72, steps=1_000
        )
    steps = np.array(found(trace)["step_size_by_chain"]).reshape(-1, 3)
    ratio = steps / steps[:, :1]
    assert ratio == pytest.approx(np.tile([1, 1, 1] if proposal.gradients else [1, 2, 4], (24, 1)))
    cold = mhrun.rung(trace, 0)["posterior"]["theta"].values
    assert cold.shape == (24, 1_000, 2)
    share = (cold[..., 0] > 0).mean(1)
    assert abs(share.mean() - 0.7) < 5 * share.std(ddof=1) / 24**0.5
    assert share.std() < 0.25
    assert cold[..., 1].std() == pytest.approx(3.0, rel=0.15)
    assert "pilot: step size" in capsys.readouterr().err


@pytest.mark.slow
def test_a_ladder_is_not_advised_to_be_one(capsys):
    """Of two modes far apart, at one of which all chains begin."""
    modes = torch.tensor([[-7.0], [7.0]])

    def density(theta):
        return torch.logsumexp(-0.5 * (theta - modes).square().sum(-1), 0)

    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    for rungs, temperature, named in ((1, 1.0, True), (2, [1.0, 8.0], False)):
        moves = (
            kernel
            if rungs == 1
            else mhrun.ReplicaExchange(kernel, mhrun.Full(), mhrun.Metropolis(), 2, every=2)
        )
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            mhrun.sample(density, None, moves, start=[7.0], temperature=temperature, steps=200, warmup=100)
        assert any("another mode" in str(one.message) for one in found) == named


@pytest.mark.parametrize(
    "dynamics",
    [
        pytest.param(mhrun.SGNHT(friction=[0.1, 0.05]), marks=pytest.mark.slow),
        mhrun.SGLD(),
        pytest.param(mhrun.SGHMC(), marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_ladder_of_a_dynamics_gets_a_stable_step_size(dynamics):
    """The variances of a logistic posterior at both rungs; the seed is fixed, and a standard error is 4 to 8 %."""
    ladder = mhrun.ReplicaExchange(
        mhrun.Unadjusted(dynamics, m="auto"), mhrun.Growing(), mhrun.MHMinibatch(m=200), rungs=2, every=20
    )
    counts = {"chains": 16, "steps": 2_000, "warmup": 500, "thin": 10}
    trace = of_logistic(ladder, temperature=[1.0, 1.5], executor="torch", **counts)
    about = found(trace)
    assert about["m"] == N // 5
    assert 0 < about["step_size"] < 0.11 * about["stability_bound"]
    exact = exact_variances()
    for number, temperature in enumerate([1.0, 1.5]):
        draws = mhrun.rung(trace, number)["posterior"]["theta"].values
        ratio = draws.reshape(-1, D).var(0) / exact / temperature
        assert (ratio > 0.75).all(), number
        assert (ratio < 1.35).all(), number
