"""Energies from minibatches that go on: topped up they are those of the larger minibatch, whatever is in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.kernels.energies import Energies
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.target import Target


class Spiked(GaussianMean):
    """A density that is infinite at data above 3, for theta above 0.2: no likelihood."""

    def log_lik(self, theta, rows):
        return super().log_lik(theta, rows).masked_fill((rows["x"] > 3) & (theta > 0.2), torch.inf)


@pytest.mark.parametrize("differences", [False, True])
def test_a_topped_up_energy_is_that_of_the_larger_minibatch(rng, differences):
    """In plain numbers too; an infinite density among the further data is not a number, as it is among the first."""
    x = np.append(rng.normal(0.2, 0.5, 49), 4.0)
    target = Target(Spiked(2.0), Dataset.of(x))
    energies = Energies([30, 20], [0.1], differences, gradients=False)
    theta = torch.tensor([[0.3], [-0.4], [0.3]], dtype=torch.float64)
    order = np.stack([rng.permutation(49)[:30] for _ in range(3)])
    order[2, 25] = 49
    index = torch.from_numpy(order)
    known, _, _ = energies.of(target, theta, index[:, :20], None, energies.at_anchor(target, index[:, :20]))
    topped = energies.topped(target, theta, known, index[:, 20:], 20)
    whole, _, _ = energies.of(target, theta, index, None, energies.at_anchor(target, index))
    assert known.isfinite().all()
    assert topped.tolist() == pytest.approx(whole.tolist(), nan_ok=True)
    assert topped.isnan().tolist() == [False, False, True]
    for row in (0, 1):

        def log_lik(at, data):
            return sum(-0.5 * (xi - at) ** 2 - 0.5 * np.log(2 * np.pi) for xi in data)

        value, batch = float(theta[row, 0]), x[order[row]]
        gain = 50 / 30 * log_lik(value, batch)
        if differences:
            gain += log_lik(0.1, x) - 50 / 30 * log_lik(0.1, batch)
        log_prior = float(target.model.log_prior(theta[row : row + 1]))
        assert float(topped[row]) == pytest.approx(-gain - log_prior)


def test_without_an_anchor_no_energy_lies_below_the_lowest_level(rng):
    """The energy where the model has chains begin would make the coldest rung flat about the mode."""
    x = rng.normal(5.0, 1.0, 40)
    target = Target(GaussianMean(2.0), Dataset.of(x))
    energies = Energies([10, 5], None, False, False)
    mode = x.sum() / (40 + 1 / 2.0)
    assert float(energies.point(target)[0]) == pytest.approx(mode, abs=1e-6)
    at = torch.linspace(4.0, 6.0, 401, dtype=torch.float64)[:, None]
    found = -(target.full_log_lik(at) + target.model.log_prior(at))
    assert energies.lowest(target)[0] <= float(found.min()) + 1e-9

    class Impossible(GaussianMean):
        def log_lik(self, theta, rows):
            return super().log_lik(theta, rows) - torch.inf

    energies, nowhere = Energies([10, 5], None, False, False), Target(Impossible(None), Dataset.of(x))
    with pytest.raises(Refusal, match=r"no mode of the posterior was found; give kernel\.anchor"):
        energies.lowest(nowhere)


def test_an_anchor_without_an_energy_is_refused():
    target = Target(Spiked(2.0), Dataset.of([0.0, 4.0]))
    assert np.isfinite(Energies([2], [0.1], False, False).lowest(target)).all()
    with pytest.raises(Refusal, match="energy of -inf"):
        Energies([2], [0.3], False, False).lowest(target)


def test_the_noise_of_a_log_ratio_is_that_of_drawing_without_replacement():
    """Two of eight terms, 1 and 3, at T = 2: (8/2)^2 times their variance 2, over 2, times 1 - 2/8."""
    target = Target(GaussianMean(), Dataset.of(np.zeros(8)))
    before, after = {2: torch.tensor([[5.0, 6.0]])}, {2: torch.tensor([[6.0, 9.0]])}
    found = Energies([2], None, False, gradients=False).noise(
        target, before, after, torch.tensor([True]), torch.tensor([2.0])
    )
    assert found.tolist() == pytest.approx([12.0])
