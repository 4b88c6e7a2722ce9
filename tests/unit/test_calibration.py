"""Scores of class probabilities, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, special
from sklearn.metrics import roc_auc_score

from mhrun.data import Dataset
from mhrun.diagnostics.calibration import (
    best_temperature,
    brier,
    calibration_error,
    false_positives,
    temperature_scaled,
)
from mhrun.errors import Refusal
from mhrun.models.perceptron import Perceptron
from mhrun.monitors.calibration import Calibration
from mhrun.monitors.uncertainty import Uncertainty
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


def nll(beta, log_p, y):
    q = beta * log_p
    return -np.mean(q[np.arange(len(y)), y] - special.logsumexp(q, axis=-1))


def test_the_best_temperature_has_the_least_loss(predicted):
    """Against SciPy's minimiser, and on scores that were made too sharp by a known factor."""
    p, y = predicted
    log_p = np.maximum(np.log(np.maximum(p, 1e-300)), -70.0)
    found = best_temperature(torch.from_numpy(p).log(), torch.from_numpy(y))
    for c in range(C):
        best = optimize.minimize_scalar(
            lambda log_beta, c=c: nll(np.exp(log_beta), log_p[c], y), bounds=(-5, 5), method="bounded"
        )
        assert nll(1 / float(found[c]), log_p[c], y) <= best.fun + 1e-9
    rng = np.random.default_rng(0)
    right = rng.dirichlet(np.ones(K), 20_000)
    drawn = (rng.random((20_000, 1)) > right.cumsum(-1)).sum(-1)
    sharp = torch.from_numpy(2.5 * np.log(right))[None].log_softmax(-1)
    classes = torch.from_numpy(drawn)
    assert float(best_temperature(sharp, classes)) == pytest.approx(2.5, rel=0.05)
    scaled = temperature_scaled(sharp, classes)
    assert float(scaled.temperature) == pytest.approx(2.5, rel=0.07)
    assert float(scaled.ece) < 0.02 < float(calibration_error(sharp.exp(), classes))
    assert float(scaled.nll) == pytest.approx(-np.log(right[np.arange(20_000), drawn]).mean(), abs=1e-3)


def test_each_half_is_scored_at_the_temperature_of_the_other(predicted):
    p, y = predicted
    log_p, classes = torch.from_numpy(p).log(), torch.from_numpy(y)
    scaled = temperature_scaled(log_p, classes, bins=5)
    at = [best_temperature(log_p[:, k::2], classes[k::2]).numpy() for k in (0, 1)]
    held = np.maximum(np.log(np.maximum(p, 1e-300)), -70.0)
    for c in range(C):
        wanted = [nll(1 / at[k][c], held[c, 1 - k :: 2], y[1 - k :: 2]) for k in (0, 1)]
        assert float(scaled.nll[c]) == pytest.approx(np.mean(wanted))


def test_a_half_that_is_right_makes_the_other_too_sure_of_what_is_wrong():
    """Data of even number are right, the others wrong: temperatures are the least and the greatest, e^-5 and e^5."""
    log_p = torch.tensor([0.8, 0.2], dtype=torch.float64).log().expand(1, 4, 2)
    (found,) = temperature_scaled(log_p, torch.tensor([0, 1, 0, 1])).nll.tolist()
    wrong, right = np.log1p(np.exp(np.log(4) * np.exp(5))), np.log1p(np.exp(-np.log(4) * np.exp(-5)))
    assert found == pytest.approx((wrong + right) / 2)


def test_false_positives_count_what_lies_below_the_quantile():
    low = torch.arange(1.0, 101.0)[None]
    high = torch.tensor([[95.0, 95.5, 94.0, 200.0]])
    assert false_positives(high, low).tolist() == [0.5]  # the threshold takes 95 of 100: it is 95


def test_a_threshold_takes_no_less_than_its_share():
    """Of ten scores 95 % are nine and a half: the threshold is the tenth."""
    assert false_positives(torch.tensor([[9.5]]), torch.arange(1.0, 11.0)[None]).tolist() == [1.0]


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
    scaled = temperature_scaled(mean.log(), y)
    assert torch.allclose(metrics["nll_scaled_of_ensemble"], scaled.nll)
    assert torch.allclose(metrics["ece_scaled_of_ensemble"], scaled.ece)
    with pytest.raises(Refusal, match="not a whole number of groups of 2; set chains"):
        monitor.start(target, 3)


def test_a_group_of_ladders_has_the_chains_of_one_rung(rng):
    """Two groups of two ladders of three rungs; rung r of ladder l is chain 3 l + r."""
    model = Perceptron([5, K])
    data = Dataset(
        {"x": torch.from_numpy(rng.normal(size=(N, 5))), "y": torch.from_numpy(rng.integers(0, K, N))}
    )
    target = Target(model, data)
    monitor = Calibration(data, every=1, collect=1, group=2).bind(None, 0, 1, rungs=3)
    theta = torch.from_numpy(rng.normal(size=(12, model.dim)))
    _, metrics = monitor.observe(target, monitor.start(target, 12), 1, theta)
    p = model.predict(theta, data.part(0, N)).exp().numpy()
    y = data.fields["y"].numpy()
    for chain in range(12):
        ladder, rung = divmod(chain, 3)
        first = ladder // 2 * 2
        mean = (p[3 * first + rung] + p[3 * (first + 1) + rung]) / 2
        nll = -np.log(mean[np.arange(N), y]).mean()
        assert float(metrics["nll_of_group"][chain]) == pytest.approx(nll)
    assert monitor.together == 6
    with pytest.raises(Refusal, match=r"9 chains are not .* groups of 6, which are 2 ladders of 3 rungs"):
        monitor.start(target, 9)


def test_uncertainty_has_the_scores_of_calibration_and_separates_outside_data_with_groups_of_chains(rng):
    model = Perceptron([5, K])
    data = Dataset(
        {"x": torch.from_numpy(rng.normal(size=(N, 5))), "y": torch.from_numpy(rng.integers(0, K, N))}
    )
    outside = {"x": 0.6 * rng.normal(size=(29, 5)) + 0.4}
    target = Target(model, data)
    kinds = Calibration(data, 2, collect=1, group=2), Uncertainty(data, outside, 2, collect=1, group=2)
    thetas = [torch.from_numpy(rng.normal(size=(4, model.dim))) for _ in range(2)]
    found = []
    for monitor in kinds:
        memory = monitor.start(target, 4)
        memory, _ = monitor.observe(target, memory, 1, thetas[0], torch.tensor([True, True, False, True]))
        found.append(monitor.observe(target, memory, 2, thetas[1])[1])
    for name, values in found[0].items():
        assert torch.equal(found[1][name], values), name
    entropies = []
    for x in (data.fields["x"], torch.from_numpy(outside["x"])):
        part = Dataset({"x": x, "y": torch.zeros(len(x), dtype=torch.int64)}).part(0, len(x))
        p = torch.stack([model.predict(t, part).exp() for t in thetas]).numpy()  # (2, C, n, K)
        together = [(p[0, 0] + p[0, 1] + p[1, 0] + p[1, 1]) / 4, (p[0, 3] + p[1, 2] + p[1, 3]) / 3]
        entropies.append([special.entr(q).sum(-1) for q in together])
    for g, (near, far) in enumerate(zip(*entropies, strict=True)):
        truth = np.repeat([0, 1], [len(near), len(far)])
        auroc = roc_auc_score(truth, np.concatenate([near, far]))
        missed = np.mean(far <= np.sort(near)[int(np.ceil(0.95 * len(near))) - 1])
        for c in (2 * g, 2 * g + 1):
            assert float(found[1]["auroc_of_group"][c]) == pytest.approx(auroc)
            assert float(found[1]["fpr95_of_group"][c]) == pytest.approx(missed)
