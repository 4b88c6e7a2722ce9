"""Rungs of an equi-energy ladder that stay where their density is flat, and an anchor that is not the highest mode."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import mhrun

N, T = 200, np.array([1.0, 2.0, 4.0])
X = np.random.default_rng(0).normal(size=N)
GRID = np.linspace(-3, 3, 20_001)
NORMAL = mhrun.FunctionModel(lambda theta, rows: -0.5 * (rows.x - theta[0]) ** 2, start=[0.0])


def above(h, levels):
    """Return the share of exp(-max(h, H_k) / T_k) with h > H_k, by quadrature, (R,)."""
    densities = [np.exp(-np.maximum(h, level) / t) for level, t in zip(levels, T, strict=True)]
    return np.array([p[h > level].sum() / p.sum() for p, level in zip(densities, levels, strict=True)])


def run(model, proposal, step_size, *, steps=600, **settings):
    """Return the warnings of flat regions, and draws (R, K) by rung."""
    kernel = mhrun.EquiEnergy(proposal, mhrun.Metropolis(), rungs=3, sizes=[N] * 3, **settings)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            model,
            {"x": X},
            kernel,
            step_size=step_size,
            temperature=list(T),
            chains=12,
            warmup=600,
            steps=steps,
            seed=1,
            progress=False,
        )
    draws = trace["posterior"]["theta"].values[..., 0]
    lines = [line for one in found if "flat" in (line := str(one.message))]
    return lines, np.stack([draws[k :: len(T)].ravel() for k in range(len(T))])


@pytest.mark.slow
def test_rungs_that_long_langevin_steps_keep_in_the_flat_region_are_named():
    """The steps that burn-in arrives at are as long. Those of a random walk and short ones leave it."""
    h, levels = 0.5 * N * (GRID - X.mean()) ** 2, np.array([0.0, 10.0, 30.0])
    expected = above(h, levels)
    assert (expected[1:] > 0.05).all()
    (line,), draws = run(NORMAL, mhrun.LangevinProposal(), 0.3)
    assert "none of 400 draws of rungs 1, 2 has an energy above H_k" in line
    assert (np.interp(draws[1:], GRID, h) < levels[1:, None]).all()
    for proposal, step in ((mhrun.RandomWalk(), 0.2), (mhrun.LangevinProposal(), 0.004)):
        lines, draws = run(NORMAL, proposal, step, steps=1_500)
        assert lines == []
        found = (np.interp(draws[1:], GRID, h) > levels[1:, None]).mean(1)
        assert found == pytest.approx(expected[1:], rel=0.4)  # about 400 effective draws, 30 of them outside


@pytest.mark.slow
def test_an_anchor_at_a_lower_mode_is_named_with_a_better_point():
    """Mixture of modes at -1 and 1; the second has three times the density."""

    def log_prior(theta):
        return torch.logsumexp(
            torch.log(torch.tensor([0.25, 0.75])) - 12.5 * (theta[0] - torch.tensor([-1.0, 1.0])) ** 2, 0
        )

    model = mhrun.FunctionModel(lambda theta, rows: 0 * rows.x * theta[0], log_prior=log_prior, start=[0.0])
    for anchor, count in ((-1.0, 1), (1.0, 0)):
        lines, _ = run(model, mhrun.RandomWalk(), 0.3, anchor=[anchor], spacing=1.0)
        assert len(lines) == count
        if count:
            below = float(lines[0].split("up to ")[1].split(" T below H_0")[0])
            assert below == pytest.approx(np.log(3), abs=0.01)
            assert float(lines[0].split("instance [")[1].split("]")[0]) == pytest.approx(1, abs=0.05)
