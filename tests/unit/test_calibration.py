"""Scores of class probabilities, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhrun.data import Dataset
from mhrun.diagnostics.calibration import brier, calibration_error, false_positives
from mhrun.errors import Refusal
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.calibration import Calibration
from mhrun.target import Target

C, N, K = 3, 41, 4


@pytest.fixture
def predicted(rng):
    p = rng.dirichlet(np.ones(K), (C, N))
    p[:, :6] = np.eye(K)[0]  # certain: in the last bin, not beyond it
    p[:, 6:9] = [0.4, 0.2, 0.2, 0.2]  # on the edge of a bin of five: (0.2, 0.4], in both arithmetics
    return p, rng.integers(0, K, N)


def by_hand(p, y, bins, mass):
    confidence, right = p.max(-1), p.argmax(-1) == y
    order, total, seen = np.argsort(confidence, kind="stable"), 0.0, 0
    for b in range(bins):
        if mass:
            inside = [i for place, i in enumerate(order) if place * bins // len(y) == b]
        else:
            inside = [i for i in range(len(y)) if b / bins < confidence[i] <= (b + 1) / bins]
        seen += len(inside)
        if inside:
            total += len(inside) / len(y) * abs(right[inside].mean() - confidence[inside].mean())
    assert seen == len(y)  # each datum is in one bin
    return total


@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.parametrize("bins", [5, 15])
def test_calibration_error_is_that_of_plain_loops(predicted, bins, mass):
    p, y = predicted
    found = calibration_error(torch.from_numpy(p), torch.from_numpy(y), bins, mass)
    assert found.tolist() == pytest.approx([by_hand(p[c], y, bins, mass) for c in range(C)])


def test_brier_score_is_that_of_plain_loops(predicted):
    p, y = predicted
    expected = [np.mean([((p[c, i] - np.eye(K)[y[i]]) ** 2).sum() for i in range(N)]) for c in range(C)]
    assert brier(torch.from_numpy(p), torch.from_numpy(y)).tolist() == pytest.approx(expected)


def test_false_positives_count_what_lies_below_the_quantile():
    low = torch.arange(1.0, 101.0)[None]
    high = torch.tensor([[95.0, 95.5, 94.0, 200.0]])
    assert false_positives(high, low).tolist() == [0.5]  # the threshold takes 95 of 100: it is 95


def test_ensembles_of_chains_and_mutual_information(rng):
    model = Perceptron([5, K])
    data = Dataset(
        {"x": torch.from_numpy(rng.normal(size=(N, 5))), "y": torch.from_numpy(rng.integers(0, K, N))}
    )
    target, monitor = Target(model, data), Calibration(data, every=2, collect=1, group=2)
    thetas = [torch.from_numpy(rng.normal(size=(4, model.dim))) for _ in range(2)]
    memory = monitor.start(target, 4)
    memory, _ = monitor.observe(target, memory, 1, thetas[0])
    memory, metrics = monitor.observe(target, memory, 2, thetas[1])
    p = torch.stack([model.predict(t, data.part(0, N)).exp() for t in thetas])  # (2, C, N, K)
    mean, y = p.mean(0), data.fields["y"]
    groups = mean.unflatten(0, (2, 2)).mean(1)
    wrong = 100 * (groups.argmax(-1) != y).double().mean(-1)
    nll = -groups.log().gather(-1, y.expand(2, N)[..., None])[..., 0].mean(-1)
    assert torch.allclose(metrics["error_of_group"], wrong.repeat_interleave(2))
    assert torch.allclose(metrics["nll_of_group"], nll.repeat_interleave(2))
    assert torch.allclose(metrics["brier_of_ensemble"], brier(mean, y))
    assert torch.allclose(metrics["ece"], calibration_error(p[1], y))
    entropy = torch.special.entr(p).sum(-1).mean(0)
    information = (torch.special.entr(mean).sum(-1) - entropy).mean(-1)
    assert torch.allclose(metrics["mutual_information"], information)
    assert (information > 0).all()
    with pytest.raises(Refusal, match="no whole number of groups of 2"):
        monitor.start(target, 3)
