"""Log-probabilities of classes and their gradient: the compiled pass beside SciPy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from mhrun.errors import UserError
from mhrun.models import classes
from mhrun.models.classes import categorical
from mhrun.native.softmax import is_compiled, log_p_and_grad


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1000.0])
def test_log_probabilities_of_classes_and_their_gradient(spread):
    """In float64: log p_y, and 1{k = y} - p_k."""
    rng = np.random.default_rng(3)
    logits = (spread * rng.normal(size=(3, 70, 10))).astype("float32")
    y = rng.integers(0, 10, (1, 70))
    assert is_compiled(torch.from_numpy(logits))
    log_p, grad = log_p_and_grad(torch.from_numpy(logits), torch.from_numpy(y))
    expected = log_softmax(logits.astype("float64"), axis=-1)
    right = np.eye(10)[y[0]]
    np.testing.assert_allclose(log_p, (expected * right).sum(-1), rtol=3e-7, atol=1e-6)
    np.testing.assert_allclose(grad, right - np.exp(expected), atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_give_what_torch_gives(bad, monkeypatch):
    logits = torch.randn(2, 60, 10, generator=torch.Generator().manual_seed(5))
    logits[0, 3, 4], logits[0, 5], logits[1, 7, :3] = bad, bad, bad
    y = torch.full((1, 60), 4)
    compiled = categorical(logits, y)
    monkeypatch.setattr(classes, "is_compiled", lambda logits: False)
    for one, other in zip(compiled, categorical(logits, y), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_the_number_of_chains_does_not_decide_how_classes_are_computed():
    assert not is_compiled(torch.zeros(100, 40, 10))
    assert is_compiled(torch.zeros(1, 50, 10))
    assert not is_compiled(torch.zeros(1, 50, 10, dtype=torch.float64))
    assert not is_compiled(torch.zeros(1, 50, 10, requires_grad=True))


@pytest.mark.parametrize("wrong", [-1, 10])
def test_a_class_without_an_output_is_refused(wrong):
    y = torch.zeros(1, 60, dtype=torch.int64)
    y[0, 7] = wrong
    with pytest.raises(UserError, match=f"y holds the class {wrong}; with 10 outputs, classes are 0 to 9"):
        categorical(torch.zeros(3, 60, 10), y)
