"""Residual, convolutional and recurrent networks."""

from __future__ import annotations

import pytest
import torch
from nets import KEY
from torch import nn

from mhrun.errors import Refusal
from mhrun.models.convolutional import Convolutional
from mhrun.models.layers import CHANNELS, FRN, Normalise, norm_of
from mhrun.models.recurrent import Recurrent
from mhrun.models.residual import Residual
from mhrun.random import Draws, Streams


@pytest.mark.parametrize(
    ("model", "dim", "buffers"),
    [
        # As counted in the code of Zhang et al.; 4,800 channels, 20 layers.
        (lambda: Residual(), 11_173_962, 9620),
        (lambda: Residual([3, 3, 3], [16, 32, 64], "group"), 272_474, 0),
        (lambda: Convolutional(), 4_050_698, 0),
        (lambda: Recurrent(), 89_802, 0),
    ],
)
def test_parameters_are_as_many_as_the_papers_say(model, dim, buffers):
    made = model()
    assert made.dim == dim
    assert made.width - made.dim == buffers


@pytest.mark.parametrize("norm", ["none", "batch", "group", "frn"])
@pytest.mark.parametrize("kind", [Residual, Convolutional])
def test_log_probabilities_are_of_the_classes(rng, kind, norm):
    shape = (
        {"blocks": [1, 1], "widths": [4, 8]}
        if kind is Residual
        else {"widths": [4, 8], "dense": 6, "side": 8}
    )
    model = kind(**shape, norm=norm, classes=5)
    assert bool(model.batch_norms) == (norm == "batch")
    theta = model.init(2, Draws(Streams(KEY, 2), 0))
    x = torch.from_numpy(rng.integers(0, 256, (2, 6, 3, 8, 8))).to(torch.uint8)
    found = model.predict(theta, {"x": x, "y": torch.zeros(2, 6)})
    assert found.shape == (2, 6, 5)
    assert torch.allclose(found.exp().sum(-1), torch.ones(2, 6), atol=1e-5)
    alone = model.predict(theta, {"x": x[:, :1], "y": torch.zeros(2, 1)})
    assert torch.allclose(found[:, :1], alone, atol=1e-4)  # a prediction is the datum's own


def test_layers_are_as_their_formulas(rng):
    x = torch.from_numpy(rng.normal(size=(5, 3, 4, 4))).float()
    mean, sd = (torch.tensor(v) for v in CHANNELS["cifar10"])
    assert torch.allclose(Normalise("cifar10")(x)[:, 1], (x[:, 1] - mean[1]) / sd[1])
    layer = FRN(3)
    with torch.no_grad():
        layer.gamma.copy_(torch.tensor([1.0, 2.0, 0.5])[:, None, None])
        layer.tau.fill_(-0.1)
    nu = (x**2).mean((2, 3), keepdim=True)
    expected = torch.tensor([1.0, 2.0, 0.5])[:, None, None] * x / (nu + 1e-6).sqrt()
    assert torch.allclose(layer(x), expected.clamp_min(-0.1), atol=1e-6)
    assert [norm_of("group", c).num_groups for c in (3, 8, 16, 64)] == [1, 2, 4, 8]
    assert isinstance(norm_of("none", 3), nn.Identity)


def test_an_initial_spread_is_that_of_all_parameters():
    model = Convolutional([2, 2], 0, side=8, weight_sd=0.02)
    theta = model.init(50, Draws(Streams(KEY, 50), 0))
    assert abs(float(theta.std()) / 0.02 - 1) < 0.05


def test_an_lstm_reads_rows_of_bytes(rng):
    model = Recurrent(4, 6, 8, 5)
    x = torch.from_numpy(rng.integers(0, 256, (1, 3, 24))).to(torch.uint8)
    theta = model.init(2, Draws(Streams(KEY, 2), 0))
    log_lik, grad = model.log_lik_and_grad(theta, {"x": x, "y": torch.tensor([[0, 1, 2]])})
    assert log_lik.shape == (2, 3)
    assert (grad != 0).double().mean() > 0.4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Residual([1], [4, 8]), "as many widths"),
        (lambda: Residual(norm="layer"), "norm = 'layer' is unknown"),
        (lambda: Convolutional([2, 2], side=6), "cannot be halved"),
        (lambda: Convolutional(normalise="mnist"), "choose cifar10, cifar100 or null"),
        (lambda: Recurrent(hidden=0), "at least 1"),
    ],
)
def test_settings_without_a_meaning_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()
